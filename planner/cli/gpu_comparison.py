"""``planner gpus --compare``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import click

from planner.catalog import load_gpu
from planner.cli.completions import complete_gpus
from planner.cli.output import echo_json, width
from planner.cli.roofline import roof_facts
from planner.errors import SpecError
from planner.reference_operators import reference_times
from planner.rooflines import roofs_of
from planner.specs import GPU, Calibration
from planner.units import BITS_PER_BYTE, GIB, GIGA, MEGA, MIB, MICRO, NANO, TERA

_SCALES = {
    "overhead": (MICRO, "us"),
    "cta_time": (MICRO, "us"),
    "block_time": (MICRO, "us"),
    "per_rank": (MICRO, "us"),
    "sqrt_time": (MICRO, "us"),
    "alpha": (MICRO, "us"),
    "softmax_time": (NANO, "ns"),
    "bandwidth": (GIGA, "gb_per_s"),
}
"""Coefficients that are no plain numbers: unit of the profile's figure, and its name."""


_KINDS = (
    "gemm", "decode_attention", "prefill_attention", "moe", "latent_decode", "latent_prefill", "elementwise",
    "all_reduce", "pcie_all_reduce",
)  # fmt: skip


@click.command("compare")
@click.argument("names", metavar="GPU GPU...", nargs=-1, required=True, shell_complete=complete_gpus)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare(names: tuple[str, ...], as_json: bool) -> None:
    """GPU profiles side by side: figures, ridge points, calibration, and predicted times of some operators.

    GPU is a catalogue name or a profile's path. `planner gpus --compare` is the same.
    """
    if len(names) < 2:
        raise SpecError(
            f"a comparison needs two GPUs or more, got {names[0]!r} alone (for example h100 a100)"
        )
    gpus = [load_gpu(name) for name in names]
    facts = comparison_facts(gpus, _labels(names, gpus))
    if as_json:
        echo_json(facts)
        return
    from planner.report.gpus import print_comparison  # rich: only where tables are printed

    print_comparison(facts, width())


def _labels(names: Sequence[str], gpus: Sequence[GPU]) -> list[str]:
    """Names of the profiles; of those with one name, what the user calls them by."""
    canonical = [gpu.name for gpu in gpus]
    return [
        own
        if canonical.count(own) == 1
        else (Path(name).name if name.lower().endswith((".yaml", ".yml")) else name)
        for name, own in zip(names, canonical, strict=True)
    ]


def comparison_facts(gpus: Sequence[GPU], labels: Sequence[str]) -> dict[str, Any]:
    """The JSON of a comparison: lists have an entry per GPU, in the order given.

    None where something is not known, or not there. Ratios are to the first GPU's time.
    """
    times = [reference_times(gpu) for gpu in gpus]
    return {
        "gpus": [_gpu(gpu, label) for gpu, label in zip(gpus, labels, strict=True)],
        "reference_operators": [
            {
                "operator": row[0].operator,
                "shape": row[0].shape,
                "time_us": [None if x.time is None else x.time / MICRO for x in row],
                "ratio": [
                    None if x.time is None or row[0].time is None else x.time / row[0].time for x in row
                ],
            }
            for row in zip(*times, strict=True)
        ],
    }


def _gpu(gpu: GPU, label: str) -> dict[str, Any]:
    c = gpu.calibration
    return {
        "label": label,
        "name": gpu.name,
        "vendor": gpu.vendor,
        "architecture": gpu.architecture,
        "peak_tflops": {d.value: rate / TERA for d, rate in gpu.peak_flops.items()},
        "hbm_gb_per_s": gpu.hbm_bandwidth / GIGA,
        "memory_gib": gpu.memory / GIB,
        "driver_memory_mib": None if gpu.driver_memory is None else gpu.driver_memory / MIB,
        "l2_mb": gpu.l2_bytes / MEGA,
        "sm_count": gpu.sm_count,
        "scale_up": gpu.scale_up_kind,
        "scale_up_gb_per_s": gpu.scale_up_bandwidth / GIGA,
        "scale_up_gpus": gpu.scale_up_domain,
        "host_gb_per_s": gpu.host_bandwidth / GIGA,
        "network_gbps": gpu.network_bandwidth * BITS_PER_BYTE / GIGA,
        "node_size": gpu.node_size,
        "power_w": gpu.power,
        "ridge_flop_per_byte": {d.value: peak / gpu.hbm_bandwidth for d, peak in gpu.peak_flops.items()},
        "roofs": [roof_facts(roof) for roof in roofs_of(gpu)],
        "calibration": c.status.value,
        "calibration_date": c.date,
        "coefficients": _coefficients(c),
        "log_sd": dict(c.log_sd),
        "unverified": list(gpu.unverified),
    }


def _coefficients(c: Calibration) -> dict[str, float]:
    """All of them by dotted name, in the profile's units."""
    return {key: value for kind in _KINDS for key, value in _flat(kind, getattr(c, kind))}


def _flat(name: str, value: Any) -> list[tuple[str, float]]:
    if value is None:
        return []
    if isinstance(value, Mapping):
        return [pair for key, part in value.items() for pair in _flat(f"{name}.{key}", part)]
    assert is_dataclass(value)
    assert not isinstance(value, type)
    found = []
    for key, number in asdict(value).items():
        if number is not None:
            scale, unit = _SCALES.get(key, (1.0, ""))
            found.append((f"{name}.{key}" + (f"_{unit}" if unit else ""), number / scale))
    return found

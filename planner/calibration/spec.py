"""The ``spec`` of a profile: the catalogue's of a known make, else what a device says and attains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.calibration.peaks import attained_arithmetic, attained_bandwidth
from planner.device_facts import DeviceFacts
from planner.documents.gpu_profile import GpuProfileDocument
from planner.errors import SpecError
from planner.samples import Operator, SampleSet
from planner.specs import Dtype
from planner.units import GIB, GIGA, MEGA, MIB, TERA

_PEAK_KEYS = {
    Dtype.BF16: "bf16",
    Dtype.FP16: "fp16",
    Dtype.FP8: "fp8",
    Dtype.INT8: "int8",
    Dtype.NVFP4: "fp4",
}
_UNKNOWN_POWER = 300.0  # [W]
_UNKNOWN_NETWORK = 100.0  # [Gbit/s]
_MIDDLE = 16 * MEGA  # a copy larger than this shows bandwidth, not latency [B]


def measured_spec(
    samples: SampleSet, facts: DeviceFacts, base: GpuProfileDocument | None, date: str
) -> tuple[dict[str, str], dict[str, Any]]:
    """Sources and figures.

    Raises
    ------
    SpecError
        For an unknown device without samples that tell its bandwidth and 16-bit peak.
    """
    if base is not None:
        dumped = base.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        return dumped["sources"], dumped["spec"]
    sources = {
        "device": f"read from {facts.name} by torch",
        "measured": f"planner profile on {facts.name}, {date}: the best that any case attained",
        "assumed": "nobody measured it: a placeholder, which scenarios may override",
    }
    peaks = {}
    for dtype, key in _PEAK_KEYS.items():
        try:
            attained = attained_arithmetic(samples, dtype)
        except SpecError:
            continue
        peaks[key] = _figure(attained / TERA, "measured", "Attained, not the vendor's figure.")
    if not {"bf16", "fp16"} & peaks.keys():
        raise SpecError("no matrix product in 16 bits was measured: a profile needs that at least")
    link, kind = _link(samples, facts)
    host = _host(samples, facts)
    return sources, {
        "peak_tflops": peaks,
        "hbm_gb_per_s": _figure(
            attained_bandwidth(samples, facts.cache) / GIGA, "measured", "Attained, not the vendor's figure."
        ),
        "memory_gib": _figure(facts.memory / GIB, "device"),
        **_driver(facts),
        "l2_mb": _figure(facts.cache / MEGA, "device"),
        "sm_count": {"value": facts.sm_count, "source": "device"},
        "scale_up": {"kind": kind, "gb_per_s": link, "domain": {"value": facts.count, "source": "device"}},
        "host_gb_per_s": host,
        "network_gbps": _assumed(_UNKNOWN_NETWORK),
        "power_w": _assumed(_UNKNOWN_POWER) if facts.power is None else _figure(facts.power, "device"),
        "node_size": {"value": facts.count, "source": "device"},
    }


def _figure(value: float, source: str, note: str = "") -> dict[str, Any]:
    figure: dict[str, Any] = {"value": float(f"{value:.5g}"), "source": source}
    return {**figure, "note": note} if note else figure


def _assumed(value: float) -> dict[str, Any]:
    return {"value": value, "source": "assumed", "unverified": True}


def _driver(facts: DeviceFacts) -> Mapping[str, Any]:
    if facts.driver_memory is None:
        return {}
    return {"driver_memory_mib": {"value": round(facts.driver_memory / MIB), "source": "device"}}


def _largest_rate(samples: SampleSet, operator: Operator) -> float | None:
    """Bytes over time of the largest message. [B/s]"""
    found = samples.get(operator)
    if found is None or not len(found):
        return None
    rates = found.axes["bytes"] / found.time
    large = found.axes["bytes"] >= min(_MIDDLE, float(found.axes["bytes"].max()))
    return float(rates[large].max())


def _link(samples: SampleSet, facts: DeviceFacts) -> tuple[dict[str, Any], str]:
    """Bandwidth of the link to other devices of the machine, and its kind."""
    rate = _largest_rate(samples, Operator.POINT_TO_POINT)
    if facts.kind == "cpu":
        memory = attained_bandwidth(samples, facts.cache) / GIGA if rate is None else rate / GIGA
        return _figure(memory, "measured", "Through the memory that processes share."), "shared-memory"
    if rate is None:
        return _host(samples, facts), "pcie"
    return _figure(rate / GIGA, "measured", "Point to point."), "pcie"


def _host(samples: SampleSet, facts: DeviceFacts) -> dict[str, Any]:
    rate = _largest_rate(samples, Operator.HOST_COPY)
    if rate is not None:
        return _figure(rate / GIGA, "measured", "Pinned memory to the device.")
    if facts.kind == "cpu":
        return _figure(attained_bandwidth(samples, facts.cache) / GIGA, "measured", "The same memory.")
    return _assumed(16.0)

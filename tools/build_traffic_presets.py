"""Write ``planner/catalog/traffic/*.yaml`` from trace files.

    python tools/build_traffic_presets.py azure2023_conv.csv azure2023_code.csv mooncake_conversation.csv

Each file is a CSV with columns ``timestamp_s``, ``input_tokens``, ``output_tokens``; its stem selects the
citation below. Presets hold statistics only: quantiles of the lengths, rate, burstiness.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PROBABILITIES = (
    *(0.0, 0.005, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7),
    *(0.75, 0.8, 0.85, 0.9, 0.93, 0.95, 0.96, 0.97, 0.975, 0.98, 0.985, 0.99, 0.9925, 0.995, 0.9965),
    *(0.998, 0.999, 0.9995, 0.9998, 1.0),
)
"""Dense in the tail: a straight line between quantiles lies above a convex quantile function."""

SEED = 0


@dataclass(frozen=True)
class Preset:
    """What the trace file does not say about itself.

    ``spread_timestamps``: equal timestamps stand for the time up to the next one.
    """

    name: str
    description: str
    citation: str
    source: str
    licence: str
    spread_timestamps: bool = False
    note: str = ""


_AZURE = (
    "P. Patel et al., 'Splitwise: Efficient Generative LLM Inference Using Phase Splitting', ISCA 2024; "
    "trace by Microsoft, https://github.com/Azure/AzurePublicDataset"
)

PRESETS = {
    "azure2023_conv": Preset(
        name="azure-2023-conversation",
        description="Conversations at Azure, about an hour of 2023-11-16.",
        citation=_AZURE,
        source="AzurePublicDataset, data/AzureLLMInferenceTrace_conv.csv at b469a113",
        licence="CC-BY-4.0",
    ),
    "azure2023_code": Preset(
        name="azure-2023-code",
        description="Code completion at Azure, about an hour of 2023-11-16.",
        citation=_AZURE,
        source="AzurePublicDataset, data/AzureLLMInferenceTrace_code.csv at b469a113",
        licence="CC-BY-4.0",
        note=(
            "Bursts last tens of seconds: the inter-arrival times are no renewal process, so plan for the "
            "peak rate or replay the trace rather than use their coefficient of variation in a queueing "
            "formula."
        ),
    ),
    "mooncake_conversation": Preset(
        name="mooncake-conversation",
        description="Conversations at Moonshot AI (Kimi), about an hour, long prompts with shared prefixes.",
        citation=(
            "R. Qin et al., 'Mooncake: Trading More Storage for Less Computation - A KVCache-centric "
            "Architecture for Serving LLM Chatbot', FAST 2025; trace at https://github.com/kvcache-ai/Mooncake"
        ),
        source="Mooncake, FAST25-release/traces/conversation_trace.jsonl at 3b5a5941",
        licence="Apache-2.0",
        spread_timestamps=True,
        note=(
            "Timestamps are multiples of about 3 s. Inter-arrival times were computed after spreading equal "
            "timestamps at random over the gap that follows. An infinite prefix cache would hit 37 % of the "
            "blocks of 512 tokens."
        ),
    ),
}


def read_trace(path: Path) -> tuple[Floats, Floats, Floats]:
    """Timestamps [s], input and output tokens of a trace, by time."""
    with path.open(encoding="utf-8") as file:
        names = file.readline().strip().split(",")
    columns = [names.index(name) for name in ("timestamp_s", "input_tokens", "output_tokens")]
    rows = np.loadtxt(path, delimiter=",", skiprows=1, usecols=columns)
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    return rows[:, 0], rows[:, 1], rows[:, 2]


def spread(times: Floats, rng: np.random.Generator) -> Floats:
    """Equal timestamps, uniformly over the time up to the next one. [s]"""
    distinct, index = np.unique(times, return_inverse=True)
    gaps = np.diff(distinct, append=distinct[-1] + np.median(np.diff(distinct)))
    return np.sort(times + gaps[index] * rng.random(times.size))


def window_counts(times: Floats, width: float) -> Floats:
    """Arrivals in whole windows of `width` from the first arrival on. [1]"""
    whole = int((times[-1] - times[0]) // width)
    edges = times[0] + width * np.arange(whole + 1)
    return np.histogram(times, edges)[0].astype(np.float64)


def dispersion(times: Floats, width: float) -> float:
    """Variance over mean of the arrivals in windows; 1 for a Poisson process. [1]"""
    counts = window_counts(times, width)
    return float(counts.var() / counts.mean())


def statistics(times: Floats, isl: Floats, osl: Floats, preset: Preset) -> dict[str, Any]:
    """The preset's numbers, in the keys and units of its file."""
    arrivals = spread(times, np.random.default_rng(SEED)) if preset.spread_timestamps else times
    gaps = np.diff(arrivals)
    duration = times[-1] - times[0]
    return {
        "requests": times.size,
        "duration_s": round(float(duration), 1),
        "request_rate": round(float(times.size / duration), 4),
        "interarrival_cv": round(float(gaps.std() / gaps.mean()), 3),
        "dispersion_10s": round(dispersion(times, 10.0), 2),
        "dispersion_60s": round(dispersion(times, 60.0), 2),
        "peak_60s_request_rate": round(float(window_counts(times, 60.0).max()) / 60.0, 3),
        "input_tokens": table(isl),
        "output_tokens": table(osl),
        "isl_per_output_token": round(float((isl * osl).mean() / osl.mean()), 1),
    }


def table(lengths: Floats) -> dict[str, Any]:
    """Mean and quantiles. [tok]"""
    quantiles = np.quantile(lengths, PROBABILITIES)
    return {
        "mean": round(float(lengths.mean()), 2),
        "probabilities": list(PROBABILITIES),
        "values": [round(float(v), 1) for v in quantiles],
    }


def preset_text(preset: Preset, numbers: dict[str, Any]) -> str:
    """One file."""
    lines = ["# Written by tools/build_traffic_presets.py: change that and run it again."]
    for key in ("name", "description", "citation", "source", "licence"):
        lines.append(f"{key}: {json.dumps(getattr(preset, key), ensure_ascii=False)}")
    if preset.note:
        lines.append(f"note: {json.dumps(preset.note, ensure_ascii=False)}")
    for key, value in numbers.items():
        if not isinstance(value, dict):
            lines.append(f"{key}: {value}")
            continue
        lines += [f"{key}:", f"  mean: {value['mean']}"]
        lines += [f"  {k}: [{', '.join(f'{x:g}' for x in value[k])}]" for k in ("probabilities", "values")]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("traces", type=Path, nargs="+", help="trace files")
    parser.add_argument(
        "--output", type=Path, default=Path("planner/catalog/traffic"), help="folder to write to"
    )
    arguments = parser.parse_args()
    for path in arguments.traces:
        if path.stem not in PRESETS:
            parser.error(f"{path}: no citation for {path.stem!r}; known: {', '.join(PRESETS)}")
        preset = PRESETS[path.stem]
        text = preset_text(preset, statistics(*read_trace(path), preset))
        (arguments.output / f"{preset.name}.yaml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

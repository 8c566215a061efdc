"""Colocated against disaggregated serving: goodput per GPU over a grid of SLOs, by simulation.

    python -m benchmarks.disaggregation [--gpus 16] [--workers 2] [--quick] [-o docs]

For a 13B and a 70B model on A100 and H100, and for each pair of limits on p99 TTFT and p99 TPOT, the planner
looks for the colocated and for the disaggregated fleet of 16 GPUs that carries most (objective throughput),
simulates it, and corrects it until it holds. What is compared is the rate that was simulated, times the share
of requests within both limits: goodput. Writes a page with tables and pictures.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.documents.files import write_text_atomic
from planner.documents.scenario import scenario_from_text
from planner.documents.yaml_text import dump_yaml
from planner.errors import InfeasibleError, SolverError
from planner.search import SolveOptions
from planner.units import KILO
from planner.workflow import solve

MODELS = {"13B": "meta-llama/Llama-2-13b-hf", "70B": "meta-llama/Llama-3.1-70B"}
GPUS = ("a100-80gb-sxm", "h100-sxm")
TTFT = (250, 500, 1000, 2000, 4000)  # [ms]
TPOT = (15, 25, 40, 60, 100)  # [ms]
KINDS = {"colocated": "only", "disaggregated": "forbidden"}
INPUT, OUTPUT = 3000, 1000  # longest prompt and answer: the 13B model takes 4,096 tokens [tok]
TIE = 0.03  # difference of goodput below which neither wins [1]


@dataclass(frozen=True, slots=True)
class Point:
    model: str
    gpu: str
    ttft: int
    tpot: int
    kind: str
    gpus: int


@dataclass(frozen=True, slots=True)
class Found:
    """What a fleet was seen to do; goodput 0: none meets the limits."""

    point: Point
    goodput: float
    fleet: str
    stall: float
    stall_share: float
    passed: bool
    reason: str = ""


def scenario(point: Point) -> dict[str, Any]:
    return {
        "model": MODELS[point.model],
        "engine": "vllm",
        "workload": {
            "preset": "azure-2023-conversation",
            "arrivals": "poisson",
            "input_tokens": {"max": INPUT},
            "output_tokens": {"max": OUTPUT},
        },
        "slo": {"ttft_ms": {"p99": point.ttft}, "tpot_ms": {"p99": point.tpot}},
        "fleet": [{"gpu": point.gpu, "max_gpus": point.gpus, "node_size": 8}],
        "objective": "throughput",
        "options": {"whole_nodes": False, "colocated": KINDS[point.kind]},
    }


def find(point: Point) -> Found:
    loaded = scenario_from_text(dump_yaml(scenario(point)))
    try:
        plan = solve(loaded, SolveOptions(alternatives=False))
    except (InfeasibleError, SolverError) as error:
        return Found(point, 0.0, "none", 0.0, 0.0, False, str(error).splitlines()[0])
    assert plan.verification is not None
    seen = plan.verification.details
    fleet = " + ".join(f"{g.replicas} x {g.parallelism} {g.phase}" for g in plan.groups)
    return Found(
        point,
        seen["goodput"] if plan.verification.passed else 0.0,
        fleet,
        seen["stall_mean_ms"],
        seen["stall_share"],
        plan.verification.passed,
    )


def points(gpus: int, quick: bool) -> Iterator[Point]:
    for model in MODELS:
        for gpu in GPUS:
            for ttft in TTFT[::2] if quick else TTFT:
                for tpot in TPOT[::2] if quick else TPOT:
                    for kind in KINDS:
                        yield Point(model, gpu, ttft, tpot, kind, gpus)


# --------------------------------------------------------------------------------------------
# The page


def page(found: Sequence[Found], gpus: int) -> str:
    """Tables as found, whichever way they come out."""
    lines = [
        "# Colocated or disaggregated?",
        "",
        "Written by `python -m benchmarks.disaggregation`; do not edit.",
        "",
        f"Goodput per GPU of the best fleet of {gpus} GPUs of one type, colocated (chunked prefill) and "
        "disaggregated, for each pair of limits on p99 TTFT and p99 TPOT. Traffic: lengths of the Azure 2023 "
        f"conversation trace, cut to {INPUT:,} tokens in and {OUTPUT:,} out, Poisson arrivals; 16-bit "
        "weights and cache; vLLM; the model error that a confidence of 0.8 plans for. Every figure is that "
        "of a simulated fleet that meets both limits; 0: none was found that does. Fleets are chosen by the "
        "integer program and corrected by simulation, in four rounds at most: a better one may exist.",
        "",
        summary(found),
    ]
    for model in MODELS:
        for gpu in GPUS:
            lines += ["", *section(model, gpu, found, gpus)]
    return "\n".join(lines) + "\n"


def summary(found: Sequence[Found]) -> str:
    wins = {"colocated": 0, "disaggregated": 0, "neither": 0}
    for one, other in pairs(found):
        wins[winner(one, other)] += 1
    total = sum(wins.values())
    return (
        f"Of {total} combinations of model, GPU and limits, disaggregated serving carries more in "
        f"{wins['disaggregated']}, colocated serving in {wins['colocated']}; in {wins['neither']} they "
        f"differ by less than {TIE:.0%}, or neither meets the limits."
    )


def pairs(found: Sequence[Found]) -> list[tuple[Found, Found]]:
    """Colocated and disaggregated at the same limits."""
    return [(a, b) for a, b in zip(found[::2], found[1::2], strict=True)]


def winner(colocated: Found, disaggregated: Found) -> str:
    a, b = colocated.goodput, disaggregated.goodput
    if max(a, b) == 0 or abs(a - b) <= TIE * max(a, b):
        return "neither"
    return "colocated" if a > b else "disaggregated"


def section(model: str, gpu: str, found: Sequence[Found], gpus: int) -> list[str]:
    mine = [(a, b) for a, b in pairs(found) if (a.point.model, a.point.gpu) == (model, gpu)]
    tpots = sorted({a.point.tpot for a, _ in mine})
    lines = [
        f"## {model} ({MODELS[model]}) on {gpu}",
        "",
        f"![goodput per GPU](disaggregation-{model.lower()}-{gpu}.png)",
        "",
        "Goodput per GPU [req/s], colocated / disaggregated; the winner in bold.",
        "",
        "| p99 TTFT | " + " | ".join(f"TPOT {t} ms" for t in tpots) + " |",
        "| --- |" + " --- |" * len(tpots),
    ]
    for ttft in sorted({a.point.ttft for a, _ in mine}):
        cells = [cell(a, b, gpus) for a, b in mine if a.point.ttft == ttft]
        lines.append(f"| {ttft:,} ms | " + " | ".join(cells) + " |")
    lines += [
        "",
        "Decoding held up by prompts, mean per request [ms] and share of its decoding, colocated; in "
        "disaggregated fleets it is 0.",
        "",
        "| p99 TTFT | " + " | ".join(f"TPOT {t} ms" for t in tpots) + " |",
        "| --- |" + " --- |" * len(tpots),
    ]
    for ttft in sorted({a.point.ttft for a, _ in mine}):
        cells = [
            f"{a.stall:,.0f} ({a.stall_share:.0%})" if a.goodput else "-"
            for a, _ in mine
            if a.point.ttft == ttft
        ]
        lines.append(f"| {ttft:,} ms | " + " | ".join(cells) + " |")
    lines += ["", "Fleets at p99 TTFT of 1 s:", ""]
    for a, b in mine:
        if a.point.ttft == 1000:
            lines.append(f"- TPOT {a.point.tpot} ms: {a.fleet}; {b.fleet}")
    return lines


def cell(colocated: Found, disaggregated: Found, gpus: int) -> str:
    won = winner(colocated, disaggregated)
    texts = [
        f"**{one.goodput / gpus:.2f}**" if won == kind else f"{one.goodput / gpus:.2f}"
        for kind, one in (("colocated", colocated), ("disaggregated", disaggregated))
    ]
    return " / ".join(texts)


def picture(model: str, gpu: str, found: Sequence[Found], gpus: int, path: Path) -> None:
    """One panel per TTFT limit: goodput per GPU over the TPOT limit."""
    from matplotlib.figure import Figure

    mine = [(a, b) for a, b in pairs(found) if (a.point.model, a.point.gpu) == (model, gpu)]
    ttfts = sorted({a.point.ttft for a, _ in mine})
    figure = Figure(figsize=(2.6 * len(ttfts), 2.8), layout="constrained")
    axes = figure.subplots(1, len(ttfts), sharey=True, squeeze=False)[0]
    for axis, ttft in zip(axes, ttfts, strict=True):
        row = [(a, b) for a, b in mine if a.point.ttft == ttft]
        x = [a.point.tpot for a, _ in row]
        axis.plot(x, [a.goodput / gpus for a, _ in row], "s--", color="#7b3294", label="colocated")
        axis.plot(x, [b.goodput / gpus for _, b in row], "o-", color="#e66101", label="disaggregated")
        axis.set_title(f"p99 TTFT ≤ {ttft / KILO:g} s", fontsize=9)
        axis.set_xlabel("p99 TPOT limit [ms]", fontsize=8)
        axis.grid(alpha=0.3)
        axis.tick_params(labelsize=8)
    axes[0].set_ylabel("goodput per GPU [req/s]", fontsize=8)
    axes[0].legend(fontsize=7)
    figure.suptitle(f"{model} on {gpu}", fontsize=10)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description="Colocated against disaggregated serving.")
    parser.add_argument("--gpus", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="every other limit only")
    parser.add_argument("-o", "--output", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    asked = list(points(arguments.gpus, arguments.quick))
    found: list[Found] = []
    with ProcessPoolExecutor(arguments.workers) as pool:
        for one in pool.map(find, asked):
            found.append(one)
            p = one.point
            rate = one.goodput / p.gpus
            print(
                f"{len(found)}/{len(asked)} {p.model} {p.gpu} TTFT {p.ttft} TPOT {p.tpot} {p.kind}: "
                f"{rate:.3f} req/s per GPU, {one.fleet} {one.reason}",
                flush=True,
            )
    arguments.output.mkdir(exist_ok=True)
    write_text_atomic(arguments.output / "disaggregation.md", page(found, arguments.gpus))
    for model in MODELS:
        for gpu in GPUS:
            path = arguments.output / f"disaggregation-{model.lower()}-{gpu}.png"
            picture(model, gpu, found, arguments.gpus, path)


if __name__ == "__main__":
    main()

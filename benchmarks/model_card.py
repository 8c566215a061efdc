"""The model card: how far predictions are from public measurements, by GPU, kind of model and engine.

    python -m benchmarks.model_card MEASURED.csv PUBLISHED.csv [--peer PEER.csv] [--write docs/model-card.md]

MEASURED.csv has the columns of ``planner validate``'s first form, PUBLISHED.csv is in long format. Each row
of the first table is one ``planner validate`` command, named beside it. Takes a minute.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.documents.files import write_text_atomic
from planner.engines import VERSION_LOG_SD, shipped_constants
from planner.units import MICRO, MILLI
from planner.validation.comparison import E2E, THROUGHPUT, TPOT, TTFT, Comparison, compare
from planner.validation.evaluate import NO_PROTOCOL_LOG_SD, ConstantsKind, Split
from planner.validation.peers import peer_errors
from planner.validation.scores import Errors

FEWEST = 20
"""Rows of a family that is left out, for it to be a bar."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One line of the first table.

    ``limits`` are of the median and of the mean error; None where there is none.
    """

    what: str
    kind: str
    options: Mapping[str, Any]
    limits: tuple[float, float | None]
    published: bool = False

    @property
    def command(self) -> str:
        """The same on the command line."""
        words = ["planner validate", "PUBLISHED.csv" if self.published else "MEASURED.csv"]
        for name, value in self.options.items():
            for each in value if isinstance(value, tuple) else (value,):
                words.append(f"--{name.replace('_', '-')} {_quoted(str(each))}")
        return " ".join(words)

    def run(self, measured: str, published: str) -> Comparison:
        options: dict[str, Any] = dict(self.options)
        if "constants" in options:
            options["constants"] = ConstantsKind(options["constants"])
        if "split" in options:
            options["split"] = Split(options["split"])
        return compare(published if self.published else measured, **options)


def _quoted(text: str) -> str:
    return f'"{text}"' if " " in text or "," in text else text


NONE, CROSSFIT = {"constants": "none"}, {"constants": "crossfit"}
STATIC = {"where": ("group=accelmark,trtllm-perf-overview", "load_kind=serial,batch"), "constants": "none"}
OLD = {"where": ("group=splitwise,argonne-llm-bench",), "constants": "crossfit"}
BARS = (
    Bar("dense, TPOT, nothing fitted", TPOT, {"where": ("dense",), **NONE}, (0.08, 0.11)),
    Bar("dense, TPOT, from the other half", TPOT, {"where": ("dense",), **CROSSFIT}, (0.05, 0.075)),
    Bar("all, TPOT, nothing fitted", TPOT, NONE, (0.10, 0.15)),
    Bar("all, TPOT, from the other half", TPOT, CROSSFIT, (0.07, 0.10)),
    Bar("MiniMax left out, TPOT", TPOT, {"leave_out": "MiniMax"}, (0.12, 0.16)),
    Bar("gpt-oss left out, TPOT", TPOT, {"leave_out": "gpt-oss"}, (0.12, 0.16)),
    Bar("Qwen3-235B left out, TPOT", TPOT, {"leave_out": "Qwen3-235B"}, (0.12, 0.16)),
    Bar("all, TTFT, from the other half", TTFT, CROSSFIT, (0.18, 0.28)),
    Bar("single requests and static batches, TTFT", TTFT, STATIC, (0.20, None), published=True),
    Bar("single requests, TPOT", TPOT, STATIC, (0.20, None), published=True),
    Bar("static batches, throughput", THROUGHPUT, STATIC, (0.20, None), published=True),
    Bar("2023 and 2024 code, end to end", E2E, OLD, (0.25, None), published=True),
)
REPORTED = ("Kimi", "GLM-5", "Qwen3.5-397B", "Qwen3-32B", "Llama-3.1-70B")
BY = ("system", "kind", "backend")


@dataclass
class Card:
    """Lines of the page."""

    lines: list[str] = field(default_factory=list)

    def add(self, *lines: str) -> None:
        self.lines += lines

    def heading(self, text: str) -> None:
        self.add("", f"## {text}", "")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
        marks = [":---"] * left + ["---:"] * (len(columns) - left)
        self.add(f"| {' | '.join(columns)} |", f"| {' | '.join(marks)} |")
        self.add(*(f"| {' | '.join(row)} |" for row in rows))


def share(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.1%}".replace("%", " %")


def cells(errors: Errors | None) -> tuple[str, ...]:
    """n, median, mean, p90, bias, covered."""
    if errors is None:
        return ("0", "", "", "", "", "")
    covered = "" if errors.covered is None else f"{errors.covered:.0%}".replace("%", " %")
    return (
        f"{errors.n:,}",
        share(errors.median_ape),
        share(errors.mape),
        share(errors.p90_ape),
        share(errors.bias, "+"),
        covered,
    )


SHARES = ("n", "median", "mean", "p90", "bias", "in 80 %")


def page(measured: str, published: str, peer: str | None) -> str:
    """The whole page."""
    card = Card()
    card.add(
        "# Model card: how good the latency model is",
        "",
        "Written by `python -m benchmarks.model_card MEASURED.csv PUBLISHED.csv --peer PEER.csv --write",
        "docs/model-card.md`; do not edit.",
        "",
        INTRODUCTION.strip(),
    )
    card.heading("The bars")
    card.add(BARS_TEXT.strip(), "")
    card.table(("Rows", *SHARES, "bar", "command"), [_bar_row(bar, measured, published) for bar in BARS])
    card.heading("Beside another predictor")
    card.add(*_peer_lines(measured, peer))
    for kind, name in ((TPOT, "TPOT"), (TTFT, "TTFT of the closed-loop benchmark")):
        card.heading(f"{name} by GPU, kind of model and engine")
        card.add("`--by system,kind,backend`, with `--constants none` and `--constants crossfit`.", "")
        _grouped(card, measured, kind)
    card.heading("Families that nothing was fitted to")
    card.add("Fewer than 20 rows are no bar. `--leave-out NAME`.", "")
    _left_out(card, measured)
    card.heading("A load kept together, and one measured point")
    card.add(SPLIT_TEXT.strip(), "")
    _variants(card, measured)
    card.heading("Published values by publisher and GPU")
    card.add(PUBLISHED_TEXT.strip(), "")
    _published(card, published)
    card.heading("Constants")
    card.add(CONSTANTS_TEXT.strip(), "")
    _constants(card)
    card.heading("How sure a prediction is")
    card.add(UNCERTAINTY_TEXT.strip())
    card.heading("What is put right in the rows, and what is not predicted")
    _counts(card, measured, published)
    card.heading("What is weak")
    card.add(WEAK.strip())
    card.heading("Where the numbers come from")
    card.add(SOURCES.strip())
    return "\n".join(card.lines) + "\n"


INTRODUCTION = """
Predictions are compared with public end-to-end measurements that nobody of this project made. Errors are
shares of what was measured; bias is the median of predicted over measured, minus one; the last column
says how many measurements lie in the 80 % interval of their prediction. Coefficients of kernels come from
operator tables, never from these rows. Constants of engines do come from such rows: so a row is judged
with no constants, or with those that the *other* half of the rows gives.
"""
BARS_TEXT = """
Halves are split by deployment: all loads of a model, GPU, engine, version, format and layout are in one
half. MEASURED.csv holds 602 rows (InferenceX of SemiAnalysis, and NVIDIA's, as collected in
aiconfigurator-core, Apache-2.0), PUBLISHED.csv 2,828 values of nine publishers. These are benchmarks in
closed loops, predicted as such: `planner predict` shows a loop that has run for long, without a
benchmark's client and first wave, and its TTFT is that much shorter. MEASURED.csv can be made from the
tables of aiconfigurator's silicon comparison, PUBLISHED.csv from the publications it names by row;
`planner validate --help` lists the columns.
"""
SPLIT_TEXT = """
`--split load` lets other loads of the same deployment into the half that is fitted. `--anchor` gives one
row of each model and engine, as `--measured` of `planner predict` and `measured:` of a scenario do.
"""
PUBLISHED_TEXT = """
`--by group,gpu --constants none`, of single requests, static batches, closed loops and rates; values that
are throughputs of a whole system included.
"""
CONSTANTS_TEXT = """
`python tools/fit_engine_constants.py MEASURED.csv` writes them and lists the rows; that of all versions
is used for a version nobody measured, and it is what `planner solve` has for the versions in the engine
files. Step and sequence are host time of a step and of each of its sequences; decode and prefill are
factors on kernels. The last four are of a benchmark's TTFT alone: its fixed part (client, HTTP, tokens to
text), how many services of a prompt a request sees, how many steps around its own, and the wait per
further client in the first wave, in services.
"""
UNCERTAINTY_TEXT = """
The spread of a prediction (natural logarithm) has independent parts: the form with an engine's constants,
a version that was never measured, a model that was never measured on the engine, and the residual of each
kernel's fit times its share of the step. GPUs whose coefficients are borrowed have at least the spread of
their profile. A benchmark's TTFT adds what its clients and front end do.
"""
WEAK = """
- Without constants a benchmark's TTFT is 45 % too low: client, HTTP, tokenizer and the rhythm of its
  clients are not in the kernels. `planner solve` counts queues and kernels, not a benchmark's client.
- TTFT where the KV cache is full (minutes), and of runs whose engine sends tokens in groups: TensorRT-LLM
  rows of 1,024 in and 1,024 out have first tokens 20 steps late, which no column says.
- TensorRT-LLM on H200: its FP8 attention reads the cache faster than the vLLM kernels our coefficients
  are of.
- MXFP4 experts on Hopper (gpt-oss): the operator table has a residual of 17 %; predictions are 10 % high.
- All-reduces over PCIe between four and eight cards: hosts differ by a factor of ten, our one table is
  slow.
- AccelMark's first tokens by themselves are off by 26 % in the median: PCIe between eight cards, and the
  host time of small models; the bar above is of both publishers together.
- Small models on old software: host time of eager prompts, which differs by version and processor.
- MI300X and other AMD GPUs: coefficients are borrowed, and the rows there are of 2024 software.
- Attention data parallelism, expert parallelism over nodes and speculative decoding have next to no
  public rows with all settings stated; DeepSeek-R1 rows are refused, because equal settings differ up to
  3.8 times.
"""
SOURCES = """
Kernels: operator tables of aiconfigurator-core 0.12.0 (Apache-2.0), see each GPU profile. Small kernels
(norms over all heads, routers in 32 bits, tiles of FP8 experts): vLLM pull requests 31493, 31246 and
42501, PTX ISA. Admission: TensorRT-LLM documentation, useful runtime flags. Rows: SemiAnalysis
InferenceX, NVIDIA, Splitwise (MIT), Argonne LLM-Inference-Bench (BSD-3), AccelMark and TensorRT-LLM
(Apache-2.0), Oracle, NIM. Formulas and coefficients were developed with the rows of MEASURED.csv in
sight; kernels' coefficients were not fitted to them. Rows that were kept away from development will show
larger errors than these.
"""


def _bar_row(bar: Bar, measured: str, published: str) -> tuple[str, ...]:
    errors = bar.run(measured, published).errors().get(bar.kind)
    median, mean = bar.limits
    met = errors is not None and errors.median_ape <= median and (mean is None or errors.mape <= mean)
    limit = share(median) if mean is None else f"{share(median)}, {share(mean)}"
    return (bar.what, *cells(errors), f"{limit}: {'met' if met else 'missed'}", f"`{bar.command}`")


def _peer_lines(measured: str, peer: str | None) -> list[str]:
    if peer is None:
        return ["No file of another tool's predictions was given."]
    found = compare(measured, constants=ConstantsKind.CROSSFIT)
    bare = compare(measured, constants=ConstantsKind.NONE)
    card = Card()
    card.add(
        "The same rows, where both have an answer: `--peer PEER.csv`. The other has constants of its own.",
        "",
    )
    rows = []
    for kind, name in ((TPOT, "TPOT"), (TTFT, "TTFT")):
        crossed, none = peer_errors(found, peer), peer_errors(bare, peer)
        rows.append((name, "planner, nothing fitted", *cells(none.ours.get(kind))))
        rows.append((name, "planner, from the other half", *cells(crossed.ours.get(kind))))
        rows.append((name, crossed.name.replace("_", " "), *cells(crossed.theirs.get(kind))))
    card.table(("", "Predictor", *SHARES), rows, left=2)
    return card.lines


def _grouped(card: Card, measured: str, kind: str) -> None:
    both = [compare(measured, constants=k).groups(BY) for k in (ConstantsKind.NONE, ConstantsKind.CROSSFIT)]
    rows = []
    for (key, none), (_, crossed) in zip(*both, strict=True):
        a, b = none.get(kind), crossed.get(kind)
        if a is None or b is None:
            continue
        rows.append((*key.values(), f"{a.n:,}", *cells(a)[1:3], *cells(a)[4:], *cells(b)[1:3], *cells(b)[4:]))
    names = ("median", "mean", "bias", "in 80 %")
    card.table(("GPU", "kind", "engine", "n", *names, *(f"{n}, other half" for n in names)), rows, left=3)


def _left_out(card: Card, measured: str) -> None:
    rows = []
    for name in ("MiniMax", "gpt-oss", "Qwen3-235B", *REPORTED):
        errors = compare(measured, leave_out=name).errors()
        few = errors[TPOT].n < FEWEST
        rows.append((name + (" (few rows)" if few else ""), "TPOT", *cells(errors.get(TPOT))))
        rows.append(("", "TTFT", *cells(errors.get(TTFT))))
    card.table(("Family", "", *SHARES), rows, left=2)


def _variants(card: Card, measured: str) -> None:
    rows = []
    for name, options in (
        ("`--constants crossfit --split load`", {"constants": ConstantsKind.CROSSFIT, "split": Split.LOAD}),
        ("`--constants none --anchor`", {"constants": ConstantsKind.NONE, "anchored": True}),
        ("`--constants crossfit --anchor`", {"constants": ConstantsKind.CROSSFIT, "anchored": True}),
    ):
        errors = compare(measured, **options).errors()
        rows.append((name, "TPOT", *cells(errors.get(TPOT))))
        rows.append(("", "TTFT", *cells(errors.get(TTFT))))
    card.table(("", "", *SHARES), rows, left=2)


def _published(card: Card, published: str) -> None:
    rows = []
    for key, errors in compare(published, constants=ConstantsKind.NONE).groups(("group", "gpu")):
        for kind, found in errors.items():
            rows.append((key["group"], key["gpu"], kind, *cells(found)))
    card.table(("Publisher", "GPU", "metric", *SHARES), rows, left=3)


def _constants(card: Card) -> None:
    fitted = shipped_constants()
    rows = []
    for key, c in sorted(fitted.classes.items(), key=lambda item: (len(item[0]), item[0])):
        engine, version, benchmark = (*key, "", "", "")[:3]
        rows.append(
            (
                engine or "all",
                version or "all",
                benchmark or "all",
                f"{fitted.counts[key]:,}",
                f"{c.step / MILLI:.2f}",
                f"{c.sequence / MICRO:.1f}",
                f"{c.decode_scale:.3f}",
                f"{c.prefill_scale:.3f}",
                f"{c.fixed / MILLI:.0f}",
                f"{c.services:.2f}",
                f"{c.steps:.1f}",
                f"{c.first_wave:.3f}",
            )
        )
    columns = (
        "step [ms]",
        "sequence [us]",
        "decode",
        "prefill",
        "TTFT: fixed [ms]",
        "services",
        "steps",
        "wave",
    )
    card.table(("Engine", "Version", "Benchmark", "rows", *columns), rows, left=3)
    card.add("", "Factors on all kernels of models that were measured; a model without one has 1.", "")
    factors = sorted(fitted.factors.items())
    card.table(
        ("Engine", "Model", "factor"),
        [(engine, fitted.names.get(shape, shape), f"{factor:.3f}") for (engine, shape), factor in factors],
        left=2,
    )
    card.add(
        "",
        f"Spreads: form {fitted.log_sd:g}, version {VERSION_LOG_SD:g}, model {fitted.family_log_sd:g}, a "
        f"benchmark's TTFT {fitted.ttft_log_sd:g}",
        f"({NO_PROTOCOL_LOG_SD:g} with nothing fitted).",
    )


def _counts(card: Card, measured: str, published: str) -> None:
    found, old = compare(measured), compare(published)
    card.table(
        ("Rule", "rows of MEASURED.csv"), [(rule, f"{count:,}") for rule, count in found.repairs.items()]
    )
    card.add("")
    reasons = [(reason, f"{n:,}", "") for reason, n in found.unpredicted.items()]
    reasons += [(reason, "", f"{n:,}") for reason, n in old.unpredicted.items()]
    card.table(("Not predicted", "MEASURED.csv", "PUBLISHED.csv"), reasons)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measured", help="CSV with one row per configuration and load")
    parser.add_argument("published", help="CSV in long format")
    parser.add_argument("--peer", help="another tool's predictions of the measured rows")
    parser.add_argument("--write", type=Path, help="write the page here; default: print it")
    arguments = parser.parse_args()
    text = page(arguments.measured, arguments.published, arguments.peer)
    if arguments.write is None:
        print(text, end="")
    else:
        write_text_atomic(arguments.write, text)


if __name__ == "__main__":
    main()

"""DistServe's placements, judged with its own A100 fits of OPT by the planner's capacity formulas.

    python -m benchmarks.distserve [--write docs/distserve.md]

For each model, data set and pair of SLOs: the goodput per GPU of every pair of one prefill and one decode
instance in DistServe's search space, the best of them, and that of the pair that DistServe chose. What was
measured on DistServe itself, and what its simulator says, stands beside it where it is public. Takes seconds.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from planner.arrays import FloatArray, Numbers
from planner.capacity import DecodeDemand, Limit, PrefillDemand, decode_curves, prefill_curves, prompt_queues
from planner.documents.files import write_text_atomic
from planner.latency import Companions
from planner.lengths import independent, marginal_from_quantiles, marginal_lognormal
from planner.program import Candidate, CapacityCurve, GpuType, Problem, solve
from planner.specs import ColocatedUse, Lengths, Objective, Parallelism, Period, Phase, Routing, Workload
from planner.traffic import Traffic
from planner.units import MILLI

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
Pair = tuple[Parallelism, Parallelism]
"""Layouts of a prefill and a decode instance."""

MODELS = {"OPT-13B": "facebook/opt-13b", "OPT-66B": "facebook/opt-66b"}
SIZES = (1, 2, 4, 8)  # of tensor and pipeline parallelism that DistServe searches
CLUSTER = 32  # GPUs of its cluster
NODE = {"OPT-13B": 4, "OPT-66B": 8}  # GPUs within which its scripts look for a pair
THRESHOLD = 95  # sequences of a micro-batch from which its other fit of a decode step counts
CONTEXT = 2048  # longest sequence of OPT [tok]
MOST_SEQUENCES = 2048.0
ATTAINMENT = 0.9  # share of requests within the SLOs [1]
MEANS = {"HumanEval": (171.3, 98.2), "LongBench": (1738.3, 90.7)}  # prompt, answer: of the paper [tok]
SPREAD = {"HumanEval": (0.6, 0.6), "LongBench": (0.15, 1.5)}  # coefficients of variation, assumed [1]
SIMULATED = 1.56  # per GPU: simdistserve/README.md, OPT-13B on ShareGPT, P90 within 200 and 100 ms [req/s]
SIMULATED_SLO = (0.2, 0.1)  # [s]
MEASURED_SLO = (0.25, 0.1)  # of tests/golden/distserve_measured.csv [s]


def table(name: str) -> list[dict[str, str]]:
    """Rows of one of the tables that are kept for tests."""
    text = (GOLDEN / name).read_text(encoding="utf-8")
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


# --------------------------------------------------------------------------------------------
# DistServe's latency model


@dataclass(frozen=True, slots=True)
class Fits:
    """Steps of C instances as DistServe's simulator has them (simdistserve/estimators/time_estimator.py).

    Prompts take ``a + b sum(len) + c sum(len^2)``, a decode step ``a + b sum(context) + c batch``, with other
    coefficients from 95 sequences on. A pipeline's stage takes its share of that; a micro-batch goes through
    all. There are no cached prefixes.

    Attributes
    ----------
    prefill, small, large : ndarray, shape (C, 3)
        [s, s/tok, s/tok^2] and [s, s/tok, s]
    pp : ndarray, shape (C,)
    """

    prefill: FloatArray
    small: FloatArray
    large: FloatArray
    pp: FloatArray

    @classmethod
    def of(cls, model: str, layouts: Sequence[Parallelism]) -> Fits:
        rows = coefficients(model)
        step = {
            name: np.array([rows[p.tp, name] for p in layouts])
            for name in ("prefill", "decode_small", "decode_large")
        }
        pp = np.array([float(p.pp) for p in layouts])
        return cls(step["prefill"], step["decode_small"], step["decode_large"], pp)

    @property
    def dp(self) -> FloatArray:
        return np.ones_like(self.pp)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        return (*range(1, 9), *range(16, THRESHOLD - 1, 8), THRESHOLD - 1)

    def prompt(
        self, query: Numbers, cached: Numbers, token_budget: Numbers, companions: Companions
    ) -> FloatArray:
        a, b, c = self.prefill.T
        tokens = np.asarray(query + companions.count * companions.query)
        squares = np.asarray(query) ** 2 + companions.count * 2 * companions.area
        return np.asarray(a + b * tokens + c * squares)

    def decode_step(self, batch: Numbers, context: Numbers) -> FloatArray:
        micro = np.asarray(batch / self.pp)
        few, many = (a + b * micro * context + c * micro for a, b, c in (self.small.T, self.large.T))
        return np.asarray(np.where(micro < THRESHOLD, few, many))


@cache
def coefficients(model: str) -> dict[tuple[int, str], tuple[float, float, float]]:
    """By tensor parallel size and kind of step, in seconds."""
    return {
        (int(row["tp"]), row["step"]): (
            float(row["a"]) * MILLI,
            float(row["b"]) * MILLI,
            float(row["c"]) * MILLI,
        )
        for row in table("distserve_a100.csv")
        if row["model"] == model
    }


@cache
def kv_tokens(model: str) -> dict[tuple[int, int], float]:
    """KV cache of an instance by its tensor and pipeline parallel size. [tok]"""
    rows = (row for row in table("distserve_kv_tokens.csv") if row["model"] == model)
    return {(int(row["tp"]), int(row["pp"])): float(row["kv_tokens"]) for row in rows}


# --------------------------------------------------------------------------------------------
# What is asked


@dataclass(frozen=True, slots=True)
class Case:
    """A model, a data set, SLOs, and what DistServe chose. [s]"""

    model: str
    data: str
    version: str
    ttft: float
    tpot: float
    chosen: Pair


def cases() -> Iterator[Case]:
    """The rows of the paper with both versions of their SLOs, once where these agree."""
    for row in table("distserve_placements.csv"):
        prefill, decode = (
            Parallelism(tp=int(row[f"{phase}_tp"]), pp=int(row[f"{phase}_pp"]))
            for phase in ("prefill", "decode")
        )
        versions = {
            name: (float(row[f"ttft_slo_s_{name}"]), float(row[f"tpot_slo_s_{name}"]))
            for name in ("paper", "artifact")
        }
        same = versions["paper"] == versions["artifact"]
        for name, (ttft, tpot) in versions.items():
            if name == "paper" or not same:
                label = "both" if same else name
                yield Case(row["model"], row["dataset"], label, ttft, tpot, (prefill, decode))


@cache
def lengths(data: str) -> Lengths:
    """ShareGPT as DistServe sampled it; of the others only means are public: log-normal around these."""
    if data == "ShareGPT":
        rows = table("distserve_sharegpt_lengths.csv")
        share = [float(row["probability"]) for row in rows]
        isl, osl = (
            marginal_from_quantiles(share, [float(row[key]) for row in rows])
            for key in ("input_tokens", "output_tokens")
        )
        return independent(isl, osl)
    (mean_isl, mean_osl), (cv_isl, cv_osl) = MEANS[data], SPREAD[data]
    longest = CONTEXT - mean_osl
    return independent(
        marginal_lognormal(mean_isl, cv_isl, longest), marginal_lognormal(mean_osl, cv_osl, CONTEXT / 2)
    )


@cache
def traffic(data: str) -> Traffic:
    """Poisson arrivals."""
    period = Period(name="", hours=1.0, request_rate=1.0)
    return Traffic.of(Workload(name=data, periods=(period,), lengths=lengths(data)))


# --------------------------------------------------------------------------------------------
# Goodput


@dataclass(frozen=True, slots=True)
class Rates:
    """What instances of each layout carry within an SLO. [req/s]"""

    layouts: tuple[Parallelism, ...]
    prefill: FloatArray
    decode: FloatArray

    def of(self, prefill: Parallelism, decode: Parallelism) -> float:
        """Goodput per GPU of one instance of each. [req/s]"""
        p, d = self.layouts.index(prefill), self.layouts.index(decode)
        return float(min(self.prefill[p], self.decode[d])) / (prefill.num_gpus + decode.num_gpus)

    def best(self, gpus: int) -> Pair:
        """The pair of most goodput per GPU within so many; of equal ones that on fewest, then that with most
        room in the pool that does not bind."""

        def key(pair: Pair) -> tuple[float, int, float]:
            prefill, decode = pair
            room = self.prefill[self.layouts.index(prefill)] + self.decode[self.layouts.index(decode)]
            return self.of(*pair), -(prefill.num_gpus + decode.num_gpus), float(room)

        pairs = [(p, d) for p in self.layouts for d in self.layouts if p.num_gpus + d.num_gpus <= gpus]
        return max(pairs, key=key)


def search_space(model: str) -> tuple[Parallelism, ...]:
    """Layouts with fits and with room for the model."""
    fitted = {tp for tp, _ in coefficients(model)}
    return tuple(
        Parallelism(tp=tp, pp=pp)
        for tp in SIZES
        for pp in SIZES
        if tp in fitted and (tp, pp) in kv_tokens(model)
    )


def rates(model: str, data: str, ttft: float, tpot: float, probability: float = ATTAINMENT) -> Rates:
    """Rate of one instance of every layout at which `probability` of the requests meet each SLO [s].

    A request that finds the KV cache full waits, which DistServe counts as TPOT: as many as may miss it may.
    """
    layouts = search_space(model)
    fits, served = Fits.of(model, layouts), traffic(data)
    kv = np.array([kv_tokens(model)[p.tp, p.pp] for p in layouts])
    queues = prompt_queues(fits, served, MOST_SEQUENCES * CONTEXT)
    prompts = PrefillDemand(
        ttft=(Limit(probability, ttft),),
        admission_miss=0.0,
        first_step=np.zeros(len(layouts)),  # DistServe emits the first token from prefill
        transfer=np.zeros((len(served.isl), len(layouts))),  # and moves KV caches over NVLink
        routing=Routing.LEAST_LOADED,
    )
    answers = DecodeDemand(
        tpot=(Limit(probability, tpot),),
        first_step=np.full(len(layouts), math.inf),
        admission_miss=1 - probability,
        kv_tokens=kv,
        max_num_seqs=np.full(len(layouts), MOST_SEQUENCES),
    )
    one = [1]
    return Rates(
        layouts,
        prefill_curves(queues, np.arange(len(layouts)), served, prompts, one).per_replica[:, 0],
        decode_curves(fits, served, answers, one).per_replica[:, 0],
    )


def fleet(found: Rates, gpus: int = CLUSTER) -> tuple[float, str]:
    """Most that any numbers of instances carry, per GPU, by the planner's program. [req/s]"""
    members = [
        (phase, layout, float(rate))
        for phase, values in ((Phase.PREFILL, found.prefill), (Phase.DECODE, found.decode))
        for layout, rate in zip(found.layouts, values, strict=True)
        if rate > 0
    ]
    problem = Problem(
        candidates=tuple(
            Candidate(
                name=f"{phase} {layout}",
                phase=phase,
                gpu_type=0,
                gpus=layout.num_gpus,
                curve=CapacityCurve(starts=(1,), per_replica=(rate,)),
                max_replicas=gpus // layout.num_gpus,
            )
            for phase, layout, rate in members
        ),
        gpu_types=(GpuType(name="a100", price=None, power=0.0, node_size=8, max_gpus=gpus),),
        demand=None,
        objective=Objective.THROUGHPUT,
        whole_nodes=False,
        colocated=ColocatedUse.FORBIDDEN,
        gap=0.0,
    )
    solution = solve(problem)
    named = (f"{solution.replicas[i]} x {problem.candidates[i].name}" for i in solution.used)
    return solution.value / gpus, ", ".join(named)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row of the page. Goodput per GPU. [req/s]"""

    case: Case
    theirs: float
    near: Pair
    near_goodput: float
    far: Pair
    far_goodput: float
    fleet: str
    fleet_goodput: float


def outcome(case: Case, probability: float = ATTAINMENT) -> Outcome:
    """Their pair, and ours on as many GPUs as their scripts search (near) and on their cluster (far)."""
    found = rates(MODELS[case.model], case.data, case.ttft, case.tpot, probability)
    near, far = found.best(NODE[case.model]), found.best(CLUSTER)
    goodput, replicas = fleet(found)
    return Outcome(
        case=case,
        theirs=found.of(*case.chosen),
        near=near,
        near_goodput=found.of(*near),
        far=far,
        far_goodput=found.of(*far),
        fleet=replicas,
        fleet_goodput=goodput,
    )


def outcomes(probability: float = ATTAINMENT) -> list[Outcome]:
    """All rows whose model has published fits: there are none of OPT-175B."""
    return [outcome(case, probability) for case in cases() if case.model in MODELS]


def measured_goodput(decode_pp: int) -> float:
    """Rate per GPU at which 90 % of the requests met both SLOs, linear between the two runs that enclose it.
    [req/s]

    Of OPT-13B on ShareGPT, prefill on TP 2, decode on TP 1 with so many stages.
    """
    runs = [row for row in table("distserve_measured.csv") if int(row["decode_pp"]) == decode_pp]
    points = [(float(row["attainment"]), float(row["request_rate"])) for row in runs]
    below = next(i for i, (share, _) in enumerate(points) if share < ATTAINMENT)
    (high, slow), (low, fast) = points[below - 1], points[below]
    rate = slow + (high - ATTAINMENT) / (high - low) * (fast - slow)
    return rate / (2 + decode_pp)


# --------------------------------------------------------------------------------------------
# The page


def pair(layouts: Pair) -> str:
    return f"{layouts[0]} / {layouts[1]}"


def page() -> str:
    """Tables as they come out."""
    found, careful = outcomes(), outcomes(0.95)
    return "\n".join(
        [
            "# DistServe's placements",
            "",
            "Written by `python -m benchmarks.distserve --write docs/distserve.md`; do not edit.",
            "",
            *_introduction(),
            "",
            *_choices(found, careful),
            "",
            *_published(),
            "",
            *_reading(found),
        ]
    )


def _introduction() -> list[str]:
    given = "; ".join(f"{name} {a:g} for prompts and {b:g} for answers" for name, (a, b) in SPREAD.items())
    return [
        "Latencies are not the planner's: they are the A100 fits that DistServe published for its simulator, "
        "given to the planner's capacity formulas (`planner.capacity.LatencyModel`). Goodput is the rate at "
        "which 90 % of the requests meet the TTFT limit and 90 % the TPOT limit, as DistServe's search has "
        "it; with P95 in its place at least 90 % meet both. One prefill and one decode instance, Poisson "
        "arrivals, KV caches of the sizes that DistServe tabulates, no time for their transfer.",
        "",
        "Lengths of ShareGPT are those of the 1,600 requests that DistServe sent. Of HumanEval and LongBench "
        "only the paper's means are used, in log-normal distributions with assumed coefficients of variation "
        f"({given}), cut to the 2,048 tokens of OPT.",
    ]


def _choices(found: Sequence[Outcome], careful: Sequence[Outcome]) -> list[str]:
    lines = [
        "## Choices",
        "",
        'Prefill / decode, and goodput per GPU in req/s. "Within a node": on as many GPUs as DistServe\'s '
        f"scripts search, {NODE['OPT-13B']} for OPT-13B and {NODE['OPT-66B']} for OPT-66B.",
        "",
        "| Model, data | SLOs of | TTFT, TPOT [s] | DistServe's | P90 | P95 | ours within a node | P90 | "
        f"ours on {CLUSTER} GPUs | P90 |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one, other in zip(found, careful, strict=True):
        case = one.case
        lines.append(
            f"| {case.model}, {case.data} | {case.version} | {case.ttft:g}, {case.tpot:g} | "
            f"{pair(case.chosen)} | {one.theirs:.2f} | {other.theirs:.2f} | {pair(one.near)} | "
            f"{one.near_goodput:.2f} | {pair(one.far)} | {one.far_goodput:.2f} |"
        )
    missing = [case for case in cases() if case.model not in MODELS]
    lines += ["", f"Any numbers of instances on {CLUSTER} GPUs, by the integer program:", ""]
    lines += [
        f"- {one.case.model}, {one.case.data}, {one.case.ttft:g} and {one.case.tpot:g} s: {one.fleet}; "
        f"{one.fleet_goodput:.2f} req/s per GPU"
        for one in found
    ]
    lines += [
        f"- {case.model}, {case.data} ({pair(case.chosen)}): left out, no fits are public" for case in missing
    ]
    return lines


def _published() -> list[str]:
    ours, simulated = published()
    lines = [
        "## Against what was published",
        "",
        "OPT-13B on ShareGPT. Measured: runs of 400 to 1,600 requests on A100, placements by the names of "
        "their files; the rate at which 90 % met both SLOs lies between two of them and is interpolated.",
        "",
        "| Placement | TTFT, TPOT [s] | published | source | ours, P90 each | difference |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for layouts, seen, mine in ours:
        ttft, tpot = MEASURED_SLO
        lines.append(
            f"| {pair(layouts)} | {ttft:g}, {tpot:g} | {seen:.2f} | measured | {mine:.2f} | "
            f"{mine / seen - 1:+.0%} |"
        )
    ttft, tpot = SIMULATED_SLO
    lines.append(
        f"| {pair(simulated[0])} | {ttft:g}, {tpot:g} | {SIMULATED:.2f} | its simulator | "
        f"{simulated[1]:.2f} | {simulated[1] / SIMULATED - 1:+.0%} |"
    )
    return lines


def published() -> tuple[list[tuple[Pair, float, float]], tuple[Pair, float]]:
    """Measured placements with their goodput and ours; and our choice on four GPUs at the SLOs for which its
    simulator's choice is public, with our goodput. Per GPU. [req/s]"""
    model = MODELS["OPT-13B"]
    found = rates(model, "ShareGPT", *MEASURED_SLO)
    placements = [(Parallelism(tp=2), Parallelism(tp=1, pp=pp)) for pp in (1, 2)]
    measured = [(p, measured_goodput(p[1].pp), found.of(*p)) for p in placements]
    searched = rates(model, "ShareGPT", *SIMULATED_SLO)
    chosen = searched.best(NODE["OPT-13B"])
    return measured, (chosen, searched.of(*chosen))


def _reading(found: Sequence[Outcome]) -> list[str]:
    equal = sum(math.isclose(one.near_goodput, one.theirs, rel_tol=1e-9) for one in found)
    return [
        "## What it says",
        "",
        f"- Within a node DistServe's own pair is as good as the best in {equal} of {len(found)} rows, and "
        "at the SLOs of its README the best. Like its own, no choice gives decode more GPUs than prefill.",
        "- DistServe's simulator limits the number of sequences that decode, not their KV cache. OPT-13B on "
        "one A100 has room for 66,144 tokens, some 54 requests of ShareGPT by their end: its measurements "
        "collapse there (between 4.5 and 6 req/s, TPOT from 61 to 576 ms at P90), before steps take 100 ms. "
        "With the cache counted, a second GPU for decode pays for itself at 250 ms, as in the measurements.",
        "- Larger instances carry more per GPU: their KV caches grow faster than their number of GPUs, for "
        "the weights are held once, and prompts on them take less of the TTFT limit.",
        "- The two versions of the SLOs of OPT-66B on ShareGPT are different problems: at 2.5 s prefill is "
        "bound by throughput, at 0.4 s by the time of one prompt, for which only tensor parallelism helps.",
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="DistServe's placements under the planner's formulas.")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page there, too")
    arguments = parser.parse_args()
    text = page()
    print(text)
    if arguments.write is not None:
        write_text_atomic(arguments.write, text)


if __name__ == "__main__":
    main()

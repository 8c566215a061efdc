"""Predicted against simulated latencies of fleets drawn at random.

    python -m benchmarks.accuracy [--seeds 0 50] [--workers 2] [--write docs/accuracy.md]

A seed draws model, GPUs, layouts, lengths, replicas and load; none is left out. Of each fleet the closed
forms predict TTFT and TPOT, which are compared with a simulation that is lengthened until its percentiles
are known well. Both use the same step times, so that this judges queueing and batching, not the GPUs.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks import heading, percentile, verdict
from planner import catalog
from planner.candidates.context import Context, ReplicaChoice
from planner.candidates.layouts import fitting_replicas
from planner.candidates.paths import path_rates
from planner.capacity import batch_for_tokens
from planner.collectives import LINK_LOAD_LIMIT, network_rate
from planner.engines import load_engine
from planner.fleet import Deployed, Fleet
from planner.latency import decode_step_time, prompt_time
from planner.lengths import independent, marginal_fixed, marginal_lognormal
from planner.plan import LatencySummary
from planner.prediction import predict_fleet
from planner.simulator.arrivals import generated
from planner.simulator.build import cluster_of, holdings
from planner.simulator.cluster import run_cluster
from planner.simulator.metrics import Measured, SimulationResult, measure
from planner.specs import (
    Dtype,
    FleetItem,
    Lengths,
    Marginal,
    Objective,
    Options,
    Period,
    Phase,
    Precision,
    Routing,
    Scenario,
    Service,
    Slo,
    Workload,
)
from planner.traffic import Traffic
from planner.transformer import kv_bytes
from planner.units import GIGA

SEEDS = range(50)
TTFT_TARGET, TPOT_TARGET = 0.10, 0.05  # of the median absolute difference [1]
STATISTICS = ("p50", "p90", "p99")
MODELS: tuple[tuple[str, Dtype | None, Dtype | None], ...] = (
    ("meta-llama/Llama-3.1-8B-Instruct", None, None),
    ("meta-llama/Llama-3.1-70B-Instruct", Dtype.FP8, Dtype.FP8),
    ("Qwen/Qwen3-32B", None, None),
    ("openai/gpt-oss-120b", None, None),
    ("deepseek-ai/DeepSeek-V3", Dtype.FP8, None),
)
GPUS = ("h100-sxm", "h200-sxm", "b200-sxm", "a100-80gb-sxm", "l40s", "mi300x")
NETWORKS = (100.0, 200.0, 400.0)  # of one GPU [Gb/s]
LIGHTEST, HEAVIEST = 0.2, 0.85  # share of what a pool can take [1]
COLOCATED_SHARE, MIXED_SHARE, PIPELINED_SHARE = 0.3, 0.25, 0.3  # of the fleets [1]
SHORTEST_OUTPUT = 32.0  # [tok]
MOST_PREFILL, MOST_DECODE = 8, 12  # replicas of a group
SMALLEST_BATCH = 4.0
LARGEST_FILL = 0.85  # of a decode replica's slots [1]
ADMISSION_MISS = 0.001  # as under a p99 of TTFT [1]
FIRST_NUMBER, MOST_NUMBER = 40_000, 640_000  # requests
KNOWN = 0.025  # half-width over estimate up to which a run is lengthened [1]


@dataclass(frozen=True)
class Drawn:
    """A fleet, and what it is in words."""

    seed: int
    fleet: Fleet
    load: float
    lengths: str

    @property
    def colocated(self) -> bool:
        return bool(self.fleet.pool(Phase.COLOCATED))

    @property
    def pipelined(self) -> bool:
        return any(g.parallelism.pp > 1 for g in self.fleet.groups)

    @property
    def mixed(self) -> bool:
        return any(len(self.fleet.pool(phase)) > 1 for phase in Phase)

    @property
    def text(self) -> str:
        """All in one line."""
        pools = [
            " + ".join(f"{g.replicas} {g.item.gpu.name} {g.parallelism}" for g in self.fleet.pool(phase))
            for phase in Phase
            if self.fleet.pool(phase)
        ]
        return f"{self.fleet.service.model.name.split('/')[-1]}; {self.lengths}; {' > '.join(pools)}"


# --------------------------------------------------------------------------------------------
# Drawing


def draw(seed: int) -> Drawn:
    """The fleet of a seed."""
    rng = np.random.default_rng(seed)
    while True:  # until GPUs are drawn that hold the model
        name, weights, cache = MODELS[rng.integers(len(MODELS))]
        colocated = rng.random() < COLOCATED_SHARE
        mixed = rng.random() < MIXED_SHARE
        lengths, text = _lengths(rng)
        gpus = rng.permutation(len(GPUS))[:2]
        network = float(rng.choice(NETWORKS)) * GIGA / 8
        load = float(rng.uniform(LIGHTEST, HEAVIEST))
        model = catalog.load_model(name)
        service = Service(
            model=model,
            precision=Precision.of(model, weights, cache),
            workload=_workload(lengths, 1.0),
            slo=Slo(targets=()),
            engine="vllm",
        )
        items = tuple(
            FleetItem(
                gpu=catalog.load_gpu(GPUS[k]),
                price=None,
                max_gpus=None,
                node_size=8,
                network_bandwidth=network,
            )
            for k in gpus
        )
        context = _context(service, items)
        groups = (_colocated if colocated else _disaggregated)(context, rng, load, 1 + mixed)
        if groups:
            return Drawn(seed, _fleet(context, groups), load, text)


def _lengths(rng: np.random.Generator) -> tuple[Lengths, str]:
    kind = rng.integers(3)
    if kind == 0:
        isl, osl = _round(rng, 200, 8000), _round(rng, 32, 800)
        return independent(marginal_fixed(isl), marginal_fixed(osl)), f"{isl} in, {osl} out"
    if kind == 1:
        isl, osl = _round(rng, 200, 8000), _round(rng, 64, 800)
        spread_in, spread_out = (round(float(rng.uniform(0.3, 1.5)), 1) for _ in range(2))
        drawn = independent(
            marginal_lognormal(isl, spread_in, 32_768), _answers(marginal_lognormal(osl, spread_out, 8192))
        )
        return drawn, f"lognormal {isl} (cv {spread_in}) in, {osl} (cv {spread_out}) out"
    name = str(rng.choice(catalog.traffic_names()))
    preset = catalog.load_traffic(name).lengths
    return independent(preset.isl, _answers(preset.osl)), name


def _round(rng: np.random.Generator, low: float, high: float) -> int:
    """A length between two, evenly over its logarithm. [tok]"""
    return round(float(np.exp(rng.uniform(math.log(low), math.log(high)))))


def _answers(marginal: Marginal) -> Marginal:
    """No answer is shorter than :data:`SHORTEST_OUTPUT`. [tok]"""
    return replace(marginal, points=tuple(max(x, SHORTEST_OUTPUT) for x in marginal.points))


def _workload(lengths: Lengths, rate: float) -> Workload:
    return Workload(name="drawn", periods=(Period(name="", hours=1.0, request_rate=rate),), lengths=lengths)


def _context(service: Service, items: tuple[FleetItem, ...]) -> Context:
    scenario = Scenario(services=(service,), fleet=items, objective=Objective.GPUS, options=Options())
    return Context(
        service=service,
        scenario=scenario,
        engine=load_engine(service.engine),
        traffic=Traffic.of_service(service),
        z=0.0,
        ttft=(),
        tpot=(),
        miss=ADMISSION_MISS,
        formats={service.precision: ""},
    )


def _fleet(context: Context, groups: Sequence[Deployed]) -> Fleet:
    first = [g for g in groups if g.phase is not Phase.DECODE]
    workload = _workload(context.service.workload.lengths, sum(g.rate for g in first))
    service = replace(context.service, workload=workload)
    return Fleet(service=service, engine=context.engine, groups=tuple(groups), routing=Routing.LEAST_LOADED)


def _pick(choices: Sequence[ReplicaChoice], items: int, rng: np.random.Generator) -> list[ReplicaChoice]:
    """One choice on each of the first items that have any, pipelined ones in their share."""
    pipelined = rng.random() < PIPELINED_SHARE
    found = []
    for item in range(items):
        own = [c for c in choices if c.item == item]
        own = [c for c in own if (c.parallelism.pp > 1) == pipelined] or own
        if own:
            found.append(own[rng.integers(len(own))])
    return found


def _deployed(context: Context, choice: ReplicaChoice, replicas: int, rate: float) -> Deployed:
    return Deployed(
        phase=choice.phase,
        item=context.fleet[choice.item],
        parallelism=choice.parallelism,
        replicas=replicas,
        rate=rate,
        token_budget=choice.token_budget,
        kv_tokens=choice.kv_tokens,
        max_num_seqs=choice.max_num_seqs,
    )


def _disaggregated(context: Context, rng: np.random.Generator, load: float, items: int) -> list[Deployed]:
    prompts = fitting_replicas(context, Phase.PREFILL, [context.engine.prefill_token_budget])
    chosen = _pick(prompts, items, rng)
    answers = fitting_replicas(context, Phase.DECODE, [2048])
    if not chosen or not answers:
        return []
    rates = path_rates(context, chosen, answers)
    decode = _pick([d for j, d in enumerate(answers) if np.all(rates[:, j] > 0)], items, rng)
    if not decode:
        return []
    replicas = [int(rng.integers(1, MOST_PREFILL + 1)) for _ in chosen]
    r, traffic, budget = context.replicas(chosen), context.traffic, float(chosen[0].token_budget)
    alone = prompt_time(r, traffic.query[:, None], traffic.cached[:, None], budget).service
    means = traffic.isl_weights @ alone / r.lanes
    offered = [n * load / float(mean) for n, mean in zip(replicas, means, strict=True)]
    sizes = kv_bytes(context.service.model, context.service.precision.kv_cache, context.traffic.isl)
    size = float(context.traffic.isl_weights @ sizes)
    nics = [network_rate(context.fleet[c.item], context.engine) * c.parallelism.num_gpus for c in chosen]
    busiest = max(r * size / (n * nic) for r, n, nic in zip(offered, replicas, nics, strict=True))
    offered = [r * min(1.0, LINK_LOAD_LIMIT / busiest) for r in offered]
    groups = [_deployed(context, *both) for both in zip(chosen, replicas, offered, strict=True)]
    return groups + _answering(context, rng, decode, sum(offered), size)


def _answering(
    context: Context, rng: np.random.Generator, chosen: Sequence[ReplicaChoice], rate: float, size: float
) -> list[Deployed]:
    """Decode groups of equal steps, as behind one limit on TPOT."""
    slots = [_slots(context, c) for c in chosen]
    batches = [np.arange(1.0, max(LARGEST_FILL * s, 2.0) + 1) for s in slots]
    steps = [
        np.maximum.accumulate(
            decode_step_time(context.replicas([c]), b[:, None], context.traffic.decode_context)[:, 0]
        )
        for c, b in zip(chosen, batches, strict=True)
    ]
    wanted = float(np.exp(rng.uniform(math.log(SMALLEST_BATCH), math.log(max(batches[0][-1], 5.0)))))
    level = float(np.interp(wanted, batches[0], steps[0]))
    work = context.traffic.mean_osl * rate

    def held(step: float, k: int) -> float:
        """Batch of a replica of group k whose steps take so long."""
        return float(np.interp(step, steps[k], batches[k])) if step > steps[k][0] else 0.0

    used = [k for k in range(len(chosen)) if held(level, k) > 0]
    parts = len(used)
    counts = [max(1, round(work * level / parts / held(level, k))) for k in used]
    counts = [min(n, MOST_DECODE) for n in counts]
    for k, n in enumerate(counts):
        into = network_rate(context.fleet[chosen[used[k]].item], context.engine)
        into *= chosen[used[k]].parallelism.num_gpus
        counts[k] = max(n, math.ceil(rate * size / (parts * into * LINK_LOAD_LIMIT)))
    top = max(float(steps[k][-1]) for k in used)
    while sum(n * held(top, k) for k, n in zip(used, counts, strict=True)) < work * top:
        counts = [n + 1 for n in counts]
    low, high = min(float(steps[k][0]) for k in used), top
    for _ in range(60):
        middle = 0.5 * (low + high)
        enough = sum(n * held(middle, k) for k, n in zip(used, counts, strict=True)) >= work * middle
        low, high = (low, middle) if enough else (middle, high)
    loads = [n * max(held(high, k), 1e-3) for k, n in zip(used, counts, strict=True)]
    return [
        _deployed(context, chosen[k], n, rate * b / sum(loads))
        for k, n, b in zip(used, counts, loads, strict=True)
    ]


def _slots(context: Context, choice: ReplicaChoice) -> float:
    fits = batch_for_tokens(np.array([float(choice.kv_tokens)]), context.traffic, ADMISSION_MISS)
    return min(float(fits[0]), float(choice.max_num_seqs))


def _colocated(context: Context, rng: np.random.Generator, load: float, items: int) -> list[Deployed]:
    """Groups at a share of the rate at which the largest batch leaves no time for further prompts."""
    traffic = context.traffic
    groups = []
    for choice in _pick(fitting_replicas(context, Phase.COLOCATED, context.engine.token_budgets), items, rng):
        most = LARGEST_FILL * min(_slots(context, choice), choice.token_budget / 2)
        if most < 2:
            continue
        r, budget = context.replicas([choice]), float(choice.token_budget)
        decode = float(decode_step_time(r, most, traffic.decode_context)[0])
        beside = prompt_time(
            r,
            traffic.query[:, None],
            traffic.cached[:, None],
            budget,
            decode_batch=most,
            context=traffic.decode_context,
        )
        prompt = float(traffic.isl_weights @ beside.stolen[:, 0])
        highest = 1 / (traffic.colocated_steps * decode / most + prompt)
        replicas = int(rng.integers(1, MOST_PREFILL + 1))
        groups.append(_deployed(context, choice, replicas, load * replicas * highest))
    return groups


# --------------------------------------------------------------------------------------------
# Comparing


@dataclass(frozen=True)
class Row:
    """One fleet: predicted over simulated minus one, and how well the latter is known. [1]"""

    drawn: Drawn
    ttft: tuple[float, ...]
    tpot: tuple[float, ...]
    known: float
    requests: int
    growing: bool


def simulate(drawn: Drawn) -> SimulationResult:
    """A run long enough to know its percentiles."""
    fleet = drawn.fleet
    cluster = cluster_of(fleet)
    number = FIRST_NUMBER
    while True:
        requests = generated(fleet.service.workload, number, np.random.default_rng([drawn.seed, 1]))
        outcome = run_cluster(cluster, requests, holdings(fleet, requests), samples=0)
        result = measure(outcome, fleet.service.slo)
        if 2 * number > MOST_NUMBER or max(half_width(result.ttft), half_width(result.tpot)) <= KNOWN:
            return result
        number *= 2


def half_width(measured: Measured) -> float:
    """Largest half-width of a 95 % confidence interval over its percentile. [1]"""
    value, half = measured.value, measured.half_width
    return max(getattr(half, name) / getattr(value, name) for name in STATISTICS)


def compared(seed: int) -> Row:
    """Prediction and simulation of a seed's fleet side by side."""
    drawn = draw(seed)
    ttft, tpot = predict_fleet(drawn.fleet).summaries()
    result = simulate(drawn)
    return Row(
        drawn=drawn,
        ttft=_differences(ttft, result.ttft.value),
        tpot=_differences(tpot, result.tpot.value),
        known=max(half_width(result.ttft), half_width(result.tpot)),
        requests=result.requests,
        growing=result.growing,
    )


def _differences(predicted: LatencySummary, seen: LatencySummary) -> tuple[float, ...]:
    return tuple(getattr(predicted, name) / getattr(seen, name) - 1 for name in STATISTICS)


def compared_all(seeds: Sequence[int], workers: int) -> list[Row]:
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(compared, seeds))


KINDS: dict[str, Callable[[Drawn], bool]] = {
    "all": lambda _: True,
    "disaggregated": lambda d: not d.colocated,
    "colocated": lambda d: d.colocated,
    "pipelined": lambda d: d.pipelined,
    "two GPU types in a pool": lambda d: d.mixed,
}


def sizes(rows: Sequence[Row], metric: str) -> list[tuple[float, float]]:
    """Median and ninth decile of the absolute differences, per percentile. [1]"""
    columns = zip(*(getattr(row, metric) for row in rows), strict=True)
    found = [[abs(x) for x in column] for column in columns]
    return [(statistics.median(x), percentile(x, 0.9)) for x in found]


# --------------------------------------------------------------------------------------------
# Showing


def table(rows: Sequence[Row]) -> list[str]:
    """Markdown: a line per fleet."""
    lines = [
        "| Seed | Fleet | Load | TTFT p50, p90, p99 [%] | TPOT p50, p90, p99 [%] | Known to [%] |",
        "| ---: | :--- | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        note = " (grows)" if row.growing else ""
        lines.append(
            f"| {row.drawn.seed} | {row.drawn.text} | {row.drawn.load:.2f} | {_percents(row.ttft)} "
            f"| {_percents(row.tpot)} | {100 * row.known:.1f}{note} |"
        )
    return lines


def _percents(values: Sequence[float]) -> str:
    return ", ".join(f"{100 * x:+.1f}" if math.isfinite(x) else "no steady state" for x in values)


def overview(rows: Sequence[Row]) -> list[str]:
    """Markdown: sizes of the differences by kind of fleet."""
    lines = [
        "| Fleets | Number | TTFT p50 | TTFT p90 | TTFT p99 | TPOT p50 | TPOT p90 | TPOT p99 |",
        "| :--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, belongs in KINDS.items():
        part = [row for row in rows if belongs(row.drawn)]
        if part:
            cells = [
                f"{100 * median:.1f} ({100 * decile:.0f})"
                for metric in ("ttft", "tpot")
                for median, decile in sizes(part, metric)
            ]
            lines.append(f"| {name} | {len(part)} | {' | '.join(cells)} |")
    return lines


TEXT = """\
# Predicted and simulated latencies

Written by `python -m benchmarks.accuracy --write docs/accuracy.md`.

The planner sizes groups by closed forms. Here they are compared with the simulator on {number} fleets drawn
from the seeds {first} to {last}, none left out: models, GPUs, layouts, lengths, replicas and load are
random, with Poisson arrivals, a least-work router, loads of {light} to {heavy} of what the prompts' queue can
take, and outputs of at least {shortest:.0f} tokens. Both sides use the same step times, so this says how well
queueing, batching and routing are met, and nothing about how well the step times match real GPUs.

Constants of the closed forms were fitted to simulations of other fleets; which effects got a term was decided
with the fleets below in sight. A run has up to {most:,} requests, and "known to" is the largest half-width of
the 95 % confidence intervals of its percentiles. A load is that of prompts that share no step, so that a
pipeline, or short prompts, may in truth be less busy.

## Size of the differences

Median of |predicted / simulated - 1| in percent; in parentheses the size that nine in ten stay below.
Targets: 10 % for the medians of TTFT, 5 % for those of TPOT.

{overview}

## Every fleet

Predicted over simulated, minus one. Prefill groups stand before ">", decode groups behind it. Where the
number of requests in the simulation grows, its percentiles mean little.

{table}
"""


def document(rows: Sequence[Row]) -> str:
    """The whole comparison as Markdown."""
    seeds = [row.drawn.seed for row in rows]
    return TEXT.format(
        number=len(rows),
        first=min(seeds),
        last=max(seeds),
        light=LIGHTEST,
        heavy=HEAVIEST,
        shortest=SHORTEST_OUTPUT,
        most=MOST_NUMBER,
        overview="\n".join(overview(rows)),
        table="\n".join(table(rows)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--seeds", nargs=2, type=int, default=(SEEDS.start, SEEDS.stop), metavar=("FROM", "TO")
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", type=Path, help="a Markdown file")
    arguments = parser.parse_args()
    rows = compared_all(range(*arguments.seeds), arguments.workers)
    heading("predicted against simulated latencies")
    print("\n".join([*table(rows), "", *overview(rows), ""]))
    for metric, target in (("ttft", TTFT_TARGET), ("tpot", TPOT_TARGET)):
        for name, (median, _) in zip(STATISTICS, sizes(rows, metric), strict=True):
            print(f"median difference of {metric.upper()} {name}: {median:.1%}, {verdict(median, target)}")
    if arguments.write:
        arguments.write.parent.mkdir(exist_ok=True)
        arguments.write.write_text(document(rows), encoding="utf-8")


if __name__ == "__main__":
    main()

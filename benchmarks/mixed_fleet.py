"""Mixed fleets against fleets of one GPU type and colocated ones, at real prices, by simulation.

    python -m benchmarks.mixed_fleet [--workers 2] [--results results.json] [--write docs]

Llama-3.1-70B under the Azure conversation traffic, at three rates and three limits on p99 TPOT, where all GPU
types are in stock and where few of the best are left. For each the planner looks for the cheapest plan of
any kind, of each GPU type alone, and with colocated groups only; they are simulated, and corrected until they
hold. Takes about ten minutes on two cores. With `--results` what was found is kept in a file, so that it can
be stopped and started again; `--write` writes the page and its pictures.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.mixed_fleet_plans import (
    COLOCATED,
    INSTANCES,
    MARKETS,
    MIXED,
    MODEL,
    PRESET,
    RATES,
    TPOT,
    TTFT,
    Found,
    Result,
    Worth,
    answer,
    cells,
    cost_of,
    keep,
    kept,
    worths,
)
from planner.catalog import load_gpu
from planner.catalog.clouds import load_instance
from planner.documents.files import write_text_atomic
from planner.specs import Dtype, Phase
from planner.units import GIB, KILO, PERCENT, PETA, SECONDS_PER_HOUR, TERA

NAMES = {"a100": "A100", "h100": "H100", "l40s": "L40S", "mi300x": "MI300X", "b200": "B200"}
POOLS = (Phase.PREFILL, Phase.DECODE, Phase.COLOCATED)
SAME = 0.01  # relative difference of costs that counts as none [1]
Worths = dict[int, dict[tuple[str, Phase], Worth]]


def price(gpu: str) -> float:
    """Of one GPU. [USD/h]"""
    found = load_instance(INSTANCES[gpu]).price_per_gpu
    assert found is not None
    return found


def best_single(result: Result) -> tuple[str, Found] | None:
    """The cheapest plan of one type that holds in simulation."""
    found = [(gpu, result.verified[gpu]) for gpu in INSTANCES if gpu in result.verified]
    found = [(gpu, one) for gpu, one in found if one.holds]
    return min(found, key=lambda pair: cost_of(pair[1]), default=None)


def best(result: Result) -> Found:
    """The cheapest plan that holds, whichever way it was found."""
    return min(result.verified.values(), key=cost_of)


def predicted_single(result: Result) -> Found:
    return min((result.predicted[gpu] for gpu in INSTANCES), key=cost_of)


def used_cost(found: Found) -> float:
    """Of GPUs used, without idle ones of whole nodes. [USD/h]"""
    return sum(count * price(gpu) for gpu, count in found.used.items())


def saving(found: Found, than: Found | None) -> float | None:
    """Share of the other plan's cost that is saved; None where there is no other."""
    if than is None or than.cost is None or not than.holds or found.cost is None:
        return None
    return 1 - found.cost / than.cost


# --------------------------------------------------------------------------------------------
# The page


def page(results: Sequence[Result], worth: Worths) -> str:
    lines = [
        "# When does a mixed fleet pay?",
        "",
        "Written by `python -m benchmarks.mixed_fleet --write docs` (about ten minutes on two cores); do "
        "not edit.",
        "",
        f"{MODEL} in 16 bits, vLLM, the lengths of the Azure 2023 conversation trace (`{PRESET}`), "
        f"Poisson arrivals at {', '.join(map(str, RATES))} req/s; p99 TTFT within {TTFT:,} ms, p99 TPOT "
        f"within {', '.join(map(str, TPOT))} ms. Servers are rented whole, eight GPUs each. Compared are the "
        "cheapest plan of any kind (*mixed*: it may use several GPU types, and may as well turn out to use "
        "one, or to be colocated), the cheapest plan on one GPU type, and the cheapest colocated plan (of "
        "any types). Each was simulated at the model error that a confidence of 0.8 plans for, and "
        "corrected until it held, in four rounds at most; a better one may exist.",
        "",
        *prices(),
        "",
        "## In short",
        "",
        *summary(results, worth),
        "",
        "![dollars per thousand requests](mixed-fleets-cost.png)",
    ]
    for market in MARKETS:
        lines += ["", *section(market, [r for r in results if r.cell.market == market])]
    lines += ["", *why(worth), "", *limits()]
    return "\n".join(lines) + "\n"


def prices() -> list[str]:
    lines = [
        "## Prices",
        "",
        "On demand, from the catalogue (`planner gpus prices`). CoreWeave rents no MI300X; Azure's price is "
        "used for it, as if both were one market.",
        "",
        "| GPU | instance | $ per GPU and hour | date | source | status |",
        "| --- | --- | ---: | --- | --- | --- |",
    ]
    for gpu, name in INSTANCES.items():
        one = load_instance(name)
        lines.append(
            f"| {NAMES[gpu]} | {name} | {price(gpu):.3f} | {one.date} | {one.source} | {one.status} |"
        )
    return lines


def summary(results: Sequence[Result], worth: Worths) -> list[str]:
    """What came out, counted."""
    lines = [_market_summary(m, [r for r in results if r.cell.market == m]) for m in MARKETS]
    idle = [gpu for gpu in INSTANCES if not any(gpu in best(r).used for r in results)]
    if idle:
        lines.append(f"- In no plan that won: {', '.join(NAMES[gpu] for gpu in idle)}.")
    firsts = {
        max((w for w in worth[tpot].values() if w.phase is phase), key=lambda w: w.per_dollar).gpu
        for phase in POOLS
        for tpot in TPOT
    }
    if len(firsts) == 1:
        lines.append(
            f"- At these prices {NAMES[firsts.pop()]} serves most requests per dollar in every pool and at "
            "every limit. Where it is in stock, a mix gains only by rounding: whole replicas, whole nodes."
        )
    against = [s for r in results if (s := saving(best(r), r.verified[COLOCATED])) is not None]
    lines.append(
        f"- Against the best colocated plan the best plan saves {min(against):.0%} to {max(against):.0%}, "
        "most where the limit on TPOT is tight."
    )
    return lines


def _market_summary(market: str, results: Sequence[Result]) -> str:
    wins = [(r, gain) for r in results if (gain := _gain(r)) is not None and gain > SAME]
    count = f"{len(wins)} of {len(results)} cells"
    text = f"- **{market}**: a mix is cheaper than the best single type in {count}"
    if not wins:
        return text + "."
    gains = [gain for _, gain in wins]
    middle = statistics.median(gains)
    rounding = sum(_by_rounding(r) for r, _ in wins)
    reason = "None of these savings is due to fuller nodes alone."
    if rounding:
        reason = (
            f"In {rounding} of these the saving is nothing but fuller nodes: the single type would cost no "
            "more if GPUs were paid one by one."
        )
    return f"{text}, by {min(gains):.0%} to {max(gains):.0%} (median {middle:.0%}). {reason}"


def _gain(result: Result) -> float | None:
    single = best_single(result)
    return None if single is None else saving(best(result), single[1])


def _by_rounding(result: Result) -> bool:
    """Whether one type would cost no more than the mix, were GPUs paid one by one."""
    single = best_single(result)
    return single is not None and used_cost(single[1]) <= used_cost(best(result)) * (1 + SAME)


def section(market: str, results: Sequence[Result]) -> list[str]:
    lines = [
        f"## {market[0].upper() + market[1:]}",
        "",
        "Cost in $/h of everything paid for; in parentheses of GPUs used only. By prediction, then of the "
        "plan that holds in simulation. Saving: of the mixed plan that holds, against the others that do.",
        "",
        "| p99 TPOT | req/s | predicted: mixed | one type | colocated | simulated: mixed | one type "
        "| colocated | saving: one type | colocated |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [row(result) for result in results]
    lines += ["", "Groups of the plans that hold:", ""]
    for result in results:
        single = best_single(result)
        lines.append(f"- {result.cell.tpot} ms, {result.cell.rate} req/s")
        lines.append(f"    - mixed: {fleet(best(result))}")
        lines.append(f"    - one type: {'none' if single is None else fleet(single[1])}")
        lines.append(f"    - colocated: {fleet(result.verified[COLOCATED])}")
    return lines


def row(result: Result) -> str:
    single = best_single(result)
    one = None if single is None else single[1]
    together = result.verified[COLOCATED]
    entries = [
        f"{result.cell.tpot} ms",
        str(result.cell.rate),
        money(result.predicted[MIXED]),
        money(predicted_single(result)),
        money(result.predicted[COLOCATED]),
        both(best(result)),
        "none" if single is None else f"{both(single[1])} {NAMES[single[0]]}",
        both(together),
        share(saving(best(result), one)),
        share(saving(best(result), together)),
    ]
    return "| " + " | ".join(entries) + " |"


def money(found: Found) -> str:
    return "none" if found.cost is None else f"{found.cost:,.2f}"


def both(found: Found) -> str:
    if found.cost is None or not found.holds:
        return "none"
    return f"{found.cost:,.2f} ({used_cost(found):,.2f})"


def share(value: float | None) -> str:
    return "-" if value is None else f"{value * PERCENT:.0f} %"


def fleet(found: Found) -> str:
    """Groups in words, or why there are none."""
    if found.cost is None or not found.holds:
        return f"none ({found.fleet})"
    text = found.fleet
    for gpu, name in NAMES.items():
        text = text.replace(f" {gpu} ", f" {name} ")
    return text


def why(worth: Worths) -> list[str]:
    limits = " | ".join(f"decode, {t} ms" for t in TPOT)
    together = " | ".join(f"colocated, {t} ms" for t in TPOT)
    lines = [
        "## What decides",
        "",
        "**Price per work.** Prefill takes FLOP/s, decode memory bandwidth and room for the KV cache. What "
        "each costs by the vendors' figures:",
        "",
        "| GPU | $ per PFLOP/s (bf16, dense) and hour | $ per TB/s and hour | $ per 100 GiB and hour |",
        "| --- | ---: | ---: | ---: |",
    ]
    for gpu, name in INSTANCES.items():
        profile = load_gpu(load_instance(name).gpu)
        per = (
            profile.peak_flops[Dtype.BF16] / PETA,
            profile.hbm_bandwidth / TERA,
            profile.memory / GIB / 100,
        )
        lines.append(f"| {NAMES[gpu]} | " + " | ".join(f"{price(gpu) / amount:.2f}" for amount in per) + " |")
    lines += [
        "",
        "What the planner makes of it: requests per dollar in a large pool, at the best layout (prefill does "
        "not depend on the limit on TPOT), and KV cache per GPU at that of decode. In parentheses the price "
        'below which the type would be the cheapest of its pool; "-": no layout meets the limits.',
        "",
        "![requests per dollar](mixed-fleets-value.png)",
        "",
        f"| GPU | prefill | {limits} | KV cache [tok/GPU] | {together} |",
        "| --- |" + " ---: |" * (2 + 2 * len(TPOT)),
    ]
    lines += [worth_row(gpu, worth) for gpu in INSTANCES]
    lines += ["", *WHOLE_NODES.splitlines(), "", *STOCK.splitlines(), "", *advantages(worth)]
    return [*lines, "", *OTHERS.splitlines()]


def advantages(worth: Worths) -> list[str]:
    """Requests per dollar over those of A100, which is never short."""
    lines = [
        "| requests per dollar over A100's | prefill | " + " | ".join(f"decode, {t} ms" for t in TPOT) + " |",
        "| --- |" + " ---: |" * (1 + len(TPOT)),
    ]
    keys = [(Phase.PREFILL, TPOT[0]), *((Phase.DECODE, t) for t in TPOT)]
    for gpu in ("h100", "b200"):
        ratios = [worth[t][gpu, p].per_dollar / worth[t]["a100", p].per_dollar for p, t in keys]
        lines.append(f"| {NAMES[gpu]} | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")
    return lines


def worth_row(gpu: str, worth: Worths) -> str:
    keys = [(Phase.PREFILL, TPOT[0])]
    decode, together = [[(phase, t) for t in TPOT] for phase in (Phase.DECODE, Phase.COLOCATED)]
    cache = worth[TPOT[1]].get((gpu, Phase.DECODE))
    entries = [
        *(worth_cell(gpu, phase, t, worth) for phase, t in [*keys, *decode]),
        "-" if cache is None else f"{cache.kv_tokens:,}",
        *(worth_cell(gpu, phase, t, worth) for phase, t in together),
    ]
    return f"| {NAMES[gpu]} | " + " | ".join(entries) + " |"


def worth_cell(gpu: str, phase: Phase, tpot: int, worth: Worths) -> str:
    found = worth[tpot].get((gpu, phase))
    if found is None:
        return "-"
    top = max(w.per_dollar for w in worth[tpot].values() if w.phase is phase)
    text = f"{found.per_dollar:,.0f} {found.layout}"
    return f"**{text}**" if found.per_dollar == top else f"{text} ({price(gpu) * found.per_dollar / top:.2f})"


WHOLE_NODES = """\
**Whole nodes.** One node of eight B200 costs little more than three of A100. A fleet that needs ten B200 pays
for sixteen; the six that idle cost more than a whole node of A100, so a mix that fills one B200 node and
leaves the rest of decoding to A100 is cheaper, although a request costs more on A100. The larger the fleet,
the smaller this effect. At the lowest rate one or two nodes of one type carry all, and there is nothing to
mix.\
"""
STOCK = """\
**Stock.** Once the best type runs out, the question is what to use the rest of it for. It goes where its
advantage over the next type, here A100, is largest. Where the ratio for decode is above that for prefill,
the scarce GPUs decode; where it is below, they do prompts. A tight limit on TPOT counts bandwidth; a loose
one lets A100 decode large batches in its many cheap GiB of KV cache. Small fleets deviate: whole nodes
outweigh these ratios.\
"""
OTHERS = """\
**Colocated plans** lose where the limit on TPOT is tight, because prompts hold up decoding, and are level
where it is loose.

**L40S** costs as much per FLOP/s as H100, but has no NVLink: the 141 GB of weights need four GPUs or more
that talk over PCI Express. No layout prefills within the limit on TTFT, and those that decode serve a small
part of what the others do per dollar. **MI300X** is priced close to B200 here and serves about half as much
per dollar; it was used only where colocated plans ran out of everything else.\
"""


def limits() -> list[str]:
    estimated = [
        NAMES[gpu]
        for gpu, name in INSTANCES.items()
        if load_gpu(load_instance(name).gpu).calibration.status == "estimated"
    ]
    return [
        "## What this does not say",
        "",
        "- Prices differ by more than these savings from one cloud to the next and within a year, and those "
        "above are second-hand or unverified. The prices in parentheses say which would turn the result: "
        "other clouds rent A100 for less than that at which it decodes cheapest, and B200 for less as well "
        "(`planner gpus prices`).",
        f"- No GPU was measured for this page; calibrations that are estimates: {', '.join(estimated)} "
        "(`planner gpus show`). KV caches are taken to go from one GPU type to another wherever the engine's "
        "profile does not forbid it.",
        '- "none" means that no plan was found. For single types the reason is mostly the stock. Where a '
        "plan keeps missing an SLO, the search gave up correcting a fleet of unequal colocated groups: a "
        "limit of the planner, not a proof.",
        "- A single type was simulated only where its prediction was below what had been found to hold.",
    ]


# --------------------------------------------------------------------------------------------
# Pictures


def cost_picture(results: Sequence[Result], path: Path) -> None:
    """A panel per market and rate: dollars per thousand requests over the limit on TPOT."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(RATES), 2.9 * len(MARKETS)), layout="constrained")
    axes = figure.subplots(len(MARKETS), len(RATES), squeeze=False)
    bars = (("one type", "#7b3294"), ("colocated", "#999999"), ("mixed", "#e66101"))
    for line, market in zip(axes, MARKETS, strict=True):
        for axis, rate in zip(line, RATES, strict=True):
            mine = [r for r in results if (r.cell.market, r.cell.rate) == (market, rate)]
            for k, (name, color) in enumerate(bars):
                found = list(_of_kind(mine, name))
                x = [i + (k - 1) * 0.27 for i in range(len(mine))]
                heights = [0.0 if f is None else cost_of(f) / (rate * SECONDS_PER_HOUR / KILO) for f in found]
                axis.bar(x, heights, 0.25, color=color, label=name)
                for at, height in zip(x, heights, strict=True):
                    if not height:
                        axis.text(at, 0, " none", rotation=90, fontsize=7, ha="center", va="bottom")
            axis.set_xticks(range(len(mine)), [f"{r.cell.tpot}" for r in mine])
            axis.set_title(f"{market}: {rate} req/s", fontsize=9)
            axis.tick_params(labelsize=8)
            axis.grid(axis="y", alpha=0.3)
        line[0].set_ylabel("$ per 1,000 requests", fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("p99 TPOT limit [ms]", fontsize=8)
    axes[0][-1].legend(fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def _of_kind(results: Sequence[Result], name: str) -> Iterator[Found | None]:
    for result in results:
        single = best_single(result)
        together = result.verified[COLOCATED]
        yield {
            "one type": None if single is None else single[1],
            "colocated": together if together.holds else None,
            "mixed": best(result),
        }[name]


def value_picture(worth: Worths, path: Path) -> None:
    """A panel per pool: requests per dollar by GPU type, a bar per limit on TPOT."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 2.9), layout="constrained")
    axes = figure.subplots(1, len(POOLS))
    colors = ("#b2abd2", "#8073ac", "#542788")
    for axis, phase in zip(axes, POOLS, strict=True):
        for k, tpot in enumerate(TPOT):
            found = [worth[tpot].get((gpu, phase)) for gpu in INSTANCES]
            heights = [0.0 if w is None else w.per_dollar for w in found]
            x = [i + (k - 1) * 0.27 for i in range(len(INSTANCES))]
            axis.bar(x, heights, 0.25, color=colors[k], label=f"TPOT {tpot} ms")
        axis.set_xticks(range(len(INSTANCES)), list(NAMES.values()))
        axis.set_title(f"{phase}", fontsize=9)
        axis.tick_params(labelsize=8)
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_ylabel("requests per dollar", fontsize=8)
    axes[-1].legend(fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--results", type=Path, help="a JSON file: what is in it is not computed again")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="where the page and pictures go")
    arguments = parser.parse_args()
    results = kept(arguments.results)
    missing = [cell for cell in cells() if cell.key not in results]
    with ProcessPoolExecutor(arguments.workers) as pool:
        for result in pool.map(answer, missing):
            results[result.cell.key] = result
            print(f"{len(results)}/{len(list(cells()))} {result.cell.key}: {row(result)}", flush=True)
            if arguments.results:
                keep(arguments.results, results)
    ordered = [results[cell.key] for cell in cells()]
    worth = {tpot: worths(tpot) for tpot in TPOT}
    print("\n".join(summary(ordered, worth)))
    if arguments.write:
        arguments.write.mkdir(exist_ok=True)
        write_text_atomic(arguments.write / "mixed-fleets.md", page(ordered, worth))
        cost_picture(ordered, arguments.write / "mixed-fleets-cost.png")
        value_picture(worth, arguments.write / "mixed-fleets-value.png")


if __name__ == "__main__":
    main()

"""Rules of the scenario file that span several keys. They run on the raw tree, also when a key is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from planner.documents.tree import KeyPath, Tree
from planner.errors import Problem

DEMAND_KEYS = ("model", "workload", "slo")
SERVED_KEYS = (*DEMAND_KEYS, "precision", "engine", "engine_profile", "speculative", "measured")
LENGTH_SPLIT = "length_split"
SURVIVE_NODE, SURVIVE_ZONE = "node", "zone"


def check_workload(tree: Tree, rate_needed: bool) -> list[Problem]:
    """Lengths are given, or a source that has them, and so is the rate where it is needed; a length is one
    kind of distribution."""
    if not isinstance(tree.get("workload"), dict):
        return []  # reported by the schema
    problems = []
    sides = ("input_tokens", "output_tokens")
    needed = () if _has_source(tree) else sides
    if rate_needed and not _has_source(tree):
        needed = ("request_rate", *needed)
    for key in needed:
        if not any(tree.has("workload", k) for k in (key, "users")):
            hint = "" if key == "request_rate" else "or name a preset or a trace"
            problems.append(tree.problem(("workload", key), "is required", hint))
    if tree.has("workload", "preset") and tree.has("workload", "trace"):
        problems.append(tree.problem(("workload", "trace"), "is given beside a preset", "give one of them"))
    if tree.get("workload", "arrivals") == "trace" and not _has_source(tree):
        rule = "there is no trace to take them from"
        problems.append(tree.problem(("workload", "arrivals"), rule, "give trace: or preset:"))
    if tree.has("workload", "prefix_load_gb_per_s") and not tree.get("workload", "prefix_cache_hit_rate"):
        rule = "there is nothing to load: prefix_cache_hit_rate is 0"
        hint = "give that, or leave this out"
        problems.append(tree.problem(("workload", "prefix_load_gb_per_s"), rule, hint, show_value=False))
    for side in sides:
        if isinstance(tree.get("workload", side), dict):
            problems += _check_length(tree, ("workload", side))
    return problems


def _has_source(tree: Tree) -> bool:
    """Whether rate, lengths and burstiness come from recorded traffic."""
    return tree.has("workload", "preset") or tree.has("workload", "trace")


def _check_length(tree: Tree, path: KeyPath) -> list[Problem]:
    given = set(tree.get(*path))
    families = [{"mean", "cv"}, {"p50", "p90", "p99"}, {"histogram"}]
    used = [family for family in families if family & given]
    forms = "use {mean, cv}, {p50, p90, p99} or {histogram: [[tokens, weight], ...]}"
    if not used and given == {"max"} and _has_source(tree):
        return []  # cuts the recorded lengths
    if len(used) != 1:
        rule = "mixes several kinds of distribution" if used else "says nothing of the distribution"
        return [tree.problem(path, rule, forms, show_value=False)]
    if used == [families[0]] and not families[0] <= given:
        (absent,) = families[0] - given
        return [tree.problem((*path, absent), "is required", forms)]
    if used == [families[1]]:
        return _check_percentiles(tree, path)
    return _check_histogram(tree, path)


def _check_percentiles(tree: Tree, path: KeyPath) -> list[Problem]:
    known = [(name, tree.get(*path, name)) for name in ("p50", "p90", "p99") if tree.has(*path, name)]
    if len(known) < 2:
        return [tree.problem(path, "needs at least two of p50, p90, p99", show_value=False)]
    return [
        tree.problem((*path, name), f"must be >= {before_name}")
        for (before_name, before), (name, value) in pairwise(known)
        if is_number(before) and is_number(value) and value < before
    ]


def _check_histogram(tree: Tree, path: KeyPath) -> list[Problem]:
    pairs = tree.entries(*path, "histogram")
    weights = [pair[1] for pair in pairs if isinstance(pair, list) and len(pair) == 2]
    if weights and len(weights) == len(pairs) and all(is_number(w) and w == 0 for w in weights):
        return [tree.problem((*path, "histogram"), "needs a weight > 0")]
    return []


def check_slo(tree: Tree) -> list[Problem]:
    """There is at least one limit, and one wherever a latency is named."""
    problems = [
        tree.problem(("slo", key), "gives no limit", "e.g. {p99: 1000}", show_value=False)
        for key in ("ttft_ms", "tpot_ms")
        if tree.get("slo", key) == {}
    ]
    if tree.get("slo") == {}:
        problems.append(tree.problem(("slo",), "at least one SLO is needed", "e.g. ttft_ms: {p99: 1000}"))
    return problems


def check_speculative(tree: Tree) -> list[Problem]:
    """A step emits no more than it verifies, and drafting has one cost."""
    path: KeyPath = ("speculative",)
    if not isinstance(tree.get(*path), dict):
        return []  # not there, or reported by the schema
    problems = []
    proposed, accepted = (tree.get(*path, key) for key in ("draft_tokens", "accepted_tokens"))
    if type(proposed) is int and proposed >= 1 and is_number(accepted) and accepted > proposed + 1:
        rule = f"must be <= draft_tokens + 1 = {proposed + 1}: a step emits no more than it verifies"
        problems.append(tree.problem((*path, "accepted_tokens"), rule))
    if tree.has(*path, "draft_cost") and tree.has(*path, "draft_ms"):
        problems.append(tree.problem((*path, "draft_ms"), "is given beside draft_cost", "give one of them"))
    elif not tree.has(*path, "draft_cost") and not tree.has(*path, "draft_ms"):
        hint = "or draft_ms: the time of drafting, measured; 0 where it costs nothing"
        problems.append(tree.problem((*path, "draft_cost"), "is required", hint, show_value=False))
    return problems


def check_models(tree: Tree) -> list[Problem]:
    """There is one model, or a list of them whose names differ; never both."""
    if not tree.has("models"):
        absent = [key for key in DEMAND_KEYS if not tree.has(key)]
        return [tree.problem((key,), "is required", show_value=False) for key in absent]
    beside = [key for key in SERVED_KEYS if tree.has(key)]
    problems = [
        tree.problem((key,), "is given beside models", "give it within models", show_value=False)
        for key in beside
    ]
    paths: list[KeyPath] = [("models", i, "name") for i in range(len(tree.entries("models")))]
    hint = "give each its own, or none"
    return [*problems, *repeated(tree, paths, "is the name of another model", hint)]


def demand_trees(tree: Tree) -> list[Tree]:
    """The parts of a scenario that say what is to be served: one, or one for each of `models`."""
    if not tree.has("models"):
        return [tree]
    return [tree.within("models", i) for i in range(len(tree.entries("models")))]


def check_options(tree: Tree) -> list[Problem]:
    """Options that need others, or something of the fleet, have it."""
    problems = []
    buckets: KeyPath = ("options", "max_length_buckets")
    if tree.has(*buckets) and tree.get("options", "routing") != LENGTH_SPLIT:
        rule = f"counts only with routing {LENGTH_SPLIT}"
        problems.append(tree.problem(buckets, rule, f"add routing: {LENGTH_SPLIT}, or leave it out"))
    zones = zone_names(tree)
    for i, what in enumerate(tree.entries("options", "survive")):
        if what == SURVIVE_ZONE and len(zones) < 2:
            rule = f"needs two zones, the fleet has {'one' if zones else 'none'}"
            problems.append(tree.problem(("options", "survive", i), rule, "give zone on lines of the fleet"))
    return problems


def zone_names(tree: Tree) -> list[str]:
    """Zones of the fleet, in the order of their names."""
    zones = [tree.get("fleet", i, "zone") for i in range(len(tree.entries("fleet")))]
    return sorted({zone for zone in zones if isinstance(zone, str)})


def repeated(tree: Tree, paths: Sequence[KeyPath], rule: str, hint: str) -> Iterator[Problem]:
    """Texts at `paths` that stand at an earlier one too."""
    first: dict[str, KeyPath] = {}
    for path in paths:
        text = tree.get(*path)
        if not isinstance(text, str):
            continue
        if text in first:
            yield tree.problem(path, f"{rule}, first on line {tree.line(first[text])}", hint)
        first.setdefault(text, path)


def is_number(value: Any) -> bool:
    """Whether a value of a file is one."""
    return isinstance(value, int | float) and not isinstance(value, bool)

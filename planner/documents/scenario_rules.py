"""Rules of the scenario file that span several keys. They run on the raw tree, also when a key is wrong."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from planner.documents.tree import KeyPath, Tree
from planner.errors import Problem
from planner.specs import Objective


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
        if _is_number(before) and _is_number(value) and value < before
    ]


def _check_histogram(tree: Tree, path: KeyPath) -> list[Problem]:
    pairs = tree.entries(*path, "histogram")
    weights = [pair[1] for pair in pairs if isinstance(pair, list) and len(pair) == 2]
    if weights and len(weights) == len(pairs) and all(_is_number(w) and w == 0 for w in weights):
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


def check_fleet(tree: Tree) -> list[Problem]:
    """There are GPUs to choose from, by name or by instance, with prices where cost counts."""
    if tree.get("fleet") == []:
        return [tree.problem(("fleet",), "the fleet is empty", "list at least one GPU type")]
    return [
        problem
        for i, item in enumerate(tree.entries("fleet"))
        if isinstance(item, dict)
        for problem in (*_check_gpu(tree, i), *_check_price(tree, i))
    ]


def _check_gpu(tree: Tree, i: int) -> list[Problem]:
    if tree.has("fleet", i, "gpu") or tree.has("fleet", i, "instance"):
        return []
    return [tree.problem(("fleet", i, "gpu"), "is required", "or name an instance")]


def _check_price(tree: Tree, i: int) -> list[Problem]:
    path: KeyPath = ("fleet", i, "price_per_gpu_hour")
    if tree.get("fleet", i, "owned") is True:
        return []
    if tree.has(*path):
        free = _is_number(tree.get(*path)) and tree.get(*path) == 0
        return [tree.problem(path, "must be > 0", "or say owned: true")] if free else []
    reason = "" if tree.has("fleet", i, "instance") else price_reason(tree)
    return [tree.problem(path, f"missing price: {reason}", "give it, or owned: true")] if reason else []


def price_reason(tree: Tree) -> str:
    """Why GPUs need a price; empty where they need none."""
    if tree.get("objective") in (None, Objective.COST):
        return "objective is cost"
    return "there is a budget" if tree.has("budget_per_hour") else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

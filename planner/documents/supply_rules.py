"""Rules of a scenario's fleet, zones and electricity that span several keys. They run on the raw tree."""

from __future__ import annotations

from collections.abc import Iterator

from planner.documents.names import did_you_mean
from planner.documents.scenario_rules import is_number, zone_names
from planner.documents.tree import KeyPath, Tree
from planner.errors import Problem
from planner.specs import Objective, PriceClass


def check_fleet(tree: Tree) -> list[Problem]:
    """There are GPUs to choose from, by name or by instance, with prices where cost counts."""
    if tree.get("fleet") == []:
        return [tree.problem(("fleet",), "the fleet is empty", "list at least one GPU type")]
    return [
        problem
        for i, item in enumerate(tree.entries("fleet"))
        if isinstance(item, dict)
        for problem in (*_check_gpu(tree, i), *_check_price(tree, i), *_check_class(tree, i))
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
        free = is_number(tree.get(*path)) and tree.get(*path) == 0
        return [tree.problem(path, "must be > 0", "or say owned: true")] if free else []
    reason = "" if tree.has("fleet", i, "instance") else price_reason(tree)
    hint = "give it, or owned: true"
    if tree.has("power", "price_per_kwh"):
        hint += "; electricity is paid beside it"
    return [tree.problem(path, f"missing price: {reason}", hint)] if reason else []


def _check_class(tree: Tree, i: int) -> list[Problem]:
    """Spot GPUs, and they alone, are interrupted; nobody takes away what is owned."""
    path: KeyPath = ("fleet", i, "interruptions_per_hour")
    if tree.get("fleet", i, "price_class") != PriceClass.SPOT:
        rule = "belongs to spot GPUs"
        return [tree.problem(path, rule, "add price_class: spot, or leave it out")] if tree.has(*path) else []
    problems = []
    if not tree.has(*path):
        problems.append(tree.problem(path, "is required for spot GPUs", "e.g. 0.05: once in 20 hours"))
    if tree.get("fleet", i, "owned") is True:
        rule = "contradicts owned: true"
        problems.append(tree.problem(("fleet", i, "price_class"), rule, "leave one of them out"))
    return problems


def price_reason(tree: Tree) -> str:
    """Why GPUs need a price; empty where they need none."""
    if tree.get("objective") in (None, Objective.COST):
        return "objective is cost"
    return "there is a budget" if tree.has("budget_per_hour") else ""


def check_supply(tree: Tree) -> list[Problem]:
    """Zones have GPUs, egress somewhere to go, electricity a figure, and a floor something to stand on."""
    return [*_check_zones(tree), *_check_power(tree), *_check_floor(tree)]


def _check_zones(tree: Tree) -> Iterator[Problem]:
    lines = [i for i, item in enumerate(tree.entries("fleet")) if isinstance(item, dict)]
    without = [i for i in lines if not tree.has("fleet", i, "zone")]
    known = zone_names(tree)
    if 0 < len(without) < len(lines):
        rule = "is required: other lines of the fleet have one"
        yield tree.problem(("fleet", without[0], "zone"), rule, "give it on all lines, or on none")
    caps = tree.get("zones")
    for name in caps if isinstance(caps, dict) else ():
        if name not in known:
            hint = did_you_mean(name, known) or (f"known: {', '.join(known)}" if known else "")
            yield tree.problem(
                ("zones", name), "no line of the fleet is in this zone", hint, show_value=False
            )
    if tree.has("egress_per_gb") and len(known) < 2:
        rule = f"needs two zones, the fleet has {'one' if known else 'none'}"
        yield tree.problem(("egress_per_gb",), rule, "give zone on lines of the fleet, or leave it out")


def _check_power(tree: Tree) -> Iterator[Problem]:
    if isinstance(tree.get("power"), dict) and not any(
        tree.has("power", key) for key in ("price_per_kwh", "max_kw")
    ):
        rule = "has neither price_per_kwh nor max_kw"
        yield tree.problem(("power",), rule, "give one of them, or leave it out", show_value=False)


def _check_floor(tree: Tree) -> Iterator[Problem]:
    path = ("options", "on_demand_floor")
    floor = tree.get(*path)
    lines = range(len(tree.entries("fleet")))
    spot = [tree.get("fleet", i, "price_class") == PriceClass.SPOT for i in lines]
    if spot and all(spot) and is_number(floor) and floor > 0:
        yield tree.problem(path, "cannot be held: all GPUs of the fleet are spot", "add others, or give 0")

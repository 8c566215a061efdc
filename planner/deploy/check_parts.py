"""Parts of engines over several hosts: all are there, each knows which it is, and all know the first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from planner.deploy.command_line import FlagList
from planner.deploy.dialect import Dialect
from planner.deploy.findings import Finding
from planner.deploy.reading import GroupEntry, Manifest, ReadEngine
from planner.errors import SpecError
from planner.specs import Parallelism

_SERVES = ("--host", "--port")
"""Flags of what only the first part does."""


def part_findings(
    dialect: Dialect, group: GroupEntry, parts: Sequence[ReadEngine], flags: FlagList
) -> Iterator[Finding]:
    """What is wrong between the parts of a group's engines, all of scripts or all of compose files."""
    if group.nodes == 1 and not any(part.rank for part in parts):
        return
    ranks = range(group.nodes)
    for number in dict.fromkeys(part.number for part in parts):
        mine = [part for part in parts if part.number == number]
        first = min(mine, key=lambda part: part.rank)
        given = Counter(part.rank for part in mine)
        for rank in ranks:
            if given[rank] != 1:
                rule = f"engine {number} needs one part of each rank from 0 to {group.nodes - 1}"
                said = f"{given[rank]} of rank {rank}"
                yield Finding(file=first.file, line=first.line, rule=rule, value=said)
        for part in mine:
            if part.rank not in ranks:
                rule = f"is the rank of no part: the manifest has {group.nodes} hosts for each engine"
                yield Finding(file=part.file, line=part.line, rule=rule, value=str(part.rank))
                continue
            yield from _which(dialect, group, part, flags)
            yield from _unlike_first(dialect, group, first, part, flags)


def _wanted(dialect: Dialect, group: GroupEntry, layout: Parallelism) -> tuple[Mapping[str, str | None], ...]:
    """By rank the flags that say which part it is."""
    return tuple(dialect.part_flags(layout, group.nodes, rank) for rank in range(group.nodes))


def _which(dialect: Dialect, group: GroupEntry, part: ReadEngine, flags: FlagList) -> Iterator[Finding]:
    """A part is told its own rank, and nothing that others are told."""
    layout = dialect.layout(part, flags)
    if layout is None:
        return  # told of the command line
    try:
        wanted = _wanted(dialect, group, layout)
    except SpecError as error:
        yield Finding(file=part.file, line=part.line, rule=str(error))
        return
    given = part.flags(flags)
    for name in dict.fromkeys(name for flags_of_rank in wanted for name in flags_of_rank):
        values, line = given.get(name, (None, part.line))
        said = None if values is None else " ".join(values)
        if name not in wanted[part.rank]:
            if said is not None:
                rule = f"{name} is not for the part of rank {part.rank}"
                yield Finding(
                    file=part.file, line=line, rule=rule, value=said or name, suggestion="leave it out"
                )
            continue
        value = wanted[part.rank][name] or ""
        if said != value:
            rule = (
                f"{name} of the part of rank {part.rank} must be {value}" if value else f"{name} is missing"
            )
            hint = f"{name} {value}".rstrip()
            yield Finding(
                file=part.file,
                line=line,
                rule=rule,
                value="nothing" if said is None else said,
                suggestion=hint,
            )


def _unlike_first(
    dialect: Dialect, group: GroupEntry, first: ReadEngine, part: ReadEngine, flags: FlagList
) -> Iterator[Finding]:
    """All else is the same in all parts of an engine: sizes, formats, and the address of the first host."""
    layout = dialect.layout(first, flags)
    if part is first or layout is None:
        return
    try:
        own = {name for told in _wanted(dialect, group, layout) for name in told}
    except SpecError:
        return  # told of each part
    usual, given = first.flags(flags), part.flags(flags)
    for name in sorted((usual.keys() | given.keys()) - own - set(_SERVES)):
        said, line = given.get(name, (None, part.line))
        theirs, at = usual.get(name, (None, first.line))
        if said != theirs:
            rule = f"{name} differs from the first part of the engine, {first.file}:{at}"
            value = "nothing" if said is None else " ".join(said)
            hint = "leave it out" if theirs is None else f"{name} {' '.join(theirs)}".rstrip()
            yield Finding(file=part.file, line=line, rule=rule, value=value, suggestion=hint)
    if first.model(flags, dialect.model_flag) != part.model(flags, dialect.model_flag):
        rule = f"the model differs from the first part of the engine, {first.file}:{first.line}"
        value = part.model(flags, dialect.model_flag)
        yield Finding(file=part.file, line=part.line, rule=rule, value=value)


def leader_findings(
    dialect: Dialect, manifest: Manifest, services: Sequence[ReadEngine], flags: FlagList
) -> Iterator[Finding]:
    """Parts lie on hosts of their own, and name the address of the host that the first lies on."""
    for group in manifest.groups:
        if group.nodes == 1:
            continue
        parts = [service for service in services if service.group == group.name]
        yield from part_findings(dialect, group, parts, flags)
        hosts = {(p.number, p.rank): _host(p) for p in parts}
        for part in parts:
            others = [rank for (n, rank), host in hosts.items() if n == part.number and host == _host(part)]
            if len(others) > 1 and part.rank:
                rule = "a host has two parts of one engine"
                yield Finding(file=part.file, line=part.line, rule=rule, value=f"{group.name}-{part.number}")
            address = manifest.addresses.get(hosts.get((part.number, 0), ""), "").strip("[]")
            flag, said = dialect.leader(part, flags)
            if address and said != address:
                line = part.flags(flags).get(flag, ((), part.line))[1]
                rule = f"{flag} must name the first host of the engine, {address}"
                yield Finding(file=part.file, line=line, rule=rule, value=said or "nothing")


def _host(part: ReadEngine) -> str:
    """Host of a compose file."""
    return PurePosixPath(part.file).name.removesuffix(".compose.yaml")

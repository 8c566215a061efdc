"""Engines of a folder: command lines, connectors, GPUs, ports; scripts and compose files alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from planner.deploy.check_parts import part_findings
from planner.deploy.command_line import FlagList, command_faults
from planner.deploy.description import PLACEHOLDER
from planner.deploy.dialect import Dialect
from planner.deploy.engine_facts import EngineFacts
from planner.deploy.findings import Finding, of_error, of_problem
from planner.deploy.manifest import NAME as MANIFEST
from planner.deploy.reading import (
    GroupEntry,
    Manifest,
    ReadEngine,
    compose_services,
    engine_of_script,
    engines_of_script,
)
from planner.deploy.scripts import Command, Script
from planner.deploy.words import MAX_GROUP_NAME
from planner.documents.files import read_text
from planner.documents.names import one_of
from planner.documents.schema_base import MAX_LABEL, label_of
from planner.documents.yaml_text import parse_tree
from planner.errors import SpecError


def command_findings(file: str, command: Command, flags: FlagList, positionals: int) -> Iterator[Finding]:
    """What the tool would refuse of a command, by its lines; placeholders are told by themselves."""
    for fault in command_faults(command.words, flags, positionals):
        if fault.value.startswith(PLACEHOLDER):
            continue
        yield Finding(
            file=file,
            line=command.lines[fault.word],
            rule=fault.rule,
            value=fault.value,
            suggestion=fault.suggestion,
        )


def script_findings(
    dialect: Dialect, group: GroupEntry, script: Script, flags: FlagList, facts: EngineFacts
) -> Iterator[Finding]:
    """What is wrong with the script of a group, and with each of its engines."""
    engine = engine_of_script(group.name, script, dialect.program)
    yield from (Finding(file=engine.file, line=line, rule=rule) for line, rule in script.unread)
    if script.command.words[: len(dialect.program)] != dialect.program:
        rule = f"runs no {' '.join(dialect.program)}"
        yield Finding(file=engine.file, line=engine.line, rule=rule)
        return
    yield from engine_findings(dialect, group, engine, flags, facts)
    for case in script.cases.values():
        yield from command_findings(engine.file, case.own.filled(case), flags, positionals=0)
    parts = list(engines_of_script(group.name, script, dialect.program))
    for one in parts:
        yield from _place_findings(dialect, group, one, flags)
    yield from part_findings(dialect, group, parts, flags)


def engine_findings(
    dialect: Dialect, group: GroupEntry, engine: ReadEngine, flags: FlagList, facts: EngineFacts
) -> Iterator[Finding]:
    """What holds of one command line."""
    yield from command_findings(
        engine.file, engine.command, flags, positionals=0 if dialect.model_flag else 1
    )
    if not engine.model(flags, dialect.model_flag):
        yield Finding(file=engine.file, line=engine.line, rule="names no model")
    given = engine.flags(flags)
    for name in dialect.required:
        if name not in given:
            file, line = engine.place(flags, name)
            yield Finding(file=file, line=line, rule=f"{name} is missing; the plan counts on it")
    yield from dialect.hand_over(group, engine, flags)
    backend = facts.backends.get(engine.value(flags, dialect.backend))
    block = engine.value(flags, dialect.block_size)
    if backend is not None and backend.block_sizes and block not in map(str, backend.block_sizes):
        sizes = tuple(map(str, backend.block_sizes))
        line = given[dialect.block_size][1] if dialect.block_size in given else engine.line
        rule = f"{dialect.block_size} with {backend.name} {one_of(sizes)}"
        yield Finding(file=engine.file, line=line, rule=rule, value=block)


def _place_findings(
    dialect: Dialect, group: GroupEntry, engine: ReadEngine, flags: FlagList
) -> Iterator[Finding]:
    """GPUs and ports of one engine."""
    yield from gpu_findings(dialect, group, engine, flags, hosts=group.nodes)
    port = engine.value(flags, "--port")
    follows = engine.rank > 0 and "--port" not in engine.flags(flags)
    if not follows and not (port.isdecimal() and 0 < int(port) < 65_536):
        rule = "--port must be a number up to 65535"
        yield Finding(file=engine.file, line=engine.line, rule=rule, value=port)
    yield from dialect.place_faults(engine, flags)


def gpu_findings(
    dialect: Dialect, group: GroupEntry, engine: ReadEngine, flags: FlagList, hosts: int = 1
) -> Iterator[Finding]:
    """An engine has as many GPUs as its sizes need; what was read of it is its part of so many hosts."""
    layout = dialect.layout(engine, flags)
    gpus = engine.gpus or ()
    if layout is not None and len(gpus) * hosts != layout.num_gpus:
        each = f" on {hosts} hosts" if hosts > 1 else ""
        rule = f"{group.role} engine of {layout} needs {layout.num_gpus} GPUs{each}"
        yield Finding(file=engine.file, line=engine.line, rule=rule, value=f"{len(gpus)} ({','.join(gpus)})")


# --------------------------------------------------------------------------------------------
# Compose


def compose_findings(
    dialect: Dialect,
    folder: Path,
    manifest: Manifest,
    scripts: dict[str, Script],
    flags: FlagList,
    facts: EngineFacts,
) -> tuple[list[ReadEngine], list[Finding]]:
    """Engines of all compose files, and what is wrong with these."""
    engines: list[ReadEngine] = []
    found: list[Finding] = []
    groups = {group.name: group for group in manifest.groups}
    for file in manifest.files:
        if not (file.endswith(".compose.yaml") and (folder / file).is_file()):
            continue
        try:
            tree, problems = parse_tree(read_text(folder / file), file)
        except SpecError as error:
            found += of_error(file, error)
            continue
        found += [of_problem(file, problem) for problem in problems]
        found += name_findings(file, 1, str(tree.get("name")), MAX_LABEL)
        taken: dict[tuple[str, str], str] = {}
        for name, engine, faults in compose_services(tree, file):
            line = tree.line(("services", name))
            found += [*faults, *name_findings(file, line, name, MAX_LABEL)]
            image = tree.get("services", name, "image")
            found += image_findings(file, tree.line(("services", name, "image")), str(image or ""))
            if file.startswith("router"):
                continue
            if engine is None or engine.group not in groups:
                rule = "is the service of no group of the manifest"
                found.append(Finding(file=file, line=line, rule=rule, value=name))
                continue
            if engine.group in scripts:
                engine = replace(engine, settings=scripts[engine.group].settings)
            engines.append(engine)
            group = groups[engine.group]
            found += engine_findings(dialect, group, engine, flags, facts)
            found += _place_findings(dialect, group, engine, flags)
            found += _same_as_script(dialect, engine, scripts, flags)
            for what, value in _places(dialect, engine, flags):
                if (what, value) in taken:
                    rule = f"{what} is taken by {taken[what, value]} too"
                    found.append(Finding(file=file, line=line, rule=rule, value=value))
                taken[what, value] = name
            if engine.image != group.image:
                rule, hint = "all engines run one image", group.image
                at = tree.line(("services", name, "image"))
                found.append(Finding(file=file, line=at, rule=rule, value=engine.image, suggestion=hint))
    return engines, found


def _places(dialect: Dialect, engine: ReadEngine, flags: FlagList) -> Iterator[tuple[str, str]]:
    """What no two engines of a host may share."""
    yield from (("GPU", gpu) for gpu in engine.gpus or ())
    ports = [engine.value(flags, name).rpartition(":")[2] for name in dialect.ports]
    ports += [engine.environment.get(name, ("", 0))[0] for name in dialect.port_variables]
    yield from (("port", port) for port in ports if port)


def name_findings(file: str, line: int, name: str, limit: int) -> Iterator[Finding]:
    if label_of(name) != name or not name or len(name) > limit:
        rule = f"a name must be up to {limit} small letters, digits and dashes"
        yield Finding(
            file=file, line=line, rule=rule, value=name, suggestion=label_of(name)[:limit].strip("-")
        )


def image_findings(file: str, line: int, image: str) -> Iterator[Finding]:
    tag = image.rpartition("/")[2].partition(":")[2]
    if image.startswith(PLACEHOLDER):
        return  # told by itself
    if not (tag or "@sha256:" in image):
        yield Finding(file=file, line=line, rule="an image needs a tag", value=image or "nothing")
    elif tag == "latest":
        yield Finding(file=file, line=line, rule="latest names no version", value=image)


def _same_as_script(
    dialect: Dialect, engine: ReadEngine, scripts: dict[str, Script], flags: FlagList
) -> Iterator[Finding]:
    """Script and compose file of an engine say the same."""
    script = scripts.get(engine.group)
    if script is None:
        return
    other = next(
        (
            e
            for e in engines_of_script(engine.group, script, dialect.program)
            if (e.number, e.rank) == (engine.number, engine.rank)
        ),
        None,
    )
    if other is None:
        rule = f"groups/{engine.group}.sh has no engine of this number"
        yield Finding(file=engine.file, line=engine.line, rule=rule, value=str(engine.number))
        return
    mine, theirs = engine.flags(flags), other.flags(flags)
    for name in sorted(mine.keys() | theirs.keys()):
        ours, line = mine.get(name, (None, engine.line))
        said, at = theirs.get(name, (None, other.line))
        if ours != said:
            rule = f"{name} differs from {other.file}:{at}, which has {_words(said)}"
            yield Finding(file=engine.file, line=line, rule=rule, value=_words(ours))
    if engine.model(flags, dialect.model_flag) != other.model(flags, dialect.model_flag):
        rule = f"the model differs from {other.file}, which has {other.model(flags, dialect.model_flag)!r}"
        yield Finding(
            file=engine.file, line=engine.line, rule=rule, value=engine.model(flags, dialect.model_flag)
        )
    if engine.gpus != other.gpus:
        rule = f"GPUs differ from {other.file}:{other.line}, which has {','.join(other.gpus or ())}"
        yield Finding(file=engine.file, line=engine.line, rule=rule, value=",".join(engine.gpus or ()))
    for name, (value, line) in engine.environment.items():
        said_there = other.environment.get(name, (None, 0))[0]
        if value != said_there and not name.endswith("_VISIBLE_DEVICES"):
            rule = f"{name} differs from {other.file}, which has {said_there}"
            yield Finding(file=engine.file, line=line, rule=rule, value=value)


def _words(values: Sequence[str] | None) -> str:
    return "nothing" if values is None else " ".join(values) or "no value"


def counts(
    manifest: Manifest, scripts: dict[str, Script], services: Sequence[ReadEngine]
) -> Iterator[Finding]:
    """As many engines as the manifest says, in scripts and in compose files."""
    composed = Counter(engine.group for engine in services if not engine.rank)
    for group in manifest.groups:
        yield from name_findings(MANIFEST, 0, group.name, MAX_GROUP_NAME)
        script = scripts.get(group.name)
        for count, where in (
            (composed[group.name], "compose files"),
            (script and script.engines, "its script"),
        ):
            if count is not None and count != group.replicas:
                rule = f"{group.name} has {group.replicas} engines in the manifest, not as many in {where}"
                yield Finding(file=MANIFEST, line=0, rule=rule, value=str(count))


def clashes(manifest: Manifest, scripts: dict[str, Script]) -> Iterator[Finding]:
    """Ports that two engines of a host would share, as far as scripts know the host."""
    seen: dict[tuple[str, str], str] = {}
    for group in manifest.groups:
        script = scripts.get(group.name)
        for (number, rank), case in (script.cases if script else {}).items():
            variables, address = case.variables, case.variables.get("address")
            for key in ("port", "side_port", "rpc_port", "init"):
                if address is None or key not in variables:
                    continue
                place, name = (address, variables[key].rpartition(":")[2]), _part(group, number, rank)
                if place in seen:
                    rule = f"{key} is taken by {seen[place]} on the same host"
                    file = f"groups/{group.name}.sh"
                    yield Finding(file=file, line=case.line, rule=rule, value=variables[key])
                seen[place] = name


def _part(group: GroupEntry, number: int, rank: int) -> str:
    return f"{group.name}-{number}-r{rank}" if group.nodes > 1 else f"{group.name}-{number}"

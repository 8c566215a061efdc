"""What stands behind one router of a folder: pairs of groups, the router, the load test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from planner.deploy.check_engines import command_findings
from planner.deploy.command_line import FlagList, Given, load_flags, read_command
from planner.deploy.dialect import Dialect
from planner.deploy.engine_facts import EngineFacts
from planner.deploy.findings import Finding, of_error
from planner.deploy.manifest import NAME as MANIFEST
from planner.deploy.pairs import WAYS_OUT, refused_pairs
from planner.deploy.reading import (
    GroupEntry,
    Manifest,
    ReadEngine,
)
from planner.deploy.scripts import Command, Script, read_script
from planner.documents.files import read_text
from planner.documents.names import did_you_mean
from planner.engines.legality import EndPoint
from planner.errors import SpecError
from planner.plan import Group, Plan
from planner.specs import Dtype, Phase
from planner.standing import Standing, standing_plans


def pair_findings(
    dialect: Dialect,
    plan: Plan,
    folder: Path,
    manifest: Manifest,
    engines: dict[str, ReadEngine],
    flags: FlagList,
) -> Iterator[Finding]:
    """Every prefill group may hand over to every decode group of its service."""
    try:
        standings = {standing.name: standing for standing in standing_plans(plan, folder, "plan.yaml")}
    except SpecError as error:
        yield from of_error("plan.yaml", error)
        return
    planned = {group.name: group for group in plan.groups}
    for service in manifest.suffixes:
        groups = [g for g in manifest.groups if g.service == service and g.name in engines]
        sides = {
            role: [g for g in groups if g.role is role and g.planned_name in planned]
            for role in (Phase.PREFILL, Phase.DECODE)
        }
        if service not in standings:
            yield Finding(file=MANIFEST, line=0, rule="is no service of the plan", value=service)
            continue
        yield from _refused(dialect, standings[service], sides, engines, planned, flags)
        prefill, decode = ([engines[g.name] for g in side] for side in sides.values())
        yield from _unlike(dialect, [*prefill, *decode], flags)
        yield from dialect.pair_faults(standings[service].fleet.service.model, prefill, decode, flags)


def _refused(
    dialect: Dialect,
    standing: Standing,
    sides: dict[Phase, list[GroupEntry]],
    engines: dict[str, ReadEngine],
    planned: dict[str, Group],
    flags: FlagList,
) -> Iterator[Finding]:
    vendors = {g.item.gpu.name: g.item.gpu.vendor for g in standing.fleet.groups}
    ends: dict[Phase, list[tuple[str, EndPoint]]] = {role: [] for role in sides}
    for role, groups in sides.items():
        for group in groups:
            engine, gpu = engines[group.name], planned[group.planned_name].gpu
            layout, block = dialect.layout(engine, flags), engine.value(flags, dialect.block_size)
            kv_cache = dialect.formats.get(engine.value(flags, dialect.kv_cache), Dtype.BF16)
            if layout is None or not block.isdecimal() or not int(block):
                continue  # told of the command line
            end = EndPoint(
                parallelism=layout,
                gpu=gpu,
                vendor=vendors.get(gpu, ""),
                kv_cache=kv_cache,
                block_size=int(block),
            )
            ends[role].append((group.name, end))
    model, engine_data = standing.fleet.service.model, standing.fleet.engine
    for source, target, violation in refused_pairs(
        ends[Phase.PREFILL], ends[Phase.DECODE], model, engine_data
    ):
        yield Finding(
            file=engines[target].file,
            line=engines[target].line,
            rule=f"cannot take KV caches from {source}: {violation}",
            suggestion=WAYS_OUT[violation.rule],
        )


def _unlike(dialect: Dialect, engines: Sequence[ReadEngine], flags: FlagList) -> Iterator[Finding]:
    """What the engines' handshake compares is the same everywhere."""
    for name in (*dialect.alike, "model", "connector"):
        values = [_compared(dialect, engine, name, flags) for engine in engines]
        rule = f"{name} differs from that of the engines that it exchanges KV caches with"
        yield from unlike_values(engines, name, values, flags, rule)


def unlike_values(
    engines: Sequence[ReadEngine], name: str, values: Sequence[str], flags: FlagList, rule: str
) -> Iterator[Finding]:
    """Engines whose value of a flag, or of the model or connector, is not the most common one."""
    if len(set(values)) <= 1:
        return
    usual = Counter(values).most_common(1)[0][0]
    for engine, value in zip(engines, values, strict=True):
        if value != usual:
            told = name in ("model", "connector")
            file, line = (engine.file, engine.line) if told else engine.place(flags, name)
            yield Finding(
                file=file,
                line=line,
                rule=rule,
                value=value or "nothing",
                suggestion=usual or "leave it out",
            )


def _compared(dialect: Dialect, engine: ReadEngine, name: str, flags: FlagList) -> str:
    if name == "model":
        return engine.model(flags, dialect.model_flag)
    if name == "connector":
        return dialect.connector(engine, flags)
    return engine.value(flags, name)


# --------------------------------------------------------------------------------------------
# Router and load test


def router_findings(
    dialect: Dialect, folder: Path, manifest: Manifest, scripts: dict[str, Script], facts: EngineFacts
) -> Iterator[Finding]:
    """What is wrong with the scripts of routers."""
    flags = load_flags(facts.router.tool, manifest.router_version)
    for service, suffix in manifest.suffixes.items():
        file = f"router{suffix}.sh"
        command, found = _command_of(folder, file, dialect.router)
        yield from found
        if command is not None:
            yield from command_findings(file, command, flags, positionals=0)
            if dialect.disaggregated:
                urls = _urls(dialect, service, manifest, scripts)
                yield from _router_findings(dialect, file, command, flags, urls)


def load_test_findings(folder: Path, manifest: Manifest, facts: EngineFacts) -> Iterator[Finding]:
    """What is wrong with load tests."""
    flags = load_flags(facts.load_test, facts.load_test_version)
    for suffix in manifest.suffixes.values():
        file = f"load-test{suffix}.sh"
        command, found = _command_of(folder, file, ("vllm", "bench", "serve"))
        yield from found
        if command is not None:
            yield from command_findings(file, command, flags, positionals=0)


def _command_of(folder: Path, file: str, program: tuple[str, ...]) -> tuple[Command | None, list[Finding]]:
    """What follows the program in a script; None where it runs something else, or is not there."""
    if not (folder / file).is_file():
        return None, []
    script = read_script(read_text(folder / file))
    found = [Finding(file=file, line=line, rule=rule) for line, rule in script.unread]
    if script.command.words[: len(program)] != program:
        return None, [*found, Finding(file=file, line=0, rule=f"runs no {' '.join(program)}")]
    return script.command.after(len(program)), found


def _urls(
    dialect: Dialect, service: str, manifest: Manifest, scripts: dict[str, Script]
) -> dict[Phase, list[str]]:
    """What the router has to name of engines, by role; some scripts know only the port."""
    found: dict[Phase, list[str]] = {phase: [] for phase in Phase}
    for group in manifest.groups:
        if group.service == service and group.name in scripts:
            leaders = (c.variables for (_, rank), c in scripts[group.name].cases.items() if not rank)
            for variables in leaders:
                address, port = variables.get("address", ""), variables.get("port", "")
                shown = f"[{address}]" if ":" in address else address
                known = f"http://{shown}:{port}" if address else f":{port}"
                if dialect.bootstrap and group.role is Phase.PREFILL:
                    known += f" {variables.get('side_port', '')}"
                found[group.role].append(known)
    return found


def _router_findings(
    dialect: Dialect, file: str, command: Command, flags: FlagList, urls: dict[Phase, list[str]]
) -> Iterator[Finding]:
    """The router knows every engine, in its role."""
    first = command.lines[0] if command.lines else 0
    if urls[Phase.PREFILL] and dialect.disaggregated not in command.words:
        rule = f"{dialect.disaggregated} is missing: every engine would get whole requests"
        yield Finding(file=file, line=first, rule=rule)
    given, _, _ = read_command(command.words, flags)
    flag_of = {Phase.PREFILL: "--prefill", Phase.DECODE: "--decode", Phase.COLOCATED: "--worker-urls"}
    for role, flag in flag_of.items():
        left = list(urls[role])
        for said, line in _named(given, flag, command):
            match = next(
                (known for known in left if said == known or (known[0] == ":" and said.endswith(known))), None
            )
            if match is None:
                rule = f"{flag} names no {role} engine of the scripts"
                yield Finding(
                    file=file, line=line, rule=rule, value=said, suggestion=did_you_mean(said, left)
                )
            else:
                left.remove(match)
        for url in left:
            yield Finding(file=file, line=first, rule=f"{flag} lacks an engine of the scripts", value=url)


def _named(given: Sequence[Given], flag: str, command: Command) -> Iterator[tuple[str, int]]:
    """Engines that a flag names, and their lines: several in a list of workers, else one with its port."""
    for one in given:
        if one.name == flag:
            words = one.values if flag == "--worker-urls" else (" ".join(one.values),)
            yield from ((word, command.lines[one.word]) for word in words)

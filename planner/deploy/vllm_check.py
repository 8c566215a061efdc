"""Proof, without a GPU or a network, that a folder for vLLM is well formed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from planner.deploy.build import plan_id
from planner.deploy.command_line import FlagList, command_faults, load_flags
from planner.deploy.description import PLACEHOLDER
from planner.deploy.engine_facts import EngineFacts, load_engine_facts
from planner.deploy.findings import Finding
from planner.deploy.manifest import NAME as MANIFEST
from planner.deploy.pairs import WAYS_OUT, refused_pairs
from planner.deploy.scripts import Command, Script, read_script
from planner.deploy.vllm_reading import (
    SERVE,
    GroupEntry,
    Manifest,
    ReadEngine,
    compose_services,
    engine_of_script,
    engines_of_script,
    layout_of,
    read_manifest,
    read_scripts,
    transfer_config,
    vllm_flags,
)
from planner.deploy.words import MAX_GROUP_NAME
from planner.documents.files import read_text
from planner.documents.names import did_you_mean, one_of
from planner.documents.plan import load_plan
from planner.documents.schema_base import MAX_LABEL, label_of
from planner.documents.yaml_text import parse_tree
from planner.engines.legality import EndPoint
from planner.errors import PlannerError, Problem, SpecError
from planner.plan import Group, Plan
from planner.specs import Dtype, Phase
from planner.standing import Standing, standing_plans

_BARE = re.compile(r"(?:^\s*(?:- +)*|: +|[\[,] *)([yYnN])\s*(?=$|#|[,\]}])")
_ROLES = {Phase.PREFILL: ("kv_producer", "kv_both"), Phase.DECODE: ("kv_consumer", "kv_both")}
_ALIKE = ("--dtype", "--kv-cache-dtype", "--attention-backend", "--speculative-config")
_PLACE = ("--host", "--port", "--data-parallel-rpc-port")
_FORMATS = {
    "bfloat16": Dtype.BF16,
    "float16": Dtype.FP16,
    "half": Dtype.FP16,
    "fp8": Dtype.FP8,
    "fp8_ds_mla": Dtype.FP8,
}
_LOCAL = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "")


def vllm_findings(folder: Path) -> tuple[Finding, ...]:
    """Everything that is wrong with a folder that was written for vLLM.

    Raises
    ------
    SpecError
        It has no manifest, or one of versions whose flags are not known.
    """
    manifest = read_manifest(folder)
    flags, facts = vllm_flags(manifest), load_engine_facts(manifest.engine, manifest.version)
    found = [
        *_missing_files(folder, manifest),
        *_placeholders(folder, manifest),
        *_bare_words(folder, manifest),
    ]
    plan, problems = _plan(folder, manifest)
    scripts = read_scripts(folder, manifest)
    for group in manifest.groups:
        if group.name in scripts:
            found += _script_findings(group, scripts[group.name], flags, facts)
    services, more = _compose_findings(folder, manifest, scripts, flags, facts)
    found += [*problems, *more, *_counts(manifest, scripts, services), *_clashes(manifest, scripts)]
    shared = {name: engine_of_script(name, script) for name, script in scripts.items()}
    if plan is not None:
        found += _pair_findings(plan, folder, manifest, shared, flags)
    found += _front_findings(folder, manifest, scripts, facts)
    return tuple(sorted(set(found)))


# --------------------------------------------------------------------------------------------
# Texts


def _missing_files(folder: Path, manifest: Manifest) -> Iterator[Finding]:
    for name in manifest.files:
        if not (folder / name).is_file():
            yield Finding(file=name, line=0, rule="is missing", suggestion="planner emit writes it again")


def _lines_of(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, int, str]]:
    for name in names:
        if (folder / name).is_file():
            for number, line in enumerate(read_text(folder / name).splitlines(), start=1):
                yield name, number, line


def _placeholders(folder: Path, manifest: Manifest) -> Iterator[Finding]:
    """Settings that nobody gave."""
    for name, number, line in _lines_of(folder, manifest.files):
        if name not in ("README.md", "plan.yaml"):
            for word in dict.fromkeys(re.findall(rf"{PLACEHOLDER}[\w-]*", line)):
                hint = f"give {_setting(word)} in the site file and emit again"
                yield Finding(file=name, line=number, rule="is a placeholder", value=word, suggestion=hint)


_SETTINGS = {
    "router-host": "router_host",
    "host-": "hosts",
    "model-cache": "model_cache",
    "models-": "models",
    "draft": "draft",
    "image": "image",
}
"""Of the site file, by how their placeholders begin."""


def _setting(placeholder: str) -> str:
    name = placeholder.removeprefix(PLACEHOLDER)
    return next((key for start, key in _SETTINGS.items() if name.startswith(start)), name)


def _bare_words(folder: Path, manifest: Manifest) -> Iterator[Finding]:
    """y and n, which readers of YAML 1.1 take for booleans."""
    names = [name for name in [*manifest.files, MANIFEST] if name.endswith(".yaml") and name != "plan.yaml"]
    for name, number, line in _lines_of(folder, names):
        if not line.lstrip().startswith("#"):
            for match in _BARE.finditer(line):
                rule = "a bare y or n is a boolean to readers of YAML 1.1"
                yield Finding(
                    file=name, line=number, rule=rule, value=match[1], suggestion=f"write '{match[1]}'"
                )


def _of_problem(file: str, problem: Problem) -> Finding:
    key = f"{problem.key}: " if problem.key else ""
    return Finding(
        file=file,
        line=problem.line,
        rule=key + problem.rule,
        value=problem.value,
        suggestion=problem.suggestion,
    )


def _of_error(file: str, error: PlannerError) -> list[Finding]:
    if isinstance(error, SpecError) and error.problems:
        return [_of_problem(file, problem) for problem in error.problems]
    return [Finding(file=file, line=0, rule=" ".join(str(error).split()))]


def _plan(folder: Path, manifest: Manifest) -> tuple[Plan | None, list[Finding]]:
    """The plan that the files were written for."""
    file = "plan.yaml"
    try:
        plan = load_plan(folder / file)
    except SpecError as error:
        return None, _of_error(file, error)
    if plan_id(plan) == manifest.plan:
        return plan, []
    rule = "is not the plan that the files were written for"
    hint = f"they are for {manifest.plan}; planner emit writes them again"
    return plan, [Finding(file=file, line=0, rule=rule, value=plan_id(plan), suggestion=hint)]


# --------------------------------------------------------------------------------------------
# Engines


def _command_findings(file: str, command: Command, flags: FlagList, positionals: int) -> Iterator[Finding]:
    for fault in command_faults(command.words, flags, positionals):
        if fault.value.startswith(PLACEHOLDER):
            continue  # told by itself
        yield Finding(
            file=file,
            line=command.lines[fault.word],
            rule=fault.rule,
            value=fault.value,
            suggestion=fault.suggestion,
        )


def _script_findings(
    group: GroupEntry, script: Script, flags: FlagList, facts: EngineFacts
) -> Iterator[Finding]:
    engine = engine_of_script(group.name, script)
    yield from (Finding(file=engine.file, line=line, rule=rule) for line, rule in script.unread)
    if script.command.words[:2] != SERVE:
        yield Finding(file=engine.file, line=engine.line, rule="runs no vllm serve")
        return
    yield from _engine_findings(group, engine, flags, facts)
    for one in engines_of_script(group.name, script):
        yield from _place_findings(group, one, flags)


def _engine_findings(
    group: GroupEntry, engine: ReadEngine, flags: FlagList, facts: EngineFacts
) -> Iterator[Finding]:
    """What holds of one command line."""
    yield from _command_findings(engine.file, engine.command, flags, positionals=1)
    if not engine.model(flags):
        yield Finding(file=engine.file, line=engine.line, rule="names no model")
    given = engine.flags(flags)
    for name in ("--tensor-parallel-size", "--kv-cache-dtype", "--block-size", "--attention-backend"):
        if name not in given:
            yield Finding(
                file=engine.file, line=engine.line, rule=f"{name} is missing; the plan counts on it"
            )
    yield from _connector_findings(group, engine, flags)
    backend = facts.backends.get(engine.value(flags, "--attention-backend"))
    block = engine.value(flags, "--block-size")
    if backend is not None and backend.block_sizes and block not in map(str, backend.block_sizes):
        sizes = tuple(map(str, backend.block_sizes))
        line = given["--block-size"][1] if "--block-size" in given else engine.line
        rule = f"--block-size with {backend.name} {one_of(sizes)}"
        yield Finding(file=engine.file, line=line, rule=rule, value=block)


def _connector_findings(group: GroupEntry, engine: ReadEngine, flags: FlagList) -> Iterator[Finding]:
    """Both sides of a hand-over name a connector and their role in it."""
    given = engine.flags(flags).get("--kv-transfer-config")
    roles = _ROLES.get(group.role)
    if roles is None:
        return
    where = f"a {group.role} engine"
    if given is None:
        rule = f"{where} without --kv-transfer-config answers, and hands nothing over"
        hint = f'--kv-transfer-config \'{{"kv_connector":"NixlConnector","kv_role":"{roles[0]}"}}\''
        yield Finding(file=engine.file, line=engine.line, rule=rule, suggestion=hint)
        return
    values, line = given
    config, options = transfer_config(values[0] if values else ""), flags.kv_transfer
    assert options is not None
    for key in config:
        if key not in options.fields:
            rule, hint = "--kv-transfer-config has no such field", did_you_mean(key, options.fields)
            yield Finding(file=engine.file, line=line, rule=rule, value=key, suggestion=hint)
    connector, role = str(config.get("kv_connector", "")), str(config.get("kv_role", ""))
    if connector not in options.connectors:
        hint = did_you_mean(connector, options.connectors) or f"known: {', '.join(options.connectors)}"
        yield Finding(file=engine.file, line=line, rule="is no connector", value=connector, suggestion=hint)
    if role not in roles:
        rule = f"kv_role of {where} {one_of(roles)}"
        yield Finding(file=engine.file, line=line, rule=rule, value=role, suggestion=roles[0])


def _place_findings(group: GroupEntry, engine: ReadEngine, flags: FlagList) -> Iterator[Finding]:
    """GPUs and ports of one engine."""
    layout = layout_of(engine, flags)
    gpus = engine.gpus or ()
    if layout is not None and len(gpus) != layout.num_gpus:
        rule = f"{group.role} engine of {layout} needs {layout.num_gpus} GPUs"
        yield Finding(file=engine.file, line=engine.line, rule=rule, value=f"{len(gpus)} ({','.join(gpus)})")
    port = engine.value(flags, "--port")
    if not (port.isdecimal() and 0 < int(port) < 65_536):
        rule = "--port must be a number up to 65535"
        yield Finding(file=engine.file, line=engine.line, rule=rule, value=port)
    config = transfer_config(engine.value(flags, "--kv-transfer-config"))
    address, line = engine.environment.get("VLLM_NIXL_SIDE_CHANNEL_HOST", ("", engine.line))
    if str(config.get("kv_connector", "")).startswith("Nixl") and address in _LOCAL:
        rule = "VLLM_NIXL_SIDE_CHANNEL_HOST has to be an address that other hosts reach"
        yield Finding(file=engine.file, line=line, rule=rule, value=address or "nothing")


# --------------------------------------------------------------------------------------------
# Compose


def _compose_findings(
    folder: Path, manifest: Manifest, scripts: dict[str, Script], flags: FlagList, facts: EngineFacts
) -> tuple[list[ReadEngine], list[Finding]]:
    engines: list[ReadEngine] = []
    found: list[Finding] = []
    groups = {group.name: group for group in manifest.groups}
    for file in manifest.files:
        if not (file.endswith(".compose.yaml") and (folder / file).is_file()):
            continue
        try:
            tree, problems = parse_tree(read_text(folder / file), file)
        except SpecError as error:
            found += _of_error(file, error)
            continue
        found += [_of_problem(file, problem) for problem in problems]
        found += _name_findings(file, 1, str(tree.get("name")), MAX_LABEL)
        taken: dict[str, str] = {}
        for name, engine, faults in compose_services(tree, file):
            line = tree.line(("services", name))
            found += [*faults, *_name_findings(file, line, name, MAX_LABEL)]
            image = tree.get("services", name, "image")
            found += _image_findings(file, tree.line(("services", name, "image")), str(image or ""))
            if file.startswith("router"):
                continue
            if engine is None or engine.group not in groups:
                rule = "is the service of no group of the manifest"
                found.append(Finding(file=file, line=line, rule=rule, value=name))
                continue
            engines.append(engine)
            group = groups[engine.group]
            found += _engine_findings(group, engine, flags, facts)
            found += _place_findings(group, engine, flags)
            found += _same_as_script(engine, scripts, flags)
            for gpu in engine.gpus or ():
                if gpu in taken:
                    rule = f"GPU is taken by {taken[gpu]} too"
                    found.append(Finding(file=file, line=line, rule=rule, value=gpu))
                taken[gpu] = name
            if engine.image != manifest.image:
                rule, hint = "all engines run one image", manifest.image
                at = tree.line(("services", name, "image"))
                found.append(Finding(file=file, line=at, rule=rule, value=engine.image, suggestion=hint))
    return engines, found


def _name_findings(file: str, line: int, name: str, limit: int) -> Iterator[Finding]:
    if label_of(name) != name or not name or len(name) > limit:
        rule = f"a name must be up to {limit} small letters, digits and dashes"
        yield Finding(
            file=file, line=line, rule=rule, value=name, suggestion=label_of(name)[:limit].strip("-")
        )


def _image_findings(file: str, line: int, image: str) -> Iterator[Finding]:
    tag = image.rpartition("/")[2].partition(":")[2]
    if image.startswith(PLACEHOLDER):
        return  # told by itself
    if not (tag or "@sha256:" in image):
        yield Finding(file=file, line=line, rule="an image needs a tag", value=image or "nothing")
    elif tag == "latest":
        yield Finding(file=file, line=line, rule="latest names no version", value=image)


def _same_as_script(engine: ReadEngine, scripts: dict[str, Script], flags: FlagList) -> Iterator[Finding]:
    """Script and compose file of an engine say the same."""
    script = scripts.get(engine.group)
    if script is None:
        return
    other = next((e for e in engines_of_script(engine.group, script) if e.number == engine.number), None)
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
    if engine.model(flags) != other.model(flags):
        rule = f"the model differs from {other.file}, which has {other.model(flags)!r}"
        yield Finding(file=engine.file, line=engine.line, rule=rule, value=engine.model(flags))
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


def _counts(
    manifest: Manifest, scripts: dict[str, Script], services: Sequence[ReadEngine]
) -> Iterator[Finding]:
    """As many engines as the manifest says, in scripts and in compose files."""
    composed = Counter(engine.group for engine in services)
    for group in manifest.groups:
        yield from _name_findings(MANIFEST, 0, group.name, MAX_GROUP_NAME)
        script = scripts.get(group.name)
        for count, where in (
            (composed[group.name], "compose files"),
            (script and len(script.cases), "its script"),
        ):
            if count is not None and count != group.replicas:
                rule = f"{group.name} has {group.replicas} engines in the manifest, not as many in {where}"
                yield Finding(file=MANIFEST, line=0, rule=rule, value=str(count))


def _clashes(manifest: Manifest, scripts: dict[str, Script]) -> Iterator[Finding]:
    """Ports that two engines of a host would share, as far as scripts know the host."""
    seen: dict[tuple[str, str], str] = {}
    for group in manifest.groups:
        script = scripts.get(group.name)
        for number, (variables, line) in (script.cases if script else {}).items():
            address = variables.get("address")
            for key in ("port", "side_port", "rpc_port"):
                if address is None or key not in variables:
                    continue
                place, name = (address, variables[key]), f"{group.name}-{number}"
                if place in seen:
                    rule = f"{key} is taken by {seen[place]} on the same host"
                    file = f"groups/{group.name}.sh"
                    yield Finding(file=file, line=line, rule=rule, value=variables[key])
                seen[place] = name


# --------------------------------------------------------------------------------------------
# Pairs


def _pair_findings(
    plan: Plan, folder: Path, manifest: Manifest, engines: dict[str, ReadEngine], flags: FlagList
) -> Iterator[Finding]:
    """Every prefill group may hand over to every decode group of its service."""
    try:
        standings = {standing.name: standing for standing in standing_plans(plan, folder, "plan.yaml")}
    except SpecError as error:
        yield from _of_error("plan.yaml", error)
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
        yield from _refused(standings[service], sides, engines, planned, flags)
        yield from _unlike([engines[g.name] for side in sides.values() for g in side], flags)


def _refused(
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
            layout, block = layout_of(engine, flags), engine.value(flags, "--block-size")
            kv_cache = _FORMATS.get(engine.value(flags, "--kv-cache-dtype"), Dtype.BF16)
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
            file=f"groups/{target}.sh",
            line=engines[target].line,
            rule=f"cannot take KV caches from {source}: {violation}",
            suggestion=WAYS_OUT[violation.rule],
        )


def _unlike(engines: Sequence[ReadEngine], flags: FlagList) -> Iterator[Finding]:
    """What the engines' handshake compares is the same everywhere."""
    for name in (*_ALIKE, "model", "connector"):
        values = [_compared(engine, name, flags) for engine in engines]
        if len(set(values)) <= 1:
            continue
        usual = Counter(values).most_common(1)[0][0]
        for engine, value in zip(engines, values, strict=True):
            if value != usual:
                line = engine.flags(flags).get(name, ((), engine.line))[1]
                rule = f"{name} differs from that of the engines that it exchanges KV caches with"
                yield Finding(
                    file=engine.file,
                    line=line,
                    rule=rule,
                    value=value or "nothing",
                    suggestion=usual or "leave it out",
                )


def _compared(engine: ReadEngine, name: str, flags: FlagList) -> str:
    if name == "model":
        return engine.model(flags)
    if name == "connector":
        return str(transfer_config(engine.value(flags, "--kv-transfer-config")).get("kv_connector", ""))
    return engine.value(flags, name)


# --------------------------------------------------------------------------------------------
# Router and load test


def _front_findings(
    folder: Path, manifest: Manifest, scripts: dict[str, Script], facts: EngineFacts
) -> Iterator[Finding]:
    router = load_flags(facts.router, manifest.router_version)
    bench = load_flags(facts.load_test, facts.load_test_version)
    for service, suffix in manifest.suffixes.items():
        for file, flags, program in (
            (f"router{suffix}.sh", router, ("vllm-router",)),
            (f"load-test{suffix}.sh", bench, ("vllm", "bench", "serve")),
        ):
            if not (folder / file).is_file():
                continue
            script = read_script(read_text(folder / file))
            yield from (Finding(file=file, line=line, rule=rule) for line, rule in script.unread)
            if script.command.words[: len(program)] != program:
                yield Finding(file=file, line=0, rule=f"runs no {' '.join(program)}")
                continue
            command = script.command.after(len(program))
            yield from _command_findings(file, command, flags, positionals=0)
            if flags is router:
                yield from _router_findings(file, command, _urls(service, manifest, scripts))


def _urls(service: str, manifest: Manifest, scripts: dict[str, Script]) -> dict[Phase, list[str]]:
    """URLs of the engines of each role; scripts of engines that hand nothing over know only the port."""
    found: dict[Phase, list[str]] = {phase: [] for phase in Phase}
    for group in manifest.groups:
        if group.service == service and group.name in scripts:
            for variables, _ in scripts[group.name].cases.values():
                address, port = variables.get("address", ""), variables.get("port", "")
                shown = f"[{address}]" if ":" in address else address
                found[group.role].append(f"http://{shown}:{port}" if address else f":{port}")
    return found


def _router_findings(file: str, command: Command, urls: dict[Phase, list[str]]) -> Iterator[Finding]:
    """The router knows every engine, in its role."""
    words = command.words
    disaggregated = bool(urls[Phase.PREFILL])
    if disaggregated and "--vllm-pd-disaggregation" not in words:
        rule = "--vllm-pd-disaggregation is missing: every engine would get whole requests"
        yield Finding(file=file, line=command.lines[0] if command.lines else 0, rule=rule)
    flag_of = {Phase.PREFILL: "--prefill", Phase.DECODE: "--decode", Phase.COLOCATED: "--worker-urls"}
    for role, flag in flag_of.items():
        given = [w for w, before in _after(words, flag) if before]
        left = list(urls[role])
        for url in given:
            match = next(
                (known for known in left if url == known or (known[0] == ":" and url.endswith(known))), None
            )
            if match is None:
                line = command.lines[words.index(url)]
                rule = f"{flag} names no {role} engine of the scripts"
                yield Finding(file=file, line=line, rule=rule, value=url, suggestion=did_you_mean(url, left))
            else:
                left.remove(match)
        for url in left:
            line = command.lines[0] if command.lines else 0
            yield Finding(file=file, line=line, rule=f"{flag} lacks an engine of the scripts", value=url)


def _after(words: Sequence[str], flag: str) -> Iterator[tuple[str, bool]]:
    """Every word, and whether it is a value of `flag`."""
    within = False
    for word in words:
        if word.startswith("--"):
            within = word == flag
            yield word, False
        else:
            yield word, within

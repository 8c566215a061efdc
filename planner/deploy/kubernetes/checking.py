"""Proof, without a cluster, that a folder of objects is well formed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from planner.deploy.check_engines import engine_findings, gpu_findings
from planner.deploy.check_fronts import load_test_findings, pair_findings, unlike_values
from planner.deploy.check_texts import plan_findings, text_findings
from planner.deploy.command_line import FlagList
from planner.deploy.engine_facts import EngineFacts, load_engine_facts
from planner.deploy.findings import Finding
from planner.deploy.importing import plan_of_engines
from planner.deploy.kubernetes.platform import EngineWords, Orchestrator
from planner.deploy.kubernetes.reading import ReadPod, engine_of, one_image, read_objects
from planner.deploy.kubernetes.resources import resource_findings
from planner.deploy.manifest import NAME as MANIFEST
from planner.deploy.platform_facts import load_platform_facts
from planner.deploy.reading import GroupEntry, Manifest, ReadEngine, read_manifest
from planner.documents.names import did_you_mean
from planner.errors import SpecError
from planner.plan import Plan
from planner.specs import Phase


def folder_findings(folder: Path, orchestrator: Orchestrator) -> tuple[Finding, ...]:
    """Everything that is wrong with a folder that was written for a platform.

    Raises
    ------
    SpecError
        It has no manifest, or one of versions that are not known.
    """
    manifest = read_manifest(folder)
    platform = load_platform_facts(manifest.platform, manifest.platform_version)
    words, flags = _words(orchestrator, manifest)
    facts = load_engine_facts(manifest.engine, manifest.version)
    found = [*text_findings(folder, manifest)]
    plan, problems = plan_findings(folder, manifest)
    objects, unread = read_objects(folder, manifest)
    found += [*problems, *unread]
    for file in objects:
        found += resource_findings(file.tree, file.name)
    pods = [pod for file in objects for pod in orchestrator.pods(file)]
    engines: dict[str, ReadEngine] = {}
    groups = {group.name: group for group in manifest.groups}
    for pod in pods:
        if pod.group not in groups:
            rule, hint = "is the pod of no group of the manifest", did_you_mean(pod.group, list(groups))
            found.append(
                Finding(file=pod.file.name, line=pod.line, rule=rule, value=pod.group, suggestion=hint)
            )
            continue
        engine = _engine(pod, words, flags)
        found += _pod_findings(pod, groups[pod.group], engine, words, flags, facts, manifest)
        if engine is not None:
            engines[pod.group] = engine
    found += [*_counts(manifest, pods), *_unlike(manifest, engines, words, flags)]
    if plan is not None:
        found += pair_findings(words.dialect, plan, folder, manifest, engines, flags)
    found += load_test_findings(folder, manifest, facts)
    found += orchestrator.faults(manifest, objects, platform)
    found += orchestrator.other_faults(folder, manifest, pods)
    return tuple(sorted(set(found)))


def folder_plan(folder: Path, orchestrator: Orchestrator) -> Plan:
    """The plan of a folder of objects, as these have it today.

    Raises
    ------
    SpecError
        A group has no pods, or the plan is another one.
    """
    manifest = read_manifest(folder)
    words, flags = _words(orchestrator, manifest)
    objects, unread = read_objects(folder, manifest)
    if unread:
        raise SpecError(str(unread[0]))
    engines = {}
    for pod in (pod for file in objects for pod in orchestrator.pods(file)):
        engine, count = _engine(pod, words, flags), pod.count
        if engine is None or count is None or count < 1:
            raise SpecError(f"{pod.file.name}:{pod.line}: engines of {pod.group} cannot be read")
        engines[pod.group] = (engine, count)
    return plan_of_engines(folder, manifest, words.dialect, engines, flags)


def _engine(pod: ReadPod, words: EngineWords, flags: FlagList) -> ReadEngine | None:
    engine = engine_of(pod, len(words.dialect.program))
    return None if engine is None else words.settled(engine, flags)


def _words(orchestrator: Orchestrator, manifest: Manifest) -> tuple[EngineWords, FlagList]:
    if manifest.engine not in orchestrator.engines:
        known = ", ".join(orchestrator.engines)
        raise SpecError(f"{MANIFEST}: {orchestrator.target} runs no {manifest.engine!r} (it can: {known})")
    words = orchestrator.engines[manifest.engine]
    return words, words.known(manifest)


def _pod_findings(
    pod: ReadPod,
    group: GroupEntry,
    engine: ReadEngine | None,
    words: EngineWords,
    flags: FlagList,
    facts: EngineFacts,
    manifest: Manifest,
) -> Iterator[Finding]:
    file, dialect = pod.file.name, words.dialect
    main = pod.main
    if engine is None or main is None:
        yield Finding(file=file, line=pod.line, rule=f"has no container {pod.container} that can be read")
        return
    tree = pod.file.tree
    program = tuple(str(word) for word in tree.entries(*main, "command"))[: len(dialect.program)]
    if not pod.arguments_in and program != dialect.program:
        rule = f"runs no {' '.join(dialect.program)}"
        yield Finding(file=file, line=tree.line((*main, "command")), rule=rule, value=" ".join(program))
        return
    yield from engine_findings(dialect, group, engine, flags, facts)
    yield from gpu_findings(dialect, group, engine, flags)
    yield from dialect.place_faults(engine, flags)
    yield from one_image(file, tree, main, manifest)
    yield from _node_findings(pod, group)


def _node_findings(pod: ReadPod, group: GroupEntry) -> Iterator[Finding]:
    """Pods go where the GPUs are that the group was planned for."""
    tree, path = pod.file.tree, pod.spec_path
    selector = tree.get(*path, "nodeSelector")
    given: Mapping[str, str] = selector if isinstance(selector, dict) else {}
    if not given and not tree.has(*path, "affinity", "nodeAffinity"):
        rule = f"{group.name} names no nodes: its pods could land on any GPU"
        yield Finding(
            file=pod.file.name, line=tree.line(path), rule=rule, suggestion=_selector(group.node_selector)
        )
    for key, value in group.node_selector.items():
        if given and given.get(key) != value and not tree.has(*path, "affinity", "nodeAffinity"):
            rule = f"nodeSelector of {group.name} must have {key}"
            yield Finding(
                file=pod.file.name,
                line=tree.line((*path, "nodeSelector", key)),
                rule=rule,
                value=str(given.get(key, "nothing")),
                suggestion=_selector(group.node_selector),
            )


def _selector(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}: {value}" for key, value in labels.items())


def _unlike(
    manifest: Manifest, engines: Mapping[str, ReadEngine], words: EngineWords, flags: FlagList
) -> Iterator[Finding]:
    """Groups of one role agree in what the platform compares; it leaves out those that differ."""
    for service in manifest.suffixes:
        for role in Phase:
            members = [
                engines[group.name]
                for group in manifest.groups
                if group.service == service and group.role is role and group.name in engines
            ]
            for name in words.alike_in_role:
                yield from unlike_values(
                    members,
                    name,
                    [engine.value(flags, name) for engine in members],
                    flags,
                    f"{name} differs from that of other {role} engines; the front end leaves one out then",
                )


def _counts(manifest: Manifest, pods: list[ReadPod]) -> Iterator[Finding]:
    """Every group has pods once, and as many engines as the manifest says."""
    places = Counter(pod.group for pod in pods)
    for group in manifest.groups:
        if not places[group.name]:
            yield Finding(file=MANIFEST, line=0, rule="no object has the pods of a group", value=group.name)
    for pod in pods:
        entry = next((group for group in manifest.groups if group.name == pod.group), None)
        line = pod.file.tree.line(pod.replicas)
        if entry is not None and places[pod.group] > 1:
            rule = "pods of a group stand in two places"
            yield Finding(file=pod.file.name, line=pod.line, rule=rule, value=pod.group)
        if entry is not None and pod.count != entry.replicas:
            rule = f"{entry.name} has {entry.replicas} engines in the manifest"
            shown = str(pod.file.tree.get(*pod.replicas))
            yield Finding(file=pod.file.name, line=line, rule=rule, value=shown)

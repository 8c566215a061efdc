"""What plans can be written for. A target is one function from a deployment to files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.deploy.checking import folder_findings
from planner.deploy.description import Deployment
from planner.deploy.dialect import Dialect
from planner.deploy.findings import Finding
from planner.deploy.importing import folder_plan
from planner.deploy.kubernetes.checking import folder_findings as object_findings
from planner.deploy.kubernetes.checking import folder_plan as plan_of_objects
from planner.deploy.kubernetes.dynamo import DYNAMO
from planner.deploy.kubernetes.kserve import KSERVE
from planner.deploy.kubernetes.llmd import LLM_D
from planner.deploy.kubernetes.platform import Orchestrator
from planner.deploy.kubernetes.rendering import folder_files as object_files
from planner.deploy.manifest import NAME as MANIFEST
from planner.deploy.platform_facts import PlatformFacts, load_platform_facts
from planner.deploy.rendering import folder_files
from planner.deploy.sglang import SGLANG
from planner.deploy.trtllm import TRTLLM
from planner.deploy.vllm import VLLM
from planner.documents.files import file_error, read_text
from planner.documents.names import did_you_mean
from planner.documents.yaml_text import parse_tree
from planner.errors import SpecError
from planner.plan import Plan

Render = Callable[[Deployment, str], dict[str, str]]
"""Files by path, from a deployment and the text of its plan."""

Check = Callable[[Path], tuple[Finding, ...]]
"""What is wrong with a folder."""

ReadBack = Callable[[Path], Plan]
"""The plan of a folder, as its files have it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What plans can be written for.

    Attributes
    ----------
    engines : tuple of str
        Those whose plans it can write.
    platform : callable
        Facts of what starts the engines; None: scripts.
    notes : callable
        What is to be said of a deployment there.
    """

    name: str
    engines: tuple[str, ...]
    platform: Callable[[], PlatformFacts | None]
    notes: Callable[[Deployment], Iterator[str]]
    render: Render
    check: Check
    read_back: ReadBack


def _by_hand(dialect: Dialect, engine: str) -> Target:
    """Scripts and compose files in an engine's words."""
    return Target(
        name=dialect.target,
        engines=(engine,),
        platform=lambda: None,
        notes=lambda deployment: iter(()),
        render=lambda deployment, plan_text: folder_files(dialect, deployment, plan_text),
        check=lambda folder: folder_findings(folder, dialect),
        read_back=lambda folder: folder_plan(folder, dialect),
    )


def _on_cluster(orchestrator: Orchestrator) -> Target:
    """Objects of a Kubernetes cluster."""
    return Target(
        name=orchestrator.target,
        engines=tuple(orchestrator.engines),
        platform=lambda: load_platform_facts(orchestrator.target),
        notes=orchestrator.notes,
        render=lambda deployment, plan_text: object_files(orchestrator, deployment, plan_text),
        check=lambda folder: object_findings(folder, orchestrator),
        read_back=lambda folder: plan_of_objects(folder, orchestrator),
    )


TARGETS: Mapping[str, Target] = {
    "vllm": _by_hand(VLLM, "vllm"),
    "sglang": _by_hand(SGLANG, "sglang"),
    "trtllm": _by_hand(TRTLLM, "trtllm"),
    "dynamo": _on_cluster(DYNAMO),
    "llm-d": _on_cluster(LLM_D),
    "kserve": _on_cluster(KSERVE),
}


def target_of(folder: Path) -> Target:
    """The target that a folder was written for.

    Raises
    ------
    SpecError
        It was not written by ``planner emit``, or for a target that is not there.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise file_error(folder, f"is no folder that planner emit wrote: it has no {MANIFEST}")
    tree, _ = parse_tree(read_text(path), str(path))
    name = tree.get("target")
    if name not in TARGETS:
        raise SpecError(f"{path}: unknown target {name!r} (known: {', '.join(TARGETS)})")
    return TARGETS[name]


def target_for(name: str, engine: str) -> Target:
    """A target by its name, for plans of an engine.

    Raises
    ------
    SpecError
        There is no such target, or it runs another engine.
    """
    if name not in TARGETS:
        hint = did_you_mean(name, list(TARGETS)) or f"known: {', '.join(TARGETS)}"
        raise SpecError(f"unknown target {name!r} ({hint})")
    target = TARGETS[name]
    if engine not in target.engines:
        hint = f"solve with engine: {target.engines[0]}"
        raise SpecError(f"target {name} runs {', '.join(target.engines)}, the plan is for {engine} ({hint})")
    return target

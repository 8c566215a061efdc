"""What plans can be written for. A target is one function from a deployment to files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from planner.deploy.description import Deployment
from planner.deploy.vllm import vllm_files
from planner.documents.names import did_you_mean
from planner.errors import SpecError

Render = Callable[[Deployment, str], dict[str, str]]
"""Files by path, from a deployment and the text of its plan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """`engine` is the one whose plans it can write."""

    name: str
    engine: str
    render: Render


TARGETS: Mapping[str, Target] = {
    "vllm": Target(name="vllm", engine="vllm", render=vllm_files),
}


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
    if target.engine != engine:
        hint = f"solve with engine: {target.engine}"
        raise SpecError(f"target {name} runs {target.engine}, the plan is for {engine} ({hint})")
    return target

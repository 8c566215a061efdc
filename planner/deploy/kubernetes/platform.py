"""How one platform lays out a deployment as objects: all that differs between targets on Kubernetes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.deploy.command_line import FlagList, load_flags
from planner.deploy.description import Deployment, EngineGroup, Front
from planner.deploy.dialect import Dialect
from planner.deploy.findings import Finding
from planner.deploy.kubernetes.pods import Object
from planner.deploy.kubernetes.reading import ObjectFile, ReadPod
from planner.deploy.platform_facts import PlatformFacts
from planner.deploy.reading import Manifest, ReadEngine


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineWords:
    """An engine's words on a platform.

    Attributes
    ----------
    dialect : Dialect
        Its flags, and what is wrong with them.
    flags : str
        List of the flags that it takes.
    of_platform : bool
        Whether that list is of the platform's version; otherwise of the engine's.
    alike_in_role : tuple of str
        Flags whose values have to agree among engines of one role, beside those of engines that exchange KV
        caches.
    settled : callable
        An engine as read, with settings that stand in its flags.
    """

    dialect: Dialect
    flags: str
    of_platform: bool
    alike_in_role: tuple[str, ...] = ()
    settled: Callable[[ReadEngine, FlagList], ReadEngine] = lambda engine, flags: engine

    def known(self, manifest: Manifest) -> FlagList:
        """The flags of the version that a folder was written for."""
        version = manifest.platform_version if self.of_platform else manifest.version
        return load_flags(self.flags, version)


@dataclass(frozen=True, kw_only=True, slots=True)
class Orchestrator:
    """A platform that starts engines.

    Attributes
    ----------
    engines : mapping
        By the engine's name in plans.
    objects : callable
        Objects by file.
    other_files : callable
        Texts by file that are no objects of the cluster, of a front and its suffix.
    notes : callable
        What else an operator has to know.
    pods : callable
        Pods of engines in a file.
    smoke : callable
        Text of the script that proves that prefill happens remotely.
    faults : callable
        What is wrong with objects beside their pods.
    other_faults : callable
        What is wrong with the other files.
    scaled : callable
        Words of the ``kubectl`` command that gives a group so many replicas.
    """

    target: str
    engines: Mapping[str, EngineWords]
    objects: Callable[[Deployment], dict[str, Object]]
    other_files: Callable[[Deployment, Front, str], dict[str, str]]
    notes: Callable[[Deployment], Iterator[str]]
    pods: Callable[[ObjectFile], Iterator[ReadPod]]
    smoke: Callable[[Deployment, Front], str]
    faults: Callable[[Manifest, tuple[ObjectFile, ...], PlatformFacts], Iterator[Finding]]
    scaled: Callable[[Deployment, Front, EngineGroup, int], tuple[str, ...]]
    how_to_start: Callable[[Deployment], Iterator[str]]
    other_faults: Callable[[Path, Manifest, Sequence[ReadPod]], Iterator[Finding]] = (
        lambda folder, manifest, pods: iter(())
    )

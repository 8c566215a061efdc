"""How one engine says what a deployment decides: all that differs between targets of scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.deploy.command_line import FlagList
from planner.deploy.description import Deployment, Engine, EngineGroup, Front
from planner.deploy.findings import Finding
from planner.deploy.reading import GroupEntry, Manifest, ReadEngine
from planner.specs import Dtype, Model, Parallelism

Words = Iterator[tuple[str, str | None]]
"""Flags with their values; None: a flag without a value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Flags of what bounds an engine's steps; `of_all_ranks`: not of one rank of attention DP."""

    sequences: str
    tokens: str
    longest: str
    of_all_ranks: bool


def _no_files(deployment: Deployment) -> dict[str, str]:
    return {}


def _no_faults(folder: Path, manifest: Manifest, flags: FlagList) -> Iterator[Finding]:
    yield from ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """An engine's words.

    Attributes
    ----------
    program, router : tuple of str
        How engines and the router are started.
    model_flag : str
        Names what is loaded; empty: the first word does.
    kv_cache, block_size, backend, quantization : str
        Flags.
    required, alike : tuple of str
        Flags that have to be given; those whose values have to agree between engines that exchange KV caches.
    ports, port_variables : tuple of str
        Flags and variables that hold ports of the host.
    formats : mapping
        Formats by the engine's names.
    disaggregated : str
        The router's flag for prefill and decode apart; empty where a file names its engines.
    bootstrap : bool
        Whether the router names a second port of every prefill engine.
    places : callable
        Of one part of an engine, by rank, what differs from others of its group, by the name of a variable.
    place_arguments, variables : callable
        Flags and environment that hold such values.
    part_flags : callable
        By layout, hosts and rank the flags that tell a part of an engine over several hosts which it is.
    leader : callable
        Flag that names the first host of an engine, and its address as read.
    layout : callable
        Sizes of an engine as read; None where one cannot be read.
    connector : callable
        What moves KV caches, as read.
    hand_over, place_faults : callable
        What is wrong with an engine's part in hand-overs; with its place.
    pair_faults : callable
        What is wrong between the prefill and the decode engines of a model.
    configured : bool
        Whether engines and the router read files of the folder, in which they are started then.
    files : callable
        Those files by their paths.
    file_faults : callable
        What is wrong with them.
    """

    target: str
    program: tuple[str, ...]
    model_flag: str
    kv_cache: str
    block_size: str
    backend: str
    quantization: str
    required: tuple[str, ...]
    alike: tuple[str, ...]
    ports: tuple[str, ...]
    port_variables: tuple[str, ...]
    formats: Mapping[str, Dtype]
    limits: Limits
    router: tuple[str, ...]
    router_package: str
    disaggregated: str
    bootstrap: bool
    places: Callable[[Deployment, EngineGroup, Engine, int], dict[str, str]]
    arguments: Callable[[Front, EngineGroup], Words]
    place_arguments: Callable[[EngineGroup, Mapping[str, str]], Iterator[tuple[str, str]]]
    part_flags: Callable[[Parallelism, int, int], dict[str, str | None]]
    leader: Callable[[ReadEngine, FlagList], tuple[str, str]]
    variables: Callable[[Deployment, EngineGroup, Mapping[str, str]], Iterator[tuple[str, str]]]
    router_arguments: Callable[[Deployment, Front], Iterator[tuple[str, ...]]]
    smoke: Callable[[Deployment, Front], str]
    layout: Callable[[ReadEngine, FlagList], Parallelism | None]
    connector: Callable[[ReadEngine, FlagList], str]
    hand_over: Callable[[GroupEntry, ReadEngine, FlagList], Iterator[Finding]]
    place_faults: Callable[[ReadEngine, FlagList], Iterator[Finding]]
    pair_faults: Callable[[Model, Sequence[ReadEngine], Sequence[ReadEngine], FlagList], Iterator[Finding]]
    configured: bool = False
    files: Callable[[Deployment], dict[str, str]] = _no_files
    file_faults: Callable[[Path, Manifest, FlagList], Iterator[Finding]] = _no_faults

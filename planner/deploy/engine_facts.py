"""What is known of one version of an engine beside its flags: images, its router, attention backends.

Data are ``facts/<engine>-<version>.json``. A version without a file is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from planner.deploy.description import NodeLabel
from planner.errors import SpecError
from planner.specs import Routing

_FOLDER = Path(str(files(__package__))) / "facts"


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """What an attention backend can do.

    Attributes
    ----------
    fp8, sinks : tuple of str
        Architectures on which it reads an fp8 KV cache, and knows attention sinks.
    block_sizes, head_sizes : tuple of int
        The only ones; empty: any (blocks in multiples of 16). [tok, 1]
    """

    name: str
    fp8: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    block_sizes: tuple[int, ...] = ()
    head_sizes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterFacts:
    """One version of a router.

    Attributes
    ----------
    policies : mapping
        Its names of the routing that plans assume; those that it lacks are not there.
    note : str
        What its other policies do.
    splits_lengths : bool
        Whether it can send prompts to pools by their length.
    colocated : bool
        Whether it can share requests among colocated engines.
    """

    tool: str
    version: str
    policies: Mapping[Routing, str]
    note: str = ""
    splits_lengths: bool = False
    colocated: bool = True

    def __str__(self) -> str:
        return f"{self.tool} {self.version}"


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineFacts:
    """One version of an engine.

    Attributes
    ----------
    images : mapping of str
        By vendor of the GPU.
    router : RouterFacts
        The engine's own.
    order : mapping
        Backends in the order of choice, by kind of attention and architecture.
    different_tp : str
        What an operator has to know where TP differs between prefill and decode.
    equal_heads : bool
        Whether KV caches move only where all layers have equal heads of keys and values.
    """

    engine: str
    version: str
    images: Mapping[str, str]
    router: RouterFacts
    load_test: str
    load_test_version: str
    order: Mapping[str, Mapping[str, tuple[str, ...]]]
    backends: Mapping[str, Backend] = field(default_factory=dict)
    different_tp: str = ""
    equal_heads: bool = False


def known_engine_versions(engine: str) -> tuple[str, ...]:
    """Versions of an engine that files can be written for."""
    return tuple(
        sorted(path.stem.removeprefix(f"{engine}-") for path in _FOLDER.glob(f"{engine}-[0-9]*.json"))
    )


@cache
def load_engine_facts(engine: str, version: str) -> EngineFacts:
    """Facts of an engine at a version.

    Raises
    ------
    SpecError
        It is not known.
    """
    known = known_engine_versions(engine)
    if version not in known:
        listed = f"known: {', '.join(known)}" if known else "no version of it is known"
        raise SpecError(f"{engine} {version} cannot be written for: its flags are not known ({listed})")
    data = json.loads((_FOLDER / f"{engine}-{version}.json").read_text(encoding="utf-8"))
    load_test = data["load_test"]
    return EngineFacts(
        engine=engine,
        version=version,
        images=data["images"],
        router=read_router(data["router"]),
        load_test=load_test["tool"],
        load_test_version=load_test["version"],
        order={
            kind: {name: tuple(backends) for name, backends in by_architecture.items()}
            for kind, by_architecture in data["order"].items()
        },
        backends={
            name: Backend(name=name, **{key: tuple(value) for key, value in entry.items()})
            for name, entry in data["backends"].items()
        },
        different_tp=data.get("different_tp", ""),
        equal_heads=data.get("equal_heads", False),
    )


def read_router(data: Mapping[str, Any]) -> RouterFacts:
    """Facts of a router as files have them."""
    policies = {Routing(routing): name for routing, name in data["policies"].items()}
    return RouterFacts(**{**data, "policies": policies})


@cache
def _labels() -> tuple[str, Mapping[str, str]]:
    data = json.loads((_FOLDER / "node-labels.json").read_text(encoding="utf-8"))
    return data["key"], data["values"]


def node_label(gpu: str) -> NodeLabel:
    """Label of the nodes that have this GPU; empty where it is not known."""
    key, values = _labels()
    return NodeLabel(key=key, value=values[gpu]) if gpu in values else NodeLabel()

"""What is known of one version of a platform that starts engines: its images and engines, its router.

Data are ``facts/<platform>-<version>.json``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from planner.deploy.engine_facts import RouterFacts, read_router
from planner.errors import SpecError

_FOLDER = Path(str(files(__package__))) / "facts"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlatformFacts:
    """One version of a platform.

    Attributes
    ----------
    engines : mapping of str
        Version of each engine in its images; an empty one: images are the engine's own.
    images : mapping
        By engine and vendor of the GPU; those of the engine where there is none.
    front : str
        Address that requests go to, from the ``{name}`` of the front's object and the ``{namespace}``.
    port : int
        Of that address.
    path : str
        Before all others, from the same names.
    tools : mapping of str
        Versions of what else it starts, by list of flags.
    """

    name: str
    version: str
    engines: Mapping[str, str]
    images: Mapping[str, Mapping[str, str]]
    router: RouterFacts
    front: str
    port: int
    path: str
    tools: Mapping[str, str]
    tool_images: Mapping[str, str]


def known_platform_versions(name: str) -> tuple[str, ...]:
    """Versions of a platform that files can be written for, oldest first."""
    return tuple(sorted(path.stem.removeprefix(f"{name}-") for path in _FOLDER.glob(f"{name}-[0-9]*.json")))


@cache
def load_platform_facts(name: str, version: str = "") -> PlatformFacts:
    """Facts of a platform at a version; without one, of the newest that is known.

    Raises
    ------
    SpecError
        It is not known.
    """
    known = known_platform_versions(name)
    version = version or known[-1]
    if version not in known:
        raise SpecError(f"{name} {version} cannot be written for (known: {', '.join(known)})")
    data = json.loads((_FOLDER / f"{name}-{version}.json").read_text(encoding="utf-8"))
    return PlatformFacts(
        name=name,
        version=version,
        engines=data["engines"],
        images=data["images"],
        router=read_router(data["router"]),
        front=data["front"],
        port=data["port"],
        path=data["path"],
        tools=data["tools"],
        tool_images=data["tool_images"],
    )

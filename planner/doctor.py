"""What this installation has, and what it lacks: libraries, solvers, caches, tools, the machine itself.

Nothing of the package is imported before it is looked at, so that a library that is missing or broken is
found here instead of ending the search for it.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any

from planner import __version__
from planner.requirements import DISTRIBUTION, installed, older, required
from planner.units import GIB

TOOLS = {
    "shellcheck": (("shellcheck",), "checks emitted scripts by a second reader"),
    "docker compose": (("docker", "compose", "version"), "starts emitted compose files"),
    "kubectl": (("kubectl",), "applies emitted manifests"),
}
"""Programs beside the planner: how to see that each is there, and what it is for."""

LIBRARIES, SOLVERS, CATALOGUE, CACHE, MACHINE, OPTIONAL, PROGRAMS = (
    "libraries", "solvers", "catalogue", "cache", "machine", "extras", "tools",
)  # fmt: skip
_TOOL_SECONDS, _DEVICE_SECONDS = 5.0, 60.0
_DEVICES = """\
import json, torch
print(json.dumps([torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]))
"""


class Health(StrEnum):
    """What a check found. MISSING: something optional is not there; BROKEN: something needed fails."""

    OK = "ok"
    MISSING = "missing"
    BROKEN = "broken"


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes
    ----------
    detail : str
        Version, place or error.
    remedy : str
        What would help; empty where nothing has to.
    """

    group: str
    name: str
    health: Health
    detail: str = ""
    remedy: str = ""


def examine(*, full: bool = False) -> Iterator[Check]:
    """Everything, one check after the other; `full`: also the devices that torch sees (seconds)."""
    yield Check(group=MACHINE, name="planner", health=Health.OK, detail=__version__)
    yield from _machine()
    wanted = required()
    for name, least in wanted.pop("", {}).items():
        yield _library(name, least)
    for solver in ("highs", "cbc"):
        yield _solver(solver)
    yield _tried(CATALOGUE, "catalogue", _catalogue, "install the package again")
    yield _tried(CACHE, "simulator", _cache, "pip install --force-reinstall numba")
    for extra, libraries in wanted.items():
        yield _extra(extra, libraries)
    if full:
        yield _devices()
    for name, (command, purpose) in TOOLS.items():
        yield _tool(name, command, purpose)


# --------------------------------------------------------------------------------------------
# Libraries


def _library(name: str, least: str) -> Check:
    remedy = f"pip install '{name}>={least}'" if least else f"pip install {name}"
    version = installed(name)
    if not version:
        return Check(
            group=LIBRARIES, name=name, health=Health.BROKEN, detail="is not installed", remedy=remedy
        )
    if older(version, least):
        detail = f"{version}, needs {least}"
        return Check(group=LIBRARIES, name=name, health=Health.BROKEN, detail=detail, remedy=remedy)
    return Check(group=LIBRARIES, name=name, health=Health.OK, detail=version)


def _extra(extra: str, libraries: dict[str, str]) -> Check:
    versions = {name: installed(name) for name in libraries}
    wanting = [name for name, version in versions.items() if not version or older(version, libraries[name])]
    detail = ", ".join(f"{name} {version or 'not installed'}" for name, version in versions.items())
    return Check(
        group=OPTIONAL,
        name=extra,
        health=Health.MISSING if wanting else Health.OK,
        detail=detail,
        remedy=f"pip install '{DISTRIBUTION}[{extra}]'" if wanting else "",
    )


def _devices() -> Check:
    """GPUs that torch sees, asked in a process of its own: loading it takes seconds, and may hang."""
    name = "torch devices"
    if not installed("torch"):
        return Check(group=OPTIONAL, name=name, health=Health.MISSING, detail="torch is not installed")
    try:
        run = subprocess.run(
            [sys.executable, "-c", _DEVICES],
            capture_output=True,
            text=True,
            timeout=_DEVICE_SECONDS,
            check=True,
        )
        found = json.loads(run.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return Check(
            group=OPTIONAL, name=name, health=Health.MISSING, detail=_first_line(error), remedy="see torch"
        )
    return Check(group=OPTIONAL, name=name, health=Health.OK, detail=", ".join(found) or "no GPU: CPU only")


# --------------------------------------------------------------------------------------------
# What the commands use


def _tried(group: str, name: str, look: Callable[[], Check], remedy: str) -> Check:
    """A check that imports what it looks at: whatever goes wrong is what it found."""
    try:
        return look()
    except Exception as error:
        return Check(group=group, name=name, health=Health.BROKEN, detail=_first_line(error), remedy=remedy)


def _solver(name: str) -> Check:
    """Whether a solver finds the best of a tiny program: least 3 x + 2 y with x + y >= 1.5, whole numbers."""
    library = {"highs": "highspy", "cbc": "pulp"}[name]

    def look() -> Check:
        backends: Any = import_module("planner.program.backends")
        result = backends.solve_lp(_tiny(), solver=name, time_limit=_TOOL_SECONDS)
        if result.values is None or [round(v) for v in result.values] != [0, 2]:
            raise RuntimeError(f"answers {result.status} with {result.values}, not (0, 2)")
        return Check(group=SOLVERS, name=name, health=Health.OK, detail="solves a tiny program")

    found = _tried(SOLVERS, name, look, f"pip install --force-reinstall {library}")
    if name == "cbc" and found.health is Health.BROKEN:  # the other solver does
        return Check(
            group=SOLVERS, name=name, health=Health.MISSING, detail=found.detail, remedy=found.remedy
        )
    return found


def _tiny() -> Any:
    rows: Any = import_module("planner.program.rows")
    draft = rows.Draft("tiny")
    columns = [draft.column(name, 0.0, 10.0) for name in ("x", "y")]
    draft.row("enough", [(column, 1.0) for column in columns], lower=1.5)
    draft.minimise(zip(columns, (3.0, 2.0), strict=True))
    return draft.finish()


def _catalogue() -> Check:
    catalog: Any = import_module("planner.catalog")
    engines: Any = import_module("planner.engines")
    for name in catalog.gpu_names():
        catalog.load_gpu(name)
    for name in engines.engine_names():
        engines.load_engine(name)
    counts = {
        "models": catalog.model_names(),
        "GPUs": catalog.gpu_names(),
        "cloud instances": catalog.cloud_instances(),
        "engines": engines.engine_names(),
        "traffic presets": catalog.traffic_names(),
    }
    detail = ", ".join(f"{len(found)} {what}" for what, found in counts.items())
    return Check(group=CATALOGUE, name="catalogue", health=Health.OK, detail=detail)


def _cache() -> Check:
    """Where the compiled simulator is kept, and whether it is there already."""
    kernel: Any = import_module("planner.simulator.kernel")
    compiled: Any = import_module("planner.simulator.compiled")
    folder = compiled.cache_folder(kernel.run)
    if folder is None or not _writable(folder):
        where = "no folder" if folder is None else f"{folder} cannot be written"
        detail = f"{where}: every process compiles the simulator anew, about 20 s"
        remedy = "set NUMBA_CACHE_DIR to a folder of your own"
        return Check(group=CACHE, name="simulator", health=Health.MISSING, detail=detail, remedy=remedy)
    state = (
        "compiled"
        if compiled.is_compiled(kernel.run)
        else "not compiled yet: the first simulation takes 20 s"
    )
    return Check(group=CACHE, name="simulator", health=Health.OK, detail=f"{folder}: {state}")


def _writable(folder: Path) -> bool:
    """Whether a folder, or the nearest above it that exists, can be written."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    return os.access(there, os.W_OK)


# --------------------------------------------------------------------------------------------
# Around it


def _machine() -> Iterator[Check]:
    def fact(name: str, detail: str) -> Check:
        return Check(group=MACHINE, name=name, health=Health.OK, detail=detail)

    yield fact("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield fact("processors", str(_processors()))
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not on Windows
        return
    yield fact("memory", f"{memory / GIB:.1f} GiB")


def _processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _tool(name: str, command: tuple[str, ...], purpose: str) -> Check:
    place = shutil.which(command[0])
    works = place is not None and (len(command) == 1 or _runs(command))
    return Check(
        group=PROGRAMS,
        name=name,
        health=Health.OK if works else Health.MISSING,
        detail=str(place) if works else f"not found; {purpose}",
        remedy="" if works else f"install {name} where you want that",
    )


def _runs(command: tuple[str, ...]) -> bool:
    try:
        return (
            subprocess.run(command, capture_output=True, timeout=_TOOL_SECONDS, check=False).returncode == 0
        )
    except (OSError, subprocess.SubprocessError):
        return False


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__

"""Time of ``planner --help``, size of the installation, and what each import costs.

python -m benchmarks.startup [--runs 15]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import resource
import statistics
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from benchmarks import heading, spread, verdict
from planner.units import MEGA

HELP_TARGET = 0.3  # [s]
SIZE_TARGET = 550.0  # of the base installation [MB]
HEAVY = (
    "numpy",
    "scipy",
    "numba",
    "torch",
    "pandas",
    "matplotlib",
    "pydantic",
    "pulp",
    "highspy",
    "rich",
    "yaml",
)
IMPORTS = ("click", "numpy", "yaml", "pydantic", "pulp", "highspy", "rich.table", "planner.workflow")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    heading("planner --help")
    times = [_cpu("-m", "planner", "--help") for _ in range(runs + 1)][1:]
    print(f"CPU {spread(times, digits=3)}   {verdict(statistics.median(times), HELP_TARGET)}")
    print(f"loads of the heavy libraries: {', '.join(_loaded('-m', 'planner', '--help')) or 'none'}")
    heading("imports, CPU time beyond that of an empty interpreter")
    empty = statistics.median(_cpu("-c", "pass") for _ in range(runs))
    for name in IMPORTS:
        own = statistics.median(_cpu("-c", f"import {name}") for _ in range(runs)) - empty
        print(f"{name:18} {own:.3f} s")
    heading("base installation")
    _sizes()


def _cpu(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _loaded(*arguments: str) -> list[str]:
    """Heavy libraries that a command imports, from the interpreter's own report."""
    run = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments], check=True, capture_output=True, text=True
    )
    names = {line.rsplit("|", 1)[-1].strip() for line in run.stderr.splitlines()}
    return [name for name in HEAVY if name in names]


def _sizes() -> None:
    """Sizes of this distribution's requirements as installed, and their sum."""
    sizes = {name: _size(name) for name in sorted(_closure("pd-planner"))}
    for name, size in sorted(sizes.items(), key=lambda item: -item[1])[:8]:
        print(f"{name:18} {size / MEGA:7.1f} MB")
    total = sum(sizes.values()) / MEGA
    print(f"{'all ' + str(len(sizes)):18} {total:7.1f} MB   {verdict(total, SIZE_TARGET)}")


def _closure(name: str, seen: frozenset[str] = frozenset()) -> frozenset[str]:
    """A distribution and all that it requires without extras."""
    if name in seen:
        return seen
    seen |= {name}
    for requirement in importlib.metadata.requires(name) or ():
        text, _, marker = requirement.partition(";")
        if "extra" in marker or "platform" in marker:
            continue
        required = next(part for part in _split(text)).lower()
        try:
            importlib.metadata.distribution(required)
        except importlib.metadata.PackageNotFoundError:
            continue  # of another Python or platform
        seen = _closure(required, seen)
    return seen


def _split(requirement: str) -> Iterable[str]:
    for mark in "<>=!~[ (":
        requirement = requirement.replace(mark, "\n")
    return requirement.split("\n")


def _size(name: str) -> int:
    root = Path(sysconfig.get_paths()["purelib"])
    files = importlib.metadata.distribution(name).files or ()
    paths = {(root / file).resolve() for file in files}
    return sum(path.stat().st_size for path in paths if path.is_file())


if __name__ == "__main__":
    main()

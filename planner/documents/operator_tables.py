"""The folder of the package aiconfigurator-core: figures of its GPUs, and its tables of operator times.

Tables lie in ``systems/data/SYSTEM/FAMILY/ENGINE/VERSION/NAME.parquet``, figures in ``systems/SYSTEM.yaml``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.documents.files import file_error, read_text
from planner.documents.names import one_of
from planner.documents.yaml_text import parse_tree
from planner.errors import SpecError

PACKAGE = "aiconfigurator-core"
MODULE = "aiconfigurator_core"
_SYSTEMS = "systems"
_PRE_RELEASES = ("a", "b", "dev", "rc")

Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorTable:
    """One table: where it stands, the engine's version whose kernels were timed, and its columns."""

    path: Path
    version: str
    columns: Columns


@dataclass(frozen=True, kw_only=True, slots=True)
class SystemFigures:
    """Dense figures that the package has of a GPU.

    Attributes
    ----------
    peaks : mapping of str to float
        By "bf16", "fp8" and "fp4"; what the GPU lacks is absent. [FLOP/s]
    bandwidth, link : float
        Of the memory, and of the link to the other GPUs of the node, one direction. [B/s]
    """

    peaks: Mapping[str, float]
    bandwidth: float
    link: float


def tables_folder(folder: str | Path | None = None) -> Path:
    """The package's folder of systems: of a folder given, or of the installed package.

    Raises
    ------
    SpecError
        Neither installed nor given, or a folder that has none.
    """
    if folder is None:
        found = find_spec(MODULE)
        if found is None or not found.submodule_search_locations:
            raise SpecError(
                f"operator tables need the package {PACKAGE}: pip install 'pd-planner[tables]' {PACKAGE} "
                "(or give the folder that its wheel was unpacked to)"
            )
        folder = found.submodule_search_locations[0]
    root = Path(folder)
    for candidate in (root, root / _SYSTEMS, root / MODULE / _SYSTEMS):
        if (candidate / "data").is_dir():
            return candidate
    raise file_error(root, "holds no operator tables", f"the folder {MODULE} of the package {PACKAGE} does")


def package_version(systems: Path) -> str:
    """Version of the package that a folder of systems belongs to; empty where nothing says so."""
    beside = systems.parent.parent.glob(f"{MODULE}-*.dist-info")
    versions = [path.name.removeprefix(f"{MODULE}-").removesuffix(".dist-info") for path in beside]
    return max(versions, key=version_key, default="")


def system_names(systems: Path) -> tuple[str, ...]:
    """GPUs that have tables."""
    return tuple(sorted(path.name for path in (systems / "data").iterdir() if path.is_dir()))


def version_key(version: str) -> tuple[tuple[int, int | str], ...]:
    """What versions are sorted by: 0.5.6.post2 < 0.5.14, and 1.3.0rc20 < 1.3.0."""
    key: list[tuple[int, int | str]] = []
    for number, word in re.findall(r"(\d+)|([A-Za-z]+)", version):
        key.append((2, int(number)) if number else (0 if word in _PRE_RELEASES else 3, word))
    return (*key, (1, ""))


def read_figures(systems: Path, system: str) -> SystemFigures:
    """Peaks, bandwidth and link of a GPU.

    Raises
    ------
    SpecError
        No such system, or a figure that is missing or no number above 0.
    """
    if system not in system_names(systems):
        raise SpecError(f"system: {one_of(system_names(systems))}, got {system!r}")
    path = systems / f"{system}.yaml"
    tree, _ = parse_tree(read_text(path), str(path))

    def figure(section: str, key: str) -> float:
        value = tree.get(section, key)
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise file_error(path, f"{section}.{key} must be a number above 0, got {value!r}")
        return float(value)

    names = {"bf16": "bfloat16_tc_flops", "fp8": "fp8_tc_flops", "fp4": "fp4_tc_flops"}
    return SystemFigures(
        peaks={kind: figure("gpu", key) for kind, key in names.items() if tree.has("gpu", key)},
        bandwidth=figure("gpu", "mem_bw"),
        link=figure("node", "intra_node_bw"),
    )


def tables_of(
    systems: Path,
    system: str,
    family: str,
    engine: str,
    name: str,
    *,
    required: Sequence[str],
    optional: Sequence[str] = (),
) -> Iterator[OperatorTable]:
    """An engine's tables of one name, those of its newest version first; optional columns may be absent.

    Raises
    ------
    SpecError
        pyarrow missing, or a damaged table.
    """
    found = (systems / "data" / system / family / engine).glob(f"*/{name}.parquet")
    for path in sorted(found, key=lambda p: version_key(p.parent.name), reverse=True):
        columns = read_columns(path, [*required, *optional])
        missing = [column for column in required if column not in columns]
        if missing:
            raise file_error(path, f"has no column {', '.join(missing)}")
        yield OperatorTable(path=path, version=path.parent.name, columns=columns)


def read_columns(path: str | Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Columns of a Parquet file that it has of those asked for: numbers as they are, texts as objects.

    Raises
    ------
    SpecError
        pyarrow is missing, or the file is not Parquet or cannot be read.
    """
    try:
        from pyarrow import ArrowException, parquet  # slow, and in the extra [tables] only
    except ImportError as error:
        raise SpecError(f"Parquet tables need pyarrow: pip install 'pd-planner[tables]' ({error})") from None
    try:
        with parquet.ParquetFile(path) as file:
            table = file.read(columns=[name for name in file.schema_arrow.names if name in names])
    except (ArrowException, OSError) as error:
        raise file_error(path, f"is not readable as Parquet ({str(error).splitlines()[0]})") from None
    return {name: np.asarray(table[name].to_numpy()) for name in table.column_names}

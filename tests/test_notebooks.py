"""The notebooks: each runs from top to bottom; the last cell asserts its headline number."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
PATHS = sorted(FOLDER.glob("*.ipynb"))

by_name = pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)


def code_cells(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_there_are_notebooks() -> None:
    assert PATHS


@by_name
def test_is_plain_python_that_ends_in_an_assertion(path: Path) -> None:
    sources = ["".join(cell["source"]) for cell in code_cells(path)]
    for source in sources:
        compile(source, path.name, "exec")  # no magic commands
    assert "assert " in sources[-1]


@by_name
def test_is_stored_without_output(path: Path) -> None:
    for cell in code_cells(path):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None


@pytest.mark.notebook
@pytest.mark.filterwarnings("default")  # of the libraries that run it
@by_name
def test_runs(path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed")
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    )
    client.execute(env={**os.environ, "PYTHONPATH": str(FOLDER.parent)})  # the package of this folder

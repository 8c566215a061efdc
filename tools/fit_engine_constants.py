"""Fit constants of engines to a file of measured rows, and write them where the package reads them.

    python tools/fit_engine_constants.py MEASURED.csv [--source TEXT]

The rows are those that ``planner validate`` reads. Written are ``planner/engines/constants/fitted.yaml`` and
the ids of the rows that were used. The output depends on nothing but the rows, the kernels and the engine
files.
"""

from __future__ import annotations

import argparse

from planner.documents.engine_constants import ROWS_SUFFIX, constants_text
from planner.documents.files import write_text_atomic
from planner.documents.measured_file import read_measured
from planner.engines import CONSTANTS_FILE
from planner.validation.evaluate import fit_all
from planner.validation.points import points_of

HEAD = """Constants of serving engines, fitted to measured rows level by level: all, an engine, a version.
Written by tools/fit_engine_constants.py; the rows are listed in fitted.rows.txt."""
SOURCE = (
    "end-to-end rows of InferenceX (SemiAnalysis) and NVIDIA as collected in aiconfigurator-core "
    "(Apache-2.0), duplicates and mislabelled rows left out"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measured", help="CSV of measured rows")
    parser.add_argument("--source", default=SOURCE, help="where the rows come from")
    arguments = parser.parse_args()
    fitted = fit_all(points_of(read_measured(arguments.measured).rows), arguments.source)
    write_text_atomic(CONSTANTS_FILE, constants_text(fitted, HEAD))
    listed = "".join(f"{row}\n" for row in sorted(fitted.rows))
    write_text_atomic(
        CONSTANTS_FILE.with_suffix(ROWS_SUFFIX), f"# Rows that fitted.yaml was fitted to.\n{listed}"
    )
    print(f"{len(fitted.rows)} rows, {len(fitted.classes)} classes, {len(fitted.factors)} models")


if __name__ == "__main__":
    main()

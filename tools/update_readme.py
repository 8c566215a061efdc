"""Run the commands of README.md and put what they print below them.

    python tools/update_readme.py [--check]

Commands stand in fences marked ``console`` and begin with ``$ planner``. README.ko.md has some of them, with
the same output.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
TRANSLATED = ROOT / "README.ko.md"
WIDTH = 100
_BLOCK = re.compile(r"^```console\n\$ (planner .*)\n((?:.*\n)*?)```$", re.MULTILINE)


def blocks(text: str) -> list[tuple[str, str]]:
    """Commands of a README with the output that it shows."""
    return [(match[1], match[2]) for match in _BLOCK.finditer(text)]


def output_of(command: str) -> str:
    """What a command prints, errors included, without trailing spaces."""
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    environment |= {"COLUMNS": str(WIDTH), "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:  # plans are written here, not into the checkout
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        run = subprocess.run(
            [sys.executable, "-m", *shlex.split(command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env=environment,
            check=False,
        )
    if run.returncode == 1:
        sys.exit(f"{command}: {run.stdout.strip()}")
    return "".join(f"{line.rstrip()}\n" for line in run.stdout.splitlines())


def with_outputs(text: str, outputs: Mapping[str, str]) -> str:
    """A README with these outputs below those of its commands that have one."""
    return _BLOCK.sub(lambda m: f"```console\n$ {m[1]}\n{outputs.get(m[1], m[2])}```", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="Only say whether the README is up to date.")
    check = parser.parse_args().check
    text = README.read_text(encoding="utf-8")
    updated = _BLOCK.sub(lambda m: f"```console\n$ {m[1]}\n{output_of(m[1])}```", text)
    translation = TRANSLATED.read_text(encoding="utf-8")
    translated = with_outputs(translation, dict(blocks(updated)))
    if check:
        stale = [
            path.name
            for path, same in ((README, updated == text), (TRANSLATED, translated == translation))
            if not same
        ]
        sys.exit(f"out of date: {', '.join(stale)}: run tools/update_readme.py" if stale else 0)
    README.write_text(updated, encoding="utf-8")
    TRANSLATED.write_text(translated, encoding="utf-8")


if __name__ == "__main__":
    main()

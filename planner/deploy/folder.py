"""A folder of files, written whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from planner.documents.files import file_error

_RUNNABLE, _PLAIN = 0o755, 0o644


def write_folder(folder: Path, files: Mapping[str, str], mark: str) -> None:
    """Write `files`, by their paths within `folder`; scripts may be run.

    A folder that has the file `mark` was written here before and is replaced, if nothing was added to it.

    Raises
    ------
    SpecError
        The folder holds something else, or cannot be written.
    """
    folder = Path(os.path.abspath(folder))
    _require_ours(folder, files, mark)
    if not folder.parent.is_dir():
        raise file_error(folder, f"cannot be written: there is no folder {folder.parent}")
    new, old = (
        folder.with_name(f".{folder.name[:100]}.{secrets.token_hex(6)}.{end}") for end in ("new", "old")
    )
    try:
        try:
            _write(new, files)
            if folder.exists():
                os.rename(folder, old)
            os.rename(new, folder)
        except BaseException:  # also an interrupt from the keyboard
            if old.exists() and not folder.exists():
                os.rename(old, folder)
            shutil.rmtree(new, ignore_errors=True)
            raise
    except OSError as error:
        raise file_error(folder, f"cannot be written: {error.strerror}") from None
    shutil.rmtree(old, ignore_errors=True)


def _require_ours(folder: Path, files: Mapping[str, str], mark: str) -> None:
    if not folder.exists():
        return
    if not folder.is_dir() or folder.is_symlink():
        raise file_error(folder, "is there already, and is not a folder")
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    if found and mark not in found:
        raise file_error(
            folder, "is there already, and was not written by planner emit", "name another folder"
        )
    listed = {line.removeprefix("- ") for line in _lines(folder / mark)} if found else set()
    if foreign := sorted(found - listed - set(files) - {mark}):
        rule = f"holds files that planner emit did not write: {', '.join(foreign[:3])}"
        raise file_error(folder, rule, "move them, or name another folder")


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8"))
        path.chmod(_RUNNABLE if path.suffix == ".sh" else _PLAIN)

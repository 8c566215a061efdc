"""A journal of results, so that a long sweep that was stopped goes on where it was.

JSON lines: a head that says of what, then one line per point, keyed by the point's values. Lines are appended
and reach the operating system at once, the disk in batches. What a killed process leaves half-written, the
last line, is cut off; a journal of something else is refused.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from planner.documents.files import check_writable, file_error

_VERSION = 1
_BATCH, _SECONDS = 64, 2.0  # lines, and time, after which lines are forced to the disk

Row = dict[str, Any]


def journal_of(output: Path) -> Path:
    """Where the journal of an output file is."""
    return output.with_name(f"{output.name}.journal")


@dataclass(slots=True)
class Journal:
    """An open journal.

    Attributes
    ----------
    rows : dict of str to Row
        What was found before, by point.
    """

    path: Path
    rows: dict[str, Row]
    _file: BinaryIO
    _unsaved: int = 0
    _saved_at: float = 0.0

    @classmethod
    def opened(cls, path: Path, head: Mapping[str, Any], *, fresh: bool = False) -> Journal:
        """The journal at `path` with what it has of `head`; a new one where there is none, or `fresh`.

        Raises
        ------
        SpecError
            If it is of something else, damaged, in use, or cannot be written.
        """
        check_writable(path)
        try:
            file = path.open("a+b")
        except OSError as error:
            raise file_error(path, f"cannot be written: {error.strerror}") from None
        try:
            _locked(file, path)
            if fresh:
                file.truncate(0)
            rows, end = _read(file, path, head)
            file.truncate(end)
            journal = cls(path, rows, file, _saved_at=time.monotonic())
            if end == 0:
                journal._append({"journal": _VERSION, **head})
        except BaseException:
            file.close()
            raise
        return journal

    def add(self, point: str, row: Row) -> None:
        """Note what came of a point."""
        self.rows[point] = row
        self._append({"point": point, "row": row})

    def _append(self, entry: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(entry).encode() + b"\n")
        self._file.flush()
        self._unsaved += 1
        now = time.monotonic()
        if self._unsaved >= _BATCH or now - self._saved_at >= _SECONDS:
            os.fsync(self._file.fileno())
            self._unsaved, self._saved_at = 0, now

    def close(self) -> None:
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def remove(self) -> None:
        """All is told elsewhere now."""
        self.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _locked(file: BinaryIO, path: Path) -> None:
    """Keep others from writing; the lock ends with the process, however that ends."""
    try:
        import fcntl  # not everywhere
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise file_error(path, "is being written by another sweep", "wait for it, or stop it") from None


def _read(file: BinaryIO, path: Path, head: Mapping[str, Any]) -> tuple[dict[str, Row], int]:
    """What a journal has, and where its last whole line ends. [B]"""
    file.seek(0)
    rows: dict[str, Row] = {}
    end, number = 0, 0
    for number, line in enumerate(file, start=1):
        if not line.endswith(b"\n"):  # torn: the process was killed while it wrote
            break
        entry = _entry(line)
        if entry is None:
            rule = f"is damaged: line {number} is no line of a journal"
            raise file_error(path, rule, "--fresh starts anew")
        if number == 1:
            _check_head(path, entry, head)
        else:
            rows[str(entry["point"])] = entry["row"]
        end += len(line)
    return rows, end


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    known = isinstance(entry, dict) and ("journal" in entry or isinstance(entry.get("row"), dict))
    return entry if known else None


def _check_head(path: Path, found: Mapping[str, Any], head: Mapping[str, Any]) -> None:
    """It is of this sweep: the same planner, scenario, keys and options."""
    asked = json.loads(json.dumps({"journal": _VERSION, **head}))
    other = [key for key in asked if found.get(key) != asked[key]]
    if other:
        what = " and ".join(other).replace("journal", "form of the journal")
        rule = f"is of another sweep: another {what}"
        raise file_error(path, rule, "--fresh starts anew, and another -o leaves it as it is")

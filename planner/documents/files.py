"""Files: text read within bounds, text and bytes written whole or not at all."""

from __future__ import annotations

import gzip
import io
import os
import secrets
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from planner.documents.names import nearest
from planner.errors import Problem, SpecError
from planner.units import GIGA, MEGA

MAX_BYTES = int(5 * MEGA)
MAX_TABLE_BYTES = int(2 * GIGA)
MAX_LINE_BYTES = int(16 * MEGA)

_BINARY = {
    b"PK\x03\x04": "a zip archive",
    b"PAR1": "a Parquet file",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ": "compressed with xz",
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
}
"""What files are that people take for text, by their first bytes."""


def file_error(path: str | Path, rule: str, suggestion: str = "") -> SpecError:
    """An error about a file as a whole."""
    return SpecError.of_file(str(path), [Problem(key="", rule=rule, suggestion=suggestion)])


def read_text(path: str | Path, most: int = MAX_BYTES) -> str:
    """Content of a UTF-8 file of at most `most` bytes, without its byte order mark.

    Raises
    ------
    SpecError
        Missing, a folder, unreadable, too large, not UTF-8.
    """
    path = Path(path)
    with _reading(path):
        state = path.stat()
        if stat.S_ISDIR(state.st_mode):
            raise file_error(path, "is a folder, not a file")
        if state.st_size > most:
            raise _too_large(path, most)
        with path.open("rb") as file:
            data = file.read(most + 1)  # devices and pipes have no size
    if len(data) > most:
        raise _too_large(path, most)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = Problem(key="", rule="is not a text file in UTF-8", line=line)
        raise SpecError.of_file(str(path), [problem]) from None


def read_lines(path: str | Path) -> Iterator[str]:
    """Lines of a large text file, plain or compressed with gzip, in any convention of line ends.

    Bytes that are no UTF-8 come as ``\\xff``: a table's reader refuses them where they matter.

    Raises
    ------
    SpecError
        While reading: missing, a folder, unreadable, not text, damaged, too large, an endless line.
    """
    path = Path(path)
    with _reading(path):
        if path.is_dir():
            raise file_error(path, "is a folder, not a file")
        with path.open("rb") as raw:
            head = raw.peek(8)
            for start, kind in _BINARY.items():
                if head.startswith(start):
                    raise file_error(path, f"is {kind}", "plain text in UTF-8 and gzip are read")
            compressed = head.startswith(b"\x1f\x8b")
            stream = gzip.GzipFile(fileobj=raw) if compressed else raw
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="backslashreplace")
            size = 0
            while line := text.readline(MAX_LINE_BYTES + 1):
                size += len(line)
                if len(line) > MAX_LINE_BYTES:
                    raise file_error(path, f"has a line of more than {MAX_LINE_BYTES / MEGA:g} MB")
                if size > MAX_TABLE_BYTES:
                    raise _too_large(path, MAX_TABLE_BYTES)
                yield line


def begins_as_json(path: str | Path) -> bool:
    """Whether the first sign of a file is a bracket of JSON.

    Raises
    ------
    SpecError
        Missing, a folder, unreadable.
    """
    path = Path(path)
    with _reading(path):
        if path.is_dir():
            raise file_error(path, "is a folder, not a file")
        with path.open("rb") as file:
            return file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What may go wrong with a file, as an error that names it."""
    try:
        yield
    except SpecError:  # is a ValueError too
        raise
    except FileNotFoundError:
        raise file_error(path, "no such file", _nearest_file(path)) from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise file_error(path, "is a damaged gzip file") from None
    except OSError as error:
        raise file_error(path, f"cannot be read: {error.strerror}") from None
    except ValueError:
        raise file_error(repr(str(path)), "is not a file name") from None


def resolved_path(name: str | Path, base: str | Path | None) -> Path:
    """A path as a user wrote it in a file of the folder `base`; None: the working directory."""
    try:
        path = Path(name).expanduser()
    except RuntimeError:  # ~name of nobody
        path = Path(name)
    return path if base is None else Path(base) / path


def path_seen_from(name: str, old: Path, new: Path) -> str:
    """A path that was relative to the folder `old`, relative to the folder `new`; others, and those of files
    that are not there, as they are."""
    path = resolved_path(name, old)
    if Path(name).is_absolute() or name.startswith("~") or not path.exists():
        return name
    seen = os.path.relpath(path.resolve(), new.resolve())
    return seen if seen.startswith("..") else os.path.join(".", seen)


def _too_large(path: Path, limit: int) -> SpecError:
    return file_error(path, f"is larger than {limit / MEGA:,g} MB")


def _nearest_file(path: Path) -> str:
    try:
        names = sorted(os.listdir(path.parent))
    except OSError:
        return "the folder does not exist either"
    match = nearest(path.name, names)
    return f"did you mean {path.parent / match}?" if match else ""


def check_writable(path: str | Path) -> None:
    """Refuse a file that could not be written, before long work for it begins.

    Raises
    ------
    SpecError
        It is a folder, its own folder is missing, or permissions forbid it.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise file_error(path, "is a folder, not a file")
        if not path.parent.is_dir():
            raise file_error(path, f"cannot be written: there is no folder {path.parent}")
        special = path.exists() and not path.is_file()
        # Files are replaced, so it is their folder that has to let us.
        target = path if special else Path(os.path.realpath(path)).parent
        if not os.access(target, os.W_OK):
            raise file_error(path, "cannot be written: Permission denied")
    except SpecError:  # is a ValueError too
        raise
    except (OSError, ValueError) as error:
        raise file_error(repr(str(path)), f"cannot be written: {error}") from None


def write_text_atomic(path: str | Path, text: str) -> None:
    """Write a UTF-8 file as :func:`write_bytes_atomic` does."""
    write_bytes_atomic(path, text.encode("utf-8"))


def write_bytes_atomic(path: str | Path, data: bytes) -> None:
    """Write a file whole or not at all; an existing file keeps its permissions.

    Raises
    ------
    SpecError
        As :func:`check_writable`, or the disk is full.
    """
    path = Path(path)
    check_writable(path)
    try:
        if path.exists() and not path.is_file():  # /dev/null and pipes
            path.write_bytes(data)
        else:
            _replace(Path(os.path.realpath(path)), data)  # through symbolic links
    except OSError as error:
        raise file_error(path, f"cannot be written: {error.strerror}") from None


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(6)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
        os.replace(temporary, path)
    except BaseException:  # also an interrupt from the keyboard
        temporary.unlink(missing_ok=True)
        raise

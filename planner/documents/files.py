"""Text files: read within bounds, written whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from planner.documents.names import nearest
from planner.errors import Problem, SpecError
from planner.units import MEGA

MAX_BYTES = int(5 * MEGA)


def file_error(path: str | Path, rule: str, suggestion: str = "") -> SpecError:
    """An error about a file as a whole."""
    return SpecError.of_file(str(path), [Problem(key="", rule=rule, suggestion=suggestion)])


def read_text(path: str | Path) -> str:
    """Content of a UTF-8 file of at most 5 MB, without its byte order mark.

    Raises
    ------
    SpecError
        Missing, a folder, unreadable, too large, not UTF-8.
    """
    path = Path(path)
    try:
        state = path.stat()
        if stat.S_ISDIR(state.st_mode):
            raise file_error(path, "is a folder, not a file")
        if state.st_size > MAX_BYTES:
            raise _too_large(path)
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)  # devices and pipes have no size
    except SpecError:  # is a ValueError too
        raise
    except FileNotFoundError:
        raise file_error(path, "no such file", _nearest_file(path)) from None
    except OSError as error:
        raise file_error(path, f"cannot be read: {error.strerror}") from None
    except ValueError:
        raise file_error(repr(str(path)), "is not a file name") from None
    if len(data) > MAX_BYTES:
        raise _too_large(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = Problem(key="", rule="is not a text file in UTF-8", line=line)
        raise SpecError.of_file(str(path), [problem]) from None


def _too_large(path: Path) -> SpecError:
    return file_error(path, f"is larger than {MAX_BYTES / MEGA:g} MB")


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
    """Write a UTF-8 file whole or not at all; an existing file keeps its permissions.

    Raises
    ------
    SpecError
        As :func:`check_writable`, or the disk is full.
    """
    path = Path(path)
    check_writable(path)
    try:
        if path.exists() and not path.is_file():  # /dev/null and pipes
            path.write_text(text, encoding="utf-8")
        else:
            _replace(Path(os.path.realpath(path)), text)  # through symbolic links
    except OSError as error:
        raise file_error(path, f"cannot be written: {error.strerror}") from None


def _replace(path: Path, text: str) -> None:
    data = text.encode("utf-8")
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

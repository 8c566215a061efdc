"""Names and texts that reach scripts and YAML files: derived alike every time, or refused."""

from __future__ import annotations

import hashlib
import re

from planner.documents.schema_base import MAX_LABEL, label_of
from planner.errors import SpecError

MAX_GROUP_NAME = 45
"""The strictest limit of any target: names of components are part of longer ones."""

MAX_OBJECT_NAME = 13
"""Of objects whose names are part of those of components."""

_HASH = 6
_LONGEST = 500
_UNSAFE = {
    "'": "a quote", '"': "a quote", "`": "a backtick", "$": "a dollar sign", "\\": "a backslash",
    "#": "a hash sign", ";": "a semicolon", "&": "an ampersand", "|": "a bar", "*": "an asterisk",
    "<": "an angle bracket", ">": "an angle bracket", "!": "an exclamation mark",
}  # fmt: skip
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\]")


def dns_name(text: str, limit: int = MAX_LABEL) -> str:
    """A name of small letters, digits and dashes, as in host names (DNS-1123), of at most `limit` characters.

    A text that is one already stays; others get a hash, so that different texts have different names.
    """
    if label_of(text) == text and len(text) <= limit and text[:1].isalpha():
        return text
    digest = hashlib.sha256(text.encode("utf-8")).hexdigest()[:_HASH]
    kept = label_of(text)
    kept = kept if kept[:1].isalpha() else f"x-{kept}" if kept else "x"
    return f"{kept[: limit - _HASH - 1].rstrip('-')}-{digest}"


def short_name(text: str) -> str:
    """A name of an object whose name becomes part of others."""
    return dns_name(text, MAX_OBJECT_NAME)


def safe_text(what: str, text: str) -> str:
    """`text`, which may then be quoted for a shell and for YAML.

    Raises
    ------
    SpecError
        It holds what a shell, YAML or a compose file could take for more than a character, or is empty.
    """
    problem = ""
    if not text or text != text.strip():
        problem = "is empty, or begins or ends with a blank"
    elif not text.isprintable():
        problem = "holds a control character or a line end"
    elif text.startswith("-"):
        problem = "begins with a dash, which makes it a flag"
    elif len(text) > _LONGEST:
        problem = f"is longer than {_LONGEST} characters"
    else:
        problem = next((f"holds {name}" for character, name in _UNSAFE.items() if character in text), "")
    if problem:
        raise SpecError(f"{what}: {problem}, got {text[:80]!r}")
    return text


def host_address(what: str, text: str) -> str:
    """`text` as the host of a URL.

    Raises
    ------
    SpecError
        It is neither a host name nor an IP address (version 6 in brackets).
    """
    if not _HOST.fullmatch(text):
        rule = "must be a host name or an IP address (IPv6 in brackets)"
        raise SpecError(f"{what}: {rule}, got {text[:80]!r}")
    return text

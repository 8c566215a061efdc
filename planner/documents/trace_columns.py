"""Columns of request traces: names that are understood, and the layouts of public traces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

ARRIVAL, ISL, OSL, BLOCKS = "arrival", "input tokens", "output tokens", "block hashes"
REQUIRED = (ARRIVAL, ISL, OSL)

ALIASES: dict[str, tuple[str, ...]] = {
    ARRIVAL: (
        "arrived_at", "arrival_timestamp", "arrival_time", "arrival", "arrive_time", "request_arrival_time",
        "request_timestamp", "request_time", "timestamp", "start_timestamp", "start_time", "started_at",
        "created_at", "submit_time", "send_time", "datetime", "time", "ts",
    ),
    ISL: (
        "ContextTokens", "input_length", "input_tokens", "Request tokens", "num_prefill_tokens",
        "prompt_size", "prompt_tokens", "prompt_length", "prompt_len", "PromptTokenCount", "prefill_tokens",
        "prefill_length", "prefill_len", "num_input_tokens", "num_prompt_tokens", "input_len",
        "input_token_count", "input_size", "input_toks", "isl",
    ),
    OSL: (
        "GeneratedTokens", "output_length", "output_tokens", "Response tokens", "num_decode_tokens",
        "token_size", "completion_tokens", "completion_length", "CompletionTokenCount",
        "CandidatesTokenCount", "decode_tokens", "decode_length", "decode_len", "num_output_tokens",
        "num_generated_tokens", "generated_token_count", "generation_length", "output_len",
        "output_token_count", "output_size", "output_toks", "response_length", "osl",
    ),
    BLOCKS: ("hash_ids", "block_hashes", "block_ids"),
}  # fmt: skip
"""Names of each column, the preferred first; case, spaces, underscores, dots and dashes do not count.

A name of an arrival may end in its unit: ``timestamp_ms``, ``Arrival time (s)``.
"""

UNITS = {
    "s": ("s", "sec", "secs", "second", "seconds"),
    "ms": ("ms", "msec", "msecs", "millis", "millisecond", "milliseconds"),
    "us": ("us", "usec", "micros", "microsecond", "microseconds"),
    "ns": ("ns", "nsec", "nanos", "nanosecond", "nanoseconds"),
}
"""Spellings of the units of time."""

_SEPARATORS = re.compile(r"[\s_.\-()\[\]/]+")


def folded(name: str) -> str:
    """A name without case and separators."""
    return _SEPARATORS.sub("", name.strip().lower())


_ROLES = {folded(alias): (role, rank) for role, names in ALIASES.items() for rank, alias in enumerate(names)}
_UNIT_OF = {spelling: unit for unit, spellings in UNITS.items() for spelling in spellings}


@dataclass(frozen=True, slots=True)
class Layout:
    """A public trace's form.

    Attributes
    ----------
    columns : frozenset of str
        Folded names that tell it from others.
    unit : str
        Of numeric timestamps; empty where the form does not settle it.
    block_size : int
        Tokens of a hashed block. [tok]
    partial_blocks : bool
        Whether the last block, where it is not full, always has a hash.
    """

    name: str
    columns: frozenset[str]
    unit: str
    block_size: int = 512
    partial_blocks: bool = True


PLAIN = Layout("plain table", frozenset(), unit="")
LAYOUTS = (
    Layout(
        "Qwen-Bailian",
        frozenset({"chatid", "parentchatid", "timestamp", "inputlength", "outputlength"}),
        unit="s",
        block_size=16,
        partial_blocks=False,
    ),
    Layout("Mooncake", frozenset({"timestamp", "inputlength", "outputlength", "hashids"}), unit="ms"),
    Layout("Azure LLM inference", frozenset({"timestamp", "contexttokens", "generatedtokens"}), unit=""),
    Layout("BurstGPT", frozenset({"timestamp", "requesttokens", "responsetokens"}), unit="s"),
    Layout("Vidur", frozenset({"arrivedat", "numprefilltokens", "numdecodetokens"}), unit="s"),
    Layout("Splitwise", frozenset({"arrivaltimestamp", "promptsize", "tokensize"}), unit="s"),
)


@dataclass(frozen=True, slots=True)
class Columns:
    """Where a table keeps what.

    Attributes
    ----------
    index : dict
        Number of the column by role.
    missing : tuple of str
        Roles that no column has.
    unit : str
        That the arrival's name says; or empty.
    notes : tuple of str
        Choices between columns.
    """

    index: dict[str, int]
    missing: tuple[str, ...]
    unit: str
    layout: Layout
    notes: tuple[str, ...]


def recognise(names: Sequence[str]) -> Columns:
    """Roles of columns from their names."""
    found: dict[str, list[tuple[int, int, str]]] = {}
    for column, name in enumerate(names):
        role, rank, unit = _role(name)
        if role:
            found.setdefault(role, []).append((rank, column, unit))
    index, notes, unit = {}, [], ""
    for role, candidates in found.items():
        candidates.sort()
        _, index[role], unit_here = candidates[0]
        unit = unit_here or unit
        if len(candidates) > 1:
            others = ", ".join(repr(names[column].strip()) for _, column, _ in candidates[1:])
            notes.append(f"{role}: column {names[index[role]].strip()!r} is used, not {others}")
    columns = {folded(name) for name in names}
    layout = next((known for known in LAYOUTS if known.columns <= columns), PLAIN)
    missing = tuple(role for role in REQUIRED if role not in index)
    return Columns(index, missing, unit, layout, tuple(notes))


def _role(name: str) -> tuple[str, int, str]:
    """Role of a name, its rank among the names of that role, and the unit it ends in."""
    if len(name) > 100:
        return "", 0, ""
    text = folded(name)
    if text in _ROLES:
        return (*_ROLES[text], "")
    parts = [part for part in _SEPARATORS.split(name.strip().lower()) if part]
    if len(parts) > 1 and parts[-1] in _UNIT_OF:
        stem, unit = "".join(parts[:-1]), _UNIT_OF[parts[-1]]
    else:  # timestampMs
        spelling = max((s for s in _UNIT_OF if len(s) > 1 and text.endswith(s)), key=len, default="")
        stem, unit = text.removesuffix(spelling), _UNIT_OF.get(spelling, "")
    role, rank = _ROLES.get(stem, ("", 0))
    return (role, rank, unit) if unit and role == ARRIVAL else ("", 0, "")

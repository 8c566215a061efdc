"""Command lines of engines and routers against the flags that one version of each accepts.

Lists of flags are data (``flags/<tool>-<version>.json``, made by ``tools/build_flag_lists.py``). A version
without a list is refused: what another version accepts is not guessed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from planner.documents.names import did_you_mean, one_of
from planner.errors import SpecError

_FOLDER = Path(str(files(__package__))) / "flags"
_FLAG = re.compile(r"--?[A-Za-z]")
_SWITCHES = ("true", "false")
_BOUNDS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "gt": (">", lambda value, bound: value > bound),
    "ge": (">=", lambda value, bound: value >= bound),
    "lt": ("<", lambda value, bound: value < bound),
    "le": ("<=", lambda value, bound: value <= bound),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Flag:
    """One flag of a tool.

    Attributes
    ----------
    type : str
        bool, int, float, json, list or str; bool takes no value.
    negation : str
        The flag that switches it off; empty where there is none.
    choices, known : tuple of str
        The only values; values that are known beside others. Both empty: any.
    bounds : mapping of str to float
        By gt, ge, lt, le.
    suffix : bool
        Whether an integer may end in k or M.
    words : tuple of str
        What a number may be instead.
    repeated : bool
        Whether it may be given several times.
    valued : bool
        Whether a bool may be written as =true or =false.
    """

    name: str
    type: str
    aliases: tuple[str, ...] = ()
    negation: str = ""
    choices: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    bounds: Mapping[str, float] = field(default_factory=dict)
    suffix: bool = False
    words: tuple[str, ...] = ()
    repeated: bool = False
    valued: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases, *((self.negation,) if self.negation else ()))


@dataclass(frozen=True, kw_only=True, slots=True)
class KvTransferOptions:
    """What vLLM's ``--kv-transfer-config`` may hold."""

    fields: tuple[str, ...]
    roles: tuple[str, ...]
    connectors: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigKeys:
    """Keys of the file that the disaggregated server of TensorRT-LLM reads: at its top, and of servers."""

    top: tuple[str, ...]
    servers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class FlagList:
    """All flags of a tool at a version, by each of their names.

    Attributes
    ----------
    engine_version : str
        The engine in the tool's images, where the tool starts one; empty otherwise.
    abbreviated : bool
        Whether the beginning of a flag stands for it.
    config : ConfigKeys or None
        Where the tool reads a file.
    """

    tool: str
    version: str
    source: str
    flags: Mapping[str, Flag]
    kv_transfer: KvTransferOptions | None = None
    engine_version: str = ""
    abbreviated: bool = True
    config: ConfigKeys | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What is wrong with a word of a command line; `word` is its index."""

    word: int
    rule: str
    value: str
    suggestion: str = ""


def known_versions(tool: str) -> tuple[str, ...]:
    """Versions of a tool whose flags are known, sorted."""
    pattern = re.compile(rf"{re.escape(tool)}-(\d[\w.]*)")
    found = (pattern.fullmatch(path.stem) for path in _FOLDER.glob("*.json"))
    return tuple(sorted(match[1] for match in found if match))


@cache
def load_flags(tool: str, version: str) -> FlagList:
    """The flags of a tool at a version.

    Raises
    ------
    SpecError
        The flags of that version are not known.
    """
    known = known_versions(tool)
    if version not in known:
        listed = f"known: {', '.join(known)}" if known else "no version of it is known"
        raise SpecError(f"the flags of {tool} {version} are not known ({listed})")
    data = json.loads((_FOLDER / f"{tool}-{version}.json").read_text(encoding="utf-8"))
    flags = [_flag(entry) for entry in data["flags"]]
    transfer, config = data.get("kv_transfer"), data.get("config")
    return FlagList(
        tool=data["tool"],
        version=data["version"],
        source=data["source"],
        flags={name: flag for flag in flags for name in flag.names},
        kv_transfer=transfer and KvTransferOptions(**{key: tuple(value) for key, value in transfer.items()}),
        engine_version=data.get("engine_version", ""),
        abbreviated=data.get("abbreviated", True),
        config=config and ConfigKeys(top=tuple(config["top"]), servers=tuple(config["servers"])),
    )


def _flag(entry: Mapping[str, Any]) -> Flag:
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
    }
    return Flag(**values)


# --------------------------------------------------------------------------------------------
# Reading


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """A flag of a command line with its values, and the index of its word."""

    name: str
    values: tuple[str, ...]
    word: int
    off: bool = False


def read_command(words: Sequence[str], flags: FlagList) -> tuple[list[Given], list[str], list[Fault]]:
    """Flags by their full names, positional words, and what cannot be read, of the words of a program."""
    given: list[Given] = []
    rest: list[str] = []
    faults: list[Fault] = []
    at = 0
    while at < len(words):
        word, start = words[at], at
        at += 1
        if not _FLAG.match(word):
            rest.append(word)
            continue
        name, equals, value = word.partition("=")
        flag = flags.flags.get(name)
        if flag is None:
            faults.append(_unknown(start, name, flags))
            at += 0 if equals or at >= len(words) or _FLAG.match(words[at]) else 1
            continue
        if flag.type == "bool":
            if equals and not (flag.valued and value in _SWITCHES):
                rule = f"{name} {one_of(_SWITCHES)}" if flag.valued else f"{name} takes no value"
                faults.append(Fault(word=start, rule=rule, value=value))
            off = name == flag.negation or value == "false"
            given.append(Given(name=flag.name, values=(), word=start, off=off))
            continue
        values = [value] if equals else []
        while not equals and at < len(words) and not _FLAG.match(words[at]):
            values.append(words[at])
            at += 1
            if flag.type != "list":
                break
        if not values and flag.type != "list":
            faults.append(Fault(word=start, rule=f"{name} needs a value", value=""))
            continue
        given.append(Given(name=flag.name, values=tuple(values), word=start))
    return given, rest, faults


def _unknown(word: int, name: str, flags: FlagList) -> Fault:
    longer = sorted(known for known in flags.flags if known.startswith(name))
    if longer and name.startswith("--") and flags.abbreviated:
        rule = f"{flags.tool} {flags.version} has no such flag; it would be read as an abbreviation"
        return Fault(word=word, rule=rule, value=name, suggestion=f"write {longer[0]}")
    rule = f"{flags.tool} {flags.version} has no such flag"
    return Fault(word=word, rule=rule, value=name, suggestion=did_you_mean(name, sorted(flags.flags)))


def command_faults(words: Sequence[str], flags: FlagList, positionals: int = 0) -> Iterator[Fault]:
    """Everything that a tool would refuse of a command line, or read differently from what it says.

    Parameters
    ----------
    words : sequence of str
        After the program's name. Values that begin with ``$`` are filled in by the shell, and not looked at.
    positionals : int
        Words beside flags that the tool takes.
    """
    given, rest, faults = read_command(words, flags)
    yield from faults
    if len(rest) > positionals:
        extra = rest[positionals]
        yield Fault(word=list(words).index(extra), rule=f"{flags.tool} takes no further word", value=extra)
    seen: set[str] = set()
    for one in given:
        flag = flags.flags[one.name]
        if one.name in seen and not flag.repeated:
            yield Fault(word=one.word, rule="is given twice", value=one.name)
        seen.add(one.name)
        for value in one.values:
            if not value.startswith("$"):
                yield from value_faults(flag, value, one.word)


def value_faults(flag: Flag, value: str, word: int) -> Iterator[Fault]:
    """What is wrong with one value of a flag."""
    if flag.choices and flag.type != "list":
        if value not in flag.choices:
            rule = f"{flag.name} {one_of(flag.choices)}"
            yield Fault(word=word, rule=rule, value=value, suggestion=did_you_mean(value, flag.choices))
        return
    if flag.known and value not in flag.known:
        rule = f"{flag.name} is not known to take this value"
        known = did_you_mean(value, flag.known) or f"known: {', '.join(flag.known)}"
        yield Fault(word=word, rule=rule, value=value, suggestion=known)
    if flag.type in ("int", "float"):
        yield from _number_faults(flag, value, word)
    if flag.type == "json":
        try:
            json.loads(value)
        except ValueError as error:
            yield Fault(word=word, rule=f"{flag.name} is not valid JSON: {error}", value=value)


def _number_faults(flag: Flag, value: str, word: int) -> Iterator[Fault]:
    if value in flag.words:
        return
    whole = re.fullmatch(r"-?\d+([kKmMgG])?", value)
    if flag.type == "int" and (whole is None or (whole[1] and not flag.suffix)):
        yield Fault(word=word, rule=f"{flag.name} must be a whole number", value=value)
        return
    try:
        number = float(value if whole is None or not whole[1] else value[:-1])
    except ValueError:
        number = math.nan
    if math.isnan(number):
        yield Fault(word=word, rule=f"{flag.name} must be a number", value=value)
        return
    for key, bound in flag.bounds.items():
        sign, holds = _BOUNDS[key]
        if not holds(number, bound):
            yield Fault(word=word, rule=f"{flag.name} must be {sign} {bound:g}", value=value)

"""Reading a folder that :mod:`planner.deploy.rendering` wrote, with the line of everything in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from planner.deploy.command_line import FlagList, load_flags, read_command
from planner.deploy.config_files import Settings, read_config, settings_of
from planner.deploy.findings import Finding
from planner.deploy.manifest import NAME as MANIFEST
from planner.deploy.scripts import Command, Script, read_script
from planner.documents.files import read_text
from planner.documents.tree import Tree
from planner.documents.yaml_text import parse_tree
from planner.errors import SpecError
from planner.specs import Phase

_PART = re.compile(r"(.*)-(\d+)(?:-r(\d+))?")


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupEntry:
    """A group of the manifest, with its service; `node_selector` are labels of the nodes that it needs,
    `nodes` the hosts of each replica."""

    name: str
    planned_name: str
    service: str
    role: Phase
    replicas: int
    node_selector: Mapping[str, str]
    image: str
    nodes: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What the manifest says.

    Attributes
    ----------
    platform, platform_version : str
        Empty: scripts.
    addresses : mapping
        Of hosts; empty on platforms.
    suffixes : mapping
        Of each service's files.
    """

    platform: str
    platform_version: str
    engine: str
    version: str
    router_version: str
    plan: str
    image: str
    addresses: Mapping[str, str]
    groups: tuple[GroupEntry, ...]
    suffixes: Mapping[str, str]
    files: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadEngine:
    """Command line of a part of an engine, from a script (number 0: of all its engines) or a compose file.

    Attributes
    ----------
    command : Command
        Words after the program.
    environment : mapping
        Value and line.
    gpus : tuple of str or None
        None: not of one engine.
    settings, settings_file : mapping, str
        Of the config file that all engines of its group read; empty where there is none.
    """

    file: str
    line: int
    group: str
    number: int
    command: Command
    environment: Mapping[str, tuple[str, int]]
    gpus: tuple[str, ...] | None
    image: str = ""
    rank: int = 0
    settings: Settings = field(default_factory=dict)
    settings_file: str = ""

    def flags(self, known: FlagList) -> dict[str, tuple[tuple[str, ...], int]]:
        """Values of every flag and setting by its full name, and its line; the unreadable is left out."""
        given, _, _ = read_command(self.command.words, known)
        return {**self.settings} | {
            one.name: (("off",) if one.off else one.values, self.command.lines[one.word]) for one in given
        }

    def place(self, known: FlagList, name: str) -> tuple[str, int]:
        """File and line of a flag or a setting, or where one that is absent belongs."""
        if self.settings and not name.startswith("-"):
            return self.settings_file or config_name(self.group), self.settings.get(name, ((), 0))[1]
        return self.file, self.flags(known).get(name, ((), self.line))[1]

    def value(self, known: FlagList, name: str) -> str:
        """First value of a flag; empty where it is not given."""
        values = self.flags(known).get(name, ((), 0))[0]
        return values[0] if values else ""

    def model(self, known: FlagList, flag: str) -> str:
        """What it loads, by a flag; an empty one: by the first word."""
        if flag:
            return self.value(known, flag)
        _, rest, _ = read_command(self.command.words, known)
        return rest[0] if rest else ""


def config_name(group: str) -> str:
    """The config file of a group's engines, where they have one."""
    return f"groups/{group}.yaml"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder.

    Raises
    ------
    SpecError
        There is none, or it lacks what it has to say.
    """
    path = folder / MANIFEST
    tree, problems = parse_tree(read_text(path), str(path), folder)
    raw = tree.raw
    if problems:
        raise SpecError.of_file(str(path), problems)
    try:
        groups = tuple(
            GroupEntry(
                name=str(group["name"]),
                planned_name=str(group["planned_name"]),
                service=str(service["service"]),
                role=Phase(group["role"]),
                replicas=int(group["replicas"]),
                image=str(group.get("image", raw["image"])),
                node_selector={str(key): str(value) for key, value in group["node_selector"].items()},
                nodes=int(group.get("hosts_per_replica", 1)),
            )
            for service in raw["services"]
            for group in service["groups"]
        )
        files = tuple(str(name) for name in raw["files"])
        named = [*files, *(group.name for group in groups)]
        if outside := next((name for name in named if name.startswith("/") or ".." in name), None):
            raise ValueError(f"{outside} lies outside of the folder")
        platform = raw.get("platform") or {"name": "", "version": ""}
        hosts = () if platform["name"] else raw["hosts"]
        return Manifest(
            platform=str(platform["name"]),
            platform_version=str(platform["version"]),
            engine=str(raw["engine"]["name"]),
            version=str(raw["engine"]["version"]),
            router_version=str(raw["router"]["version"]),
            plan=str(raw["plan"]),
            image=str(raw["image"]),
            addresses={str(host["name"]): str(host["address"]) for host in hosts},
            groups=groups,
            suffixes={str(one["service"]): str(one["files_end_in"]) for one in raw["services"]},
            files=files,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SpecError(f"{path}: is not a manifest of planner emit: {error}") from None


def read_scripts(folder: Path, manifest: Manifest) -> dict[str, Script]:
    """Scripts of the groups with their config files, by name of group; the absent are left out."""
    found = {}
    for group in manifest.groups:
        path = folder / "groups" / f"{group.name}.sh"
        if path.is_file():
            tree, _ = read_config(folder, config_name(group.name))
            settings = {} if tree is None else settings_of(tree)
            found[group.name] = replace(read_script(read_text(path)), settings=settings)
    return found


def engine_of_script(group: str, script: Script, program: Sequence[str]) -> ReadEngine:
    """What a script says of all its engines."""
    file = f"groups/{group}.sh"
    return ReadEngine(
        file=file,
        line=script.command.lines[0] if script.command.lines else 0,
        group=group,
        number=0,
        command=script.command.after(len(program)).shared(),
        environment=script.exports,
        gpus=None,
        settings=script.settings,
    )


def engines_of_script(group: str, script: Script, program: Sequence[str]) -> Iterator[ReadEngine]:
    """Parts of its engines one by one, with their variables filled in."""
    shared = engine_of_script(group, script, program)
    for (number, rank), case in script.cases.items():
        environment = {
            name: (case.variables.get(value[1:], value) if value.startswith("$") else value, at)
            for name, (value, at) in shared.environment.items()
        }
        yield ReadEngine(
            file=shared.file,
            line=case.line,
            group=group,
            number=number,
            command=script.command.after(len(program)).filled(case),
            environment=environment,
            gpus=tuple(gpu for gpu in case.variables.get("gpus", "").split(",") if gpu),
            rank=rank,
            settings=shared.settings,
        )


# --------------------------------------------------------------------------------------------
# Compose


def compose_services(tree: Tree, file: str) -> Iterator[tuple[str, ReadEngine | None, list[Finding]]]:
    """Services of a compose file: name, what it runs (None: unreadable), and texts that are none."""
    services = tree.get("services")
    for name in services if isinstance(services, dict) else ():
        path = ("services", name)
        faults = list(_not_texts(tree, file, name))
        words = [str(word).replace("$$", "$") for word in tree.entries(*path, "command")]
        lines = [tree.line((*path, "command", i)) for i in range(len(words))]
        environment = tree.get(*path, "environment")
        part = _PART.fullmatch(str(name))
        labels = tree.get(*path, "labels")
        if not isinstance(labels, dict) or part is None:
            yield name, None, faults
            continue
        yield (
            name,
            ReadEngine(
                file=file,
                line=tree.line(path),
                group=part[1],
                number=int(part[2]),
                rank=int(part[3] or 0),
                command=Command(words=tuple(words), lines=tuple(lines)),
                environment={
                    key: (str(value), tree.line((*path, "environment", key)))
                    for key, value in (environment if isinstance(environment, dict) else {}).items()
                },
                gpus=_gpus(tree, name),
                image=str(tree.get(*path, "image") or ""),
            ),
            faults,
        )


def _gpus(tree: Tree, name: str) -> tuple[str, ...]:
    path = ("services", name, "deploy", "resources", "reservations", "devices", 0, "device_ids")
    if tree.has(*path):
        return tuple(str(gpu) for gpu in tree.entries(*path))
    visible = tree.get("services", name, "environment", "HIP_VISIBLE_DEVICES")
    return tuple(str(visible).split(",")) if visible else ()


def _not_texts(tree: Tree, file: str, name: str) -> Iterator[Finding]:
    """Values that a reader of YAML takes for numbers or booleans."""
    for part in ("command", "environment", "labels"):
        value = tree.get("services", name, part)
        items: dict[Any, Any] = dict(enumerate(value)) if isinstance(value, list) else value or {}
        for key, item in items.items() if isinstance(items, dict) else ():
            if not isinstance(item, str):
                line = tree.line(("services", name, part, key))
                rule = f"{part} must hold quoted text"
                yield Finding(file=file, line=line, rule=rule, value=str(item), suggestion=f"write '{item}'")


def engine_flags(manifest: Manifest) -> FlagList:
    """Flags of the version that the folder was written for.

    Raises
    ------
    SpecError
        It is not known.
    """
    return load_flags(manifest.engine, manifest.version)

"""Reading objects of a folder, with the line of everything in them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from planner.deploy.check_engines import image_findings
from planner.deploy.findings import Finding, of_error, of_problem
from planner.deploy.kubernetes.pods import GPU_RESOURCES, GROUP, POD_IP
from planner.deploy.reading import Manifest, ReadEngine
from planner.deploy.scripts import Command
from planner.documents.files import read_text
from planner.documents.tree import KeyPath, Tree
from planner.documents.yaml_text import parse_tree
from planner.errors import SpecError

NO_OBJECTS = ("plan.yaml",)


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """One object and its file."""

    name: str
    tree: Tree

    @property
    def kind(self) -> str:
        return str(self.tree.get("kind"))


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadPod:
    """Equal pods of engines.

    Attributes
    ----------
    template : KeyPath
        Of the pod's metadata and spec.
    replicas : KeyPath
        Of how many engines there are.
    nodes : int
        Pods of one engine.
    container : str
        Name of the one that the engine runs in.
    arguments_in : str
        Variable that holds the engine's flags; empty: the container's command and args.
    labels, spec : KeyPath
        Where they are not within the template.
    implied : tuple of (str, KeyPath)
        Words that the platform puts before those flags, and where they stand.
    """

    file: ObjectFile
    template: KeyPath
    replicas: KeyPath
    nodes: int
    container: str
    arguments_in: str = ""
    labels: KeyPath = ()
    spec: KeyPath = ()
    implied: tuple[tuple[str, KeyPath], ...] = ()

    @property
    def line(self) -> int:
        return self.file.tree.line(self.template)

    @property
    def group(self) -> str:
        labels = self.labels or (*self.template, "metadata", "labels")
        return str(self.file.tree.get(*labels, GROUP) or "")

    @property
    def spec_path(self) -> KeyPath:
        """Where the pod's containers and nodes are."""
        return self.spec or (*self.template, "spec")

    @property
    def count(self) -> int | None:
        """Engines; None where it is not a number. An object that does not say it has one."""
        found = self.file.tree.get(*self.replicas)
        found = 1 if found is None else found
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    @property
    def main(self) -> KeyPath | None:
        """Where the engine's container is; None: nowhere."""
        return _named(self.file.tree, (*self.spec_path, "containers"), self.container)


def container_path(tree: Tree, template: KeyPath, name: str, kind: str = "containers") -> KeyPath | None:
    """Where a container of a pod template is, by its name; None: nowhere."""
    return _named(tree, (*template, "spec", kind), name)


def _named(tree: Tree, path: KeyPath, name: str) -> KeyPath | None:
    found = (i for i in range(len(tree.entries(*path))) if tree.get(*path, i, "name") == name)
    at = next(found, None)
    return None if at is None else (*path, at)


def read_objects(folder: Path, manifest: Manifest) -> tuple[tuple[ObjectFile, ...], list[Finding]]:
    """Objects of a folder; what cannot be read is a finding."""
    files: list[ObjectFile] = []
    found: list[Finding] = []
    for name in manifest.files:
        if not name.endswith(".yaml") or name in NO_OBJECTS or not (folder / name).is_file():
            continue
        try:
            tree, problems = parse_tree(read_text(folder / name), name)
        except SpecError as error:
            found += of_error(name, error)
            continue
        found += [of_problem(name, problem) for problem in problems]
        if tree.has("kind"):
            files.append(ObjectFile(name, tree))
    return tuple(files), found


def words_of(tree: Tree, container: KeyPath) -> Command:
    """Command and arguments of a container, with their lines."""
    words: list[str] = []
    lines: list[int] = []
    for part in ("command", "args"):
        for i, word in enumerate(tree.entries(*container, part)):
            words.append(str(word).replace("$$(", "$("))
            lines.append(tree.line((*container, part, i)))
    return Command(words=tuple(words), lines=tuple(lines))


def variables_of(tree: Tree, container: KeyPath) -> dict[str, tuple[str, int]]:
    """Variables of a container and their lines; those that come from elsewhere are empty."""
    found: dict[str, tuple[str, int]] = {}
    for i in range(len(tree.entries(*container, "env"))):
        path = (*container, "env", i)
        value = str(tree.get(*path, "value") or "").replace("$$(", "$(")
        if tree.get(*path, "valueFrom", "fieldRef", "fieldPath") == "status.podIP":
            value = POD_IP
        found[str(tree.get(*path, "name"))] = (value, tree.line(path))
    return found


def engine_of(pod: ReadPod, program: int) -> ReadEngine | None:
    """What a pod's container runs; None where it has none, or its flags are no words.

    Parameters
    ----------
    program : int
        Words of the command before the engine's own.
    """
    tree, main = pod.file.tree, pod.main
    if main is None:
        return None
    variables = variables_of(tree, main)
    if pod.arguments_in:
        text, line = variables.get(pod.arguments_in, ("", tree.line(main)))
        try:
            words = tuple(shlex.split(text))
        except ValueError:
            return None
        before = tuple(tree.line(path) for _, path in pod.implied)
        words = (*(word for word, _ in pod.implied), *words)
        command = Command(words=words, lines=before + (line,) * (len(words) - len(before)))
    else:
        command = words_of(tree, main).after(program)
    limits = (tree.get(*main, "resources", "limits", name) for name in GPU_RESOURCES.values())
    gpus = next((str(count) for count in limits if count is not None), "0")
    total = int(gpus) * pod.nodes if gpus.isdecimal() else 0
    return ReadEngine(
        file=pod.file.name,
        line=tree.line(main),
        group=pod.group,
        number=0,
        command=command,
        environment=variables,
        gpus=tuple(map(str, range(total))),
        image=str(tree.get(*main, "image") or ""),
    )


def one_image(file: str, tree: Tree, container: KeyPath, manifest: Manifest) -> Iterator[Finding]:
    """A container runs the image that all do, of a version."""
    image, line = str(tree.get(*container, "image") or ""), tree.line((*container, "image"))
    yield from image_findings(file, line, image)
    if image and image != manifest.image:
        rule = "all engines run one image"
        yield Finding(file=file, line=line, rule=rule, value=image, suggestion=manifest.image)

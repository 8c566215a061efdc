"""Python sources in a wheel, and what their names, values and annotations mean: syntax trees only.

Nothing is imported or run. Used by tools/read_engine_flags.py.
"""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Module:
    """Names that a module defines at its top, and where it takes others from."""

    name: str
    tree: ast.Module
    values: dict[str, ast.expr] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)


class Sources:
    """Modules of a wheel, read when first asked for."""

    def __init__(self, wheel: Path, prefixes: tuple[str, ...]) -> None:
        self.version = wheel.name.split("-")[1]
        with zipfile.ZipFile(wheel) as archive:
            self._texts = {
                name: archive.read(name).decode("utf-8")
                for name in archive.namelist()
                if name.endswith(".py") and name.startswith(prefixes)
            }
        self._modules: dict[str, Module] = {}

    def paths(self, folder: str) -> list[str]:
        return sorted(path for path in self._texts if path.startswith(folder))

    def module(self, path: str) -> Module | None:
        """The module in a file; None where the wheel's part has none."""
        if path not in self._modules and path in self._texts:
            self._modules[path] = _module(path, ast.parse(self._texts[path]))
        return self._modules.get(path)

    def named(self, dotted: str) -> Module | None:
        base = dotted.replace(".", "/")
        return self.module(f"{base}.py") or self.module(f"{base}/__init__.py")

    def find(self, name: str, module: Module) -> tuple[ast.expr | ast.ClassDef, Module] | None:
        """What a name means in a module: a value or a class, with its own module."""
        for _ in range(8):
            if name in module.classes:
                return module.classes[name], module
            if name in module.values:
                return module.values[name], module
            source = module.imports.get(name)
            found = self.named(source[0]) if source else None
            if source is None or found is None:
                return None
            name, module = source[1], found
        return None


def _module(path: str, tree: ast.Module) -> Module:
    module = Module(name=path, tree=tree)
    package = path.rsplit("/", 1)[0].replace("/", ".")
    for node in _statements(tree.body):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            module.values[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            module.values[node.target.id] = node.value
        elif isinstance(node, ast.ClassDef):
            module.classes[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                source = ".".join([*parents, source] if source else parents)
            for alias in node.names:
                module.imports[alias.asname or alias.name] = (source, alias.name)
    return module


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If):
            if ast.unparse(node.test) != "TYPE_CHECKING":
                yield from _statements(node.orelse)
            yield from _statements(node.body)


def value_of(node: ast.expr, module: Module, sources: Sources) -> Any:
    """A constant, a list of them, or a name or sum of such.

    Raises
    ------
    ValueError
        It is not known before the engine starts.
    """
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        values: list[Any] = []
        for one in node.elts:
            spread = isinstance(one, ast.Starred)
            value = value_of(one.value if isinstance(one, ast.Starred) else one, module, sources)
            values.extend(value if spread else [value])
        return values
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return value_of(node.left, module, sources) + value_of(node.right, module, sources)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1:
        if node.func.id in ("list", "sorted", "tuple", "set"):
            return value_of(node.args[0], module, sources)
        if node.func.id == "get_args":
            return literals(atoms(node.args[0], module, sources))
    if isinstance(node, ast.Name) and (found := sources.find(node.id, module)):
        if isinstance(found[0], ast.ClassDef):
            raise ValueError("a class")
        return value_of(found[0], found[1], sources)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        found = sources.find(node.value.id, module)
        if found and isinstance(found[0], ast.ClassDef):
            inside = _module(found[1].name, ast.Module(body=found[0].body, type_ignores=[]))
            if node.attr in inside.values:
                return value_of(inside.values[node.attr], inside, sources)
    raise ValueError(ast.unparse(node))


@dataclass(frozen=True)
class Atom:
    """One of the types of a union: its outer name, its inner expression, and what Literal holds."""

    name: str
    inner: ast.expr | None = None
    values: tuple[Any, ...] = ()
    module: Module | None = None
    fields: bool = False


def atoms(node: ast.expr, module: Module, sources: Sources) -> list[Atom]:
    """The types of an annotation, unions, aliases and Annotated taken apart."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            return atoms(ast.parse(node.value, mode="eval").body, module, sources)
        return [Atom("None")]
    if isinstance(node, ast.BinOp):
        return [*atoms(node.left, module, sources), *atoms(node.right, module, sources)]
    if isinstance(node, ast.Subscript):
        outer = ast.unparse(node.value).rsplit(".", 1)[-1]
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if outer in ("Optional", "Union"):
            found = [atom for one in inner for atom in atoms(one, module, sources)]
            return [*found, Atom("None")] if outer == "Optional" else found
        if outer in ("Annotated", "A", "SkipValidation", "ClassVar"):
            return atoms(inner[0], module, sources)
        if outer == "Literal":
            return [Atom("Literal", values=tuple(_literal(inner, module, sources)))]
        return [Atom(outer.lower() if outer in ("List", "Dict", "Set", "Tuple") else outer, inner=inner[0])]
    name = ast.unparse(node)
    if isinstance(node, ast.Name) and (known := sources.find(name, module)):
        if not isinstance(known[0], ast.ClassDef):
            return atoms(known[0], known[1], sources)
        decorated = any("config" in ast.unparse(one) or "dataclass" in ast.unparse(one)
                        for one in known[0].decorator_list)  # fmt: skip
        is_dict = any(ast.unparse(base).startswith("dict") for base in known[0].bases)
        return [Atom("dict" if is_dict else name, module=known[1], fields=decorated)]
    return [Atom(name)]


def _literal(inner: list[ast.expr], module: Module, sources: Sources) -> Iterator[Any]:
    for one in inner:
        if isinstance(one, ast.Constant):
            yield one.value
        else:
            yield from literals(atoms(one, module, sources))


def literals(found: list[Atom]) -> list[Any]:
    return [value for atom in found for value in atom.values]

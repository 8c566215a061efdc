"""Facts about the command-line flags of an engine, read from the sources in its wheel.

    python tools/read_engine_flags.py WHEEL FOLDER

WHEEL is a wheel of vllm or sglang as the package index has it. Nothing in it is imported or run: only its syntax
trees are looked at. Written is FOLDER/<engine>-engine-<version>.json: flags of the engine (without those of
the HTTP front end in vllm's case), for tools/build_flag_lists.py. Choices that are made when the engine starts
stay ``{"dynamic": expression}``.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

Json = dict[str, Any]

PARTS = {
    "vllm": ("vllm/engine/", "vllm/config/", "vllm/distributed/kv_transfer/", "vllm/model_executor/"),
    "sglang": ("sglang/srt/",),
}
"""Sources of a wheel that say something about flags."""

NUMBERS = {"human_readable_int", "human_readable_int_or_auto", "int", "float", "str"}


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
        self.wheel = wheel
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

    @cached_property
    def version(self) -> str:
        return self.wheel.name.split("-")[1]


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


# --------------------------------------------------------------------------------------------
# Values and types


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


def _choices(node: ast.expr, module: Module, sources: Sources) -> Any:
    try:
        return [value for value in value_of(node, module, sources) if value is not None]
    except ValueError:
        return {"dynamic": " ".join(ast.unparse(node).split())}


def _switch(flag: Json, action: str) -> None:
    flag["type"] = "bool"
    flag["action"] = action
    if action.endswith("BooleanOptionalAction"):
        flag["negation"] = "--no-" + flag["name"].removeprefix("--")


# --------------------------------------------------------------------------------------------
# vLLM


class Vllm:
    """Flags that ``AsyncEngineArgs.add_cli_args`` adds."""

    FILE = "vllm/engine/arg_utils.py"

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        module = sources.module(self.FILE)
        if module is None:
            sys.exit(f"the wheel holds no {self.FILE}")
        self.module = module
        self.suffixed = {"max_model_len", *self._assigned("human_readable_int_args")}
        """Fields whose integer may end in k, M or G."""

    def _assigned(self, name: str) -> list[str]:
        for node in ast.walk(self.module.tree):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
                return list(value_of(node.value, self.module, self.sources))
        raise ValueError(f"{self.FILE} has no {name}")

    def flags(self) -> list[Json]:
        found = []
        for name in ("EngineArgs", "AsyncEngineArgs"):
            (method,) = [
                one
                for one in self.module.classes[name].body
                if isinstance(one, ast.FunctionDef) and one.name == "add_cli_args"
            ]
            bound = {
                node.targets[0].id: node.value
                for node in ast.walk(method)
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            }
            dashed = {
                ast.unparse(node.targets[0]).split("[")[0]
                for node in ast.walk(method)
                if isinstance(node, ast.Assign) and "replace('-', '_')" in ast.unparse(node.value)
            }
            for node in ast.walk(method):
                if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith(".add_argument"):
                    continue
                flag = self._flag(node, bound)
                if {ast.unparse(one.value) for one in node.keywords} & dashed:
                    twice = {one: one.replace("_", "-") for one in flag.get("choices", ())}
                    flag["choices"] = list(dict.fromkeys([*twice, *twice.values()]))
                found.append(flag)
        return found

    def _flag(self, call: ast.Call, bound: dict[str, ast.expr]) -> Json:
        names = [str(value_of(one, self.module, self.sources)) for one in call.args]
        flag: Json = {"name": names[0], "aliases": names[1:], "type": "str"}
        flag["source"] = f"{self.FILE}:{call.lineno}"
        for keyword in call.keywords:
            if keyword.arg is None:
                self._from_config(flag, keyword.value, bound)
            elif keyword.arg == "type":
                name = ast.unparse(keyword.value)
                flag["type"] = name if name in NUMBERS else "str"
            elif keyword.arg == "action":
                action = ast.unparse(keyword.value)
                if "Boolean" in action or action.startswith("'store_"):
                    _switch(flag, action.strip("'"))
                else:
                    flag["action"] = action
            elif keyword.arg == "choices":
                flag["choices"] = _choices(keyword.value, self.module, self.sources)
            elif keyword.arg == "nargs":
                flag["nargs"] = value_of(keyword.value, self.module, self.sources)
        return flag

    def _from_config(self, flag: Json, node: ast.expr, bound: dict[str, ast.expr]) -> None:
        while isinstance(node, (ast.Dict, ast.Name)):
            node = node.values[0] if isinstance(node, ast.Dict) else bound[node.id]
        if not isinstance(node, ast.Subscript):
            raise ValueError(ast.unparse(node))
        owner = node.value
        while isinstance(owner, ast.Name):
            owner = bound[owner.id]
        if not isinstance(owner, ast.Call):
            raise ValueError(ast.unparse(owner))
        name, option = ast.unparse(owner.args[0]), str(value_of(node.slice, self.module, self.sources))
        known = self.sources.find(name, self.module)
        if known is None or not isinstance(known[0], ast.ClassDef):
            raise ValueError(f"the wheel holds no {name}")
        for one in known[0].body:
            if isinstance(one, ast.AnnAssign) and ast.unparse(one.target) == option:
                flag["config"] = f"{name}.{option}"
                flag["annotation"] = ast.unparse(one.annotation)
                self._typed(flag, option, atoms(one.annotation, known[1], self.sources))
                if bounds := _bounds(one):
                    flag["constraints"] = bounds
                return
        raise ValueError(f"{name} has no {option}")

    def _typed(self, flag: Json, option: str, found: list[Atom]) -> None:
        names = {atom.name for atom in found}
        if any(atom.fields for atom in found):
            flag["type"] = "json"
        elif names == {"bool", "str", "None"}:
            flag["nargs"] = "?"
        elif "bool" in names:
            _switch(flag, "BooleanOptionalAction")
        elif "Literal" in names:
            values = literals(found)
            flag["type"] = type(values[0]).__name__
            flag["known_values" if "str" in names else "choices"] = values
        elif names & {"list", "set", "tuple"}:
            flag["type"] = "list"
            inner = next(atom for atom in found if atom.name in ("list", "set", "tuple")).inner
            if inner is not None and (values := literals(atoms(inner, self.module, self.sources))):
                flag["choices"] = values
        elif "int" in names:
            flag["type"] = "int"
            if option in self.suffixed:
                flag["suffix"] = True
        elif "float" in names:
            flag["type"] = "float"
        elif "dict" in names:
            flag["type"] = "str" if names - {"dict", "None"} else "json"

    def transfer(self) -> Json:
        """What --kv-transfer-config holds, and the connectors by their names."""
        config = self.sources.module("vllm/config/kv_transfer.py")
        factory = self.sources.module("vllm/distributed/kv_transfer/kv_connector/factory.py")
        if config is None or factory is None:
            sys.exit("the wheel holds no KV transfer")
        fields: Json = {}
        for one in config.classes["KVTransferConfig"].body:
            if isinstance(one, ast.AnnAssign):
                values = list(dict.fromkeys(literals(atoms(one.annotation, config, self.sources))))
                fields[ast.unparse(one.target)] = {
                    "type": ast.unparse(one.annotation),
                    "choices": values or None,
                }
        connectors = [
            node.args[0].value
            for node in ast.walk(factory.tree)
            if isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith(".register_connector")
            and isinstance(node.args[0], ast.Constant)
        ]
        return {"kv_transfer_config_fields": fields, "kv_connectors": connectors}


def _bounds(node: ast.AnnAssign) -> Json:
    calls = [one for part in (node.value, node.annotation) if part for one in ast.walk(part)]
    found: Json = {}
    for call in calls:
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("Field"):
            for keyword in call.keywords:
                if keyword.arg in ("gt", "ge", "lt", "le"):
                    found[keyword.arg] = ast.unparse(keyword.value)
    return found


# --------------------------------------------------------------------------------------------
# SGLang


class Sglang:
    """Flags that ``ServerArgs.add_cli_args`` adds: of fields, then those written by hand."""

    FIELDS = "sglang/srt/arg_groups/fields/"
    FILE = "sglang/srt/server_args.py"

    def __init__(self, sources: Sources) -> None:
        self.sources = sources

    def flags(self) -> list[Json]:
        found = []
        for path in self.sources.paths(self.FIELDS):
            module = self.sources.module(path)
            for owner in module.classes.values() if module else ():
                for one in owner.body:
                    if module and isinstance(one, ast.AnnAssign) and (flag := self._field(one, module)):
                        found.append(flag)
        return [*found, *self._by_hand()]

    def _field(self, node: ast.AnnAssign, module: Module) -> Json | None:
        note = node.annotation
        if not isinstance(note, ast.Subscript) or ast.unparse(note.value) != "A":
            return None
        parts = note.slice.elts if isinstance(note.slice, ast.Tuple) else [note.slice]
        args = [one for one in parts[1:] if isinstance(one, ast.Call) and ast.unparse(one.func) == "Arg"]
        says = any(isinstance(one, (ast.Constant, ast.JoinedStr, ast.BinOp)) for one in parts[1:])
        given = {one.arg: one.value for one in args[0].keywords} if args else {}
        if not (args or says) or "no_cli" in given:
            return None
        name = ast.unparse(node.target)
        flag: Json = {"name": "--" + name.replace("_", "-"), "aliases": []}
        if "cli_name" in given:
            flag["name"] = value_of(given["cli_name"], module, self.sources)
        if "aliases" in given:
            flag["aliases"] = value_of(given["aliases"], module, self.sources)
        flag["source"] = f"{module.name}:{node.lineno}"
        flag["annotation"] = ast.unparse(parts[0])
        self._typed(flag, atoms(parts[0], module, self.sources), given)
        if "choices" in given and flag["type"] != "bool":
            flag["choices"] = _choices(given["choices"], module, self.sources)
        if "nargs" in given:
            flag["nargs"] = value_of(given["nargs"], module, self.sources)
        return flag

    def _typed(self, flag: Json, found: list[Atom], given: dict[str | None, ast.expr]) -> None:
        parser = ast.unparse(given["type_parser"]) if "type_parser" in given else ""
        real = [atom for atom in found if atom.name != "None"]
        single = real[0] if len(real) == 1 else Atom("union")
        flag["type"] = "str"
        if "action" in given:
            action = ast.unparse(given["action"])
            if "Boolean" in action:
                _switch(flag, action)
            else:
                flag["action"] = action
                flag["type"] = "list"
        elif single.name == "Literal":
            values = [value for value in single.values if value is not None]
            flag["type"] = type(values[0]).__name__
            flag["choices"] = values
        elif single.name == "list" and not parser:
            flag["type"] = "list"
        elif single.name == "bool":
            _switch(flag, "store_true")
        elif "json" in parser:
            flag["type"] = "json"
        elif parser.startswith("human_readable_int"):
            flag["type"], flag["suffix"] = "int", True
        elif single.name in ("int", "float"):
            flag["type"] = single.name

    def _by_hand(self) -> Iterator[Json]:
        module = self.sources.module(self.FILE)
        if module is None:
            sys.exit(f"the wheel holds no {self.FILE}")
        for node in ast.walk(module.classes["ServerArgs"]):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) != "parser.add_argument":
                continue
            names = [str(value_of(one, module, self.sources)) for one in node.args]
            flag: Json = {"name": names[0], "aliases": names[1:], "type": "str"}
            flag["source"] = f"{self.FILE}:{node.lineno}"
            for keyword in node.keywords:
                if keyword.arg == "type" and ast.unparse(keyword.value) in NUMBERS:
                    flag["type"] = ast.unparse(keyword.value)
                elif keyword.arg == "choices":
                    flag["choices"] = _choices(keyword.value, module, self.sources)
                elif keyword.arg == "action":
                    action = ast.unparse(keyword.value).strip("'")
                    if re.match(r"store_|.*Boolean|.*Store(True|Const)", action):
                        _switch(flag, action)
            yield flag


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    wheel, folder = Path(sys.argv[1]), Path(sys.argv[2])
    engine = wheel.name.split("-")[0]
    if engine not in PARTS:
        sys.exit(f"{wheel.name} is a wheel of none of: {', '.join(PARTS)}")
    sources = Sources(wheel, PARTS[engine])
    facts: Json = {
        "tool": f"{engine} engine",
        "version": sources.version,
        "source": f"PyPI wheel {wheel.name} (AST)",
    }
    if engine == "vllm":
        reader = Vllm(sources)
        facts |= reader.transfer()
        facts["flags"] = reader.flags()
    else:
        facts["flags"] = Sglang(sources).flags()
    facts["flags"].sort(key=lambda flag: flag["name"])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{engine}-engine-{sources.version}.json"
    path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(f"{path.name}: {len(facts['flags'])} flags")


if __name__ == "__main__":
    main()

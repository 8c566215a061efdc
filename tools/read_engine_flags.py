"""Facts about the command-line flags of an engine, read from the sources in its wheel.

    python tools/read_engine_flags.py WHEEL FOLDER

WHEEL is a wheel of vllm or sglang as the package index has it. Nothing in it is imported or run: only its
syntax trees are looked at. Written is FOLDER/<engine>-engine-<version>.json: flags of the engine (of vllm
without those of its HTTP front end), for tools/build_flag_lists.py. Choices that are made when the engine
starts stay ``{"dynamic": expression}``.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wheel_sources import Atom, Module, Sources, atoms, literals, value_of

Json = dict[str, Any]

PARTS = {
    "vllm": ("vllm/engine/", "vllm/config/", "vllm/distributed/kv_transfer/", "vllm/model_executor/"),
    "sglang": ("sglang/srt/",),
}
"""Sources of a wheel that say something about flags."""

NUMBERS = {"int", "float", "str"}


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

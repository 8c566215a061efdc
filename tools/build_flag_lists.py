"""Compact lists of the command-line flags of serving engines and routers, from files of facts.

    python tools/build_flag_lists.py FOLDER

FOLDER holds one JSON file per tool, as somebody read them from its sources: name, aliases, type, choices,
action, nargs of every flag. Written are planner/deploy/flags/<tool>-<version>.json, one flag a line. Facts
about engines in Dynamo's images come from wheels, by tools/read_engine_flags.py; lists whose facts are not
in FOLDER stay as they are.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

OUT = Path(__file__).parents[1] / "planner" / "deploy" / "flags"

TOOLS = {
    "vllm-serve.json": ("vllm", ""),
    "vllm_router.json": ("vllm-router", ""),
    "sglang-launch_server.json": ("sglang", ""),
    "sglang_router.json": ("sglang-router", ""),
    "trtllm-serve.json": ("trtllm", "1.2.1"),
    "llm-d-routing-sidecar.json": ("llm-d-sidecar", "0.10.0"),
}
"""File of facts, name of the list, and the version where the file has a sentence instead."""

DYNAMO = {
    "dynamo-vllm": ("dynamo.vllm.json", "vllm-engine-0.31.0.json"),
    "dynamo-sglang": ("dynamo.sglang.json", "sglang-engine-0.5.21.json"),
    "dynamo-trtllm": ("dynamo.trtllm.json", ""),
    "dynamo-frontend": ("dynamo.frontend.json", ""),
    "dynamo-router": ("dynamo.router.json", ""),
    "dynamo-global-router": ("dynamo.global_router.json", ""),
}
"""Lists of Dynamo: facts about its own flags, and about those of the engine that its wheel pins."""

ENGINES = {"dynamo-vllm": "0.31.0", "dynamo-sglang": "0.5.21", "dynamo-trtllm": "1.3.0rc29"}
"""Engine versions that the wheel of ai-dynamo 1.6.1 pins: those of its images."""

NEWER = {"dynamo-vllm": "vllm-serve.json", "dynamo-sglang": "sglang-launch_server.json"}
"""Facts about a later version, for types that syntax trees do not give."""

WORKERS = ("dynamo-vllm", "dynamo-sglang", "dynamo-trtllm")
ROUTER_GROUPS = ("groups/router_args.py", "groups/kv_router_args.py")
FRONT_ONLY = {"--admission-control", "--enforce-disagg", "--router-min-initial-workers"}
"""Workers take the frontend's flags of these groups to advertise routing, without these."""

ADDED = {
    "dynamo-vllm": {"--load-format": ["gms", "mx"]},
    "dynamo-sglang": {"--load-format": ["gms"], "--disaggregation-mode": ["agg", "pd", "encode"]},
}
"""Values that a worker takes beyond the engine's."""

LOGGING = ("--zap-encoder", "--zap-log-level", "--zap-stacktrace-level", "--zap-time-encoding")
"""Flags that the sidecar's logging library adds."""

SUBCOMMANDS = {"trtllm-serve.json": ("disaggregated", "trtllm-disaggregated")}
"""File of facts, a subcommand with flags of its own, and the name of its list."""

SUFFIXES = {"--max-model-len", "--max-num-batched-tokens"}
"""Integers of vLLM that may be written as 8k."""

WORDS = {"--max-model-len": ["auto"]}
"""What an integer may be instead."""

NULLABLE = {"nullable_int": "int", "nullable_float": "float"}
"""Numbers that may be None."""


def kind_of(flag: dict[str, Any]) -> str:
    """bool, int, float, json, list or str."""
    declared, action = str(flag.get("type")), str(flag.get("action") or "")
    if declared == "flag" or re.match(
        r"store_(true|false)|version|.*Boolean|.*Store(True|Const)|_DeprecatedEnforce", action
    ):
        return "bool"
    if (
        flag.get("nargs") in ("*", "+")
        or re.search(r"\bList\[|^list$", declared)
        or (declared.startswith("lambda") and not flag.get("choices"))
    ):
        return "list"
    inner = NULLABLE.get(declared) or re.sub(r"Optional\[(.*)\]", r"\1", declared)
    if inner in ("int", "float", "bool", "json"):
        return inner
    return "json" if "dict" in inner.lower() else "str"


def choices_of(flag: dict[str, Any]) -> list[str]:
    if isinstance(flag.get("choices"), list):
        return list(dict.fromkeys(str(choice) for choice in flag["choices"]))
    literal = re.search(r"Literal\[(.*)\]", str(flag.get("type")), re.DOTALL)
    return re.findall(r'"([^"]+)"', literal[1]) if literal else []


def compact(flag: dict[str, Any], vllm: bool) -> dict[str, Any]:
    """One flag; what is usual is left out."""
    name, kind = flag["name"], kind_of(flag)
    entry: dict[str, Any] = {"name": name, "type": kind}
    if flag.get("aliases"):
        entry["aliases"] = list(flag["aliases"])
    action = str(flag.get("action") or "").strip('"')
    if flag.get("negation"):
        entry["negation"] = flag["negation"]
    elif action.endswith("BooleanOptionalAction"):
        entry["negation"] = "--no-" + name.removeprefix("--")
    if choices := choices_of(flag):
        entry["choices"] = choices
    if flag.get("known_values"):
        entry["known"] = list(flag["known_values"])
    if flag.get("constraints"):
        entry["bounds"] = {
            key: float(value) for key, value in flag["constraints"].items() if key in ("gt", "ge", "lt", "le")
        }
    if action == "append" or flag.get("multiple"):
        entry["repeated"] = True
    if flag.get("suffix") or (vllm and name in SUFFIXES):
        entry["suffix"] = True
    if flag.get("valued"):
        entry["valued"] = True
    if str(flag.get("type")) in NULLABLE:
        entry["words"] = ["None", ""]
    if vllm and name in WORDS:
        entry["words"] = WORDS[name]
    return entry


def heading(facts: dict[str, Any], version: str) -> dict[str, Any]:
    head = {"tool": facts["tool"], "version": version, "source": facts.get("source") or facts["version"]}
    if facts.get("engine_version"):
        head["engine_version"] = facts["engine_version"]
    if "kv_transfer_config_fields" in facts:
        fields = facts["kv_transfer_config_fields"]
        head["kv_transfer"] = {
            "fields": sorted(fields),
            "roles": sorted(fields["kv_role"]["choices"]),
            "connectors": sorted(facts["kv_connectors"]),
        }
    if "subcommands" in facts:
        head["abbreviated"] = False  # click takes no beginnings of flags
    if "config_keys" in facts:
        head["config"] = facts["config_keys"]
    return head


def text_of(facts: dict[str, Any], version: str, vllm: bool) -> str:
    lines = [json.dumps(compact(flag, vllm)) for flag in sorted(facts["flags"], key=lambda f: f["name"])]
    opening = json.dumps(heading(facts, version), indent=1)[:-2]
    return f'{opening},\n "flags": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"


def go_flags(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts of the sidecar at its release, by pflag's rules: a switch may have a value, a list repeats."""
    flags = [dict(flag) for flag in facts["flags"] if "since" not in flag]
    flags += [{"name": name, "type": "str"} for name in LOGGING] + [{"name": "--zap-devel", "type": "bool"}]
    for flag in flags:
        flag["valued"] = flag["type"] == "bool"
        if flag["type"] == "list":
            flag["type"], flag["multiple"] = "str", True
    return {**facts, "flags": flags}


def read(folder: Path, name: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    return facts


def with_engine(folder: Path, name: str, own: dict[str, Any]) -> dict[str, Any]:
    """Facts about a Dynamo worker: its own flags, those that advertise routing, and the engine's."""
    parts = [f"{name.replace('dynamo-', 'dynamo.')} itself: {own['source']}"]
    flags = {flag["name"]: flag for flag in own["flags"]}
    front = read(folder, "dynamo.frontend.json")
    for flag in front["flags"]:
        if flag["source"].split(":")[0].endswith(ROUTER_GROUPS) and flag["name"] not in FRONT_ONLY:
            flags.setdefault(flag["name"], flag)
    parts.append("routing that a worker advertises: the same wheel")
    facts = {**own, "engine_version": ENGINES[name]}
    if engine_file := DYNAMO[name][1]:
        engine, newer = read(folder, engine_file), read(folder, NEWER[name])
        later = {flag["name"]: kind_of(flag) for flag in newer["flags"]}
        for flag in engine["flags"]:
            given = dict(flag)
            plain = re.search(r"\bstr\b", given.get("annotation", "str"))  # takes other text than JSON
            if given["type"] == "str" and not plain and later.get(given["name"]) == "json":
                given["type"] = "json"
            for key in ("choices", "known_values"):
                if isinstance(given.get(key), list):
                    given[key] = [*given[key], *ADDED[name].get(given["name"], [])]
            flags.setdefault(given["name"], given)
        facts |= {key: value for key, value in engine.items() if key.startswith("kv_")}
        parts.append(
            f"engine, pinned by that wheel: {engine['source']}; JSON types also as in {newer['version']}"
        )
    return {**facts, "flags": list(flags.values()), "source": "; ".join(parts)}


def subcommand_of(facts: dict[str, Any], name: str) -> dict[str, Any]:
    """Facts about a subcommand: its flags, and the keys of the file that it reads."""
    found = {**facts, "tool": f"{facts['tool']} {name}", "flags": facts["subcommands"][name]}
    keys = facts["disagg_config_yaml"]
    servers = [key for key in keys["context_servers/generation_servers"] if not key.startswith("<")]
    return found | {"config_keys": {"top": keys["top_level"], "servers": servers}}


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    OUT.mkdir(parents=True, exist_ok=True)
    for source, (name, given) in TOOLS.items():
        facts = read(folder, source)
        if name == "llm-d-sidecar":
            facts = go_flags(facts)
        version = given or facts["version"]
        (OUT / f"{name}-{version}.json").write_text(text_of(facts, version, name == "vllm"), encoding="utf-8")
        if source in SUBCOMMANDS:
            command, name = SUBCOMMANDS[source]
            text = text_of(subcommand_of(facts, command), version, vllm=False)
            (OUT / f"{name}-{version}.json").write_text(text, encoding="utf-8")
    for name, (source, engine) in DYNAMO.items():
        if engine and not (folder / engine).exists():
            print(f"{name} stays as it is: {engine} is not in {folder}")
            continue
        facts = read(folder, source)
        if name in WORKERS:
            facts = with_engine(folder, name, facts)
        text = text_of(facts, facts["version"], name == "dynamo-vllm")
        (OUT / f"{name}-{facts['version']}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

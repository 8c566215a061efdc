"""Compact lists of the command-line flags of serving engines and routers, from files of facts.

    python tools/build_flag_lists.py FOLDER

FOLDER holds one JSON file per tool, as somebody read them from its sources: name, aliases, type, choices,
action, nargs of every flag. Written are planner/deploy/flags/<tool>-<version>.json, one flag a line.
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
}
"""File of facts, name of the list, and the version where the file has a sentence instead."""

SUFFIXES = {"--max-model-len", "--max-num-batched-tokens"}
"""Integers of vLLM that may be written as 8k."""

WORDS = {"--max-model-len": ["auto"]}
"""What an integer may be instead."""


def kind_of(flag: dict[str, Any]) -> str:
    """bool, int, float, json, list or str."""
    declared, action = str(flag.get("type")), str(flag.get("action") or "")
    if declared == "flag" or re.match(r"store_(true|false)|.*Boolean|.*Store(True|Const)", action):
        return "bool"
    if (
        flag.get("nargs") in ("*", "+")
        or re.search(r"\bList\[|^list$", declared)
        or declared.startswith("lambda")
    ):
        return "list"
    inner = re.sub(r"Optional\[(.*)\]", r"\1", declared)
    if inner in ("int", "float", "bool", "json"):
        return inner
    return "json" if "dict" in inner.lower() else "str"


def choices_of(flag: dict[str, Any]) -> list[str]:
    if flag.get("choices"):
        return [str(choice) for choice in flag["choices"]]
    literal = re.search(r"Literal\[(.*)\]", str(flag.get("type")), re.DOTALL)
    return re.findall(r'"([^"]+)"', literal[1]) if literal else []


def compact(flag: dict[str, Any], vllm: bool) -> dict[str, Any]:
    """One flag; what is usual is left out."""
    name, kind = flag["name"], kind_of(flag)
    entry: dict[str, Any] = {"name": name, "type": kind}
    if flag.get("aliases"):
        entry["aliases"] = list(flag["aliases"])
    if flag.get("negation"):
        entry["negation"] = flag["negation"]
    if choices := choices_of(flag):
        entry["choices"] = choices
    if flag.get("known_values"):
        entry["known"] = list(flag["known_values"])
    if flag.get("constraints"):
        entry["bounds"] = {
            key: float(value) for key, value in flag["constraints"].items() if key in ("gt", "ge", "lt", "le")
        }
    if flag.get("action") == "append" or flag.get("multiple"):
        entry["repeated"] = True
    if vllm and name in SUFFIXES:
        entry["suffix"] = True
    if vllm and name in WORDS:
        entry["words"] = WORDS[name]
    return entry


def text_of(facts: dict[str, Any], version: str, vllm: bool) -> str:
    head = {"tool": facts["tool"], "version": version, "source": facts["source"]}
    if "kv_transfer_config_fields" in facts:
        fields = facts["kv_transfer_config_fields"]
        head["kv_transfer"] = {
            "fields": sorted(fields),
            "roles": sorted(fields["kv_role"]["choices"]),
            "connectors": sorted(facts["kv_connectors"]),
        }
    lines = [json.dumps(compact(flag, vllm)) for flag in sorted(facts["flags"], key=lambda f: f["name"])]
    opening = json.dumps(head, indent=1)[:-2]
    return f'{opening},\n "flags": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    OUT.mkdir(parents=True, exist_ok=True)
    for source, (name, given) in TOOLS.items():
        facts = json.loads((Path(sys.argv[1]) / source).read_text(encoding="utf-8"))
        version = given or facts["version"]
        (OUT / f"{name}-{version}.json").write_text(text_of(facts, version, name == "vllm"), encoding="utf-8")


if __name__ == "__main__":
    main()

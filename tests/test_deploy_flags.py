"""Flags of engines as data, and the checker of command lines."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from planner.deploy.command_line import command_faults, known_versions, load_flags, read_command
from planner.errors import SpecError

ROOT = Path(__file__).parents[1]
VLLM = ("vllm", "0.33.0")
FACTS = os.environ.get("PLANNER_DEPLOY_FACTS", "")


def faults(words: list[str], tool: tuple[str, str] = VLLM, positionals: int = 1) -> list[str]:
    found = command_faults(words, load_flags(*tool), positionals)
    return [f"{words[f.word]}: {f.rule} [{f.value}] ({f.suggestion})" for f in found]


@pytest.mark.parametrize(
    ("tool", "version", "count"),
    [("vllm", "0.33.0", 320), ("vllm-router", "0.1.17", 71), ("sglang", "0.5.23", 531),
     ("sglang-router", "0.3.2", 98), ("trtllm", "1.2.1", 32), ("trtllm-disaggregated", "1.2.1", 6)],
)  # fmt: skip
def test_lists_hold_every_flag(tool, version, count):
    flags = load_flags(tool, version)
    assert len({flag.name for flag in flags.flags.values()}) == count
    assert known_versions(tool) == (version,)
    assert {flag.type for flag in flags.flags.values()} <= {"bool", "int", "float", "json", "list", "str"}


def test_unknown_versions_are_refused_with_the_known_ones():
    with pytest.raises(SpecError, match=r"the flags of vllm 0\.34\.0 are not known \(known: 0\.33\.0\)"):
        load_flags("vllm", "0.34.0")
    with pytest.raises(SpecError, match="no version of it is known"):
        load_flags("tgi", "1")


def test_good_command_lines_pass():
    config = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})
    words = ["some/model", "-tp", "4", "--max-model-len=8k", "--no-enable-prefix-caching", "--dtype", "half",
             "--kv-transfer-config", config, "--gpu-memory-utilization", "0.9", "--port", "$port",
             "--served-model-name", "a", "b", "--enable-expert-parallel"]  # fmt: skip
    assert faults(words) == []
    given, rest, _ = read_command(words, load_flags(*VLLM))
    assert rest == ["some/model"]
    assert given[0].name == "--tensor-parallel-size"
    assert next(one for one in given if one.name == "--enable-prefix-caching").off


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["m", "--tensor-paralel-size", "4"], "did you mean --tensor-parallel-size?"),
        (["m", "--tensor-parallel", "4"], "abbreviation"),
        (["m", "--tp", "4"], "has no such flag"),
        (["m", "--port", "x"], "must be a whole number [x]"),
        (["m", "--port", "8k"], "must be a whole number [8k]"),
        (["m", "--port", "80.5"], "must be a whole number"),
        (["m", "--port"], "needs a value"),
        (["m", "--port", "1", "--port", "2"], "is given twice"),
        (["m", "--tensor-parallel-size", "0"], "must be >= 1 [0]"),
        (["m", "--gpu-memory-utilization", "1.5"], "must be <= 1 [1.5]"),
        (["m", "--gpu-memory-utilization", "much"], "must be a number"),
        (["m", "--gpu-memory-utilization", "nan"], "must be a number"),
        (["m", "--dtype", "bf16"], "(did you mean bfloat16?)"),
        (["m", "--kv-cache-dtype", "bf16"], "did you mean bfloat16?"),
        (["m", "--enable-expert-parallel=true"], "takes no value [true]"),
        (["m", "--kv-transfer-config", "{kv_role: kv_both}"], "is not valid JSON"),
        (["m", "n"], "takes no further word [n]"),
    ],
)
def test_wrong_command_lines_are_refused(words, said):
    assert len(found := faults(words)) == 1
    assert said in found[0]


def test_flags_of_routers():
    words = ["--vllm-pd-disaggregation", "--prefill", "http://a:1", "none", "--prefill", "http://b:1",
             "--decode", "http://c:1", "--decode", "http://d:1",
             "--decode-policy", "power_of_two"]  # fmt: skip
    assert faults(words, ("vllm-router", "0.1.17"), 0) == []
    (found,) = faults(["--policy", "least_loaded"], ("vllm-router", "0.1.17"), 0)
    assert "sticky_least_loaded" in found


@pytest.mark.shared
@pytest.mark.skipif(not FACTS, reason="PLANNER_DEPLOY_FACTS names no folder: data beside the checkout")
def test_lists_are_current(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    import build_flag_lists

    folder = build_flag_lists.OUT
    monkeypatch.setattr(build_flag_lists, "OUT", tmp_path)
    monkeypatch.setattr("sys.argv", ["build_flag_lists.py", FACTS])
    build_flag_lists.main()
    for path in tmp_path.iterdir():
        assert path.read_text(encoding="utf-8") == (folder / path.name).read_text(encoding="utf-8")

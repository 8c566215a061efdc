"""Flags of engines as data, and the checker of command lines."""

from __future__ import annotations

import ast
import inspect
import json
import os
from pathlib import Path
from types import ModuleType

import pytest

from planner.deploy import sglang, vllm
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
     ("sglang-router", "0.3.2", 98), ("trtllm", "1.2.1", 32), ("trtllm-disaggregated", "1.2.1", 6),
     ("dynamo-vllm", "1.6.1", 358),
     ("dynamo-sglang", "1.6.1", 606), ("dynamo-trtllm", "1.6.1", 131), ("dynamo-frontend", "1.6.1", 96),
     ("dynamo-router", "1.6.1", 37), ("dynamo-global-router", "1.6.1", 6), ("llm-d-sidecar", "0.10.0", 43)],
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


def test_choices_that_only_a_running_tool_knows_are_not_checked():
    assert not load_flags("sglang", "0.5.23").flags["--reasoning-parser"].choices
    for path in (ROOT / "planner" / "deploy" / "flags").glob("*.json"):
        for flag in json.loads(path.read_text(encoding="utf-8"))["flags"]:
            assert flag.get("choices") != ["dynamic"], (path.name, flag["name"])


def test_switches_with_values():
    tool = ("llm-d-sidecar", "0.10.0")
    words = ["--port=8000", "--secure-proxy=false", "--enable-p2p-pull", "--zap-log-level=5",
             "--enable-tls=prefiller", "--enable-tls=decoder"]  # fmt: skip
    assert faults(words, tool, 0) == []
    given, _, _ = read_command(words, load_flags(*tool))
    assert [one.off for one in given if one.name in ("--secure-proxy", "--enable-p2p-pull")] == [True, False]
    assert "must be one of true, false [no]" in faults(["--secure-proxy=no"], tool, 0)[0]
    assert "takes no further word [false]" in faults(["--secure-proxy", "false"], tool, 0)[0]
    assert "did you mean" in faults(["--kv-connector=nixl"], tool, 0)[0]
    assert "has no such flag" in faults(["-port=8000"], tool, 0)[0]
    assert "has no such flag" in faults(["--secure-serving=false"], tool, 0)[0]  # of a later release


# --------------------------------------------------------------------------------------------
# Dynamo


WORKERS = {"vllm": "dynamo-vllm", "sglang": "dynamo-sglang"}


def test_workers_of_dynamo_take_their_flags_and_the_engine_s():
    flags = load_flags("dynamo-vllm", "1.6.1")
    assert flags.engine_version == "0.31.0"
    assert set(flags.flags["--disaggregation-mode"].choices) == {"agg", "pd", "prefill", "decode", "encode"}
    assert {"--tensor-parallel-size", "-tp", "--kv-transfer-config", "--headless", "--model"} <= set(
        flags.flags
    )
    front_end = {"--host", "--port", "--api-key", "--ssl-keyfile", "--enable-auto-tool-choice"}
    assert front_end <= set(load_flags(*VLLM).flags)
    assert not front_end & set(flags.flags)
    assert not {"--is-prefill-worker", "--is-decode-worker", "--monokernel"} & set(flags.flags)

    flags = load_flags("dynamo-sglang", "1.6.1")
    assert flags.engine_version == "0.5.21"
    assert set(flags.flags["--disaggregation-mode"].choices) >= {"null", "prefill", "decode", "agg"}
    assert "gms" in flags.flags["--load-format"].choices
    assert {"--dp-size", "--enable-dp-attention", "--page-size", "--disaggregation-ib-device"} <= set(
        flags.flags
    )
    assert "--attn-dp-size" not in flags.flags

    flags = load_flags("dynamo-trtllm", "1.6.1")
    assert flags.engine_version == "1.3.0rc29"
    assert {"--extra-engine-args", "--override-engine-args", "--router-mode"} <= set(flags.flags)
    assert load_flags("dynamo-frontend", "1.6.1").engine_version == ""


def test_hand_overs_of_an_older_engine_have_its_fields():
    newer, older = load_flags(*VLLM).kv_transfer, load_flags("dynamo-vllm", "1.6.1").kv_transfer
    assert newer is not None
    assert older is not None
    assert (older.connectors, older.roles) == (newer.connectors, newer.roles)
    gone = {"kv_buffer_size", "kv_ip", "kv_parallel_size", "kv_rank"}
    assert set(older.fields) == set(newer.fields) | gone


def test_routing_of_dynamo():
    modes = {"round-robin", "random", "power-of-two", "kv", "direct", "least-loaded", "device-aware-weighted"}
    assert set(load_flags("dynamo-frontend", "1.6.1").flags["--router-mode"].choices) == modes
    assert set(load_flags("dynamo-vllm", "1.6.1").flags["--router-mode"].choices) == modes
    assert "--router-min-initial-workers" not in load_flags("dynamo-vllm", "1.6.1").flags  # of the frontend
    tool = ("dynamo-frontend", "1.6.1")
    good = ["--router-mode", "least-loaded", "--http-port", "8000", "--no-router-kv-events",
            "--active-decode-blocks-threshold", "None", "--router-queue-threshold=0.5"]  # fmt: skip
    assert faults(good, tool, 0) == []
    assert "(did you mean least-loaded?)" in faults(["--router-mode", "least_loaded"], tool, 0)[0]
    assert "must be a number [no]" in faults(["--active-decode-blocks-threshold", "no"], tool, 0)[0]
    assert faults(["--config", "pools.json"], ("dynamo-global-router", "1.6.1"), 0) == []


def written(dialect: ModuleType) -> set[str]:
    """Flags that a module writes for engines, of every branch."""
    found: list[object] = []
    for name in ("engine_arguments", "place_arguments", "_draft"):
        function = getattr(dialect, name, None)
        for node in ast.walk(ast.parse(inspect.getsource(function))) if function else ():
            if isinstance(node, ast.Name):
                found.append(getattr(dialect, node.id, ""))
            elif isinstance(node, ast.Constant):
                found.append(node.value)
    return {one for one in found if isinstance(one, str) and one.startswith("--")} - {"--speculative-"}


WITHOUT_FRONT_END = {"--host", "--port"}
NARROWER = {"--kv-cache-dtype": {"vllm"}, "--attention-backend": {"sglang"}}
"""Flags of which the engine in Dynamo's images knows fewer values, by engine."""


@pytest.mark.parametrize("engine", WORKERS)
def test_workers_of_dynamo_know_what_is_written_for_engines(engine):
    dialect, version = {"vllm": (vllm, "0.33.0"), "sglang": (sglang, "0.5.23")}[engine]
    plain, worker = load_flags(engine, version).flags, load_flags(WORKERS[engine], "1.6.1").flags
    flags = written(dialect)
    assert len(flags) > 18
    assert flags <= set(plain)
    absent = flags - set(worker)
    assert absent == (WITHOUT_FRONT_END if engine == "vllm" else {"--attn-dp-size"})
    for name in sorted(flags - absent):
        ours, theirs = plain[name], worker[name]
        assert theirs.type == ours.type, name
        assert theirs.suffix >= ours.suffix, name
        assert theirs.negation == ours.negation, name
        if engine in NARROWER.get(name, ()):
            assert set(theirs.choices) < {*ours.choices, *ours.known}, name
        else:
            assert set(theirs.choices) >= set(ours.choices), name


def test_formats_that_are_written_are_known_to_workers_of_dynamo():
    worker = load_flags("dynamo-vllm", "1.6.1").flags
    assert {*vllm.FORMATS.values(), vllm.FP8_LATENTS} - set(worker["--kv-cache-dtype"].choices) <= {
        "int4",
        "int8",
    }
    worker = load_flags("dynamo-sglang", "1.6.1").flags
    assert set(sglang._KV_CACHES.values()) | {"auto"} <= set(worker["--kv-cache-dtype"].choices)
    assert set(sglang.STAGED) <= set(worker["--disaggregation-transfer-backend"].choices)


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


@pytest.mark.shared
@pytest.mark.skipif(not FACTS, reason="PLANNER_DEPLOY_FACTS names no folder: data beside the checkout")
@pytest.mark.parametrize("tool", ["vllm", "sglang", "trtllm", "frontend", "router", "global_router"])
def test_lists_of_dynamo_hold_its_own_flags(tool, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    import build_flag_lists

    facts = json.loads((Path(FACTS) / f"dynamo.{tool}.json").read_text(encoding="utf-8"))
    name = f"dynamo-{tool.replace('_', '-')}-{facts['version']}.json"
    listed = json.loads((build_flag_lists.OUT / name).read_text(encoding="utf-8"))["flags"]
    for flag in facts["flags"]:
        assert build_flag_lists.compact(flag, False) in listed, flag["name"]

"""planner check: what emit writes passes, and one fault anywhere is found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Runner
from deploy_plans import SCENARIOS
from deploy_tools import SITE, emit_folder


@pytest.mark.parametrize("kind", SCENARIOS)
def test_what_emit_writes_passes(planner: Runner, tmp_path: Path, kind: str):
    result = planner("check", emit_folder(planner, tmp_path, kind))
    assert (result.code, result.err) == (0, "")
    assert "nothing to object to" in result.out


def test_placeholders_are_refused_with_the_setting(planner: Runner, tmp_path: Path):
    result = planner("check", emit_folder(planner, tmp_path, "colocated", site=""))
    assert result.code == 2
    for setting in ("hosts", "router_host", "model_cache"):
        assert f"give {setting} in the site file" in result.out
    folder = emit_folder(
        planner, tmp_path, "colocated", site=SITE.replace("router_host", "# router_host"), name="b"
    )
    result = planner("check", folder)
    assert {line.split(":")[0] for line in result.out.splitlines()} == {
        "load-test.sh",
        "router.sh",
        "smoke-check.sh",
    }


GROUPS, HOSTS = "groups/decode-*.sh", "hosts/*-1.compose.yaml"

BREAKS: dict[str, tuple[str, str, str, str]] = {
    "unknown flag": (GROUPS, "--max-num-seqs", "--max-num-seq", "abbreviation"),
    "misspelt flag": (GROUPS, "--block-size", "--block-sise", "did you mean --block-size?"),
    "wrong type": (GROUPS, r"--max-model-len \d+", "--max-model-len long", "must be a whole number"),
    "wrong choice": (GROUPS, "--dtype bfloat16", "--dtype bf16", "did you mean bfloat16?"),
    "bad JSON": (GROUPS, '"kv_role":', "kv_role:", "is not valid JSON"),
    "missing connector": (GROUPS, r" \\\n  --kv-transfer-config.*", "", "hands nothing over"),
    "unknown connector": (GROUPS, "NixlConnector", "P2pNcclConnector", "is no connector"),
    "unknown field": (GROUPS, "kv_load_failure_policy", "kv_load_policy", "no such field"),
    "wrong role": (GROUPS, "kv_consumer", "kv_producer", "kv_role of a decode engine"),
    "TP not dividing": (GROUPS, "tensor-parallel-size 4", "tensor-parallel-size 3", "pair.tp_divides"),
    "TP below prefill's": (GROUPS, "--tensor-parallel-size 4", "--tensor-parallel-size 1", "pair.tp_fan_out"),
    "TP and GPUs": (GROUPS, "--tensor-parallel-size 4", "--tensor-parallel-size 8", "needs 8 GPUs"),
    "pipeline on decode": (GROUPS, "pipeline-parallel-size 1", "pipeline-parallel-size 2", "pair.decode_pp"),
    "block size": (GROUPS, "--block-size 16", "--block-size 24", "pair.block_size"),
    "KV format": (GROUPS, "--kv-cache-dtype fp8", "--kv-cache-dtype bfloat16", "pair.kv_dtype"),
    "backend": (GROUPS, "backend FLASH_ATTN", "backend TRITON_ATTN", "differs from that of"),
    "model": (GROUPS, "serve meta-llama/Llama", "serve other/Llama", "model differs"),
    "local side channel": (GROUPS, r"address=[\d.]+", "address=localhost", "other hosts reach"),
    "no backend": (GROUPS, r" \\\n  --attention-backend \S+", "", "--attention-backend is missing"),
    "port taken": ("groups/prefill-*.sh", r"side_port=5606", "side_port=5604", "side_port is taken by"),
    "port of no number": (GROUPS, r"port=82\d+", "port=none", "up to 65535"),
    "another router": ("router.sh", "exec vllm-router", "exec nginx", "runs no vllm-router"),
    "another service": ("manifest.yaml", r"service: meta-llama", "service: other", "of the plan"),
    "quote": (GROUPS, "'{", "{", "cannot be read as shell words|is not valid JSON"),
    "another line": (GROUPS, "set -eu", "set -eu\nrm -rf x", "not a line that planner emit writes"),
    "another program": (GROUPS, "exec vllm serve", "exec vlm serve", "runs no vllm serve"),
    "an engine less": (GROUPS, r"\n  1\) .*", "", "no engine of this number"),
    "flag in compose": (HOSTS, "- --block-size", "- --block-sise", "did you mean --block-size?"),
    "missing in compose": (HOSTS, r"    - --kv-transfer-config\n    - .*\n", "", "hands nothing over"),
    "bare n": (HOSTS, "UCX_MEMTYPE_CACHE: 'n'", "UCX_MEMTYPE_CACHE: n", "boolean to readers of YAML 1.1"),
    "bare yes": (HOSTS, "UCX_MEMTYPE_CACHE: 'n'", "UCX_MEMTYPE_CACHE: yes", "must hold quoted text"),
    "bare number": (HOSTS, "- '16'", "- 16", "must hold quoted text"),
    "duplicate key": (HOSTS, "    ipc: host\n", "    ipc: host\n    ipc: host\n", "duplicate key"),
    "tab": (HOSTS, "    ipc: host", "\tipc: host", "tab"),
    "long name": (HOSTS, r"\n  (\w[\w-]+)-1:\n", r"\n  " + "x" * 60 + r"\1-1:\n", "up to 63 small letters"),
    "capital in a name": (HOSTS, r"\n  (\w)([\w-]+-1:)\n", r"\n  X\2\n", "small letters"),
    "no tag": (HOSTS, r"vllm-openai:v0\.33\.0", "vllm-openai", "an image needs a tag"),
    "latest": (HOSTS, r"vllm-openai:v0\.33\.0", "vllm-openai:latest", "latest names no version"),
    "another image": (HOSTS, r"vllm-openai:v0\.33\.0", "vllm-openai:v0.32.0", "all engines run one image"),
    "GPU twice": (HOSTS, r"- '5'", "- '4'", "is taken by"),
    "port twice": (HOSTS, "- '8106'", "- '8104'", "port is taken by"),
    "GPU missing": (HOSTS, r"            - '1'\n", "", r"needs \d GPUs"),
    "port": (HOSTS, r"- --port\n    - '8\d+'", "- --port\n    - '80000'", "up to 65535"),
    "router's policy": ("router.sh", "power_of_two", "least_loaded", "must be one of"),
    "router's mode": ("router.sh", r"  --vllm-pd-disaggregation \\\n", "", "disaggregation is missing"),
    "router without an engine": ("router.sh", r" \\\n  --decode http://\S+$", "", "lacks an engine"),
    "router with a stranger": ("router.sh", r"--prefill \S+:", "--prefill http://x:", "names no prefill"),
    "load test": ("load-test.sh", "--request-rate 10", "--request-rate fast", "must be a number"),
    "a placeholder": ("smoke-check.sh", "front.example", "SET-ME-router-host", "is a placeholder"),
    "the plan": ("plan.yaml", r"\n  max_num_seqs: \d+", "\n  max_num_seqs: 7", "is not the plan"),
    "broken plan": ("plan.yaml", "schema_version: 1", "schema_version: x", "schema_version"),
    "more replicas": ("manifest.yaml", r"replicas: \d+", "replicas: 9", "not as many in"),
    "long group name": ("manifest.yaml", r"- name: (prefill-\S+)", r"- name: " + "x" * 50, "up to 45"),
}  # fmt: skip


def broken(folder: Path, pattern: str, old: str, new: str) -> str:
    """Changes the first place of the first file that has it; gives the file's name."""
    for path in sorted(folder.glob(pattern)):
        text = path.read_text(encoding="utf-8")
        changed = re.sub(old, new, text, count=1, flags=re.MULTILINE)
        if changed != text:
            path.write_text(changed, encoding="utf-8")
            return path.relative_to(folder).as_posix()
    raise AssertionError(f"{old} stands in no {pattern}")


@pytest.mark.parametrize("fault", BREAKS)
def test_one_fault_is_found(planner: Runner, tmp_path: Path, fault: str):
    pattern, old, new, said = BREAKS[fault]
    folder = emit_folder(planner, tmp_path, "different-tp")
    name = broken(folder, pattern, old, new)
    result = planner("check", folder)
    assert result.code == 2
    lines = [line for line in result.out.splitlines() if re.search(said, line)]
    assert lines, result.out
    assert all(re.match(r"\S+:\d+: ", line) for line in result.out.splitlines())
    assert any(line.startswith(f"{name}:") for line in result.out.splitlines()) or fault in (
        "an engine less",
    )


def test_findings_have_the_line(planner: Runner, tmp_path: Path):
    folder = emit_folder(planner, tmp_path, "different-tp")
    name = broken(folder, GROUPS, "--dtype bfloat16", "--dtype bf16")
    lines = (folder / name).read_text(encoding="utf-8").splitlines()
    number = next(i for i, line in enumerate(lines, start=1) if "bf16" in line)
    result = planner("check", folder, "--json")
    found = [f for f in result.facts if f["value"] == "bf16" and "must be one of" in f["rule"]]
    assert (found[0]["file"], found[0]["line"], found[0]["suggestion"]) == (
        name,
        number,
        "did you mean bfloat16?",
    )


@pytest.mark.parametrize("name", ["router.sh", "smoke-check.sh", "plan.yaml", "README.md"])
def test_missing_files_are_found(planner: Runner, tmp_path: Path, name: str):
    folder = emit_folder(planner, tmp_path, "colocated")
    (folder / name).unlink()
    result = planner("check", folder)
    assert result.code == 2
    assert f"{name}:0: " in result.out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("0.33.0", "0.99.0"), "known: 0.33.0"),
        (lambda text: text.replace("target: vllm", "target: nomad"), "unknown target 'nomad'"),
        (lambda text: text.replace("hosts:", "guests:"), "is not a manifest"),
        (lambda text: text.replace("role: colocated", "role: boss"), "is not a manifest"),
        (lambda text: text.replace("- README.md", "- ../plan.yaml"), "lies outside of the folder"),
        (lambda text: "", "empty"),
    ],
)
def test_a_broken_manifest_ends_the_check(
    planner: Runner, tmp_path: Path, change: Callable[[str], str], said: str
):
    folder = emit_folder(planner, tmp_path, "colocated")
    path = folder / "manifest.yaml"
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    result = planner("check", folder)
    assert result.code == 2
    assert said in result.err


def test_other_folders_are_refused(planner: Runner, tmp_path: Path):
    result = planner("check", tmp_path)
    assert result.code == 2
    assert "is no folder that planner emit wrote" in result.err
    assert planner("check", tmp_path / "none").code == 2


def test_json_of_a_good_folder_is_empty(planner: Runner, tmp_path: Path):
    result = planner("check", emit_folder(planner, tmp_path, "colocated"), "--json")
    assert json.loads(result.out) == []


@pytest.mark.parametrize("kind", ["one-group-per-pool", "colocated"])
def test_addresses_of_ip_version_6(planner: Runner, tmp_path: Path, kind: str):
    site = SITE.replace("[10.0.0.1, 10.0.0.2, 10.0.0.3]", "['[fd00::1]', '[fd00::2]', '[fd00::3]']")
    folder = emit_folder(planner, tmp_path, kind, site=site)
    result = planner("check", folder)
    assert (result.code, result.err) == (0, "")
    assert "http://[fd00::1]:8" in (folder / "router.sh").read_text(encoding="utf-8")
    if kind != "colocated":
        script = next((folder / "groups").glob("prefill-*")).read_text(encoding="utf-8")
        assert "address=fd00::1 " in script

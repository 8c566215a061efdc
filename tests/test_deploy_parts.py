"""Engines over several hosts: what their parts are told, and that one fault in them is found."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Runner
from deploy_plans import plan_of
from deploy_tools import SITE, emit_folder

from planner.deploy.build import deployment_of
from planner.deploy.rendering import folder_files
from planner.deploy.scripts import read_script
from planner.deploy.sglang import SGLANG
from planner.deploy.targets import TARGETS
from planner.deploy.vllm import VLLM, part_flags
from planner.documents.plan import dump_plan, load_plan
from planner.documents.scenario import scenario_from_text
from planner.documents.site_schema import SiteDocument
from planner.errors import SpecError
from planner.plan import Plan
from planner.search import SolveOptions
from planner.specs import Parallelism, Phase
from planner.standing import standing_plans
from planner.workflow import solve

KIND = "over-nodes"
PLACED = SiteDocument.model_validate(
    {
        "hosts": {"h100-sxm": ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]},
        "router_host": "10.0.0.9",
        "model_cache": "/models",
    }
)


@cache
def wide(engine: str) -> Plan:
    """Tensor ranks over two hosts on the prefill side, pipeline stages in one, a smaller decode group."""
    scenario: dict[str, Any] = {
        "model": "meta-llama/Llama-3.1-70B-Instruct",
        "engine": engine,
        "workload": {"request_rate": 1, "input_tokens": 2000, "output_tokens": 200},
        "slo": {"ttft_ms": {"p99": 4000}, "tpot_ms": {"p99": 60}},
        "fleet": [{"gpu": "h100-sxm", "price_per_gpu_hour": 3, "node_size": 2, "network_gbps_per_gpu": 400}],
        "options": {"routing": "power_of_two", "colocated": "forbidden", "max_nodes_per_replica": 2,
                    "allowed_tp": [4], "max_pp": 1},
    }  # fmt: skip
    return solve(scenario_from_text(json.dumps(scenario)), SolveOptions(verify=False, alternatives=False))


def files_of(engine: str, plan: Plan | None = None, site: SiteDocument = PLACED) -> dict[str, str]:
    plan = plan or wide(engine)
    dialect = {"vllm": VLLM, "sglang": SGLANG}[engine]
    return folder_files(dialect, deployment_of(plan, standing_plans(plan), site), dump_plan(plan))


def services(folder: Path) -> dict[str, tuple[str, list[str], dict[str, str]]]:
    """Host, words and environment of every part, by name."""
    found = {}
    for path in sorted((folder / "hosts").iterdir()):
        for name, one in yaml.safe_load(path.read_text(encoding="utf-8"))["services"].items():
            found[name] = (path.name.removesuffix(".compose.yaml"), one["command"], one["environment"])
    return found


def value(words: list[str], flag: str) -> str | None:
    return words[words.index(flag) + 1] if flag in words else None


def test_parts_of_vllm_with_attention_ranks(planner: Runner, tmp_path: Path):
    """Only the first serves; a first rank on it would make it serve its own ranks alone."""
    found = services(emit_folder(planner, tmp_path, KIND))
    for role in ("prefill", "decode"):
        first, second = (
            found[next(n for n in found if n.startswith(role) and n.endswith(r))] for r in ("r0", "r1")
        )
        leader = first[2]["VLLM_NIXL_SIDE_CHANNEL_HOST"]
        assert second[2]["VLLM_NIXL_SIDE_CHANNEL_HOST"] != leader
        assert first[2]["VLLM_NIXL_SIDE_CHANNEL_PORT"] == second[2]["VLLM_NIXL_SIDE_CHANNEL_PORT"]
        for _, words, _ in (first, second):
            assert value(words, "--data-parallel-size") == "8"
            assert value(words, "--data-parallel-size-local") == "4"
            assert value(words, "--data-parallel-address") == leader
            assert "--enable-expert-parallel" in words
            assert "--nnodes" not in words
        assert "--port" in first[1]
        assert "--headless" not in first[1]
        assert "--data-parallel-start-rank" not in first[1]
        assert "--port" not in second[1]
        assert "--headless" in second[1]
        assert value(second[1], "--data-parallel-start-rank") == "4"


def test_parts_of_vllm_without_attention_ranks():
    files = files_of("vllm")
    script = next(text for name, text in files.items() if name.startswith("groups/prefill"))
    read = read_script(script)
    assert read.unread == ()
    assert [case.words for (number, _), case in read.cases.items() if number == 1] == [
        ("--host", "0.0.0.0", "--port", "$port", "--node-rank", "0"),
        ("--node-rank", "1", "--headless"),
    ]
    assert '--master-addr "$leader"' in script
    assert "--nnodes 2" in script
    assert "--data-parallel-rpc-port" not in script


def test_parts_of_sglang(planner: Runner, tmp_path: Path):
    found = services(emit_folder(planner, tmp_path, KIND, target="sglang"))
    for role in ("prefill", "decode"):
        mine = [found[name] for name in sorted(found) if name.startswith(role)]
        assert [value(words, "--node-rank") for _, words, _ in mine] == ["0", "1"]
        (start,) = {value(words, "--dist-init-addr") for _, words, _ in mine}
        assert str(start).rpartition(":")[0] == mine[0][2]["SGLANG_HOST_IP"]
        assert mine[1][2]["SGLANG_HOST_IP"] != mine[0][2]["SGLANG_HOST_IP"]
        for _, words, _ in mine:
            assert (value(words, "--nnodes"), value(words, "--tp-size")) == ("2", "8")
            assert value(words, "--attn-dp-size") == "8"


def test_sglang_needs_a_start_address_without_attention_ranks_too():
    script = next(text for name, text in files_of("sglang").items() if name.startswith("groups/decode"))
    assert '--dist-init-addr "$init"' in script
    assert re.search(r'"1 1"\) .* init=10\.0\.0\.\d:\d+; set -- --node-rank 1 ;;', script)


@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_routers_and_checks_know_only_first_parts(planner: Runner, tmp_path: Path, target: str):
    folder = emit_folder(planner, tmp_path, KIND, target=target)
    hosts = [one["address"] for one in yaml.safe_load((folder / "manifest.yaml").read_text("utf-8"))["hosts"]]
    assert len(hosts) == 4
    for name in ("router.sh", "smoke-check.sh"):
        text = (folder / name).read_text(encoding="utf-8")
        assert [address for address in hosts if f"{address}:" in text] == [hosts[0], hosts[2]]


@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_scripts_run_what_compose_files_run(planner: Runner, tmp_path: Path, target: str):
    """Each part's script, run by a shell with a program that prints what it is told."""
    folder = emit_folder(planner, tmp_path, KIND, target=target)
    tools = tmp_path / "bin"
    tools.mkdir()
    program = tools / {"vllm": "vllm", "sglang": "python3"}[target]
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    skipped = {"vllm": 1, "sglang": 2}[target]
    for name, (_, words, _) in services(folder).items():
        group, number, rank = re.fullmatch(r"(.+)-(\d+)-r(\d+)", name).groups()
        done = subprocess.run(
            [str(shutil.which("sh")), str(folder / "groups" / f"{group}.sh"), number, rank],
            capture_output=True, text=True, check=True, env={"PATH": str(tools)},
        )  # fmt: skip
        assert sorted(done.stdout.splitlines()[skipped:]) == sorted(words)
    script = next((folder / "groups").iterdir())
    done = subprocess.run(
        [str(shutil.which("sh")), str(script), "1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "NUMBER RANK" in done.stderr


def test_the_readme_says_how_parts_start(planner: Runner, tmp_path: Path):
    text = (emit_folder(planner, tmp_path, KIND) / "README.md").read_text(encoding="utf-8")
    assert "sh groups/GROUP.sh NUMBER RANK" in text
    assert "Engines over several hosts need RDMA" in text
    assert re.search(r"h200-sxm-2 \| 10\.0\.1\.2 \| 4 x h200-sxm \| prefill-\S+-1-r1 \|", text)
    alone = emit_folder(planner, tmp_path, "colocated", name="alone") / "README.md"
    assert "RANK" not in alone.read_text(encoding="utf-8")


def test_hosts_that_would_share_an_attention_rank_are_refused():
    with pytest.raises(SpecError, match="4 attention ranks cannot be shared out among 3 hosts"):
        part_flags(Parallelism(tp=4, dp=4, ep=16), 3, 0)


def test_sglang_needs_ports_for_all_ranks():
    plan = plan_of(KIND, "sglang")
    site = SiteDocument.model_validate({"ports": {"data_parallel": 65_520}})
    with pytest.raises(SpecError, match="leaves no 24 ports"):
        files_of("sglang", plan, site)


@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_addresses_of_ip_version_6(planner: Runner, tmp_path: Path, target: str):
    site = re.sub(r"h200-sxm: \[.*\]", "h200-sxm: ['[fd00::1]', '[fd00::2]', '[fd00::3]', '[fd00::4]']", SITE)
    folder = emit_folder(planner, tmp_path, KIND, site=site, target=target)
    result = planner("check", folder)
    assert (result.code, result.err) == (0, ""), result.out
    words = next(words for name, (_, words, _) in services(folder).items() if name.startswith("decode"))
    named = {
        "vllm": ("--data-parallel-address", "fd00::3"),
        "sglang": ("--dist-init-addr", "[fd00::3]:29550"),
    }
    flag, address = named[target]
    assert value(words, flag) == address


# --------------------------------------------------------------------------------------------
# One fault

GROUPS, MANIFEST = "groups/decode-*.sh", "manifest.yaml"
FIRST, SECOND = "hosts/h200-sxm-3.compose.yaml", "hosts/h200-sxm-4.compose.yaml"

OF_BOTH: dict[str, tuple[str, str, str, str]] = {
    "a part less": (GROUPS, r'  "1 1"\) .*\n', "", "needs one part of each rank from 0 to 1"),
    "a part too many": (GROUPS, r'(  "1 )1(".*\n)', r"\g<0>\g<1>2\2", "is the rank of no part"),
    "no first part": (GROUPS, r'"1 0"', '"1 3"', "needs one part of each rank|lacks an engine"),
    "fewer hosts": (MANIFEST, r"\n +hosts_per_replica: 2", "", "is the rank of no part|needs 8 GPUs"),
    "more hosts": (MANIFEST, "hosts_per_replica: 2", "hosts_per_replica: 4", "needs one part of each rank"),
    "an engine more": (MANIFEST, "replicas: 1", "replicas: 2", "not as many in"),
    "GPUs of a part": (GROUPS, r'("1 1"\).* gpus=)0,1,2,3', r"\g<1>0,1,2", "needs 8 GPUs on 2 hosts"),
    "a case twice": (GROUPS, r'  "1 1"\) .*\n', r"\g<0>\g<0>", "is never reached: line 8 is the same case"),
    "own words": (GROUPS, r'  "\$@" \\\n', "", "must be 1|is missing"),
    "own flag": (GROUPS, r'("1 1"\).* set -- )', r"\g<1>--no-such-flag ", "no-such-flag"),
    "GPU in compose": (SECOND, r" +- '3'\n", "", "needs 8 GPUs on 2 hosts"),
    "part in compose": (SECOND, r"-1-r1:\n", "-1-r0:\n", "needs one part of each rank"),
    "another host's part": (SECOND, r"-1-r1:\n", "-2-r1:\n", "needs one part of each rank|no engine of this"),
}  # fmt: skip
OF_VLLM: dict[str, tuple[str, str, str, str]] = {
    "no headless": (GROUPS, " --headless", "", "--headless is missing"),
    "headless first": (GROUPS, r'("1 0"\).* set --)', r"\1 --headless", "--headless is not for the part"),
    "start rank": (GROUPS, "start-rank 4", "start-rank 3", "start-rank of the part of rank 1 must be 4"),
    "start rank first": (GROUPS, r'("1 0"\).* set --)', r"\1 --data-parallel-start-rank 0",
                         "start-rank is not for the part of rank 0"),
    "local ranks": (GROUPS, "size-local 4", "size-local 8", "size-local of the part of rank . must be 4"),
    "leader": (GROUPS, r"leader=[\d.]+", "leader=10.9.9.9", "--data-parallel-address differs"),
    "leader in compose": (SECOND, r"(address\n +- )[\d.]+", r"\g<1>10.0.1.4", "must name .*, 10.0.1.3"),
    "another size": (SECOND, r"(data-parallel-size\n +- )'8'", r"\1'16'", "size differs from the first"),
    "another port": (SECOND, r"'29550'", "'29551'", "--data-parallel-rpc-port differs from the first part"),
    "another model": (SECOND, "- deepseek-ai/", "- other/", "model differs"),
    "no port": (GROUPS, r' --port "\$port"', "", "--port must be a number"),
    "local side channel": (GROUPS, r'("1 1"\).* address=)[\d.]+', r"\1localhost", "other hosts reach"),
    "odd ranks": (GROUPS, "data-parallel-size 8", "data-parallel-size 7", "7 attention ranks cannot"),
}  # fmt: skip
OF_SGLANG: dict[str, tuple[str, str, str, str]] = {
    "rank": (GROUPS, "node-rank 1", "node-rank 0", "--node-rank of the part of rank 1 must be 1"),
    "no rank": (GROUPS, "; set -- --node-rank 1", "", "--node-rank of the part of rank 1 must be 1"),
    "nodes": (GROUPS, "--nnodes 2", "--nnodes 1", "--nnodes of the part of rank . must be 2"),
    "leader": (GROUPS, r"init=[\d.]+:", "init=10.9.9.9:", "--dist-init-addr differs"),
    "leader in compose": (SECOND, r"10\.0\.1\.3:", "10.0.1.4:", "must name the first host .*, 10.0.1.3"),
    "another page": (SECOND, r"(page-size\n +- )'64'", r"\1'32'", "--page-size differs from the first part"),
    "no address of an own host": (GROUPS, r'("1 1"\).* address=)[\d.]+', r"\1localhost", "other hosts reach"),
}  # fmt: skip
FAULTS = [
    *((target, fault, change) for target in ("vllm", "sglang") for fault, change in OF_BOTH.items()),
    *(("vllm", fault, change) for fault, change in OF_VLLM.items()),
    *(("sglang", fault, change) for fault, change in OF_SGLANG.items()),
]


@pytest.mark.parametrize(("target", "fault", "change"), FAULTS, ids=[f"{t}-{f}" for t, f, _ in FAULTS])
def test_one_fault_is_found(
    planner: Runner, tmp_path: Path, target: str, fault: str, change: tuple[str, ...]
):
    pattern, old, new, said = change
    folder = emit_folder(planner, tmp_path, KIND, target=target)
    (path,) = folder.glob(pattern)
    text = path.read_text(encoding="utf-8")
    changed = re.sub(old, new, text, count=1)
    assert changed != text, fault
    path.write_text(changed, encoding="utf-8")
    result = planner("check", folder)
    assert result.code == 2
    lines = result.out.splitlines()
    assert [line for line in lines if re.search(said, line)], result.out
    assert all(re.match(r"\S+:\d+: ", line) for line in lines), result.out


# --------------------------------------------------------------------------------------------
# Back to a plan


@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_plans_without_attention_ranks_come_back(planner: Runner, tmp_path: Path, target: str):
    plan = wide(target)
    assert {group.parallelism.num_gpus for group in plan.groups} == {4}
    folder = written(files_of(target, plan), tmp_path / "folder")
    result = planner("check", folder)
    assert (result.code, result.err) == (0, ""), result.out
    assert TARGETS[target].read_back(folder) == load_plan(folder / "plan.yaml")


def test_replicas_are_counted_not_parts(planner: Runner, tmp_path: Path):
    folder = emit_folder(planner, tmp_path, KIND)
    (path,) = (folder / "groups").glob("decode-*")
    text = path.read_text(encoding="utf-8")
    more = re.sub(r'(  ")1 0(".*\n  ")1 1(".*\n)', r"\g<0>\g<1>2 0\g<2>2 1\3", text)
    path.write_text(more, encoding="utf-8")
    assert planner("import", folder, "-o", tmp_path / "more.yaml").code == 0
    before, after = plan_of(KIND), load_plan(tmp_path / "more.yaml")
    assert [g.replicas for g in after.groups] == [
        g.replicas + (g.phase is Phase.DECODE) for g in before.groups
    ]
    assert after.cost == pytest.approx(before.cost + 8 * 4.0)


def written(files: dict[str, str], folder: Path) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_colocated_parts_have_no_address_of_their_own(planner: Runner, tmp_path: Path, target: str):
    """Scripts then know only ports; the router's check still finds every first part, and no other."""
    plan = wide(target)
    decode = replace(plan.groups[1], phase=Phase.COLOCATED, name="colocated", replicas=2)
    plan = replace(plan, groups=(decode,))
    folder = written(files_of(target, plan), tmp_path / "folder")
    result = planner("check", folder)
    assert (result.code, result.err) == (0, ""), result.out
    text = (folder / "router.sh").read_text(encoding="utf-8")
    assert re.findall(r"http://[\d.]+:\d+", text) == ["http://10.0.0.1:8300", "http://10.0.0.3:8300"]

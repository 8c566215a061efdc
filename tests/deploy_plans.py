"""Plans to deploy, as solve makes them: one of each kind that targets have to write."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from planner.documents.scenario import scenario_from_text
from planner.plan import Plan
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
}  # fmt: skip
"""By what is special about the plan."""


@cache
def plan_of(kind: str) -> Plan:
    loaded = scenario_from_text(json.dumps(SCENARIOS[kind]))
    return solve(loaded, SolveOptions(verify=False, alternatives=False))

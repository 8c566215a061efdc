"""Plans for tests of reports: solved once, by prediction, on one small fleet."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from conftest import SCENARIO

import planner as api
from planner.documents.plan import dump_plan
from planner.documents.scenario import scenario_from_text
from planner.plan import Plan
from planner.search import SolveOptions

LIMITED = {"max_tp": 2, "max_pp": 1}
HOSTILE = "</script><img src=x onerror=alert(1)>&\"'<b>bold</b> $x$ \u2028 ${1} @ink"
"""A text that would end a script element, be markup of a page or of a chart, or a token of a colour."""


def solved(**changes: Any) -> Plan:
    """The plan of the usual scenario with some keys replaced."""
    document = deepcopy(SCENARIO) | {"options": LIMITED} | changes
    return api.solve(scenario_from_text(json.dumps(document)), SolveOptions(verify=False))


@cache
def disaggregated() -> Plan:
    workload = {"request_rate": 40, "input_tokens": 1000, "output_tokens": 200}
    return solved(workload=workload, options=LIMITED | {"colocated": "forbidden"})


@cache
def two_services() -> Plan:
    """Two models behind front doors of their own."""
    keys = ("model", "precision", "engine", "workload", "slo")
    service = {key: deepcopy(SCENARIO[key]) for key in keys}
    document = {key: value for key, value in deepcopy(SCENARIO).items() if key not in keys}
    document |= {"models": [service | {"name": "chat"}, service | {"name": "code"}], "options": LIMITED}
    return api.solve(scenario_from_text(json.dumps(document)), SolveOptions(verify=False))


def written(plan: Plan, path: Path) -> Path:
    path.write_text(dump_plan(plan), encoding="utf-8")
    return path

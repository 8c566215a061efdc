"""``planner judge``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from planner.cli.output import echo_json, width
from planner.deploy.judge import Judgement, prediction_of
from planner.deploy.judge import judge as judged
from planner.documents.load_tests import read_load_test
from planner.documents.plan import load_plan
from planner.errors import VerificationError
from planner.standing import of_service, only_one, standing_plans
from planner.units import MILLI


@click.command()
@click.argument("results", type=click.Path(path_type=Path))
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--service", metavar="NAME", help="Of a plan with several services: which one was tested.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def judge(results: Path, plan: Path, service: str | None, as_json: bool) -> None:
    """Compare RESULTS of a load test with PLAN: which SLOs hold, and which prediction is off by how much.

    RESULTS is the file that `vllm bench serve --save-result` writes, as the load-test script of an emitted
    folder runs it, or one of SGLang's bench_serving, of GuideLLM or of AIPerf, with one run in it. Says what
    to measure again where predictions are off. Exit code 5: an SLO is missed, was not measured, or requests
    failed.
    """
    measured = read_load_test(results)
    planned = load_plan(plan)
    prediction = prediction_of(planned, service)
    standings = standing_plans(planned, plan.parent, str(plan))
    standing = only_one(of_service(standings, prediction.service))
    groups = [group for group in planned.groups if group.name in standing.names]
    found = judged(measured, prediction, standing.fleet.service.workload, groups)
    if as_json:
        echo_json(_facts(found))
    else:
        from planner.report.judgement import print_judgement  # rich: only where tables are printed

        print_judgement(found, width())
    if not found.passed:
        words: dict[bool | None, str] = {False: "missed", None: "not measured"}
        missed = [f"{v.target} is {words[v.passed]}" for v in found.slo if not v.passed]
        said = "; ".join([*missed, *found.failures])
        raise VerificationError(f"the plan does not hold in the load test: {said}")


def _facts(found: Judgement) -> dict[str, Any]:
    return {
        "service": found.service,
        "passed": found.passed,
        "slo": [
            {
                "metric": v.target.metric.value,
                "statistic": v.target.statistic.value,
                "limit_ms": v.target.limit / MILLI,
                "measured_ms": None if v.measured is None else v.measured / MILLI,
                "passed": v.passed,
            }
            for v in found.slo
        ],
        "predictions": [
            {
                "metric": v.metric.value,
                "statistic": v.statistic.value,
                "measured_ms": v.measured / MILLI,
                "expected_ms": v.expected / MILLI,
                "low_ms": v.low / MILLI,
                "high_ms": v.high / MILLI,
                "ratio": v.ratio,
                "within": v.within,
            }
            for v in found.predictions
        ],
        "failures": list(found.failures),
        "another_load": list(found.unlike),
        "advice": list(found.advice),
    }

"""What a trace does to a plan: its own rate, the plan's rate, and the correction that bursts need.

    python -m benchmarks.replay CONVERSATION.csv CODE.csv

The Azure 2023 traces (https://github.com/Azure/AzurePublicDataset, CC-BY-4.0). The first is replayed through
the plan of examples/llama-70b-chat.yaml, as a command; the second is the workload of that model, at 20
requests per second and on H100 alone, planned as Poisson, simulated, and corrected.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import planner
from benchmarks import heading, verdict
from planner.documents.scenario import scenario_from_text
from planner.documents.yaml_text import dump_yaml
from planner.search import SolveOptions
from planner.workflow import solve

EXAMPLE = Path(__file__).parents[1] / "examples" / "llama-70b-chat.yaml"
TARGET = 2.0  # of the replay as a whole process [CPU-s]
RATE = 20.0  # [req/s]


def command(*arguments: str) -> tuple[str, float]:
    """Output and CPU time of a planner command. [s]"""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run([sys.executable, "-m", "planner", *arguments], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return run.stdout + run.stderr, seconds


def replay(trace: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plan = str(Path(folder) / "plan.yaml")
        command("solve", str(EXAMPLE), "--no-alternatives", "-o", plan)
        for options in ((), ("--rate-scale", "match")):
            text, seconds = command("simulate", plan, "--trace", str(trace), *options)
            print(text)
            print(f"{seconds:.2f} CPU-s as a whole process; {verdict(seconds, TARGET)}\n")


def corrected(trace: Path) -> None:
    document = {
        "model": "meta-llama/Llama-3.1-70B-Instruct",
        "precision": {"weights": "fp8", "kv_cache": "fp8"},
        "workload": {"trace": str(trace.resolve()), "request_rate": RATE},
        "slo": {"ttft_ms": {"p99": 2000}, "tpot_ms": {"p99": 50}},
        "fleet": [{"gpu": "h100-sxm", "price_per_gpu_hour": 6.155, "node_size": 8}],
        "objective": "cost",
    }
    loaded = scenario_from_text(dump_yaml(document))
    plan = solve(loaded, SolveOptions(alternatives=False))
    assert plan.verification is not None
    for number, one in enumerate(plan.verification.details["rounds"]):
        said = "; ".join(one["missed"]) or "holds"
        print(f"{number}. {one['replicas']} replicas, {one['cost_per_hour']:,.2f} USD/h: {said}")
        print(f"   {one['fleet']}")
    print(f"in the end {'holds' if plan.verification.passed else 'DOES NOT HOLD'}: {plan.cost:,.2f} USD/h")
    steady = replace(loaded, trace=None, replay=False)
    poisson = planner.solve(steady, SolveOptions(alternatives=False))
    assert poisson.verification is not None
    holds = "holds" if poisson.verification.passed else "does not hold"
    print(f"the same lengths arriving as a Poisson stream: {poisson.cost:,.2f} USD/h, {holds}")


def main() -> None:
    parser = argparse.ArgumentParser(description="What traces do to plans.")
    parser.add_argument("conversation", type=Path, help="AzureLLMInferenceTrace_conv.csv")
    parser.add_argument("code", type=Path, help="AzureLLMInferenceTrace_code.csv")
    arguments = parser.parse_args()
    heading("Azure conversation trace through the plan of the 70B example")
    replay(arguments.conversation)
    heading(f"Azure code trace at {RATE:g} req/s: planned as Poisson, corrected by simulation")
    corrected(arguments.code)


if __name__ == "__main__":
    main()

"""Load tests as each tool writes them, with the keys that are read and some that are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[1] / "examples" / "load-tests" / "llama-8b-h100.jsonl"
"""Synthetic: twelve closed loops of Llama-3.1-8B on one H100, from known constants."""
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
SETUP = ("--model", MODEL, "--gpu", "h100-sxm", "--engine", "vllm")


def examples() -> list[dict[str, Any]]:
    """The runs of the example file."""
    return [json.loads(line) for line in EXAMPLE.read_text(encoding="utf-8").splitlines()]


def vllm_run(**changes: Any) -> dict[str, Any]:
    """`vllm bench serve --save-result`."""
    return examples()[5] | changes


def sglang_run(run: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """SGLang's bench_serving with `--output-file`, of the same latencies."""
    same = (
        "max_concurrency", "duration", "completed", "total_input_tokens", "total_output_tokens",
        "request_throughput", "output_throughput", "mean_ttft_ms", "median_ttft_ms", "std_ttft_ms",
        "p99_ttft_ms", "mean_tpot_ms", "median_tpot_ms", "std_tpot_ms", "p99_tpot_ms", "mean_itl_ms",
    )  # fmt: skip
    return {
        "tag": None,
        "backend": "sglang",
        "dataset_name": "random",
        "request_rate": float("inf"),
        "sharegpt_output_len": None,
        "random_input_len": 1024,
        "random_output_len": 256,
        "random_range_ratio": 1.0,
        **{key: run[key] for key in same},
        "total_output_tokens_retokenized": run["total_output_tokens"] - 3,
        "mean_e2e_latency_ms": e2e(run),
        "concurrency": run["max_concurrency"] * 0.98,
        "accept_length": None,
    } | changes


def e2e(run: dict[str, Any]) -> float:
    """Mean time of a request. [ms]"""
    tokens = run["total_output_tokens"] / max(run["completed"], 1)
    return float(run["mean_ttft_ms"] + (tokens - 1) * run["mean_tpot_ms"])


def _distribution(mean: float, count: int) -> dict[str, Any]:
    names = ("p001", "p01", "p05", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "p999")
    percentiles = {name: mean * (0.9 + 0.02 * i) for i, name in enumerate(names)}
    return {
        "mean": mean, "median": percentiles["p50"], "mode": mean, "variance": 0.0, "std_dev": 0.0,
        "min": mean, "max": mean, "count": count, "total_sum": mean * count, "percentiles": percentiles,
    }  # fmt: skip


def guidellm_report(
    runs: list[dict[str, Any]], strategies: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """GuideLLM's `benchmarks.json`."""
    benchmarks = []
    for i, run in enumerate(runs):
        count = run["completed"]
        given = {"type_": "concurrent", "streams": run["max_concurrency"]}
        values = {
            "requests_per_second": run["request_throughput"],
            "request_concurrency": run["max_concurrency"],
            "request_latency": e2e(run) / 1e3,
            "prompt_token_count": run["total_input_tokens"] / count if count else 0.0,
            "output_token_count": run["total_output_tokens"] / count if count else 0.0,
            "time_to_first_token_ms": run["mean_ttft_ms"],
            "time_per_output_token_ms": 999.0,  # counts the first token too
            "inter_token_latency_ms": run["mean_tpot_ms"],
        }
        metrics = {
            name: {"successful": _distribution(value, count), "errored": None, "incomplete": None}
            for name, value in values.items()
        }
        totals = {"successful": count, "errored": run.get("failed", 0), "incomplete": 0, "total": count}
        benchmarks.append(
            {
                "type_": "generative_benchmark",
                "config": {"strategy": given if strategies is None else strategies[i], "backend": {}},
                "scheduler_metrics": {"requests_made": totals},
                "metrics": {"request_totals": totals, **metrics},
                "requests": {"successful": [], "errored": [], "incomplete": []},
            }
        )
    return {"metadata": {"version": 2, "guidellm_version": "0.7.3"}, "config": {}, "benchmarks": benchmarks}


def aiperf_export(run: dict[str, Any], **loadgen: Any) -> dict[str, Any]:
    """AIPerf's `profile_export_aiperf.json`."""

    def metric(unit: str, value: float) -> dict[str, Any]:
        spread = {f"p{p}": value * (0.9 + p / 500) for p in (1, 5, 10, 25, 50, 75, 90, 95, 99)}
        return {"unit": unit, "avg": value, "min": value, "max": value, "std": 0.0, **spread}

    count = run["completed"]
    return {
        "schema_version": "1.0",
        "request_throughput": {"unit": "requests/sec", "avg": run["request_throughput"]},
        "request_latency": metric("ms", e2e(run)),
        "request_count": {"unit": "requests", "avg": float(count)},
        "time_to_first_token": metric("ms", run["mean_ttft_ms"]),
        "inter_token_latency": metric("ms", run["mean_tpot_ms"]),
        "output_sequence_length": metric("tokens", run["total_output_tokens"] / max(count, 1)),
        "input_sequence_length": metric("tokens", run["total_input_tokens"] / max(count, 1)),
        "input_config": {
            "endpoint": {"model_names": [run["model_id"]], "streaming": True},
            "loadgen": loadgen or {"concurrency": run["max_concurrency"], "request_count": count},
        },
        "was_cancelled": False,
        "error_summary": [],
    }


def aiperf_csv(run: dict[str, Any]) -> str:
    """AIPerf's `profile_export_aiperf.csv`."""
    stats = ("avg", "min", "max", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "std")
    count = run["completed"]
    rows = {
        "Input Sequence Length (tokens)": run["total_input_tokens"] / count,
        "Inter Token Latency (ms)": run["mean_tpot_ms"],
        "Output Sequence Length (tokens)": run["total_output_tokens"] / count,
        "Request Latency (ms)": e2e(run),
        "Time to First Token (ms)": run["mean_ttft_ms"],
    }
    lines = [",".join(("Metric", *stats))]
    lines += [",".join((name, *([f"{value:.2f}"] * 12), "")) for name, value in rows.items()]
    lines += ["", "Metric,Value", f"Request Count,{count}.00"]
    return "\r\n".join([*lines, f"Request Throughput (requests/sec),{run['request_throughput']:.2f}", ""])

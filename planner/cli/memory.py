"""``planner memory``."""

from __future__ import annotations

from typing import Any

import click

from planner.catalog import load_gpu, load_model
from planner.cli.options import replica_options
from planner.cli.output import echo_json, width
from planner.configuration import default_precision
from planner.engines import load_engine
from planner.engines.legality import require_legal
from planner.errors import SpecError
from planner.memory import kv_capacity, memory_budgets, prefill_budget
from planner.specs import Parallelism
from planner.transformer import equivalent_tokens, kv_bytes_per_sequence, kv_bytes_per_token, stage_layers
from planner.units import GIB


@click.command()
@replica_options
@click.option("--context", type=click.IntRange(1), help="Tokens of a sequence; default: the model's longest.")
@click.option("--max-num-batched-tokens", type=click.IntRange(1), help="Default: the engine's.")
@click.option("--max-num-seqs", type=click.IntRange(1), help="Default: the engine's.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def memory(**given: Any) -> None:
    """What fits on each GPU of a replica: weights, activations, reserves, KV cache."""
    model, gpu, engine = load_model(given["model"]), load_gpu(given["gpu"]), load_engine(given["engine"])
    parallelism = Parallelism(tp=given["tp"], pp=given["pp"], ep=given["ep"], dp=given["dp"])
    precision = default_precision(model, given["precision"], given["kv_cache_dtype"])
    require_legal(model, parallelism, precision)
    batched = given["max_num_batched_tokens"] or prefill_budget(engine, gpu)
    sequences = given["max_num_seqs"] or engine.max_num_seqs
    budgets = memory_budgets(model, precision, engine, gpu, parallelism, batched, sequences)
    tokens = kv_capacity(model, precision, engine, parallelism, budgets)
    context = given["context"] or model.max_context
    if context > model.max_context:
        raise SpecError(f"{context:,} tokens exceed the {model.max_context:,} that the model takes")
    needed = float(equivalent_tokens(model, precision.kv_cache, float(context)))
    document = {
        "model": model.name,
        "gpu": gpu.name,
        "parallelism": {name: given[name] for name in ("tp", "pp", "ep", "dp")},
        "num_gpus": parallelism.num_gpus,
        "precision": {
            "weights": precision.weights.value,
            "attention": precision.of_attention.value,
            "experts": precision.of_experts.value,
            "kv_cache": precision.kv_cache.value,
        },
        "fits": min(b.kv_cache for b in budgets) > 0,
        "driver_memory_gib": gpu.memory / GIB,
        "memory_utilization": engine.memory_utilization,
        "free_share": engine.free_share,
        "stages": [
            {
                "layers": layers,
                "usable_gib": b.usable / GIB,
                "weights_gib": b.weights / GIB,
                "activations_gib": b.activations / GIB,
                "reserved_gib": b.reserved / GIB,
                "kv_cache_gib": b.kv_cache / GIB,
            }
            for layers, b in zip(stage_layers(model.num_layers, parallelism.pp), budgets, strict=True)
        ],
        "kv_bytes_per_token": kv_bytes_per_token(model, precision.kv_cache),
        "kv_bytes_per_sequence": kv_bytes_per_sequence(model, precision.kv_cache),
        "kv_tokens": tokens,
        "context": context,
        "sequences": int(tokens // needed),
    }
    if given["as_json"]:
        echo_json(document)
        return
    from planner.report.terminal import print_memory  # rich: only where tables are printed

    print_memory(document, width())

"""``planner models``, ``planner gpus`` and ``planner schema``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from planner.catalog import gpu_names, load_gpu, load_model, model_names
from planner.cli.output import echo_json, width
from planner.documents.files import write_text_atomic
from planner.documents.schemas import schema_names, schema_text
from planner.engines.legality import legal_tp
from planner.errors import SpecError
from planner.specs import GPU, Dtype, Model, Precision
from planner.transformer import kv_bytes_per_token, parameters, weight_bytes
from planner.units import BITS_PER_BYTE, GIB, GIGA, TERA


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def models(ctx: click.Context, as_json: bool) -> None:
    """Models that are known by name, and facts of any model."""
    if ctx.invoked_subcommand is not None:
        return
    facts = [model_facts(load_model(name)) for name in model_names()]
    if as_json:
        echo_json(facts)
        return
    from planner.report.terminal import print_models  # rich: only where tables are printed

    print_models(facts, width())


@models.command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show_model(name: str, as_json: bool) -> None:
    """Facts of NAME: a catalogue name, a config.json or a model directory."""
    facts = model_facts(load_model(name))
    if as_json:
        echo_json(facts)
        return
    for key, value in facts.items():
        click.echo(f"{key:24} {_readable(value)}")


def model_facts(model: Model) -> dict[str, Any]:
    """Fields of DESIGN's model facts; bytes at the checkpoint's weights and a 16-bit KV cache."""
    count = parameters(model)
    precision = Precision(weights=model.checkpoint_dtype, kv_cache=Dtype.BF16)
    return {
        "name": model.name,
        "parameters": count,
        "active_parameters": count,
        "weight_dtype": model.checkpoint_dtype.value,
        "weight_bytes": round(weight_bytes(model, precision)),
        "kv_bytes_per_token": round(kv_bytes_per_token(model, Dtype.BF16)),
        "kv_bytes_per_sequence": 0,
        "layers": model.num_layers,
        "max_context": model.max_context,
        "legal_tp": list(legal_tp(model, 32)),
        "source": model.source,
    }


def _readable(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(str(v) for v in value)
    return f"{value:,}" if isinstance(value, int) else str(value)


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def gpus(ctx: click.Context, as_json: bool) -> None:
    """GPU profiles: peaks, calibration and where they come from."""
    if ctx.invoked_subcommand is not None:
        return
    facts = [gpu_facts(load_gpu(name)) for name in gpu_names()]
    if as_json:
        echo_json(facts)
        return
    from planner.report.terminal import print_gpus  # rich: only where tables are printed

    print_gpus(facts, width())


@gpus.command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show_gpu(name: str, as_json: bool) -> None:
    """The profile of NAME: a catalogue name or a profile's path."""
    facts = gpu_facts(load_gpu(name))
    if as_json:
        echo_json(facts)
        return
    for key, value in facts.items():
        text = (
            ", ".join(f"{k} {v:g}" for k, v in value.items()) if isinstance(value, dict) else _readable(value)
        )
        click.echo(f"{key:24} {text}")


def gpu_facts(gpu: GPU) -> dict[str, Any]:
    """A profile's figures in the units people quote."""
    c = gpu.calibration
    return {
        "name": gpu.name,
        "vendor": gpu.vendor,
        "architecture": gpu.architecture,
        "peak_tflops": {d.value: rate / TERA for d, rate in gpu.peak_flops.items()},
        "hbm_gb_per_s": gpu.hbm_bandwidth / GIGA,
        "memory_gib": gpu.memory / GIB,
        "scale_up": f"{gpu.scale_up_kind} {gpu.scale_up_bandwidth / GIGA:g} GB/s x {gpu.scale_up_domain}",
        "network_gbps": gpu.network_bandwidth * BITS_PER_BYTE / GIGA,
        "power_w": gpu.power,
        "node_size": gpu.node_size,
        "calibration": c.status.value,
        "calibration_date": c.date,
        "calibration_method": c.method,
        "log_sd": dict(c.log_sd),
        "sources": list(gpu.sources),
    }


@click.command()
@click.argument("name", required=False)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write it here instead of stdout.")
def schema(name: str | None, output: Path | None) -> None:
    """JSON Schema of a file kind (scenario, plan, gpu-profile, engine); without NAME, their list.

    Editors complete and check YAML with it: put
    "# yaml-language-server: $schema=scenario.schema.json" at the top of a scenario.
    """
    if name is None:
        click.echo("\n".join(schema_names()))
        return
    if name not in schema_names():
        raise SpecError(f"unknown schema {name!r}; known: {', '.join(schema_names())}")
    if output is None:
        click.echo(schema_text(name), nl=False)
    else:
        write_text_atomic(output, schema_text(name))

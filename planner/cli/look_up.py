"""``planner models``, ``planner gpus`` and ``planner schema``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from planner.catalog import (
    CloudInstance,
    cloud_instances,
    gpu_name,
    gpu_names,
    load_gpu,
    load_model,
    model_names,
)
from planner.cli.completions import complete_gpus, complete_models
from planner.cli.gpu_comparison import compare
from planner.cli.model_facts import model_facts
from planner.cli.output import echo_json, width
from planner.cli.roofline import roofline
from planner.documents.files import write_text_atomic
from planner.documents.schemas import schema_names, schema_text
from planner.errors import SpecError
from planner.specs import GPU
from planner.units import BITS_PER_BYTE, GIB, GIGA, MIB, TERA


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
@click.argument("name", shell_complete=complete_models)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show_model(name: str, as_json: bool) -> None:
    """Facts of NAME: a catalogue name, a config.json or a model directory."""
    facts = model_facts(load_model(name))
    if as_json:
        echo_json(facts)
        return
    for key, value in facts.items():
        if value in (None, []):
            continue
        for i, text in enumerate(value if key in _SENTENCES else [_readable(value)]):
            click.echo(f"{'' if i else key:24} {text}")


_SENTENCES = ("attention_kinds", "feed_forward_kinds", "notes")
"""Facts of a model whose parts are sentences."""


def _readable(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(str(v) for v in value)
    return f"{value:,}" if isinstance(value, int) else str(value)


class _GpuGroup(click.Group):
    """Takes ``--compare A B`` for ``compare A B``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = next((i for i, text in enumerate(args) if not text.startswith("-")), len(args))
        if _COMPARE in args[:first]:
            args = ["compare", *(text for i, text in enumerate(args) if i >= first or text != _COMPARE)]
        return super().parse_args(ctx, args)


_COMPARE = "--compare"


@click.group(cls=_GpuGroup, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(_COMPARE, is_flag=True, help="GPU GPU...: profiles side by side, as `planner gpus compare`.")
@click.pass_context
def gpus(ctx: click.Context, as_json: bool, compare: bool) -> None:
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
@click.argument("name", shell_complete=complete_gpus)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show_gpu(name: str, as_json: bool) -> None:
    """The profile of NAME: a catalogue name or a profile's path."""
    facts = gpu_facts(load_gpu(name))
    if as_json:
        echo_json(facts)
        return
    for key, value in facts.items():
        texts = value if key in _LISTS else [_in_one_line(value)]
        for i, text in enumerate(texts or ["none"]):
            click.echo(f"{'' if i else key:24} {text}")


_LISTS = ("notes", "sources")
"""Facts whose parts are sentences: each on a line of its own."""


def _in_one_line(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {v:g}" for k, v in value.items())
    if isinstance(value, float):
        return f"{value:,.6g}"
    return "none" if value in (None, []) else _readable(value)


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
        "driver_memory_mib": None if gpu.driver_memory is None else gpu.driver_memory / MIB,
        "scale_up": f"{gpu.scale_up_kind} {gpu.scale_up_bandwidth / GIGA:g} GB/s x {gpu.scale_up_domain}",
        "network_gbps": gpu.network_bandwidth * BITS_PER_BYTE / GIGA,
        "power_w": gpu.power,
        "node_size": gpu.node_size,
        "calibration": c.status.value,
        "calibration_date": c.date,
        "calibration_method": c.method,
        "log_sd": dict(c.log_sd),
        "unverified": list(gpu.unverified),
        "notes": list(gpu.notes),
        "sources": list(gpu.sources),
    }


gpus.add_command(compare)
gpus.add_command(roofline)


@gpus.command("prices")
@click.option(
    "--gpu", "gpu", metavar="GPU", shell_complete=complete_gpus, help="Only instances with this GPU."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def gpu_prices(gpu: str | None, as_json: bool) -> None:
    """Rented servers with their prices, dated; a scenario's fleet may name one as its instance."""
    wanted = None if gpu is None else gpu_name(gpu)
    facts = [instance_facts(i) for i in cloud_instances() if wanted in (None, i.gpu)]
    if as_json:
        echo_json(facts)
        return
    from planner.report.terminal import print_instances  # rich: only where tables are printed

    print_instances(facts, width())


def instance_facts(instance: CloudInstance) -> dict[str, Any]:
    """A rented server's figures in the units people quote; None where one is not known."""
    network = instance.network_bandwidth
    return {
        "instance": instance.name,
        "gpu": instance.gpu,
        "gpus": instance.gpus,
        "usd_per_hour": instance.on_demand,
        "usd_per_gpu_hour": instance.price_per_gpu,
        "spot_usd_per_gpu_hour": instance.spot_price_per_gpu,
        "vcpus": instance.vcpus,
        "memory_gb": None if instance.memory is None else instance.memory / GIGA,
        "network_gbps": None if network is None else network * BITS_PER_BYTE / GIGA,
        "network_kind": instance.network_kind,
        "rdma": instance.rdma,
        "region": instance.region,
        "date": instance.date,
        "source": instance.source,
        "status": instance.status,
        "note": instance.note,
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

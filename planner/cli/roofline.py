"""``planner gpus roofline``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from planner.catalog import load_gpu, load_model
from planner.cli.completions import complete_engines, complete_gpus, complete_models
from planner.cli.options import Number
from planner.cli.output import check_picture, echo_json, width
from planner.collectives import nodes_of
from planner.configuration import default_precision
from planner.engines import load_engine
from planner.engines.formats import gpu_obstacle
from planner.engines.legality import require_legal
from planner.errors import SpecError
from planner.memory import kv_capacity, memory_budgets, prefill_budget, tightest
from planner.operating_points import BATCHES, Operating, roofline_of
from planner.rooflines import Roof, Roofline, bare_roofline
from planner.specs import GPU, Engine, Model, Parallelism, Precision
from planner.transformer import equivalent_tokens
from planner.units import GIB, GIGA, MICRO, TERA

MOST_GPUS = 4
_MOST_BATCHES, _MOST_SEQUENCES = 8, 65_536
_PICTURES = (".png", ".svg", ".pdf")
_MODEL_OPTIONS = ("tp", "pp", "ep", "dp", "engine", "precision", "kv_cache_dtype", "isl", "osl", "batch")


def _batches(_context: click.Context, _option: click.Parameter, text: str) -> tuple[int, ...]:
    """Several numbers of sequences, as 1,8,64."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 0 < int(part) <= _MOST_SEQUENCES for part in parts):
        raise click.BadParameter(
            f"{text!r} is no list of whole numbers from 1 to {_MOST_SEQUENCES}, as 1,8,64."
        )
    batches = tuple(sorted({int(part) for part in parts}))
    if len(batches) > _MOST_BATCHES:
        raise click.BadParameter(f"{len(batches)} batches cannot be told apart; at most {_MOST_BATCHES}.")
    return batches


@click.command("roofline")
@click.argument("names", metavar="GPU...", nargs=-1, required=True, shell_complete=complete_gpus)
@click.option(
    "--model",
    "-m",
    shell_complete=complete_models,
    help="Whose operators to show: catalogue name, config.json or directory.",
)
@click.option("--tp", type=click.IntRange(1), default=1, show_default=True, help="Tensor parallel.")
@click.option("--pp", type=click.IntRange(1), default=1, show_default=True, help="Pipeline parallel.")
@click.option("--ep", type=click.IntRange(1), default=1, show_default=True, help="Expert parallel.")
@click.option("--dp", type=click.IntRange(1), default=1, show_default=True, help="Attention ranks.")
@click.option("--engine", default="vllm", show_default=True, shell_complete=complete_engines)
@click.option("--precision", help="Of the weights; default: the checkpoint's.")
@click.option("--kv-cache-dtype", help="Default: the checkpoint's, else 16-bit.")
@click.option("--isl", type=Number(min=1), default=2048, show_default=True, help="Tokens of the prompt.")
@click.option("--osl", type=Number(min=1), default=256, show_default=True, help="Output tokens.")
@click.option(
    "--batch",
    metavar="N,N,...",
    callback=_batches,
    default=",".join(map(str, BATCHES)),
    show_default=True,
    help="Sequences of decode steps.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Draw it here (PNG, SVG or PDF).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def roofline(
    ctx: click.Context, /, names: tuple[str, ...], output: Path | None, as_json: bool, **given: Any
) -> None:
    """What GPUs attain at each arithmetic intensity: datasheet, calibration, and a model's operators.

    With a model: its matrix products, attention and experts, in a prompt of --isl tokens and in decode steps
    at a context of --isl and half of --osl, on one GPU of a replica. Left of the ridge memory bounds,
    right of it compute. GPU is a catalogue name or a profile's path.
    """
    check_picture(output, tuple(Path(name) for name in names if Path(name).is_file()), _PICTURES)
    if len(names) > MOST_GPUS:
        raise SpecError(f"{len(names)} GPUs are too many for one picture (at most {MOST_GPUS})")
    if given["model"] is None:
        for option in _MODEL_OPTIONS:
            if ctx.get_parameter_source(option) is click.core.ParameterSource.COMMANDLINE:
                raise SpecError(f"--{option.replace('_', '-')} says how a model is run: add --model")
    gpus = [load_gpu(name) for name in names]
    found = [_roofline(gpu, given) for gpu in gpus]
    notes = [note for _, own in found for note in own]
    rooflines = [one for one, _ in found]
    if output is not None:
        from planner.report.roofline_plot import save_rooflines  # matplotlib: only for pictures

        save_rooflines(rooflines, output, _title(given))
    if as_json:
        echo_json({"rooflines": [roofline_facts(one) for one in rooflines], "notes": notes})
        return
    from planner.report.gpus import print_rooflines  # rich: only where tables are printed

    print_rooflines(rooflines, notes, width())
    if output is not None:
        click.echo(f"\npicture written to {output}")


def _title(given: dict[str, Any]) -> str:
    if given["model"] is None:
        return ""
    return f"{load_model(given['model']).name} {_layout(given)}"


def _layout(given: dict[str, Any]) -> Parallelism:
    return Parallelism(**{name: given[name] for name in ("tp", "pp", "ep", "dp")})


def _roofline(gpu: GPU, given: dict[str, Any]) -> tuple[Roofline, list[str]]:
    """A GPU's roofs, with the model's operators if there is one, and what to know of them."""
    if given["model"] is None:
        return bare_roofline(gpu), []
    model, engine, layout = load_model(given["model"]), load_engine(given["engine"]), _layout(given)
    precision = default_precision(model, given["precision"], given["kv_cache_dtype"])
    obstacle = gpu_obstacle(gpu, engine)
    if obstacle:
        raise SpecError(obstacle)
    require_legal(model, layout, precision)
    nodes_of(gpu, layout)  # raises where it is not known how ranks meet
    isl, osl, batches = given["isl"], given["osl"], given["batch"]
    if isl + osl > model.max_context:
        raise SpecError(f"{isl + osl:,.0f} tokens exceed the {model.max_context:,} that the model takes")
    context = isl + osl / 2
    operating = Operating(isl=isl, context=context, batches=batches)
    notes = list(_misfits(gpu, model, precision, engine, layout, context, max(batches)))
    return roofline_of(gpu, model, precision, engine, layout, operating), notes


def _misfits(
    gpu: GPU,
    model: Model,
    precision: Precision,
    engine: Engine,
    layout: Parallelism,
    context: float,
    batch: float,
) -> list[str]:
    """What of the picture has no room in the GPU's memory."""
    sequences = engine.max_num_seqs
    budgets = memory_budgets(
        model, precision, engine, gpu, layout, prefill_budget(engine, gpu), sequences, None
    )
    fullest = tightest(budgets)
    if not fullest.fits:
        return [f"{gpu.name}: the weights do not fit: {-fullest.kv_cache / GIB:.1f} GiB per GPU are missing"]
    held = kv_capacity(model, precision, engine, layout, budgets)
    each = float(equivalent_tokens(model, precision.kv_cache, context))
    if batch * each <= held:
        return []
    most = f"{held // each:,.0f} sequences of {context:,.0f} tokens"
    return [f"{gpu.name}: the KV cache holds {most}, not {batch:g}"]


def roofline_facts(one: Roofline) -> dict[str, Any]:
    """The JSON of a roofline, in the units people quote."""
    return {
        "gpu": one.gpu,
        "calibration": one.calibration,
        "roofs": [roof_facts(roof) for roof in one.roofs],
        "points": [
            {
                "phase": row["phase"],
                "operator": row["operator"],
                "dtype": row["dtype"],
                "batch": row["batch"],
                "context": row["context"],
                "gflop": row["flop"] / GIGA,
                "gb": row["bytes"] / GIGA,
                "time_us": row["seconds"] / MICRO,
                "flop_per_byte": row["flop_per_byte"],
                "tflops": row["flop_per_second"] / TERA,
                "ridge_flop_per_byte": row["ridge_flop_per_byte"],
                "bound": row["bound"],
                "share_of_roof": row["share_of_roof"],
            }
            for row in one.rows()
        ],
    }


def roof_facts(roof: Roof) -> dict[str, Any]:
    """A roof's figures in the units people quote."""
    return {
        "dtype": roof.dtype.value,
        "peak_tflops": roof.peak / TERA,
        "hbm_gb_per_s": roof.bandwidth / GIGA,
        "ridge_flop_per_byte": roof.ridge,
        "calibrated_tflops": roof.compute_rate / TERA,
        "calibrated_gb_per_s": roof.memory_rate / GIGA,
        "calibrated_ridge_flop_per_byte": roof.calibrated_ridge,
    }

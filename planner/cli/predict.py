"""``planner predict``."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import click

from planner.anchoring import measured_point
from planner.catalog import load_gpu, load_model
from planner.cli.options import Number, engine_profile_option, replica_options
from planner.cli.output import echo_json, width
from planner.cli.pools import pool_of
from planner.configuration import Configuration, Load, Prediction, Replicas, default_precision
from planner.configuration import predict as predict_configuration
from planner.documents.engine_profile import load_engine_profile
from planner.documents.names import unknown_name
from planner.engines import load_engine, measured_versions, profiled_engine
from planner.errors import InfeasibleError, SpecError
from planner.latency import OperatorTime
from planner.specs import Engine, MeasuredPoint, Parallelism, Speculation
from planner.specs.speculation import MAX_DRAFT, MAX_DRAFT_COST, MAX_DRAFT_GB, MAX_DRAFT_MS
from planner.units import GIB, GIGA, MILLI

_MEASURED = "concurrency=64,isl=1024,osl=1024,tpot_ms=12.3"
_MEASURED_KEYS = ("concurrency", "isl", "osl", "tpot_ms")
_MEASURED_SIZES = ("tp", "pp", "ep", "dp")
_MEASURED_NAMES = ("gpu", "precision", "kv_cache_dtype")
_MEASURED_UNUSED = "ttft_ms"


@click.command()
@replica_options
@click.option("--mode", type=click.Choice(["colocated", "disagg"]), default="colocated", show_default=True)
@click.option("--replicas", type=click.IntRange(1), default=1, show_default=True, help="Colocated replicas.")
@click.option(
    "--prefill", metavar="NxTP[@GPU]", help="Prefill pool of --mode disagg: 2xTP4, 2xTP4PP2@l40s, 1xTP8EP8."
)
@click.option("--decode", metavar="NxTP[@GPU]", help="Decode pool of --mode disagg.")
@click.option("--concurrency", "-c", type=Number(min=1), help="Clients in a closed loop.")
@click.option("--rate", type=Number(min=0, min_open=True), help="Poisson arrivals. [req/s]")
@click.option("--isl", type=Number(min=1), required=True, help="Input tokens.")
@click.option("--osl", type=Number(min=1), required=True, help="Output tokens.")
@click.option(
    "--draft-tokens", type=click.IntRange(1, MAX_DRAFT), help="Speculative decoding: tokens drafted per step."
)
@click.option(
    "--accepted-tokens", type=Number(min=1), help="Mean tokens that a step emits, the model's own included."
)
@click.option(
    "--draft-cost",
    type=Number(min=0, max=MAX_DRAFT_COST),
    help="Time of drafting, as a share of a step without it.",
)
@click.option("--draft-ms", type=Number(min=0, max=MAX_DRAFT_MS), help="The same as a time. [ms]")
@click.option(
    "--draft-weights-gb", type=Number(min=0, max=MAX_DRAFT_GB), help="Memory of the draft on each GPU. [GB]"
)
@click.option(
    "--measured",
    metavar="KEY=VALUE,...",
    help=f"One measured point without a draft, for example {_MEASURED}: predictions go through it. "
    "gpu, tp, pp, ep, dp, precision and kv_cache_dtype where they differ.",
)
@click.option(
    "--engine-version",
    metavar="VERSION",
    help="Whose constants count, of versions that were measured. Default: those for the engine file's.",
)
@engine_profile_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def predict(**given: Any) -> None:
    """TTFT and TPOT of one configuration, broken down by operator.

    With --concurrency, the clients of a loop that has run for long. A benchmark's figures have more in them:
    the client, HTTP, and a first wave of requests that all come at once; `planner validate` counts these.
    """
    load = Load(isl=given["isl"], osl=given["osl"], concurrency=given["concurrency"], rate=given["rate"])
    configuration = _configuration(given)
    point = None
    if given["measured"] is not None:
        point = _measured(given, configuration)
        engine = configuration.engine.with_factor(configuration.model.shape, point.factor)
        configuration = replace(configuration, engine=engine)
    try:
        prediction = predict_configuration(configuration, load)
        if point is not None:
            prediction = replace(prediction, notes=(*prediction.notes, _note(point, given["measured"])))
    except InfeasibleError as error:
        if given["as_json"]:
            echo_json({"ttft_ms": None, "tpot_ms": None, "fits": False, "reason": str(error)})
        raise
    if given["as_json"]:
        echo_json(_document(prediction, point))
        return
    from planner.report.terminal import print_prediction  # rich: only where tables are printed

    print_prediction(configuration, load, prediction, width())


def _configuration(given: dict[str, Any]) -> Configuration:
    model = load_model(given["model"])
    precision = default_precision(model, given["precision"], given["kv_cache_dtype"])
    engine = _engine(given)
    speculation = _speculation(given)
    if given["mode"] == "colocated":
        if given["prefill"] or given["decode"]:
            raise SpecError("--prefill and --decode belong to --mode disagg")
        sizes = {name: given[name] for name in ("tp", "pp", "ep", "dp")}
        parallelism = Parallelism(**sizes)
        replicas = Replicas(count=given["replicas"], gpu=load_gpu(given["gpu"]), parallelism=parallelism)
        return Configuration(
            model=model, precision=precision, engine=engine, colocated=replicas, speculation=speculation
        )
    context = click.get_current_context()
    idle = [n for n in ("tp", "pp", "ep", "dp", "replicas") if _was_given(context, n)]
    if idle:
        raise SpecError(
            f"--{idle[0]} belongs to --mode colocated; with disagg say 2xTP4, 1xTP8EP8 or 1xDP8EP8"
        )
    prefill, decode = (pool_of(name, given[name], given["gpu"]) for name in ("prefill", "decode"))
    return Configuration(
        model=model,
        precision=precision,
        engine=engine,
        prefill=prefill,
        decode=decode,
        speculation=speculation,
    )


def _speculation(given: dict[str, Any]) -> Speculation | None:
    """What the draft does; nothing of it has a default."""
    options = ("draft_tokens", "accepted_tokens", "draft_cost", "draft_ms", "draft_weights_gb")
    said = [name for name in options if given[name] is not None]
    if not said:
        return None
    for name in options[:2]:
        if given[name] is None:
            needs = f"--{said[0].replace('_', '-')} needs --{name.replace('_', '-')}"
            raise SpecError(f"{needs}: speculative decoding is computed from numbers that were measured")
    drafting = given["draft_ms"]
    return Speculation(
        draft_tokens=given["draft_tokens"],
        accepted_tokens=given["accepted_tokens"],
        draft_share=given["draft_cost"],
        draft_time=None if drafting is None else drafting * MILLI,
        draft_weights=(given["draft_weights_gb"] or 0.0) * GIGA,
    )


def _engine(given: dict[str, Any]) -> Engine:
    name, version, path = given["engine"], given["engine_version"], given["engine_profile"]
    if path is not None:
        if version is not None:
            raise SpecError("--engine-version: the engine profile says which version was measured")
        profile = load_engine_profile(path)
        own = name if _was_given(click.get_current_context(), "engine") else profile.engine
        return profiled_engine(own, profile)
    engine = load_engine(name, version)
    if version is None or version in measured_versions(name):
        return engine
    rule, suggestion = unknown_name("version", version, measured_versions(name))
    raise SpecError(f"--engine-version: {rule} {version!r} of {engine.name}: {suggestion}")


def _was_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def _measured(given: dict[str, Any], c: Configuration) -> MeasuredPoint:
    """The measured point, of the replica that the command gives where it says nothing else."""
    text = given["measured"]
    known = (*_MEASURED_KEYS, *_MEASURED_SIZES, *_MEASURED_NAMES, _MEASURED_UNUSED)
    said: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise SpecError(f"--measured: {part.strip()!r} is not KEY=VALUE; for example {_MEASURED}")
        if key not in known:
            rule, hint = unknown_name("key", key, known)
            raise SpecError(f"--measured: {rule} {key!r}; {hint}")
        if key in said:
            raise SpecError(f"--measured: {key} is given twice")
        said[key] = value
    absent = [key for key in _MEASURED_KEYS if key not in said]
    if absent:
        raise SpecError(f"--measured: {absent[0]} is missing; for example {_MEASURED}")
    numbers = {key: _number(key, said[key]) for key in (*_MEASURED_KEYS, _MEASURED_UNUSED) if key in said}
    if numbers["osl"] < 2:
        raise SpecError(f"--measured: osl must be at least 2 to have a TPOT, got {said['osl']}")
    sizes = {key: _count(key, said[key]) if key in said else given[key] for key in _MEASURED_SIZES}
    precision = c.precision
    try:
        if "precision" in said or "kv_cache_dtype" in said:
            weights, kv_cache = (said.get(k, given[k]) for k in ("precision", "kv_cache_dtype"))
            precision = default_precision(c.model, weights, kv_cache)
        return measured_point(
            c.model,
            c.engine,
            load_gpu(said.get("gpu", given["gpu"])),
            Parallelism(**sizes),
            precision,
            concurrency=numbers["concurrency"],
            isl=numbers["isl"],
            osl=numbers["osl"],
            tpot=numbers["tpot_ms"] * MILLI,
        )
    except SpecError as error:
        raise SpecError(f"--measured: {error}") from error


def _note(point: MeasuredPoint, text: str) -> str:
    unused = "; its TTFT is not used" if _MEASURED_UNUSED in text else ""
    return f"through the measured point, {point}{unused}"


def _number(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        raise SpecError(f"--measured: {key} must be a finite number > 0, got {text!r}")
    return value


def _count(key: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise SpecError(f"--measured: {key} must be a whole number >= 1, got {text!r}")
    return int(text)


def _document(p: Prediction, point: MeasuredPoint | None) -> dict[str, Any]:
    memory = p.memory
    total = memory.weights + memory.activations + memory.reserved + memory.kv_cache
    return {
        "ttft_ms": p.ttft / MILLI,
        "tpot_ms": p.tpot / MILLI,
        "ttft_ms_range": [t / MILLI for t in p.ttft_range],
        "tpot_ms_range": [t / MILLI for t in p.tpot_range],
        "requests_per_second": p.rate,
        "batch": p.batch,
        "fits": True,
        "memory_gib": {
            "weights": memory.weights / GIB,
            "kv": memory.kv_cache / GIB,
            "activations": memory.activations / GIB,
            "reserved": memory.reserved / GIB,
            "total": total / GIB,
            "usable": memory.usable / GIB,
        },
        "kv_bytes_per_token": p.kv_bytes_per_token,
        "kv_tokens": p.kv_tokens,
        "max_concurrency": p.max_concurrency,
        "breakdown": [*_lines("prefill", p.prefill), *_lines("decode", p.decode)],
        "notes": list(p.notes),
        **({} if point is None else {"kernel_factor": point.factor}),
    }


def _lines(step: str, operators: tuple[OperatorTime, ...]) -> list[dict[str, Any]]:
    total = math.fsum(o.time for o in operators)
    return [
        {"step": step, "operator": o.name, "ms": o.time / MILLI, "share": o.time / total} for o in operators
    ]

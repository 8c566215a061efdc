"""What load tests ran on: options, or a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from planner.catalog import load_gpu, load_model
from planner.cli.completions import complete_engines, complete_gpus, complete_models
from planner.cli.options import Number
from planner.cli.pools import pool_of
from planner.configuration import Configuration, Replicas, default_precision
from planner.documents.files import begins_as_json
from planner.documents.load_tests import LoadTest, read_load_tests
from planner.documents.measured_file import (
    MeasuredFile,
    MeasuredRow,
    is_measured,
    measured_columns,
    read_measured,
)
from planner.documents.plan import load_plan
from planner.engines import estimated_engine
from planner.errors import SpecError
from planner.specs import Engine, Parallelism
from planner.standing import Standing, standing_plan
from planner.validation.evidence import Evidence, Setup

Command = TypeVar("Command", bound=Callable[..., Any])
_SIZES = ("tp", "pp", "ep", "dp")
_OF_PLAN = (
    "model", "gpu", *_SIZES, "replicas", "mode", "prefill", "decode", "precision", "kv_cache_dtype", "engine",
)  # fmt: skip


def setup_options(command: Command) -> Command:
    """What was measured, as far as its files do not say."""
    size = click.IntRange(1)
    options = (
        click.option(
            "--model",
            "-m",
            shell_complete=complete_models,
            help="Catalogue name, config.json or model directory.",
        ),
        click.option("--gpu", "-g", shell_complete=complete_gpus, help="GPU profile name or path."),
        click.option("--tp", type=size, default=1, show_default=True, help="Tensor parallel."),
        click.option("--pp", type=size, default=1, show_default=True, help="Pipeline parallel."),
        click.option("--ep", type=size, default=1, show_default=True, help="Expert parallel."),
        click.option("--dp", type=size, default=1, show_default=True, help="Attention ranks."),
        click.option("--replicas", type=size, default=1, show_default=True, help="Behind one router."),
        click.option(
            "--mode", type=click.Choice(["colocated", "disagg"]), default="colocated", show_default=True
        ),
        click.option("--prefill", metavar="NxTP", help="Prefill pool of --mode disagg: 2xTP4, 1xTP8EP8."),
        click.option("--decode", metavar="NxTP", help="Decode pool of --mode disagg."),
        click.option("--precision", "--weights", help="Of the weights; default: the checkpoint's."),
        click.option("--kv-cache-dtype", help="Default: the checkpoint's, else 16-bit."),
        click.option("--engine", shell_complete=complete_engines, help="vllm, sglang or trtllm."),
        click.option(
            "--engine-version",
            metavar="VERSION",
            help="That ran; default: that of the engine's file. Of a measured CSV: rows of this one.",
        ),
        click.option(
            "--plan",
            type=click.Path(path_type=Path),
            help="All of this from a plan whose fleet was measured.",
        ),
        click.option("--service", metavar="NAME", help="Of a plan with several services."),
        click.option(
            "--concurrency",
            "-c",
            type=Number(min=1),
            help="Clients, for files that do not say how requests came.",
        ),
        click.option("--rate", type=Number(min=0, min_open=True), help="The same: Poisson arrivals. [req/s]"),
    )
    for option in reversed(options):
        command = option(command)
    return command


def split_results(paths: Sequence[Path]) -> tuple[list[LoadTest], list[MeasuredFile]]:
    """Load tests, and files whose rows say themselves what they are of.

    Raises
    ------
    SpecError
        Of no known kind.
    """
    tests: list[LoadTest] = []
    files = []
    for path in paths:
        if str(path) == "-":
            raise SpecError("RESULTS: must be files; standard input is not read")
        if not begins_as_json(path) and is_measured(measured_columns(path)):
            files.append(read_measured(path))
        else:
            tests += read_load_tests(path)
    return tests, files


def setup_of(given: dict[str, Any], tests: Sequence[LoadTest], rows: Sequence[MeasuredRow]) -> Setup | None:
    """What the load tests ran on; None where there are none.

    Raises
    ------
    SpecError
        Options that are missing, contradict one another, or belong to no file.
    """
    context = click.get_current_context()
    said = [n for n in _OF_PLAN if context.get_parameter_source(n) is click.core.ParameterSource.COMMANDLINE]
    if not tests:
        idle = [name for name in (*said, "plan", "service", "concurrency", "rate") if given[name] is not None]
        idle = [name for name in dict.fromkeys(idle) if name != "engine"]
        if idle:
            raise SpecError(f"--{idle[0].replace('_', '-')}: rows of a measured CSV say it themselves")
        return None
    if given["concurrency"] is not None and given["rate"] is not None:
        raise SpecError("give either --concurrency or --rate, not both")
    if (given["concurrency"] or given["rate"]) and all(test.load_known for test in tests):
        raise SpecError("--concurrency, --rate: every file says how its requests came")
    if given["plan"] is not None:
        if said:
            raise SpecError(f"--{said[0].replace('_', '-')}: --plan says it")
        return _of_plan(given)
    if given["service"] is not None:
        raise SpecError("--service: belongs to --plan")
    for name in ("model", "gpu", "engine"):
        if given[name] is None:
            raise SpecError(
                f"--{name} is missing: {tests[0].path} does not say what was measured (give --model, --gpu, "
                "--engine and the parallel sizes, or --plan)"
            )
    return _of_options(given, said)


def _of_options(given: dict[str, Any], said: Sequence[str]) -> Setup:
    model, engine = load_model(given["model"]), _engine(given["engine"], given["engine_version"])
    precision = default_precision(model, given["precision"], given["kv_cache_dtype"])
    if given["mode"] == "colocated":
        if given["prefill"] or given["decode"]:
            raise SpecError("--prefill and --decode belong to --mode disagg")
        layout = Parallelism(**{name: given[name] for name in _SIZES})
        only = Replicas(count=given["replicas"], gpu=load_gpu(given["gpu"]), parallelism=layout)
        configuration = Configuration(model=model, precision=precision, engine=engine, colocated=only)
        pools: tuple[Replicas, ...] = (only,)
    else:
        idle = [name for name in (*_SIZES, "replicas") if name in said]
        if idle:
            raise SpecError(f"--{idle[0]} belongs to --mode colocated; with disagg say 2xTP4 or 1xTP8EP8")
        prefill, decode = (pool_of(name, given[name], given["gpu"]) for name in ("prefill", "decode"))
        configuration = Configuration(
            model=model, precision=precision, engine=engine, prefill=prefill, decode=decode
        )
        pools = (prefill, decode)
    if len({pool.gpu.name for pool in pools}) > 1:
        raise SpecError("--prefill, --decode: both pools have to be on one GPU type (measure each by itself)")
    return Setup(
        model=configuration.model,
        gpu=pools[0].gpu,
        engine=engine,
        precision=precision,
        pools=tuple((pool.count, pool.parallelism) for pool in pools),
    )


def _of_plan(given: dict[str, Any]) -> Setup:
    path = given["plan"]
    plan = load_plan(path)
    standing = standing_plan(plan, path.parent, str(path), service=given["service"])
    groups = standing.fleet.groups
    kinds = {(group.item.gpu.name, group.phase, group.parallelism) for group in groups}
    if len({gpu for gpu, _, _ in kinds}) > 1 or len(kinds) > len({phase for _, phase, _ in kinds}):
        raise SpecError(
            f"{path}: its pools mix GPU types or layouts, of which a load test tells nothing apart (measure "
            "one replica and give --model, --gpu, --engine and its sizes)"
        )
    service, first = standing.fleet.service, groups[0]
    return Setup(
        model=service.model,
        gpu=first.item.gpu,
        engine=_engine(standing.fleet.engine.name, given["engine_version"] or plan.engine_version),
        precision=first.precision or service.precision,
        pools=_pools(standing),
    )


def _pools(standing: Standing) -> tuple[tuple[int, Parallelism], ...]:
    """Replicas and layout of each phase, prefill first."""
    phases = sorted({g.phase for g in standing.fleet.groups}, key=lambda phase: phase.value, reverse=True)
    return tuple(
        (sum(g.replicas for g in own), own[0].parallelism)
        for phase in phases
        if (own := [g for g in standing.fleet.groups if g.phase is phase])
    )


def _engine(name: str, version: str | None) -> Engine:
    engine = estimated_engine(name)
    return engine if version is None else replace(engine, version=version)


def version_of(
    given: dict[str, Any], setup: Setup | None, evidence: Sequence[Evidence]
) -> tuple[str, tuple[str, ...]]:
    """The version that was measured, and what was taken for granted."""
    if setup is not None:
        if given["engine_version"] is not None or given["plan"] is not None:
            return setup.engine.version, ()
        return setup.engine.version, (
            f"--engine-version was not given: taken for {setup.engine.name} {setup.engine.version}",
        )
    versions = Counter(e.key[1] for e in evidence)
    found = given["engine_version"] or versions.most_common(1)[0][0]
    if len(versions) > 1:
        return found, (
            f"rows of {len(versions)} versions move constants together: {', '.join(sorted(versions))}",
        )
    return found, ()

"""``planner init``."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from planner.cli.completions import complete_engines, complete_gpus, complete_models, complete_presets
from planner.cli.init_questions import ask, without_flags
from planner.documents.files import check_writable, file_error, write_text_atomic
from planner.documents.scenario_draft import (
    Draft,
    DraftGpu,
    answer_of,
    draft_problems,
    draft_text,
    is_instance,
    known_price,
    seen_from_folder,
    without_price,
)
from planner.errors import Problem, SpecError
from planner.specs import Objective

_FLAGS = {
    "model": "--model", "engine": "--engine", "rate": "--rate", "isl": "--isl", "osl": "--osl",
    "preset": "--preset", "trace": "--trace", "ttft_p99_ms": "--ttft-p99-ms",
    "tpot_p99_ms": "--tpot-p99-ms", "fleet": "--gpu", "objective": "--objective",
}  # fmt: skip
_GPU_FORM = "NAME, NAME:PRICE or NAME:PRICE:MAX; PRICE in USD/h of one GPU, or owned, or nothing"


def _gpus(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> list[DraftGpu]:
    """NAME[:price[:max]], several times."""
    return [_gpu(value) for value in values]


def _gpu(text: str) -> DraftGpu:
    name, *rest = (part.strip() for part in text.split(":"))
    price, most = (*rest, "", "")[:2]
    try:
        if not name or len(rest) > 2:
            raise ValueError
        owned = price.lower() == "owned"
        return DraftGpu(
            name=name,
            price=float(price) if price and not owned else None,
            owned=owned,
            max_gpus=int(most) if most else None,
        )
    except ValueError:
        raise click.BadParameter(f"{text!r} is not {_GPU_FORM}") from None


@click.command()
@click.argument(
    "scenario", type=click.Path(path_type=Path), default=Path("scenario.yaml"), metavar="[SCENARIO.yaml]"
)
@click.option(
    "--model",
    "-m",
    default="",
    shell_complete=complete_models,
    help="Catalogue name, config.json or model directory.",
)
@click.option("--engine", shell_complete=complete_engines, help="vllm, sglang or trtllm.  [default: vllm]")
@click.option("--rate", type=float, metavar="REQ/S", help="Mean arrivals.")
@click.option("--isl", type=float, metavar="TOKENS", help="Length of the prompts.")
@click.option("--osl", type=float, metavar="TOKENS", help="Length of the answers.")
@click.option(
    "--preset", default="", shell_complete=complete_presets, help="Recorded traffic instead of lengths."
)
@click.option("--trace", default="", metavar="FILE", help="Your own recorded traffic instead.")
@click.option("--ttft-p99-ms", type=float, metavar="MS", help="Most time to first token, 99th percentile.")
@click.option("--tpot-p99-ms", type=float, metavar="MS", help="Most time per output token, 99th percentile.")
@click.option(
    "--gpu",
    "fleet",
    multiple=True,
    callback=_gpus,
    shell_complete=complete_gpus,
    metavar="NAME[:PRICE[:MAX]]",
    help="GPU type or cloud instance to choose from; PRICE of one [USD/h], or owned; left out: looked up.",
)
@click.option(
    "--objective",
    type=click.Choice([str(o) for o in Objective]),
    help="What is made small; throughput: the rate, made large.  [default: cost]",
)
@click.option("--force", is_flag=True, help="Replace the file where it exists.")
def init(
    scenario: Path,
    model: str,
    engine: str | None,
    rate: float | None,
    isl: float | None,
    osl: float | None,
    preset: str,
    trace: str,
    ttft_p99_ms: float | None,
    tpot_p99_ms: float | None,
    fleet: list[DraftGpu],
    objective: str | None,
    force: bool,
) -> None:
    """Write a first scenario, with a word on every key, that `planner solve` takes as it is.

    On a terminal, what no option gives is asked for, and every answer is checked at once. A price that is not
    given is looked up in the catalogue of clouds; where it has none, the file says what to fill in.
    """
    _check_new(scenario, force)
    given = Draft(
        rate=rate,
        isl=isl,
        osl=osl,
        preset=preset,
        trace=trace,
        ttft_p99_ms=ttft_p99_ms,
        tpot_p99_ms=tpot_p99_ms,
    )
    named = {key for key, value in (("model", model), ("engine", engine), ("objective", objective)) if value}
    draft = replace(
        given,
        fleet=tuple(fleet),
        model=model or given.model,
        engine=engine or given.engine,
        objective=objective or given.objective,
    )
    draft = _in_folder(draft, scenario.parent)
    if missing := without_flags(draft, named):
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise SpecError(f"missing: {', '.join(missing)} (or run it on a terminal, to be asked)")
        _refuse(draft, scenario)  # what is wrong with the options is said before anything is asked
        draft = ask(draft, named, scenario.parent)
    draft = replace(draft, fleet=tuple(_priced(gpu, draft, scenario.parent) for gpu in draft.fleet))
    _refuse(draft, scenario)
    _check_new(scenario, force)
    write_text_atomic(scenario, draft_text(draft))
    click.echo(f"scenario written to {scenario}")
    for name in without_price(draft):
        click.echo(f"planner: the price of {name} is not known: fill it in, where the file says so", err=True)
    click.echo(f"next: planner solve {scenario} -o plan.yaml")


def _check_new(path: Path, force: bool) -> None:
    """Refuse to write over a file, unless told to; and what could not be written."""
    if path.is_file() and not force:
        raise file_error(path, "exists already", "another name, or --force")
    check_writable(path)


def _in_folder(draft: Draft, folder: Path) -> Draft:
    """Paths as the file in `folder` has to say them."""
    return replace(
        draft,
        model=seen_from_folder("model", draft.model, folder),
        preset=seen_from_folder("preset", draft.preset, folder),
        trace=seen_from_folder("trace", draft.trace, folder),
        fleet=tuple(replace(gpu, name=seen_from_folder("gpu", gpu.name, folder)) for gpu in draft.fleet),
    )


def _priced(gpu: DraftGpu, draft: Draft, folder: Path) -> DraftGpu:
    """A GPU with the price that is looked up where one is needed and none was given."""
    if not draft.priced or gpu.owned or gpu.price is not None or is_instance(gpu.name):
        return gpu
    try:
        found = known_price(gpu.name, folder)
    except SpecError:  # no such GPU, which is said with everything else
        return gpu
    return gpu if found is None else gpu.at(found)


def _refuse(draft: Draft, path: Path) -> None:
    """Every problem of the answers at once, by the option that gave it."""
    problems = [_of_option(problem) for problem in draft_problems(draft, path.parent)]
    if problems:
        raise SpecError.of_file(f"{path} is not written", problems)


def _of_option(problem: Problem) -> Problem:
    return replace(problem, line=0, key=_FLAGS.get(answer_of(problem.key), problem.key))

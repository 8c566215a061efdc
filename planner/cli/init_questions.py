"""What ``planner init`` asks on a terminal, one answer after the other, each checked by the real readers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from planner.catalog import gpu_names, model_names, traffic_names
from planner.documents.names import unknown_name
from planner.documents.scenario_draft import (
    Draft,
    DraftGpu,
    answer_of,
    draft_problems,
    is_instance,
    known_price,
    seen_from_folder,
    without_price,
)
from planner.engines import engine_names
from planner.errors import SpecError
from planner.specs import Objective

_SHOWN = 6  # names of a catalogue in a question
_LENGTHS, _PRESET, _TRACE = "lengths", "preset", "trace"
_NONE = "none"


def without_flags(draft: Draft, named: set[str]) -> list[str]:
    """Options that are missing; `named` are the fields that were given although they have defaults."""
    missing = []
    if "model" not in named:
        missing.append("--model")
    if not draft.recorded:
        if draft.rate is None and draft.objective != Objective.THROUGHPUT:
            missing.append("--rate")
        lengths = {"--isl": draft.isl, "--osl": draft.osl}
        absent = [flag for flag, value in lengths.items() if value is None]
        missing += [f"{' and '.join(absent)} (or --preset, --trace)"] if absent else []
    if draft.ttft_p99_ms is None and draft.tpot_p99_ms is None:
        missing.append("--ttft-p99-ms or --tpot-p99-ms")
    if not draft.fleet:
        missing.append("--gpu")
    return missing


def ask(draft: Draft, named: set[str], folder: Path) -> Draft:
    """The draft with every answer that it lacks.

    Raises
    ------
    click.Abort
        On Ctrl-C, or where the terminal has closed.
    """
    click.echo("Enter takes what is in brackets; Ctrl-C leaves without a file.\n", err=True)
    if "model" not in named:
        some = ", ".join(model_names()[:_SHOWN])
        click.echo(f"Models: {some}, ... (planner models), or a path", err=True)
        draft = _answer(draft, "model", "Model", draft.model, str, folder)
    if "engine" not in named:
        text = f"Engine ({', '.join(engine_names())})"
        draft = _answer(draft, "engine", text, draft.engine, _one_of("engine", engine_names()), folder)
    if "objective" not in named:
        goals = [str(o) for o in Objective]
        text = f"Objective ({', '.join(goals)})"
        draft = _answer(draft, "objective", text, goals[0], _one_of("objective", goals), folder)
    draft = _traffic(draft, folder)
    if draft.ttft_p99_ms is None and draft.tpot_p99_ms is None:
        text = "Most time to first token, 99th percentile [ms], or none"
        draft = _answer(draft, "ttft_p99_ms", text, "1000", _limit(True), folder)
        bounded = draft.ttft_p99_ms is not None
        text = "Most time per output token, 99th percentile [ms]" + (", or none" if bounded else "")
        draft = _answer(draft, "tpot_p99_ms", text, "40", _limit(bounded), folder)
    return draft if draft.fleet else _fleet(draft, folder)


def _traffic(draft: Draft, folder: Path) -> Draft:
    if not draft.recorded and draft.isl is None and draft.osl is None:
        kinds = (_LENGTHS, _PRESET, _TRACE)
        text = f"Traffic: {_LENGTHS} of prompts and answers, a recorded {_PRESET}, or your own {_TRACE}"
        kind = _prompt(text, _LENGTHS, _one_of("kind of traffic", kinds))
        if kind == _PRESET:
            click.echo(f"Presets: {', '.join(traffic_names())}", err=True)
            draft = _answer(draft, "preset", "Preset", traffic_names()[0], str, folder)
        elif kind == _TRACE:
            draft = _answer(draft, "trace", "Trace (CSV or JSON lines)", None, str, folder)
    if not draft.recorded:
        if draft.isl is None:
            draft = _answer(draft, "isl", "Length of the prompts [tok]", "1000", _number, folder)
        if draft.osl is None:
            draft = _answer(draft, "osl", "Length of the answers [tok]", "200", _number, folder)
    if draft.rate is None and draft.objective != Objective.THROUGHPUT:
        recorded = "recorded" if draft.recorded else "10"
        text = "Requests per second" + (", or recorded" if draft.recorded else "")
        draft = _answer(draft, "rate", text, recorded, _rate(bool(draft.recorded)), folder)
    return draft


def _fleet(draft: Draft, folder: Path) -> Draft:
    """GPU types one after the other, until an empty answer."""
    click.echo(f"GPUs: {', '.join(gpu_names())}; or a cloud's instance (planner gpus prices)", err=True)
    while True:
        first = not draft.fleet
        text = "GPU type" if first else "Another GPU type, or none"
        name = _prompt(text, "h100-sxm" if first else _NONE, _gpu(draft, folder, optional=not first))
        if name is None:
            return draft
        gpu = DraftGpu(name=name)
        draft = _with_last(replace(draft, fleet=(*draft.fleet, gpu)), _asked_price(draft, gpu, folder))
        needed = draft.objective == Objective.THROUGHPUT
        text = "How many of them can be had" + ("" if needed else ", or any")
        most = _prompt(text, "8" if needed else "any", _count(optional=not needed))
        draft = _with_last(draft, replace(draft.fleet[-1], max_gpus=most))


def _asked_price(draft: Draft, gpu: DraftGpu, folder: Path) -> DraftGpu:
    """The GPU with its price, where one is needed: the catalogue's is the default, else there is none."""
    priced = replace(draft, fleet=(gpu,))
    if not draft.priced or (is_instance(gpu.name) and not without_price(priced)):
        return gpu
    found = None if is_instance(gpu.name) else known_price(gpu.name, folder)
    if found is not None:
        click.echo(f"Known: {found.price:.6g} USD/h, {found.source}", err=True)
    answer = _prompt(
        "Price of one GPU [USD/h], or owned", None if found is None else f"{found.price:.6g}", _price
    )
    if answer == "owned":
        return replace(gpu, owned=True)
    if found is not None and f"{answer:.6g}" == f"{found.price:.6g}":
        return gpu.at(found)
    return replace(gpu, price=answer)


def _with_last(draft: Draft, gpu: DraftGpu) -> Draft:
    return replace(draft, fleet=(*draft.fleet[:-1], gpu))


# --------------------------------------------------------------------------------------------
# One question


def _answer(
    draft: Draft, field: str, text: str, default: str | None, read: Callable[[str], Any], folder: Path
) -> Draft:
    """The draft with one more answer, which the reader of scenarios takes."""

    def checked(answer: str) -> Draft:
        value = read(answer.strip())
        if field in ("model", "preset", "trace"):
            value = seen_from_folder(field, value, folder)
        told = replace(draft, **{field: value})
        _refuse(told, field, folder)
        return told

    answered: Draft = _prompt(text, default, checked)
    return answered


def _refuse(draft: Draft, field: str, folder: Path) -> None:
    """Refuse an answer for what is wrong with it; with the rest where it is itself all right."""
    problems = draft_problems(draft, folder)
    own = [p for p in problems if answer_of(p.key) == field] or problems
    if own:
        said = (f"{p.rule}" + (f", got {p.value}" if p.value else "") + _hint(p.suggestion) for p in own)
        raise click.UsageError("; ".join(said))


def _hint(suggestion: str) -> str:
    return f" ({suggestion})" if suggestion else ""


def _prompt(text: str, default: str | None, read: Callable[[str], Any]) -> Any:
    """Ask until `read` takes the answer; all on stderr."""

    def value(answer: str) -> Any:
        try:
            return read(answer)
        except SpecError as error:
            raise click.UsageError(str(error)) from None

    return click.prompt(text, default=default, value_proc=value, err=True)


def _one_of(kind: str, names: tuple[str, ...] | list[str]) -> Callable[[str], str]:
    def read(answer: str) -> str:
        if answer not in names:
            rule, hint = unknown_name(kind, answer, names)
            raise click.UsageError(f"{rule} {answer!r}: {hint}")
        return answer

    return read


def _number(answer: str) -> float:
    try:
        return float(answer)
    except ValueError:
        raise click.UsageError(f"{answer!r} is not a number") from None


def _limit(optional: bool) -> Callable[[str], float | None]:
    return lambda answer: None if optional and answer == _NONE else _number(answer)


def _rate(recorded: bool) -> Callable[[str], float | None]:
    return lambda answer: None if recorded and answer == "recorded" else _number(answer)


def _count(*, optional: bool) -> Callable[[str], int | None]:
    def read(answer: str) -> int | None:
        if optional and answer == "any":
            return None
        if not answer.isdecimal() or int(answer) == 0:
            raise click.UsageError(f"{answer!r} is not a number of GPUs")
        return int(answer)

    return read


def _price(answer: str) -> float | str:
    if answer == "owned":
        return answer
    price = _number(answer)
    if not 0 < price < float("inf"):
        raise click.UsageError(f"must be > 0, got {answer} (or say owned)")
    return price


def _gpu(draft: Draft, folder: Path, *, optional: bool) -> Callable[[str], str | None]:
    """A GPU or instance that the catalogue or a file has, once, and that the engine runs on."""

    def read(answer: str) -> str | None:
        name = seen_from_folder("gpu", answer.strip(), folder)
        if optional and name == _NONE:
            return None
        _refuse(replace(draft, fleet=(*draft.fleet, DraftGpu(name=name, max_gpus=1))), "fleet", folder)
        return name

    return read

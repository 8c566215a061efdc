"""``planner timeline``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from planner.cli.options import refuse_for_several, router_options
from planner.cli.output import echo_json, progress, width
from planner.documents.files import check_writable, file_error
from planner.errors import SpecError
from planner.simulator.timeline import Timeline

if TYPE_CHECKING:
    from planner.standing import Standing

_PICTURES = (".png", ".svg")
_FLEET_REQUESTS = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scene:
    """Requests in ticks, by arrival; `chunk`: None for prompts first."""

    arrivals: tuple[int, ...] = (0, 10, 16)
    prefill: tuple[int, ...] = (5, 5, 5)
    decode: int = 1
    transfer: int = 0
    chunk: int | None = None

    def panels(self, horizon: int) -> tuple[Timeline, ...]:
        """Colocated above disaggregated."""
        from planner.simulator.interference import toy_timeline  # numba: help does without

        return tuple(
            toy_timeline(
                self.arrivals,
                self.prefill,
                horizon=horizon,
                colocated=colocated,
                decode=self.decode,
                transfer=self.transfer,
                chunk=self.chunk,
            )
            for colocated in (True, False)
        )


_KNOWN = _Scene()
"""The example by which disaggregation is often explained, drawn with two windows side by side."""
_KNOWN_WINDOWS = (24, 27)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Picture:
    """What is shown; `windows`: panels of the same requests up to other horizons."""

    panels: tuple[Timeline, ...]
    windows: tuple[tuple[Timeline, ...], ...] = ()
    notes: tuple[str, ...] = ()


@click.command()
@click.argument("fleet", required=False, type=click.Path(path_type=Path))
@click.option("--arrivals", metavar="T1,T2,...", help="Ticks; default: 0,10,16.")
@click.option("--prefill", metavar="T", help="Ticks of a prompt, or one number per request; default: 5.")
@click.option("--decode", type=int, metavar="T", help="Ticks of a decode step; default: 1.")
@click.option("--transfer", type=int, metavar="T", help="Ticks of a KV transfer; default: 0.")
@click.option(
    "--chunk", type=int, metavar="T", help="Colocated, prompts are computed beside decoding, T ticks a step."
)
@click.option("--horizon", type=float, metavar="T", help="End of the window: ticks, with FLEET seconds.")
@click.option("--requests", type=int, metavar="N", help=f"Of FLEET's workload; default: {_FLEET_REQUESTS}.")
@click.option("--seed", type=click.IntRange(0), help="Of FLEET's requests; default: 0.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write a picture here: .png or .svg.")
@router_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def timeline(
    fleet: Path | None, horizon: float | None, output: Path | None, as_json: bool, **given: Any
) -> None:
    """Prefill, decode, stalls and KV transfer of each request, colocated above disaggregated.

    Without FLEET: a few requests in ticks, on one replica that does both phases and on one for prefill and
    one for decode. By default the three requests by which disaggregation is often explained.

    With FLEET, a fleet file or a plan: the first requests of its workload, on that fleet and, if it is
    disaggregated, on the same replicas colocated; of a plan, of each service.
    """
    _check_options(fleet, given)
    if output is not None:
        _check_picture(output)
    with progress("starting") as on_stage:
        if fleet is None:
            pictures = {"": _example(horizon, given, on_stage)}
        else:
            pictures = _of_fleets(fleet, horizon, output, given, on_stage)
    if output is not None:
        from planner.report.timeline_plot import save_timeline  # rich and matplotlib: only for pictures

        (picture,) = pictures.values()
        save_timeline(picture.panels, output)
    if as_json:
        documents = {name: _document(picture) for name, picture in pictures.items()}
        echo_json({"services": documents} if len(documents) > 1 else next(iter(documents.values())))
    else:
        _print_all(pictures, output)


def _check_options(fleet: Path | None, given: dict[str, Any]) -> None:
    """Options of the other form are refused."""
    names = ["requests", "seed", "service", "period"]
    rule = "goes with a FLEET file"
    if fleet is not None:
        names = ["arrivals", "prefill", "decode", "transfer", "chunk"]
        rule = "is for the example in ticks; a FLEET file has its own workload and step times"
    for name in names:
        if given[name] is not None:
            raise SpecError(f"--{name} {rule}")


def _check_picture(path: Path) -> None:
    """Refuse what could not be written before anything is computed."""
    check_writable(path)
    if path.suffix.lower() not in _PICTURES:
        raise file_error(path, "is no plot", f"the name has to end in {' or '.join(_PICTURES)}")


# --------------------------------------------------------------------------------------------
# In ticks


def _example(horizon: float | None, given: dict[str, Any], on_stage: Callable[[str], None]) -> _Picture:
    scene, notes = _scene(given)
    from planner.simulator.interference import stage, toy_horizon  # numba: help does without

    if horizon is None:
        until = toy_horizon(scene.arrivals, scene.prefill, scene.decode, scene.transfer)
    elif horizon.is_integer():
        until = int(horizon)
    else:
        raise SpecError(f"--horizon: a whole number of ticks, got {horizon:g}")
    on_stage(stage())
    panels = scene.panels(until)
    notes.append("Disaggregated is two replicas, colocated one: this shows interference, not cost.")
    if scene != _KNOWN:
        return _Picture(panels=panels, notes=tuple(notes))
    windows = tuple(scene.panels(window) for window in _KNOWN_WINDOWS)
    (published, _), (_, beside) = windows
    notes.append(
        f"The figure that this example is known from has {_counts(published)} tokens colocated, at "
        f"{published.horizon:g} ticks, side by side with {_counts(beside)} disaggregated, at "
        f"{beside.horizon:g} ticks. Compare them over the same window, as in the table."
    )
    return _Picture(panels=panels, windows=windows, notes=tuple(notes))


def _scene(given: dict[str, Any]) -> tuple[_Scene, list[str]]:
    """What was asked for, requests by arrival, and notes."""
    notes: list[str] = []
    arrivals = _KNOWN.arrivals if given["arrivals"] is None else _numbers("arrivals", given["arrivals"])
    prefill = _KNOWN.prefill[:1] if given["prefill"] is None else _numbers("prefill", given["prefill"])
    if len(prefill) == 1:
        prefill *= len(arrivals)
    if len(prefill) != len(arrivals):
        raise SpecError(
            f"--prefill: one number, or one per request, got {len(prefill)} for {len(arrivals)} arrivals"
        )
    order = sorted(range(len(arrivals)), key=lambda k: arrivals[k])
    if order != list(range(len(arrivals))):
        notes.append("Arrivals were sorted: R1 is the first to come.")
    scene = _Scene(
        arrivals=tuple(arrivals[k] for k in order),
        prefill=tuple(prefill[k] for k in order),
        decode=_KNOWN.decode if given["decode"] is None else given["decode"],
        transfer=_KNOWN.transfer if given["transfer"] is None else given["transfer"],
        chunk=given["chunk"],
    )
    return scene, notes


def _numbers(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise SpecError(f"--{option}: whole ticks with commas between them, got {text!r}") from None


# --------------------------------------------------------------------------------------------
# Of a fleet


def _of_fleets(
    path: Path,
    horizon: float | None,
    output: Path | None,
    given: dict[str, Any],
    on_stage: Callable[[str], None],
) -> dict[str, _Picture]:
    """A picture for each service of a plan, or for the fleet of a file, by name."""
    from planner.simulator.interference import MOST_REQUESTS  # numba: help does without
    from planner.standing import of_service, standing_files  # the same

    number = _FLEET_REQUESTS if given["requests"] is None else given["requests"]
    if not 1 <= number <= MOST_REQUESTS:
        raise SpecError(f"--requests: a picture has 1 to {MOST_REQUESTS} requests, got {number:,}")
    standings = of_service(standing_files(path, period=given["period"]), given["service"])
    refuse_for_several([standing.name for standing in standings], {"--output": output})
    seed = given["seed"] or 0
    return {standing.name: _of_fleet(standing, horizon, number, seed, on_stage) for standing in standings}


def _of_fleet(
    standing: Standing, horizon: float | None, number: int, seed: int, on_stage: Callable[[str], None]
) -> _Picture:
    from planner.side_by_side import side_by_side  # numba: help does without
    from planner.simulator.interference import stage  # the same

    on_stage(stage())
    found = side_by_side(standing, number, horizon=horizon, seed=seed)
    return _Picture(panels=found.panels, notes=found.notes)


# --------------------------------------------------------------------------------------------
# Output


def _counts(panel: Timeline) -> str:
    return "/".join(f"{tokens:,}" for tokens in panel.tokens)


def _print_all(pictures: Mapping[str, _Picture], output: Path | None) -> None:
    """Each picture, under its name where there are several."""
    for k, (name, picture) in enumerate(pictures.items()):
        if len(pictures) > 1:
            click.echo(f"{chr(10) if k else ''}{name}\n")
        _print(picture)
    if output is not None:
        click.echo(f"\npicture written to {output}")


def _print(picture: _Picture) -> None:
    from planner.report.timeline_text import timeline_text  # rich: only where text is printed

    columns = width()
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    click.echo(timeline_text(picture.panels, columns, colour=colour))
    if picture.windows:
        click.echo(f"\n{'tokens after':<14}{'colocated':<14}disaggregated")
        for colocated, disaggregated in picture.windows:
            window = f"{colocated.horizon:g} ticks"
            click.echo(f"{window:<14}{_counts(colocated):<14}{_counts(disaggregated)}")
    for note in picture.notes:
        click.echo("\n" + click.wrap_text(note, columns))


def _document(picture: _Picture) -> dict[str, Any]:
    first = picture.panels[0]
    return {
        "unit": first.unit,
        "horizon": first.horizon,
        "fleets": [_fleet_document(panel) for panel in picture.panels],
        "windows": [
            {"horizon": panels[0].horizon, "tokens": [list(panel.tokens) for panel in panels]}
            for panels in picture.windows
        ],
        "notes": list(picture.notes),
    }


def _fleet_document(panel: Timeline) -> dict[str, Any]:
    requests: list[dict[str, Any]] = [
        {"name": f"R{k + 1}", "arrival": arrival, "tokens": tokens, "segments": []}
        for k, (arrival, tokens) in enumerate(zip(panel.arrivals, panel.tokens, strict=True))
    ]
    for segment in panel.segments:
        requests[segment.request]["segments"].append(
            {"activity": str(segment.activity), "start": segment.start, "end": segment.end}
        )
    return {"title": panel.title, "requests": requests}

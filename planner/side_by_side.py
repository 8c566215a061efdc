"""The first requests of a standing fleet, and the same requests on the same replicas colocated."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.errors import SpecError
from planner.fleet import Fleet
from planner.simulator.arrivals import cut
from planner.simulator.build import Setup
from planner.simulator.interference import colocated_fleet, fleet_timelines
from planner.simulator.timeline import Timeline
from planner.specs import Phase
from planner.standing import Standing


@dataclass(frozen=True, kw_only=True, slots=True)
class SideBySide:
    """Timelines over one window, colocated first, and what to know of them."""

    panels: tuple[Timeline, ...]
    notes: tuple[str, ...]


def side_by_side(
    standing: Standing, number: int, *, horizon: float | None = None, seed: int = 0
) -> SideBySide:
    """The first `number` requests of a fleet's traffic, on fleets that are empty at first.

    Parameters
    ----------
    horizon : float, optional
        End of the window [s]; default: see :func:`~planner.simulator.interference.fleet_timelines`.

    Raises
    ------
    SpecError
        Too many requests, a horizon before the first of them, a fleet outside what is modelled.
    """
    fleet, setup = standing.fleet, Setup(input_ranges=standing.input_ranges)
    drawn = replace(standing.source, seed=seed).draw(number)
    requests = drawn if drawn.number <= number else cut(drawn, 0, number)  # a trace has what it has
    colocated, notes = _colocated(fleet)
    panels = fleet_timelines(
        [*colocated, fleet],
        requests,
        [*(Setup() for _ in colocated), setup],
        horizon=horizon,
        seed=seed,
    )
    what = f"{fleet.service.model.name}; {requests.name}, seed {seed}"
    if standing.offered is None:
        what += " (the file gives no rate)"
    return SideBySide(panels=panels, notes=(f"{what}. Fleets are empty at first.", *notes, *requests.notes))


def _colocated(fleet: Fleet) -> tuple[list[Fleet], list[str]]:
    """The same replicas colocated, if the fleet is not and they can be; and notes."""
    if fleet.pool(Phase.COLOCATED):
        return [], []
    try:
        colocated = colocated_fleet(fleet)
    except SpecError as error:
        return [], [f"Not shown colocated: {error}."]
    return [colocated], ["Colocated: the same replicas as they are, each of them doing both phases."]

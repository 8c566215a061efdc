"""Errors of predictions as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner.report.tables import plain_console, plain_table, print_fitting
from planner.validation.comparison import Comparison
from planner.validation.peers import PeerErrors
from planner.validation.scores import Errors

_COLUMNS = ("n", "median", "mean", "p90", "bias", "in 80 %")
_NAMES = {"tpot": "TPOT", "ttft": "TTFT", "e2e": "end to end", "throughput": "throughput"}


def print_validation(
    found: Comparison,
    overall: Mapping[str, Errors],
    groups: Sequence[tuple[Mapping[str, str], Mapping[str, Errors]]],
    peer: PeerErrors | None,
    width: int,
) -> None:
    """Errors over all rows, by group and beside another tool; then what was repaired or not predicted."""
    console = plain_console(width)
    table = plain_table("error", *_COLUMNS, right=_COLUMNS)
    for kind, errors in overall.items():
        table.add_row(_NAMES[kind], *_cells(errors))
    console.print(table)
    if peer is not None:
        console.print()
        console.print(_peer_table(peer))
    for kind in overall:
        if groups:
            console.print()
            print_fitting(console, partial(_groups, kind, groups), ("p90", "mean"))
    _print_counts(console, "repaired", found.repairs)
    _print_counts(console, "not scored", found.unpredicted)
    if found.fitted_to:
        console.print(
            Text(
                f"note: the constants were fitted to {found.fitted_to:,} of these rows, whose errors say "
                "nothing of accuracy; --constants crossfit does",
                style="yellow",
            )
        )
    for note in (*found.hints, *found.notes):
        console.print(Text(f"note: {note}"))


def _cells(errors: Errors) -> tuple[str, ...]:
    covered = "" if errors.covered is None else f"{errors.covered:.0%}"
    shares = (errors.median_ape, errors.mape, errors.p90_ape)
    return (f"{errors.n:,}", *(f"{share:.1%}" for share in shares), f"{errors.bias:+.1%}", covered)


def _peer_table(peer: PeerErrors) -> Table:
    table = plain_table("same rows", "", *_COLUMNS, right=_COLUMNS)
    for kind in peer.ours:
        table.add_row(_NAMES[kind], "planner", *_cells(peer.ours[kind]))
        table.add_row(_NAMES[kind], peer.name, *_cells(peer.theirs[kind]))
    return table


def _groups(
    kind: str,
    groups: Sequence[tuple[Mapping[str, str], Mapping[str, Errors]]],
    without: frozenset[str],
) -> Table:
    keys = tuple(groups[0][0])
    columns = tuple(name for name in _COLUMNS if name not in without)
    table = plain_table(
        *keys,
        *columns,
        right=columns,
    )
    table.title = _NAMES[kind]
    table.title_justify = "left"
    for key, errors in groups:
        if kind in errors:
            cells = dict(zip(_COLUMNS, _cells(errors[kind]), strict=True))
            table.add_row(*(key[name] or "-" for name in keys), *(cells[name] for name in columns))
    return table


def _print_counts(console: Console, title: str, counts: Mapping[str, int]) -> None:
    if not counts:
        return
    console.print()
    console.print(Text(f"{title}: {sum(counts.values()):,} rows", style="bold"))
    for reason, count in counts.items():
        console.print(f"  {count:>6,}  {reason}")

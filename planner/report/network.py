"""A scenario under a ladder of networks, as tables."""

from __future__ import annotations

from itertools import groupby

from rich.table import Table
from rich.text import Text

from planner.report.tables import figure, plain_console, plain_table, print_fitting
from planner.units import MILLI
from planner.whatif.network_rows import NetworkRow, Networks

_PAYS = {True: "yes", False: "no", None: ""}


def print_networks(n: Networks, width: int) -> None:
    """A table for each format of the KV cache and kind of transfer, and the colocated plan beside them."""
    console = plain_console(width)
    console.print(Text(n.name, style="bold"))
    for (kv_cache, overlap), group in groupby(n.points, key=lambda row: (row.kv_cache, row.overlap)):
        rows = list(group)
        how = f"{overlap:.0%} of a transfer hidden" if overlap else "transfers after the prompt"
        console.print(Text(f"\nKV cache {kv_cache}, {how}", style="bold"))
        optional = ("fleet", "load", "p99 transfer")
        print_fitting(console, lambda without, rows=rows: _table(n, rows, without), optional)  # type: ignore[misc]
        if kv_cache in n.colocated:
            best = n.colocated[kv_cache]
            value = (
                best.reason if best.value is None else f"{figure(best.value)} {n.unit}, {best.description}"
            )
            console.print(f"without hand-over: {value}")
    console.print(
        Text(f"\nthe engine itself hides {n.own_overlap:.0%}; rates are per GPU, one direction", style="dim")
    )
    for note in n.notes:
        console.print(Text(f"note: {note}", style="yellow"))


def _table(n: Networks, rows: list[NetworkRow], without: frozenset[str]) -> Table:
    columns = [
        "network", "transfer [ms]", "p99 transfer", "p99 TTFT [ms]", n.unit, "pays", "narrower end", "load",
        "fleet",
    ]  # fmt: skip
    columns = [c for c in columns if c not in without and (c != "pays" or n.colocated)]
    text = ("network", "pays", "narrower end", "fleet")
    table = plain_table(*columns, right=[c for c in columns if c not in text])
    for row in rows:
        cells = _cells(n, row)
        table.add_row(*(cells[c] for c in columns))
    return table


def _cells(n: Networks, row: NetworkRow) -> dict[str, str]:
    result = row.result
    if result.value is None:
        return dict.fromkeys(
            ("transfer [ms]", "p99 transfer", "p99 TTFT [ms]", "pays", "narrower end", "load"), ""
        ) | {"network": row.network.name, n.unit: "infeasible", "fleet": result.reason}
    assert row.exposed is not None
    assert row.exposed_long is not None
    assert row.ttft is not None
    return {
        "network": row.network.name,
        "transfer [ms]": figure(row.exposed / MILLI, 3),
        "p99 transfer": figure(row.exposed_long / MILLI, 3),
        "p99 TTFT [ms]": figure(row.ttft.p99 / MILLI),
        n.unit: figure(result.value),
        "pays": _PAYS[row.pays],
        "narrower end": f"{row.link}{', binds' if row.binds else ''}",
        "load": f"{row.link_load:.0%}",
        "fleet": result.description,
    }

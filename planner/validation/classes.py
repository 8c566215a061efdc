"""Which constants a measured row has: classes of rows, and latencies of rows with the constants of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.arrays import FloatArray
from planner.closed_loop import HostConstants, LoopState, LoopTable, Protocol, run
from planner.documents.measured_file import MeasuredRow
from planner.specs import ClassKey, Constants
from planner.validation.resolve import ENGINE_ALIASES

UNSTATED = "unstated"

WAVES = frozenset({("sglang", "NVIDIA aic gap analysis")})
"""Engine and origin of rows whose clients send one request each, all at once: their TTFTs are those of a
queue of all prompts, and grow with the number of clients to match."""


def class_of(row: MeasuredRow) -> ClassKey:
    """The finest class of a row."""
    engine = ENGINE_ALIASES.get(row.engine, row.engine)
    return (engine, row.version or UNSTATED, row.origin or UNSTATED)


def levels(key: ClassKey) -> tuple[ClassKey, ...]:
    """A class and those above it, the coarsest first."""
    return ((), key[:1], key)


def is_wave(row: MeasuredRow) -> bool:
    """Whether the row's benchmark is one wave of requests."""
    return (row.engine, row.origin) in WAVES


def predict_loops(
    table: LoopTable,
    constants: Sequence[Constants],
    wave: NDArray[np.bool_],
    factor: FloatArray | float = 1.0,
    start: FloatArray | float = 1.0,
    queue: FloatArray | float = 0.0,
) -> LoopState:
    """Latencies of loops with the constants of each, and a further factor on all kernels.

    Parameters
    ----------
    start : ndarray or float
        Weight of the first wave: 1 with ten requests per client, as public benchmarks have, 0 without. [1]
    queue : ndarray or float
        1 where requests come at random times, else 0. [1]
    """

    def column(name: str) -> FloatArray:
        return np.array([getattr(c, name) for c in constants])

    host = HostConstants(
        step=column("step"),
        sequence=column("sequence"),
        decode_scale=column("decode_scale") * factor,
        prefill_scale=column("prefill_scale") * factor,
    )
    protocol = Protocol(
        fixed=column("fixed"),
        services=column("services"),
        steps=column("steps"),
        first_wave=start * column("first_wave"),
        wave=wave,
        queue=queue,
    )
    return run(table, host, protocol)


def halves(rows: Sequence[MeasuredRow], *, by_load: bool = False) -> NDArray[np.intp]:
    """0 or 1 for each row, so that rows of one configuration share a half.

    Within every class the configurations alternate, in sorted order: both halves know most classes. Where no
    class has two of them, all alternate.

    Parameters
    ----------
    by_load : bool
        Whether lengths and concurrency are part of a configuration. Without, all loads of a deployment
        (model, GPU, engine, version, formats, layout) are in one half: the stricter split.
    """
    keys = [_configuration(row, by_load) for row in rows]
    owners = sorted(set(zip(keys, map(class_of, rows), strict=True)))
    sides: dict[tuple[str, ...], int] = {}
    seen: dict[ClassKey, int] = {}
    for key, class_key in owners:
        if key not in sides:
            sides[key] = seen.get(class_key, 0) % 2
            seen[class_key] = seen.get(class_key, 0) + 1
    if not any(sides.values()):
        sides = {key: number % 2 for number, key in enumerate(sides)}
    return np.array([sides[key] for key in keys], dtype=np.intp)


def _configuration(row: MeasuredRow, by_load: bool) -> tuple[str, ...]:
    layout = [str(pool) for pool in row.pools]
    load = [f"{row.isl:g}", f"{row.osl:g}", f"{row.concurrency or row.batch_size or 0:g}"] if by_load else []
    return (row.model, row.gpu, row.engine, row.version, row.gemm, row.moe, *layout, *load)

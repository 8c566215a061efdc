"""Collectives between the devices of a machine, each rank a process of its own.

    python -m planner.profiling.links RANK WORLD RENDEZVOUS DEVICE BYTES,...

Rank 0 prints one JSON document: times of the all-reduce and of a message from one rank to the next.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from planner.device_facts import DeviceFacts
from planner.samples import Operator, Samples
from planner.units import MILLI

Row = tuple[str, int, float, float]
"""Operator, bytes, median time and spread."""
_BLOCKS, _CALLS = 7, 20
_RENDEZVOUS_SECONDS = 60.0


def time_links(
    facts: DeviceFacts, worlds: Sequence[int], sizes: Sequence[int], *, seconds: float
) -> tuple[tuple[Samples, ...], dict[str, str]]:
    """Samples of every world size, and why others are missing.

    Parameters
    ----------
    worlds : sequence of int
        Numbers of ranks; on a CPU ranks are processes that share it.
    sizes : sequence of int
        Of messages. [B]
    seconds : float
        Time for each world size, start-up of its processes included. [s]
    """
    rows: dict[Operator, list[tuple[dict[str, float], float, float]]] = {}
    skipped: dict[str, str] = {}
    for world in worlds:
        if facts.kind == "cuda" and world > facts.count:
            skipped[f"all_reduce ranks={world}"] = f"there are only {facts.count} devices"
            continue
        try:
            found = _run_world(facts.kind, world, sizes, seconds)
        except RuntimeError as error:
            skipped[f"all_reduce ranks={world}"] = str(error)
            continue
        for name, size, middle, spread in found:
            rows.setdefault(Operator(name), []).append(({"bytes": size, "ranks": world}, middle, spread))
    kernel = "nccl" if facts.kind == "cuda" else "gloo"
    samples = tuple(
        Samples.of_rows(
            operator,
            None,
            [axes for axes, _, _ in found],
            [middle for _, middle, _ in found],
            [spread for _, _, spread in found],
            [kernel] * len(found),
        )
        for operator, found in rows.items()
    )
    return samples, skipped


def _run_world(kind: str, world: int, sizes: Sequence[int], seconds: float) -> list[Row]:
    """Start all ranks and read what rank 0 prints.

    Raises
    ------
    RuntimeError
        A rank failed, or time ran out.
    """
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "rendezvous")
        asked = ",".join(str(size) for size in sizes)
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", __name__, str(rank), str(world), meeting, kind, asked],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for rank in range(world)
        ]
        try:
            out, problem = "", ""
            end = time.monotonic() + seconds
            for rank, process in enumerate(ranks):
                text, errors = process.communicate(timeout=max(end - time.monotonic(), 0.1))
                if process.returncode:
                    problem = (errors.strip().splitlines() or ["no message"])[-1][:200]
                if rank == 0:
                    out = text
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"took longer than {seconds:g} s") from None
        finally:
            for process in ranks:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
        if problem:
            raise RuntimeError(problem)
        found: list[Row] = [tuple(row) for row in json.loads(out)]
        return found


def _rank(rank: int, world: int, meeting: str, kind: str, sizes: Sequence[int]) -> list[Row]:
    device = torch.device("cuda", rank) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=_RENDEZVOUS_SECONDS),
    )
    dtype = torch.bfloat16 if kind == "cuda" else torch.float32
    rows: list[Row] = []
    for size in sizes:
        message = torch.ones(max(size // dtype.itemsize, 1), dtype=dtype, device=device)
        rows.append(("all_reduce", size, *_timed(lambda m=message: dist.all_reduce(m), device)))  # type: ignore[misc]
        if world == 2:
            rows.append(("point_to_point", size, *_timed(_passing(message, rank), device)))
    dist.barrier()
    dist.destroy_process_group()
    return rows


def _passing(message: torch.Tensor, rank: int) -> Callable[[], object]:
    return (lambda: dist.send(message, 1)) if rank == 0 else (lambda: dist.recv(message, 0))


def _timed(call: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Median time of a call over blocks, and its spread; all ranks run the same number of calls."""
    for _ in range(3):
        call()
    replay, count = _replayed(call, device)
    blocks = []
    for _ in range(_BLOCKS):
        dist.barrier()
        if device.type == "cuda":
            torch.cuda.synchronize()
        blocks.append(_block(replay, device) / count)
    middle = statistics.median(blocks)
    low, _, high = statistics.quantiles(blocks, n=4)
    return middle, (high - low) / 2 / middle


def _replayed(call: Callable[[], object], device: torch.device) -> tuple[Callable[[], object], int]:
    """Many calls in a row, in a graph where there are such: small messages cost less than their launch."""

    def loop() -> None:
        for _ in range(_CALLS):
            call()

    if device.type != "cuda":
        return loop, _CALLS
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            loop()
    except RuntimeError:  # on all ranks or on none: they run the same software
        torch.cuda.synchronize()
        return loop, _CALLS
    graph.replay()
    return graph.replay, _CALLS


def _block(call: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        began = time.perf_counter()
        call()
        return time.perf_counter() - began
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * MILLI


def _main(arguments: Sequence[str]) -> None:
    rank, world, meeting, kind, asked = arguments
    rows: Any = _rank(int(rank), int(world), meeting, kind, [int(size) for size in asked.split(",")])
    if rank == "0":
        print(json.dumps(rows))


if __name__ == "__main__":
    _main(sys.argv[1:])

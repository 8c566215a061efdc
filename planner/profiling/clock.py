"""Median time of a call on a device: rotating inputs, warm clocks, graphs where the device has them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from planner.units import MICRO, MILLI

Call = Callable[[], object]
BLOCKS = 7
"""Repetitions whose median counts."""
_SHORTEST_BLOCK = 0.5 * MILLI  # what the clock of a processor resolves well [s]
_LONGEST_ROTATION = 64  # calls of a graph


@dataclass(frozen=True, slots=True)
class Timing:
    """Median over repetitions [s], half the distance of their quartiles over it, and whether a graph ran."""

    time: float
    spread: float
    graph: bool


def time_calls(calls: Sequence[Call], device: torch.device, box: float) -> Timing:
    """Time one of `calls`, which do the same to different data, so that no input is left in a cache.

    Parameters
    ----------
    calls : sequence of callables
        Run one after the other, as often as needed.
    box : float
        Time that this may take, about; at least two repetitions are made. [s]
    """
    return _on_gpu(calls, box) if device.type == "cuda" else _on_cpu(calls, box)


def _summary(blocks: Sequence[float], graph: bool) -> Timing:
    middle = statistics.median(blocks)
    quartiles = statistics.quantiles(blocks, n=4) if len(blocks) > 1 else (middle, middle, middle)
    return Timing(middle, (quartiles[2] - quartiles[0]) / 2 / middle if middle > 0 else 0.0, graph)


def _on_cpu(calls: Sequence[Call], box: float) -> Timing:
    began = time.perf_counter()
    calls[0]()
    warmed = time.perf_counter()
    if warmed - began > 4 * box:
        return Timing(warmed - began, math.nan, graph=False)
    calls[1 % len(calls)]()
    first = time.perf_counter() - warmed
    inner = max(1, int(_SHORTEST_BLOCK / max(first, MICRO)))
    blocks: list[float] = []
    turn = 2
    while len(blocks) < 2 or (len(blocks) < 3 * BLOCKS and time.perf_counter() - began < box):
        started = time.perf_counter()
        for _ in range(inner):
            calls[turn % len(calls)]()
            turn += 1
        blocks.append((time.perf_counter() - started) / inner)
    return _summary(blocks, graph=False)


def _on_gpu(calls: Sequence[Call], box: float) -> Timing:
    began = time.perf_counter()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # libraries pick their kernels and workspaces before the capture
        for call in calls[:2]:
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    first = _block(lambda: calls[0](), 1)
    rotation = min(_LONGEST_ROTATION, max(len(calls), int(_SHORTEST_BLOCK / max(first, MICRO))))
    turns = [calls[i % len(calls)] for i in range(rotation)]
    replay, captured = _captured(turns)
    blocks: list[float] = []
    while len(blocks) < 2 or (len(blocks) < BLOCKS and time.perf_counter() - began < box):
        blocks.append(_block(replay, rotation))
    return _summary(blocks, captured)


def _captured(turns: Sequence[Call]) -> tuple[Call, bool]:
    """A graph of all turns, or a loop over them where they cannot be captured."""

    def loop() -> None:
        for call in turns:
            call()

    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            loop()
    except RuntimeError:
        torch.cuda.synchronize()
        return loop, False
    graph.replay()
    return graph.replay, True


def _block(call: Call, count: int) -> float:
    """Time of one of `count` calls that a single `call` makes. [s]"""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * MILLI / count


def warm_up(device: torch.device, seconds: float) -> None:
    """Keep the device busy until its clocks are where they are under load. Settings are left alone."""
    size = 4096 if device.type == "cuda" else 512
    a = torch.randn(size, size, device=device, dtype=torch.float32).to(torch.bfloat16)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        torch.mm(a, a)
        if device.type == "cuda":
            torch.cuda.synchronize()

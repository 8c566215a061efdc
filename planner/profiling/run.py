"""All cases of a device, timed one after the other until they or the time are used up."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from planner.cases import Case, arithmetic, footprint
from planner.device_facts import DeviceFacts
from planner.errors import SpecError
from planner.profiling.clock import Timing, time_calls, warm_up
from planner.profiling.data import CACHES, Data
from planner.profiling.kernels import Kernel, kernels_of
from planner.samples import Key, Samples
from planner.specs import Dtype
from planner.units import GIB, MIB

Progress = Callable[[int, int, str], None]
"""Called with cases done, all cases, and what is timed next."""
_WARM_SECONDS = {"cuda": 2.0, "cpu": 0.3}
_LARGEST_SHARE = 0.5  # of a device's free memory that the data may take
_LONGEST_BOXES = 8.0  # a case that would take longer than so many boxes is left out


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """What was timed.

    Attributes
    ----------
    samples : tuple of Samples
        With every library that ran a case.
    skipped : mapping of str to str
        Cases that could not be timed, and why.
    unreached : int
        Cases for which there was no time.
    """

    samples: tuple[Samples, ...]
    skipped: Mapping[str, str]
    unreached: int


_NARROW = {
    "ampere": (Dtype.INT8,),
    "ada": (Dtype.FP8, Dtype.INT8),
    "hopper": (Dtype.FP8, Dtype.INT8),
    "blackwell": (Dtype.FP8, Dtype.NVFP4),
}
"""Formats of less than 16 bits that NVIDIA's GPUs multiply."""


def supported_dtypes(facts: DeviceFacts) -> tuple[tuple[Dtype, ...], tuple[Dtype, ...], tuple[Dtype, ...]]:
    """Formats of weights, KV caches and experts worth trying on a device."""
    if facts.kind == "cpu":
        return (Dtype.BF16,), (Dtype.BF16,), (Dtype.BF16,)
    wide = Dtype.FP16 if facts.architecture in ("volta", "turing") else Dtype.BF16
    if facts.vendor != "nvidia":
        return (wide, Dtype.FP8), (wide,), (wide,)
    narrow = _NARROW.get(facts.architecture, ())
    caches = (wide, Dtype.FP8) if Dtype.FP8 in narrow else (wide,)
    return (wide, *narrow), caches, (wide,)


def time_cases(
    cases: Sequence[Case],
    device: torch.device,
    facts: DeviceFacts,
    *,
    seconds: float,
    box: float,
    progress: Progress | None = None,
) -> Timed:
    """Time `cases` in their order.

    Parameters
    ----------
    seconds : float
        After this no further case is begun. [s]
    box : float
        Time of one case, about. [s]

    Raises
    ------
    SpecError
        If nothing could be timed.
    """
    began = time.perf_counter()
    old = facts.architecture in ("volta", "turing")
    data = Data(
        device,
        _data_size(cases, device, facts),
        rotation=CACHES * facts.cache,
        wide=torch.float16 if old else torch.bfloat16,
        narrow=torch.float8_e4m3fnuz if facts.architecture == "cdna3" else torch.float8_e4m3fn,
    )
    warm_up(device, _WARM_SECONDS[device.type])
    found: dict[Key, list[tuple[Case, Timing, str]]] = {}
    skipped: dict[str, str] = {}
    done, rate = 0, 0.0
    for case in cases:
        if time.perf_counter() - began > seconds:
            break
        if progress is not None:
            progress(done, len(cases), str(case))
        done += 1
        if rate and arithmetic(case) / rate > _LONGEST_BOXES * box:
            skipped[str(case)] = "would take too long at the rates measured so far"
            continue
        timed, reason = _timings(case, data, device, box)
        if not timed:
            skipped[str(case)] = reason
            continue
        key = (case.operator, case.dtype)
        found.setdefault(key, []).extend((case, timing, name) for name, timing in timed)
        rate = max(rate, arithmetic(case) / min(timing.time for _, timing in timed))
    if not found:
        reasons = "; ".join(sorted(set(skipped.values()))[:3])
        raise SpecError(f"nothing could be timed on {facts.name}: {reasons or 'there was no time'}")
    return Timed(
        samples=tuple(_samples(key, rows) for key, rows in found.items()),
        skipped=skipped,
        unreached=len(cases) - done,
    )


def _data_size(cases: Sequence[Case], device: torch.device, facts: DeviceFacts) -> float:
    """Three last-level caches, or the largest operands twice, within the free memory. [B]"""
    wanted = max([CACHES * facts.cache, 64.0 * MIB, *(2 * footprint(case) for case in cases)]) + 16 * MIB
    free = (
        float(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else min(facts.memory / 2, 8 * GIB)
    )
    return min(wanted, _LARGEST_SHARE * free)


_CANNOT = (RuntimeError, SpecError, ImportError, TypeError, AttributeError, NotImplementedError)
"""What libraries raise where they cannot run a case on a device."""


def _timings(
    case: Case, data: Data, device: torch.device, box: float
) -> tuple[list[tuple[str, Timing]], str]:
    """Timings of a case by library, and why there is none."""
    timed: list[tuple[str, Timing]] = []
    reason = "no library here can run it"
    kernels = kernels_of(case, data)
    while True:
        try:
            kernel: Kernel = next(kernels)
        except StopIteration:
            break
        except _CANNOT as error:
            reason = _first_line(error)
            break
        try:
            timed.append((kernel.name, time_calls(kernel.calls, device, box)))
        except _CANNOT as error:
            reason = f"{kernel.name}: {_first_line(error)}"
            if device.type == "cuda":
                torch.cuda.synchronize()
    return timed, reason


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _samples(key: Key, rows: Sequence[tuple[Case, Timing, str]]) -> Samples:
    return Samples.of_rows(
        key[0],
        key[1],
        [case.axes for case, _, _ in rows],
        [timing.time for _, timing, _ in rows],
        [timing.spread for _, timing, _ in rows],
        [name for _, _, name in rows],
    )

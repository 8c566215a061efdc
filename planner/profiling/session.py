"""Everything that is measured on one device, within one time limit."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from planner.cases import cases_of, plan_of
from planner.device_facts import DeviceFacts, head_of
from planner.errors import SpecError
from planner.profiling.device import open_device, read_device
from planner.profiling.host import time_host
from planner.profiling.links import time_links
from planner.profiling.run import Progress, supported_dtypes, time_cases
from planner.samples import Key, Samples, SampleSet

FULL_SECONDS = {"cuda": 150.0, "cpu": 240.0}
QUICK_SECONDS = {"cuda": 45.0, "cpu": 55.0}
"""Time for kernels. [s]"""
_BOX = {"cuda": 0.3, "cpu": 0.4}
_WORLD_SECONDS = 40.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Samples of a device, and what is missing.

    Attributes
    ----------
    samples : SampleSet
        With every library that ran a case.
    skipped : mapping of str to str
        Cases that could not be timed, and why.
    unreached : int
        Cases for which the time did not suffice.
    """

    facts: DeviceFacts
    samples: SampleSet
    skipped: dict[str, str]
    unreached: int


def measure(
    device_name: str | None,
    *,
    full: bool,
    worlds: Sequence[int] | None,
    seconds: float | None,
    progress: Progress | None = None,
) -> Measured:
    """Measure a device.

    Parameters
    ----------
    device_name : str, optional
        "cpu" or "cuda:N"; default: the first GPU, else the CPU.
    full : bool
        All shapes, or those of a quick look.
    worlds : sequence of int, optional
        World sizes of collectives; default: powers of two up to the GPUs of the machine, none on a CPU.
    seconds : float, optional
        Time for kernels. [s]

    Raises
    ------
    SpecError
        No such device, or nothing could be timed.
    """
    device = open_device(device_name or ("cuda:0" if torch.cuda.is_available() else "cpu"))
    facts = read_device(device)
    plan = plan_of(facts.kind, full=full)
    weights, caches, experts = supported_dtypes(facts)
    limit = seconds if seconds is not None else (FULL_SECONDS if full else QUICK_SECONDS)[facts.kind]
    cases = cases_of(plan, weights, caches, experts)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says why it does not use a back end: the next one is tried
        host = time_host(device, _BOX[facts.kind])
        timed = time_cases(cases, device, facts, seconds=limit, box=_BOX[facts.kind], progress=progress)
    skipped = dict(timed.skipped)
    links: tuple[Samples, ...] = ()
    sizes = _worlds(facts, worlds)
    if sizes:
        if progress is not None:
            progress(len(cases), len(cases), f"collectives over {', '.join(map(str, sizes))} ranks")
        links, missing = time_links(facts, sizes, plan.message_bytes, seconds=_WORLD_SECONDS)
        skipped |= missing
    return Measured(
        facts=facts,
        samples=_set(facts, (*timed.samples, *host, *links)),
        skipped=skipped,
        unreached=timed.unreached,
    )


def _worlds(facts: DeviceFacts, asked: Sequence[int] | None) -> list[int]:
    if asked is not None:
        if any(world < 2 for world in asked):
            raise SpecError(f"--world-sizes: each must be at least 2, got {', '.join(map(str, asked))}")
        return sorted(set(asked))
    if facts.kind == "cpu":
        return []
    return [n for n in (2, 4, 8) if n <= facts.count]


def _set(facts: DeviceFacts, samples: Sequence[Samples]) -> SampleSet:
    tables: dict[Key, Samples] = {found.key: found for found in samples}
    head = {"date": datetime.date.today().isoformat(), **head_of(facts)}
    return SampleSet(device=facts.name, tables=tables, facts=head)

"""Pools of replicas as options say them."""

from __future__ import annotations

import re

from planner.catalog import load_gpu
from planner.configuration import Replicas
from planner.errors import SpecError
from planner.specs import Parallelism

_POOL = re.compile(r"(\d+)\s*x\s*((?:(?:tp|pp|ep|dp)?\d+)+)(?:@(.+))?", re.IGNORECASE)
_SIZE = re.compile(r"(tp|pp|ep|dp)?(\d+)", re.IGNORECASE)


def pool_of(option: str, text: str | None, gpu: str) -> Replicas:
    """A pool as in 2xTP4, 2xTP4PP2@l40s or 1xTP8EP8; without its own GPU type on `gpu`.

    Raises
    ------
    SpecError
    """
    match = _POOL.fullmatch(text.strip()) if text else None
    sizes = _sizes(match[2]) if match else None
    if match is None or sizes is None or int(match[1]) < 1:
        got = f", got {text!r}" if text else ""
        raise SpecError(f"--mode disagg needs --{option} as NxTP, for example 2xTP4 or 1xTP8EP8{got}")
    return Replicas(count=int(match[1]), gpu=load_gpu(match[3] or gpu), parallelism=Parallelism(**sizes))


def _sizes(text: str) -> dict[str, int] | None:
    """Parallel sizes as in TP4PP2; a bare number is TP. None for 0 and for what is said twice."""
    found = [(name.lower() or "tp", int(size)) for name, size in _SIZE.findall(text)]
    sizes = dict(found)
    return sizes if len(sizes) == len(found) and min(sizes.values()) > 0 else None

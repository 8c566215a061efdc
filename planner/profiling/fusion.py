"""Small kernels as one, as engines have them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def fused(function: Callable[P, T], device: torch.device) -> Callable[P, T]:
    """`function` compiled into as few kernels as torch can; as it stands on a CPU, or where torch cannot."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return function
    compiled: Callable[P, T] = torch.compile(function, dynamic=True)
    chosen: list[Callable[P, T]] = []

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not chosen:
            chosen.append(compiled if _runs(lambda: compiled(*args, **kwargs)) else function)
        return chosen[0](*args, **kwargs)

    return call


def _runs(call: Callable[[], object]) -> bool:
    """Whether a call comes back: compilers fail in many ways, and none of them is an error here."""
    try:
        call()
    except Exception:
        torch.cuda.synchronize()
        return False
    return True

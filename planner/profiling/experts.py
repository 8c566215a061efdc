"""Routed experts with torch: gather, two grouped products with the activation between, and scatter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as functional

from planner.cases import Case
from planner.profiling.data import Data

Call = Callable[[], object]


def expert_calls(case: Case, data: Data) -> Iterator[tuple[str, list[Call]]]:
    """Name and calls of the grouped products of torch, in 16 bits; every token visits random experts."""
    a = {axis: int(value) for axis, value in case.axes.items()}
    tokens, hidden, inner, experts = (a[name] for name in ("tokens", "hidden", "intermediate", "experts"))
    generator = torch.Generator(device=data.device).manual_seed(2)
    scores = torch.rand(tokens, experts, device=data.device, generator=generator)
    chosen = scores.topk(a["top_k"], dim=-1).indices.flatten()
    order = torch.argsort(chosen, stable=True)
    source = order // a["top_k"]
    ends = torch.bincount(chosen, minlength=experts).cumsum(0).to(torch.int32)
    x = data.views([(tokens, hidden)], data.wide)[0][0]

    def call(up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        visits = x.index_select(0, source)
        both = torch._grouped_mm(visits, up, offs=ends)
        gate, value = both.chunk(2, dim=-1)
        out = torch._grouped_mm(functional.silu(gate) * value, down, offs=ends)
        return torch.zeros_like(x).index_add_(0, source, out)

    shapes = [(experts, hidden, 2 * inner), (experts, inner, hidden)]
    yield "_grouped_mm", [partial(call, up, down) for up, down in data.views(shapes, data.wide)]

"""What is no kernel: an empty launch, and copies between host and device."""

from __future__ import annotations

import torch

from planner.profiling.clock import time_calls
from planner.samples import Operator, Samples
from planner.units import MIB

_SIZES = (MIB // 4, 4 * MIB, 64 * MIB)


def time_host(device: torch.device, box: float) -> tuple[Samples, ...]:
    """Launch of a kernel that does next to nothing, and, on a GPU, copies from pinned memory."""
    one = torch.ones(1, device=device)
    launch = time_calls([one.zero_], device, box)
    found = [Samples.of_rows(Operator.LAUNCH, None, [{}], [launch.time], [launch.spread], ["zero_"])]
    if device.type == "cuda":
        rows, times, spreads = [], [], []
        for size in _SIZES:
            host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            target = torch.empty(size, dtype=torch.uint8, device=device)

            def copy(target: torch.Tensor = target, host: torch.Tensor = host) -> object:
                return target.copy_(host, non_blocking=True)

            timing = time_calls([copy], device, box)
            rows.append({"bytes": size})
            times.append(timing.time)
            spreads.append(timing.spread)
        found.append(Samples.of_rows(Operator.HOST_COPY, None, rows, times, spreads, ["pinned"] * len(rows)))
    return tuple(found)

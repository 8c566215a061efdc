"""Random data that operands are cut from: one block per format, larger than three last-level caches."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from planner.errors import SpecError
from planner.specs import Dtype

CACHES = 3  # last-level caches that rotating operands fill
MOST_SETS = 64

TORCH_DTYPES = {
    Dtype.FP32: torch.float32,
    Dtype.BF16: torch.bfloat16,
    Dtype.FP16: torch.float16,
    Dtype.INT8: torch.int8,
}


class Data:
    """Blocks of random numbers, made when first asked for and kept: making them takes longer than timing."""

    def __init__(
        self,
        device: torch.device,
        size: float,
        rotation: float = math.inf,
        wide: torch.dtype = torch.bfloat16,
        narrow: torch.dtype = torch.float8_e4m3fn,
    ) -> None:
        """Blocks of `size` bytes; sets of operands fill `rotation` bytes at least, where there is room.
        `wide` and `narrow` are the device's formats of 16 and of 8 bits."""
        self.device, self.wide, self.narrow = device, wide, narrow
        self._size, self._rotation = size, rotation
        self._blocks: dict[torch.dtype, torch.Tensor] = {}

    def block(self, dtype: torch.dtype) -> torch.Tensor:
        """All numbers of a format, in one dimension."""
        if dtype not in self._blocks:
            self._blocks[dtype] = random_block(int(self._size) // dtype.itemsize, dtype, self.device)
        return self._blocks[dtype]

    def views(self, shapes: Sequence[Sequence[int]], dtype: torch.dtype) -> list[list[torch.Tensor]]:
        """Sets of tensors of `shapes`, each set in another part of the data, as many as fit.

        Raises
        ------
        SpecError
            If not even one fits.
        """
        block = self.block(dtype)
        counts = [_aligned(math.prod(shape)) for shape in shapes]
        total = sum(counts)
        sets = block.numel() // total
        if sets < 1:
            raise SpecError("the operands of a case are larger than the memory set aside for them")
        found = []
        needed = math.ceil(min(self._rotation / (total * dtype.itemsize), MOST_SETS))
        for index in range(max(1, min(sets, needed))):
            at, views = index * total, []
            for shape, count in zip(shapes, counts, strict=True):
                views.append(block[at : at + math.prod(shape)].view(*shape))
                at += count
            found.append(views)
        return found

    def dtype(self, dtype: Dtype) -> torch.dtype:
        """A format as this device has it."""
        return self.narrow if dtype is Dtype.FP8 else TORCH_DTYPES[dtype]


def _aligned(count: int) -> int:
    return -(-count // 128) * 128


def random_block(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Random numbers, repeated where making them all anew would take long."""
    generator = torch.Generator(device=device).manual_seed(1)
    period = min(count, 4_000_037)  # no power of two: repeats do not line up
    if dtype is torch.int8:
        seed = torch.randint(-127, 127, (period,), dtype=dtype, device=device, generator=generator)
    else:
        seed = torch.randn(period, device=device, generator=generator).to(dtype)
    out = torch.empty(count, dtype=dtype, device=device)
    raw, source = out.view(torch.int8), seed.view(torch.int8)
    for at in range(0, raw.numel(), source.numel()):
        end = min(at + source.numel(), raw.numel())
        raw[at:end] = source[: end - at]
    return out

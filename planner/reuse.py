"""How much of prompts a prefix cache finds, by its size: the reuse curve of a trace.

A cache that drops what was used longest ago holds, at any size, what was used most recently. So one number
per block settles it for all sizes: how many blocks were used since it was, itself included (its *stack
distance*).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.traces import IntArray, PromptBlocks, found_blocks


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ReuseCurve:
    """Prompt tokens that a cache finds, by its size.

    Attributes
    ----------
    distances : ndarray
        Sizes, ascending, at which more is found. [blocks]
    found : ndarray
        Tokens that a cache of at least that size finds. [tok]
    tokens : int
        Of all prompts. [tok]
    distinct : int
        Different blocks: a cache of so many never drops one.
    block_size : int
        [tok]
    """

    distances: IntArray
    found: IntArray
    tokens: int
    distinct: int
    block_size: int

    def share(self, capacity: float) -> float:
        """Share of the prompt tokens that a cache of `capacity` tokens finds; 0 for less than a block. [1]"""
        if not self.distances.size:
            return 0.0
        blocks = capacity / self.block_size
        index = int(np.searchsorted(self.distances, blocks, side="right"))
        return float(self.found[index - 1] / self.tokens) if index else 0.0

    @property
    def most(self) -> float:
        """Share that a cache without a limit finds. [1]"""
        return self.share(np.inf)

    @property
    def largest(self) -> int:
        """Tokens of a cache that finds all of that. [tok]"""
        return int(self.distances[-1]) * self.block_size if self.distances.size else 0


def reuse_curve(blocks: PromptBlocks, isl: IntArray) -> ReuseCurve:
    r"""The reuse curve of prompts in their order, for a cache that starts empty.

    Parameters
    ----------
    isl : ndarray
        Length of each prompt. [tok]

    Notes
    -----
    Stack distances are those of Mattson et al. [1]_. The blocks of a prompt are used from its last to its
    first, as engines free them, so that a block is never kept without those before it, and what a cache finds
    of a prompt is the prefix up to the first block whose distance exceeds its size. A block takes its whole
    size, also where a prompt ends within it. With p the last use of a block and S the first use by its
    prompt, the blocks used in between are :math:`S - 1 - p` less those that were used again before S,
    :math:`\#\{i < S: prev(i) > p\}`, which :func:`smaller_before` counts for all at once.

    References
    ----------
    .. [1] R. L. Mattson, J. Gecsei, D. R. Slutz, I. L. Traiger, "Evaluation techniques for storage
       hierarchies," IBM Systems Journal, vol. 9, no. 2, pp. 78-117, 1970. doi:10.1147/sj.92.0078
    """
    number = blocks.ids.size
    tokens = int(isl.sum())
    if number == 0:
        none = np.zeros(0, np.int64)
        return ReuseCurve(distances=none, found=none, tokens=tokens, distinct=0, block_size=blocks.size)
    found = found_blocks(blocks, isl)
    starts = blocks.offsets[:-1][found.row]
    ends = blocks.offsets[1:][found.row]
    use = starts + ends - 1 - np.arange(number)  # the last block of a prompt is used first
    chain = np.empty_like(found.chain)
    chain[use] = found.chain
    order = np.argsort(chain, kind="stable")
    again = np.concatenate([[False], chain[order][1:] == chain[order][:-1]])
    last = np.full(number, -1)
    last[order] = np.where(again, np.concatenate([[-1], order[:-1]]), -1)

    used = np.flatnonzero(last >= 0)
    previous, first = last[used], np.sort(starts, kind="stable")[used]
    before = np.searchsorted(used, first)  # uses of known blocks before the prompt
    own = np.arange(used.size) - before  # and by it: deeper blocks, all of them used earlier
    later = before - (smaller_before(previous) - own)
    distance = np.zeros(number, np.int64)
    distance[used] = first - previous - later
    hit = np.flatnonzero(found.tokens > 0)
    distances, index = np.unique(distance[use[hit]], return_inverse=True)
    sums = np.bincount(index, found.tokens[hit], minlength=distances.size)
    return ReuseCurve(
        distances=distances,
        found=np.cumsum(sums).astype(np.int64),
        tokens=tokens,
        distinct=int(number - used.size),
        block_size=blocks.size,
    )


def smaller_before(values: IntArray) -> NDArray[np.int64]:
    """For each of some whole numbers >= 0: how many smaller ones stand before it.

    Bit by bit from the top, numbers with the same bits so far stand together in their order: those whose next
    bit is 0 are smaller than those behind them whose bit is 1. ``O(n log max)``, without a loop over n.
    """
    count = np.zeros(values.size, np.int64)
    if values.size == 0:
        return count
    order = np.arange(values.size)
    for bit in reversed(range(int(values.max()).bit_length())):
        now = values[order]
        one = (now >> bit) & 1
        head = now >> (bit + 1)
        begins = np.concatenate([[True], head[1:] != head[:-1]])
        group = np.cumsum(begins) - 1
        start = np.flatnonzero(begins)
        zeros = np.concatenate([[0], np.cumsum(1 - one)])
        zeros_before = zeros[:-1] - zeros[start][group]
        count[order] += one * zeros_before
        ends = np.append(start[1:], values.size)
        zeros_here = (zeros[ends] - zeros[start])[group]
        within = np.arange(values.size) - start[group]
        place = start[group] + np.where(one == 1, zeros_here + within - zeros_before, zeros_before)
        moved = np.empty_like(order)
        moved[place] = order
        order = moved
    return count

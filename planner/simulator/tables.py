"""Step times of a replica as tables that the event loop interpolates in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.arrays import FloatArray
from planner.latency import (
    chunk_attention_time,
    decode_beside_time,
    decode_kernels_of_both,
    draft_time,
    hand_over_time,
    head_time,
    token_time,
)
from planner.operators import ReplicaSet, attainable

_PER_OCTAVE = 6  # points of a geometric grid
_SHORTEST = 8.0  # context of the first grid point [tok]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Grids:
    """Where tables have points; common to the groups of a simulation. [tok]

    Attributes
    ----------
    contexts : ndarray
        Mean contexts of decoding sequences.
    queries, pasts : ndarray
        Tokens of a chunk, and those before it.
    """

    contexts: FloatArray
    queries: FloatArray
    pasts: FloatArray

    @classmethod
    def up_to(cls, longest: float, longest_chunk: float, kinks: tuple[float, ...] = ()) -> Grids:
        """Grids for sequences of at most `longest` tokens; `kinks`: windows, where times bend. [tok]"""
        contexts = np.unique([0.0, *_geometric(longest), *(k for k in kinks if k < longest)])
        return cls(
            contexts=contexts,
            queries=np.unique([*np.arange(1.0, _SHORTEST), *_geometric(longest_chunk)]),
            pasts=np.unique([0.0, 1.0, *_geometric(longest)]),
        )


def _geometric(last: float) -> FloatArray:
    count = 2 + int(np.ceil(_PER_OCTAVE * np.log2(max(last, 2 * _SHORTEST) / _SHORTEST)))
    return np.geomspace(_SHORTEST, max(last, 2 * _SHORTEST), count)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepTables:
    r"""Times of the parts of a step on one kind of replica.

    Attributes
    ----------
    decode, beside : ndarray, shape (sequences + 1, contexts)
        Kernels of a pure decode step, and of what decode tokens add to a step of prompts. Where the two
        scales hold kernels to their peaks differently, `beside` is shifted: only the difference counts. [s]
    tokens : ndarray, shape (tokens + 1,)
        All that depends on the number of tokens of a step only. [s]
    head : ndarray, shape (rows + 1,)
        Logits of the prompts that end in a step. [s]
    attention : ndarray, shape (queries, pasts)
        Attention of a chunk per token of the chunk, launches left out. [s/tok]
    launch : float
        Of a step's prompt attention, and hand-overs between stages. [s]
    host, host_decode, host_sequence : float
        Host time of a step, per sequence that decodes in a lane, and per prompt. [s]
    decode_scale, prefill_scale : float
        Multipliers of kernels, the model error included. [1]
    load : float
        Before the first chunk of a prompt, per token of its prefix that is found. [s/tok]

    Notes
    -----
    With D sequences that decode and chunks :math:`q_i` after :math:`p_i` tokens, :math:`Q = \sum q_i`, a step
    takes :math:`s_d\,decode(D) + host`, and with prompts another
    :math:`s_p \max(0, tokens(Q + D) + launch + \sum q_i a(q_i, p_i) + head + beside(D) - decode(D))`, as
    :func:`planner.latency.prompt_time` has it. Where a draft's tokens are verified, the tokens are
    :math:`Q + (k + 1) D`, and drafting is part of decode(D) and beside(D).
    """

    decode: FloatArray
    beside: FloatArray
    tokens: FloatArray
    head: FloatArray
    attention: FloatArray
    launch: float
    host: float
    host_decode: float
    host_sequence: float
    decode_scale: float
    prefill_scale: float
    load: float = 0.0


def step_tables(r: ReplicaSet, grids: Grids, sequences: int, budget: int, lanes: int) -> StepTables:
    """Tables of one replica.

    Parameters
    ----------
    r : ReplicaSet
        With one entry.
    sequences, budget : int
        Most sequences, and most prompt tokens, of a lane's step.
    lanes : int
        Steps that the replica runs side by side, each with its own sequences.
    """
    slowdown = float(r.slowdown[0])
    batch = np.arange(1.0, sequences + 1)[:, None, None] * lanes
    contexts = np.maximum(grids.contexts, 1.0)[None, :, None]
    none = np.zeros((1, grids.contexts.size))
    p = attainable(r, r.engine.prefill_scale)
    kernels, replaced = decode_kernels_of_both(r, p, batch, contexts)
    less = decode_beside_time(p, batch, contexts) - replaced + kernels
    if r.speculation is not None:  # drafting takes as long whatever prompts are beside it
        drafting = draft_time(r, batch, contexts) / (slowdown * r.engine.decode_scale)
        kernels, less = kernels + drafting, less + drafting
    decode = np.concatenate([none, np.asarray(kernels)[..., 0]])
    beside = np.concatenate([none, np.asarray(less)[..., 0]])
    tokens = np.arange(1.0, budget + sequences * r.rows + 1)[:, None]
    rows = np.arange(1.0, sequences + 1)[:, None]
    queries, pasts = grids.queries[:, None, None], grids.pasts[None, :, None]
    launch = float(np.asarray(chunk_attention_time(p, 0.0, 0.0)).flat[0])
    chunks = np.asarray(chunk_attention_time(p, queries, pasts))[..., 0]
    return StepTables(
        decode=decode,
        beside=beside,
        tokens=np.concatenate([[0.0], np.asarray(token_time(p, tokens))[:, 0]]),
        head=np.concatenate([[0.0], np.asarray(head_time(p, rows))[:, 0]]),
        attention=(chunks - launch) / grids.queries[:, None],
        launch=launch + float(hand_over_time(r)[0]),
        host=slowdown * float(r.pp[0]) * r.engine.step_overhead,
        host_decode=slowdown * r.engine.sequence_overhead * lanes / float(r.dp[0]),
        host_sequence=slowdown * r.engine.sequence_overhead,
        decode_scale=slowdown * r.engine.decode_scale,
        prefill_scale=slowdown * r.engine.prefill_scale,
        load=float(r.prefix_load[0]),
    )

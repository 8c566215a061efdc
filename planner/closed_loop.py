"""Closed loops: clients that send their next request when the last one has ended.

Benchmarks drive engines so. Many configurations are looked at together: kernels are computed once, at some
batches up to the largest that a loop can reach, and everything that follows is arithmetic on small tables.
So the same loops can be tried with many constants of an engine, which is what fitting them does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.arrays import FloatArray, Numbers
from planner.latency import loop_kernels
from planner.operators import ReplicaSet, attainable
from planner.specs import tokens_per_step

FRACTIONS = np.array([0.1, 0.4, 0.7, 0.85, 0.95, 1.0])
"""Of the largest batch, at which kernels are computed where many constants are to be tried."""
_LEAST = 0.01  # share of the admitted clients that decode
_STEPS = 40  # of the fixed point
_CLOSE = 1e-6  # change of the share at which it ends
_TINY = 1e-12
_REFINED = 0.001  # relative change of the share from which kernels are computed once more
_ROUNDS = 12  # of refinement, at most
_AT_PEAKS = 1e-6  # factor on kernels that leaves nothing but work at the vendor's peaks [1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Loops:
    """Closed loops over one model, one entry per loop; the last axis of every array.

    Attributes
    ----------
    isl, osl : ndarray
        Mean lengths. [tok]
    clients : ndarray
        Clients of the whole configuration.
    slots : ndarray
        Sequences that the KV caches of all decoding replicas hold together.
    replicas, prompt_replicas : ndarray
        Replicas that decode, and that compute prompts: the same ones where both are colocated.
    token_budget : ndarray
        max_num_batched_tokens of a replica that computes prompts. [tok]
    transfer : ndarray
        Exposed time of moving a KV cache between pools; 0 where colocated. [s]
    disaggregated : ndarray of bool
    first_step : ndarray of bool
        Whether the first token of a request comes with a decode step after its hand-over; else it comes with
        the last step of its prompt.
    """

    isl: FloatArray
    osl: FloatArray
    clients: FloatArray
    slots: FloatArray
    replicas: FloatArray
    prompt_replicas: FloatArray
    token_budget: FloatArray
    transfer: FloatArray
    disaggregated: NDArray[np.bool_]
    first_step: NDArray[np.bool_]

    @property
    def admitted(self) -> FloatArray:
        """Clients whose sequences find room."""
        return np.minimum(self.clients, np.maximum(self.slots, 1.0))

    @property
    def context(self) -> FloatArray:
        """Mean context of a sequence that decodes. [tok]"""
        return self.isl + self.osl / 2

    def part(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> Loops:
        """Some of the loops."""
        return Loops(**{f.name: getattr(self, f.name)[..., index] for f in fields(Loops)})


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopTable:
    """Kernel times of closed loops, free of host time and of an engine's multipliers.

    Attributes
    ----------
    fractions : ndarray, shape (fractions, loops) or (fractions, 1)
        Of the largest batch, ascending. [1]
    decode : ndarray, shape (fractions, loops)
        Kernels of a decode step at each fraction of the largest batch. [s]
    prompt : ndarray, shape (fractions, loops)
        Kernels that one prompt adds to the steps it is computed in, beside that batch. [s]
    decode_bound, prompt_bound : ndarray or None
        The same at the vendor's peaks and without launches: no multiplier makes kernels faster. None where
        none could. [s]
    draft : ndarray or None
        Kernels of drafting, where its time is a share of a plain step. [s]
    draft_share, draft_time : float
        That share, which counts for host time too, and the time where one was given. [1, s]
    emitted, rows : float
        Tokens that a step emits and computes for each sequence. [tok]
    prompt_steps : ndarray, shape (loops,)
        Steps that a prompt is computed in.
    lanes, prompt_lanes, stages, prompt_stages : ndarray, shape (loops,)
        Streams of work, and pipeline stages, of a replica of either kind.
    """

    loops: Loops
    fractions: FloatArray
    decode: FloatArray
    prompt: FloatArray
    decode_bound: FloatArray | None = None
    prompt_bound: FloatArray | None = None
    draft: FloatArray | None = None
    draft_share: float = 0.0
    draft_time: float = 0.0
    emitted: float = 1.0
    rows: float = 1.0
    prompt_steps: FloatArray
    lanes: FloatArray
    prompt_lanes: FloatArray
    stages: FloatArray
    prompt_stages: FloatArray

    @classmethod
    def of(
        cls,
        decoding: ReplicaSet,
        prompts: ReplicaSet,
        loops: Loops,
        fractions: FloatArray | None = None,
        *,
        bounded: bool = False,
    ) -> LoopTable:
        """Kernels of `loops`; `prompts` are the replicas that compute prompts, maybe the same.

        Parameters
        ----------
        fractions : ndarray, shape (fractions, loops), optional
            Default: :data:`FRACTIONS`.
        bounded : bool
            Whether multipliers may lift kernels beyond the vendor's peaks, so that bounds are needed.
        """
        nodes = FRACTIONS[:, None] if fractions is None else fractions
        shape = np.broadcast_shapes(loops.clients.shape, decoding.tp.shape)
        batches = nodes * loops.admitted / loops.replicas
        rows = (len(nodes), *shape)

        def kernels(d: ReplicaSet, p: ReplicaSet, factor: float = 1.0) -> tuple[FloatArray, ...]:
            found = loop_kernels(d, p, batches, loops.context, loops.isl, loops.token_budget)
            share = 0.0 if d.speculation is None else d.speculation.draft_share or 0.0
            times = (found.decode, found.prompt, share * found.plain, found.steps / factor)
            return tuple(np.broadcast_to(factor * np.asarray(time), rows) for time in times)

        decode, prompt, draft, steps = kernels(decoding, prompts)
        bounds: tuple[FloatArray, ...] = ()
        if bounded:
            d = attainable(decoding, _AT_PEAKS)
            p = d if prompts is decoding else attainable(prompts, _AT_PEAKS)
            bounds = kernels(d, p, _AT_PEAKS)
        speculation = decoding.speculation
        share = 0.0 if speculation is None else speculation.draft_share or 0.0
        return cls(
            loops=loops,
            fractions=nodes,
            decode=decode,
            prompt=prompt,
            decode_bound=bounds[0] if bounds else None,
            prompt_bound=bounds[1] if bounds else None,
            draft=draft if share else None,
            draft_share=share,
            draft_time=0.0 if speculation is None else speculation.draft_time or 0.0,
            emitted=tokens_per_step(speculation),
            rows=float(decoding.rows),
            prompt_steps=steps[-1],
            lanes=np.broadcast_to(decoding.lanes, shape),
            prompt_lanes=np.broadcast_to(prompts.lanes, shape),
            stages=np.broadcast_to(decoding.pp, shape),
            prompt_stages=np.broadcast_to(prompts.pp, shape),
        )

    def part(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> LoopTable:
        """Some of the loops."""
        return _mapped(self, lambda array: array if array.shape[-1] == 1 else array[..., index])


def joined(tables: Sequence[LoopTable]) -> LoopTable:
    """Loops of several tables as one; all with the same fractions, and without drafts and bounds."""
    first = tables[0]

    def together(name: str, owner: str = "") -> Any:
        owners = [getattr(t, owner) if owner else t for t in tables]
        return np.concatenate([getattr(o, name) for o in owners], axis=-1)

    loops = Loops(**{f.name: together(f.name, "loops") for f in fields(Loops)})
    names = [f.name for f in fields(first) if isinstance(getattr(first, f.name), np.ndarray)]
    return replace(first, loops=loops, **{name: together(name) for name in names if name != "fractions"})


def _mapped(table: LoopTable, change: Callable[[Any], Any]) -> LoopTable:
    loops = Loops(**{f.name: change(getattr(table.loops, f.name)) for f in fields(Loops)})
    arrays = {f.name: getattr(table, f.name) for f in fields(table)}
    rest = {name: change(array) for name, array in arrays.items() if isinstance(array, np.ndarray)}
    return replace(table, loops=loops, **rest)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostConstants:
    """What an engine adds to kernels; one number, or one per loop.

    Attributes
    ----------
    step, sequence : per step, and per sequence of a step. [s]
    decode_scale, prefill_scale : factors on kernels of decode steps and of prompts. [1]
    """

    step: Numbers = 0.0
    sequence: Numbers = 0.0
    decode_scale: Numbers = 1.0
    prefill_scale: Numbers = 1.0

    def times(self, factor: Numbers) -> HostConstants:
        """All of it slower by a factor, as a model error makes steps. [1]"""
        return HostConstants(
            step=self.step * factor,
            sequence=self.sequence * factor,
            decode_scale=self.decode_scale * factor,
            prefill_scale=self.prefill_scale * factor,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Protocol:
    """What a benchmark's TTFT counts beside the prompt's own time; one number, or one per loop.

    Attributes
    ----------
    fixed : number
        Front end: the client, HTTP, tokens to text. [s]
    services : number
        Services of a prompt that a request sees: 1 where it never meets another.
    steps : number
        Steps of the engine between a request and the step that takes it, and until its token is sent: half
        a step where it comes at any time.
    first_wave : number
        Mean wait of a request in services per further client of a replica. All clients start together: with
        ten requests per client, one in ten waits for half of the others, which is 0.05.
    wave : bool or ndarray
        There is nothing but a first wave: prompts are computed first, then all requests decode.
    queue : number
        Weight of the mean wait of a stream of prompts at random times. [1]
    """

    fixed: Numbers = 0.0
    services: Numbers = 1.0
    steps: Numbers = 0.5
    first_wave: Numbers = 0.05
    wave: NDArray[np.bool_] | bool = False
    queue: Numbers = 0.0


STEADY = Protocol(first_wave=0.0, queue=1.0)
"""A loop that has run for long: no first wave, requests at any time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopState:
    """Means of closed loops, shape ``(loops,)``.

    Attributes
    ----------
    ttft, tpot : [s]
    rate : requests served by the whole configuration. [req/s]
    batch : sequences that decode on one replica.
    share : of the admitted clients, those that decode. [1]
    """

    ttft: FloatArray
    tpot: FloatArray
    rate: FloatArray
    batch: FloatArray
    share: FloatArray


# --------------------------------------------------------------------------------------------
# Steady states


def run(table: LoopTable, host: HostConstants, protocol: Protocol) -> LoopState:
    r"""Steady state of every loop.

    Fixed point over the share of the admitted clients that decode: a request spends its TTFT elsewhere.

    Notes
    -----
    Colocated, prompts are computed in the steps of sequences that decode:
    :math:`tpot = t(D)/a + D p / (lanes\, osl)`, with p the time that a prompt adds to steps, and a the tokens
    that a step emits. In a wave all prompts come first, and a request waits for half of them on average
    before it decodes: :math:`tpot = t(D)/a + C p / (2 osl)`. Clients beyond the slots of the KV cache wait
    for a slot.

    A stream of prompts at random times waits as in an M/D/1 queue whose server is all lanes together, see
    ``_Look._wait``. Colocated, prompts that wait are computed together, so that each occupies its own kernels
    and the share of a step that it fills, not a step of its own.
    """
    lines = _Lines(table.fractions, [table.decode, table.prompt, table.decode_bound, table.prompt_bound,
                                     table.draft])  # fmt: skip
    look = _Look(table, host, protocol)
    share = high = np.ones_like(look.largest)
    low = np.full_like(share, _LEAST)
    before, error = share, share
    for step in range(_STEPS):
        seen = look(share, *lines.at(share))
        gap = seen.fresh - share
        if step == _STEPS - 1 or float(np.max(np.abs(gap), initial=0.0)) < _CLOSE:
            break
        low, high = np.where(gap > 0, share, low), np.where(gap < 0, share, high)
        if step:  # secant; between shares on both sides of the solution, else halfway
            moved = share - before
            fall = np.where(np.abs(moved) > _TINY, error - gap, moved)
            ahead = share + gap * moved / np.where(np.abs(fall) > _TINY, fall, 1.0)
            ahead = np.where((ahead < low) | (ahead > high), (low + high) / 2, ahead)
        else:
            ahead = np.maximum(seen.fresh, _LEAST)
        before, error, share = share, gap, ahead
    loops, admitted = table.loops, look.admitted
    cycle = seen.ttft + look.tokens * seen.tpot
    waiting = np.maximum(loops.clients - admitted, 0.0)
    return LoopState(
        ttft=seen.ttft + waiting / admitted * cycle,
        tpot=seen.tpot,
        rate=admitted / cycle,
        batch=share * look.largest,
        share=share,
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """Latencies at a share of clients that decode, and the share that follows from them. [s, s, 1]"""

    ttft: FloatArray
    tpot: FloatArray
    fresh: FloatArray


class _Lines:
    """Rows of tables over fractions, linear in between and below; none falls faster than its fraction."""

    def __init__(self, fractions: FloatArray, tables: Sequence[FloatArray | None]) -> None:
        self._low = fractions[:-1]
        self._widths = np.maximum(np.diff(fractions, axis=0), _CLOSE)
        self._first = [None if t is None else t[0] for t in tables]
        self._rises = [None if t is None else np.diff(t, axis=0) for t in tables]
        steepest = self._widths[:1] / np.maximum(self._low[:1], _CLOSE)
        self._falls = [
            None if t is None or not len(steepest) else np.clip(t[1] - t[0], 0.0, t[0] * steepest[0])
            for t in tables
        ]

    def at(self, share: FloatArray) -> list[Any]:
        """Each table at a share; None for those that are."""
        found: list[Any] = list(self._first)
        for k, (low, width) in enumerate(zip(self._low, self._widths, strict=True)):
            place = (share - low) / width
            weight = np.clip(place, 0.0, 1.0)
            found = [
                None if rises is None else value + weight * rises[k]
                for value, rises in zip(found, self._rises, strict=True)
            ]
            if k == 0:
                below = np.minimum(place, 0.0)
                found = [
                    None if fall is None else value + below * fall
                    for value, fall in zip(found, self._falls, strict=True)
                ]
        return found


class _Look:
    """Latencies of loops at a share of clients that decode; what no share changes is computed once."""

    def __init__(self, table: LoopTable, host: HostConstants, protocol: Protocol) -> None:
        loops = table.loops
        self.table, self.host, self.protocol = table, host, protocol
        self.admitted = loops.admitted
        self.largest = self.admitted / loops.replicas
        self.tokens = np.maximum(loops.osl - 1.0, 0.0)
        self.apart = loops.disaggregated
        self.per_token = 1.0 / (table.lanes * np.maximum(loops.osl, 1.0))
        self.ranks = table.lanes / table.stages  # each has a scheduler of its own
        self.step_host = (1.0 + table.draft_share) * table.stages * host.step
        self.own_host = table.prompt_stages * host.step + host.sequence
        self.servers = loops.prompt_replicas * table.prompt_lanes
        self.mates = np.maximum(self.admitted / loops.prompt_replicas - 1.0, 0.0)
        self.met = 1.0 - 1.0 / np.maximum(self.largest, 1.0)  # a request does not meet its own prompt
        self.queued = bool(np.any(np.asarray(protocol.queue) > 0))
        self.waves = bool(np.any(np.asarray(protocol.wave)))

    def __call__(
        self,
        share: FloatArray,
        decode: FloatArray,
        prompt: FloatArray,
        decode_bound: FloatArray | None,
        prompt_bound: FloatArray | None,
        draft: FloatArray | None,
    ) -> _Seen:
        table, loops, host, protocol = self.table, self.table.loops, self.host, self.protocol
        batch = share * self.largest
        decode = host.decode_scale * decode
        prompt = host.prefill_scale * prompt
        if decode_bound is not None and prompt_bound is not None:
            decode, prompt = np.maximum(decode, decode_bound), np.maximum(prompt, prompt_bound)
        others = self.met * batch
        sampled = host.sequence * batch / self.ranks
        beside = decode + sampled  # decode tokens in the steps of a prompt
        step = beside + self.step_host
        if table.draft_share or table.draft_time:
            drafting = table.draft_time + table.draft_share * sampled
            if draft is not None:
                drafting = drafting + host.decode_scale * draft
            step = step + drafting
            beside = beside + np.minimum(others / table.lanes, 1.0) * drafting
        in_steps = _either(self.apart, 0.0, beside)
        service = prompt + table.prompt_steps * (in_steps + self.own_host)
        plain = step / table.emitted if table.emitted != 1.0 else step
        tpot = _either(self.apart, plain, plain + others * prompt * self.per_token)
        if self.waves:
            held_up = plain + self.largest * prompt * self.per_token / 2
            tpot = np.where(np.asarray(protocol.wave) & ~self.apart, held_up, tpot)
        # A step runs where another decodes, and the request waits for its end.
        met = np.where(self.apart & ~loops.first_step, 0.0, np.minimum(others, 1.0))
        ttft = protocol.fixed + protocol.services * service + protocol.steps * met * table.emitted * tpot
        ttft = ttft + _either(self.apart, loops.transfer + np.where(loops.first_step, step, 0.0), 0.0)
        if np.any(np.asarray(protocol.first_wave) > 0):
            alone = _either(self.apart, service, prompt)
            ttft = ttft + protocol.first_wave * self.mates * alone / table.prompt_lanes
        if self.waves:
            ttft = np.where(
                np.asarray(protocol.wave) & ~self.apart, self._in_wave(step, prompt, service), ttft
            )
        decoding = self.tokens * tpot
        if self.queued:
            room = np.maximum(loops.token_budget - table.rows * batch / table.lanes, 1.0)
            filled = prompt + loops.isl / room * (beside + self.step_host)
            taken = _either(self.apart, service, filled)
            ttft = ttft + protocol.queue * self._wait(taken, ttft + decoding)
        last = _either(self.apart, np.where(loops.first_step, step, 0.0), tpot)
        return _Seen(ttft, tpot, np.clip((decoding + last) / (ttft + decoding), _LEAST, 1.0))

    def _in_wave(self, step: FloatArray, prompt: FloatArray, service: FloatArray) -> FloatArray:
        """TTFT where all prompts come at once, and those of a step are answered together. [s]"""
        table, loops, protocol = self.table, self.table.loops, self.protocol
        each = self.largest / table.lanes
        batches = np.ceil(np.maximum(each * loops.isl / loops.token_budget, 1.0))
        ahead = np.maximum(each * prompt * (batches + 1) / (2 * batches), service)
        return np.asarray(protocol.fixed + protocol.steps * step + protocol.services * ahead)

    def _wait(self, taken: FloatArray, unqueued: FloatArray) -> FloatArray:
        r"""Mean wait of equal prompts at random times, at most for all other clients. [s]

        Notes
        -----
        Of N clients each is under way for the time U without waits, and a prompt takes S of one of n servers.
        With :math:`x = \lambda S/n`, and the queue of M/D/1 as the others make it (N - 1 of N, the arrival
        theorem), :math:`x A + w x^2/(2(1-x)) = N` where :math:`A = nU/S` and :math:`w = (N-1)/N`: a quadratic
        with one solution below 1. No more prompts are served than servers compute.
        """
        clients = self.admitted
        works = np.maximum(taken, 1e-12) / self.servers
        size = unqueued / works
        weight = self.mates / (self.mates + 1.0)
        load = 2 * clients / (size + clients + np.sqrt((size - clients) ** 2 + 2 * weight * clients))
        wait = clients * works / load - unqueued
        return np.clip(wait, 0.0, self.mates * taken / self.table.prompt_lanes)


def _either(mask: NDArray[np.bool_], yes: Numbers, no: Numbers) -> Any:
    """``where(mask, yes, no)``, of which one is enough where all entries agree."""
    first = bool(mask.flat[0]) if mask.size else False
    if bool(mask.all()) or not (first or mask.any()):
        return yes if first else no
    return np.where(mask, yes, no)


def solved(
    decoding: ReplicaSet,
    prompts: ReplicaSet,
    loops: Loops,
    host: HostConstants,
    protocol: Protocol = STEADY,
    *,
    bounded: bool = False,
) -> tuple[LoopTable, LoopState]:
    """Steady state of every loop with one set of constants, and the table that it was found on.

    Kernels are computed at the largest batch, and again at the batch that follows, until that stays: for most
    loops two or three times instead of at all of :data:`FRACTIONS`, and where they are needed. Batches are
    padded to captured sizes; where one batch asks for the other side of such a step, either answer is given.
    The replicas have one entry for each loop.
    """
    ones = np.ones((1, loops.clients.size))
    top = LoopTable.of(decoding, prompts, loops, ones, bounded=bounded)
    state = run(top, host, protocol)
    table = top
    open_loops = np.arange(loops.clients.size)
    part, part_loops, d, p = top, loops, decoding, prompts
    for _ in range(_ROUNDS):
        share = state.share[open_loops]
        if len(open_loops) < loops.clients.size:
            part, part_loops, d = top.part(open_loops), loops.part(open_loops), decoding.part(open_loops)
            p = d if prompts is decoding else prompts.part(open_loops)
        lower = LoopTable.of(d, p, part_loops, np.minimum(share, 1.0 - _CLOSE)[None, :], bounded=bounded)
        between = _stacked(lower, part)
        found = run(between, host, protocol)
        table = between if len(open_loops) == loops.clients.size else _put(table, between, open_loops)
        moved = np.abs(found.share - share)
        state = found if len(open_loops) == loops.clients.size else _put_state(state, found, open_loops)
        open_loops = open_loops[moved > _REFINED * share]
        if not open_loops.size:
            break
    return table, state


_ROWS = ("fractions", "decode", "prompt", "decode_bound", "prompt_bound", "draft")


def _stacked(lower: LoopTable, upper: LoopTable) -> LoopTable:
    """Two tables of one fraction each as one of both."""
    rows: dict[str, Any] = {
        name: np.concatenate([getattr(lower, name), getattr(upper, name)])
        for name in _ROWS
        if getattr(lower, name) is not None
    }
    return replace(upper, **rows)


def _put(table: LoopTable, part: LoopTable, index: NDArray[np.intp]) -> LoopTable:
    """`table` with the rows of some of its loops."""
    rows: dict[str, Any] = {}
    for name in _ROWS:
        if getattr(part, name) is not None:
            rows[name] = getattr(table, name).copy()
            rows[name][:, index] = getattr(part, name)
    return replace(table, **rows)


def _put_state(state: LoopState, part: LoopState, index: NDArray[np.intp]) -> LoopState:
    arrays = {}
    for f in fields(LoopState):
        arrays[f.name] = getattr(state, f.name).copy()
        arrays[f.name][index] = getattr(part, f.name)
    return LoopState(**arrays)

"""Closed loops: clients that send their next request when the last one has ended.

Benchmarks drive engines so. Many configurations are looked at together: kernels are computed once, at some
batches up to the largest that a loop can reach, and everything that follows is arithmetic on small tables.
So the same loops can be tried with many constants of an engine, which is what fitting them does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from planner.arrays import FloatArray, Numbers
from planner.latency import decode_kernels_time, prompt_time
from planner.operators import ReplicaSet

FRACTIONS = np.array([0.1, 0.4, 0.7, 0.85, 0.95, 1.0])
"""Of the largest batch, at which kernels are computed."""
_STEPS = 40  # of the fixed point
_CLOSE = 1e-6  # change of the batch at which it ends


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

    @property
    def admitted(self) -> FloatArray:
        """Clients whose sequences find room."""
        return np.minimum(self.clients, np.maximum(self.slots, 1.0))

    @property
    def context(self) -> FloatArray:
        """Mean context of a sequence that decodes. [tok]"""
        return self.isl + self.osl / 2


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopTable:
    """Kernel times of closed loops, free of host time and of an engine's multipliers.

    Attributes
    ----------
    decode : ndarray, shape (fractions, loops)
        Kernels of a decode step at each fraction of the largest batch. [s]
    prompt : ndarray, shape (fractions, loops)
        Kernels that one prompt adds to the steps it is computed in, beside that batch. [s]
    prompt_steps : ndarray, shape (loops,)
        Steps that a prompt is computed in.
    lanes, prompt_lanes, stages, prompt_stages : ndarray, shape (loops,)
        Streams of work, and pipeline stages, of a replica of either kind.
    """

    loops: Loops
    decode: FloatArray
    prompt: FloatArray
    prompt_steps: FloatArray
    lanes: FloatArray
    prompt_lanes: FloatArray
    stages: FloatArray
    prompt_stages: FloatArray

    @classmethod
    def of(cls, decoding: ReplicaSet, prompts: ReplicaSet, loops: Loops) -> LoopTable:
        """Kernels of `loops`; `prompts` are the replicas that compute prompts, maybe the same."""
        shape = np.broadcast_shapes(loops.clients.shape, decoding.tp.shape)
        batches = FRACTIONS[:, None] * loops.admitted / loops.replicas
        beside = np.where(loops.disaggregated, 0.0, batches)
        engine = decoding.engine
        # Kernels alone: scales of one, no host time; decode steps within a prompt's time are taken out again.
        decode = np.asarray(decode_kernels_time(decoding, batches, loops.context))
        time = prompt_time(
            prompts, loops.isl, 0.0, loops.token_budget, decode_batch=beside, context=loops.context
        )
        host = time.steps * (prompts.pp * engine.step_overhead + engine.sequence_overhead * (beside + 1.0))
        alone = np.where(beside > 0, time.stolen, time.stolen - host * prompts.slowdown)
        prompt = alone / (engine.prefill_scale * prompts.slowdown)
        return cls(
            loops=loops,
            decode=np.broadcast_to(decode, (len(FRACTIONS), *shape)),
            prompt=np.broadcast_to(prompt, (len(FRACTIONS), *shape)),
            prompt_steps=np.broadcast_to(time.steps[-1], shape),
            lanes=np.broadcast_to(decoding.lanes, shape),
            prompt_lanes=np.broadcast_to(prompts.lanes, shape),
            stages=np.broadcast_to(decoding.pp, shape),
            prompt_stages=np.broadcast_to(prompts.pp, shape),
        )

    def part(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> LoopTable:
        """Some of the loops."""
        return _mapped(self, lambda array: array[..., index])


def joined(tables: Sequence[LoopTable]) -> LoopTable:
    """Loops of several tables as one."""
    first = tables[0]

    def together(name: str, owner: str = "") -> FloatArray:
        owners = [getattr(t, owner) if owner else t for t in tables]
        return np.concatenate([getattr(o, name) for o in owners], axis=-1)

    loops = Loops(**{f.name: together(f.name, "loops") for f in fields(Loops)})
    rest = {f.name: together(f.name) for f in fields(first) if f.name != "loops"}
    return LoopTable(loops=loops, **rest)


def _mapped(table: LoopTable, change) -> LoopTable:  # type: ignore[no-untyped-def]
    loops = Loops(**{f.name: change(getattr(table.loops, f.name)) for f in fields(Loops)})
    rest = {f.name: change(getattr(table, f.name)) for f in fields(table) if f.name != "loops"}
    return LoopTable(loops=loops, **rest)


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
    """

    ttft: FloatArray
    tpot: FloatArray
    rate: FloatArray
    batch: FloatArray


def run(table: LoopTable, host: HostConstants, protocol: Protocol) -> LoopState:
    r"""Steady state of every loop.

    Fixed point over the share of the admitted clients that decode: a request spends its TTFT elsewhere.

    Notes
    -----
    Colocated, prompts are computed in the steps of sequences that decode:
    :math:`tpot = t(D) + D p / (lanes\, osl)`, with p the time that a prompt adds to steps. In a wave all prompts
    come first, and a request waits for half of them on average before it decodes:
    :math:`tpot = t(D) + C p / (2 osl)`. Clients beyond the slots of the KV cache wait for a slot.
    """
    loops = table.loops
    admitted = loops.admitted
    largest = admitted / loops.replicas
    share = np.ones_like(largest)
    disaggregated = loops.disaggregated
    mates = np.maximum(admitted / loops.prompt_replicas - 1.0, 0.0)
    tokens = np.maximum(loops.osl - 1.0, 0.0)
    servers = loops.prompt_replicas * table.prompt_lanes
    for _ in range(_STEPS):
        batch = share * largest
        decode = host.decode_scale * _at(table.decode, share)
        prompt = host.prefill_scale * _at(table.prompt, share)
        step = decode + table.stages * host.step + host.sequence * batch
        beside = np.where(
            disaggregated, 0.0, decode + host.sequence * batch
        )  # decode tokens in the steps of a prompt
        service = prompt + table.prompt_steps * (beside + table.prompt_stages * host.step + host.sequence)
        mixed = step + batch * prompt / (table.lanes * np.maximum(loops.osl, 1.0))
        held_up = step + largest * prompt / (2 * table.lanes * np.maximum(loops.osl, 1.0))
        tpot = np.where(disaggregated, step, np.where(protocol.wave, held_up, mixed))
        alone = np.where(disaggregated, service, prompt)
        wait = protocol.first_wave * mates * alone / table.prompt_lanes
        after = np.where(disaggregated, loops.transfer + step, 0.0)
        own = protocol.fixed + protocol.services * service + protocol.steps * tpot + after
        batches = np.ceil(np.maximum(largest * loops.isl / (table.lanes * loops.token_budget), 1.0))
        in_wave = (
            protocol.fixed
            + protocol.steps * step
            + protocol.services
            * np.maximum(largest / table.lanes * prompt * (batches + 1) / (2 * batches), service)
        )
        ttft = np.where(protocol.wave & ~disaggregated, in_wave, own + wait)
        rate = admitted / (ttft + tokens * tpot)
        queue = _queue(rate, service, servers, mates)
        for _ in range(3):  # the wait slows its own stream
            rate = admitted / (ttft + protocol.queue * queue + tokens * tpot)
            queue = 0.5 * (queue + _queue(rate, service, servers, mates))
        ttft = ttft + protocol.queue * queue
        fresh = np.clip(loops.osl * tpot / (ttft + tokens * tpot), FRACTIONS[0], 1.0)
        change = float(np.max(np.abs(fresh - share), initial=0.0))
        share = 0.5 * (share + fresh)
        if change < _CLOSE:
            break
    waiting = np.maximum(loops.clients - admitted, 0.0)
    return LoopState(
        ttft=ttft + waiting / admitted * (ttft + tokens * tpot),
        tpot=tpot,
        rate=admitted / (ttft + tokens * tpot),
        batch=share * largest,
    )


def _queue(rate: FloatArray, service: FloatArray, servers: FloatArray, mates: FloatArray) -> FloatArray:
    """Mean wait of equal prompts at random times (M/D/n, roughly), at most for all other clients. [s]"""
    load = np.minimum(rate * service / servers, 1.0 - 1e-9)
    return np.minimum(load * service / (2 * (1 - load)) / servers, mates * service / 2)


def _at(values: FloatArray, share: FloatArray) -> FloatArray:
    """Rows of a table over :data:`FRACTIONS`, linear in between."""
    upper = np.clip(np.searchsorted(FRACTIONS, share), 1, len(FRACTIONS) - 1)
    low, high = FRACTIONS[upper - 1], FRACTIONS[upper]
    weight = (share - low) / (high - low)
    columns = np.arange(values.shape[-1])
    return values[upper - 1, columns] * (1 - weight) + values[upper, columns] * weight

"""The records that the event loop works on, and all arrays of a run.

Layouts are part of the type of compiled code, so that its cache notices when one changes. Constants are not:
they stand in :mod:`planner.simulator.kernel`; nor is the order of two arrays of one type in :class:`World`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

REQUEST = np.dtype(
    [
        ("arrival", "f8"),  # [s]
        ("begun", "f8"),  # first chunk of the prompt starts [s]
        ("prompted", "f8"),  # its last chunk ends [s]
        ("joined", "f8"),  # ready to decode: the KV cache has arrived [s]
        ("first", "f8"),  # first token [s]
        ("last", "f8"),  # last token so far [s]
        ("stall", "f8"),  # time that decoding was held up; while decoding, the lane's sum at its start [s]
        ("size", "f8"),  # KV cache of the prompt [B]
        ("work", "f8"),  # seconds that the prompt would take by itself
        ("isl", "i4"),
        ("osl", "i4"),
        ("cached", "i4"),  # tokens of the prompt that need no computing
        ("kv_prompt", "i4"),  # what the prompt holds, in tokens of full attention
        ("kv_decode", "i4"),  # what a sequence holds when it starts to decode
        ("done", "i4"),  # prompt tokens computed
        ("made", "i4"),  # output tokens, those since it joined its lane left out
        ("joined_at", "i4"),  # iteration of the lane
        ("stay", "i4"),  # iterations from there to its last token
        ("base", "i4"),  # tokens held when it joined
        ("held", "i4"),  # blocks held by it alone when it joined
        ("shared", "i4"),  # blocks of the prefix cache that it refers to
        ("next", "i4"),  # in a queue, or among the sequences of a lane
        ("before", "i4"),
        ("ring_next", "i4"),  # among those that end in the same iteration
        ("ring_before", "i4"),
        ("prefill", "i4"),  # replica
        ("decode", "i4"),
        ("lane", "i4"),
        ("epoch", "i2"),  # of its transfer: failures make older ones void
        ("preempted", "i2"),
        ("state", "i1"),
    ],
    align=True,
)

LANE = np.dtype(
    [
        ("end", "f8"),
        ("start", "f8"),
        ("last_end", "f8"),  # of the last step that decoded
        ("pure", "f8"),  # what the running step would take without prompts
        ("stall", "f8"),  # sum of the time that decoding was held up
        ("context", "f8"),  # tokens of all sequences
        ("attention", "f8"),
        ("extra", "f8"),  # swapping that delays the next step [s]
        ("replica", "i4"),
        ("busy", "i4"),
        ("batch", "i4"),
        ("iteration", "i4"),
        ("decodes", "i4"),  # sequences in the running step
        ("query", "i4"),  # prompt tokens in it
        ("prompts", "i4"),
        ("completing", "i4"),  # list of the prompts that the running step completes
        ("completing_tail", "i4"),
        ("rows", "i4"),  # how many
        ("partial", "i4"),  # prompt that needs further steps
        ("head", "i4"),  # sequences, oldest first
        ("tail", "i4"),
        ("fresh", "i4"),  # the youngest ones, which have had no token in this lane
        ("ready", "i4"),  # list of those that join at the next step
        ("ready_tail", "i4"),
        ("joining", "i4"),  # how many
        ("node", "i4"),  # of the context grid
    ],
    align=True,
)

REPLICA = np.dtype(
    [
        ("work", "f8"),  # prompts in the queue [s]
        ("egress", "f8"),  # the NICs are taken until [s]
        ("ingress", "f8"),
        ("egress_busy", "f8"),  # sums [s]
        ("ingress_busy", "f8"),
        ("busy", "f8"),  # sum over lanes of the time in steps [s]
        ("batch_time", "f8"),  # sum of sequences times time [s]
        ("used_time", "f8"),  # sum of blocks times time [s]
        ("used_since", "f8"),
        ("used", "i8"),  # blocks that requests hold
        ("most_used", "i8"),
        ("tokens", "f8"),  # emitted
        ("queued_tokens", "i8"),
        ("steps", "i8"),
        ("decode_steps", "i8"),
        ("step_decodes", "i8"),  # sum of sequences over steps that decode
        ("head", "i4"),  # queue of prompts
        ("tail", "i4"),
        ("queued", "i4"),
        ("wait_head", "i4"),  # queue of sequences that wait for blocks and a slot
        ("wait_tail", "i4"),
        ("waiting", "i4"),
        ("sequences", "i4"),  # that have a slot
        ("incoming", "i4"),  # of these, in transfer
        ("group", "i4"),
        ("first_lane", "i4"),
        ("up", "i4"),
        ("preemptions", "i4"),
        ("swaps", "i4"),
        ("cached", "i4"),  # blocks of the prefix cache that nobody refers to
        ("lru_head", "i4"),
        ("lru_tail", "i4"),
        ("evictions", "i8"),
        ("completed", "i8"),
    ],
    align=True,
)

GROUP = np.dtype(
    [
        ("host", "f8"),  # host time of a step [s]
        ("host_decode", "f8"),  # for each sequence that decodes in a lane, [s]
        ("host_sequence", "f8"),  # and for each prompt [s]
        ("decode_scale", "f8"),  # of decode kernels; the slowdown is in it
        ("prefill_scale", "f8"),
        ("launch", "f8"),  # of a step's prompt attention and hand-overs between stages [s]
        ("swap_rate", "f8"),  # to host memory, of a block [s]
        ("load", "f8"),  # of a found prefix's token, from where it is kept [s]
        ("nic", "f8"),  # all NICs of a replica [B/s]
        ("fixed", "f8"),  # of a transfer from here [s]
        ("exposed", "f8"),  # share of it that is not hidden [1]
        ("post", "f8"),  # per block, of a transfer from here [s]
        ("copies", "f8"),  # of each byte that gets here
        ("weight", "f8"),  # planned rate of a replica
        ("share", "f8"),  # planned share of the group in its pool
        ("credit", "f8"),  # for routing by shares
        ("sequence_work", "f8"),  # what a decoding sequence takes from a colocated replica [s]
        ("blocks", "i8"),
        ("phase", "i4"),
        ("lanes", "i4"),
        ("stages", "i4"),  # of a pipeline whose lanes share them
        ("budget", "i4"),
        ("limit", "i4"),  # sequences
        ("least", "i4"),  # prompt lengths served here
        ("most", "i4"),
        ("first", "i4"),  # replica
        ("replicas", "i4"),
        ("decode_table", "i8"),  # offsets into the tables
        ("beside_table", "i8"),
        ("token_table", "i8"),
        ("head_table", "i8"),
        ("attention_table", "i8"),
        ("prefill_first", "i1"),
        ("emits", "i1"),  # whether a prompt's last step makes a token
        ("swaps", "i1"),
    ],
    align=True,
)

CONTROL = np.dtype(
    [
        ("now", "f8"),
        ("area", "f8"),  # sum of requests in the system times time [s]
        ("until", "f8"),
        ("random", "u8"),
        ("tokens", "f8"),
        ("gain", "f8"),  # tokens that a decode step emits for a sequence, on average
        ("pending", "i4"),  # requests without a replica of the first phase
        ("pending_tail", "i4"),
        ("homeless", "i4"),  # and of the decode phase
        ("homeless_tail", "i4"),
        ("next", "i4"),
        ("oldest", "i4"),
        ("heap", "i4"),
        ("in_system", "i4"),
        ("most_in_system", "i4"),
        ("finished", "i4"),
        ("rejected", "i4"),
        ("starting", "i4"),  # lanes on the stack of those to start
        ("routing", "i4"),
        ("measure", "i4"),
        ("turn", "i4"),  # of round robin
        ("decode_turn", "i4"),
        ("first_from_prefill", "i4"),  # the first token comes with the hand-over
        ("block", "i4"),  # tokens
        ("verified", "i4"),  # tokens that a decode step computes for a sequence
        ("period", "i4"),  # iterations in which a sequence grows by `grown` blocks
        ("grown", "i4"),
        ("hash_block", "i4"),  # tokens of a block of the prefix cache; 0: none
        ("hash_blocks", "i4"),  # engine blocks in it
        ("contexts", "i4"),
        ("queries", "i4"),
        ("pasts", "i4"),
        ("context_grid", "i4"),  # offsets into the tables
        ("query_grid", "i4"),
        ("past_grid", "i4"),
        ("logged", "i4"),
        ("logging", "i4"),
        ("sample", "i4"),
        ("first_pool", "i4"),  # number of replicas that requests arrive at
        ("hits", "i8"),  # tokens found in the prefix cache
        ("asked", "i8"),
    ],
    align=True,
)

TRANSFER_EVENT = np.dtype([("time", "f8"), ("request", "i4"), ("epoch", "i4")], align=True)
FAILURE = np.dtype([("time", "f8"), ("replica", "i4"), ("up", "i4")], align=True)
ACTIVITY = np.dtype([("start", "f8"), ("end", "f8"), ("request", "i4"), ("kind", "i4")], align=True)


class World(NamedTuple):
    """All arrays of a run; records as above where nothing else is said.

    Attributes
    ----------
    request, lane, replica, group : records of each
    control : one record
    tables : step times and grids, one after the other
    ring : (lanes, iterations) sequences of a lane that end in an iteration: first of a list
    growth : (lanes, period) sequences of a lane that need a block in an iteration
    refers : (replicas, blocks of prompts) requests that refer to a cached block; -1: not there
    older, newer : (replicas, blocks of prompts) order of use of cached blocks
    offsets, ids : blocks of each prompt
    starting : stack of lanes
    heap : transfers by time of arrival
    pairs : (groups, groups) rate of a transfer between replicas of two groups [B/s]
    stage : (lanes, stages) when a stage is free of the pipeline whose first lane this is [s]
    tree : ends of steps, as a tree of minima [s]
    gaps : histogram of times between tokens
    samples, sample_times : (times, groups, figures)
    log : activities
    failures : by time
    lost : requests that a failure takes
    """

    request: NDArray[Any]
    lane: NDArray[Any]
    replica: NDArray[Any]
    group: NDArray[Any]
    control: NDArray[Any]
    tables: NDArray[np.float64]
    ring: NDArray[np.int32]
    growth: NDArray[np.int32]
    refers: NDArray[np.int32]
    older: NDArray[np.int32]
    newer: NDArray[np.int32]
    offsets: NDArray[np.int64]
    ids: NDArray[np.int32]
    starting: NDArray[np.int32]
    heap: NDArray[Any]
    pairs: NDArray[np.float64]
    stage: NDArray[np.float64]
    tree: NDArray[np.float64]
    gaps: NDArray[np.int64]
    samples: NDArray[np.float64]
    sample_times: NDArray[np.float64]
    log: NDArray[Any]
    failures: NDArray[Any]
    lost: NDArray[np.int64]

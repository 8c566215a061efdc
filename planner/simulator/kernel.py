"""The event loop: engine steps, one after the other, on every replica of a fleet.

Compiled, and in one file: the cache of compiled code notices changes of this file only, and of the layout
of the records (:mod:`planner.simulator.records`) that it works on:

- a *request* waits for its prompt to be computed, is handed over, decodes, and is done;
- a *lane* runs one step at a time: a replica has one, or one per stage of a pipeline, or, for prompts,
  one per rank of attention data parallelism;
- a *replica* holds the queue, the KV cache, and its NICs;
- a *group* holds what its replicas share: limits, and where its tables begin.

Every sequence of a lane gets as many tokens per decoding step, so nothing is done per token: a ring of lists
says who ends in which step, a ring of counters how many sequences need another block in it, and sums keep
the batch's context and the time that it was held up. That many is one or, where a draft's tokens are
verified, their mean: a sequence has ``(tokens - 1) / gain`` steps after its first token, rounded up or down
so that the mean is kept, and its blocks grow in a pattern that repeats itself.

Whatever numbers a request, a lane, a replica or a group is an ``int32``, as records have it (-1: none): a
function that is called with other types is compiled once more for them.

Ties in time are resolved in this order: failures, arrivals, transfers, ends of steps by lane. All
arrivals of an instant are routed before an idle replica starts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from planner.simulator.compiled import entry, part
from planner.simulator.records import World

NEW, PENDING, WAITING, PREFILL, HANDED, TRANSFER, READY, DECODE, SWAPPED, DONE, REJECTED = range(11)
"""States of a request. PENDING: no replica is up; HANDED: waits for room on a decode replica; SWAPPED: waits
with its KV cache in host memory."""

IDLE, STEPPING, HELD_BACK, CALLED, STARTING = range(5)
"""States of a lane. HELD_BACK: until the first stage is free; CALLED: on the stack of lanes to start."""

PREFILL_PHASE, DECODE_PHASE, COLOCATED_PHASE = range(3)
LEAST_LOADED, POWER_OF_TWO, ROUND_ROBIN, RANDOM, SHARES, PREFIX_AWARE = range(6)
WORK, REQUESTS, TOKENS = range(3)
QUEUED_KIND, PREFILL_KIND, TRANSFER_KIND, DECODE_KIND, STALL_KIND = range(5)

GAP_SMALLEST = 1e-6  # first bin of the histogram of gaps between tokens [s]
GAP_BINS_PER_E = 100.0
GAP_BINS = 2100
SAMPLED = 10  # figures per group and sample

_NEVER = math.inf
_GOLDEN = 0.6180339887498949  # its multiples are spread evenly between whole numbers
_index: Any = np.int32
_number: Any = np.int64
_NONE = _index(-1)


# --------------------------------------------------------------------------------------------
# Small structures


@part(inline=True)
def _set_end(w: World, at: int, value: float) -> None:
    """Put the end of a lane's step into the tree of minima."""
    i = (len(w.tree) >> 1) + at
    w.tree[i] = value
    i >>= 1
    while i >= 1:
        low = min(w.tree[2 * i], w.tree[2 * i + 1])
        if w.tree[i] == low:
            break
        w.tree[i] = low
        i >>= 1


@part(once=True)
def _earliest(w: World) -> int:
    """The lane whose step ends first; the lowest of several."""
    size = len(w.tree) >> 1
    i = 1
    while i < size:
        i = 2 * i if w.tree[2 * i] <= w.tree[2 * i + 1] else 2 * i + 1
    return _index(i - size)


@part()
def _push(w: World, time: float, who: int, epoch: int) -> None:
    i = w.control[0].heap
    w.control[0].heap = i + 1
    while i > 0:
        parent = (i - 1) >> 1
        above = w.heap[parent]
        if above.time < time or (above.time == time and above.request < who):
            break
        w.heap[i].time = above.time
        w.heap[i].request = above.request
        w.heap[i].epoch = above.epoch
        i = parent
    w.heap[i].time = time
    w.heap[i].request = who
    w.heap[i].epoch = epoch


@part()
def _pop(w: World) -> tuple[int, int]:
    """Remove the first transfer; its request, and -1 where it is void."""
    top, epoch = w.heap[0].request, w.heap[0].epoch
    n = w.control[0].heap - 1
    w.control[0].heap = n
    time, who, last_epoch = w.heap[n].time, w.heap[n].request, w.heap[n].epoch
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n:
            a, b = w.heap[child], w.heap[child + 1]
            if b.time < a.time or (b.time == a.time and b.request < a.request):
                child += 1
        below = w.heap[child]
        if time < below.time or (time == below.time and who < below.request):
            break
        w.heap[i].time = below.time
        w.heap[i].request = below.request
        w.heap[i].epoch = below.epoch
        i = child
    w.heap[i].time = time
    w.heap[i].request = who
    w.heap[i].epoch = last_epoch
    return top, epoch


@part(inline=True)
def _random(w: World) -> float:
    """A number in [0, 1): SplitMix64."""
    x = w.control[0].random + np.uint64(0x9E3779B97F4A7C15)
    w.control[0].random = x
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return float(x >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@part(inline=True)
def _log(w: World, who: int, kind: int, start: float, end: float) -> None:
    """Note an activity of a request, where somebody wants to see it."""
    if w.control[0].logging and end > start:
        n = w.control[0].logged
        if n < len(w.log):
            w.log[n].request = who
            w.log[n].kind = kind
            w.log[n].start = start
            w.log[n].end = end
        w.control[0].logged = n + 1


@part(inline=True)
def _count_gap(w: World, gap: float, number: int) -> None:
    """Add `number` gaps between tokens, or between what steps emit, to the histogram."""
    if number > 0 and gap > 0.0:
        k = int(math.log(gap / GAP_SMALLEST) * GAP_BINS_PER_E)
        w.gaps[min(max(k, 0), GAP_BINS - 1)] += number


@part(inline=True)
def _use(w: World, r: int, blocks: int, now: float) -> None:
    """Change the number of blocks in use."""
    here = w.replica[r]
    here.used_time += here.used * (now - here.used_since)
    here.used_since = now
    here.used += blocks
    if here.used > here.most_used:
        here.most_used = here.used


# --------------------------------------------------------------------------------------------
# Step times: linear interpolation in tables


@part(inline=True)
def _node(w: World, grid: int, count: int, value: float) -> int:
    """Index of the grid's interval that holds `value`."""
    low, high = 0, count - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if w.tables[grid + middle] <= value:
            low = middle
        else:
            high = middle
    return low


@part(inline=True)
def _chunk_attention(w: World, g: int, query: int, past: int) -> float:
    """Attention of one chunk of a prompt, without launches. [s]"""
    c = w.control[0]
    i = _node(w, c.query_grid, c.queries, query)
    q0, q1 = w.tables[c.query_grid + i], w.tables[c.query_grid + i + 1]
    u = (query - q0) / (q1 - q0)
    table = w.group[g].attention_table
    if past == 0:
        row = table + i * c.pasts
        value = (1 - u) * w.tables[row] + u * w.tables[row + c.pasts]
    else:
        j = _node(w, c.past_grid, c.pasts, past)
        p0, p1 = w.tables[c.past_grid + j], w.tables[c.past_grid + j + 1]
        v = (past - p0) / (p1 - p0)
        row = table + i * c.pasts + j
        low = (1 - v) * w.tables[row] + v * w.tables[row + 1]
        high = (1 - v) * w.tables[row + c.pasts] + v * w.tables[row + c.pasts + 1]
        value = (1 - u) * low + u * high
    return query * value


@part()
def _prompt_seconds(w: World, g: int, query: int, cached: int) -> float:
    """Time of a prompt that has a replica of the group for itself. [s]"""
    budget = w.group[g].budget
    total, past = cached * w.group[g].load, cached
    while query > 0:
        take = min(query, budget)
        kernels = (
            w.tables[w.group[g].token_table + take] + w.group[g].launch + _chunk_attention(w, g, take, past)
        )
        total += w.group[g].prefill_scale * kernels + w.group[g].host + w.group[g].host_sequence
        past += take
        query -= take
    return total + w.group[g].prefill_scale * w.tables[w.group[g].head_table + 1]


# --------------------------------------------------------------------------------------------
# Prefix cache: blocks of prompts, least recently used ones go first


@part()
def _lru_remove(w: World, r: int, b: int) -> None:
    here = w.replica[r]
    o, n = w.older[r, b], w.newer[r, b]
    if o >= 0:
        w.newer[r, o] = n
    else:
        here.lru_tail = n
    if n >= 0:
        w.older[r, n] = o
    else:
        here.lru_head = o
    here.cached -= 1


@part()
def _lru_add(w: World, r: int, b: int) -> None:
    """Most recently used: the head."""
    here = w.replica[r]
    w.older[r, b] = here.lru_head
    w.newer[r, b] = -1
    if here.lru_head >= 0:
        w.newer[r, here.lru_head] = b
    else:
        here.lru_tail = b
    here.lru_head = b
    here.cached += 1


@part()
def _refer(w: World, i: int, r: int, start: int, stop: int, now: float, keep: bool) -> None:
    """Refer to the blocks `start` to `stop` of a prompt; `keep`: the request holds copies that it drops."""
    for k in range(start, stop):
        b = w.ids[w.offsets[i] + k]
        if w.refers[r, b] < 0:
            w.refers[r, b] = 1  # its own block becomes the shared one
        else:
            if w.refers[r, b] == 0:
                _lru_remove(w, r, b)
                _use(w, r, w.control[0].hash_blocks, now)
            w.refers[r, b] += 1
            if keep:
                _use(w, r, -w.control[0].hash_blocks, now)
        if keep:
            w.request[i].held -= w.control[0].hash_blocks
    w.request[i].shared = stop


@part()
def _found(w: World, i: int, r: int) -> int:
    """Leading blocks of a prompt that are in the cache; at least one token is left to compute."""
    most = min((w.request[i].isl - 1) // w.control[0].hash_block, w.offsets[i + 1] - w.offsets[i])
    k = 0
    while k < most and w.refers[r, w.ids[w.offsets[i] + k]] >= 0:
        k += 1
    return k


@part()
def _forget(w: World, i: int, r: int, now: float) -> None:
    """Drop the references of a request; its last block goes first when the cache is full."""
    for k in range(w.request[i].shared - 1, -1, -1):
        b = w.ids[w.offsets[i] + k]
        w.refers[r, b] -= 1
        if w.refers[r, b] == 0:
            _lru_add(w, r, b)
            _use(w, r, -w.control[0].hash_blocks, now)
    w.request[i].shared = 0


@part()
def _evict(w: World, r: int, blocks: int, capacity: int) -> None:
    """Make room for `blocks` by dropping cached ones."""
    here = w.replica[r]
    while here.cached > 0 and capacity - here.used - here.cached * w.control[0].hash_blocks < blocks:
        b = here.lru_tail
        _lru_remove(w, r, b)
        w.refers[r, b] = -1
        here.evictions += 1


@part(inline=True)
def _allocate(w: World, r: int, blocks: int, now: float) -> bool:
    """Take blocks if there are as many; whether there were. Cached ones make way."""
    capacity = w.group[w.replica[r].group].blocks
    fits = capacity - w.replica[r].used >= blocks
    if fits:
        if w.replica[r].cached > 0:
            _evict(w, r, blocks, capacity)
        _use(w, r, blocks, now)
    return fits


@part(inline=True)
def _release(w: World, i: int, r: int, grown: int, now: float) -> None:
    """Give back what a request holds on a replica."""
    _use(w, r, -(w.request[i].held + grown), now)
    w.request[i].held = 0
    if w.request[i].shared > 0:
        _forget(w, i, r, now)


@part(inline=True)
def _blocks(tokens: int, block: int) -> int:
    return (tokens + block - 1) // block


@part(inline=True)
def _last_blocks(w: World, i: int, early: int) -> int:
    """Blocks of a sequence at its last token; `early`: tokens that are made before it decodes."""
    return _blocks(w.request[i].kv_decode + w.request[i].osl - early, w.control[0].block)


@part(inline=True)
def _stay(w: World, i: int) -> int:
    """Decode steps that a sequence needs for the tokens that are left. The first token of all comes alone:
    nothing is drafted before it."""
    gain = w.control[0].gain
    left = w.request[i].osl - w.request[i].made
    if gain == 1.0:
        return left
    alone = 1 if math.isnan(w.request[i].first) else 0
    spread = (i * _GOLDEN) % 1.0
    return max(alone + math.floor((left - alone) / gain + spread), 1)


@part(inline=True)
def _tokens_of(w: World, i: int, steps: int) -> int:
    """Tokens of so many decode steps of a sequence; at least one of all is left to make."""
    gain = w.control[0].gain
    if gain == 1.0:
        return steps
    alone = 1 if w.request[i].made == 0 and steps > 0 else 0
    made = alone + math.floor((steps - alone) * gain)
    return min(made, w.request[i].osl - w.request[i].made - 1)


@part(inline=True)
def _grow(w: World, i: int, k: int, change: int) -> None:
    """Put a sequence into the ring of those that need a block, or take it out."""
    period, grown, block = w.control[0].period, w.control[0].grown, w.control[0].block
    free = (-w.request[i].base) % block
    for n in range(grown):
        after = (free + n * block) * period // (grown * block)
        w.growth[k, (w.request[i].joined_at + 1 + after) % period] += change


@part(inline=True)
def _grown(w: World, i: int, steps: int) -> int:
    """Blocks that a sequence has grown by in so many decode steps."""
    period, grown, block = w.control[0].period, w.control[0].grown, w.control[0].block
    free = (-w.request[i].base) % block
    need = steps * grown * block - free * period
    return (need + period * block - 1) // (period * block) if need > 0 else 0


# --------------------------------------------------------------------------------------------
# Routing


@part(inline=True)
def _lane_to_start(w: World, r: int) -> None:
    """Put an idle lane of the replica, the emptiest, on the stack of those to start."""
    first = w.replica[r].first_lane
    best = _NONE
    for k in range(first, first + w.group[w.replica[r].group].lanes):
        if w.lane[k].busy == IDLE and (best < 0 or w.lane[k].batch < w.lane[best].batch):
            best = _index(k)
    if best >= 0:
        _call(w, best)


@part(inline=True)
def _call(w: World, k: int) -> None:
    """Put a lane on the stack of those to start."""
    w.lane[k].busy = CALLED
    w.starting[w.control[0].starting] = k
    w.control[0].starting += 1


@part(inline=True)
def _load(w: World, r: int, own: float, now: float) -> float:
    """How loaded a replica is for a request that would take `own` seconds on it."""
    here = w.replica[r]
    g = here.group
    measure = w.control[0].measure
    if measure == REQUESTS:
        return (here.queued + here.waiting + here.sequences) / w.group[g].weight
    if measure == TOKENS:
        return (here.queued_tokens + w.control[0].block * here.used) / w.group[g].weight
    lanes = w.group[g].lanes
    rest = here.work
    for k in range(here.first_lane, here.first_lane + lanes):
        if w.lane[k].busy == STEPPING and w.lane[k].query > 0:
            rest += w.lane[k].end - now
    if w.group[g].phase == COLOCATED_PHASE:
        rest += here.sequences * w.group[g].sequence_work
    return rest / lanes + own


@part(inline=True)
def _serves(w: World, r: int, isl: int, source: int) -> bool:
    """Whether a replica may take a prompt of `isl` tokens, or what one of group `source` has computed."""
    g = w.replica[r].group
    if w.replica[r].up == 0:
        return False
    if source >= 0:
        return w.pairs[source, g] > 0.0
    return w.group[g].least <= isl and isl <= w.group[g].most


@part()
def _route(w: World, i: int, now: float) -> int:
    """The replica that computes a prompt; -1 where none is up."""
    c = w.control[0]
    isl = w.request[i].isl
    routing = c.routing
    wanted = -1
    if routing == SHARES:
        wanted = _by_share(w, _index(0), c.first_pool, isl, _NONE)
    drawn_a = drawn_b = -1
    if routing in (POWER_OF_TWO, RANDOM):
        drawn_a, drawn_b = _drawn(w, _index(0), c.first_pool, isl, _NONE)
    best, lowest, last_g, own, chosen_own = -1, _NEVER, -1, 0.0, 0.0
    start = 0
    if routing == ROUND_ROBIN:
        start = c.turn
    for step in range(c.first_pool):
        r = start + step
        if r >= c.first_pool:
            r -= c.first_pool
        g = w.replica[r].group
        if not _serves(w, r, isl, _NONE):
            continue
        if wanted >= 0 and g != wanted:
            continue
        if drawn_a >= 0 and r != drawn_a and r != drawn_b:
            continue
        if g != last_g or routing == PREFIX_AWARE:
            cached = _index(w.request[i].cached)
            if routing == PREFIX_AWARE and c.hash_block > 0:
                cached = _index(_found(w, i, r) * c.hash_block)
            query = _index(w.request[i].isl + w.request[i].made - cached)
            own = _prompt_seconds(w, g, query, cached)
            last_g = g
        if routing == ROUND_ROBIN:
            best, chosen_own = r, own
            w.control[0].turn = r + 1 if r + 1 < c.first_pool else 0
            break
        load = _load(w, r, own, now)
        if load < lowest:
            best, lowest, chosen_own = r, load, own
    w.request[i].work = chosen_own
    return _index(best)


@part()
def _by_share(w: World, start: int, stop: int, isl: int, source: int) -> int:
    """The group whose turn it is by the shares of the plan; -1 where none is up."""
    best = -1
    r = start
    total = 0.0
    while r < stop:
        g = w.replica[r].group
        serves = False
        for k in range(w.group[g].first, w.group[g].first + w.group[g].replicas):
            serves = serves or _serves(w, k, isl, source)
        if serves:
            w.group[g].credit += w.group[g].share
            total += w.group[g].share
            if best < 0 or w.group[g].credit > w.group[best].credit:
                best = g
        r = w.group[g].first + w.group[g].replicas
    if best >= 0:
        w.group[best].credit -= total
    return best


@part()
def _drawn(w: World, start: int, stop: int, isl: int, source: int) -> tuple[int, int]:
    """One replica at random, and for the power of two another."""
    count = 0
    for r in range(start, stop):
        count += _serves(w, r, isl, source)
    if count == 0:
        return -1, -1
    a = int(_random(w) * count)
    b = a
    if w.control[0].routing == POWER_OF_TWO and count > 1:
        b = int(_random(w) * (count - 1))
        if b >= a:
            b += 1
    first = second = -1
    k = 0
    for r in range(start, stop):
        if _serves(w, r, isl, source):
            if k == a:
                first = r
            if k == b:
                second = r
            k += 1
    return first, second


@part()
def _route_decode(w: World, p: int) -> int:
    """The replica that decodes what replica `p` has computed; -1 where none is up."""
    c = w.control[0]
    start, stop = c.first_pool, _index(len(w.replica))
    source = w.replica[p].group
    routing = c.routing
    wanted = -1
    if routing == SHARES:
        wanted = _by_share(w, start, stop, _NONE, source)
    drawn_a = drawn_b = -1
    if routing in (POWER_OF_TWO, RANDOM):
        drawn_a, drawn_b = _drawn(w, start, stop, _NONE, source)
    best, lowest = -1, _NEVER
    for step in range(stop - start):
        r = start + step
        if routing == ROUND_ROBIN:
            r = start + (c.decode_turn + step) % (stop - start)
        g = w.replica[r].group
        if not _serves(w, r, _NONE, source):
            continue
        if (wanted >= 0 and g != wanted) or (drawn_a >= 0 and r != drawn_a and r != drawn_b):
            continue
        if routing == ROUND_ROBIN:
            w.control[0].decode_turn = (r - start + 1) % (stop - start)
            best = r
            break
        here = w.replica[r]
        if w.control[0].measure == TOKENS:
            load = (here.used * c.block + here.queued_tokens) / w.group[g].weight
        else:
            load = (here.sequences + here.waiting + here.queued + 1) / w.group[g].weight
        if load < lowest:
            best, lowest = r, load
    return _index(best)


# --------------------------------------------------------------------------------------------
# Queues


@part(inline=True)
def _enqueue(w: World, i: int, r: int) -> None:
    """Last in the queue of prompts."""
    here = w.replica[r]
    w.request[i].next = -1
    w.request[i].before = here.tail
    if here.tail >= 0:
        w.request[here.tail].next = i
    else:
        here.head = i
    here.tail = i
    here.queued += 1
    here.work += w.request[i].work
    here.queued_tokens += w.request[i].isl + w.request[i].made - w.request[i].cached


@part()
def _enqueue_first(w: World, i: int, r: int) -> None:
    """First in the queue: a request that was there before."""
    here = w.replica[r]
    w.request[i].before = -1
    w.request[i].next = here.head
    if here.head >= 0:
        w.request[here.head].before = i
    else:
        here.tail = i
    here.head = i
    here.queued += 1
    here.work += w.request[i].work
    here.queued_tokens += w.request[i].isl + w.request[i].made - w.request[i].cached


@part(inline=True)
def _dequeue(w: World, r: int) -> None:
    here = w.replica[r]
    i = here.head
    here.head = w.request[i].next
    if here.head >= 0:
        w.request[here.head].before = -1
    else:
        here.tail = -1
    here.queued -= 1
    here.queued_tokens -= w.request[i].isl + w.request[i].made - w.request[i].cached


@part()
def _unlink_waiting(w: World, i: int, r: int) -> None:
    """Out of the queue for decoding."""
    here = w.replica[r]
    before, after = w.request[i].before, w.request[i].next
    if before >= 0:
        w.request[before].next = after
    else:
        here.wait_head = after
    if after >= 0:
        w.request[after].before = before
    else:
        here.wait_tail = before
    here.waiting -= 1


@part()
def _reject(w: World, i: int) -> None:
    """A request that can never be served."""
    w.request[i].state = REJECTED
    w.control[0].rejected += 1
    w.control[0].in_system -= 1


@part(inline=True)
def _arrive(w: World, i: int, now: float) -> None:
    """Send a request to a replica of the first phase, or keep it until one is up."""
    r = _route(w, i, now)
    if r < 0:
        w.request[i].state = PENDING
        w.request[i].next = -1
        if w.control[0].pending_tail >= 0:
            w.request[w.control[0].pending_tail].next = i
        else:
            w.control[0].pending = i
        w.control[0].pending_tail = i
    else:
        w.request[i].state = WAITING
        w.request[i].prefill = r
        w.request[i].decode = r if w.group[w.replica[r].group].phase == COLOCATED_PHASE else -1
        _enqueue(w, i, r)
        _lane_to_start(w, r)


# --------------------------------------------------------------------------------------------
# From prefill to decode


@part()
def _emit(w: World, i: int, r: int, now: float) -> None:
    """A request gets the token that comes with its prompt."""
    if math.isnan(w.request[i].first):
        w.request[i].first = now
        w.request[i].stall = 0.0
    else:
        own = now - w.request[i].last
        _count_gap(w, own, 1)
        w.request[i].stall += own
    w.request[i].made += 1
    w.request[i].last = now
    w.control[0].tokens += 1
    w.replica[r].tokens += 1


@part(inline=True)
def _ready(w: World, i: int, k: int, now: float) -> None:
    """A sequence joins its lane at the next step."""
    w.request[i].state = READY
    w.request[i].joined = now
    w.request[i].lane = k
    w.request[i].next = -1
    if w.lane[k].ready_tail >= 0:
        w.request[w.lane[k].ready_tail].next = i
    else:
        w.lane[k].ready = i
    w.lane[k].ready_tail = i
    w.lane[k].joining += 1
    if w.lane[k].busy == IDLE:
        _call(w, k)


@part()
def _arrived(w: World, i: int, now: float) -> None:
    """A KV cache is where it will be used: the prefill side forgets it."""
    p, d = w.request[i].prefill, w.request[i].decode
    _release_prompt(w, i, p, now)
    _lane_to_start(w, p)
    w.replica[d].incoming -= 1
    _log(w, i, TRANSFER_KIND, w.request[i].prompted, now)
    w.request[i].held = _blocks(w.request[i].base, w.control[0].block)
    if w.control[0].first_from_prefill:
        _emit(w, i, d, now)
        if w.request[i].made >= w.request[i].osl:
            _finish(w, i, d, _number(0), now)
            return
    first = w.replica[d].first_lane
    best = first
    for k in range(first + 1, first + w.group[w.replica[d].group].lanes):
        if w.lane[k].batch + w.lane[k].joining < w.lane[best].batch + w.lane[best].joining:
            best = k
    _ready(w, i, _index(best), now)


@part()
def _release_prompt(w: World, i: int, p: int, now: float) -> None:
    _release(w, i, p, _number(0), now)


@part()
def _finish(w: World, i: int, r: int, grown: int, now: float) -> None:
    """A request has all its tokens."""
    _release(w, i, r, grown, now)
    w.request[i].state = DONE
    w.replica[r].sequences -= 1
    w.replica[r].completed += 1
    w.control[0].finished += 1
    w.control[0].in_system -= 1


@part()
def _admit(w: World, d: int, now: float) -> None:
    """Start the transfers that replica `d` has room for, in order; sequences it has preempted go first."""
    g = w.replica[d].group
    if w.replica[d].head >= 0:
        return
    while w.replica[d].wait_head >= 0 and w.replica[d].sequences < w.group[g].limit:
        i = w.replica[d].wait_head
        p = w.request[i].prefill
        tokens = w.request[i].kv_decode + w.request[i].made
        blocks = _blocks(tokens, w.control[0].block)
        if _last_blocks(w, i, w.control[0].first_from_prefill) > w.group[g].blocks:
            _unlink_waiting(w, i, d)
            _release_prompt(w, i, p, now)
            _lane_to_start(w, p)
            _reject(w, i)
            continue
        if not _allocate(w, d, blocks, now):
            return
        _unlink_waiting(w, i, d)
        w.replica[d].sequences += 1
        w.replica[d].incoming += 1
        w.request[i].base = tokens
        w.request[i].state = TRANSFER
        source = w.replica[p].group
        size = w.request[i].size * w.group[g].copies
        # Each NIC works off what it is given, whatever the other end is busy with; the slower one decides.
        out, into = size / w.group[source].nic, size / w.group[g].nic
        sent = max(now, w.replica[p].egress) + out
        received = max(now, w.replica[d].ingress) + into
        w.replica[p].egress = sent
        w.replica[d].ingress = received
        w.replica[p].egress_busy += out
        w.replica[d].ingress_busy += into
        moved = _blocks(w.request[i].isl, w.control[0].block)
        wire = max(size / w.pairs[source, g], max(sent, received) - now) + moved * w.group[source].post
        end = now + w.group[source].fixed + wire * w.group[source].exposed
        if end <= now:
            _arrived(w, i, now)
        else:
            _push(w, end, i, w.request[i].epoch)


@part()
def _hand_over(w: World, i: int, now: float) -> None:
    """A prompt is computed: it waits for blocks of a decode replica."""
    d = _route_decode(w, w.request[i].prefill)
    w.request[i].state = HANDED
    w.request[i].decode = d
    w.request[i].next = -1
    if d < 0:
        if w.control[0].homeless_tail >= 0:
            w.request[w.control[0].homeless_tail].next = i
        else:
            w.control[0].homeless = i
        w.control[0].homeless_tail = i
        return
    here = w.replica[d]
    w.request[i].before = here.wait_tail
    if here.wait_tail >= 0:
        w.request[here.wait_tail].next = i
    else:
        here.wait_head = i
    here.wait_tail = i
    here.waiting += 1
    _admit(w, d, now)


# --------------------------------------------------------------------------------------------
# The sequences of a lane


@part(inline=True)
def _join(w: World, k: int) -> None:
    """Take in the sequences that are ready."""
    here = w.lane[k]
    i = here.ready
    mask = w.ring.shape[1] - 1
    while i >= 0:
        after = w.request[i].next
        w.request[i].state = DECODE
        w.request[i].joined_at = here.iteration
        w.request[i].next = -1
        w.request[i].before = here.tail
        if here.tail >= 0:
            w.request[here.tail].next = i
        else:
            here.head = i
        here.tail = i
        here.batch += 1
        here.fresh += 1
        here.context += w.request[i].isl + w.request[i].made
        w.request[i].stay = _stay(w, i)
        slot = (here.iteration + w.request[i].stay) & mask
        other = w.ring[k, slot]
        w.request[i].ring_next = other
        w.request[i].ring_before = -1
        if other >= 0:
            w.request[other].ring_before = i
        w.ring[k, slot] = i
        _grow(w, i, k, 1)
        i = after
    here.ready = -1
    here.ready_tail = -1
    here.joining = 0


@part()
def _leave(w: World, i: int, k: int) -> int:
    """Take a sequence out of its lane; the blocks that it has grown by since it joined."""
    here = w.lane[k]
    before, after = w.request[i].before, w.request[i].next
    if before >= 0:
        w.request[before].next = after
    else:
        here.head = after
    if after >= 0:
        w.request[after].before = before
    else:
        here.tail = before
    slot = (w.request[i].joined_at + w.request[i].stay) & (w.ring.shape[1] - 1)
    before, after = w.request[i].ring_before, w.request[i].ring_next
    if before >= 0:
        w.request[before].ring_next = after
    else:
        w.ring[k, slot] = after
    if after >= 0:
        w.request[after].ring_before = before
    steps = here.iteration - w.request[i].joined_at
    _grow(w, i, k, -1)
    here.batch -= 1
    here.context -= w.request[i].isl + w.request[i].made + steps * w.control[0].gain
    if here.batch == 0:
        here.context = 0.0  # rounding
    return _grown(w, i, steps)


@part()
def _preempt(w: World, k: int, now: float) -> None:
    """Throw the youngest sequence out of a lane."""
    here = w.lane[k]
    r = here.replica
    g = w.replica[r].group
    if here.partial >= 0:  # a prompt that is being computed is younger than any sequence
        i = here.partial
        here.partial = -1
        _release_prompt(w, i, r, now)
        w.replica[r].sequences -= 1
        target = w.request[i].isl + w.request[i].made
        rest = (target - w.request[i].done) / max(target - w.request[i].cached, 1)
        w.replica[r].work -= w.request[i].work * rest
        w.request[i].state = WAITING
        w.request[i].done = 0
        w.request[i].preempted += 1
        w.replica[r].preemptions += 1
        _enqueue_first(w, i, r)
        return
    i = here.tail
    if here.fresh > 0:
        here.fresh -= 1
    else:
        w.request[i].stall = here.stall - w.request[i].stall
        w.request[i].last = here.last_end
    steps = here.iteration - w.request[i].joined_at
    grown = _leave(w, i, k)
    made = _tokens_of(w, i, steps)
    w.request[i].made += made
    swapped = w.group[g].swaps
    if swapped:
        w.request[i].base += made
        blocks = w.request[i].held + grown + w.request[i].shared * w.control[0].hash_blocks
        here.extra += blocks * w.group[g].swap_rate
        w.replica[r].swaps += 1
    _release(w, i, r, grown, now)
    w.replica[r].sequences -= 1
    w.replica[r].preemptions += 1
    w.request[i].preempted += 1
    w.request[i].done = 0
    w.request[i].state = SWAPPED if swapped else WAITING
    query = w.request[i].isl + w.request[i].made - w.request[i].cached
    w.request[i].work = _prompt_seconds(w, g, query, w.request[i].cached)
    _enqueue_first(w, i, r)


@part()
def _make_room(w: World, k: int, now: float) -> None:
    """Throw sequences out until there are blocks for the next token of all others."""
    here = w.lane[k]
    while here.batch > 0:
        need = w.growth[k, (here.iteration + 1) % w.control[0].period]
        if need == 0 or _allocate(w, here.replica, need, now):
            break
        _preempt(w, k, now)


@part(inline=True)
def _take_prompts(w: World, k: int, room: int, now: float) -> None:
    """Fill a step with prompts, first come, first served. Counts are left in the lane."""
    here = w.lane[k]
    r = here.replica
    g = w.replica[r].group
    i = here.partial
    colocated = w.group[g].phase != PREFILL_PHASE
    while room > 0:
        if i < 0:
            i = w.replica[r].head
            if i < 0 or w.replica[r].sequences >= w.group[g].limit:
                break
            tokens = w.request[i].made + (w.request[i].kv_decode if colocated else w.request[i].kv_prompt)
            if w.request[i].state == SWAPPED:
                tokens = w.request[i].base
            total = _blocks(tokens, w.control[0].block)
            most = _last_blocks(w, i, w.group[g].emits) if colocated else total
            if most > w.group[g].blocks:  # it would never end
                _dequeue(w, r)
                w.replica[r].work -= w.request[i].work
                _reject(w, i)
                i = -1
                continue
            found = 0
            if w.control[0].hash_block > 0 and w.request[i].state != SWAPPED:
                found = _found(w, i, r)
                _refer(w, i, r, 0, found, now, False)
            blocks = total - found * w.control[0].hash_blocks
            spare = (
                0  # for its next token, where none comes with the prompt: or it might be thrown out at once
            )
            if w.request[i].state == SWAPPED or (colocated and w.group[g].emits == 0):
                spare = _blocks(tokens + 1, w.control[0].block) - total
            if w.group[g].blocks - w.replica[r].used < blocks + spare or not _allocate(w, r, blocks, now):
                if found > 0:
                    _forget(w, i, r, now)
                break
            _dequeue(w, r)
            w.replica[r].sequences += 1
            w.request[i].held = blocks
            w.request[i].base = tokens
            if math.isnan(w.request[i].begun):
                w.request[i].begun = now
            if w.request[i].state == SWAPPED:
                w.replica[r].work -= w.request[i].work
                here.extra += total * w.group[g].swap_rate
                _ready(w, i, k, now)
                i = -1
                continue
            w.request[i].state = PREFILL
            w.request[i].lane = k
            if w.control[0].hash_block > 0:
                w.control[0].asked += w.request[i].isl
                w.control[0].hits += found * w.control[0].hash_block
                w.request[i].cached = found * w.control[0].hash_block
            w.request[i].done = w.request[i].cached
            here.extra += w.request[i].cached * w.group[g].load
        target = w.request[i].isl + w.request[i].made
        take = min(target - w.request[i].done, room)
        here.attention += _chunk_attention(w, g, take, w.request[i].done)
        here.query += take
        here.prompts += 1
        w.replica[r].work -= w.request[i].work * take / max(target - w.request[i].cached, 1)
        w.request[i].done += take
        room -= take
        if w.request[i].done == target:
            here.rows += 1
            w.request[i].next = -1
            if here.completing_tail >= 0:
                w.request[here.completing_tail].next = i
            else:
                here.completing = i
            here.completing_tail = i
            here.partial = -1
            i = -1
        else:
            here.partial = i
            break
    if w.replica[r].queued == 0 and here.partial < 0 and w.replica[r].work < 1e-9:
        w.replica[r].work = 0.0  # rounding


# --------------------------------------------------------------------------------------------
# Steps


@part(once=True)
def _step_times(w: World, k: int, g: int) -> tuple[float, float]:
    """Duration of the lane's step, and of its decoding alone. [s]"""
    here, here_group, c = w.lane[k], w.group[g], w.control[0]
    decodes, query = here.decodes, here.query
    pure = beside = 0.0
    if decodes > 0:
        context = here.context / here.batch
        j = here.node
        grid = c.context_grid
        while j + 2 < c.contexts and w.tables[grid + j + 1] <= context:
            j += 1
        while j > 0 and w.tables[grid + j] > context:
            j -= 1
        here.node = j
        x0, x1 = w.tables[grid + j], w.tables[grid + j + 1]
        v = (context - x0) / (x1 - x0)
        at = decodes * c.contexts + j
        t0 = w.tables[here_group.decode_table + at]
        t1 = w.tables[here_group.decode_table + at + 1]
        pure = here_group.decode_scale * (t0 + v * (t1 - t0))
        if query > 0:
            b0 = w.tables[here_group.beside_table + at]
            b1 = w.tables[here_group.beside_table + at + 1]
            beside = b0 + v * (b1 - b0) - (t0 + v * (t1 - t0))
    host = here_group.host + here_group.host_decode * decodes + here_group.host_sequence * here.prompts
    time = pure + host
    if query > 0:
        kernels = (
            w.tables[here_group.token_table + query + decodes * c.verified]
            + here.attention
            + here_group.launch
            + w.tables[here_group.head_table + here.rows]
        )
        time += here_group.prefill_scale * max(kernels + beside, 0.0)
    alone = pure + here_group.host + here_group.host_decode * decodes if decodes > 0 else 0.0
    return time, alone


@part(inline=True)
def _decode_next(w: World, k: int, now: float) -> None:
    """All sequences of a lane decode in its next step; the youngest are thrown out where blocks are short."""
    here = w.lane[k]
    need = w.growth[k, (here.iteration + 1) % w.control[0].period]
    if need > 0 and not _allocate(w, here.replica, need, now):
        _make_room(w, k, now)
    here.decodes = here.batch


@part(once=True)
def _choose(w: World, k: int, g: int, now: float) -> None:
    """What a lane computes in its next step: decoding first or, by the other policy, prompts."""
    here = w.lane[k]
    r = here.replica
    here.decodes = here.query = here.prompts = here.rows = 0
    here.attention = 0.0
    here.completing = here.completing_tail = -1
    _join(w, k)
    before = w.replica[r].preemptions
    if here.batch > 0 and w.group[g].prefill_first == 0:
        _decode_next(w, k, now)
    if w.replica[r].preemptions == before and (w.replica[r].head >= 0 or here.partial >= 0):
        _take_prompts(w, k, w.group[g].budget - here.decodes * w.control[0].verified, now)
    if here.query == 0 and here.batch > here.decodes:  # no prompts that would hold up decoding
        _decode_next(w, k, now)
    if here.query == 0 and here.decodes == 0:
        if w.replica[r].head >= 0:  # all were thrown out: they start again
            _take_prompts(w, k, w.group[g].budget - here.decodes * w.control[0].verified, now)
        if here.query == 0 and here.ready >= 0:  # from host memory
            _join(w, k)
            _decode_next(w, k, now)


@part(once=True)
def _launch(w: World, k: int, g: int, now: float) -> None:
    """The step that was chosen begins."""
    here = w.lane[k]
    time, here.pure = _step_times(w, k, g)
    time += here.extra
    here.extra = 0.0
    here.start = now
    end = now + time
    stages = w.group[g].stages
    if stages > 1:
        first = _pipeline(w, k, stages)
        end = now
        for s in range(stages):
            end = max(end, w.stage[first, s]) + time / stages
            w.stage[first, s] = end
    here.end = end
    here.busy = STEPPING
    _set_end(w, k, end)


@part(inline=True)
def _pipeline(w: World, k: int, stages: int) -> int:
    """The first of the lanes that share a pipeline with a lane."""
    first = w.replica[w.lane[k].replica].first_lane
    return first + (k - first) // stages * stages


@part(once=True)
def _start(w: World, k: int, now: float) -> None:
    """Start the next step of a lane, or leave it idle."""
    here = w.lane[k]
    r = here.replica
    g = w.replica[r].group
    stages = w.group[g].stages
    here.busy = STARTING
    work = here.batch > 0 or here.ready >= 0 or here.partial >= 0 or w.replica[r].head >= 0
    if work and w.replica[r].up == 1:
        free = w.stage[_pipeline(w, k, stages), 0] if stages > 1 else now
        if free > now:
            here.busy = HELD_BACK
            _set_end(w, k, free)
        else:
            _choose(w, k, g, now)
            if here.decodes > 0 or here.query > 0:
                _launch(w, k, g, now)
                if w.group[g].lanes > 1 and w.replica[r].head >= 0:
                    _lane_to_start(w, r)
    if here.busy == STARTING:
        here.busy = IDLE
        _set_end(w, k, _NEVER)
    if w.replica[r].wait_head >= 0 and w.replica[r].up == 1:
        _admit(w, r, now)


@part(once=True)
def _end_decoding(w: World, k: int, now: float) -> bool:
    """Every sequence of a step that ends has a token more, or some; whether one has its last."""
    here = w.lane[k]
    r = here.replica
    decodes = here.decodes
    if w.control[0].logging:
        _log_decoding(w, k, now)
    here.iteration += 1
    w.control[0].tokens += decodes * w.control[0].gain
    w.replica[r].tokens += decodes * w.control[0].gain
    w.replica[r].decode_steps += 1
    w.replica[r].step_decodes += decodes
    w.replica[r].batch_time += decodes * (now - here.start)
    gap = now - here.last_end
    if decodes > here.fresh:
        _count_gap(w, gap, decodes - here.fresh)
        here.stall += max(gap - here.pure, 0.0)
    here.last_end = now
    here.context += decodes * w.control[0].gain
    i = here.tail
    while here.fresh > 0:
        here.fresh -= 1
        if math.isnan(w.request[i].first):
            w.request[i].first = now
            w.request[i].stall = here.stall
        else:
            own = now - w.request[i].last
            _count_gap(w, own, 1)
            w.request[i].stall = here.stall - max(own - here.pure, 0.0) - w.request[i].stall
        i = w.request[i].before
    i = w.ring[k, here.iteration & (w.ring.shape[1] - 1)]
    ended = i >= 0
    while i >= 0:
        after = w.request[i].ring_next
        w.request[i].stall = here.stall - w.request[i].stall
        w.request[i].last = now
        grown = _leave(w, i, k)
        w.request[i].made = w.request[i].osl
        _finish(w, i, r, grown, now)
        i = after
    return ended


@part(once=True)
def _end_prompts(w: World, k: int, g: int, now: float) -> bool:
    """Prompts that a step completes go on to decoding; whether one has all its tokens."""
    here = w.lane[k]
    r = here.replica
    ended = False
    i = here.completing
    here.completing = here.completing_tail = -1
    while i >= 0:
        after = w.request[i].next
        w.request[i].prompted = now
        if w.control[0].hash_block > 0:
            full = min(w.request[i].isl // w.control[0].hash_block, w.offsets[i + 1] - w.offsets[i])
            _refer(w, i, r, w.request[i].shared, full, now, True)
        if w.control[0].logging:
            _log(w, i, PREFILL_KIND, here.start, now)
        if w.group[g].phase == PREFILL_PHASE:
            w.replica[r].sequences -= 1
            w.replica[r].completed += 1
            _hand_over(w, i, now)
        else:
            if w.group[g].emits:
                _emit(w, i, r, now)
            if w.request[i].made >= w.request[i].osl:
                _finish(w, i, r, _number(0), now)
                ended = True
            else:
                _ready(w, i, k, now)
        i = after
    if w.control[0].logging and here.partial >= 0 and here.query > 0:
        _log(w, here.partial, PREFILL_KIND, here.start, now)
    return ended


@part(once=True)
def _end(w: World, k: int, now: float) -> None:
    """A step ends."""
    here = w.lane[k]
    r = here.replica
    w.replica[r].steps += 1
    w.replica[r].busy += now - here.start
    ended = False
    if here.decodes > 0:
        ended = _end_decoding(w, k, now)
    if here.query > 0:
        ended = _end_prompts(w, k, w.replica[r].group, now) or ended
    if ended and w.replica[r].wait_head >= 0:
        _admit(w, r, now)


@part()
def _log_decoding(w: World, k: int, now: float) -> None:
    """Decoding and stalls of the sequences of a step that ends."""
    here = w.lane[k]
    i = here.tail
    fresh = here.fresh
    while i >= 0:
        since = here.last_end if fresh <= 0 else max(w.request[i].joined, here.start)
        if fresh > 0 and not math.isnan(w.request[i].last):
            since = w.request[i].last
        plain = max(now - here.pure, since)
        _log(w, i, STALL_KIND, since, plain)
        _log(w, i, DECODE_KIND, plain, now)
        fresh -= 1
        i = w.request[i].before


# --------------------------------------------------------------------------------------------
# Failures


@part()
def _lose(w: World, i: int, r: int, now: float) -> int:
    """What becomes of a request when replica `r` fails: 0 nothing, 1 from its prompt, 2 handed over anew."""
    state = w.request[i].state
    p, d = w.request[i].prefill, w.request[i].decode
    between = state in (HANDED, TRANSFER)
    before = state in (WAITING, PREFILL, SWAPPED)
    if (p == r and d != r) and (between or (before and d < 0)):
        if between and d >= 0:
            if state == HANDED:
                _unlink_waiting(w, i, d)
            else:
                _use(w, d, -_blocks(w.request[i].base, w.control[0].block), now)
                w.replica[d].sequences -= 1
                w.replica[d].incoming -= 1
        return 1
    if d == r:
        if between:
            return 2
        if state == DECODE:
            k = w.request[i].lane
            if w.lane[k].iteration > w.request[i].joined_at:
                w.request[i].made += _tokens_of(w, i, w.lane[k].iteration - w.request[i].joined_at)
                w.request[i].last = w.lane[k].last_end
                w.request[i].stall = w.lane[k].stall - w.request[i].stall
        if before or state in (DECODE, READY):
            return 1
    return 0


@part()
def _drop_homeless(w: World, r: int) -> None:
    """Requests that found no decode replica lose their KV cache with replica `r`: off the list."""
    kept = -1
    i = w.control[0].homeless
    w.control[0].homeless = -1
    while i >= 0:
        after = w.request[i].next
        if w.request[i].prefill != r:
            w.request[i].next = -1
            if kept >= 0:
                w.request[kept].next = i
            else:
                w.control[0].homeless = i
            kept = i
        i = after
    w.control[0].homeless_tail = kept


@part()
def _fail(w: World, r: int, now: float) -> None:
    """A replica is gone, with all that it held; its requests start again elsewhere."""
    if w.replica[r].up == 0:
        return
    w.replica[r].up = 0
    count = 0
    for i in range(w.control[0].oldest, w.control[0].next):
        fate = _lose(w, i, r, now)
        if fate > 0:
            w.lost[count] = 2 * i + (fate == 2)
            count += 1
    _drop_homeless(w, r)
    g = w.replica[r].group
    for k in range(w.replica[r].first_lane, w.replica[r].first_lane + w.group[g].lanes):
        here = w.lane[k]
        here.busy = IDLE
        here.batch = here.fresh = here.joining = 0
        here.context = here.extra = 0.0
        here.head = here.tail = here.ready = here.ready_tail = here.partial = -1
        here.completing = here.completing_tail = -1
        for slot in range(w.ring.shape[1]):
            w.ring[k, slot] = -1
        for phase in range(w.growth.shape[1]):
            w.growth[k, phase] = 0
        _set_end(w, k, _NEVER)
        for s in range(w.stage.shape[1]):
            w.stage[k, s] = 0.0
    here_r = w.replica[r]
    _use(w, r, -here_r.used, now)
    here_r.head = here_r.tail = here_r.wait_head = here_r.wait_tail = -1
    here_r.queued = here_r.waiting = here_r.sequences = here_r.incoming = 0
    here_r.work = 0.0
    here_r.queued_tokens = 0
    here_r.egress = here_r.ingress = now
    here_r.cached = 0
    here_r.lru_head = here_r.lru_tail = -1
    if w.control[0].hash_block > 0:
        for b in range(w.refers.shape[1]):
            w.refers[r, b] = -1
    for n in range(count):
        i = _index(w.lost[n] >> 1)
        w.request[i].epoch += 1
        if w.lost[n] & 1:
            _hand_over(w, i, now)
        else:
            w.request[i].done = 0
            w.request[i].held = 0
            w.request[i].shared = 0
            w.request[i].preempted += 1
            _arrive(w, i, now)
    for other in range(_index(len(w.replica))):
        if w.replica[other].up == 1:
            if w.replica[other].wait_head >= 0:
                _admit(w, other, now)
            _lane_to_start(w, other)


@part()
def _recover(w: World, r: int, now: float) -> None:
    """A replica is back, empty; requests that found none are sent out."""
    w.replica[r].up = 1
    w.replica[r].used_since = now
    i = w.control[0].pending
    w.control[0].pending = w.control[0].pending_tail = -1
    while i >= 0:
        after = w.request[i].next
        _arrive(w, i, now)
        i = after
    i = w.control[0].homeless
    w.control[0].homeless = w.control[0].homeless_tail = -1
    while i >= 0:
        after = w.request[i].next
        _hand_over(w, i, now)
        i = after


# --------------------------------------------------------------------------------------------
# The loop


@part()
def _sample(w: World, n: int) -> None:
    """Figures of every group at one instant."""
    for r in range(len(w.replica)):
        g = w.replica[r].group
        row = w.samples[n, g]
        row[0] += w.replica[r].queued
        row[1] += w.replica[r].waiting
        row[2] += w.replica[r].incoming
        row[4] += w.replica[r].used
        row[6] += w.replica[r].up
        row[7] += w.replica[r].egress_busy
        row[8] += w.replica[r].ingress_busy
        row[9] += w.replica[r].tokens
        for k in range(w.replica[r].first_lane, w.replica[r].first_lane + w.group[g].lanes):
            row[3] += w.lane[k].batch
            row[5] += w.lane[k].busy == STEPPING


@entry
def run(w: World) -> None:
    """Process events until none is left or the next is after ``control.until``."""
    failure = 0
    number = len(w.request)
    while True:
        now = w.tree[1]
        kind = 0
        if w.control[0].heap > 0 and w.heap[0].time <= now:
            now = w.heap[0].time
            kind = 1
        coming = w.control[0].next
        if coming < number and w.request[coming].arrival <= now:
            now = w.request[coming].arrival
            kind = 2
        if failure < len(w.failures) and w.failures[failure].time <= now:
            now = w.failures[failure].time
            kind = 3
        if now == _NEVER or now > w.control[0].until:
            break
        while w.control[0].sample < len(w.sample_times) and w.sample_times[w.control[0].sample] < now:
            _sample(w, w.control[0].sample)
            w.control[0].sample += 1
        w.control[0].area += w.control[0].in_system * (now - w.control[0].now)
        w.control[0].now = now
        if kind == 0:
            k = _earliest(w)
            if w.lane[k].busy == STEPPING:
                _end(w, k, now)
            _call(w, k)
        elif kind == 1:
            while w.control[0].heap > 0 and w.heap[0].time == now:
                i, epoch = _pop(w)
                if epoch == w.request[i].epoch and w.request[i].state == TRANSFER:
                    d = w.request[i].decode
                    _arrived(w, i, now)
                    if w.request[i].state == DONE:  # with the token of its prefill: there is room again
                        _lane_to_start(w, d)
                        _admit(w, d, now)
        elif kind == 2:
            while coming < number and w.request[coming].arrival == now:
                w.control[0].in_system += 1
                w.control[0].next = coming + 1
                _arrive(w, coming, now)
                coming = w.control[0].next
            w.control[0].most_in_system = max(w.control[0].most_in_system, w.control[0].in_system)
            while w.control[0].oldest < w.control[0].next and w.request[w.control[0].oldest].state >= DONE:
                w.control[0].oldest += 1
        else:
            if w.failures[failure].up == 0:
                _fail(w, w.failures[failure].replica, now)
            else:
                _recover(w, w.failures[failure].replica, now)
            failure += 1
        while w.control[0].starting > 0:
            w.control[0].starting -= 1
            k = w.starting[w.control[0].starting]
            _start(w, k, now)

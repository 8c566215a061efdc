"""Capacity of colocated replicas: prompts mixed into the steps of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.arrays import FloatArray, Numbers
from planner.capacity.colocated_prompts import ColocatedPrompts, colocated_prompts
from planner.capacity.decode import batch_for_tokens
from planner.capacity.limits import Curves, Limit, pooled
from planner.latency import Companions, PromptTime, decode_step_time, prompt_time
from planner.operators import ReplicaSet
from planner.plan import Binding
from planner.queueing import FlightSojourn, Sojourn, gamma_tail, occupancy_quantile
from planner.specs import Routing, SchedulerPolicy
from planner.traffic import Traffic

MOST_ELASTICITY = 0.95  # of a step in its batch; no steady state is near beyond [1]
_TINY = 1e-30
_COMPANIONS = 3.0  # prompts in one step with another, at which the saving is evaluated
_OTHERS = 2.0  # prompts beside one that waits, beyond those beside any; ours, fitted to simulation
_BATCH_POINTS = 25
_LIGHT_LOAD = 0.05  # share of time that prompts take at the start of the geometric part of the grid [1]
_LIGHTER: FloatArray = 64.0 ** np.linspace(-1.0, -0.25, 4)  # and of points before it, of that [1]
_OUTPUT_POINTS = 12
_LEAST_START, _LARGEST_START = 1e-5, 1 / 128  # of that grid, in largest batches [1]


@dataclass(frozen=True, slots=True)
class ColocatedDemand:
    """What a colocated group must meet; the fields are those of the two demands above."""

    ttft: tuple[Limit, ...]
    tpot: tuple[Limit, ...]
    admission_miss: float
    routing: Routing
    policy: SchedulerPolicy
    token_budget: FloatArray
    kv_tokens: FloatArray
    max_num_seqs: FloatArray


@dataclass(frozen=True, slots=True)
class ColocatedState:
    """Colocated replicas over a grid of operating batches; arrays of shape (grid, C).

    Attributes
    ----------
    batch : operating batch
    rate : request rate of a replica that holds it. [req/s]
    step : mean time between steps of a sequence, prompts included. [s]
    decode_step : pure decode step. [s]
    added : mean time a prompt adds to a step that has others. [s]
    stolen, stolen_square : time a prompt adds to the steps of the others, mean and mean square. [s, s^2]
    longest : step that prompts fill; inf where they stop the decoding. [s]
    """

    batch: FloatArray
    rate: FloatArray
    step: FloatArray
    decode_step: FloatArray
    added: FloatArray
    stolen: FloatArray
    stolen_square: FloatArray
    longest: FloatArray


def colocated_state(
    r: ReplicaSet, traffic: Traffic, policy: SchedulerPolicy, token_budget: FloatArray, batch: FloatArray
) -> tuple[ColocatedState, PromptTime]:
    r"""Steady state of colocated replicas that hold `batch` decoding sequences, shape (grid, C).

    Returns the state, and the time of each prompt length by itself, shape (points, grid, C).

    Notes
    -----
    Prompts take a share :math:`\lambda E[\Delta]` of the time from decoding, so that a step takes
    :math:`t_{dec}/(1-\lambda E[\Delta])` on average, and, with osl steps to a request (fewer where each emits
    several tokens),
    :math:`B = \lambda\,osl\,t_{dec}/(1-\lambda E[\Delta])` gives
    :math:`\lambda = B/(osl\,t_{dec} + B E[\Delta])` (ours; at a closed loop it is the steady state of
    chunked prefill, ``TPOT = t_dec + B (steps/osl)(t_mixed - t_dec)``). With prefill first, decoding
    stops for the whole prompt: :math:`\Delta` is the prompt's own time. What a prompt takes from the
    lanes of a pipeline says :func:`held_up`.

    The first prompt of a step hides behind the pass over the weights, those beside it do not. A step meets
    :math:`m = B/osl` new prompts, Poisson: with k of them taking :math:`k(\Delta_1 + (k-1)c)`,
    each takes :math:`\Delta_1 + mc`.
    """
    first = policy is SchedulerPolicy.PREFILL_FIRST

    def time(query: Numbers, cached: Numbers, others: float = 0.0) -> PromptTime:
        return prompt_time(
            r,
            query,
            cached,
            token_budget,
            Companions(others, traffic.mean_query, traffic.mean_area, traffic.mean_cached),
            decode_batch=0.0 * batch if first else batch,
            context=traffic.decode_context,
        )

    prompts = time(traffic.query[:, None, None], traffic.cached[:, None, None])
    stops = prompts.service if first else prompts.stolen
    weights = traffic.isl_weights
    alone = np.tensordot(weights, stops, axes=1)
    square = np.tensordot(weights, stops**2, axes=1)
    met = batch / (traffic.colocated_steps * r.lanes)
    saved = _saved(time, traffic, first)
    added = alone * _shared(saved, met)
    scv = np.maximum(square / np.maximum(alone, _TINY) ** 2 - 1, 0.0)
    chunks = np.tensordot(weights, prompts.steps, axes=1)
    room = np.maximum(token_budget - r.rows * batch / r.lanes, 1.0)
    full = np.minimum(met * traffic.mean_query / room, 1.0)
    stolen = added * held_up(met * chunks, r.lanes, scv, full)
    decode = decode_step_time(r, batch, traffic.decode_context)
    rate = batch / (traffic.colocated_steps * decode + batch * stolen)
    state = ColocatedState(
        batch=batch,
        rate=rate,
        step=batch / (rate * traffic.colocated_steps),
        decode_step=decode,
        added=alone * _shared(saved, met + _OTHERS),
        stolen=stolen,
        stolen_square=square * (stolen / np.maximum(alone, _TINY)) ** 2,
        longest=np.full_like(rate, np.inf) if first else time(room, 0.0).service,
    )
    return state, prompts


def _saved(
    time: Callable[[Numbers, Numbers, float], PromptTime], traffic: Traffic, first: bool
) -> FloatArray:
    """What a mean prompt adds to a step that it shares with some others, over what it adds by itself, minus
    one. [1]"""
    mean = traffic.mean_query, traffic.mean_cached
    parts = [time(*mean, others) for others in (0.0, _COMPANIONS)]
    alone, together = (part.service if first else part.stolen for part in parts)
    return np.asarray(together / ((1 + _COMPANIONS) * np.maximum(alone, _TINY)) - 1)


def _shared(saved: FloatArray, others: FloatArray) -> FloatArray:
    """What a prompt adds beside a mean number of others, over what it adds by itself. [1]"""
    return np.maximum(1 + np.minimum(others, _COMPANIONS) * saved / _COMPANIONS, 0.0)


def held_up(
    met: FloatArray, lanes: FloatArray, scv: FloatArray, full: FloatArray | float = 0.0
) -> FloatArray:
    r"""Share of the time a prompt adds to a step by which it delays every sequence of a pipeline. [1]

    Parameters
    ----------
    met : ndarray
        Mean number of prompts, or chunks of prompts, in a lane's step. [1]
    lanes : ndarray
        Lanes, and stages. [1]
    scv : ndarray
        Squared coefficient of variation of the time that a prompt adds. [1]
    full : ndarray
        Share of the steps' room for prompts that is used. [1]

    Notes
    -----
    m lanes follow one another through m stages. With :math:`X_j` what prompts add to step j, and the
    steady :math:`t/m` per step left out, its end is
    :math:`D_j = \max(D_{j-1} + X_j/m,\; D_{j-m} + X_j)`: a prompt in one lane holds up all of
    them for its whole time, prompts in all lanes hold up one another's stages only. The growth per round is
    :math:`g\,m\,E[X]`, with g from 1 for rare prompts to 1/m for many. The closed form

    .. math:: g = \frac1m + \left(1 - \frac1m\right) \left(1 + \frac{x}{\sqrt{1+x/5}}\right)^{-1},
              \qquad x = \frac{(m-1)\,\nu}{1 + 3c^2/4}

    for :math:`\nu` prompts per step is ours, within 4 % of the iterated recursion for m of 2 and 4,
    :math:`\nu` of 0.02 to 6 and :math:`c^2` of 0 to 3. Steps filled to their token budget are all alike,
    which leaves 1/m: the second term falls with the square of `full`, as simulations say.
    """
    x = (lanes - 1) * met / (1 + 0.75 * scv)
    rare = (1 - np.asarray(full) ** 2) / (1 + x / np.sqrt(1 + x / 5))
    return np.asarray(1 / lanes + (1 - 1 / lanes) * rare)


@dataclass(frozen=True, slots=True, eq=False)
class ColocatedTable:
    """Colocated replicas over a grid of operating batches, up to what slots and limits allow.

    Attributes
    ----------
    state : ColocatedState
    prompts : ColocatedPrompts
    slots : ndarray, shape (C,)
        Sequences that the KV cache holds.
    """

    state: ColocatedState
    prompts: ColocatedPrompts
    slots: FloatArray


def _colocated_grid(
    r: ReplicaSet, traffic: Traffic, demand: ColocatedDemand, largest: FloatArray
) -> FloatArray:
    """Operating batches, geometric up to `largest` (C,), shape (grid, C).

    They start where prompts take a few percent of the time: far below one sequence where outputs are short
    and prompts long. A few lie well below that: where one request in a hundred meets another, the p99 of the
    wait is that of an empty replica.
    """
    one = np.ones_like(largest)[None]
    state, _ = colocated_state(r, traffic, demand.policy, demand.token_budget, one)
    light = _LIGHT_LOAD * traffic.colocated_steps * (state.decode_step / state.stolen)[0]
    first = np.clip(light / largest, _LEAST_START, _LARGEST_START)
    geometric = first ** np.linspace(1.0, 0.0, _BATCH_POINTS)[:, None]
    return np.asarray(largest * np.concatenate([_LIGHTER[:, None] * first, geometric]))


def colocated_table(r: ReplicaSet, traffic: Traffic, demand: ColocatedDemand) -> ColocatedTable:
    """Evaluate the steps of C replicas on the grid of batches."""
    slots = batch_for_tokens(demand.kv_tokens, traffic, demand.admission_miss)
    most = np.minimum(demand.max_num_seqs, demand.token_budget / (2 * r.rows))
    largest = np.maximum(np.minimum(slots, most), 1.0)
    batch = _colocated_grid(r, traffic, demand, largest)
    state, time = colocated_state(r, traffic, demand.policy, demand.token_budget, batch)
    return ColocatedTable(
        state, prompts_of(state, r, traffic, demand.policy, demand.token_budget, time), slots
    )


def prompts_of(
    state: ColocatedState,
    r: ReplicaSet,
    traffic: Traffic,
    policy: SchedulerPolicy,
    token_budget: FloatArray,
    time: PromptTime,
    *,
    merge: bool = True,
) -> ColocatedPrompts:
    """Prompts of replicas in these states; `merge`: few lengths stand for many."""
    fields = ("batch", "rate", "step", "decode_step", "added")
    return colocated_prompts(
        r,
        traffic,
        policy,
        token_budget,
        time,
        merge=merge,
        **{name: getattr(state, name) for name in fields},
    )


@dataclass(frozen=True, slots=True, eq=False)
class SloMargins:
    """log(exceedance / allowed) of the worst limits, shape (grid, C, N); inf where unstable."""

    ttft: FloatArray
    tpot: FloatArray


def slo_margins(
    table: ColocatedTable, traffic: Traffic, demand: ColocatedDemand, starts: Sequence[int]
) -> SloMargins:
    """Margins of both latencies, by far the dearest part of a capacity."""
    waits = sojourns(table, traffic, demand.routing, starts)
    return SloMargins(
        ttft=ttft_margin(table, waits, demand.ttft, demand.admission_miss, len(starts)),
        tpot=tpot_margin(table.state, traffic, demand.tpot, starts),
    )


def colocated_curves(
    table: ColocatedTable,
    traffic: Traffic,
    demand: ColocatedDemand,
    starts: Sequence[int],
    margins: SloMargins | None = None,
) -> Curves:
    """Capacity of colocated replicas: the last point of the grid that meets every limit.

    `margins` are those of :func:`slo_margins`, where they are known.
    """
    counts = np.asarray(starts)
    state, slots = table.state, table.slots
    known = margins or slo_margins(table, traffic, demand, starts)
    by_binding = {
        Binding.TPOT: known.tpot,
        Binding.TTFT: known.ttft,
        Binding.KV_CAPACITY: _slot_margin(state, traffic, slots, demand.admission_miss, counts),
        Binding.MAX_NUM_SEQS: _slot_margin(
            state, traffic, demand.max_num_seqs, demand.admission_miss, counts
        ),
    }
    # a larger batch that serves no more has no steady state
    least = np.where(elasticity(state) >= MOST_ELASTICITY, np.inf, -np.inf)[..., None]
    by_binding[Binding.COMPUTE] = least + np.zeros(len(counts))
    names = np.array([b.value for b in by_binding])
    stacked = np.stack(np.broadcast_arrays(*by_binding.values()))
    worst, which = stacked.max(axis=0), stacked.argmax(axis=0)
    rate, operating, index = _last_within(worst, state)
    return pooled(Curves(counts, rate, operating, names[np.take_along_axis(which, index[None], 0)[0]]))


def _last_within(
    margin: FloatArray, state: ColocatedState
) -> tuple[FloatArray, FloatArray, NDArray[np.int64]]:
    """Rate and batch where `margin` (grid, C, N) first rises above 0, interpolated, and that grid point."""
    fits = np.logical_and.accumulate(margin <= 0, axis=0).sum(axis=0)
    last = np.clip(fits - 1, 0, len(margin) - 2)
    m0 = np.take_along_axis(margin, last[None], 0)[0]
    m1 = np.take_along_axis(margin, last[None] + 1, 0)[0]
    rising = np.isfinite(m0) & np.isfinite(m1) & (m1 > m0)
    rise = np.where(rising, m1, 1.0) - np.where(rising, m0, 0.0)
    share = np.where(rising, np.clip(-np.where(rising, m0, 0.0) / rise, 0.0, 1.0), 0.0)
    share = np.where(fits == len(margin), 1.0, share)

    def between(values: FloatArray) -> FloatArray:
        v0 = np.take_along_axis(values[:, :, None], last[None], 0)[0]
        v1 = np.take_along_axis(values[:, :, None], last[None] + 1, 0)[0]
        return np.where(fits == 0, 0.0, v0 + share * (v1 - v0))

    return between(state.rate), between(state.batch), np.minimum(last + 1, len(margin) - 1)


def tpot_moments(
    state: ColocatedState,
    grows: FloatArray,
    osl: FloatArray,
    mean_osl: float,
    osl_scv: float,
    replicas: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    r"""Mean time per step, and its variance among requests of `osl` steps: TPOT, where a step emits a token.

    Parameters
    ----------
    state : ColocatedState
        Arrays of shape S.
    grows : ndarray, shape S
        r of :func:`elasticity`. [1]
    osl : ndarray, shape (points,)
        Steps after the first token. [1]
    mean_osl, osl_scv : float
        Of all requests: mean, and squared coefficient of variation. [1, 1]
    replicas : ndarray, broadcasts with S
        Balanced replicas n. [1]

    Returns
    -------
    tuple of ndarray, shape S and (*S, points)
        [s, s^2]

    Notes
    -----
    Linear noise around the steady state, in units of a mean request's life :math:`L = osl\,\tau` (ours).
    Arrivals shake the batch as in the product form. Prompts stop the decoding, an M/G/1 queue's busy
    time with variance :math:`\lambda E[\Delta^2]` per second, and every stop lets in more prompts:
    with :math:`1/(1-\rho) = \tau/t` it lengthens a life by
    :math:`2v = \lambda E[\Delta^2]/((1-\rho)^2 L)` in variance. Both move the batch, which returns at
    the rate :math:`(1-r)/L`, so that

    .. math:: Var[B]/B^2 = \frac{1/B + v}{n(1-r)}, \qquad
       E[TPOT] = \tau\left(1 + \frac{r/B + v}{n(1-r)}\right) .

    A request's own TPOT is the mean over its life of the batch that it meets and of the stops. The router
    spreads bursts over n replicas; the prompts that meet a replica at random remain. How random they are:
    a balanced replica gets a prompt when it has lost a sequence, so that in a life as many come as others
    end, a number without chance for outputs of one length. Half of that regularity is seen in simulations.
    """
    n = np.asarray(replicas, dtype=np.float64)
    r, batch = grows, state.batch
    back = 1 - r
    slowed = (state.step / state.decode_step) ** 2
    v = _shaken(state, mean_osl)
    stops = 2 * v / slowed  # without what they let in
    mean = state.step * (1 + (r / batch + v) / (n * back))

    life = osl / mean_osl
    back, gain = back[..., None], (r / back)[..., None]
    met = -np.expm1(-back * life) / back
    first = life - met
    second = life - 2 * met - np.expm1(-2 * back * life) / (2 * back)
    pooled, v = 1 / n[..., None], v[..., None]
    before = r[..., None] ** 2 * (1 / batch[..., None] + v) * pooled / back * met**2
    during = 2 * v * pooled * (2 * gain * first + gain**2 * second)
    arrivals = 2 / batch[..., None] * pooled * gain**2 * second
    own = stops[..., None] * (1 + (slowed[..., None] - 1) * pooled) * life
    chance = 0.5 * (1 + pooled + (1 - pooled) * min(osl_scv, 1.0))
    equal = (state.stolen**2 / np.maximum(state.stolen_square, _TINY))[..., None]
    own = own * (1 - equal + equal * chance)
    return mean, state.step[..., None] ** 2 * (before + during + arrivals + own) / life**2


def _shaken(state: ColocatedState, mean_osl: float) -> FloatArray:
    """v of :func:`tpot_moments`: relative variance of a life by the prompts within it, over two. [1]"""
    slowed = (state.step / state.decode_step) ** 2
    return np.asarray(0.5 * slowed * state.rate * state.stolen_square / (mean_osl * state.step))


def tpot_margin(
    state: ColocatedState, traffic: Traffic, tpot: Sequence[Limit], starts: Sequence[int]
) -> FloatArray:
    """log(exceedance / allowed) of the worst TPOT limit, shape (grid, C, N).

    TPOT is taken as a gamma variable above the lightest step, and below the longest. A step that emits
    several tokens may take as many times the limit.
    """
    osl, weights = _coarse(*traffic.timed)
    a = traffic.tokens_per_step
    floor = state.decode_step[0][:, None]
    wide = ColocatedState(*(getattr(state, name)[..., None] for name in ColocatedState.__slots__))
    mean, variance = tpot_moments(
        wide,
        elasticity(state)[..., None],
        osl / a,
        traffic.colocated_steps,
        traffic.osl_scv,
        np.asarray(starts, dtype=np.float64),
    )
    ceiling = np.maximum(wide.longest, mean)
    worst = np.full(mean.shape, -np.inf)
    for limit in tpot:
        if limit.probability is None:
            margin = np.log(mean / (limit.time * a))
        else:
            above = np.maximum(mean - floor, 0.0)[..., None]
            tail = gamma_tail(above, variance, (limit.time * a - floor)[..., None])
            tail = np.where(limit.time * a < ceiling, tail @ weights, 0.0)
            margin = np.log(np.maximum(tail, 1e-12) / limit.miss)
        worst = np.maximum(worst, margin)
    return worst


def elasticity(state: ColocatedState) -> FloatArray:
    r"""How a token's time grows with the batch at the same rate, :math:`d \log \tau / d \log B`. [1]

    Pure steps get longer, and so do the prompts beside them. Along the grid, where the rate follows the
    batch, :math:`d \log\lambda / d \log B = (1-r)\,t/\tau`; at the largest rate r is 1.
    """
    follows = np.gradient(np.log(state.rate), axis=0) / np.gradient(np.log(state.batch), axis=0)
    return np.asarray(np.clip(1 - follows * state.step / state.decode_step, 0.0, MOST_ELASTICITY))


def sojourns(
    table: ColocatedTable, traffic: Traffic, routing: Routing, starts: Sequence[int]
) -> tuple[tuple[NDArray[np.int64], Sojourn | FlightSojourn], ...]:
    """TTFT of the kinds without and with a pipeline: which these are, and distributions (grid, kinds, N)."""
    prompts, counts = table.prompts, np.asarray(starts, dtype=np.float64)
    parts = (np.flatnonzero((prompts.stages > 1) == pipelined) for pipelined in (False, True))
    return tuple(
        (kinds, prompts.at(kinds).sojourn(counts, routing, traffic.arrival_scv))
        for kinds in parts
        if len(kinds)
    )


def ttft_margin(
    table: ColocatedTable,
    waits: Sequence[tuple[NDArray[np.int64], Sojourn | FlightSojourn]],
    ttft: Sequence[Limit],
    miss: float,
    counts: int,
) -> FloatArray:
    """log(exceedance / allowed) of the worst TTFT limit, shape (grid, C, N); inf where unstable.

    Parameters
    ----------
    waits : sequence
        As :func:`sojourns` gives them, for N = `counts` numbers of replicas.
    miss : float
        Part of the miss share that waits for decode slots take. [1]
    """
    prompts = table.prompts
    worst = np.full((*prompts.rate.shape, counts), -np.inf)
    for kinds, sojourn in waits:
        for limit in ttft:
            if limit.probability is None:
                margin = np.log(np.maximum(sojourn.mean, 1e-12) / limit.time)
            else:
                margin = np.log(np.maximum(sojourn.exceeds(limit.time), 1e-12) / (limit.miss - miss))
            worst[:, kinds] = np.maximum(worst[:, kinds], margin)
    return np.where(prompts.load[..., None] < 1, worst, np.inf)


def _slot_margin(
    state: ColocatedState, traffic: Traffic, slots: FloatArray, miss: float, counts: NDArray[np.int64]
) -> FloatArray:
    """log(batch quantile / slots), shape (grid, C, N).

    Prompts that stop the decoding shake the batch as if there were fewer replicas.
    """
    shaken = 1 + state.batch * _shaken(state, traffic.colocated_steps)
    quantile = occupancy_quantile(
        state.batch[..., None], elasticity(state)[..., None], counts / shaken[..., None], 1 - miss
    )
    return np.asarray(np.log(np.maximum(quantile, 1e-12) / np.maximum(slots, 1e-12)[:, None]))


def _coarse(points: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Merge neighbours of a discrete distribution down to a dozen points; means are kept."""
    if len(points) <= _OUTPUT_POINTS:
        return points, weights
    edges = np.linspace(0, len(points), _OUTPUT_POINTS + 1).astype(int)[:-1]
    merged = np.add.reduceat(weights, edges)
    return np.add.reduceat(points * weights, edges) / merged, merged

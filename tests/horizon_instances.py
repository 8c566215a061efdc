"""Tiny random horizons, and their optimum by enumeration. Shares no code with the search or its check."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
from program_instances import NAMES, curve

from planner.program.horizon.problem import Horizon, Offer, Period, Stream
from planner.program.problem import Candidate, GpuType
from planner.specs import ColocatedUse, Phase

Fleet = tuple[int, ...]  # replicas of all streams in one period


def tiny(seed: int) -> Horizon:
    """Few streams, periods and candidates, each feature on in a good share of the seeds."""
    rng = np.random.default_rng(seed)
    types, streams, periods = int(rng.integers(1, 3)), int(rng.integers(1, 3)), int(rng.integers(1, 4))
    kinds = tuple(
        GpuType(
            name=NAMES[g],
            price=round(float(rng.uniform(0.5, 4)), 2),
            power=500.0,
            node_size=int(rng.choice([1, 2, 4])),
            max_gpus=int(rng.integers(5, 17)) if rng.random() < 0.5 else None,
        )
        for g in range(types)
    )
    return Horizon(
        streams=tuple(_stream(rng, f"s{s}", types, small=streams > 1) for s in range(streams)),
        periods=tuple(Period(name=f"t{t}", hours=float(rng.integers(1, 9))) for t in range(periods)),
        gpu_types=kinds,
        demands=tuple(
            tuple(0.0 if rng.random() < 0.15 else float(rng.uniform(0.3, 4)) for _ in range(periods))
            for _ in range(streams)
        ),
        offers=tuple(_offer(rng, kind) for kind in kinds),
        whole_nodes=bool(rng.random() < 0.5),
        max_added=int(rng.choice([0, 1, 1, 2, 2])) if rng.random() < 0.45 else None,
        max_removed=int(rng.choice([0, 1, 1, 2, 2])) if rng.random() < 0.45 else None,
        cyclic=bool(rng.random() < 0.6),
        startup_hours=float(rng.uniform(0.1, 2)) if rng.random() < 0.5 else 0.0,
        gap=0.0,
    )


def _offer(rng: np.random.Generator, kind: GpuType) -> Offer:
    reserved = rng.random() < 0.5
    return Offer(
        reserved_price=(kind.price or 0.0) * float(rng.uniform(0.3, 0.9)) if reserved else None,
        max_reserved=int(rng.integers(0, 7)) if rng.random() < 0.4 else None,
        owned=int(rng.integers(1, 5)) if rng.random() < 0.4 else 0,
    )


def _stream(rng: np.random.Generator, name: str, types: int, *, small: bool) -> Stream:
    phases = [*Phase, Phase.DECODE] if not small or rng.random() < 0.5 else [Phase.COLOCATED] * 2
    candidates = tuple(
        Candidate(
            name=f"c{i}",
            phase=phase,
            gpu_type=int(rng.integers(0, types)),
            gpus=(gpus := int(rng.choice([1, 2, 4]))),
            curve=curve(float(rng.uniform(0.8, 3)) * gpus, float(rng.uniform(0, 0.9)), (1, 2, 3)),
            max_replicas=int(rng.integers(2, 4)),
        )
        for i, phase in enumerate(phases)
    )
    return Stream(
        name=name,
        candidates=candidates,
        illegal_pairs=frozenset(
            (i, j)
            for i, p in enumerate(candidates)
            for j, d in enumerate(candidates)
            if p.phase is Phase.PREFILL and d.phase is Phase.DECODE and rng.random() < 0.2
        ),
        min_replicas_per_pool=int(rng.choice([1, 1, 2])),
        spare_replicas=int(rng.random() < 0.2),
        colocated=list(ColocatedUse)[int(rng.choice(3, p=[0.6, 0.2, 0.2]))],
    )


def best_value(horizon: Horizon) -> float | None:
    """The least cost over all decisions; None if none is feasible.

    A shortest path through the fleets of each period, for every choice of modes and reservation.
    """
    best = math.inf
    choices = [
        [m for m in (True, False) if s.colocated is not (ColocatedUse.ONLY if m else ColocatedUse.FORBIDDEN)]
        for s in horizon.streams
    ]
    limits = [_most_reserved(horizon, g) for g in range(len(horizon.gpu_types))]
    for modes in product(*choices):
        layers = [_fleets(horizon, modes, t) for t in range(len(horizon.periods))]
        if not all(layers):
            continue
        for reserved in product(*(range(n + 1) for n in limits)):
            fixed = sum(
                n * _block(horizon, g) * (horizon.offers[g].reserved_price or 0.0) * horizon.hours
                for g, n in enumerate(reserved)
            )
            if fixed < best:
                best = min(best, fixed + _cheapest(horizon, layers, reserved))
    return None if math.isinf(best) else best


def _block(horizon: Horizon, g: int) -> int:
    return horizon.gpu_types[g].node_size if horizon.whole_nodes else 1


def _most_reserved(horizon: Horizon, g: int) -> int:
    """Blocks that can be reserved and used."""
    offer, block = horizon.offers[g], _block(horizon, g)
    if offer.reserved_price is None:
        return 0
    all_of_them = sum(
        c.gpus * c.max_replicas for s in horizon.streams for c in s.candidates if c.gpu_type == g
    )
    most = math.ceil(all_of_them / block)
    return most if offer.max_reserved is None else min(most, offer.max_reserved // block)


def _fleets(horizon: Horizon, modes: tuple[bool, ...], t: int) -> list[tuple[Fleet, ...]]:
    """Replicas per stream that are feasible in period t but for scaling."""
    per_stream = [
        [
            counts
            for counts in product(*(range(c.max_replicas + 1) for c in stream.candidates))
            if _serves(stream, counts, horizon.demands[s][t], modes[s])
        ]
        for s, stream in enumerate(horizon.streams)
    ]
    return [fleet for fleet in product(*per_stream) if _in_stock(horizon, fleet)]


def _serves(stream: Stream, counts: Fleet, demand: float, disaggregated: bool) -> bool:
    pools = (Phase.PREFILL, Phase.DECODE) if disaggregated else (Phase.COLOCATED,)
    groups = [i for i, n in enumerate(counts) if n]
    if any(stream.candidates[i].phase not in pools for i in groups):
        return False
    if demand == 0:
        return True
    rates = dict.fromkeys(pools, 0.0)
    for i in groups:
        rate = _rate(stream, i, counts[i])
        if rate <= 0:
            return False
        rates[stream.candidates[i].phase] += rate
    replicas = [sum(counts[i] for i in groups if stream.candidates[i].phase is p) for p in pools]
    if min(replicas) < stream.min_replicas_per_pool or min(rates.values()) < demand:
        return False
    return not any((i, j) in stream.illegal_pairs for i in groups for j in groups)


def _rate(stream: Stream, i: int, n: int) -> float:
    serving, rate = n - stream.spare_replicas, 0.0
    table = stream.candidates[i].curve
    for start, per_replica in zip(table.starts, table.per_replica, strict=True):
        if serving >= start:
            rate = per_replica
    return max(serving, 0) * rate


def _blocks(horizon: Horizon, fleet: tuple[Fleet, ...]) -> list[int]:
    used = [0] * len(horizon.gpu_types)
    for stream, counts in zip(horizon.streams, fleet, strict=True):
        for candidate, n in zip(stream.candidates, counts, strict=True):
            used[candidate.gpu_type] += n * candidate.gpus
    return [math.ceil(u / _block(horizon, g)) for g, u in enumerate(used)]


def _in_stock(horizon: Horizon, fleet: tuple[Fleet, ...]) -> bool:
    return all(
        kind.max_gpus is None or blocks * _block(horizon, g) <= kind.max_gpus
        for g, (kind, blocks) in enumerate(zip(horizon.gpu_types, _blocks(horizon, fleet), strict=True))
    )


def _cheapest(horizon: Horizon, layers: list[list[tuple[Fleet, ...]]], reserved: tuple[int, ...]) -> float:
    """Least cost of renting and starting, over all paths through the layers."""
    rents = [
        np.array([_rent(horizon, fleet, reserved, t) for fleet in layer]) for t, layer in enumerate(layers)
    ]
    steps = [_steps(horizon, layers[t - 1], layers[t]) for t in range(1, len(layers))]
    if len(layers) == 1:
        return float(rents[0].min())
    if not horizon.cyclic:
        total = rents[0]
        for step, rent in zip(steps, rents[1:], strict=True):
            total = (total[:, None] + step).min(axis=0) + rent
        return float(total.min())
    table = np.where(np.eye(len(layers[0]), dtype=bool), rents[0], math.inf)  # by where it starts
    for step, rent in zip(steps, rents[1:], strict=True):
        table = np.stack([(row[:, None] + step).min(axis=0) for row in table]) + rent
    return float((table + _steps(horizon, layers[-1], layers[0]).T).min())


def _rent(horizon: Horizon, fleet: tuple[Fleet, ...], reserved: tuple[int, ...], t: int) -> float:
    hours = horizon.periods[t].hours
    return sum(
        max(blocks - reserved[g] - horizon.offers[g].owned // _block(horizon, g), 0)
        * _block(horizon, g)
        * (horizon.gpu_types[g].price or 0.0)
        * hours
        for g, blocks in enumerate(_blocks(horizon, fleet))
    )


def _steps(horizon: Horizon, a: list[tuple[Fleet, ...]], b: list[tuple[Fleet, ...]]) -> np.ndarray:
    """Start-ups from each fleet of a to each of b; infinite beyond a scaling limit."""
    cost = np.zeros((len(a), len(b)))
    for s, stream in enumerate(horizon.streams):
        before = np.array([fleet[s] for fleet in a])
        after = np.array([fleet[s] for fleet in b])
        change = after[None, :, :] - before[:, None, :]
        for i, candidate in enumerate(stream.candidates):
            price = horizon.gpu_types[candidate.gpu_type].price or 0.0
            cost += np.maximum(change[:, :, i], 0) * horizon.startup_hours * price * candidate.gpus
        for phase in Phase:
            of_phase = change[:, :, [c.phase is phase for c in stream.candidates]]
            for limit, sign in ((horizon.max_added, 1), (horizon.max_removed, -1)):
                if limit is not None:
                    cost[np.maximum(sign * of_phase, 0).sum(axis=2) > limit] = math.inf
    return cost

"""KV caches in HBM, host memory, on SSD or in a store: what each further tier does to load, TTFT and cost.

Each row is the scenario with the prefixes that its tiers find and the time to load them, which are two keys
of a scenario (``prefix_cache_hit_rate``, ``prefix_load_gb_per_s``). What is found depends on the plan's own
pool, and the plan on what is found: a plan counts when it finds as much as it counts on. Where no such plan
is better by more than chance, the fleet of the row before stays, with what it finds now. Approximations: see
:func:`planner.whatif.tier_loads.offer_of` and :func:`planner.latency.prompt_time`; every prompt finds the
same share of itself; what writing to tiers takes is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from planner.errors import InfeasibleError, SolverError, SpecError
from planner.fleet import Fleet
from planner.plan import Plan
from planner.prediction import predict_fleet
from planner.queueing import normal_quantile
from planner.reuse import ReuseCurve, reuse_curve
from planner.specs import Metric, Objective, Phase, Scenario, Service
from planner.traces import Trace
from planner.transformer import kv_bytes_per_token
from planner.whatif import changes
from planner.whatif.asked import Asked, Source, asked_of
from planner.whatif.corrections import capacity_factors
from planner.whatif.explain import SURE
from planner.whatif.resolve import Resolved, ResolveOptions, Resolver, resolved_of
from planner.whatif.tier_loads import Offer, break_even, offer_of
from planner.whatif.tier_rows import HBM, NO_CACHE, BreakEven, TierRow, Tiers, no_plan
from planner.whatif.tier_specs import Pool, Tier, busy_gpus, fleet_of
from planner.whatif.values import INTERRUPTED
from planner.whatif.words import item_name

ROUNDS = 4  # of solving again until a plan has the cache that it counts on
TOLERANCE = 0.01  # of what it counts on, relative [1]


NOT_HOLDING = Resolved(
    reason="the fleet that was cheapest before misses an SLO with it, and no other was found"
)


def tiers(
    source: Source,
    kept: Sequence[Tier],
    *,
    trace: Trace | None = None,
    options: ResolveOptions | None = None,
    on_row: Callable[[], None] = lambda: None,
) -> Tiers:
    """Solve a scenario without a prefix cache, with what HBM holds, and with one tier after the other.

    Parameters
    ----------
    kept : sequence of Tier
        Fastest first.
    trace : Trace, optional
        Requests with the hashes of their blocks, which say what is found; default: the scenario's own.
        Without hashes HBM finds the scenario's hit rate, and every tier says its own.
    on_row : callable
        Told after each row.

    Raises
    ------
    SpecError
        Nothing says what is found; several services; a load time that the scenario gives itself.
    InfeasibleError
        If no plan meets the scenario without a prefix cache, nor with HBM's.
    """
    asked = asked_of(source)
    options = options or ResolveOptions()
    curve, notes = _curve(asked, trace)
    _check(asked.loaded.scenario, kept, curve)
    work = _Work(asked, Resolver(asked.loaded, options, capacity_factors(asked.plan)), curve)
    rows: list[TierRow] = []
    interrupted = False
    try:
        for row in work.rows(kept):
            rows.append(row)
            on_row()
    except KeyboardInterrupt:
        interrupted = True
        notes.append(INTERRUPTED)
    if not interrupted and not any(row.result.feasible for row in rows):
        work.resolver.plan()  # says why
        raise InfeasibleError("no tier of KV caches helps")
    return Tiers(
        name=asked.name,
        objective=asked.loaded.scenario.objective,
        steps=tuple(rows),
        break_even=tuple(work.break_even(rows)) if rows else (),
        curve=curve,
        notes=tuple(notes),
        interrupted=interrupted,
    )


def _curve(asked: Asked, trace: Trace | None) -> tuple[ReuseCurve | None, list[str]]:
    given = trace if trace is not None else asked.loaded.trace
    if given is None or given.blocks is None:
        if trace is not None:
            raise SpecError(
                f"{trace.source}: has no hashes of blocks (a column hash_ids), so nothing says what is found"
            )
        return None, []
    curve = reuse_curve(given.blocks, given.isl)
    notes = [f"prefixes as in {given.name}: {curve.most:.1%} of its prompt tokens with any capacity"]
    own = asked.loaded.scenario.services[0].workload.prefix_hit_rate
    if own:
        notes.append(f"the scenario's prefix_cache_hit_rate {own:g} gives way to what the trace says")
    return curve, notes


def _check(scenario: Scenario, kept: Sequence[Tier], curve: ReuseCurve | None) -> None:
    if len(scenario.services) > 1:
        raise SpecError(f"tiers are looked at for one model, the scenario has {len(scenario.services)}")
    workload = scenario.services[0].workload
    if workload.prefix_bandwidth < float("inf"):
        raise SpecError("workload.prefix_load_gb_per_s: is what tiers work out (leave it out)")
    names = [tier.name for tier in kept]
    for name in names:
        if names.count(name) > 1 or name in (NO_CACHE, HBM):
            raise SpecError(f"tier {name}: is named twice")
    sized = [tier.name for tier in kept if tier.hit_rate is None]
    if curve is None and sized:
        raise SpecError(
            f"tier {sized[0]}: nothing says what prompts share (give --trace FILE with hashes of blocks, or "
            "the tier's own share as hits=0.2)"
        )
    given = [tier.hit_rate for tier in kept if tier.hit_rate is not None]
    if curve is not None and given:
        raise SpecError("hit rates are given beside a trace that has them (give capacities, or no trace)")
    if workload.prefix_hit_rate + sum(given) >= 1:
        raise SpecError(
            f"hit rates of all tiers come to {workload.prefix_hit_rate + sum(given):g}, of at most 1"
        )


@dataclass(frozen=True, slots=True)
class _Standing:
    """A plan with what its prompts count on finding."""

    plan: Plan
    pool: Pool
    offer: Offer


@dataclass(slots=True)
class _Work:
    """One question in the making."""

    asked: Asked
    resolver: Resolver
    curve: ReuseCurve | None

    @property
    def scenario(self) -> Scenario:
        return self.asked.loaded.scenario

    def rows(self, kept: Sequence[Tier]) -> Iterator[TierRow]:
        """No cache, HBM, then each tier beside those before it that are worth it."""
        self.resolver.options.on_stage(f"with {NO_CACHE}")
        best: _Standing | None = None
        try:
            plan = self.resolver.plan(self._with(Offer(0.0)))
            best = _Standing(plan, Pool.of(plan, self.scenario), Offer(0.0))
            yield replace(self._row(NO_CACHE, (), best, used=True), capacity=None)
        except (InfeasibleError, SolverError) as error:
            yield no_plan(NO_CACHE, error)
        used: tuple[Tier, ...] = ()
        for name, tier in ((HBM, ()), *((tier.name, (tier,)) for tier in kept)):
            self.resolver.options.on_stage(f"with {name}")
            try:
                found = self._beside(best, (*used, *tier))
                worth = best is None or self._no_worse((*used, *tier), found, used, best)
            except (InfeasibleError, SolverError) as error:
                yield no_plan(name, error)
                continue
            row = self._row(name, (*used, *tier), found, used=worth)
            yield row if worth or self._holds(found) else replace(row, ttft=None, result=NOT_HOLDING)
            if worth:
                best, used = found, (*used, *tier)

    def _row(self, name: str, kept: Sequence[Tier], found: _Standing, *, used: bool) -> TierRow:
        plan, pool, offer = found.plan, found.pool, found.offer
        fleet = self._fleet(found)
        return TierRow(
            name=name,
            used=used,
            capacity=self._capacity(kept, pool),
            offer=offer,
            load=offer.loads[-1].demand if offer.loads else 0.0,
            computed=self._rate(plan) * self._mean_isl * (1 - offer.hit_rate),
            pool=replace(pool, busy_gpus=busy_gpus(fleet)),
            ttft=predict_fleet(fleet).summaries()[0],
            result=resolved_of(plan),
            price=_price(kept, pool),
        )

    def _beside(self, best: _Standing | None, kept: tuple[Tier, ...]) -> _Standing:
        """The fleet at hand with what it finds now, or a plan that is better by more than chance."""
        if best is None:  # no plan does without a cache
            own = self.scenario.services[0].workload.prefix_hit_rate
            most = own + sum(t.hit_rate or 0.0 for t in kept) if self.curve is None else self.curve.most
            plan = self.resolver.plan(self._with(Offer(most)))
            best = _Standing(plan, Pool.of(plan, self.scenario), Offer(0.0))
            settled = self._settled(best, kept)
            if settled is None:
                raise InfeasibleError("no fleet has the cache that it counts on")
            return settled
        same = replace(best, offer=self._offer(kept, best.pool, self._rate(best.plan)))
        if same.offer == best.offer:  # it finds what it found before
            return same
        other = self._settled(same, kept)
        return other if other is not None and self._better(kept, other, same) else same

    def _settled(self, start: _Standing, kept: Sequence[Tier]) -> _Standing | None:
        """A plan that finds as much as it counts on; None where none was found in some rounds.

        What it counts on only ever falls.
        """
        offer = self._offer(kept, start.pool, self._rate(start.plan))
        for _ in range(ROUNDS):
            try:
                plan = self.resolver.plan(self._with(offer))
            except InfeasibleError:
                return None
            pool = Pool.of(plan, self.scenario)
            found = self._offer(kept, pool, self._rate(plan))
            if found.covers(offer, TOLERANCE):
                return _Standing(plan, pool, offer)
            offer = offer.at_most(found)
        return None

    # ---------------------------------------------------------------------------------------
    # Which is better

    def _loss(self, kept: Sequence[Tier], one: _Standing) -> float:
        """What is made small; for cost, tiers included."""
        objective, plan = self.scenario.objective, one.plan
        if objective is Objective.THROUGHPUT:
            return -plan.value
        return plan.value + (_price(kept, one.pool) if objective is Objective.COST else 0.0)

    def _better(self, kept: Sequence[Tier], one: _Standing, other: _Standing) -> bool:
        """Whether one is better by more than the gap of the programs, or the other misses an SLO."""
        mine, theirs = self._loss(kept, one), self._loss(kept, other)
        return not self._holds(other) or mine < theirs - SURE * self.resolver.options.gap * abs(theirs)

    def _no_worse(
        self, kept: Sequence[Tier], one: _Standing, before: Sequence[Tier], other: _Standing
    ) -> bool:
        """Whether a plan with a tier is worth having: better, or as good with a TTFT no longer."""
        mine, theirs = self._loss(kept, one), self._loss(before, other)
        unsure = SURE * self.resolver.options.gap * abs(theirs)
        if not self._holds(one) or mine > theirs + unsure:
            return False
        return mine < theirs - unsure or self._ttft(one) <= self._ttft(other)

    def _holds(self, one: _Standing) -> bool:
        """Whether a fleet meets the SLOs with what it finds, at the error planned for; its own plan does."""
        z = float(normal_quantile(self.scenario.options.confidence))
        ttft, tpot = predict_fleet(self._fleet(one), z).summaries()
        targets = self.scenario.services[0].slo.targets
        found = ((t, ttft if t.metric is Metric.TTFT else tpot) for t in targets)
        return all(getattr(summary, target.statistic) <= target.limit for target, summary in found)

    def _ttft(self, one: _Standing) -> float:
        return predict_fleet(self._fleet(one)).summaries()[0].mean

    # ---------------------------------------------------------------------------------------
    # Changed scenarios

    def _offer(self, kept: Sequence[Tier], pool: Pool, rate: float) -> Offer:
        return offer_of(kept, pool, self.scenario.services[0], rate, self.curve)

    def _service(self, offer: Offer) -> Service:
        (service,) = self.scenario.services
        workload = replace(service.workload, prefix_hit_rate=offer.hit_rate, prefix_bandwidth=offer.bandwidth)
        return replace(service, workload=workload)

    def _with(self, offer: Offer) -> Scenario:
        return changes.with_services(self.scenario, (self._service(offer),))

    def _fleet(self, one: _Standing) -> Fleet:
        return fleet_of(one.plan, self.scenario, self._service(one.offer))

    def _capacity(self, kept: Sequence[Tier], pool: Pool) -> float | None:
        """Tokens that HBM and the tiers hold together. [tok]"""
        if self.curve is None:
            return None
        service = self.scenario.services[0]
        token = kv_bytes_per_token(service.model, service.precision.kv_cache)
        return pool.tokens + sum(t.capacity.of(pool) / token for t in kept if t.capacity is not None)

    @property
    def _mean_isl(self) -> float:
        return self.scenario.services[0].workload.lengths.isl.mean

    def _rate(self, plan: Plan) -> float:
        return plan.predictions[0].request_rate

    def break_even(self, rows: Sequence[TierRow]) -> Iterator[BreakEven]:
        """Where loading beats computing on each line of the fleet: with the layout of the last plan, else the
        smallest that may compute prompts."""
        service = self.scenario.services[0]
        hit_rate = max(row.offer.hit_rate for row in rows)
        groups = next((r.result.groups for r in reversed(rows) if r.result.groups), ()) or ()
        choices = (*self.resolver.choices(Phase.PREFILL), *self.resolver.choices(Phase.COLOCATED))
        for index, item in enumerate(self.scenario.fleet):
            mine = [c for c in choices if c.item == index]
            prompts = [g for g in groups if g.gpu == item.gpu.name and g.phase is not Phase.DECODE]
            in_use = {g.parallelism for g in prompts}
            found = [c for c in mine if c.parallelism in in_use] or mine
            if found:
                best = min(found, key=lambda c: c.parallelism.num_gpus)
                bandwidth = break_even(service, item.gpu, best.parallelism, best.precision, hit_rate)
                yield BreakEven(gpu=item_name(item), layout=str(best.parallelism), bandwidth=bandwidth)


def _price(kept: Sequence[Tier], pool: Pool) -> float:
    """Of all tiers. [USD/h]"""
    return sum(tier.price.of(pool) for tier in kept if tier.price is not None)

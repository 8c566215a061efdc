"""Candidates that do both phases."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.candidates.context import CandidateSet, Context
from planner.candidates.curves import collect
from planner.candidates.layouts import fitting_replicas
from planner.capacity import ColocatedDemand, Curves, colocated_curves, colocated_table
from planner.specs import Phase


def colocated(context: Context) -> CandidateSet:
    """Replicas of every legal layout and token budget."""
    choices = fitting_replicas(context, Phase.COLOCATED, context.engine.token_budgets)
    if not choices:
        return CandidateSet()
    demand = ColocatedDemand(
        ttft=context.ttft,
        tpot=context.tpot,
        admission_miss=context.miss,
        routing=context.scenario.options.routing,
        policy=context.engine.scheduler,
        token_budget=np.array([float(c.token_budget) for c in choices]),
        kv_tokens=np.array([float(c.kv_tokens) for c in choices]),
        max_num_seqs=np.array([float(c.max_num_seqs) for c in choices]),
    )
    table = colocated_table(context.replicas(choices), context.traffic, demand)

    def curves(starts: Sequence[int]) -> Curves:
        return colocated_curves(table, context.traffic, demand, starts)

    return collect(context, choices, curves)

"""Load that n equal replicas carry within the SLOs: the capacity curves that the program reads.

Each function takes C replicas, or times for them (:class:`LatencyModel`), and a grid of N replica counts, and
returns rates per replica of shape ``(C, N)``, with what ends them. The rules are those of ARCHITECTURE.md,
"Capacity of a group":

- prefill: the exceedance of wait + own service + exposed transfer + first decode step, over all
  prompt lengths, stays within the SLO's miss share;
- decode: the quantile of the product-form batch keeps the step within the TPOT limit, and the
  batch within the KV cache and the sequence limit;
- colocated: both, with steps lengthened by the prompts mixed into them.

Capacity is the rate at which percentiles meet :data:`SLO_MARGIN` times the SLO, so that a simulated
check normally passes at once.
"""

from planner.capacity.colocated import (
    MOST_ELASTICITY,
    ColocatedDemand,
    ColocatedState,
    ColocatedTable,
    SloMargins,
    colocated_curves,
    colocated_state,
    colocated_table,
    elasticity,
    held_up,
    prompts_of,
    slo_margins,
    sojourns,
    tpot_margin,
    tpot_moments,
    ttft_margin,
)
from planner.capacity.colocated_prompts import ColocatedPrompts, colocated_prompts
from planner.capacity.decode import DecodeDemand, batch_for_tokens, batch_grid, decode_curves
from planner.capacity.latency_model import LatencyModel, Roofline, latency_of
from planner.capacity.limits import (
    ADMISSION_SHARE,
    DEFAULT_ADMISSION_MISS,
    SLO_MARGIN,
    Curves,
    Limit,
    admission_miss,
    limits,
    pooled,
)
from planner.capacity.prefill import (
    BUSY,
    FIRST_STEP_SPREAD,
    FIRST_STEPS,
    MOST_UTILIZATION,
    PrefillDemand,
    prefill_curves,
)
from planner.capacity.prompts import PROMPTS_PER_STEP, PromptQueues, Spread, prompt_queues

__all__ = [
    "ADMISSION_SHARE",
    "BUSY",
    "DEFAULT_ADMISSION_MISS",
    "FIRST_STEPS",
    "FIRST_STEP_SPREAD",
    "MOST_ELASTICITY",
    "MOST_UTILIZATION",
    "PROMPTS_PER_STEP",
    "SLO_MARGIN",
    "ColocatedDemand",
    "ColocatedPrompts",
    "ColocatedState",
    "ColocatedTable",
    "Curves",
    "DecodeDemand",
    "LatencyModel",
    "Limit",
    "PrefillDemand",
    "PromptQueues",
    "Roofline",
    "SloMargins",
    "Spread",
    "admission_miss",
    "batch_for_tokens",
    "batch_grid",
    "colocated_curves",
    "colocated_prompts",
    "colocated_state",
    "colocated_table",
    "decode_curves",
    "elasticity",
    "held_up",
    "latency_of",
    "limits",
    "pooled",
    "prefill_curves",
    "prompt_queues",
    "prompts_of",
    "slo_margins",
    "sojourns",
    "tpot_margin",
    "tpot_moments",
    "ttft_margin",
]

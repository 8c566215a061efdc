"""Waiting times of prefill queues and occupancy of decode replicas.

Pure functions of arrays; every argument broadcasts, distributions lie on the last axis.
"""

from planner.queueing.batching import later_arrivals, lengthened, prompts_per_step, tail_prompts
from planner.queueing.mixed import shared_servers, shares_by_speed
from planner.queueing.numeric import erlang_c, gamma_tail, log_gamma, normal_cdf, normal_quantile
from planner.queueing.occupancy import (
    Occupancy,
    decode_occupancy,
    mean_batch,
    occupancy_quantile,
    operating_batch_for_quantile,
)
from planner.queueing.pipeline import Flight, FlightSojourn, Pipelines
from planner.queueing.pooling import (
    md1_mean_ttft,
    md1_mean_ttft_pipeline,
    md1_mean_ttft_tensor_parallel,
    pooled_wait,
)
from planner.queueing.service import ServiceShape, mgn_wait
from planner.queueing.waiting import Sojourn, WaitDistribution, exceedance_of_sum, quantile_of_sum

__all__ = [
    "Flight",
    "FlightSojourn",
    "Occupancy",
    "Pipelines",
    "ServiceShape",
    "Sojourn",
    "WaitDistribution",
    "decode_occupancy",
    "erlang_c",
    "exceedance_of_sum",
    "gamma_tail",
    "later_arrivals",
    "lengthened",
    "log_gamma",
    "md1_mean_ttft",
    "md1_mean_ttft_pipeline",
    "md1_mean_ttft_tensor_parallel",
    "mean_batch",
    "mgn_wait",
    "normal_cdf",
    "normal_quantile",
    "occupancy_quantile",
    "operating_batch_for_quantile",
    "pooled_wait",
    "prompts_per_step",
    "quantile_of_sum",
    "shared_servers",
    "shares_by_speed",
    "tail_prompts",
]

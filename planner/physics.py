"""What a load cannot do without: FLOP/s and bytes/s against a group's peaks.

The plan's last check. It knows no efficiency and no overhead, only shapes and the vendor's peaks, so a
plan above 1 is wrong whatever the calibration says.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.fleet import Deployed, in_formats
from planner.roofline import dtype_of_rows
from planner.specs import Dtype, Phase, Service, rows_per_sequence
from planner.traffic import Traffic
from planner.transformer import active_weight_bytes, decode_flop, kv_read_bytes, prefill_flop


@dataclass(frozen=True, slots=True)
class Needed:
    """Least share of a group's peak FLOP/s and HBM bandwidth. [1]"""

    compute: float
    bandwidth: float


def needed(service: Service, group: Deployed, mean_batch: float) -> Needed:
    """Shares that `group` needs at its rate, when each decode step serves `mean_batch` sequences.

    Notes
    -----
    Prefill computes every token that is not cached. Decode reads the weights once per step and the
    KV cache of its context for every token: arithmetic and bytes that no kernel can avoid. Weights
    read by prefill steps are left out: they are few, and how few depends on batching. Where drafted tokens
    are verified, a step computes k + 1 of each sequence and emits a: arithmetic is that of (k + 1) / a tokens
    for each emitted, and what a step reads serves a of them. What drafting itself needs is not known.
    """
    service = in_formats(service, group)
    traffic = Traffic.of_service(service)
    gpus = group.replicas * group.parallelism.num_gpus
    flop = traffic_bytes = 0.0
    if group.phase is not Phase.DECODE:
        per_prompt = prefill_flop(service.model, traffic.isl, traffic.cached)
        flop += group.rate * float(traffic.isl_weights @ per_prompt)
    if group.phase is not Phase.PREFILL:
        tokens = group.rate * traffic.mean_osl
        steps = tokens / traffic.tokens_per_step
        rows = rows_per_sequence(service.speculation)
        flop += steps * rows * float(decode_flop(service.model, traffic.decode_context))
        kv = float(kv_read_bytes(service.model, service.precision.kv_cache, traffic.decode_context))
        read = active_weight_bytes(service.model, service.precision) / max(mean_batch, 1.0)
        traffic_bytes += steps * (kv + read)
    gpu = group.item.gpu
    dtype = dtype_of_rows(service.precision.weights, gpu) or dtype_of_rows(Dtype.BF16, gpu)
    peak = gpu.peak_flops[dtype] if dtype is not None else max(gpu.peak_flops.values())
    return Needed(flop / (gpus * peak), traffic_bytes / (gpus * gpu.hbm_bandwidth))

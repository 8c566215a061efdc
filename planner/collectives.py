"""Time of moving data between GPUs: all-reduce, pipeline hand-over, KV cache transfer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import FloatArray, Numbers
from planner.errors import SpecError
from planner.specs import GPU, Engine, FleetItem
from planner.units import MICRO

PIPELINE_OVERHEAD = 10 * MICRO  # one send/receive between stages, an estimate [s]
LINK_LOAD_LIMIT = 0.8  # share of a NIC's attained rate that a plan may load; queues grow beyond [1]


@dataclass(frozen=True, kw_only=True, slots=True)
class AllReduce:
    """All-reduce of one world size per entry, ``t0 + w + sqrt(w t_sq)`` with ``w = factor bytes``.

    Attributes
    ----------
    overhead : fixed time, ring steps included. [s]
    time_per_byte : of the message. [s/B]
    sqrt_time : [s]
    """

    overhead: FloatArray
    time_per_byte: FloatArray
    sqrt_time: FloatArray

    @classmethod
    def of(cls, gpus: Sequence[GPU], ranks: Sequence[int]) -> AllReduce:
        """One entry per (GPU, ranks); a world of one costs nothing.

        Raises
        ------
        SpecError
            If a profile has no all-reduce of that world size.
        """
        rows = [_all_reduce_row(gpu, n) for gpu, n in zip(gpus, ranks, strict=True)]
        columns = np.array(rows, dtype=np.float64).reshape(-1, 3).T
        return cls(overhead=columns[0], time_per_byte=columns[1], sqrt_time=columns[2])


def supports_world_size(gpu: GPU, ranks: int) -> bool:
    """Whether the profile knows an all-reduce over `ranks` GPUs of one node."""
    calibration = gpu.calibration
    if ranks == 1:
        return True
    if calibration.all_reduce is not None and ranks <= gpu.scale_up_domain:
        return True
    return ranks in calibration.pcie_all_reduce


def _all_reduce_row(gpu: GPU, ranks: int) -> tuple[float, float, float]:
    if ranks == 1:
        return (0.0, 0.0, 0.0)
    calibration = gpu.calibration
    if calibration.all_reduce is not None and ranks <= gpu.scale_up_domain:
        c = calibration.all_reduce
        per_byte = 2 * (ranks - 1) / ranks / (gpu.scale_up_bandwidth * c.bandwidth_efficiency)
        return (c.overhead + c.per_rank * (ranks - 2), per_byte, c.sqrt_time)
    if ranks in calibration.pcie_all_reduce:
        pcie = calibration.pcie_all_reduce[ranks]
        return (pcie.alpha, 2 * (ranks - 1) / ranks / pcie.bandwidth, 0.0)
    raise SpecError(f"GPU {gpu.name!r} has no all-reduce over {ranks} GPUs")


def all_reduce_time(row: AllReduce, message: Numbers) -> Numbers:
    r"""Time to sum `message` bytes over the ranks, every rank getting the result. [s]

    Notes
    -----
    :math:`t_0 + t_n(n-2) + w + \sqrt{w\,t_{sq}}` with :math:`w = 2S(n-1)/n/(link\cdot e)`, the ring bound
    plus a term for the pipelining of mid-sized messages. Over PCIe without peer access one latency and
    one bandwidth per world size replace it.
    """
    wire = message * row.time_per_byte
    return np.where(np.asarray(message) > 0, row.overhead + wire + np.sqrt(wire * row.sqrt_time), 0.0)


def within_node(item: FleetItem) -> FleetItem:
    """GPUs of one node of a line, which move KV caches over the link between them instead of their NICs.

    A node has no more of them than that link reaches.
    """
    gpu = item.gpu
    reached = min(item.node_size, gpu.scale_up_domain)
    return replace(
        item,
        max_gpus=reached if item.max_gpus is None else min(item.max_gpus, reached),
        network_bandwidth=gpu.scale_up_bandwidth,
        network_given=True,
        same_node=True,
    )


def links_node(item: FleetItem, engine: Engine) -> bool:
    """Whether `engine` can move KV caches over the link between the GPUs of a node."""
    several = min(item.node_size, item.gpu.scale_up_domain) > 1
    return several and item.gpu.scale_up_kind in engine.transfer.peer_links


def network_rate(item: FleetItem, engine: Engine) -> float:
    """What one GPU's share of the NIC, or of the link within the node, attains for KV transfers, one
    direction. [B/s]"""
    costs = engine.transfer
    if item.same_node:
        return item.network_bandwidth * costs.peer_efficiency
    return item.network_bandwidth * (costs.rdma_efficiency if item.rdma else costs.tcp_efficiency)


def kv_transfer_time(
    tokens: Numbers, size: Numbers, rate: Numbers, layers: Numbers, engine: Engine
) -> FloatArray:
    """Exposed time of moving the KV cache of `tokens` between two replicas. [s]

    Parameters
    ----------
    tokens : number or ndarray
        Length of the prompt, cached prefix included: the decode side needs all of it. [tok]
    size : number or ndarray
        Of its KV cache in all layers, each head once. [B]
    rate : number or ndarray
        What the narrower end attains, summed over the GPUs of a replica: shards of grouped-query
        attention move in parallel. [B/s]
    layers : number or ndarray
        Layers whose blocks one GPU of the prefill side posts: those of a pipeline stage.

    Notes
    -----
    ``fixed + (bytes / rate + blocks layers per_block) (1 - overlap)``: one descriptor per block and layer
    adds to the bytes. The engine file says where the constants come from.
    """
    costs = engine.transfer
    blocks = np.ceil(np.asarray(tokens, dtype=np.float64) / engine.block_size)
    wire = size / rate + blocks * layers * costs.per_block
    return np.asarray(costs.fixed + wire * (1.0 - costs.overlap))

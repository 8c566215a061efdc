"""Time of moving data between GPUs: all-reduce, exchange of experts, pipeline hand-over, KV cache transfer.

A *node* here is what a GPU reaches without its NIC: the usual node, or the NVLink domain where that is
larger (72 GPUs of GB200). Between nodes each GPU has a NIC of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import FloatArray, Numbers
from planner.errors import SpecError
from planner.specs import GPU, Engine, FleetItem, Parallelism
from planner.units import MICRO

PIPELINE_OVERHEAD = 10 * MICRO  # one send/receive between stages, an estimate [s]
NETWORK_LATENCY = 12 * MICRO
"""One round between nodes over RDMA, an estimate [s]. NCCL's own table for trees has 5.0 us (LL), 8.5 us
(LL128) and 14 us (Simple) per hop, after 7 to 14 us for the launch (NVIDIA/nccl, src/graph/tuning.cc);
48 KB over four nodes of one GPU took NCCL 54 to 64 us, which is 4 rounds
(https://github.com/local-inference-lab/vllm/pull/295)."""
NETWORK_EFFICIENCY = 0.9
"""Share of a NIC's rate that collectives attain [1]: 43 to 46 of 50 GB/s in DeepEP's tables (see
`ALL_TO_ALL_LATENCY`); NCCL's maintainers expect 46 to 48 (https://github.com/NVIDIA/nccl-tests/issues/290)."""
NETWORK_LOG_SD = 0.3  # least spread of what crosses nodes: nothing of it was measured here [1]
ALL_TO_ALL_LATENCY = 35 * MICRO
"""One phase, dispatch or combine, of the low-latency kernels [s]: what is left of every line of DeepEP's
table for 8 to 256 H800 (github.com/deepseek-ai/DeepEP, docs/legacy.md) when the bytes that cross the
narrower link are taken off."""
ALL_TO_ALL_LINK_EFFICIENCY = 0.8
"""Share of the link within the node [1]: 153 to 158 of 200 GB/s on H800, 726 to 740 of 900 GB/s on
Blackwell (the same tables)."""
FORWARDING_LATENCY = 5 * ALL_TO_ALL_LATENCY
"""One phase of the kernels for many tokens, which count first and forward within nodes [s]; an estimate that
makes them the faster ones from about 256 tokens on, where DeepEP says so."""
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
            As :func:`spread`.
        """
        rows = [_all_reduce_row(gpu, n) for gpu, n in zip(gpus, ranks, strict=True)]
        columns = np.array(rows, dtype=np.float64).reshape(-1, 3).T
        return cls(overhead=columns[0], time_per_byte=columns[1], sqrt_time=columns[2])


def node_reach(gpu: GPU) -> int:
    """GPUs that need no NIC to reach one another: those of the usual node, or of a larger link's domain."""
    linked = gpu.scale_up_domain if gpu.calibration.all_reduce is not None else 1
    return max(gpu.node_size, linked)


def spread(gpu: GPU, ranks: int) -> tuple[int, int]:
    """Ranks per node and nodes of a world of `ranks` GPUs; one node where the profile knows it so.

    Raises
    ------
    SpecError
        If the ranks cannot be spread evenly, or the part of a node has no all-reduce.
    """
    if supports_world_size(gpu, ranks):
        return ranks, 1
    reach = node_reach(gpu)
    nodes = -(-ranks // reach)
    if nodes == 1:
        raise SpecError(f"GPU {gpu.name!r} has no all-reduce over {ranks} GPUs")
    if ranks % nodes:
        raise SpecError(f"{ranks} GPUs of {gpu.name!r} cannot be spread evenly over {nodes} nodes of {reach}")
    if not supports_world_size(gpu, ranks // nodes):
        raise SpecError(
            f"GPU {gpu.name!r} has no all-reduce over the {ranks // nodes} GPUs of each of {nodes} nodes"
        )
    return ranks // nodes, nodes


def nodes_of(gpu: GPU, parallelism: Parallelism) -> int:
    """Nodes that a replica lies on: whole pipeline stages share one as long as they fit.

    Raises
    ------
    SpecError
        As :func:`spread`.
    """
    width = parallelism.tp * parallelism.dp
    _, nodes = spread(gpu, width)
    if nodes > 1:
        return nodes * parallelism.pp
    return -(-parallelism.pp // _stages_per_node(gpu, width))


def _stages_per_node(gpu: GPU, width: int) -> int:
    return max(node_reach(gpu) // width, 1)


def supports_world_size(gpu: GPU, ranks: int) -> bool:
    """Whether the profile knows an all-reduce over `ranks` GPUs of one node."""
    calibration = gpu.calibration
    if ranks == 1:
        return True
    if calibration.all_reduce is not None and ranks <= gpu.scale_up_domain:
        return True
    return ranks in calibration.pcie_all_reduce


def _all_reduce_row(gpu: GPU, ranks: int) -> tuple[float, float, float]:
    """Fixed time, time per byte and term for mid-sized messages: within the node, and between nodes."""
    local, nodes = spread(gpu, ranks)
    overhead, per_byte, sqrt_time = _node_row(gpu, local)
    if nodes == 1:
        return overhead, per_byte, sqrt_time
    far = 2 * (nodes - 1) / nodes / local / _network_rate(gpu)
    rounds = 2 * math.ceil(math.log2(nodes))
    share = per_byte / (per_byte + far)  # that term belongs to the bytes within the node
    return overhead + rounds * NETWORK_LATENCY, per_byte + far, sqrt_time * share


def _node_row(gpu: GPU, ranks: int) -> tuple[float, float, float]:
    if ranks == 1:
        return (0.0, 0.0, 0.0)
    calibration = gpu.calibration
    if calibration.all_reduce is not None and ranks <= gpu.scale_up_domain:
        c = calibration.all_reduce
        per_byte = 2 * (ranks - 1) / ranks / (gpu.scale_up_bandwidth * c.bandwidth_efficiency)
        return (c.overhead + c.per_rank * (ranks - 2), per_byte, c.sqrt_time)
    pcie = calibration.pcie_all_reduce[ranks]
    return (pcie.alpha, 2 * (ranks - 1) / ranks / pcie.bandwidth, 0.0)


def _network_rate(gpu: GPU) -> float:
    """What collectives attain of a GPU's NIC, one direction. [B/s]"""
    return gpu.network_bandwidth * NETWORK_EFFICIENCY


def all_reduce_time(row: AllReduce, message: Numbers) -> Numbers:
    r"""Time to sum `message` bytes over the ranks, every rank getting the result. [s]

    Notes
    -----
    :math:`t_0 + t_n(n-2) + w + \sqrt{w\,t_{sq}}` with :math:`w = 2S(n-1)/n/(link\cdot e)`, the ring bound
    plus a term for the pipelining of mid-sized messages. Over PCIe without peer access one latency and
    one bandwidth per world size replace it.

    Over m nodes the sum is formed within nodes of n ranks, then shard by shard between them, then shared
    within nodes: to the terms of one node come :math:`2 \lceil\log_2 m\rceil` rounds, as NCCL's trees for
    small messages have them, and :math:`2 (m-1)/m \cdot S/n` bytes over each NIC. Parts follow one another:
    that the largest messages pipeline them is left out.
    """
    wire = message * row.time_per_byte
    return np.where(np.asarray(message) > 0, row.overhead + wire + np.sqrt(wire * row.sqrt_time), 0.0)


# --------------------------------------------------------------------------------------------
# Experts


@dataclass(frozen=True, kw_only=True, slots=True)
class AllToAll:
    """Ways of tokens to the experts of other ranks and back, per entry; see :func:`all_to_all_time`.

    Attributes
    ----------
    local, nodes : ranks of a node, and nodes.
    overhead : of both phases of the low-latency kernels; infinite where there are none. [s]
    near, far : time per byte over the link within the node, and over a NIC. [s/B]
    """

    local: FloatArray
    nodes: FloatArray
    overhead: FloatArray
    near: FloatArray
    far: FloatArray

    @classmethod
    def of(cls, gpus: Sequence[GPU], layouts: Sequence[Parallelism]) -> AllToAll:
        """One entry per replica: attention ranks that share experts spread whole over all of them.

        Raises
        ------
        SpecError
            As :func:`spread`.
        """
        rows = [_all_to_all_row(gpu, p) for gpu, p in zip(gpus, layouts, strict=True)]
        local, nodes, overhead, near, far = np.array(rows, dtype=np.float64).reshape(-1, 5).T
        return cls(local=local, nodes=nodes, overhead=overhead, near=near, far=far)


def _all_to_all_row(gpu: GPU, p: Parallelism) -> tuple[float, float, float, float, float]:
    ranks = p.tp * p.dp
    local, nodes = spread(gpu, ranks)
    linked = local == 1 or (gpu.calibration.all_reduce is not None and local <= gpu.scale_up_domain)
    able = p.dp > 1 and p.ep == ranks and linked
    near = 1.0 / (gpu.scale_up_bandwidth * ALL_TO_ALL_LINK_EFFICIENCY)
    return local, nodes, 2 * ALL_TO_ALL_LATENCY if able else math.inf, near, 1.0 / _network_rate(gpu)


def all_to_all_time(row: AllToAll, tokens: Numbers, copies: float, token_bytes: Numbers) -> Numbers:
    r"""Time to bring `tokens` of each GPU to their experts and what these make of them back. [s]

    Parameters
    ----------
    copies : experts that a token visits, each on any rank.
    token_bytes : of one copy, there and back. [B]

    Notes
    -----
    The faster of two kinds of kernels. Low-latency ones send each of k copies to its rank: with n ranks on
    each of m nodes the share :math:`1 - 1/m` crosses a NIC and :math:`(n-1)/(nm)` the link within the node;
    the slower of the two decides. Those for many tokens send a token once to each node it has to visit,
    :math:`(m-1)(1 - (1-1/m)^k)` others on average, where it is forwarded. With the constants above the
    first give every latency of DeepEP's table (128 tokens of 7168, top 8, 8 and 16 bits, 8 to 256 H800)
    within 8 %.
    """
    apart = row.nodes - 1.0
    near = copies * (row.local - 1.0) / (row.local * row.nodes) * row.near
    far = copies * apart / row.nodes * row.far
    direct = row.overhead + tokens * token_bytes * np.maximum(near, far)
    visited = apart * (1.0 - (1.0 - 1.0 / row.nodes) ** copies)
    near = copies * (row.local - 1.0) / row.local * row.near
    forwarded = tokens * token_bytes * np.maximum(near, visited * row.far)
    forwarded = row.overhead * (FORWARDING_LATENCY / ALL_TO_ALL_LATENCY) + forwarded
    return np.where(np.asarray(tokens) > 0, np.minimum(direct, forwarded), 0.0)


# --------------------------------------------------------------------------------------------
# Pipelines


@dataclass(frozen=True, kw_only=True, slots=True)
class HandOver:
    """From each stage of a pipeline to the next, all of one pass, per entry.

    Attributes
    ----------
    overhead : fixed time. [s]
    time_per_byte : of what one tensor-parallel group hands over, which its GPUs send in parallel. [s/B]
    """

    overhead: FloatArray
    time_per_byte: FloatArray

    @classmethod
    def of(cls, gpus: Sequence[GPU], layouts: Sequence[Parallelism]) -> HandOver:
        """One entry per replica; one stage hands nothing over.

        Raises
        ------
        SpecError
            As :func:`spread`.
        """
        rows = [_hand_over_row(gpu, p) for gpu, p in zip(gpus, layouts, strict=True)]
        overhead, per_byte = np.array(rows, dtype=np.float64).reshape(-1, 2).T
        return cls(overhead=overhead, time_per_byte=per_byte)


def _hand_over_row(gpu: GPU, p: Parallelism) -> tuple[float, float]:
    if p.pp == 1:
        return 0.0, 0.0
    width = p.tp * p.dp
    _, nodes = spread(gpu, width)
    between = p.pp - 1 if nodes > 1 else nodes_of(gpu, p) - 1
    near = p.pp - 1 - between
    overhead = (p.pp - 1) * PIPELINE_OVERHEAD + between * NETWORK_LATENCY
    per_byte = between / _network_rate(gpu)
    if near:
        per_byte += near / _neighbour_rate(gpu, 2 * width)
    return overhead, per_byte / p.tp


def _neighbour_rate(gpu: GPU, ranks: int) -> float:
    """What a GPU sends to another of its node at, while all of two stages of `ranks` GPUs do. [B/s]"""
    calibration = gpu.calibration
    if calibration.all_reduce is not None and ranks <= gpu.scale_up_domain:
        return gpu.scale_up_bandwidth * calibration.all_reduce.bandwidth_efficiency
    worlds = calibration.pcie_all_reduce
    if not worlds:
        return _network_rate(gpu)
    return worlds[min((n for n in worlds if n >= ranks), default=max(worlds))].bandwidth


# --------------------------------------------------------------------------------------------
# KV caches


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


def over_nodes(item: FleetItem) -> FleetItem:
    """A line whose replicas span its nodes: ranks meet over the line's NICs, not those of the profile."""
    gpu = item.gpu
    domain = gpu.scale_up_domain if item.node_size >= gpu.node_size else item.node_size
    smaller = replace(
        gpu,
        node_size=item.node_size,
        scale_up_domain=min(gpu.scale_up_domain, domain),
        network_bandwidth=item.network_bandwidth,
    )
    return replace(item, gpu=smaller)


def beneath(item: FleetItem, parallelism: Parallelism) -> FleetItem:
    """The line as a replica lies on it: its nodes and NICs, where one node is too small."""
    return over_nodes(item) if parallelism.num_gpus > item.node_size else item


def placement_problem(item: FleetItem, parallelism: Parallelism) -> str:
    """Why a replica cannot lie on `item`, which is as :func:`beneath` gives it; empty where it can."""
    gpu, layout = item.gpu, parallelism
    needs = f"{layout} needs {layout.num_gpus} GPUs, a node of {gpu.name} has {item.node_size}: "
    width = layout.tp * layout.dp
    if layout.num_gpus <= item.node_size:
        known = supports_world_size(gpu, width)
        return "" if known else f"GPU {gpu.name!r} has no all-reduce over {width} GPUs of one node"
    try:
        nodes = nodes_of(gpu, layout)
    except SpecError as error:
        return needs + str(error)
    if nodes > 1 and item.same_node:
        return needs + "same_node keeps it within one"
    if nodes > 1 and not item.rdma:
        return needs + "what plain TCP takes between ranks is not modelled (rdma: false)"
    return ""


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

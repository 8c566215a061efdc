"""What is deployed, whatever writes it: engines with their settings and places, the router, the load test.

Targets only render it. Everything here is decided: nothing that a plan counts on is left to an engine's
defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from planner.specs import Dtype, Parallelism, Phase, SloTarget

PLACEHOLDER = "SET-ME-"
"""Starts what a user has to give and did not; checks refuse it."""


class TransferSide(StrEnum):
    """What an engine does with KV caches of other engines."""

    SENDS = "sends"
    RECEIVES = "receives"


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """How a KV cache moves: the connector's name in the engine, and the side of it.

    `by_host`: through memory of the hosts, as between GPUs of different vendors.
    """

    connector: str
    side: TransferSide
    by_host: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeLabel:
    """Label of the nodes that have a type of GPU; empty where it is not known."""

    key: str = ""
    value: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineGroup:
    """Equal engines of one role.

    Attributes
    ----------
    name : str
        Of its own in the deployment; small letters, digits and dashes.
    planned_name : str
        What the plan calls it.
    nodes : int
        Hosts that one replica lies on.
    max_num_seqs : int
        Of one rank of attention data parallelism.
    memory_fraction : float
        Share of a GPU's memory that the engine takes. [1]
    weights, kv_cache, activations : Dtype
        Formats; activations are the 16-bit format of everything that is not quantised.
    quantize : bool
        Whether the engine makes `weights` of a 16-bit checkpoint as it loads it.
    attention_backend : str
        The engine's name of it; the same for all engines that exchange KV caches.
    contiguous_heads : bool
        Whether blocks of the KV cache have to lie head by head, as pairs of different TP need.
    has_state, latent : bool
        Whether the model has layers with a recurrent state; with latent attention.
    share : float
        Of the requests of its pool, by the plan. [1]
    image : str
        With its tag.
    """

    name: str
    planned_name: str
    role: Phase
    gpu: str
    vendor: str
    node_label: NodeLabel
    zone: str
    replicas: int
    parallelism: Parallelism
    nodes: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    memory_fraction: float
    weights: Dtype
    kv_cache: Dtype
    activations: Dtype
    quantize: bool
    block_size: int
    prefix_caching: bool
    attention_backend: str
    contiguous_heads: bool
    has_state: bool
    latent: bool
    transfer: Transfer | None
    share: float
    image: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A computer with `gpus` GPUs of one type."""

    name: str
    address: str
    gpu: str
    gpus: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """GPUs of a host that a part of an engine runs on."""

    host: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """One replica of a group, numbered from 1, on GPUs of a host; a large one also on those of others.

    `port` serves requests, `side_port` is the first of those that hand over KV caches, `rpc_port` is between
    ranks. Parts on other hosts are its `followers`; none of them serves requests.
    """

    group: str
    number: int
    host: str
    gpus: tuple[int, ...]
    port: int
    side_port: int
    rpc_port: int
    followers: tuple[Share, ...] = ()

    @property
    def parts(self) -> tuple[Share, ...]:
        """By rank; the first leads."""
        return (Share(host=self.host, gpus=self.gpus), *self.followers)

    @property
    def num_gpus(self) -> int:
        return sum(len(part.gpus) for part in self.parts)

    def part_name(self, rank: int) -> str:
        """Of its own in the deployment."""
        return f"{self.group}-{self.number}-r{rank}" if self.followers else f"{self.group}-{self.number}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterSettings:
    """The front door; `policy` is the router's name of how it picks an engine, `path` precedes all others.

    Of scripts, no policy means no router: the only engine answers requests itself.
    """

    address: str
    port: int
    policy: str
    path: str = ""

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.port}{self.path}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Toleration:
    """Of a taint of nodes; without a value any is tolerated."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """What a deployment finds in a Kubernetes cluster; an empty name: nothing of the kind.

    Attributes
    ----------
    token_secret, pull_secret : str
        Secrets with the token for gated models (key HF_TOKEN), and for the registry of images.
    model_claim : str
        Volume claim that holds the weights.
    rdma_resource : str
        What pods ask for to reach the network for KV caches.
    rdma_count : int
        So many of it; 0: one per GPU.
    shared_memory : str
        Size of /dev/shm.
    """

    namespace: str
    token_secret: str
    pull_secret: str
    model_claim: str
    rdma_resource: str
    rdma_count: int
    shared_memory: str
    tolerations: tuple[Toleration, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A period of the plan's traffic; `replicas` are those of every group, by its name in the deployment."""

    name: str
    hours: float
    replicas: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Platform:
    """What starts engines instead of an operator's scripts; `engine_version` is that of its images."""

    name: str
    version: str
    engine_version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadTest:
    """Traffic of the plan as a load generator can make it.

    Attributes
    ----------
    request_rate : float
        [req/s]
    burstiness : float
        Shape of gamma-distributed times between requests; 1: Poisson. [1]
    prompt, shared_prefix, output : int
        Mean tokens of a prompt beyond the prefix that all share, of that prefix, of an answer.
    spread : float
        Lengths are uniform within ``1 - spread`` to ``1 + spread`` times their mean. [1]
    """

    request_rate: float
    burstiness: float
    prompt: int
    shared_prefix: int
    output: int
    spread: float
    requests: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Front:
    """Engines behind one router, which serve one model.

    Attributes
    ----------
    service : str
        What the plan calls the service.
    door : str
        Name of what takes requests; fronts that share a model by prompt length have one.
    prompts : tuple of (int, int or None) or None
        Shortest and longest prompt that comes here, where they are divided by length. [tok]
    model, served_name : str
        What engines load, and what requests call it.
    draft : str
        Speculative decoding as the engine wants it (JSON); empty: none.
    """

    name: str
    service: str
    door: str
    prompts: tuple[int, int | None] | None
    model: str
    served_name: str
    draft: str
    groups: tuple[EngineGroup, ...]
    engines: tuple[Engine, ...]
    router: RouterSettings
    load_test: LoadTest
    slo: tuple[SloTarget, ...]

    @property
    def disaggregated(self) -> bool:
        return any(group.role is Phase.PREFILL for group in self.groups)

    def group(self, name: str) -> EngineGroup:
        return next(group for group in self.groups if group.name == name)

    def engines_of(self, role: Phase) -> tuple[Engine, ...]:
        return tuple(engine for engine in self.engines if self.group(engine.group).role is role)


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """A plan, ready to be written for a target.

    Attributes
    ----------
    plan_id : str
        Hash of the plan's content.
    image, router_image : str
        With their tags; an empty router image: the router runs outside containers. Groups on GPUs of another
        vendor have an image of their own.
    model_cache : str
        Folder of every host that holds the weights.
    environment : tuple of (str, str)
        Variables that every engine gets.
    cluster : Cluster
        Only targets on Kubernetes read it.
    platform : Platform or None
        None: scripts and compose files.
    stages : tuple of Stage
        Periods in their order; empty where the rate is constant.
    notes : tuple of str
        What an operator has to know.
    """

    plan_id: str
    engine: str
    engine_version: str
    router: str
    router_version: str
    load_test_version: str
    image: str
    router_image: str
    model_cache: str
    environment: tuple[tuple[str, str], ...]
    hosts: tuple[Host, ...]
    fronts: tuple[Front, ...]
    cluster: Cluster
    platform: Platform | None = None
    stages: tuple[Stage, ...] = ()
    notes: tuple[str, ...] = ()

    def host(self, name: str) -> Host:
        return next(host for host in self.hosts if host.name == name)

    def parts_on(self, host: Host) -> Iterator[tuple[Front, Engine, int]]:
        """Engines that have a part on a host, and its rank."""
        for front in self.fronts:
            for engine in front.engines:
                for rank, part in enumerate(engine.parts):
                    if part.host == host.name:
                        yield front, engine, rank

    def url(self, engine: Engine) -> str:
        """Where an engine serves requests."""
        return f"http://{self.host(engine.host).address}:{engine.port}"


def checked_for(deployment: Deployment) -> str:
    """The versions whose flags and fields were checked."""
    d = deployment
    if d.platform is None:
        return f"{d.engine} {d.engine_version}"
    return f"{d.platform.name} {d.platform.version}, {d.engine} {d.platform.engine_version}"

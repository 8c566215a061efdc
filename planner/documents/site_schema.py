"""The site file: what a plan cannot know of the computers that it is deployed to."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from planner.documents.schema_base import Choice, DocumentModel, Text

Port = Annotated[int, Field(gt=1023, le=65_535)]

NONE = "none"
"""Says that a cluster has nothing of a kind."""

POLICIES = ("least_loaded", "power_of_two", "round_robin", "random")


class PortsDocument(DocumentModel):
    """First ports of a host; each engine adds the number of its first GPU."""

    router: Port = Field(default=8000, description="Of the router; further services take the next ones.")
    prefill: Port = Field(default=8100, description="Requests to prefill engines.")
    decode: Port = Field(default=8200, description="Requests to decode engines.")
    colocated: Port = Field(default=8300, description="Requests to colocated engines.")
    side_channel: Port = Field(default=5600, description="Hand-over of KV caches.")
    data_parallel: Port = Field(default=29_550, description="Between attention ranks of an engine.")


class LabelDocument(DocumentModel):
    """Label of the nodes that have a type of GPU."""

    key: Text = Field(description="Its key, e.g. nvidia.com/gpu.product.")
    value: Text = Field(description="Its value, e.g. NVIDIA-H100-80GB-HBM3.")


class TolerationDocument(DocumentModel):
    """A taint of nodes that pods tolerate."""

    key: Text = Field(description="Key of the taint.")
    value: Text | None = Field(default=None, description="Its value; left out: any.")
    effect: Annotated[str, Choice(("NoSchedule", "PreferNoSchedule", "NoExecute"))] = Field(
        default="NoSchedule", description="Its effect."
    )


class KubernetesDocument(DocumentModel):
    """What a deployment finds in the cluster. Where there is none of a kind, say ``none``."""

    namespace: Text | None = Field(default=None, description="Namespace of everything that is written.")
    token_secret: Text | None = Field(
        default=None, description="Secret whose key HF_TOKEN is the token for gated models, or none."
    )
    pull_secret: Text = Field(default=NONE, description="Secret for the registry of images, or none.")
    model_claim: Text | None = Field(
        default=None,
        description="Volume claim that holds the weights, mounted at model_cache, or none.",
    )
    rdma_resource: Text | None = Field(
        default=None, description="What pods ask for to reach the RDMA network, e.g. rdma/ib, or none."
    )
    rdma_count: Annotated[int, Field(ge=1, le=64)] | None = Field(
        default=None, description="How many of it a pod asks for; default: one per GPU."
    )
    shared_memory: Text = Field(default="32Gi", description="Size of /dev/shm of engines.")
    tolerations: list[TolerationDocument] = Field(
        default=[], description="Taints that engines tolerate, beside that of GPU nodes."
    )


class SiteDocument(DocumentModel):
    """Settings of a deployment. What is needed and left out becomes a placeholder, which checks refuse."""

    hosts: dict[str, list[Text]] = Field(
        default={},
        description="Addresses of the hosts by GPU type (with zone and price class where a plan has them: "
        "h100-sxm@zone-a), in the order in which they are filled.",
    )
    router_host: Text | None = Field(default=None, description="Address of the host of the router.")
    model_cache: Text | None = Field(
        default=None, description="Folder of every host that holds the weights; engines see it as theirs."
    )
    models: dict[str, Text] = Field(
        default={}, description="What engines load, by service of the plan: a repository or a path."
    )
    served_names: dict[str, Text] = Field(
        default={}, description="What requests call the model, by service; default: the plan's name of it."
    )
    image: Text | None = Field(default=None, description="Image of the engines, with its tag.")
    images: dict[Annotated[str, Choice(("nvidia", "amd"))], Text] = Field(
        default={}, description="Images of the engines by vendor of the GPU, where there are several."
    )
    router_image: Text | None = Field(
        default=None, description="Image of the router, with its tag; left out: it runs outside containers."
    )
    router_policy: Annotated[str, Choice(POLICIES)] | None = Field(
        default=None, description="How the router picks an engine, instead of what the plan assumes."
    )
    attention_backend: Text | None = Field(
        default=None, description="The engine's name of the attention backend, instead of the one chosen."
    )
    draft: dict[str, Any] | None = Field(
        default=None, description="Speculative decoding as the engine's own configuration has it."
    )
    environment: dict[str, Text] = Field(
        default={}, description="Variables of every engine, e.g. UCX_NET_DEVICES: mlx5_0:1."
    )
    node_labels: dict[str, LabelDocument] = Field(
        default={}, description="Labels of nodes by GPU type, instead of those known."
    )
    kubernetes: KubernetesDocument = Field(
        default=KubernetesDocument(), description="The cluster, for dynamo, llm-d and kserve."
    )
    ports: PortsDocument = Field(default=PortsDocument(), description="First ports.")

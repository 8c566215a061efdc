"""The schema of what a scenario may choose from: GPUs, zones, electricity."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from planner.documents.schema_base import (
    Choice,
    DocumentModel,
    Fraction,
    Label,
    Money,
    Positive,
    Text,
)
from planner.specs import PriceClass

MAX_GPUS = 10_000_000

GpuCount = Annotated[int, Field(ge=0, le=MAX_GPUS)]


class FleetItemDocument(DocumentModel):
    """GPUs of one type that may be used."""

    synonyms: ClassVar = {
        "count": "max_gpus",
        "stock": "max_gpus",
        "price": "price_per_gpu_hour",
        "name": "gpu",
        "type": "gpu",
        "gpus_per_node": "node_size",
        "instance_type": "instance",
        "region": "zone",
        "tier": "price_class",
        "spot": "write price_class: spot",
        "interruption_rate": "interruptions_per_hour",
    }

    gpu: Text | None = Field(
        default=None,
        description="Name of a GPU profile, or path to one relative to this file; default: the instance's.",
    )
    instance: Text | None = Field(
        default=None,
        description="A cloud's server, e.g. aws/p5.48xlarge (see `planner gpus prices`): gives GPU, price "
        "(on demand or spot), node size and network, each of which a key of this item replaces.",
    )
    price_per_gpu_hour: Money | None = Field(
        default=None,
        description="Price of one GPU, needed where cost or a budget counts; default: the instance's. "
        "[USD/h]",
    )
    max_gpus: GpuCount | None = Field(
        default=None, description="GPUs that can be had; 0: none; left out: unlimited."
    )
    node_size: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        default=None, description="GPUs of a node; default: the instance's, else the profile's."
    )
    network_gbps_per_gpu: Positive | None = Field(
        default=None,
        description="NIC share of one GPU, one direction; default: the instance's, else the profile's. "
        "[Gbit/s]",
    )
    rdma: bool = Field(
        default=True,
        description="false where the network is plain TCP; default: as the instance's, else true.",
    )
    owned: bool = Field(default=False, description="Already paid for: the price may be 0 or left out.")
    max_prefill_gpus: GpuCount | None = Field(default=None, description="Cap of the prefill pool.")
    max_decode_gpus: GpuCount | None = Field(default=None, description="Cap of the decode pool.")
    max_colocated_gpus: GpuCount | None = Field(default=None, description="Cap of the colocated pool.")
    zone: Label | None = Field(
        default=None, description="Where the GPUs are; all lines of a fleet have one, or none."
    )
    price_class: Annotated[str, Choice(tuple(PriceClass))] = Field(
        default="on_demand",
        description="How they are paid for: reserved ones are bought once for all periods, spot ones may be "
        "taken away.",
    )
    interruptions_per_hour: Annotated[float, Field(ge=0, le=100)] | None = Field(
        default=None, description="How often a spot replica is taken away; needed for spot. [1/h]"
    )


class ZoneDocument(DocumentModel):
    """A part of the fleet that fails, and is filled, by itself."""

    synonyms: ClassVar = {"stock": "max_gpus", "quota": "max_gpus"}

    max_gpus: GpuCount = Field(description="GPUs of all types that can be had there.")


class PowerDocument(DocumentModel):
    """Electricity: what it costs and how much of it there is."""

    synonyms: ClassVar = {"usd_per_kwh": "price_per_kwh", "price": "price_per_kwh", "cap_kw": "max_kw"}

    price_per_kwh: Money = Field(
        default=0.0, description="Added to the cost of every GPU paid for. [USD/kWh]"
    )
    utilization: Fraction = Field(
        default=1.0, description="Mean power of a GPU over its thermal design power. [1]"
    )
    pue: Annotated[float, Field(ge=1, le=10)] = Field(
        default=1.0, description="Power of the site over that of its computers. [1]"
    )
    max_kw: Positive | None = Field(default=None, description="Most that the site may draw. [kW]")

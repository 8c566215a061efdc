"""Rented servers and what they cost, dated: a catalogue that a scenario's own figures always win over."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from planner.documents.catalogue import CloudInstanceEntry, CloudsDocument
from planner.documents.names import unknown_name
from planner.documents.source import load_document
from planner.errors import SpecError
from planner.specs import PriceClass
from planner.units import BITS_PER_BYTE, GIGA

_FILE = Path(str(files(__package__ or "planner.catalog"))) / "clouds.yaml"


@dataclass(frozen=True, kw_only=True, slots=True)
class CloudInstance:
    """A server that a cloud rents out.

    Attributes
    ----------
    gpu : str
        Canonical name of its GPUs' profile.
    gpus : int
        GPUs as that profile counts them.
    on_demand, spot : float or None
        Price of the whole instance; None where it is not known. [USD/h]
    memory : float or None
        Of the host. [B]
    network_bandwidth : float or None
        Of the whole instance, one direction. [B/s]
    rdma : bool or None
        None where the kind of network is not known.
    date : str
        When the price held: a year, a month, or nothing where that is not known.
    status : str
        "checked", "second-hand" or "unverified".
    """

    cloud: str
    type: str
    gpu: str
    gpus: int
    on_demand: float | None
    spot: float | None
    vcpus: int | None
    memory: float | None
    network_bandwidth: float | None
    network_kind: str
    rdma: bool | None
    region: str
    date: str
    source: str
    status: str
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.cloud}/{self.type}"

    @property
    def price_per_gpu(self) -> float | None:
        """On demand. [USD/h]"""
        return None if self.on_demand is None else self.on_demand / self.gpus

    @property
    def spot_price_per_gpu(self) -> float | None:
        """[USD/h]"""
        return None if self.spot is None else self.spot / self.gpus

    @property
    def network_per_gpu(self) -> float | None:
        """[B/s]"""
        return None if self.network_bandwidth is None else self.network_bandwidth / self.gpus

    def price_of(self, price_class: PriceClass) -> float | None:
        """Of one GPU; None where it is not known, as all prices of reservations are. [USD/h]"""
        prices = {PriceClass.ON_DEMAND: self.price_per_gpu, PriceClass.SPOT: self.spot_price_per_gpu}
        return prices.get(price_class)

    def price_source(self, price_class: PriceClass = PriceClass.ON_DEMAND) -> str:
        """What a plan says of the price: offer, date, source and status."""
        offer = str(price_class).replace("_", " ")
        where = f" in {self.region}" if self.region else ""
        return f"{self.name} {offer}{where} ({self.date or 'no date'}, {self.source}, {self.status})"


@cache
def cloud_instances() -> tuple[CloudInstance, ...]:
    """Every instance of the catalogue, in its order."""
    clouds = load_document(_FILE, CloudsDocument).model.clouds
    return tuple(
        _instance(cloud, type_, entry) for cloud, types in clouds.items() for type_, entry in types.items()
    )


def _instance(cloud: str, type_: str, entry: CloudInstanceEntry) -> CloudInstance:
    network = entry.network_gbps
    return CloudInstance(
        cloud=cloud,
        type=type_,
        gpu=entry.gpu,
        gpus=entry.gpus,
        on_demand=entry.on_demand_usd_per_hour,
        spot=entry.spot_usd_per_hour,
        vcpus=entry.vcpus,
        memory=None if entry.memory_gb is None else entry.memory_gb * GIGA,
        network_bandwidth=None if network is None else network * GIGA / BITS_PER_BYTE,
        network_kind=entry.network_kind,
        rdma=entry.rdma,
        region=entry.region,
        date=entry.date,
        source=entry.source,
        status=entry.status,
        note=entry.note,
    )


def load_instance(name: str) -> CloudInstance:
    """An instance by ``cloud/type``, or by its type where one cloud has it; in any case.

    Raises
    ------
    SpecError
        Unknown name, or one that several clouds have.
    """
    folded = name.strip().lower()
    found = [i for i in cloud_instances() if folded in (i.name.lower(), i.type.lower())]
    if len(found) == 1:
        return found[0]
    if found:
        raise SpecError(f"instance {name!r} is ambiguous: {', '.join(i.name for i in found)}")
    known = [i.type if "/" not in folded else i.name for i in cloud_instances()]
    rule, suggestion = unknown_name("instance", name, known)
    raise SpecError(f"{rule} {name!r}: {suggestion} (planner gpus prices lists them)")

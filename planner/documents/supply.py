"""What a scenario may choose from, looked up and in SI units: GPUs, zones, electricity."""

from __future__ import annotations

from planner import catalog
from planner.documents.look_ups import Named, reporting, text_at
from planner.documents.supply_rules import price_reason
from planner.documents.supply_schema import FleetItemDocument, PowerDocument
from planner.documents.tree import KeyPath, Tree
from planner.errors import Problem
from planner.specs import GPU, FleetItem, Phase, Power, PriceClass
from planner.units import BITS_PER_BYTE, GIGA, KILO

_USUAL = PriceClass.ON_DEMAND.value


def look_up_fleet(tree: Tree) -> Named:
    """GPUs and instances of the fleet; each type of GPU is listed once in a zone and price class."""
    named = Named()
    first: dict[tuple[str, str, str], KeyPath] = {}
    for i in range(len(tree.entries("fleet"))):
        path: KeyPath = ("fleet", i, "gpu")
        name = text_at(tree, *path)
        if name:
            with reporting(named, tree, path):
                named.gpus[i] = catalog.load_gpu(name, tree.folder)
        if instance := text_at(tree, "fleet", i, "instance"):
            with reporting(named, tree, ("fleet", i, "instance")):
                named.instances[i] = catalog.load_instance(instance)
                named.problems += _check_instance(tree, i, named.instances[i], named.gpus.get(i))
                if not tree.has(*path):
                    path = ("fleet", i, "instance")
                    named.gpus[i] = catalog.load_gpu(named.instances[i].gpu)
        name = named.gpus[i].name if i in named.gpus else name  # the same GPU may go by several names
        key = (name, text_at(tree, "fleet", i, "zone"), text_at(tree, "fleet", i, "price_class") or _USUAL)
        if name and key in first:
            rule = f"is listed twice, first on line {tree.line(first[key])}"
            hint = "give each GPU type once in a zone and price_class"
            named.problems.append(tree.problem(path, rule, hint))
        first.setdefault(key, path)
    return named


def _check_instance(tree: Tree, i: int, instance: catalog.CloudInstance, gpu: GPU | None) -> list[Problem]:
    """An instance has the GPU that is named beside it, and a price where one is needed."""
    problems = []
    if gpu is not None and gpu.name in catalog.gpu_names() and gpu.name != instance.gpu:
        rule = f"contradicts {instance.name}, which has {instance.gpu}"
        problems.append(tree.problem(("fleet", i, "gpu"), rule, "leave it out"))
    given = tree.has("fleet", i, "price_per_gpu_hour") or tree.get("fleet", i, "owned") is True
    price_class = text_at(tree, "fleet", i, "price_class") or _USUAL
    known = price_class not in tuple(PriceClass) or instance.price_of(PriceClass(price_class)) is not None
    if not known and not given and price_reason(tree):
        kind = "" if price_class == _USUAL else f"{price_class} "
        rule = f"{kind}price of {instance.name} is not known: give price_per_gpu_hour"
        problems.append(tree.problem(("fleet", i, "instance"), rule, show_value=False))
    return problems


def fleet_item(document: FleetItemDocument, gpu: GPU, instance: catalog.CloudInstance | None) -> FleetItem:
    """GPUs as the item says, else as its instance does, else as their profile does."""
    price_class = PriceClass(document.price_class)
    price, price_source = document.price_per_gpu_hour, ""
    if price is None and document.owned:
        price = 0.0
    elif price is None and instance is not None:
        price = instance.price_of(price_class)
        price_source = "" if price is None else instance.price_source(price_class)
    network = bytes_per_second(document.network_gbps_per_gpu)
    rdma, node_size = document.rdma, document.node_size
    if instance is not None:
        network = instance.network_per_gpu if network is None else network
        node_size = node_size or instance.gpus
        if "rdma" not in document.model_fields_set and instance.rdma is not None:
            rdma = instance.rdma
    caps = {
        Phase.PREFILL: document.max_prefill_gpus,
        Phase.DECODE: document.max_decode_gpus,
        Phase.COLOCATED: document.max_colocated_gpus,
    }
    return FleetItem(
        gpu=gpu,
        price=price,
        max_gpus=document.max_gpus,
        node_size=node_size or gpu.node_size,
        network_bandwidth=gpu.network_bandwidth if network is None else network,
        network_given=network is not None,
        rdma=rdma,
        owned=document.owned,
        zone=document.zone or "",
        price_source=price_source,
        price_class=price_class,
        interruptions=document.interruptions_per_hour or 0.0,
        max_gpus_by_phase={phase: cap for phase, cap in caps.items() if cap is not None},
    )


def bytes_per_second(gbps: float | None) -> float | None:
    """A network rate in SI units, where one is given. [B/s]"""
    return None if gbps is None else gbps * GIGA / BITS_PER_BYTE


def power_of(document: PowerDocument) -> Power:
    """Electricity as the file says."""
    return Power(
        price=document.price_per_kwh,
        utilization=document.utilization,
        pue=document.pue,
        cap=None if document.max_kw is None else document.max_kw * KILO,
    )

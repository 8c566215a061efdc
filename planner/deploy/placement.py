"""Which replica runs on which GPUs of which host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from planner.deploy.description import PLACEHOLDER, Engine, Host, Share
from planner.deploy.words import dns_name, host_address
from planner.documents.names import did_you_mean
from planner.documents.site_schema import PortsDocument
from planner.errors import SpecError
from planner.specs import FleetItem, Phase

_MOST_GPUS = 100
"""Of a host: ports of phases are that far apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Replicas to be placed: of `gpus` GPUs each, within one host of the line `item` or on whole ones.

    `service` and `role` together are the pool that they belong to.
    """

    group: str
    service: str
    role: Phase
    item: FleetItem
    replicas: int
    gpus: int


def place(
    wanted: Sequence[Wanted],
    addresses: Mapping[str, Sequence[str]],
    ports: PortsDocument,
    *,
    apart: bool = False,
) -> tuple[tuple[Host, ...], tuple[Engine, ...]]:
    """Hosts, and the engines on them: largest replicas first, each on the first host with room, or on several
    that nobody is on yet.

    Engines come in the order of `wanted`. A host without an address has a placeholder. `apart`: a host holds
    replicas of one group of a pool, as plans that survive the loss of a node count on.

    Raises
    ------
    SpecError
        A replica of several hosts does not fill them, or addresses are given for GPUs that the plan has not,
        twice, or for fewer hosts than needed.
    """
    lines = {one.item.name: one.item for one in wanted}
    if unknown := next((name for name in addresses if name not in lines), None):
        hint = did_you_mean(unknown, list(lines)) or f"it has {', '.join(lines)}"
        raise SpecError(f"hosts: the plan has no GPUs {unknown!r} ({hint})")
    taken = [address for listed in addresses.values() for address in listed]
    if twice := next((address for address in taken if taken.count(address) > 1), None):
        raise SpecError(f"hosts: {twice} is given twice")
    hosts: list[Host] = []
    engines: dict[tuple[str, int], Engine] = {}
    for name, item in lines.items():
        free: list[int] = []  # first GPU of each host that no replica has
        holds: list[dict[tuple[str, Phase], str]] = []  # by pool the group on each host, where that counts
        order = sorted(
            (-one.gpus, i, number, one)
            for i, one in enumerate(wanted)
            if one.item.name == name
            for number in range(1, one.replicas + 1)
        )
        for _, _, number, one in order:
            _require_room(one)
            pool = (one.service, one.role)
            at = next(
                (
                    k
                    for k, first in enumerate(free)
                    if first + one.gpus <= item.node_size
                    and not (apart and holds[k].get(pool, one.group) != one.group)
                ),
                len(free),
            )
            if at == len(free):
                more = -(-one.gpus // item.node_size)
                free += [0] * more
                holds += [{} for _ in range(more)]
            shares = [
                Share(host=_host_name(name, k), gpus=tuple(range(free[k], free[k] + _per_host(one))))
                for k in range(at, at + one.gpus // _per_host(one))
            ]
            for k in range(at, at + len(shares)):
                holds[k][pool] = one.group
                free[k] += _per_host(one)
            engines[one.group, number] = _engine(one, number, shares, ports)
        hosts += _hosts(item, len(free), addresses.get(name, ()))
    return tuple(hosts), tuple(
        engines[one.group, number] for one in wanted for number in range(1, one.replicas + 1)
    )


def _per_host(one: Wanted) -> int:
    """GPUs that a replica has of each of its hosts."""
    return min(one.gpus, one.item.node_size)


def _require_room(one: Wanted) -> None:
    if one.gpus > one.item.node_size and one.gpus % one.item.node_size:
        rule = f"a replica of {one.gpus} GPUs does not fill hosts of {one.item.node_size}"
        raise SpecError(f"group {one.group}: {rule} (plan with layouts of whole nodes)")
    if one.item.node_size > _MOST_GPUS:
        rule = f"a host of {one.item.node_size} GPUs; ports are there for {_MOST_GPUS}"
        raise SpecError(f"group {one.group}: {rule}")


def _host_name(line: str, index: int) -> str:
    return dns_name(f"{line}-{index + 1}") if "@" not in line else dns_name(f"{dns_name(line)}-{index + 1}")


def _hosts(item: FleetItem, count: int, addresses: Sequence[str]) -> list[Host]:
    if addresses and len(addresses) < count:
        rule = f"{count} hosts are needed, {len(addresses)} have an address"
        raise SpecError(f"hosts: {item.name}: {rule} (give all of them, or none for placeholders)")
    named = [_host_name(item.name, k) for k in range(count)]
    return [
        Host(
            name=name,
            address=host_address(f"hosts: {item.name}", addresses[k])
            if addresses
            else f"{PLACEHOLDER}host-{name}",
            gpu=item.gpu.name,
            gpus=item.node_size,
        )
        for k, name in enumerate(named)
    ]


def _engine(one: Wanted, number: int, shares: Sequence[Share], ports: PortsDocument) -> Engine:
    leader, *others = shares
    first = leader.gpus[0]
    base = {Phase.PREFILL: ports.prefill, Phase.DECODE: ports.decode, Phase.COLOCATED: ports.colocated}
    return Engine(
        group=one.group,
        number=number,
        host=leader.host,
        gpus=leader.gpus,
        port=base[one.role] + first,
        side_port=ports.side_channel + first,
        rpc_port=ports.data_parallel + first,
        followers=tuple(others),
    )


def check_ports(ports: PortsDocument, fronts: int, gpus: int) -> None:
    """Refuse first ports that are too close to one another.

    Raises
    ------
    SpecError
    """
    sizes = {"router": fronts} | dict.fromkeys(
        ("prefill", "decode", "colocated", "side_channel", "data_parallel"), gpus
    )
    spans = sorted((getattr(ports, name), getattr(ports, name) + size, name) for name, size in sizes.items())
    for (_, end, name), (start, _, other) in pairwise(spans):
        if end > start:
            raise SpecError(f"ports: {other} {start} lies within the {sizes[name]} ports of {name}")
    if spans[-1][1] > 65_536:
        raise SpecError(f"ports: {spans[-1][2]} ends beyond 65535")

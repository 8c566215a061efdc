"""What a device says of itself, and which profile of the catalogue describes its like."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from planner.errors import SpecError


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceFacts:
    """A device as software sees it.

    Attributes
    ----------
    kind : str
        "cpu" or "cuda" (AMD's GPUs too).
    sm_count : int
        Multiprocessors, compute units, or threads that compute.
    memory, cache : float
        Memory that a framework sees, and the last-level cache. [B]
    count : int
        Such devices of the machine.
    power : float or None
        Limit that the board has from its maker; None where unknown. [W]
    driver_memory : float or None
        Memory that the vendor's tool shows. [B]
    software : mapping of str to str
        Versions of what measured.
    """

    name: str
    kind: str
    vendor: str
    architecture: str
    sm_count: int
    memory: float
    cache: float
    count: int
    power: float | None
    driver_memory: float | None
    software: Mapping[str, str]

    @property
    def default_device(self) -> str:
        """What torch calls the first device of this kind."""
        return "cpu" if self.kind == "cpu" else "cuda:0"


_NUMBERS = ("sm_count", "memory", "cache", "count", "power", "driver_memory")
_TEXTS = ("kind", "vendor", "architecture")
_NEEDED = ("vendor", "architecture", "sm_count", "memory", "cache", "count")
_SOFTWARE = "software."


def head_of(facts: DeviceFacts) -> dict[str, str]:
    """Facts, but for the name, as texts for the head of a file of samples."""
    texts = {key: str(getattr(facts, key)) for key in _TEXTS}
    known = {key: getattr(facts, key) for key in _NUMBERS if getattr(facts, key) is not None}
    numbers = {key: f"{value:.12g}" for key, value in known.items()}
    return texts | numbers | {_SOFTWARE + key: value for key, value in facts.software.items()}


def facts_of(name: str, head: Mapping[str, str]) -> DeviceFacts | None:
    """What :func:`head_of` wrote; None where a head has none of it.

    Raises
    ------
    SpecError
        If it has some of it, or figures that cannot be.
    """
    if "kind" not in head:
        return None
    missing = next((key for key in _NEEDED if key not in head), None)
    if missing is not None:
        raise SpecError(f"the lines before the table have no # {missing}:")
    if head["kind"] not in ("cpu", "cuda"):
        raise SpecError(f"# kind: must be cpu or cuda, got {head['kind']!r}")
    numbers = {key: _positive(key, head[key]) for key in _NUMBERS if key in head}
    return DeviceFacts(
        name=name,
        kind=head["kind"],
        vendor=head["vendor"],
        architecture=head["architecture"],
        sm_count=int(numbers["sm_count"]),
        memory=numbers["memory"],
        cache=numbers["cache"],
        count=int(numbers["count"]),
        power=numbers.get("power"),
        driver_memory=numbers.get("driver_memory"),
        software=software_of(head),
    )


def _positive(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise SpecError(f"# {key}: must be a number > 0, got {text!r}")
    return value


def software_of(head: Mapping[str, str]) -> dict[str, str]:
    """Versions in the head of a file of samples."""
    return {key[len(_SOFTWARE) :]: value for key, value in head.items() if key.startswith(_SOFTWARE)}


_KNOWN: tuple[tuple[str, str], ...] = (
    (r"GB300", "gb300"),
    (r"GB200", "gb200"),
    (r"B300", "b300-sxm"),
    (r"B200", "b200-sxm"),
    (r"GH200", "gh200"),
    (r"H200 NVL", "h200-nvl"),
    (r"H200", "h200-sxm"),
    (r"H100 NVL", "h100-nvl"),
    (r"H100 PCIe", "h100-pcie"),
    (r"H100", "h100-sxm"),
    (r"H800", "h800-sxm"),
    (r"H20-?3?e|H20 141", "h20-141gb"),
    (r"H20\b", "h20"),
    (r"A100.*PCI.*80|A100.*80.*PCI", "a100-80gb-pcie"),
    (r"A100.*PCI", "a100-40gb-pcie"),
    (r"A100.*80", "a100-80gb-sxm"),
    (r"A100", "a100-40gb-sxm"),
    (r"A10G", "a10g"),
    (r"RTX A6000", "rtx-a6000"),
    (r"A40\b", "a40"),
    (r"A10\b", "a10"),
    (r"L40S", "l40s"),
    (r"L40\b", "l40"),
    (r"L4\b", "l4"),
    (r"RTX PRO 6000.*Server", "rtx-pro-6000-server"),
    (r"RTX PRO 6000", "rtx-pro-6000-workstation"),
    (r"RTX 6000 Ada", "rtx-6000-ada"),
    (r"RTX 5090", "rtx-5090"),
    (r"RTX 4090", "rtx-4090"),
    (r"V100.*32", "v100-32gb-sxm"),
    (r"V100", "v100-16gb-sxm"),
    (r"\bT4\b", "t4"),
    (r"MI355X", "mi355x"),
    (r"MI350X", "mi350x"),
    (r"MI325X", "mi325x"),
    (r"MI300X", "mi300x"),
    (r"MI250X", "mi250x"),
    (r"MI250", "mi250"),
    (r"MI210", "mi210"),
)
"""What drivers call a device, the longer names first, and the profile of the catalogue."""


def catalogue_name(device: str) -> str | None:
    """The profile that describes a device of this name; None where there is none."""
    return next((name for pattern, name in _KNOWN if re.search(pattern, device, re.IGNORECASE)), None)

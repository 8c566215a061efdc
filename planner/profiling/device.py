"""What a device says of itself, without changing anything on it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import torch

from planner.device_facts import DeviceFacts
from planner.errors import SpecError
from planner.units import KIB, MIB

_ARCHITECTURES = {
    (7, 0): "volta",
    (7, 5): "turing",
    (8, 0): "ampere",
    (8, 6): "ampere",
    (8, 7): "ampere",
    (8, 9): "ada",
    (9, 0): "hopper",
    (10, 0): "blackwell",
    (10, 3): "blackwell",
    (12, 0): "blackwell",
}
"""By compute capability; other vendors name theirs."""
_GFX = {"gfx90a": "cdna2", "gfx942": "cdna3", "gfx950": "cdna4"}
_TOOL_SECONDS = 10


def open_device(name: str) -> torch.device:
    """The device that a user names: "cpu", "cuda" or "cuda:1".

    Raises
    ------
    SpecError
        Unknown, or not there.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SpecError(f"--device: must be cpu or cuda:N, got {name!r}") from None
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise SpecError(f"--device: must be cpu or cuda:N, got {name!r}")
    if not torch.cuda.is_available():
        raise SpecError(
            f"--device: torch {torch.__version__} sees no GPU here, got {name!r} (cpu works anywhere)"
        )
    index = device.index or 0
    if index >= torch.cuda.device_count():
        known = ", ".join(f"cuda:{i}" for i in range(torch.cuda.device_count()))
        raise SpecError(f"--device: there is no GPU {index} here, got {name!r} (known: {known})")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def read_device(device: torch.device) -> DeviceFacts:
    """Facts of a device and of the software that measures it."""
    return _cpu_facts() if device.type == "cpu" else _gpu_facts(device)


def _gpu_facts(device: torch.device) -> DeviceFacts:
    properties = torch.cuda.get_device_properties(device)
    amd = torch.version.hip is not None
    gfx = str(getattr(properties, "gcnArchName", "")).split(":")[0]
    capability = (properties.major, properties.minor)
    architecture = (
        _GFX.get(gfx, gfx) if amd else _ARCHITECTURES.get(capability, f"sm{capability[0]}{capability[1]}")
    )
    uuid = getattr(properties, "uuid", None)
    shown = {} if amd else _nvidia_smi(str(device.index or 0) if uuid is None else f"GPU-{uuid}")
    return DeviceFacts(
        name=properties.name,
        kind="cuda",
        vendor="amd" if amd else "nvidia",
        architecture=architecture,
        sm_count=properties.multi_processor_count,
        memory=float(properties.total_memory),
        cache=float(properties.L2_cache_size),
        count=torch.cuda.device_count(),
        power=_number(shown.get("power.default_limit")),
        driver_memory=(_number(shown.get("memory.total")) or 0.0) * MIB or None,
        software={
            "torch": str(torch.__version__),
            **({"rocm": str(torch.version.hip)} if amd else {"cuda": str(torch.version.cuda)}),
            **({"driver": shown["driver_version"]} if shown.get("driver_version") else {}),
        },
    )


_ASKED = ("driver_version", "memory.total", "power.default_limit")


def _nvidia_smi(name: str) -> dict[str, str]:
    """What nvidia-smi shows; empty where it is missing or refuses."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    command = [tool, f"--id={name}", f"--query-gpu={','.join(_ASKED)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(_ASKED, (cell.strip() for cell in done.stdout.split(",")), strict=False))


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _cpu_facts() -> DeviceFacts:
    return DeviceFacts(
        name=_cpu_name(),
        kind="cpu",
        vendor=_cpu_vendor(),
        architecture="cpu",
        sm_count=torch.get_num_threads(),
        memory=float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        cache=_last_level_cache(),
        count=1,
        power=None,
        driver_memory=None,
        software={"torch": str(torch.__version__), "threads": str(torch.get_num_threads())},
    )


def _cpu_lines() -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo; empty on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n", 1)[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _cpu_name() -> str:
    return _cpu_lines().get("model name") or platform.processor() or platform.machine()


def _cpu_vendor() -> str:
    known = {"AuthenticAMD": "amd", "GenuineIntel": "intel"}
    return known.get(_cpu_lines().get("vendor_id", ""), platform.machine() or "cpu")


_USUAL_CACHE = 32 * MIB


def _last_level_cache() -> float:
    """Of the first processor. [B]"""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text(encoding="ascii", errors="replace").strip()
        scale = {"K": KIB, "M": MIB}.get(text[-1:], 1)
        digits = text.rstrip("KM")
        if digits.isdigit():
            sizes.append(float(digits) * scale)
    return max(sizes, default=float(_USUAL_CACHE))

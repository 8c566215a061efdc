"""Operator tables of aiconfigurator-core as samples: which engine's table of which operator, on which GPUs.

Tables whose times are those of launches from the host are not used, nor samples from a warm cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.calibration.fitting import Fit, fit
from planner.calibration.forms import Peaks
from planner.calibration.table_rows import COLD, TINY, read_operator
from planner.documents.operator_tables import (
    SystemFigures,
    package_version,
    read_figures,
)
from planner.errors import SpecError
from planner.samples import Key, Operator, Samples, SampleSet
from planner.specs import Dtype
from planner.units import MEGA

VLLM, SGLANG, TRTLLM = "vllm", "sglang", "trtllm"
ENGINES = (VLLM, SGLANG, TRTLLM)

CHOSEN: Mapping[Key, tuple[str, ...]] = {
    (Operator.GEMM, Dtype.BF16): (VLLM,),
    (Operator.GEMM, Dtype.FP8): (VLLM,),
    # vLLM's tables of FP8 in blocks have a floor of 60 to 280 us: the host's launches.
    (Operator.GEMM, Dtype.FP8_BLOCK): (SGLANG, TRTLLM),
    (Operator.GEMM, Dtype.NVFP4): (VLLM,),
    (Operator.DECODE_ATTENTION, Dtype.BF16): (VLLM,),
    (Operator.DECODE_ATTENTION, Dtype.FP8): (VLLM,),
    (Operator.PREFILL_ATTENTION, None): (VLLM,),
    (Operator.EXPERTS, Dtype.BF16): (VLLM,),
    (Operator.EXPERTS, Dtype.FP8): (VLLM,),
    (Operator.EXPERTS, Dtype.FP8_BLOCK): (VLLM, SGLANG, TRTLLM),
    (Operator.EXPERTS, Dtype.NVFP4): (VLLM,),
    (Operator.EXPERTS, Dtype.MXFP4): (VLLM,),
    (Operator.EXPERTS, Dtype.INT4): (VLLM, SGLANG),
    # vLLM has tables of whole modules only.
    (Operator.LATENT_DECODE, Dtype.BF16): (TRTLLM,),
    (Operator.LATENT_DECODE, Dtype.FP8): (TRTLLM,),
    (Operator.LATENT_PREFILL, None): (TRTLLM,),
    (Operator.ALL_REDUCE, None): (VLLM,),
}
"""Engines whose table is taken, the preferred one first."""

PEAK_OF: Mapping[Dtype, str] = {
    Dtype.BF16: "bf16",
    Dtype.FP8: "fp8",
    Dtype.FP8_BLOCK: "fp8",
    Dtype.NVFP4: "fp4",
    Dtype.MXFP4: "bf16",
    Dtype.INT4: "bf16",
}
"""Whose peak a format's products are a share of; weight-only formats are multiplied in 16 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Board:
    """What the package does not say of a GPU: multiprocessors, and its last-level cache. [1, B]

    `hot` tells that samples which fit into the cache were measured there, and beat the memory.
    """

    sm_count: int
    cache: float
    hot: bool = False


BOARDS: Mapping[str, Board] = {
    "h100_sxm": Board(sm_count=132, cache=50 * MEGA),
    "h200_sxm": Board(sm_count=132, cache=50 * MEGA),
    "a100_sxm": Board(sm_count=108, cache=40 * MEGA),
    "l40s": Board(sm_count=142, cache=96 * MEGA, hot=True),
    "b200_sxm": Board(sm_count=148, cache=126 * MEGA),
    "b300_sxm": Board(sm_count=148, cache=126 * MEGA),
    "gb200": Board(sm_count=148, cache=126 * MEGA),
    "gb300": Board(sm_count=148, cache=126 * MEGA),
    "rtx_pro_6000_server": Board(sm_count=188, cache=128 * MEGA, hot=True),
}
"""GPUs with tables of everything that a profile needs."""


HIGHEST = {"compute_efficiency": 1.0, "norm_exponent": 8.0}
"""Bounds closer than those of a fit to own measurements: thousands of rows average their noise."""
UNCHECKED = (Operator.EXPERTS, Operator.LATENT_DECODE)
"""Operators whose rows may beat the peaks: uneven visits hit fewer experts than the form counts, and latent
attention with an 8-bit cache multiplies in 8 bits, while profiles state its share of the 16-bit peak."""


def fit_table(samples: Samples, peaks: Peaks, board: Board, fixed: Mapping[str, float] | None = None) -> Fit:
    """A fit with the bounds of tables; samples in a warm cache may beat the memory."""
    cache = board.cache if board.hot else 0.0
    checked = samples.operator not in UNCHECKED
    return fit(samples, peaks, cache_bytes=cache, highest=HIGHEST, fixed=fixed, checked=checked)


def read_tables(systems: Path, system: str, engine: str | None = None) -> SampleSet:
    """Samples of every operator that a GPU has a table of.

    Parameters
    ----------
    systems : Path
        The package's folder of systems, see :func:`planner.documents.operator_tables.tables_folder`.
    system : str
        E.g. "h100_sxm".
    engine : str, optional
        Whose tables; default: as :data:`CHOSEN` says.

    Raises
    ------
    SpecError
        No such system or engine, pyarrow missing, or a damaged table.
    """
    if engine is not None and engine not in ENGINES:
        raise SpecError(f"engine: must be one of {', '.join(ENGINES)}, got {engine!r}")
    board = board_of(system)
    read_figures(systems, system)
    tables = {}
    facts = {"package": f"aiconfigurator-core {package_version(systems)}".strip(), "device": system}
    for key, engines in CHOSEN.items():
        for name in (engine,) if engine else engines:
            found = read_operator(systems, system, key, name)
            if found is not None and len(found[0]):
                samples, version = found
                tables[key] = _cold(samples, board) if board.hot else samples
                facts[label(key)] = f"{name} {version}"
                break
    return SampleSet(device=system, tables=tables, facts=facts)


def board_of(system: str) -> Board:
    """What is known of a GPU beside its tables.

    Raises
    ------
    SpecError
        For GPUs with few tables or none.
    """
    if system not in BOARDS:
        raise SpecError(f"system: must be one of {', '.join(BOARDS)}, got {system!r}")
    return BOARDS[system]


def label(key: Key) -> str:
    """Name of an operator at a format: "gemm.fp8", "all_reduce"."""
    operator, dtype = key
    return str(operator) if dtype is None else f"{operator}.{dtype}"


def peaks_of(figures: SystemFigures, system: str, key: Key) -> Peaks:
    """What efficiencies of an operator are shares of."""
    operator, dtype = key
    dense = operator in (Operator.GEMM, Operator.EXPERTS)
    kind = PEAK_OF[dtype] if dense and dtype is not None else "bf16"
    return Peaks(
        compute=figures.peaks[kind],
        bandwidth=figures.bandwidth,
        sm_count=float(board_of(system).sm_count),
        link=figures.link,
    )


def _cold(samples: Samples, board: Board) -> Samples:
    """Attention of decode steps without the caches that fitted into the last level but took time."""
    if samples.operator is not Operator.DECODE_ATTENTION:
        return samples
    a = samples.axes
    moved = (
        2 * a["batch"] * a["kv_heads"] * a["head_dim"] * a["context"] * (samples.dtype or Dtype.BF16).bytes
    )
    share = moved / board.cache
    return samples.part((share < TINY) | (share >= COLD))

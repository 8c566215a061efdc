"""Where the figures of a report come from: sources, constants, versions."""

from __future__ import annotations

from collections.abc import Iterator

from planner import __version__
from planner.report.html.blocks import Block, Table, Text, numeric, rows_of
from planner.report.html.facts import ReportFacts
from planner.report.tables import figure
from planner.specs import GPU, Engine
from planner.units import GIB, GIGA, MICRO, TERA


def provenance(f: ReportFacts) -> Iterator[Block]:
    """Sources of the plan, versions, GPU profiles and the engine's constants."""
    for source in f.plan.provenance:
        yield Text(text=source)
    rows = [("planner that wrote this report", __version__)]
    rows += [(f"engine {e.name}", e.version) for e in f.engines]
    if f.date:
        rows.append(("date of this report", f.date))
    yield Table(head=("", "version"), rows=rows_of(rows))
    yield Table(
        head=("GPU", *(gpu.name for gpu in f.gpus)),
        rows=rows_of(list(_profiles(f.gpus))),
        numbers=numeric(*range(1, 1 + len(f.gpus))),
        caption="GPU profiles: specification and calibration",
        folded=True,
    )
    for engine in f.engines:
        yield Table(
            head=("constant", f"{engine.name} {engine.version}"),
            rows=rows_of(list(_constants(engine))),
            numbers=numeric(1),
            caption=f"Constants of {engine.name} {engine.version}",
            folded=True,
        )


def _profiles(gpus: tuple[GPU, ...]) -> Iterator[tuple[str, ...]]:
    for dtype in dict.fromkeys(d for gpu in gpus for d in gpu.peak_flops):
        peaks = [gpu.peak_flops.get(dtype) for gpu in gpus]
        yield (f"{dtype} peak [TFLOP/s]", *("-" if p is None else figure(p / TERA) for p in peaks))
    yield ("memory bandwidth [GB/s]", *(figure(gpu.hbm_bandwidth / GIGA) for gpu in gpus))
    yield ("memory [GiB]", *(figure(gpu.memory / GIB) for gpu in gpus))
    yield ("link [GB/s]", *(f"{gpu.scale_up_kind} {figure(gpu.scale_up_bandwidth / GIGA)}" for gpu in gpus))
    yield ("power [W]", *(figure(gpu.power) for gpu in gpus))
    for dtype in dict.fromkeys(d for gpu in gpus for d in gpu.calibration.gemm):
        rows = [gpu.calibration.gemm.get(dtype) for gpu in gpus]
        for key in ("compute_efficiency", "memory_efficiency"):
            cells = ("-" if r is None else figure(getattr(r, key), 3) for r in rows)
            yield (f"{dtype} products: {key.replace('_', ' ')}", *cells)
    for dtype in dict.fromkeys(d for gpu in gpus for d in gpu.calibration.decode_attention):
        attention = [gpu.calibration.decode_attention.get(dtype) for gpu in gpus]
        cells = ("-" if r is None else figure(r.memory_efficiency, 3) for r in attention)
        yield (f"{dtype} decode attention: memory efficiency", *cells)
    names = dict.fromkeys(name for gpu in gpus for name in gpu.calibration.log_sd)
    for name in names:
        spreads = [gpu.calibration.log_sd.get(name) for gpu in gpus]
        yield (f"spread of {name}", *("-" if s is None else figure(s, 2) for s in spreads))


def _constants(engine: Engine) -> Iterator[tuple[str, str]]:
    yield "fitted to measured rows", "yes" if engine.fitted else "no: estimated"
    yield "host time of a step [us]", figure(engine.step_overhead / MICRO)
    yield "host time per sequence [us]", figure(engine.sequence_overhead / MICRO)
    yield "factor on kernels of decode steps", figure(engine.decode_scale)
    yield "factor on kernels of prompts", figure(engine.prefill_scale)
    yield "share of GPU memory taken", figure(engine.memory_utilization)
    yield "sequences in a step, at most", f"{engine.max_num_seqs:,}"
    yield "tokens in a step of a prefill replica", f"{engine.prefill_token_budget:,}"
    yield "spread of steps (log)", figure(engine.log_sd, 3)
    yield "spread between models (log)", figure(engine.family_log_sd, 3)

"""Engine files: they load, and reproduce the measurements they were taken from."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planner import engines
from planner.documents.engine import EngineDocument
from planner.documents.schema_base import DocumentModel
from planner.documents.source import load_document, parse_document
from planner.documents.sourced import Sourced
from planner.engines import engine_names, load_engine
from planner.errors import SpecError
from planner.specs import Dtype, Phase, SchedulerPolicy
from planner.units import GIB, GIGA, MIB, MILLI

VLLM = Path(engines.__file__).parent / "vllm.yaml"


@pytest.mark.parametrize("name", engine_names())
def test_every_engine_loads(name):
    engine = load_engine(name)
    assert engine.name == name
    assert engine.version
    assert engine.provenance


def test_names_are_found_in_any_case():
    assert load_engine("vLLM") == load_engine("vllm")


def test_unknown_engine_suggests_the_nearest():
    with pytest.raises(SpecError, match="unknown engine 'vlm': did you mean vllm"):
        load_engine("vlm")


def test_defaults_of_vllm():
    engine = load_engine("vllm")
    assert engine.scheduler is SchedulerPolicy.CHUNKED_PREFILL
    assert engine.memory_utilization == 0.92
    assert engine.first_token_phase is Phase.DECODE
    assert engine.block_size == 16
    assert engine.connector == "NixlConnector"
    stored = {Dtype.FP8, Dtype.FP8_BLOCK, Dtype.INT4, Dtype.MXFP4, Dtype.NVFP4}
    assert set(engine.weight_only_dtypes) == stored
    assert engine.transfer.overlap == 0.0


def test_graph_sizes_of_vllm():
    sizes = load_engine("vllm").graph_batch_sizes
    assert sizes[:5] == (1, 2, 4, 8, 16)
    assert sizes[-2:] == (496, 512)
    assert len(sizes) == 51
    assert list(sizes) == sorted(set(sizes))


@pytest.mark.parametrize(("hidden", "vocabulary", "measured"), [(4096, 128256, 1.89), (3584, 152064, 2.21)])
def test_activation_memory_is_that_measured(hidden, vocabulary, measured):
    # llm-d-planner, accuracy report v0.19.0: Llama-3.1-8B and Qwen2.5-7B on H100, GiB.
    engine = load_engine("vllm")
    activations = engine.prefill_token_budget * hidden * Dtype.BF16.bytes
    logits = engine.max_num_seqs * vocabulary * engine.logits_bytes_per_entry
    assert (activations + logits) / GIB == pytest.approx(measured, rel=0.01)


def test_transfer_costs_reproduce_the_public_measurement():
    # https://github.com/vllm-project/vllm/issues/50913, 2026-08-28: 167 MiB, 1,785 descriptors, 38.7 ms.
    costs = load_engine("vllm").transfer
    wire = 167 * MIB / (50 * GIGA * costs.rdma_efficiency)
    assert costs.fixed + 1785 * costs.per_block + wire == pytest.approx(38.7 * MILLI, rel=0.01)


def figures_of(part: object) -> Iterator[Sourced[Any]]:
    """Every figure of a file, however deep."""
    if isinstance(part, Sourced):
        yield part
    elif isinstance(part, DocumentModel):
        for inner in vars(part).values():
            yield from figures_of(inner)
    elif isinstance(part, tuple):
        for inner in part:
            yield from figures_of(inner)


@pytest.mark.parametrize("name", engine_names())
def test_every_figure_names_a_source(name):
    document = load_document(VLLM.with_stem(name), EngineDocument).model
    figures = list(figures_of(document))
    assert len(figures) >= 35
    assert all(len(figure.source) > 10 for figure in figures)
    said = [text for figure in figures for text in (figure.source, figure.note)]
    assert not [text for text in said if "TODO" in text or text != text.strip()]


def test_sizes_must_ascend():
    text = VLLM.read_text(encoding="utf-8").replace("value: [1, 2, 4, 8,", "value: [1, 2, 8, 4,")
    with pytest.raises(SpecError, match=r"scheduler.graph_batch_sizes.value: must ascend"):
        parse_document(text, "vllm.yaml", EngineDocument)


def test_unknown_keys_are_refused():
    text = VLLM.read_text(encoding="utf-8").replace("  step_ms:", "  step_msec:")
    with pytest.raises(SpecError, match="did you mean step_ms"):
        parse_document(text, "vllm.yaml", EngineDocument)

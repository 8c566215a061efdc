"""Measured rows predicted: what is put right, what is left out and why, and whose constants are used."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.catalog import load_model
from planner.documents.measured_file import MeasuredFile, MeasuredRow, read_measured
from planner.engines import VERSION_LOG_SD, shipped_constants
from planner.errors import SpecError
from planner.specs import UNFITTED, Dtype
from planner.validation import resolve as rules
from planner.validation.classes import class_of, halves, is_wave
from planner.validation.evaluate import (
    ANCHOR,
    LEFT_IN,
    NO_PROTOCOL_LOG_SD,
    ConstantsKind,
    Split,
    Validation,
    solved_factor,
    validate,
)
from planner.validation.points import DOES_NOT_FIT, REPEAT, points_of
from planner.validation.resolve import Target, Unpredicted, resolve
from planner.validation.scores import INTERVAL_Z, errors_of

GOLDEN = Path(__file__).parent / "golden" / "measured_rows.csv"
FILE = read_measured(GOLDEN)
ROWS = FILE.rows
with GOLDEN.open(newline="") as _file:
    CELLS = list(csv.DictReader(_file))

Reader = Callable[..., MeasuredFile]


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    """Reads rows given by their cells, as from a file."""

    def reader(*rows: dict[str, str]) -> MeasuredFile:
        path = tmp_path / "rows.csv"
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, list(CELLS[0]))
            table.writeheader()
            table.writerows(rows)
        return read_measured(path)

    return reader


def golden(model: str, **changes: str) -> dict[str, str]:
    """Cells of the first golden row of a model, with others."""
    first = next(cells for cells in CELLS if model in cells["model_path"])
    assert set(changes) <= set(first)
    return first | changes


def rows_of(*models: str, engine: str = "") -> tuple[MeasuredRow, ...]:
    return tuple(r for r in ROWS if any(m in r.model for m in models) and r.engine.startswith(engine))


def file_of(rows: tuple[MeasuredRow, ...]) -> MeasuredFile:
    return MeasuredFile("rows", FILE.columns, rows)


# --------------------------------------------------------------------------------------------
# Repairs


def target(read: Reader, model: str, **changes: str) -> Target:
    return resolve(read(golden(model, **changes)).rows[0])


def formats(found: Target) -> tuple[Dtype, Dtype]:
    return found.precision.of_attention, found.precision.of_experts


def layout(found: Target) -> tuple[int, int, int, int]:
    ((_, p),) = found.pools
    return p.tp, p.pp, p.dp, p.ep


def test_a_row_that_needs_none_is_left_as_it_is(read):
    found = target(read, "Llama-3.1-70B")
    assert found.repairs == ()
    assert found.model == load_model("meta-llama/Llama-3.1-70B")
    assert (found.gpu.name, found.engine.name, found.clients) == ("h100-sxm", "vllm", 32)
    assert found.precision.weights is Dtype.FP8
    assert layout(found) == (4, 1, 1, 1)


def test_an_empty_concurrency_is_the_batch_size(read):
    found = target(read, "Llama-3.1-70B", concurrency="", batch_size="17")
    assert (found.clients, found.repairs) == (17, (rules.CONCURRENCY_FROM_BATCH,))


def test_batch_size_equals_concurrency_wherever_both_are_given():
    both = [(r.concurrency, r.batch_size) for r in ROWS if r.concurrency and r.batch_size]
    assert len(both) > 50
    assert all(a == b for a, b in both)


@pytest.mark.parametrize("model", ["Qwen/Qwen3-32B", "Qwen3-235B-A22B-FP8"])
def test_an_empty_format_is_16_bits(read, model):
    found = target(read, model, gemm_quant_mode="", moe_quant_mode="", precision="")
    assert formats(found) == (Dtype.BF16, Dtype.BF16)
    assert rules.SIXTEEN_BITS in found.repairs


def test_without_a_format_of_products_that_in_precision_counts(read):
    found = target(read, "Llama-3.1-70B", gemm_quant_mode="", moe_quant_mode="", precision="fp8")
    assert formats(found)[0] is Dtype.FP8
    assert rules.COARSE_FORMAT in found.repairs
    four = target(read, "Kimi-K2.5", gemm_quant_mode="", moe_quant_mode="", precision="fp4")
    assert formats(four)[1] is Dtype.NVFP4
    with pytest.raises(Unpredicted, match="format is not known: fp7"):
        target(read, "Llama-3.1-70B", gemm_quant_mode="", precision="fp7")


def test_an_fp8_cache_that_no_column_says_is_counted(read):
    found = target(read, "Llama-3.1-70B", backend="trtllm", system="h200_sxm")
    assert found.precision.kv_cache is Dtype.FP8
    assert rules.CACHE_FORMAT in found.repairs


def test_an_empty_format_of_experts_is_that_of_the_other_matrices(read):
    found = target(read, "Qwen3-235B-A22B-FP8", moe_quant_mode="")
    assert found.precision == target(read, "Qwen3-235B-A22B-FP8").precision
    assert found.repairs == (rules.EXPERT_FORMAT,)
    assert target(read, "Llama-3.1-70B", moe_quant_mode="").repairs == ()  # has no experts


@pytest.mark.parametrize(
    ("model", "labels", "expected", "rule"),
    [
        ("MiniMax", ("fp8", "fp8"), (Dtype.FP8_BLOCK, Dtype.FP8_BLOCK), rules.OWN_FORMAT),
        ("gpt-oss", ("nvfp4", "nvfp4"), (Dtype.BF16, Dtype.MXFP4), rules.OWN_FORMAT),
        ("gpt-oss", ("bf16", "w4a16_mxfp4"), (Dtype.BF16, Dtype.MXFP4), ""),
        ("Kimi-K2.5", ("nvfp4", "nvfp4"), (Dtype.BF16, Dtype.NVFP4), rules.VARIANT_FORMAT),
        ("Kimi-K2.5", ("int4_wo", "int4_wo"), (Dtype.BF16, Dtype.INT4), rules.OWN_FORMAT),
        ("Qwen3.5", ("fp8", "fp8_block"), (Dtype.FP8_BLOCK, Dtype.FP8_BLOCK), rules.BLOCKS),
        ("GLM-5", ("fp8", "fp8_block"), (Dtype.FP8_BLOCK, Dtype.FP8_BLOCK), rules.BLOCKS),
        ("Qwen3-235B-A22B-FP8", ("fp8_block", "fp8_block"), (Dtype.FP8_BLOCK, Dtype.FP8_BLOCK), ""),
        ("Qwen3-235B-A22B-FP8", ("bfloat16", "bfloat16"), (Dtype.BF16, Dtype.BF16), ""),
        ("Qwen/Qwen3-32B", ("fp8", "fp8"), (Dtype.FP8, Dtype.FP8), ""),
        ("Llama-3.1-70B", ("fp16", "fp16"), (Dtype.FP16, Dtype.FP16), ""),
    ],
)
def test_labels_against_the_models_own_configuration(read, model, labels, expected, rule):
    found = target(read, model, gemm_quant_mode=labels[0], moe_quant_mode=labels[1])
    assert formats(found) == expected
    formats_rules = {rules.OWN_FORMAT, rules.VARIANT_FORMAT, rules.BLOCKS, rules.SIXTEEN_BITS}
    assert set(found.repairs) & formats_rules == ({rule} if rule else set())


@pytest.mark.parametrize(
    ("engine", "system", "cache"),
    [
        ("vllm", "h100_sxm", Dtype.BF16),
        ("sglang", "h200_sxm", Dtype.BF16),
        ("vllm", "b200_sxm", Dtype.FP8),
        ("trtllm", "h100_sxm", Dtype.FP8),
    ],
)
def test_the_cache_is_small_where_recipes_ask_for_it(read, engine, system, cache):
    assert target(read, "Llama-3.1-70B", backend=engine, system=system).precision.kv_cache is cache
    plain = target(read, "Llama-3.1-70B", backend=engine, system=system, gemm_quant_mode="bf16")
    assert plain.precision.kv_cache is Dtype.BF16


@pytest.mark.parametrize(
    ("cells", "expected", "repairs"),
    [
        ({"tp_size": "8", "attention_dp_size": "8", "moe_tp_size": "1", "moe_ep_size": "8"}, (1, 1, 8, 8),
         {rules.WIDTH}),
        ({"tp_size": "8", "attention_dp_size": "2", "moe_tp_size": "1", "moe_ep_size": "8"}, (4, 1, 2, 8),
         {rules.WIDTH}),
        ({"tp_size": "64", "moe_tp_size": "8", "moe_ep_size": "8"}, (8, 1, 1, 8),
         {rules.WIDTH, rules.EXPERT_WIDTH}),
        ({"tp_size": "4", "pp_size": "2", "moe_tp_size": "4", "moe_ep_size": "1"}, (4, 2, 1, 1), set()),
        ({"tp_size": "8", "moe_tp_size": "8", "moe_ep_size": "1"}, (8, 1, 1, 1), set()),
        ({"tp_size": "8", "moe_tp_size": "", "moe_ep_size": ""}, (8, 1, 1, 1), set()),
        ({"tp_size": "8", "moe_tp_size": "64", "moe_ep_size": "1"}, (8, 1, 1, 1), {rules.EXPERT_WIDTH}),
        ({"tp_size": "8", "moe_tp_size": "8", "moe_ep_size": "8"}, (8, 1, 1, 8), {rules.EXPERT_WIDTH}),
        ({"tp_size": "8", "moe_tp_size": "2", "moe_ep_size": "4"}, (8, 1, 1, 8), {rules.WHOLE_EXPERTS}),
        ({"tp_size": "1", "attention_dp_size": "8", "moe_tp_size": "1", "moe_ep_size": "8"}, (1, 1, 8, 8),
         set()),
    ],
)  # fmt: skip
def test_layouts_of_eight_gpus(read, cells, expected, repairs):
    blank = {"pp_size": "1", "attention_dp_size": "1", "n_gpus_total": "8"}
    found = target(read, "Qwen3-235B-A22B-FP8", **{**blank, **cells, "gemm_quant_mode": "bf16",
                                                   "moe_quant_mode": "bf16"})  # fmt: skip
    assert layout(found) == expected
    assert set(found.repairs) == repairs


def test_in_a_pool_a_tp_size_of_all_ranks_is_divided_by_those_that_share_attention(read):
    sizes = {"tp_size": "16", "attention_dp_size": "16", "moe_tp_size": "1", "moe_ep_size": "16"}
    cells = next(c for c in CELLS if c["mode"] == "disagg")
    cells = cells | {
        f"{phase}_{name}": value for phase in ("prefill", "decode") for name, value in sizes.items()
    }
    found = resolve(read(cells).rows[0])
    assert [(p.tp, p.dp, p.ep) for _, p in found.pools] == [(1, 16, 16)] * 2
    assert rules.WIDTH in found.repairs


def test_rows_over_several_nodes_are_predicted(read):
    read_rows = read(golden("Llama-3.1-70B", tp_size="16", n_gpus_total="16"))
    found = resolve(read_rows.rows[0])
    assert layout(found) == (16, 1, 1, 1)
    points = points_of(read_rows.rows)
    assert points.targets == (found,)
    assert not points.reasons


@pytest.mark.parametrize(
    ("model", "tp", "expected"),
    [
        ("deepseek-ai/DeepSeek-V3", 16, (1, 1, 16, 16)),  # its cache would lie on all of them
        ("deepseek-ai/DeepSeek-V3", 4, (4, 1, 1, 4)),
        ("Qwen/Qwen3-235B-A22B-FP8", 16, (16, 1, 1, 16)),  # heads are cut
    ],
)
def test_latent_attention_is_not_cut_over_nodes(read, model, tp, expected):
    sizes = {"tp_size": f"{tp}", "moe_ep_size": f"{tp}", "moe_tp_size": "1", "n_gpus_total": f"{tp}"}
    found = target(read, "Qwen3-235B-A22B-FP8", model_path=model, system="gb200", **sizes)
    assert layout(found) == expected
    assert (rules.ATTENTION_RANKS in found.repairs) == (expected[2] > 1)


def test_experts_in_blocks_that_cannot_be_cut_are_spread_whole(read):
    found = target(read, "MiniMax", tp_size="8", moe_tp_size="8", moe_ep_size="1", n_gpus_total="8")
    assert layout(found) == (8, 1, 1, 8)
    assert rules.WHOLE_EXPERTS in found.repairs
    half = target(read, "MiniMax", tp_size="4", moe_tp_size="4", moe_ep_size="1", n_gpus_total="4")
    assert layout(half) == (4, 1, 1, 1)
    assert rules.WHOLE_EXPERTS not in half.repairs


@pytest.mark.parametrize(
    ("name", "known", "renamed"),
    [
        ("zhipuai/GLM-5", "zai-org/GLM-5", True),
        ("zai-org/GLM-5", "zai-org/GLM-5", False),
        ("Llama-3.1-70B", "meta-llama/Llama-3.1-70B", False),
        ("/models/meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.1-70B", True),
        ("someone/Llama-3.1-70B", "meta-llama/Llama-3.1-70B", True),
        ("../Llama-3.1-70B", "meta-llama/Llama-3.1-70B", True),
    ],
)
def test_models_by_other_names(read, name, known, renamed):
    found = target(read, "Llama-3.1-70B", model_path=name)
    assert found.model.name == known
    assert (rules.ALIAS in found.repairs) == renamed


@pytest.mark.parametrize(
    ("name", "known"),
    [("h100_sxm", "h100-sxm"), ("h100", "h100-sxm"), ("H200_SXM", "h200-sxm"), ("gb200_nvl72", "gb200"),
     ("h100_pcie", "h100-pcie"), ("l40s", "l40s"), ("a100_sxm", "a100-80gb-sxm")],
)  # fmt: skip
def test_gpus_by_other_names(read, name, known):
    assert target(read, "Llama-3.1-70B", system=name).gpu.name == known


@pytest.mark.parametrize("name", ["dynamo-trtllm", "TensorRT-LLM", "trt"])
def test_engines_under_other_names(read, name):
    row = read(golden("Llama-3.1-70B", backend=name)).rows[0]
    assert resolve(row).engine.name == "trtllm"
    assert class_of(row)[0] == "trtllm"


def test_every_repair_of_the_golden_rows_is_counted():
    found = validate(FILE, constants=ConstantsKind.NONE)
    each = [rule for row in ROWS for rule in resolve(row).repairs]
    assert found.repairs == {rule: each.count(rule) for rule in set(each)}
    assert set(each) == {
        rules.CONCURRENCY_FROM_BATCH, rules.SIXTEEN_BITS, rules.OWN_FORMAT, rules.VARIANT_FORMAT,
        rules.BLOCKS, rules.WHOLE_EXPERTS, rules.ATTENTION_RANKS, rules.ALIAS, rules.CACHE_FORMAT,
    }  # fmt: skip
    assert found.unpredicted == {}


# --------------------------------------------------------------------------------------------
# Reasons

R1 = "whether it speculates is not recorded, and rows of this model differ by it"
REFUSED = [
    ("Llama-3.1-70B", {"model_path": "nobody/Model-1B"}, "model is not in the catalogue: nobody/Model-1B"),
    ("Llama-3.1-70B", {"model_path": "."}, "model is not in the catalogue: ."),
    ("Llama-3.1-70B", {"model_path": "./tests"}, "model is not in the catalogue: ./tests"),
    ("Llama-3.1-70B", {"system": "tpu_v5"}, "GPU has no profile: tpu_v5"),
    (
        "Llama-3.1-70B",
        {"system": "./gpu_profiles/h100-sxm.yaml"},
        "GPU has no profile: ./gpu_profiles/h100-sxm.yaml",
    ),
    ("Llama-3.1-70B", {"backend": "lmdeploy"}, "engine is not known: lmdeploy"),
    ("Llama-3.1-70B", {"backend": "vlm"}, "engine is not known: vlm (did you mean vllm?)"),
    ("Llama-3.1-70B", {"gemm_quant_mode": "q4_k_m"}, "format is not known: q4_k_m"),
    ("MiniMax", {"moe_quant_mode": "q4_k_m"}, "format is not known: q4_k_m"),
    ("Qwen3-235B-A22B-FP8", {"model_path": "deepseek-ai/DeepSeek-R1"}, R1),
    ("Qwen3-235B-A22B-FP8", {"model_path": "deepseek-ai/deepseek-r1-0528"}, R1),
    ("Qwen3-235B-A22B-FP8", {"model_path": "/models/DeepSeek-R1"}, R1),
    (
        "Llama-3.1-70B",
        {"tp_size": "28", "n_gpus_total": "28"},
        "the tensor parallel size is a count of GPUs",
    ),
    (
        "MiniMax",
        {
            "system": "l40s",
            "tp_size": "4",
            "attention_dp_size": "3",
            "moe_ep_size": "1",
            "moe_tp_size": "12",
            "n_gpus_total": "12",
        },
        "ranks cannot be spread over nodes of this GPU",
    ),
    ("Llama-3.1-70B", {"tp_size": ""}, "no tensor parallel size"),
    ("Llama-3.1-70B", {"n_gpus_total": "6"}, "parallel sizes do not multiply to the GPUs"),
    ("Llama-3.1-70B", {"n_gpus_total": "8"}, "parallel sizes do not multiply to the GPUs"),
    ("Llama-3.1-70B", {"pp_size": "2", "n_gpus_total": "9"}, "parallel sizes do not multiply to the GPUs"),
    (
        "MiniMax",
        {"tp_size": "1", "moe_tp_size": "1", "n_gpus_total": "8"},
        "parallel sizes do not multiply to the GPUs",
    ),
    (
        "MiniMax",
        {"moe_ep_size": "3", "moe_tp_size": "1"},
        "expert parallel size does not divide the replica's width",
    ),
    (
        "Llama-3.1-70B",
        {"tp_size": "2", "attention_dp_size": "2"},
        "layout cannot cut this model",
    ),
    ("Llama-3.1-70B", {"tp_size": "1", "n_gpus_total": "1", "gemm_quant_mode": "bf16"}, DOES_NOT_FIT),
    ("Llama-3.1-70B", {"concurrency": "", "batch_size": ""}, "no concurrency"),
    ("gb200", {"concurrency": ""}, "no concurrency"),
]


@pytest.mark.parametrize(("model", "changes", "reason"), REFUSED)
def test_a_row_without_a_prediction_says_why(read, model, changes, reason):
    base = (
        golden(model, **changes)
        if model != "gb200"
        else next(c for c in CELLS if c["system"] == model) | changes
    )
    found = validate(read(golden("Llama-3.1-70B"), base), constants=ConstantsKind.NONE)
    assert found.reasons == ("", reason)
    assert found.unpredicted == {reason: 1}
    assert math.isnan(found.tpot[1])
    assert math.isnan(found.ttft[1])


def test_rows_that_repeat_another_are_counted_once(read):
    first = golden("Llama-3.1-70B")
    relabelled = {**first, "id": "other", "origin": "elsewhere", "measured": "2020-01-01", "repair": "x"}
    again = {**first, "silicon_tpot_ms": "1"}
    found = validate(read(first, relabelled, again), constants=ConstantsKind.NONE)
    assert found.reasons == ("", REPEAT, "")


def test_no_row_is_dropped_and_all_stand_in_the_files_order(read):
    """Good rows and bad ones in random order: each has a prediction or a reason, never both."""
    bad = [golden(m, id=f"bad {i}", **c) for i, (m, c, _) in enumerate(REFUSED) if m != "gb200"]
    rows = CELLS + bad + [CELLS[0]]
    random.Random(3).shuffle(rows)
    file = read(*rows)
    found = validate(file, constants=ConstantsKind.SHIPPED)
    assert [row.id for row in found.rows] == [row["id"] for row in rows]
    assert len(found.reasons) == len(found.tpot) == len(found.moe) == len(rows)
    assert sum(found.unpredicted.values()) == len(bad) + 1
    for i, row in enumerate(rows):
        predicted = np.isfinite([found.tpot[i], found.ttft[i], found.tpot_log_sd[i], found.ttft_log_sd[i]])
        assert predicted.all() if not found.reasons[i] else not predicted.any()
        assert bool(found.reasons[i]) == (
            row["id"].startswith("bad") or (row is CELLS[0] and row in rows[:i])
        )
    alone = validate(FILE, constants=ConstantsKind.SHIPPED)
    places = {row.id: i for i, row in enumerate(found.rows) if not found.reasons[i]}
    together = np.array([found.tpot[places[row.id]] for row in alone.rows])
    np.testing.assert_allclose(together, alone.tpot, rtol=1e-12)
    assert [bool(found.moe[places[row.id]]) for row in alone.rows] == alone.moe.tolist()


def test_a_file_without_any_prediction_is_refused(read):
    rows = [golden("Llama-3.1-70B", system="tpu"), golden("Llama-3.1-70B", backend="none")]
    with pytest.raises(
        SpecError, match=r"none of the 2 rows .*GPU has no profile: tpu; engine is not known: none"
    ):
        validate(read(*rows))


def test_a_row_with_a_reason_is_never_predicted(read):
    with pytest.raises(Unpredicted, match="engine is not known"):
        target(read, "Llama-3.1-70B", backend="none")


@pytest.mark.parametrize("name", ["isl", "osl", "concurrency"])
@pytest.mark.parametrize("value", ["1e12", "1e-9"])
@pytest.mark.parametrize("model", ["Llama-3.1-70B", "Qwen3.5", "Kimi-K2.5", "GLM-5"])
def test_extreme_loads_are_predicted_or_refused(read, model, name, value):
    found = validate(read(golden("Llama-3.1-70B"), golden(model, **{name: value})))
    assert (found.reasons[1] == "") == bool(np.isfinite(found.tpot[1]) and np.isfinite(found.ttft[1]))


# --------------------------------------------------------------------------------------------
# Halves


def deployment(row: MeasuredRow) -> tuple[object, ...]:
    return (row.model, row.gpu, row.engine, row.version, row.gemm, row.moe, row.pools)


def test_all_loads_of_a_deployment_are_in_one_half():
    sides = halves(ROWS)
    of: dict[tuple[object, ...], set[int]] = {}
    for row, side in zip(ROWS, sides, strict=True):
        of.setdefault(deployment(row), set()).add(int(side))
    assert all(len(found) == 1 for found in of.values())
    assert 0.3 < sides.mean() < 0.7


def test_halves_by_load_part_deployments_but_no_configuration():
    twice = [replace(row, id="again", ttft=1.0, tpot=1.0) for row in ROWS]
    sides = halves([*ROWS, *twice], by_load=True)
    assert (sides[: len(ROWS)] == sides[len(ROWS) :]).all()
    assert 0.3 < sides.mean() < 0.7
    llama = np.array([deployment(row) == deployment(ROWS[61]) for row in ROWS])
    assert set(sides[: len(ROWS)][llama]) == {0, 1}


@pytest.mark.parametrize("by_load", [False, True])
def test_halves_do_not_depend_on_the_order_of_rows(by_load):
    order = np.random.default_rng(1).permutation(len(ROWS))
    shuffled = halves([ROWS[i] for i in order], by_load=by_load)
    assert (shuffled == halves(ROWS, by_load=by_load)[order]).all()


def test_both_halves_know_every_class_with_two_deployments():
    sides = halves(ROWS)
    for key in {class_of(row) for row in ROWS}:
        own = [i for i, row in enumerate(ROWS) if class_of(row) == key]
        if len({deployment(ROWS[i]) for i in own}) > 1:
            assert {int(sides[i]) for i in own} == {0, 1}


def test_neither_half_is_empty_where_every_class_has_one_deployment():
    rows = [next(r for r in ROWS if class_of(r) == key) for key in sorted({class_of(r) for r in ROWS})]
    assert set(halves(rows).tolist()) == {0, 1}
    assert halves(rows[:1]).tolist() == [0]


# --------------------------------------------------------------------------------------------
# Whose constants

SOME = rows_of("gpt-oss", "Llama-3.1-70B", engine="vllm")
SOME = tuple(row for row in SOME if not row.version)
"""Rows of two models and one class: fits of these take a second."""


def scaled(rows: tuple[MeasuredRow, ...], chosen: np.ndarray, by: float) -> MeasuredFile:
    """Rows of which some were measured otherwise."""
    return file_of(
        tuple(
            replace(row, ttft=row.ttft * by, tpot=row.tpot * by) if taken else row
            for row, taken in zip(rows, chosen, strict=True)
        )
    )


def test_no_constants_see_no_measurement():
    found = validate(file_of(SOME), constants=ConstantsKind.NONE)
    other = validate(scaled(SOME, np.ones(len(SOME)), 3.0), constants=ConstantsKind.NONE)
    np.testing.assert_array_equal(found.tpot, other.tpot)
    np.testing.assert_array_equal(found.ttft, other.ttft)
    assert found.fitted_to == 0


@pytest.mark.parametrize("split", Split)
def test_cross_fitted_constants_see_no_row_of_their_own_half(split):
    sides = halves(SOME, by_load=split is Split.LOAD)
    assert set(sides.tolist()) == {0, 1}
    plain = validate(file_of(SOME), constants=ConstantsKind.CROSSFIT, split=split)
    other = validate(scaled(SOME, sides == 0, 1.5), constants=ConstantsKind.CROSSFIT, split=split)
    np.testing.assert_array_equal(plain.tpot[sides == 0], other.tpot[sides == 0])
    np.testing.assert_array_equal(plain.ttft[sides == 0], other.ttft[sides == 0])
    assert np.all(other.tpot[sides == 1] > plain.tpot[sides == 1] * 1.02)
    assert plain.fitted_to == 0
    assert plain.unpredicted == {}


def test_a_family_left_out_is_predicted_without_its_own_measurements():
    own = np.array(["gpt-oss" in row.model for row in SOME])
    plain = validate(file_of(SOME), leave_out="GPT-oss")
    other = validate(scaled(SOME, own, 2.0), leave_out="GPT-oss")
    np.testing.assert_array_equal(plain.tpot, other.tpot)
    assert [reason == "" for reason in plain.reasons] == own.tolist()
    assert plain.unpredicted == {LEFT_IN: int((~own).sum())}
    tpot, ttft = plain.errors()
    assert tpot.n == ttft.n == own.sum()
    # That the model was never measured is part of its spread.
    points = points_of(SOME)
    kernels = np.full(len(SOME), np.nan)
    kernels[points.index] = points.kernel_log_sd
    expected = np.sqrt(0.04**2 + 0.10**2 + kernels**2)
    np.testing.assert_allclose(plain.tpot_log_sd[own], expected[own], rtol=1e-12)


def test_a_family_that_is_in_no_row_or_in_all_of_them():
    with pytest.raises(SpecError, match=r"no row has a model with 'Qwen' in its name; models: meta-llama/"):
        validate(file_of(SOME), leave_out="Qwen")
    with pytest.raises(SpecError, match="all rows have a model with '-' in its name"):
        validate(file_of(SOME), leave_out="-")


def test_rows_that_the_shipped_constants_were_fitted_to_are_counted(read):
    assert validate(FILE).fitted_to == len(ROWS)
    assert validate(read(*({**cells, "id": f"mine {i}"} for i, cells in enumerate(CELLS)))).fitted_to == 0
    assert validate(read(golden("MiniMax"), golden("MiniMax", id="", isl="1000"))).fitted_to == 1


def test_spreads_grow_with_what_nobody_measured(read):
    """Of shipped constants: a known model, another version, another model."""
    base = golden("gpt-oss", backend_version="0.18.0")
    version = {**base, "backend_version": "0.99.0"}
    model = {
        **base,
        "model_path": "openai/gpt-oss-20b",
        "tp_size": "1",
        "moe_tp_size": "1",
        "n_gpus_total": "1",
    }
    rows = read(base, version, model).rows
    found, points = validate(file_of(rows)), points_of(rows)
    kernels = dict(zip(points.index.tolist(), points.kernel_log_sd.tolist(), strict=True))
    shipped = shipped_constants()
    known = shipped.log_sd**2
    for i, expected in enumerate((known, known + VERSION_LOG_SD**2, known + shipped.family_log_sd**2)):
        assert found.tpot_log_sd[i] ** 2 - kernels[i] ** 2 == pytest.approx(expected, rel=1e-9)
    none = validate(file_of(rows), constants=ConstantsKind.NONE)
    assert none.tpot_log_sd[0] == pytest.approx(math.hypot(UNFITTED.log_sd, kernels[0]))
    assert none.ttft_log_sd[0] > NO_PROTOCOL_LOG_SD


def test_waves_are_told_by_engine_and_origin(read):
    row = read(golden("Qwen/Qwen3-32B", backend="sglang", origin="NVIDIA aic gap analysis")).rows[0]
    assert is_wave(row)
    assert not is_wave(replace(row, engine="vllm"))
    assert not is_wave(replace(row, origin="InferenceX DB export"))
    assert class_of(replace(row, version="", origin="")) == ("sglang", "unstated", "unstated")


# --------------------------------------------------------------------------------------------
# Anchors

FACTORS = {"gpt-oss": 0.8, "Llama": 1.35}


def biased(rows: tuple[MeasuredRow, ...]) -> MeasuredFile:
    """Rows whose models were measured a factor off what is predicted for them."""
    found = validate(file_of(rows), constants=ConstantsKind.NONE)
    rng = np.random.default_rng(5)
    noise = np.exp(0.02 * rng.standard_normal(len(rows)))
    factor = [next(f for name, f in FACTORS.items() if name in row.model) for row in rows]
    tpot = found.tpot * factor * noise
    return file_of(tuple(replace(row, tpot=float(t), ttft=1.0) for row, t in zip(rows, tpot, strict=True)))


def bias(found: Validation, model: str) -> float:
    errors = found.errors(np.array([model in row.model for row in found.rows]))[0]
    return abs(errors.bias)


def test_an_anchor_removes_the_bias_of_its_family():
    file = biased(SOME)
    plain = validate(file, constants=ConstantsKind.NONE)
    anchored = validate(file, constants=ConstantsKind.NONE, anchored=True)
    for model, factor in FACTORS.items():
        assert bias(plain, model) == pytest.approx(abs(1 / factor - 1), abs=0.04)
        assert bias(anchored, model) < 0.05
    assert anchored.unpredicted == {ANCHOR: 2}
    assert anchored.errors()[0].n == len(SOME) - 2


def test_an_anchor_is_predicted_as_it_was_measured():
    file = biased(SOME)
    found = validate(file, constants=ConstantsKind.SHIPPED, anchored=True)
    for i, (row, reason) in enumerate(zip(file.rows, found.reasons, strict=True)):
        if reason == ANCHOR:
            assert found.tpot[i] == pytest.approx(row.tpot, rel=1e-6)


def test_a_row_without_tpot_is_no_anchor():
    file = biased(SOME)
    plain = validate(file, constants=ConstantsKind.NONE, anchored=True)
    anchors = [i for i, reason in enumerate(plain.reasons) if reason == ANCHOR]
    rows = list(file.rows)
    for i in anchors:
        rows[i] = replace(rows[i], tpot=math.nan)
    found = validate(file_of(tuple(rows)), constants=ConstantsKind.NONE, anchored=True)
    others = [i for i, reason in enumerate(found.reasons) if reason == ANCHOR]
    assert len(others) == 2
    assert not set(anchors) & set(others)
    np.testing.assert_allclose(found.tpot, plain.tpot, rtol=0.1)


def test_a_family_without_any_tpot_has_no_anchor():
    rows = tuple(replace(row, tpot=math.nan) if "gpt-oss" in row.model else row for row in biased(SOME).rows)
    found = validate(file_of(rows), constants=ConstantsKind.NONE, anchored=True)
    assert found.unpredicted == {ANCHOR: 1}
    plain = validate(file_of(rows), constants=ConstantsKind.NONE)
    own = np.array(["gpt-oss" in row.model for row in rows])
    np.testing.assert_array_equal(found.tpot[own], plain.tpot[own])


@pytest.mark.parametrize(("measured", "factor"), [(0.02, 2.0), (0.004, 0.4), (1.0, 4.0), (1e-6, 0.25)])
def test_the_factor_of_an_anchor(measured, factor):
    assert solved_factor(lambda f: 0.01 * f, measured) == pytest.approx(factor, rel=1e-6)


# --------------------------------------------------------------------------------------------
# Scores


def test_errors_by_hand():
    found = errors_of(
        np.array([1.1, 0.8, 2.0, 1.0, np.nan, 1.0]),
        np.array([1.0, 1.0, 1.0, 1.0, 1.0, np.nan]),
        np.full(6, 0.1),
    )
    assert found.n == 4
    assert found.median_ape == pytest.approx(0.15)
    assert found.mape == pytest.approx((0.1 + 0.2 + 1.0 + 0.0) / 4)
    assert found.bias == pytest.approx(0.05)
    assert found.covered == 0.5  # an interval of 1.14 up and down holds 1.1 and 1.0
    assert errors_of(np.array([np.nan]), np.array([1.0])) is None


def test_intervals_cover_what_they_say():
    rng = np.random.default_rng(2)
    sd = rng.uniform(0.05, 0.4, 40_000)
    measured = np.exp(sd * rng.standard_normal(len(sd)))
    assert errors_of(np.ones(len(sd)), measured, sd).covered == pytest.approx(0.8, abs=0.01)
    assert math.exp(INTERVAL_Z) == pytest.approx(3.602, abs=1e-3)


def test_scores_are_those_of_the_rows_that_are_asked_for():
    found = validate(FILE)
    dense, moe = found.errors(~found.moe)[0], found.errors(found.moe)[0]
    assert dense.n + moe.n == found.errors()[0].n == len(ROWS)
    ratio = np.abs(np.log(found.tpot / np.array([row.tpot for row in ROWS])))
    assert found.errors()[0].covered == np.mean(ratio <= INTERVAL_Z * found.tpot_log_sd)
    assert found.errors(np.zeros(len(ROWS), dtype=bool)) == (None, None)

"""Rooflines: known points, totals against what a step cannot do without, and the picture."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from conftest import Runner

from planner.catalog import load_gpu, load_model
from planner.configuration import default_precision
from planner.engines import load_engine
from planner.errors import SpecError
from planner.latency import decode_step_time, prompt_time
from planner.memory import prefill_budget
from planner.operating_points import ATTENTION, HEAD, WHOLE_STEP, Operating, roofline_of
from planner.operators import ReplicaSet
from planner.physics import decode_work, prompt_work
from planner.report.roofline_plot import save_rooflines
from planner.roofline import GemmKernel, gemm_time
from planner.rooflines import COLUMNS, Roof, Roofline, bare_roofline, roofs_of
from planner.specs import Dtype, Parallelism, Phase

VLLM = load_engine("vllm")


def roofline(
    model="llama-3.1-70b", gpu="h100", weights=None, isl=2048.0, batches=(1, 64), context=2048.0, **sizes
):
    shape = load_model(model)
    operating = Operating(isl=isl, context=context, batches=batches)
    precision = default_precision(shape, weights)
    return roofline_of(load_gpu(gpu), shape, precision, VLLM, Parallelism(**sizes or {"tp": 4}), operating)


def point(one: Roofline, operator: str, phase: Phase, batch: float = 1):
    (found,) = (p for p in one.points if (p.operator, p.phase, p.batch) == (operator, phase, batch))
    return found


# --------------------------------------------------------------------------------------------
# Points


def test_a_matrix_product_has_its_intensity():
    m, n, k, layers = 64, 28672 / 2, 8192, 80
    found = point(roofline(), "feed-forward up", Phase.DECODE, 64)
    n_up = 2 * n / 2  # gate and up, over four ranks
    assert found.flop == pytest.approx(layers * 2 * m * n_up * k)
    assert found.traffic == pytest.approx(layers * 2 * (m * k + n_up * k + m * n_up))
    assert found.intensity == pytest.approx(m * n_up * k / (m * k + n_up * k + m * n_up))
    kernel = GemmKernel.of(load_gpu("h100"), Dtype.BF16)
    assert found.time == pytest.approx(layers * float(gemm_time(kernel, m, n_up, k)))


def test_weights_of_eight_bits_double_the_intensity_of_a_small_batch():
    half, full = (
        point(roofline(weights=w), "feed-forward down", Phase.DECODE).intensity for w in ("fp8", "bf16")
    )
    assert half == pytest.approx(2 * full, rel=0.01)


def test_decode_attention_reads_each_byte_for_a_few_queries_whatever_the_batch():
    one = roofline(batches=(1, 64))
    small, large = (point(one, ATTENTION, Phase.DECODE, b).intensity for b in (1, 64))
    assert small == pytest.approx(large)
    assert small == pytest.approx(64 / 8, rel=0.01)  # query heads that share a KV head, two bytes a value


def test_decode_lies_left_of_the_ridge_and_a_prompt_right_of_it():
    one = roofline(batches=(1, 8, 64))
    assert all(not one.compute_bound(p) for p in one.points if p.phase is Phase.DECODE)
    prompt = [p for p in one.points if p.phase is Phase.PREFILL and p.operator != HEAD]
    assert len(prompt) >= 6
    assert all(one.compute_bound(p) for p in prompt)


@pytest.mark.parametrize(
    ("model", "gpu", "tp"),
    [
        ("llama-3.1-70b", "h100", 4),
        ("deepseek-v3", "h200", 8),  # latent attention, experts in blocks of fp8
        ("gpt-oss-120b", "h100", 2),  # windows, experts in four bits
        ("qwen3-next-80b-a3b", "h100", 4),  # recurrent states
    ],
)
def test_totals_are_those_of_shapes_alone(model, gpu, tp):
    """Against physics, which counts weights and pairs, and leaves out routers and activations."""
    one = roofline(model, gpu, tp=tp)
    shape, layout = load_model(model), Parallelism(tp=tp)
    precision = default_precision(shape)
    for batch in (1, 64):
        work = decode_work(shape, precision, layout, batch, 2048)
        found = point(one, WHOLE_STEP, Phase.DECODE, batch)
        assert 0.94 < float(sum(work.flop.values())) / found.flop < 1.001
        assert 0.94 < float(work.traffic) / found.traffic < 1.001
    work = prompt_work(shape, precision, layout, 2048, 0)
    found = point(one, WHOLE_STEP, Phase.PREFILL)
    assert 0.93 < float(sum(work.flop.values())) / found.flop < 1.001
    assert float(work.traffic) < found.traffic


def test_whole_steps_take_what_the_engine_takes():
    one = roofline()
    gpu, shape = load_gpu("h100"), load_model("llama-3.1-70b")
    r = ReplicaSet.of(shape, default_precision(shape), VLLM, [(gpu, Parallelism(tp=4))])
    step = float(decode_step_time(r, 64, 2048)[0])
    prompt = float(prompt_time(r, 2048, 0.0, prefill_budget(VLLM, gpu)).service[0])
    assert point(one, WHOLE_STEP, Phase.DECODE, 64).time == pytest.approx(step)
    assert point(one, WHOLE_STEP, Phase.PREFILL).time == pytest.approx(prompt)


def test_a_long_prompt_is_computed_in_chunks():
    gpu = load_gpu("h100")
    budget = prefill_budget(VLLM, gpu)
    short, long = (point(roofline(isl=isl), "qkv projection", Phase.PREFILL) for isl in (budget, 3 * budget))
    assert long.flop == pytest.approx(3 * short.flop)
    assert long.traffic == pytest.approx(3 * short.traffic)  # weights are read for every chunk


@pytest.mark.parametrize("gpu", ["h100", "a100", "b200", "mi300x", "l40s", "t4"])
@pytest.mark.parametrize("batch", [1, 256])
def test_no_point_lies_above_the_datasheet(gpu, batch):
    one = roofline("llama-3.1-8b", gpu, isl=4000.0, batches=(batch,), tp=1)
    for row in one.rows():
        assert 0 < row["share_of_roof"] <= 1, row


def test_rows_are_flat_and_whole():
    rows = roofline().rows()
    assert {tuple(row) for row in rows} == {COLUMNS}
    assert {type(v) for row in rows for v in row.values()} <= {str, int, float}


def test_pipelines_and_attention_ranks_have_less_each():
    flat = point(roofline(tp=4), WHOLE_STEP, Phase.DECODE, 64)
    staged = point(roofline(tp=2, pp=2), WHOLE_STEP, Phase.DECODE, 64)
    assert staged.flop == pytest.approx(flat.flop, rel=0.01)  # half the batch on twice the share of a matrix
    assert staged.intensity < flat.intensity


# --------------------------------------------------------------------------------------------
# Roofs


def test_ridge_is_peak_over_bandwidth(h100):
    roof = Roof.of(h100, Dtype.BF16)
    assert roof.ridge == pytest.approx(989.4e12 / 3350e9)
    assert float(roof.datasheet(roof.ridge)) == pytest.approx(roof.peak)
    assert float(roof.datasheet(1.0)) == pytest.approx(h100.hbm_bandwidth)


def test_calibrated_roof_is_what_large_products_approach(h100):
    roof = Roof.of(h100, Dtype.BF16)
    kernel = replace(GemmKernel.of(h100, Dtype.BF16), overhead=0.0)
    for m in (16.0, 300.0, 4096.0):
        flop, traffic = 2 * m * 8192**2, 2 * (2 * m * 8192 + 8192**2)
        rate = flop / float(gemm_time(kernel, m, 8192, 8192))
        assert rate == pytest.approx(float(roof.calibrated(flop / traffic)))
    x = np.geomspace(0.1, 1e5, 50)
    assert np.all(roof.calibrated(x) < roof.datasheet(x))


def test_a_gpu_has_a_roof_for_each_format_that_it_multiplies(h100):
    assert [r.dtype for r in roofs_of(h100)] == [Dtype.BF16, Dtype.FP8, Dtype.FP8_BLOCK]
    assert [r.dtype for r in roofs_of(load_gpu("a100"))] == [Dtype.BF16]
    assert bare_roofline(h100).points == ()


# --------------------------------------------------------------------------------------------
# Pictures


def test_picture_names_roofs_steps_and_operators(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "roofline.svg"
    save_rooflines([roofline(weights="fp8")], path, "a $model$ <x>")
    texts = ["".join(e.itertext()).strip() for e in ElementTree.parse(path).iter() if e.tag.endswith("text")]
    wanted = {
        "fp8 peak 1,979",
        "bf16 peak 989",
        "batch 64",
        "prompt 2,048",
        "ridge 591",
        "attention",
        "experts",
    }
    assert wanted - set(texts) == {"experts"}
    assert "a $model$ <x> on h100-sxm" in texts
    assert "peak 3.35 TB/s" in texts


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_pictures_have_the_same_bytes_each_time_and_replace_whole_files(tmp_path, suffix):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"r{suffix}"
    path.write_text("old")
    lines = [bare_roofline(load_gpu(name)) for name in ("h100", "a100")]
    save_rooflines(lines, path)
    first = path.read_bytes()
    save_rooflines(lines, path)
    assert path.read_bytes() == first
    assert os.listdir(tmp_path) == [path.name]
    assert first.startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix])


def test_other_suffixes_are_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(
        SpecError, match=r"r\.gif: 1 problem\n  - is no plot \(the name has to end in .png, .svg or .pdf\)"
    ):
        save_rooflines([bare_roofline(load_gpu("h100"))], tmp_path / "r.gif")
    assert os.listdir(tmp_path) == []


# --------------------------------------------------------------------------------------------
# Command


def test_command_prints_points_and_draws(planner: Runner, tmp_path: Path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "r.png"
    result = planner(
        "gpus", "roofline", "h100", "-m", "llama-3.1-70b", "--tp", 4, "--batch", "8,1", "-o", path
    )
    assert result.code == 0, result.err
    assert path.read_bytes().startswith(b"\x89PNG")
    for words in (
        "h100-sxm (calibration: fitted)",
        "batch 8 at 2,176 tokens",
        "whole step",
        f"written to {path}",
    ):
        assert words in result.out


def test_command_as_json(planner: Runner):
    facts = planner("gpus", "roofline", "h100", "a100", "-m", "llama-3.1-8b", "--json").facts
    first, second = facts["rooflines"]
    assert (first["gpu"], second["gpu"]) == ("h100-sxm", "a100-80gb-sxm")
    assert {p["bound"] for p in first["points"] if p["phase"] == "decode"} == {"memory"}
    assert first["roofs"][0]["ridge_flop_per_byte"] == pytest.approx(295.3, abs=0.1)
    assert facts["notes"] == []


def test_what_has_no_room_is_said(planner: Runner):
    weights = planner("gpus", "roofline", "h100", "-m", "llama-3.1-70b", "--json").facts["notes"]
    assert "the weights do not fit" in weights[0]
    cache = planner("gpus", "roofline", "h100", "-m", "llama-3.1-8b", "--batch", "900", "--json").facts[
        "notes"
    ]
    assert "the KV cache holds" in cache[0]
    assert "not 900" in cache[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("h100x",), "unknown GPU 'h100x': did you mean"),
        (("h100", "-o", "r.gif"), "the name has to end in .png, .svg or .pdf"),
        (("h100", "--tp", "2"), "--tp says how a model is run: add --model"),
        (("h100", "--kv-cache-dtype", "fp8"), "--kv-cache-dtype says how a model is run: add --model"),
        (("h100",) * 5, "5 GPUs are too many for one picture (at most 4)"),
        (("h100", "-m", "llama-3.1-8b", "--batch", "1,x"), "'1,x' is no list of whole numbers"),
        (("h100", "-m", "llama-3.1-8b", "--batch", "1,2,3,4,5,6,7,8,9"), "9 batches cannot be told apart"),
        (("h100", "-m", "llama-3.1-8b", "--isl", "999999"), "exceed the 131,072 that the model takes"),
        (("h100", "-m", "llama-3.1-8b", "--tp", "3"), "3"),
    ],
)
def test_refusals(planner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = planner("gpus", "roofline", *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert os.listdir(tmp_path) == []


def test_a_profile_file_is_not_overwritten(planner: Runner, tmp_path: Path):
    profile = tmp_path / "mine.yaml"
    profile.write_text((Path(__file__).parents[1] / "gpu_profiles" / "l4.yaml").read_text())
    picture = tmp_path / "link.png"
    picture.symlink_to(profile)
    assert "would replace another file" in planner("gpus", "roofline", profile, "-o", picture).err
    assert json.loads(planner("gpus", "roofline", profile, "--json").out)["rooflines"][0]["gpu"] == "l4"

"""Measurements with torch: on this CPU, and, where there is one, on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from benchmarks import gpu_acceptance  # noqa: E402
from planner.catalog import load_gpu  # noqa: E402
from planner.documents.samples_file import read_samples  # noqa: E402
from planner.errors import SpecError  # noqa: E402
from planner.profiling.clock import time_calls  # noqa: E402
from planner.profiling.data import Data  # noqa: E402
from planner.profiling.device import open_device, read_device  # noqa: E402
from planner.profiling.session import measure  # noqa: E402
from planner.roofline import EFFICIENCY_LIMIT  # noqa: E402
from planner.samples import Operator  # noqa: E402
from planner.specs import CalibrationStatus, Dtype  # noqa: E402

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[1]
Quick = tuple[dict[str, Any], Path]
CPU = torch.device("cpu")
QUICK_SECONDS, MODEL_ERROR = 90.0, 0.25

SCENARIO = """\
model: meta-llama/Llama-3.2-1B-Instruct
engine: vllm
workload: {{request_rate: 0.2, input_tokens: {{mean: 128, cv: 0.3}}, output_tokens: {{mean: 16, cv: 0.3}}}}
slo: {{ttft_ms: {{p90: 30000}}, tpot_ms: {{p90: 5000}}}}
fleet: [{{gpu: {profile}, price_per_gpu_hour: 0.1, max_gpus: 64}}]
"""


def planner(*arguments: str, cwd: Path, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, with all processors: test runs may have been given fewer."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    env = {key: value for key, value in os.environ.items() if key not in names}
    return subprocess.run(
        [sys.executable, "-m", "planner", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**env, "PYTHONPATH": str(ROOT)},
        check=False,
    )


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Quick:
    """What `planner profile --quick --check` says of this CPU, and where its files are."""
    folder = tmp_path_factory.mktemp("profile")
    done = planner("profile", "--device", "cpu", "--quick", "--check", "-o", "cpu.yaml", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), folder


def test_quick_profile_of_this_cpu(quick: Quick) -> None:
    result, folder = quick
    assert result["kind"] == "cpu"
    assert result["seconds"] < QUICK_SECONDS  # from the command's start to its profile
    gpu = load_gpu(folder / "cpu.yaml")
    assert gpu.calibration.status is CalibrationStatus.MEASURED
    assert gpu.architecture == "cpu"
    assert "torch" in gpu.calibration.software
    shares = [v for fit in result["fits"].values() for n, v in fit["values"].items() if n.endswith("ency")]
    assert shares
    assert all(0 < share <= EFFICIENCY_LIMIT for share in shares)
    samples = read_samples(folder / "cpu.samples.csv")
    assert {Operator.GEMM, Operator.DECODE_ATTENTION, Operator.PREFILL_ATTENTION, Operator.COPY} <= {
        operator for operator, _ in samples.tables
    }


def test_a_model_of_this_cpu_is_predicted(quick: Quick, capsys: pytest.CaptureFixture[str]) -> None:
    """A Llama-shaped model of 0.9 B parameters runs prefill and decode; median error at most 25 %."""
    check = quick[0]["check"]
    with capsys.disabled():
        print()
        for step in check["steps"]:
            print(
                f"{step['step']:16} measured {step['measured_ms']:9.1f} ms, predicted "
                f"{step['predicted_ms']:9.1f} ms ({step['error']:+.1%})"
            )
        print(f"median error {check['median_abs_error']:.1%}")
    assert len(check["steps"]) >= 8
    assert check["median_abs_error"] <= MODEL_ERROR


def test_solve_takes_the_profile_of_a_cpu(quick: Quick) -> None:
    folder = quick[1]
    (folder / "scenario.yaml").write_text(SCENARIO.format(profile="./cpu.yaml"), encoding="utf-8")
    done = planner("solve", "scenario.yaml", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert {group["gpu"] for group in plan["groups"]} == {"cpu"}


def test_a_fit_can_be_made_again(quick: Quick) -> None:
    folder = quick[1]
    done = planner("calibrate", "ops", "cpu.samples.csv", "-o", "again.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr
    first, again = load_gpu(folder / "cpu.yaml"), load_gpu(folder / "again.yaml")
    assert again.peak_flops[Dtype.BF16] == pytest.approx(first.peak_flops[Dtype.BF16], rel=1e-4)
    own, theirs = first.calibration.gemm[Dtype.BF16], again.calibration.gemm[Dtype.BF16]
    assert theirs.memory_efficiency == pytest.approx(own.memory_efficiency, rel=0.01)


def test_a_short_time_gives_a_marked_profile() -> None:
    """Stopped early, all operators are there still, with fewer points."""
    measured = measure("cpu", full=False, worlds=None, seconds=2.0)
    assert measured.unreached > 0
    assert len(measured.samples) > 3


def test_collectives_between_processes() -> None:
    measured = measure("cpu", full=False, worlds=[2], seconds=1.0)
    reduce = measured.samples.get(Operator.ALL_REDUCE)
    passed = measured.samples.get(Operator.POINT_TO_POINT)
    assert reduce is not None, measured.skipped
    assert passed is not None
    assert set(reduce.axes["ranks"]) == {2.0}
    assert (reduce.time > 0).all()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpu", "--device: must be cpu or cuda:N, got 'gpu'"),
        ("mps", "--device: must be cpu or cuda:N, got 'mps'"),
        *([] if torch.cuda.is_available() else [("cuda:0", "sees no GPU here, got 'cuda:0'")]),
    ],
)
def test_devices_that_are_not_there(name: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        open_device(name)
    assert said in str(caught.value)


def test_refusals_come_before_measuring(tmp_path: Path) -> None:
    for arguments, said in (
        (("--device", "tpu"), "--device: must be cpu or cuda:N, got 'tpu'"),
        (("--world-sizes", "2,x"), "--world-sizes: must be whole numbers with commas between, got '2,x'"),
        (("--device", "cpu", "--world-sizes", "1"), "--world-sizes: each must be at least 2, got 1"),
        (("--gpu", "h1000"), "unknown GPU 'h1000'"),
        (("-o", "nowhere/x.yaml"), "there is no folder nowhere"),
    ):
        began = time.perf_counter()
        done = planner("profile", "--quick", *arguments, cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr
        assert time.perf_counter() - began < 30
        assert list(tmp_path.iterdir()) == []


def test_facts_of_this_cpu() -> None:
    facts = read_device(CPU)
    assert (facts.kind, facts.architecture, facts.count) == ("cpu", "cpu", 1)
    assert facts.memory > 1e9
    assert facts.cache >= 1e5


def test_operands_lie_in_different_places() -> None:
    data = Data(CPU, 1 << 20)
    sets = data.views([(64, 64), (64,)], torch.bfloat16)
    assert len(sets) > 10
    assert len({views[0].data_ptr() for views in sets}) == len(sets)
    assert all(torch.isfinite(views[0]).all() for views in sets)
    with pytest.raises(SpecError, match="larger than the memory set aside"):
        data.views([(4096, 4096)], torch.bfloat16)


def test_the_clock_reads_what_a_call_takes() -> None:
    timing = time_calls([lambda: time.sleep(0.002)], CPU, box=0.1)
    assert 0.002 <= timing.time < 0.004


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_everything_that_holds_on_a_gpu(tmp_path: Path) -> None:
    """Profile, repetition, tables of the same GPU, and a model of eight billion parameters."""
    result = gpu_acceptance.run("cuda:0", tmp_path)
    print(json.dumps(result["holds"], indent=1))
    assert all(result["holds"].values()), result

"""A first scenario: written from options, or asked for on a terminal, and taken by the solver as it is."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import Runner

from planner.catalog import cloud_instances, load_gpu
from planner.documents.scenario import load_scenario
from planner.documents.scenario_draft import Draft, DraftGpu, KnownPrice, draft_problems, known_price
from planner.errors import SpecError
from planner.specs import Metric, Objective

ROOT = Path(__file__).parents[1]
MODEL = ("--model", "meta-llama/Llama-3.1-8B-Instruct")
LENGTHS = ("--rate", 10, "--isl", 1000, "--osl", 200)
SLO = ("--ttft-p99-ms", 1000, "--tpot-p99-ms", 40)
GPU = ("--gpu", "h100-sxm:3:16")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "scenario.yaml"


@pytest.mark.parametrize(
    ("options", "check"),
    [
        ((*LENGTHS, *SLO, *GPU), lambda s: s.fleet[0].max_gpus == 16 and s.fleet[0].price == 3.0),
        (
            (*LENGTHS, *SLO, "--gpu", "H100-SXM"),
            lambda s: s.fleet[0].price > 0 and s.fleet[0].max_gpus is None,
        ),
        ((*LENGTHS, *SLO, "--gpu", "l40s:owned:8"), lambda s: s.fleet[0].owned and s.fleet[0].max_gpus == 8),
        ((*LENGTHS, *SLO, "--gpu", "h100-sxm::16"), lambda s: s.fleet[0].max_gpus == 16),
        (
            (*LENGTHS, *SLO, "--gpu", "aws/p5.48xlarge", "--gpu", "l40s:0.9"),
            lambda s: s.fleet[0].gpu.name == "h100-sxm" and "aws/p5" in s.fleet[0].price_source,
        ),
        (
            ("--preset", "azure-2023-conversation", "--tpot-p99-ms", 40, *GPU),
            lambda s: (
                s.services[0].workload.name == "azure-2023-conversation"
                and not s.services[0].slo.of(Metric.TTFT)
            ),
        ),
        (
            ("--preset", "azure-2023-code", "--rate", 3, "--ttft-p99-ms", 500, *GPU, "--engine", "sglang"),
            lambda s: s.services[0].workload.request_rate == 3 and s.services[0].engine == "sglang",
        ),
        (
            ("--isl", 1e3, "--osl", 100.5, *SLO, "--gpu", "h100-sxm::8", "--objective", "throughput"),
            lambda s: (
                s.objective is Objective.THROUGHPUT and s.services[0].workload.lengths.osl.mean == 100.5
            ),
        ),
        (
            (*LENGTHS, *SLO, "--gpu", "h100-pcie", "--objective", "gpus"),
            lambda s: s.fleet[0].price is None and s.objective is Objective.GPUS,
        ),
    ],
)
def test_options_make_a_scenario_that_loads(planner: Runner, target: Path, options, check):
    result = planner("init", target, *MODEL, *options)
    assert (result.code, result.err) == (0, "")
    assert f"scenario written to {target}\nnext: planner solve {target} -o plan.yaml\n" == result.out
    assert check(load_scenario(target))
    said = [line for line in target.read_text().splitlines() if "price_per_gpu_hour: " in line]
    assert not any(re.search(r"hour: 0(\.0*)?\s", line) for line in said)
    assert [p.name for p in target.parent.iterdir()] == [target.name]


def test_the_solver_takes_the_file_as_it_is(planner: Runner, target: Path):
    assert planner("init", target, *MODEL, *LENGTHS, *SLO, *GPU, "--gpu", "l40s").code == 0
    result = planner("solve", target, "--no-verify", "--no-alternatives", "--json")
    assert result.code == 0
    assert result.facts["cost_per_hour"] > 0


def test_a_looked_up_price_says_where_it_comes_from(planner: Runner, target: Path):
    planner("init", target, *MODEL, *LENGTHS, *SLO, "--gpu", "h100-sxm")
    (line,) = [line for line in target.read_text().splitlines() if "price_per_gpu_hour" in line]
    offers = [i for i in cloud_instances() if i.gpu == "h100-sxm" and i.status == "checked" and i.gpus == 8]
    best = min(offers, key=lambda i: i.price_per_gpu or 1e9)
    assert f"price_per_gpu_hour: {best.price_per_gpu:g} " in line
    assert best.price_source() in line
    assert known_price("h100-sxm") == KnownPrice(price=best.price_per_gpu or 0.0, source=best.price_source())
    assert known_price("h100-pcie") is None


def test_a_price_of_a_smaller_server_brings_its_size(planner: Runner, target: Path):
    """Whole nodes are billed: a price of one GPU rented alone says that its node has one."""
    sizes = {i.gpu: {j.gpus for j in cloud_instances() if j.gpu == i.gpu} for i in cloud_instances()}
    gpu = next(
        g for g, found in sorted(sizes.items()) if load_gpu(g).node_size not in found and known_price(g)
    )
    known = known_price(gpu)
    assert known is not None
    assert known.node_size in sizes[gpu]
    planner("init", target, *MODEL, *LENGTHS, *SLO, "--gpu", gpu)
    assert f"node_size: {known.node_size} " in target.read_text(encoding="utf-8")


def test_an_unknown_price_is_to_be_filled_in_and_never_0(planner: Runner, target: Path):
    result = planner("init", target, *MODEL, *LENGTHS, *SLO, "--gpu", "h100-pcie")
    assert result.code == 0
    assert "the price of h100-pcie is not known: fill it in" in result.err
    text = target.read_text()
    assert "# price_per_gpu_hour:         # FILL IN: no price of it is known here" in text
    with pytest.raises(SpecError, match="price_per_gpu_hour: missing price: objective is cost"):
        load_scenario(target)
    target.write_text(text.replace("# price_per_gpu_hour:", "price_per_gpu_hour: 2.5"))
    assert load_scenario(target).fleet[0].price == 2.5


def test_instances_without_a_price_are_to_be_filled_in(planner: Runner, target: Path):
    result = planner("init", target, *MODEL, *LENGTHS, *SLO, "--gpu", "aws/p6-b300.48xlarge")
    assert "the price of aws/p6-b300.48xlarge is not known" in result.err
    with pytest.raises(SpecError, match=r"price of aws/p6-b300\.48xlarge is not known"):
        load_scenario(target)


def test_paths_are_seen_from_the_file(planner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    rows = "".join(f"{i},100,{10 + i % 3}\n" for i in range(200))
    (tmp_path / "mine.csv").write_text("timestamp_s,input_tokens,output_tokens\n" + rows)
    result = planner("init", "there/s.yaml", *MODEL, "--trace", "mine.csv", *SLO, *GPU)
    assert result.code == 0, result.err
    assert "trace: ../mine.csv" in (tmp_path / "there" / "s.yaml").read_text()
    assert load_scenario("there/s.yaml").services[0].workload.name == "mine"


# --------------------------------------------------------------------------------------------
# Refusals


def test_missing_options_are_named_where_nobody_can_be_asked(planner: Runner, target: Path):
    result = planner("init", target)
    assert result.code == 2
    assert result.err == (
        "planner: missing: --model, --rate, --isl and --osl (or --preset, --trace), "
        "--ttft-p99-ms or --tpot-p99-ms, --gpu (or run it on a terminal, to be asked)\n"
    )
    result = planner("init", target, *MODEL, "--isl", 5, *SLO, *GPU, "--objective", "throughput")
    assert "missing: --osl (or --preset, --trace) (or run" in result.err
    assert not target.exists()


def test_files_are_not_replaced_without_force(planner: Runner, target: Path):
    target.write_text("mine")
    result = planner("init", target, *MODEL, *LENGTHS, *SLO, *GPU)
    assert result.code == 2
    assert "exists already (another name, or --force)" in result.err
    assert target.read_text() == "mine"
    assert planner("init", target, *MODEL, *LENGTHS, *SLO, *GPU, "--force").code == 0
    assert load_scenario(target).fleet[0].price == 3.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--rate", -1), "--rate: must be >= 1e-06, got -1"),
        (("--isl", 0), "--isl: must be >= 1, got 0"),
        (("--osl", 200_000), "--isl: longest prompt and output are 1,000 + 200,000 tokens"),
        (
            ("--model", "Lama-3.1-8B-Instruct"),
            "--model: unknown model 'Lama-3.1-8B-Instruct': did you mean Llama-3.1-8B-Instruct?",
        ),
        (("--gpu", "h10-sxm:3"), "--gpu: unknown GPU 'h10-sxm': did you mean h100-sxm?"),
        (("--gpu", "l40s:0"), "--gpu: must be > 0, got 0 (or say owned: true)"),
        (("--gpu", "l40s:-1"), "--gpu: must be >= 0, got -1"),
        (("--gpu", "l40s:nan"), "--gpu: "),
        (("--gpu", "h100-sxm:2"), "--gpu: is listed twice"),
        (("--engine", "sglang", "--gpu", "gaudi2:2"), "--gpu: sglang does not run on gaudi2 GPUs"),
        (("--engine", "vlm"), "--engine: must be one of"),
        (("--ttft-p99-ms", 0), "--ttft-p99-ms: must be > 0, got 0"),
        (
            ("--preset", "azure-2023-cod"),
            "--preset: unknown traffic preset 'azure-2023-cod': did you mean azure-2023-code?",
        ),
        (
            ("--preset", "azure-2023-code", "--trace", "nowhere.csv"),
            "--trace: is given beside a preset, got 'nowhere.csv' (give one of them)",
        ),
        (("--trace", "nowhere.csv"), "/nowhere.csv: no such file"),
        (
            ("--objective", "throughput", "--gpu", "l40s:1"),
            "--gpu: l40s: the largest rate needs to know how many GPUs there are",
        ),
    ],
)
def test_what_is_wrong_is_said_by_option(planner: Runner, target: Path, monkeypatch, options, said):
    monkeypatch.chdir(target.parent)
    result = planner("init", target, *MODEL, *LENGTHS, *SLO, *GPU, *options)
    assert result.code == 2
    assert said in result.err
    assert not target.exists()


def test_all_problems_come_at_once(planner: Runner, target: Path):
    result = planner(
        "init", target, "--model", "nix", "--rate", 0, "--isl", 0, "--osl", 5, *SLO, "--gpu", "nix"
    )
    assert f"{target} is not written: 4 problems" in result.err


@pytest.mark.parametrize("text", ["h100-sxm:a", "h100-sxm:1:2.5", "h100-sxm:1:2:3", ":3", ""])
def test_a_gpu_has_a_form(planner: Runner, target: Path, text: str):
    result = planner("init", target, *MODEL, *LENGTHS, *SLO, "--gpu", text)
    assert result.code == 2
    assert f"{text!r} is not NAME, NAME:PRICE or NAME:PRICE:MAX" in " ".join(result.err.split())


def test_what_is_not_answered_yet_breaks_no_rule():
    assert draft_problems(Draft()) == ()
    assert draft_problems(Draft(isl=4000.0)) == ()
    assert draft_problems(Draft(fleet=(DraftGpu(name="gaudi2"),))) == ()


def test_interrupted_writing_leaves_nothing(planner: Runner, target: Path, monkeypatch):
    def interrupt(_descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    assert planner("init", target, *MODEL, *LENGTHS, *SLO, *GPU).code == 130
    assert list(target.parent.iterdir()) == []


# --------------------------------------------------------------------------------------------
# On a terminal


def converse(target: Path, *answers: str, options: tuple[object, ...] = ()) -> tuple[int, str]:
    """Exit code and screen of `planner init` on a pseudo-terminal that gives these answers."""
    pty = pytest.importorskip("pty")
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "planner", "init", str(target), *map(str, options)]
    with subprocess.Popen(
        command,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        cwd=ROOT,
        start_new_session=True,
        preexec_fn=lambda: _controlling(),
    ) as run:
        os.close(follower)
        screen = b""
        for answer in answers:
            screen += _until_asked(leader)
            time.sleep(0.2)  # until the line is being read
            os.write(leader, answer.encode() if answer == "\x03" else f"{answer}\n".encode())
        screen += _until_asked(leader)
        code = run.wait(timeout=20)
    os.close(leader)
    return code, screen.decode().replace("\r\n", "\n")


def _controlling() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _until_asked(leader: int) -> bytes:
    """What appears until a question waits for its answer, or until the other end has closed."""
    seen = b""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        ready, _, _ = select.select([leader], [], [], 0.5)
        try:
            chunk = os.read(leader, 65536) if ready else b""
        except OSError:
            return seen
        seen += chunk
        if re.search(rb"(\]|owned): $", seen) and not chunk.endswith(b"\n"):
            return seen
    return seen


@pytest.mark.slow
def test_a_terminal_is_asked_and_every_answer_is_checked(target: Path):
    answers = (
        "nix",
        "Llama-3.1-8B-Instruct",
        "vlm",
        "",
        "",
        "lengths",
        "0",
        "1000",
        "200000",
        "200",
        "",
        "none",
        "abc",
        "40",
        "h100-pcie",
        "0",
        "2.5",
        "8",
        "l40s",
        "",
        "any",
        "none",
    )
    code, screen = converse(target, *answers)
    assert code == 0, screen
    for said in (
        "Error: unknown model 'nix'",
        "Error: unknown engine 'vlm': did you mean vllm?",
        "Error: must be >= 1, got 0",
        "Error: longest prompt and output are 1,000 + 200,000 tokens",
        "Error: 'abc' is not a number",
        "Error: must be > 0, got 0 (or say owned)",
    ):
        assert said in screen
    scenario = load_scenario(target)
    (service,) = scenario.services
    assert service.workload.lengths.isl.mean == 1000
    assert [(t.metric, round(t.limit, 6)) for t in service.slo.targets] == [(Metric.TPOT, 0.04)]
    assert [(i.gpu.name, i.max_gpus) for i in scenario.fleet] == [("h100-pcie", 8), ("l40s", None)]
    assert scenario.fleet[0].price == 2.5
    known = known_price("l40s")
    assert known is not None
    assert scenario.fleet[1].price == known.price


@pytest.mark.slow
def test_only_what_no_option_gives_is_asked(target: Path):
    code, screen = converse(
        target, "", "", options=(*MODEL, *LENGTHS, *GPU, "--engine", "vllm", "--objective", "cost")
    )
    assert code == 0, screen
    assert screen.count("]: ") == 2
    assert [t.limit for t in load_scenario(target).services[0].slo.targets] == [1.0, 0.04]


@pytest.mark.slow
def test_ctrl_c_leaves_nothing(target: Path):
    code, screen = converse(target, "", "\x03")
    assert code == 130
    assert "planner: interrupted; nothing was written" in screen
    assert list(target.parent.iterdir()) == []

"""Completion: the protocol that shells speak, and the scripts that speak it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Runner
from test_architecture import LIGHT, loaded_by

from planner.catalog import gpu_names, model_names, traffic_names
from planner.cli import _COMMANDS

ROOT = Path(__file__).parents[1]


def completed(planner: Runner, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    """What bash gets where the last word is to be completed."""
    monkeypatch.setenv("_PLANNER_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(["planner", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    result = planner()
    assert (result.code, result.err) == (0, "")
    return [line.split(",", 1)[1] for line in result.out.splitlines()]


def test_commands(planner: Runner, monkeypatch):
    assert completed(planner, monkeypatch, "so") == ["solve"]
    assert completed(planner, monkeypatch, "") == list(_COMMANDS)
    assert completed(planner, monkeypatch, "--v") == ["--version"]


def test_options_of_a_command(planner: Runner, monkeypatch):
    assert completed(planner, monkeypatch, "solve", "--no-a") == ["--no-alternatives"]
    assert completed(planner, monkeypatch, "solve", "--solver", "") == ["highs", "cbc"]


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "--model"),
        ("memory", "-m"),
        ("models", "show"),
        ("init", "--model"),
        ("calibrate", "engine", "--model"),
    ],
)
def test_models(planner: Runner, monkeypatch, words):
    want = [name for name in model_names() if name.lower().startswith("qwen/")]
    assert completed(planner, monkeypatch, *words, "qwen/") == want
    short = [n for n in model_names() if n.rpartition("/")[2].startswith("Llama-3.1")]
    assert completed(planner, monkeypatch, *words, "llama-3.1") == short
    assert completed(planner, monkeypatch, *words, "./my") == ["./my"]  # left to the shell, as a file


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "--gpu"),
        ("memory", "-g"),
        ("gpus", "show"),
        ("gpus", "prices", "--gpu"),
        ("init", "--gpu"),
        ("profile", "--gpu"),
        ("gpus", "compare", "h100-sxm"),
        ("gpus", "roofline"),
    ],
)
def test_gpus(planner: Runner, monkeypatch, words):
    assert completed(planner, monkeypatch, *words, "H1") == [n for n in gpu_names() if n.startswith("h1")]


def test_engines_targets_and_presets(planner: Runner, monkeypatch):
    assert completed(planner, monkeypatch, "predict", "--engine", "") == ["sglang", "trtllm", "vllm"]
    assert completed(planner, monkeypatch, "init", "--engine", "v") == ["vllm"]
    assert completed(planner, monkeypatch, "emit", "--target", "d") == ["dynamo"]
    assert completed(planner, monkeypatch, "init", "--preset", "") == list(traffic_names())


def test_a_process_speaks_the_protocol():
    environment = {"_PLANNER_COMPLETE": "zsh_complete", "COMP_WORDS": "planner doc", "COMP_CWORD": "1"}
    run = subprocess.run(
        [sys.executable, "-m", "planner"],
        env=os.environ | environment, cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    kind, name, text = run.stdout.splitlines()
    assert (kind, name) == ("plain", "doctor")
    assert text == _COMMANDS["doctor"][1].replace(":", "\\:")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(planner: Runner, shell: str):
    if shell == "bash" and not shutil.which("bash"):
        pytest.skip("no bash, whose version is asked for")
    result = planner("completion", shell)
    assert result.code == 0
    assert f"_PLANNER_COMPLETE={shell}_complete" in result.out
    if shutil.which(shell):
        check = subprocess.run([shell, "-n"], input=result.out, text=True, capture_output=True, check=False)
        assert (check.returncode, check.stderr) == (0, "")


def test_other_shells_are_refused(planner: Runner):
    result = planner("completion", "tcsh")
    assert result.code == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in result.err


def test_a_shell_without_its_program_is_said(planner: Runner, monkeypatch):
    monkeypatch.setenv("PATH", "")
    result = planner("completion", "bash")
    assert result.code in (0, 2)  # click may look elsewhere, or do without
    assert result.code == 0 or "no completion for bash" in result.err


def test_commands_are_completed_without_loading_any():
    code = (
        "import contextlib, io, os\nos.environ |= {'_PLANNER_COMPLETE': 'bash_complete', 'COMP_WORDS': "
        "'planner ', 'COMP_CWORD': '1'}\nfrom planner.cli import main\nimport sys\nsys.argv = ['planner']\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n    main()"
    )
    assert loaded_by(code) & LIGHT == set()

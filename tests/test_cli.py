"""The command line: exit codes, streams, files, and behaviour in pipes and under Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from conftest import Result, Runner

from planner.catalog import gpu_names, model_names
from planner.documents.plan import load_plan
from planner.documents.schemas import FOLDER, schema_names
from planner.plan import PlanStatus

ROOT = Path(__file__).parents[1]

SCENARIO = """\
model: meta-llama/Llama-3.1-8B-Instruct
precision: {weights: bf16, kv_cache: bf16}
workload: {request_rate: 20, input_tokens: 1000, output_tokens: 200}
slo: {ttft_ms: {p99: 1000}, tpot_ms: {p99: 40}}
fleet:
  - {gpu: h100-sxm, price_per_gpu_hour: 3.0, max_gpus: 64, network_gbps_per_gpu: 400}
  - {gpu: a100-80gb-sxm, price_per_gpu_hour: 1.5, max_gpus: 64, network_gbps_per_gpu: 200}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


def variant(path: Path, old: str, new: str) -> Path:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


def process(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command line as a process of its own."""
    command = [sys.executable, "-m", "planner", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, **options)


# --------------------------------------------------------------------------------------------
# One program under three names; help


@pytest.mark.parametrize("command", [["-m", "planner"], ["cli.py"]])
def test_checkout_runs_the_same_program(command: list[str]) -> None:
    run = subprocess.run(
        [sys.executable, *command, "--version"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert re.fullmatch(r"planner, version \d+\.\d+\.\d+\n", run.stdout)


COMMANDS = (
    "init", "solve", "simulate", "evaluate", "emit", "check", "import", "judge", "explain", "robustness",
    "pareto", "sweep", "tiers", "network", "compare", "report", "money", "predict", "validate", "profile",
    "calibrate", "memory", "models", "gpus", "workload", "timeline", "schema", "doctor", "completion",
)  # fmt: skip


def test_help_lists_commands_and_exit_codes(planner: Runner) -> None:
    result = planner("--help")
    assert result.code == 0
    for word in (*COMMANDS, "3 infeasible", "5 the plan"):
        assert word in result.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(planner: Runner, command: str) -> None:
    result = planner(command, "--help")
    assert result.code == 0
    assert result.out.startswith(f"Usage: planner {command}")


def test_unknown_command_names_the_nearest(planner: Runner) -> None:
    result = planner("sovle", "x.yaml")
    assert (result.code, result.out) == (2, "")
    assert "No such command 'sovle'. Did you mean 'solve'?" in result.err


def test_unknown_command_with_no_likeness_lists_all(planner: Runner) -> None:
    assert f"Commands: {', '.join(COMMANDS)}." in planner("xyzzy").err


def test_unknown_option_names_the_nearest(planner: Runner) -> None:
    result = planner("solve", "--jsno", "x.yaml")
    assert (result.code, result.out) == (2, "")
    assert "No such option" in result.err
    assert "--json" in result.err


# --------------------------------------------------------------------------------------------
# solve


def test_solve_prints_a_plan_and_writes_it(planner: Runner, scenario: Path, tmp_path: Path) -> None:
    target = tmp_path / "plan.yaml"
    result = planner("solve", scenario, "--no-verify", "-o", target)
    assert (result.code, result.err) == (0, "")
    for word in ("meta-llama/Llama-3.1-8B-Instruct", "p99 TTFT <= 1000 ms", "best colocated", "/month"):
        assert word in result.out
    assert result.out.endswith(f"plan written to {target}\n")
    assert load_plan(target).status is PlanStatus.OPTIMAL


def test_solve_replaces_the_file_and_leaves_nothing_beside_it(
    planner: Runner, scenario: Path, tmp_path: Path
) -> None:
    target = tmp_path / "plan.yaml"
    target.write_text("an older plan", encoding="utf-8")
    target.chmod(0o640)
    assert planner("solve", scenario, "--no-alternatives", "-o", target).code == 0
    load_plan(target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plan.yaml", "scenario.yaml"]


def test_reproducible_plans_have_the_same_bytes(planner: Runner, scenario: Path, tmp_path: Path) -> None:
    targets = [tmp_path / name for name in ("a.yaml", "b.yaml")]
    for target in targets:
        assert planner("solve", scenario, "--no-alternatives", "--reproducible", "-o", target).code == 0
    first, second = (target.read_bytes() for target in targets)
    assert first == second
    arguments = ("solve", scenario, "--no-alternatives", "--reproducible", "--json")
    assert planner(*arguments).out == planner(*arguments).out


def test_solve_json_is_one_document_that_the_schema_describes(
    planner: Runner, scenario: Path, tmp_path: Path
) -> None:
    result = planner("solve", scenario, "--json", "-o", tmp_path / "plan.yaml")
    assert (result.code, result.err) == (0, "")
    plan = json.loads(result.out)
    jsonschema.validate(plan, json.loads((FOLDER / "plan.json").read_text(encoding="utf-8")))
    assert plan["status"] == "optimal"
    assert plan["cost_per_hour"] > 0
    assert 0 <= plan["gap"] <= 0.005 + 1e-6
    for group in plan["groups"]:
        assert {"phase", "gpu", "parallelism", "replicas", "num_gpus"} <= set(group)
        assert set(group["parallelism"]) == {"tp", "pp", "ep", "dp"}
    statistics = {"mean", "p50", "p90", "p95", "p99"}
    for metric in ("ttft_ms", "tpot_ms"):
        assert statistics <= set(plan["predicted"][metric])
    assert {"best colocated", "best single GPU type"} <= {a["name"] for a in plan["alternatives"]}
    assert all({"name", "cost_per_hour"} <= set(a) for a in plan["alternatives"])


def test_json_of_a_process_is_all_there_is_on_its_pipe(scenario: Path) -> None:
    """At the file descriptor: a solver's banner would arrive here."""
    run = process("solve", scenario, "--json")
    assert (run.returncode, run.stderr) == (0, "")
    assert json.loads(run.stdout)["status"] == "optimal"


def test_solve_with_cbc_finds_the_same_cost(planner: Runner, scenario: Path) -> None:
    costs = [
        json.loads(planner("solve", scenario, "--json", "--no-alternatives", "--gap", 0, *solver).out)[
            "cost_per_hour"
        ]
        for solver in ([], ["--solver", "cbc"])
    ]
    assert costs[0] == pytest.approx(costs[1])


def test_save_lp_writes_the_program(planner: Runner, scenario: Path, tmp_path: Path) -> None:
    target = tmp_path / "program.lp"
    assert planner("solve", scenario, "--no-alternatives", "--save-lp", target).code == 0
    text = target.read_text(encoding="utf-8")
    assert "Minimize" in text
    for row in ("demand(prefill)", "demand(decode)", "demand(colocated)", "stock(h100_sxm)"):
        assert f"{row}:" in text


def test_no_alternatives_prints_none(planner: Runner, scenario: Path) -> None:
    result = planner("solve", scenario, "--no-alternatives")
    assert result.code == 0
    assert "best colocated" not in result.out


def test_scenario_may_come_through_a_pipe(scenario: Path) -> None:
    if not Path("/dev/stdin").exists():
        pytest.skip("this system has no /dev/stdin")
    run = process("solve", "-", "--json", "--no-alternatives", input=SCENARIO)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["status"] == "optimal"


# --------------------------------------------------------------------------------------------
# Failures: exit code, message on stderr, nothing written


def failed(result: Result, code: int, *files: Path) -> str:
    assert (result.code, result.out) == (code, "")
    assert "Traceback" not in result.err
    for path in files:
        assert not path.exists()
    return result.err


def test_missing_scenario(planner: Runner, tmp_path: Path) -> None:
    target = tmp_path / "plan.yaml"
    assert "no such file" in failed(planner("solve", tmp_path / "no.yaml", "-o", target), 2, target)


def test_every_problem_of_a_scenario_is_named_with_its_line(
    planner: Runner, scenario: Path, tmp_path: Path
) -> None:
    variant(scenario, "request_rate: 20", "request_rat: 20")
    variant(scenario, "price_per_gpu_hour: 3.0, ", "")
    variant(scenario, "p99: 40", "p99: fast")
    target = tmp_path / "plan.yaml"
    message = failed(planner("solve", scenario, "-o", target), 2, target)
    assert "did you mean 'request_rate'" in message.lower() or "request_rate" in message
    for line in ("line 3", "line 4", "line 6"):
        assert line in message


def test_negative_rate(planner: Runner, scenario: Path, tmp_path: Path) -> None:
    target = tmp_path / "plan.yaml"
    variant(scenario, "request_rate: 20", "request_rate: -20")
    assert "-20" in failed(planner("solve", scenario, "-o", target, "--json"), 2, target)


@pytest.mark.parametrize("option", ["-o", "--save-lp"])
def test_unwritable_output_is_refused_before_the_search(
    planner: Runner, scenario: Path, tmp_path: Path, option: str
) -> None:
    message = failed(planner("solve", scenario, option, tmp_path / "no" / "file"), 2)
    assert "there is no folder" in message


def test_output_that_is_a_folder_is_refused(planner: Runner, scenario: Path, tmp_path: Path) -> None:
    assert "is a folder" in failed(planner("solve", scenario, "-o", tmp_path), 2)


@pytest.mark.parametrize("value", ["-1", "0", "soon"])
def test_bad_time_limit(planner: Runner, scenario: Path, value: str) -> None:
    assert "--time-limit" in failed(planner("solve", scenario, "--time-limit", value), 2)


@pytest.mark.slow
def test_slo_out_of_reach_names_the_tightest_reachable(
    planner: Runner, scenario: Path, tmp_path: Path
) -> None:
    variant(scenario, "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-70B-Instruct")
    variant(scenario, "weights: bf16", "weights: fp8")
    variant(scenario, "tpot_ms: {p99: 40}", "tpot_ms: {p99: 1}")
    target = tmp_path / "plan.yaml"
    message = failed(planner("solve", scenario, "--json", "-o", target), 3, target)
    assert "binding: p99 TPOT <= 1 ms" in message
    reachable = re.search(r"tightest p99 TPOT reachable is about ([\d.]+) ms, on (\S+) TP\d", message)
    assert reachable is not None
    assert float(reachable[1]) > 1
    assert reachable[2] in ("h100-sxm", "a100-80gb-sxm")


def test_short_stock_names_the_gpus_missing(planner: Runner, scenario: Path, tmp_path: Path) -> None:
    variant(scenario, "request_rate: 20", "request_rate: 2000")
    variant(scenario, "max_gpus: 64", "max_gpus: 8")
    target = tmp_path / "plan.yaml"
    message = failed(planner("solve", scenario, "-o", target), 3, target)
    assert "GPU stock" in message
    assert re.search(r"short by: \d+ ", message)


def test_internal_error_says_how_to_see_more(
    planner: Runner, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("planner.search.questions_of", broken)
    message = failed(planner("solve", scenario), 1)
    assert message == (
        "planner: internal error: RuntimeError: a bug\nPLANNER_DEBUG=1 shows where; please report it\n"
    )


# --------------------------------------------------------------------------------------------
# Ctrl-C

INTERRUPTED = """\
import os, signal, sys, time
import planner.search
from planner.cli import main

def interrupted(*arguments, **options):
    {action}
    return original(*arguments, **options)

original = planner.search.{step}
planner.search.{step} = interrupted
sys.argv = ["planner", "solve", {scenario!r}, "-o", {target!r}, "--save-lp", {lp!r}, "--no-alternatives"]
main()
"""
NOW = "os.kill(os.getpid(), signal.SIGINT); time.sleep(5)"
WRAPPED = """
    try:
        os.kill(os.getpid(), signal.SIGINT); time.sleep(5)
    except KeyboardInterrupt as interrupt:
        raise ValueError("an extension's own error") from None
"""


@pytest.mark.parametrize("step", ["questions_of", "solve_program"])
@pytest.mark.parametrize("action", [NOW, WRAPPED], ids=["plain", "wrapped"])
def test_ctrl_c_ends_with_130_and_no_plan(scenario: Path, tmp_path: Path, step: str, action: str) -> None:
    target = tmp_path / "plan.yaml"
    code = INTERRUPTED.format(
        action=action, step=step, scenario=str(scenario), target=str(target), lp=str(tmp_path / "p.lp")
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 130
    assert run.stdout == ""
    assert run.stderr.strip() == "planner: interrupted; nothing was written"
    assert not target.exists()


def test_ctrl_c_from_outside_ends_the_process(scenario: Path, tmp_path: Path) -> None:
    """Wherever the signal falls: 130 and no file, or a plan in full."""
    target = tmp_path / "plan.yaml"
    command = [sys.executable, "-X", "importtime", "-m", "planner", "solve", scenario, "-o", target]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as run:
        assert run.stderr is not None
        for line in run.stderr:  # until the workflow has been imported: the search is about to begin
            if line.rstrip().endswith("| planner.search") or "planner.cli.solve" in line:
                break
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=30)
    assert run.returncode in (0, 130)
    assert target.exists() == (run.returncode == 0)
    if run.returncode == 130:
        assert out == ""
        assert "planner: interrupted" in err


# --------------------------------------------------------------------------------------------
# Pipes, terminals and widths


@pytest.mark.parametrize(
    "arguments", [["models"], ["gpus", "--json"], ["schema", "plan"], ["--help"]], ids=lambda a: a[0]
)
def test_reader_that_leaves_early_is_no_error(arguments: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        run = subprocess.run(
            [sys.executable, "-m", "planner", *arguments],
            stdout=write, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False,
        )  # fmt: skip
    finally:
        os.close(write)
    assert (run.returncode, run.stderr) == (0, "")


def test_closed_standard_output_is_no_error() -> None:
    command = f'"{sys.executable}" -m planner models >&-'
    run = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    assert (run.returncode, run.stderr) == (0, "")


def test_full_disk_is_said_in_one_line() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(
            [sys.executable, "-m", "planner", "models"],
            stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False,
        )  # fmt: skip
    assert run.returncode == 1
    assert run.stderr.startswith("planner: ")
    assert run.stderr.count("\n") == 1


@pytest.mark.parametrize("columns", [80, 120])
def test_columns_set_the_width(
    planner: Runner, scenario: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    result = planner("solve", scenario)
    assert max(map(len, result.out.splitlines())) <= columns


@pytest.mark.parametrize("columns", ["", "wide", "0"])
def test_columns_without_meaning_are_ignored(
    planner: Runner, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    plain = planner("gpus").out
    monkeypatch.setenv("COLUMNS", columns)
    assert planner("gpus").out == plain


def test_narrow_output_leaves_columns_out_and_folds_no_number(
    planner: Runner, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "64")
    out = planner("solve", scenario).out
    header = next(line for line in out.splitlines() if line.startswith("pool "))
    assert {"replicas", "GPUs", "$/h", "binds"} <= set(header.split())
    assert "busy" not in header


def test_a_pipe_gets_no_escape_sequences(planner: Runner, scenario: Path) -> None:
    result = planner("solve", scenario)
    assert "\x1b" not in result.out + result.err


def on_terminal(*arguments: object, **environment: str) -> str:
    """Output of the command line on a pseudo-terminal."""
    pty = pytest.importorskip("pty")
    leader, follower = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")}
    command = [sys.executable, "-m", "planner", *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=follower, stderr=follower, stdin=follower, cwd=ROOT,
        env=env | {"TERM": "xterm-256color"} | environment,
    ) as run:  # fmt: skip
        os.close(follower)
        chunks = []
        while True:
            try:
                chunk = os.read(leader, 65536)
            except OSError:  # the other end has closed
                break
            if not chunk:
                break
            chunks.append(chunk)
    os.close(leader)
    assert run.returncode == 0
    return b"".join(chunks).decode()


COLOUR = re.compile(r"\x1b\[(3[0-7]|38;5;\d+|9[0-7])m")


def test_a_terminal_gets_colour_unless_no_color(scenario: Path) -> None:
    assert COLOUR.search(on_terminal("solve", scenario, "--no-alternatives"))
    assert not COLOUR.search(on_terminal("solve", scenario, "--no-alternatives", NO_COLOR="1"))


# --------------------------------------------------------------------------------------------
# Look-ups


def test_models_as_table_and_as_json(planner: Runner) -> None:
    table, document = planner("models"), planner("models", "--json")
    assert (table.code, document.code) == (0, 0)
    facts = json.loads(document.out)
    assert [f["name"] for f in facts] == list(model_names())
    for name in model_names():
        assert name in table.out


def test_model_facts_hold_the_contract(planner: Runner) -> None:
    facts = json.loads(planner("models", "show", "meta-llama/Llama-3.1-70B-Instruct", "--json").out)
    assert {
        "parameters", "active_parameters", "weight_bytes", "kv_bytes_per_token", "kv_bytes_per_sequence",
        "layers", "max_context", "legal_tp",
    } <= set(facts)  # fmt: skip
    assert facts["parameters"] == 70_553_706_496  # of the published checkpoint
    assert facts["kv_bytes_per_token"] == 2 * 8 * 128 * 80 * 2  # K and V, 8 heads of 128, 80 layers, 16 bits
    assert 8 in facts["legal_tp"]


def test_facts_of_a_model_directory(planner: Runner, tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048,
        "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "max_position_embeddings": 131072,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "hidden_act": "silu",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    result = planner("models", "show", tmp_path, "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["parameters"] == 1_235_814_400  # Llama-3.2-1B, from its model card


def test_gpus_as_table_and_as_json(planner: Runner) -> None:
    table, document = planner("gpus"), planner("gpus", "--json")
    assert (table.code, document.code) == (0, 0)
    facts = {f["name"]: f for f in json.loads(document.out)}
    assert set(facts) == set(gpu_names())
    assert facts["h100-sxm"]["calibration"] == "fitted"
    assert facts["l4"]["calibration"] == "estimated"
    for name in gpu_names():
        assert name in table.out


@pytest.mark.parametrize("kind", ["models", "gpus"])
def test_unknown_name_is_bad_input(planner: Runner, kind: str) -> None:
    message = failed(planner(kind, "show", "no-such-thing"), 2)
    assert "no-such-thing" in message


def test_unknown_gpu_names_the_nearest(planner: Runner) -> None:
    assert "h100-sxm" in failed(planner("gpus", "show", "h100-sxn"), 2)


def test_gpus_stand_under_their_architecture(planner: Runner) -> None:
    lines = planner("gpus").out.splitlines()
    assert max(len(line) for line in lines) <= 100
    at = lines.index(next(line for line in lines if line.rstrip() == "nvidia hopper"))
    assert lines[at + 1].startswith("gh200 ")
    assert next(line for line in lines if line.startswith("t4 ")).split()[1] == "65*"
    assert "* no bf16: models run in fp16" in lines


def test_unverified_figures_and_conflicts_are_shown(planner: Runner) -> None:
    text = planner("gpus", "show", "b300").out
    assert re.search(r"^unverified +peak_tflops.int8, l2_mb, sm_count$", text, re.MULTILINE)
    assert "peak_tflops.fp4: aiconfigurator-core uses 14,000." in text
    assert re.search(r"^driver_memory_mib +275,040$", text, re.MULTILINE)
    facts = json.loads(planner("gpus", "show", "mi250x", "--json").out)
    assert facts["driver_memory_mib"] is None
    assert "one of the package's two dies" in facts["notes"][0]
    assert "hbm_gb_per_s" in facts["unverified"]


def test_gpu_is_shown_with_its_provenance(planner: Runner) -> None:
    result = planner("gpus", "show", "h100-sxm")
    assert result.code == 0
    assert re.search(r"calibration +fitted", result.out)
    assert re.search(r"calibration_date +20\d\d", result.out)


def test_schema_lists_the_kinds(planner: Runner) -> None:
    assert planner("schema").out.split() == list(schema_names())


@pytest.mark.parametrize("name", schema_names())
def test_schema_prints_the_file(planner: Runner, tmp_path: Path, name: str) -> None:
    expected = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    assert planner("schema", name).out == expected
    target = tmp_path / "schema.json"
    assert planner("schema", name, "-o", target) == Result(0, "", "")
    assert target.read_text(encoding="utf-8") == expected


def test_unknown_schema_lists_those_known(planner: Runner) -> None:
    assert "known: scenario, gpu-profile, plan, engine" in failed(planner("schema", "scenaro"), 2)


# --------------------------------------------------------------------------------------------
# predict

COMMON = ["--model", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "h100-sxm", "--isl", 1000, "--osl", 200]
LOADS = {
    "colocated closed loop": ["--concurrency", 32],
    "colocated stream": ["--rate", 5],
    "disaggregated closed loop": ["--mode", "disagg", "--prefill", "1xTP1", "--decode", "1xTP2", "-c", 32],
    "disaggregated stream": ["--mode", "disagg", "--prefill", "2xTP1", "--decode", "1xTP1", "--rate", 10],
}


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS.keys())
def test_predict_json_holds_the_contract(planner: Runner, load: list[object]) -> None:
    result = planner("predict", *COMMON, *load, "--json")
    assert (result.code, result.err) == (0, "")
    p = json.loads(result.out)
    assert p["ttft_ms"] > p["tpot_ms"] > 0
    assert p["fits"] is True
    assert {"weights", "kv", "activations", "total", "usable"} <= set(p["memory_gib"])
    m = p["memory_gib"]
    parts = m["weights"] + m["kv"] + m["activations"] + m["reserved"]
    assert parts == pytest.approx(m["total"])
    assert m["total"] <= m["usable"] * (1 + 1e-9)
    assert p["kv_bytes_per_token"] == 2 * 8 * 128 * 32 * 2
    assert p["max_concurrency"] >= 1
    assert {line["step"] for line in p["breakdown"]} == {"prefill", "decode"}
    for step in ("prefill", "decode"):
        assert sum(x["share"] for x in p["breakdown"] if x["step"] == step) == pytest.approx(1)


def test_predict_prints_tables(planner: Runner) -> None:
    result = planner("predict", *COMMON, "--concurrency", 32)
    assert (result.code, result.err) == (0, "")
    for word in ("TTFT", "TPOT", "80 % interval", "decode attention", "KV cache"):
        assert word in result.out


def test_predict_a_model_that_does_not_fit(planner: Runner) -> None:
    arguments = [
        "predict",
        "-m",
        "meta-llama/Llama-3.1-70B",
        "-g",
        "h100-sxm",
        "-c",
        1,
        "--isl",
        10,
        "--osl",
        10,
    ]
    result = planner(*arguments)
    assert "the smallest layout that fits is TP" in failed(result, 3)
    document = json.loads(planner(*arguments, "--json").out)
    assert document["fits"] is False
    assert document["ttft_ms"] is None


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ([], "give either a concurrency or a rate"),
        (["-c", 1, "--rate", 1], "give either a concurrency or a rate"),
        (["-c", 1, "--tp", 3], "TP 3"),
        (["-c", 1, "--mode", "disagg"], "needs --prefill as NxTP"),
        (["-c", 1, "--mode", "disagg", "--prefill", "two", "--decode", "1xTP1"], "got 'two'"),
        (["-c", 1, "--prefill", "1xTP1"], "belong to --mode disagg"),
        (["-c", 1, "--precision", "fp7"], "unknown precision 'fp7'"),
        (["-c", 1, "--dp", 2], "DP 2 needs routed experts, and the model has none"),
        (["-c", 1, "--engine", "vlm"], "vllm"),
        (["-c", 0], "--concurrency"),
        (["--rate", "nan"], ""),
    ],
)
def test_predict_refuses(planner: Runner, extra: list[object], message: str) -> None:
    assert message in failed(planner("predict", *COMMON, *extra), 2)

"""``planner calibrate engine``: files of every tool, options, plans, output, and what is refused."""

from __future__ import annotations

import csv
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from load_test_files import (
    EXAMPLE,
    MODEL,
    SETUP,
    aiperf_csv,
    aiperf_export,
    examples,
    guidellm_report,
    sglang_run,
)

from planner.documents.engine_profile import load_engine_profile
from planner.engines import load_engine, shipped_constants

MEASURED = Path(__file__).parent / "golden" / "measured_rows.csv"
RUNS = examples()
FEW = RUNS[::3]
PREDICT = ("predict", "-m", MODEL, "-g", "h100-sxm", "--isl", "2048", "--osl", "256", "--json")


def written(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def lines(runs: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(run) + "\n" for run in runs)


def facts(planner, *words: Any) -> dict[str, Any]:
    result = planner("calibrate", "engine", *words, "--json")
    assert result.code == 0, result.err
    return result.facts


def refused(planner, *words: Any) -> str:
    result = planner("calibrate", "engine", *words)
    assert (result.code, result.out) == (2, "")
    assert "Traceback" not in result.err
    return result.err


# --------------------------------------------------------------------------------------------
# A profile of the example


@pytest.fixture(scope="module")
def profile(tmp_path_factory) -> Path:
    """The example's, as ``docs/calibrate-engine.md`` makes it."""
    from click.testing import CliRunner

    from planner.cli.calibrate_engine import engine

    path = tmp_path_factory.mktemp("profile") / "engine.yaml"
    result = CliRunner().invoke(engine, [str(EXAMPLE), *SETUP, "--engine-version", "0.33.0", "-o", str(path)])
    assert result.exit_code == 0, result.output
    return path


def test_a_profile_says_where_it_comes_from(profile):
    document = yaml.safe_load(profile.read_text(encoding="utf-8"))
    made = document["calibration"]
    assert (document["engine"], document["version"]) == ("vllm", "0.33.0")
    assert made["results"] == [{"file": EXAMPLE.name, "rows": 12, "skipped": {}}]
    assert made["ids"] == [f"{EXAMPLE.name}, line {n}" for n in range(1, 13)]
    assert (made["rows"], made["loads"], made["parts"], made["gpus"]) == (12, 12, 12, ["h100-sxm"])
    assert made["moved"] == "all constants"
    assert made["date"].endswith("Z")
    assert made["planner_version"]
    held = made["held_out"]
    assert held["tpot"]["median"] < 0.03 < 0.15 < held["tpot"]["before_median"]
    assert held["ttft"]["median"] < held["ttft"]["before_median"]
    assert "decode_scale" in made["not_identified"]
    assert shipped_constants().log_sd <= document["log_sd"] < 0.1


def test_a_profile_is_read_as_it_was_written(profile):
    document = yaml.safe_load(profile.read_text(encoding="utf-8"))
    found = load_engine_profile(profile)
    assert found.constants.step == pytest.approx(document["overheads"]["step_ms"] / 1e3)
    assert found.constants.fixed == pytest.approx(document["ttft"]["fixed_ms"] / 1e3)
    assert found.factors == tuple((m["shape"], m["factor"]) for m in document["models"])
    assert found.gpus == ("h100-sxm",)
    for part in ("12 measured rows", "on h100-sxm", MODEL, "held-out TPOT off by", "not identified"):
        assert part in found.provenance


def test_tables_say_what_was_taken_for_granted(planner):
    result = planner("calibrate", "engine", EXAMPLE, *SETUP)
    assert result.code == 0, result.err
    out = " ".join(result.out.split())
    for part in (
        f"taken for: {MODEL}, weights bf16, KV cache bf16, 1 x TP1 on h100-sxm",
        "moved: all constants",
        "held out in 12 parts",
        "host time of a step [ms]",
        "not identified by these rows",
        "--engine-version was not given: taken for vllm 0.33.0",
    ):
        assert part in out


# --------------------------------------------------------------------------------------------
# Files


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("vllm.jsonl", lines(FEW)),
        ("sglang.jsonl", lines([sglang_run(run) for run in FEW])),
        ("guidellm.json", guidellm_report(FEW)),
    ],
)
def test_every_form_gives_the_same_engine(planner, tmp_path, name, content):
    expected = facts(planner, written(tmp_path, "expected.jsonl", lines(FEW)), *SETUP)
    found = facts(planner, written(tmp_path, name, content), *SETUP)
    assert found["models"] == expected["models"]
    assert found["overheads"] == expected["overheads"]
    assert found["calibration"]["held_out"] == expected["calibration"]["held_out"]


def test_several_files_of_several_tools(planner, tmp_path):
    paths = [written(tmp_path, f"{i}.json", aiperf_export(run)) for i, run in enumerate(RUNS[:6:2])]
    paths.append(written(tmp_path, "vllm.jsonl", lines(RUNS[6:])))
    found = facts(planner, *paths, *SETUP)
    assert found["calibration"]["rows"] == 9
    assert [r["rows"] for r in found["calibration"]["results"]] == [1, 1, 1, 6]


def test_a_table_of_aiperf_needs_its_load(planner, tmp_path):
    path = written(tmp_path, "profile_export_aiperf.csv", aiperf_csv(RUNS[5]))
    assert "does not say how requests were sent: give --concurrency or --rate" in refused(
        planner, path, *SETUP
    )
    found = facts(planner, path, *SETUP, "--concurrency", "4")
    assert found["calibration"]["rows"] == 1
    assert found["calibration"]["moved"] == "nothing"
    assert any("at least 3" in note for note in found["calibration"]["notes"])


def test_runs_that_do_not_count_are_counted_by_reason(planner, tmp_path):
    odd = [
        RUNS[1] | {"completed": 0},
        RUNS[2] | {"spec_decode_acceptance_length": 2.0},
        RUNS[3] | {"max_concurrency": None},
        RUNS[4] | {"mean_tpot_ms": float("nan")},
        RUNS[0],
    ]
    path = written(tmp_path, "runs.jsonl", lines([*FEW, *odd]))
    found = facts(planner, path, *SETUP)
    (results,) = found["calibration"]["results"]
    assert results["rows"] == len(FEW)
    assert sum(results["skipped"].values()) == len(odd)
    assert any("no request was completed" in reason for reason in results["skipped"])
    out = planner("calibrate", "engine", path, *SETUP).out
    assert "left out: 1 x all requests came at once" in out


def subset(tmp_path: Path, keep) -> Path:
    with MEASURED.open(newline="", encoding="utf-8") as file:
        table = csv.DictReader(file)
        rows = [row for row in table if keep(row)]
    path = tmp_path / "measured.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, table.fieldnames or ())
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_rows_of_a_measured_file_say_themselves_what_they_are(planner, tmp_path):
    path = subset(tmp_path, lambda row: row["backend"] == "vllm" and "gpt-oss" in row["model_path"])
    found = facts(planner, path)
    assert found["engine"] == "vllm"
    assert found["calibration"]["rows"] >= 3
    assert any("the constants before were fitted to" in note for note in found["calibration"]["notes"])


@pytest.mark.slow
def test_rows_of_several_engines_need_a_choice(planner):
    assert "rows are of several engines: sglang, trtllm, vllm" in refused(planner, MEASURED)
    found = facts(planner, MEASURED, "--engine", "sglang")
    assert found["engine"] == "sglang"
    assert any("rows are of other engines or versions" in note for note in found["calibration"]["notes"])
    one = facts(planner, MEASURED, "--engine", "sglang", "--engine-version", "0.5.9")
    assert one["version"] == "0.5.9"
    assert one["calibration"]["rows"] < found["calibration"]["rows"]
    assert "no row is of '9'; rows are of 0.5" in refused(
        planner, MEASURED, "--engine", "sglang", "--engine-version", "9"
    )
    assert "no row is of 'vlm'" in refused(planner, MEASURED, "--engine", "vlm")


# --------------------------------------------------------------------------------------------
# What was served


def test_pools_of_prefill_and_decode(planner, tmp_path):
    path = written(tmp_path, "runs.jsonl", lines(FEW))
    found = facts(planner, path, *SETUP, "--mode", "disagg", "--prefill", "1xTP1", "--decode", "1xTP1")
    assert found["calibration"]["rows"] == len(FEW)


@pytest.mark.slow
def test_a_plan_says_what_was_served(planner, tmp_path, scenario_file):
    plan = tmp_path / "plan.yaml"
    assert planner("solve", scenario_file, "-o", plan, "--no-alternatives", "--no-verify").code == 0
    found = facts(planner, EXAMPLE, "--plan", plan)
    assert found["calibration"]["gpus"] == ["h100-sxm"]
    assert found["version"] == load_engine("vllm").version
    assert "--gpu: --plan says it" in refused(planner, EXAMPLE, "--plan", plan, "--gpu", "h100-sxm")


@pytest.fixture
def scenario_file(tmp_path) -> Path:
    return written(
        tmp_path,
        "scenario.yaml",
        {
            "model": MODEL,
            "workload": {"request_rate": 5, "input_tokens": 1000, "output_tokens": 200},
            "slo": {"ttft_ms": {"p99": 1000}, "tpot_ms": {"p99": 40}},
            "fleet": [{"gpu": "h100-sxm", "price_per_gpu_hour": 3.0, "network_gbps_per_gpu": 400}],
        },
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpu", "h100-sxm", "--engine", "vllm"), "--model is missing"),
        (("--model", MODEL, "--engine", "vllm"), "--gpu is missing"),
        (("--model", MODEL, "--gpu", "h100-sxm"), "--engine is missing"),
        ((*SETUP[:4], "--engine", "vlm"), "unknown engine 'vlm': did you mean vllm?"),
        ((*SETUP, "--concurrency", "4"), "--concurrency, --rate: every file says how its requests came"),
        ((*SETUP, "--service", "a"), "--service: belongs to --plan"),
        ((*SETUP, "--prefill", "1xTP1"), "--prefill and --decode belong to --mode disagg"),
        ((*SETUP, "--mode", "disagg", "--tp", "2"), "--tp belongs to --mode colocated"),
        ((*SETUP, "--mode", "disagg"), "--mode disagg needs --prefill as NxTP"),
        (
            (*SETUP, "--mode", "disagg", "--prefill", "1xTP1@l40s", "--decode", "1xTP1"),
            "both pools have to be on one GPU type",
        ),
        (("--model", "Qwen/Qwen3-32B", *SETUP[2:]), f"was measured with {MODEL}, which is not --model"),
        ((*SETUP, "--tp", "3"), "TP 3 does not divide the 32 attention heads"),
        ((*SETUP, "-o", "/nowhere/engine.yaml"), "there is no folder"),
    ],
)
def test_what_is_refused(planner, words, said):
    assert said in " ".join(refused(planner, EXAMPLE, *words).split())


def test_files_that_are_refused(planner, tmp_path):
    assert "is no result of a load test" in refused(planner, written(tmp_path, "a.json", {"a": 1}), *SETUP)
    assert "no such file" in refused(planner, tmp_path / "none.json", *SETUP)
    assert "a file is given twice" in refused(planner, EXAMPLE, EXAMPLE, *SETUP)
    assert "standard input is not read" in refused(planner, "-", *SETUP)
    assert "--tp: rows of a measured CSV say it themselves" in refused(planner, MEASURED, "--tp", "2")
    empty = written(tmp_path, "b.json", RUNS[0] | {"completed": 0})
    output = tmp_path / "engine.yaml"
    assert "none of the 1 rows can be used: 1 x no request" in refused(planner, empty, *SETUP, "-o", output)
    assert not output.exists()


def test_an_output_does_not_replace_results(planner, tmp_path):
    path = written(tmp_path, "runs.jsonl", lines(FEW))
    assert "would replace another file" in refused(planner, path, *SETUP, "-o", path)
    assert path.read_text(encoding="utf-8") == lines(FEW)


def test_the_group_lists_its_commands(planner):
    assert "engine" in planner("calibrate", "--help").out
    result = planner("calibrate", "engin")
    assert result.code == 2
    assert "Did you mean 'engine'?" in result.err


# --------------------------------------------------------------------------------------------
# Where profiles go


def test_solve_plans_with_a_profile_and_says_so(planner, tmp_path, scenario_file, profile):
    plan = tmp_path / "there" / "plan.yaml"
    plan.parent.mkdir()
    words = ("--no-alternatives", "--no-verify", "--engine-profile", profile, "-o", plan)
    result = planner("solve", scenario_file, *words, "--json")
    assert result.code == 0, result.err
    sources = result.facts["provenance"]["sources"]
    assert any("calibrated on" in source and "12 measured rows" in source for source in sources)
    document = yaml.safe_load(plan.read_text(encoding="utf-8"))
    assert document["provenance"]["sources"] == sources
    assert document["scenario"]["engine_profile"] == str(profile)
    plain = planner("solve", scenario_file, *words[:2], "--json").facts
    assert plain["provenance"]["sources"]
    faster, slower = plain["predicted"]["tpot_ms"]["mean"], result.facts["predicted"]["tpot_ms"]["mean"]
    assert slower > 1.1 * faster
    again = planner("evaluate", plan, "--requests", "1000", "--json")
    assert again.code == 0, again.err


def test_a_scenario_names_a_profile(planner, tmp_path, scenario_file, profile):
    (tmp_path / "engine.yaml").write_text(profile.read_text(encoding="utf-8"), encoding="utf-8")
    scenario = json.loads(scenario_file.read_text(encoding="utf-8"))
    named = written(tmp_path, "named.yaml", scenario | {"engine_profile": "engine.yaml"})
    plan = tmp_path / "there" / "plan.yaml"
    plan.parent.mkdir()
    quick = ("--no-alternatives", "--no-verify", "-o", plan)
    assert planner("solve", named, *quick).code == 0
    document = yaml.safe_load(plan.read_text(encoding="utf-8"))
    assert document["scenario"]["engine_profile"] == "../engine.yaml"
    (tmp_path / "engine.yaml").unlink()
    result = planner("evaluate", plan)
    assert result.code == 2
    assert "engine_profile" in result.err
    assert "no such file" in result.err


def test_a_profile_of_another_engine(planner, tmp_path, scenario_file, profile):
    scenario = json.loads(scenario_file.read_text(encoding="utf-8")) | {"engine": "sglang"}
    named = written(tmp_path, "named.yaml", scenario | {"engine_profile": str(profile)})
    result = planner("solve", named)
    assert result.code == 2
    assert "is of vllm, the engine here is sglang" in result.err
    other = written(tmp_path, "other.yaml", scenario)
    quick = ("--no-alternatives", "--no-verify", "--json")
    refused = planner("solve", other, "--engine-profile", profile, *quick)
    assert refused.code == 2
    assert "the engine profile is of vllm, the file's engine is sglang" in refused.err
    del scenario["engine"]
    found = planner("solve", written(tmp_path, "none.yaml", scenario), "--engine-profile", profile, *quick)
    assert found.code == 0, found.err
    assert found.facts["engine"]["name"] == "vllm"
    result = planner(*PREDICT, "-c", 1, "--engine", "sglang", "--engine-profile", profile)
    assert result.code == 2
    assert "the engine profile is of vllm, the engine is sglang" in result.err


def test_of_several_models_those_on_its_engine(planner, tmp_path, scenario_file, profile):
    one = json.loads(scenario_file.read_text(encoding="utf-8"))
    served = {key: one[key] for key in ("model", "workload", "slo")}
    models = [served | {"name": "a"}, served | {"name": "b", "engine": "sglang"}]
    both = written(tmp_path, "both.yaml", {"models": models, "fleet": one["fleet"]})
    quick = ("--no-alternatives", "--no-verify", "--json", "--engine-profile", profile)
    result = planner("solve", both, *quick)
    assert result.code == 0, result.err
    entries = result.facts["scenario"]["models"]
    assert [entry.get("engine_profile") for entry in entries] == [str(profile), None]
    none = written(tmp_path, "none.yaml", {"models": models[1:], "fleet": one["fleet"]})
    refusal = planner("solve", none, *quick)
    assert refusal.code == 2
    assert "is a profile of vllm, on which no model of the file is" in refusal.err


def test_a_gpu_that_was_not_measured_is_said(planner, tmp_path, scenario_file, profile):
    scenario = json.loads(scenario_file.read_text(encoding="utf-8"))
    scenario["fleet"][0] |= {"gpu": "a100-80gb-sxm"}
    other = written(tmp_path, "other.yaml", scenario)
    quick = ("--no-alternatives", "--no-verify", "--json")
    result = planner("solve", other, "--engine-profile", profile, *quick)
    assert any("was measured on h100-sxm" in note for note in result.facts["notes"])


def test_predictions_with_a_profile_are_what_was_measured(planner, profile):
    for run in RUNS[4:8]:
        words = (*PREDICT, "-c", run["max_concurrency"])
        plain, own = planner(*words).facts, planner(*words, "--engine-profile", profile).facts
        assert own["tpot_ms"] == pytest.approx(run["mean_tpot_ms"], rel=0.06)
        assert abs(plain["tpot_ms"] / run["mean_tpot_ms"] - 1) > 0.1
    result = planner(*words, "--engine-profile", profile, "--engine-version", "0.18.0")
    assert result.code == 2
    assert "the engine profile says which version was measured" in result.err


def test_times_between_tokens_rise_gradually_with_load(planner, profile):
    """ai-dynamo/aiconfigurator#1205: ITL that stays flat up to one concurrency, and jumps at the next."""
    clients = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    for words in ((), ("--engine-profile", profile)):
        tpot = [planner(*PREDICT, "-c", c, *words).facts["tpot_ms"] for c in clients]
        steps = [b / a for a, b in pairwise(tpot)]
        assert min(steps) > 1.0
        assert max(steps) < 2.1  # clients double


@pytest.mark.slow
def test_validate_with_a_profile(planner, tmp_path):
    path = subset(tmp_path, lambda row: row["backend"] == "vllm")
    output = tmp_path / "engine.yaml"
    assert planner("calibrate", "engine", path, "-o", output).code == 0
    words = ("validate", path, "--constants", "none", "--json")
    plain, own = planner(*words).facts, planner(*words, "--engine-profile", output).facts
    for kind in ("tpot", "ttft"):
        assert own["overall"][kind]["median_ape"] < plain["overall"][kind]["median_ape"]
    refusal = planner("validate", Path(MEASURED.parent / "published_rows.csv"), "--engine-profile", output)
    assert refusal.code == 2
    assert "not for published values in long format" in refusal.err


def test_a_broken_profile_is_refused_with_its_line(planner, tmp_path, scenario_file, profile):
    text = profile.read_text(encoding="utf-8").replace("log_sd: 0", "log_sd: -0", 1)
    broken = written(tmp_path, "broken.yaml", text)
    result = planner("solve", scenario_file, "--engine-profile", broken)
    assert result.code == 2
    assert "broken.yaml" in result.err
    assert "log_sd" in result.err
    assert "line" in result.err


def test_a_fleet_file_with_a_profile(planner, tmp_path, profile):
    fleet = {
        "model": MODEL,
        "workload": {"request_rate": 5, "input_tokens": 1000, "output_tokens": 200},
        "slo": {"ttft_ms": {"p99": 2000}, "tpot_ms": {"p99": 60}},
        "groups": [{"phase": "colocated", "gpu": "h100-sxm", "tp": 1, "replicas": 2}],
    }
    path = written(tmp_path, "fleet.yaml", fleet)
    words = ("simulate", path, "--requests", "2000", "--json")
    plain, own = planner(*words).facts, planner(*words, "--engine-profile", profile).facts
    assert own["tpot_ms"]["mean"] > 1.1 * plain["tpot_ms"]["mean"]

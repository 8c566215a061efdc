"""``planner validate``: files of both forms, choices, groups, output, bad input."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"
MEASURED = GOLDEN / "measured_rows.csv"
PUBLISHED = GOLDEN / "published_rows.csv"


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def report(planner, *words: str | Path) -> dict:
    result = planner("validate", *map(str, words), "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


def refused(planner, *words: str | Path) -> str:
    result = planner("validate", *map(str, words))
    assert (result.code, result.out) == (2, "")
    assert "Traceback" not in result.err
    return result.err


def test_errors_and_counts_of_a_measured_file(planner):
    found = report(planner, MEASURED, "--constants", "none")
    assert set(found) >= {"overall", "groups", "unpredicted", "repairs", "fitted_to", "rows"}
    assert found["rows"] == len(rows(MEASURED))
    assert found["fitted_to"] == 0
    for kind in ("tpot", "ttft"):
        errors = found["overall"][kind]
        assert set(errors) == {"n", "median_ape", "mape", "p90_ape", "bias", "covered"}
        assert errors["n"] + sum(found["unpredicted"].values()) == found["rows"]
    assert 0 < found["overall"]["tpot"]["median_ape"] < 0.15


def test_rows_that_were_fitted_to_are_said(planner):
    found = report(planner, MEASURED)
    assert found["fitted_to"] == found["overall"]["tpot"]["n"]
    result = planner("validate", str(MEASURED))
    assert "fitted to" in result.out
    assert "--constants crossfit" in result.out


def test_groups_add_up(planner):
    found = report(planner, MEASURED, "--constants", "none", "--by", "system,kind")
    keys = [(g["key"]["system"], g["key"]["kind"]) for g in found["groups"]]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys) > 3
    assert sum(g["tpot"]["n"] for g in found["groups"]) == found["overall"]["tpot"]["n"]


def test_only_rows_that_were_asked_for(planner):
    dense = report(planner, MEASURED, "--constants", "none", "--where", "dense")
    moe = report(planner, MEASURED, "--constants", "none", "--where", "moe")
    whole = report(planner, MEASURED, "--constants", "none")
    assert dense["overall"]["tpot"]["n"] + moe["overall"]["tpot"]["n"] == whole["overall"]["tpot"]["n"]
    some = report(
        planner, MEASURED, "--constants", "none", "--where", "dense", "--where", "backend=vllm,sglang"
    )
    expected = [r for r in rows(MEASURED) if r["backend"] in ("vllm", "sglang")]
    assert 0 < some["rows"] < len(expected)


def test_a_choice_of_rows_does_not_change_predictions(planner, tmp_path):
    """Constants come from the other half of the whole file, whatever rows are shown."""
    table = tmp_path / "all.csv", tmp_path / "some.csv"
    for path, words in zip(table, ([], ["--where", "backend=vllm"]), strict=True):
        report(planner, MEASURED, "--constants", "crossfit", "-o", path, *words)
    whole = {r["id"]: r["predicted_tpot_ms"] for r in rows(table[0])}
    some = {r["id"]: r["predicted_tpot_ms"] for r in rows(table[1])}
    assert 0 < len(some) < len(whole)
    assert all(whole[row] == value for row, value in some.items())


def test_the_table_has_the_input_and_the_predictions(planner, tmp_path):
    path = tmp_path / "predictions.csv"
    found = report(planner, MEASURED, "--constants", "none", "-o", path)
    before, after = rows(MEASURED), rows(path)
    assert [r["id"] for r in after] == [r["id"] for r in before]
    for old, new in zip(before, after, strict=True):
        assert {name: new[name] for name in old} == {name: value.strip() for name, value in old.items()}
        assert bool(new["predicted_tpot_ms"]) == bool(new["predicted_ttft_ms"]) == (not new["reason"])
    off = sorted(
        abs(float(r["predicted_tpot_ms"]) / float(r["silicon_tpot_ms"]) - 1)
        for r in after
        if r["predicted_tpot_ms"]
    )
    middle = (off[(len(off) - 1) // 2] + off[len(off) // 2]) / 2
    assert middle == pytest.approx(found["overall"]["tpot"]["median_ape"], rel=1e-3)


def test_published_values_in_long_format(planner, tmp_path):
    path = tmp_path / "predictions.csv"
    found = report(planner, PUBLISHED, "--by", "group,metric", "-o", path)
    assert found["rows"] == len(rows(PUBLISHED))
    assert {"tpot", "ttft", "e2e", "throughput"} <= set(found["overall"])
    assert found["unpredicted"]
    for row in rows(path):
        if row["metric"] == "ttft_p50_ms" and row["predicted_ttft_ms"]:
            assert 0.1 < float(row["predicted_ttft_ms"]) / float(row["value"]) < 10  # in the row's unit
    crossed = report(planner, PUBLISHED, "--constants", "crossfit")
    assert crossed["overall"]["e2e"]["n"] == found["overall"]["e2e"]["n"]


def test_a_tool_is_compared_on_the_rows_that_both_predict(planner, tmp_path):
    path = tmp_path / "peer.csv"
    known = [r for r in rows(MEASURED) if r["mode"] == "agg"][:10]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "other_ttft_ms", "other_tpot_ms"])
        writer.writerows([r["id"], "", 2 * float(r["silicon_tpot_ms"])] for r in known)
    found = report(planner, MEASURED, "--constants", "none", "--peer", path)
    assert found["peer"]["name"] == "other"
    assert found["peer"]["theirs"]["tpot"]["n"] == found["peer"]["ours"]["tpot"]["n"] == 10
    assert found["peer"]["theirs"]["tpot"]["median_ape"] == pytest.approx(1.0)
    result = planner("validate", str(MEASURED), "--constants", "none", "--peer", str(path))
    assert "other" in result.out


def test_a_family_is_left_out(planner):
    found = report(planner, MEASURED, "--leave-out", "minimax")
    assert found["overall"]["tpot"]["n"] == sum("MiniMax" in r["model_path"] for r in rows(MEASURED))


def test_an_anchor_is_not_scored(planner):
    found = report(planner, MEASURED, "--constants", "none", "--anchor")
    assert any("measured point" in reason for reason in found["unpredicted"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--where", "modle=x"], "did you mean mode"),
        (["--where", "backend=vlm"], "did you mean vllm"),
        (["--where", "sparse"], "dense, moe or COLUMN=VALUE"),
        (["--by", "gpu_name"], "no column 'gpu_name'"),
        (["--leave-out", "nobody"], "no row has a model with 'nobody'"),
        (["--leave-out", "MiniMax", "--constants", "none"], "drop --constants"),
        (["--constants", "some"], "is not one of"),
        (["--peer", "missing.csv"], "no such file"),
    ],
)
def test_options_that_make_no_sense(planner, words, said):
    assert said in refused(planner, MEASURED, *words)


def test_options_of_the_other_form(planner):
    assert "long format" in refused(planner, PUBLISHED, "--anchor")
    assert "none are shipped" in refused(planner, PUBLISHED, "--constants", "shipped")


def test_files_of_no_form(planner, tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b\n1,2\n")
    assert "no column model_path" in refused(planner, path)
    path.write_text("")
    refused(planner, path)
    assert "no such file" in refused(planner, tmp_path / "absent.csv")


def test_outputs_replace_no_input(planner):
    before = MEASURED.read_bytes()
    assert "would replace" in refused(planner, MEASURED, "-o", MEASURED)
    assert MEASURED.read_bytes() == before


def test_nothing_is_written_where_a_cell_is_bad(planner, tmp_path):
    table = rows(MEASURED)[:3]
    table[1]["silicon_tpot_ms"] = "fast"
    path, output = tmp_path / "bad.csv", tmp_path / "out.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    said = refused(planner, path, "-o", output)
    assert "line 3: silicon_tpot_ms: must be a finite number > 0" in said
    assert "fast" in said
    assert not output.exists()


def test_peers_with_bad_cells(planner, tmp_path):
    path = tmp_path / "peer.csv"
    path.write_text("id,other_ttft_ms,other_tpot_ms\nx,1,abc\n")
    assert "line 2: other_tpot_ms" in refused(planner, MEASURED, "--constants", "none", "--peer", path)
    path.write_text("id,tpot\nx,1\n")
    assert "NAME_tpot_ms" in refused(planner, MEASURED, "--constants", "none", "--peer", path)
    path.write_text("id,other_ttft_ms,other_tpot_ms\nx,1,2\n")
    assert "none of the rows" in refused(planner, MEASURED, "--constants", "none", "--peer", path)


def test_what_rows_were_taken_for_stands_in_the_table(planner, tmp_path):
    path = tmp_path / "predictions.csv"
    report(planner, MEASURED, "--constants", "none", "-o", path)
    for row in rows(path):
        if not row["reason"]:
            assert row["assumed_weights"]
            assert row["assumed_kv_cache"]
            assert row["assumed_layout"].startswith(("TP", "4 x TP", "1 x TP", "2 x TP"))
    assert any("KV cache" in row["assumed_repairs"] for row in rows(path))


def test_counts_are_those_of_the_chosen_rows(planner):
    whole = report(planner, MEASURED)
    some = report(planner, MEASURED, "--where", "backend=trtllm", "--where", "tp_size=4")
    assert some["fitted_to"] == some["rows"] < whole["fitted_to"]
    assert sum(some["repairs"].values()) < sum(whole["repairs"].values())
    assert all("tp" not in key for key in some["unpredicted"])


def test_seconds_in_columns_of_milliseconds_are_noticed(planner, tmp_path):
    path = tmp_path / "seconds.csv"
    table = rows(MEASURED)
    for row in table:
        for name in ("silicon_ttft_ms", "silicon_tpot_ms"):
            row[name] = str(float(row[name]) / 1000)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    assert any("hold milliseconds" in note for note in report(planner, path, "--constants", "none")["notes"])
    assert not report(planner, MEASURED, "--constants", "none")["notes"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-"], "must be a file"),
        ([MEASURED, "-o", "-"], "must be a file"),
        ([MEASURED, "--split", "load"], "belongs to --constants crossfit"),
        ([MEASURED, "--leave-out", "MiniMax", "--where", "dense"], "is scored"),
    ],
)
def test_options_that_would_do_nothing(planner, words, said):
    assert said in refused(planner, *words)


def test_unknown_names_are_counted_by_name_with_the_nearest(planner, tmp_path):
    path = tmp_path / "typo.csv"
    table = rows(MEASURED)
    table[0]["backend"] = "vlm"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    found = report(planner, path, "--constants", "none")
    assert found["unpredicted"] == {"engine is not known: vlm (did you mean vllm?)": 1}

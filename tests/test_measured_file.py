"""Files of measured latencies: what is read, and what is said about cells that cannot be right."""

from __future__ import annotations

import csv
import gzip
import math
from pathlib import Path

import pytest

from planner.documents.measured_file import (
    LARGEST,
    REQUIRED,
    MeasuredFile,
    is_measured,
    measured_columns,
    read_measured,
)
from planner.documents.measurement_table import MAX_SHOWN
from planner.errors import SpecError

GOLDEN = Path(__file__).parent / "golden" / "measured_rows.csv"
PLAIN = {
    "id": "one",
    "backend": "vllm",
    "backend_version": "0.16.0",
    "model_path": "meta-llama/Llama-3.1-70B",
    "system": "h100_sxm",
    "mode": "agg",
    "isl": "1024",
    "osl": "128",
    "gemm_quant_mode": "fp8",
    "moe_quant_mode": "fp8",
    "concurrency": "8",
    "batch_size": "8",
    "tp_size": "4",
    "n_gpus_total": "4",
    "silicon_ttft_ms": "250",
    "silicon_tpot_ms": "12.5",
}
DISAGG = {
    **PLAIN,
    "mode": "disagg",
    "tp_size": "",
    "prefill_num_workers": "2",
    "prefill_tp_size": "4",
    "decode_num_workers": "3",
    "decode_tp_size": "8",
    "decode_attention_dp_size": "2",
}


def written(folder: Path, *rows: dict[str, str], name: str = "rows.csv") -> Path:
    path = folder / name
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        table.writeheader()
        table.writerows(rows)
    return path


def read(folder: Path, *rows: dict[str, str]) -> MeasuredFile:
    return read_measured(written(folder, *rows))


def problems(path: Path) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read_measured(path)
    assert str(caught.value).startswith(f"{path}: ")
    return [str(problem) for problem in caught.value.problems]


def text_problems(folder: Path, text: str) -> list[str]:
    path = folder / "rows.csv"
    path.write_text(text, newline="")
    return problems(path)


# --------------------------------------------------------------------------------------------
# Reading


def test_golden_rows_are_read_in_order():
    file = read_measured(GOLDEN)
    with GOLDEN.open(newline="") as text:
        cells = list(csv.DictReader(text))
    assert [row.id for row in file.rows] == [row["id"] for row in cells]
    assert [row.line for row in file.rows] == list(range(2, len(cells) + 2))
    assert [dict(row.cells) for row in file.rows] == cells
    assert [row.tpot for row in file.rows] == [float(row["silicon_tpot_ms"]) * 1e-3 for row in cells]
    assert file.columns == tuple(cells[0])
    assert {row.engine for row in file.rows} == {"vllm", "sglang", "trtllm"}


def test_a_row_by_its_cells(tmp_path):
    file = read(tmp_path, PLAIN)
    row, (pool,) = file.rows[0], file.rows[0].pools
    assert (row.line, row.id, row.model, row.gpu) == (2, "one", "meta-llama/Llama-3.1-70B", "h100_sxm")
    assert (row.engine, row.version, row.gemm, row.moe) == ("vllm", "0.16.0", "fp8", "fp8")
    assert (row.isl, row.osl, row.concurrency, row.batch_size, row.gpus) == (1024, 128, 8, 8, 4)
    assert (row.ttft, row.tpot) == (pytest.approx(0.25), pytest.approx(0.0125))
    assert (pool.workers, pool.tp, pool.pp, pool.dp, pool.moe_tp, pool.ep) == (1, 4, None, None, None, None)
    assert not row.disaggregated
    assert dict(row.cells) == PLAIN


def test_a_disaggregated_row_has_two_pools(tmp_path):
    row = read(tmp_path, DISAGG).rows[0]
    prefill, decode = row.pools
    assert row.disaggregated
    assert (prefill.workers, prefill.tp, prefill.dp) == (2, 4, None)
    assert (decode.workers, decode.tp, decode.dp) == (3, 8, 2)


@pytest.mark.parametrize("name", ["concurrency", "batch_size", "tp_size", "n_gpus_total", "silicon_ttft_ms"])
def test_an_empty_cell_is_none(tmp_path, name):
    row = read(tmp_path, {**PLAIN, name: ""}).rows[0]
    found = {
        "concurrency": row.concurrency,
        "batch_size": row.batch_size,
        "tp_size": row.pools[0].tp,
        "n_gpus_total": row.gpus,
        "silicon_ttft_ms": None if math.isnan(row.ttft) else row.ttft,
    }
    assert found.pop(name) is None
    assert None not in found.values()


@pytest.mark.parametrize("name", ["backend_version", "gemm_quant_mode", "moe_quant_mode", "batch_size", "id"])
def test_columns_that_may_be_absent(tmp_path, name):
    row = read(tmp_path, {key: value for key, value in PLAIN.items() if key != name}).rows[0]
    assert row.tpot == pytest.approx(0.0125)


@pytest.mark.parametrize("rows", [[{**PLAIN, "id": ""}], [{k: v for k, v in PLAIN.items() if k != "id"}]])
def test_a_row_without_an_id_is_named_by_its_line(tmp_path, rows):
    assert [row.id for row in read(tmp_path, *rows, *rows).rows] == ["line 2", "line 3"]


def test_one_of_two_latencies_is_enough(tmp_path):
    row = read(tmp_path, {k: v for k, v in PLAIN.items() if k != "silicon_ttft_ms"}).rows[0]
    assert math.isnan(row.ttft)
    assert row.tpot == pytest.approx(0.0125)


def test_names_of_engines_and_formats_are_read_in_any_case(tmp_path):
    row = read(tmp_path, {**PLAIN, "backend": "SGLang", "gemm_quant_mode": "FP8_Block"}).rows[0]
    assert (row.engine, row.gemm) == ("sglang", "fp8_block")


def test_cells_are_read_without_the_space_around_them(tmp_path):
    text = "\n".join(",".join(f" {cell} " for cell in line) for line in (PLAIN, PLAIN.values()))
    path = tmp_path / "rows.csv"
    path.write_text(text)
    assert dict(read_measured(path).rows[0].cells) == PLAIN


# --------------------------------------------------------------------------------------------
# Files


def test_gzip_is_read_too(tmp_path):
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(GOLDEN.read_bytes()))
    assert read_measured(path).rows == read_measured(GOLDEN).rows
    assert measured_columns(path) == measured_columns(GOLDEN)


@pytest.mark.parametrize("change", ["bom", "crlf", "cr", "blank lines", "no last line end"])
def test_text_is_read_as_editors_leave_it(tmp_path, change):
    data = GOLDEN.read_bytes()
    data = {
        "bom": b"\xef\xbb\xbf" + data,
        "crlf": data.replace(b"\n", b"\r\n"),
        "cr": data.replace(b"\n", b"\r"),
        "blank lines": data + b"\n\n",
        "no last line end": data.rstrip(b"\n"),
    }[change]
    path = tmp_path / "rows.csv"
    path.write_bytes(data)
    assert read_measured(path).rows == read_measured(GOLDEN).rows
    assert measured_columns(path) == measured_columns(GOLDEN)


def test_quoted_cells_may_hold_commas_and_line_ends(tmp_path):
    first, second = read(tmp_path, {**PLAIN, "origin": 'a, "b"\nc'}, {**PLAIN, "origin": ""}).rows
    assert first.origin == 'a, "b"\nc'
    assert second.line == 4  # the cell's line end counts


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("\n", "line 1: has no columns"),
        (",".join(PLAIN) + "\n", "has no rows"),
        (";".join(PLAIN) + "\n", "line 1: cells are separated by semicolons, must be by commas"),
        ("\t".join(PLAIN) + "\n", "line 1: cells are separated by tabs, must be by commas"),
    ],
)
def test_files_without_rows(tmp_path, text, said):
    assert text_problems(tmp_path, text) == [said]


def test_a_folder_is_no_file(tmp_path):
    assert problems(tmp_path) == ["is a folder, not a file"]


def test_a_missing_file_names_the_nearest(tmp_path):
    written(tmp_path, PLAIN)
    assert problems(tmp_path / "row.csv") == [f"no such file (did you mean {tmp_path / 'rows.csv'}?)"]


def test_a_damaged_gzip_file(tmp_path):
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(GOLDEN.read_bytes())[:-20])
    assert problems(path) == ["is a damaged gzip file"]


def test_a_parquet_file_is_said_to_be_one(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes(b"PAR1\x15\x04")
    assert problems(path) == ["is a Parquet file (plain text in UTF-8 and gzip are read)"]


@pytest.mark.parametrize("reader", [read_measured, measured_columns])
def test_a_cell_without_an_end_is_refused(tmp_path, reader):
    path = tmp_path / "rows.csv"
    path.write_text('"' + "x" * 200_000)
    with pytest.raises(SpecError, match="line 1: field larger than field limit"):
        reader(path)


def test_more_rows_than_anyone_has(tmp_path, monkeypatch):
    monkeypatch.setattr("planner.documents.measurement_table.MAX_ROWS", 2)
    assert problems(written(tmp_path, PLAIN, {**PLAIN, "isl": "?"}, PLAIN)) == ["has more than 2 rows"]


# --------------------------------------------------------------------------------------------
# Columns


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_column_is_named(tmp_path, name):
    path = written(tmp_path, {key: value for key, value in PLAIN.items() if key != name})
    (said,) = problems(path)
    assert said.startswith(f"line 1: no column {name} (")


def test_all_missing_columns_are_named_with_the_nearest(tmp_path):
    row = {key: value for key, value in PLAIN.items() if key not in ("tp_size", "osl")}
    (said,) = problems(written(tmp_path, {**row, "osl_": "1"}))
    assert said == "line 1: no column osl, tp_size (did you mean osl_?)"


def test_a_file_without_latencies(tmp_path):
    row = {key: value for key, value in PLAIN.items() if not key.startswith("silicon")}
    (said,) = problems(written(tmp_path, row))
    assert said.startswith("line 1: no column silicon_tpot_ms")


def test_a_column_twice(tmp_path):
    text = f"{','.join(PLAIN)},isl\n{','.join(PLAIN.values())},1\n"
    assert text_problems(tmp_path, text) == ["line 1: column 'isl' occurs twice"]


def test_what_the_form_is_told_by():
    assert is_measured(measured_columns(GOLDEN))
    assert not is_measured(("id", "metric", "value"))


# --------------------------------------------------------------------------------------------
# Cells

NUMBER = "must be a finite number > 0, or empty"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("isl", "nan", f"{NUMBER}, got nan"),
        ("isl", "", "must be a finite number > 0"),
        ("osl", "0", f"{NUMBER}, got 0"),
        ("osl", "-128", f"{NUMBER}, got -128"),
        ("osl", "many", f"{NUMBER}, got many"),
        ("osl", "1_000", f"{NUMBER}, got 1_000"),
        ("osl", "1,000", f"{NUMBER}, got 1,000"),
        ("concurrency", "inf", f"{NUMBER}, got inf"),
        ("concurrency", "1e13", f"must be at most {LARGEST:g}, got 1e13"),
        ("concurrency", "9" * 400, f"{NUMBER}, got {'9' * 57}..."),
        ("batch_size", "8 x", f"{NUMBER}, got 8 x"),
        ("tp_size", "2.5", "must be a whole number, got 2.5"),
        ("n_gpus_total", "0.5", "must be a whole number, got 0.5"),
        ("silicon_ttft_ms", "-1", f"{NUMBER}, got -1"),
        ("silicon_tpot_ms", "1e", f"{NUMBER}, got 1e"),
        ("mode", "disag", "must be one of agg, disagg, got disag (did you mean disagg?)"),
        ("mode", "", "must be one of agg, disagg"),
        ("model_path", "", "must not be empty"),
        ("system", "", "must not be empty"),
        ("backend", "", "must not be empty"),
    ],
)
def test_a_bad_cell_is_named_with_line_column_rule_and_value(tmp_path, name, value, said):
    assert problems(written(tmp_path, PLAIN, {**PLAIN, name: value})) == [f"line 3: {name}: {said}"]


@pytest.mark.parametrize("name", ["prefill_tp_size", "decode_num_workers", "decode_attention_dp_size"])
def test_sizes_of_pools_are_whole(tmp_path, name):
    assert problems(written(tmp_path, {**DISAGG, name: "1.5"})) == [
        f"line 2: {name}: must be a whole number, got 1.5"
    ]


def test_a_row_with_too_many_or_too_few_cells(tmp_path):
    header, cells = ",".join(PLAIN), ",".join(PLAIN.values())
    text = f"{header}\n{cells}\n{cells},extra\n{cells.rpartition(',')[0]}\n"
    assert text_problems(tmp_path, text) == [
        "line 3: has more cells than the first line",
        "line 4: has fewer cells than the first line",
    ]


def test_all_problems_come_at_once(tmp_path):
    rows = ({**PLAIN, "isl": "?", "osl": "-1"}, PLAIN, {**PLAIN, "mode": "both"})
    assert [said.split(":")[:2] for said in problems(written(tmp_path, *rows))] == [
        ["line 2", " isl"],
        ["line 2", " osl"],
        ["line 4", " mode"],
    ]


def test_more_problems_than_are_shown_are_counted(tmp_path):
    path = written(tmp_path, *[{**PLAIN, "isl": "?"}] * (MAX_SHOWN + 7))
    with pytest.raises(SpecError) as caught:
        read_measured(path)
    lines = str(caught.value).splitlines()
    assert len(lines) == 1 + MAX_SHOWN + 1
    assert lines[-1] == "  - and 7 more"
    assert len(caught.value.problems) == MAX_SHOWN + 7


def test_bytes_that_are_no_text_are_refused_where_numbers_stand(tmp_path):
    path = written(tmp_path, PLAIN)
    path.write_bytes(path.read_bytes().replace(b"1024", b"10\xff4"))
    (said,) = problems(path)
    assert said.startswith(f"line 2: isl: {NUMBER}")

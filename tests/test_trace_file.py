"""Trace files: what is read from good ones, and what is said about bad ones."""

from __future__ import annotations

import gzip
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from planner.catalog import traffic_of
from planner.documents import files
from planner.documents.trace_columns import ALIASES, ARRIVAL, BLOCKS, ISL, OSL, recognise
from planner.documents.trace_file import read_trace
from planner.documents.trace_times import Dates, unit_of
from planner.errors import SpecError
from planner.traces import Trace, measure

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2024-03-02 09:15:00.0000000,4100,11
2024-03-02 09:15:00.0520000,3000,9
2024-03-02 09:15:00.0981234,120,26
2024-03-02 09:15:00.0981234,7400,14
2024-03-02 09:15:00.7011111,40,12
2024-03-02 09:15:01.0165000,380,15"""
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
MOONCAKE = """\
{"timestamp": 0, "input_length": 256, "output_length": 32, "hash_ids": [0]}
{"timestamp": 200, "input_length": 700, "output_length": 16, "hash_ids": [0, 1]}
{"timestamp": 400, "input_length": 512, "output_length": 8, "hash_ids": [2]}
"""
BAILIAN = """\
{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 33, "output_length": 5, \
"type": "text", "turn": 1, "hash_ids": [1, 2, 3]}
{"chat_id": 2, "parent_chat_id": 1, "timestamp": 61.114, "input_length": 40, "output_length": 7, \
"type": "text", "turn": 2, "hash_ids": [1, 2]}
"""
BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,"GPT-4, large",1087,0,1087,API log
"""
SPLITWISE = "arrival_timestamp,prompt_size,token_size\n0.0,374,44\n4.31,396,109\n"

Reader = Callable[..., Trace]


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    def read(content: str | bytes, name: str = "t.csv", **options) -> Trace:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_trace(path, **options)

    return read


def problems(read: Reader, content: str | bytes, name: str = "t.csv", **options) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read(content, name, **options)
    return [str(problem) for problem in caught.value.problems]


# Layouts


def test_azure_dates_with_seven_digits(read):
    found = read(AZURE)
    assert found.requests == 6
    assert found.duration == 1.0165
    assert (found.isl.sum(), found.osl.sum()) == (15_040, 87)
    assert found.arrival.tolist() == [0, 0.052, pytest.approx(0.0981234), found.arrival[2], 0.7011111, 1.0165]
    assert found.isl.tolist() == [4100, 3000, 120, 7400, 40, 380]  # order of rows at one time
    assert measure(found).request_rate == pytest.approx(6 / 1.0165)
    assert (found.layout, found.unit) == ("Azure LLM inference (CSV)", "dates")


def test_azure_dates_with_zone(read):
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    text += "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 02:00:00.5+02:00,2399,6\n"
    text += "2024-05-10T00:00:01Z,1,1\n2024-05-10 00:00,1,1\n"
    assert read(text).arrival.tolist() == [0, pytest.approx(0.00993), 0.5, 1]


def test_bom_and_crlf(read):
    text = VIDUR + "0.0,512,128\n0.5,1024,64\n1.0,256,256\n\n"
    found = read(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert (found.requests, found.duration, found.isl.sum(), found.osl.sum()) == (3, 1.0, 1792, 448)
    assert (found.layout, found.unit) == ("Vidur (CSV)", "s")


def test_a_broken_json_line_is_named(read):
    lines = MOONCAKE.splitlines()
    lines[2] = '{"timestamp": 130, "input_length": 900, "output_length": 27 61, "hash_ids": [0, 4]}'
    (problem,) = problems(read, "\n".join(lines), "t.jsonl")
    assert problem == "line 3: is not JSON: Expecting ',' delimiter at column 61"


def test_mooncake_milliseconds_and_blocks(read):
    found = read(MOONCAKE, "t.jsonl")
    assert (found.requests, found.duration) == (3, 0.4)
    assert (found.layout, found.unit) == ("Mooncake (JSON lines)", "ms")
    assert found.blocks is not None
    assert (found.blocks.offsets.tolist(), found.blocks.ids.tolist()) == ([0, 1, 3, 4], [0, 0, 1, 2])
    prefix = measure(found).prefix
    assert prefix is not None
    assert prefix.found_tokens == 256


def test_whole_floats_are_tokens_and_others_are_not(read):
    found = read(VIDUR + "0.00,512.0,128.0\n0.25,1024.0,64.0\n")
    assert (found.requests, found.isl.sum(), found.osl.sum()) == (2, 1536, 192)
    (problem,) = problems(read, VIDUR + "0.00,512.0,128.0\n0.25,512.5,64.0\n")
    assert problem == "line 3: input tokens: must be a whole number, got '512.5'"


def test_unsorted_rows_are_sorted_and_it_is_said(read):
    found = read(VIDUR + "3.0,100,10\n1.0,200,20\n2.0,300,30\n1.0,400,40\n")
    assert (found.requests, found.duration) == (4, 2.0)
    assert found.isl.tolist() == [200, 400, 300, 100]
    assert found.lines.tolist() == [3, 5, 4, 2]
    assert found.notes == ("2 rows come before the arrival of the row above: sorted by arrival",)


def test_blocks_are_sorted_with_their_rows(read):
    lines = MOONCAKE.splitlines()
    found = read("\n".join([lines[1], lines[2], lines[0]]), "t.jsonl")
    assert found.blocks is not None
    assert (found.blocks.offsets.tolist(), found.blocks.ids.tolist()) == ([0, 1, 3, 4], [0, 0, 1, 2])


@pytest.mark.parametrize("text", ["", "\n \r\n", VIDUR, VIDUR + "\n,,\n"])
def test_files_without_rows_are_empty(read, text):
    (problem,) = problems(read, text)
    assert problem.startswith("is empty")


def test_requests_beyond_a_context_are_kept(read):
    found = read(VIDUR + "0,4096,100\n1,140000,100\n2,4096,100\n")
    assert found.requests == 3
    beyond = found.beyond(131_072)
    assert (len(beyond), found.lines[beyond[0]], found.isl[beyond[0]]) == (1, 3, 140_000)


def test_spaces_in_header_and_cells(read):
    found = read(" arrived_at , num_prefill_tokens ,num_decode_tokens \n0, 512 ,16\n2, 512 ,16\n")
    assert (found.requests, found.duration) == (2, 2.0)


def test_qwen_bailian(read):
    found = read(BAILIAN, "t.jsonl")
    assert (found.layout, found.unit, found.duration) == (
        "Qwen-Bailian (JSON lines)",
        "s",
        pytest.approx(60.614),
    )
    prefix = measure(found).prefix
    assert prefix is not None
    assert (prefix.block_size, prefix.found_tokens) == (16, 32)


def test_burstgpt(read):
    found = read(BURSTGPT)
    assert (found.layout, found.unit, found.duration) == ("BurstGPT (CSV)", "s", 40)
    assert (found.isl.tolist(), found.osl.tolist()) == ([472, 1087], [18, 0])


def test_splitwise(read):
    found = read(SPLITWISE)
    assert (found.layout, found.unit, found.duration) == ("Splitwise (CSV)", "s", 4.31)


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
def test_delimiters(read, delimiter):
    found = read((VIDUR + "0,5,6\n1,7,8\n").replace(",", delimiter), "t.tsv")
    assert (found.isl.tolist(), found.osl.tolist()) == ([5, 7], [6, 8])


def test_quotes(read):
    found = read(
        '"arrived_at","num_prefill_tokens",num_decode_tokens,prompt\n"0", "5",6,"a ""b"",\nc"\n1,7,8,x\n'
    )
    assert (found.isl.tolist(), found.lines.tolist()) == ([5, 7], [2, 4])


def test_gzip(read, tmp_path):
    found = read(gzip.compress(AZURE.encode()), "azure code (1).csv.gz")
    assert (found.requests, found.name) == (6, "azure-code-1")


def test_json_values_may_be_text(read):
    text = '{"ts": "2024-05-10T00:00:00Z", "isl": "5", "osl": 3.0, "x": [1]}\n'
    text += '{"osl": 1, "isl": 5, "ts": "2024-05-10T00:00:02Z"}'
    found = read(text, "t.jsonl")
    assert (found.duration, found.isl.tolist(), found.osl.tolist()) == (2, [5, 5], [3, 1])


def test_hashes_of_64_bits_and_in_text(read):
    text = "timestamp_s,input_tokens,output_tokens,hash_ids\n0,1024,1,18446744073709551615 7\n"
    text += '1,1024,1,"[18446744073709551615, 8]"\n2,1024,1,"[-5, 8]"\n'
    found = read(text)
    assert found.blocks is not None
    assert found.blocks.ids.tolist() == [-1, 7, -1, 8, -5, 8]


def test_rows_of_many_chunks(read):
    rows = [f"{i / 8},{i % 900 + 1},{i % 70}" for i in range(45_000)]
    rows[44_000] = "5500,1.0,3.0"  # another form, in the last chunk
    found = read(VIDUR + "\n".join(rows))
    assert found.requests == 45_000
    assert found.isl.sum() == sum(i % 900 + 1 for i in range(45_000)) - 44_000 % 900
    assert found.lines.tolist() == list(range(2, 45_002))


# Names of columns


@pytest.mark.parametrize("role", [ARRIVAL, ISL, OSL, BLOCKS])
def test_every_alias_is_known_in_any_spelling(role):
    for alias in ALIASES[role]:
        for name in (alias, alias.upper(), alias.replace("_", " "), alias.replace("_", "-"), f" {alias}\t"):
            assert recognise(["x", name]).index == {role: 1}, name


def test_no_alias_means_two_things():
    names = [name for aliases in ALIASES.values() for name in aliases]
    assert len({name.lower().replace("_", "").replace(" ", "") for name in names}) == len(names)


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("timestamp_ms", "ms"),
        ("Timestamp (s)", "s"),
        ("arrival time [us]", "us"),
        ("timestampNs", "ns"),
        ("time.seconds", "s"),
        ("arrivalMillis", "ms"),
        ("timestamp", ""),
        ("ts", ""),
    ],
)
def test_unit_in_the_name(name, unit):
    found = recognise([name, "isl", "osl"])
    assert (found.index[ARRIVAL], found.unit, found.missing) == (0, unit, ())


@pytest.mark.parametrize(
    "name", ["timestamps", "input_tokens_ms", "elapsed time", "total tokens", "ms", "_s"]
)
def test_other_names_are_no_columns(name):
    assert recognise([name]).index == {}


def test_the_better_of_two_columns_is_taken_and_said(read):
    found = read("time,timestamp,isl,input_tokens,osl\n9,0,1,5,6\n9,2,1,5,6\n")
    assert (found.duration, found.isl.tolist()) == (2, [5, 5])
    assert found.notes[:2] == (
        "arrival: column 'timestamp' is used, not 'time'",
        "input tokens: column 'input_tokens' is used, not 'isl'",
    )


def test_missing_columns_name_what_is_there_and_what_is_known(read):
    (problem,) = problems(read, "when,prompt_tokens\n1,2\n")
    assert problem.startswith(
        "line 1: the header has no column of arrival and of output tokens: 'when, prompt"
    )
    assert "GeneratedTokens" in problem


def test_a_column_named_twice_is_refused(read):
    (problem,) = problems(read, "ts,isl,osl,isl\n1,2,3,4\n")
    assert problem == "line 1: the header names a column twice, got 'isl'"


# Units


@pytest.mark.parametrize(
    ("times", "unit", "guessed"),
    [
        ([1.7e9, 1.7e9 + 60], "s", False),
        ([1.7e12, 1.7e12 + 60], "ms", False),
        ([1.7e15, 1.7e15 + 60], "us", False),
        ([1.7e18, 1.7e18 + 60_000], "ns", False),
        ([0, 1, 1, 2, 4], "s", True),
        ([0, 300, 610, 900], "ms", True),
        ([0.5, 3.25, 90.125], "s", True),
        ([0.5, 3000.25, 9000.125], "ms", True),
        ([7], "s", True),
    ],
)
def test_unit_from_the_numbers(times, unit, guessed):
    found = unit_of(np.array(times, float), None, "", "plain table", "")
    assert (found.name, found.guessed) == (unit, guessed)


def test_a_guessed_unit_is_said_and_can_be_overruled(read):
    text = "timestamp,input_tokens,output_tokens\n0,1,1\n300,1,1\n900,1,1\n"
    found = read(text)
    assert (found.unit, found.duration) == ("ms", 0.9)
    assert found.notes == (
        "timestamps are taken for ms (guessed: whole numbers, 450 apart on average); planner workload --unit "
        "says otherwise",
    )
    overruled = read(text, unit="s")
    assert (overruled.duration, overruled.notes, overruled.unit_reason) == (900, (), "as asked for")


def test_the_unit_scales_intervals(read):
    by_unit = {unit: read(MOONCAKE, "t.jsonl", unit=unit).duration for unit in ("s", "ms", "us", "ns")}
    assert by_unit == {"s": 400, "ms": 0.4, "us": pytest.approx(4e-4), "ns": pytest.approx(4e-7)}


def test_mooncake_form_with_fractions_is_in_seconds(read):
    text = '{"timestamp": 0.25, "input_length": 1, "output_length": 1, "hash_ids": [1]}\n'
    assert read(text + text.replace("0.25", "0.75"), "t.jsonl").duration == 0.5


def test_dates_have_no_unit(read):
    assert "timestamps are dates: no unit applies" in read(AZURE, unit="ms").notes


def test_unknown_unit(read):
    with pytest.raises(SpecError, match="unit: must be one of s, ms, us, ns, got 'min'"):
        read(MOONCAKE, "t.jsonl", unit="min")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01 00:00:01.5", 1.5),
        ("1970-01-01T00:00:00.123456789999", 0.123456789),
        ("1970-01-02 00:00", 86_400),
        ("1970-01-01 02:00:00+02:00", 0),
        ("1970-01-01 02:00:00 -0130", 12_600),
        ("1970-01-01 00:00:00,25 UTC", 0.25),
    ],
)
def test_dates(text, seconds):
    assert Dates().nanoseconds(text) == round(seconds * 1e9)


@pytest.mark.parametrize(
    "text",
    ["2024-02-30 00:00:00", "2024-01-01 24:00:00", "2024-01-01 00:60:00", "1969-12-31 23:59:59", "2024-01-01",
     "2024-01-01 00:00:00+99:00", "2024-01-01 00:00:00.", "01/02/2024 00:00", "", None, 5],
)  # fmt: skip
def test_no_dates(text):
    with pytest.raises(ValueError):
        Dates().nanoseconds(text)


# Bad ones: a problem with its line

BAD = [
    ("0,5,6\nx,5,6\n", "line 3: arrival: must be a number, as the timestamps before it are, got 'x'"),
    (
        "soon,5,6\n",
        "line 2: arrival: must be a number or a date and time, as 2024-05-10 09:15:00.0981234, got",
    ),
    ("0,5,6\n,5,6\n", "line 3: arrival: has no value"),
    ("0,5,6\nnan,5,6\n", "line 3: arrival: must be a number, as the timestamps before it are, got 'nan'"),
    ("0,5,6\n1e400,5,6\n", "line 3: arrival: must be a finite number of a sensible size, got '1e400'"),
    ("0,5,6\n1e90,5,6\n", "line 3: arrival: must be a finite number of a sensible size, got '1e90'"),
    ("0,5,6\n1_000,5,6\n", "line 3: arrival: must be a number"),
    (
        "0,5,6\n1e10,5,6\n",
        "line 3: arrival: is 317 years after the first arrival; at most 10 are read (wrong",
    ),
    (
        "0,5,6\n2024-01-01 00:00:00,5,6\n",
        "line 3: arrival: must be a number, as the timestamps before it are",
    ),
    ("2024-01-01 00:00:00,5,6\n7,5,6\n", "line 3: arrival: must be a number or a date and time"),
    ("0,5,6\n1,,6\n", "line 3: input tokens: has no value"),
    ("0,5,6\n1,0,6\n", "line 3: input tokens: must be >= 1, got '0'"),
    ("0,5,6\n1,-3,6\n", "line 3: input tokens: must be >= 1, got '-3'"),
    ("0,5,6\n1,nan,6\n", "line 3: input tokens: must be a whole number, got 'nan'"),
    ("0,5,6\n1,inf,6\n", "line 3: input tokens: must be a whole number, got 'inf'"),
    ("0,5,6\n1,1_0,6\n", "line 3: input tokens: must be a whole number, got '1_0'"),
    ("0,5,6\n1,5,10000001\n", "line 3: output tokens: must be <= 10,000,000, got '10000001'"),
    ("0,5,6\n1,5," + "9" * 5000 + "\n", "line 3: output tokens: must be "),
    ("0,5,6\n1,5" + " " * 90 + "x,6\n", "line 3: input tokens: must be a whole number, got '5   "),
    ("0,5,6\n1,5,six\n", "line 3: output tokens: must be a whole number, got 'six'"),
    ("0,5,6\n1,5\n", "line 3: has 2 fields, the header has 3"),
    ("0,5,6\n1,5,6,7\n", "line 3: has 4 fields, the header has 3"),
    ('0,5,6\n1,5,"6\n', "line 3: is no row of a table: unexpected end of data"),
]


@pytest.mark.parametrize(("rows", "message"), BAD, ids=range(len(BAD)))
def test_bad_rows_of_tables(read, rows, message):
    (problem,) = problems(read, VIDUR + rows)
    assert problem.startswith(message)
    assert len(problem) < 250


BAD_JSON = [
    ('"input_length": 700', '"input_length": -1', "line 2: input tokens: must be >= 1, got -1"),
    ('"input_length": 700', '"input_length": 0.5', "line 2: input tokens: must be a whole number, got 0.5"),
    ('"input_length": 700', '"input_length": true', "line 2: input tokens: must be a whole number, got True"),
    ('"input_length": 700', '"input_length": null', "line 2: input tokens: has no value"),
    ('"input_length": 700', '"input_length": NaN', "line 2: is not JSON: NaN is no number"),
    ('"input_length": 700', '"input_length": 1e99', "line 2: input tokens: must be <= 10,000,000, got 1e+99"),
    ('"input_length": 700, ', "", "line 2: has no 'input_length', which others have"),
    (
        '"timestamp": 200',
        '"timestamp": "x"',
        "line 2: arrival: must be a number, as the timestamps before it",
    ),
    ('"timestamp": 200', '"timestamp": false', "line 2: arrival: must be a number"),
    (
        '"timestamp": 200',
        f'"timestamp": {"9" * 400}',
        "line 2: arrival: must be a finite number of a sensible",
    ),
    (
        "[0, 1]",
        "[0]",
        "line 2: block hashes: has 1 hash, but 700 tokens are 2 blocks of 512 (planner workload",
    ),
    ("[0, 1]", "[0, 1, 2]", "line 2: block hashes: has 3 hashes, but 700 tokens are 2 blocks of 512 ("),
    ("[0, 1]", '[0, "a"]', "line 2: block hashes: must be a list of whole numbers, got [0, 'a']"),
    ("[0, 1]", "[0, 1.5]", "line 2: block hashes: must be a list of whole numbers, got [0, 1.5]"),
    ("[0, 1]", f"[0, {2**64}]", "line 2: block hashes: must be hashes of at most 64 bits"),
    ("[0, 1]", "null", "line 2: block hashes: must be a list of whole numbers"),
    ("}\n{", "}\n[", "line 2: is not JSON"),
    ('}\n{"timestamp": 200', '}\n[]\n{"timestamp": 200', "line 2: must be an object in braces, got []"),
    ('"timestamp": 200', '"timestamp": ' + "[" * 100_000, "line 2: is not JSON"),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD_JSON, ids=range(len(BAD_JSON)))
def test_bad_lines_of_json(read, old, new, message):
    assert MOONCAKE.count(old) >= 1
    (problem,) = problems(read, MOONCAKE.replace(old, new, 1), "t.jsonl")
    assert problem.startswith(message)
    assert len(problem) < 250


def test_another_block_size(read):
    text = (
        MOONCAKE.replace("[0]", "[0, 3]")
        .replace("[0, 1]", "[0, 1, 4, 5, 6, 7]")
        .replace("[2]", "[2, 8, 9, 1]")
    )
    found = read(text, "t.jsonl", block_size=128)
    assert found.blocks is not None
    assert found.blocks.size == 128
    (problem,) = problems(read, text.replace("9, 1]", "9]"), "t.jsonl", block_size=128)
    assert problem == "line 3: block hashes: has 3 hashes, but 512 tokens are 4 blocks of 128"


def test_the_first_problems_are_shown_and_all_are_counted(read):
    found = problems(read, VIDUR + "0,5,6\n" + "1,x,6\n" * 40 + "2,5\n")
    assert found[:20] == [
        f"line {line}: input tokens: must be a whole number, got 'x'" for line in range(3, 23)
    ] or found[0].startswith("line 3")
    assert len(found) == 21
    assert any("21 more problems" in problem for problem in found)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04...", "is a zip archive"),
        (b"PAR1....", "is a Parquet file"),
        ("timestamp".encode("utf-16"), "is text in UTF-16"),
        (gzip.compress(AZURE.encode())[:-20], "is a damaged gzip file"),
        (b"\x1f\x8b\x08\x00garbage", "is a damaged gzip file"),
        (b"[{}]", "is one JSON array (write one object per line)"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a pointer of Git LFS"),
        (("a," * 1000).encode(), "has more than 500 columns"),
    ],
)
def test_other_kinds_of_files(read, content, message):
    (problem,) = problems(read, content)
    assert problem.startswith(message)


def test_no_file_and_folders(tmp_path):
    (tmp_path / "trace.csv").write_text("x")
    with pytest.raises(SpecError, match=r"no such file \(did you mean .*trace.csv"):
        read_trace(tmp_path / "tracee.csv")
    with pytest.raises(SpecError, match="is a folder"):
        read_trace(tmp_path)
    with pytest.raises(SpecError, match="is not a file name"):
        read_trace("a\0b")


def test_size_limits(read, monkeypatch):
    monkeypatch.setattr("planner.documents.trace_file.MAX_ROWS", 5)
    assert "has more than 5 rows" in problems(read, AZURE)[0]
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 100)
    assert "has a line of more than" in problems(read, VIDUR + "1,2,3\n" * 4 + "x" * 200)[0]
    monkeypatch.setattr(files, "MAX_TABLE_BYTES", 60)
    assert "is larger than" in problems(read, VIDUR + "1,2,3\n" * 4)[0]


def test_bytes_that_are_no_text_matter_only_where_they_are_read(read):
    assert read(b"ts,isl,osl,prompt\n0,5,6,caf\xe9\n1,5,6,x\n").requests == 2
    (problem,) = problems(read, b"ts,isl,osl\n0,5\xe9,6\n")
    assert problem == r"line 2: input tokens: must be a whole number, got '5\\xe9'"


# Fuzzing

SEEDS = (AZURE, VIDUR + "0.0,512,128\n0.5,1024,64\n1.0,256,0\n", MOONCAKE, BAILIAN, BURSTGPT, SPLITWISE)
WORDS = [
    "", ",", "\n", "\r", '"', "'", "-1", "0", "1e3", "1e999", "NaN", "null", "true", "[]", "{}", "[1, 2]",
    "9" * 30, "9" * 5000, "1970-01-01", "24:61", "\t", ";", "é", "\ufeff", "[" * 3000, "{" * 50, "hash_ids",
    "timestamp", "2262-04-12 00:00:00", "-", "0x10", "1_0", "١٢", "\u2028", "\x1b[31m", "+", ".", "e", " ",
    "ms", "\0",
]  # fmt: skip


def mutated(rng: random.Random) -> bytes:
    text = rng.choice(SEEDS)
    for _ in range(rng.randint(1, 3)):
        lines = text.split("\n")
        i = rng.randrange(len(lines))
        action = rng.randrange(7)
        if action == 0:
            del lines[i]
        elif action == 1:
            lines.insert(rng.randrange(len(lines) + 1), lines[i])
        elif action == 2:
            lines[i] = lines[i][: rng.randrange(len(lines[i]) + 1)]
        elif action in (3, 4):
            delimiter = rng.choice([",", " ", ":"])
            cells = lines[i].split(delimiter)
            cells[rng.randrange(len(cells))] = rng.choice(WORDS)
            lines[i] = delimiter.join(cells)
        else:
            at = rng.randrange(len(lines[i]) + 1)
            lines[i] = lines[i][:at] + rng.choice(WORDS) + lines[i][at + rng.randrange(4) :]
        text = "\n".join(lines)
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    if rng.random() < 0.3 and data:
        for _ in range(rng.randint(1, 5)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    if rng.random() < 0.1:
        data = bytearray(gzip.compress(bytes(data)))
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def outcome(read: Reader, content: bytes) -> SpecError | None:
    """What is wrong with a trace; None where it is one. Any other exception fails the test."""
    try:
        found = read(content, "t.txt")
        assert np.all(np.diff(found.arrival) >= 0)
        assert (found.isl.min() >= 1, found.osl.min() >= 0) == (True, True)
        measure(found)
        traffic_of(found)
    except SpecError as error:
        return error
    return None


@pytest.mark.parametrize("seed", range(10))
def test_mutated_traces_give_a_trace_or_a_spec_error(read, seed):
    rng = random.Random(seed)
    good = 0
    for _ in range(200):
        content = mutated(rng)
        started = time.process_time()
        error = outcome(read, content)
        assert time.process_time() - started < 1, content
        good += error is None
        if error is not None:
            assert "\x1b" not in str(error), content
            assert all(len(str(problem)) < 1000 for problem in error.problems), content
    assert 10 < good < 190

"""The interference picture in text and as a figure, from timelines made by hand."""

import os
import re
import sys
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from planner.documents.files import write_bytes_atomic
from planner.errors import SpecError
from planner.report.timeline_plot import save_timeline, timeline_picture
from planner.report.timeline_text import LABELS, MAX_ROWS, timeline_rich, timeline_text
from planner.simulator.timeline import Activity, Segment, Timeline

ACTIVITIES = {
    "P": Activity.PREFILL,
    "D": Activity.DECODE,
    ".": Activity.STALL,
    ">": Activity.TRANSFER,
    "-": Activity.QUEUED,
}
SVG = "{http://www.w3.org/2000/svg}"


def timeline(title, *rows, horizon=24.0, unit="tick"):
    """Each row: arrival, tokens, and segments as "P 0 5, D 5 10"."""
    segments = []
    for request, (_, _, text) in enumerate(rows):
        for part in filter(None, text.split(", ")):
            mark, start, end = part.split()
            segments.append(
                Segment(request=request, activity=ACTIVITIES[mark], start=float(start), end=float(end))
            )
    return Timeline(
        title=title,
        unit=unit,
        horizon=horizon,
        arrivals=tuple(float(arrival) for arrival, _, _ in rows),
        segments=tuple(segments),
        tokens=tuple(tokens for _, tokens, _ in rows),
    )


COLOCATED = timeline(
    "colocated",
    (0, 9, "P 0 5, D 5 10, . 10 15, D 15 16, . 16 21, D 21 24"),
    (10, 4, "P 10 15, D 15 16, . 16 21, D 21 24"),
    (16, 3, "P 16 21, D 21 24"),
)
DISAGGREGATED = timeline(
    "disaggregated",
    (0, 18, "P 0 5, > 5 6, D 6 24"),
    (10, 8, "P 10 15, > 15 16, D 16 24"),
    (14, 2, "- 14 15, P 15 20, > 20 22, D 22 24"),
)
PANELS = (COLOCATED, DISAGGREGATED)
EMPTY = timeline("colocated")


def many(number, horizon=24.0, unit="tick"):
    row = "P {0} {1}, D {1} {2}"
    starts = [k * horizon / (number + 10) for k in range(number)]
    return timeline(
        "colocated",
        *((x, 7, row.format(x, x + horizon / 50, min(x + horizon / 10, horizon))) for x in starts),
        horizon=horizon,
        unit=unit,
    )


def rows_of(text):
    return [line for line in text.splitlines() if re.match(r" *R\d", line)]


def cells_of(line):
    return re.sub(r"^ *R\d+ (.*)  +[\d,]+$", r"\1", line).rstrip()


# Text


def test_text_of_both_fleets():
    assert (
        timeline_text(PANELS, 80)
        == """\
colocated
    0    5    10   15   20    tokens
    +----+----+----+----+---
R1 |PPPPPDDDDD.....D.....DDD       9
R2           |PPPPPD.....DDD       4
R3                 |PPPPPDDD       3

disaggregated
    0    5    10   15   20    tokens
    +----+----+----+----+---
R1 |PPPPP>DDDDDDDDDDDDDDDDDD      18
R2           |PPPPP>DDDDDDDD       8
R3               |-PPPPP>>DD       2

P prefill  D decode  . decode stall  > KV transfer  - queued  | arrival
time in ticks; one column is 1 tick"""
    )


@pytest.mark.parametrize("width", [0, 10, 60])
def test_narrow_text_breaks_the_legend(width):
    lines = timeline_text(PANELS, width).splitlines()
    assert lines[-3:] == [
        "P prefill  D decode  . decode stall  > KV transfer  - queued",
        "| arrival",
        "time in ticks; one column is 1 tick",
    ]
    assert max(map(len, lines)) <= 60


def test_columns_of_several_ticks_show_what_takes_most_of_them():
    text = timeline_text(
        [timeline("colocated", (0, 1, "P 0 5, D 5 12, . 12 13, D 13 24"), horizon=140.0)], 60
    )
    assert text.splitlines()[1:] == [
        "    0    15   30   45   60   75   90   105  120      tokens",
        "    +----+----+----+----+----+----+----+----+----+-",
        "R1 |PPDDDDDD                                              1",
        "",
        "P prefill  D decode  . decode stall  | arrival",
        "time in ticks; one column is 3 ticks",
    ]


def test_seconds_get_round_slices():
    lines = timeline_text([many(5, horizon=10.0, unit="s")], 100).splitlines()
    assert lines[1].split() == [*(str(n) for n in range(10)), "tokens"]
    assert lines[-1] == "time in s; one column is 0.125 s"
    assert [line[4:].index(digit) for line, digit in zip([lines[1]] * 3, "012", strict=True)] == [0, 8, 16]


@pytest.mark.parametrize("unit", ["tick", "s"])
@pytest.mark.parametrize("horizon", [1e-5, 0.003, 0.7, 1.0, 9.99, 24.3, 61.0, 100.0, 777.0, 86400.0])
@pytest.mark.parametrize("width", [60, 83, 100, 200])
def test_text_fits_the_width_and_uses_it(unit, horizon, width):
    lines = timeline_text([many(12, horizon=horizon, unit=unit)], width).splitlines()
    assert max(map(len, lines)) <= width
    if unit == "s":
        assert len(lines[2]) > width / 2
    labels = [float(x) for x in lines[1].split()[:-1]]
    steps = [b - a for a, b in pairwise(labels)]
    assert steps == pytest.approx([steps[0]] * len(steps)) if steps else labels == [0]
    assert len(labels) <= 12
    for line in rows_of("\n".join(lines)):
        assert "|P" in line or "|D" in line
        assert line.endswith("  7")


def test_segments_shorter_than_a_column_are_seen_where_nothing_else_is():
    lone = timeline("colocated", (50, 1, "P 50 50.01, D 50.01 50.02"), horizon=1000.0, unit="s")
    assert cells_of(rows_of(timeline_text([lone], 60))[0]).lstrip() in ("|P", "|D")


def test_short_segments_of_one_kind_count_together():
    parts = ", ".join(f"D {k} {k + 0.6}, . {k + 0.6} {k + 1}" for k in range(200))
    row = rows_of(timeline_text([timeline("colocated", (0, 1, parts), horizon=200.0, unit="s")], 60))[0]
    assert set(cells_of(row)) == {"|", "D"}


def test_errors_of_sums_start_no_column():
    step = 0.1
    ends = [sum([step] * k) for k in range(11)]  # 0.30000000000000004, 0.7999999999999999
    parts = ", ".join(f"{'PD'[k % 2]} {ends[k]!r} {ends[k + 1]!r}" for k in range(10))
    row = rows_of(timeline_text([timeline("colocated", (0, 1, parts), horizon=5.0, unit="s")], 64))[0]
    assert cells_of(row) == "|PDPDPDPDPD"


def test_segments_are_cut_at_the_horizon():
    cut = timeline("colocated", (0, 3, "P 0 5, D 5 40"), (30, 0, "P 30 35"), horizon=12.0)
    first, second = rows_of(timeline_text([cut], 60))
    assert first == "R1 |PPPPPDDDDDDD       3"
    assert second == "R2                     0"


def test_panels_share_the_scale_of_the_longest():
    text = timeline_text([replace(COLOCATED, horizon=12.0), replace(DISAGGREGATED, horizon=24.0)], 60)
    rows = rows_of(text)
    assert {len(row) for row in rows} == {len(rows[0])}
    assert cells_of(rows[0]) == "|PPPPPDDDDD.."


def test_no_requests():
    assert timeline_text([EMPTY], 60).splitlines()[:2] == ["colocated", "no requests"]
    assert timeline_text([], 60) == ""


def test_no_time():
    lines = timeline_text([timeline("colocated", (0, 0, ""), horizon=0.0, unit="s")], 60).splitlines()
    assert lines[3] == "R1 |       0"


def test_many_requests_are_counted_instead():
    lines = timeline_text([many(MAX_ROWS + 12)], 60).splitlines()
    assert len(rows_of("\n".join(lines))) == MAX_ROWS
    assert "and 12 more requests" in lines
    assert "and 1 more request" in timeline_text([many(MAX_ROWS + 1)], 60).splitlines()
    assert "more" not in timeline_text([many(MAX_ROWS)], 60)


def test_large_token_counts_keep_columns_straight():
    rows = rows_of(timeline_text([replace(COLOCATED, tokens=(1234567, 4, 3))], 60))
    assert rows[0].endswith("DDD  1,234,567")
    assert {len(row) for row in rows} == {len(rows[0])}


def test_long_titles_are_wrapped():
    lines = timeline_text([replace(COLOCATED, title="colocated on " + "h100 " * 30)], 60).splitlines()
    assert max(map(len, lines)) <= 60


def test_colour_changes_no_character(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")  # whoever asks for colour has looked
    coloured = timeline_text(PANELS, 60, colour=True)
    assert "\x1b[30;48;5;208mPPPPP\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == timeline_text(PANELS, 60)


def test_activities_differ_in_style():
    text = timeline_rich(PANELS, 100)
    styles = {}
    for span in text.spans:
        styles.setdefault(str(span.style), set()).update(text.plain[span.start : span.end])
    assert styles["black on dark_orange"] == {"P"}
    assert styles["bright_white on dodger_blue3"] == {"D"}
    assert styles["bright_white"] == {"."}
    assert styles["black on green3"] == {">"}


def test_titles_are_no_markup():
    assert "[red]x[/red]" in timeline_text([replace(COLOCATED, title="[red]x[/red]")], 60, colour=True)


# Figures


@pytest.fixture
def matplotlib():
    return pytest.importorskip("matplotlib", reason="figures need matplotlib")


def texts_of(path):
    return [element.text for element in ElementTree.parse(path).iter(f"{SVG}text")]


def fills_of(path):
    """How many shapes have each colour."""
    found = {}
    for element in ElementTree.parse(path).iter():
        if match := re.search(r"fill: (#\w{6})", element.get("style", "")):
            found[match[1]] = found.get(match[1], 0) + 1
    return found


def test_notebooks_show_the_picture_that_files_hold(tmp_path):
    pytest.importorskip("matplotlib")
    save_timeline(PANELS, tmp_path / "picture.png")
    data, shown = timeline_picture(PANELS)._repr_png_()
    assert data == (tmp_path / "picture.png").read_bytes()
    assert shown == {"width": 720}  # nine inches, at half of the file's dots


@pytest.mark.usefixtures("matplotlib")
@pytest.mark.parametrize("suffix", [".png", ".svg", ".PNG"])
def test_figures_are_the_same_bytes_each_time(tmp_path, suffix):
    first, second = tmp_path / f"first{suffix}", tmp_path / f"second{suffix}"
    save_timeline(PANELS, first)
    save_timeline(PANELS, second)
    assert first.read_bytes() == second.read_bytes()
    assert sorted(os.listdir(tmp_path)) == [first.name, second.name]


@pytest.mark.usefixtures("matplotlib")
def test_png(tmp_path):
    save_timeline(PANELS, tmp_path / "picture.png")
    data = (tmp_path / "picture.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data.endswith(b"IEND\xaeB`\x82")
    width, height = (int.from_bytes(data[k : k + 4], "big") for k in (16, 20))
    assert width == 1440
    assert 500 < height < 800
    assert b"Software" not in data


@pytest.mark.usefixtures("matplotlib")
def test_svg_says_what_it_shows(tmp_path):
    path = tmp_path / "picture.svg"
    save_timeline(PANELS, path)
    texts = texts_of(path)
    assert {"colocated", "disaggregated", "time [ticks]", "arrival", *LABELS.values()} <= set(texts)
    assert texts.count("tokens") == 2
    assert [t for t in texts if t.startswith("R")] == ["R1", "R2", "R3"] * 2
    heights = {t.text: float(t.get("y")) for t in ElementTree.parse(path).iter(f"{SVG}text")}
    assert heights["R1"] < heights["R2"] < heights["R3"]  # the latest at the bottom
    assert {"9", "4", "3", "18", "8"} <= set(texts)
    assert "dc:date" not in path.read_text(encoding="utf-8")


@pytest.mark.usefixtures("matplotlib")
def test_each_decode_tick_is_a_cell(tmp_path):
    save_timeline([COLOCATED], tmp_path / "ticks.svg")
    fills = fills_of(tmp_path / "ticks.svg")
    assert fills["#2f6fb4"] == 9 + 4 + 3 + 1  # and one in the legend
    assert fills["#f08a24"] == 3 + 1
    save_timeline([replace(COLOCATED, horizon=200.0)], tmp_path / "long.svg")
    assert fills_of(tmp_path / "long.svg")["#2f6fb4"] == 3 + 2 + 1 + 1
    assert "stroke-dasharray" in (tmp_path / "ticks.svg").read_text(encoding="utf-8")


@pytest.mark.usefixtures("matplotlib")
def test_figure_in_seconds(tmp_path):
    save_timeline([many(5, horizon=3.0, unit="s")], tmp_path / "picture.svg")
    texts = texts_of(tmp_path / "picture.svg")
    assert "time [s]" in texts
    assert "decode stall" not in texts  # there is none


@pytest.mark.usefixtures("matplotlib")
def test_figure_of_the_first_requests(tmp_path):
    path = tmp_path / "picture.svg"
    save_timeline([many(45)], path)
    assert "first 40 of 45 requests" in texts_of(path)
    assert "R40" in texts_of(path)
    assert "R41" not in texts_of(path)
    save_timeline([many(45)], path, max_requests=2)
    assert [t for t in texts_of(path) if t.startswith("R")] == ["R1", "R2"]


@pytest.mark.usefixtures("matplotlib")
@pytest.mark.parametrize(
    "panels",
    [
        [EMPTY],
        [EMPTY, COLOCATED],
        [],
        [timeline("colocated", (0, 0, ""), horizon=0.0)],
        [timeline("colocated", (0, 3, "P 0 5, D 5 40"), (30, 0, "P 30 35"), horizon=12.0)],
        [timeline("colocated", (0.5, 1, "P 0.5 0.7, D 0.7 9.3"), horizon=9.3)],
        [timeline("colocated", (0, 1, "P 0 1e-6, D 1e-6 1e-5, > 5 5"), horizon=9.0, unit="s")],
    ],
    ids=["no requests", "none above some", "nothing", "no time", "cut", "broken ticks", "short segments"],
)
def test_odd_figures(tmp_path, panels):
    path = tmp_path / "picture.svg"
    save_timeline(panels, path)
    assert texts_of(path).count("no requests") == panels.count(EMPTY)


def test_figures_follow_no_settings_and_leave_none(tmp_path, matplotlib):
    save_timeline(PANELS, tmp_path / "before.svg")
    with matplotlib.rc_context({"font.size": 30.0, "axes.facecolor": "black", "svg.hashsalt": "x"}):
        save_timeline(PANELS, tmp_path / "after.svg")
        assert matplotlib.rcParams["font.size"] == 30
        assert matplotlib.rcParams["svg.hashsalt"] == "x"
    assert (tmp_path / "before.svg").read_bytes() == (tmp_path / "after.svg").read_bytes()


@pytest.mark.parametrize("name", ["picture", "picture.pdf", "picture.svgz", ".png", ""])
def test_other_formats_are_refused(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # found out without it
    with pytest.raises(SpecError, match=r"is no plot \(the name has to end in \.png or \.svg\)"):
        save_timeline(PANELS, tmp_path / name)


def test_missing_matplotlib_is_said_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SpecError, match=r"plots need matplotlib: pip install 'pd-planner\[report\]'"):
        save_timeline(PANELS, tmp_path / "picture.png")
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("matplotlib")
def test_figures_that_cannot_be_written(tmp_path):
    with pytest.raises(SpecError, match="cannot be written: there is no folder"):
        save_timeline(PANELS, tmp_path / "nowhere" / "picture.png")


def test_bytes_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "picture.png"
    write_bytes_atomic(path, b"\x00\xff\r\n")
    assert path.read_bytes() == b"\x00\xff\r\n"

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SpecError, match="cannot be written: No space left on device"):
        write_bytes_atomic(path, b"new")
    assert path.read_bytes() == b"\x00\xff\r\n"
    assert os.listdir(tmp_path) == ["picture.png"]

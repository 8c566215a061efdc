"""Traffic presets against the statistics of the traces they come from."""

import subprocess
import sys
from pathlib import Path

import pytest

from planner.catalog import load_traffic, traffic_names
from planner.errors import SpecError

ROOT = Path(__file__).parent.parent

# Means and percentiles of input and output tokens, computed from the published traces:
# AzurePublicDataset at b469a113 (CC-BY-4.0), Mooncake FAST25-release at 3b5a5941 (Apache-2.0).
TRACES = {
    "azure-2023-conversation": {
        "rows": 19366,
        "rate": 5.5304,
        "cv": 1.094,
        "dispersion": (3.86, 16.13),
        "peak": 8.45,
        "isl": (1154.7, 1020.0, 2734.5, 4142.0, 14050.0),
        "osl": (211.1, 129.0, 424.0, 601.0, 1000.0),
    },
    "azure-2023-code": {
        "rows": 8819,
        "rate": 2.5667,
        "cv": 13.152,
        "dispersion": (71.64, 163.96),
        "peak": 10.533,
        "isl": (2047.8, 1469.0, 5187.6, 7436.0, 7437.0),
        "osl": (27.9, 13.0, 55.0, 251.5, 1899.0),
    },
    "mooncake-conversation": {
        "rows": 12031,
        "rate": 3.4015,
        "cv": 1.0,  # after spreading the timestamps, which are multiples of 3 s
        "dispersion": (2.1, 2.89),
        "peak": 4.117,
        "isl": (12035.1, 6909.0, 27367.0, 85400.4, 126195.0),
        "osl": (342.6, 350.0, 597.0, 1118.5, 2000.0),
    },
}


def quantile(marginal, probability):
    """Smallest point with at least this much probability up to it."""
    total = 0.0
    for point, weight in zip(marginal.points, marginal.weights, strict=True):
        total += weight
        if total >= probability - 1e-9:
            return point
    return marginal.points[-1]


def test_the_presets_are_there():
    assert set(traffic_names()) == set(TRACES)


@pytest.mark.parametrize("name", TRACES)
def test_means(name):
    preset, trace = load_traffic(name), TRACES[name]
    assert preset.lengths.isl.mean == pytest.approx(trace["isl"][0], rel=0.01)
    assert preset.lengths.osl.mean == pytest.approx(trace["osl"][0], rel=0.01)


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("side", ["isl", "osl"])
def test_percentiles(name, side):
    marginal, (_, p50, p90, p99, most) = getattr(load_traffic(name).lengths, side), TRACES[name][side]
    # Points are means of buckets: the bucket below and the one above enclose a percentile.
    for probability, value in ((0.5, p50), (0.9, p90), (0.99, p99)):
        assert quantile(marginal, probability) <= value * 1.02
        assert quantile(marginal, min(probability + 0.0501, 1.0)) >= value * 0.98
    assert marginal.maximum <= most


@pytest.mark.parametrize("name", TRACES)
def test_arrivals(name):
    preset, trace = load_traffic(name), TRACES[name]
    assert preset.requests == trace["rows"]
    assert preset.request_rate == pytest.approx(trace["rate"], rel=1e-3)
    assert preset.interarrival_cv == pytest.approx(trace["cv"], rel=0.02)
    assert preset.arrival_scv == pytest.approx(preset.interarrival_cv**2)
    assert preset.dispersion_10s == pytest.approx(trace["dispersion"][0], rel=0.05)
    assert preset.dispersion_60s == pytest.approx(trace["dispersion"][1], rel=0.05)
    assert preset.peak_request_rate == pytest.approx(trace["peak"], rel=0.01)


@pytest.mark.parametrize(
    ("name", "ratio"),
    [("azure-2023-conversation", 0.917), ("azure-2023-code", 1.002), ("mooncake-conversation", 1.069)],
)
def test_prompt_seen_by_an_output_token(name, ratio):
    # E[isl osl] / (E[isl] E[osl]): outputs are a little shorter after long prompts, or longer.
    lengths = load_traffic(name).lengths
    assert lengths.isl_per_output_token / lengths.isl.mean == pytest.approx(ratio, rel=0.01)


@pytest.mark.parametrize("name", TRACES)
def test_citation_and_licence(name):
    preset = load_traffic(name)
    assert "http" in preset.citation
    assert preset.source
    assert preset.licence in ("CC-BY-4.0", "Apache-2.0")


def test_names_are_found_in_any_case():
    assert load_traffic("Azure-2023-Code") == load_traffic("azure-2023-code")


def test_unknown_preset_suggests_the_nearest():
    with pytest.raises(SpecError, match="did you mean azure-2023-code"):
        load_traffic("azure-2023-cod")


def test_the_tool_writes_what_it_measures(tmp_path):
    trace = tmp_path / "azure2023_code.csv"
    rows = [f"{i / 2},{100 + i % 10},{20}" for i in range(400)]
    trace.write_text("timestamp_s,input_tokens,output_tokens\n" + "\n".join(rows) + "\n", encoding="utf-8")
    tool = ROOT / "tools" / "build_traffic_presets.py"
    subprocess.run([sys.executable, tool, trace, "--output", tmp_path], check=True)
    text = (tmp_path / "azure-2023-code.yaml").read_text(encoding="utf-8")
    assert "requests: 400\n" in text
    assert "interarrival_cv: 0.0\n" in text
    assert "dispersion_10s: 0.0\n" in text
    assert "  mean: 104.5\n" in text
    assert "isl_per_output_token: 104.5\n" in text

"""Write ``planner/catalog/clouds.yaml`` from a table of cloud instances and their prices.

    python tools/build_cloud_prices.py clouds.csv [--output planner/catalog/clouds.yaml]

Instances of accelerators without a profile are left out, and so are serverless offers, which are no
servers to plan with. A price that is not known stays absent.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpu_devices import DEVICES

GPU_OF_ROW = {device.row: device.name for device in DEVICES}
LEFT_OUT = {"runpod-serverless"}
RDMA = re.compile(r"EFA|\bIB\b|RoCE")
PLAIN_TCP = re.compile(r"ENA|Ethernet|gVNIC|TCPX")
STATUSES = {
    "checked": ("checked", ""),
    "checked (network from memory)": ("checked", "Network from memory."),
    "second-hand": ("second-hand", ""),
    "unverified": ("unverified", ""),
    "unverified price": ("unverified", ""),
    "checked specs, no price": ("checked", "No price was found."),
}
HEADER = """\
# Written by tools/build_cloud_prices.py: change that, or its table, and run it again.
#
# What rented servers cost, for scenarios that name one (fleet: [{instance: aws/p5.48xlarge}]). Prices are of
# the whole instance on the date given, on demand without commitment; they change, and a scenario's own win.
# status: checked (read at the source), second-hand (read where somebody quotes it), unverified (from memory).
"""


def rdma(kind: str) -> bool | None:
    """Whether a network moves memory without the CPU; None where its kind is not known."""
    if RDMA.search(kind):
        return True
    return False if PLAIN_TCP.search(kind) else None


def source(text: str) -> str:
    """Where a row comes from, without what the status says again or only its compiler understands."""
    text = re.sub(r" \(\w+_\w+[^)]*\)", "", text).replace(", unverified", "")
    return text.replace("GCP docs via search", "GCP documentation").replace(
        "AWS docs list", "AWS documentation lists"
    )


def number(text: str) -> str:
    return f"{float(text):.10g}"


def entry(row: Mapping[str, str]) -> str:
    """One instance as a line of YAML."""
    status, note = STATUSES[row["status"]]
    kind = row["network_kind"]
    direct = rdma(kind)
    fields = {
        "gpu": GPU_OF_ROW[row["gpu"]],
        "gpus": row["gpus"],
        "on_demand_usd_per_hour": row["on_demand_usd_h"] and number(row["on_demand_usd_h"]),
        "spot_usd_per_hour": row["spot_usd_h"] and number(row["spot_usd_h"]),
        "vcpus": row["vcpus"],
        "memory_gb": row["ram_gb"],
        "network_gbps": row["network_gbps_total"],
        "network_kind": kind and json.dumps(kind),
        "rdma": "" if direct is None else str(direct).lower(),
        "region": row["region"],
        "date": row["date"] and json.dumps(row["date"]),
        "source": json.dumps(source(row["source"])),
        "status": status,
        "note": note and json.dumps(note),
    }
    given = ", ".join(f"{key}: {value}" for key, value in fields.items() if value)
    return f"    {json.dumps(row['instance_type'])}: {{{given}}}"


def catalogue_text(rows: Iterable[Mapping[str, str]]) -> str:
    """The whole file."""
    lines = [HEADER, "clouds:"]
    cloud = ""
    for row in rows:
        if row["gpu"] not in GPU_OF_ROW or row["cloud"] in LEFT_OUT:
            continue
        if row["cloud"] != cloud:
            cloud = row["cloud"]
            lines.append(f"  {cloud}:")
        lines.append(entry(row))
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("clouds", type=Path, help="CSV file of instances")
    parser.add_argument(
        "--output", type=Path, default=Path("planner/catalog/clouds.yaml"), help="file to write"
    )
    arguments = parser.parse_args()
    with arguments.clouds.open(encoding="utf-8", newline="") as file:
        text = catalogue_text(list(csv.DictReader(file)))
    arguments.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

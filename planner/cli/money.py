"""``planner money``."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import click

from planner.cli.options import Number
from planner.cli.output import check_outputs, echo_json, width
from planner.documents.files import write_text_atomic
from planner.documents.plan_extras import rounded
from planner.errors import SpecError
from planner.units import HOURS_PER_MONTH, KILO, MEGA
from planner.whatif.asked import read_asked_plan
from planner.whatif.money import NO_OVERHEAD, BreakEven, MoneyReport, Share, TokenPrice
from planner.whatif.money_report import money_report
from planner.whatif.period_bill import PeriodBill, period_bill


def _prices(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, float]:
    """GPU=USD, several times."""
    prices: dict[str, float] = {}
    for value in values:
        name, equals, text = value.rpartition("=")
        try:
            price = float(text)
        except ValueError:
            price = math.nan
        if not (equals and name.strip() and 0 <= price <= MEGA):
            raise click.BadParameter(f"{value!r} is not GPU=USD with a price of 0 to {MEGA:,.0f}")
        if name.strip() in prices:
            raise click.BadParameter(f"{name.strip()} is given twice")
        prices[name.strip()] = price
    return prices


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--csv", "table", type=click.Path(path_type=Path), help="Write the bill here (CSV).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--price", "prices", multiple=True, callback=_prices, metavar="GPU=USD", help="Instead of the plan's."
)
@click.option(
    "--reserved-price",
    "reserved",
    multiple=True,
    callback=_prices,
    metavar="GPU=USD",
    help="Of a reserved GPU and hour, used or not: from which duty reserving pays.",
)
@click.option("--power-price", type=Number(0, KILO), metavar="USD", help="Of a kWh.")
@click.option("--pue", type=Number(1, 10), help="Power of the site over that of its servers. Default: 1.")
def money(
    plan: Path,
    table: Path | None,
    as_json: bool,
    prices: dict[str, float],
    reserved: dict[str, float],
    power_price: float | None,
    pue: float | None,
) -> None:
    """What PLAN costs: by hour and month, pool, GPU type and group, per million tokens.

    PLAN is a file of `planner solve -o`; - is standard input. Energy is counted at the GPUs' thermal design
    power, which is an upper bound. A month has 730 hours.
    """
    if pue is not None and power_price is None:
        raise SpecError("--pue: belongs to --power-price")
    check_outputs((plan,), (table,))
    asked = read_asked_plan(plan)
    if asked.plan is not None and asked.plan.periods:
        if prices or reserved or power_price is not None:
            raise SpecError(
                "--price, --reserved-price, --power-price: not for a plan over periods, whose replicas would "
                "change with them: solve again"
            )
        _by_period(period_bill(asked.name, asked.plan, asked.loaded), table, as_json)
        return
    report = money_report(
        asked,
        prices=prices,
        reserved_prices=reserved,
        power_price=power_price,
        pue=NO_OVERHEAD if pue is None else pue,
    )
    if table is not None:
        write_text_atomic(table, report.to_csv())
    if as_json:
        echo_json(money_facts(report))
        return
    from planner.report.money import print_money  # rich: only where tables are printed

    print_money(report, width())
    if table is not None:
        click.echo(f"\nbill written to {table}")


def _by_period(bill: PeriodBill, table: Path | None, as_json: bool) -> None:
    """Write and print the bill of a plan over periods."""
    if table is not None:
        write_text_atomic(table, bill.to_csv())
    if as_json:
        echo_json(period_facts(bill))
        return
    from planner.report.money import print_period_bill  # rich: only where tables are printed

    print_period_bill(bill, width())
    if table is not None:
        click.echo(f"\nbill written to {table}")


def period_facts(bill: PeriodBill) -> dict[str, Any]:
    """The JSON of ``planner money`` for a plan over periods."""
    horizon = bill.horizon
    return {
        "name": bill.name,
        "periods": [
            {
                "name": line.name,
                "hours": rounded(line.hours),
                "request_rate": rounded(line.request_rate),
                "replicas": line.replicas,
                "usd_per_hour": rounded(line.cost),
                "usd": rounded(line.total),
            }
            for line in bill.lines
        ],
        "start_ups_usd": rounded(bill.starts),
        "hours": rounded(horizon.hours),
        "usd": rounded(bill.cost),
        "usd_per_month": rounded(bill.per_month),
        "static_usd": rounded(horizon.static_cost),
        "saving": rounded(horizon.saving),
        "reserved_gpus": dict(horizon.reserved),
        "break_even_duty": {gpu: rounded(duty) for gpu, duty in bill.duties.items()},
        "usd_per_million_input_tokens": rounded(bill.per_million_input),
        "usd_per_million_output_tokens": rounded(bill.per_million_output),
        "usd_per_million_tokens": rounded(bill.per_million),
    }


def money_facts(m: MoneyReport) -> dict[str, Any]:
    """The JSON of ``planner money``."""
    return {
        "name": m.name,
        "usd_per_hour": rounded(m.cost),
        "usd_per_month": rounded(m.cost * HOURS_PER_MONTH),
        "hours_per_month": HOURS_PER_MONTH,
        "gpus_paid": m.gpus_paid,
        "gpus_used": m.gpus_used,
        "unused_usd_per_hour": rounded(m.unused_cost),
        "utilization": rounded(m.utilization),
        "lines": [{key: _plain(value) for key, value in row.items()} for row in m.rows()],
        "pools": [_share(share) for share in m.pools],
        "gpu_types": [_share(share) for share in m.gpu_types],
        "tokens": [_token_price(price) for price in m.tokens],
        "break_even": [_break_even(one) for one in m.break_even],
        "power": None
        if m.power is None
        else {
            "usd_per_kwh": m.power.price,
            "pue": m.power.pue,
            "power_w": rounded(m.power.draw),
            "usd_per_hour": rounded(m.power.cost),
            "usd_per_month": rounded(m.power.cost * HOURS_PER_MONTH),
        },
        "notes": list(m.notes),
    }


def _token_price(t: TokenPrice) -> dict[str, Any]:
    return {
        "service": t.service,
        "request_rate": rounded(t.request_rate),
        "usd_per_hour": rounded(t.cost),
        "input_tokens_per_hour": rounded(t.input_tokens),
        "output_tokens_per_hour": rounded(t.output_tokens),
        "usd_per_million_input_tokens": rounded(t.per_million_input),
        "usd_per_million_output_tokens": rounded(t.per_million_output),
        "usd_per_million_tokens": rounded(t.per_million),
    }


def _break_even(b: BreakEven) -> dict[str, Any]:
    return {
        "gpu": b.gpu,
        "gpus": b.gpus,
        "on_demand_usd_per_hour": b.on_demand,
        "reserved_usd_per_hour": b.reserved,
        "duty": rounded(b.duty),
        "hours_per_month": rounded(b.hours_per_month),
        "saving_usd_per_hour": rounded(b.saving),
    }


def _share(share: Share) -> dict[str, Any]:
    return {
        "name": share.name,
        "gpus": share.gpus,
        "usd_per_hour": rounded(share.cost),
        "share": rounded(share.share),
    }


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value

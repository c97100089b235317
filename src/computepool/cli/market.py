"""`computepool market`: what an hour of a slot costs now, what strangers really paid, and how both went."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from computepool.wire.market import IndexLevel, PriceIndex, Spot, SpotHistory, SpotPage

_CURVE_COLUMNS = 60


@click.command("market")
@click.option("--tier", metavar="NAME", help="The history of one tier, e.g. rtx-4090, or cpu.")
@click.option("--region", default="default", show_default=True, metavar="NAME", help="Of the rate card; with --tier.")
@click.option("--hours", type=float, default=24.0, show_default=True, help="How far to look back.")
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answers for programs, one a line.")
@click.option("--hub-url", metavar="URL", help="The hub's address. [else HUB_URL, else as signed in]")
def command(tier: str | None, region: str, hours: float, as_json: bool, hub_url: str | None) -> None:
    """Show the spot price and the price index of every tier and region, or the history of one. Needs no key.

    Spot is what an hour costs now; the index is what strangers really paid: deals with oneself or between linked
    accounts do not count.
    """
    from computepool.cli.terminal import print_json
    from computepool.sdk import Client

    market = Client(hub_url).market
    index = market.index(tier=tier, region=region, hours=hours)
    if tier is None:
        page = market.spot()
        answers, lines = [page, index], describe_market(page, index)
    else:
        history = market.history(tier=tier, region=region, hours=hours)
        answers, lines = [history, index], describe_history(history, index, ascii_only=_is_plain_terminal())
    if as_json:
        for answer in answers:
            print_json(answer)
        return
    for line in lines:
        click.echo(line)


def _is_plain_terminal() -> bool:
    return not (sys.stdout.encoding or "").lower().startswith("utf")


def describe_market(page: SpotPage, index: PriceIndex) -> list[str]:
    from computepool.cli.why import lay_out, wrap

    if not page.spots:
        return wrap(
            "Nothing was lent yet when the market last moved, which it does every "
            f"{page.tick_seconds:,} seconds: every tier stands at its usual price, of the rate card."
        )
    levels = {(level.tier, level.region): level for level in index.levels}
    heads = ("TIER", "REGION", "SPOT", "USUAL", "INDEX", "SLOTS", "BUSY", "WAITING", "")
    rows = [_to_row(spot, levels.get((spot.tier, spot.region))) for spot in page.spots]
    return [
        f"Credits per hour. The index is what strangers paid over the last {index.hours:g} hours.",
        "",
        *lay_out(heads, rows, right=range(2, 8)),
    ]


def _to_row(spot: Spot, level: IndexLevel | None) -> tuple[str, ...]:
    return (
        spot.tier,
        spot.region,
        _credits(spot.spot_microcredits_per_hour),
        _credits(spot.reference_microcredits_per_hour),
        _credits(level.price_microcredits_per_hour) if level else "-",
        f"{spot.slot_count:,}",
        f"{spot.busy_count:,}",
        f"{spot.waiting_count:,}",
        "spot or wait" if spot.contested else "",
    )


def describe_history(history: SpotHistory, index: PriceIndex, *, ascii_only: bool = False) -> list[str]:
    from computepool.cli.why import wrap
    from computepool.core.market.ppm import say_percent

    lines = [f"{history.tier} in the region {history.region}, the last {index.hours:g} hours; credits per hour.", ""]
    lines += _draw("spot", [each.spot_microcredits_per_hour for each in history.points], ascii_only)
    lines += _draw("index", [each.price_microcredits_per_hour for each in index.points], ascii_only)
    for level in index.levels:
        deals = f"{level.deal_count:,} deal{'' if level.deal_count == 1 else 's'}"
        lines += [
            "",
            *wrap(
                f"Strangers paid {_credits(level.price_microcredits_per_hour)}, {say_percent(level.ratio_ppm)} of "
                f"the usual price: the median by time of {deals}."
            ),
        ]
    return lines


def _draw(name: str, prices: list[int], ascii_only: bool) -> list[str]:
    from computepool.cli.words import sparkline

    if not prices:
        return [f"  {name:5}  nothing in this time"]
    curve = sparkline(prices, width=_CURVE_COLUMNS, ascii_only=ascii_only)
    return [f"  {name:5}  {curve}", f"         {_credits(min(prices))} to {_credits(max(prices))}"]


def _credits(microcredits: int) -> str:
    """To a hundredth of a credit: exact figures are in --json."""
    from computepool.core.placement.price import format_credits

    return format_credits(microcredits // 10_000 * 10_000)

"""`computepool earnings`: what a machine would earn, at which floor, and over all tiers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from computepool.cli.access import connect, hub_options

if TYPE_CHECKING:
    from computepool.wire.market import BucketEarnings, Earnings


@click.command("earnings")
@click.option("--tier", metavar="NAME", help="Of such a card, e.g. rtx-4090, or cpu. [default: your own machines]")
@click.option("--country", metavar="XX", help="Where it stands, e.g. IN.")
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer for programs.")
@hub_options
def command(tier: str | None, country: str | None, as_json: bool, hub_url: str | None, key: str | None) -> None:
    """Say what your machines, or one that you think of lending, would earn: per hour, per job, at which floor.

    A forecast from what was asked for lately, and no promise. Set a floor with: computepool nodes NODE floor CREDITS
    """
    from computepool.cli.terminal import print_json
    from computepool.cli.words import plain

    found = connect(hub_url, key).market.earnings(tier=tier, country=country)
    if as_json:
        print_json(found)
        return
    for line in describe_earnings(found):
        click.echo(plain(line))


def describe_earnings(found: Earnings) -> list[str]:
    from computepool.cli.why import lay_out

    lines: list[str] = []
    for bucket in found.buckets:
        lines += [*_describe_bucket(bucket), ""]
    lines += [f"An hour of full use in the region {found.region}, in credits and after the fee:", ""]
    kinds = sorted({kind for row in found.tiers for kind in row.owner_microcredits_per_slice})
    rows = [
        (
            row.tier,
            f"{row.multiplier_ppm / 1_000_000:g}",
            _credits(row.price_microcredits_per_hour),
            _credits(row.owner_microcredits_per_hour),
            *(_credits(row.owner_microcredits_per_slice.get(kind, 0)) for kind in kinds),
        )
        for row in found.tiers
    ]
    heads = ("TIER", "TIMES", "PRICE", "YOURS", *(f"A {kind.upper()} SLICE" for kind in kinds))
    return [*lines, *lay_out(heads, rows, right=range(1, len(heads)))]


def _describe_bucket(bucket: BucketEarnings) -> list[str]:
    from computepool.cli.why import lay_out, wrap
    from computepool.cli.words import format_seconds
    from computepool.core.market.ppm import say_percent
    from computepool.core.placement.price import say_price

    own = bucket.own_slot_count
    whose = f"{own:,} slot{'' if own == 1 else 's'} of yours: " if own else ""
    rows = [
        (
            _credits(row.floor_microcredits_per_hour),
            _credits(row.price_microcredits_per_hour),
            say_percent(row.busy_ppm),
            _credits(row.owner_microcredits_per_hour),
            _credits(row.owner_microcredits_per_job),
            "most" if row == bucket.best else "",
        )
        for row in bucket.floors
    ]
    return [
        *wrap(
            f"{whose}{bucket.tier} in the region {bucket.region}. "
            f"Spot is {say_price(bucket.spot_microcredits_per_hour)}, "
            f"the usual price {say_price(bucket.reference_microcredits_per_hour)}. "
            f"Slots like it were in use for {say_percent(bucket.busy_ppm)} of the last day. "
            f"A job runs for {format_seconds(bucket.seconds_per_job)}."
        ),
        "",
        *lay_out(("FLOOR", "PAID/H", "IN USE", "YOURS/H", "YOURS/JOB", ""), rows, right=range(5)),
    ]


def _credits(microcredits: int) -> str:
    """To a hundredth of a credit, for tables: exact figures are in --json."""
    from computepool.core.placement.price import format_credits

    return format_credits(microcredits // 10_000 * 10_000)

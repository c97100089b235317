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
    from computepool.cli.why import lay_out, wrap

    lines: list[str] = []
    for bucket in found.buckets:
        lines += [*_describe_bucket(bucket), ""]
    lines += wrap(
        f"An hour of full use in the region {found.region}, in credits: the usual price and what is yours of it "
        "after the fee, and both at spot. Then what is yours of a slice with a fixed price, by kind of job."
    )
    lines.append("")
    kinds = sorted({kind for row in found.tiers for kind in row.owner_microcredits_per_slice})
    rows = [
        (
            row.tier,
            f"{row.multiplier_ppm / 1_000_000:g}",
            _credits(row.reference_microcredits_per_hour),
            _credits(row.owner_reference_microcredits_per_hour),
            _credits(row.price_microcredits_per_hour),
            _credits(row.owner_microcredits_per_hour),
            *(_credits(row.owner_microcredits_per_slice.get(kind, 0)) for kind in kinds),
        )
        for row in found.tiers
    ]
    heads = ("TIER", "TIMES", "USUAL", "YOURS", "SPOT", "YOURS", *(kind.upper() for kind in kinds))
    lines += lay_out(heads, rows, right=range(1, len(heads)))
    if any(row.tier.startswith("unknown-") for row in found.tiers):
        lines += ["", *wrap("unknown-12 is a card that has no row of its own, from 12 TFLOPS on; and so on.")]
    return lines


def _describe_bucket(bucket: BucketEarnings) -> list[str]:
    from computepool.cli.why import lay_out, wrap
    from computepool.cli.words import format_seconds
    from computepool.core.market.ppm import say_percent
    from computepool.core.placement.price import say_price

    own = bucket.own_slot_count
    whose = f"{own:,} slot{'' if own == 1 else 's'} of yours: " if own else ""
    use = f"Slots like it were in use for {say_percent(bucket.busy_ppm)} of the last day."
    if not bucket.busy_ppm:
        use = "No slot like it was seen in use over the last day: what an hour of being lent brings is not known."
    rows = [
        (
            _credits(row.floor_microcredits_per_hour),
            _credits(row.price_microcredits_per_hour),
            say_percent(row.busy_ppm),
            _credits(row.owner_microcredits_per_hour),
            _credits(row.owner_microcredits_per_busy_hour),
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
            f"{use} A job runs for {format_seconds(bucket.seconds_per_job)}. "
            "Yours, after the fee, per hour of being lent, per hour of work and per job:"
        ),
        "",
        *lay_out(("FLOOR", "PAID/H", "IN USE", "LENT/H", "WORK/H", "JOB", ""), rows, right=range(6)),
    ]


def _credits(microcredits: int) -> str:
    """To a hundredth of a credit, for tables: exact figures are in --json."""
    from computepool.core.placement.price import format_credits

    return format_credits(microcredits // 10_000 * 10_000)

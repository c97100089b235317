"""`computepool quote`: what a job would cost, before it is submitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from computepool.cli.access import connect, hub_options

if TYPE_CHECKING:
    from computepool.wire.market import CostRange, Quote, QuotePlace


@click.command("quote")
@click.option("--slices", type=int, default=1, show_default=True, help="So many times.")
@click.option("--gpu", is_flag=True, help="Any GPU.")
@click.option("--vram", default="0", metavar="SIZE", help="GPU memory, such as 16GB.")
@click.option("--ram", metavar="SIZE", help="Memory. [default: 512MB]")
@click.option("--cores", type=int, default=1, show_default=True, help="CPU cores.")
@click.option("--disk", metavar="SIZE", help="Disk space. [default: 1GB]")
@click.option("--tier", "tiers", multiple=True, metavar="NAME", help="Only such cards, e.g. rtx-4090. Repeatable.")
@click.option("--region", "regions", multiple=True, metavar="XX", help="Only such countries, e.g. IN. Repeatable.")
@click.option("--isolation", metavar="LEVEL", help="Least isolation: sandboxed, container or gvisor.")
@click.option("--max-price", metavar="CREDITS", help="The most that an hour of a slot may cost.")
@click.option(
    "--price-per-slice",
    metavar="CREDITS",
    help="A fixed price for each slice, times tier and region of its slot; `card`: the rate card's.",
)
@click.option("--max-price-per-slice", metavar="CREDITS", help="With it: the most that a slice may cost.")
@click.option("--kind", default="compute", show_default=True, help="What it is, by the rate card: ml, gaming, ...")
@click.option("--wall", default="1h", show_default=True, metavar="TIME", help="Longest run of a slice: 90s, 15m, 2h.")
@click.option("--expect", metavar="TIME", help="How long you expect a slice to run. [default: half of --wall]")
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer for programs.")
@hub_options
def command(
    wall: str,
    expect: str | None,
    isolation: str | None,
    as_json: bool,
    hub_url: str | None,
    key: str | None,
    **wanted: Any,
) -> None:
    """Say what a job with these requirements would cost, and where and when it could run. Nothing is submitted.

    \b
        computepool quote --vram 16GB --slices 8 --expect 20m
        computepool quote --gpu --tier rtx-4090 --region IN --max-price 40
    """
    from computepool.cli.terminal import print_json
    from computepool.cli.words import plain

    if isolation is not None:
        wanted["isolation"] = isolation
    wanted["wall_seconds"] = _parse_time("--wall", wall)
    wanted["expected_seconds"] = None if expect is None else _parse_time("--expect", expect)
    found = connect(hub_url, key).quote(**wanted)
    if as_json:
        print_json(found)
        return
    for line in describe_quote(found, slices=wanted["slices"]):
        click.echo(plain(line))


def _parse_time(option: str, text: str) -> int:
    from computepool.cli.words import parse_seconds

    try:
        return parse_seconds(text)
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}.") from None


def describe_quote(quote: Quote, *, slices: int) -> list[str]:
    from computepool.cli.why import lay_out, wrap
    from computepool.cli.words import format_seconds
    from computepool.core.ledger.decimals import say_credits
    from computepool.core.placement.price import say_price

    what = f"{slices:,} slice{'' if slices == 1 else 's'}"
    if quote.cost is None:
        lines = wrap(quote.why)
    else:
        times = ", ".join(map(format_seconds, (quote.seconds_low, quote.seconds_likely, quote.seconds_high)))
        basis = f"(If a slice runs for {times}.)"
        if quote.price is not None:
            basis = "(However long a slice runs: a fixed price for each that is delivered.)"
        lines = [f"{what} would cost {_say_range(quote.cost)}.", *wrap(basis), *wrap(quote.why)]
    lines += wrap(
        f"{say_credits(quote.hold_microcredits)} would be set aside when you submit it, and what is not used comes "
        f"back. {_say_most(quote)}"
    )
    lines.append(_say_start(quote))
    if quote.own_slot_count:
        own = quote.own_slot_count
        lines += wrap(f"{own:,} slot{'' if own == 1 else 's'} of your own could run it, for nothing.")
    if quote.pool_slot_count:
        pool, price = quote.pool_slot_count, say_price(quote.pool_price_microcredits_per_hour or 0)
        lines += wrap(f"{pool:,} slot{'' if pool == 1 else 's'} of private pools take you, from {price} on.")
    if quote.owners_earn is not None:
        lines += wrap(f"Those who lend the slots would get {_say_range(quote.owners_earn)}.")
    if quote.cost is not None and quote.levels:
        shown = [
            f"{each.confidence * 100:g} %: {'' if each.verify.value == 'audit' else '--verify quorum, '}"
            f"{say_credits(each.surcharge_microcredits or 0)} more"
            for each in quote.levels
        ]
        lines += wrap("To be sure of the results (with --compare), likely: " + "; ".join(shown) + ".")
    if quote.places:
        price = "CREDITS/H" if quote.price is None else "A SLICE"
        heads = ("TIER", "REGION", price, "SPOT", "USUAL", "FREE", "SLOTS", "STARTS")
        lines += ["", *lay_out(heads, [_to_row(place) for place in quote.places], right=(2, 3, 4, 5, 6))]
    for words in dict.fromkeys(place.refusal_words for place in quote.places if place.refusal_words):
        lines += wrap(f"Not now: {words}.")
    return lines


def _say_most(quote: Quote) -> str:
    from computepool.core.ledger.decimals import say_credits
    from computepool.core.placement.price import say_price

    if quote.price is None:
        return f"An hour costs {say_price(quote.ceiling_microcredits_per_hour)} at most."
    base, most = quote.price.microcredits_per_slice or 0, quote.price.ceiling_microcredits_per_slice or 0
    return f"A slice costs {say_credits(base)}, times tier and region of its slot, and {say_credits(most)} at most."


def _say_range(cost: CostRange) -> str:
    from computepool.core.ledger.decimals import say_credits
    from computepool.core.placement.price import format_credits

    low, likely, high = cost.low_microcredits, cost.likely_microcredits, cost.high_microcredits
    return f"{say_credits(likely)}, likely; {format_credits(low)} at least, {format_credits(high)} at most"


def _say_start(quote: Quote) -> str:
    from computepool.cli.words import format_seconds

    if quote.starts_in_seconds is None:
        return "It would not start while the market is as it is."
    if quote.starts_in_seconds == 0:
        return "It could start at once."
    return f"It could start in about {format_seconds(quote.starts_in_seconds)}."


def _to_row(place: QuotePlace) -> tuple[str, ...]:
    from computepool.cli.words import format_seconds
    from computepool.core.placement.price import format_credits

    if place.starts_in_seconds is None:
        starts = "not now"
    else:
        starts = f"in {format_seconds(place.starts_in_seconds)}" if place.starts_in_seconds else "at once"
    return (
        place.tier,
        place.region,
        format_credits(
            place.price_microcredits_per_hour
            if place.slice_price_microcredits is None
            else place.slice_price_microcredits
        ),
        format_credits(place.spot_microcredits_per_hour),
        format_credits(place.reference_microcredits_per_hour),
        f"{place.free_count:,}",
        f"{place.slot_count:,}",
        starts,
    )

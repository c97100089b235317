"""`computepool why`: why a job waits, where it ran, how an attempt ended; why a node is idle, or was paid so."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

import click

from computepool.cli.access import connect, hub_options

if TYPE_CHECKING:
    from computepool.wire.jobs import JobPrice, Requirements
    from computepool.wire.trust import JobValidation
    from computepool.wire.why import (
        JobWhy,
        NodeWhy,
        WhyAdvice,
        WhyAttempt,
        WhyCandidate,
        WhyChoice,
        WhyFloor,
        WhyMargin,
        WhyOfferChange,
        WhyPlace,
        WhySlice,
        WhySuggestion,
        WhyWaiting,
    )

_COLUMNS_MAX = 80
_IN_PART = "The fleet is very large: only a part of the fleet was looked at."
_WORDS_LENGTH_MAX = 200
# Gates that an owner sets, and how what they set is told to them.
_CONDITIONS = {"price": "you ask", "kind": "you take", "seconds": "you take"}


@click.command("why")
@click.argument("job", required=False)
@click.option("--slice", "index", type=click.IntRange(min=0), help="Which slice. [default: the one that tells most]")
@click.option("--node", metavar="NODE", help="Why this node of yours has no work.")
@click.option("--payment", is_flag=True, help="With --node and --day: why it was paid what it was paid.")
@click.option("--day", metavar="YYYY-MM-DD", help="With --payment: a day of UTC.")
@click.option("--all", "everything", is_flag=True, help="With --payment: every attempt, not only what differs.")
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer for programs.")
@hub_options
def command(
    job: str | None,
    index: int | None,
    node: str | None,
    payment: bool,
    day: str | None,
    everything: bool,
    as_json: bool,
    hub_url: str | None,
    key: str | None,
) -> None:
    """Say why JOB waits and the smallest change that would let it run; or where it ran and how attempts ended.

    JOB is an id, a piece of one, or `last`. With --node NODE (a name, an id or a piece of one) say why it is idle;
    with --payment --node NODE --day DAY why it was paid what it was paid, attempt by attempt.
    """
    from computepool.cli.terminal import print_json

    if (job is None) == (node is None):
        raise click.UsageError("Name a JOB, or a node with --node NODE.")
    if node is not None and index is not None:
        raise click.UsageError("--slice goes with a JOB, not with --node.")
    if payment != (day is not None) or (payment and node is None) or (everything and not payment):
        raise click.UsageError("--payment goes with --node NODE and --day YYYY-MM-DD, and --all goes with it.")
    if node is not None and day is not None:
        _explain_payment(hub_url, key, node, day, everything=everything, as_json=as_json)
        return
    client = connect(hub_url, key)
    if node is not None:
        from computepool.cli.nodes import find_node

        node_id = find_node(client, node).id
        idle = client.why_node(node_id=node_id)
        print_json(idle) if as_json else _print([*_describe_here(node_id), *describe_node(idle)])
    elif job is not None:
        from computepool.cli.job_names import find_job

        found = find_job(client, job).why(slice=index)
        print_json(found) if as_json else _print(describe_job(found))


def _describe_here(node_id: UUID) -> list[str]:
    """What the agent itself says, if it runs on this very machine: the hub does not know who sits there."""
    import os

    from computepool import clock
    from computepool.node.config import find_state_home
    from computepool.node.local_status import describe, find_node_here

    agent = find_node_here(find_state_home(os.environ), node_id)
    if agent is None:
        return []
    return [*describe(agent, now_seconds=clock.unix_seconds()), "At the hub:"]


def _explain_payment(
    hub_url: str | None, key: str | None, node: str, day: str, *, everything: bool, as_json: bool
) -> None:
    from computepool.cli.pay import describe_pay, find_payee
    from computepool.cli.terminal import print_json
    from computepool.core.ledger.period import read_day

    wanted = read_day(day)
    client = connect(hub_url, key)
    node_id, name = find_payee(client, node)
    attempts = client.books.why_all(node_id=node_id, day=wanted)
    if as_json:
        print_json(list(attempts))
    else:
        _print(describe_pay(name, wanted, attempts, everything=everything))


def _print(lines: Iterable[str]) -> None:
    from computepool.cli.words import plain

    for line in lines:
        click.echo(plain(line))


def describe_job(why: JobWhy) -> list[str]:
    from computepool.cli.words import short_id

    lines = wrap(f"Job {short_id(why.job_id)} ({one_line(why.name)}): {why.state.value}. Slices: {_say_counts(why)}.")
    if why.waiting is not None:
        lines += ["", *_describe_waiting(why.waiting)]
    if why.slice is not None:
        lines += ["", *_describe_slice(why, why.slice)]
    if why.validation is not None:
        lines += ["", *_describe_validation(why.validation)]
    return lines


def _describe_validation(found: JobValidation) -> list[str]:
    from computepool.core.placement.price import format_credits

    lines = wrap(found.words)
    counts = found.counts
    shown = {
        "checked by others": counts.verified,
        "from trusted nodes": counts.accepted,
        "being checked": counts.verifying,
        "unverified": counts.unverified,
        "put right": counts.replaced,
    }
    said = ", ".join(f"{count:,} {words}" for words, count in shown.items() if count)
    if said:
        lines += wrap(f"Slices: {said}.")
    if found.check_count:
        lines += wrap(f"Checking has cost {format_credits(found.check_microcredits)} credits.")
    return lines


def _describe_waiting(waiting: WhyWaiting) -> list[str]:
    lines = wrap(f"Waiting: {waiting.words}")
    if waiting.places:
        fits = "Fits" if waiting.pass_count else "Would fit"
        lines += wrap(f"{fits}: {'; '.join(_say_place(place) for place in waiting.places)}.", indent="  ")
    if waiting.pass_count:
        lines += wrap(f"Turn: {waiting.turn.words}")
    if waiting.turn.deadline_at is not None and waiting.turn.raised_at is None:
        at = waiting.turn.deadline_at.astimezone().strftime("%Y-%m-%d %H:%M")
        lines += wrap(f"Deadline: {at}. As it comes near, the slice moves to the front of your own.")
    if waiting.gates and not waiting.free_count:
        rows = [(g.gate.value, g.asked, f"{g.failed_count:,} of {waiting.slot_count:,}") for g in waiting.gates]
        lines += ["", *lay_out(("GATE", "ASKED", "SLOTS THAT FAIL"), rows)]
        if len(rows) > 1:
            lines.append("  A slot may fail several gates.")
    if waiting.fleet_is_more:
        lines.append(f"  {_IN_PART}")
    for note in waiting.notes:
        lines += ["", *wrap(note)]
    if waiting.suggestions:
        several = len(waiting.suggestions) > 1
        lines += ["", "What would let it run" + (", smallest change first:" if several else ":")]
        for number, suggestion in enumerate(waiting.suggestions, 1):
            lines += _describe_suggestion(f"  {number}. " if several else "  ", suggestion)
    return lines


def _describe_suggestion(lead: str, suggestion: WhySuggestion) -> list[str]:
    words = " and ".join(change.words for change in suggestion.changes)
    slots = f"{suggestion.slot_count:,} slot{'s' if suggestion.slot_count != 1 else ''}"
    free = f", {suggestion.free_count:,} free now"
    places = "; ".join(_say_place(place) for place in suggestion.places)
    lines = wrap(f"{words[0].upper()}{words[1:]}: {slots}{free} ({places}).", indent=lead)
    return [*lines, " " * len(lead) + say_run(suggestion)]


def say_run(suggestion: WhySuggestion) -> str:
    """How `computepool run` is told of the change: options to give, and options to leave out."""
    need = suggestion.requirements
    gates = [change.gate.value for change in suggestion.changes]
    given = [flag for gate in gates for flag in _flags_of(need, gate, suggestion.price)]
    if "seconds" in gates:
        # A fixed price grows with the time that a slice may run.
        prices = _flags_of(need, "price", suggestion.price) if suggestion.price and "price" not in gates else []
        given += [f"--wall {suggestion.wall_seconds}s", *prices]
    dropped = {"gpu": "--gpu and --vram", "tier": "--tier", "region": "--region", "price": "--max-price"}
    without = [dropped[gate] for gate in gates if gate in dropped and not _flags_of(need, gate, suggestion.price)]
    line = " ".join(["computepool run", *given, "..."])
    return line + (f"  (without {', '.join(without)})" if without else "")


def _flags_of(need: Requirements, gate: str, price: JobPrice | None) -> list[str]:
    sizes = {"ram": need.ram_bytes, "disk": need.disk_bytes, "vram": need.vram_bytes}
    if gate == "vram" and not need.vram_bytes:
        return ["--gpu"]
    if gate in sizes:
        return [f"--{gate} {_size_flag(sizes[gate])}"]
    if gate == "tier":
        return [f"--tier {tier}" for tier in need.tiers]
    if gate == "region":
        return [f"--region {region}" for region in need.regions]
    if gate == "price" and price is not None:
        base, most = price.microcredits_per_slice or 0, price.ceiling_microcredits_per_slice or 0
        return [f"--price-per-slice {_credits_flag(base)}", f"--max-price-per-slice {_credits_flag(most)}"]
    if gate == "price":
        ceiling = need.ceiling_microcredits_per_hour
        return [] if ceiling is None else [f"--max-price {_credits_flag(ceiling)}"]
    single = {"cores": f"--cores {need.cores}", "isolation": f"--isolation {need.isolation.value}"}
    return [single[gate]] if gate in single else []


def _credits_flag(microcredits: int) -> str:
    from computepool.core.placement.price import format_credits

    return format_credits(microcredits).replace(",", "")


def _size_flag(size_bytes: int) -> str:
    """Exact: a rounded figure could be rounded up past what the slot has."""
    for unit, length in (("GB", 10**9), ("MB", 10**6)):
        if size_bytes % (length // 10) == 0 and size_bytes >= length:
            return f"{size_bytes / length:.1f}".removesuffix(".0") + unit
    return str(size_bytes)


def _say_place(place: WhyPlace) -> str:
    from computepool import clock
    from computepool.cli.words import format_ago

    where = place.tier + (f" in {place.region}" if place.region else "")
    if place.node_name is not None:
        where += f", e.g. your {one_line(place.node_name)!r}"
    if place.standing.value == "ready":
        return f"{place.slot_count:,} x {where}"
    if place.opens_at is not None:
        return f"{place.slot_count:,} x {where}, opens {place.opens_at.astimezone():%a %H:%M}"
    seen = f" for {format_ago(place.last_seen_at, clock.now())}" if place.last_seen_at else ""
    return f"{place.slot_count:,} x {where}, {place.standing.value}" + (
        seen if place.standing.value == "offline" else ""
    )


def _describe_slice(why: JobWhy, part: WhySlice) -> list[str]:
    attempts = f"{part.attempt_count} attempt{'s' if part.attempt_count != 1 else ''}"
    head = f"Slice {part.index}: {part.state.value}, {attempts}."
    # Told where the newest attempt does not say it: the slice was stopped by a rule, not by that attempt's end.
    own_end = part.cause_words is not None and (not part.attempts or part.attempts[0].cause is not part.cause)
    lines = wrap(f"{head} The reason: {part.cause_words}." if own_end else head)
    for attempt in part.attempts:
        lines += _describe_attempt(attempt)
    if part.attempts and part.attempts[0].margins and part.attempts[0].cause is None:
        rows = [(m.gate.value, m.needs, m.has, m.spare or "") for m in part.attempts[0].margins]
        lines += ["", f"How slot {part.attempts[0].slot} fits:"]
        lines += lay_out(("GATE", "NEEDS", "HAS", "TO SPARE"), rows)
    if part.choice is not None:
        lines += ["", *_describe_choice(part.choice)]
    if part.next_words is not None:
        lines += ["", *wrap(f"Next: {part.next_words}")]
    for advice in part.advice:
        typed = _say_command(why, part, advice)
        lines += wrap(f"You can {advice.words}{':' if typed else '.'}", indent="  ")
        # Never wrapped: a command is there to be copied.
        lines += [f"    {typed}"] if typed else []
    return lines


_WISHES = {"value": "the best value", "cheapest": "the cheapest slot", "fastest": "the fastest slot"}
# What scorers look at stands in a column with its points; what they only judge has its points alone.
_MEASURED = {"price": "CREDITS/H", "speed": "TFLOPS", "reliability": "RELIABLE"}
_JUDGED = {"vram_fit": "VRAM FITS", "cores_fit": "CORES FIT", "gpu_spared": "NO GPU"}


def _describe_choice(choice: WhyChoice) -> list[str]:
    lines = wrap(f"Why this slot: {choice.words}")
    if not choice.candidates:
        return lines
    judged = [name for name in _JUDGED if any(name in each.points for each in choice.candidates)]
    heads = ("SLOT", *_MEASURED.values(), *(_JUDGED[name] for name in judged), "TOTAL")
    rows = [_row_of(each, judged) for each in choice.candidates]
    lines += lay_out(heads, rows, right=range(1, len(heads)))
    lines += wrap(
        f"> marks the slot it got. In brackets: points for {_WISHES[choice.prefer.value]} by the weights "
        f"{choice.weight_set!r}; the largest total wins. Reckoned now: when it was placed, figures may have "
        "been others.",
        indent="  ",
    )
    return [*lines, f"  {_IN_PART}"] if choice.is_cut else lines


def _row_of(candidate: WhyCandidate, judged: Sequence[str]) -> tuple[str, ...]:
    from computepool.core.placement.price import format_credits

    measured = {
        "price": format_credits(candidate.price_microcredits_per_hour),
        "speed": f"{candidate.speed_tflops:.3g}",
        "reliability": f"{candidate.reliability * 100:.0f} %",
    }
    points = {name: f"({value:.2f})" for name, value in candidate.points.items()}
    state = "" if candidate.chosen else "busy" if candidate.busy else "free"
    name = one_line(candidate.node_name) if candidate.node_name is not None else ""
    where = " ".join(word for word in (candidate.slot, candidate.tier, candidate.region, state, name) if word)
    return (
        f"{'>' if candidate.chosen else ' '} {candidate.rank}. {where}",
        *(f"{value} {points.get(name, '')}".rstrip() for name, value in measured.items()),
        *(points.get(name, "(0)") for name in judged),
        f"{candidate.total:.2f}",
    )


def _describe_attempt(attempt: WhyAttempt) -> list[str]:
    from computepool.cli.words import format_seconds, short_id

    node = one_line(attempt.node_name) if attempt.node_name is not None else short_id(attempt.node_id)
    kind = ", ".join(word for word in (attempt.tier, attempt.region) if word)
    ran = f", ran {format_seconds(attempt.run_seconds)}" if attempt.run_seconds is not None else ""
    at = attempt.leased_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    lines = wrap(
        f"{attempt.number}. {attempt.state.value} on {node} {attempt.slot}"
        f"{f' ({kind})' if kind else ''}, given {at}{ran}",
        indent="  ",
    )
    if attempt.cause_words is not None:
        said = f" The node says: {one_line(attempt.message)}" if attempt.message else ""
        lines += wrap(f"{attempt.cause_words[0].upper()}{attempt.cause_words[1:]}.{said}", indent="     ")
    if attempt.saved_at is not None:
        lines += wrap(
            f"Its last checkpoint holds {format_seconds(attempt.saved_seconds)} of its work.", indent="     "
        )
    if attempt.at_risk_seconds is not None:
        since = "it began" if attempt.saved_at is None else "then"
        lines += wrap(f"At risk: {format_seconds(attempt.at_risk_seconds)}, since {since}.", indent="     ")
    return lines


def _say_command(why: JobWhy, part: WhySlice, advice: WhyAdvice) -> str:
    from computepool.cli.words import short_id

    remedy = advice.remedy.value
    if remedy == "read_log":
        ended = next((attempt.number for attempt in part.attempts if attempt.cause is not None), None)
        attempt = f" --attempt {ended}" if ended is not None else ""
        return f"computepool logs {short_id(why.job_id)} --slice {part.index}{attempt}"
    if remedy == "ask_for_more_ram" and advice.value is not None:
        return f"computepool run --ram {_size_flag(advice.value)} ..."
    if remedy == "raise_wall_seconds" and advice.value is not None:
        return f"computepool run --wall {advice.value}s ..."
    return ""


def describe_node(why: NodeWhy) -> list[str]:
    from computepool import clock
    from computepool.cli.words import format_ago

    state = why.state.value if why.online or why.state.value == "removed" else "offline"
    free = f"{why.free_count} of {why.slot_count} slot{'s' if why.slot_count != 1 else ''} free"
    lines = [
        f"Node {one_line(why.name)} is {state}, {free}, heard {_say_ago(format_ago(why.last_seen_at, clock.now()))}."
    ]
    lines += ["", *wrap(why.words)]
    if why.trust:
        lines += wrap(f"Trust: {why.trust}")
    if why.waiting_count and why.free_count:
        more = "at least " if why.waiting_is_more else ""
        lines += wrap(f"Waiting: {more}{why.waiting_count:,} slices; {why.fitting_count:,} fit a free slot.")
    if why.gates:
        rows = [(g.gate.value, f"{g.slice_count:,}", f"{g.shape_count:,}") for g in why.gates]
        lines += ["", "Waiting work that this node cannot take, by the gate that its best slot fails:"]
        lines += lay_out(("GATE", "SLICES", "KINDS"), rows)
        if len(rows) > 1:
            lines.append("  Work may fail several gates.")
    # Where only the owner's own conditions stand in the way, the paragraphs after this one say it better.
    if why.lack is not None and any(margin.gate.value not in _CONDITIONS for margin in why.lack.missing):
        lacks = "; ".join(_say_lack(margin) for margin in why.lack.missing)
        lines += [
            "",
            *wrap(f"To take the largest part of it ({why.lack.slice_count:,} slices), {why.lack.slot} lacks:"),
        ]
        lines += wrap(f"{lacks}.", indent="  ")
    if why.lower_floor is not None:
        lines += _describe_lower_floor(why, why.lower_floor)
    for change in why.offer_changes:
        lines += _describe_offer_change(why, change)
    return lines


def _say_lack(margin: WhyMargin) -> str:
    has = _CONDITIONS.get(margin.gate.value, "it has")
    return f"{margin.gate.value}: {margin.needs} ({has} {margin.has})"


def _describe_lower_floor(why: NodeWhy, lower: WhyFloor) -> list[str]:
    from computepool.core.placement.price import say_price

    slices = f"{lower.slice_count:,} waiting slice{'s' if lower.slice_count != 1 else ''}"
    now, then = say_price(why.floor_microcredits_per_hour), say_price(lower.floor_microcredits_per_hour)
    name = one_line(why.name)
    typed = f"computepool nodes {shlex.quote(name)} floor {_credits_flag(lower.floor_microcredits_per_hour)}"
    return ["", *wrap(f"You ask {now} for a slot. For {then}, {slices} would fit:"), f"    {typed}"]


def _describe_offer_change(why: NodeWhy, change: WhyOfferChange) -> list[str]:
    slices = f"{change.slice_count:,} waiting slice{'s' if change.slice_count != 1 else ''}"
    option = {"seconds": "--min-seconds", "kind": "--kinds", "pool": "--pool"}[change.gate.value]
    typed = f"computepool nodes {shlex.quote(one_line(why.name))} offer {option} {change.value}"
    words = f"{change.words[0].upper()}{change.words[1:]}"
    return ["", *wrap(f"{words}, and {slices} would fit:"), f"    {typed}"]


def _say_ago(ago: str) -> str:
    return ago if ago == "never" else f"{ago} ago"


def _say_counts(why: JobWhy) -> str:
    named = ("queued", "leased", "running", "succeeded", "failed", "cancelled")
    parts = [f"{getattr(why.counts, name):,} {name}" for name in named if getattr(why.counts, name)]
    return ", ".join(parts) or "no slices"


def lay_out(heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> list[str]:
    """Columns as wide as their widest cell, those named in `right` flush right.

    Where a line would be too long, its widest column gives way.
    """
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    excess = 2 + sum(widths) + 2 * (len(widths) - 1) - _COLUMNS_MAX
    widest = widths.index(max(widths))
    widths[widest] -= max(0, excess)
    return [
        ("  " + "  ".join(_fit(cell, widths[i], right=i in right) for i, cell in enumerate(row))).rstrip()
        for row in (tuple(heads), *rows)
    ]


def _fit(cell: str, width: int, *, right: bool) -> str:
    shown = cell if len(cell) <= width else cell[: max(0, width - 3)] + "..."
    return shown.rjust(width) if right else shown.ljust(width)


def wrap(text: str, *, indent: str = "") -> list[str]:
    import textwrap

    return textwrap.wrap(
        text,
        _COLUMNS_MAX,
        initial_indent=indent,
        subsequent_indent=" " * len(indent),
        break_long_words=False,
        break_on_hyphens=False,
    )


def one_line(text: str) -> str:
    """A stranger's words within a sentence: without line breaks, and not the whole of a long story."""
    import textwrap

    return textwrap.shorten(text, _WORDS_LENGTH_MAX, placeholder=" ...")

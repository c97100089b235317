"""What `computepool why --payment` says: a node's day, attempt by attempt, and what does not agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import date
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID

    from computepool.sdk import Client
    from computepool.wire.pay import PaidAttempt

_LINES_SHOWN = 100
_MARKS = ("paid", "disputed", "reversed", "unpaid", "running", "underpaid", "overpaid")


def find_payee(client: Client, name: str) -> tuple[UUID, str]:
    """A node by its whole id, also one that was removed; else by its name or a piece of its id."""
    from uuid import UUID

    from computepool.cli.nodes import find_node

    try:
        node = client.get_node(node_id=UUID(name))
    except ValueError:
        node = find_node(client, name)
    return node.id, node.name


def describe_pay(name: str, day: date, attempts: Iterable[PaidAttempt], *, everything: bool = False) -> list[str]:
    """Counts and sums of all; of those that differ or are disputed every one, of the others with `everything`."""
    from computepool.cli.why import lay_out, one_line, wrap
    from computepool.core.ledger.decimals import say_credits, to_decimal
    from computepool.core.words import say_count

    counts: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    missing = 0
    waiting: list[PaidAttempt] = []
    told: list[PaidAttempt] = []
    for attempt in attempts:
        mark = attempt.mark.value
        counts[mark] += 1
        sums[mark] += attempt.earned_microcredits + (attempt.made_good_microcredits or 0)
        if attempt.waits:
            waiting.append(attempt)
        if attempt.differences:
            missing += attempt.missing_microcredits
        if (attempt.differences or attempt.dispute_reason or everything) and len(told) < _LINES_SHOWN:
            told.append(attempt)
    if not counts:
        return [f"No attempt ended on {one_line(name)} on {day} (UTC)."]
    rows = [(mark, f"{counts[mark]:,}", to_decimal(sums[mark])) for mark in _MARKS if counts[mark]]
    head = f"Attempts that ended on {one_line(name)} on {day} (UTC), and what you earned with them, in credits:"
    lines = [*wrap(head), *lay_out(("PAY", "ATTEMPTS", "EARNED"), rows, right=(1, 2))]
    if missing > 0:
        lines += ["", *wrap(f"You were paid {say_credits(missing)} too little. Show this to the operator:")]
    elif missing < 0:
        lines += ["", *wrap(f"You were paid {say_credits(-missing)} too much:")]
    elif not counts["underpaid"] and not counts["overpaid"]:
        lines += ["", "Everything agrees: rules, attempts and ledger."]
    if waiting:
        amount = say_credits(sum(attempt.earned_microcredits for attempt in waiting))
        lines += ["", *wrap(f"Waiting: {amount}, for {say_count(len(waiting), 'attempt')}. {waiting[-1].waits}")]
    for attempt in told:
        lines += ["", *_describe(attempt)]
    return lines


def _describe(attempt: PaidAttempt) -> Sequence[str]:
    from computepool.cli.why import one_line, wrap
    from computepool.core.ledger.decimals import say_credits, to_decimal
    from computepool.core.placement.price import say_price

    head = f"Attempt {attempt.attempt_id}: job {attempt.job_id} slice {attempt.slice_index}, {attempt.slot}."
    ended = f"{attempt.finished_at:%H:%M:%S}" if attempt.finished_at else "runs"
    how = attempt.cause.value if attempt.cause else attempt.state.value
    claimed = "-" if attempt.run_seconds is None else f"{attempt.run_seconds:g} s"
    metered = "-" if attempt.metered_seconds is None else f"{attempt.metered_seconds} s"
    price = "no price"
    if attempt.slice_price_microcredits is not None:
        price = f"fixed price {say_credits(attempt.slice_price_microcredits)}"
    elif attempt.rate_microcredits_per_hour is not None:
        price = f"rate {say_price(attempt.rate_microcredits_per_hour)}"
    moved = "unclear" if attempt.moved_microcredits is None else to_decimal(attempt.moved_microcredits)
    facts = (
        f"leased {attempt.leased_at:%H:%M:%S}, ended {ended} ({how}); claimed {claimed}, metered {metered}; "
        f"{price}; rule {attempt.rule.value}"
    )
    money = (
        f"due {to_decimal(attempt.due_microcredits)}, charged {to_decimal(attempt.charged_microcredits)}; "
        f"to you: due {to_decimal(attempt.due_to_owner_microcredits)}, "
        f"earned {to_decimal(attempt.earned_microcredits)}, moved {moved}"
    )
    lines = [head, *wrap(facts, indent="  "), *wrap(money, indent="  "), *wrap(attempt.words, indent="  ")]
    lines += wrap(attempt.waits, indent="  ") if attempt.waits else []
    if attempt.dispute_state is not None:
        lines += wrap(f"dispute, {attempt.dispute_state.value}: {one_line(attempt.dispute_reason)}", indent="  ")
        lines += wrap(f"decided: {one_line(attempt.dispute_note)}", indent="  ") if attempt.dispute_note else []
    return lines

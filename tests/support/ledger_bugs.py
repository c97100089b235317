"""Bugs planted into the ledger's rules, one at a time. The checks of a history must notice every one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import uuid4

from computepool.core.ids import AccountId, AttemptId
from computepool.core.ledger import earning as earnings
from computepool.core.ledger import verbs
from computepool.core.ledger.accounts import LedgerAccount
from computepool.core.ledger.amount import Microcredits
from computepool.core.ledger.books import Draft, MemoryBooks, Outcome
from computepool.core.ledger.charging import (
    Charge,
    End,
    FrozenPrice,
    PriceMode,
    count_paid_seconds,
    price_attempt,
)
from computepool.core.ledger.earning import Earning, EarningState
from computepool.core.ledger.make_good import Superseded, price_make_good
from computepool.core.ledger.refusal import Refusal, RefusalCode
from computepool.core.ledger.transfer import Leg, Posting
from tests.support.ledger_histories import History, Rules

# Within so many histories a bug must be found.
HISTORIES_MAX = 300


@dataclass(frozen=True)
class PlantedBug:
    name: str
    rules: Rules
    # Some of the words of the check that notices it.
    words: str


def find_bug(bug: PlantedBug) -> tuple[int, str] | None:
    """How many histories it took, and what the check said. None: it was missed."""
    for seed in range(HISTORIES_MAX):
        try:
            History(seed, bug.rules).run()
        except AssertionError as noticed:
            return seed + 1, str(noticed)
    return None


# Verbs that do a little too much, or too little


def with_legs(verb: Callable[..., Posting | Refusal], change: Callable[[list[Leg]], list[Leg]]) -> Callable[..., Any]:
    def broken(**arguments: Any) -> Posting | Refusal:
        made = verb(**arguments)
        return replace(made, legs=tuple(change(list(made.legs)))) if isinstance(made, Posting) else made

    return broken


def with_key(verb: Callable[..., Posting | Refusal], name: Callable[[Posting], str]) -> Callable[..., Any]:
    def broken(**arguments: Any) -> Posting | Refusal:
        made = verb(**arguments)
        return replace(made, key=name(made)) if isinstance(made, Posting) else made

    return broken


def double_the_owners_part(legs: list[Leg]) -> list[Leg]:
    return [replace(legs[0], amount=Microcredits(2 * legs[0].amount)), *legs[1:]]


def double_the_last(legs: list[Leg]) -> list[Leg]:
    return [*legs[:-1], replace(legs[-1], amount=Microcredits(2 * legs[-1].amount))]


def keep_one_back(legs: list[Leg]) -> list[Leg]:
    return [replace(legs[0], amount=Microcredits(max(1, legs[0].amount - 1))), *legs[1:]]


def drop_fees(legs: list[Leg]) -> list[Leg]:
    return [leg for leg in legs if leg.source.owner_id is not None] or legs


def drop_debts(legs: list[Leg]) -> list[Leg]:
    return [leg for leg in legs if leg.source.kind.value != "receivable"] or legs


def split_that_rounds_both_down(attempt_id: AttemptId, price: int, *, fee_ppm: int) -> Charge:
    return Charge(attempt_id, price * 4 // 5, price // 5)


def split_that_rounds_to_the_owner(attempt_id: AttemptId, price: int, *, fee_ppm: int) -> Charge:
    return Charge(attempt_id, price - price // 5, price // 5)


def price_of_a_slice_by_the_second(price: FrozenPrice, end: End, *, wall_seconds: int) -> int:
    as_if = FrozenPrice(PriceMode.PER_SECOND, price.microcredits)
    return price_attempt(as_if, end, wall_seconds=wall_seconds)


def price_that_is_whole_for_a_failure(price: FrozenPrice, end: End, *, wall_seconds: int) -> int:
    whole = price.mode is PriceMode.PER_SLICE and count_paid_seconds(end) > 0
    return price.microcredits if whole else price_attempt(price, end, wall_seconds=wall_seconds)


def price_that_is_paid_to_whoever_failed(price: FrozenPrice, end: End, *, wall_seconds: int) -> int:
    return price_attempt(price, replace(end, cause=None), wall_seconds=wall_seconds)


def pay_to_that_pays_all_again(**arguments: Any) -> Posting | Refusal:
    made = verbs.pay_to(**arguments)
    if not isinstance(made, Posting):
        return made
    whole = verbs.pay_to(**{**arguments, "paid": 0, "held_remaining": 10**15})
    return replace(made, legs=whole.legs) if isinstance(whole, Posting) else made


def release_that_ignores_disputes(*, earnings: Sequence[Earning], now: datetime) -> Posting | Refusal:
    calm = [
        replace(e, state=EarningState.PENDING) if e.state is EarningState.DISPUTED else e  # as if nothing were wrong
        for e in earnings
    ]
    return verbs.release(earnings=calm, now=now)


def release_that_does_not_wait(*, earnings: Sequence[Earning], now: datetime) -> Posting | Refusal:
    return verbs.release(earnings=[replace(e, due_at=now) for e in earnings], now=now)


def reverse_that_takes_what_others_wait_for(**arguments: Any) -> Posting | Refusal:
    was = arguments["earning"]
    if was.state is EarningState.RELEASED:
        arguments["earning"] = replace(was, state=EarningState.PENDING)
    return verbs.reverse(**arguments)


def make_good_without_limit(superseded: Superseded, *, is_linked: bool) -> int:
    return price_make_good(replace(superseded, fee_microcredits=10**15), is_linked=is_linked)


def make_good_to_anybody(superseded: Superseded, *, is_linked: bool) -> int:
    return price_make_good(replace(superseded, owner_id=AccountId(uuid4())), is_linked=is_linked)


def dispute_that_freezes_nothing(earning: Earning) -> Earning | Refusal:
    after = earnings.dispute(earning)
    return earning if isinstance(after, Earning) and earning.state is EarningState.PENDING else after


# Books that are not kept well


class NoLimits(Draft):
    def find_refusal(self, changed: Mapping[LedgerAccount, int]) -> Refusal | None:
        return None


class LastWordCounts(Draft):
    def judge_replay(self, known: Posting, posting: Posting) -> Outcome | Refusal:
        return Outcome.REPLAYED


class KeepsHolds(Draft):
    def record(self, posting: Posting, changed: Mapping[LedgerAccount, int], held: int | None) -> None:
        super().record(posting, changed, held if posting.kind.value == "hold" else None)


class Mints(Draft):
    def record(self, posting: Posting, changed: Mapping[LedgerAccount, int], held: int | None) -> None:
        target = posting.legs[-1].target
        super().record(posting, {**changed, target: changed[target] + 1} if target in changed else changed, held)


class Tears(Draft):
    """Keeps the legs that were possible of a posting that was not."""

    def take(self, posting: Posting) -> Outcome | Refusal:
        outcome = super().take(posting)
        if isinstance(outcome, Refusal) and outcome.code is RefusalCode.INSUFFICIENT_CREDITS:
            leg = posting.legs[-1]
            self.balances[leg.target] = self._get_balance(leg.target) + leg.amount
        return outcome


class NoMemory(MemoryBooks):
    def find_posting(self, key: str) -> Posting | None:
        return None


class Forgets(MemoryBooks):
    def post(self, postings: Sequence[Posting], *, at: datetime) -> list[Outcome | Refusal]:
        outcomes = super().post(postings, at=at)
        if len(postings) > 2 and self.transfers:
            self.transfers.pop()
        return outcomes


class AllOrNone(MemoryBooks):
    """One refusal spoils the batch."""

    def post(self, postings: Sequence[Posting], *, at: datetime) -> list[Outcome | Refusal]:
        draft = self.open_draft()
        outcomes = [draft.take(posting) for posting in postings]
        refusals = [outcome for outcome in outcomes if isinstance(outcome, Refusal)]
        if not refusals:
            return super().post(postings, at=at)
        return [outcome if isinstance(outcome, Refusal) else refusals[0] for outcome in outcomes]


def with_draft(cls: type[Draft]) -> Callable[[], MemoryBooks]:
    class Broken(MemoryBooks):
        def open_draft(self) -> Draft:
            return cls(self)

    return Broken


PLANTED = [
    PlantedBug(
        "an owner is paid twice",
        Rules(settle=with_legs(verbs.settle, double_the_owners_part)),
        "plain arithmetic|hold_exceeded|insufficient",
    ),
    PlantedBug(
        "the fee is taken twice",
        Rules(settle=with_legs(verbs.settle, double_the_last)),
        "plain arithmetic|hold_exceeded|insufficient",
    ),
    PlantedBug(
        "rounding loses a microcredit", Rules(charge=split_that_rounds_both_down), "plain arithmetic|expected"
    ),
    PlantedBug(
        "a fixed price is charged by the second", Rules(price=price_of_a_slice_by_the_second), "plain|expected"
    ),
    PlantedBug(
        "a failure costs the whole price of a slice", Rules(price=price_that_is_whole_for_a_failure), "plain|expected"
    ),
    PlantedBug(
        "a node is paid for its own fault", Rules(price=price_that_is_paid_to_whoever_failed), "plain|expected"
    ),
    PlantedBug("rounding goes to the owner", Rules(charge=split_that_rounds_to_the_owner), "plain arithmetic"),
    PlantedBug(
        "a refund can be had again",
        Rules(refund=with_key(verbs.refund, lambda made: f"{made.key}/{uuid4()}")),
        "refund, expected was replayed",
    ),
    PlantedBug("a hold leaks", Rules(refund=with_legs(verbs.refund, keep_one_back)), "plain arithmetic"),
    PlantedBug(
        "another try is taken for the first hold",
        Rules(extend_hold=with_key(verbs.extend_hold, lambda made: f"{made.job_id}/hold")),
        "differing_replay to hold, expected was (posted|replayed|insufficient_credits)",
    ),
    PlantedBug(
        "another try is set aside for by every hub that hears of it",
        Rules(extend_hold=with_key(verbs.extend_hold, lambda made: f"{made.key}/{uuid4()}")),
        "to hold, expected was (replayed|differing_replay)",
    ),
    PlantedBug("a hold is never used up", Rules(books=with_draft(KeepsHolds)), "a job holds"),
    PlantedBug("accounts may be overdrawn", Rules(books=with_draft(NoLimits)), "expected was insufficient_credits"),
    PlantedBug("a replay is applied again", Rules(books=NoMemory), "expected was (replayed|differing_replay)"),
    PlantedBug(
        "a differing replay is taken for the same",
        Rules(books=with_draft(LastWordCounts)),
        "expected was differing_replay",
    ),
    PlantedBug("a posting is torn", Rules(books=with_draft(Tears)), "come to zero|plain arithmetic"),
    PlantedBug("a refusal spoils its batch", Rules(books=AllOrNone), "expected was (posted|replayed)"),
    PlantedBug("credits are minted", Rules(books=with_draft(Mints)), "come to zero"),
    PlantedBug("a transfer is not written down", Rules(books=Forgets), "what the transfers come to"),
    PlantedBug("progress is paid for again", Rules(pay_to=pay_to_that_pays_all_again), "plain arithmetic|expected"),
    PlantedBug(
        "progress is paid for by two who did not know of each other",
        Rules(pay_to=with_key(verbs.pay_to, lambda made: f"{made.key}/{sum(leg.amount for leg in made.legs)}")),
        "pay_to, expected was differing_replay",
    ),
    PlantedBug("disputed pay is released", Rules(release=release_that_ignores_disputes), "expected was disputed"),
    PlantedBug("a dispute freezes nothing", Rules(dispute=dispute_that_freezes_nothing), "a dispute freezes"),
    PlantedBug("pay is released early", Rules(release=release_that_does_not_wait), "expected was not_due"),
    PlantedBug("the fee stays after a fraud", Rules(reverse=with_legs(verbs.reverse, drop_fees)), "plain arithmetic"),
    PlantedBug(
        "a fraud is paid back by what others wait for",
        Rules(reverse=reverse_that_takes_what_others_wait_for),
        "plain arithmetic|expected was posted",
    ),
    PlantedBug(
        "what was spent before a chargeback is forgiven",
        Rules(chargeback=with_legs(verbs.chargeback, drop_debts)),
        "plain arithmetic|expected was posted",
    ),
    PlantedBug(
        "time is made good beyond the fee of its slice",
        Rules(price_make_good=make_good_without_limit),
        "plain arithmetic|expected was",
    ),
    PlantedBug(
        "owners are paid for being faster than themselves",
        Rules(price_make_good=make_good_to_anybody),
        "plain arithmetic|expected was nothing_to_move",
    ),
    PlantedBug(
        "time is made good by every hub that looks",
        Rules(make_good=with_key(verbs.make_good, lambda made: f"{made.key}/{uuid4()}")),
        "make_good, expected was replayed",
    ),
    PlantedBug(
        "a payout fails after it was confirmed",
        Rules(payout_fail=with_key(verbs.payout_fail, lambda made: f"{made.payout_id}/payout_fail")),
        "expected was differing_replay",
    ),
]

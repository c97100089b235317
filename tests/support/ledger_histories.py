"""Seeded histories of a small economy, told to the books step by step and checked against plain arithmetic.

Three people submit, own nodes, top up, cash out and cheat. Before each step the history works out by itself what
should happen, with nothing but additions; the ledger's rules must come to the same. What was posted can be posted
again on another store (`post_on_sql`), which must come to the same books.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from computepool.core.ids import AccountId, AttemptId, JobId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.state import AttemptState
from computepool.core.ledger import charging, earning, make_good, verbs
from computepool.core.ledger.accounts import SHARDS, AccountKind, LedgerAccount
from computepool.core.ledger.amount import Microcredits
from computepool.core.ledger.books import MemoryBooks, Outcome
from computepool.core.ledger.charging import Charge, End, FrozenPrice, PriceMode
from computepool.core.ledger.earning import Earning, EarningState
from computepool.core.ledger.refusal import Refusal, RefusalCode
from computepool.core.ledger.transfer import Leg, Posting
from computepool.hub.store import ledger as ledger_store

NOW = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
HOLDBACK = timedelta(hours=72)
FEE_PPM = 200_000
PEOPLE = 3
STEPS = 70

POSTED, REPLAYED = Outcome.POSTED, Outcome.REPLAYED
AVAILABLE, HELD = AccountKind.SUBMITTER_AVAILABLE, AccountKind.SUBMITTER_HELD
PENDING, EARNED = AccountKind.OWNER_PENDING, AccountKind.OWNER_AVAILABLE
OWED, FEE = AccountKind.RECEIVABLE, AccountKind.FEE
CLEARING, WORLD = AccountKind.PAYOUT_CLEARING, AccountKind.WORLD

# A person's account, or the platform's with all its shards together.
Place = tuple[AccountKind, AccountId | None]
Expected = Outcome | RefusalCode


@dataclass(frozen=True)
class Rules:
    """What is under test; a control breaks one of them."""

    books: Callable[[], MemoryBooks] = MemoryBooks
    price: Callable[..., int] = charging.price_attempt
    charge: Callable[..., Charge] = charging.charge_attempt
    top_up: Callable[..., Posting | Refusal] = verbs.top_up
    hold: Callable[..., Posting | Refusal] = verbs.hold
    extend_hold: Callable[..., Posting | Refusal] = verbs.extend_hold
    settle: Callable[..., Posting | Refusal] = verbs.settle
    pay_to: Callable[..., Posting | Refusal] = verbs.pay_to
    refund: Callable[..., Posting | Refusal] = verbs.refund
    release: Callable[..., Posting | Refusal] = verbs.release
    dispute: Callable[..., Earning | Refusal] = earning.dispute
    dismiss: Callable[..., Earning | Refusal] = earning.dismiss
    reverse: Callable[..., Posting | Refusal] = verbs.reverse
    spend_earnings: Callable[..., Posting | Refusal] = verbs.spend_earnings
    payout_reserve: Callable[..., Posting | Refusal] = verbs.payout_reserve
    payout_confirm: Callable[..., Posting | Refusal] = verbs.payout_confirm
    payout_fail: Callable[..., Posting | Refusal] = verbs.payout_fail
    payout_return: Callable[..., Posting | Refusal] = verbs.payout_return
    top_up_refund: Callable[..., Posting | Refusal] = verbs.top_up_refund
    chargeback: Callable[..., Posting | Refusal] = verbs.chargeback
    repay: Callable[..., Posting | Refusal] = verbs.repay
    bonus: Callable[..., Posting | Refusal] = verbs.bonus
    price_make_good: Callable[..., int] = make_good.price_make_good
    make_good: Callable[..., Posting | Refusal] = verbs.make_good


@dataclass
class Job:
    id: JobId
    submitter_id: AccountId
    held: int
    first_held: int
    ended: bool = False


@dataclass
class Running:
    """An attempt that is paid as it goes on."""

    attempt_id: AttemptId
    job: Job
    owner_id: AccountId
    paid: int = 0


@dataclass
class Cash:
    """A top-up or a payout."""

    id: UUID
    account_id: AccountId
    amount: int
    state: str


@dataclass
class Paid:
    """Pay for an attempt that has ended."""

    earning: Earning
    # As it was when it was taken back.
    before: Earning | None = None
    # Of its fee, what others got who worked on the same slice.
    made_good: int = 0


# What happens often, and what happens seldom; holds and payments must be frequent for the rest to find anything.
KINDS = {
    "top_up": 3,
    "hold": 10,
    "extend_hold": 4,
    "settle": 12,
    "pay_to": 7,
    "refund": 2,
    "release": 9,
    "dispute": 2,
    "dismiss": 1,
    "reverse": 4,
    "reverse_again": 2,
    "spend_earnings": 2,
    "payout_reserve": 6,
    "payout_end": 8,
    "payout_return": 10,
    "top_up_refund": 1,
    "chargeback": 1,
    "repay": 8,
    "bonus": 1,
    "make_good": 4,
    "replay": 6,
    "tamper": 4,
}


class History:
    def __init__(self, seed: int, rules: Rules | None = None) -> None:
        self.dice = random.Random(seed)
        self.rules = rules or Rules()
        self.books = self.rules.books()
        self.people = [AccountId(self.new_id()) for _ in range(PEOPLE)]
        self.now = NOW
        # What every place should come to, by additions alone.
        self.want: Counter[Place] = Counter()
        self.jobs: list[Job] = []
        self.running: list[Running] = []
        self.paid: list[Paid] = []
        self.top_ups: list[Cash] = []
        self.payouts: list[Cash] = []
        self.sent: list[Posting] = []
        self.waiting: list[tuple[Posting, Expected]] = []
        # For the other store: what was posted at once, and how it went.
        self.batches: list[tuple[list[Posting], list[Expected]]] = []
        self.visited: Counter[str] = Counter()

    def run(self, steps: int = STEPS) -> History:
        # Everybody has something to begin with.
        for _ in range(PEOPLE + 1):
            self.step("top_up")
        kinds = self.dice.choices(list(KINDS), weights=list(KINDS.values()), k=steps)
        for kind in kinds:
            self.step(kind)
            if self.dice.random() < 0.5:
                self.flush()
        self.flush()
        self.check_all()
        return self

    def step(self, kind: str) -> None:
        self.now += timedelta(hours=self.dice.choice([0, 1, 24, 80]))
        getattr(self, f"do_{kind}")()

    # Steps

    def do_top_up(self) -> None:
        person, amount = self.pick(self.people), self.draw_amount()
        cash = Cash(self.new_id(), person, amount, "paid")
        self.top_ups.append(cash)
        made = self.rules.top_up(top_up_id=cash.id, account_id=person, amount=amount)
        self.offer(made, POSTED, {(WORLD, None): -amount, (AVAILABLE, person): amount})

    def do_hold(self) -> None:
        person = self.pick(self.people)
        available = self.want[AVAILABLE, person]
        amount = self.draw_part(available)
        frozen = self.dice.random() < 0.05
        job = Job(JobId(self.new_id()), person, amount, amount)
        made = self.rules.hold(job_id=job.id, submitter_id=person, amount=amount, frozen=frozen)
        expected: Expected = POSTED if 0 < amount <= available else RefusalCode.INSUFFICIENT_CREDITS
        if frozen:
            expected = RefusalCode.FROZEN
        elif amount == 0:
            expected = RefusalCode.NOTHING_TO_MOVE
        if self.offer(made, expected, {(AVAILABLE, person): -amount, (HELD, person): amount}):
            self.jobs.append(job)
            return
        # Never written, like a submit that was refused; or a job that costs nothing, from which nothing is settled.
        self.jobs.append(replace(job, held=0, ended=self.dice.random() < 0.8))

    def do_extend_hold(self) -> None:
        """A try has failed by the submitter's own fault, and another is to be covered like the first."""
        job = self.pick_job()
        if job is None:
            return
        person, attempt_id = job.submitter_id, AttemptId(self.new_id())
        available = self.want[AVAILABLE, person]
        amount = max(1, self.draw_part(available))
        made = self.extend(job, attempt_id, amount)
        expected: Expected = POSTED if amount <= available else RefusalCode.INSUFFICIENT_CREDITS
        if self.offer(made, expected, {(AVAILABLE, person): -amount, (HELD, person): amount}):
            job.held += amount
            if self.dice.random() < 0.3:
                # By another hub, which has heard of the same end; then by one that reckons otherwise.
                self.offer(self.extend(job, attempt_id, amount), REPLAYED, {})
                self.offer(self.extend(job, attempt_id, amount + 1), RefusalCode.DIFFERING_REPLAY, {})

    def extend(self, job: Job, attempt_id: AttemptId, amount: int) -> Posting | Refusal:
        return self.rules.extend_hold(
            job_id=job.id, submitter_id=job.submitter_id, attempt_id=attempt_id, amount=amount
        )

    def do_settle(self) -> None:
        job = self.pick_job()
        if job is None:
            return
        owner = self.pick_owner(job)
        attempts = [AttemptId(self.new_id()) for _ in range(self.dice.choice([1, 1, 2, 3]))]
        agreed = [self.draw_price(job.held // len(attempts)) for _ in attempts]
        prices = [price for _, price in agreed]
        total = sum(prices)
        charges = [
            self.rules.charge(id, priced, fee_ppm=FEE_PPM) for id, (priced, _) in zip(attempts, agreed, strict=True)
        ]
        made = self.rules.settle(
            job_id=job.id,
            submitter_id=job.submitter_id,
            owner_id=owner,
            charges=charges,
            held_remaining=job.held,
            fee_shard=self.dice.choice([None, None, 3]),
        )
        fees = [-(-price // 5) for price in prices]
        if self.offer_pay(made, job, owner, total - sum(fees), sum(fees)):
            for id, price, fee in zip(attempts, prices, fees, strict=True):
                self.earn(id, job, owner, price - fee, fee)

    def do_pay_to(self) -> None:
        going = self.pick_running()
        if going is None:
            return
        job, owner = going.job, going.owner_id
        total = going.paid + self.dice.choice([0, 1, 2, self.draw_part(job.held)])
        fee = -(-total // 5) - -(-going.paid // 5)
        made = self.pay_up_to(going, total)
        if self.offer_pay(made, job, owner, total - going.paid - fee, fee):
            if self.dice.random() < 0.2:
                # Somebody else, who had not seen it, pays on from where it was before.
                racing = self.pay_up_to(going, total + 1, held_remaining=total + 1)
                self.offer(racing, RefusalCode.DIFFERING_REPLAY, {})
            going.paid = total
        if self.dice.random() < 0.3:
            self.running.remove(going)
            fee = -(-going.paid // 5)
            self.earn(going.attempt_id, job, owner, going.paid - fee, fee)

    def pay_up_to(self, going: Running, total: int, held_remaining: int | None = None) -> Posting | Refusal:
        return self.rules.pay_to(
            job_id=going.job.id,
            submitter_id=going.job.submitter_id,
            owner_id=going.owner_id,
            attempt_id=going.attempt_id,
            total=total,
            paid=going.paid,
            held_remaining=going.job.held if held_remaining is None else held_remaining,
            fee_ppm=FEE_PPM,
        )

    def do_refund(self) -> None:
        job = self.pick_job()
        if job is None:
            return
        left = job.held
        made = self.rules.refund(job_id=job.id, submitter_id=job.submitter_id, held_remaining=left)
        expected: Expected = POSTED if left else RefusalCode.NOTHING_TO_MOVE
        posted = self.offer(made, expected, {(HELD, job.submitter_id): -left, (AVAILABLE, job.submitter_id): left})
        if posted and self.dice.random() < 0.3:
            again = self.rules.refund(job_id=job.id, submitter_id=job.submitter_id, held_remaining=left)
            self.offer(again, REPLAYED, {})
        job.held, job.ended = 0, True

    def do_release(self) -> None:
        chosen = self.pick_earnings()
        if not chosen:
            return
        expected: Expected = POSTED
        amount = sum(paid.earning.owner_microcredits for paid in chosen)
        # The first that stands in the way is named.
        for paid in chosen:
            if paid.earning.state is EarningState.DISPUTED:
                expected = RefusalCode.DISPUTED
            elif paid.earning.state is EarningState.RELEASED:
                expected = RefusalCode.NOT_PENDING
            elif paid.earning.state is EarningState.REVERSED:
                expected = RefusalCode.REVERSED
            elif paid.earning.due_at > self.now:
                expected = RefusalCode.NOT_DUE
            if expected is not POSTED:
                break
        if expected is POSTED and not amount:
            expected = RefusalCode.NOTHING_TO_MOVE
        made = self.rules.release(earnings=[paid.earning for paid in chosen], now=self.now)
        owner = chosen[0].earning.owner_id
        if self.offer(made, expected, {(PENDING, owner): -amount, (EARNED, owner): amount}):
            for paid in chosen:
                paid.earning = replace(paid.earning, state=EarningState.RELEASED)

    def do_dispute(self) -> None:
        if paid := self.pick_or_none(self.paid):
            after = self.rules.dispute(paid.earning)
            may = paid.earning.state in (EarningState.PENDING, EarningState.DISPUTED)
            assert isinstance(after, Earning) == may, "only what is pending is disputed"
            if isinstance(after, Earning):
                assert after.state is EarningState.DISPUTED, "a dispute freezes"
                paid.earning = after

    def do_dismiss(self) -> None:
        disputed = [paid for paid in self.paid if paid.earning.state is EarningState.DISPUTED]
        if paid := self.pick_or_none(disputed):
            after = self.rules.dismiss(paid.earning)
            assert isinstance(after, Earning), "what is disputed can be decided"
            paid.earning = after

    def do_reverse(self) -> None:
        self.flush()
        paid = self.pick_or_none(self.paid)
        if paid is None:
            return
        was = paid.earning
        owner, submitter = was.owner_id, was.submitter_id
        pay, fee = was.owner_microcredits, was.fee_microcredits
        made = self.reverse(was)
        if was.state is EarningState.RELEASED:
            taken = min(pay, self.want[EARNED, owner])
            moves = {(EARNED, owner): -taken, (OWED, owner): taken - pay}
        else:
            moves = {(PENDING, owner): -pay}
        moves = {**moves, (FEE, None): -fee}
        moves[AVAILABLE, submitter] = moves.get((AVAILABLE, submitter), 0) + pay + fee
        expected: Expected = POSTED
        if was.state is EarningState.REVERSED:
            expected = RefusalCode.REVERSED
        elif pay + fee == 0:
            expected = RefusalCode.NOTHING_TO_MOVE
        elif self.want[FEE, None] < fee:
            expected = RefusalCode.INSUFFICIENT_CREDITS
        if self.offer(made, expected, moves):
            paid.before, paid.earning = was, replace(was, state=EarningState.REVERSED)

    def do_reverse_again(self) -> None:
        """By somebody who has not seen that it was done, with the balances of now: another split, the same sums."""
        self.flush()
        done = [paid for paid in self.paid if paid.before is not None]
        if paid := self.pick_or_none(done):
            assert paid.before is not None
            if self.want[FEE, None] >= paid.before.fee_microcredits:
                self.offer(self.reverse(paid.before), REPLAYED, {})

    def reverse(self, was: Earning) -> Posting | Refusal:
        available = self.books.get_balance(LedgerAccount(EARNED, was.owner_id))
        return self.rules.reverse(earning=was, available=available, fees=self.shards(FEE))

    def do_spend_earnings(self) -> None:
        person = self.pick_earner()
        earned = self.want[EARNED, person]
        amount = max(1, self.draw_part(earned))
        made = self.rules.spend_earnings(spend_id=self.new_id(), account_id=person, amount=amount)
        expected: Expected = POSTED if amount <= earned else RefusalCode.INSUFFICIENT_CREDITS
        self.offer(made, expected, {(EARNED, person): -amount, (AVAILABLE, person): amount})

    def do_payout_reserve(self) -> None:
        person = self.pick_earner()
        earned = self.want[EARNED, person]
        amount = max(1, self.draw_part(earned))
        payout = Cash(self.new_id(), person, amount, "reserved")
        made = self.rules.payout_reserve(payout_id=payout.id, account_id=person, amount=amount)
        expected: Expected = POSTED if amount <= earned else RefusalCode.INSUFFICIENT_CREDITS
        if self.offer(made, expected, {(EARNED, person): -amount, (CLEARING, None): amount}):
            self.payouts.append(payout)

    def do_payout_end(self) -> None:
        self.flush()
        payout = self.pick_or_none(self.payouts)
        if payout is None:
            return
        confirms = self.dice.random() < 0.6
        made = (
            self.rules.payout_confirm(payout_id=payout.id, amount=payout.amount, world=self.shards(WORLD))
            if confirms
            else self.rules.payout_fail(payout_id=payout.id, account_id=payout.account_id, amount=payout.amount)
        )
        wanted = "confirmed" if confirms else "failed"
        end: Place = (WORLD, None) if confirms else (EARNED, payout.account_id)
        if confirms and -self.want[WORLD, None] < payout.amount:
            expected: Expected = RefusalCode.INSUFFICIENT_CREDITS
        elif payout.state == "reserved":
            expected = POSTED
        else:
            expected = REPLAYED if payout.state == wanted else RefusalCode.DIFFERING_REPLAY
        if self.offer(made, expected, {(CLEARING, None): -payout.amount, end: payout.amount}):
            payout.state = wanted

    def do_payout_return(self) -> None:
        confirmed = [payout for payout in self.payouts if payout.state == "confirmed"]
        if payout := self.pick_or_none(confirmed):
            made = self.rules.payout_return(payout_id=payout.id, account_id=payout.account_id, amount=payout.amount)
            moves = {(WORLD, None): -payout.amount, (EARNED, payout.account_id): payout.amount}
            self.offer(made, POSTED, moves)
            self.payouts.remove(payout)

    def do_top_up_refund(self) -> None:
        self.flush()
        open_ = [top_up for top_up in self.top_ups if top_up.state in ("paid", "charged back")]
        if top_up := self.pick_or_none(open_):
            person, amount = top_up.account_id, top_up.amount
            made = self.rules.top_up_refund(
                top_up_id=top_up.id, account_id=person, amount=amount, world=self.shards(WORLD)
            )
            reaches = min(self.want[AVAILABLE, person], -self.want[WORLD, None]) >= amount
            expected: Expected = POSTED if reaches else RefusalCode.INSUFFICIENT_CREDITS
            if self.offer(made, expected, {(AVAILABLE, person): -amount, (WORLD, None): amount}):
                top_up.state = "both" if top_up.state == "charged back" else "refunded"

    def do_chargeback(self) -> None:
        self.flush()
        open_ = [top_up for top_up in self.top_ups if top_up.state in ("paid", "refunded")]
        if top_up := self.pick_or_none(open_):
            person, amount = top_up.account_id, top_up.amount
            available = self.want[AVAILABLE, person]
            made = self.rules.chargeback(
                top_up_id=top_up.id,
                account_id=person,
                amount=amount,
                available=self.books.get_balance(LedgerAccount(AVAILABLE, person)),
                world=self.shards(WORLD),
            )
            taken = min(available, amount)
            reaches = -self.want[WORLD, None] >= amount
            expected: Expected = POSTED if reaches else RefusalCode.INSUFFICIENT_CREDITS
            moves = {(AVAILABLE, person): -taken, (OWED, person): taken - amount, (WORLD, None): amount}
            if self.offer(made, expected, moves):
                top_up.state = "both" if top_up.state == "refunded" else "charged back"

    def do_repay(self) -> None:
        self.flush()
        person = self.pick(self.people)
        owed, available, earned = -self.want[OWED, person], self.want[AVAILABLE, person], self.want[EARNED, person]
        made = self.rules.repay(
            repay_id=self.new_id(), account_id=person, owed=owed, available=available, earned=earned
        )
        first = min(owed, available)
        then = min(owed - first, earned)
        expected: Expected = POSTED if first + then else RefusalCode.NOTHING_TO_MOVE
        moves = {(AVAILABLE, person): -first, (EARNED, person): -then, (OWED, person): first + then}
        self.offer(made, expected, moves)

    def do_bonus(self) -> None:
        self.flush()
        person, amount = self.pick(self.people), max(1, self.draw_part(self.want[FEE, None]))
        made = self.rules.bonus(bonus_id=self.new_id(), owner_id=person, amount=amount, fees=self.shards(FEE))
        expected: Expected = POSTED if amount <= self.want[FEE, None] else RefusalCode.INSUFFICIENT_CREDITS
        self.offer(made, expected, {(FEE, None): -amount, (EARNED, person): amount})

    def do_make_good(self) -> None:
        """Somebody worked on a slice for so long, at a credit a second, when another came back and delivered."""
        self.flush()
        paid = self.pick_or_none([each for each in self.paid if each.earning.state is EarningState.RELEASED])
        if paid is None:
            return
        delivered = paid.earning
        others = [each for each in self.people if each not in (delivered.submitter_id, delivered.owner_id)]
        person = self.pick(others if self.dice.random() < 0.75 else self.people)
        begun, seconds = self.dice.random() < 0.9, self.dice.choice([1, 7, 600, 5_000])
        before = self.dice.choice([0, 0, 1_000_000])
        superseded = make_good.Superseded(
            attempt_id=AttemptId(self.new_id()),
            job_id=delivered.job_id,
            slice_index=0,
            owner_id=person,
            submitter_id=delivered.submitter_id,
            leased_at=self.now - timedelta(seconds=seconds),
            started_at=self.now if begun else None,
            finished_at=self.now,
            wall_seconds=3_600,
            rate_microcredits_per_hour=3_600_000_000,
            slice_price_microcredits=None,
            fee_ppm=FEE_PPM,
            earned_microcredits=before,
            delivered_by=delivered.owner_id,
            # What others of the same slice have had is not there any more.
            fee_microcredits=delivered.fee_microcredits - paid.made_good,
        )
        part = min(seconds, 3_600) * 800_000 if begun else 0
        amount = max(0, min(part - before, delivered.fee_microcredits - paid.made_good))
        if person in (delivered.submitter_id, delivered.owner_id):
            amount = 0
        priced = self.rules.price_make_good(superseded, is_linked=False)
        made = self.pay_out_of_fee(superseded, priced)
        expected: Expected = POSTED if amount else RefusalCode.NOTHING_TO_MOVE
        if amount > self.want[FEE, None]:
            expected = RefusalCode.INSUFFICIENT_CREDITS
        if self.offer(made, expected, {(FEE, None): -amount, (EARNED, person): amount}):
            paid.made_good += amount
            self.flush()
            if amount <= self.want[FEE, None]:
                # By another hub, which has not seen that it was done.
                self.offer(self.pay_out_of_fee(superseded, priced), REPLAYED, {})

    def pay_out_of_fee(self, superseded: make_good.Superseded, amount: int) -> Posting | Refusal:
        return self.rules.make_good(
            attempt_id=superseded.attempt_id,
            job_id=superseded.job_id,
            owner_id=superseded.owner_id,
            amount=amount,
            fees=self.shards(FEE),
        )

    def do_replay(self) -> None:
        if posting := self.pick_sent():
            self.offer(posting, REPLAYED, {})

    def do_tamper(self) -> None:
        if posting := self.pick_sent():
            first, *rest = posting.legs
            more = Leg(first.source, first.target, Microcredits(first.amount + 1))
            self.offer(replace(posting, legs=(more, *rest)), RefusalCode.DIFFERING_REPLAY, {})

    # What is told to the books, and what is expected of them

    def offer_pay(self, made: Posting | Refusal, job: Job, owner: AccountId, pay: int, fee: int) -> bool:
        expected: Expected = POSTED
        if owner == job.submitter_id or pay + fee == 0:
            expected = RefusalCode.NOTHING_TO_MOVE
        elif pay + fee > job.held:
            expected = RefusalCode.HOLD_EXCEEDED
        moves = {(HELD, job.submitter_id): -pay - fee, (PENDING, owner): pay, (FEE, None): fee}
        posted = self.offer(made, expected, moves)
        if posted:
            job.held -= pay + fee
        return posted

    def offer(self, made: Posting | Refusal, expected: Expected, moves: Mapping[Place, int]) -> bool:
        """Whether it is expected to be posted now."""
        self.visited[f"{made.kind.value if isinstance(made, Posting) else 'refused'} {expected.value}"] += 1
        if isinstance(made, Refusal):
            assert made.code is expected, f"a verb says {made.code.value}, expected was {expected.value}"
            return False
        self.waiting.append((made, expected))
        if expected is not POSTED:
            return False
        self.sent.append(made)
        for place, delta in moves.items():
            self.want[place] += delta
        return True

    def flush(self) -> None:
        if not self.waiting:
            return
        postings = [posting for posting, _ in self.waiting]
        expected = [outcome for _, outcome in self.waiting]
        self.waiting = []
        self.batches.append((postings, expected))
        found = [to_expected(outcome) for outcome in self.books.post(postings, at=self.now)]
        for posting, wanted, got in zip(postings, expected, found, strict=True):
            assert got is wanted, f"the books say {got.value} to {posting.kind.value}, expected was {wanted.value}"
        self.check()

    # What holds after every step

    def check(self) -> None:
        got: Counter[Place] = Counter()
        total = 0
        for account, balance in self.books.balances.items():
            total += balance
            got[account.kind, account.owner_id] += balance
            assert account.least <= balance <= account.most, "every account stays on its side"
        assert total == 0, "all accounts come to zero"
        for place in {*got, *self.want}:
            assert got[place] == self.want[place], f"{place[0].value} holds what plain arithmetic says"
        for job in self.jobs:
            assert self.books.get_held_remaining(job.id) == job.held, "a job holds what plain arithmetic says"

    def check_all(self) -> None:
        submitters = {job.id: job.submitter_id for job in self.jobs}
        assert self.books.list_faults(submitters) == [], "balances and holds are what the transfers come to"
        names = [(transfer.key, transfer.leg) for transfer in self.books.transfers]
        assert len(set(names)) == len(names), "no transfer stands in the books twice"

    # Dice

    def new_id(self) -> UUID:
        return UUID(int=self.dice.getrandbits(128))

    def pick(self, things: list[Any]) -> Any:
        return self.dice.choice(things)

    def pick_or_none(self, things: list[Any]) -> Any:
        return self.dice.choice(things) if things else None

    def pick_sent(self) -> Posting | None:
        """Half of the time something recent: what is seldom posted would seldom be found otherwise."""
        return self.pick_or_none(self.sent[-5:] if self.dice.random() < 0.5 else self.sent)

    def pick_earner(self) -> AccountId:
        earners = [person for person in self.people if self.want[EARNED, person]]
        return self.pick(earners if earners and self.dice.random() < 0.9 else self.people)

    def pick_job(self) -> Job | None:
        return self.pick_or_none([job for job in self.jobs if not job.ended])

    def pick_owner(self, job: Job) -> AccountId:
        """Now and then it runs on a node of the submitter's own."""
        others = [person for person in self.people if person != job.submitter_id]
        return self.pick(others if self.dice.random() < 0.9 else self.people)

    def pick_running(self) -> Running | None:
        going = [attempt for attempt in self.running if not attempt.job.ended]
        if going and self.dice.random() < 0.6:
            return self.pick(going)
        job = self.pick_job()
        if job is None:
            return None
        started = Running(AttemptId(self.new_id()), job, self.pick_owner(job))
        self.running.append(started)
        return started

    def pick_earnings(self) -> list[Paid]:
        """Of one job and one owner."""
        chosen = self.pick_or_none(self.paid)
        if chosen is None:
            return []
        alike = [
            paid
            for paid in self.paid
            if (paid.earning.job_id, paid.earning.owner_id) == (chosen.earning.job_id, chosen.earning.owner_id)
            and (paid is chosen or paid.earning.state is EarningState.PENDING)
        ]
        return alike if self.dice.random() < 0.5 else [chosen]

    def earn(self, attempt_id: AttemptId, job: Job, owner: AccountId, pay: int, fee: int) -> None:
        due_at = self.now + HOLDBACK
        self.paid.append(Paid(Earning(attempt_id, job.id, job.submitter_id, owner, pay, fee, due_at)))

    def draw_amount(self) -> int:
        return self.dice.choice([1, 7, 1_000, self.dice.randint(1, 10**7), self.dice.randint(1, 10**7)])

    def draw_part(self, of: int) -> int:
        """Mostly up to a half; now and then nothing, all, or one too many."""
        return self.dice.choice([0, 1, of, of + 1, *[self.dice.randint(0, of), *[self.dice.randint(0, of // 2)] * 8]])

    def draw_price(self, most: int) -> tuple[int, int]:
        """How an attempt was to be paid and how it ended: its price by the rules, and by plain arithmetic."""
        wall = self.dice.choice([1, 7, 100, 3_600])
        seconds = self.dice.randint(1, wall)
        cause = self.dice.choice([None, None, None, Cause.EXIT_CODE, Cause.GPU_LOST])
        if self.dice.random() < 0.6:
            mode, figure = PriceMode.PER_SLICE, self.draw_part(most)
            price = figure if cause is None else figure * seconds // wall
        else:
            mode, figure = PriceMode.PER_SECOND, self.draw_part(most) * 3_600 // wall
            price = figure * seconds // 3_600
        end = End(cause, AttemptState.RUNNING, seconds)
        priced = self.rules.price(FrozenPrice(mode, figure), end, wall_seconds=wall)
        return priced, 0 if cause is Cause.GPU_LOST else price

    def shards(self, kind: AccountKind) -> dict[LedgerAccount, int]:
        return {shard: self.books.get_balance(shard) for shard in SHARDS[kind]}


def to_expected(outcome: Outcome | Refusal) -> Expected:
    return outcome.code if isinstance(outcome, Refusal) else outcome


# The same history on the other store


async def post_on_sql(conn: asyncpg.Connection, history: History) -> None:
    """Posts what the history posted, batch by batch, and compares all there is to compare. Leaves nothing behind."""
    transaction = conn.transaction()
    await transaction.start()
    try:
        await insert_jobs(conn, history)
        for postings, expected in history.batches:
            outcomes = await ledger_store.post(conn, postings, at=NOW)
            assert [to_expected(outcome) for outcome in outcomes] == expected, "both stores give the same answers"
        await compare_books(conn, history)
    finally:
        await transaction.rollback()


async def insert_jobs(conn: asyncpg.Connection, history: History) -> None:
    await conn.execute(
        """INSERT INTO jobs (id, account_id, name, spec, shape_id, priority, slice_count, retries, wall_seconds)
           SELECT id, account_id, 'job', '{}', 0, 0, 1, 0, 1
             FROM unnest($1::uuid[], $2::uuid[]) AS j (id, account_id)""",
        [job.id for job in history.jobs],
        [job.submitter_id for job in history.jobs],
    )


async def compare_books(conn: asyncpg.Connection, history: History) -> None:
    kept = await ledger_store.list_balances(conn, limit=1_000)
    used = {account: balance for account, balance in kept.items() if balance}
    assert used == {account: balance for account, balance in history.books.balances.items() if balance}
    recomputed = await ledger_store.recompute(conn)
    assert {account: balance for account, balance in recomputed.balances.items() if balance} == used
    held = {row["id"]: row["held_remaining"] for row in await conn.fetch("SELECT id, held_remaining FROM jobs")}
    assert held == {job.id: history.books.get_held_remaining(job.id) for job in history.jobs}
    stored = await ledger_store.find_postings(conn, [transfer.key for transfer in history.books.transfers])
    assert stored == {key: history.books.find_posting(key) for key in stored}
    count = await conn.fetchval("SELECT count(*) FROM ledger_transfers")
    assert count == len(history.books.transfers), "no row more and no row less"
    assert await ledger_store.list_drifts(conn) == []

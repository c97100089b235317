"""What forgers earn, on the real ledger: settled into pending, released when due, reversed when found out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

from computepool.core.ids import AccountId, AttemptId, JobId
from computepool.core.ledger import verbs
from computepool.core.ledger.accounts import SHARDS, AccountKind, owner_available, owner_pending
from computepool.core.ledger.books import MemoryBooks, Outcome
from computepool.core.ledger.charging import Charge, charge_attempt
from computepool.core.ledger.earning import Earning, EarningState
from computepool.core.ledger.fee import split_price
from computepool.core.ledger.refusal import Refusal
from computepool.core.ledger.transfer import Posting

PRICE = 1_000_000
FEE_PPM = 200_000
TOP_UP = 10**13
_SUBMITTER = AccountId(UUID(int=1 << 121))
_JOB = JobId(UUID(int=1 << 122))
_AT = datetime(2029, 12, 31, tzinfo=UTC)


class Purse:
    def __init__(self) -> None:
        self.books = MemoryBooks()
        self._earnings: list[Earning] = []
        # By the machine's number: pending earnings in their order.
        self._pending: defaultdict[int, list[int]] = defaultdict(list)
        self._unsettled: list[tuple[int, AccountId, Charge]] = []
        self._owners: defaultdict[int, set[AccountId]] = defaultdict(set)
        self._honest_runs: defaultdict[int, int] = defaultdict(int)
        self._post(verbs.top_up(top_up_id=_SUBMITTER, account_id=_SUBMITTER, amount=TOP_UP), _AT)
        self._post(verbs.hold(job_id=_JOB, submitter_id=_SUBMITTER, amount=TOP_UP), _AT)

    def note_run(self, machine: int, *, forged: bool) -> None:
        self._honest_runs[machine] += not forged

    def settle(self, machine: int, owner_id: AccountId, *, due_at: datetime, now: datetime) -> int:
        number = len(self._earnings)
        attempt_id = AttemptId(UUID(int=number + 1))
        charge = charge_attempt(attempt_id, PRICE, fee_ppm=FEE_PPM)
        parts = charge.owner_microcredits, charge.fee_microcredits
        self._earnings.append(Earning(attempt_id, _JOB, _SUBMITTER, owner_id, *parts, due_at))
        self._unsettled.append((machine, owner_id, charge))
        self._owners[machine].add(owner_id)
        self._pending[machine].append(number)
        return number

    def post_day(self, released: Mapping[int, bool], *, now: datetime) -> None:
        """Sums per owner, as the hub does per transaction. `released`: whether a machine's due pay may be."""
        self._flush(now)
        for machine, may_release in released.items():
            pending = self._pending[machine]
            due = [number for number in pending if now >= self._earnings[number].due_at] if may_release else []
            earnings = [self._earnings[number] for number in due]
            waiting = [earning for earning in earnings if earning.state is EarningState.PENDING]
            if waiting:
                self._post(verbs.release(earnings=waiting, now=now), now)
            for number, earning in zip(due, earnings, strict=True):
                if earning.state is EarningState.PENDING:
                    self._earnings[number] = replace(earning, state=EarningState.RELEASED)
            self._pending[machine] = pending[len(due) :]

    def _flush(self, now: datetime) -> None:
        charges: defaultdict[AccountId, list[Charge]] = defaultdict(list)
        for _, owner_id, charge in self._unsettled:
            charges[owner_id].append(charge)
        self._unsettled.clear()
        for owner_id, found in charges.items():
            left = self.books.get_held_remaining(_JOB)
            self._post(
                verbs.settle(
                    job_id=_JOB, submitter_id=_SUBMITTER, owner_id=owner_id, charges=found, held_remaining=left
                ),
                now,
            )

    def reverse(self, number: int, *, now: datetime) -> None:
        earning = self._earnings[number]
        if earning.state is EarningState.REVERSED:
            return
        self._flush(now)
        fees = {shard: self.books.get_balance(shard) for shard in SHARDS[AccountKind.FEE]}
        available = self.books.get_balance(owner_available(earning.owner_id))
        self._post(verbs.reverse(earning=earning, available=available, fees=fees), now)
        self._earnings[number] = replace(earning, state=EarningState.REVERSED)

    def forfeit(self, machine: int, *, now: datetime) -> None:
        """All that is pending: it was the bond."""
        for number in self._pending.pop(machine, []):
            self.reverse(number, now=now)

    def part(self, machine: int) -> None:
        """The machine goes on under another name; what the old one has pending stays with the old one."""
        self._pending[-1 - machine] += self._pending.pop(machine, [])

    def gain(self, machine: int) -> int:
        """What its owners have or will have, beyond what its honest runs alone would have earned them.

        That is strict: it leaves out what a machine that was shut out could have earned meanwhile.
        """
        kinds = (owner_available, owner_pending)
        got = sum(self.books.get_balance(kind(owner)) for owner in self._owners[machine] for kind in kinds)
        return got - split_price(PRICE, fee_ppm=FEE_PPM)[0] * self._honest_runs[machine]

    def close(self, *, now: datetime) -> None:
        self._flush(now)
        faults = self.books.list_faults({_JOB: _SUBMITTER})
        if faults:
            raise RuntimeError(f"the books do not add up: {faults}")

    def _post(self, posting: Posting | Refusal, now: datetime) -> None:
        if isinstance(posting, Refusal):
            raise RuntimeError(posting)
        [outcome] = self.books.post([posting], at=now)
        if outcome is not Outcome.POSTED:
            raise RuntimeError(f"{posting.key}: {outcome}")

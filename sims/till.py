"""The money of a simulation, on the real ledger: accounts are topped up once, jobs are held, settled and refunded."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from uuid import UUID

from computepool.core.ids import AccountId, AttemptId, JobId
from computepool.core.ledger import verbs
from computepool.core.ledger.books import MemoryBooks, Outcome
from computepool.core.ledger.charging import charge_attempt
from computepool.core.ledger.refusal import Refusal
from computepool.core.ledger.transfer import Posting, TransferKind

# As much as can be moved at once: no simulated submitter is ever short of money.
TOP_UP = 10**15
START = datetime(2030, 1, 1, tzinfo=UTC)


class Till:
    def __init__(self, fee_ppm: int) -> None:
        self.books = MemoryBooks()
        self._fee_ppm = fee_ppm
        self._submitters: dict[JobId, AccountId] = {}
        self._funded: set[AccountId] = set()

    def hold(self, job_number: int, account_id: AccountId, amount: int, *, now: float) -> None:
        if account_id not in self._funded:
            self._funded.add(account_id)
            self._post(verbs.top_up(top_up_id=account_id, account_id=account_id, amount=TOP_UP), now)
        self._submitters[to_job_id(job_number)] = account_id
        self._post(verbs.hold(job_id=to_job_id(job_number), submitter_id=account_id, amount=amount), now)

    def settle(self, job_number: int, attempt_number: int, owner_id: AccountId, price: int, *, now: float) -> None:
        job_id = to_job_id(job_number)
        posting = verbs.settle(
            job_id=job_id,
            submitter_id=self._submitters[job_id],
            owner_id=owner_id,
            charges=[charge_attempt(to_attempt_id(attempt_number), price, fee_ppm=self._fee_ppm)],
            held_remaining=self.books.get_held_remaining(job_id),
        )
        self._post(posting, now)

    def close(self, job_number: int, *, now: float) -> None:
        """What is left of the hold goes back."""
        job_id = to_job_id(job_number)
        left = self.books.get_held_remaining(job_id)
        if left:
            self._post(verbs.refund(job_id=job_id, submitter_id=self._submitters[job_id], held_remaining=left), now)

    def sum_paid(self) -> dict[int, int]:
        """By the attempt's number: all that the books say was paid for it, the fee included."""
        paid: defaultdict[int, int] = defaultdict(int)
        for transfer in self.books.transfers:
            if transfer.kind is TransferKind.SETTLE and transfer.attempt_id is not None:
                paid[transfer.attempt_id.int] += transfer.amount
        return paid

    def list_faults(self) -> list[str]:
        return self.books.list_faults(self._submitters)

    def _post(self, posting: Posting | Refusal, now: float) -> None:
        if isinstance(posting, Refusal):
            raise RuntimeError(posting)
        [outcome] = self.books.post([posting], at=START + timedelta(seconds=now))
        if outcome is not Outcome.POSTED:
            raise RuntimeError(f"{posting.key}: {outcome}")


def to_job_id(number: int) -> JobId:
    return JobId(UUID(int=number))


def to_attempt_id(number: int) -> AttemptId:
    return AttemptId(UUID(int=number))

"""What the end of attempts costs: charges, the holds of their jobs, and the postings that move the money.

Every unfinished slice of a job is covered by its full reserve, so that a lease never has to ask for money: what a
failed try has cost is held anew before there is another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime

from computepool.core.errors import HubUnavailable
from computepool.core.ids import AccountId, AttemptId, JobId
from computepool.core.jobs.lease import Attempt
from computepool.core.jobs.state import ATTEMPT_LIVE, JOB_TERMINAL, AttemptState
from computepool.core.ledger import verbs
from computepool.core.ledger.accounts import SHARDS, AccountKind
from computepool.core.ledger.charging import (
    Charge,
    End,
    FrozenPrice,
    PriceMode,
    charge_attempt,
    meter_seconds,
    price_attempt,
)
from computepool.core.ledger.refusal import Refusal, RefusalCode, to_error
from computepool.core.ledger.transfer import Posting
from computepool.hub.store import ledger
from computepool.hub.store.attempts import Grant, JobCounts, LockedAttempt, ReportRow
from computepool.hub.store.connect import Connection
from computepool.hub.store.deliveries import Held
from computepool.hub.store.ledger import OpenAccounts

_UNENDED = (AttemptState.LEASED, AttemptState.RUNNING, AttemptState.LOST)


def price_end(
    before: LockedAttempt, after: Attempt, report: ReportRow | None, job: JobCounts, now: datetime
) -> Charge | None:
    """What the submitter pays for an attempt that has just ended, if anything."""
    is_seat = before.checkpoint_seconds is not None
    fixed = before.slice_price_microcredits
    agreed = before.rate_microcredits_per_hour if fixed is None else fixed
    if agreed <= 0 or before.owner_id == job.account_id:
        return None
    if not _is_ended(before.attempt.state, after.state, is_seat=is_seat):
        return None
    seconds = meter_seconds(
        claimed_seconds=report.run_seconds if report is not None else None,
        held_seconds=(now - before.leased_at).total_seconds(),
        wall_seconds=job.wall_seconds,
    )
    held = before.attempt.saved_seconds if before.checkpoint_seconds is None else before.checkpoint_seconds
    end = End(after.cause, before.attempt.state, seconds, held, is_seat)
    price = price_attempt(_freeze(agreed, fixed), end, wall_seconds=job.wall_seconds)
    return charge_attempt(after.id, price, fee_ppm=before.fee_ppm) if price else None


def price_delivery(held: Held, run_seconds: float, now: datetime) -> Charge | None:
    """The same for an attempt that was live and has delivered, at a price that is not nothing."""
    fixed = held.slice_price_microcredits
    seconds = meter_seconds(
        claimed_seconds=run_seconds,
        held_seconds=(now - held.leased_at).total_seconds(),
        wall_seconds=held.wall_seconds,
    )
    agreed = held.rate_microcredits_per_hour if fixed is None else fixed
    end = End(None, AttemptState.RUNNING, seconds, held.saved_seconds)
    price = price_attempt(_freeze(agreed, fixed), end, wall_seconds=held.wall_seconds)
    return charge_attempt(held.id, price, fee_ppm=held.fee_ppm) if price else None


def price_first(grant: Grant, run_seconds: float, *, wall_seconds: int) -> Charge | None:
    """The same for an attempt that has held its slot for as long as its node says that it ran, and saved nothing."""
    fixed = grant.slice_price_microcredits
    agreed = (grant.rate_microcredits_per_hour or 0) if fixed is None else fixed
    if agreed <= 0:
        return None
    seconds = meter_seconds(claimed_seconds=run_seconds, held_seconds=run_seconds, wall_seconds=wall_seconds)
    end = End(None, AttemptState.RUNNING, seconds, 0)
    price = price_attempt(_freeze(agreed, fixed), end, wall_seconds=wall_seconds)
    return charge_attempt(grant.id, price, fee_ppm=grant.terms.fee_ppm) if price else None


def _freeze(agreed: int, fixed: int | None) -> FrozenPrice:
    """What was agreed, as a price by the second or, where there is a fixed one, for the slice."""
    return FrozenPrice(PriceMode.PER_SECOND if fixed is None else PriceMode.PER_SLICE, agreed)


def _is_ended(before: AttemptState, after: AttemptState, *, is_seat: bool) -> bool:
    """Whether it is time to pay. A lost attempt may yet deliver; a lost seat never does, and is paid at once."""
    if is_seat:
        return before in ATTEMPT_LIVE and after not in ATTEMPT_LIVE
    return before in _UNENDED and after not in _UNENDED


def settle_job(
    job: JobCounts, charged: Mapping[AccountId, list[Charge]], *, shard: int
) -> tuple[JobCounts, list[Posting]]:
    """Pays the owners of a job's attempts, covers what is still to be run, and returns what is left at its end.

    Seats need no cover: what was set aside is for their hours, however many PNodes fill them one after the other.
    """
    postings: list[Posting] = []
    held = job.held_remaining
    for owner_id, charges in charged.items():
        cost = sum(charge.total_microcredits for charge in charges)
        _add(
            postings,
            verbs.settle(
                job_id=job.id,
                submitter_id=job.account_id,
                owner_id=owner_id,
                charges=charges,
                held_remaining=held,
                fee_shard=shard,
            ),
        )
        held -= cost
    cost = job.held_remaining - held
    missing = job.open_count * job.reserve_microcredits - held
    if job.state in JOB_TERMINAL:
        _add(postings, verbs.refund(job_id=job.id, submitter_id=job.account_id, held_remaining=held))
        held = 0
    elif missing > 0 and charged and job.run_id is None:
        first = min(charge.attempt_id for charges in charged.values() for charge in charges)
        postings.append(
            verbs.extend_hold(job_id=job.id, submitter_id=job.account_id, attempt_id=first, amount=missing)
        )
        held += missing
    return job._replace(held_remaining=held, charged_microcredits=job.charged_microcredits + cost), postings


def group_by_owner(
    charges: Mapping[AttemptId, Charge], attempts: Mapping[AttemptId, LockedAttempt]
) -> dict[JobId, dict[AccountId, list[Charge]]]:
    found: dict[JobId, dict[AccountId, list[Charge]]] = defaultdict(lambda: defaultdict(list))
    for attempt_id, charge in charges.items():
        locked = attempts[attempt_id]
        found[locked.attempt.job_id][locked.owner_id].append(charge)
    return found


def choose_fee_shard(now: datetime) -> int:
    """One for a whole transaction: it locks one row of the fee and not all of them."""
    return now.microsecond % len(SHARDS[AccountKind.FEE])


async def post(conn: Connection, postings: list[Posting], *, opened: OpenAccounts | None = None) -> None:
    """Last in its transaction: accounts come last in the order of locks.

    Without asking first where all accounts are among those that are known to be open: holds cover what is charged.
    """
    if postings and opened is not None and opened.include(postings):
        await _post_at_once(conn, postings, opened)
        return
    for outcome in await ledger.post(conn, postings, writes_jobs=False):
        if isinstance(outcome, Refusal):
            raise to_error(outcome)


async def _post_at_once(conn: Connection, postings: list[Posting], opened: OpenAccounts) -> None:
    try:
        await ledger.post_at_once(conn, postings)
    except ledger.Unpostable as error:
        opened.forget()
        raise HubUnavailable("The books are not as this hub believed. Try again.") from error


def _add(postings: list[Posting], made: Posting | Refusal) -> None:
    if isinstance(made, Posting):
        postings.append(made)
    elif made.code is not RefusalCode.NOTHING_TO_MOVE:
        raise to_error(made)

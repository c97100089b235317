"""One function for each thing that can happen to money: the posting that does it, or a refusal with a stable code.

Keys are made of ids, so that the same event always has the same key: `<subject>/<verb>`, and `<job>/...` for all that
belongs to a job. What excludes each other shares a key: a payout is confirmed or fails, an attempt's pay from zero
upward is posted once. Amounts that people give are checked here; a wrong one raises InvalidAmount.

Verbs that take from several accounts or shards are told their balances. The caller has locked them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from computepool.core.ids import AccountId, AttemptId, JobId
from computepool.core.ledger.accounts import (
    SHARDS,
    AccountKind,
    LedgerAccount,
    owner_available,
    owner_pending,
    receivable,
    shard_of,
    submitter_available,
    submitter_held,
)
from computepool.core.ledger.amount import Microcredits, to_amount
from computepool.core.ledger.charging import Charge
from computepool.core.ledger.earning import Earning, EarningState, find_release_refusal
from computepool.core.ledger.fee import split_price
from computepool.core.ledger.refusal import Refusal, RefusalCode
from computepool.core.ledger.transfer import Leg, Posting, TransferKind

# By account: what it stands at.
Balances = Mapping[LedgerAccount, int]

_FROZEN = Refusal(RefusalCode.FROZEN, "The account is frozen: money went back that was already spent.")


# Money comes in


def top_up(*, top_up_id: UUID, account_id: AccountId, amount: int) -> Posting:
    leg = Leg(shard_of(AccountKind.WORLD, top_up_id), submitter_available(account_id), to_amount(amount))
    return Posting(f"{top_up_id}/top_up", TransferKind.TOP_UP, (leg,), top_up_id=top_up_id)


def top_up_refund(*, top_up_id: UUID, account_id: AccountId, amount: int, world: Balances) -> Posting | Refusal:
    """Cash goes back to where it came from, as long as its credits are there."""
    source = submitter_available(account_id)
    legs = _spread_to(source, to_amount(amount), world, shard_of(AccountKind.WORLD, top_up_id))
    if isinstance(legs, Refusal):
        return legs
    return Posting(f"{top_up_id}/top_up_refund", TransferKind.TOP_UP_REFUND, legs, top_up_id=top_up_id)


def chargeback(
    *, top_up_id: UUID, account_id: AccountId, amount: int, available: int, world: Balances
) -> Posting | Refusal:
    """The bank has taken the cash back, whatever has become of the credits: what is gone is owed from now on."""
    taken = min(to_amount(amount), max(0, available))
    owed = amount - taken
    first = shard_of(AccountKind.WORLD, top_up_id)
    parts = _draw(world, amount, first)
    if isinstance(parts, Refusal):
        return parts
    legs = _pair([(submitter_available(account_id), taken), (receivable(account_id), owed)], parts)
    return Posting(f"{top_up_id}/chargeback", TransferKind.CHARGEBACK, legs, top_up_id=top_up_id)


def repay(*, repay_id: UUID, account_id: AccountId, owed: int, available: int, earned: int = 0) -> Posting | Refusal:
    """What an account owes, out of what it has: first what it could spend, then what it could cash out.

    `repay_id` is what brought the money: a top-up, a release.
    """
    from_available = min(owed, available)
    from_earned = min(owed - from_available, earned)
    legs = _legs(
        (submitter_available(account_id), receivable(account_id), from_available),
        (owner_available(account_id), receivable(account_id), from_earned),
    )
    if not legs:
        return _nothing("nothing is owed, or there is nothing to pay it with")
    return Posting(f"{repay_id}/repay", TransferKind.REPAY, legs)


# The life of a job's money


def hold(*, job_id: JobId, submitter_id: AccountId, amount: int, frozen: bool = False) -> Posting | Refusal:
    """Set aside at submit: the most that the job can come to."""
    if frozen:
        return _FROZEN
    if amount == 0 and type(amount) is int:
        return _nothing("the job costs nothing")
    leg = Leg(submitter_available(submitter_id), submitter_held(submitter_id), to_amount(amount))
    return Posting(f"{job_id}/hold", TransferKind.HOLD, (leg,), job_id=job_id)


def extend_hold(*, job_id: JobId, submitter_id: AccountId, attempt_id: AttemptId, amount: int) -> Posting:
    """What a failed try has cost is set aside anew, so that another try is covered like the first."""
    leg = Leg(submitter_available(submitter_id), submitter_held(submitter_id), to_amount(amount))
    return Posting(f"{job_id}/hold/{attempt_id}", TransferKind.HOLD, (leg,), job_id=job_id, attempt_id=attempt_id)


def settle(
    *,
    job_id: JobId,
    submitter_id: AccountId,
    owner_id: AccountId,
    charges: Sequence[Charge],
    held_remaining: int,
    fee_shard: int | None = None,
) -> Posting | Refusal:
    """Pays one owner for attempts of one job that ended together. The amounts of each stand with the attempts.

    Whoever posts many settlements at once may put their fees into one shard; by default it follows from the job.
    """
    owner_part = sum(charge.owner_microcredits for charge in charges)
    fee_part = sum(charge.fee_microcredits for charge in charges)
    if not charges or owner_part + fee_part == 0 or owner_id == submitter_id:
        return _nothing("the attempts cost nothing")
    if owner_part + fee_part > held_remaining:
        return _hold_exceeded(job_id, owner_part + fee_part, held_remaining)
    first = min(charge.attempt_id for charge in charges)
    return Posting(
        _settle_key(job_id, first, 0),
        TransferKind.SETTLE,
        _pay_legs(job_id, submitter_id, owner_id, owner_part, fee_part, fee_shard),
        job_id=job_id,
        attempt_id=first if len(charges) == 1 else None,
    )


def pay_to(
    *,
    job_id: JobId,
    submitter_id: AccountId,
    owner_id: AccountId,
    attempt_id: AttemptId,
    total: int,
    paid: int,
    held_remaining: int,
    fee_ppm: int,
) -> Posting | Refusal:
    """Pays an attempt up to `total`, of which `paid` was paid before: for progress that is proven.

    The key says from where it pays on. Of two that start from the same amount only one is ever posted.
    """
    if total <= paid or owner_id == submitter_id:
        return _nothing(f"{paid:,} was paid already")
    if total - paid > held_remaining:
        return _hold_exceeded(job_id, total - paid, held_remaining)
    owner_before, fee_before = split_price(paid, fee_ppm=fee_ppm)
    owner_after, fee_after = split_price(total, fee_ppm=fee_ppm)
    return Posting(
        _settle_key(job_id, attempt_id, paid),
        TransferKind.PAY_TO,
        _pay_legs(job_id, submitter_id, owner_id, owner_after - owner_before, fee_after - fee_before, None),
        job_id=job_id,
        attempt_id=attempt_id,
    )


def refund(*, job_id: JobId, submitter_id: AccountId, held_remaining: int) -> Posting | Refusal:
    """What is left of the hold at the job's end, all at once and once."""
    if held_remaining <= 0:
        return _nothing("the hold is used up")
    leg = Leg(submitter_held(submitter_id), submitter_available(submitter_id), to_amount(held_remaining))
    return Posting(f"{job_id}/refund", TransferKind.REFUND, (leg,), job_id=job_id)


def release(*, earnings: Sequence[Earning], now: datetime) -> Posting | Refusal:
    """The holdback is over: what one owner earned with attempts of one job is theirs to use."""
    if len({(earning.job_id, earning.owner_id) for earning in earnings}) > 1:
        raise ValueError("one release is for one job and one owner")
    for earning in earnings:
        refusal = find_release_refusal(earning, now=now)
        if refusal is not None:
            return refusal
    amount = sum(earning.owner_microcredits for earning in earnings)
    if amount == 0:
        return _nothing("nothing was earned")
    job_id, owner_id = earnings[0].job_id, earnings[0].owner_id
    first = min(earning.attempt_id for earning in earnings)
    return Posting(
        f"{job_id}/release/{first}",
        TransferKind.RELEASE,
        (Leg(owner_pending(owner_id), owner_available(owner_id), Microcredits(amount)),),
        job_id=job_id,
        attempt_id=first if len(earnings) == 1 else None,
    )


def reverse(*, earning: Earning, available: int, fees: Balances) -> Posting | Refusal:
    """Late fraud: the submitter gets everything back, the fee too, and the owner loses it wherever it is by now.

    `available` is what the owner could cash out; what is gone already is owed.
    """
    if earning.state is EarningState.REVERSED:
        return Refusal(RefusalCode.REVERSED, f"The pay for attempt {earning.attempt_id} was taken back already.")
    if earning.owner_microcredits + earning.fee_microcredits == 0:
        return _nothing("nothing was paid")
    fee_parts = _draw(fees, earning.fee_microcredits, shard_of(AccountKind.FEE, earning.job_id))
    if isinstance(fee_parts, Refusal):
        return fee_parts
    back_to = submitter_available(earning.submitter_id)
    sources = [*_take_back(earning, available), *fee_parts]
    return Posting(
        f"{earning.job_id}/reverse/{earning.attempt_id}",
        TransferKind.REVERSE,
        _legs(*((source, back_to, part) for source, part in sources)),
        job_id=earning.job_id,
        attempt_id=earning.attempt_id,
    )


def spend_earnings(*, spend_id: UUID, account_id: AccountId, amount: int, frozen: bool = False) -> Posting | Refusal:
    """An owner submits jobs with what they earned."""
    if frozen:
        return _FROZEN
    leg = Leg(owner_available(account_id), submitter_available(account_id), to_amount(amount))
    return Posting(f"{spend_id}/spend_earnings", TransferKind.SPEND_EARNINGS, (leg,))


def bonus(*, bonus_id: UUID, owner_id: AccountId, amount: int, fees: Balances) -> Posting | Refusal:
    """Out of the fee, never out of nothing."""
    parts = _draw(fees, to_amount(amount), shard_of(AccountKind.FEE, bonus_id))
    if isinstance(parts, Refusal):
        return parts
    legs = _legs(*((shard, owner_available(owner_id), part) for shard, part in parts))
    return Posting(f"{bonus_id}/bonus", TransferKind.BONUS, legs)


def make_good(
    *, attempt_id: AttemptId, job_id: JobId, owner_id: AccountId, amount: int, fees: Balances
) -> Posting | Refusal:
    """For the time of an attempt that was superseded, which no submitter pays. Once, whoever works it out again."""
    if amount == 0 and type(amount) is int:
        return _nothing("no time is to be made good")
    parts = _draw(fees, to_amount(amount), shard_of(AccountKind.FEE, job_id))
    if isinstance(parts, Refusal):
        return parts
    legs = _legs(*((shard, owner_available(owner_id), part) for shard, part in parts))
    return Posting(f"{attempt_id}/make_good", TransferKind.MAKE_GOOD, legs, attempt_id=attempt_id)


# Money goes out


def payout_reserve(*, payout_id: UUID, account_id: AccountId, amount: int, frozen: bool = False) -> Posting | Refusal:
    if frozen:
        return _FROZEN
    leg = Leg(owner_available(account_id), _clearing(payout_id), to_amount(amount))
    return Posting(f"{payout_id}/payout_reserve", TransferKind.PAYOUT_RESERVE, (leg,), payout_id=payout_id)


def payout_confirm(*, payout_id: UUID, amount: int, world: Balances) -> Posting | Refusal:
    """The cash has left."""
    legs = _spread_to(_clearing(payout_id), to_amount(amount), world, shard_of(AccountKind.WORLD, payout_id))
    if isinstance(legs, Refusal):
        return legs
    return Posting(_payout_end_key(payout_id), TransferKind.PAYOUT_CONFIRM, legs, payout_id=payout_id)


def payout_fail(*, payout_id: UUID, account_id: AccountId, amount: int) -> Posting:
    """No cash has left: the credits are the owner's again."""
    leg = Leg(_clearing(payout_id), owner_available(account_id), to_amount(amount))
    return Posting(_payout_end_key(payout_id), TransferKind.PAYOUT_FAIL, (leg,), payout_id=payout_id)


def payout_return(*, payout_id: UUID, account_id: AccountId, amount: int) -> Posting:
    """The bank sent it back after it was confirmed."""
    leg = Leg(shard_of(AccountKind.WORLD, payout_id), owner_available(account_id), to_amount(amount))
    return Posting(f"{payout_id}/payout_return", TransferKind.PAYOUT_RETURN, (leg,), payout_id=payout_id)


# Keys and parts


def _settle_key(job_id: JobId, attempt_id: AttemptId, paid: int) -> str:
    return f"{job_id}/settle/{attempt_id}/{paid}"


def _payout_end_key(payout_id: UUID) -> str:
    return f"{payout_id}/payout_end"


def _clearing(payout_id: UUID) -> LedgerAccount:
    return shard_of(AccountKind.PAYOUT_CLEARING, payout_id)


def _pay_legs(
    job_id: JobId,
    submitter_id: AccountId,
    owner_id: AccountId,
    owner_part: int,
    fee_part: int,
    fee_shard: int | None,
) -> tuple[Leg, ...]:
    held = submitter_held(submitter_id)
    fee = shard_of(AccountKind.FEE, job_id) if fee_shard is None else SHARDS[AccountKind.FEE][fee_shard]
    return _legs((held, owner_pending(owner_id), owner_part), (held, fee, fee_part))


def _take_back(earning: Earning, available: int) -> list[tuple[LedgerAccount, int]]:
    owner_id, amount = earning.owner_id, earning.owner_microcredits
    if earning.state is not EarningState.RELEASED:
        return [(owner_pending(owner_id), amount)]
    taken = min(amount, max(0, available))
    return [(owner_available(owner_id), taken), (receivable(owner_id), amount - taken)]


def _draw(shards: Balances, amount: int, first: LedgerAccount) -> list[tuple[LedgerAccount, int]] | Refusal:
    """Cuts an amount over shards, none of which passes zero: the subject's own first, then the fullest."""
    order = sorted(shards, key=lambda shard: (shard != first, -abs(shards[shard]), shard.id))
    parts, left = [], amount
    for shard in order:
        part = min(left, abs(shards[shard]))
        if part:
            parts.append((shard, part))
            left -= part
    if left:
        return Refusal(
            RefusalCode.INSUFFICIENT_CREDITS, f"{first.kind.value} comes to {left:,} microcredits less than needed."
        )
    return parts


def _spread_to(
    source: LedgerAccount, amount: int, shards: Balances, first: LedgerAccount
) -> tuple[Leg, ...] | Refusal:
    parts = _draw(shards, amount, first)
    if isinstance(parts, Refusal):
        return parts
    return _legs(*((source, shard, part) for shard, part in parts))


def _pair(
    sources: Sequence[tuple[LedgerAccount, int]], targets: Sequence[tuple[LedgerAccount, int]]
) -> tuple[Leg, ...]:
    """Legs from sources to targets, both of which come to the same sum, in their order."""
    legs: list[Leg] = []
    waiting = [(target, part) for target, part in reversed(targets) if part]
    for source, amount in sources:
        while amount:
            target, part = waiting.pop()
            moved = min(amount, part)
            legs.append(Leg(source, target, Microcredits(moved)))
            amount -= moved
            if part > moved:
                waiting.append((target, part - moved))
    return tuple(legs)


def _legs(*moves: tuple[LedgerAccount, LedgerAccount, int]) -> tuple[Leg, ...]:
    return tuple(Leg(source, target, Microcredits(amount)) for source, target, amount in moves if amount)


def _nothing(words: str) -> Refusal:
    return Refusal(RefusalCode.NOTHING_TO_MOVE, f"Nothing to move: {words}.")


def _hold_exceeded(job_id: JobId, wanted: int, held_remaining: int) -> Refusal:
    return Refusal(
        RefusalCode.HOLD_EXCEEDED,
        f"{wanted:,} microcredits are more than the {held_remaining:,} that are left of the hold of job {job_id}.",
    )

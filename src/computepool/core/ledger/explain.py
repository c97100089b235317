"""Why an attempt was paid what it was paid: what the rules make of it, against its row and against the books.

Compares, and changes nothing. Every figure comes from what was written down at the time: the frozen rate and fee, the
times by the database's clock, the claim of the node, the transfers.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from computepool.core.jobs.cause import NODE_FAULTS, Cause
from computepool.core.jobs.state import AttemptState
from computepool.core.ledger.charging import (
    RULES,
    ChargeRule,
    End,
    FrozenPrice,
    PriceMode,
    meter_seconds,
    price_attempt,
)
from computepool.core.ledger.decimals import say_credits
from computepool.core.ledger.earning import EarningState
from computepool.core.ledger.fee import split_price


class PayMark(str, Enum):
    """Stable: stands in answers and in files."""

    PAID = "paid"
    # Nothing is due; `UnpaidReason` says why.
    UNPAID = "unpaid"
    RUNNING = "running"
    # Paid as agreed, and frozen until it is decided; or taken back.
    DISPUTED = "disputed"
    REVERSED = "reversed"
    # The owner has got less or more than was agreed.
    UNDERPAID = "underpaid"
    OVERPAID = "overpaid"


DIFFERS = frozenset({PayMark.UNDERPAID, PayMark.OVERPAID})


class UnpaidReason(str, Enum):
    OWN_JOB = "own_job"
    NO_PRICE = "no_price"
    NODE_FAULT = "node_fault"
    SUPERSEDED = "superseded"
    OWNER_RETURNED = "owner_returned"
    INPUT_MISSING = "input_missing"
    NOT_BEGUN = "not_begun"
    HUB_FAULT = "hub_fault"
    NOT_STARTED = "not_started"
    TOO_LATE = "too_late"
    NO_CHECKPOINT = "no_checkpoint"


REASON_WORDS = {
    UnpaidReason.OWN_JOB: "one's own jobs on one's own nodes are free",
    UnpaidReason.NO_PRICE: "the agreed price comes to less than a microcredit",
    UnpaidReason.NODE_FAULT: "it ended by the node's fault",
    UnpaidReason.SUPERSEDED: "an earlier attempt delivered first",
    UnpaidReason.OWNER_RETURNED: "the machine's owner came back before a checkpoint",
    UnpaidReason.INPUT_MISSING: "an input file was missing or had the wrong hash",
    UnpaidReason.NOT_BEGUN: "its packages could not be installed, or the owner did not allow it: it never began",
    UnpaidReason.HUB_FAULT: "the hub made a mistake",
    UnpaidReason.NOT_STARTED: "it was stopped before the node said that it runs",
    UnpaidReason.TOO_LATE: "its lease had ended when it was reported to have failed",
    UnpaidReason.NO_CHECKPOINT: "the run stored no checkpoint while this host took part",
}

_REASONS = {
    Cause.SUPERSEDED: UnpaidReason.SUPERSEDED,
    Cause.OWNER_RETURNED: UnpaidReason.OWNER_RETURNED,
    Cause.INPUT_MISSING: UnpaidReason.INPUT_MISSING,
    Cause.PACKAGES_FAILED: UnpaidReason.NOT_BEGUN,
    Cause.NOT_ALLOWED: UnpaidReason.NOT_BEGUN,
    Cause.HUB_FAULT: UnpaidReason.HUB_FAULT,
    **dict.fromkeys(NODE_FAULTS, UnpaidReason.NODE_FAULT),
}

_MARKS: dict[EarningState | None, PayMark] = {
    EarningState.DISPUTED: PayMark.DISPUTED,
    EarningState.REVERSED: PayMark.REVERSED,
}


@dataclass(frozen=True, slots=True)
class Moved:
    """What the books say of an owner's pay. A settlement may be for several attempts of a job at once."""

    # By postings for this attempt alone; None: its pay is part of sums, or there is none.
    own_microcredits: int | None
    # Of all the job's attempts on this owner's nodes: what they earned by their rows, and what was settled.
    job_earned_microcredits: int
    job_settled_microcredits: int
    # Taken back from the owner for this attempt.
    reversed_microcredits: int
    # Paid out of the fee for the time of one that was superseded.
    out_of_fee_microcredits: int = 0


@dataclass(frozen=True, slots=True)
class PayFacts:
    """One attempt as it is stored."""

    state: AttemptState
    cause: Cause | None
    leased_at: datetime
    # When the node first listed it as running.
    started_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime
    # As the node claims.
    run_seconds: float | None
    wall_seconds: int
    # Submitter and owner are one.
    is_own: bool
    # Frozen with the lease; absent in attempts from before there was money.
    rate_microcredits_per_hour: int | None
    fee_ppm: int | None
    charged_microcredits: int | None
    fee_microcredits: int | None
    earning_state: EarningState | None
    moved: Moved
    # Of a seat of a run: what it is paid to at most. None: an ordinary attempt.
    checkpoint_seconds: int | None = None
    # Of an ordinary attempt: what its last accepted checkpoint holds.
    saved_seconds: int = 0

    @property
    def is_seat(self) -> bool:
        return self.checkpoint_seconds is not None

    # Frozen in place of a rate, where the slice has a fixed price.
    slice_price_microcredits: int | None = None
    # Of one that was superseded: what was paid for its time out of the fee. None: not decided yet.
    made_good_microcredits: int | None = None


@dataclass(frozen=True, slots=True)
class Explained:
    mark: PayMark
    words: str
    rule: ChargeRule
    # None while it runs.
    metered_seconds: int | None
    # Owner's part and fee together, by the rules and by the attempt's row.
    due_microcredits: int
    charged_microcredits: int
    # The owner's part: by the rules, by the row, by the books. None: part of a sum that does not add up.
    due_to_owner_microcredits: int
    earned_microcredits: int
    moved_microcredits: int | None
    reason: UnpaidReason | None = None
    # Every way in which row, rules and books disagree, in words.
    differences: tuple[str, ...] = ()
    # Of what should have come out of the fee for its time; below zero: too much came.
    fee_missing_microcredits: int = 0

    @property
    def missing_microcredits(self) -> int:
        """What the owner has got too little; below zero: too much."""
        missing = _find_missing(self.due_to_owner_microcredits, self.earned_microcredits, self.moved_microcredits)
        return missing + self.fee_missing_microcredits


def explain_pay(facts: PayFacts) -> Explained:
    rule = ChargeRule.TO_CHECKPOINT if facts.is_seat else RULES[facts.cause]
    if facts.finished_at is None:
        return Explained(PayMark.RUNNING, "It runs; it is paid when it ends.", rule, None, 0, 0, 0, 0, 0)
    seconds, due = _choose_due(facts)
    charged, fee = facts.charged_microcredits or 0, facts.fee_microcredits or 0
    due_to_owner = split_price(due, fee_ppm=facts.fee_ppm or 0)[0]
    earned = charged - fee
    moved = _find_moved(facts.moved, earned)
    differences = _list_differences(facts, due, due_to_owner, moved)
    if differences:
        mark, reason = _find_side(facts, due_to_owner, moved), None
    elif due == 0:
        mark, reason = PayMark.UNPAID, _find_reason(facts, seconds)
    else:
        mark, reason = _MARKS.get(facts.earning_state, PayMark.PAID), None
    words = _say(mark, reason, f"{say_credits(due_to_owner)}{_say_basis(facts, seconds)}", differences)
    words += _say_made_good(facts)
    return Explained(
        mark,
        words,
        rule,
        seconds,
        due,
        charged,
        due_to_owner,
        earned,
        moved,
        reason,
        tuple(differences),
        _find_fee_missing(facts),
    )


def meter(facts: PayFacts) -> int | None:
    """Whole seconds that count; None while it runs."""
    if facts.finished_at is None:
        return None
    return _meter(facts, (facts.finished_at - facts.leased_at).total_seconds())


def _choose_due(facts: PayFacts) -> tuple[int, int]:
    """Metered seconds and their price. Of two readings that the row allows, the one that agrees with the charge."""
    assert facts.finished_at is not None
    held = (facts.finished_at - facts.leased_at).total_seconds()
    seconds = _meter(facts, held)
    readings = [(seconds, _price(facts, seconds, state)) for state in _list_states_before(facts)]
    agreeing = [reading for reading in readings if reading[1] == (facts.charged_microcredits or 0)]
    return (agreeing or readings)[0]


def _meter(facts: PayFacts, held_seconds: float) -> int:
    return meter_seconds(
        claimed_seconds=facts.run_seconds, held_seconds=held_seconds, wall_seconds=facts.wall_seconds
    )


def _price(facts: PayFacts, seconds: int, state: AttemptState) -> int:
    if facts.slice_price_microcredits is None:
        frozen = FrozenPrice(PriceMode.PER_SECOND, facts.rate_microcredits_per_hour or 0)
    else:
        frozen = FrozenPrice(PriceMode.PER_SLICE, facts.slice_price_microcredits)
    return price_attempt(frozen, _to_end(facts, seconds, state), wall_seconds=facts.wall_seconds, is_own=facts.is_own)


def _to_end(facts: PayFacts, seconds: int, state: AttemptState) -> End:
    held = facts.saved_seconds if facts.checkpoint_seconds is None else facts.checkpoint_seconds
    return End(facts.cause, state, seconds, held, facts.is_seat)


def _list_states_before(facts: PayFacts) -> list[AttemptState]:
    """The state before the end is not kept. One that failed after its lease's end may have been given away before."""
    assert facts.finished_at is not None
    before = AttemptState.LEASED if facts.started_at is None else AttemptState.RUNNING
    may_be_late = facts.state is AttemptState.FAILED and facts.finished_at > facts.expires_at
    return [before, AttemptState.LOST] if may_be_late else [before]


def _find_moved(moved: Moved, earned: int) -> int | None:
    if moved.own_microcredits is not None:
        return moved.own_microcredits
    return earned if moved.job_settled_microcredits == moved.job_earned_microcredits else None


def _list_differences(facts: PayFacts, due: int, due_to_owner: int, moved: int | None) -> list[str]:
    charged, fee = facts.charged_microcredits or 0, facts.fee_microcredits or 0
    earned = charged - fee
    found = []
    if charged != due:
        found.append(f"charged {say_credits(charged)}, by the rules {say_credits(due)}")
    elif earned != due_to_owner:
        found.append(f"a fee of {say_credits(fee)} was taken, by the rules {say_credits(due - due_to_owner)}")
    if moved is not None and moved != charged - fee:
        found.append(
            f"the ledger moved {say_credits(moved)} to the owner, the attempt says {say_credits(charged - fee)}"
        )
    if facts.moved.job_settled_microcredits != facts.moved.job_earned_microcredits:
        found.append(
            f"the job's settlements to this owner come to {say_credits(facts.moved.job_settled_microcredits)}, its "
            f"attempts to {say_credits(facts.moved.job_earned_microcredits)}"
        )
    taken_back = earned if facts.earning_state is EarningState.REVERSED else 0
    if facts.moved.reversed_microcredits != taken_back:
        found.append(
            f"{say_credits(facts.moved.reversed_microcredits)} was taken back, by its state {say_credits(taken_back)}"
        )
    if _find_fee_missing(facts):
        found.append(
            f"the ledger moved {say_credits(facts.moved.out_of_fee_microcredits)} to the owner out of the fee, the "
            f"attempt says {say_credits(facts.made_good_microcredits or 0)}"
        )
    return found


def _find_side(facts: PayFacts, due_to_owner: int, moved: int | None) -> PayMark:
    """Less or more than was agreed; what this attempt does not tell, its job's sums and what was taken back do."""
    earned = (facts.charged_microcredits or 0) - (facts.fee_microcredits or 0)
    taken_back = earned if facts.earning_state is EarningState.REVERSED else 0
    for missing in (
        _find_missing(due_to_owner, earned, moved),
        facts.moved.job_earned_microcredits - facts.moved.job_settled_microcredits,
        facts.moved.reversed_microcredits - taken_back,
        _find_fee_missing(facts),
    ):
        if missing:
            return PayMark.UNDERPAID if missing > 0 else PayMark.OVERPAID
    return PayMark.UNDERPAID


def _find_missing(due_to_owner: int, earned: int, moved: int | None) -> int:
    """Row and ledger may each be short: what is released follows the row, what is there to be released the ledger."""
    least, most = (earned, earned) if moved is None else (min(earned, moved), max(earned, moved))
    return due_to_owner - (least if least < due_to_owner else most)


def _find_fee_missing(facts: PayFacts) -> int:
    return (facts.made_good_microcredits or 0) - facts.moved.out_of_fee_microcredits


def _find_reason(facts: PayFacts, seconds: int) -> UnpaidReason:
    if facts.is_own:
        return UnpaidReason.OWN_JOB
    if facts.cause is Cause.WRONG_RESULT:
        return UnpaidReason.NODE_FAULT
    if facts.checkpoint_seconds == 0:
        return UnpaidReason.NO_CHECKPOINT
    if facts.is_seat or (facts.saved_seconds and RULES[facts.cause] is ChargeRule.TO_CHECKPOINT):
        return UnpaidReason.NO_PRICE
    if facts.cause in _REASONS:
        return _REASONS[facts.cause]
    if facts.cause is not None and RULES[facts.cause] is ChargeRule.METERED_IF_RUNNING and facts.started_at is None:
        return UnpaidReason.NOT_STARTED
    # Had it not been given away before, it would have cost something.
    return UnpaidReason.TOO_LATE if _price(facts, seconds, AttemptState.RUNNING) else UnpaidReason.NO_PRICE


def _say_basis(facts: PayFacts, seconds: int) -> str:
    """What a fixed price came to, and why. A price by the second is told by its figures."""
    is_cut = RULES[facts.cause] is ChargeRule.TO_CHECKPOINT and not facts.is_seat
    seconds = min(seconds, facts.saved_seconds) if is_cut else seconds
    if facts.slice_price_microcredits is None:
        return f" for the {seconds:,} s up to its last checkpoint" if is_cut else ""
    price = f"the fixed price of {say_credits(facts.slice_price_microcredits)}"
    if facts.cause is None:
        return f", the owner's part of {price}"
    return f", the owner's part of {seconds:,}/{facts.wall_seconds:,} of {price}, for so much of its limit it ran"


def _say_made_good(facts: PayFacts) -> str:
    """What became of the time that no submitter pays for."""
    if facts.cause is not Cause.SUPERSEDED or facts.is_own:
        return ""
    if facts.made_good_microcredits is None:
        # What never began has no time.
        later = " Its time is paid out of our fee, when the pay for what was delivered is released."
        return later if facts.started_at is not None else ""
    if not facts.made_good_microcredits:
        return ""
    return f" {say_credits(facts.made_good_microcredits)} for its time came out of our fee."


def _say(mark: PayMark, reason: UnpaidReason | None, part: str, differences: list[str]) -> str:
    if reason is not None:
        return f"Nothing is due: {REASON_WORDS[reason]}."
    if differences:
        return f"{mark.value.capitalize()}: {'; '.join(differences)}."
    if mark is PayMark.DISPUTED:
        return f"{part}, as agreed; in dispute, and held until it is decided."
    if mark is PayMark.REVERSED:
        return f"{part} was paid as agreed, and taken back later."
    return f"{part}, as agreed."

"""Offers: a node's floor and conditions, and whether an offer takes an ask now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from enum import Enum

from computepool.core.ids import AccountId

HOURS_PER_WEEK = 168
NAMED_ACCOUNTS_MAX = 100
# What a job is that does not say what it is.
DEFAULT_KIND = "compute"
# Owners choose among these, so that the offers of a large fleet fall into few classes.
SECONDS_MIN_STEPS = (0, 10, 60, 300, 1_800, 3_600, 14_400)


class Audience(str, Enum):
    """Whom an offer is for. All but the first are private pools; the owner is welcome in each of them."""

    ANYONE = "anyone"
    OWN = "own"
    NAMED = "named"


class OfferRefusal(str, Enum):
    NOT_FOR_THIS_ACCOUNT = "not_for_this_account"
    CLOSED_NOW = "closed_now"
    KIND_NOT_ACCEPTED = "kind_not_accepted"
    TOO_SHORT = "too_short"
    FLOOR_ABOVE_CEILING = "floor_above_ceiling"


PLAIN_WORDS = {
    OfferRefusal.NOT_FOR_THIS_ACCOUNT: "its owner keeps it for a private pool",
    OfferRefusal.CLOSED_NOW: "it is not lent at this hour",
    OfferRefusal.KIND_NOT_ACCEPTED: "its owner does not take this kind of job",
    OfferRefusal.TOO_SHORT: "its owner takes longer slices only",
    OfferRefusal.FLOOR_ABOVE_CEILING: "it asks for more than the ceiling",
}


@dataclass(frozen=True, slots=True)
class Schedule:
    """Hours of the week at which a node is lent, on the owner's own clock, summer time and all."""

    # Bit 0 is Monday from 0:00 to 1:00, bit 167 Sunday from 23:00.
    hours: int
    zone: tzinfo

    def is_open(self, now: datetime) -> bool:
        return bool(self.hours >> hour_of_week(now.astimezone(self.zone)) & 1)

    def next_open_at(self, now: datetime) -> datetime | None:
        """Now if it is open; else the full hour when it opens; None if it never does."""
        if self.is_open(now):
            return now
        local = now.astimezone(self.zone)
        # Counted in absolute time: the week in which the clock is set back has an hour more. Quarters, because some
        # zones are set apart from the full hour of UTC by a half or three quarters.
        at = now - timedelta(minutes=local.minute % 15, seconds=local.second, microseconds=local.microsecond)
        for quarter in range(1, 4 * (HOURS_PER_WEEK + 2)):
            found = at + quarter * timedelta(minutes=15)
            if self.is_open(found):
                return found
        return None


def hour_of_week(local: datetime) -> int:
    return local.weekday() * 24 + local.hour


def to_hours(spans: Iterable[tuple[int, int]]) -> int:
    """Bits from spans of hours of the week, each from its first hour up to, not including, its last.

    A span that ends before it begins goes on over the end of the week; one that ends where it began is all of it.
    """
    hours = 0
    for first, last in spans:
        if not (0 <= first < HOURS_PER_WEEK and 0 <= last <= HOURS_PER_WEEK):
            raise ValueError(f"{first} to {last} is no span of a week; write hours from 0 (Monday 0:00) to 168")
        length = (last - first) % HOURS_PER_WEEK or HOURS_PER_WEEK
        for hour in range(first, first + length):
            hours |= 1 << hour % HOURS_PER_WEEK
    return hours


@dataclass(frozen=True, slots=True)
class Offer:
    owner_id: AccountId
    # Below it the node takes nothing; in a private pool it is the price.
    floor_microcredits_per_hour: int = 0
    # None: at all hours.
    schedule: Schedule | None = None
    # Slices that are expected to run for less are not taken; one of SECONDS_MIN_STEPS.
    seconds_min: int = 0
    # Empty: all kinds.
    kinds: frozenset[str] = frozenset()
    audience: Audience = Audience.ANYONE
    named: frozenset[AccountId] = frozenset()


@dataclass(frozen=True, slots=True)
class Ask:
    """What one slice asks of an offer."""

    account_id: AccountId
    kind: str
    # As expected; the wall-time limit while nothing is known.
    seconds: int
    # None: any price.
    ceiling_microcredits_per_hour: int | None = None


def round_down_seconds(seconds: int) -> int:
    """The largest step that is not above: whoever takes slices of that length takes this one."""
    return max(step for step in SECONDS_MIN_STEPS if step <= max(0, seconds))


def list_offer_faults(offer: Offer, *, kinds: Iterable[str], floor_max: int) -> list[str]:
    """Everything that is wrong, at once, each with what would be right."""
    faults = []
    known = sorted(kinds)
    if not 0 <= offer.floor_microcredits_per_hour <= floor_max:
        faults.append(f"floor_microcredits_per_hour must be between 0 and {floor_max:,}")
    if offer.seconds_min not in SECONDS_MIN_STEPS:
        faults.append(f"seconds_min must be one of {', '.join(map(str, SECONDS_MIN_STEPS))}")
    faults += [f"kind {kind!r} is unknown; there are {', '.join(known)}" for kind in sorted(offer.kinds - set(known))]
    if offer.schedule is not None and not 0 < offer.schedule.hours < 1 << HOURS_PER_WEEK:
        faults.append("hours must name at least one hour of the week; pause the node to lend it at none")
    if offer.audience is Audience.NAMED and not offer.named:
        faults.append("audience is named, and no other account is; name one, or choose own or anyone")
    if offer.audience is not Audience.NAMED and offer.named:
        faults.append(f"accounts are named, and audience is {offer.audience.value}; choose named, or name none")
    if len(offer.named) > NAMED_ACCOUNTS_MAX:
        faults.append(f"{len(offer.named)} accounts are named; a pool takes {NAMED_ACCOUNTS_MAX} at most")
    return faults


def is_own(offer: Offer, ask: Ask) -> bool:
    return offer.owner_id == ask.account_id


def is_private(offer: Offer) -> bool:
    return offer.audience is not Audience.ANYONE


def is_welcome(offer: Offer, ask: Ask) -> bool:
    if is_own(offer, ask) or offer.audience is Audience.ANYONE:
        return True
    return offer.audience is Audience.NAMED and ask.account_id in offer.named


def find_offer_refusal(offer: Offer, ask: Ask, *, now: datetime) -> OfferRefusal | None:
    """Why this offer does not take this ask now, the most lasting reason first; None if it does.

    Says nothing of spot: whether a slice may start while others pay more is asked in price.py.
    """
    if not is_welcome(offer, ask):
        return OfferRefusal.NOT_FOR_THIS_ACCOUNT
    if offer.kinds and ask.kind not in offer.kinds:
        return OfferRefusal.KIND_NOT_ACCEPTED
    if ask.seconds < offer.seconds_min:
        return OfferRefusal.TOO_SHORT
    ceiling = ask.ceiling_microcredits_per_hour
    if ceiling is not None and offer.floor_microcredits_per_hour > ceiling and not is_own(offer, ask):
        return OfferRefusal.FLOOR_ABOVE_CEILING
    if offer.schedule is not None and not offer.schedule.is_open(now):
        return OfferRefusal.CLOSED_NOW
    return None

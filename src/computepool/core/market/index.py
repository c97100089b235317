"""The price index: what an hour really cost, from deals between strangers, and the points of its history.

Deals with oneself, with a linked account or in a private pool are no evidence of a price and never enter. Of the rest
the median by seconds counts, so that a few deals at odd prices do not move it either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from computepool.core.ids import AccountId
from computepool.core.market.ppm import to_ppm
from computepool.core.market.rate_card import Bucket

# Account -> one account that stands for its group; whoever is not in it stands alone.
Links = Mapping[AccountId, AccountId]


@dataclass(frozen=True, slots=True)
class Deal:
    """An attempt that was paid."""

    bucket: Bucket
    submitter_id: AccountId
    owner_id: AccountId
    price_microcredits_per_hour: int
    seconds: int
    is_private: bool = False


@dataclass(frozen=True, slots=True)
class Level:
    """The index of one bucket over some time."""

    # The median by seconds: half of the time was bought for no more.
    price_microcredits_per_hour: int
    # Of the reference price.
    ratio_ppm: int
    deal_count: int
    seconds: int


@dataclass(frozen=True, slots=True)
class PricePoint:
    """One row of the published history: a tick of one bucket."""

    at: datetime
    bucket: Bucket
    card_version: str
    spot_microcredits_per_hour: int
    surge_ppm: int
    slot_count: int
    busy_count: int
    # Slices that would pay spot.
    waiting_count: int
    # Of the deals that were settled since the last point; None if there was none that counts.
    level: Level | None


def link_accounts(pairs: Iterable[tuple[AccountId, AccountId]]) -> dict[AccountId, AccountId]:
    """Groups of all who are linked, directly or through others: by a payout address, a means of payment, a team."""
    group: dict[AccountId, AccountId] = {}

    def find(account_id: AccountId) -> AccountId:
        group.setdefault(account_id, account_id)
        while group[account_id] != account_id:
            group[account_id] = group[group[account_id]]
            account_id = group[account_id]
        return account_id

    for one, other in pairs:
        first, second = sorted((find(one), find(other)))
        group[second] = first
    return {account_id: find(account_id) for account_id in list(group)}


def are_linked(one: AccountId, other: AccountId, links: Links) -> bool:
    return links.get(one, one) == links.get(other, other)


def is_evidence(deal: Deal, links: Links) -> bool:
    """Whether this deal says what strangers pay."""
    return deal.seconds > 0 and not deal.is_private and not are_linked(deal.submitter_id, deal.owner_id, links)


def find_level(deals: Iterable[Deal], *, reference: int, links: Links) -> Level | None:
    """Of deals in one bucket; None when none of them is evidence."""
    counted = sorted((deal.price_microcredits_per_hour, deal.seconds) for deal in deals if is_evidence(deal, links))
    if not counted:
        return None
    seconds = sum(each for _, each in counted)
    price = find_median(counted, seconds)
    return Level(price, to_ppm(price, max(reference, 1)), len(counted), seconds)


def find_median(counted: Sequence[tuple[int, int]], seconds: int) -> int:
    """Of (price, seconds) in rising order: the first price that covers half of the seconds."""
    covered = 0
    for price, each in counted:
        covered += each
        if covered * 2 >= seconds:
            return price
    raise ValueError("there is no median of nothing")

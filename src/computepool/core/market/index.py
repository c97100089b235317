"""The price index: what an hour really cost between strangers.

Deals with oneself, with a linked account or in a private pool are no evidence of a price and never enter. Of the rest
the median by seconds counts, so that a few deals at odd prices do not move it either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from computepool.core.ids import AccountId
from computepool.core.market.ppm import to_ppm
from computepool.core.market.rate_card import Bucket

# Account -> one account that stands for its group; whoever is not in it stands alone.
Links = Mapping[AccountId, AccountId]


@dataclass(frozen=True, slots=True)
class DealGroup:
    """Attempts that were paid, of one bucket and at about one price, alike in what they are evidence of."""

    bucket: Bucket
    price_microcredits_per_hour: int
    deal_count: int
    # Of all of them.
    seconds: int
    # Between an account and itself, or one that is linked with it.
    is_linked: bool = False
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


def link_accounts(pairs: Iterable[tuple[AccountId, AccountId]]) -> dict[AccountId, AccountId]:
    """Groups of all who are linked, directly or through others, such as by a place that they are paid out to."""
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


def is_evidence(deals: DealGroup) -> bool:
    """Whether they say what strangers pay."""
    return deals.seconds > 0 and not deals.is_private and not deals.is_linked


def list_levels(deals: Iterable[DealGroup], reference_of: Callable[[Bucket], int]) -> dict[Bucket, Level]:
    """Of every bucket that has evidence."""
    by_bucket: defaultdict[Bucket, list[DealGroup]] = defaultdict(list)
    for each in deals:
        by_bucket[each.bucket].append(each)
    found = {bucket: find_level(each, reference=reference_of(bucket)) for bucket, each in by_bucket.items()}
    return {bucket: level for bucket, level in found.items() if level is not None}


def find_level(deals: Iterable[DealGroup], *, reference: int) -> Level | None:
    """Of deals in one bucket; None when none of them is evidence."""
    counted = sorted(
        (each.price_microcredits_per_hour, each.seconds, each.deal_count) for each in deals if is_evidence(each)
    )
    if not counted:
        return None
    price = find_median([(price, seconds) for price, seconds, _ in counted])
    deal_count, seconds = sum(count for _, _, count in counted), sum(seconds for _, seconds, _ in counted)
    return Level(price, to_ppm(price, max(reference, 1)), deal_count, seconds)


def find_median(counted: Sequence[tuple[int, int]]) -> int:
    """Of (price, seconds) in rising order: the first price that covers half of the seconds."""
    total, covered = sum(seconds for _, seconds in counted), 0
    for price, seconds in counted:
        covered += seconds
        if covered * 2 >= total:
            return price
    raise ValueError("there is no median of nothing")

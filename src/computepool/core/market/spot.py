"""The spot price of a bucket: its reference price times a surge that follows supply and demand, slowly and in bounds.

Pressure = work that pays spot, running or waiting, over slots that are lent for it. A curve turns it into a target,
which is smoothed; the surge moves towards it by a step that grows while the price keeps its direction and shrinks
when it turns: so it arrives quickly and does not swing. Only a queue lifts the surge above 1. Whole parts in a
million throughout. Why these constants: docs/concepts/market.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from computepool.core.ids import AccountId
from computepool.core.market.index import Links
from computepool.core.market.ppm import PPM, times_ppm, to_ppm
from computepool.core.market.rate_card import Bucket

TICK_SECONDS = 120
# Beyond it more of a queue says nothing new, and sums stay small.
PRESSURE_PPM_MAX = 20 * PPM
# Moves below a tenth of a percent have no direction.
MOVE_PPM_MIN = 1_000
# What one account may add to the pressure by its queue, in parts of the slots: one whale is not a crowd.
ACCOUNT_SHARE_PPM_MAX = PPM // 2


@dataclass(frozen=True, slots=True)
class SpotRule:
    """The constants of one step."""

    # (pressure, surge), neither falling; between two points a straight line, beyond the last ones flat. From 1 to
    # 1.25 it is flat: a price above the reference always has a queue behind it, and with that the force to hold.
    curve_ppm: tuple[tuple[int, int], ...] = (
        (250_000, 800_000),
        (1_000_000, 1_000_000),
        (1_250_000, 1_000_000),
        (2_000_000, 1_700_000),
        (3_500_000, 3_000_000),
    )
    # How much of a new reading enters the smoothed target, and how far from the surge a reading may ask it to go.
    # Without that bound one great reading would drive the price for many ticks.
    smoothing_ppm: int = 400_000
    reach_ppm: int = 300_000
    # Bounds of one tick's move, in parts of the surge.
    step_ppm_min: int = 10_000
    step_ppm_max: int = 150_000
    # Three steps the one way and one back make it smaller: whatever swings that fast dies down.
    step_growth_ppm: int = 1_500_000
    step_shrink_ppm: int = 400_000

    @property
    def surge_ppm_min(self) -> int:
        return self.curve_ppm[0][1]

    @property
    def surge_ppm_max(self) -> int:
        return self.curve_ppm[-1][1]


RULE = SpotRule()


@dataclass(frozen=True, slots=True)
class SpotState:
    """What is kept of a bucket from tick to tick."""

    surge_ppm: int = PPM
    # Where it is going.
    target_ppm: int = PPM
    # The bound of the last move, and its direction: 1, -1, or 0 as long as it never moved. At rest both are kept.
    step_ppm: int = RULE.step_ppm_min
    direction: int = 0


def advance(state: SpotState, pressure_ppm: int | None, rule: SpotRule = RULE) -> SpotState:
    """One tick. Without a pressure, because no slot of the bucket is lent at spot, nothing moves."""
    if pressure_ppm is None:
        return state
    asked = _keep_near(find_target_ppm(pressure_ppm, rule), state.surge_ppm, rule.reach_ppm)
    target = state.target_ppm + times_ppm(asked - state.target_ppm, rule.smoothing_ppm)
    direction = _find_direction(target - state.surge_ppm)
    step = _next_step_ppm(state, direction, rule)
    surge = _keep_near(target, state.surge_ppm, step)
    surge = min(max(surge, rule.surge_ppm_min), rule.surge_ppm_max)
    return SpotState(surge, target, step, direction or state.direction)


def _keep_near(wanted_ppm: int, surge_ppm: int, ratio_ppm: int) -> int:
    """The wanted surge, or as near to it as this part of the present one allows."""
    bound = times_ppm(surge_ppm, ratio_ppm)
    return min(max(wanted_ppm, surge_ppm - bound), surge_ppm + bound)


def _find_direction(way_ppm: int) -> int:
    return 0 if abs(way_ppm) < MOVE_PPM_MIN else 1 if way_ppm > 0 else -1


def _next_step_ppm(state: SpotState, direction: int, rule: SpotRule) -> int:
    if 0 in (direction, state.direction):
        factor = PPM
    else:
        factor = rule.step_growth_ppm if direction == state.direction else rule.step_shrink_ppm
    return min(max(times_ppm(state.step_ppm, factor), rule.step_ppm_min), rule.step_ppm_max)


def find_target_ppm(pressure_ppm: int, rule: SpotRule = RULE) -> int:
    """The surge that this pressure would have if it lasted."""
    first, last = rule.curve_ppm[0], rule.curve_ppm[-1]
    if pressure_ppm <= first[0]:
        return first[1]
    for (x0, y0), (x1, y1) in pairwise(rule.curve_ppm):
        if pressure_ppm <= x1:
            return y0 + (y1 - y0) * (pressure_ppm - x0) // (x1 - x0)
    return last[1]


def price_spot(reference: int, state: SpotState) -> int:
    """Microcredits per hour."""
    return times_ppm(reference, state.surge_ppm)


# What the ticker has to count


@dataclass(frozen=True, slots=True)
class Supply:
    """Slots that are lent to anyone now and whose floor is not above spot; of them, how many are busy at that price.

    Work with a ceiling below spot fills a gap and does not count as busy: it would make way for a queue, not bid.
    A slot that runs a job of its own owner, or of an account linked with it, is no supply and not busy either: nobody
    lifts the price by keeping a machine busy with work of their own.
    """

    slot_count: int
    busy_count: int
    # Whose slots they are: their own queue does not press on the price that they earn.
    owner_ids: Collection[AccountId] = frozenset()


@dataclass(frozen=True, slots=True)
class Waiting:
    """Slices of one account that wait, alike in where they could run and what they would pay."""

    account_id: AccountId
    slice_count: int
    # None: any price.
    ceiling_microcredits_per_hour: int | None
    buckets: tuple[Bucket, ...]


def measure_pressures(
    supplies: Mapping[Bucket, Supply],
    waiting: Iterable[Waiting],
    spots: Mapping[Bucket, int],
    links: Links = MappingProxyType({}),
) -> dict[Bucket, int]:
    """The pressure of every bucket that has supply, in parts in a million. Linked accounts count as one."""
    queued = _spread_queue(supplies, waiting, spots, links)
    return {
        bucket: min(to_ppm(supply.busy_count * PPM + queued[bucket], supply.slot_count * PPM), PRESSURE_PPM_MAX)
        for bucket, supply in supplies.items()
        if supply.slot_count > 0
    }


def _spread_queue(
    supplies: Mapping[Bucket, Supply], waiting: Iterable[Waiting], spots: Mapping[Bucket, int], links: Links
) -> defaultdict[Bucket, int]:
    """Millionths of slices per bucket: who could run in many buckets presses on each by its share of the slots."""
    owners = {bucket: {links.get(each, each) for each in supply.owner_ids} for bucket, supply in supplies.items()}
    by_group: defaultdict[tuple[Bucket, AccountId], int] = defaultdict(int)
    for each in waiting:
        group = links.get(each.account_id, each.account_id)
        ceiling = each.ceiling_microcredits_per_hour
        counts = {
            bucket: supplies[bucket].slot_count
            for bucket in each.buckets
            if bucket in supplies and (ceiling is None or ceiling >= spots[bucket])
        }
        slots = sum(counts.values())
        for bucket, count in counts.items():
            if count and group not in owners[bucket]:
                by_group[bucket, group] += each.slice_count * PPM * count // slots
    queued: defaultdict[Bucket, int] = defaultdict(int)
    for (bucket, _), count in by_group.items():
        queued[bucket] += min(count, max(PPM, supplies[bucket].slot_count * ACCOUNT_SHARE_PPM_MAX))
    return queued


def list_buckets_with_backlog(waiting: Iterable[Waiting], spots: Mapping[Bucket, int]) -> set[Bucket]:
    """Where spot has force: somebody waits who could run there and would pay it."""
    return {
        bucket
        for each in waiting
        if each.slice_count > 0
        for bucket in each.buckets
        if bucket in spots
        and (each.ceiling_microcredits_per_hour is None or each.ceiling_microcredits_per_hour >= spots[bucket])
    }

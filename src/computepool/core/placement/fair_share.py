"""The fair share between accounts: who of those that wait is served next, by slot-seconds had and weight.

Every account has a mark, its slot-seconds divided by its weight; the lowest mark is served next. A lease is charged
what it is expected to take, goes on being charged when it takes longer, and is corrected at its end. Whoever begins
to compete starts level with the others: what was had before, or while nobody else waited, does not count.

Each hub is fair in what it gives out itself, and hears once a second what the others have charged. Plain
bookkeeping: the caller brings time and totals. docs/decisions/0006 says why it is like this.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from computepool.core.ids import AccountId, AttemptId
from computepool.core.placement.in_flight import InFlight

# What a slice is expected to run while nothing at all is known.
EXPECTED_SECONDS = 30.0
# An account of which no slice has ended yet is expected to run longer than the rest by this. Too much is put right
# when the first one ends, which then is soon; too little only when it has held too many slots for too long.
PESSIMISM_RATIO = 8.0
# How much each end moves the mean of its account, and how long the mean stands against what the record says.
LEARNING_RATIO = 0.2
LEARNED_SECONDS = 10.0
# Half of what an account has had is forgotten in this time.
HALF_LIFE_SECONDS = 86_400.0
# An account whose queue is empty for less than this has not left.
LINGER_SECONDS = 5.0
# Accounts that have had nothing to do with us for this long are forgotten.
IDLE_SECONDS = 600.0
ACCOUNTS_MAX = 100_000
# Seconds in which all hubs together make up for a difference between accounts. Totals are up to two seconds old: hubs
# that each answered one at once and in full would swing from one account to the other.
CALM_SECONDS = 6.0
# For so many totals after an account's arrival, what other hubs gave out before it still comes in for the rest.
FRESH_TOTALS = 2


@dataclass(frozen=True, slots=True)
class Delta:
    """Slot-seconds charged here since the last totals. Zero: only the total is asked for."""

    account_id: AccountId
    seconds: float
    # No slice of it has ended here lately: the record may know how long they run.
    asks_mean: bool = False


@dataclass(frozen=True, slots=True)
class Total:
    """What an account has had by all hubs' counts, fading, as of a moment of the database's clock."""

    account_id: AccountId
    slot_seconds: float
    weight: float
    counted_at: datetime
    # How long its slices run, by the record; None: unknown, or not asked for.
    mean_seconds: float | None = None


@dataclass(slots=True)
class _Account:
    weight: float = 1.0
    # Slot-seconds by weight, without overtime that is not charged yet.
    mark: float = 0.0
    # What other hubs have charged, by weight, and the mark does not show yet.
    unseen: float = 0.0
    # Charged here and not yet on its way to the totals.
    pending_seconds: float = 0.0
    # The part of the live attempts' overtime that has been charged.
    overtime_charged_seconds: float = 0.0
    # None until one of its slices has ended by itself; and when one last did so here.
    mean_seconds: float | None = None
    learned_at: float | None = None
    total: Total | None = None
    # When it last had something to be planned for, and when others had too.
    seen_at: float | None = None
    competed_at: float | None = None
    # Totals during which it counts as newly arrived.
    fresh_count: int = 0


NO_CAPS: Mapping[AccountId, int] = {}


class FairShare:
    """Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._accounts: dict[AccountId, _Account] = {}
        self._in_flight = InFlight()
        self._mean_seconds: float | None = None
        self._hub_count = 1
        self._turn_ratio = 0.0
        self._has_strangers = False

    # Who is next

    def plan(
        self, accounts: Collection[AccountId], count: int, caps: Mapping[AccountId, int] = NO_CAPS, *, now: float
    ) -> dict[AccountId, int]:
        """How many of the next `count` grants each of these accounts should get; none more than its cap."""
        if not accounts or count <= 0:
            return {}
        found = {id: self._get(id) for id in accounts}
        self._greet(found, now)
        if len(found) == 1:
            return {id: min(count, caps.get(id, count)) for id in found}
        # The number is there so that no two entries are ever compared by their ids, which is slow.
        heap = [(self._rank(id, account, now), n, id) for n, (id, account) in enumerate(found.items())]
        heapq.heapify(heap)
        planned: dict[AccountId, int] = {}
        steps: dict[AccountId, float] = {}
        for _ in range(count):
            if not heap:
                break
            mark, n, id = heap[0]
            planned[id] = planned.get(id, 0) + 1
            if planned[id] >= caps.get(id, count):
                heapq.heappop(heap)
                continue
            if id not in steps:
                steps[id] = self.expected_seconds(id, now=now) / found[id].weight
            heapq.heapreplace(heap, (mark + steps[id], n, id))
        return planned

    def effective(self, account_id: AccountId, *, now: float) -> float:
        """The lowest of those that wait is served next."""
        return self._rank(account_id, self._get(account_id), now)

    def _rank(self, account_id: AccountId, account: _Account, now: float) -> float:
        # Hubs take turns: were all equally eager, each would serve the same account at the same moment.
        usual = account.mean_seconds or self._mean_seconds or EXPECTED_SECONDS
        return account.mark + self._uncharged(account_id, account, now) + self._turn_ratio * usual / account.weight

    @property
    def has_strangers(self) -> bool:
        """Whether somebody waits of whom no total is known: neither weight nor anything else."""
        return self._has_strangers

    def expected_seconds(self, account_id: AccountId, *, now: float) -> float:
        """How long the account's next slice will probably hold its slot."""
        account = self._accounts.get(account_id)
        if account is not None and account.mean_seconds is not None:
            return account.mean_seconds
        usual = EXPECTED_SECONDS if self._mean_seconds is None else PESSIMISM_RATIO * self._mean_seconds
        # What has run for so long without an end is half done, as far as anyone knows.
        return max(usual, 2 * self._in_flight.overdue_mean_seconds(account_id, now=now))

    # Arrival

    def _greet(self, accounts: Mapping[AccountId, _Account], now: float) -> None:
        if len(accounts) > 1:
            arrived = _list_absent([(id, a.competed_at) for id, a in accounts.items()])
            if arrived:
                self._level(accounts, arrived, now)
        for account in accounts.values():
            account.seen_at = now
            if len(accounts) > 1:
                account.competed_at = now
            if account.total is None:
                self._has_strangers = True

    def _level(self, accounts: Mapping[AccountId, _Account], arrived: set[AccountId], now: float) -> None:
        """Newcomers start where the least served of the others stands, and owe only what they still hold.

        Without the debt, whoever takes many slots for long and leaves the queue for a while would get as many again.
        """
        settled = [id for id in accounts if id not in arrived] or list(accounts)
        least_id = min(settled, key=lambda id: (self._rank(id, accounts[id], now), id))
        least = accounts[least_id]
        level = least.mark + self._uncharged(least_id, least, now)
        # An account that was served all the time, only alone, has not been away.
        absent = _list_absent([(id, a.seen_at) for id, a in accounts.items()])
        for id in arrived:
            account = accounts[id]
            debt = self._in_flight.remaining_seconds(id, now=now) / account.weight if id in absent else 0.0
            account.mark = level + debt - self._uncharged(id, account, now)
            account.unseen = least.unseen
            account.fresh_count = FRESH_TOTALS if id in absent else 0

    # Charges

    def charge_lease(
        self, account_id: AccountId, attempt_id: AttemptId, *, expected_seconds: float, now: float
    ) -> None:
        self._charge(self._get(account_id), expected_seconds)
        self._in_flight.add(account_id, attempt_id, expected_seconds, now=now)

    def charge_end(
        self,
        account_id: AccountId,
        attempt_id: AttemptId,
        *,
        expected_seconds: float,
        held_seconds: float,
        natural: bool,
        now: float,
    ) -> None:
        """Whichever hub leased it, what was expected makes way for what it took. Natural: it ended by itself."""
        account = self._get(account_id)
        overtime = self._drop(account_id, account, attempt_id, now)
        self._charge(account, held_seconds - expected_seconds - overtime)
        if natural:
            account.mean_seconds = _learn(account.mean_seconds, held_seconds)
            account.learned_at = now
            self._mean_seconds = _learn(self._mean_seconds, held_seconds)

    def list_suspects(self, limit: int, *, now: float) -> list[AttemptId]:
        """Attempts leased here that have outlasted their estimate, as far as we know."""
        return self._in_flight.list_suspects(limit, now=now)

    def judge_suspects(self, suspects: Iterable[AttemptId], live: Collection[AttemptId], *, now: float) -> None:
        """Those that are live are charged as they run on; the others ended at another hub, which has charged them."""
        self._in_flight.confirm(id for id in live)
        for attempt_id in suspects:
            account_id = self._in_flight.find_account(attempt_id)
            if account_id is not None and attempt_id not in live:
                account = self._get(account_id)
                self._charge(account, -self._drop(account_id, account, attempt_id, now))

    def _drop(self, account_id: AccountId, account: _Account, attempt_id: AttemptId, now: float) -> float:
        """The attempt is live no more. Returns its overtime, all of which has been charged."""
        self._charge_overtime(account_id, account, now)
        overtime = self._in_flight.remove(attempt_id, doubled=account.mean_seconds is None, now=now)
        account.overtime_charged_seconds -= overtime
        return overtime

    def _charge_overtime(self, account_id: AccountId, account: _Account, now: float) -> None:
        uncharged = self._uncharged(account_id, account, now) * account.weight
        if uncharged:
            self._charge(account, uncharged)
            account.overtime_charged_seconds += uncharged

    def _charge(self, account: _Account, seconds: float) -> None:
        account.pending_seconds += seconds
        account.mark += seconds / account.weight

    def _uncharged(self, account_id: AccountId, account: _Account, now: float) -> float:
        """Overtime since it was last charged, by weight."""
        if not self._in_flight.has_overdue(account_id):
            # Rounding may have left a trace of what was charged.
            account.overtime_charged_seconds = 0.0
            return 0.0
        overtime = self._in_flight.overtime_seconds(account_id, doubled=account.mean_seconds is None, now=now)
        return (overtime - account.overtime_charged_seconds) / account.weight

    # The totals of all hubs

    def take_deltas(self, limit: int, *, now: float) -> list[Delta]:
        """What to add to the totals, and whose totals to ask for. The caller puts back what could not be added."""
        for account_id in self._in_flight.list_accounts():
            self._charge_overtime(account_id, self._get(account_id), now)
        self._forget_idle(now)
        self._has_strangers = False
        moved = [
            (id, a)
            for id, a in self._accounts.items()
            if a.pending_seconds or _is_recent(a.seen_at, now, LINGER_SECONDS)
        ]
        if len(moved) > limit:
            moved = heapq.nlargest(limit, moved, key=lambda item: abs(item[1].pending_seconds))
        deltas = [
            Delta(id, account.pending_seconds, asks_mean=not _is_recent(account.learned_at, now, LEARNED_SECONDS))
            for id, account in moved
        ]
        for _, account in moved:
            account.pending_seconds = 0.0
        return deltas

    def put_back(self, deltas: Iterable[Delta]) -> None:
        """They could not be added; they go with the next ones."""
        for delta in deltas:
            self._get(delta.account_id).pending_seconds += delta.seconds

    def take_totals(self, deltas: Iterable[Delta], totals: Sequence[Total], *, hub_count: int, hub_rank: int) -> None:
        """What all hubs have charged, our deltas among it. Of `hub_count` hubs we are number `hub_rank`, from 0."""
        self._hub_count = max(1, hub_count)
        self._turn_ratio = hub_rank / self._hub_count
        own = {delta.account_id: delta.seconds for delta in deltas}
        moves = {total.account_id: self._take_total(total, own.get(total.account_id, 0.0)) for total in totals}
        accounts = {id: self._get(id) for id in moves}
        settled = [moves[id] for id, a in accounts.items() if a.competed_at is not None and not a.fresh_count]
        least = min(settled, default=0.0)
        for id, account in accounts.items():
            account.unseen += _move_newcomer(moves[id], least) if account.fresh_count else moves[id]
            step = account.unseen / (CALM_SECONDS * self._hub_count)
            account.mark += step
            account.unseen -= step
            account.fresh_count = max(0, account.fresh_count - 1)

    def _take_total(self, total: Total, own_seconds: float) -> float:
        """What the other hubs have charged since the last total, by weight."""
        account = self._get(total.account_id)
        before, account.total = account.total, total
        account.weight = total.weight
        if total.mean_seconds is not None:
            account.mean_seconds = total.mean_seconds
        if before is None:
            return 0.0
        seconds = (total.counted_at - before.counted_at).total_seconds()
        return (total.slot_seconds - fade(before.slot_seconds, seconds) - own_seconds) / total.weight

    # Memory

    def _get(self, account_id: AccountId) -> _Account:
        account = self._accounts.get(account_id)
        if account is None:
            if len(self._accounts) >= ACCOUNTS_MAX:
                # What it was charged last is lost to the totals: better than to grow without end.
                self._accounts.pop(next(iter(self._accounts)))
            account = self._accounts[account_id] = _Account()
        return account

    def _forget_idle(self, now: float) -> None:
        idle = [
            id
            for id, account in self._accounts.items()
            if not account.pending_seconds
            and not self._in_flight.holds(id)
            and (account.seen_at is None or now - account.seen_at > IDLE_SECONDS)
        ]
        for id in idle:
            del self._accounts[id]


def fade(slot_seconds: float, seconds: float) -> float:
    """What is left of a total after this time."""
    return float(slot_seconds * 0.5 ** (max(0.0, seconds) / HALF_LIFE_SECONDS))


def _move_newcomer(own: float, least: float) -> float:
    """What others charged or took back before a newcomer came would look like its advantage or its loss."""
    return own + least if least < 0 else max(own, least)


def _learn(mean_seconds: float | None, seconds: float) -> float:
    return seconds if mean_seconds is None else mean_seconds + LEARNING_RATIO * (seconds - mean_seconds)


def _is_recent(at: float | None, now: float, seconds: float) -> bool:
    return at is not None and now - at <= seconds


def _list_absent(moments: Sequence[tuple[AccountId, float | None]]) -> set[AccountId]:
    """Who was missing when others were there last. Time in which nobody was there makes nobody absent."""
    latest = max((at for _, at in moments if at is not None), default=None)
    if latest is None:
        return {id for id, _ in moments}
    return {id for id, at in moments if at is None or latest - at > LINGER_SECONDS}

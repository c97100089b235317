"""What live attempts were charged when they were leased, and what they run beyond it.

Estimates are wrong. An attempt that outlasts its own goes on being charged while it runs; otherwise an account whose
slices are longer than anybody thought could fill the fleet before the first of them ends. Its end may be told to
another hub, so nothing counts as overdue before somebody has looked: the caller asks for suspects and confirms them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from computepool.core.ids import AccountId, AttemptId

# Attempts that are watched; one more is charged what was expected and, at its end, what it took.
LIVE_MAX = 500_000
# An end that was told to this hub has been heard of by then.
SUSPECT_SECONDS = 1.0
# Ended attempts stay in the heap until their time comes, but not more of them than this and as many as are live.
STALE_MAX = 10_000


@dataclass(slots=True)
class _Live:
    account_id: AccountId
    expected_seconds: float
    due_seconds: float
    overdue: bool = False


@dataclass(slots=True)
class _Held:
    """One account's live attempts, in sums: any number of them costs the same to ask about."""

    ahead_count: int = 0
    ahead_due_sum: float = 0.0
    overdue_count: int = 0
    overdue_due_sum: float = 0.0
    overdue_expected_sum: float = 0.0


class InFlight:
    """Times are seconds of one monotonic clock and never go back."""

    def __init__(self) -> None:
        self._live: dict[AttemptId, _Live] = {}
        self._held: dict[AccountId, _Held] = {}
        self._due: list[tuple[float, AttemptId]] = []
        # Past their time, in the order in which they are to be looked at next.
        self._suspects: dict[AttemptId, None] = {}

    def __len__(self) -> int:
        return len(self._live)

    def holds(self, account_id: AccountId) -> bool:
        return account_id in self._held

    def has_overdue(self, account_id: AccountId) -> bool:
        held = self._held.get(account_id)
        return held is not None and held.overdue_count > 0

    def list_accounts(self) -> list[AccountId]:
        return list(self._held)

    def find_account(self, attempt_id: AttemptId) -> AccountId | None:
        live = self._live.get(attempt_id)
        return live.account_id if live else None

    # Leases and ends

    def add(self, account_id: AccountId, attempt_id: AttemptId, seconds: float, *, now: float) -> None:
        if len(self._live) >= LIVE_MAX or attempt_id in self._live:
            return
        due = now + seconds
        self._live[attempt_id] = _Live(account_id, seconds, due)
        held = self._held.setdefault(account_id, _Held())
        held.ahead_count += 1
        held.ahead_due_sum += due
        heapq.heappush(self._due, (due, attempt_id))
        if len(self._due) > 2 * len(self._live) + STALE_MAX:
            self._due = [(live.due_seconds, id) for id, live in self._live.items() if id not in self._suspects]
            heapq.heapify(self._due)

    def remove(self, attempt_id: AttemptId, *, doubled: bool, now: float) -> float:
        """The attempt has ended. Returns its part of the account's overtime."""
        live = self._live.pop(attempt_id, None)
        if live is None:
            return 0.0
        self._suspects.pop(attempt_id, None)
        held = self._held[live.account_id]
        if live.overdue:
            held.overdue_count -= 1
            held.overdue_due_sum -= live.due_seconds
            held.overdue_expected_sum -= live.expected_seconds
        else:
            held.ahead_count -= 1
            held.ahead_due_sum -= live.due_seconds
        if not held.ahead_count and not held.overdue_count:
            del self._held[live.account_id]
        if not live.overdue:
            return 0.0
        overtime = now - live.due_seconds
        return 2 * overtime + live.expected_seconds if doubled else overtime

    # Overdue

    def list_suspects(self, limit: int, *, now: float) -> list[AttemptId]:
        """Attempts of whose end we should have heard by now; those that were never looked at come first."""
        while self._due and self._due[0][0] + SUSPECT_SECONDS <= now:
            _, attempt_id = heapq.heappop(self._due)
            if attempt_id in self._live:
                self._suspects[attempt_id] = None
        fresh = [id for id in self._suspects if not self._live[id].overdue]
        known = (id for id in self._suspects if self._live[id].overdue)
        chosen = fresh[:limit] + [id for id, _ in zip(known, range(limit - len(fresh)), strict=False)]
        for id in chosen:
            # To the end of the row.
            del self._suspects[id]
            self._suspects[id] = None
        return chosen

    def confirm(self, attempt_ids: Iterable[AttemptId]) -> None:
        """These suspects are live indeed: from now on they count as overdue, from their time on."""
        for attempt_id in attempt_ids:
            live = self._live.get(attempt_id)
            if live is None or live.overdue:
                continue
            live.overdue = True
            held = self._held[live.account_id]
            held.ahead_count -= 1
            held.ahead_due_sum -= live.due_seconds
            held.overdue_count += 1
            held.overdue_due_sum += live.due_seconds
            held.overdue_expected_sum += live.expected_seconds

    # Sums

    def overtime_seconds(self, account_id: AccountId, *, doubled: bool, now: float) -> float:
        """What the account's live attempts have run beyond their estimates.

        Doubled: as if each that is overdue would run twice as long as it has so far.
        """
        held = self._held.get(account_id)
        if held is None or not held.overdue_count:
            return 0.0
        overtime = held.overdue_count * now - held.overdue_due_sum
        return 2 * overtime + held.overdue_expected_sum if doubled else overtime

    def overdue_mean_seconds(self, account_id: AccountId, *, now: float) -> float:
        """How long the account's overdue attempts have run so far, on average; 0 if there are none."""
        held = self._held.get(account_id)
        if held is None or not held.overdue_count:
            return 0.0
        return now + (held.overdue_expected_sum - held.overdue_due_sum) / held.overdue_count

    def remaining_seconds(self, account_id: AccountId, *, now: float) -> float:
        """What the account was charged for and has not had yet."""
        held = self._held.get(account_id)
        return max(0.0, held.ahead_due_sum - held.ahead_count * now) if held else 0.0

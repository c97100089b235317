"""The bookkeeping of fair shares, charge by charge. How they come out: tests/property/test_fair_share.py."""

from __future__ import annotations

from datetime import timedelta

import pytest

from computepool.core.ids import AccountId, AttemptId
from computepool.core.placement import fair_share, in_flight
from computepool.core.placement.fair_share import (
    EXPECTED_SECONDS,
    IDLE_SECONDS,
    LINGER_SECONDS,
    PESSIMISM_RATIO,
    Delta,
    FairShare,
    Total,
    fade,
)
from computepool.core.placement.in_flight import InFlight
from tests.support.fair_grid import START, account_number, attempt_number

A, B, C = (account_number(number) for number in (1, 2, 3))


class Book:
    """A share with a clock and running numbers."""

    def __init__(self) -> None:
        self.share = FairShare()
        self.now = 100.0
        self._number = 0

    def lease(self, account_id: AccountId, seconds: float = 10.0) -> AttemptId:
        self._number += 1
        self.share.charge_lease(account_id, attempt_number(self._number), expected_seconds=seconds, now=self.now)
        return attempt_number(self._number)

    def end(
        self, account_id: AccountId, attempt_id: AttemptId, held: float, *, expected: float = 10.0, **how
    ) -> None:
        self.share.charge_end(
            account_id,
            attempt_id,
            expected_seconds=expected,
            held_seconds=held,
            **{"natural": True, "now": self.now, **how},
        )

    def teach(self, account_id: AccountId, seconds: float) -> None:
        """One slice of the account has run for so long."""
        self.end(account_id, self.lease(account_id, seconds), seconds, expected=seconds)

    def plan(
        self, accounts: list[AccountId], count: int, caps: dict[AccountId, int] | None = None
    ) -> dict[AccountId, int]:
        return self.share.plan(accounts, count, caps or {}, now=self.now)

    def mark(self, account_id: AccountId) -> float:
        return self.share.effective(account_id, now=self.now)

    def deltas(self) -> dict[AccountId, float]:
        return {d.account_id: d.seconds for d in self.share.take_deltas(100, now=self.now)}

    def sync(self, *totals: Total, hub_count: int = 1) -> None:
        deltas = self.share.take_deltas(100, now=self.now)
        self.share.take_totals(deltas, totals, hub_count=hub_count, hub_rank=0)


@pytest.fixture
def book() -> Book:
    return Book()


def make_total(account_id: AccountId, slot_seconds: float, *, after: float = 0.0, **overrides) -> Total:
    return Total(
        **{
            "account_id": account_id,
            "slot_seconds": slot_seconds,
            "weight": 1.0,
            "counted_at": START + timedelta(seconds=after),
            **overrides,
        }
    )


# Plans


def test_who_can_use_little_is_planned_for_no_more_and_the_others_share_the_rest():
    book = Book()
    assert book.plan([A, B, C], 12, {A: 1}) == {A: 1, B: 6, C: 5}
    assert book.plan([A, B], 10, {A: 2, B: 3}) == {A: 2, B: 3}
    assert book.plan([A], 10, {A: 4}) == {A: 4}


def test_nobody_waits_and_nothing_is_planned(book):
    assert book.plan([], 5) == {}
    assert book.plan([A], 0) == {}


def test_who_waits_alone_gets_everything(book):
    assert book.plan([A], 7) == {A: 7}


def test_equals_share_equally(book):
    assert book.plan([A, B], 10) == {A: 5, B: 5}


def test_who_runs_longer_gets_fewer_grants(book):
    book.teach(A, 10.0)
    book.teach(B, 40.0)
    assert book.plan([A, B], 50) == {A: 40, B: 10}


def test_weights_share_out_seconds_and_not_grants(book):
    book.plan([A, B], 1)
    book.sync(make_total(A, 0.0, weight=3.0), make_total(B, 0.0))
    assert book.plan([A, B], 40) == {A: 30, B: 10}


def test_a_plan_charges_nothing(book):
    assert book.plan([A, B], 10) == book.plan([A, B], 10)


def test_every_grant_of_a_plan_is_somebodys(book):
    for account, seconds in ((A, 1.0), (B, 7.3), (C, 91.0)):
        book.teach(account, seconds)
    assert sum(book.plan([A, B, C], 512).values()) == 512


def test_a_lease_moves_its_account_back(book):
    book.plan([A, B], 1)
    book.lease(A)
    assert book.plan([A, B], 1) == {B: 1}


# Estimates


def test_without_any_knowledge_all_are_expected_to_run_alike(book):
    assert book.share.expected_seconds(A, now=book.now) == EXPECTED_SECONDS


def test_a_stranger_is_expected_to_run_longer_than_the_rest(book):
    book.teach(A, 10.0)
    assert book.share.expected_seconds(B, now=book.now) == PESSIMISM_RATIO * 10.0


def test_an_account_is_expected_to_run_as_its_last_slices_did(book):
    for _ in range(50):
        book.teach(A, 10.0)
    for _ in range(50):
        book.teach(A, 3.0)
    assert book.share.expected_seconds(A, now=book.now) == pytest.approx(3.0, abs=0.01)


def test_what_was_stopped_teaches_nothing(book):
    book.end(A, book.lease(A), 1.0, natural=False)
    assert book.share.expected_seconds(A, now=book.now) == EXPECTED_SECONDS


def test_what_the_record_knows_is_taken_from_it(book):
    book.plan([A], 1)
    [delta] = book.share.take_deltas(10, now=book.now)
    assert delta == Delta(A, 0.0, asks_mean=True)
    book.share.take_totals([delta], [make_total(A, 0.0, mean_seconds=4.5)], hub_count=1, hub_rank=0)
    assert book.share.expected_seconds(A, now=book.now) == 4.5


def test_the_record_is_not_asked_while_slices_end_here(book):
    book.teach(A, 10.0)
    [delta] = book.share.take_deltas(10, now=book.now)
    assert not delta.asks_mean


# Charges


@pytest.mark.parametrize("held", [0.0, 4.0, 10.0, 500.0])
def test_in_the_end_an_attempt_is_charged_what_it_took(book, held):
    attempt = book.lease(A, 10.0)
    book.end(A, attempt, held)
    assert book.deltas() == pytest.approx({A: held}) if held else not book.deltas().get(A)


def test_a_lease_and_its_end_at_two_hubs_add_up_to_what_it_took():
    one, other = Book(), Book()
    attempt = one.lease(A, 10.0)
    other.end(A, attempt, 25.0)
    assert one.deltas()[A] + other.deltas()[A] == 25.0


def test_nothing_is_charged_beyond_the_estimate_before_somebody_has_looked(book):
    book.lease(A, 10.0)
    before = book.mark(A)
    book.now += 60
    assert book.mark(A) == before


def test_an_attempt_that_is_seen_to_run_on_is_charged_as_it_runs(book):
    book.teach(A, 10.0)
    attempt = book.lease(A, 10.0)
    before = book.mark(A)
    book.now += 40
    assert book.share.list_suspects(10, now=book.now) == [attempt]
    book.share.judge_suspects([attempt], {attempt}, now=book.now)
    assert book.mark(A) == pytest.approx(before + 30)
    book.now += 5
    assert book.mark(A) == pytest.approx(before + 35)
    assert book.deltas()[A] == pytest.approx(10 + 45)
    book.now += 5
    book.end(A, attempt, 50.0)
    assert book.mark(A) == pytest.approx(before + 40)
    assert book.deltas()[A] == pytest.approx(5.0)


def test_while_none_of_an_account_has_ended_what_runs_on_is_taken_for_half_done(book):
    attempt = book.lease(A, 10.0)
    before = book.mark(A)
    book.now += 40
    book.share.judge_suspects(book.share.list_suspects(10, now=book.now), {attempt}, now=book.now)
    assert book.mark(A) == pytest.approx(before + 70)
    assert book.share.expected_seconds(A, now=book.now) == pytest.approx(80.0)
    book.end(A, attempt, 40.0)
    assert book.mark(A) == pytest.approx(before + 30)
    assert sum(book.deltas().values()) == pytest.approx(40.0)


def test_overtime_of_an_attempt_that_ended_elsewhere_is_given_back(book):
    book.teach(A, 10.0)
    attempt = book.lease(A, 10.0)
    before = book.mark(A)
    book.now += 40
    book.share.judge_suspects(book.share.list_suspects(10, now=book.now), {attempt}, now=book.now)
    book.share.take_deltas(10, now=book.now)
    book.now += 1
    suspects = book.share.list_suspects(10, now=book.now)
    book.share.judge_suspects(suspects, set(), now=book.now)
    assert book.mark(A) == pytest.approx(before)
    assert book.deltas()[A] == pytest.approx(-30.0)
    assert book.share.list_suspects(10, now=book.now) == []


# Arrival


def serve(book: Book, accounts: list[AccountId], grants: int, seconds: float = 10.0) -> None:
    """Slices that are granted by plan and have ended when time goes on."""
    for _ in range(grants):
        [account] = book.plan(accounts, 1)
        book.end(account, book.lease(account, seconds), seconds, expected=seconds)
        book.now += 1.0


def test_a_newcomer_starts_level_with_the_least_served(book):
    serve(book, [A, B], 100)
    book.plan([A, B, C], 1)
    assert book.mark(C) == min(book.mark(A), book.mark(B))


def test_who_was_served_while_alone_owes_nothing_for_it(book):
    serve(book, [A], 100)
    assert book.plan([A, B], 18) == {A: 16, B: 2}, "B is a stranger and expected to run longer"


def test_a_heavy_user_who_comes_back_is_level_with_whoever_waits(book):
    serve(book, [A, C], 100)
    book.now += 10 * LINGER_SECONDS
    serve(book, [B, C], 10)
    book.plan([A, B, C], 1)
    assert book.mark(A) == min(book.mark(B), book.mark(C))


def test_a_newcomer_owes_what_it_still_holds(book):
    """Otherwise it would take its share, leave the queue for a while, and take its share once more."""
    serve(book, [A, B], 20)
    for _ in range(5):
        book.lease(B, 1_000.0)
    serve(book, [A, C], 20)
    book.plan([A, B, C], 1)
    assert book.mark(B) - min(book.mark(A), book.mark(C)) == pytest.approx(5 * (1_000.0 - 20))


def test_a_queue_that_is_empty_for_a_moment_changes_nothing(book):
    serve(book, [A, B], 20)
    book.lease(B, 100.0)
    before = book.mark(B)
    book.now += LINGER_SECONDS / 2
    book.plan([A, C], 1)
    book.plan([A, B, C], 1)
    assert book.mark(B) == before


def test_time_in_which_nothing_was_granted_makes_nobody_a_newcomer(book):
    serve(book, [A, B], 20)
    book.lease(B, 100.0)
    before = book.mark(B)
    book.now += 3_600
    book.plan([A, B], 1)
    assert book.mark(B) == before


# Totals of all hubs


def test_what_others_charge_moves_the_mark_little_by_little(book):
    book.plan([A, B], 1)
    book.sync(make_total(A, 0.0), make_total(B, 0.0), hub_count=2)
    book.sync(make_total(A, 120.0), make_total(B, 0.0), hub_count=2)
    marks = []
    for _ in range(200):
        marks.append(book.mark(A) - book.mark(B))
        book.now += 1
        book.plan([A, B], 1)
        book.sync(make_total(A, 120.0), make_total(B, 0.0), hub_count=2)
    assert marks[0] == pytest.approx(120 / (6 * 2))
    assert marks == sorted(marks)
    assert marks[-1] == pytest.approx(120, abs=0.1)


def test_ones_own_charges_in_the_total_are_not_counted_twice(book):
    book.plan([A], 1)
    book.sync(make_total(A, 0.0))
    book.lease(A, 10.0)
    before = book.mark(A)
    book.sync(make_total(A, 10.0))
    book.sync(make_total(A, 10.0))
    assert book.mark(A) == pytest.approx(before)


def test_a_total_that_only_fades_moves_nothing(book):
    book.plan([A], 1)
    book.sync(make_total(A, 1_000_000.0))
    before = book.mark(A)
    for hour in range(1, 25):
        book.plan([A], 1)
        book.sync(make_total(A, fade(1_000_000.0, 3_600 * hour), after=3_600 * hour))
    assert book.mark(A) == pytest.approx(before, abs=1e-3)


def test_half_is_left_after_a_day():
    assert fade(8.0, 86_400) == 4.0
    assert fade(8.0, -5.0) == 8.0


def test_charges_that_could_not_be_added_are_not_lost(book):
    book.lease(A, 10.0)
    book.share.put_back(book.share.take_deltas(10, now=book.now))
    book.lease(A, 5.0)
    assert book.deltas() == {A: 15.0}
    assert book.deltas() == {}


def test_the_largest_charges_go_first_and_the_rest_later(book):
    for account, seconds in ((A, 1.0), (B, 30.0), (C, 20.0)):
        book.lease(account, seconds)
    assert {d.account_id for d in book.share.take_deltas(2, now=book.now)} == {B, C}
    assert {d.account_id for d in book.share.take_deltas(2, now=book.now)} == {A}


def test_somebody_unknown_waits_until_the_first_total(book):
    assert not book.share.has_strangers
    book.plan([A], 1)
    assert book.share.has_strangers
    book.sync(make_total(A, 0.0))
    book.plan([A], 1)
    assert not book.share.has_strangers


# Memory


def test_who_has_gone_is_forgotten(book):
    serve(book, [A, B], 10)
    assert len(book.share._accounts) == 2
    book.deltas()
    book.now += IDLE_SECONDS + 1
    book.deltas()
    assert not book.share._accounts


def test_who_still_holds_a_slot_is_not_forgotten(book):
    book.plan([A], 1)
    book.lease(A, 10_000.0)
    book.deltas()
    book.now += IDLE_SECONDS + 1
    book.deltas()
    assert list(book.share._accounts) == [A]


def test_accounts_do_not_grow_without_end(book, monkeypatch):
    monkeypatch.setattr(fair_share, "ACCOUNTS_MAX", 10)
    for number in range(100):
        book.lease(account_number(number))
    assert len(book.share._accounts) == 10


def test_attempts_do_not_grow_without_end(monkeypatch):
    monkeypatch.setattr(in_flight, "LIVE_MAX", 10)
    flights = InFlight()
    for number in range(100):
        flights.add(A, attempt_number(number), 10.0, now=0.0)
    assert len(flights) == 10


def test_ended_attempts_do_not_stay_behind(monkeypatch):
    monkeypatch.setattr(in_flight, "STALE_MAX", 10)
    flights = InFlight()
    for number in range(1_000):
        flights.add(A, attempt_number(number), 1e6, now=float(number))
        flights.remove(attempt_number(number), doubled=False, now=float(number))
    assert len(flights._due) <= 12
    assert not flights.holds(A)


def test_suspects_are_looked_at_in_turn():
    flights = InFlight()
    for number in range(5):
        flights.add(A, attempt_number(number), 1.0, now=float(number) / 10)
    seen = flights.list_suspects(3, now=10.0)
    flights.confirm(seen)
    # Those never looked at first, then those that waited longest.
    assert flights.list_suspects(3, now=10.0) == [attempt_number(n) for n in (3, 4, 0)]

"""The close of a day: it adds up, comes to the same when closed again, and tells everything that does not agree."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime
from typing import Any

import asyncpg
import pytest

from computepool import clock
from computepool.core.errors import Conflict, InvalidRequest
from computepool.core.ledger.accounts import AccountKind
from computepool.core.ledger.closing import DifferenceKind
from computepool.core.ledger.transfer import TransferKind
from computepool.core.payments.books import CashMovement
from computepool.hub.http.books import _to_closed
from computepool.hub.services import books
from computepool.hub.services.books import ClosedDay
from computepool.hub.services.callers import AccountCaller
from tests.support.paid_jobs import CREDIT, forge, open_paid_spine, run_one, submit
from tests.support.payment_lab import PaymentLab
from tests.support.spine import Spine

K, D, T = AccountKind, DifferenceKind, TransferKind
DAY = date(2026, 3, 10)


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_paid_spine(dsn, welcome_microcredits=0) as spine:
        yield spine


@pytest.fixture
async def operator(spine: Spine) -> AccountCaller:
    return await spine.sign_up(credits=0)


async def close(spine: Any, operator: AccountCaller, day: date = DAY, **options: Any) -> ClosedDay:
    closed = await books.close_day(spine.pool, operator, day, **{"provider_movements": None, **options})
    # The wire takes whatever it is.
    _to_closed(closed)
    return closed


async def date_back(spine: Any, moment: str) -> None:
    """As if all that was written since the last time had been written then."""
    await forge(spine, f"UPDATE ledger_transfers SET at = '{moment}+00' WHERE at > '2026-10-01'")
    await spine.fetch(
        f"UPDATE attempts SET finished_at = '{moment}+00', leased_at = '{moment}+00'::timestamptz - interval '50 s' "
        "WHERE finished_at > '2026-10-01'"
    )


async def work(spine: Spine, moment: str, seconds: float = 20.0) -> Any:
    """A top-up of 500 credits and a job of one slice, at that time."""
    submitter, node = await spine.sign_up(credits=500), await spine.enrol()
    await submit(spine, submitter)
    grant = await run_one(spine, node, seconds)
    await date_back(spine, moment)
    return grant


def trial_of(closed: ClosedDay) -> dict[AccountKind, tuple[float, ...]]:
    """In credits: before, in, out, after."""
    return {
        line.kind: tuple(n / CREDIT for n in (line.opening, line.gained, line.lost, line.closing))
        for line in closed.figures.trial
        if line.opening or line.gained or line.lost
    }


# Trial balance


async def test_a_day_is_what_its_transfers_say_and_comes_to_zero(spine, operator):
    await work(spine, "2026-03-09 23:59:59.999999")
    await work(spine, "2026-03-10 00:00:00")
    await work(spine, "2026-03-11 00:00:00")
    closed = await close(spine, operator)
    assert closed.differences == []
    assert trial_of(closed) == {
        K.SUBMITTER_AVAILABLE: (480, 580, 100, 960),
        K.SUBMITTER_HELD: (0, 100, 100, 0),
        K.OWNER_PENDING: (16, 16, 0, 32),
        K.FEE: (4, 4, 0, 8),
        K.WORLD: (-500, 0, 500, -1_000),
    }
    assert {line.kind: (line.transfer_count, line.amount / CREDIT) for line in closed.figures.kinds} == {
        T.TOP_UP: (1, 500),
        T.HOLD: (1, 100),
        T.SETTLE: (2, 20),
        T.REFUND: (1, 80),
    }


async def test_a_day_without_transfers_is_carried_over(spine, operator):
    await work(spine, "2026-03-01 12:00:00")
    closed = await close(spine, operator)
    assert closed.figures.kinds == ()
    assert trial_of(closed)[K.WORLD] == (-500, 0, 0, -500)


async def test_an_empty_ledger_can_be_closed(spine, operator):
    closed = await close(spine, operator)
    assert (closed.differences, trial_of(closed)) == ([], {})


async def test_a_second_close_gives_the_same_and_the_first_one_stands(spine, operator):
    await work(spine, "2026-03-10 12:00:00")
    first = await close(spine, operator)
    await work(spine, "2026-03-12 12:00:00")
    other = await spine.sign_up(credits=0)
    second = await close(spine, other)
    assert (second.figures, second.closing, second.differences) == (first.figures, first.closing, [])
    assert second.closing.closed_by == operator.account_id
    assert await spine.fetch_value("SELECT count(*) FROM events WHERE kind = 'books_closed'") == 1


async def test_a_transfer_that_was_dated_back_into_a_closed_day_is_told(spine, operator):
    await work(spine, "2026-03-10 12:00:00")
    await close(spine, operator)
    await work(spine, "2026-03-10 13:00:00")
    again = await close(spine, operator)
    assert [each.kind for each in again.differences] == [D.REOPENED]
    assert "came to something else then" in again.differences[0].words


async def test_a_day_that_is_not_over_is_not_closed(spine, operator):
    with pytest.raises(Conflict, match="not over yet"):
        await close(spine, operator, clock.now().date())


async def test_a_day_that_is_only_just_over_is_not_closed(spine, operator, monkeypatch):
    """A transaction that began before midnight may still be writing."""

    async def just_after(_: Any) -> datetime:
        return datetime(2026, 3, 11, 0, 9, 59, tzinfo=UTC)

    monkeypatch.setattr(books.hub_store, "get_now", just_after)
    with pytest.raises(Conflict, match="ten minutes"):
        await close(spine, operator)


@pytest.mark.parametrize("statement", ["UPDATE book_closings SET sha256 = sha256", "DELETE FROM book_closings"])
async def test_the_database_refuses_to_change_a_close(spine, operator, statement):
    await close(spine, operator)
    with pytest.raises(asyncpg.RestrictViolationError):
        await spine.fetch(statement)


# Differences


async def test_a_balance_that_is_not_what_its_transfers_come_to_is_told(spine, operator):
    await work(spine, "2026-03-10 12:00:00")
    await spine.fetch("UPDATE ledger_accounts SET balance = balance + 3 WHERE kind = 'owner_pending'")
    found = (await close(spine, operator)).differences
    assert {each.kind for each in found} == {D.DRIFT}
    assert any("stands at 16.000003 credits, by its transfers 16 credits" in each.words for each in found)


async def test_attempts_whose_charges_do_not_add_up_to_the_transfers_are_told(spine, operator):
    honest = await work(spine, "2026-03-10 11:00:00")
    cheated = await work(spine, "2026-03-10 12:00:00")
    await spine.fetch("UPDATE attempts SET charged_microcredits = charged_microcredits + 1 WHERE id = $1", cheated.id)
    found = (await close(spine, operator)).differences
    assert [(each.kind, each.subject) for each in found] == [(D.CHARGE, str(cheated.job_id))]
    assert "charged 16.000001 credits, the ledger settled 16 credits" in found[0].words
    assert str(honest.job_id) not in found[0].words


@pytest.mark.parametrize(
    "change",
    [
        "charged_microcredits = NULL, fee_microcredits = NULL, earning_state = NULL, release_at = NULL",
        "fee_microcredits = fee_microcredits - 1",
    ],
)
async def test_owner_and_fee_are_compared_each_by_itself(spine, operator, change):
    cheated = await work(spine, "2026-03-10 12:00:00")
    await spine.fetch(f"UPDATE attempts SET {change} WHERE id = $1", cheated.id)
    found = (await close(spine, operator)).differences
    assert [each.kind for each in found] == [D.CHARGE, D.CHARGE]
    assert any(", fee: " in each.words for each in found)


async def test_an_attempt_that_was_charged_and_never_settled_is_told(spine, operator):
    grant = await work(spine, "2026-03-10 12:00:00")
    await forge(spine, "DELETE FROM ledger_transfers WHERE kind = 'settle'")
    found = (await close(spine, operator)).differences
    charges = [each for each in found if each.kind is D.CHARGE]
    assert len(charges) == 2
    assert {each.subject for each in charges} == {str(grant.job_id)}
    assert D.DRIFT in {each.kind for each in found}


async def test_jobs_of_other_days_are_not_looked_at(spine, operator):
    grant = await work(spine, "2026-03-09 12:00:00")
    await spine.fetch("UPDATE attempts SET charged_microcredits = charged_microcredits + 1 WHERE id = $1", grant.id)
    assert (await close(spine, operator)).differences == []
    assert len((await close(spine, operator, date(2026, 3, 9))).differences) == 1


async def test_more_differences_than_anybody_reads_are_cut(spine, operator, monkeypatch):
    monkeypatch.setattr(books, "DIFFERENCES_MAX", 1)
    await work(spine, "2026-03-10 12:00:00")
    await spine.fetch("UPDATE ledger_accounts SET balance = balance + 3 WHERE kind = 'owner_pending'")
    closed = await close(spine, operator)
    assert len(closed.differences) == 1
    assert closed.is_cut


async def test_a_provider_with_more_movements_than_fit_is_refused(spine, operator):
    movement = CashMovement(operator.account_id, "INR", 1)
    with pytest.raises(InvalidRequest):
        await close(spine, operator, provider_movements=[movement] * (books.MOVEMENTS_MAX + 1))


# Payouts and the provider's own books


async def pay_out(lab: PaymentLab, destination: str) -> Any:
    owner = await lab.make_owner(800)
    await lab.set_details(owner, destination)
    id = await lab.send(owner, 500)
    await lab.provider.tell(lab.provider.confirm(id))
    return id


async def date_payouts_back(lab: PaymentLab, moment: str) -> None:
    await forge(lab, f"UPDATE ledger_transfers SET at = '{moment}+00' WHERE at > '2026-10-01'")
    await lab.execute("ALTER TABLE payouts DISABLE TRIGGER payouts_refuse_change")
    await lab.execute(f"UPDATE payouts SET sent_at = '{moment}+00' WHERE sent_at > '2026-10-01'")
    await lab.execute("ALTER TABLE payouts ENABLE TRIGGER payouts_refuse_change")


async def test_the_payout_file_lists_what_was_handed_out_that_day_and_is_the_same_again(lab):
    first = await pay_out(lab, "bank 1, branch 2")
    second = await pay_out(lab, '=HYPERLINK("http://evil")')
    await date_payouts_back(lab, "2026-03-10 12:00:00")
    await pay_out(lab, "bank 3")
    text = await books.render_payout_file(lab.pool, DAY)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {row["payout_id"] for row in rows} == {str(first), str(second)}
    assert {row["destination"] for row in rows} == {"bank 1, branch 2", '\'=HYPERLINK("http://evil")'}
    assert {(row["currency"], row["amount_minor"], row["credits"]) for row in rows} == {
        ("INR", "50000", "500.000000")
    }
    closed = await close(lab, lab.operator)
    assert closed.figures.payout_count == 2
    assert await books.render_payout_file(lab.pool, DAY) == text
    assert (await close(lab, lab.operator)).figures == closed.figures


def list_provider_differences(closed: ClosedDay) -> list[str]:
    return [each.words for each in closed.differences if each.kind is D.PROVIDER]


async def test_the_providers_own_books_are_compared_where_they_are_given(lab):
    id = await pay_out(lab, "bank 1")
    await date_payouts_back(lab, "2026-03-10 12:00:00")
    theirs = list(lab.provider.movements)
    agreed = await close(lab, lab.operator, provider_movements=theirs)
    assert agreed.compared_with_provider
    assert list_provider_differences(agreed) == []
    assert not (await close(lab, lab.operator)).compared_with_provider
    forgotten = [movement for movement in theirs if movement.subject_id != id]
    [found] = list_provider_differences(await close(lab, lab.operator, provider_movements=forgotten))
    assert found.startswith(str(id))
    assert "-50,000 minor units of INR by our books, 0 by the provider's" in found

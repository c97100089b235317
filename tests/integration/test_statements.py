"""Statements over real jobs: every line once and in order; opening and lines come to the closing."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from computepool import clock
from computepool.core.accounts.roles import Role
from computepool.core.errors import InvalidRequest, NotFound
from computepool.core.ids import AccountId
from computepool.core.jobs.state import AttemptState
from computepool.core.ledger.accounts import AccountKind
from computepool.core.ledger.charging import PriceMode
from computepool.core.ledger.earning import EarningState
from computepool.core.ledger.transfer import TransferKind
from computepool.hub.http.statements import (
    CHARGE_HEADS,
    TRANSFER_HEADS,
    PageQuery,
    _to_csv_response,
    to_charge_line,
    to_transfer_line,
)
from computepool.hub.services import audit, releases, statements
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.receipts import verify_receipts
from computepool.hub.services.statements import AccountStatement, Page
from computepool.wire.jobs import JobPrice
from tests.support.paid_jobs import CREDIT, FAILED, lease, open_paid_spine, own, ran, run_one, submit
from tests.support.spine import EnrolledNode, Spine

K, T = AccountKind, TransferKind
PERSONAL = ("submitter_available", "submitter_held", "owner_pending", "owner_available", "receivable")


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_paid_spine(dsn, holdback_seconds=0) as spine:
        yield spine


@pytest.fixture
async def submitter(spine: Spine) -> AccountCaller:
    return await spine.sign_up(credits=1_000)


@pytest.fixture
async def owner(spine: Spine) -> AccountCaller:
    return await spine.sign_up(credits=0)


@pytest.fixture
async def node(spine: Spine, owner: AccountCaller) -> EnrolledNode:
    return await spine.enrol(owner=owner)


async def read(
    spine: Spine, caller: AccountCaller, *, limit: int = 1_000, cursor: str | None = None, **options: Any
) -> AccountStatement:
    period = {"since": None, "until": None, "account_id": None, **options}
    return await statements.get_account_statement(spine.pool, caller, Page(cursor, limit), **period)


def sum_lines(found: AccountStatement) -> Counter[AccountKind]:
    """What the lines do to each of the person's accounts."""
    sums: Counter[AccountKind] = Counter()
    for line in found.lines:
        if line.source.owner_id == found.account_id:
            sums[line.source.kind] -= line.amount
        if line.target.owner_id == found.account_id:
            sums[line.target.kind] += line.amount
    return sums


def check_adds_up(found: AccountStatement) -> None:
    sums = sum_lines(found)
    assert {each.kind: each.closing - each.opening for each in found.sums} == {
        each.kind: sums[each.kind] for each in found.sums
    }
    assert set(sums) <= {each.kind for each in found.sums}


async def run_day(spine: Spine, submitter: AccountCaller, node: EnrolledNode) -> Any:
    """A job of three slices: two succeed, one fails and is tried again; and the pay is released."""
    job = await submit(spine, submitter, slice_count=3)
    await run_one(spine, node, 10.0)
    await run_one(spine, node, 5.0, **FAILED)
    await run_one(spine, node, 20.0)
    # There is no other node for the second try.
    await spine.fetch("UPDATE slices SET avoid_node_id = NULL")
    await run_one(spine, node, 30.0)
    await verify_receipts(spine.pool, hub_id=spine.keyring.hub_id, limit=100)
    assert (await releases.release_due(spine.pool, limit=100)).attempt_count == 4
    return job


# Of an account


async def test_opening_and_lines_come_to_the_closing_and_to_what_the_accounts_stand_at(spine, submitter, owner, node):
    await run_day(spine, submitter, node)
    for person in (submitter, owner):
        found = await read(spine, person)
        check_adds_up(found)
        for each in found.sums:
            assert each.opening == 0
            assert each.closing == await own(spine, person.account_id, each.kind.value)
    assert (await own(spine, submitter.account_id, "submitter_available")) == 935 * CREDIT
    assert (await own(spine, owner.account_id, "owner_available")) == 52 * CREDIT


async def test_each_line_stands_once_in_the_order_it_was_written(spine, submitter, node):
    await run_day(spine, submitter, node)
    found = await read(spine, submitter)
    ids = [line.id for line in found.lines]
    assert ids == sorted(set(ids))
    assert Counter(line.kind for line in found.lines) == {T.TOP_UP: 1, T.HOLD: 1, T.SETTLE: 8, T.REFUND: 1}


async def test_what_moves_between_ones_own_accounts_stands_once(spine, submitter, owner, node):
    await run_day(spine, submitter, node)
    kinds = Counter(line.kind for line in (await read(spine, owner)).lines)
    assert kinds == {T.SETTLE: 4, T.RELEASE: 1}


@pytest.mark.parametrize("limit", [1, 3, 7])
async def test_pages_put_together_are_the_whole(spine, submitter, node, limit):
    await run_day(spine, submitter, node)
    whole = [line.id for line in (await read(spine, submitter)).lines]
    seen: list[int] = []
    cursor = None
    while True:
        page = await read(spine, submitter, limit=limit, cursor=cursor)
        assert bool(page.sums) == (cursor is None)
        seen += [line.id for line in page.lines]
        if page.cursor is None:
            break
        cursor = page.cursor
    assert seen == whole


async def test_a_period_has_its_own_lines_and_what_came_before_is_its_opening(spine, submitter, node):
    await run_day(spine, submitter, node)
    middle = await spine.fetch_value("SELECT clock_timestamp()")
    await run_day(spine, submitter, node)
    first = await read(spine, submitter, until=middle.isoformat())
    second = await read(spine, submitter, since=middle.isoformat())
    for found in (first, second):
        check_adds_up(found)
    assert len(first.lines) == 11
    assert len(second.lines) == 10
    assert {each.kind: each.closing for each in first.sums} == {each.kind: each.opening for each in second.sums}


async def test_a_period_is_found_by_the_batches_of_its_time_and_loses_nothing(spine, submitter, node):
    """Rows of three hours, each sealed: the bounds that batches give leave out nothing that belongs to the period."""
    for hours in (30, 20, 10):
        await run_day(spine, submitter, node)
        await spine.fetch("ALTER TABLE ledger_transfers DISABLE TRIGGER ledger_transfers_never_change")
        await spine.fetch(
            "UPDATE ledger_transfers SET at = at - $1 * interval '1 hour' "
            "WHERE id > coalesce((SELECT max(last_id) FROM audit_batches), 0)",
            hours,
        )
        await spine.fetch("ALTER TABLE ledger_transfers ENABLE TRIGGER ledger_transfers_never_change")
        await audit.seal_batch(spine.pool)
    whole = await read(spine, submitter)
    now = clock.now()
    for since_hours, until_hours in ((31, 25), (25, 15), (21, 19), (11, 0), (40, 35), (31, 0)):
        since, until = now - timedelta(hours=since_hours), now - timedelta(hours=until_hours)
        found = await read(spine, submitter, since=since.isoformat(), until=until.isoformat())
        assert [line.id for line in found.lines] == [line.id for line in whole.lines if since <= line.at < until], (
            since_hours,
            until_hours,
        )
        check_adds_up(found)


async def test_a_statement_is_ones_own_and_an_operator_may_name_another(spine, submitter, owner, node):
    await run_day(spine, submitter, node)
    with pytest.raises(NotFound):
        await read(spine, owner, account_id=submitter.account_id)
    operator = AccountCaller(owner.account_id, owner.key_id, frozenset(Role), 60_000)
    found = await read(spine, operator, account_id=submitter.account_id)
    assert found.account_id == submitter.account_id
    assert len(found.lines) == 11


async def test_of_other_people_only_the_kind_of_account_is_told(spine, submitter, owner, node):
    await run_day(spine, submitter, node)
    text = to_text(await read(spine, submitter))
    assert str(owner.account_id) not in text
    assert "owner_pending" in text


@pytest.mark.parametrize("cursor", ["x", "-1", "1e5", "9" * 19])
async def test_a_cursor_that_is_none_is_refused(spine, submitter, cursor):
    with pytest.raises(InvalidRequest):
        await read(spine, submitter, cursor=cursor)


# CSV


def to_text(found: AccountStatement) -> str:
    lines = [to_transfer_line(line, AccountId(found.account_id)) for line in found.lines]
    return bytes(_to_csv_response(TRANSFER_HEADS, lines, "statement", PageQuery(), found.cursor).body).decode()


async def test_a_csv_is_exact_and_adds_up_in_decimals(spine, submitter, node):
    await run_day(spine, submitter, node)
    rows = list(csv.DictReader(io.StringIO(to_text(await read(spine, submitter)))))
    assert [*rows[0]] == list(TRANSFER_HEADS)
    for row in rows:
        assert Decimal(row["credits"]) * 1_000_000 == int(row["amount_microcredits"])
    signs = {"in": 1, "out": -1, "within": 0}
    total = sum(signs[row["flow"]] * Decimal(row["credits"]) for row in rows)
    assert total == Decimal("935")


async def test_only_the_first_page_of_a_csv_has_heads_and_each_names_the_next(spine, submitter, node):
    await run_day(spine, submitter, node)
    page = await read(spine, submitter, limit=5)
    lines = [to_transfer_line(line, submitter.account_id) for line in page.lines]
    first = _to_csv_response(TRANSFER_HEADS, lines, "statement", PageQuery(), page.cursor)
    later = _to_csv_response(TRANSFER_HEADS, lines, "statement", PageQuery(cursor="5"), None)
    assert first.headers["Computepool-Cursor"] == page.cursor
    assert "Computepool-Cursor" not in later.headers
    assert bytes(first.body).decode() == ",".join(TRANSFER_HEADS) + "\r\n" + bytes(later.body).decode()


# Of a job


async def test_a_job_comes_to_what_its_transfers_say(spine, submitter, owner, node):
    job = await run_day(spine, submitter, node)
    found = await statements.get_job_statement(spine.pool, submitter, job.id, Page(None, 100), by_attempt=False)
    money = found.money
    assert (money.held, money.earned, money.fee, money.refunded) == (
        300 * CREDIT,
        52 * CREDIT,
        13 * CREDIT,
        235 * CREDIT,
    )
    assert (money.remaining, money.cost) == (0, 65 * CREDIT)
    assert found.transfers[0].kind is T.HOLD
    assert sum(line.amount for line in found.transfers if line.kind is T.SETTLE) == money.cost


async def test_a_jobs_attempts_are_listed_with_what_each_cost(spine, submitter, owner, node):
    job = await run_day(spine, submitter, node)
    running = await submit(spine, submitter)
    await lease(spine, node)
    seen = []
    cursor = None
    while True:
        page = await statements.get_job_statement(spine.pool, submitter, job.id, Page(cursor, 2), by_attempt=True)
        seen += page.charges
        if page.cursor is None:
            break
        cursor = page.cursor
    assert sum(line.charged_microcredits for line in seen) == page.money.cost == 65 * CREDIT
    assert sorted(to_charge_line(line).metered_seconds for line in seen) == [5, 10, 20, 30]
    alone = await statements.get_job_statement(spine.pool, submitter, running.id, Page(None, 2), by_attempt=True)
    [line] = alone.charges
    assert (line.state, line.charged_microcredits, to_charge_line(line).metered_seconds) == (
        AttemptState.LEASED,
        0,
        None,
    )
    assert alone.money.remaining == 100 * CREDIT


async def test_another_persons_job_has_no_statement(spine, submitter, owner, node):
    job = await run_day(spine, submitter, node)
    with pytest.raises(NotFound):
        await statements.get_job_statement(spine.pool, owner, job.id, Page(None, 10), by_attempt=False)


# Of a node


async def test_a_node_earned_what_its_attempts_say_by_where_the_pay_stands(spine, submitter, owner, node):
    await run_day(spine, submitter, node)
    await submit(spine, submitter)
    await run_one(spine, node, 7.0)
    found = await statements.get_node_statement(spine.pool, owner, node.id, Page(None, 100), since=None, until=None)
    sums = {each.earning_state: (each.attempt_count, each.charged - each.fee) for each in found.sums}
    assert sums == {EarningState.RELEASED: (4, 52 * CREDIT), EarningState.PENDING: (1, 5_600_000)}
    earned = [line.charged_microcredits - line.fee_microcredits for line in found.charges]
    assert sum(earned) == await own(spine, owner.account_id, "owner_available") + await own(
        spine, owner.account_id, "owner_pending"
    )
    lines = [to_charge_line(line) for line in found.charges]
    text = bytes(_to_csv_response(CHARGE_HEADS, lines, "node", PageQuery(), None).body).decode()
    assert len(list(csv.reader(io.StringIO(text)))) == 6


async def test_pages_of_a_node_put_together_are_the_whole(spine, submitter, owner, node):
    await run_day(spine, submitter, node)
    whole = await statements.get_node_statement(spine.pool, owner, node.id, Page(None, 100), since=None, until=None)
    seen, cursor = [], None
    while True:
        page = await statements.get_node_statement(
            spine.pool, owner, node.id, Page(cursor, 1), since=None, until=None
        )
        seen += page.charges
        if page.cursor is None:
            break
        cursor = page.cursor
    assert seen == whole.charges
    assert len(seen) == 4


async def test_another_persons_node_has_no_statement(spine, submitter, node):
    with pytest.raises(NotFound):
        await statements.get_node_statement(spine.pool, submitter, node.id, Page(None, 10), since=None, until=None)


async def test_lines_that_cost_nothing_are_listed_without_seconds(spine, submitter, owner, node):
    await submit(spine, submitter)
    grant = await lease(spine, node)
    await spine.succeed(node, grant, **ran(3.0), exit_code=None, cause="gpu_lost")
    found = await statements.get_node_statement(spine.pool, owner, node.id, Page(None, 10), since=None, until=None)
    [line] = found.charges
    assert to_charge_line(line).metered_seconds is None
    assert [(each.earning_state, each.attempt_count) for each in found.sums] == [(None, 1)]


async def test_a_fixed_price_stands_in_the_lines_of_job_and_node_in_place_of_a_rate(spine, submitter, owner, node):
    price = JobPrice(mode=PriceMode.PER_SLICE, microcredits_per_slice=12_500_000)
    job = await spine.submit(by=submitter, price=price, wall_seconds=100)
    await run_one(spine, node, 12.3)
    by_job = await statements.get_job_statement(spine.pool, submitter, job.id, Page(None, 10), by_attempt=True)
    by_node = await statements.get_node_statement(spine.pool, owner, node.id, Page(None, 10), since=None, until=None)
    for [line] in (by_job.charges, by_node.charges):
        shown = to_charge_line(line)
        assert (shown.slice_price_microcredits, shown.rate_microcredits_per_hour) == (10 * CREDIT, None)
        assert (shown.charged_credits, shown.earned_credits, shown.metered_seconds) == ("10.000000", "8.000000", 13)

"""Statements: what moved for an account, what a job came to, what a node earned. Look only, page by page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from computepool import clock
from computepool.core.accounts.roles import Role
from computepool.core.errors import InvalidRequest, NotFound
from computepool.core.ids import AccountId, JobId, NodeId
from computepool.core.ledger.period import Period, choose_period, read_cursor, write_cursor
from computepool.core.ledger.statement import JobMoney, sum_job
from computepool.hub.services import jobs as job_service
from computepool.hub.services import nodes as node_service
from computepool.hub.services.callers import AccountCaller
from computepool.hub.store import statements as store
from computepool.hub.store.connect import Pool
from computepool.hub.store.statements import AccountSum, ChargeLine, NodeSum, TransferLine

PAGE_MAX = 1_000
_FIRST = UUID(int=0)
_ID = re.compile(r"[0-9]{1,18}\Z")
_PLACE = re.compile(r"([0-9]{1,6})~([0-9]{1,6})\Z")


@dataclass(frozen=True, slots=True)
class Page:
    """What part of a statement is wanted. The cursor is the last answer's."""

    cursor: str | None
    limit: int

    @property
    def length(self) -> int:
        return max(1, min(self.limit, PAGE_MAX))


@dataclass(frozen=True, slots=True)
class AccountStatement:
    account_id: AccountId
    period: Period
    # With the first page only: they are sums over the whole period.
    sums: Sequence[AccountSum]
    lines: Sequence[TransferLine]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class JobStatement:
    job_id: JobId
    account_id: AccountId
    money: JobMoney
    transfers: Sequence[TransferLine]
    charges: Sequence[ChargeLine]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class NodeStatement:
    node_id: NodeId
    period: Period
    # With the first page only.
    sums: Sequence[NodeSum]
    charges: Sequence[ChargeLine]
    cursor: str | None


async def get_account_statement(
    pool: Pool, caller: AccountCaller, page: Page, *, since: str | None, until: str | None, account_id: UUID | None
) -> AccountStatement:
    """One's own; an operator may name another account."""
    if account_id is not None and account_id != caller.account_id and Role.OPERATOR not in caller.roles:
        raise NotFound("There is no such account.")
    subject = AccountId(account_id or caller.account_id)
    period = choose_period(since, until, now=clock.now())
    after_id = _read_id(page.cursor)
    async with pool.acquire() as conn:
        sums = [] if page.cursor else await store.list_account_sums(conn, subject, period)
        lines = await store.list_account_lines(conn, subject, period, after_id=after_id, limit=page.length)
    cursor = str(lines[-1].id) if len(lines) == page.length else None
    return AccountStatement(subject, period, sums, lines, cursor)


async def get_job_statement(
    pool: Pool, caller: AccountCaller, job_id: JobId, page: Page, *, by_attempt: bool
) -> JobStatement:
    """The job's transfers in their order, or its attempts with what each cost; and what all of it came to."""
    job = await job_service.get_job(pool, caller, job_id)
    transfers: list[TransferLine] = []
    charges: list[ChargeLine] = []
    cursor = None
    async with pool.acquire() as conn:
        money = sum_job(await store.list_job_routes(conn, job_id))
        if by_attempt:
            charges = await store.list_job_charges(conn, job_id, after=_read_place(page.cursor), limit=page.length)
            if len(charges) == page.length:
                cursor = f"{charges[-1].slice_index}~{charges[-1].number}"
        else:
            transfers = await store.list_job_lines(conn, job_id, after_id=_read_id(page.cursor), limit=page.length)
            if len(transfers) == page.length:
                cursor = str(transfers[-1].id)
    return JobStatement(job_id, job.account_id, money, transfers, charges, cursor)


async def get_node_statement(
    pool: Pool, caller: AccountCaller, node_id: NodeId, page: Page, *, since: str | None, until: str | None
) -> NodeStatement:
    """The attempts that ended on it within a period, and what each earned."""
    await node_service.get_node(pool, caller, node_id)
    period = choose_period(since, until, now=clock.now())
    first = (period.since, _FIRST)
    after = max(read_cursor(page.cursor), first) if page.cursor else first
    async with pool.acquire() as conn:
        sums = [] if page.cursor else await store.list_node_sums(conn, node_id, period)
        charges = await store.list_node_charges(conn, node_id, until=period.until, after=after, limit=page.length)
    cursor = None
    if len(charges) == page.length and (last := charges[-1]).finished_at is not None:
        cursor = write_cursor(last.finished_at, last.id)
    return NodeStatement(node_id, period, sums, charges, cursor)


def _read_id(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not _ID.match(cursor):
        raise InvalidRequest("This cursor is not one that the hub has given.")
    return int(cursor)


def _read_place(cursor: str | None) -> tuple[int, int]:
    if cursor is None:
        return -1, 0
    found = _PLACE.match(cursor)
    if found is None:
        raise InvalidRequest("This cursor is not one that the hub has given.")
    return int(found[1]), int(found[2])

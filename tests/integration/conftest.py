"""What belongs to us reaches the database the way of this test run: directly, or through PgBouncer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from unittest.mock import patch

import asyncpg
import pytest

from computepool.hub.store import connect
from computepool.hub.store.connect import Pool, create_pool
from tests.support.payment_lab import PaymentLab, open_lab
from tests.support.payment_provider import PaymentProvider, run_provider
from tests.support.postgres import through_pooler


@pytest.fixture
def dsn(dsn: str) -> str:
    return through_pooler(dsn)


@pytest.fixture
async def conn(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """As the driver gives it, without what a hub adds."""
    conn = await asyncpg.connect(dsn)
    yield conn
    await conn.close()


@pytest.fixture
async def pool(dsn: str) -> AsyncIterator[Pool]:
    pool = await create_pool(dsn, size_max=8)
    yield pool
    await pool.close()


@pytest.fixture
async def patient_pool(dsn: str) -> AsyncIterator[Pool]:
    """For races: a busy test machine may hold a row for longer than a hub should."""
    with patch.object(connect, "LOCK_MILLISECONDS", 20_000):
        pool = await create_pool(dsn, size_max=12)
    yield pool
    await pool.close()


@pytest.fixture
def provider() -> Iterator[PaymentProvider]:
    with run_provider() as provider:
        yield provider


@pytest.fixture
async def lab(dsn: str, provider: PaymentProvider) -> AsyncIterator[PaymentLab]:
    async with open_lab(dsn, provider) as lab:
        yield lab
        # Whatever a story was about, nothing is ever handed out twice.
        assert len({id for id, _ in provider.orders}) == len(provider.orders) or provider.forgets_keys

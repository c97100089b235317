"""What belongs to us reaches the database the way of this test run: directly, or through PgBouncer."""

from __future__ import annotations

import pytest

from tests.support.postgres import through_pooler


@pytest.fixture
def dsn(dsn: str) -> str:
    return through_pooler(dsn)

"""Array literals that we write ourselves come out of PostgreSQL as they went in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import UUID

import asyncpg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from computepool.core.jobs.cause import Cause
from computepool.hub.store.arrays import to_array, to_bytes_array, to_text_array
from tests.support.postgres import TestServer

BOUNDED = settings(max_examples=150, deadline=None, derandomize=True, database=None)

# What an array literal has a meaning for, and what JSON has.
TEXTS = st.text(alphabet="ab\"\\{}[],;'$ \n\t\r\x01\x7fäN€😀", max_size=12) | st.sampled_from(
    ["", "NULL", "null", "{}", '{"a"}', "\\", '"', "\\x00", "\\\\", '\\"', "a,b", " a ", "'; DROP TABLE jobs --"]
)
# type -> how its array is written, and what goes in.
KINDS = {
    "text": (to_text_array, st.none() | TEXTS),
    "bytea": (to_bytes_array, st.none() | st.binary(max_size=40)),
    "uuid": (to_array, st.none() | st.uuids()),
    "integer": (to_array, st.none() | st.integers(-(2**31), 2**31 - 1)),
    "bigint": (to_array, st.none() | st.integers(-(2**63), 2**63 - 1)),
    "smallint": (to_array, st.none() | st.integers(-(2**15), 2**15 - 1)),
    "double precision": (to_array, st.none() | st.floats(allow_nan=False, allow_infinity=False)),
    "timestamptz": (
        to_array,
        st.none() | st.integers(0, 2**37).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
    ),
    "failure_cause": (to_array, st.none() | st.sampled_from(list(Cause))),
}


@pytest.fixture(scope="module")
def migrated_dsn(postgres: TestServer) -> Iterator[str]:
    dsn = asyncio.run(postgres.create_database())
    yield dsn
    asyncio.run(postgres.drop_database(dsn))


async def read_back(dsn: str, kind: str, literals: list[str]) -> list[list[object]]:
    conn = await asyncpg.connect(dsn)
    try:
        return [await conn.fetchval(f"SELECT $1::text::{kind}[]", literal) for literal in literals]
    finally:
        await conn.close()


@pytest.mark.parametrize("kind", KINDS)
def test_what_goes_in_comes_out(migrated_dsn, kind):
    write, values = KINDS[kind]
    lists: list[list[object]] = [[]]

    @BOUNDED
    @given(st.lists(values, max_size=6))
    def collect(drawn: list[object]) -> None:
        lists.append(drawn)

    collect()
    assert len(lists) > 50
    assert asyncio.run(read_back(migrated_dsn, kind, [write(each) for each in lists])) == lists


def test_control_a_text_that_is_not_escaped_comes_out_as_something_else(migrated_dsn):
    careless = '{"' + 'a","b' + '"}'
    assert asyncio.run(read_back(migrated_dsn, "text", [careless])) != [['a","b']]


async def test_the_database_refuses_nul_in_a_text(migrated_dsn):
    with pytest.raises(asyncpg.CharacterNotInRepertoireError):
        await read_back(migrated_dsn, "text", [to_text_array(["a\0b"])])


def test_ids_of_a_subclass_and_strings_of_an_enum_are_written_as_their_values():
    assert to_array([UUID(int=1), Cause.EXIT_CODE, None, True]) == (
        '{"00000000000000000000000000000001","exit_code",null,true}'
    )

"""Group commit answers every caller exactly once, whatever happens to its batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from computepool.core.errors import ComputePoolError, Conflict, HubUnavailable
from computepool.hub.dispatch.group_commit import Blocked, GroupCommit


class Writer:
    """Stands for the transaction: notes what was committed, and fails as it is told to."""

    def __init__(
        self, *, refused: set[int] = frozenset(), blocked: set[int] = frozenset(), broken: set[int] = frozenset()
    ):
        self.refused, self.blocked, self.broken = refused, blocked, broken
        self.batches: list[list[int]] = []
        self.committed: list[int] = []

    async def commit(self, items: Sequence[int]) -> list[int | ComputePoolError]:
        await asyncio.sleep(0)
        if set(items) & self.blocked:
            raise Blocked("a row")
        if set(items) & self.broken:
            raise OSError("connection lost")
        self.batches.append(list(items))
        self.committed += [item for item in items if item not in self.refused]
        return [Conflict("no") if item in self.refused else item * 10 for item in items]


async def put_all(group: GroupCommit[int, int], count: int) -> list[object]:
    return list(await asyncio.gather(*(group.put(i) for i in range(count)), return_exceptions=True))


small_sets = st.sets(st.integers(0, 39), max_size=6)


@settings(max_examples=150, deadline=None)
@given(
    count=st.integers(0, 40), batch_max=st.integers(1, 16), refused=small_sets, blocked=small_sets, broken=small_sets
)
def test_every_caller_gets_exactly_one_answer_and_it_is_the_truth(count, batch_max, refused, blocked, broken):
    writer = Writer(refused=refused, blocked=blocked, broken=broken)

    async def run() -> list[object]:
        group: GroupCommit[int, int] = GroupCommit(writer.commit, batch_max=batch_max)
        answers = await put_all(group, count)
        await group.close()
        return answers

    answers = asyncio.run(run())
    assert len(answers) == count
    check_truth(writer, answers)
    assert all(len(batch) <= batch_max for batch in writer.batches)
    for item, answer in enumerate(answers):
        if item in blocked and item not in broken:
            assert isinstance(answer, (HubUnavailable, OSError))


def check_truth(writer: Writer, answers: list[object]) -> None:
    """Whoever was told that it is done is in the record once; whoever was told otherwise is not."""
    for item, answer in enumerate(answers):
        assert writer.committed.count(item) == (1 if answer == item * 10 else 0), (item, answer)


def test_control_a_group_that_answers_before_the_commit_is_caught():
    class Hasty(GroupCommit[int, int]):
        async def put(self, item: int) -> int:
            asyncio.get_running_loop().create_task(super().put(item)).add_done_callback(lambda t: t.exception())
            return item * 10

    writer = Writer(broken={3})

    async def run() -> list[object]:
        group = Hasty(writer.commit)
        answers = await put_all(group, 5)
        await asyncio.sleep(0.01)
        return answers

    with pytest.raises(AssertionError):
        check_truth(writer, asyncio.run(run()))


async def test_a_blocked_item_holds_up_only_itself():
    writer = Writer(blocked={5})
    group: GroupCommit[int, int] = GroupCommit(writer.commit)
    answers = await put_all(group, 16)
    assert isinstance(answers[5], HubUnavailable)
    assert [a for i, a in enumerate(answers) if i != 5] == [i * 10 for i in range(16) if i != 5]


async def test_calls_that_come_while_a_transaction_is_in_flight_share_the_next_one():
    writer = Writer()
    group: GroupCommit[int, int] = GroupCommit(writer.commit)
    await put_all(group, 100)
    assert writer.batches[0] == list(range(100)) or len(writer.batches) <= 2


async def test_a_caller_that_goes_away_does_not_cancel_the_transaction():
    writer = Writer()
    group: GroupCommit[int, int] = GroupCommit(writer.commit)
    leaving = asyncio.create_task(group.put(1))
    staying = asyncio.create_task(group.put(2))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == 20
    assert writer.committed == [1, 2]


async def test_a_full_queue_is_refused_with_a_time_to_come_back():
    stuck = asyncio.Event()

    async def commit(items: Sequence[int]) -> list[int | ComputePoolError]:
        await stuck.wait()
        return list(items)

    group: GroupCommit[int, int] = GroupCommit(commit, batch_max=1, waiting_max=2)
    in_flight = asyncio.create_task(group.put(0))
    await asyncio.sleep(0.01)
    waiting = [asyncio.create_task(group.put(i)) for i in (1, 2)]
    await asyncio.sleep(0.01)
    with pytest.raises(HubUnavailable) as refused:
        await group.put(3)
    assert refused.value.details["retry_after_seconds"] > 0
    stuck.set()
    assert await asyncio.gather(in_flight, *waiting) == [0, 1, 2]


async def test_closing_answers_everyone_and_takes_nobody_new():
    writer = Writer()
    group: GroupCommit[int, int] = GroupCommit(writer.commit)
    waiting = [asyncio.create_task(group.put(i)) for i in range(10)]
    await asyncio.sleep(0)
    await group.close()
    assert await asyncio.gather(*waiting) == [i * 10 for i in range(10)]
    with pytest.raises(HubUnavailable):
        await group.put(11)

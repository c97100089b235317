"""Group commit answers every caller exactly once, whatever happens to its batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from computepool.core.errors import ComputePoolError, Conflict, HubUnavailable
from computepool.hub.dispatch.group_commit import Blocked, GroupCommit, SingleCommit, _Call


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


async def put_each(group: GroupCommit[int, int], count: int) -> list[object]:
    return list(await asyncio.gather(*(group.put(i) for i in range(count)), return_exceptions=True))


async def put_calls(group: GroupCommit[int, int], sizes: Sequence[int]) -> list[object]:
    """Calls of so many items each. The answers, or what each item of a call met that has failed as a whole."""
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    calls = [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    answers = await asyncio.gather(*(group.put_all(call) for call in calls), return_exceptions=True)
    found: list[object] = []
    for call, answer in zip(calls, answers, strict=True):
        if isinstance(answer, BaseException):
            found += [answer] * len(call)
        else:
            assert len(answer) == len(call)
            found += answer
    return found


small_sets = st.sets(st.integers(0, 39), max_size=6)


@settings(max_examples=150, deadline=None)
@given(
    count=st.integers(0, 40),
    batch_max=st.integers(1, 16),
    lanes=st.integers(1, 3),
    further=st.integers(1, 12),
    refused=small_sets,
    blocked=small_sets,
    broken=small_sets,
)
def test_every_caller_gets_exactly_one_answer_and_it_is_the_truth(
    count, batch_max, lanes, further, refused, blocked, broken
):
    writer = Writer(refused=refused, blocked=blocked, broken=broken)

    async def run() -> list[object]:
        group: GroupCommit[int, int] = GroupCommit(
            writer.commit, batch_max=batch_max, lanes=lanes, further_lane_items=further
        )
        answers = await put_each(group, count)
        await group.close()
        return answers

    answers = asyncio.run(run())
    assert len(answers) == count
    check_truth(writer, answers)
    assert all(len(batch) <= batch_max for batch in writer.batches)
    for item, answer in enumerate(answers):
        if item in blocked and item not in broken:
            assert isinstance(answer, (HubUnavailable, OSError))


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 6), max_size=12),
    batch_max=st.integers(1, 16),
    refused=small_sets,
    blocked=small_sets,
    broken=small_sets,
)
def test_every_item_of_every_call_is_answered_and_calls_are_never_torn_apart(
    sizes, batch_max, refused, blocked, broken
):
    writer = Writer(refused=refused, blocked=blocked, broken=broken)

    async def run() -> list[object]:
        group: GroupCommit[int, int] = GroupCommit(writer.commit, batch_max=batch_max)
        answers = await put_calls(group, sizes)
        await group.close()
        return answers

    check_truth(writer, asyncio.run(run()))
    starts = {sum(sizes[:number]): size for number, size in enumerate(sizes) if size}
    for batch in writer.batches:
        left = list(batch)
        while left:
            call = list(range(left[0], left[0] + starts[left[0]]))
            assert left[: len(call)] == call, "a call stays together, in its order"
            left = left[len(call) :]
        assert len(batch) <= max(batch_max, starts.get(batch[0], 0) if batch else 0)


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
        answers = await put_each(group, 5)
        await asyncio.sleep(0.01)
        return answers

    with pytest.raises(AssertionError):
        check_truth(writer, asyncio.run(run()))


async def test_a_blocked_item_holds_up_only_itself():
    writer = Writer(blocked={5})
    group: GroupCommit[int, int] = GroupCommit(writer.commit)
    answers = await put_each(group, 16)
    assert isinstance(answers[5], HubUnavailable)
    assert [a for i, a in enumerate(answers) if i != 5] == [i * 10 for i in range(16) if i != 5]


async def test_calls_that_come_while_a_transaction_is_in_flight_share_the_next_one():
    writer = Writer()
    group: GroupCommit[int, int] = GroupCommit(writer.commit)
    await put_each(group, 100)
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


async def test_a_call_that_is_larger_than_a_batch_has_one_of_its_own():
    writer = Writer()
    group: GroupCommit[int, int] = GroupCommit(writer.commit, batch_max=4)
    answers = await put_calls(group, [2, 9, 1])
    assert answers == [i * 10 for i in range(12)]
    assert [0, 1] in writer.batches
    assert list(range(2, 11)) in writer.batches


async def test_a_blocked_call_holds_up_only_itself():
    writer = Writer(blocked={5})
    group: GroupCommit[int, int] = GroupCommit(writer.commit)
    answers = await put_calls(group, [3, 3, 3, 3])
    assert [isinstance(answer, HubUnavailable) for answer in answers] == [False] * 3 + [True] * 3 + [False] * 6


async def test_refusals_of_a_call_are_values_and_of_a_single_item_raised():
    group: GroupCommit[int, int] = GroupCommit(Writer(refused={1}).commit)
    first, second, third = await group.put_all([0, 1, 2])
    assert (first, type(second), third) == (0, Conflict, 20)
    with pytest.raises(Conflict):
        await group.put(1)


async def test_a_call_without_items_is_answered():
    group: GroupCommit[int, int] = GroupCommit(Writer().commit)
    assert list(await group.put_all([])) == []


async def test_a_full_queue_counts_items_and_not_calls():
    stuck = asyncio.Event()

    async def commit(items: Sequence[int]) -> list[int | ComputePoolError]:
        await stuck.wait()
        return list(items)

    group: GroupCommit[int, int] = GroupCommit(commit, batch_max=1, waiting_max=4)
    in_flight = asyncio.create_task(group.put(0))
    await asyncio.sleep(0.01)
    waiting = asyncio.create_task(group.put_all([1, 2, 3, 4]))
    await asyncio.sleep(0.01)
    with pytest.raises(HubUnavailable):
        await group.put(5)
    stuck.set()
    assert (await in_flight, list(await waiting)) == (0, [1, 2, 3, 4])
    assert await group.put(6) == 6, "there is room again"


@pytest.mark.parametrize("blocked", [set(), {0}])
async def test_when_the_process_ends_in_the_middle_of_a_write_nobody_is_left_without_an_answer(blocked):
    """In flight, waiting behind it, or in the other half of a batch that was cut: each is told to try again."""
    written = asyncio.Event()

    async def commit(items: Sequence[int]) -> list[int | ComputePoolError]:
        if set(items) & blocked and len(items) > 1:
            raise Blocked("a row")
        written.set()
        await asyncio.Event().wait()
        raise AssertionError("never")

    group: GroupCommit[int, int] = GroupCommit(commit, batch_max=4)
    calls = [asyncio.create_task(group.put(i)) for i in range(10)]
    await written.wait()
    [running] = group._running
    running.cancel()
    async with asyncio.timeout(60):
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers] == [HubUnavailable] * 10


async def test_a_group_that_was_interrupted_goes_on_with_the_next_call():
    writer = Writer(broken={0})
    group: GroupCommit[int, int] = GroupCommit(writer.commit)
    with pytest.raises(OSError, match="connection lost"):
        await group.put(0)
    assert await group.put(1) == 10


async def test_single_commit_answers_as_a_group_would():
    single: SingleCommit[int, int] = SingleCommit(Writer(refused={1}).commit)
    assert await single.put(2) == 20
    with pytest.raises(Conflict):
        await single.put(1)
    assert [type(answer) for answer in await single.put_all([1, 2])] == [Conflict, int]


async def test_lanes_write_side_by_side_and_no_call_is_left_behind_when_they_come_to_rest():
    """A call that comes at the very moment when a lane ends must find it free, or it would wait for ever."""
    under_way, most = 0, 0

    async def commit(items: Sequence[int]) -> list[int]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return list(items)

    group: GroupCommit[int, int] = GroupCommit(commit, batch_max=2, lanes=2)

    async def call_again_and_again(start: int) -> None:
        for i in range(50):
            assert await group.put(start + i) == start + i

    async with asyncio.timeout(60):
        await asyncio.gather(*(call_again_and_again(1_000 * caller) for caller in range(7)))
        await group.close()
    assert most == 2


@pytest.mark.parametrize(("waiting", "at_once"), [(1, 2), (2, 2), (3, 1), (4, 2)])
async def test_a_further_lane_opens_for_enough_to_share_a_commit_or_too_few_to_wait_for_each_other(waiting, at_once):
    running, most, gate = 0, 0, asyncio.Event()

    async def commit(items: Sequence[int]) -> Sequence[int]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1
        return items

    group: GroupCommit[int, int] = GroupCommit(commit, lanes=2, further_lane_items=4)
    first = asyncio.create_task(group.put(0))
    await asyncio.sleep(0.01)
    others = [asyncio.create_task(group.put(number)) for number in range(1, waiting + 1)]
    await asyncio.sleep(0.01)
    gate.set()
    assert await asyncio.gather(first, *others) == list(range(waiting + 1))
    assert most == at_once


# Without being a task while one waits


async def send_calls(group: GroupCommit[int, int] | SingleCommit[int, int], sizes: Sequence[int]) -> list[object]:
    """As `put_calls`, all from one task."""
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    calls = [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    sent = [group.send(call) for call in calls]
    answers = await asyncio.gather(*sent, return_exceptions=True)
    found: list[object] = []
    for call, answer in zip(calls, answers, strict=True):
        found += [answer] * len(call) if isinstance(answer, BaseException) else answer
    return found


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 6), max_size=12),
    batch_max=st.integers(1, 16),
    lanes=st.integers(1, 3),
    refused=small_sets,
    blocked=small_sets,
    broken=small_sets,
)
def test_whoever_sends_is_answered_as_whoever_puts(sizes, batch_max, lanes, refused, blocked, broken):
    async def run(way, writer: Writer) -> list[object]:
        group: GroupCommit[int, int] = GroupCommit(writer.commit, batch_max=batch_max, lanes=lanes)
        answers = await way(group, sizes)
        await group.close()
        return answers

    putting, sending = (Writer(refused=refused, blocked=blocked, broken=broken) for _ in range(2))
    put, sent = asyncio.run(run(put_calls, putting)), asyncio.run(run(send_calls, sending))
    assert len(sent) == sum(sizes)
    check_truth(sending, sent)
    assert sending.batches == putting.batches
    assert [repr(answer) for answer in sent] == [repr(answer) for answer in put]


async def test_nothing_is_written_before_whoever_sends_lets_go_of_the_loop():
    """So that calls which were read from the wire in one go share a transaction."""
    writer = Writer()
    group: GroupCommit[int, int] = GroupCommit(writer.commit)
    sent = [group.send([number]) for number in range(5)]
    assert writer.batches == []
    assert [list(answer) for answer in await asyncio.gather(*sent)] == [[0], [10], [20], [30], [40]]
    assert writer.batches == [[0, 1, 2, 3, 4]]


async def test_whoever_sends_is_refused_at_once_when_the_hub_is_closing():
    group: GroupCommit[int, int] = GroupCommit(Writer().commit)
    before = group.send([1])
    await group.close()
    with pytest.raises(HubUnavailable):
        group.send([2])
    assert list(await before) == [10]


async def test_whoever_sends_is_refused_at_once_when_the_queue_is_full():
    writer = Writer()
    group: GroupCommit[int, int] = GroupCommit(writer.commit, waiting_max=2)
    sent = group.send([1, 2])
    with pytest.raises(HubUnavailable) as refused:
        group.send([3])
    assert refused.value.details["retry_after_seconds"] > 0
    assert list(await sent) == [10, 20]
    assert list(await group.send([4])) == [40], "there is room again"
    assert writer.committed == [1, 2, 4]


class Forgetful(GroupCommit[int, int]):
    """Answers callers without a look at whether they are still there."""

    async def _write(self, batch: Sequence[_Call[int, int]]) -> None:
        answers = await self._commit([item for call in batch for item in call.items])
        for call in batch:
            call.answers.set_result(answers[: len(call.items)])
            answers = answers[len(call.items) :]


async def drop_one(group: GroupCommit[int, int], drop: Callable[[asyncio.Future], object]) -> list[object]:
    """What those hear who are in one batch with somebody who no longer wants to hear."""
    sent = [group.send([number]) for number in range(3)]
    await asyncio.sleep(0)
    drop(sent.pop(1))
    async with asyncio.timeout(60):
        return [answer for [answer] in await asyncio.gather(*sent)]


@pytest.mark.parametrize("drop", [asyncio.Future.cancel, id], ids=["cancelled", "forgotten"])
async def test_a_caller_that_drops_what_it_sent_for_does_not_disturb_the_batch(drop):
    writer = Writer()
    group: GroupCommit[int, int] = GroupCommit(writer.commit)
    assert await drop_one(group, drop) == [0, 20]
    assert writer.committed == [0, 1, 2], "a COMMIT is never cancelled"
    assert list(await group.send([3])) == [30]


async def test_a_caller_that_drops_what_it_sent_for_does_not_disturb_a_batch_that_fails():
    group: GroupCommit[int, int] = GroupCommit(Writer(broken={0}).commit)
    dropped, staying = group.send([0]), group.send([1])
    await asyncio.sleep(0)
    dropped.cancel()
    with pytest.raises(OSError, match="connection lost"):
        await staying
    assert list(await group.send([2])) == [20]


async def test_control_a_group_that_cannot_be_dropped_is_caught():
    with pytest.raises((HubUnavailable, TimeoutError, asyncio.InvalidStateError)):
        await drop_one(Forgetful(Writer().commit), asyncio.Future.cancel)


async def test_single_commit_answers_what_was_sent_as_a_group_would():
    single: SingleCommit[int, int] = SingleCommit(Writer(refused={1}, broken={4}).commit)
    first, second, third, *failed = await send_calls(single, [1, 2, 2])
    assert (first, type(second), third) == (0, Conflict, 20)
    assert [type(answer) for answer in failed] == [OSError, OSError]

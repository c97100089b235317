"""The door: what nodes are told that are given work at the same moment, and under how many signatures."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from computepool.core.jobs.lease import Attempt
from computepool.hub.dispatch.door import Door
from computepool.hub.dispatch.parked import ParkedCall
from computepool.hub.store.attempts import Grant
from computepool.wire.attempts import NextAnswer
from tests.integration.test_dispatch_rounds import Dispatch, Waiting, compose, list_attempts, list_live
from tests.support.spine import EnrolledNode, Spine, open_spine


@pytest.fixture
async def dispatch(dsn: str) -> AsyncIterator[Dispatch]:
    async with open_spine(dsn) as spine:
        yield compose(spine)


class Signatures:
    """What the hub signs, counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, spine: Spine) -> None:
        self.count = 0
        really = spine.keyring.sign

        def sign(claims: Mapping[str, Any], *, typ: str) -> str:
            self.count += 1
            return really(claims, typ=typ)

        monkeypatch.setattr(spine.keyring, "sign", sign)


@dataclass
class Told:
    """Nodes that wait, and a lease for each that is written and not delivered."""

    dispatch: Dispatch
    nodes: list[EnrolledNode]
    waiting: list[Waiting]
    grants: list[Grant]

    def deliver(self) -> None:
        for grant in self.grants:
            self.dispatch.reception.deliver(grant)

    @property
    def heard(self) -> list[int]:
        """How often each was answered."""
        return [len(each.answers) for each in self.waiting]


async def prepare(dispatch: Dispatch, count: int) -> Told:
    nodes = [await dispatch.spine.enrol() for _ in range(count)]
    waiting = [await dispatch.park(node, "cpu:0") for node in nodes]
    await dispatch.spine.submit(slice_count=count)
    grants = {grant.node_id: grant for grant in await dispatch.spine.grant(*nodes)}
    return Told(dispatch, nodes, waiting, [grants[node.id] for node in nodes])


async def test_nodes_that_are_given_work_together_are_answered_when_all_are_under_one_signature(
    dispatch, monkeypatch
):
    told = await prepare(dispatch, 3)
    signatures = Signatures(monkeypatch, dispatch.spine)
    with dispatch.door.together():
        told.deliver()
        assert (told.heard, signatures.count) == ([0, 0, 0], 0)
    assert (told.heard, signatures.count) == ([1, 1, 1], 1)
    answers = [await each.hear() for each in told.waiting]
    assert [list_attempts([answer]) for answer in answers] == [[grant.id] for grant in told.grants]
    assert len({answer.token for answer in answers}) == 1


async def test_a_node_that_is_given_work_alone_is_answered_at_once(dispatch, monkeypatch):
    told = await prepare(dispatch, 2)
    signatures = Signatures(monkeypatch, dispatch.spine)
    told.deliver()
    assert (told.heard, signatures.count) == ([1, 1], 2)


async def test_blocks_within_a_block_are_answered_with_the_outermost(dispatch, monkeypatch):
    told = await prepare(dispatch, 2)
    signatures = Signatures(monkeypatch, dispatch.spine)
    with dispatch.door.together():
        with dispatch.door.together():
            dispatch.reception.deliver(told.grants[0])
        assert told.heard == [0, 0]
        dispatch.reception.deliver(told.grants[1])
    assert (told.heard, signatures.count) == ([1, 1], 1)


async def test_a_call_that_has_nothing_to_wait_for_is_dismissed_within_a_block(dispatch):
    told = await prepare(dispatch, 2)
    with dispatch.door.together():
        told.waiting[0].call.dismiss()
        dispatch.reception.deliver(told.grants[1])
        assert told.heard == [1, 0]
    assert [list_attempts(each.answers) for each in told.waiting] == [[], [told.grants[1].id]]


async def test_a_block_that_fails_still_answers_those_who_were_given_work_in_it(dispatch):
    told = await prepare(dispatch, 2)
    with contextlib.suppress(OSError), dispatch.door.together():
        told.deliver()
        raise OSError("halfway")
    assert [list_attempts(each.answers) for each in told.waiting] == [[grant.id] for grant in told.grants]
    dispatch.reception.deliver(told.grants[0])
    assert told.heard == [1, 1], "and nobody twice"


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("how", ["born leased", "by a round"])
async def test_one_transaction_costs_one_signature_however_many_nodes_it_serves(dispatch, monkeypatch, how, shared):
    """Control: without the block each answer is signed by itself."""
    if not shared:
        dispatch.reception.together = contextlib.nullcontext
    signatures = Signatures(monkeypatch, dispatch.spine)
    nodes = [await dispatch.spine.enrol() for _ in range(4)]
    if how == "by a round":
        await dispatch.submit(4)
    waiting = [await dispatch.park(node, "cpu:0") for node in nodes]
    if how == "born leased":
        await dispatch.submit(4)
    else:
        await dispatch.rounds.run_once()
    delivered = list_attempts([await each.hear() for each in waiting])
    assert sorted(delivered) == sorted(await list_live(dispatch.spine))
    assert (len(delivered), signatures.count) == (4, 1 if shared else 4)


def spoil(monkeypatch: pytest.MonkeyPatch, spine: Spine, spoilt: Grant) -> None:
    """The order of this lease cannot be put into words."""
    really = spine.leases._to_order

    def fail(lease: Grant | Attempt) -> bytes:
        if lease.id == spoilt.id:
            raise ValueError("no words for it")
        return really(lease)

    monkeypatch.setattr(spine.leases, "_to_order", fail)


class AllOrNobody(Door):
    """Where one cannot be told, nobody is."""

    def _say(self, waiting: Sequence[tuple[ParkedCall, Callable[[ParkedCall, NextAnswer | None], None]]]) -> None:
        try:
            self._leases.word_all([call.tidings.leased for call, _ in waiting])
        except ValueError:
            for call, reply in waiting:
                reply(call, None)
        else:
            super()._say(waiting)


@pytest.mark.parametrize("kind", [Door, AllOrNobody])
async def test_what_cannot_be_said_to_one_node_does_not_keep_the_others_without_words(dispatch, monkeypatch, kind):
    """Control: a door that gives up with the first that fails."""
    dispatch.door = kind(dispatch.reception, dispatch.spine.leases)
    told = await prepare(dispatch, 3)
    first, spoilt, third = told.grants
    spoil(monkeypatch, dispatch.spine, spoilt)
    with dispatch.door.together():
        told.deliver()
    assert told.heard == [1, 1, 1]
    expected = [[first.id], [], [third.id]] if kind is Door else [[], [], []]
    assert [list_attempts(each.answers) for each in told.waiting] == expected


async def test_a_node_that_could_not_be_told_keeps_its_lease_and_hears_of_it_when_it_calls_again(
    dispatch, monkeypatch
):
    told = await prepare(dispatch, 2)
    spoil(monkeypatch, dispatch.spine, told.grants[0])
    with dispatch.door.together():
        told.deliver()
    assert await told.waiting[0].hear() is None
    monkeypatch.undo()
    again = await dispatch.park(told.nodes[0], "cpu:0")
    await dispatch.reception.greet({told.nodes[0].id: again.call})
    assert list_attempts([await again.hear()]) == [told.grants[0].id]


async def test_a_node_whose_order_must_be_loaded_first_holds_up_nobody(dispatch, monkeypatch):
    """Its job is not at hand at this hub: it is answered a little later, under a signature of its own."""
    told = await prepare(dispatch, 2)
    stray = await dispatch.spine.enrol()
    late = await dispatch.park(stray, "cpu:0")
    other = dispatch.spine.open_second_hub()
    await other.submit()
    loaded = await other.grant_one(stray)
    dispatch.spine.leases._orders.pop(loaded.job_id, None)
    signatures = Signatures(monkeypatch, dispatch.spine)
    with dispatch.door.together():
        dispatch.reception.deliver(loaded)
        told.deliver()
    assert (told.heard, late.answers, signatures.count) == ([1, 1], [], 1)
    assert list_attempts([await late.hear()]) == [loaded.id]
    assert signatures.count == 2

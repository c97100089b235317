"""Requests for inference at a run's owner: opened, asked, lost, asked again; hosts are played."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from computepool.core.accounts.roles import Role
from computepool.core.errors import HubUnavailable, InvalidRequest, LimitExceeded, NotFound, PayloadTooLarge
from computepool.core.ids import AttemptId, RunId
from computepool.core.networks.errors import InferenceFailed, NoLiveRun, RunElsewhere
from computepool.core.networks.placement import SeatId
from computepool.core.networks.run import HostJoined, RunState, SessionClosed, StopAsked
from computepool.hub.services import inference
from computepool.hub.services.inference import Answered, AskOrder, InferenceDesk, Opened, OpenOrder, TensorBytes
from computepool.hub.services.owners import Heard
from tests.support.networks import make_mlp
from tests.support.postgres import wait_for
from tests.support.run_lab import OwnerAtWork, RunLab, open_run_lab

SECONDS = 30.0
SPEC = make_mlp(checkpoint_every=1)
FORM = inference.RequestForm(SPEC)


def to_numbers(*rows: float) -> TensorBytes:
    """One sample for each row, as wide as the network reads."""
    width = SPEC.sources[0].type.shape[0]
    content = b"".join(struct.pack(f"<{width}f", *[row] * width) for row in rows)
    return TensorBytes("f32", (len(rows), width), content)


def output_of(samples: int, value: float = 0.5) -> TensorBytes:
    width = FORM.output.shape[0]
    return TensorBytes("f32", (samples, width), struct.pack(f"<{samples * width}f", *[value] * samples * width))


class Hosts:
    """All hosts of one run. They open what they are told to, and answer at once unless they are told not to."""

    def __init__(self, at: OwnerAtWork, desk: InferenceDesk, run_id: RunId) -> None:
        self.at, self.desk, self.run_id = at, desk, run_id
        self.answers = self.opens = True
        self.told: list[tuple[SeatId, Any]] = []
        at.post.on_sent = self.hear

    def seat_of(self, attempt_id: AttemptId) -> SeatId:
        return next(seat.id for seat in self.at.run(self.run_id).seats.values() if seat.attempt_id == attempt_id)

    def attempt_of(self, seat: SeatId) -> AttemptId:
        attempt_id = self.at.run(self.run_id).seats[seat].attempt_id
        assert attempt_id is not None
        return attempt_id

    def hear(self, attempt_id: AttemptId, order: OpenOrder | AskOrder) -> None:
        seat = self.seat_of(attempt_id)
        self.told.append((seat, order))
        loop = asyncio.get_running_loop()
        if isinstance(order, OpenOrder) and self.opens:
            loop.call_soon(self.desk.note_opened, self.run_id, seat, attempt_id, Opened(order.epoch, order.step))
        elif isinstance(order, AskOrder) and self.answers:
            loop.call_soon(self.answer, order)

    def answer(self, order: AskOrder, **said: Any) -> None:
        """From the host of the output."""
        seat = self.output_seat
        given = said or {"output": output_of(order.inputs["x"].shape[0])}
        self.desk.note_answer(self.run_id, seat, self.attempt_of(seat), Answered(order.epoch, order.number, **given))

    @property
    def output_seat(self) -> SeatId:
        run = self.at.run(self.run_id)
        return next(each.seat for each in run.locations if each.vnode_id == SPEC.output[0])

    def list(self, kind: type[Any]) -> list[Any]:
        return [order for _, order in self.told if isinstance(order, kind)]


@pytest.fixture
async def lab(dsn: str, tmp_path: Path) -> AsyncIterator[RunLab]:
    async with open_run_lab(dsn, tmp_path) as lab:
        yield lab


async def set_going(lab: RunLab, *, pnodes: int = 3) -> tuple[Any, RunId, Hosts]:
    by = await lab.spine.sign_up(credits=100_000)
    for _ in range(pnodes):
        await lab.enrol_pnode()
    view = await lab.start(by, await lab.create(by, SPEC))
    at = lab.open_owner()
    desk = InferenceDesk(lab.spine.pool, at.owner, at.post)
    await at.look()
    await lab.set_going(at, view.row.id)
    return by, view.row.id, Hosts(at, desk, view.row.id)


async def lose(lab: RunLab, hosts: Hosts, seat: SeatId) -> AttemptId:
    """The host on this seat is gone, and another takes its place. Returns the attempt that was lost."""
    at, run_id = hosts.at, hosts.run_id
    attempt_id, node_id = hosts.attempt_of(seat), at.run(run_id).seats[seat].node_id
    await lab.spine.fetch("UPDATE nodes SET last_seen_at = now() - interval '1 hour' WHERE id = $1", node_id)
    at.post.open.discard(attempt_id)
    await at.owner.hear(run_id, Heard(SessionClosed(seat, attempt_id)))
    await at.wait(3)
    await lab.set_going(at, run_id)
    assert at.run(run_id).state is RunState.RUNNING
    return attempt_id


def ask(hosts: Hosts, *rows: float, step: int = 0, seconds: float = SECONDS) -> asyncio.Task[Any]:
    return asyncio.create_task(
        hosts.desk.answer(hosts.run_id, step, {"x": to_numbers(*rows or (1.0,))}, seconds=seconds)
    )


async def test_a_checkpoint_is_opened_once_at_every_host_that_takes_part_and_then_asked(lab):
    _, run_id, hosts = await set_going(lab)
    await lab.step(hosts.at, run_id, 1)
    await lab.store(hosts.at, run_id, 1)
    step = await hosts.desk.find_step(run_id, 0)
    first, second = await ask(hosts, 1.0, 2.0, step=step), await ask(hosts, 3.0, step=step)
    assert (step, first.checkpoint_step, first.output, second.output) == (1, 1, output_of(2), output_of(1))
    opened = hosts.list(OpenOrder)
    taking_part = {each.seat for each in hosts.at.run(run_id).locations if each.vnode_id in FORM.needed}
    assert len(opened) == len(taking_part)
    assert {part.vnode_id for order in opened for part in order.parts} == set(FORM.needed)
    asked = hosts.list(AskOrder)
    assert [order.number for order in asked] == [1, 2]
    assert not isinstance(hosts.told[0][1], AskOrder)


async def test_what_is_lost_with_a_host_is_asked_again_in_the_next_epoch_at_the_same_checkpoint(lab):
    _, run_id, hosts = await set_going(lab)
    hosts.answers = False
    asking = ask(hosts)
    await wait_for(_has(hosts, AskOrder, 1), what="the first try")
    [old] = hosts.list(AskOrder)
    lost = await lose(lab, hosts, hosts.output_seat)
    await wait_for(_has(hosts, AskOrder, 2), what="the second try")
    again = hosts.list(AskOrder)[-1]
    assert (again.epoch, again.step, again.inputs) == (2, old.step, old.inputs)
    # Who was lost is not listened to, whatever it has heard of; nor is an answer of the epoch before.
    hosts.desk.note_answer(run_id, hosts.output_seat, lost, Answered(2, again.number, output_of(1, 9.0)))
    hosts.answer(old)
    await asyncio.sleep(0)
    assert not asking.done()
    hosts.answer(again)
    assert (await asking).output == output_of(1)


async def test_control_without_the_look_at_the_attempt_a_lost_host_would_be_believed(lab, monkeypatch):
    def believe(desk: InferenceDesk, run_id: RunId, seat: SeatId, attempt_id: AttemptId, epoch: int) -> Any:
        return desk._services.get(run_id)

    monkeypatch.setattr(InferenceDesk, "_find_speaker", believe)
    _, run_id, hosts = await set_going(lab)
    hosts.answers = False
    asking = ask(hosts)
    lost = await lose(lab, hosts, hosts.output_seat)
    await wait_for(_has(hosts, AskOrder, 2), what="the second try")
    number = hosts.list(AskOrder)[-1].number
    hosts.desk.note_answer(run_id, hosts.output_seat, lost, Answered(2, number, output_of(1, 9.0)))
    assert (await asking).output == output_of(1, 9.0)


async def test_a_checkpoint_that_somebody_asks_is_kept_and_thrown_away_afterwards(lab):
    _, run_id, hosts = await set_going(lab)
    await _store_steps(lab, hosts, 1, 2)
    with hosts.desk.pin(run_id, 1):
        await _store_steps(lab, hosts, 3, 8)
        assert await hosts.desk.find_step(run_id, 1) == 1
        assert (await ask(hosts, step=1)).checkpoint_step == 1
    await _store_steps(lab, hosts, 9, 9)
    with pytest.raises(NotFound, match="Complete ones: 7, 8, 9"):
        await hosts.desk.find_step(run_id, 1)


async def test_a_host_that_has_closed_the_checkpoint_is_told_to_open_it_again(lab):
    _, _, hosts = await set_going(lab)
    await ask(hosts)
    hosts.answers = False
    asking, before = ask(hosts), len(hosts.list(OpenOrder))
    await wait_for(_has(hosts, AskOrder, 2), what="the request")
    hosts.answers = True
    hosts.answer(hosts.list(AskOrder)[-1], code=inference.NOT_OPEN, message="it is not open here")
    assert (await asking).output == output_of(1)
    assert len(hosts.list(OpenOrder)) > before


async def test_answers_are_claims_and_only_the_host_of_the_output_may_make_them(lab):
    _, run_id, hosts = await set_going(lab)
    hosts.answers = False
    asking = ask(hosts)
    await wait_for(_has(hosts, AskOrder, 1), what="the request")
    [order] = hosts.list(AskOrder)
    other = next(seat for seat in hosts.at.run(run_id).seats if seat != hosts.output_seat)
    hosts.desk.note_answer(run_id, other, hosts.attempt_of(other), Answered(1, order.number, output_of(1, 9.0)))
    await asyncio.sleep(0)
    assert not asking.done()
    hosts.answer(order, output=output_of(2))
    with pytest.raises(InferenceFailed, match=r"seat-\d \(PNode .*\): it answers with f32\[2, .* instead of \[1"):
        await asking


async def test_a_request_that_a_host_cannot_answer_names_the_vnode_and_the_pnode(lab):
    _, _, hosts = await set_going(lab)
    hosts.answers = False
    asking = ask(hosts)
    await wait_for(_has(hosts, AskOrder, 1), what="the request")
    hosts.answer(hosts.list(AskOrder)[0], code="failed", message="it holds NaN", vnode_id="b")
    with pytest.raises(InferenceFailed, match=r"VNode b on seat-\d \(PNode .*\): it holds NaN"):
        await asking


async def test_a_host_without_room_for_the_weights_is_named(lab):
    _, run_id, hosts = await set_going(lab)
    hosts.opens = False
    asking = ask(hosts)
    await wait_for(_has(hosts, OpenOrder, 1), what="the order to open")
    seat, order = hosts.told[0]
    refused = Opened(order.epoch, order.step, "out_of_memory", "there are 1,000 bytes")
    hosts.desk.note_opened(run_id, seat, hosts.attempt_of(seat), refused)
    with pytest.raises(InferenceFailed, match=r"PNode .* cannot answer at checkpoint 0: there are 1,000 bytes"):
        await asking


async def test_a_host_without_a_session_is_asked_when_it_is_back(lab):
    _, run_id, hosts = await set_going(lab)
    await ask(hosts)
    seat = next(seat for seat, order in hosts.told if isinstance(order, AskOrder))
    attempt_id = hosts.attempt_of(seat)
    hosts.at.post.open.discard(attempt_id)
    asking = ask(hosts)
    await asyncio.sleep(3 * inference.PAUSE_SECONDS)
    assert not asking.done()
    hosts.at.post.open.add(attempt_id)
    await hosts.at.owner.hear(run_id, Heard(HostJoined(seat, attempt_id)))
    assert (await asking).output == output_of(1)


async def test_requests_beyond_the_limit_are_refused_and_those_under_way_are_not_disturbed(lab, monkeypatch):
    monkeypatch.setattr(inference, "REQUESTS_MAX", 2)
    _, _, hosts = await set_going(lab)
    hosts.answers = False
    under_way = [ask(hosts), ask(hosts)]
    await wait_for(_has(hosts, AskOrder, 2), what="both requests")
    with pytest.raises(LimitExceeded, match="2 requests of this run are under way"):
        await ask(hosts)
    for order in hosts.list(AskOrder):
        hosts.answer(order)
    assert [(await each).output for each in under_way] == [output_of(1)] * 2
    hosts.answers = True
    assert (await ask(hosts)).output == output_of(1)


async def test_a_request_that_nobody_answers_in_time_says_what_the_run_is_at(lab):
    _, _, hosts = await set_going(lab)
    hosts.answers = False
    with pytest.raises(HubUnavailable, match=r"No answer within 0 s\. The run is running"):
        await ask(hosts, seconds=0.2)
    assert hosts.desk._under_way == {}


@pytest.mark.parametrize(
    ("inputs", "error", "words"),
    [
        ({}, InvalidRequest, "input x is missing: give f32"),
        ({"x": to_numbers(1.0), "y": to_numbers(1.0)}, InvalidRequest, "input 'y' is not one of: x"),
        ({"x": TensorBytes("f32", (1, 3), b"\0" * 12)}, InvalidRequest, r"shape \[1, 3\]; it should be \[samples"),
        ({"x": TensorBytes("f64", (1, 3), b"\0" * 24)}, InvalidRequest, "dtype 'f64'; it should be f32"),
        (
            {"x": TensorBytes("f32", to_numbers(1.0).shape, b"")},
            InvalidRequest,
            "0 bytes; a tensor of this shape has",
        ),
        ({"x": to_numbers(*[0.0] * 200_000)}, PayloadTooLarge, "ask in parts"),
    ],
)
async def test_what_cannot_be_asked_is_refused_before_anybody_is_told(lab, inputs, error, words):
    _, run_id, hosts = await set_going(lab)
    with pytest.raises(error, match=words):
        await hosts.desk.answer(run_id, 0, inputs, seconds=SECONDS)
    assert hosts.told == []


async def test_only_who_pays_for_the_seats_may_ask_them(lab):
    by, run_id, hosts = await set_going(lab)
    row = await lab.row(run_id)
    stranger = await lab.spine.sign_up()
    operator = replace(stranger, roles=stranger.roles | {Role.OPERATOR})
    assert await hosts.desk.find_run(by, run_id=run_id, network_id=None) == run_id
    assert await hosts.desk.find_run(by, run_id=None, network_id=row["network_id"]) == run_id
    for other in (stranger, operator):
        with pytest.raises(NotFound):
            await hosts.desk.find_run(other, run_id=run_id, network_id=None)
        with pytest.raises(NotFound):
            await hosts.desk.find_run(other, run_id=None, network_id=row["network_id"])
    with pytest.raises(InvalidRequest, match="Name the run"):
        await hosts.desk.find_run(by, run_id=None, network_id=None)


async def test_another_hub_says_who_owns_the_run_and_a_run_that_is_over_answers_nobody(lab):
    by, run_id, hosts = await set_going(lab)
    elsewhere = lab.open_owner()
    with pytest.raises(RunElsewhere) as refusal:
        await InferenceDesk(lab.spine.pool, elsewhere.owner, elsewhere.post).find_run(
            by, run_id=run_id, network_id=None
        )
    assert refusal.value.details["owner_address"] == "hub.example:9000"
    hosts.answers = False
    asking = ask(hosts)
    await wait_for(_has(hosts, AskOrder, 1), what="the request")
    await hosts.at.owner.hear(run_id, Heard(StopAsked()))
    await hosts.at.wait(31)
    with pytest.raises(RunElsewhere):
        await asking
    with pytest.raises(NoLiveRun, match="stopped"):
        await hosts.desk.find_run(by, run_id=run_id, network_id=None)


def _has(hosts: Hosts, kind: type[Any], count: int) -> Any:
    async def holds() -> bool:
        return len(hosts.list(kind)) >= count

    return holds


async def _store_steps(lab: RunLab, hosts: Hosts, first: int, last: int) -> None:
    for step in range(first, last + 1):
        await lab.step(hosts.at, hosts.run_id, step)
        await lab.store(hosts.at, hosts.run_id, step)

"""Audits of runs on a real database: orders to hosts, what is written of the answers, who is not paid and who is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from computepool import clock
from computepool.core.ids import NodeId
from computepool.core.networks.audit import AuditOutcome, PeerDigests, Replayed, SpanDigest
from computepool.core.networks.placement import SeatId
from computepool.core.networks.run import RunState, SessionClosed, seat_id
from computepool.core.trust.standing import NodeTrust, Standing
from computepool.hub.services import runs as run_service
from computepool.hub.services import standings
from computepool.hub.services.owners import Heard, PrepareOrder
from computepool.hub.services.run_audits import ReplayOrder, RunAudits, ShowOrder
from computepool.hub.store import run_audits as audit_store
from computepool.hub.store import runs as run_store
from computepool.hub.store import validation as validation_store
from computepool.wire.attempts import Usage
from tests.support.networks import make_mlp
from tests.support.run_lab import OwnerAtWork, RunLab, open_run_lab

FIRST, MIDDLE, LAST = SEATS = (seat_id(0), seat_id(1), seat_id(2))


@pytest.fixture
async def lab(dsn: str, tmp_path: Path) -> AsyncIterator[RunLab]:
    async with open_run_lab(dsn, tmp_path) as lab:
        yield lab


def digest(word: str) -> bytes:
    return word.encode().ljust(32, b".")


class Audited:
    """A run of three seats in a chain, whose hosts a test plays."""

    def __init__(self, lab: RunLab, at: OwnerAtWork, by, run_id) -> None:
        self.lab, self.at, self.by, self.run_id = lab, at, by, run_id

    @property
    def audits(self) -> RunAudits:
        assert self.at.owner.audits is not None
        return self.at.owner.audits

    def attempt(self, seat: SeatId):
        return self.at.run(self.run_id).seats[seat].attempt_id

    def span(self, seat: SeatId, until: int) -> SpanDigest:
        number = SEATS.index(seat)
        peers = {
            other: PeerDigests(digest(f"{seat}>{other}"), digest(f"{other}>{seat}"))
            for other in SEATS[max(0, number - 1) : number + 2]
            if other != seat
        }
        return SpanDigest(self.at.run(self.run_id).epoch, until - 10, until, peers)

    async def advance(self, until: int) -> None:
        """Ten steps more, told, stored and claimed."""
        await self.lab.step(self.at, self.run_id, *range(until - 9, until + 1))
        for seat in SEATS:
            await self.audits.hear_claim(self.run_id, seat, self.attempt(seat), self.span(seat, until))
        await self.lab.store(self.at, self.run_id, until)
        await self.rest()

    async def rest(self) -> None:
        """Until what goes on beside is done."""
        while self.at.owner._chores:
            await asyncio.gather(*self.at.owner._chores)

    async def serve(self, *, wrong: SeatId | None = None) -> None:
        """Everybody shows and replays what is asked; of one seat all come to something else than it claims."""
        while orders := [pair for pair in self.at.post.sent if isinstance(pair[1], ShowOrder | ReplayOrder)]:
            self.at.post.sent = [pair for pair in self.at.post.sent if pair not in orders]
            for attempt_id, order in orders:
                if attempt_id not in self.at.post.open:
                    # Whoever is gone does nothing more.
                    continue
                if isinstance(order, ShowOrder):
                    await self._show(attempt_id, order)
                else:
                    await self._replay(attempt_id, order, differs=order.seat == wrong)
            await self.rest()

    async def _show(self, attempt_id, order: ShowOrder) -> None:
        seat = next(id for id in SEATS if self.attempt(id) == attempt_id)
        content = f"{order.audit_id} {seat}".encode()
        part = await self.lab.put_part(attempt_id, self.run_id, "log", 1, 1, content)
        await self.audits.hear_log(self.run_id, seat, order.audit_id, part.sha256.hex())

    async def _replay(self, attempt_id, order: ReplayOrder, *, differs: bool) -> None:
        span = self.span(order.seat, order.until_step)
        peers = {
            seat: PeerDigests(digest("right") if differs else each.sent, each.received)
            for seat, each in span.peers.items()
        }
        states = {part.vnode_id: part.digest for part in order.stored}
        found = Replayed(peers, b"", states, states)
        await self.audits.hear_replay(self.run_id, attempt_id, order.audit_id, found, "")

    async def outcomes(self) -> dict[str, int]:
        rows = await self.lab.spine.fetch("SELECT outcome::text, count(*) FROM run_audits GROUP BY 1")
        return {row["outcome"]: row["count"] for row in rows}


async def set_going(lab: RunLab, *, pnodes: int = 4, **options) -> Audited:
    by = await lab.spine.sign_up(credits=100_000)
    for _ in range(pnodes):
        await lab.enrol_pnode()
    network = await lab.create(by, make_mlp(checkpoint_every=10))
    view = await lab.start(by, network, seats=3, **options)
    at = lab.open_owner()
    await at.look()
    await lab.set_going(at, view.row.id)
    return Audited(lab, at, by, view.row.id)


async def test_neighbours_show_and_others_replay_and_the_checkpoint_is_audited(lab):
    run = await set_going(lab)
    await run.advance(10)
    shows = run.at.post.list(ShowOrder)
    assert {(order.seat, order.from_step, order.until_step) for order in shows} == {(seat, 0, 10) for seat in SEATS}
    await run.serve()
    assert await run.outcomes() == {"agreed": 3}
    view = await run_service.get_run(lab.spine.pool, run.by, run.run_id)
    assert view.audits == {AuditOutcome.AGREED: 3}
    [checkpoint] = await run_service.list_checkpoints(lab.spine.pool, run.by, run.run_id)
    assert checkpoint.audited_at is not None
    # Logs are gone as soon as nobody needs them.
    [loose] = await lab.spine.fetch(
        "SELECT count(*) FROM run_blobs b WHERE NOT EXISTS "
        "(SELECT 1 FROM run_checkpoint_parts p WHERE p.sha256 = b.sha256)"
    )
    assert loose["count"] == 0
    lines, _ = await run_service.read_feed(lab.spine.pool, run.by, run.run_id, after=0)
    assert sum("steps 1 to 10: agreed" in line.message for line in lines) == 3


async def test_who_is_wrong_loses_its_seat_its_pay_and_the_steps_since_and_the_rest_is_kept(lab):
    run = await set_going(lab)
    await lab.turn_back(run.run_id, 1_000)
    await run.advance(10)
    await run.serve()
    # As if half as much time more had passed since that checkpoint.
    await lab.turn_back(run.run_id, 500)
    await lab.spine.fetch("UPDATE run_checkpoints SET complete_at = complete_at - interval '500 seconds'")
    wrong, honest = run.attempt(MIDDLE), run.attempt(FIRST)
    node_id = run.at.run(run.run_id).seats[MIDDLE].node_id
    await run.advance(20)
    await run.serve(wrong=MIDDLE)
    state = run.at.run(run.run_id)
    assert (state.checkpoint_step, state.step, state.epoch) == (10, 10, 2)
    row = await lab.row(run.run_id)
    assert (row["checkpoint_step"], row["step"]) == (10, 10)
    steps = await lab.spine.fetch("SELECT step FROM run_checkpoints WHERE run_id = $1 ORDER BY step", run.run_id)
    assert [each["step"] for each in steps] == [10]
    [attempt] = await lab.spine.fetch("SELECT * FROM attempts WHERE id = $1", wrong)
    # The first checkpoint came 1,000 s after its lease, the second 1,500: what came after the first is not paid.
    assert attempt["cause"] == "wrong_result"
    assert 1_000 <= attempt["checkpoint_seconds"] < 1_500
    [paid] = await lab.spine.fetch("SELECT checkpoint_seconds FROM attempts WHERE id = $1", honest)
    assert paid["checkpoint_seconds"] >= 1_500
    assert (await run.outcomes())["wrong"] == 1
    # The run goes on with somebody else.
    await run.at.look(seconds=2)
    assert run.at.run(run.run_id).seats[MIDDLE].node_id not in (None, node_id)
    await lab.set_going(run.at, run.run_id)
    orders = [order for order in run.at.post.list(PrepareOrder) if order.epoch == 2]
    assert {order.checkpoint_step for order in orders} == {10}


async def test_pay_that_was_settled_before_it_came_out_is_taken_back(lab):
    run = await set_going(lab)
    await lab.turn_back(run.run_id, 100)
    await run.advance(10)
    wrong = run.attempt(MIDDLE)
    # It has left, and was paid to the checkpoint, before anybody has replayed it.
    run.at.post.open.discard(wrong)
    await run.at.owner.hear(run.run_id, Heard(SessionClosed(MIDDLE, wrong)))
    await run.at.wait(3.0)
    await run.rest()
    [attempt] = await lab.spine.fetch("SELECT * FROM attempts WHERE id = $1", wrong)
    assert attempt["charged_microcredits"] > 0
    await run.serve(wrong=MIDDLE)
    [attempt] = await lab.spine.fetch("SELECT * FROM attempts WHERE id = $1", wrong)
    assert attempt["earning_state"] == "reversed"
    [dispute] = await lab.spine.fetch("SELECT origin::text, state::text FROM disputes WHERE attempt_id = $1", wrong)
    assert (dispute["origin"], dispute["state"]) == ("audit", "upheld")
    assert run.at.run(run.run_id).checkpoint_step == 0


async def test_two_wrong_make_a_node_bugged_and_it_gets_no_seat(lab):
    run = await set_going(lab)
    node_id = await put_wrong(lab, run, 1)
    async with lab.spine.pool.acquire() as conn:
        assert (await audit_store.list_standings(conn, [node_id]))[node_id][1] == 0
    await run.advance(10)
    await run.serve(wrong=MIDDLE)
    async with lab.spine.pool.acquire() as conn:
        trust = (await validation_store.list_trust(conn, [node_id]))[node_id]
    assert (trust.standing, trust.bugged_count) == (Standing.BUGGED, 1)
    assert trust.since is not None
    # A newcomer had no tenure to lose, and begins none.
    assert trust.serving_since is None
    by = await lab.spine.sign_up(credits=100_000)
    view = await lab.start(by, seats=1, node_ids=(node_id,))
    await run.at.look(seconds=2)
    waiting = run.at.run(view.row.id)
    assert all(seat.is_vacant for seat in waiting.seats.values())


async def put_wrong(lab: RunLab, run: Audited, count: int) -> NodeId:
    """So many spans of the one in the middle that others have got otherwise."""
    node_id = run.at.run(run.run_id).seats[MIDDLE].node_id
    assert node_id is not None
    async with lab.spine.pool.acquire() as conn:
        for number in range(1, count + 1):
            row = audit_store.AuditRow(
                UUID(int=number),
                run.run_id,
                1,
                MIDDLE,
                run.attempt(MIDDLE),
                node_id,
                0,
                10,
                AuditOutcome.WRONG,
                (),
                "",
            )
            await audit_store.insert_audit(conn, row)
    return node_id


async def test_what_a_node_found_wrong_by_a_network_has_earned_by_jobs_is_lost_by_whichever_hub_is_there(lab):
    earned = {}
    for _ in range(4):
        node = await lab.enrol_pnode()
        await lab.spine.submit()
        earned[node.id] = await lab.spine.grant_one(node)
        await lab.spine.succeed(node, earned[node.id], usage=Usage(run_seconds=60.0))
    run = await set_going(lab, pnodes=0)
    node_id = await put_wrong(lab, run, 1)
    await run.advance(10)
    await run.serve(wrong=MIDDLE)

    async def list_pay() -> dict[NodeId, str]:
        states = "SELECT node_id, earning_state::text AS state FROM attempts WHERE id = ANY($1)"
        rows = await lab.spine.fetch(states, [grant.id for grant in earned.values()])
        return {row["node_id"]: row["state"] for row in rows}

    # Whoever owned the run may be gone: what is to be done stands in the record.
    assert set((await list_pay()).values()) == {"pending"}
    await standings.follow_due(lab.spine.pool, limit=10)
    assert await list_pay() == {id: "reversed" if id == node_id else "pending" for id in earned}
    assert await lab.spine.fetch_value("SELECT count(*) FROM trust_effects") == 0


async def test_what_a_node_has_answered_for_does_not_count_again(lab):
    run = await set_going(lab)
    node_id = await put_wrong(lab, run, 2)
    await lab.spine.fetch("UPDATE run_audits SET decided_at = decided_at - interval '9 days'")
    back = NodeTrust(since=clock.now() - timedelta(days=1), bugged_count=1)
    async with lab.spine.pool.acquire() as conn:
        await validation_store.put_trust(conn, node_id, back)
    await run.advance(10)
    await run.serve(wrong=MIDDLE)
    async with lab.spine.pool.acquire() as conn:
        assert (await validation_store.list_trust(conn, [node_id]))[node_id] == back


@pytest.mark.parametrize("standing", Standing)
async def test_a_node_that_is_out_for_wrong_results_of_jobs_gets_no_seat_either(lab, standing):
    node = await lab.enrol_pnode()
    async with lab.spine.pool.acquire() as conn:
        await validation_store.put_trust(conn, node.id, NodeTrust(standing=standing, wrong_at=(1,)))
    view = await lab.start(await lab.spine.sign_up(credits=100_000), seats=1)
    at = lab.open_owner()
    await at.look()
    [seat] = at.run(view.row.id).seats.values()
    assert seat.is_vacant == (standing not in (Standing.CLEAR, Standing.SUSPECT))


async def test_checkpoints_that_a_replay_may_begin_at_are_kept_and_then_freed(lab):
    run = await set_going(lab, steps=80)
    for until in range(10, 70, 10):
        await run.advance(until)
    steps = await lab.spine.fetch("SELECT step FROM run_checkpoints WHERE run_id = $1 ORDER BY step", run.run_id)
    assert [each["step"] for each in steps] == [10, 20, 30, 40, 50, 60]
    await run.serve()
    await run.advance(70)
    steps = await lab.spine.fetch("SELECT step FROM run_checkpoints WHERE run_id = $1 ORDER BY step", run.run_id)
    assert [each["step"] for each in steps] == [50, 60, 70]


async def test_a_run_ends_when_its_audits_are_settled(lab):
    run = await set_going(lab, steps=10)
    await run.advance(10)
    row = await lab.row(run.run_id)
    assert (row["state"], row["checkpoint_step"], row["message"]) == ("running", 10, "its last steps are audited")
    await run.serve()
    await run.at.look(seconds=1)
    await run.rest()
    assert (await lab.row(run.run_id))["state"] == RunState.SUCCEEDED.value


async def test_what_hosts_say_of_audits_that_nobody_ordered_changes_nothing(lab):
    run = await set_going(lab)
    await run.audits.hear_log(run.run_id, FIRST, UUID(int=9), "0" * 64)
    await run.audits.hear_replay(run.run_id, run.attempt(FIRST), UUID(int=9), None, "why")
    stranger = UUID(int=7)
    await run.audits.hear_claim(run.run_id, FIRST, stranger, run.span(FIRST, 10))
    assert await run.outcomes() == {}
    async with lab.spine.pool.acquire() as conn:
        assert await run_store.find_run(conn, run.run_id) is not None

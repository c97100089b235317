"""Where networks go, on a real database: by speed, memory and links, and without moving what need not move."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from computepool.core.networks.needs import list_needs
from computepool.core.networks.run import LeaveAnnounced
from computepool.hub.services import owners
from computepool.hub.services import plans as plan_service
from computepool.hub.services.owners import Heard
from computepool.hub.services.pnodes import note_rate, record_hosting
from computepool.wire.nodes import Hosting
from tests.support.builders import GB
from tests.support.networks import make_mlp
from tests.support.run_lab import RunLab, open_run_lab, prepares

HOME = Hosting(
    numeric_class="avx2",
    memory_bytes=GB,
    flops_per_second=1e10,
    bytes_per_second=2.5e6,
    latency_seconds=0.05,
)


@pytest.fixture
async def lab(dsn: str, tmp_path: Path) -> AsyncIterator[RunLab]:
    async with open_run_lab(dsn, tmp_path) as lab:
        yield lab


async def plan(lab: RunLab, by, network, **options):
    return await plan_service.plan_network(
        lab.spine.pool, lab.spine.leases.prices, lab.spine.settings, by, network.id, lab.options(**options)
    )


async def test_a_plan_reckons_with_the_links_that_owners_declare_or_hubs_have_measured(lab):
    by = await lab.spine.sign_up(credits=100_000)
    nodes = [await lab.enrol_pnode() for _ in range(2)]
    network = await lab.create(by)
    free = await plan(lab, by, network, seats=2)
    assert "not known" in free.warnings[-1]
    # What a hub has seen counts where nothing is declared. A small content says nothing about the line.
    for node in nodes:
        await note_rate(lab.spine.pool, node.id, size_bytes=10_000, seconds=10.0)
    assert (await plan(lab, by, network, seats=2)).samples_per_second == free.samples_per_second
    for node in nodes:
        await note_rate(lab.spine.pool, node.id, size_bytes=2_500_000, seconds=1_000.0)
    thin = await plan(lab, by, network, seats=2)
    assert thin.samples_per_second < free.samples_per_second / 2
    assert not any("not known" in words for words in thin.warnings)
    async with lab.spine.pool.acquire() as conn:
        for node in nodes:
            await record_hosting(conn, node.id, HOME)
    home = await plan(lab, by, network, seats=2)
    # There and back, for each of four micro-batches at two under way: 0.1 s twice and more.
    assert 0.2 < make_mlp().batch_size / home.samples_per_second < 0.5


async def train_slowly(lab: RunLab, by, network, *, step_seconds: float, epoch: int = 1) -> None:
    """From its start to its end, every step so long; written as of this epoch, while it ends in the first."""
    view = await lab.start(by, network)
    run_id = view.row.id
    at = lab.open_owner()
    await at.look()
    await lab.set_going(at, run_id)
    await lab.step(at, run_id, *range(1, 41))
    await lab.spine.fetch(
        "UPDATE run_metrics SET at = now() + (step - 40) * $2::float8 * interval '1 second' WHERE run_id = $1",
        run_id,
        step_seconds,
    )
    if epoch != 1:
        await lab.spine.fetch("UPDATE run_metrics SET epoch = $2 WHERE run_id = $1", run_id, epoch)
    await lab.store(at, run_id, 40)
    assert (await lab.row(run_id))["state"] == "succeeded"
    await asyncio.gather(*at.owner._chores)


async def test_a_plan_reckons_with_what_runs_lately_came_to(lab):
    by = await lab.spine.sign_up(credits=100_000)
    nodes = [await lab.enrol_pnode(bytes_per_second=2.5e6, latency_seconds=0.05) for _ in range(2)]
    network = await lab.create(by)
    promised = await plan(lab, by, network)
    promised_seconds = make_mlp().batch_size / promised.samples_per_second
    await train_slowly(lab, by, network, step_seconds=2 * promised_seconds)
    after = await plan(lab, by, network)
    assert after.samples_per_second == pytest.approx(promised.samples_per_second / 2, rel=1e-3)
    assert any("50% of what their lines and processors promise" in words for words in after.warnings)
    # A run as promised, held against figures alone and not against the plan: half of the way back.
    await train_slowly(lab, by, network, step_seconds=promised_seconds)
    assert (await plan(lab, by, network)).samples_per_second == pytest.approx(
        0.75 * promised.samples_per_second, rel=1e-3
    )
    await lab.spine.fetch("UPDATE pnodes SET paced_at = now() - interval '2 days'")
    assert await plan(lab, by, network) == promised
    # Of what an agent says anew nothing is known yet.
    await lab.spine.fetch("UPDATE pnodes SET paced_at = now(), pace_ratio = 0.1")
    async with lab.spine.pool.acquire() as conn:
        for node in nodes:
            await record_hosting(conn, node.id, HOME)
    assert await plan(lab, by, network) == promised


async def test_control_a_hub_that_does_not_hold_runs_against_plans_is_found(lab, monkeypatch):
    async def note_nothing(*_) -> None: ...

    monkeypatch.setattr(owners, "note_pace", note_nothing)
    with pytest.raises(AssertionError):
        await test_a_plan_reckons_with_what_runs_lately_came_to(lab)


async def test_steps_of_another_epoch_say_nothing_of_who_takes_part_now(lab):
    by = await lab.spine.sign_up(credits=100_000)
    for _ in range(2):
        await lab.enrol_pnode(bytes_per_second=2.5e6, latency_seconds=0.05)
    network = await lab.create(by)
    promised = await plan(lab, by, network)
    await train_slowly(lab, by, network, step_seconds=3.0, epoch=2)
    assert await plan(lab, by, network) == promised


async def test_the_best_cut_is_leased_and_survivors_keep_what_they_have_after_a_loss(lab):
    """One PNode has half the speed of the others: it gets the lighter end. A loss moves nothing of the others."""
    by = await lab.spine.sign_up(credits=100_000)
    slow = await lab.enrol_pnode(flops_per_second=5e9)
    nodes = [slow, await lab.enrol_pnode(), await lab.enrol_pnode()]
    view = await lab.start(by, seats=3)
    run_id = view.row.id
    at = lab.open_owner()
    await at.look()
    work = {need.part: need.flops for need in list_needs(make_mlp())}
    run = at.run(run_id)
    on = {seat.node_id: sum(work[part] for part in run.list_parts(seat.id)) for seat in run.taken_seats}
    assert min(on, key=lambda node_id: on[node_id]) == slow.id
    await lab.set_going(at, run_id)
    victim = next(seat for seat in run.taken_seats if seat.node_id == nodes[1].id)
    spare = await lab.enrol_pnode()
    await lab.see(slow, nodes[2], spare)
    await at.owner.hear(run_id, Heard(LeaveAnnounced(victim.id, victim.attempt_id)))
    after = at.run(run_id)
    assert after.seats[victim.id].node_id == spare.id
    kept = {each.vnode_id: (each.seat, each.incarnation) for each in run.locations if each.seat != victim.id}
    assert kept.items() <= {each.vnode_id: (each.seat, each.incarnation) for each in after.locations}.items()


async def test_those_who_stay_are_told_to_go_on_when_they_take_what_was_lost(lab):
    """Nobody joins anew, so nothing else would bring them the order."""
    by = await lab.spine.sign_up(credits=100_000)
    nodes = [await lab.enrol_pnode() for _ in range(2)]
    view = await lab.start(by)
    run_id = view.row.id
    at = lab.open_owner()
    await at.look()
    await lab.set_going(at, run_id)
    await lab.step(at, run_id, *range(1, 12))
    await lab.store(at, run_id, 10)
    gone, stays = at.run(run_id).taken_seats
    await at.owner.hear(run_id, Heard(LeaveAnnounced(gone.id, gone.attempt_id)))
    await at.look(seconds=3.0)
    run = at.run(run_id)
    assert run.epoch == 2
    assert [seat.id for seat in run.taken_seats] == [stays.id]
    assert len(nodes) == 2
    [order] = prepares(at, epoch=2)
    assert (order.seat, order.checkpoint_step) == (stays.id, 10)
    assert {part.vnode_id for part in order.parts} == {"a", "b", "head", "loss"}

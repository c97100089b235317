"""What service earns, on a real database: better terms after months of it, and none of the pay before probation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from computepool import clock
from computepool.core.ledger.accounts import owner_available, owner_pending
from computepool.core.ledger.explain import PayMark
from computepool.core.trust.standing import NodeTrust, Standing
from computepool.core.trust.validation import Verify
from computepool.hub.services import pay as pay_service
from computepool.hub.services import releases, standings, trust_views
from computepool.hub.services.receipts import verify_receipts
from computepool.hub.services.releases import release_due
from computepool.hub.store import ledger
from computepool.hub.store.attempts import Grant
from computepool.hub.store.queries import load_queries
from computepool.wire.attempts import Usage
from tests.integration.test_dispatch_rounds import compose
from tests.support.earnings import get_balance
from tests.support.spine import EnrolledNode
from tests.support.validation_lab import WRONG, Lab, open_validation_lab, veteran

HOUR = 3_600
USUAL, BEST = (200_000, 72 * HOUR), (150_000, 6 * HOUR)


@pytest.fixture
async def lab(dsn: str, tmp_path) -> AsyncIterator[Lab]:
    async with open_validation_lab(dsn, tmp_path, holdback_seconds=72 * HOUR) as lab:
        yield lab
        await check_books(lab)


@pytest.fixture
async def quick(dsn: str, tmp_path) -> AsyncIterator[Lab]:
    """Nothing is held back, so that all that waits waits for something else."""
    async with open_validation_lab(dsn, tmp_path, holdback_seconds=0) as lab:
        yield lab
        await check_books(lab)


async def check_books(lab: Lab) -> None:
    async with lab.spine.pool.acquire() as conn:
        assert await conn.fetchval("SELECT coalesce(sum(balance), 0) FROM ledger_accounts") == 0
        assert await ledger.list_drifts(conn) == []


async def serve(lab: Lab, node: EnrolledNode, days: int) -> None:
    """It has been trusted for so long."""
    await lab.put_trust(node, veteran())
    await lab.spine.fetch(
        "UPDATE node_trust SET serving_since = clock_timestamp() - $2 * interval '1 day' WHERE node_id = $1",
        node.id,
        days,
    )


async def terms(lab: Lab, grant: Grant) -> tuple[int, int]:
    row = await lab.spine.attempt(grant)
    return row["fee_ppm"], row["holdback_seconds"]


async def release(lab: Lab, *, limit: int = 100) -> releases.Released:
    await verify_receipts(lab.spine.pool, hub_id=lab.spine.keyring.hub_id, limit=1_000)
    return await release_due(lab.spine.pool, limit=limit)


async def free(lab: Lab, node: EnrolledNode) -> int:
    return await get_balance(lab.spine.pool, owner_available(node.caller.account_id))


async def pending(lab: Lab, node: EnrolledNode) -> int:
    return await get_balance(lab.spine.pool, owner_pending(node.caller.account_id))


async def run_unchecked(lab: Lab, node: EnrolledNode, seconds: float) -> Grant:
    """Of so long, by the database's clock and by the node's word."""
    await lab.spine.submit(wall_seconds=3_600)
    grant = await lab.spine.grant_one(node)
    await lab.spine.fetch("UPDATE attempts SET leased_at = leased_at - interval '1 hour' WHERE id = $1", grant.id)
    await lab.spine.succeed(node, grant, usage=Usage(run_seconds=seconds))
    return grant


# Tenure


async def test_a_veteran_is_held_back_for_six_hours_and_paid_five_percent_of_the_price_more(lab):
    old, new = await lab.enrol(), await lab.enrol()
    await serve(lab, old, 180)
    rows = {}
    for node, agreed in ((old, BEST), (new, USUAL)):
        grant = await run_unchecked(lab, node, 1_234.5)
        assert await terms(lab, grant) == agreed
        row = rows[node.id] = await lab.spine.attempt(grant)
        assert abs(row["release_at"] - row["finished_at"] - timedelta(seconds=agreed[1])) < timedelta(minutes=1)
        assert await pending(lab, node) == row["charged_microcredits"] - row["fee_microcredits"]
    price = rows[old.id]["charged_microcredits"]
    assert price == rows[new.id]["charged_microcredits"], "it costs the submitter the same"
    assert rows[old.id]["fee_microcredits"] == -(-price * 15 // 100)
    assert rows[new.id]["fee_microcredits"] == -(-price * 20 // 100)
    await lab.spine.fetch("UPDATE attempts SET release_at = clock_timestamp()")
    assert (await release(lab)).attempt_count == 2
    assert await free(lab, old) == price - -(-price * 15 // 100)
    assert await free(lab, new) == price - -(-price * 20 // 100)


async def test_terms_are_agreed_with_each_lease_of_a_round_and_of_a_submit(lab):
    old, middling, new = [await lab.enrol() for _ in range(3)]
    await serve(lab, old, 400)
    await serve(lab, middling, 105)
    await lab.spine.submit(slice_count=3)
    grants = {grant.node_id: grant for grant in await lab.spine.grant(old, middling, new)}
    agreed = {node_id: await terms(lab, grant) for node_id, grant in grants.items()}
    assert agreed == {old.id: BEST, middling.id: (175_000, 39 * HOUR), new.id: USUAL}
    born = await lab.enrol()
    await serve(lab, born, 180)
    lab.spine.bench.put(await lab.spine.list_candidates(born))
    job = await lab.spine.submit()
    [row] = await lab.spine.fetch("SELECT fee_ppm, holdback_seconds FROM attempts WHERE job_id = $1", job.id)
    assert tuple(row) == BEST


async def test_whoever_checks_others_has_the_same_terms_for_that(lab):
    newcomer, auditor = await lab.enrol(), await lab.enrol()
    await serve(lab, auditor, 180)
    await lab.run(newcomer)
    await lab.look()
    [asked] = await lab.list_asked()
    assert asked.node_id == auditor.id
    assert await terms(lab, asked) == BEST
    await lab.settle()


async def test_a_wrong_result_starts_it_anew(lab, monkeypatch):
    monkeypatch.setattr("computepool.hub.services.validation.is_audited", lambda rate, draw: True)
    node = await lab.enrol()
    await serve(lab, node, 180)
    for _ in range(3):
        await lab.enrol(vouched=True)
    _, grant = await lab.run(node, WRONG)
    assert await terms(lab, grant) == BEST
    await lab.settle()
    trust = await lab.trust(node)
    assert trust.standing is Standing.SUSPECT
    assert trust.serving_since is not None
    assert clock.now() - trust.serving_since < timedelta(minutes=5)
    assert await lab.spine.fetch_value("SELECT count(*) FROM hub_changes WHERE subject_id = $1", node.id), (
        "hubs are told"
    )
    await lab.spine.submit()
    assert await terms(lab, await lab.spine.grant_one(node)) == USUAL


@pytest.mark.parametrize("hears", [True, False], ids=["as it is", "control"])
async def test_a_hub_that_runs_takes_the_terms_back_when_it_hears_of_a_wrong_result(lab, hears):
    spine, node = lab.spine, await lab.enrol(cpu_slots=2)
    await serve(lab, node, 180)
    hub = compose(spine)
    await hub.rounds._tick(lambda _: None)
    agreed = []
    for name in ("cpu:0", "cpu:1"):
        await hub.park(node, name)
        if name == "cpu:1":
            await serve(lab, node, 0)
            if hears:
                async with spine.pool.acquire() as conn:
                    await standings.tell_standing(conn, node.id, await lab.trust(node))
            await hub.rounds._tick(lambda _: None)
        [job] = await hub.submit()
        [row] = await spine.fetch("SELECT fee_ppm, holdback_seconds FROM attempts WHERE job_id = $1", job.id)
        agreed.append(tuple(row))
    assert agreed == [BEST, USUAL if hears else BEST]


async def test_an_owner_reads_what_tenure_has_brought_and_why_it_was_paid_so(lab):
    owner = await lab.spine.sign_up()
    node = await lab.enrol(owner=owner)
    await serve(lab, node, 180)
    found = await trust_views.get_trust(lab.spine.pool, lab.spine.leases.prices, owner, node.id)
    assert (found.terms.holdback_seconds, found.bonus_ppm) == (6 * HOUR, 50_000)
    await run_unchecked(lab, node, 600)
    story = await pay_service.explain_day(
        lab.spine.pool, owner, node.id, day=clock.now().date(), cursor=None, limit=10
    )
    [(_, explained)] = story.attempts
    assert (explained.mark, explained.differences, story.waits) == (PayMark.PAID, (), {})


# Probation


async def test_a_newcomers_pay_for_checked_results_is_free_with_the_twentieth_right_one(quick):
    lab = quick
    newcomer = await lab.enrol()
    await lab.enrol(vouched=True)
    for _ in range(19):
        await lab.run(newcomer)
        await lab.settle()
    earned = await pending(lab, newcomer)
    assert earned > 0
    released = await release(lab)
    assert released.put_off_count == 19
    assert await free(lab, newcomer) == 0
    assert await pending(lab, newcomer) == earned
    assert await release(lab) == releases.Released(), "what waits is not looked at again with every look"
    await lab.run(newcomer)
    await lab.settle()
    assert (await lab.trust(newcomer)).integrity.validated_count == 20
    assert (await release(lab)).put_off_count == 0
    assert await pending(lab, newcomer) == 0
    assert await free(lab, newcomer) > earned
    assert await lab.spine.fetch_value("SELECT count(*) FROM attempts WHERE pay_waits_since IS NOT NULL") == 0


async def test_control_a_hub_without_the_condition_pays_the_newcomer_at_once(quick, monkeypatch):
    lab = quick
    monkeypatch.setattr(releases, "find_pay_wait", lambda *_, **__: None)
    newcomer = await lab.enrol()
    await lab.enrol(vouched=True)
    await lab.run(newcomer)
    await lab.settle()
    await release(lab)
    assert await free(lab, newcomer) > 0


async def test_pay_for_what_nobody_checks_is_released_as_ever(quick):
    lab = quick
    newcomer = await lab.enrol()
    await lab.run(newcomer, compare=None)
    await lab.run(newcomer, verify=Verify.NONE)
    assert (await release(lab)).attempt_count == 2
    assert await free(lab, newcomer) > 0


async def test_the_second_of_a_quorum_waits_for_probation_too(quick):
    lab = quick
    first, second = await lab.enrol(), await lab.enrol()
    await lab.run(first, verify=Verify.QUORUM)
    await lab.settle()
    assert await pending(lab, second) > 0
    assert (await release(lab)).put_off_count == 2
    assert await free(lab, first) == await free(lab, second) == 0


async def test_after_thirty_days_of_a_clear_node_its_pay_is_free_without_probation(quick):
    lab = quick
    newcomer = await lab.enrol()
    await lab.enrol(vouched=True)
    await lab.run(newcomer)
    await lab.settle()
    for days, is_free in ((29, False), (2, True)):
        await lab.spine.fetch(
            "UPDATE attempts SET leased_at = leased_at - $1 * interval '1 day', finished_at = finished_at - $1 *"
            " interval '1 day', release_at = release_at - $1 * interval '1 day'",
            days,
        )
        await release(lab)
        assert (await free(lab, newcomer) > 0) is is_free


async def test_the_operators_word_frees_it(quick):
    lab = quick
    newcomer = await lab.enrol()
    await lab.enrol(vouched=True)
    await lab.run(newcomer)
    await lab.settle()
    await release(lab)
    assert await free(lab, newcomer) == 0
    await trust_views.vouch(lab.spine.pool, lab.spine.leases.prices, newcomer.id, vouched=True)
    await release(lab)
    assert await free(lab, newcomer) > 0


async def test_pay_of_a_suspect_is_put_off_and_taken_up_when_it_is_clear(quick):
    lab = quick
    node = await lab.enrol()
    await lab.enrol(vouched=True)
    suspect = NodeTrust(integrity=veteran().integrity, standing=Standing.SUSPECT, wrong_at=(200 - 49,))
    await lab.put_trust(node, suspect)
    await lab.run(node, compare=None)
    assert (await release(lab)).put_off_count == 1
    assert await free(lab, node) == 0
    await lab.run(node)
    await lab.settle()
    assert (await lab.trust(node)).standing is Standing.CLEAR
    await release(lab)
    assert await pending(lab, node) == 0
    assert await free(lab, node) > 0


async def test_what_waits_stands_in_nobodys_way(quick):
    lab = quick
    newcomer, other = await lab.enrol(), await lab.enrol(vouched=True)
    await lab.run(newcomer)
    await lab.settle()
    await lab.spine.fetch(
        "UPDATE attempts SET release_at = release_at - interval '1 hour' WHERE node_id = $1", newcomer.id
    )
    first, second = await release(lab, limit=1), await release(lab, limit=1)
    assert (first.put_off_count, first.attempt_count) == (1, 0)
    assert (second.put_off_count, second.attempt_count) == (0, 1)
    assert await free(lab, other) > 0


async def test_word_that_never_came_delays_pay_by_a_day_and_no_more(quick, monkeypatch):
    async def forget(*_, **__):
        pass

    lab = quick
    newcomer = await lab.enrol()
    await lab.enrol(vouched=True)
    await lab.run(newcomer)
    await lab.settle()
    await release(lab)
    monkeypatch.setattr(standings.credit_store, "take_up", forget)
    await lab.put_trust(newcomer, NodeTrust(is_vouched=True))
    await release(lab)
    assert await free(lab, newcomer) == 0
    await lab.spine.fetch("UPDATE attempts SET release_at = release_at - interval '1 day'")
    await release(lab)
    assert await free(lab, newcomer) > 0


async def test_an_owner_reads_why_pay_waits(quick):
    lab = quick
    owner = await lab.spine.sign_up()
    newcomer = await lab.enrol(owner=owner)
    await lab.enrol(vouched=True)
    _, grant = await lab.run(newcomer)
    await lab.settle()
    due_at = (await lab.spine.attempt(grant))["release_at"]
    await release(lab)
    found = await trust_views.get_trust(lab.spine.pool, lab.spine.leases.prices, owner, newcomer.id)
    assert (found.waiting_count, found.waiting_microcredits) == (1, await pending(lab, newcomer))
    story = await pay_service.explain_day(
        lab.spine.pool, owner, newcomer.id, day=clock.now().date(), cursor=None, limit=10
    )
    [(attempt, explained)] = story.attempts
    assert explained.mark is PayMark.PAID
    assert "probation (19 right results to go)" in story.waits[attempt.id]
    assert attempt.release_at == due_at, "when its holdback was over, not when it is looked at again"


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("take_due", "attempts_release_idx"),
        ("take_up", "attempts_waiting_pay_idx"),
        ("sum_waiting", "attempts_waiting_pay_idx"),
    ],
)
async def test_neither_what_is_due_nor_what_waits_is_looked_for_in_all_attempts(quick, name, index):
    node = await quick.enrol()
    given = {"take_due": (clock.now(), 10), "take_up": (node.id, 10), "sum_waiting": (node.id,)}[name]
    async with quick.spine.pool.acquire() as conn, conn.transaction():
        await conn.execute("SET LOCAL enable_seqscan = off")
        plan = await conn.fetch(f"EXPLAIN {getattr(load_queries('credits'), name).sql}", *given)
    assert any(index in row[0] for row in plan)

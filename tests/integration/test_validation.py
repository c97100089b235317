"""Results that others run again, on a real database: who is asked, who is believed, who is paid and who is not."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
from collections.abc import AsyncIterator
from datetime import timedelta

import numpy as np
import pytest

from computepool import clock
from computepool.core.trust.comparators.kinds import ComparatorKind
from computepool.core.trust.standing import COOL_OFF, NodeTrust, Standing
from computepool.core.trust.validation import Verify
from computepool.hub.services import comparisons, deliveries, inspections, rulings, standings
from computepool.hub.services import jobs as job_service
from computepool.hub.services.attempts import reap_leases
from computepool.hub.services.blocked_inputs import block_input
from computepool.hub.services.releases import release_due
from computepool.hub.store import jobs as job_store
from computepool.hub.store import live as live_store
from computepool.hub.store.attempts import Grant
from computepool.hub.store.jobs import Job
from computepool.wire.jobs import Compare
from tests.support.validation_lab import RIGHT, WRONG, Lab, open_validation_lab, veteran


@pytest.fixture
async def lab(dsn: str, tmp_path) -> AsyncIterator[Lab]:
    async with open_validation_lab(dsn, tmp_path, holdback_seconds=0) as lab:
        yield lab
        # Whatever a story was about, the books are straight.
        assert await lab.spine.fetch_value("SELECT coalesce(sum(balance), 0) FROM ledger_accounts") == 0


async def earned(lab: Lab, node) -> int:
    """What the node's owner has, pending or free."""
    return await lab.spine.fetch_value(
        "SELECT coalesce(sum(balance), 0)::bigint FROM ledger_accounts"
        " WHERE id IN ('owner_pending/' || $1::text, 'owner_available/' || $1::text)",
        str(node.caller.account_id),
    )


OUTPUTS = "SELECT jsonb_array_elements(outputs) ->> 'sha256' AS sha256 FROM attempts"


def to_npy(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


# What is kept back


async def test_a_newcomers_result_is_delivered_once_somebody_else_has_got_the_same(lab):
    newcomer, auditor = await lab.enrol(), await lab.enrol(vouched=True)
    caller = await lab.spine.sign_up()
    job, grant = await lab.run(newcomer, by=caller)
    assert await lab.spine.slice_state(job) == "verifying"
    shown = await job_service.get_job(lab.spine.pool, caller, job.id)
    assert (shown.state.value, shown.verifying_count, shown.charged_microcredits) == ("running", 1, 0)
    assert await lab.output(job) is None
    assert await earned(lab, newcomer) == 0
    await lab.look()
    assert [each.node_id for each in await lab.list_asked()] == [auditor.id]
    await lab.answer()
    await lab.look()
    assert await lab.spine.slice_state(job) == "succeeded"
    assert await lab.output(job) == RIGHT
    assert await lab.outcome(grant) == "agreed"
    assert (await lab.trust(newcomer)).integrity.validated_count == 1
    assert (await lab.trust(auditor)).integrity.validated_count == 1
    assert await earned(lab, newcomer) > 0
    assert await earned(lab, auditor) > 0
    done = await job_service.get_job(lab.spine.pool, caller, job.id)
    assert (done.state.value, done.held_remaining) == ("succeeded", 0)


async def test_a_check_looks_like_the_slice_that_it_runs_again(lab):
    newcomer, auditor = await lab.enrol(), await lab.enrol(vouched=True)
    job = await lab.submit(slice_count=3, env={"A": "1"}, wall_seconds=60)
    grants = await lab.spine.grant(newcomer)
    await lab.deliver(newcomer, grants[0])
    await lab.look()
    [asked] = await lab.list_asked()
    told = await lab.spine.leases.answer([asked])
    first = await lab.spine.leases.answer(grants)
    one, other = told.assignments[0].order, first.assignments[0].order
    one, other = json.loads(one), json.loads(other)
    differing = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
    assert differing == {"attempt_id", "job_id", "node_id"}
    assert one["slice_count"] == 3
    assert auditor.id == asked.node_id
    assert job.id != asked.job_id


async def test_without_an_auditor_a_result_is_delivered_after_a_while_as_unverified(lab):
    newcomer = await lab.enrol()
    job, grant = await lab.run(newcomer)
    await lab.look()
    assert await lab.spine.slice_state(job) == "verifying"
    await lab.let_wait(11)
    await lab.look()
    assert await lab.spine.slice_state(job) == "succeeded"
    assert await lab.outcome(grant) == "no_auditor"
    assert (await lab.trust(newcomer)).integrity.validated_count == 0


async def test_a_trusted_nodes_result_is_delivered_at_once_and_some_are_audited(lab):
    trusted, auditor = await lab.enrol(cpu_slots=2), await lab.enrol(vouched=True)
    await lab.put_trust(trusted, veteran())
    outcomes = []
    for _ in range(40):
        job, grant = await lab.run(trusted)
        assert await lab.spine.slice_state(job) == "succeeded"
        await lab.settle()
        outcomes.append(await lab.outcome(grant))
    audited = outcomes.count("agreed")
    assert outcomes.count(None) == 40 - audited
    assert 1 <= audited <= 16, "15 % of 40"
    assert (await lab.trust(auditor)).integrity.validated_count == audited


async def test_a_job_without_a_comparator_is_not_checked_and_neither_is_one_that_asks_for_none(lab):
    newcomer = await lab.enrol()
    for spec in ({"compare": None}, {"verify": Verify.NONE}):
        job, _ = await lab.run(newcomer, **spec)
        assert await lab.spine.slice_state(job) == "succeeded"
    assert await lab.spine.fetch_value("SELECT count(*) FROM checks") == 0


# Who is wrong


async def test_a_forged_result_is_replaced_unpaid_and_its_node_suspect(lab):
    forger = await lab.enrol()
    others = [await lab.enrol(vouched=True) for _ in range(3)]
    job, grant = await lab.run(forger, WRONG)
    await lab.settle()
    assert await lab.output(job) == RIGHT
    assert await lab.outcome(grant) == "found_wrong"
    assert await earned(lab, forger) == 0
    assert (await lab.trust(forger)).standing is Standing.SUSPECT
    assert [(await lab.trust(each)).standing for each in others] == [Standing.CLEAR] * len(others)
    assert "result_replaced" in await lab.spine.list_event_kinds(job)
    assert (await lab.spine.fetch_value("SELECT state::text FROM jobs WHERE id = $1", job.id)) == "succeeded"


async def test_an_auditor_that_is_wrong_itself_harms_nobody_but_itself(lab):
    honest = await lab.enrol()
    bad, *others = [await lab.enrol(vouched=True) for _ in range(4)]
    while True:
        job, _ = await lab.run(honest)
        await lab.look()
        [asked] = await lab.list_asked()
        await lab.settle({bad.id: WRONG})
        assert await lab.output(job) == RIGHT
        if asked.node_id == bad.id:
            break
    assert (await lab.trust(bad)).standing is Standing.SUSPECT
    assert (await lab.trust(honest)).standing is Standing.CLEAR
    assert await earned(lab, bad) == 0
    assert [(await lab.trust(each)).standing for each in others] == [Standing.CLEAR] * len(others)


async def test_a_trusted_forgers_delivered_result_is_taken_back_and_put_right(lab, monkeypatch):
    """And everything else of it that is not finalised is looked at again."""
    monkeypatch.setattr("computepool.hub.services.validation.is_audited", lambda rate, draw: False)
    forger = await lab.enrol()
    await lab.put_trust(forger, veteran())
    for _ in range(3):
        await lab.enrol(vouched=True)
    unseen, _ = await lab.run(forger, WRONG)
    good, _ = await lab.run(forger, RIGHT)
    assert await earned(lab, forger) > 0
    monkeypatch.undo()
    monkeypatch.setattr("computepool.hub.services.validation.is_audited", lambda rate, draw: True)
    caught, grant = await lab.run(forger, WRONG)
    assert await lab.output(caught) == WRONG, "delivered before it was audited"
    await lab.settle()
    assert await lab.outcome(grant) == "found_wrong"
    assert [await lab.output(each) for each in (caught, unseen, good)] == [RIGHT] * 3
    assert (await lab.trust(forger)).standing is Standing.BUGGED, "two wrong ones"
    assert await earned(lab, forger) == 0, "what was held back is lost"
    assert await lab.is_out(forger), "and nothing is leased to it"


async def test_control_a_ruling_that_does_not_take_pay_back_leaves_the_forger_paid(lab, monkeypatch):
    async def keep(*_):
        pass

    monkeypatch.setattr(rulings, "take_pay_back", keep)
    monkeypatch.setattr("computepool.hub.services.validation.is_audited", lambda rate, draw: True)
    forger = await lab.enrol()
    await lab.put_trust(forger, veteran())
    for _ in range(3):
        await lab.enrol(vouched=True)
    await lab.run(forger, WRONG)
    await lab.settle()
    assert await earned(lab, forger) > 0


async def test_control_a_hub_that_withholds_nothing_hands_the_forged_result_out(lab, monkeypatch):
    monkeypatch.setattr("computepool.hub.services.validation.Intake.is_withheld", lambda self, id: False)
    forger = await lab.enrol()
    job, _ = await lab.run(forger, WRONG)
    assert await lab.output(job) == WRONG


async def test_runs_that_differ_by_themselves_blame_nobody_and_the_submitter_is_told(lab):
    newcomer = await lab.enrol()
    auditors = [await lab.enrol(vouched=True) for _ in range(3)]
    answers = {node.id: f"run {number}".encode() for number, node in enumerate(auditors)}
    job, grant = await lab.run(newcomer, b"the first run")
    await lab.settle(answers)
    assert await lab.outcome(grant) == "undecided"
    assert await lab.output(job) == b"the first run"
    for node in (newcomer, *auditors):
        trust = await lab.trust(node)
        assert (trust.standing, trust.integrity.validated_count) == (Standing.CLEAR, 0)
    assert "job_nondeterministic" in await lab.spine.list_event_kinds(job)
    assert await lab.spine.fetch_value("SELECT nondeterministic FROM jobs WHERE id = $1", job.id)


# By whom


async def test_nobody_audits_whom_they_belong_to_nor_their_own_job(lab):
    owner = await lab.spine.sign_up()
    newcomer = await lab.enrol(owner=owner)
    await lab.enrol(owner=owner, vouched=True)
    submitter = await lab.spine.sign_up()
    await lab.enrol(owner=submitter, vouched=True)
    await lab.run(newcomer, by=submitter)
    await lab.look()
    assert await lab.list_asked() == []


async def test_newcomers_do_not_audit(lab):
    newcomer = await lab.enrol()
    await lab.enrol()
    await lab.run(newcomer)
    await lab.look()
    assert await lab.list_asked() == []


async def test_an_auditor_that_vanishes_is_replaced_by_another(lab):
    newcomer = await lab.enrol()
    for _ in range(2):
        await lab.enrol(vouched=True)
    job, _ = await lab.run(newcomer)
    await lab.look()
    [first] = await lab.list_asked()
    await lab.spine.let_lease_pass(first)
    await reap_leases(lab.spine.pool, grace_seconds=5, limit=10)
    await lab.look()
    [second] = await lab.list_asked()
    assert second.node_id != first.node_id
    await lab.answer()
    await lab.look()
    assert await lab.spine.slice_state(job) == "succeeded"
    assert await lab.spine.fetch_value("SELECT state::text FROM jobs WHERE id = $1", first.job_id) == "cancelled"


async def test_a_submitter_who_cannot_pay_for_a_check_gets_an_unverified_result(lab):
    newcomer, _ = await lab.enrol(), await lab.enrol(vouched=True)
    caller = await lab.spine.sign_up(credits=0)
    hold = lab.spine.submission(caller, compare=Compare()).hold_microcredits
    await lab.spine.top_up(caller.account_id, hold)
    job, grant = await lab.run(newcomer, by=caller)
    await lab.look()
    assert await lab.list_asked() == []
    await lab.let_wait(11)
    await lab.look()
    assert await lab.outcome(grant) == "no_auditor"
    assert await lab.output(job) == RIGHT


async def test_what_the_operator_has_blocked_since_is_not_run_again(lab):
    newcomer, _ = await lab.enrol(), await lab.enrol(vouched=True)
    await lab.run(newcomer, command=(), script="print(1)")
    operator = await lab.spine.sign_up()
    await block_input(lab.spine.pool, operator, hashlib.sha256(b"print(1)").hexdigest(), why="not here")
    await lab.inspector.blocked_inputs.refresh(lab.spine.pool)
    await lab.look()
    assert await lab.list_asked() == []


# Quorum


async def test_a_quorum_needs_two_strangers_who_agree(lab):
    first, second = await lab.enrol(), await lab.enrol()
    job, grant = await lab.run(first, verify=Verify.QUORUM)
    assert await lab.spine.slice_state(job) == "verifying"
    await lab.look()
    assert [each.node_id for each in await lab.list_asked()] == [second.id]
    await lab.settle()
    assert await lab.outcome(grant) == "agreed"
    assert await lab.output(job) == RIGHT
    for node in (first, second):
        assert (await lab.trust(node)).integrity.validated_count == 0, "newcomers prove nothing to each other"


async def test_a_third_breaks_the_tie_of_a_quorum(lab):
    forger = await lab.enrol()
    for _ in range(2):
        await lab.enrol(vouched=True)
    job, grant = await lab.run(forger, WRONG, verify=Verify.QUORUM)
    await lab.settle()
    assert await lab.outcome(grant) == "found_wrong"
    assert await lab.output(job) == RIGHT
    assert (await lab.trust(forger)).standing is Standing.SUSPECT


# When results agree


async def test_numbers_within_the_tolerance_agree_and_a_corrupted_array_does_not(lab):
    newcomer = await lab.enrol()
    for _ in range(3):
        await lab.enrol(vouched=True)
    exact = np.linspace(0.0, 1.0, 5_000, dtype=np.float32)
    near = exact * np.float32(1 + 1e-6)
    corrupted = exact.copy()
    corrupted[::100] += np.float32(0.01)
    compare = Compare(kind=ComparatorKind.NUMERIC)
    for content, outcome, delivered in ((near, "agreed", near), (corrupted, "found_wrong", exact)):
        job = await lab.submit(compare=compare)
        [grant] = await lab.spine.grant(newcomer)
        await lab.deliver(newcomer, grant, to_npy(content), path="a.npy")
        for _ in range(4):
            await lab.look()
            for asked in await lab.list_asked():
                await lab.deliver(lab.nodes[asked.node_id], asked, to_npy(exact), path="a.npy")
        assert await lab.outcome(grant) == outcome
        assert await lab.output(job) == to_npy(delivered)


def count_reads(lab: Lab, monkeypatch) -> list[str]:
    read, really_read = [], lab.inspector.blobs.read
    monkeypatch.setattr(lab.inspector.blobs, "read", lambda sha256: read.append(sha256) or really_read(sha256))
    return read


async def run_numbers(lab: Lab) -> tuple[Job, Grant]:
    """A newcomer's array, and an auditor's that is a little different; both are in."""
    newcomer, _ = await lab.enrol(), await lab.enrol(vouched=True)
    numbers = np.ones(100, dtype=np.float32)
    job = await lab.submit(compare=Compare(kind=ComparatorKind.NUMERIC))
    [grant] = await lab.spine.grant(newcomer)
    await lab.deliver(newcomer, grant, to_npy(numbers), path="a.npy")
    await lab.look()
    for asked in await lab.list_asked():
        await lab.deliver(lab.nodes[asked.node_id], asked, to_npy(numbers * np.float32(1 + 1e-6)), path="a.npy")
    return job, grant


async def test_files_that_are_too_large_to_compare_are_not_read(lab, monkeypatch):
    monkeypatch.setattr(comparisons, "UNPACKED_BYTES_MAX", 100)
    _, grant = await run_numbers(lab)
    read = count_reads(lab, monkeypatch)
    await lab.look()
    assert read == []
    assert await lab.outcome(grant) is None, "they differ: two others decide"


async def test_a_result_whose_bytes_are_gone_is_delivered_as_unverified(lab):
    job, grant = await run_numbers(lab)
    for sha256 in {row["sha256"] for row in await lab.spine.fetch(OUTPUTS)}:
        lab.inspector.blobs.remove(sha256)
    await lab.look()
    assert await lab.outcome(grant) == "no_auditor"
    assert await lab.spine.slice_state(job) == "succeeded"


async def test_nothing_is_compared_while_a_run_is_under_way(lab, monkeypatch):
    newcomer, _ = await lab.enrol(), await lab.enrol(vouched=True)
    await lab.run(newcomer)
    await lab.look()
    monkeypatch.setattr(inspections, "label_results", None)
    await lab.look(3)
    assert len(await lab.list_asked()) == 1


async def test_checks_are_in_no_list_of_jobs(lab):
    newcomer, _ = await lab.enrol(), await lab.enrol(vouched=True)
    job, _ = await lab.run(newcomer)
    await lab.look()
    assert len(await lab.list_asked()) == 1
    async with lab.spine.pool.acquire() as conn:
        listed = await job_store.list_jobs(conn, account_id=None, before=None, state=None, limit=10)
        public = await live_store.list_recent_jobs(conn, limit=10)
    assert [each.id for each in listed] == [each.id for each in public] == [job.id]


# Pay


async def test_pay_waits_for_the_check_and_for_a_suspicion_to_pass(lab, monkeypatch):
    monkeypatch.setattr("computepool.hub.services.validation.is_audited", lambda rate, draw: True)
    node = await lab.enrol()
    await lab.put_trust(node, veteran())
    await lab.enrol(vouched=True)
    await lab.run(node)
    assert (await release_due(lab.spine.pool, limit=10)).attempt_count == 0
    await lab.settle()
    await lab.put_trust(node, NodeTrust(standing=Standing.SUSPECT, wrong_at=(1,)))
    before = await lab.spine.fetch_value("SELECT count(*) FROM attempts WHERE earning_state = 'released'")
    await release_due(lab.spine.pool, limit=10)
    await lab.put_trust(node, veteran())
    await lab.spine.fetch("UPDATE receipts SET state = 'verified'")
    assert (await release_due(lab.spine.pool, limit=10)).attempt_count >= 1
    assert before == 0


async def test_a_hub_that_dies_after_the_ruling_leaves_it_to_another(lab, monkeypatch):
    async def die(*_):
        raise RuntimeError("killed here")

    forger = await lab.enrol()
    for _ in range(3):
        await lab.enrol(vouched=True)
    job, grant = await lab.run(forger, WRONG)
    monkeypatch.setattr(rulings, "_deliver", die)
    await lab.settle()
    assert await lab.outcome(grant) == "found_wrong"
    assert await lab.spine.slice_state(job) == "verifying"
    monkeypatch.undo()
    await lab.look()
    assert await lab.output(job) == RIGHT
    await lab.look(3)
    assert await lab.spine.fetch_value("SELECT count(*) FROM attempts WHERE job_id = $1", job.id) == 2
    assert (await lab.trust(forger)).integrity.validated_count == 1, "and is counted once"


async def test_a_hub_that_dies_before_what_follows_for_a_node_leaves_that_to_another(lab, monkeypatch):
    async def die(*_):
        raise RuntimeError("killed here")

    monkeypatch.setattr("computepool.hub.services.validation.is_audited", lambda rate, draw: False)
    forger = await lab.enrol()
    await lab.put_trust(forger, veteran())
    for _ in range(3):
        await lab.enrol(vouched=True)
    unseen, _ = await lab.run(forger, RIGHT)
    monkeypatch.undo()
    monkeypatch.setattr("computepool.hub.services.validation.is_audited", lambda rate, draw: True)
    monkeypatch.setattr(standings, "_follow", die)
    for _ in range(2):
        await lab.run(forger, WRONG)
        await lab.settle()
    assert (await lab.trust(forger)).standing is Standing.BUGGED
    assert await earned(lab, forger) > 0, "what was held back is still there"
    monkeypatch.undo()
    await lab.settle()
    assert await earned(lab, forger) == 0
    assert await lab.output(unseen) == RIGHT
    assert await lab.spine.fetch_value("SELECT count(*) FROM trust_effects") == 0
    await lab.look(3)
    assert (await lab.trust(forger)).bugged_count == 1


async def test_first_results_that_are_judged_at_once_are_both_counted(lab):
    node = await lab.enrol()

    async def count_one() -> None:
        async with lab.spine.pool.acquire() as conn, conn.transaction():
            await standings.count_validated(conn, [(node.id, True, False)], now=clock.now())
            await asyncio.sleep(0.1)

    await asyncio.gather(count_one(), count_one())
    assert (await lab.trust(node)).integrity.validated_count == 2


async def test_a_result_is_accepted_once_however_often_it_is_tried(lab):
    newcomer, _ = await lab.enrol(), await lab.enrol(vouched=True)
    job, grant = await lab.run(newcomer)
    await lab.settle()
    async with lab.spine.pool.acquire() as conn, conn.transaction():
        assert not await deliveries.accept_withheld(conn, grant.id)
    paid = await earned(lab, newcomer)
    await lab.look(3)
    assert await earned(lab, newcomer) == paid
    assert await lab.spine.slice_state(job) == "succeeded"


# The way back


async def test_a_bugged_node_works_its_way_back_unpaid(lab, monkeypatch):
    monkeypatch.setattr("computepool.hub.services.validation.is_audited", lambda rate, draw: True)
    honest, auditor = await lab.enrol(cpu_slots=2), await lab.enrol(vouched=True)
    for _ in range(25):
        await lab.run(honest)
        await lab.settle()
    bugged = await lab.enrol()
    since = clock.now() - COOL_OFF - timedelta(minutes=1)
    await lab.put_trust(bugged, NodeTrust(standing=Standing.BUGGED, since=since, bugged_count=1))
    assert await lab.is_out(bugged)
    for left in range(20, 0, -1):
        await lab.try_nodes()
        trust = await lab.trust(bugged)
        assert (trust.standing, trust.returning_left) == (Standing.RETURNING, left)
        [asked] = await lab.list_asked()
        assert asked.node_id == bugged.id
        await lab.answer()
    await lab.try_nodes()
    trust = await lab.trust(bugged)
    assert (trust.standing, trust.bugged_count) == (Standing.CLEAR, 1)
    assert await earned(lab, bugged) == 0
    assert not await lab.is_out(bugged)
    assert auditor.id != bugged.id


async def test_one_wrong_answer_on_the_way_back_ends_it(lab):
    honest, _ = await lab.enrol(), await lab.enrol(vouched=True)
    await lab.run(honest)
    await lab.settle()
    bugged = await lab.enrol()
    since = clock.now() - COOL_OFF - timedelta(minutes=1)
    await lab.put_trust(bugged, NodeTrust(standing=Standing.BUGGED, since=since, bugged_count=1))
    await lab.try_nodes()
    await lab.answer(WRONG)
    await lab.try_nodes()
    trust = await lab.trust(bugged)
    assert (trust.standing, trust.bugged_count) == (Standing.BUGGED, 2)


async def test_a_bugged_node_whose_cool_off_is_not_over_waits(lab):
    bugged = await lab.enrol()
    await lab.put_trust(bugged, NodeTrust(standing=Standing.BUGGED, since=clock.now(), bugged_count=1))
    await lab.try_nodes()
    assert (await lab.trust(bugged)).standing is Standing.BUGGED

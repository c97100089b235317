"""Results that a command of the submitter's compares, on a real database: who is asked, and what follows from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from computepool import clock
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.state import AttemptState
from computepool.core.ledger.charging import PriceMode
from computepool.core.trust.comparators import command
from computepool.core.trust.comparators.command import FAILURES_MAX, TRIES_MAX, Said
from computepool.core.trust.comparators.kinds import ComparatorKind
from computepool.core.trust.standing import COOL_OFF, NodeTrust, Standing
from computepool.core.trust.validation import Verify
from computepool.hub.services import comparisons, inspections
from computepool.hub.services.attempts import reap_leases
from computepool.hub.services.comparisons import read_end
from computepool.hub.store import jobs as job_store
from computepool.hub.store import live as live_store
from computepool.hub.store import validation as validation_store
from computepool.hub.store.attempts import Grant
from computepool.hub.store.jobs import Job
from computepool.wire.jobs import Compare, JobPrice
from tests.support.spine import EnrolledNode
from tests.support.validation_lab import Lab, open_validation_lab

COMPARE = Compare(kind=ComparatorKind.COMMAND, command=("python3", "same.py"))
# One answer, as machines of two kinds get it; and one that was made up.
HERE, THERE, FORGED = b"0.30000000000000004", b"0.3", b"0.7"
MINUTES_15 = 900.0


def near(one: bytes, other: bytes) -> int:
    """What the submitter's program does: 0, they agree; 1, they differ."""
    return int(abs(float(one) - float(other)) > 1e-6)


@pytest.fixture
async def lab(dsn: str, tmp_path) -> AsyncIterator[Lab]:
    async with open_validation_lab(dsn, tmp_path, holdback_seconds=0) as lab:
        yield lab
        # Whatever a story was about, the books are straight and nothing is left behind.
        assert await lab.spine.fetch_value("SELECT coalesce(sum(balance), 0) FROM ledger_accounts") == 0


async def run(lab: Lab, node: EnrolledNode, content: bytes = HERE, **spec: Any) -> tuple[Job, Grant]:
    return await lab.run(node, content, **{"compare": COMPARE, **spec})


async def list_spoken(lab: Lab) -> list[tuple[str, int | None]]:
    rows = await lab.spine.fetch(
        "SELECT a.state::text, a.exit_code FROM comparisons c JOIN attempts a ON a.job_id = c.job_id"
        " ORDER BY c.number"
    )
    return [tuple(row) for row in rows]


async def enrol_vouched(lab: Lab, count: int) -> list[EnrolledNode]:
    return [await lab.enrol(vouched=True) for _ in range(count)]


async def assert_nobody_is_blamed(lab: Lab) -> None:
    for node in lab.nodes.values():
        trust = await lab.trust(node)
        assert (trust.standing, trust.integrity.validated_count) == (Standing.CLEAR, 0)


# What it says


async def test_results_that_the_command_takes_for_the_same_agree(lab):
    newcomer = await lab.enrol()
    await enrol_vouched(lab, 2)
    job, grant = await run(lab, newcomer)
    await lab.look()
    [auditor] = await lab.answer(THERE)
    assert await lab.list_comparing() == [], "not before both are in"
    await lab.look()
    assert await lab.spine.slice_state(job) == "verifying"
    [judge] = await lab.compare(near)
    assert judge not in (newcomer.id, auditor), "a stranger to both"
    await lab.look()
    assert await lab.outcome(grant) == "agreed"
    assert await lab.output(job) == HERE
    assert (await lab.trust(newcomer)).integrity.validated_count == 1
    assert (await lab.trust(lab.nodes[judge])).integrity.validated_count == 0, "comparing proves nothing of a node"
    charged = "SELECT charged_microcredits FROM jobs j JOIN comparisons c ON c.job_id = j.id"
    assert await lab.spine.fetch_value(charged) > 0, "and is paid like any other work"


async def test_equal_bytes_agree_without_a_run_of_the_command(lab):
    newcomer = await lab.enrol()
    await enrol_vouched(lab, 2)
    _, grant = await run(lab, newcomer)
    await lab.settle(HERE)
    assert await lab.outcome(grant) == "agreed"
    assert await list_spoken(lab) == []


async def test_a_forged_result_is_found_wrong_by_what_the_command_says(lab):
    forger = await lab.enrol()
    others = await enrol_vouched(lab, 4)
    job, grant = await run(lab, forger, FORGED)
    answers = {node.id: content for node, content in zip(others, (HERE, THERE, HERE, THERE), strict=True)}
    await lab.settle(answers, near)
    assert await lab.outcome(grant) == "found_wrong"
    assert near(await lab.output(job), HERE) == 0
    assert (await lab.trust(forger)).standing is Standing.SUSPECT
    assert [(await lab.trust(node)).standing for node in others] == [Standing.CLEAR] * len(others)
    spoken = [exit_code for _, exit_code in await list_spoken(lab)]
    assert set(spoken) <= {0, 1}
    # Each who is right is compared with the forged result, if that was first, by two, and with one who is right.
    assert 2 <= len(spoken) <= 8


async def test_control_a_hub_that_takes_any_end_for_agreement_lets_a_forged_result_through(lab, monkeypatch):
    def take_any(state: AttemptState, exit_code: int | None, cause: Cause | None) -> Said:
        said = read_end(state, exit_code, cause)
        return said if said is Said.UNDER_WAY else Said.AGREE

    monkeypatch.setattr(comparisons, "read_end", take_any)
    forger = await lab.enrol()
    await enrol_vouched(lab, 4)
    job, grant = await run(lab, forger, FORGED)
    await lab.settle(HERE, near)
    assert await lab.outcome(grant) == "agreed"
    assert await lab.output(job) == FORGED


async def run_with_a_liar(lab: Lab) -> list[str | None]:
    """All results are right, and one who compares always says that they differ, until it was asked a few times."""
    [liar, *_] = await enrol_vouched(lab, 5)
    outcomes, lies = [], 0
    for _ in range(30):
        if lies >= 3:
            break
        # A newcomer each time: whoever is trusted is not always checked.
        _, grant = await run(lab, await lab.enrol())
        for _ in range(12):
            await lab.look()
            await lab.answer(THERE)
            for comparing in await lab.list_comparing():
                if comparing.node_id == liar.id:
                    lies += 1
                    await lab.fail(comparing, Cause.EXIT_CODE, 1)
            await lab.compare(near)
        outcomes.append(await lab.outcome(grant))
    assert lies
    return outcomes


async def test_one_who_compares_wrongly_blames_nobody(lab):
    assert set(await run_with_a_liar(lab)) == {"agreed"}
    assert {(await lab.trust(node)).standing for node in lab.nodes.values()} == {Standing.CLEAR}


async def test_control_a_hub_that_believes_one_who_finds_a_difference_blames_the_wrong(lab, monkeypatch):
    monkeypatch.setattr(command, "DIFFERENCES_MIN", 1)
    await run_with_a_liar(lab)
    assert {(await lab.trust(node)).standing for node in lab.nodes.values()} != {Standing.CLEAR}


async def test_a_quorum_is_reached_by_what_the_command_says(lab):
    first = await lab.enrol()
    await lab.enrol()
    await enrol_vouched(lab, 2)
    job, grant = await run(lab, first, verify=Verify.QUORUM)
    await lab.settle(THERE, near)
    assert await lab.outcome(grant) == "agreed"
    assert await lab.output(job) == HERE


# No answer


@pytest.mark.parametrize("end", [2, 85, 139, Cause.TIMED_OUT, Cause.OUT_OF_MEMORY])
async def test_a_command_that_fails_leaves_the_result_unverified_and_blames_nobody(lab, end):
    newcomer = await lab.enrol()
    await enrol_vouched(lab, 3)
    job, grant = await run(lab, newcomer)
    await lab.settle(THERE, lambda one, other: end)
    assert await lab.outcome(grant) == "no_auditor"
    assert await lab.output(job) == HERE
    assert len(await list_spoken(lab)) == 3 * FAILURES_MAX, "both results together, and each with itself"
    await assert_nobody_is_blamed(lab)
    assert await lab.spine.fetch_value("SELECT count(*) FROM jobs WHERE finished_at IS NULL") == 0


async def test_a_result_that_makes_the_command_crash_is_found_wrong(lab):
    """Or whoever forges would see to it that nobody can compare."""

    def crash(one: bytes, other: bytes) -> int:
        return 139 if b"poison" in (one, other) else near(one, other)

    forger = await lab.enrol()
    others = await enrol_vouched(lab, 4)
    job, grant = await run(lab, forger, b"poison")
    answers = {node.id: content for node, content in zip(others, (HERE, THERE, HERE, THERE), strict=True)}
    await lab.settle(answers, crash)
    assert await lab.outcome(grant) == "found_wrong"
    assert near(await lab.output(job), HERE) == 0
    assert (await lab.trust(forger)).standing is Standing.SUSPECT


async def test_machines_that_vanish_while_they_compare_are_replaced_a_few_times(lab):
    newcomer = await lab.enrol()
    await enrol_vouched(lab, 3)
    job, grant = await run(lab, newcomer)
    await lab.look()
    await lab.answer(THERE)
    for number in range(1, TRIES_MAX + 1):
        await lab.look()
        [comparing] = await lab.list_comparing()
        assert len(await list_spoken(lab)) == number
        await lab.spine.let_lease_pass(comparing)
        await reap_leases(lab.spine.pool, grace_seconds=5, limit=10)
        await lab.see()
    await lab.settle(THERE, near)
    assert await lab.outcome(grant) == "no_auditor", "each of the two can be read: nobody knows why it was silent"
    stopped = "SELECT DISTINCT j.state::text FROM jobs j JOIN comparisons c ON c.job_id = j.id ORDER BY 1"
    assert [row["state"] for row in await lab.spine.fetch(stopped)] == ["cancelled", "succeeded"]
    await assert_nobody_is_blamed(lab)
    assert await lab.output(job) == HERE


async def test_an_owner_who_comes_back_costs_one_try(lab):
    newcomer = await lab.enrol()
    await enrol_vouched(lab, 3)
    _, grant = await run(lab, newcomer)
    await lab.look()
    await lab.answer(THERE)
    await lab.look()
    await lab.compare(lambda one, other: Cause.OWNER_RETURNED)
    await lab.settle(THERE, near)
    assert await lab.outcome(grant) == "agreed"
    assert [state for state, _ in await list_spoken(lab)] == ["failed", "succeeded"]


# By whom


async def test_without_anybody_who_could_compare_the_result_is_unverified_after_a_while(lab):
    newcomer, auditor = await lab.enrol(), await lab.enrol(vouched=True)
    # The others that are free: one that belongs to the submitter, and one that nobody knows yet.
    submitter = await lab.spine.sign_up()
    await lab.enrol(owner=submitter, vouched=True)
    job, grant = await run(lab, newcomer, by=submitter)
    await lab.look()
    await lab.enrol()
    assert await lab.answer(THERE) == [auditor.id]
    await lab.look(2)
    assert await lab.list_comparing() == []
    assert await lab.spine.slice_state(job) == "verifying"
    await lab.let_wait(MINUTES_15)
    await lab.look()
    assert await lab.outcome(grant) == "no_auditor"
    assert await lab.output(job) == HERE
    await assert_nobody_is_blamed(lab)


async def test_whoever_has_spoken_of_two_results_is_not_asked_about_them_again(lab):
    forger = await lab.enrol()
    await enrol_vouched(lab, 2)
    job, grant = await run(lab, forger, FORGED)
    await lab.look()
    await lab.answer(HERE)
    await lab.look()
    assert len(await lab.compare(near)) == 1
    await lab.look(3)
    assert await lab.list_comparing() == [], "one says that they differ, and there is nobody for a second opinion"
    await lab.let_wait(MINUTES_15)
    await lab.look()
    assert await lab.outcome(grant) == "no_auditor"
    assert await lab.output(job) == FORGED
    await assert_nobody_is_blamed(lab)


async def test_a_comparison_costs_no_more_than_a_slice_with_a_fixed_price_may(lab):
    newcomer = await lab.enrol()
    await enrol_vouched(lab, 2)
    price = JobPrice(mode=PriceMode.PER_SLICE, microcredits_per_slice=2_000_000)
    job, grant = await run(lab, newcomer, price=price)
    await lab.settle(THERE, near)
    assert await lab.outcome(grant) == "agreed"
    charged = "SELECT charged_microcredits FROM jobs j JOIN comparisons c ON c.job_id = j.id"
    assert 0 < await lab.spine.fetch_value(charged) <= job.reserve_microcredits


async def test_a_submitter_who_cannot_pay_for_a_comparison_gets_an_unverified_result(lab):
    newcomer = await lab.enrol()
    await enrol_vouched(lab, 2)
    caller = await lab.spine.sign_up(credits=0)
    hold = lab.spine.submission(caller, compare=COMPARE).hold_microcredits
    # For the job and its check; what the check has cost is missing for the comparison.
    await lab.spine.top_up(caller.account_id, 2 * hold)
    job, grant = await run(lab, newcomer, by=caller)
    await lab.look()
    assert len(await lab.answer(THERE)) == 1
    await lab.look()
    assert await lab.list_comparing() == []
    await lab.let_wait(MINUTES_15)
    await lab.look()
    assert await lab.outcome(grant) == "no_auditor"
    assert await lab.output(job) == HERE


async def test_a_comparison_is_given_the_jobs_own_things_and_both_results(lab):
    newcomer = await lab.enrol()
    await enrol_vouched(lab, 2)
    job = await lab.submit(
        compare=COMPARE, command=(), script="print(1)", env={"A": "1"}, slice_count=3, wall_seconds=60
    )
    grants = await lab.spine.grant(newcomer)
    await lab.deliver(newcomer, grants[0], HERE, path="deep/result.txt")
    await lab.look()
    [asked] = await lab.list_asked()
    await lab.deliver(lab.nodes[asked.node_id], asked, THERE, path="deep/result.txt")
    await lab.look()
    [comparing] = await lab.list_comparing()
    order, own = await lab.read_order(comparing), await lab.read_order(asked)
    assert order.command == ("python3", "same.py")
    assert [file.path for file in order.files] == ["one/deep/result.txt", "other/deep/result.txt"]
    same = ("script", "env", "isolation", "slice_index", "slice_count", "ram_bytes", "wall_seconds")
    assert [getattr(order, name) for name in same] == [getattr(own, name) for name in same]
    assert job.id != order.job_id


async def test_comparisons_are_no_runs_and_in_no_list_of_jobs(lab):
    newcomer = await lab.enrol()
    await enrol_vouched(lab, 2)
    job, grant = await run(lab, newcomer)
    await lab.look()
    await lab.answer(THERE)
    await lab.look()
    [judge] = await lab.compare(near)
    async with lab.spine.pool.acquire() as conn:
        listed = await job_store.list_jobs(conn, account_id=None, before=None, state=None, limit=10)
        public = await live_store.list_recent_jobs(conn, limit=10)
        check = await validation_store.find_check(conn, grant.id)
    assert [each.id for each in listed] == [each.id for each in public] == [job.id]
    assert len(check.runs) == 2
    await lab.look()
    async with lab.spine.pool.acquire() as conn:
        assert await validation_store.list_recent_verdicts(conn, [judge], limit=10) == {judge: []}
        count, microcredits = await validation_store.sum_check_jobs(conn, job.id)
    assert count == 2, "but what they cost is what checking costs"
    assert microcredits > 0


# Hubs that look at once, or die


async def ask_twice(lab: Lab, grant: Grant) -> int:
    """As two hubs do that have seen the same, one after the other. Returns how many jobs the check has."""
    async with lab.spine.pool.acquire() as conn:
        check = await validation_store.find_check(conn, grant.id)
    runs = tuple(inspections._to_check_run(check, each, {}, {}) for each in check.runs)
    step, facts, labelled = await inspections._plan(lab.inspector, check, runs)
    for _ in range(2):
        assert await comparisons.ask_comparison(lab.inspector, check, facts, step, {}, asked=labelled.asked)
    return await lab.spine.fetch_value("SELECT count(*) FROM jobs WHERE checks_attempt_id = $1", grant.id)


async def ready_to_compare(lab: Lab) -> Grant:
    newcomer = await lab.enrol()
    await enrol_vouched(lab, 4)
    _, grant = await run(lab, newcomer)
    await lab.look()
    await lab.answer(THERE)
    return grant


async def test_two_hubs_that_have_seen_the_same_ask_for_one_comparison(lab):
    assert await ask_twice(lab, await ready_to_compare(lab)) == 2, "the audit, and one comparison"


async def test_two_hubs_that_look_at_once_ask_for_one_comparison(lab):
    grant = await ready_to_compare(lab)
    await asyncio.gather(*(inspections._inspect(lab.inspector, grant.id, {}) for _ in range(4)))
    assert len(await lab.list_comparing()) == 1


async def test_nobody_compares_for_a_check_that_is_ruled(lab):
    grant = await ready_to_compare(lab)
    await lab.spine.fetch("UPDATE checks SET state = 'ruled', outcome = 'no_auditor'")
    assert await ask_twice(lab, grant) == 1


async def test_control_a_hub_that_does_not_look_whether_somebody_has_asked_asks_twice(lab, monkeypatch):
    async def pay_no_heed(*_: object, **__: object) -> bool:
        return True

    grant = await ready_to_compare(lab)
    monkeypatch.setattr(comparisons.store, "insert_comparison", pay_no_heed)
    assert await ask_twice(lab, grant) == 3


async def test_a_hub_that_dies_while_it_asks_has_asked_for_nothing(lab, monkeypatch):
    async def die(*_: object, **__: object) -> None:
        raise ConnectionError("the hub is gone")

    grant = await ready_to_compare(lab)
    monkeypatch.setattr(comparisons, "lease_paid", die)
    await lab.look()
    assert await list_spoken(lab) == []
    assert await lab.spine.fetch_value("SELECT count(*) FROM comparisons") == 0
    monkeypatch.undo()
    await lab.settle(THERE, near)
    assert await lab.outcome(grant) == "agreed"


# The way back


async def test_what_only_a_command_can_compare_is_no_way_back(lab):
    newcomer = await lab.enrol()
    await enrol_vouched(lab, 2)
    await run(lab, newcomer)
    await lab.settle(THERE, near)
    bugged = await lab.enrol()
    since = clock.now() - COOL_OFF * 2
    await lab.put_trust(bugged, NodeTrust(standing=Standing.BUGGED, since=since, bugged_count=1))
    await lab.try_nodes()
    assert (await lab.trust(bugged)).standing is Standing.RETURNING
    assert await lab.list_asked() == []
    await lab.run(newcomer)
    await lab.settle()
    await lab.try_nodes()
    assert [grant.node_id for grant in await lab.list_asked()] == [bugged.id], "and what bytes can tell is"

"""Nodes that run jobs whose runs differ by themselves are watched by slices with known answers; on a database."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from computepool.core.errors import ComputePoolError
from computepool.core.ledger.accounts import submitter_available
from computepool.core.trust.standing import Standing
from computepool.core.trust.validation import Verify
from computepool.hub.http.trust import to_validation
from computepool.hub.services import standings, trust_views, validation
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.releases import release_due
from computepool.hub.store import jobs as job_store
from computepool.hub.store.attempts import Grant
from computepool.hub.store.jobs import Job
from computepool.wire.jobs import Compare
from tests.support.earnings import get_balance
from tests.support.spine import EnrolledNode
from tests.support.validation_lab import RIGHT, WRONG, Lab, open_validation_lab, veteran


@pytest.fixture
async def lab(dsn: str, tmp_path) -> AsyncIterator[Lab]:
    async with open_validation_lab(dsn, tmp_path, holdback_seconds=0) as lab:
        yield lab
        assert await lab.spine.fetch_value("SELECT coalesce(sum(balance), 0) FROM ledger_accounts") == 0


@pytest.fixture
def all_drawn(monkeypatch) -> None:
    monkeypatch.setattr(validation, "is_audited", lambda rate, draw: True)


async def earned(lab: Lab, node: EnrolledNode) -> int:
    return await lab.spine.fetch_value(
        "SELECT coalesce(sum(balance), 0)::bigint FROM ledger_accounts"
        " WHERE id IN ('owner_pending/' || $1::text, 'owner_available/' || $1::text)",
        str(node.caller.account_id),
    )


async def know(lab: Lab, by: AccountCaller, count: int = 1, **spec) -> list[Job]:
    """Jobs of this submitter whose answers others have agreed on."""
    newcomer = await lab.enrol()
    jobs = []
    for _ in range(count):
        job, grant = await lab.run(newcomer, by=by, **spec)
        await lab.settle()
        assert await lab.outcome(grant) == "agreed"
        jobs.append(job)
    return jobs


async def run_differing(lab: Lab, node: EnrolledNode, by: AccountCaller, content: bytes = b"by chance") -> Grant:
    """One slice of a job that is known to differ from run to run."""
    job = await lab.submit(by=by)
    await lab.spine.fetch("UPDATE jobs SET nondeterministic = true WHERE id = $1", job.id)
    [grant] = [each for each in await lab.spine.grant(node) if each.job_id == job.id]
    await lab.deliver(node, grant, content)
    return grant


async def count_watches(lab: Lab) -> int:
    return await lab.spine.fetch_value("SELECT count(*) FROM watches")


async def test_an_honest_node_is_not_harmed_by_being_watched_and_gains_by_it(lab):
    by = await lab.spine.sign_up()
    await lab.enrol(vouched=True)
    [known] = await know(lab, by)
    node = await lab.enrol()
    grant = await run_differing(lab, node, by)
    paid = await earned(lab, node)
    assert await lab.outcome(grant) is None, "nobody can check it"
    await lab.try_nodes()
    [asked] = await lab.list_asked()
    assert asked.node_id == node.id
    assert asked.rate_microcredits_per_hour == grant.rate_microcredits_per_hour, "as any other work"
    await lab.answer()
    await lab.try_nodes()
    trust = await lab.trust(node)
    assert (trust.standing, trust.integrity.validated_count) == (Standing.CLEAR, 1)
    assert await earned(lab, node) > paid, "and it is paid for it"
    assert await count_watches(lab) == 0
    await lab.try_nodes()
    assert await lab.list_asked() == [], "once for each that was drawn"
    async with lab.spine.pool.acquire() as conn:
        listed = await job_store.list_jobs(conn, account_id=None, before=None, state=None, limit=50)
    assert [job.id for job in listed] == [grant.job_id, known.id], "and is in no list of jobs"


async def test_the_submitter_of_the_watched_job_pays_and_sees_what_it_cost(lab):
    by = await lab.spine.sign_up()
    await lab.enrol(vouched=True)
    [known] = await know(lab, by)
    before = await trust_views.get_validation(lab.spine.pool, by, known.id)
    node = await lab.enrol()
    grant = await run_differing(lab, node, by)
    balance = await get_balance(lab.spine.pool, submitter_available(by.account_id))
    await lab.try_nodes()
    await lab.answer()
    await lab.try_nodes()
    cost = balance - await get_balance(lab.spine.pool, submitter_available(by.account_id))
    story = await trust_views.get_validation(lab.spine.pool, by, grant.job_id)
    assert (story.check_count, story.check_microcredits) == (1, cost)
    assert cost > 0
    shown = to_validation(story)
    assert (shown.counts.unverified, shown.counts.accepted) == (1, 0)
    after = await trust_views.get_validation(lab.spine.pool, by, known.id)
    assert after.counts == before.counts, "the job whose answer was known has nothing to do with it"
    assert (after.check_count, after.check_microcredits) == (before.check_count, before.check_microcredits)


async def test_pay_for_a_known_answer_waits_until_it_is_judged(lab, all_drawn):
    by = await lab.spine.sign_up()
    await lab.enrol(vouched=True)
    await know(lab, by)
    node = await lab.enrol()
    await lab.put_trust(node, veteran())
    await run_differing(lab, node, by)
    await lab.try_nodes()
    [asked] = await lab.list_asked()
    await lab.answer()
    states = []
    for _ in range(2):
        await lab.spine.fetch("UPDATE receipts SET state = 'verified'")
        await release_due(lab.spine.pool, limit=10)
        states.append(await lab.spine.fetch_value("SELECT earning_state::text FROM attempts WHERE id = $1", asked.id))
        await lab.try_nodes()
    assert states == ["pending", "released"]


async def test_a_forger_of_what_nobody_can_check_is_caught_and_loses_its_pay(lab, all_drawn):
    by = await lab.spine.sign_up()
    for _ in range(3):
        await lab.enrol(vouched=True)
    await know(lab, by, 3)
    forger = await lab.enrol()
    await lab.put_trust(forger, veteran())
    for standing in (Standing.SUSPECT, Standing.BUGGED):
        await run_differing(lab, forger, by, WRONG)
        await lab.try_nodes()
        [asked] = await lab.list_asked()
        assert asked.node_id == forger.id
        await lab.answer(WRONG)
        await lab.try_nodes()
        await lab.settle()
        assert (await lab.trust(forger)).standing is standing
        assert await lab.spine.fetch_value("SELECT earning_state::text FROM attempts WHERE id = $1", asked.id) in (
            "reversed",
            None,
        ), "what was forged is not paid"
    assert await earned(lab, forger) == 0, "what was held back is lost, also of what nobody could check"
    assert await lab.is_out(forger)


async def test_control_without_watches_the_forger_stays_clear_and_is_paid(lab, monkeypatch):
    async def drop(*_, **__):
        pass

    monkeypatch.setattr(validation.store, "insert_watches", drop)
    by = await lab.spine.sign_up()
    for _ in range(3):
        await lab.enrol(vouched=True)
    await know(lab, by, 3)
    forger = await lab.enrol()
    for _ in range(4):
        await run_differing(lab, forger, by, WRONG)
        await lab.try_nodes()
        assert await lab.list_asked() == []
    assert (await lab.trust(forger)).standing is Standing.CLEAR
    assert await earned(lab, forger) > 0


async def test_a_hub_that_dies_before_what_follows_leaves_that_to_another(lab, all_drawn, monkeypatch):
    async def die(*_):
        raise RuntimeError("killed here")

    by = await lab.spine.sign_up()
    for _ in range(3):
        await lab.enrol(vouched=True)
    await know(lab, by, 2)
    forger = await lab.enrol()
    await lab.put_trust(forger, veteran())
    with monkeypatch.context() as dying:
        dying.setattr(standings, "_follow", die)
        for _ in range(2):
            await run_differing(lab, forger, by, WRONG)
            await lab.try_nodes()
            await lab.answer(WRONG)
            await lab.try_nodes()
            await lab.settle()
    assert (await lab.trust(forger)).standing is Standing.BUGGED
    assert await earned(lab, forger) > 0
    await lab.settle()
    assert await earned(lab, forger) == 0


async def test_an_answer_that_holds_no_longer_blames_nobody_and_is_used_no_more(lab):
    by = await lab.spine.sign_up()
    auditor = await lab.enrol(vouched=True)
    [known] = await know(lab, by)
    node = await lab.enrol()
    await run_differing(lab, node, by)
    await lab.try_nodes()
    await lab.answer(b"what follows today")
    await lab.try_nodes()
    assert (await lab.trust(node)).integrity.validated_count == 0
    await lab.settle(b"what follows today")
    for each in (node, auditor):
        assert (await lab.trust(each)).standing is Standing.CLEAR
    assert await lab.output(known) == RIGHT, "what was delivered stays"
    assert await lab.spine.fetch_value("SELECT nondeterministic FROM jobs WHERE id = $1", known.id)
    assert "job_nondeterministic" in await lab.spine.list_event_kinds(known)
    await run_differing(lab, node, by)
    await lab.try_nodes()
    assert await lab.list_asked() == []


async def test_without_a_known_answer_nothing_happens(lab):
    by, other = await lab.spine.sign_up(), await lab.spine.sign_up()
    for _ in range(2):
        await lab.enrol(vouched=True)
    # Of somebody else; of two who prove nothing to each other; of its own owner's node.
    await know(lab, other)
    await know(lab, by, verify=Verify.QUORUM)
    owner = await lab.spine.sign_up()
    newcomer = await lab.enrol(owner=owner)
    await lab.run(newcomer, by=by)
    await lab.settle()
    node = await lab.enrol(owner=owner)
    await run_differing(lab, node, by)
    assert await count_watches(lab) == 1
    await lab.try_nodes()
    assert await lab.list_asked() == []
    assert await count_watches(lab) == 0
    trust = await lab.trust(node)
    assert (trust.standing, trust.integrity.validated_count) == (Standing.CLEAR, 0)


async def test_a_submitter_without_credits_is_not_charged_and_the_watch_is_over(lab):
    by = await lab.spine.sign_up(credits=0)
    hold = lab.spine.submission(by, compare=Compare()).hold_microcredits
    await lab.spine.top_up(by.account_id, 4 * hold)
    await lab.enrol(vouched=True)
    await know(lab, by)
    node = await lab.enrol()
    await run_differing(lab, node, by)
    with contextlib.suppress(ComputePoolError):
        for _ in range(10):
            await lab.submit(by=by)
    assert await get_balance(lab.spine.pool, submitter_available(by.account_id)) < hold
    assert await count_watches(lab) == 1
    await lab.try_nodes()
    assert await lab.list_asked() == []
    assert await count_watches(lab) == 0


async def test_a_watch_waits_an_hour_for_a_free_slot_and_no_longer(lab):
    by = await lab.spine.sign_up()
    await lab.enrol(vouched=True)
    await know(lab, by)
    node = await lab.enrol()
    await run_differing(lab, node, by)
    await lab.submit()
    [busy] = await lab.spine.grant(node)
    await lab.try_nodes()
    assert await lab.list_asked() == []
    assert await count_watches(lab) == 1
    await lab.spine.fetch("UPDATE watches SET opened_at = opened_at - interval '1 hour'")
    await lab.try_nodes()
    assert await count_watches(lab) == 0
    assert (await lab.trust(node)).standing is Standing.CLEAR
    assert busy.node_id == node.id


async def test_a_node_that_vanishes_while_it_is_watched_is_not_blamed(lab):
    by = await lab.spine.sign_up()
    await lab.enrol(vouched=True)
    await know(lab, by)
    node = await lab.enrol()
    await run_differing(lab, node, by)
    await lab.try_nodes()
    [asked] = await lab.list_asked()
    await lab.spine.fetch(
        "UPDATE attempts SET state = 'lost', cause = 'node_vanished', finished_at = now() WHERE id = $1", asked.id
    )
    await lab.try_nodes()
    assert await lab.spine.fetch_value("SELECT state::text FROM jobs WHERE id = $1", asked.job_id) == "cancelled"
    trust = await lab.trust(node)
    assert (trust.standing, trust.integrity.validated_count) == (Standing.CLEAR, 0)


async def test_no_more_than_a_few_watches_of_a_node_wait_at_a_time(lab):
    by = await lab.spine.sign_up()
    await lab.enrol(vouched=True)
    await know(lab, by)
    node = await lab.enrol()
    for _ in range(validation.WATCHES_WAITING_MAX + 3):
        await run_differing(lab, node, by)
    assert await count_watches(lab) == validation.WATCHES_WAITING_MAX

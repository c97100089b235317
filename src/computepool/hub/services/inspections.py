"""Checks of results: looks at each that is due, and asks others to run the slice once more or to compare its runs.

Every hub does it; whoever takes a check has it for a while. When runs agree: comparisons.py; who could run something:
further_runs.py; what is ruled, and what follows from that: rulings.py.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from computepool import entropy
from computepool.core.errors import NotFound
from computepool.core.ids import AccountId, AttemptId, JobId, NodeId
from computepool.core.jobs.state import ATTEMPT_LIVE, JOB_TERMINAL, AttemptState
from computepool.core.placement.scorers import Candidate
from computepool.core.trust.comparators.command import Needed
from computepool.core.trust.inspection import (
    Ask,
    CheckRun,
    CheckState,
    Comparison,
    Facts,
    Rule,
    RunState,
    Step,
    Wait,
    are_comparable,
    give_up,
    needs_comparable,
    plan_comparison,
    plan_step,
    set_apart,
)
from computepool.core.trust.standing import NodeTrust
from computepool.core.trust.validation import Runner, Verify, choose_auditors, choose_deciders, draw_audit
from computepool.hub.services.comparisons import Labelled, ask_comparison, label_results
from computepool.hub.services.further_runs import (
    Field,
    NotLeased,
    find_class,
    find_comparator,
    find_field,
    lease_paid,
    stop_run,
    to_runner,
)
from computepool.hub.services.inspector import Inspector
from computepool.hub.services.links import load_links
from computepool.hub.services.rulings import follow_up, rule
from computepool.hub.store import validation as store
from computepool.hub.store.validation import StoredCheck, StoredRun

log = logging.getLogger("computepool.trust")

# Whoever has taken a check has so long for it; what is asked for comes back sooner or is asked for again.
TURN_SECONDS = 120.0
# How soon a check is looked at again while a run is under way, and while nobody is found.
SOON_SECONDS = 1.0
LATER_SECONDS = 10.0


async def inspect_due(inspector: Inspector, *, limit: int) -> int:
    """Looks at so many checks at most. One that fails is logged and looked at again when its turn is over."""
    async with inspector.pool.acquire() as conn:
        taken = await store.take_checks(conn, seconds=TURN_SECONDS, limit=limit)
        links = await load_links(conn) if taken else {}
    for attempt_id in taken:
        try:
            await _inspect(inspector, attempt_id, links)
        except Exception:
            log.exception("check_failed attempt_id=%s", attempt_id)
    return len(taken)


async def _inspect(inspector: Inspector, attempt_id: AttemptId, links: Mapping[AccountId, AccountId]) -> None:
    async with inspector.pool.acquire() as conn:
        check = await store.find_check(conn, attempt_id)
        assert check is not None
        trusts = await store.list_trust(conn, {run.node_id for run in check.runs})
    if check.state is CheckState.RULED:
        await follow_up(inspector, check)
        return
    await _stop_dead(inspector, check)
    runs = tuple(_to_check_run(check, run, trusts, links) for run in check.runs)
    step, facts, labelled = await _plan(inspector, check, runs)
    if isinstance(step, Ask | Comparison) and not await _ask(inspector, check, facts, step, labelled, links):
        step = give_up(facts) if step.is_last else step
    if isinstance(step, Rule):
        await rule(inspector, check, facts, step)
        return
    seconds = SOON_SECONDS if check.withheld or isinstance(step, Wait) else LATER_SECONDS
    async with inspector.pool.acquire() as conn:
        await store.look_again(conn, attempt_id, seconds=seconds)


async def _plan(inspector: Inspector, check: StoredCheck, runs: tuple[CheckRun, ...]) -> tuple[Step, Facts, Labelled]:
    """Results are compared once all that were asked for are in: that may mean reading them, or asking others to."""
    waiting = any(run.state is RunState.UNDER_WAY for run in runs)
    delivered = sum(run.state is RunState.DELIVERED for run in runs)
    # Whoever cannot be compared agrees with nobody and is blamed for nothing.
    facts = Facts(check.mode, check.withheld, check.opened_at, runs, tuple(range(delivered)))
    labelled = Labelled(None)
    if waiting:
        return Wait(), facts, labelled
    if check.nondeterministic:
        return give_up(facts), facts, labelled
    try:
        labelled = await label_results(inspector, check)
    except (NotFound, OSError) as error:
        # Its bytes are gone: a result must not wait for ever for what nobody can look at.
        log.warning("check_not_compared attempt_id=%s reason=%s", check.attempt_id, error)
        return give_up(facts), facts, labelled
    facts = replace(facts, compared_at=labelled.compared_at)
    if labelled.is_under_way:
        return Wait(), facts, labelled
    if labelled.found is None:
        log.warning("check_not_compared attempt_id=%s reason=the job's command gave no answer", check.attempt_id)
        return give_up(facts), facts, labelled
    if isinstance(labelled.found, Needed):
        return plan_comparison(facts, labelled.found, now=check.now), facts, labelled
    facts = set_apart(replace(facts, answers=labelled.found), find_comparator(check.spec))
    return plan_step(facts, now=check.now), facts, labelled


# What is known of the runs


def _to_run_state(run: StoredRun) -> RunState:
    if run.state is AttemptState.SUCCEEDED:
        return RunState.DELIVERED
    return RunState.UNDER_WAY if run.state in ATTEMPT_LIVE else RunState.DEAD


def _to_check_run(
    check: StoredCheck, run: StoredRun, trusts: Mapping[NodeId, NodeTrust], links: Mapping[AccountId, AccountId]
) -> CheckRun:
    trust = trusts.get(run.node_id, NodeTrust())
    runner = to_runner(run.node_id, run.owner_id, run.network, trust, links, check.now)
    runner = replace(runner, numeric_class=find_class(check, run.hardware, run.slot))
    return CheckRun(runner, _to_run_state(run), run.finished_at)


async def _stop_dead(inspector: Inspector, check: StoredCheck) -> None:
    for run in check.runs[1:]:
        if _to_run_state(run) is RunState.DEAD and run.job_state not in JOB_TERMINAL:
            await stop_run(inspector, run.job_id)


# Asking others


async def _ask(
    inspector: Inspector,
    check: StoredCheck,
    facts: Facts,
    step: Ask | Comparison,
    labelled: Labelled,
    links: Mapping[AccountId, AccountId],
) -> bool:
    """False: nobody was found, or nothing could be leased."""
    if isinstance(step, Comparison):
        return await ask_comparison(inspector, check, facts, step, links, asked=labelled.asked)
    return await _ask_runs(inspector, check, facts, step, links)


async def _ask_runs(
    inspector: Inspector, check: StoredCheck, facts: Facts, ask: Ask, links: Mapping[AccountId, AccountId]
) -> bool:
    """Leases the slice once more to whoever was drawn, each on a slot that is free now."""
    # A quorum is of strangers; who audits or decides must be trusted besides.
    field = await find_field(inspector, check, links, trusted=check.mode is Verify.AUDIT)
    asked = [field.slots[runner.node_id] for runner in _choose(inspector, check, facts, ask, field.runners)]
    return bool(asked) and await _lease(inspector, check, field, asked)


def _choose(
    inspector: Inspector, check: StoredCheck, facts: Facts, ask: Ask, candidates: Sequence[Runner]
) -> list[Runner]:
    if check.mode is Verify.QUORUM:
        # Anybody may be the second: that strangers agree is what counts.
        candidates = [replace(each, is_trusted=True) for each in candidates]
    # Anew for every question: who was drawn and failed is not drawn for ever.
    draw = draw_audit(inspector.audit_key, check.attempt_id, check.asked_count.to_bytes(4, "big"))
    choose = choose_deciders if ask.decides else choose_auditors
    runs, comparator = [run.runner for run in facts.runs], find_comparator(check.spec)
    comparable = [each for each in candidates if are_comparable(facts, each, comparator)]
    chosen = choose(comparable, runs, count=ask.count, draw=draw)
    if len(chosen) == ask.count or needs_comparable(facts, ask):
        return chosen
    return choose(candidates, runs, count=ask.count, draw=draw)


async def _lease(inspector: Inspector, check: StoredCheck, field: Field, asked: Sequence[Candidate]) -> bool:
    """The slice once more for each of these slots, with what it may cost held. False: nothing was written."""
    try:
        async with inspector.pool.acquire() as conn, conn.transaction():
            if not await store.ask_runs(conn, check.attempt_id, count=len(asked), seen=check.asked_count):
                return True
            for candidate in asked:
                await lease_paid(conn, inspector, check, field.shape, candidate, job_id=JobId(entropy.new_id()))
    except NotLeased as error:
        log.info("check_not_leased attempt_id=%s reason=%s", check.attempt_id, error)
        return False
    return True

"""The answers to "why", for submitters and owners."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

import msgspec

from computepool.core.jobs.cause import PLAIN_WORDS
from computepool.core.jobs.spec import Requirements
from computepool.core.placement.choice import Ranked
from computepool.core.placement.explain import say_waiting
from computepool.core.placement.gates import Gate, Margin
from computepool.core.placement.idleness import Lack
from computepool.core.placement.slot_classes import Place
from computepool.core.placement.suggestions import Suggestion
from computepool.core.placement.turn import Turn, say_turn
from computepool.core.trust.words import say_standing
from computepool.hub.http.jobs import to_job, to_price, to_risk_seconds
from computepool.hub.http.routing import Access, Call, Routes
from computepool.hub.http.trust import to_validation
from computepool.hub.services import trust_views
from computepool.hub.services import why as service
from computepool.hub.services.why import AttemptStory, Choice, JobStory, NodeStory, SliceStory, Waiting
from computepool.wire import jobs as wire_jobs
from computepool.wire import why as wire
from computepool.wire.trust import JobValidation

routes = Routes()


class JobWhyQuery(msgspec.Struct, frozen=True, kw_only=True):
    slice: int | None = None


@routes.add("GET", "/v1/jobs/{job_id}/why", Access.ACCOUNT, query=JobWhyQuery, answer=wire.JobWhy)
async def explain_job(call: Call) -> wire.JobWhy:
    """Why a job waits and the smallest change that would let it run; or where it ran and how an attempt ended."""
    index = call.query.slice
    story = await service.explain_job(
        call.hub.pool,
        call.hub.settings,
        call.hub.weights,
        call.hub.prices,
        call.account,
        call.path["job_id"],
        slice_index=None if index is None else max(-1, min(index, 1_000_000)),
    )
    if story.job.verify is None:
        return _to_job_why(story)
    results = await trust_views.get_validation(call.hub.pool, call.account, story.job.id)
    return _to_job_why(story, to_validation(results))


@routes.add("GET", "/v1/nodes/{node_id}/why", Access.ACCOUNT, answer=wire.NodeWhy)
async def explain_node(call: Call) -> wire.NodeWhy:
    """Why a node has no work, and what it would need for the largest part of what waits."""
    hub = call.hub
    story = await service.explain_node(hub.pool, hub.settings, hub.prices, call.account, call.path["node_id"])
    known = await trust_views.get_trust(hub.pool, hub.prices, call.account, story.node.id)
    return _to_node_why(story, say_standing(known.trust, now=known.now))


def _to_job_why(story: JobStory, validation: JobValidation | None = None) -> wire.JobWhy:
    job = to_job(story.job)
    return wire.JobWhy(
        job_id=job.id,
        name=job.name,
        state=job.state,
        counts=job.counts,
        requirements=job.requirements,
        waiting=_to_waiting(story.waiting) if story.waiting else None,
        slice=_to_slice(story.story, retries=job.retries) if story.story else None,
        validation=validation,
    )


def _to_waiting(waiting: Waiting) -> wire.WhyWaiting:
    found = waiting.explanation
    return wire.WhyWaiting(
        words=waiting.run_words or say_waiting(found),
        slot_count=found.slot_count,
        pass_count=found.pass_count,
        free_count=found.free_count,
        away_count=found.away_count,
        fleet_is_more=waiting.fleet_is_more,
        turn=_to_turn(waiting.turn),
        gates=[
            wire.WhyGate(gate=g.gate, asked=g.asked, failed_count=g.failed_count, words=g.words) for g in found.gates
        ],
        places=_to_places(found.places),
        suggestions=[] if waiting.run_words else [_to_suggestion(suggestion) for suggestion in found.suggestions],
        notes=list(found.notes),
    )


def _to_turn(turn: Turn) -> wire.WhyTurn:
    return wire.WhyTurn(
        words=say_turn(turn),
        priority_class=turn.priority_class,
        priority=turn.priority,
        class_ahead_count=turn.class_ahead.count,
        class_ahead_is_more=turn.class_ahead.is_more,
        ahead_count=turn.own_ahead.count,
        ahead_is_more=turn.own_ahead.is_more,
        account_count=turn.others.count,
        account_is_more=turn.others.is_more,
        account_less_count=turn.others_less_count,
        used_slot_seconds=turn.use.slot_seconds,
        fair_weight=turn.use.fair_weight,
        deadline_at=turn.deadline_at,
        raised_at=turn.raised_at,
    )


def _to_suggestion(suggestion: Suggestion) -> wire.WhySuggestion:
    return wire.WhySuggestion(
        changes=[
            wire.WhyChange(gate=change.gate, asked=change.asked, instead=change.instead, words=change.words)
            for change in suggestion.changes
        ],
        requirements=_to_requirements(suggestion.requirements),
        wall_seconds=(
            suggestion.requirements.slice_seconds
            if any(change.gate is Gate.SECONDS for change in suggestion.changes)
            else None
        ),
        price=to_price(fixed) if (fixed := suggestion.requirements.slice_price) else None,
        slot_count=suggestion.slot_count,
        free_count=suggestion.free_count,
        places=_to_places(suggestion.places),
    )


def _to_places(places: Iterable[Place]) -> list[wire.WhyPlace]:
    return [wire.WhyPlace(**{field.name: getattr(place, field.name) for field in fields(Place)}) for place in places]


def _to_slice(story: SliceStory, *, retries: int) -> wire.WhySlice:
    slice_ = story.slice
    end = next((told.end for told in story.attempts if told.end is not None), None)
    return wire.WhySlice(
        index=slice_.slice_index,
        state=slice_.state,
        attempt_count=slice_.attempt_count,
        failure_count=slice_.failure_count,
        retries=retries,
        cause=slice_.cause,
        cause_words=PLAIN_WORDS[slice_.cause] if slice_.cause else None,
        attempts=[_to_attempt(told) for told in story.attempts],
        next_words=end.next_words if end else None,
        advice=[
            wire.WhyAdvice(remedy=advice.remedy, words=advice.words, value=advice.value)
            for advice in (end.advice if end else ())
        ],
        choice=_to_choice(story.choice) if story.choice else None,
    )


def _to_choice(choice: Choice) -> wire.WhyChoice:
    return wire.WhyChoice(
        words=choice.words,
        weight_set=choice.weight_set,
        prefer=choice.prefer,
        fit_count=choice.fit_count,
        is_cut=choice.is_cut,
        candidates=[_to_candidate(each, choice) for each in choice.ranked],
        reckoned_at=choice.reckoned_at,
    )


def _to_candidate(ranked: Ranked, choice: Choice) -> wire.WhyCandidate:
    candidate, slot = ranked.candidate, ranked.candidate.slot
    return wire.WhyCandidate(
        rank=ranked.rank,
        chosen=ranked.chosen,
        busy=ranked.busy,
        slot=slot.name,
        tier=slot.tier,
        price_microcredits_per_hour=choice.rates[(slot.node_id, slot.name)],
        speed_tflops=candidate.speed_tflops,
        reliability=candidate.reliability,
        points={line.scorer: line.points for line in ranked.lines if line.points},
        total=ranked.total,
        region=slot.region,
        node_name=choice.node_names.get((slot.node_id, slot.name)),
    )


def _to_attempt(told: AttemptStory) -> wire.WhyAttempt:
    attempt = told.attempt
    return wire.WhyAttempt(
        number=attempt.number,
        state=attempt.state,
        node_id=attempt.node_id,
        slot=attempt.slot_name,
        leased_at=attempt.leased_at,
        node_name=attempt.node_name,
        tier=attempt.slot.tier if attempt.slot else None,
        region=attempt.region,
        started_at=attempt.started_at,
        finished_at=attempt.finished_at,
        run_seconds=attempt.run_seconds,
        exit_code=attempt.exit_code,
        cause=attempt.cause,
        cause_words=told.end.words if told.end else None,
        message=attempt.message or None,
        saved_seconds=attempt.saved_seconds,
        saved_at=attempt.saved_at,
        at_risk_seconds=to_risk_seconds(attempt),
        margins=_to_margins(told.margins),
    )


def _to_margins(margins: Iterable[Margin]) -> list[wire.WhyMargin]:
    return [
        wire.WhyMargin(gate=each.gate, needs=each.needs, has=each.has, passes=each.passes, spare=each.spare)
        for each in margins
    ]


def _to_node_why(story: NodeStory, trust: str = "") -> wire.NodeWhy:
    node, found = story.node, story.idleness
    return wire.NodeWhy(
        node_id=node.id,
        name=node.name,
        state=node.state,
        trust=trust,
        online=story.online,
        reason=found.reason,
        words=found.words,
        slot_count=story.slot_count,
        free_count=found.free_count,
        waiting_count=found.waiting_count,
        fitting_count=found.fitting_count,
        waiting_is_more=story.waiting_is_more,
        gates=[
            wire.WhyGateBacklog(gate=each.gate, shape_count=each.shape_count, slice_count=each.slice_count)
            for each in found.gates
        ],
        lack=_to_lack(found.lack) if found.lack else None,
        lower_floor=(
            wire.WhyFloor(
                floor_microcredits_per_hour=found.lower_floor.floor_microcredits_per_hour,
                slice_count=found.lower_floor.slice_count,
            )
            if found.lower_floor
            else None
        ),
        offer_changes=[
            wire.WhyOfferChange(gate=each.gate, words=each.words, value=each.value, slice_count=each.slice_count)
            for each in found.offer_changes
        ],
        floor_microcredits_per_hour=node.floor_microcredits_per_hour,
        last_seen_at=node.last_seen_at,
    )


def _to_lack(lack: Lack) -> wire.WhyLack:
    return wire.WhyLack(
        requirements=_to_requirements(lack.requirements),
        slice_count=lack.slice_count,
        slot=lack.slot_name,
        missing=_to_margins(lack.missing),
    )


def _to_requirements(need: Requirements) -> wire_jobs.Requirements:
    names = wire_jobs.Requirements.__struct_fields__
    return wire_jobs.Requirements(**{name: getattr(need, name) for name in names})

"""What an operator asks about placement."""

from __future__ import annotations

from dataclasses import asdict
from math import exp

import msgspec

from computepool.core.placement import experiment as core
from computepool.core.placement.weights import WeightBook
from computepool.hub.http.routing import Access, Call, Routes
from computepool.hub.services import experiments as service
from computepool.hub.services.experiments import Experiment
from computepool.wire import placement as wire

routes = Routes()


class ExperimentQuery(msgspec.Struct, frozen=True, kw_only=True):
    days: float = 7.0


@routes.add("GET", "/v1/placement/experiment", Access.OPERATOR, query=ExperimentQuery, answer=wire.Experiment)
async def get_experiment(call: Call) -> wire.Experiment:
    """The two sets of placement weights of the split, by what became of the jobs that were given each."""
    found = await service.get_experiment(call.hub.pool, call.hub.weights, days=call.query.days)
    return to_experiment(found)


def to_experiment(found: Experiment) -> wire.Experiment:
    comparison, share = found.comparison, found.book.split.second_share
    return wire.Experiment(
        since=found.since,
        first=_to_set(comparison.first, found.book, share=1 - share),
        second=_to_set(comparison.second, found.book, share=share),
        job_count=found.job_count,
        is_cut=found.is_cut,
        verdict=comparison.verdict,
        words=comparison.words,
        turnaround_ratio=_to_ratio(comparison.turnaround),
        fault_share=wire.Interval(**asdict(comparison.fault_share)) if comparison.fault_share else None,
        jobs_more=comparison.jobs_more,
    )


def _to_set(outcome: core.SetOutcome, book: WeightBook, *, share: float) -> wire.SetOutcome:
    weights = {name: weight for name, weight in asdict(book.sets[outcome.name]).items() if weight}
    return msgspec.convert({**asdict(outcome), "share": share, "weights": weights}, wire.SetOutcome)


def _to_ratio(logs: core.Interval | None) -> wire.Interval | None:
    """Differences of logarithms are ratios of times."""
    return wire.Interval(estimate=exp(logs.estimate), low=exp(logs.low), high=exp(logs.high)) if logs else None

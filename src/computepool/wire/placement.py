"""How placement is tuned, and what it comes to."""

from __future__ import annotations

from datetime import datetime

import msgspec

from computepool.core.placement.experiment import Verdict


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    median: float
    mean: float


class SetOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One set of weights and what became of the jobs that were given it."""

    name: str
    # The part of all new jobs that it is given now.
    share: float
    weights: dict[str, float]
    job_count: int
    finished_count: int
    succeeded_count: int
    slice_count: int
    # Of the attempts that were looked at: a sample where jobs have many.
    attempt_count: int
    # Attempts that failed by the node's fault, and finished jobs that met at least one such.
    fault_count: int
    faulty_job_count: int
    # Per job: from submission to its first lease, from there to its end, and the mean run of its slices.
    wait_seconds: Summary | None = None
    turnaround_seconds: Summary | None = None
    run_seconds: Summary | None = None
    # Of an hour of a slot, by the present floors of the nodes that ran it.
    price_microcredits_per_hour: float | None = None


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """Between `low` and `high` with 95 % confidence."""

    estimate: float
    low: float
    high: float


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """The second set against the first. A job counts once, however many slices it has."""

    since: datetime
    first: SetOutcome
    second: SetOutcome
    # Jobs that were looked at, of other sets too. `is_cut`: only the newest, because there were more.
    job_count: int
    is_cut: bool
    verdict: Verdict
    words: str
    # The second set's time from first lease to end, as a multiple of the first's; absent with too few jobs.
    turnaround_ratio: Interval | None = None
    # Of the share of jobs that met a node's fault: the second's less the first's.
    fault_share: Interval | None = None
    jobs_more: int | None = None

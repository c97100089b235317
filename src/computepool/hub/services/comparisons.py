"""When results of one slice agree: by their bytes, by their numbers, or by a command of the submitter's.

The command is work like any other: a job of one slice, on a slot of somebody who is trusted and has nothing to do
with either result. What it said is how that attempt ended, so that nothing need be written down twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from computepool import entropy
from computepool.core.ids import AccountId, JobId
from computepool.core.jobs.comparing import fits_beside, lay_beside, read_end
from computepool.core.jobs.spec import InputFile
from computepool.core.jobs.state import JOB_TERMINAL, AttemptState
from computepool.core.trust.comparators.arrays import UNPACKED_BYTES_MAX
from computepool.core.trust.comparators.command import COMPARISONS_MAX, Needed, Result, Said, label_by_command
from computepool.core.trust.comparators.compare import find_file_difference, list_to_compare
from computepool.core.trust.comparators.kinds import ComparatorKind
from computepool.core.trust.inspection import Comparison, Facts, RunState
from computepool.core.trust.standing import NodeTrust
from computepool.core.trust.validation import choose_deciders, draw_audit, label_answers
from computepool.hub.blobs.local import LocalBlobs
from computepool.hub.services.further_runs import (
    NotLeased,
    find_comparator,
    find_field,
    lease_paid,
    stop_run,
    to_runner,
)
from computepool.hub.services.inspector import Inspector
from computepool.hub.store import comparisons as store
from computepool.hub.store.comparisons import StoredComparison
from computepool.hub.store.validation import StoredCheck, StoredRun
from computepool.wire import jobs as wire

log = logging.getLogger("computepool.trust")

# So that who compares is not drawn by the same numbers as who runs.
DRAW_LABEL = b"comparison"


@dataclass(frozen=True, slots=True)
class Labelled:
    """Which results agree, as far as it is known."""

    # A number for each; or two that must be compared before. None: nobody can tell.
    found: tuple[int, ...] | Needed | None
    compared_at: datetime | None = None
    # A run of the command.
    is_under_way: bool = False
    # All runs of it so far, oldest first.
    asked: Sequence[StoredComparison] = ()


async def label_results(inspector: Inspector, check: StoredCheck) -> Labelled:
    """A number for each run that was delivered; equal ones agree."""
    delivered = list_delivered(check)
    if find_comparator(check.spec).kind is ComparatorKind.COMMAND:
        return await _label_by_command(inspector, check, delivered)
    agrees = []
    for index, run in enumerate(delivered):
        agrees.append([await agree(inspector.blobs, check.spec, run, other) for other in delivered[:index]])
    return Labelled(tuple(label_answers(agrees)))


def list_delivered(check: StoredCheck) -> list[StoredRun]:
    return [run for run in check.runs if run.state is AttemptState.SUCCEEDED]


# By bytes and numbers


async def agree(blobs: LocalBlobs, spec: Mapping[str, Any], one: StoredRun, other: StoredRun) -> bool:
    """By what the job declares, unless that is a command."""
    if one.result_sha256 == other.result_sha256:
        return True
    comparator = find_comparator(spec)
    ours, theirs = _to_hashes(one), _to_hashes(other)
    paths = list_to_compare(ours, theirs, comparator)
    if isinstance(paths, str) or comparator.kind is not ComparatorKind.NUMERIC:
        return False
    if any(_find_size(run, paths) > UNPACKED_BYTES_MAX for run in (one, other)):
        # As the comparator would say once it had read them; two files are in memory at a time.
        return False
    for path in paths:
        pair = [await _read(blobs, hashes[path].hex()) for hashes in (ours, theirs)]
        # In a thread: millions of numbers take a while, and others wait for this loop.
        if await asyncio.to_thread(find_file_difference, path, pair[0], pair[1], comparator.tolerance) is not None:
            return False
    return True


def _find_size(run: StoredRun, paths: Collection[str]) -> int:
    """Of the largest of these files."""
    return max((output["size_bytes"] for output in run.outputs if output["path"] in paths), default=0)


def _to_hashes(run: StoredRun) -> dict[str, bytes]:
    return {output["path"]: bytes.fromhex(output["sha256"]) for output in run.outputs}


async def _read(blobs: LocalBlobs, sha256: str) -> bytes:
    return b"".join([chunk async for chunk in blobs.read(sha256)])


# By a command: what it has said


async def _label_by_command(inspector: Inspector, check: StoredCheck, delivered: Sequence[StoredRun]) -> Labelled:
    async with inspector.pool.acquire() as conn:
        asked = await store.list_comparisons(conn, check.attempt_id)
    await _stop_dead(inspector, asked)
    places = {run.attempt_id: place for place, run in enumerate(delivered)}
    heard = defaultdict(list)
    for each in asked:
        heard[places[each.one_id], places[each.other_id]].append(_hear(each))
    is_under_way = any(Said.UNDER_WAY in said for said in heard.values())
    found = None if is_under_way else label_by_command(_to_results(check, delivered), heard)
    if isinstance(found, Needed) and len(asked) >= COMPARISONS_MAX:
        found = None
    ends = [each.finished_at for each in asked if each.finished_at is not None]
    return Labelled(found, max(ends, default=None), is_under_way, asked)


async def _stop_dead(inspector: Inspector, asked: Sequence[StoredComparison]) -> None:
    for each in asked:
        if _hear(each) is not Said.UNDER_WAY and each.job_state not in JOB_TERMINAL:
            await stop_run(inspector, each.job_id)


def _hear(comparison: StoredComparison) -> Said:
    return read_end(comparison.state, comparison.exit_code, comparison.cause)


def _to_results(check: StoredCheck, delivered: Sequence[StoredRun]) -> list[Result]:
    spec = msgspec.convert(check.spec, wire.JobSpec)
    files, disk_bytes = _list_files(spec), spec.requirements.disk_bytes
    results = []
    for run in delivered:
        assert run.result_sha256 is not None
        fits = fits_beside(files, _list_outputs(run), has_script=spec.script is not None, disk_bytes=disk_bytes)
        results.append(Result(run.result_sha256, fits))
    return results


def _list_files(spec: wire.JobSpec) -> list[InputFile]:
    return [InputFile(file.path, file.sha256, file.size_bytes, file.executable) for file in spec.files]


def _list_outputs(run: StoredRun) -> list[InputFile]:
    return [InputFile(output["path"], output["sha256"], output["size_bytes"]) for output in run.outputs]


# By a command: asking for it


async def ask_comparison(
    inspector: Inspector,
    check: StoredCheck,
    facts: Facts,
    step: Comparison,
    links: Mapping[AccountId, AccountId],
    *,
    asked: Sequence[StoredComparison],
) -> bool:
    """Leases it to somebody trusted: a stranger to both runners, and to those who have spoken of these two before.

    False: nobody is free, or nobody pays.
    """
    runs = list_delivered(check)
    one, other = runs[step.pair.one], runs[step.pair.other]
    runners = [run.runner for run in facts.runs if run.state is RunState.DELIVERED]
    field = await find_field(inspector, check, links, trusted=True)
    draw = draw_audit(inspector.audit_key, check.attempt_id, DRAW_LABEL + len(asked).to_bytes(4, "big"))
    apart = [
        runners[step.pair.one],
        runners[step.pair.other],
        *(
            to_runner(each.node_id, each.owner_id, each.network, NodeTrust(), links, check.now)
            for each in asked
            if (each.one_id, each.other_id) == (one.attempt_id, other.attempt_id) and _hear(each) is not Said.LOST
        ),
    ]
    chosen = choose_deciders(field.runners, apart, count=1, draw=draw)
    if not chosen:
        return False
    job_id = JobId(entropy.new_id())
    try:
        async with inspector.pool.acquire() as conn, conn.transaction():
            if not await store.insert_comparison(
                conn,
                check.attempt_id,
                job_id=job_id,
                number=len(asked) + 1,
                one_id=one.attempt_id,
                other_id=other.attempt_id,
            ):
                return True
            await lease_paid(
                conn,
                inspector,
                check,
                field.shape,
                field.slots[chosen[0].node_id],
                job_id=job_id,
                spec=to_comparison_spec(check.spec, one, other),
            )
    except NotLeased as error:
        log.info("comparison_not_leased attempt_id=%s reason=%s", check.attempt_id, error)
        return False
    return True


def to_comparison_spec(spec: Mapping[str, Any], one: StoredRun, other: StoredRun) -> dict[str, Any]:
    """The job's own files, environment and outfit, with the command that compares and both results.

    Without a way out: what a stranger has sent is only to be looked at.
    """
    known = msgspec.convert(spec, wire.JobSpec)
    assert known.compare is not None
    laid = lay_beside(_list_files(known), _list_outputs(one), _list_outputs(other))
    changed = msgspec.structs.replace(
        known,
        command=known.compare.command,
        files=tuple(
            wire.InputFile(path=f.path, sha256=f.sha256, size_bytes=f.size_bytes, executable=f.executable)
            for f in laid
        ),
        egress=(),
        compare=None,
    )
    built: dict[str, Any] = msgspec.to_builtins(changed)
    return built

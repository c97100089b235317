"""What a submitter sends, as the rules know it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import astuple

from computepool.core.errors import InvalidSpec
from computepool.core.jobs.spec import (
    BY_THE_SECOND,
    SCRIPT_FILE_NAME,
    InputFile,
    JobPrice,
    JobSpec,
    Requirements,
)
from computepool.core.jobs.wants import list_wants
from computepool.core.trust.comparators.kinds import Comparator
from computepool.core.trust.comparators.tolerance import Tolerance
from computepool.wire import jobs as wire


def to_spec(request: wire.JobSpec) -> JobSpec:
    command = request.command
    if request.script is not None and not command:
        command = ("python3", SCRIPT_FILE_NAME)
    return JobSpec(
        name=request.name,
        command=command,
        script=request.script,
        files=tuple(InputFile(f.path, f.sha256, f.size_bytes, f.executable) for f in request.files),
        env=request.env,
        requirements=_to_requirements(request),
        slice_count=request.slice_count,
        retries=request.retries,
        wall_seconds=request.wall_seconds,
        priority=request.priority,
        expires_at=request.expires_at,
        priority_class=request.priority_class,
        prefer=request.prefer,
        deadline_at=request.deadline_at,
        image=request.image,
        packages=request.packages,
        egress=request.egress,
        checkpoint_seconds=request.checkpoint_seconds,
        secrets=request.secrets,
        price=BY_THE_SECOND if request.price is wire.BY_THE_SECOND else JobPrice(*astuple(request.price)),
        verify=request.verify,
        comparator=None if request.compare is None else to_comparator(request.compare),
    )


def to_comparator(compare: wire.Compare) -> Comparator:
    try:
        tolerance = Tolerance(compare.relative, compare.absolute)
        return Comparator(compare.kind, tolerance, compare.anywhere, compare.command)
    except ValueError as error:
        raise InvalidSpec(f"The job cannot be taken: compare: {error}.", faults=[f"compare: {error}"]) from None


def _to_requirements(request: wire.JobSpec) -> Requirements:
    fields: tuple[Any, ...] = astuple(request.requirements)
    wants = list_wants(
        image=request.image,
        egress=request.egress,
        packages=request.packages,
        isolation=request.requirements.isolation,
    )
    return Requirements(*(*fields, request.kind, request.wall_seconds, None, wants))

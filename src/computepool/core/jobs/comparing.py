"""Comparing two results of a slice, as work: the files that a node is given for it, and what its end says."""

from __future__ import annotations

from collections.abc import Sequence

from computepool.core.jobs.cause import SPENDS_RETRY, Cause
from computepool.core.jobs.spec import COMPARED_FOLDER_NAMES, InputFile, list_file_faults
from computepool.core.jobs.state import ATTEMPT_LIVE, AttemptState
from computepool.core.trust.comparators.command import Said

DIFFER_EXIT_CODE = 1


def read_end(state: AttemptState, exit_code: int | None, cause: Cause | None) -> Said:
    """Only the command's own word counts: 1 with another cause is no answer of its."""
    if state in ATTEMPT_LIVE:
        return Said.UNDER_WAY
    if state is AttemptState.SUCCEEDED:
        return Said.AGREE
    if state is not AttemptState.FAILED or cause not in SPENDS_RETRY:
        return Said.LOST
    return Said.DIFFER if cause is Cause.EXIT_CODE and exit_code == DIFFER_EXIT_CODE else Said.NOTHING


def lay_beside(
    files: Sequence[InputFile], one: Sequence[InputFile], other: Sequence[InputFile]
) -> tuple[InputFile, ...]:
    """The job's own files, and below them the two results."""
    placed = [
        InputFile(f"{name}/{file.path}", file.sha256, file.size_bytes)
        for name, result in zip(COMPARED_FOLDER_NAMES, (one, other), strict=True)
        for file in result
    ]
    return (*files, *placed)


def fits_beside(
    files: Sequence[InputFile], result: Sequence[InputFile], *, has_script: bool, disk_bytes: int
) -> bool:
    """Whether a result could be compared with itself: then also with any other of which that holds.

    Nodes name their outputs themselves: what cannot be laid into a folder must not become the fault of whoever is
    asked to compare it. `disk_bytes` 0: as much as there is.
    """
    laid = lay_beside(files, result, result)
    if list_file_faults(laid, has_script=has_script):
        return False
    return not disk_bytes or sum(file.size_bytes for file in laid) <= disk_bytes

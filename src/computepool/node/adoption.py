"""What an earlier agent left behind: attempts whose runners went on, or have ended, or vanished.

A vanished one is cleaned up and not listed: the new boot tells the hub to give it to another node at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from computepool.node import journal
from computepool.node.attempt_folder import AttemptFolder, list_folders
from computepool.node.runner import handle
from computepool.node.runner.status import VANISHED
from computepool.node.state_dir import StateDir
from computepool.wire.attempts import Assignment


@dataclass(frozen=True, slots=True)
class LeftBehind:
    assignment: Assignment
    # The hub wants no word of it: only its runner has to end.
    is_let_go: bool


def list_left_behind(state: StateDir) -> list[LeftBehind]:
    """Blocking: looks at files and removes what nobody can use any more."""
    found = (_find_attempt(id, folder) for id, folder in list_folders(state.attempts))
    return [attempt for attempt in found if attempt is not None]


def _find_attempt(attempt_id: UUID, folder: AttemptFolder) -> LeftBehind | None:
    assignment = folder.find_assignment()
    has_runner = handle.read_status(folder.run_path).state != VANISHED
    if assignment is None or assignment.attempt_id != attempt_id or not (has_runner or folder.find_completion()):
        journal.info("attempt_vanished", attempt_id=attempt_id)
        _remove(attempt_id, folder)
        return None
    journal.info("attempt_adopted", attempt_id=attempt_id, slot=assignment.slot)
    return LeftBehind(assignment, folder.is_let_go())


def _remove(attempt_id: UUID, folder: AttemptFolder) -> None:
    try:
        folder.remove()
    except (OSError, handle.RunnerAlive) as error:
        journal.error("attempt_not_cleaned", attempt_id=attempt_id, reason=error)

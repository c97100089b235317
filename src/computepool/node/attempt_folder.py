"""What is kept on disk of one attempt that the agent holds: enough to go on after the agent was killed.

assignment.json    as the hub sent it; written before anything is fetched or run
main.py            the job's inline script, if it has one
run/               the runner's own folder: request, status, log, outputs
completion.json    how it ended; written before it is told for the first time
let_go             present when the hub wants no word of it any more: only the runner has to end
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from computepool.node import files
from computepool.node.runner import files as runner_files
from computepool.node.runner import handle
from computepool.wire.attempts import Assignment, Completion


class AttemptFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_path = path / "run"
        self.script_path = path / "main.py"
        self.log_path = self.run_path / runner_files.LOG
        self._assignment_path = path / "assignment.json"
        self._completion_path = path / "completion.json"
        self._let_go_path = path / "let_go"

    def record_assignment(self, assignment: Assignment) -> None:
        files.make_private(self.path)
        files.write_whole(self._assignment_path, msgspec.json.encode(assignment))

    def find_assignment(self) -> Assignment | None:
        found = files.find_bytes(self._assignment_path)
        try:
            return msgspec.json.decode(found, type=Assignment) if found is not None else None
        except msgspec.DecodeError:
            return None

    def record_completion(self, completion: Completion) -> None:
        files.make_private(self.path)
        files.write_whole(self._completion_path, msgspec.json.encode(completion))

    def find_completion(self) -> Completion | None:
        found = files.find_bytes(self._completion_path)
        return _read_completion(found) if found is not None else None

    def record_let_go(self) -> None:
        files.make_private(self.path)
        files.write_whole(self._let_go_path, b"")

    def is_let_go(self) -> bool:
        return self._let_go_path.exists()

    def get_output_path(self, path: str) -> Path:
        return self.run_path / runner_files.OUTPUTS / path

    def remove(self) -> None:
        """Gives back what the runner took from the machine, then forgets everything."""
        handle.cleanup(self.run_path)
        files.remove_folder(self.path)


def _read_completion(content: bytes) -> Completion | None:
    """An older agent kept the whole call; what belongs to the call and not to the end is left out."""
    try:
        kept = msgspec.json.decode(content, type=dict[str, Any])
        return msgspec.convert({k: v for k, v in kept.items() if k in Completion.__struct_fields__}, Completion)
    except msgspec.DecodeError:
        return None


def list_folders(attempts: Path) -> list[tuple[UUID, AttemptFolder]]:
    """The folders of attempts, whoever left them; whatever else lies there is no attempt's."""
    found = []
    for path in sorted(attempts.iterdir()):
        try:
            found.append((UUID(path.name), AttemptFolder(path)))
        except ValueError:
            continue
    return found

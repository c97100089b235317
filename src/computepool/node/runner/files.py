"""Names and atomic writing of the files in a state directory: the whole conversation of agent and runner.

request.json   agent   what to run; written before the runner starts
stop.json      agent   the wish to end it, and why
status.json    runner  how it stands; replaced as a whole, never half written
log            runner  what the job printed, up to its limit
outputs/       runner  what the job left in its output folder
checkpoint.json runner which files the job had saved at one moment; replaced as a whole by the next moment
saved/         runner  those files, by their hash, as far as the hub may not have them
shipped.json   agent   the last checkpoint that the hub has answered
runner.log     runner  what the runner itself had to say (empty unless something broke)
resources.json runner  what it took from the machine, for whoever must clean up after it
"""

from __future__ import annotations

import json
import os
from typing import Any

REQUEST, STOP, STATUS = "request.json", "stop.json", "status.json"
LOG, OUTPUTS, RUNNER_LOG = "log", "outputs", "runner.log"
CHECKPOINT, SAVED, SHIPPED = "checkpoint.json", "saved", "shipped.json"


def write_json(state_dir: str, name: str, content: dict[str, Any], *, durable: bool = False) -> None:
    """Replace the file in one step; `durable`: it is on the disk when this returns."""
    path = os.path.join(state_dir, name)
    temporary = path + ".new"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(content, file)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(temporary, path)
    if durable:
        directory = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def find_json(state_dir: str, name: str) -> dict[str, Any] | None:
    """The file's content; None when it is absent or not a JSON object."""
    try:
        with open(os.path.join(state_dir, name), encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None

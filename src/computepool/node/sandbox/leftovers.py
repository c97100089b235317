"""What a job takes from the machine, written down before it is taken, and how to give it back.

Knows only what stands in the note of one state directory: it never searches the machine for things that
look like ours, because a second agent may be at work here.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence

from computepool.node.sandbox import cgroups, disk, programs, syscalls
from computepool.node.sandbox.port import SandboxRefused

NOTE_NAME = "resources.json"


def write_note(
    state_dir: str,
    *,
    cgroup_paths: tuple[str, ...],
    mount_point: str | None,
    image: str | None,
    mounts: Sequence[str] = (),
    undo: Sequence[str] = (),
) -> None:
    """Called before anything is made: a runner that is killed one line later has left its traces here.

    `mounts` are further mount points; `undo` is a command that ends the job's container.
    """
    note = {
        "cgroups": list(cgroup_paths),
        "mount_point": mount_point,
        "image": image,
        "mounts": list(mounts),
        "undo": list(undo),
    }
    temporary = os.path.join(state_dir, NOTE_NAME + ".new")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(note, file)
    os.replace(temporary, os.path.join(state_dir, NOTE_NAME))


def give_back(state_dir: str) -> bool:
    """Undo what the note names; True when there was anything to undo. Only for a state without a runner."""
    path = os.path.join(state_dir, NOTE_NAME)
    try:
        with open(path, encoding="utf-8") as file:
            note = json.load(file)
    except FileNotFoundError:
        return False
    mounts = note.get("mounts", [])
    places = (*note["cgroups"], note["mount_point"] or "", note["image"] or "", *mounts)
    found = any(os.path.exists(each) for each in places)
    if found and note.get("undo"):
        # An engine that is gone has no container of ours any more.
        with contextlib.suppress(SandboxRefused):
            programs.ask(note["undo"])
    for cgroup_path in note["cgroups"]:
        cgroups.remove_leftover(cgroup_path)
    for mount_point in (*mounts, *filter(None, [note["mount_point"]])):
        # The mount itself died with the runner's mount namespace, except where that namespace was shared.
        if os.path.ismount(mount_point):
            syscalls.unmount(mount_point, lazily=True)
        disk.remove_traces(mount_point, note["image"])
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return found

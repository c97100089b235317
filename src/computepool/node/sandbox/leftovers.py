"""What a job takes from the machine, written down before it is taken, and how to give it back.

Knows only what stands in the note of one state directory: it never searches the machine for things that
look like ours, because a second agent may be at work here.
"""

from __future__ import annotations

import contextlib
import json
import os

from computepool.node.sandbox import cgroups, disk, syscalls

NOTE_NAME = "resources.json"


def write_note(state_dir: str, *, cgroup_paths: tuple[str, ...], mount_point: str | None, image: str | None) -> None:
    """Called before anything is made: a runner that is killed one line later has left its traces here."""
    note = {"cgroups": list(cgroup_paths), "mount_point": mount_point, "image": image}
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
    found = any(os.path.exists(each) for each in (*note["cgroups"], note["mount_point"] or "", note["image"] or ""))
    for cgroup_path in note["cgroups"]:
        cgroups.remove_leftover(cgroup_path)
    if note["mount_point"]:
        # The mount itself died with the runner's mount namespace, except where that namespace was shared.
        if os.path.ismount(note["mount_point"]):
            syscalls.unmount(note["mount_point"], lazily=True)
        disk.remove_traces(note["mount_point"], note["image"])
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return found

"""What /proc tells of a process of a job. Decides nothing."""

from __future__ import annotations


def find_parent(process_id: int) -> int | None:
    # The name, in parentheses, may hold anything; what follows the last one is plain.
    try:
        with open(f"/proc/{process_id}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return None


def inner_number(process_id: int) -> int:
    """The process's number inside its own namespace: the first of a sandbox is 1, or 2 behind bubblewrap's own."""
    try:
        with open(f"/proc/{process_id}/status", "rb") as file:
            for line in file:
                if line.startswith(b"NSpid:"):
                    return int(line.split()[-1])
    except OSError:
        pass
    return 1 << 30

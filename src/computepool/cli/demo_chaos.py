"""`computepool demo --chaos`: pulls the plugs of busy machines while jobs run, and shows that nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from computepool import clock, entropy
from computepool.core.jobs.state import JobState
from computepool.wire.jobs import JobSpec

if TYPE_CHECKING:
    from computepool.cli.demo_grid import Grid
    from computepool.sdk import JobHandle
    from computepool.wire.live import MeshNode

# The demo's leases run out within this time, so that work has moved before the machine is back.
OUT_SECONDS = 20.0
EVERY_SECONDS = 15.0
JOBS_AT_ONCE = 2
_SCRIPT = "import time\nfor step in range(40):\n    print('step', step, flush=True)\n    time.sleep(0.25)\n"


@dataclass(slots=True)
class Chaos:
    """Called again and again; does something when it is time."""

    grid: Grid
    say: Callable[[str], None]
    pulled: int = 0
    finished: int = 0
    lost: list[str] = field(default_factory=list)
    _jobs: list[JobHandle] = field(default_factory=list)
    _next_seconds: float = 0.0

    def look(self) -> None:
        self._keep_busy()
        if clock.seconds() < self._next_seconds:
            return
        self._next_seconds = clock.seconds() + EVERY_SECONDS
        victim = choose_victim(self.grid.submitter.live.mesh().nodes, chance=entropy.jitter())
        if victim is None:
            return
        self.grid.submitter.live.unplug(victim.id, seconds=OUT_SECONDS)
        self.pulled += 1
        proof = self.grid.submitter.books.proof()
        self.say(
            f"pulled the plug of a {victim.tier} with {victim.busy_slots} busy slots for {OUT_SECONDS:.0f} s   "
            f"({self.pulled} so far; {self.finished} jobs done, {len(self.lost)} lost; all accounts come to "
            f"{proof.balance_sum_microcredits})"
        )

    def _keep_busy(self) -> None:
        """There is always something to be moved."""
        for job in list(self._jobs):
            job.refresh()
            if not job.is_finished:
                continue
            self._jobs.remove(job)
            self.finished += 1
            if job.state is not JobState.SUCCEEDED:
                self.lost.append(str(job.id))
        while len(self._jobs) < JOBS_AT_ONCE:
            spec = JobSpec(name="chaos", script=_SCRIPT, slice_count=6, wall_seconds=120, retries=5)
            self._jobs.append(self.grid.submitter.submit_spec(spec))


def choose_victim(nodes: list[MeshNode], *, chance: float) -> MeshNode | None:
    """A busy one, if any; never the last one that is left."""
    online = [node for node in nodes if node.online and node.synthetic]
    busy = [node for node in online if node.busy] or online
    return busy[int(chance * len(busy))] if len(online) > 1 else None

"""Real agents behind routers that masquerade, whose cables are pulled and whose addresses change while jobs run.

Kept: addresses change, then the cables are out for less than a lease; every slice must end at its first attempt.
Lost: the cables of all homes are out for several leases, and the jobs end with nobody to tell; afterwards the results
must be delivered after all. Counted is what was not finished, not delivered, or run more often than leases allow.

    python -m soaks.nat [--lease-seconds N] [--short-cut-seconds N] [--long-cut-seconds N] [--planted]
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import UUID

from computepool.hub.store.embedded import EmbeddedPostgres
from computepool.sdk import Client, JobHandle
from computepool.wire.jobs import Slice
from tests.support.agent_process import AgentProcess
from tests.support.hub_process import HubProcess
from tests.support.nat_lab import HUB_ADDRESS, NatLab, inside, list_missing
from tests.support.people import sign_up
from tests.support.postgres import TestServer

PORT = 8000
SLOTS_PER_HOME = 2
IMPATIENT = ("-m", "tests.support.agent_without_patience")
# For what must come; long enough for a machine that does much else.
WAIT_SECONDS = 180.0
LOOK_SECONDS = 0.2
SCRIPT = """
import os, pathlib, time
print("begun", flush=True)
time.sleep({seconds})
(pathlib.Path(os.environ["COMPUTEPOOL_OUTPUT_DIR"]) / "result.txt").write_text(os.environ["COMPUTEPOOL_SLICE_INDEX"])
print("done", flush=True)
"""

# How an attempt ends that another one replaces.
RULED_ENDS = {("lost", "node_vanished"), ("failed", "network_lost"), ("cancelled", "superseded")}


@dataclass(frozen=True, slots=True)
class Rhythm:
    lease_seconds: float
    beat_seconds: float
    # How long the cables are out, and how long a slice runs.
    cut_seconds: float
    job_seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one job, in figures."""

    slices: int
    # Not succeeded in time, or with another result than the slice has when it is left in peace.
    unfinished: int
    wrong_results: int
    # Slices with other than one accepted attempt, or with ends that leases know nothing of.
    unruly: int
    # Attempts beyond the first.
    repeated: int
    # Results of attempts that had been lost.
    late: int


class Grid:
    """A hub in its namespace, and one agent in each home."""

    def __init__(self, lab: NatLab, hub: HubProcess, agents: Sequence[AgentProcess], client: Client) -> None:
        self._lab = lab
        self.hub = hub
        self._agents = agents
        self._client = client
        # Whose calls the hub has seen.
        self.callers: set[str] = set()

    def start_job(self, seconds: float) -> JobHandle:
        """One slice for each slot, and all of them run."""
        slot_count = len(self._agents) * SLOTS_PER_HOME
        job = self._client.submit(script=SCRIPT.format(seconds=seconds), slices=slot_count, retries=0)
        self.wait(lambda: all(each.state == "running" for each in job.slices()), "all slices to run")
        return job

    def move_homes(self) -> None:
        """Every home gets new addresses; all are heard again from there."""
        self._see_callers()
        for home in self._lab.homes:
            home.move()
        moved = {home.public_address for home in self._lab.homes}
        self.wait(lambda: moved <= self._see_callers(), "calls from the new addresses")

    def pull_cables(self) -> None:
        for home in self._lab.homes:
            home.pull_cable()

    def plug_in(self) -> None:
        for home in self._lab.homes:
            home.plug_in()

    def has_ended(self, attempt_id: UUID) -> bool:
        """As far as its own machine knows."""
        line = f"attempt_ended attempt_id={attempt_id}"
        return any(line in agent.log_path.read_text() for agent in self._agents)

    def judge(self, job: JobHandle, *, lost: frozenset[UUID] = frozenset(), seconds: float) -> Outcome:
        """Waits for the job's end, not longer than this, and adds up what came of it."""
        deadline = time.monotonic() + seconds
        while not job.is_finished and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
            job.refresh()
        self._see_callers()
        slices = list(job.slices())
        done = [each for each in slices if each.state == "succeeded"]
        return Outcome(
            slices=len(slices),
            unfinished=len(slices) - len(done),
            wrong_results=sum(not has_right_result(each) for each in done),
            unruly=sum(not is_within_rules(each) for each in done),
            repeated=sum(len(each.attempts) - 1 for each in slices),
            late=sum(
                attempt.id in lost and attempt.state == "succeeded" for each in done for attempt in each.attempts
            ),
        )

    def wait(self, is_so: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not is_so():
            if time.monotonic() > deadline:
                logs = "".join(f"\n{agent.name}:\n{agent.log_text()[-3_000:]}" for agent in self._agents)
                raise AssertionError(f"waited {WAIT_SECONDS:.0f} s for {what}{logs}")
            time.sleep(LOOK_SECONDS)

    def _see_callers(self) -> set[str]:
        found = self._lab.list_callers(PORT)
        self.callers |= found
        return found


def has_right_result(slice_: Slice) -> bool:
    expected = hashlib.sha256(str(slice_.index).encode()).hexdigest()
    return [output.sha256 for output in slice_.outputs] == [expected]


def is_within_rules(slice_: Slice) -> bool:
    """One attempt is accepted. The others' nodes were silent for a lease, or saw so; or somebody was faster."""
    ends = [(attempt.state.value, attempt.cause and attempt.cause.value) for attempt in slice_.attempts]
    others = [end for end in ends if end[0] != "succeeded"]
    return len(ends) - len(others) == 1 and set(others) <= RULED_ENDS


@contextmanager
def open_grid(dsn: str, folder: Path, rhythm: Rhythm, *, is_planted: bool = False) -> Iterator[Grid]:
    """The caller stays in the hub's namespace while it is open."""
    with ExitStack() as stack:
        lab = stack.enter_context(NatLab())
        stack.enter_context(inside(lab.hub))
        hub = make_hub(dsn, folder, rhythm)
        stack.callback(hub.kill)
        hub.start()
        owner, submitter = sign_up(hub.url, "owner"), sign_up(hub.url, "submitter")
        agents = []
        for home in lab.homes:
            agent = AgentProcess(
                hub_url=f"http://{HUB_ADDRESS}:{PORT}",
                owner=owner,
                root=folder,
                name=f"home{home.number}",
                program=IMPATIENT if is_planted else ("-m", "computepool.node"),
                profile="cpu-only",
                cpu_slots=SLOTS_PER_HOME,
            )
            stack.callback(agent.end)
            agents.append(agent)
            with inside(home.machine):
                agent.start()
        client = stack.enter_context(Client(hub_url=hub.url, key=submitter.key))
        yield Grid(lab, hub, agents, client)


def make_hub(dsn: str, folder: Path, rhythm: Rhythm) -> HubProcess:
    return HubProcess(
        dsn=dsn,
        data_dir=folder,
        port=PORT,
        lease_seconds=rhythm.lease_seconds,
        beat_seconds=rhythm.beat_seconds,
        host="0.0.0.0",
    )


def play_kept(grid: Grid, rhythm: Rhythm) -> Outcome:
    """Within the lease: nothing is given away, and nothing is lost."""
    job = grid.start_job(rhythm.job_seconds)
    grid.move_homes()
    grid.pull_cables()
    time.sleep(rhythm.cut_seconds)
    grid.plug_in()
    return grid.judge(job, seconds=WAIT_SECONDS)


def play_lost(grid: Grid, rhythm: Rhythm, *, seconds: float = WAIT_SECONDS) -> Outcome:
    """Beyond the lease: the jobs end unheard, and the results come when there is a way again."""
    job = grid.start_job(rhythm.job_seconds)
    lost = frozenset(each.attempts[-1].id for each in job.slices())
    grid.pull_cables()
    pulled_at = time.monotonic()
    grid.wait(lambda: all(each.attempts[-1].state == "lost" for each in job.slices()), "the leases to end")
    grid.wait(lambda: all(map(grid.has_ended, lost)), "the jobs to end unheard")
    time.sleep(max(0.0, rhythm.cut_seconds - (time.monotonic() - pulled_at)))
    grid.plug_in()
    return grid.judge(job, lost=lost, seconds=seconds)


def run_nat(
    dsn: str, folder: Path, *, kept: Rhythm, lost: Rhythm, is_planted: bool = False
) -> tuple[Outcome, Outcome, set[str]]:
    """What came of both stories, and whose calls the hub has seen."""
    with ExitStack() as stack:
        grid = stack.enter_context(open_grid(dsn, folder, kept, is_planted=is_planted))
        first = play_kept(grid, kept)
        if (kept.lease_seconds, kept.beat_seconds) != (lost.lease_seconds, lost.beat_seconds):
            grid.hub.stop()
            hub = make_hub(dsn, folder, lost)
            stack.callback(hub.kill)
            hub.start()
        return first, play_lost(grid, lost), grid.callers


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lease-seconds", type=float, default=60.0)
    parser.add_argument("--short-cut-seconds", type=float, default=20.0)
    parser.add_argument("--long-cut-seconds", type=float, default=300.0)
    parser.add_argument("--planted", action="store_true", help="with agents that try nothing twice")
    options = parser.parse_args()
    if missing := list_missing():
        sys.exit(f"This cannot be run here: {'; '.join(missing)}.")
    lease, beat = options.lease_seconds, options.lease_seconds / 2
    kept = Rhythm(lease, beat, options.short_cut_seconds, job_seconds=2 * lease)
    lost = Rhythm(lease, beat, options.long_cut_seconds, job_seconds=min(2 * lease, options.long_cut_seconds / 2))
    with tempfile.TemporaryDirectory(prefix="cp-soak-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = EmbeddedPostgres(folder / "database")
        found = TestServer(asyncio.run(server.start()))
        try:
            asyncio.run(found.create_template())
            dsn = asyncio.run(found.create_database())
            first, second, callers = run_nat(dsn, folder, kept=kept, lost=lost, is_planted=options.planted)
        finally:
            asyncio.run(server.stop())
    print(json.dumps({"kept": asdict(first), "lost": asdict(second), "callers": sorted(callers)}))


if __name__ == "__main__":
    main()

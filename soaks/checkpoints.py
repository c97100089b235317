"""A training run on machines that are killed, and on machines whose owners come back; what is lost, and who is paid.

Kills: agent, runner and job go with -9 at a random moment, twice in each run; the run goes on on another machine. Its
result must be that of an undisturbed run, and no more than one interval of work may be lost each time. Returns: the
owner sits down at a random moment; the machine must be free within two seconds, also of a job that does not listen.
Before that somebody claims in the machine's name what was never saved, which must earn nothing. Forgers: a machine
saves nonsense of a plausible age and vanishes; two strangers fail on it, the run must end all the same, with the
result of an undisturbed one, and the forger must have earned nothing and be suspect. Money is checked to the
microcredit.

    python -m soaks.checkpoints [--kills N] [--returns N] [--forgers N] [--every SECONDS] [--seed N]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import asyncpg

from computepool.hub.store.embedded import EmbeddedPostgres
from computepool.sdk import Client
from tests.support.agent_process import AgentProcess
from tests.support.checkpoint_story import (
    Loss,
    check_books,
    find_honest_seconds,
    find_log,
    find_loss,
    kill_holder,
    list_attempts,
    read_result,
    submit,
    train_at_home,
    wait_for,
)
from tests.support.forged_checkpoints import FORGERIES, save_nonsense, send_forgeries
from tests.support.hub_process import HubProcess
from tests.support.owner_seat import Chair, measure_freeing
from tests.support.people import Person, sign_up

# A third machine that goes down under a slice ends it: the job is taken for poisonous.
KILLS_PER_RUN = 2
FREED_SECONDS = 2.0


@dataclass(frozen=True)
class Return:
    """One owner who came back."""

    freed_seconds: float
    # How long the job had run, and how much of it was in its last accepted checkpoint.
    run_seconds: float
    saved_seconds: int
    charged_microcredits: int


@dataclass(frozen=True)
class Forgery:
    """One machine that saved nonsense, and what it has come to."""

    saved_seconds: int
    verdict: str
    standing: str | None
    # Of its owner, pending and free.
    earned_microcredits: int

    @property
    def is_found_out(self) -> bool:
        return (self.verdict, self.standing, self.earned_microcredits) == ("forged", "suspect", 0)


FORGERY = """
SELECT k.verdict::text, t.standing::text, (
           SELECT coalesce(sum(abs(l.balance)), 0)::bigint FROM ledger_accounts l
            WHERE l.id IN ('owner_pending/' || n.account_id, 'owner_available/' || n.account_id)) AS balance
  FROM attempt_checkpoints k JOIN attempts a ON a.id = k.attempt_id JOIN nodes n ON n.id = a.node_id
  LEFT JOIN node_trust t ON t.node_id = n.id
 WHERE k.attempt_id = $1 AND k.verdict IS NOT NULL"""


class Fleet:
    """Agents that are started as they are needed, and end with the soak."""

    def __init__(self, hub: HubProcess, owner: Person, root: Path) -> None:
        self._hub, self._owner, self._root = hub, owner, root
        self.hub_url = hub.url
        self.agents: list[AgentProcess] = []
        self._count = 0

    def start(self, *, owner: Person | None = None, **settings: object) -> AgentProcess:
        self._count += 1
        name = f"machine-{self._count}"
        options = {"profile": "cpu-only", "cpu_slots": 1, **settings}
        agent = AgentProcess(hub_url=self._hub.url, owner=owner or self._owner, root=self._root, name=name, **options)
        self.agents.append(agent.start())
        return agent

    def end(self) -> None:
        for agent in self.agents:
            agent.end()
        self.agents.clear()


async def kill_machines(
    client: Client, fleet: Fleet, dsn: str, root: Path, *, kills: int, every_seconds: int, rng: random.Random
) -> list[Loss]:
    (root / "home").mkdir()
    undisturbed = train_at_home(root / "home")
    losses: list[Loss] = []
    fleet.start()
    while len(losses) < kills:
        count = min(KILLS_PER_RUN, kills - len(losses))
        job = submit(client, every_seconds=every_seconds, fast_from=count + 1)
        for number in range(1, count + 1):
            fleet.start()
            seconds = rng.uniform(0.0, 2.5 * every_seconds)
            killed, times = kill_holder(job, fleet.agents, number=number, seconds=seconds)
            fleet.agents.remove(killed)
            losses.append(find_loss(job, number, times))
            print(f"kill {len(losses)}: {losses[-1]}", flush=True)
        assert job.wait(timeout=300).state == "succeeded"
        assert read_result(job, root / str(job.id)) == undisturbed, f"job {job.id} came to another result"
        await check_books(dsn, job.id)
    fleet.end()
    return losses


async def take_machine_back(
    client: Client, fleet: Fleet, dsn: str, root: Path, *, returns: int, every_seconds: int, rng: random.Random
) -> list[Return]:
    chair = Chair(root)
    agent = fleet.start(**chair.settings)
    taken: list[Return] = []
    for number in range(1, returns + 1):
        # Every other one does not save when it is asked to stop, so that there is work that nobody may charge for.
        is_deaf = number % 2 == 0
        job = submit(client, every_seconds=every_seconds, fast_from=1_000, is_deaf=is_deaf)
        attempt = wait_for(lambda job=job: list_attempts(job), "an attempt")[0]
        wait_for(lambda attempt=attempt: find_log([agent], attempt.id), "its job to begin")
        await send_forgeries(fleet.hub_url, agent, attempt.id)
        time.sleep(rng.uniform(0.0, 2.5 * every_seconds))
        chair.sit_down()
        seconds = measure_freeing(agent, seconds_max=30.0)
        assert seconds is not None, agent.log_text()
        left = wait_for(
            lambda job=job: next((a for a in list_attempts(job) if a.finished_at is not None), None), "its end"
        )
        assert left.cause == "owner_returned", left
        honest_seconds = find_honest_seconds(agent, attempt.id)
        assert left.saved_seconds == honest_seconds, f"paid for {left.saved_seconds} s, saved {honest_seconds} s"
        job.cancel()
        await check_books(dsn, job.id)
        taken.append(Return(seconds, left.run_seconds or 0.0, left.saved_seconds, left.charged_microcredits or 0))
        print(f"return {number}: {taken[-1]}", flush=True)
        chair.leave()
    fleet.end()
    return taken


async def forge_checkpoints(
    client: Client, fleet: Fleet, dsn: str, root: Path, *, forgers: int, every_seconds: int
) -> list[Forgery]:
    (root / "alone").mkdir()
    undisturbed = train_at_home(root / "alone")
    found: list[Forgery] = []
    for _ in range(forgers):
        forger = fleet.start(owner=sign_up(fleet.hub_url))
        # Forged, failed on twice, begun anew and taken over; the fifth brings it to its end.
        job = submit(client, every_seconds=every_seconds, fast_from=5)
        attempt = wait_for(lambda job=job: list_attempts(job), "an attempt")[0]
        wait_for(lambda forger=forger, attempt=attempt: find_log([forger], attempt.id), "its job to begin")
        time.sleep(1.5)
        saved_seconds = await save_nonsense(fleet.hub_url, forger, attempt.id)
        forger.kill(with_runners=True)
        fleet.agents.remove(forger)
        for _ in range(2):
            fleet.start(owner=sign_up(fleet.hub_url))
        killed, _ = kill_holder(job, fleet.agents, number=4, seconds=0.0, is_saved=True)
        fleet.agents.remove(killed)
        assert job.wait(timeout=300).state == "succeeded"
        assert [a.cause for a in list_attempts(job)[1:3]] == ["exit_code", "exit_code"], list_attempts(job)
        assert read_result(job, root / str(job.id)) == undisturbed, f"job {job.id} came to another result"
        found.append(await find_forgery(dsn, attempt.id, saved_seconds))
        await check_books(dsn, job.id)
        print(f"forger {len(found)}: {found[-1]}", flush=True)
        fleet.end()
    return found


async def find_forgery(dsn: str, attempt_id: UUID, saved_seconds: int) -> Forgery:
    """Once the settler has looked at it."""
    conn = await asyncpg.connect(dsn)
    try:
        async with asyncio.timeout(120):
            while not (row := await conn.fetchrow(FORGERY, attempt_id)):
                await asyncio.sleep(0.2)
    finally:
        await conn.close()
    return Forgery(saved_seconds, row["verdict"], row["standing"], row["balance"])


async def run(args: argparse.Namespace) -> int:
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory(prefix="cp-soak-") as folder:
        root = Path(folder)
        root.chmod(0o755)
        server = EmbeddedPostgres(root / "database")
        dsn = await server.start()
        # Long enough for an agent on a busy machine to give its sign of life.
        hub = HubProcess(dsn=dsn, data_dir=root, lease_seconds=10.0)
        fleet: Fleet | None = None
        try:
            await asyncio.to_thread(hub.start)
            fleet = Fleet(hub, sign_up(hub.url), root)
            client = Client(hub_url=hub.url, key=sign_up(hub.url).key)
            plan = {"every_seconds": args.every, "rng": rng}
            losses = await kill_machines(client, fleet, dsn, root, kills=args.kills, **plan) if args.kills else []
            taken = (
                await take_machine_back(client, fleet, dsn, root, returns=args.returns, **plan)
                if args.returns
                else []
            )
            forged = await forge_checkpoints(client, fleet, dsn, root, forgers=args.forgers, every_seconds=args.every)
            client.close()
        finally:
            if fleet is not None:
                fleet.end()
            hub.kill()
            await server.stop()
    return report(losses, taken, forged, every_seconds=args.every)


def report(losses: list[Loss], taken: list[Return], forged: list[Forgery], *, every_seconds: int) -> int:
    too_much = [loss for loss in losses if loss.lost_seconds > every_seconds]
    freed = [each.freed_seconds for each in taken]
    too_late = [seconds for seconds in freed if seconds >= FREED_SECONDS]
    if losses:
        lost = [loss.lost_seconds for loss in losses]
        print(
            f"{len(losses)} kills, every result as undisturbed; lost {statistics.median(lost):.1f} s in the middle, "
            f"{max(lost):.1f} s at most, of an interval of {every_seconds} s; beyond it: {len(too_much)}"
        )
    if taken:
        print(
            f"{len(taken)} returns, freed after {statistics.median(freed):.2f} s in the middle, "
            f"{max(freed):.2f} s at most; later than {FREED_SECONDS:.0f} s: {len(too_late)}"
        )
        charged = sum(each.charged_microcredits for each in taken)
        saved_seconds = sum(each.saved_seconds for each in taken)
        later_seconds = sum(each.run_seconds for each in taken) - saved_seconds
        print(
            f"charged to the last accepted checkpoint, to the microcredit, each time: {charged:,} microcredits for "
            f"{saved_seconds} s; 0 for the {later_seconds:.0f} s after it, "
            f"and 0 for {len(FORGERIES) * len(taken)} checkpoints that were forged or empty"
        )
    found_out = [each for each in forged if each.is_found_out]
    if forged:
        print(
            f"{len(forged)} forgers saved nonsense worth {sum(each.saved_seconds for each in forged)} s; "
            f"earned nothing and suspect: {len(found_out)}; every result as undisturbed"
        )
    return 1 if too_much or too_late or len(found_out) < len(forged) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--returns", type=int, default=50)
    parser.add_argument("--forgers", type=int, default=3)
    parser.add_argument("--every", type=int, default=8, help="the jobs' interval between checkpoints, in seconds")
    parser.add_argument("--seed", type=int, default=1)
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    raise SystemExit(main())

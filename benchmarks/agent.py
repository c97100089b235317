"""What an agent costs whoever lends: memory and processor while it waits, and how soon the machine is theirs again.

    python -m benchmarks.agent [--returns N] [--idle-seconds S] [--quick] [--out FILE]

A real hub, a real agent with comfort rules, real sandboxes. While it idles the agent looks at a played seat twice a
second, as it would at a real one. Returns come at random moments with two jobs running: one ends when it is asked to,
one has to be made to. Freed means that no runner and no job is left. Runs as root: agents then make control groups.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import tables
from computepool.sdk import Client
from tests.support.agent_process import AgentProcess
from tests.support.hub_process import HubProcess
from tests.support.owner_seat import JOB, Chair, measure_freeing, wait_for_jobs
from tests.support.people import sign_up

SLOTS = 2
FREED_SECONDS = 2.0
GIVE_UP_SECONDS = 20.0
# Until the start's own work is over: its self-test, its first calls.
SETTLE_SECONDS = 10.0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--returns", type=int, default=50, help="how often the owner sits down")
    parser.add_argument("--idle-seconds", type=float, default=60.0, help="how long the idle agent is watched")
    parser.add_argument("--quick", action="store_true", help="5 returns and 10 s of rest")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    if os.geteuid() != 0:
        print("this benchmark needs root: it makes control groups and disks as an agent does", file=sys.stderr)
        return 2
    returns, idle_seconds = (5, 10.0) if options.quick else (options.returns, options.idle_seconds)
    report = tables.Report("agent", complete=not options.quick and returns >= 50, out=options.out)
    with tempfile.TemporaryDirectory(prefix="cp-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        hub = HubProcess(dsn=None, data_dir=folder, beat_seconds=30.0, lease_seconds=60.0).start()
        try:
            figures = measure(report, hub, folder, returns=returns, idle_seconds=idle_seconds)
        finally:
            hub.stop()
    report.finish(figures)
    return 0


def measure(
    report: tables.Report, hub: HubProcess, folder: Path, *, returns: int, idle_seconds: float
) -> dict[str, float | None]:
    chair = Chair(folder)
    agent = AgentProcess(
        hub_url=hub.url,
        owner=sign_up(hub.url, "owner"),
        root=folder,
        profile="cpu-only",
        cpu_slots=SLOTS,
        log_level="info",
        **chair.settings,
    ).start()
    try:
        wait_for_start(agent)
        time.sleep(SETTLE_SECONDS)
        rss_mb, core_share = watch_idle(agent.pid, idle_seconds)
        report.line(f"An idle agent takes {rss_mb:.0f} MB and {core_share:.2%} of a core, over {idle_seconds:.0f} s.")
        taken = come_back(agent, chair, hub, returns)
    finally:
        agent.end()
    known = [each for each in taken if each is not None]
    report.table(
        f"{returns} returns of the owner, until nothing of two jobs is left",
        ["", "median s", "95 % s", "slowest s", "never freed"],
        [("freed", tables.median(known), tables.quantile(known, 0.95), max(known, default=None), taken.count(None))],
    )
    within = sum(each is not None and each <= FREED_SECONDS for each in taken)
    return {"idle_rss_mb": rss_mb, "idle_core_share": core_share, "freed_within_2s_share": within / len(taken)}


def wait_for_start(agent: AgentProcess) -> None:
    deadline = time.monotonic() + 120
    while "agent_started" not in agent.log_text():
        if time.monotonic() > deadline:
            raise RuntimeError(f"the agent did not start\n{agent.log_text()}")
        time.sleep(0.1)


def watch_idle(pid: int, seconds: float) -> tuple[float, float]:
    before, began = read_cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    share = (read_cpu_seconds(pid) - before) / (time.monotonic() - began)
    return read_rss_bytes(pid) / 1e6, share


def come_back(agent: AgentProcess, chair: Chair, hub: HubProcess, returns: int) -> list[float | None]:
    chance = random.Random(1)
    taken: list[float | None] = []
    with Client(hub_url=hub.url, key=sign_up(hub.url, "submitter").key) as client:
        for _ in range(returns):
            # A new one each time: a slice does not come back at once to the machine that it had to leave.
            job = client.submit(script=JOB, slices=SLOTS, wall_seconds=3600)
            wait_for_jobs(agent, SLOTS)
            time.sleep(chance.uniform(0, 1))
            chair.sit_down()
            taken.append(measure_freeing(agent, seconds_max=GIVE_UP_SECONDS))
            job.cancel()
            chair.leave()
    return taken


def read_cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

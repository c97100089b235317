"""Pictures of every page of the dashboard, in light, in dark and on a phone, of a real hub with the demo's fleet.

    python scripts/screenshots.py [--to build/screenshots] [--page NAME ...]

They are made to be looked at: a test cannot tell whether a page is a pleasure.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from computepool.hub.store.embedded import EmbeddedPostgres
from tests.support.apart import run_apart
from tests.support.bugged_nodes import bug_node
from tests.support.earnings import insert_held_pay
from tests.support.hub_process import free_port
from tests.support.people import sign_up
from tests.support.staged_run import StagedRun, open_run
from tests.support.web_stage import (
    SUBMITTER,
    WebStage,
    await_quiet,
    list_pages,
    open_browser,
    open_stage,
    stage_folder,
    visit,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser

LOOKS = {"light": {}, "dark": {"dark": True}, "phone": {"phone": True}}
# What moves needs a moment to be seen moving: arcs, pulses, a line of a log.
SETTLE_MILLISECONDS = 1_500
# Pages on which the network is seen at work; it is stopped before the others.
WITH_A_RUN = ("grid", "networks", "run")
RENDER = """
import random, time
for frame in range(280):
    print(f"frame {frame:3d}  {random.randint(20, 90)} ms  {random.randint(1, 9)} lights", flush=True)
    time.sleep(1)
"""


def set_the_scene(stage: WebStage) -> dict[str, str]:
    """Jobs that are done, that run, that wait and that failed, so that every page has something to show."""
    dana = stage.people[SUBMITTER]
    stage.call(dana, "PATCH", "/v1/accounts/me/profile", json={"shows_titles": True})
    made = {
        "job-numbers": stage.submit_example("sweep", slice_count=24),
        "job-pictures": stage.submit_example("mandelbrot", slice_count=16, requirements={"gpu": True}),
    }
    for job in made.values():
        stage.await_job(job, seconds=180)
    made["job-failed"] = stage.submit(name="wrong-path", command=["sh", "-c", "cat /no/such/file; exit 2"])
    stage.await_job(made["job-failed"])
    needs = {"gpu": True, "vram_bytes": 80_000_000_000}
    made["job-waiting"] = stage.submit(name="giant-model", command=["true"], slice_count=8, requirements=needs)
    made["job-running"] = stage.submit(
        name="render-frames", script=RENDER, slice_count=120, wall_seconds=300, requirements={"gpu": True}
    )
    stage.await_job(made["job-running"], "running")
    # Prices come with the market's next tick.
    stage.wait_for(lambda: stage.call(dana, "GET", "/v1/market/spot")["spots"], bool, seconds=240)
    return made


def trouble(stage: WebStage, run: StagedRun) -> None:
    """A machine under the network dies; somebody doubts a payment; a node has computed wrongly."""
    run.await_step(150)
    run.find_host(run.get()["seats"][-1]["seat"]).cut_power()
    run.await_step(run.await_step(1, epoch=2) + 150, epoch=2)
    assert stage.dsn is not None
    owner, doubter = sign_up(stage.url, "Omar"), sign_up(stage.url, "Mira")
    pay = run_apart(insert_held_pay(stage.dsn, owner.account_id, doubter.account_id))
    doubt = {"job_id": str(pay.job_id), "slice_index": 0, "reason": "Every frame of the rendering is black."}
    stage.call(doubter, "POST", "/v1/credits/disputes", json=doubt)
    chen = stage.people["Chen"]
    node = stage.call(chen, "GET", "/v1/nodes")["nodes"][0]
    run_apart(bug_node(stage.dsn, node["id"], chen.account_id, wrong=2))


@contextmanager
def open_database(folder: Path) -> Iterator[str]:
    """Of our own, so that what no page can bring about may be written into it."""
    server = EmbeddedPostgres(folder / "database")
    dsn = asyncio.run(server.start())
    try:
        yield dsn
    finally:
        asyncio.run(server.stop())


def shoot(stage: WebStage, browser: Browser, name: str, path: str, who: object, folder: Path) -> None:
    for look, options in LOOKS.items():
        with visit(stage, browser, who, **options) as visitor:  # type: ignore[arg-type]
            page = visitor.open(path)
            await_quiet(page)
            page.wait_for_timeout(SETTLE_MILLISECONDS)
            page.screenshot(path=folder / f"{name}-{look}.png", full_page=True)
            for fault in visitor.faults:
                print(f"  fault: {fault}")
    print(f"{name}: {', '.join(LOOKS)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--to", type=Path, default=Path("build/screenshots"))
    parser.add_argument("--page", action="append", help="only this one; repeatable")
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    with (
        stage_folder() as folder,
        open_database(folder) as dsn,
        open_stage(folder / "hub", dsn=dsn, rpc_port=free_port()) as stage,
        open_browser() as browser,
    ):
        jobs = set_the_scene(stage)
        with open_run(stage, folder / "hub") as run:
            trouble(stage, run)
            pages = list_pages(stage)
            pages |= {name: (f"/job/?id={job}", stage.people[SUBMITTER]) for name, job in jobs.items()}
            del pages["job"]
            wanted = [name for name in pages if not options.page or name in options.page]
            for name in sorted(wanted, key=lambda name: name not in WITH_A_RUN):
                if name not in WITH_A_RUN:
                    run.stop()
                shoot(stage, browser, name, *pages[name], options.to)
    print(f"Look at them: {options.to}")


if __name__ == "__main__":
    main()

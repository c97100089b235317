"""The dashboard in a real browser: what the front page weighs, how many frames 10,000 nodes leave it, how soon a node
that joins and a job that starts are on the map, what axe finds.

    python -m benchmarks.web [--seconds N] [--rounds N] [--quick] [--out FILE]

The hub is real and serves the packed site. The 10,000 nodes are put into the browser's answer for the mesh: a fifth
of them works, 400 arcs and 40 edges are live. Frames are those that the page itself has drawn. What is on the map,
and since when, the page says itself: a change counts with the frame after the one that brought it. Both ends of that
time are of this machine's clock.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.tables import Report, median, quantile
from computepool.cli.demo_grid import OWNERS
from tests.support.apart import run_apart
from tests.support.protocol_node import ProtocolNode
from tests.support.web_stage import (
    SUBMITTER,
    WebStage,
    await_quiet,
    find_serious,
    list_pages,
    open_browser,
    open_stage,
    stage_folder,
    visit,
    wait_until,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NODES = 10_000
ARCS = 400
EDGES = 40
TIERS = ("rtx-5090", "rtx-4090", "rtx-3090", "rtx-4070", "rtx-3060", "rtx-2070", "gtx-1080", "cpu")
SETTLE_MILLISECONDS = 3_000
# The map in words, whenever they change, with the time of the frame after that.
WATCH_THE_MAP = """() => {
  window.sightings = [];
  let before = null;
  const look = () => {
    const told = document.querySelector("canvas[role=img]")?.ariaLabel ?? null;
    if (told !== before) {
      before = told;
      requestAnimationFrame(() => window.sightings.push([Date.now() / 1000, told]));
    }
    requestAnimationFrame(look);
  };
  look();
}"""
_TOLD = re.compile(r"of (\d+) nodes?, \d+ online, (\d+) slices? running")
SIGHT_SECONDS_MAX = 60.0
# Longer than a frame of the stream takes, or it might come and go unseen.
JOB_SECONDS = "1.5"


def make_mesh() -> dict[str, Any]:
    """Spread over the land between two latitudes by a fixed rule: the same in every run."""
    nodes = [
        {
            "id": f"{number:016x}",
            "tier": TIERS[number % len(TIERS)],
            "kind": "gpu",
            "speed_tflops": float(5 + number % 80),
            "country": "IN",
            "point": [(number * 137.508) % 340 - 170, (number * 61.803) % 110 - 50],
            "online": number % 50 != 0,
            "busy": number % 5 == 0,
            "slots": 2,
            "busy_slots": 1 if number % 5 == 0 else 0,
            "synthetic": True,
            "joined_at": "2026-01-01T00:00:00Z",
        }
        for number in range(NODES)
    ]
    arcs = [
        {
            "id": f"a{number}",
            "node": nodes[number * 5]["id"],
            "job": f"j{number % 20}",
            "since": "2026-01-01T00:00:00Z",
        }
        for number in range(ARCS)
    ]
    edges = [
        {"run": "r", "source": nodes[number * 7]["id"], "target": nodes[number * 7 + 7]["id"], "vnodes": 1}
        for number in range(EDGES)
    ]
    counts = {
        "nodes": NODES,
        "nodes_online": NODES,
        "slots": 2 * NODES,
        "busy_slots": NODES // 5,
        "jobs_queued": 0,
        "jobs_running": 20,
        "slices_queued": 0,
        "attempts_live": ARCS,
        "networks_training": 1,
        "tiers": {tier: {"slots": 2 * NODES // len(TIERS), "busy": NODES // 5 // len(TIERS)} for tier in TIERS},
    }
    hub = {"country": "IN", "point": [78.0, 22.0]}
    at = "2026-01-01T00:00:00Z"
    return {
        "version": 0,
        "at": at,
        "hub": hub,
        "nodes": nodes,
        "arcs": arcs,
        "edges": edges,
        "counts": counts,
        "truncated": False,
    }


def weigh(stage: WebStage, browser: Browser) -> dict[str, float]:
    """Bytes on the wire for files of the front page: until it is loaded, and once all that is lazy has come, too."""
    with visit(stage, browser, None) as visitor:
        page = visitor.context.new_page()
        session = visitor.context.new_cdp_session(page)
        session.send("Network.enable")
        paths: dict[str, str] = {}
        sizes: dict[str, float] = {}
        session.on(
            "Network.responseReceived", lambda event: paths.update({event["requestId"]: event["response"]["url"]})
        )
        session.on(
            "Network.loadingFinished", lambda event: sizes.update({event["requestId"]: event["encodedDataLength"]})
        )

        def count() -> float:
            return sum(size for key, size in sizes.items() if "/v1/" not in paths.get(key, "")) / 1e3

        page.goto(stage.url + "/", wait_until="load")
        first = count()
        await_quiet(page)
        page.wait_for_timeout(SETTLE_MILLISECONDS)
        return {"first": first, "all": count()}


def count_frames(stage: WebStage, browser: Browser, seconds: float, view: str) -> float:
    mesh = json.dumps(make_mesh())
    with visit(stage, browser, None) as visitor:
        page = visitor.context.new_page()
        page.route("**/v1/public/mesh", lambda route: route.fulfill(body=mesh, content_type="application/json"))
        # The hub's own deltas are about other nodes.
        page.route("**/v1/public/live*", lambda route: route.abort())
        page.goto(stage.url + "/")
        wait_until(page, "Boolean(window.mesh)")
        page.get_by_role("button", name=view).click()
        page.wait_for_timeout(SETTLE_MILLISECONDS)
        measure = (
            "async (seconds) => { const [from, at] = [window.mesh.frames, performance.now()];"
            " await new Promise((done) => setTimeout(done, seconds * 1000));"
            " return (window.mesh.frames - from) / ((performance.now() - at) / 1000); }"
        )
        return float(page.evaluate(measure, seconds))


def await_sight(page: Page, since: float, is_it: Callable[[int, int], bool]) -> float:
    """Seconds from then until the map showed it; `is_it` is asked with nodes and running slices."""
    deadline = time.monotonic() + SIGHT_SECONDS_MAX
    while True:
        for at, told in page.evaluate("window.sightings"):
            found = _TOLD.search((told or "").replace("\u202f", ""))
            if found and at >= since and is_it(int(found[1]), int(found[2])):
                return float(at) - since
        if time.monotonic() > deadline:
            raise RuntimeError(f"it is not on the map after {SIGHT_SECONDS_MAX:.0f} s")
        page.wait_for_timeout(100)


def watch_map(stage: WebStage, browser: Browser, rounds: int) -> tuple[list[float], list[float]]:
    """By round: seconds until a node that joined, and until a job that started, was on the map."""
    joins, starts = [], []
    owner = stage.people[OWNERS[0]]
    with visit(stage, browser, None) as visitor:
        page = visitor.open("/")
        page.wait_for_selector("[data-live=live]")
        page.wait_for_selector("canvas[role=img]")
        page.evaluate(WATCH_THE_MAP)
        for number in range(rounds):
            known = len(stage.call(stage.operator, "GET", "/v1/nodes?limit=200")["nodes"])
            joined_at = join_once(stage, owner, f"newcomer-{number}")
            joins.append(await_sight(page, joined_at, lambda nodes, _, known=known: nodes > known))
            job = stage.submit(name="on the map", command=["sleep", JOB_SECONDS], requirements={"gpu": True})
            stage.await_job(job, "running", "succeeded")
            path = f"/v1/jobs/{job}/attempts"
            [placed] = stage.call(stage.people[SUBMITTER], "GET", path)["attempts"]
            leased_at = datetime.fromisoformat(placed["attempt"]["leased_at"]).timestamp()
            starts.append(await_sight(page, leased_at, lambda _, running: running > 0))
            stage.await_job(job)
            await_sight(page, leased_at + starts[-1], lambda _, running: running == 0)
    return joins, starts


def join_once(stage: WebStage, owner: Any, name: str) -> float:
    """A node enrols and is heard once. When the database has taken it in."""

    async def join() -> float:
        node = ProtocolNode([stage.url], owner, name=name, region="IN", cpu_slots=1)
        await node.enrol()
        await node.heartbeat()
        await node.close()
        created_at: str = stage.call(owner, "GET", f"/v1/nodes/{node.node_id}")["created_at"]
        return datetime.fromisoformat(created_at).timestamp()

    return run_apart(join())


def count_serious(stage: WebStage, browser: Browser, report: Report) -> int:
    found = 0
    for name, (path, who) in list_pages(stage).items():
        for dark in (False, True):
            with visit(stage, browser, who, dark=dark) as visitor:
                page = visitor.open(path)
                await_quiet(page)
                for fault in find_serious(page):
                    report.line(f"  {name}: {fault}")
                    found += 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=8.0, help="length of one measurement of frames")
    parser.add_argument("--rounds", type=int, default=15, help="how often a node joins and a job starts")
    parser.add_argument("--quick", action="store_true", help="one short round; proves that it runs")
    parser.add_argument("--out", type=Path, help="store the whole report in this file, as JSON")
    options = parser.parse_args()
    seconds = 2.0 if options.quick else options.seconds
    report = Report("web", complete=not options.quick, out=options.out)
    with stage_folder() as folder, open_stage(folder) as stage, open_browser() as browser:
        stage.await_job(stage.submit_example("sweep", slice_count=6))
        weight = weigh(stage, browser)
        joins, starts = watch_map(stage, browser, 2 if options.quick else options.rounds)
        frames = {view: count_frames(stage, browser, seconds, view) for view in ("Map", "Graph")}
        serious = count_serious(stage, browser, report)
    report.line(
        f"  front page: {weight['first']:.0f} kB until it is loaded, {weight['all']:.0f} kB with all that is lazy"
    )
    report.line(f"  {NODES:,} nodes: {frames['Map']:.1f} frames a second as a map, {frames['Graph']:.1f} as a graph")
    report.table(
        "On the map",
        ["what", "times", "median s", "p95 s", "slowest s"],
        [
            (what, len(seen), median(seen), quantile(seen, 0.95), max(seen))
            for what, seen in (("a node joins", joins), ("a job starts", starts))
        ],
    )
    report.finish(
        {
            "join_visible_p95_seconds": quantile(joins, 0.95),
            "start_visible_p95_seconds": quantile(starts, 0.95),
            "first_load_gzip_kb": weight["first"],
            "axe_serious_violations": float(serious),
            "fps_10k_nodes": min(frames.values()),
        }
    )


if __name__ == "__main__":
    main()

"""A real hub with the demo's five played machines, and a real browser before it. Tests, pictures and figures of the
dashboard are all made on this stage."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from computepool.cli.demo_grid import OWNERS, spread
from computepool.cli.fleet import PROFILES, start_fleet
from computepool.cli.processes import Children
from tests.support.hub_process import HubProcess, free_port
from tests.support.people import Person, sign_in_operator, sign_up

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "src" / "computepool" / "hub" / "site" / "site.json"
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
SUBMITTER = "Dana"
NO_RUN = "00000000-0000-0000-0000-000000000000"
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1440, "height": 900}


@dataclass(frozen=True)
class WebStage:
    hub: HubProcess
    people: Mapping[str, Person]
    operator: Person
    # None: the hub has brought its own.
    dsn: str | None = None

    @property
    def url(self) -> str:
        return self.hub.url

    def call(self, who: Person, method: str, path: str, **options: Any) -> Any:
        answer = httpx.request(method, self.url + path, headers=who.headers, timeout=20, **options)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    def submit(self, **spec: Any) -> str:
        body = {"wall_seconds": 120, "retries": 0, **spec}
        return str(self.call(self.people[SUBMITTER], "POST", "/v1/jobs", json=body)["id"])

    def submit_example(self, name: str, **spec: Any) -> str:
        """One of the demo's own jobs."""
        source = files("computepool.cli.demo_jobs").joinpath(f"{name}.py").read_text(encoding="utf-8")
        return self.submit(name=name, script=source, **spec)

    def await_job(self, job_id: str, *states: str, seconds: float = 120.0) -> dict[str, Any]:
        return self.wait_for(
            lambda: self.call(self.people[SUBMITTER], "GET", f"/v1/jobs/{job_id}"),
            lambda job: job["state"] in (states or ("succeeded", "failed", "cancelled")),
            seconds,
        )

    def wait_for(self, look: Callable[[], Any], is_so: Callable[[Any], bool], seconds: float = 60.0) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            found = look()
            if is_so(found):
                return found
            assert time.monotonic() < deadline, f"still so after {seconds:.0f} s: {found}"
            time.sleep(0.2)


@contextmanager
def open_stage(folder: Path, *, dsn: str | None = None, **settings: object) -> Iterator[WebStage]:
    """`dsn` None: the hub brings a database of its own."""
    if not SITE.exists():
        raise RuntimeError("The dashboard is not built. Run: make web")
    options = {
        "beat_seconds": 2.0,
        "lease_seconds": 8.0,
        "country": "IN",
        "holdback_seconds": 1,
        "payout_cool_off_seconds": 0,
        **settings,
    }
    folder.mkdir(exist_ok=True)
    with ExitStack() as stack:
        hub = HubProcess(dsn=dsn, data_dir=folder, port=free_port(), **options)  # type: ignore[arg-type]
        stack.callback(hub.stop)
        hub.start()
        people = {name: sign_up(hub.url, name) for name in (SUBMITTER, *OWNERS)}
        operator = sign_in_operator(hub.url, hub.log_path.read_text())
        agents = stack.enter_context(Children(grace_seconds=10.0))
        keys = {name: person.key for name, person in people.items()}
        start_fleet(agents, spread(PROFILES, keys), hub_url=hub.url, folder=folder / "nodes")
        found = WebStage(hub, people, operator, dsn)
        found.wait_for(
            lambda: found.call(operator, "GET", "/v1/nodes")["nodes"],
            lambda nodes: len(nodes) == len(PROFILES) and all(node["online"] for node in nodes),
        )
        yield found


@contextmanager
def stage_folder() -> Iterator[Path]:
    """Where the embedded database may live, also when root starts it."""
    with tempfile.TemporaryDirectory(prefix="cp-web-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def open_browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        raise RuntimeError("There is no Chromium. Run: make setup")
    with sync_playwright() as playwright:
        # In a container there is no user namespace for Chromium's own sandbox; the pages are our own.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Visitor:
    """A browser window of somebody, and what went wrong in it."""

    stage: WebStage
    context: BrowserContext
    faults: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.faults.append(f"{path}: {error}"))
        page.on("console", lambda message: self._hear(path, message.type, message.text))
        page.goto(self.stage.url + path)
        return page

    def _hear(self, path: str, kind: str, text: str) -> None:
        # That somebody is not signed in, or has no payout details yet, is an answer and no fault.
        if kind == "error" and "status of 401" not in text and "status of 404" not in text:
            self.faults.append(f"{path}: {text}")


@contextmanager
def visit(
    stage: WebStage, browser: Browser, who: Person | None, *, dark: bool = False, phone: bool = False, **options: Any
) -> Iterator[Visitor]:
    context = browser.new_context(
        viewport=PHONE if phone else DESK,
        color_scheme="dark" if dark else "light",
        device_scale_factor=2 if phone else 1,
        **options,
    )
    context.set_default_timeout(60_000)
    if who is not None:
        context.add_cookies([{"name": "computepool_key", "value": who.key, "url": stage.url}])
    visitor = Visitor(stage, context)
    yield visitor
    context.close()


def wait_until(page: Page, condition: str, *, seconds: float = 60.0) -> None:
    """Asked from outside: the page's policy refuses to evaluate strings, and so playwright's own way."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, f"still not so after {seconds:.0f} s: {condition}"
        page.wait_for_timeout(50)


def await_quiet(page: Page) -> None:
    """Until nothing on the page is loading any more."""
    page.wait_for_selector("h1")
    wait_until(page, "!document.querySelector('.skeleton')")


def list_pages(stage: WebStage) -> dict[str, tuple[str, Person | None]]:
    """Every page of the dashboard by name: its path, and who looks at it."""
    dana, asha = stage.people[SUBMITTER], stage.people[OWNERS[0]]
    job = stage.call(dana, "GET", "/v1/jobs")["jobs"][0]["id"]
    node = stage.call(asha, "GET", "/v1/nodes")["nodes"][0]["id"]
    runs = [run["id"] for run in stage.call(dana, "GET", "/v1/runs")["runs"]]
    return {
        "grid": ("/", None),
        "sign-in": ("/sign-in/", None),
        "sign-up": ("/sign-in/?new=1", None),
        "not-found": ("/no-such-page/", None),
        "jobs": ("/jobs/", dana),
        "job": (f"/job/?id={job}", dana),
        "submit": ("/submit/", dana),
        "nodes": ("/nodes/", asha),
        "node": (f"/node/?id={node}", asha),
        "market": ("/market/", dana),
        "wallet": ("/wallet/", asha),
        "networks": ("/networks/", dana),
        "run": (f"/run/?id={next(iter(runs), NO_RUN)}", dana),
        "join": ("/join/", asha),
        "keys": ("/keys/", dana),
        "operator": ("/operator/", stage.operator),
    }


def find_serious(page: Page) -> list[str]:
    """What axe finds that keeps people out: rule, and the first place."""
    if not page.evaluate("Boolean(window.axe)"):
        page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']} ({each['impact']}): {each['nodes'][0]['html'][:200]} {each['nodes'][0].get('failureSummary')}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]

"""Whatever a node or a submitter can write appears as text: nothing of it runs, nothing of it becomes markup."""

from __future__ import annotations

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support.protocol_node import base64url
from tests.support.web_stage import await_quiet, wait_until

CORPUS = (
    "<img src=x onerror=window.pwned=1>",
    '"><script>window.pwned=1</script>',
    "'-window.pwned=1-'",
    "javascript:window.pwned=1",
    "<svg/onload=window.pwned=1>",
    "</pre><iframe srcdoc='<script>parent.pwned=1</script>'>",
    "{{constructor.constructor('window.pwned=1')()}}",
    "${window.pwned=1}",
    "<a href=javascript:window.pwned=1>click</a>",
    "\u202egnp.exe \u0000\u001b[31m<b>bold</b>",
    "<style>*{display:none}</style>",
    "<base href=//evil.example>",
)
ALL = " ".join(CORPUS)
LOUD = f"""
import os, pathlib, sys
text = {ALL!r}
print(text)
print(text, file=sys.stderr)
out = pathlib.Path(os.environ["COMPUTEPOOL_OUTPUT_DIR"])
for number, word in enumerate({[word.replace("/", "_").replace(chr(0), "") for word in CORPUS]!r}):
    (out / f"{{number}}{{word}}.txt"[:200]).write_text(word)
(out / "page.html").write_text(text)
(out / "drawing.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg' onload='parent.pwned=1'/>")
(out / "result.json").write_text('{{"<img src=x onerror=window.pwned=1>": [1, 2, 3]}}')
"""
CHECK = """() => {
  const count = (query, is) => [...document.querySelectorAll(query)].filter(is).length;
  return {
    pwned: window.pwned ?? null,
    markup: count("main :is(iframe, script, style, base, object, embed)", () => true),
    handlers: count("main *", (e) => [...e.attributes].some((a) => a.name.startsWith("on"))),
    links: count("a[href]", (a) => /^(javascript|data):/i.test(a.getAttribute("href"))),
  };
}"""
INTRUDE = """() => {
  const script = document.createElement("script");
  script.textContent = "window.pwned = 1";
  const box = document.createElement("div");
  box.innerHTML = "<img src=x onerror=window.pwned=1>";
  document.body.append(script, box);
}"""
NOTHING = {"pwned": None, "markup": 0, "handlers": 0, "links": 0}


def write_somewhere(stage, who, method: str, path: str, body: dict) -> None:
    """The hub may refuse such words, and then nobody reads them."""
    answer = httpx.request(method, stage.url + path, headers=who.headers, json=body, timeout=20)
    assert answer.status_code < 500, answer.text


def enrol(stage, owner, name: str, names: list[str]) -> str | None:
    """A machine that lies about everything it is called; None where the hub does not take the name."""
    public = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    hardware = {
        "gpus": [{"name": names[0], "vram_bytes": 8_000_000_000, "driver": names[4]}],
        "cpu_name": names[2],
        "cores": 4,
        "ram_bytes": 8_000_000_000,
        "disk_bytes": 8_000_000_000,
        "cpu_slots": 1,
    }
    body = {"name": name, "public_key": base64url(public), "hardware": hardware, "isolation": "sandboxed"}
    answer = httpx.post(
        f"{stage.url}/v1/nodes", json=body | {"agent_version": names[5]}, headers=owner.headers, timeout=60
    )
    assert answer.status_code < 500, answer.text
    return str(answer.json()["node_id"]) if answer.status_code == 201 else None


@pytest.fixture(scope="module")
def loud(stage) -> dict[str, str]:
    """Everything that strangers can write, written."""
    dana, asha = stage.people["Dana"], stage.people["Asha"]
    names = [word.replace("\u0000", "").replace("\u001b", "") for word in CORPUS]
    for name in names:
        write_somewhere(stage, dana, "POST", "/v1/jobs", {"name": name, "command": ["true"], "wall_seconds": 60})
        write_somewhere(stage, dana, "POST", "/v1/keys", {"name": name, "roles": ["submitter"]})
    write_somewhere(stage, dana, "PATCH", "/v1/accounts/me/profile", {"shows_titles": True})
    write_somewhere(stage, dana, "PATCH", "/v1/accounts/me/profile", {"pseudonym": names[0]})
    body = {"email": "loud@example.org", "name": names[1]}
    httpx.post(f"{stage.url}/v1/accounts", json=body, timeout=20)
    node = next(filter(None, (enrol(stage, asha, name, names) for name in (names[1], "loud"))))
    job = stage.submit(name=names[0], script=LOUD)
    stage.await_job(job)
    failed = stage.submit(name=names[4], command=["sh", "-c", "exit 3"])
    stage.await_job(failed)
    return {"job": job, "failed": failed, "node": node}


@pytest.mark.parametrize(
    ("path", "who"),
    [
        ("/", None),
        ("/jobs/", "Dana"),
        ("/job/?id={job}", "Dana"),
        ("/job/?id={failed}", "Dana"),
        ("/submit/?from={job}", "Dana"),
        ("/keys/", "Dana"),
        ("/wallet/", "Dana"),
        ("/nodes/", "Asha"),
        ("/node/?id={node}", "Asha"),
        ("/wallet/", "Asha"),
        ("/operator/", "operator"),
        ("/job/?id=%22%3E%3Cscript%3Ewindow.pwned=1%3C/script%3E", "Dana"),
        ("/sign-in/?token=%3Cscript%3Ewindow.pwned=1%3C/script%3E", None),
    ],
)
def test_nothing_of_it_runs(stage, visitor, loud: dict[str, str], path: str, who: str | None) -> None:
    person = stage.operator if who == "operator" else stage.people[who] if who else None
    window = visitor(person)
    page = window.open(path.format(**loud))
    await_quiet(page)
    # Each click puts a preview in the button's place.
    buttons = page.get_by_role("button", name="Show", exact=True)
    for _ in range(min(16, buttons.count())):
        buttons.first.click()
    page.wait_for_timeout(300)
    assert page.evaluate(CHECK) == NOTHING
    # Files and links that do not exist are answers here.
    window.faults[:] = [fault for fault in window.faults if "status of 400" not in fault]


def test_the_words_are_there_to_be_read(stage, visitor, loud: dict[str, str]) -> None:
    page = visitor(stage.people["Dana"]).open(f"/job/?id={loud['job']}")
    page.get_by_role("heading", name=CORPUS[0]).wait_for()
    log = page.get_by_test_id("log")
    wait_until(page, "document.querySelector('[data-testid=log]')?.innerText.includes('pwned') ?? false")
    assert "<img src=x onerror=window.pwned=1>" in log.inner_text()
    assert "\u001b" not in log.inner_text()


def test_control_markup_would_be_noticed(stage, visitor) -> None:
    window = visitor(stage.people["Dana"])
    page = window.open("/jobs/")
    await_quiet(page)
    page.evaluate(
        "document.querySelector('main').insertAdjacentHTML('beforeend', '<style></style><b onclick=1></b>')"
    )
    assert page.evaluate(CHECK) == NOTHING | {"markup": 1, "handlers": 1}
    window.faults.clear()


def test_the_policy_of_the_page_stops_scripts_that_are_not_ours(stage, visitor) -> None:
    window = visitor(stage.people["Dana"])
    page = window.open("/jobs/")
    await_quiet(page)
    page.evaluate(INTRUDE)
    page.wait_for_timeout(500)
    assert page.evaluate("window.pwned ?? null") is None
    assert any("Content Security Policy" in fault for fault in window.faults)
    window.faults.clear()

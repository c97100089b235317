"""The dashboard as the hub serves it: what was packed, the scripts that were in it, and no cookie for others."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from computepool.hub.http.app import all_routes
from computepool.hub.http.routing import Access
from computepool.hub.http.site import load_site
from computepool.settings import InvalidSettings
from scripts.pack_site import hash_scripts, pack
from tests.support.hub_process import HubProcess
from tests.support.people import sign_in_operator, sign_up

SCRIPT = "self.__next_f=[];\nself.__next_f.push([1,'<\\/script>'])"
PAGE = f"<!doctype html><html><head><script src='/_next/static/a.js'></script></head><body><script>{SCRIPT}</script>"
# Where the same pages are served by somebody else, who calls the hub by its own name.
ELSEWHERE_SERVED = "https://dashboard.example"
DATA_BLOCK = "<script type='application/json'>{}</script>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Next writes, in small, and packed."""
    root = tmp_path_factory.mktemp("site")
    out = root / "out"
    for name, text in {
        "index.html": PAGE + DATA_BLOCK,
        "jobs/index.html": PAGE.replace("[]", "[0]"),
        "operator/index.html": PAGE,
        "sign-in/index.html": PAGE,
        "404/index.html": "<!doctype html>nothing here",
        "_next/static/a.js": "console.log(1);" * 100,
        "icon.svg": "<svg xmlns='http://www.w3.org/2000/svg'/>",
    }.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    count, faults = pack(out, root / "site")
    assert (count, faults) == (7, [])
    return root / "site"


@pytest.fixture(scope="module")
def site(folder: Path, postgres) -> Iterator[HubProcess]:
    dsn = asyncio.run(postgres.create_database())
    hub = HubProcess(dsn=dsn, data_dir=folder.parent, site_dir=folder, public_url=ELSEWHERE_SERVED).start()
    yield hub
    hub.kill()


def hash_of(script: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() + "'"


def script_sources(answer: httpx.Response) -> list[str]:
    return re.findall(r"script-src ([^;]*)", answer.headers["content-security-policy"])[0].split()


def test_pages_run_the_scripts_that_were_packed_and_no_others(site):
    home, jobs = httpx.get(f"{site.url}/", timeout=60), httpx.get(f"{site.url}/jobs/", timeout=60)
    assert home.text == PAGE + DATA_BLOCK
    assert script_sources(home) == ["'self'", hash_of(SCRIPT)]
    assert script_sources(jobs) == ["'self'", hash_of(SCRIPT.replace("[]", "[0]"))]
    assert "unsafe-inline" not in " ".join(script_sources(home))
    for name, value in {"x-frame-options": "DENY", "x-content-type-options": "nosniff"}.items():
        assert home.headers[name] == value
    assert httpx.get(f"{site.url}/v1/hub", timeout=60).json()["site"] is True


def test_files_are_compressed_cached_and_found_without_their_slash(site):
    script = httpx.get(f"{site.url}/_next/static/a.js", timeout=60)
    assert script.headers["content-encoding"] == "gzip"
    assert "immutable" in script.headers["cache-control"]
    plain = httpx.get(f"{site.url}/_next/static/a.js", headers={"Accept-Encoding": "identity"}, timeout=60)
    assert "content-encoding" not in plain.headers
    assert plain.content == script.content
    again = httpx.get(
        f"{site.url}/jobs/",
        headers={"If-None-Match": httpx.get(f"{site.url}/jobs/", timeout=60).headers["etag"]},
        timeout=60,
    )
    assert (again.status_code, again.content) == (304, b"")
    moved = httpx.get(f"{site.url}/sign-in?token=abc", timeout=60)
    assert (moved.status_code, moved.headers["location"]) == (308, "/sign-in/?token=abc")
    assert httpx.head(f"{site.url}/jobs/", timeout=60).headers["content-length"] != "0"


def test_nothing_but_what_is_listed_is_served(site, folder):
    (folder / "secret.txt").write_text("secret")
    for path in ("/secret.txt", "/site.json", "/%2e%2e/site.json", "/..%2fsite.json", "/jobs//"):
        assert httpx.get(site.url + path, timeout=60).status_code == 404, path
    assert httpx.get(f"{site.url}/nonsense", timeout=60).json()["code"] == "not_found"
    page = httpx.get(f"{site.url}/nonsense", headers={"Accept": "text/html"}, timeout=60)
    assert (page.status_code, page.text) == (404, "<!doctype html>nothing here")
    # The API stays the API.
    assert (
        httpx.get(f"{site.url}/v1/nonsense", headers={"Accept": "text/html"}, timeout=60).json()["code"]
        == "not_found"
    )


def test_pages_of_the_operator_are_not_there_for_others(site):
    operator = sign_in_operator(site.url, site.log_path.read_text())
    for path in ("/operator/", "/operator"):
        assert httpx.get(site.url + path, timeout=60).status_code == 404
    with httpx.Client(base_url=site.url, cookies={"computepool_key": operator.key}, timeout=60) as browser:
        assert browser.get("/operator/").text == PAGE


def test_a_wrong_folder_and_twins_of_another_build_are_refused_at_the_start(folder, tmp_path):
    with pytest.raises(InvalidSettings, match="COMPUTEPOOL_HUB_SITE_DIR"):
        load_site(str(tmp_path / "nowhere"))
    other = tmp_path / "site"
    shutil.copytree(folder, other)
    assert load_site(str(other)) is not None
    (other / "_next" / "static" / "a.js.gz").write_bytes(gzip.compress(b"old"))
    with pytest.raises(InvalidSettings, match="another build"):
        load_site(str(other))
    (other / "site.json").write_text('{"files": [{"path": "/x", "file": "../../x", "media_type": "text/plain"}]}')
    with pytest.raises(InvalidSettings, match="not inside"):
        load_site(str(other))


def test_what_no_hash_can_allow_fails_the_packing():
    assert hash_scripts("<body onload='x()'>")[1] != []
    assert hash_scripts("<script src='/x.js'></script>" + DATA_BLOCK) == ([], [])
    assert hash_scripts("<script>a</script>\r\n<script>b\r\n</script>")[0] == sorted(
        each.strip("'") for each in (hash_of("a"), hash_of("b\n"))
    )


# Cookies: what a browser sends by itself, and what a page from elsewhere makes it send

ELSEWHERE = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {},
]


def own_headers(hub) -> dict[str, str]:
    return {"Origin": hub.url, "Sec-Fetch-Site": "same-origin"}


@pytest.mark.parametrize("headers", ELSEWHERE, ids=str)
def test_nothing_is_changed_by_a_cookie_that_a_page_from_elsewhere_has_sent(shared_hub, headers):
    hub, submitter = shared_hub, sign_up(shared_hub.url, "submitter")
    with httpx.Client(base_url=hub.url, cookies={"computepool_key": submitter.key}, timeout=60) as browser:
        for method, path in (("POST", "/v1/keys"), ("PUT", "/v1/accounts/me/password"), ("POST", "/v1/sign-out")):
            assert browser.request(method, path, json={}, headers=headers).status_code == 403
        # Control: the same call from the hub's own page.
        assert browser.post("/v1/keys", json={}, headers=own_headers(hub)).status_code == 201
        assert browser.post("/v1/keys", json={}, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 201
        # Looking is harmless, and answers cannot be read from elsewhere.
        assert browser.get("/v1/jobs").status_code == 200
    # A key in the header is nothing that a browser sends by itself.
    assert (
        httpx.post(f"{hub.url}/v1/keys", json={}, headers={**submitter.headers, **headers}, timeout=60).status_code
        == 201
    )


def test_the_public_address_is_ours_also_where_a_proxy_changes_the_host(site):
    submitter = sign_up(site.url, "submitter")
    with httpx.Client(base_url=site.url, cookies={"computepool_key": submitter.key}) as browser:

        def change(origin: str, fetched_from: str = "same-origin") -> int:
            headers = {"Origin": origin, "Sec-Fetch-Site": fetched_from}
            return browser.post("/v1/keys", json={}, headers=headers).status_code

        assert change(ELSEWHERE_SERVED) == 201
        assert change(site.url) == 201
        for other in (f"{ELSEWHERE_SERVED}.evil.org", "https://evil-dashboard.example", f"{ELSEWHERE_SERVED}:8443"):
            assert change(other) == 403, other
        assert change(ELSEWHERE_SERVED, "cross-site") == 403


def test_a_hub_says_how_to_get_the_site_if_it_has_none(shared_hub):
    """Whether there is one depends on whether `make web` was run here."""
    has_site = httpx.get(f"{shared_hub.url}/v1/hub", timeout=60).json()["site"]
    assert ("make web" in httpx.get(f"{shared_hub.url}/", timeout=60).text) is not has_site


def test_every_route_that_changes_something_refuses_a_cookie_from_elsewhere(hub, operator):
    with httpx.Client(base_url=hub.url, cookies={"computepool_key": operator.key}, timeout=60) as browser:
        for route in all_routes():
            if route.method in ("GET", "HEAD") or route.access in (Access.PUBLIC, Access.NODE):
                continue
            path = re.sub(r"\{\w+\}", "0" * 64 if "sha256" in route.path else str(operator.account_id), route.path)
            answer = browser.request(route.method, path, headers={"Origin": "https://evil.example"})
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), route.name


def test_nobody_is_signed_in_as_somebody_else_from_elsewhere(shared_hub):
    hub, submitter = shared_hub, sign_up(shared_hub.url, "submitter")
    token = httpx.post(f"{hub.url}/v1/sign-in-links", headers=submitter.headers, timeout=60).json()["token"]
    forged = httpx.post(
        f"{hub.url}/v1/sign-in",
        content=f'{{"link_token": "{token}"}}',
        headers={"Origin": "https://evil.example", "Content-Type": "text/plain"},
        timeout=60,
    )
    assert forged.status_code == 403
    assert "set-cookie" not in forged.headers
    good = httpx.post(f"{hub.url}/v1/sign-in", json={"link_token": token}, headers=own_headers(hub), timeout=60)
    cookie = good.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie

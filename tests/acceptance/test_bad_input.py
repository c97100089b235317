"""Bad input to a real hub: a clear answer with a stable code, and nothing lost or half done."""

from __future__ import annotations

import hashlib
import json

import httpx
import pytest

SPEC = {"command": ["true"]}


@pytest.fixture
def hub(shared_hub):
    return shared_hub


@pytest.fixture
def submit(hub, submitter):
    def post(spec, **headers):
        content = spec if isinstance(spec, (bytes, str)) else json.dumps(spec)
        headers = {**submitter.headers, **headers}
        return httpx.post(f"{hub.url}/v1/jobs", content=content, headers=headers, timeout=30)

    return post


@pytest.fixture
def jobs(hub, submitter):
    return lambda: httpx.get(f"{hub.url}/v1/jobs", headers=submitter.headers, timeout=20).json()["jobs"]


@pytest.mark.parametrize(
    ("change", "code", "word"),
    [
        ({"requirements": {"vram_gigabytes": 16}}, "invalid_request", "vram_gigabytes"),
        ({"requirements": {"isolation": "none"}}, "invalid_request", "isolation"),
        ({"requirements": {"vram_bytes": -1}}, "invalid_spec", "vram_bytes"),
        ({"requirements": {"regions": ["Germany"]}}, "invalid_spec", "ISO-2"),
        ({"requirements": {"cores": True}}, "invalid_request", "cores"),
        ({"slice_count": -1}, "invalid_spec", "1 to 100,000"),
        ({"slice_count": 0}, "invalid_spec", "1 to 100,000"),
        ({"slice_count": 100_001}, "invalid_spec", "1 to 100,000"),
        ({"slice_count": 10**30}, "invalid_spec", "1 to 100,000"),
        ({"command": []}, "invalid_spec", "nothing to run"),
        ({"command": ["a\0b"]}, "invalid_spec", "NUL"),
        ({"name": "a\0b"}, "invalid_spec", "NUL"),
        ({"name": ""}, "invalid_spec", "name"),
        ({"name": "x" * 1000}, "invalid_spec", "name"),
        ({"env": {"A B": "x"}}, "invalid_spec", "A B"),
        ({"env": {"COMPUTEPOOL_SLICE_INDEX": "7"}}, "invalid_spec", "reserved"),
        ({"env": {"LD_PRELOAD": "x.so"}}, "invalid_spec", "reserved"),
        ({"retries": 1000}, "invalid_spec", "retries"),
        ({"wall_seconds": 0}, "invalid_spec", "wall_seconds"),
        ({"priority": 11}, "invalid_spec", "priority"),
        ({"expires_at": "2001-01-01T00:00:00Z"}, "invalid_spec", "past"),
        ({"expires_at": "2099-01-01T00:00:00"}, "invalid_spec", "time zone"),
        ({"script": "x" * 1_000_001}, "invalid_spec", "Upload it as a file"),
        ({"files": [{"path": "../x", "sha256": "0" * 64, "size_bytes": 1}]}, "invalid_spec", "relative"),
        ({"files": [{"path": "/etc/x", "sha256": "0" * 64, "size_bytes": 1}]}, "invalid_spec", "relative"),
        ({"files": [{"path": "x", "sha256": "zz", "size_bytes": 1}]}, "invalid_spec", "hex"),
        ({"files": [{"path": "x", "sha256": "0" * 64, "size_bytes": 1}]}, "invalid_spec", "PUT /v1/artifacts"),
        ({"kind": "a\0b"}, "invalid_spec", "is unknown; there are"),
        (
            {"price": {"mode": "per_slice", "microcredits_per_slice": 2.5}},
            "invalid_request",
            "microcredits_per_slice",
        ),
        ({"price": {"mode": "per_slice", "microcredits_per_slice": 10**30}}, "invalid_spec", "between 1 and"),
        ({"price": {"mode": "per_slice", "microcredits_per_slice": -1}}, "invalid_spec", "between 1 and"),
        ({"price": {"mode": "per_slice"}, "kind": "poetry"}, "invalid_spec", "there are compute, gaming, ml"),
        ({"price": {"mode": "per_week"}}, "invalid_request", "per_week"),
        ({"price": {"microcredits_per_slice": 1}}, "invalid_spec", "goes with price.mode per_slice"),
        ({"unheard_of": 1}, "invalid_request", "unheard_of"),
    ],
)
def test_a_wrong_job_is_refused_with_words_that_help(submit, jobs, change, code, word):
    answer = submit({**SPEC, **change})
    body = answer.json()
    assert (answer.status_code, body["code"]) == (400, code)
    assert word in body["message"]
    assert jobs() == []


def test_several_faults_are_reported_together(submit):
    message = submit({"command": [], "slice_count": 0, "priority": 99}).json()["message"]
    assert "nothing to run" in message
    assert "slices" in message
    assert "priority" in message


def test_a_ten_megabyte_script_is_refused_before_it_is_read(submit, jobs):
    answer = submit({"script": "x" * 10_000_000})
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
    assert "/v1/artifacts" in answer.json()["message"]
    assert jobs() == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"command": 5}'])
def test_a_body_that_is_no_job_is_refused(submit, body):
    answer = submit(body)
    assert answer.status_code == 400
    assert answer.json()["code"] in ("invalid_request", "invalid_spec")


def test_an_idempotency_key_gives_the_first_job_again_and_refuses_another_body(submit, jobs):
    first = submit(SPEC, **{"Idempotency-Key": "k1"})
    again = submit(SPEC, **{"Idempotency-Key": "k1"})
    assert first.json()["id"] == again.json()["id"]
    other = submit({**SPEC, "slice_count": 2}, **{"Idempotency-Key": "k1"})
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_mismatch")
    assert len(jobs()) == 1


def test_one_key_used_by_fifty_clients_at_once_makes_one_job(hub, submitter, jobs):
    import asyncio

    async def run() -> set[str]:
        async with httpx.AsyncClient(timeout=30) as client:
            calls = [
                client.post(f"{hub.url}/v1/jobs", json=SPEC, headers={**submitter.headers, "Idempotency-Key": "same"})
                for _ in range(50)
            ]
            return {answer.json()["id"] for answer in await asyncio.gather(*calls)}

    assert len(asyncio.run(run())) == 1
    assert len(jobs()) == 1


def test_an_upload_with_the_wrong_hash_or_too_many_bytes_is_refused(hub, submitter):
    wrong = httpx.put(f"{hub.url}/v1/artifacts/{'0' * 64}", content=b"abc", headers=submitter.headers, timeout=60)
    assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_request")
    assert hashlib.sha256(b"abc").hexdigest() in wrong.json()["message"]
    sha = hashlib.sha256(b"abc").hexdigest()
    assert httpx.get(f"{hub.url}/v1/artifacts/{sha}", headers=submitter.headers, timeout=60).status_code == 404


def test_a_file_larger_than_the_hub_takes_is_refused_before_it_is_read(start_hub):
    from tests.support.people import sign_up

    hub = start_hub(upload_bytes_max=1_000)
    content = b"x" * 2_000
    url = f"{hub.url}/v1/artifacts/{hashlib.sha256(content).hexdigest()}"
    answer = httpx.put(url, content=content, headers=sign_up(hub.url).headers, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


def test_an_uploaded_file_comes_back_whole_and_in_part(hub, submitter):
    content = bytes(range(256)) * 10_000
    sha = hashlib.sha256(content).hexdigest()
    url = f"{hub.url}/v1/artifacts/{sha}"
    for _ in range(2):
        assert httpx.put(url, content=content, headers=submitter.headers, timeout=60).status_code == 200
    assert httpx.get(url, headers=submitter.headers, timeout=60).content == content
    part = httpx.get(url, headers={**submitter.headers, "Range": "bytes=1000000-1000099"}, timeout=60)
    assert (part.status_code, part.content) == (206, content[1_000_000:1_000_100])
    me = httpx.get(f"{hub.url}/v1/accounts/me", headers=submitter.headers, timeout=60).json()
    assert me["stored_bytes"] == len(content)


@pytest.mark.parametrize(
    "path", ["/v1/jobs/nonsense", "/v1/jobs/00000000-0000-0000-0000-000000000000", "/v1/nowhere"]
)
def test_what_is_not_there_is_404_with_a_code(hub, submitter, path):
    answer = httpx.get(hub.url + path, headers=submitter.headers, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_strange_queries_never_crash_the_hub(hub, submitter):
    job = httpx.post(f"{hub.url}/v1/jobs", json=SPEC, headers=submitter.headers, timeout=60).json()["id"]
    for query in (
        "limit=0",
        "limit=-5",
        "limit=99999999999999999999",
        "limit=x",
        "cursor=x",
        "state=odd",
        "after=-9",
        "offset=-3",
        "offset=1e99",
        "attempt=77",
    ):
        for path in (
            "/v1/jobs",
            f"/v1/jobs/{job}/slices",
            f"/v1/jobs/{job}/slices/0/logs",
            f"/v1/jobs/{job}/events",
            "/v1/nodes",
        ):
            answer = httpx.get(f"{hub.url}{path}?{query}", headers=submitter.headers, timeout=60)
            assert answer.status_code in (200, 400, 404), (path, query, answer.text)

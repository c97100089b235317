"""A real agent signs for what it made, and its submitter checks it later without a hub; no change goes unseen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from computepool.cli.main import run
from computepool.core.jobs.state import JobState
from computepool.sdk import Client
from computepool.sdk.receipts import read_receipts
from tests.support.people import sign_up
from tests.support.protocol_node import ProtocolNode, base64url

SCRIPT = """
import os, pathlib
out = pathlib.Path(os.environ["COMPUTEPOOL_OUTPUT_DIR"])
(out / "deep").mkdir()
(out / "deep" / "number.txt").write_text(os.environ["COMPUTEPOOL_SLICE_INDEX"])
(out / "same.txt").write_text("the same")
"""


@pytest.fixture
def kept(start_agent, client: Client, submitter, owner, tmp_path: Path) -> Path:
    """A folder with what two slices made, and the receipts for it beside."""
    start_agent()
    job = client.submit(script=SCRIPT, slices=2)
    assert job.wait(timeout=120).state is JobState.SUCCEEDED
    job.download(tmp_path / "kept" / "files")
    # The owner of the machine gets the same: they may have to show what it signed for.
    for person, name in ((submitter, "receipts.json"), (owner, "owners.json")):
        arguments = ["receipts", str(job.id), "--out", str(tmp_path / "kept" / name)]
        assert run([*arguments, "--hub-url", client.hub_url, "--key", person.key]) == 0
    return tmp_path / "kept"


def change(kept: Path, edit: Callable[[dict[str, Any]], None]) -> str:
    content = json.loads((kept / "receipts.json").read_text())
    edit(content)
    path = kept / "changed.json"
    path.write_text(json.dumps(content))
    return str(path)


def verify(path: Path | str, kept: Path) -> int:
    return run(["verify", str(path), "--files", str(kept / "files")])


def test_what_an_agent_signed_for_holds_without_a_hub_and_no_change_goes_unseen(hub, kept, capsys):
    hub_id = UUID(httpx.get(f"{hub.url}/v1/hub", timeout=60).json()["hub_id"])
    hub.kill()
    signed = read_receipts(kept / "receipts.json")
    assert (signed.hub_id, signed.slice_count, len(signed.results)) == (hub_id, 2, 2)
    assert read_receipts(kept / "owners.json").results == signed.results
    assert verify(kept / "receipts.json", kept) == 0
    assert capsys.readouterr().out.count("signed for 2 files") == 2

    # Another node's key.
    other = base64url(Ed25519PrivateKey.generate().public_key().public_bytes_raw())
    assert verify(change(kept, lambda c: c["receipts"][0].update(public_key=other)), kept) == 1
    # Another node's name.
    assert verify(change(kept, lambda c: c["receipts"][0].update(node_id=str(uuid4()))), kept) == 1
    # A receipt of another hub.
    assert verify(change(kept, lambda c: c.update(hub_id=str(uuid4()))), kept) == 1
    assert run(["verify", str(kept / "receipts.json"), "--hub-id", str(uuid4())]) == 1
    # A changed receipt.
    cut = signed.receipts[0].token[:-6]
    assert verify(change(kept, lambda c: c["receipts"][0].update(token=cut + "AAAAAA")), kept) == 1
    # A result that was swapped for another's.
    assert verify(change(kept, lambda c: c["results"][0].update(attempt_id=str(uuid4()))), kept) == 1
    capsys.readouterr()
    # A changed file.
    (kept / "files" / "1" / "deep" / "number.txt").write_text("7")
    assert verify(kept / "receipts.json", kept) == 1
    said = capsys.readouterr()
    assert "slice 0, attempt 1: good" in said.out
    assert "slice 1, attempt 1: BAD: deep/number.txt is not as it was signed for (file_changed)" in said.out
    assert said.err == "error: 1 of 2 results do not hold. (receipts_refused)\n"


async def test_receipts_are_shown_page_by_page_to_whom_they_concern(hub, submitter, owner):
    node = ProtocolNode([hub.url], owner, cpu_slots=1)
    await node.enrol()
    job = {"command": ["true"], "slice_count": 3}
    job_id = httpx.post(f"{hub.url}/v1/jobs", json=job, headers=submitter.headers, timeout=60).json()["id"]
    for _ in range(3):
        await node.deliver(await node.claim_one())

    def ask(person, query: str = "") -> httpx.Response:
        return httpx.get(f"{hub.url}/v1/jobs/{job_id}/receipts{query}", headers=person.headers, timeout=60)

    first = ask(submitter, "?limit=2").json()
    assert [each["slice_index"] for each in first["results"]] == [0, 1]
    last = ask(submitter, f"?limit=2&after={first['next_after']}").json()
    assert [each["slice_index"] for each in last["results"]] == [2]
    assert last.get("next_after") is None
    assert {each["node_id"] for each in first["receipts"]} == {node.node_id}
    assert ask(owner).json()["results"] == ask(submitter).json()["results"]
    # Whoever has nothing to do with it hears the same as of a job that does not exist, on every page.
    stranger = sign_up(hub.url, "stranger")
    for query in ("", "?after=1", "?after=99"):
        assert ask(stranger, query).status_code == 404
    await node.close()

"""The live stream of real hubs: fast, whole, bounded, and to everybody only what is theirs."""

from __future__ import annotations

import asyncio
import json
import re
import socket

import asyncpg
import httpx
import pytest

from tests.support.live_stream import LiveStream
from tests.support.people import sign_up
from tests.support.protocol_node import ProtocolNode


def submit(hub_url: str, person, **fields) -> str:
    body = {"command": ["true"], "name": "a secret name", **fields}
    answer = httpx.post(f"{hub_url}/v1/jobs", json=body, headers=person.headers, timeout=20)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


async def make_node(hub_url: str, owner, **fields) -> ProtocolNode:
    node = ProtocolNode([hub_url], owner, **fields)
    await node.enrol()
    return node


async def test_a_submitter_sees_a_job_go_by_and_a_stranger_sees_no_names(hub, submitter, owner):
    async with (
        LiveStream(f"{hub.url}/v1/live", submitter.headers) as own,
        LiveStream(f"{hub.url}/v1/live", sign_up(hub.url, "other").headers) as other,
        LiveStream(f"{hub.url}/v1/public/live") as public,
    ):
        node = await make_node(hub.url, owner, name="a-private-host", region="IN")
        await node.heartbeat()
        seen = await public.wait_for(lambda s: [n for n in s.list_mesh("nodes") if n["online"]])
        assert seen[-1]["country"] == "IN"
        assert seen[-1]["point"] is not None
        job_id = submit(hub.url, submitter)
        held = await node.claim_one()
        await public.wait_for(lambda s: s.list_mesh("arcs"))
        await node.complete(held)
        done = await own.wait_for(lambda s: (job := s.find_job(job_id)) and job["state"] == "succeeded" and job)
        assert done["name"] == "a secret name"
        assert {"job_submitted", "slices_leased", "slices_succeeded", "job_succeeded"} <= set(own.list_kinds())
        arc = public.list_mesh("arcs")[0]
        await public.wait_for(lambda s: arc["id"] in s.list_mesh("ended"))
        assert arc["node"] == seen[-1]["id"]
        # Neither name nor id of anything private leaves the hub.
        words = json.dumps(public.messages)
        for private in ("secret", "private-host", job_id, node.node_id, held.attempt_id, submitter.account_id):
            assert private not in words
        assert set(other.list_kinds()) <= {"account_created", "top_up_paid"}
        assert not any(frame.get("jobs") or frame.get("nodes") for frame in other.frames)
        await node.close()


async def test_an_owner_sees_a_node_become_busy_and_an_operator_sees_everyone(hub, submitter, owner, operator):
    node = await make_node(hub.url, owner, cpu_slots=1)
    async with (
        LiveStream(f"{hub.url}/v1/live", owner.headers) as own,
        LiveStream(f"{hub.url}/v1/live?everyone=true", operator.headers) as everyone,
    ):
        job_id = submit(hub.url, submitter)
        await node.claim_one()
        rows = await own.wait_for(
            lambda s: [
                row["node"]
                for frame in s.frames
                for row in frame.get("nodes", ())
                if any(slot["busy"] for slot in row["node"]["slots"])
            ]
        )
        assert rows[0]["id"] == node.node_id
        assert own.find_job(job_id) is None
        await everyone.wait_for(lambda s: s.find_job(job_id))
    answer = httpx.get(f"{hub.url}/v1/live?everyone=true&seconds=0", headers=owner.headers, timeout=60)
    assert answer.status_code == 403
    await node.close()


async def test_who_comes_back_with_the_last_id_is_told_what_was_missed_also_by_another_hub(hub, start_hub, submitter):
    async with LiveStream(f"{hub.url}/v1/live", submitter.headers) as stream:
        first = submit(hub.url, submitter)
        await stream.wait_for(lambda s: s.find_job(first))
        last_id = stream.last_id
    assert re.fullmatch(r"\d+:\d+", last_id)
    missed = submit(hub.url, submitter)
    second = start_hub()
    for url in (hub.url, second.url):
        async with LiveStream(f"{url}/v1/live", {**submitter.headers, "Last-Event-ID": last_id}) as stream:
            await stream.wait_for(lambda s: s.find_job(missed))
            assert stream.messages[0][0] == "hello"
            assert stream.messages[0][2]["resumed"] is True
    async with LiveStream(f"{hub.url}/v1/live?last_event_id=nonsense", submitter.headers) as stream:
        assert (await stream.wait_for(lambda s: s.messages))[0][2]["resumed"] is False


async def test_what_one_hub_writes_is_seen_at_another(hub, start_hub, submitter):
    other = start_hub()
    async with LiveStream(f"{other.url}/v1/live", submitter.headers) as stream:
        job_id = submit(hub.url, submitter)
        await stream.wait_for(lambda s: s.find_job(job_id))


async def test_a_long_write_transaction_elsewhere_freezes_nothing(hub, dsn, submitter):
    holder = await asyncpg.connect(dsn)
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("SELECT pg_current_xact_id()")
    try:
        async with LiveStream(f"{hub.url}/v1/live", submitter.headers) as stream:
            await stream.wait_for(lambda s: [c for n, _, c in s.messages if n == "pulse" and c["stale"]], seconds=30)
            job_id = submit(hub.url, submitter)
            await stream.wait_for(lambda s: s.find_job(job_id))
            assert stream.frames[-1]["stale"] is True
            # Whoever comes back is told all since the transaction began, and misses nothing.
            last_id = stream.last_id
        async with LiveStream(f"{hub.url}/v1/live?last_event_id={last_id}", submitter.headers) as again:
            await again.wait_for(lambda s: s.find_job(job_id))
            await transaction.rollback()
            await again.wait_for(
                lambda s: [c for n, _, c in s.messages if n == "pulse" and not c["stale"]], seconds=30
            )
    finally:
        await holder.close()


async def test_a_revoked_key_ends_its_streams_with_a_last_word(hub, submitter):
    made = httpx.post(f"{hub.url}/v1/keys", json={}, headers=submitter.headers, timeout=60).json()
    headers = {"Authorization": f"Bearer {made['secret']}"}
    async with LiveStream(f"{hub.url}/v1/live", headers) as stream:
        await stream.wait_for(lambda s: s.messages)
        httpx.delete(f"{hub.url}/v1/keys/{made['key']['id']}", headers=submitter.headers, timeout=60)
        await stream.wait_end()
        assert (stream.messages[-1][0], stream.messages[-1][2]["code"]) == ("bye", "signed_out")


async def test_a_stream_ends_when_it_was_asked_to_and_when_the_hub_does(hub, submitter):
    async with LiveStream(f"{hub.url}/v1/public/live?seconds=0") as stream:
        await stream.wait_end()
        assert stream.names == ["hello", "bye"]
        assert stream.messages[-1][2]["code"] == "over"
    async with LiveStream(f"{hub.url}/v1/live", submitter.headers) as stream:
        await stream.wait_for(lambda s: s.messages)
        await asyncio.to_thread(hub.stop)
        await stream.wait_end()
        assert stream.messages[-1][2]["code"] == "closing"


@pytest.mark.parametrize(("path", "status"), [("/v1/live", 401), ("/v1/public/live?seconds=-1", 400)])
def test_a_stream_that_cannot_be_opened_is_refused_as_any_call(hub, path, status):
    assert httpx.get(hub.url + path, timeout=60).status_code == status


async def test_a_viewer_that_does_not_read_is_cut_and_the_others_are_not(hub, owner):
    """Its socket is full: the hub keeps a bounded number of frames for it, and then lets go."""
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    slow.connect(("127.0.0.1", hub.port))
    slow.sendall(f"GET /v1/live HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer {owner.key}\r\n\r\n".encode())

    async with LiveStream(f"{hub.url}/v1/live", owner.headers) as fast, httpx.AsyncClient(timeout=30) as client:
        # Their rows are large: a few changes fill whatever the kernel keeps for a socket.
        nodes = [await make_node(hub.url, owner, cores=256, cpu_slots=256) for _ in range(8)]

        async def is_cut() -> bool:
            overview = await client.get(f"{hub.url}/metrics")
            return "computepool_viewers_cut_total 1.0" in overview.text

        async with asyncio.timeout(120):
            while not await is_cut():
                for node in nodes:
                    await client.post(f"{hub.url}/v1/nodes/{node.node_id}/pause", headers=owner.headers)
                    await client.post(f"{hub.url}/v1/nodes/{node.node_id}/resume", headers=owner.headers)
        before = len(fast.frames)
        await client.post(f"{hub.url}/v1/nodes/{nodes[0].node_id}/pause", headers=owner.headers)
        await fast.wait_for(lambda s: len(s.frames) > before)
        await asyncio.gather(*(node.close() for node in nodes))
    slow.close()

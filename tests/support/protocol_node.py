"""A node that speaks the real protocol to real hubs but runs nothing: for thousands of slices in seconds.

It keeps a diary of every assignment, so that a test can look at double leases from the node's side too.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import random
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support.people import Person
from tests.support.postgres import wait_for

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


def base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@dataclass
class Held:
    attempt_id: str
    slot: str
    secret: str
    order: dict[str, Any]
    # Of the answer that brought it; it may cover others too.
    token: str


@dataclass
class ProtocolNode:
    hub_urls: list[str]
    owner: Person
    name: str = "node"
    cpu_slots: int = 2
    gpus: list[dict[str, Any]] = field(default_factory=list)
    region: str | None = None
    cores: int = 16
    seed: int = 0
    # What it says of itself as a host of VNodes, if it is one.
    hosting: dict[str, Any] | None = None
    private: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    boot_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    held: dict[str, Held] = field(default_factory=dict)
    # (attempt id, slot, delivered at, ended at): what this node was given, in order.
    diary: list[list[Any]] = field(default_factory=list)
    double_slots: int = 0
    # Attempts whose completion claims their slot again: it may be given away before we hear that they counted.
    ending: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.slots = [f"gpu:{i}" for i in range(len(self.gpus))] + [f"cpu:{i}" for i in range(self.cpu_slots)]
        self.client = httpx.AsyncClient(timeout=40, limits=httpx.Limits(max_connections=64))
        self.node_id = ""

    def pick_url(self) -> str:
        return self.random.choice(self.hub_urls)

    def enrolment(self, **changes: Any) -> dict[str, Any]:
        return {
            "name": self.name,
            "public_key": base64url(self.private.public_key().public_bytes_raw()),
            "hardware": {
                "gpus": self.gpus,
                "cores": self.cores,
                "ram_bytes": 64_000_000_000,
                "disk_bytes": 500_000_000_000,
                "cpu_slots": self.cpu_slots,
            },
            "isolation": "sandboxed",
            "region": self.region,
            "hosting": self.hosting,
            **changes,
        }

    async def enrol(self, **changes: Any) -> None:
        body = self.enrolment(**changes)
        answer = await self.client.post(f"{self.pick_url()}/v1/nodes", json=body, headers=self.owner.headers)
        assert answer.status_code == 201, answer.text
        enrolled = answer.json()
        self.node_id, self.hub_id = enrolled["node_id"], enrolled["hub_id"]
        self.headers = {"Authorization": f"Bearer {enrolled['token']}"}

    def assertion(self, **changes: Any) -> str:
        now = int(time.time())
        claims = {
            "iss": self.node_id,
            "sub": self.node_id,
            "aud": self.hub_id,
            "iat": now,
            "exp": now + 60,
            "jti": str(uuid.uuid4()),
            **changes,
        }
        return jwt.encode(claims, self.private, algorithm="EdDSA", headers={"typ": "JWT"})

    async def next(self, *, wait_seconds: float = 1.0, url: str | None = None, **changes: Any) -> httpx.Response:
        body = {"boot_id": self.boot_id, **self.claim(), "wait_seconds": wait_seconds, **changes}
        return await self.client.post(f"{url or self.pick_url()}/v1/jobs/next", json=body, headers=self.headers)

    def claim(self, *but: Held) -> dict[str, Any]:
        """What is free and what runs, once these attempts have ended."""
        left = {id: held for id, held in self.held.items() if id not in {each.attempt_id for each in but}}
        busy = {held.slot for held in left.values()}
        return {"free_slots": [slot for slot in self.slots if slot not in busy], "running": list(left)}

    async def heartbeat(self, *, url: str | None = None) -> httpx.Response:
        body = {"boot_id": self.boot_id, "running": list(self.held)}
        return await self.client.post(f"{url or self.pick_url()}/v1/nodes/heartbeat", json=body, headers=self.headers)

    def take(self, answer: dict[str, Any]) -> list[Held]:
        """Notes what was given. An assignment that is held already is the same one, delivered again."""
        fresh = []
        for item in answer.get("assignments", []):
            if item["attempt_id"] in self.held:
                continue
            if any(held.slot == item["slot"] and id not in self.ending for id, held in self.held.items()):
                self.double_slots += 1
            held = Held(
                item["attempt_id"],
                item["slot"],
                item["lease_secret"],
                json.loads(item["order"]),
                answer.get("token", ""),
            )
            self.held[held.attempt_id] = held
            self.diary.append([held.attempt_id, held.slot, time.monotonic(), None])
            fresh.append(held)
        for attempt_id in answer.get("controls", {}).get("stop", {}):
            self.forget(attempt_id)
        return fresh

    def forget(self, attempt_id: str) -> None:
        self.held.pop(attempt_id, None)
        self.ending.discard(attempt_id)
        for row in self.diary:
            if row[0] == attempt_id and row[3] is None:
                row[3] = time.monotonic()

    def receipt(self, *held: Held, **changes: Any) -> str:
        """One for all results of a call."""
        result = {"result_sha256": EMPTY_SHA256, "run_seconds": 0.0, "exit_code": 0}
        claims = {
            "iss": self.node_id,
            "aud": self.hub_id,
            "iat": int(time.time()),
            "results": {each.attempt_id: result for each in held},
            **changes,
        }
        return jwt.encode(claims, self.private, algorithm="EdDSA", headers={"typ": "computepool-receipt+jwt"})

    def completion(self, held: Held, **changes: Any) -> dict[str, Any]:
        """How an attempt ended: well, without outputs, unless told otherwise."""
        return {
            "attempt_id": held.attempt_id,
            "lease_secret": held.secret,
            "exit_code": 0,
            "result_sha256": EMPTY_SHA256,
            **changes,
        }

    async def complete(self, held: Held, *, url: str | None = None, **changes: Any) -> httpx.Response:
        """`claim=node.claim(held)` asks for the next work as well."""
        receipt = "" if changes.get("cause") else self.receipt(held)
        body = {"boot_id": self.boot_id, "receipt": receipt, **self.completion(held, **changes)}
        return await self.client.post(f"{url or self.pick_url()}/v1/jobs/complete", json=body, headers=self.headers)

    async def complete_batch(
        self,
        batch: Sequence[Held],
        *,
        url: str | None = None,
        each: Mapping[str, dict[str, Any]] | None = None,
        **changes: Any,
    ) -> httpx.Response:
        """`each` changes single completions, by attempt id; `changes` are the call's."""
        completions = [self.completion(held, **(each or {}).get(held.attempt_id, {})) for held in batch]
        good = [held for held, told in zip(batch, completions, strict=True) if not told.get("cause")]
        body = {
            "boot_id": self.boot_id,
            "completions": completions,
            "receipt": self.receipt(*good) if good else "",
            **changes,
        }
        url = f"{url or self.pick_url()}/v1/jobs/complete/batch"
        return await self.client.post(url, json=body, headers=self.headers)

    async def complete_and_claim(self, *held: Held, url: str | None = None) -> list[Held]:
        """Ends these attempts in one call, and holds what the claim brought."""
        claim = self.claim(*held)
        if len(held) == 1:
            answer = await self.complete(held[0], url=url, claim=claim)
        else:
            answer = await self.complete_batch(held, url=url, claim=claim)
        assert answer.status_code == 200, answer.text
        for each in held:
            self.forget(each.attempt_id)
        return self.take(answer.json().get("next") or {})

    async def claim_one(self, *, tries: int = 100, **options: Any) -> Held:
        """Asks until it holds one more attempt."""
        return (await self.claim_some(tries=tries, **options))[0]

    async def claim_some(self, *, tries: int = 100, **options: Any) -> list[Held]:
        """What the first answer that is not empty brings: a call is held for a beat at most."""
        for _ in range(tries):
            answer = await self.next(**options)
            if answer.status_code == 200 and (fresh := self.take(answer.json())):
                return fresh
            assert answer.status_code in (200, 204), answer.text
        raise AssertionError("no assignment came")

    async def deliver(self, held: Held, *, claims: bool = False) -> list[Held]:
        """Completes until answered, whatever dies meanwhile. Returns what a claim brought."""
        if claims:
            self.ending.add(held.attempt_id)
        while True:
            try:
                answer = await self.complete(held, claim=self.claim(held) if claims else None)
            except httpx.HTTPError:
                await asyncio.sleep(0.05)
                continue
            if answer.status_code in (200, 409):
                self.forget(held.attempt_id)
                return self.take(answer.json().get("next") or {})
            assert answer.status_code in (503, 401, 429), answer.text
            if answer.status_code == 401:
                await self.renew()
            await asyncio.sleep(0.05)

    async def renew(self) -> None:
        answer = await self.client.post(f"{self.pick_url()}/v1/nodes/token", json={"assertion": self.assertion()})
        if answer.status_code == 200:
            self.headers = {"Authorization": f"Bearer {answer.json()['token']}"}

    async def run(
        self,
        stop: asyncio.Event,
        *,
        work: Callable[[Held], Awaitable[None]] | None = None,
        wait_seconds: float = 1.0,
        abandon: float = 0.0,
        claims: bool = False,
    ) -> None:
        """Lives like an agent until told to stop. `abandon` is the share of calls that it leaves open and forgets,
        as a machine does whose Wi-Fi went away: the hub believes them to be alive for a while. With `claims`, each
        completion asks for the next work."""
        running: set[asyncio.Task[None]] = set()
        freed = asyncio.Event()

        async def run_one(held: Held) -> None:
            if work is not None:
                await work(held)
            begin(await self.deliver(held, claims=claims and not stop.is_set()))
            freed.set()

        def begin(fresh: list[Held]) -> None:
            for held in fresh:
                task = asyncio.create_task(run_one(held))
                running.add(task)
                task.add_done_callback(running.discard)

        orphans: set[asyncio.Task[Any]] = set()
        while not stop.is_set():
            freed.clear()
            call = asyncio.create_task(self.next(wait_seconds=wait_seconds))
            if self.random.random() < abandon:
                orphans.add(call)
                await asyncio.sleep(0.002)
                call = asyncio.create_task(self.next(wait_seconds=wait_seconds))
            wake = asyncio.create_task(freed.wait())
            await asyncio.wait({call, wake}, return_when=asyncio.FIRST_COMPLETED)
            wake.cancel()
            if not call.done():
                call.cancel()
                continue
            try:
                answer = call.result()
            except httpx.HTTPError:
                await asyncio.sleep(0.05)
                continue
            if answer.status_code == 401:
                await self.renew()
            elif answer.status_code == 200:
                begin(self.take(answer.json()))
            elif answer.status_code != 204:
                await asyncio.sleep(0.05)
        for task in [*running, *orphans]:
            task.cancel()
        await asyncio.gather(*running, *orphans, return_exceptions=True)

    async def close(self) -> None:
        await self.client.aclose()


async def wait_for_parked(hub_url: str, count: int) -> None:
    """Until the hub holds so many calls of nodes."""

    async def are_parked() -> bool:
        async with httpx.AsyncClient(timeout=20) as client:
            text = (await client.get(f"{hub_url}/metrics")).text
        [parked] = re.findall(r"^computepool_parked_calls (\S+)", text, re.MULTILINE)
        return float(parked) == count

    await wait_for(are_parked, what=f"{count} parked calls")

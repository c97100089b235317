"""A hub's services on a real pool, without HTTP; with a person's and a node's side of them."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch
from uuid import UUID

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from computepool import entropy
from computepool.core.accounts.roles import DEFAULT_ROLES
from computepool.core.errors import ComputePoolError
from computepool.core.ids import AccountId, KeyId, NodeId
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.manifest import manifest_sha256
from computepool.core.placement.slot import Slot
from computepool.hub.config import HubSettings
from computepool.hub.dispatch.group_commit import SingleCommit
from computepool.hub.services import attempts as attempt_service
from computepool.hub.services import jobs as job_service
from computepool.hub.services import nodes as node_service
from computepool.hub.services.attempts import Completion
from computepool.hub.services.callers import AccountCaller, NodeCaller
from computepool.hub.services.keyring import Keyring, ensure_keys, to_base64
from computepool.hub.services.leases import Leases
from computepool.hub.services.receipts import RECEIPT_TYPE
from computepool.hub.store import accounts as account_store
from computepool.hub.store import connect
from computepool.hub.store import hub as hub_store
from computepool.hub.store import nodes as node_store
from computepool.hub.store.attempts import Grant
from computepool.hub.store.connect import Pool, create_pool
from computepool.hub.store.jobs import Job
from computepool.wire import jobs as wire_jobs
from computepool.wire import nodes as wire_nodes
from computepool.wire.attempts import CompleteAnswer, CompleteRequest
from tests.support.builders import GB

_numbers = itertools.count(1)


@dataclass(frozen=True)
class EnrolledNode:
    id: NodeId
    private: Ed25519PrivateKey = field(repr=False)
    caller: NodeCaller = field(repr=False)


@dataclass(frozen=True)
class Spine:
    pool: Pool
    settings: HubSettings
    keyring: Keyring
    leases: Leases

    async def sign_up(self, **limits: int) -> AccountCaller:
        account_id = AccountId(entropy.new_id())
        values = {"queued_slices_max": 1_000_000, "stored_bytes_max": GB, "calls_per_minute_max": 60_000, **limits}
        async with self.pool.acquire() as conn:
            await account_store.insert_account(
                conn,
                id=account_id,
                email=f"person{next(_numbers)}@example.org",
                name="person",
                password_hash=None,
                roles=DEFAULT_ROLES,
                **values,
            )
        return AccountCaller(account_id, KeyId(entropy.new_id()), DEFAULT_ROLES, values["calls_per_minute_max"])

    async def enrol(self, *, owner: AccountCaller | None = None, **hardware: Any) -> EnrolledNode:
        owner = owner or await self.sign_up()
        private = Ed25519PrivateKey.generate()
        request = wire_nodes.EnrolNode(
            name="node",
            public_key=to_base64(private.public_key().public_bytes_raw()),
            hardware=wire_nodes.Hardware(
                **{"cores": 8, "ram_bytes": 64 * GB, "disk_bytes": 500 * GB, "cpu_slots": 1, **hardware}
            ),
            isolation=IsolationLevel.SANDBOXED,
        )
        node_id = await node_service.enrol_node(self.pool, self.settings, owner, request)
        public_key = private.public_key().public_bytes_raw()
        return EnrolledNode(node_id, private, NodeCaller(node_id, owner.account_id, public_key))

    async def submit(self, *, by: AccountCaller | None = None, key: str | None = None, **spec: Any) -> Job:
        caller = by or await self.sign_up()
        request = wire_jobs.JobSpec(**{"command": ("true",), **spec})
        submission = job_service.check_submission(caller, request, idempotency_key=key)
        return await SingleCommit(lambda batch: job_service.submit_jobs(self.pool, batch)).put(submission)

    async def list_slots(self, *nodes: EnrolledNode) -> list[Slot]:
        async with self.pool.acquire() as conn:
            return [stored.slot for stored in await node_store.list_slots(conn, [node.id for node in nodes])]

    async def list_free(self, *nodes: EnrolledNode) -> list[Slot]:
        async with self.pool.acquire() as conn:
            stored = await node_store.list_slots(conn, [node.id for node in nodes])
        return [each.slot for each in stored if not each.busy]

    async def grant(self, *nodes: EnrolledNode) -> list[Grant]:
        """Leases for every free slot of these nodes, as far as the queue reaches."""
        return await self.leases.grant(await self.list_free(*nodes))

    async def grant_one(self, node: EnrolledNode) -> Grant:
        [grant] = await self.grant(node)
        return grant

    def completion(self, node: EnrolledNode, grant: Grant, **overrides: Any) -> CompleteRequest:
        """A success without outputs, as an honest node reports it, unless told otherwise."""
        outputs = overrides.get("outputs", ())
        values: dict[str, Any] = {
            "attempt_id": grant.id,
            "lease_secret": self.keyring.lease_secret(grant.id),
            "boot_id": UUID(int=1),
            "exit_code": 0,
            "result_sha256": manifest_sha256((o.path, o.sha256) for o in outputs),
        }
        values.update(overrides)
        values.setdefault("receipt", self.receipt(node, grant, result_sha256=values["result_sha256"]))
        return CompleteRequest(**values)

    def receipt(self, node: EnrolledNode, grant: Grant, *, typ: str = RECEIPT_TYPE, **changes: Any) -> str:
        claims = {
            "iss": str(node.id),
            "aud": str(self.keyring.hub_id),
            "jti": str(grant.id),
            "iat": int(time.time()),
            **changes,
        }
        return jwt.encode(claims, node.private, algorithm="EdDSA", headers={"typ": typ})

    async def finish(self, *reports: tuple[EnrolledNode, CompleteRequest]) -> list[CompleteAnswer | ComputePoolError]:
        """Checks each report by itself, then judges the sound ones together, as the hub does."""
        answers: list[Any] = []
        for node, request in reports:
            try:
                answers.append(attempt_service.check_completion(self.keyring, node.caller, request))
            except ComputePoolError as refusal:
                answers.append(refusal)
        sound = [answer for answer in answers if isinstance(answer, Completion)]
        judged = iter(await attempt_service.finish_attempts(self.pool, sound))
        return [next(judged) if isinstance(answer, Completion) else answer for answer in answers]

    async def succeed(self, node: EnrolledNode, grant: Grant, **overrides: Any) -> CompleteAnswer | ComputePoolError:
        [answer] = await self.finish((node, self.completion(node, grant, **overrides)))
        return answer

    async def fetch(self, query: str, *args: Any) -> list[Any]:
        async with self.pool.acquire() as conn:
            return await conn.fetch(query, *args)

    async def fetch_value(self, query: str, *args: Any) -> Any:
        async with self.pool.acquire() as conn:
            return await conn.fetchval(query, *args)

    async def slice_state(self, job: Job | Grant, index: int = 0) -> str:
        job_id = job.job_id if isinstance(job, Grant) else job.id
        return await self.fetch_value(
            "SELECT state::text FROM slices WHERE job_id = $1 AND slice_index = $2", job_id, index
        )

    async def attempt(self, grant: Grant) -> Any:
        [row] = await self.fetch("SELECT * FROM attempts WHERE id = $1", grant.id)
        return row

    async def list_event_kinds(self, job: Job) -> list[str]:
        rows = await self.fetch("SELECT kind FROM events WHERE job_id = $1 ORDER BY id", job.id)
        return [row["kind"] for row in rows]

    async def let_lease_pass(self, *grants: Grant, seconds: float = 600.0) -> None:
        """Turns the database's clock, as far as these leases can see."""
        await self.fetch(
            "UPDATE attempts SET expires_at = clock_timestamp() - $2 * interval '1 second' WHERE id = ANY($1)",
            [grant.id for grant in grants],
            seconds,
        )


@contextlib.asynccontextmanager
async def open_spine(dsn: str, **settings: Any) -> AsyncIterator[Spine]:
    config = HubSettings(demo=True, **settings)
    # A busy test machine may hold a row for longer than a hub should.
    with patch.object(connect, "LOCK_MILLISECONDS", 20_000):
        pool = await create_pool(dsn, size_max=6)
    try:
        async with pool.acquire() as conn:
            facts = await hub_store.get_or_insert_facts(conn, hub_id=entropy.new_id(), blob_store_id=entropy.new_id())
        await ensure_keys(pool)
        keyring = Keyring(facts.hub_id)
        await keyring.refresh(pool)
        yield Spine(pool, config, keyring, Leases(pool, keyring, config))
    finally:
        await pool.close()

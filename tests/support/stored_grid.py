"""A grid as rows of a database: nodes enrolled by the service, jobs and attempts written as a test wants them.

For what only looks at the database. Whoever wants jobs to move uses a spine or a hub.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from computepool import clock, entropy
from computepool.core.accounts.roles import DEFAULT_ROLES
from computepool.core.ids import AccountId, JobId, KeyId, NodeId
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.spec import Requirements
from computepool.core.placement.price import SlicePrice
from computepool.core.placement.shape import to_shape
from computepool.hub.config import HubSettings
from computepool.hub.services import nodes as node_service
from computepool.hub.services import offers as offer_service
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.keyring import to_base64
from computepool.hub.services.nodes import NodeWithSlots
from computepool.hub.services.prices import PriceBook, load_rate_card
from computepool.hub.store import accounts as account_store
from computepool.hub.store import nodes as node_store
from computepool.hub.store import shapes as shape_store
from computepool.hub.store.connect import Pool, create_pool
from computepool.wire import jobs as wire_jobs
from computepool.wire import nodes as wire_nodes
from tests.support.builders import GB

PRICES = PriceBook(load_rate_card(), holdback_seconds=60)

_numbers = itertools.count(1)


@dataclass(frozen=True)
class StoredGrid:
    pool: Pool
    settings: HubSettings

    async def execute(self, query: str, *args: Any) -> None:
        async with self.pool.acquire() as conn:
            await conn.execute(query, *args)

    async def fetch_value(self, query: str, *args: Any) -> Any:
        async with self.pool.acquire() as conn:
            return await conn.fetchval(query, *args)

    async def sign_up(self, *, roles: frozenset[Any] = DEFAULT_ROLES) -> AccountCaller:
        account_id = AccountId(entropy.new_id())
        async with self.pool.acquire() as conn:
            await account_store.insert_account(
                conn,
                id=account_id,
                email=f"stored{next(_numbers)}@example.org",
                name="person",
                password_hash=None,
                roles=roles,
                queued_slices_max=1_000_000,
                stored_bytes_max=GB,
                calls_per_minute_max=60_000,
            )
        return AccountCaller(account_id, KeyId(entropy.new_id()), roles, 60_000)

    async def enrol(
        self,
        owner: AccountCaller,
        *,
        name: str = "node",
        online: bool = True,
        floor: int = 0,
        region: str | None = None,
        **hardware: Any,
    ) -> NodeId:
        number = next(_numbers)
        request = wire_nodes.EnrolNode(
            name=name,
            # Any 32 bytes: nothing here is ever signed.
            public_key=to_base64(number.to_bytes(32, "big")),
            hardware=wire_nodes.Hardware(
                **{"cores": 8, "ram_bytes": 64 * GB, "disk_bytes": 500 * GB, "cpu_slots": 1, **hardware}
            ),
            isolation=IsolationLevel.SANDBOXED,
            region=region,
            floor_microcredits_per_hour=floor,
        )
        node_id = await node_service.enrol_node(self.pool, self.settings, owner, request)
        if online:
            async with self.pool.acquire() as conn:
                await node_store.see_nodes(conn, [node_id])
        return node_id

    async def set_offer(self, owner: AccountCaller, node_id: NodeId, **terms: Any) -> NodeWithSlots:
        request = wire_nodes.SetOffer(**terms)
        return await offer_service.set_offer(self.pool, PRICES, owner, node_id, request)

    async def add_job(
        self,
        owner: AccountCaller,
        *,
        slices: int = 1,
        need: Requirements | None = None,
        at: datetime | None = None,
        **columns: Any,
    ) -> JobId:
        """Its slices are queued, whatever its own columns say."""
        at, need = at or clock.now(), need or Requirements()
        job_id = JobId(id_at(at))
        async with self.pool.acquire() as conn, conn.transaction():
            shapes = await shape_store.get_or_insert_shapes(conn, {to_shape(need)})
            values = {
                "id": job_id,
                "account_id": owner.account_id,
                "name": "job",
                "spec": {"command": ["true"], "kind": need.job_kind, "requirements": _to_wire(need)},
                "shape_id": shapes[to_shape(need)],
                "priority": 0,
                "slice_count": slices,
                "retries": 2,
                "wall_seconds": need.slice_seconds or 60,
                "created_at": at,
                **_to_columns(need.slice_price),
                **columns,
            }
            names = ", ".join(values)
            places = ", ".join(f"${number}" for number in range(1, len(values) + 1))
            await conn.execute(f"INSERT INTO jobs ({names}) VALUES ({places})", *values.values())
            await conn.execute(
                "INSERT INTO slices (job_id, slice_index, account_id, shape_id, priority, priority_class, queued_at) "
                "SELECT id, i, account_id, shape_id, priority, priority_class, created_at FROM jobs, "
                "generate_series(0, slice_count - 1) AS i WHERE id = $1",
                job_id,
            )
        return job_id

    async def add_attempt(
        self, job_id: JobId, node_id: NodeId, slot: str, *, index: int = 0, number: int = 1, **columns: Any
    ) -> None:
        """Live, unless columns say otherwise; its slice is leased then."""
        now = clock.now()
        values = {
            "id": entropy.new_id(),
            "job_id": job_id,
            "slice_index": index,
            "number": number,
            "node_id": node_id,
            "slot": slot,
            "state": "running",
            "leased_at": now,
            "expires_at": now + timedelta(hours=1),
            **columns,
        }
        places = ", ".join(f"${place}" for place in range(1, len(values) + 1))
        await self.execute(f"INSERT INTO attempts ({', '.join(values)}) VALUES ({places})", *values.values())
        if values["state"] == "running":
            await self.execute(
                "UPDATE slices SET state = 'running', attempt_count = $3 WHERE job_id = $1 AND slice_index = $2",
                job_id,
                index,
                number,
            )


def _to_columns(fixed: SlicePrice | None) -> dict[str, Any]:
    if fixed is None:
        return {}
    return {
        "slice_base_microcredits": fixed.base_microcredits,
        "reserve_microcredits": fixed.ceiling_microcredits,
        "wall_seconds": fixed.seconds,
    }


def _to_wire(need: Requirements) -> dict[str, Any]:
    """A fixed price is no requirement on the wire; it stands in columns of the job."""
    names = wire_jobs.Requirements.__struct_fields__
    asked: dict[str, Any] = msgspec.to_builtins({name: getattr(need, name) for name in names})
    return asked


def id_at(at: datetime) -> UUID:
    """An id as it would have been given at that moment."""
    random_part = entropy.new_id().int & ((1 << 80) - 1)
    return UUID(int=(int(at.timestamp() * 1_000) << 80) | random_part)


@contextlib.asynccontextmanager
async def open_grid(dsn: str, **settings: Any) -> AsyncIterator[StoredGrid]:
    pool = await create_pool(dsn, size_max=4)
    try:
        yield StoredGrid(pool, HubSettings(demo=True, **settings))
    finally:
        await pool.close()

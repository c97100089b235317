"""Runs of networks on a real database: owners as hubs have them, PNodes that are online, hosts that tests play."""

from __future__ import annotations

import contextlib
import hashlib
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from computepool import entropy
from computepool.core.ids import AttemptId, NodeId, RunId
from computepool.core.networks.placement import SeatId
from computepool.core.networks.run import (
    BeatHeard,
    CheckpointReported,
    HostJoined,
    HostPrepared,
    Run,
    StepReported,
)
from computepool.core.networks.spec import NetworkSpec
from computepool.core.networks.spec_json import to_json
from computepool.hub.blobs.fetch import Fetcher
from computepool.hub.blobs.local import LocalBlobs
from computepool.hub.services import artifacts as artifact_service
from computepool.hub.services import networks as network_service
from computepool.hub.services import run_blobs
from computepool.hub.services import runs as run_service
from computepool.hub.services.attempts import Beat, record_beats
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.inference import AskOrder, OpenOrder
from computepool.hub.services.owners import Heard, Order, PrepareOrder, RunOwner
from computepool.hub.services.pnodes import record_hosting
from computepool.hub.services.runs import DataRef, RunView, TrainOptions
from computepool.hub.services.seats import get_seat
from computepool.hub.store.networks import Network
from computepool.hub.store.runs import Metric, Part
from computepool.wire.nodes import Hosting
from tests.support.builders import GB
from tests.support.networks import make_mlp
from tests.support.paid_jobs import HOUR, open_paid_spine
from tests.support.spine import EnrolledNode, Spine

DATA = b"samples"
DATA_SHA256 = hashlib.sha256(DATA).hexdigest()


class RecordedPost:
    """Sessions that keep what they are told. Only hosts whose session is open are told anything."""

    def __init__(self) -> None:
        self.open: set[AttemptId] = set()
        self.sent: list[tuple[AttemptId, Any]] = []
        self.closed: list[AttemptId] = []
        # What hosts do at once when they are told something.
        self.on_sent: Callable[[AttemptId, Any], None] = lambda attempt_id, order: None

    def offer(self, attempt_id: AttemptId, order: OpenOrder | AskOrder) -> bool:
        if attempt_id not in self.open:
            return False
        self.sent.append((attempt_id, order))
        self.on_sent(attempt_id, order)
        return True

    def send(self, attempt_id: AttemptId, order: Order) -> bool:
        if attempt_id not in self.open:
            return False
        self.sent.append((attempt_id, order))
        return True

    def close(self, attempt_id: AttemptId) -> None:
        self.open.discard(attempt_id)
        self.closed.append(attempt_id)

    def list(self, kind: type[Any]) -> list[Any]:
        return [order for _, order in self.sent if isinstance(order, kind)]


@dataclass
class OwnerAtWork:
    """An owner process, its sessions, and a clock that the test turns."""

    owner: RunOwner
    post: RecordedPost
    now: list[float] = field(default_factory=lambda: [1_000.0])

    async def look(self, *, seconds: float = 0.0) -> None:
        """What it does once a second, so many seconds later."""
        self.now[0] += seconds
        self.owner._looked_at = float("-inf")
        await self.owner.run_once()

    async def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.25)):
            self.now[0] += 0.25
            for run_id in self.owner.run_ids:
                await self.beat(run_id)
            await self.owner.run_once()

    async def beat(self, run_id: RunId) -> None:
        for seat in self.run(run_id).taken_seats:
            if seat.attempt_id in self.post.open:
                beat = BeatHeard(seat.id, seat.attempt_id, self.run(run_id).epoch, seat.watermark)
                await self.owner.hear(run_id, Heard(beat))

    def run(self, run_id: RunId) -> Run:
        run = self.owner.find(run_id)
        assert run is not None
        return run


@dataclass
class RunLab:
    spine: Spine
    blobs: LocalBlobs

    def open_owner(self, **options: Any) -> OwnerAtWork:
        post, now = RecordedPost(), [1_000.0]
        owner = RunOwner(
            self.spine.pool,
            self.spine.settings,
            self.spine.leases.prices,
            self.blobs,
            post,
            owner_id=entropy.new_id(),
            address="hub.example:9000",
            seconds=lambda: now[0],
            **options,
        )
        return OwnerAtWork(owner, post, now)

    async def enrol_pnode(
        self,
        *,
        numeric_class: str = "avx2",
        memory_bytes: int = GB,
        owner: AccountCaller | None = None,
        cpu_slots: int = 1,
        flops_per_second: float = 1e10,
        **links: float,
    ) -> EnrolledNode:
        """A node that hosts VNodes and was heard just now."""
        node = await self.spine.enrol(owner=owner, cpu_slots=cpu_slots)
        hosting = Hosting(
            numeric_class=numeric_class, memory_bytes=memory_bytes, flops_per_second=flops_per_second, **links
        )
        async with self.spine.pool.acquire() as conn:
            await record_hosting(conn, node.id, hosting)
        await self.see(node)
        return node

    async def see(self, *nodes: EnrolledNode) -> None:
        await record_beats(self.spine.pool, [Beat(node.id, frozenset()) for node in nodes], lease_seconds=60.0)

    async def upload(self, by: AccountCaller, content: bytes = DATA) -> str:
        sha256 = hashlib.sha256(content).hexdigest()
        await self.blobs.write(sha256, _chunks(content), size_bytes_max=GB)
        await artifact_service.record_upload(self.spine.pool, by, sha256=sha256, size_bytes=len(content))
        return sha256

    async def create(self, by: AccountCaller, spec: NetworkSpec | None = None, **options: Any) -> Network:
        return await network_service.create_network(self.spine.pool, by, to_json(spec or make_mlp()), **options)

    async def start(
        self, by: AccountCaller, network: Network | None = None, *, key: str | None = None, **options: Any
    ) -> RunView:
        network = network or await self.create(by)
        await self.upload(by)
        return await run_service.start_run(
            self.spine.pool,
            self.spine.leases.prices,
            self.spine.settings,
            Fetcher(self.blobs),
            by,
            network.id,
            self.options(**options),
            idempotency_key=key,
        )

    def options(self, **options: Any) -> TrainOptions:
        given: dict[str, Any] = {
            "steps": 40,
            "data": (DataRef(DATA_SHA256),),
            "ceiling_microcredits_per_hour": HOUR,
            "hours_max": 1,
            "seats": 2,
            **options,
        }
        return TrainOptions(**given)

    # Hosts, played

    async def join(self, at: OwnerAtWork, run_id: RunId, *seats: SeatId) -> None:
        """Hosts whose agents have got their leases and started them."""
        for seat in at.run(run_id).taken_seats:
            if seat.attempt_id is None or seat.joined or (seats and seat.id not in seats):
                continue
            assert seat.node_id is not None
            at.post.open.add(seat.attempt_id)
            at.owner.note_beat(seat.attempt_id, seat.node_id)
            await self.run_attempts(NodeId(seat.node_id), seat.attempt_id)
            await at.owner.hear(run_id, Heard(HostJoined(seat.id, seat.attempt_id)))

    async def run_attempts(self, node_id: NodeId, *attempt_ids: AttemptId) -> None:
        """The agent lists them as running."""
        beats = [Beat(node_id, frozenset(attempt_ids))]
        await record_beats(self.spine.pool, beats, lease_seconds=self.spine.settings.lease_seconds)

    async def prepare(self, at: OwnerAtWork, run_id: RunId) -> None:
        for seat in at.run(run_id).taken_seats:
            assert seat.attempt_id is not None
            await at.owner.hear(run_id, Heard(HostPrepared(seat.id, seat.attempt_id, at.run(run_id).epoch)))

    async def set_going(self, at: OwnerAtWork, run_id: RunId) -> None:
        await self.join(at, run_id)
        await self.prepare(at, run_id)

    async def step(self, at: OwnerAtWork, run_id: RunId, *steps: int) -> None:
        for step in steps:
            run = at.run(run_id)
            at.now[0] += 0.1
            seat = run.seats[next(each.seat for each in run.locations if each.vnode_id == run.loss)]
            assert seat.attempt_id is not None
            event = StepReported(seat.id, seat.attempt_id, run.epoch, step)
            metric = Metric(step, run.epoch, bits_of(1.0 / step), 100.0)
            await at.owner.hear(run_id, Heard(event, metric=metric))

    async def store(self, at: OwnerAtWork, run_id: RunId, step: int, vnode_ids: Sequence[str] = ()) -> None:
        run = at.run(run_id)
        for vnode_id in vnode_ids or run.vnode_ids:
            if at.owner.find(run_id) is None:
                return
            seat = run.seats[next(each.seat for each in run.locations if each.vnode_id == vnode_id)]
            assert seat.attempt_id is not None
            part = await self.put_part(seat.attempt_id, run_id, vnode_id, step, run.epoch)
            event = CheckpointReported(seat.id, seat.attempt_id, run.epoch, step, vnode_id)
            await at.owner.hear(run_id, Heard(event, part=part))

    async def put_part(
        self, attempt_id: AttemptId, run_id: RunId, vnode_id: str, step: int, epoch: int, content: bytes | None = None
    ) -> Part:
        """What a VNode's state of a step is follows from run, VNode and step, as it does in an exact run."""
        content = content if content is not None else f"{run_id} {vnode_id} {step}".encode()
        sha256 = hashlib.sha256(content).hexdigest()
        seat = await get_seat(self.spine.pool, attempt_id)
        await run_blobs.put_blob(
            self.spine.pool, self.blobs, seat, sha256, _chunks(content), size_bytes_max=1_000_000
        )
        return Part(step, vnode_id, epoch, bytes.fromhex(sha256), len(content), bytes.fromhex(sha256))

    async def row(self, run_id: RunId | UUID) -> Any:
        [row] = await self.spine.fetch("SELECT * FROM runs WHERE id = $1", run_id)
        return row

    async def let_owner_lease_pass(self, run_id: RunId) -> None:
        await self.spine.fetch(
            "UPDATE runs SET owner_until = clock_timestamp() - interval '1 second' WHERE id = $1", run_id
        )

    async def turn_back(self, run_id: RunId, seconds: float) -> None:
        """As if the leases of its seats had been given so much earlier."""
        await self.spine.fetch(
            "UPDATE attempts SET leased_at = leased_at - $2 * interval '1 second' "
            "WHERE id IN (SELECT attempt_id FROM run_seats WHERE run_id = $1)",
            run_id,
            seconds,
        )


def bits_of(loss: float) -> int:
    found: int = struct.unpack("<q", struct.pack("<d", loss))[0]
    return found


async def _chunks(content: bytes) -> AsyncIterator[bytes]:
    yield content


def prepares(at: OwnerAtWork, *, epoch: int) -> list[PrepareOrder]:
    return [order for order in at.post.list(PrepareOrder) if order.epoch == epoch]


@contextlib.asynccontextmanager
async def open_run_lab(dsn: str, folder: Path, **settings: Any) -> AsyncIterator[RunLab]:
    """Seats cost a credit a second."""
    blobs = LocalBlobs(folder / "blobs")
    blobs.open_store()
    async with open_paid_spine(dsn, **settings) as spine:
        yield RunLab(spine, blobs)

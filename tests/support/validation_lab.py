"""A hub's services that check results, with nodes that answer as a test wants: rightly, wrongly, or not at all."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from computepool.core.ids import AccountId, AttemptId, JobId, NodeId
from computepool.core.jobs.cause import Cause
from computepool.core.ledger.charging import LeaseTerms
from computepool.core.trust.reputation import Integrity
from computepool.core.trust.standing import NodeTrust
from computepool.hub.blobs.local import LocalBlobs
from computepool.hub.dispatch.evidence import Evidence
from computepool.hub.dispatch.registry import Registry
from computepool.hub.services import attempts as attempt_service
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.inspections import inspect_due
from computepool.hub.services.inspector import Inspector
from computepool.hub.services.standings import follow_due, readmit_due
from computepool.hub.services.trials import run_trials
from computepool.hub.store import nodes as node_store
from computepool.hub.store import validation as store
from computepool.hub.store.attempts import Grant
from computepool.hub.store.jobs import Job
from computepool.wire.attempts import RunOrder, Usage
from computepool.wire.jobs import Compare, OutputFile
from tests.support.spine import EnrolledNode, Spine, open_spine

# What a submitter's command makes of two results: its exit code, or what ended it.
Command = Callable[[bytes, bytes], int | Cause]

RIGHT, WRONG = b"the right answer", b"something made up"


@dataclass
class Lab:
    spine: Spine
    inspector: Inspector
    nodes: dict[NodeId, EnrolledNode] = field(default_factory=dict)

    async def enrol(self, *, vouched: bool = False, **options: Any) -> EnrolledNode:
        """A newcomer of an owner of its own; or one that the operator vouches for."""
        node = await self.spine.enrol(**options)
        self.nodes[node.id] = node
        if vouched:
            await self.put_trust(node, NodeTrust(is_vouched=True))
        await self.see()
        return node

    async def see(self) -> None:
        async with self.spine.pool.acquire() as conn:
            await node_store.see_nodes(conn, self.nodes)

    async def put_trust(self, node: EnrolledNode, trust: NodeTrust) -> None:
        async with self.spine.pool.acquire() as conn:
            await store.put_trust(conn, node.id, trust)

    async def trust(self, node: EnrolledNode) -> NodeTrust:
        async with self.spine.pool.acquire() as conn:
            return (await store.list_trust(conn, [node.id])).get(node.id, NodeTrust())

    async def submit(self, *, by: AccountCaller | None = None, **spec: Any) -> Job:
        return await self.spine.submit(by=by, **{"compare": Compare(), **spec})

    async def deliver(self, node: EnrolledNode, grant: Grant, content: bytes = RIGHT, path: str = "out.bin") -> Any:
        sha256 = hashlib.sha256(content).hexdigest()

        async def pieces() -> AsyncIterator[bytes]:
            yield content

        await self.inspector.blobs.write(sha256, pieces(), size_bytes_max=1 << 30)
        held = await attempt_service.get_held(
            self.spine.pool, self.spine.keyring, node.caller, grant.id, self.spine.keyring.lease_secret(grant.id)
        )
        await attempt_service.record_output(self.spine.pool, held, sha256=sha256, size_bytes=len(content))
        output = OutputFile(path=path, sha256=sha256, size_bytes=len(content))
        return await self.spine.succeed(node, grant, outputs=(output,), usage=Usage(run_seconds=1.0))

    async def run(self, node: EnrolledNode, content: bytes = RIGHT, **spec: Any) -> tuple[Job, Grant]:
        """A job of one slice, run by this node."""
        job = await self.submit(**spec)
        [grant] = [each for each in await self.spine.grant(node) if each.job_id == job.id]
        await self.deliver(node, grant, content)
        return job, grant

    async def look(self, times: int = 1) -> None:
        """At every check, and at what follows for nodes, now. A slow test does not make its nodes silent."""
        await self.see()
        for _ in range(times):
            await self.spine.fetch("UPDATE checks SET look_at = clock_timestamp() WHERE state <> 'closed'")
            await inspect_due(self.inspector, limit=1_000)
            await self.spine.fetch("UPDATE trust_effects SET look_at = clock_timestamp()")
            await follow_due(self.spine.pool, limit=1_000)

    async def list_asked(self) -> list[Grant]:
        """Runs of slices that were asked for and are under way."""
        return await self._list_under_way("NOT EXISTS (SELECT 1 FROM comparisons c WHERE c.job_id = j.id)")

    async def list_comparing(self) -> list[Grant]:
        """Runs of submitters' commands that are under way."""
        return await self._list_under_way("EXISTS (SELECT 1 FROM comparisons c WHERE c.job_id = j.id)")

    async def _list_under_way(self, condition: str) -> list[Grant]:
        rows = await self.spine.fetch(
            "SELECT a.*, j.account_id FROM attempts a JOIN jobs j ON j.id = a.job_id"
            f" WHERE j.checks_attempt_id IS NOT NULL AND a.finished_at IS NULL AND {condition} ORDER BY a.id"
        )
        return [
            Grant(
                AttemptId(row["id"]),
                AccountId(row["account_id"]),
                JobId(row["job_id"]),
                row["slice_index"],
                row["number"],
                NodeId(row["node_id"]),
                row["slot"],
                row["expected_seconds"],
                row["rate_microcredits_per_hour"],
                LeaseTerms(row["fee_ppm"], row["holdback_seconds"]),
            )
            for row in rows
        ]

    async def read_order(self, grant: Grant) -> RunOrder:
        """What the node is told to run."""
        told = await self.spine.leases.answer([grant])
        return msgspec.json.decode(told.assignments[0].order, type=RunOrder)

    async def compare(self, command: Command) -> list[NodeId]:
        """Whoever was asked to compare runs the command, on the bytes that its order names. Returns who they were."""
        comparing = await self.list_comparing()
        for grant in comparing:
            results = {"one": b"", "other": b""}
            for file in (await self.read_order(grant)).files:
                if (folder := file.path.split("/")[0]) in results:
                    results[folder] += b"".join([piece async for piece in self.inspector.blobs.read(file.sha256)])
            ended = command(results["one"], results["other"])
            exit_code, cause = (None, ended) if isinstance(ended, Cause) else (ended, Cause.EXIT_CODE)
            if ended == 0:
                await self.spine.succeed(self.nodes[grant.node_id], grant, usage=Usage(run_seconds=1.0))
            else:
                await self.fail(grant, cause, exit_code)
        return [grant.node_id for grant in comparing]

    async def fail(self, grant: Grant, cause: Cause, exit_code: int | None = None) -> None:
        node = self.nodes[grant.node_id]
        report = self.spine.completion(
            node, grant, exit_code=exit_code, cause=cause, result_sha256="", usage=Usage(run_seconds=1.0)
        )
        await self.spine.finish((node, report))

    async def answer(self, answers: Mapping[NodeId, bytes] | bytes = RIGHT) -> list[NodeId]:
        """Whoever was asked answers: all the same, or each their own. Returns who they were."""
        asked = await self.list_asked()
        for grant in asked:
            content = answers if isinstance(answers, bytes) else answers.get(grant.node_id, RIGHT)
            await self.deliver(self.nodes[grant.node_id], grant, content)
        return [grant.node_id for grant in asked]

    async def settle(
        self, answers: Mapping[NodeId, bytes] | bytes = RIGHT, command: Command = lambda one, other: int(one != other)
    ) -> None:
        """Until every check is closed, those too that follow from others."""
        for _ in range(50):
            await self.look()
            await self.answer(answers)
            await self.compare(command)
            if not await self.spine.fetch_value("SELECT count(*) FROM checks WHERE state <> 'closed'"):
                return

    async def let_wait(self, seconds: float) -> None:
        """Turns the clock, as far as checks can see."""
        await self.spine.fetch("UPDATE checks SET opened_at = opened_at - $1 * interval '1 second'", seconds)
        await self.spine.fetch(
            "UPDATE attempts SET finished_at = finished_at - $1 * interval '1 second'"
            " WHERE finished_at IS NOT NULL AND job_id IN (SELECT id FROM jobs WHERE checks_attempt_id IS NOT NULL)",
            seconds,
        )

    async def output(self, job: Job, index: int = 0) -> bytes | None:
        """What the submitter gets."""
        outputs = await self.spine.fetch_value(
            "SELECT a.outputs FROM slices s JOIN attempts a ON a.id = s.accepted_attempt_id"
            " WHERE s.job_id = $1 AND s.slice_index = $2",
            job.id,
            index,
        )
        if outputs is None:
            return None
        return b"".join([piece async for piece in self.inspector.blobs.read(outputs[0]["sha256"])])

    async def try_nodes(self) -> None:
        """Those that are bugged and may come back, and those that are watched, now."""
        await readmit_due(self.spine.pool)
        await self.spine.fetch("UPDATE watches SET look_at = clock_timestamp()")
        await run_trials(self.inspector)

    async def is_out(self, node: EnrolledNode) -> bool:
        """Whether every hub leaves it alone."""
        book = self.spine.book
        registry = Registry({name: book.sets[name] for name in book.split.names_in_use}, Evidence(self.spine.pool))
        async with self.spine.pool.acquire() as conn:
            await registry.load(conn, [node.id])
        registry.offer(node.id, ["cpu:0"])
        return (node.id, "cpu:0") not in registry.fleet

    async def outcome(self, grant: Grant) -> str | None:
        return await self.spine.fetch_value("SELECT outcome::text FROM checks WHERE attempt_id = $1", grant.id)


def veteran(validated: int = 200) -> NodeTrust:
    """Of so many right results."""
    return NodeTrust(integrity=Integrity(right=50.0, validated_count=validated))


@contextlib.asynccontextmanager
async def open_validation_lab(dsn: str, folder: Path, **settings: Any) -> AsyncIterator[Lab]:
    async with open_spine(dsn, **settings) as spine:
        blobs = LocalBlobs(folder / "blobs")
        blobs.open_store()
        yield Lab(
            spine,
            Inspector(
                spine.pool,
                blobs,
                spine.leases.prices,
                spine.settings,
                spine.keyring.audit_key,
                spine.ended.extend,
            ),
        )

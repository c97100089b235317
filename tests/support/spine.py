"""A hub's services on a real pool, without HTTP; with a person's and a node's side of them."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch
from uuid import UUID

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from computepool import entropy
from computepool.core.accounts.roles import DEFAULT_ROLES
from computepool.core.errors import ComputePoolError
from computepool.core.ids import AccountId, KeyId, NodeId, ShapeId
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.manifest import manifest_sha256
from computepool.core.jobs.order import PriorityClass
from computepool.core.ledger import verbs
from computepool.core.ledger.books import Outcome
from computepool.core.placement.fronts import Fronts
from computepool.core.placement.pools import Fleet
from computepool.core.placement.rounds import Round, Run, Wish
from computepool.core.placement.scorers import Candidate, to_speed
from computepool.core.placement.shape import Shape
from computepool.core.placement.slot import Slot
from computepool.core.placement.weights import WeightBook
from computepool.hub.config import HubSettings
from computepool.hub.services import attempts as attempt_service
from computepool.hub.services import nodes as node_service
from computepool.hub.services.callers import AccountCaller, NodeCaller
from computepool.hub.services.keyring import Keyring, ensure_keys, to_base64
from computepool.hub.services.leases import GRANTS_MAX, Granted, Leases
from computepool.hub.services.prices import PriceBook, load_rate_card
from computepool.hub.services.reports import Report, check_completions
from computepool.hub.services.submissions import Submission, Submissions, Submitted, check_submission
from computepool.hub.services.transitions import EndedAttempt
from computepool.hub.services.weights import load_weights
from computepool.hub.services.welcome import give_welcome
from computepool.hub.store import accounts as account_store
from computepool.hub.store import connect, ledger
from computepool.hub.store import hub as hub_store
from computepool.hub.store import nodes as node_store
from computepool.hub.store import shapes as shape_store
from computepool.hub.store import slices as slice_store
from computepool.hub.store.attempts import Grant
from computepool.hub.store.connect import Pool, create_pool
from computepool.hub.store.jobs import Job
from computepool.hub.store.ledger import OpenAccounts
from computepool.hub.store.nodes import OfferedSlot
from computepool.receipts import RECEIPT_TYPE
from computepool.wire import jobs as wire_jobs
from computepool.wire import nodes as wire_nodes
from computepool.wire.attempts import CompleteAnswer, CompleteOutcome, CompleteRequest, Completion
from tests.support.builders import GB
from tests.support.hub_process import PLENTY_MICROCREDITS
from tests.support.orphans import count_orphans

EXPECTED_SECONDS = 30.0

_numbers = itertools.count(1)


@dataclass(frozen=True)
class EnrolledNode:
    id: NodeId
    private: Ed25519PrivateKey = field(repr=False)
    caller: NodeCaller = field(repr=False)


class EvenShare:
    """Every account gets the same; what is left over goes to those who signed up first."""

    def plan(
        self, accounts: Collection[AccountId], count: int, caps: Mapping[AccountId, int]
    ) -> Mapping[AccountId, int]:
        each, rest = divmod(count, len(accounts))
        return {account: each + (number < rest) for number, account in enumerate(sorted(accounts))}


def expect_the_usual(_: AccountId) -> float:
    return EXPECTED_SECONDS


class Bench:
    """What dispatch would say to submits. Offers no slots unless a test puts some on it."""

    def __init__(self, book: WeightBook) -> None:
        self.fleet = Fleet({name: book.sets[name] for name in book.split.names_in_use})
        self.waiting: set[tuple[AccountId, ShapeId]] = set()
        self.taken: list[Candidate] = []
        self.given_back: list[Candidate] = []

    def put(self, candidates: Iterable[Candidate]) -> None:
        for candidate in candidates:
            self.fleet.add(candidate)

    def is_waiting(self, account_id: AccountId, shape_id: ShapeId) -> bool:
        return (account_id, shape_id) in self.waiting

    def count_shapes(self, account_id: AccountId) -> int:
        return len({shape_id for account, shape_id in self.waiting if account == account_id})

    def is_apart(self, account_id: AccountId) -> bool:
        return self.fleet.is_apart(account_id)

    def take_slot(self, shape: Shape, wish: Wish, account_id: AccountId) -> Candidate | None:
        found = self.fleet.best(
            shape,
            wish.prefer,
            account_id=account_id,
            weights=wish.weight_set,
            ceiling=shape.ceiling_microcredits_per_hour,
        )
        if found is not None:
            self.fleet.take(found.slot.node_id, found.slot.name)
            self.taken.append(found)
        return found

    def give_slot(self, candidate: Candidate) -> None:
        self.fleet.give(candidate.slot.node_id, candidate.slot.name)
        self.given_back.append(candidate)

    def expected_seconds(self, account_id: AccountId) -> float:
        return expect_the_usual(account_id)


@dataclass(frozen=True)
class Spine:
    pool: Pool
    settings: HubSettings
    keyring: Keyring
    book: WeightBook
    leases: Leases
    submissions: Submissions
    bench: Bench
    # Attempts that have left their slots, as the services told it.
    ended: list[EndedAttempt] = field(default_factory=list)
    # What it knows of the books, as every hub does.
    opened: OpenAccounts = field(default_factory=OpenAccounts)

    def open_second_hub(self) -> Spine:
        """Another hub on the same database: it shares nothing of what this one remembers."""
        return _compose(self.pool, self.settings, self.keyring, self.book)

    async def sign_up(self, *, credits: int | None = None, **limits: int) -> AccountCaller:
        """With so many credits, or with plenty."""
        account_id = AccountId(entropy.new_id())
        values = {"queued_slices_max": 1_000_000, "stored_bytes_max": GB, "calls_per_minute_max": 60_000, **limits}
        async with self.pool.acquire() as conn, conn.transaction():
            await account_store.insert_account(
                conn,
                id=account_id,
                email=f"person{next(_numbers)}@example.org",
                name="person",
                password_hash=None,
                roles=DEFAULT_ROLES,
                **values,
            )
            if credits is None:
                await give_welcome(conn, self.settings, account_id)
        if credits:
            await self.top_up(account_id, credits * 1_000_000)
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
        return EnrolledNode(node_id, private, NodeCaller(node_id, owner.account_id))

    async def top_up(self, account_id: AccountId, microcredits: int) -> None:
        top_up = verbs.top_up(top_up_id=entropy.new_id(), account_id=account_id, amount=microcredits)
        async with self.pool.acquire() as conn, conn.transaction():
            assert await ledger.post(conn, [top_up]) == [Outcome.POSTED]

    async def submit(self, *, by: AccountCaller | None = None, key: str | None = None, **spec: Any) -> Job:
        [answer] = (await self.submit_all(self.submission(by or await self.sign_up(), key, **spec))).answers
        if isinstance(answer, ComputePoolError):
            raise answer
        return answer

    def submission(self, by: AccountCaller, key: str | None = None, **spec: Any) -> Submission:
        request = wire_jobs.JobSpec(**{"command": ("true",), **spec})
        return check_submission(by, request, self.leases.prices, idempotency_key=key)

    async def submit_all(self, *batch: Submission) -> Submitted:
        return await self.submissions.submit(batch, self.bench)

    async def list_slots(self, *nodes: EnrolledNode) -> list[Slot]:
        async with self.pool.acquire() as conn:
            return [each.slot for each in await node_store.list_candidates(conn, [node.id for node in nodes])]

    async def list_candidates(self, *nodes: EnrolledNode, busy: bool = False) -> list[Candidate]:
        """The free slots of these nodes; with `busy` those that are taken too."""
        async with self.pool.acquire() as conn:
            offered = await node_store.list_candidates(conn, [node.id for node in nodes])
        return [self.to_candidate(each) for each in offered if busy or not each.busy]

    def to_candidate(self, offered: OfferedSlot) -> Candidate:
        """As a hub's registry makes it, by the prices of this moment."""
        slot, speed = offered.slot, to_speed(offered.slot, offered.declared_tflops)
        asked = self.leases.prices.ask(slot, speed, offered.floor_microcredits_per_hour)
        return Candidate(
            slot,
            speed,
            asked.price,
            0.9,
            asked.base_price,
            offered.owner_id,
            asked.spot,
            asked.reference,
            offered.serving_since,
        )

    async def open_round(self, candidates: Iterable[Candidate], *, grants_max: int = GRANTS_MAX) -> Round:
        """Over these slots and all that is queued."""
        fleet = Fleet({name: self.book.sets[name] for name in self.book.split.names_in_use})
        for candidate in candidates:
            fleet.add(candidate)
        async with self.pool.acquire() as conn:
            found = await slice_store.list_runs(conn, limit=1_000)
            shapes = await shape_store.list_shapes(conn, {run.shape_id for run in found})
        return Round(fleet, shapes, group_runs(found), EvenShare(), grants_max=grants_max)

    async def grant_round(self, round_: Round, *, alone: bool = False) -> Granted:
        try:
            async with self.leases.open(alone=alone) as session:
                granted = await self.leases.grant_on(
                    session, round_, expected_seconds=expect_the_usual, fronts=Fronts() if alone else None
                )
        except BaseException:
            round_.undo()
            raise
        self.leases.let_go(granted.planned)
        return granted

    async def grant(self, *nodes: EnrolledNode, grants_max: int = GRANTS_MAX) -> list[Grant]:
        """Leases for every free slot of these nodes, as far as the queue reaches."""
        round_ = await self.open_round(await self.list_candidates(*nodes), grants_max=grants_max)
        return (await self.grant_round(round_)).grants

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
        request = CompleteRequest(**{**values, "receipt": ""})
        return CompleteRequest(**{"receipt": self.receipt(node, request), **values})

    def receipt(self, node: EnrolledNode, *completions: Completion, typ: str = RECEIPT_TYPE, **changes: Any) -> str:
        """One signed statement of all that succeeded in a call."""
        claims = {
            "iss": str(node.id),
            "aud": str(self.keyring.hub_id),
            "iat": int(time.time()),
            "results": {
                str(each.attempt_id): {
                    "result_sha256": each.result_sha256,
                    "run_seconds": each.usage.run_seconds,
                    "exit_code": each.exit_code,
                }
                for each in completions
                if each.cause is None
            },
            **changes,
        }
        return jwt.encode(claims, node.private, algorithm="EdDSA", headers={"typ": typ})

    async def finish(self, *reports: tuple[EnrolledNode, CompleteRequest]) -> list[CompleteAnswer | ComputePoolError]:
        """Checks each report as a call of its own, then judges the sound ones together, as the hub does."""
        checked: list[Report | ComputePoolError] = []
        for node, request in reports:
            try:
                checked += check_completions(self.keyring, node.caller, (request,), request.receipt)
            except ComputePoolError as refusal:
                checked.append(refusal)
        return await self._judge(checked)

    async def finish_call(
        self, node: EnrolledNode, completions: Sequence[Completion], *, receipt: str | None = None
    ) -> list[CompleteAnswer | ComputePoolError]:
        """One call with many ends, under one receipt."""
        receipt = self.receipt(node, *completions) if receipt is None else receipt
        return await self._judge(check_completions(self.keyring, node.caller, completions, receipt))

    async def _judge(self, checked: Sequence[Report | ComputePoolError]) -> list[CompleteAnswer | ComputePoolError]:
        sound = [item for item in checked if isinstance(item, Report)]
        judged = iter(
            await attempt_service.finish_attempts(self.pool, sound, on_end=self.ended.extend, opened=self.opened)
        )
        outcomes = [next(judged) if isinstance(item, Report) else item for item in checked]
        return [_to_answer(outcome) for outcome in outcomes]

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


def _to_answer(outcome: CompleteOutcome | ComputePoolError) -> CompleteAnswer | ComputePoolError:
    if isinstance(outcome, ComputePoolError):
        return outcome
    return CompleteAnswer(accepted=outcome.accepted, repeated=outcome.repeated)


def group_runs(found: Iterable[Run]) -> dict[ShapeId, dict[PriorityClass, set[AccountId]]]:
    runs: dict[ShapeId, dict[PriorityClass, set[AccountId]]] = {}
    for run in found:
        runs.setdefault(run.shape_id, {}).setdefault(run.priority_class, set()).add(run.account_id)
    return runs


def _compose(pool: Pool, settings: HubSettings, keyring: Keyring, book: WeightBook) -> Spine:
    prices = PriceBook(load_rate_card(), holdback_seconds=int(settings.holdback_seconds))
    leases = Leases(pool, keyring, settings, prices, weight_sets=book.split.names_in_use)
    submissions = Submissions(pool, leases, book.split, lease_seconds=settings.lease_seconds)
    return Spine(pool, settings, keyring, book, leases, submissions, Bench(book))


@contextlib.asynccontextmanager
async def open_spine(dsn: str, **settings: Any) -> AsyncIterator[Spine]:
    config = HubSettings(**{"demo": True, "welcome_microcredits": PLENTY_MICROCREDITS, **settings})
    # A busy test machine may hold a row for longer than a hub should.
    with patch.object(connect, "LOCK_MILLISECONDS", 20_000):
        pool = await create_pool(dsn, size_max=6)
    try:
        async with pool.acquire() as conn:
            facts = await hub_store.get_or_insert_facts(conn, hub_id=entropy.new_id(), blob_store_id=entropy.new_id())
        await ensure_keys(pool)
        keyring = Keyring(facts.hub_id)
        await keyring.refresh(pool)
        yield _compose(pool, config, keyring, load_weights())
        async with pool.acquire() as conn:
            assert await count_orphans(conn) == {}
    finally:
        await pool.close()

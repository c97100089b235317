"""Grants leases: takes the heads of the queue, lets core pair them with free slots, writes the attempts; and words
what the nodes are told."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import msgspec

from computepool import clock, entropy
from computepool.core.ids import AccountId, AttemptId, JobId, RunId
from computepool.core.jobs.lease import Attempt
from computepool.core.jobs.spec import CHECKPOINT_SECONDS, SCRIPT_FILE_NAME
from computepool.core.networks.run import seat_id
from computepool.core.placement.fronts import Fronts
from computepool.core.placement.price import SlicePrice
from computepool.core.placement.rounds import Head, Pair, Round, Run, Seen, Wish
from computepool.core.placement.scorers import Candidate
from computepool.hub.config import HubSettings
from computepool.hub.services.job_secrets import open_secrets, seal_secrets
from computepool.hub.services.keyring import JOB_TOKEN_TYPE, Keyring
from computepool.hub.services.prices import PriceBook
from computepool.hub.store import attempts as attempt_store
from computepool.hub.store import jobs as job_store
from computepool.hub.store import slices as slice_store
from computepool.hub.store.attempts import Grant
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.ids import new_id
from computepool.hub.store.pooler import is_transactional
from computepool.hub.store.slices import SliceKey
from computepool.wire.attempts import Assignment, HostOrder, NextAnswer, RunOrder
from computepool.wire.jobs import JobSpec

# Leases granted by one transaction at most.
GRANTS_MAX = 512
# Heads that a look brings beside those that are asked for, of each run.
HEADS_AHEAD = 16
# How often one round asks for further heads before it leaves the rest to the next.
LOOKS_MAX = 24
# Answers that are given at the same moment are signed together, up to so many orders: each then costs a small part
# of a signature, and carries about 200 bytes for each of the others.
ORDERS_PER_TOKEN = 16
# What recent jobs ask to run is kept up to this many bytes of it.
ORDERS_BYTES_MAX = 64_000_000

# How long a slice of an account is expected to run.
ExpectedSeconds = Callable[[AccountId], float]


class Order(NamedTuple):
    """What an assignment needs to know of a job; never changes."""

    account_id: AccountId
    spec: JobSpec
    wall_seconds: int
    wish: Wish
    size_bytes: int
    # Its slices are seats of this run.
    run_id: RunId | None = None
    # Where each slice has a fixed price.
    slice_price: SlicePrice | None = None
    # Its secrets: opened only for a node that is told to run it.
    sealed: bytes | None = None
    # The most that a slice can cost.
    reserve_microcredits: int = 0


@dataclass(frozen=True, slots=True)
class Granted:
    """What a round came to: leases that were written, and pairs whose slot or slice somebody else had."""

    grants: list[Grant]
    refused: list[Pair]
    # To be let go of after the commit.
    planned: Sequence[Grant] = ()


class _Words(NamedTuple):
    """One node's leases, and the order of each as it is sent."""

    leased: Sequence[Grant | Attempt]
    orders: Sequence[bytes]


class Session:
    """A connection to write leases on, whose transaction may still be beginning."""

    def __init__(self, conn: Connection, beginning: asyncio.Future[None] | None = None) -> None:
        self._conn = conn
        self._beginning = beginning

    async def ready(self) -> Connection:
        if self._beginning is not None:
            # Whoever is cancelled meanwhile has to roll it back, so it has to have begun.
            await asyncio.shield(self._beginning)
        return self._conn


class Leases:
    def __init__(
        self, pool: Pool, keyring: Keyring, settings: HubSettings, prices: PriceBook, *, weight_sets: Sequence[str]
    ) -> None:
        # For all that ends or begins attempts.
        self.pool = pool
        self.prices = prices
        self._keyring = keyring
        self._settings = settings
        self._weight_sets = weight_sets
        self._orders: OrderedDict[JobId, Order] = OrderedDict()
        self._orders_bytes = 0
        # Transactions under way that need the orders they have loaded.
        self._granting = 0
        # Slices that leases are being written for, with their runs.
        self._writing: dict[SliceKey, Run] = {}

    @property
    def lease_seconds(self) -> float:
        return self._settings.lease_seconds

    @property
    def audit_key(self) -> bytes:
        return self._keyring.audit_key

    @contextlib.asynccontextmanager
    async def open(self, *, alone: bool) -> AsyncIterator[Session]:
        """A connection to grant leases on: what was written is committed when the block ends.

        The heads are locked while they are paired, so that hubs do not all plan for the same ones. A hub that is
        `alone` saves itself the transaction: it writes by one statement, which is guarded anyway. Not behind a
        pooler, where a statement may have to wait for a server: whoever plans must have one, or planning could wait
        for those who wait for it.
        """
        async with self.pool.acquire() as conn:
            if alone and not is_transactional(conn):
                yield Session(conn)
                return
            transaction = conn.transaction()
            session = Session(conn, asyncio.ensure_future(transaction.start()))
            # On its way to the server, which begins while we plan.
            await asyncio.sleep(0)
            try:
                yield session
            except BaseException:
                await session.ready()
                await transaction.rollback()
                raise
            await session.ready()
            await transaction.commit()

    async def grant_on(
        self, session: Session, round_: Round, *, expected_seconds: ExpectedSeconds, fronts: Fronts | None
    ) -> Granted:
        """As part of a transaction that somebody else ends, or by one statement that is its own. Whoever ends it lets
        go of what was planned."""
        planned = await self.plan_on(session, round_, expected_seconds=expected_seconds, fronts=fronts)
        if not planned:
            return Granted([], [])
        try:
            inserted = await attempt_store.insert_leases(
                await session.ready(),
                planned,
                rate_card_version=self.prices.card.version,
                lease_seconds=self.lease_seconds,
            )
        except BaseException:
            self.let_go(planned)
            raise
        return sort_out(round_.pairs, planned, inserted)

    async def plan_on(
        self, session: Session, round_: Round, *, expected_seconds: ExpectedSeconds, fronts: Fronts | None
    ) -> list[Grant]:
        """Takes the heads of the queue that the round asks for, and lets it pair them: of a hub that is alone, those
        it remembers; otherwise they are locked. The leases that come of it are to be written next; after the commit
        they must be let go of, or nobody here looks at their slices again."""
        self.forget_oldest()
        self._granting += 1
        try:
            await self._look(session, round_, fronts)
            planned = [
                self.plan(
                    pair.head.job_id,
                    pair.head.run.account_id,
                    pair.candidate,
                    pair.ceiling,
                    slice_index=pair.head.slice_index,
                    number=pair.head.attempt_count + 1,
                    expected_seconds=expected_seconds,
                )
                for pair in round_.pairs
            ]
        finally:
            self._granting -= 1
        self._writing.update({(pair.head.job_id, pair.head.slice_index): pair.head.run for pair in round_.pairs})
        return planned

    def let_go(self, planned: Sequence[Grant]) -> None:
        for grant in planned:
            self._writing.pop((grant.job_id, grant.slice_index), None)

    async def _look(self, session: Session, round_: Round, fronts: Fronts | None) -> None:
        for _ in range(LOOKS_MAX):
            takes = round_.list_takes()
            if not takes:
                return
            if fronts is None:
                heads, now = await slice_store.take_heads(await session.ready(), takes, lock=True)
            else:
                heads, now = await self._recall_heads(session, takes, round_, fronts)
            job_ids = {head.job_id for head in heads}
            await self._load_orders(session, job_ids)
            round_.pair(takes, heads, {id: self.wish_of(id) for id in job_ids}, now=now or clock.now())

    async def _recall_heads(
        self, session: Session, takes: Mapping[Run, int], round_: Round, fronts: Fronts
    ) -> tuple[list[Head], datetime | None]:
        heads: list[Head] = []
        unknown: dict[Run, int] = {}
        for run, count in takes.items():
            recalled = fronts.recall(run, count)
            if recalled is None:
                unknown[run] = count
            else:
                heads += recalled
        if not unknown:
            return heads, None
        found, now = await self._find_heads(await session.ready(), unknown)
        round_.seen.update(found)
        return heads + [head for run, seen in found.items() for head in seen.heads[: takes[run]]], now

    async def _find_heads(
        self, conn: Connection, takes: Mapping[Run, int]
    ) -> tuple[dict[Run, Seen], datetime | None]:
        """And some behind those that are asked for. Without those that this hub is about to lease: without locks they
        are found queued until that is done."""
        # As of now: what is written while we look may be queued in the answer still.
        writing = dict(self._writing)
        in_front = Counter(writing.values())
        asked = {run: count + in_front[run] + HEADS_AHEAD for run, count in takes.items()}
        heads, now = await slice_store.take_heads(conn, asked, lock=False)
        counts = Counter(head.run for head in heads)
        free: dict[Run, list[Head]] = {run: [] for run in takes}
        for head in heads:
            if (head.job_id, head.slice_index) not in writing:
                free[head.run].append(head)
        return {run: Seen(found, whole=counts[run] < asked[run]) for run, found in free.items()}, now

    def plan(
        self,
        job_id: JobId,
        account_id: AccountId,
        candidate: Candidate,
        ceiling: int | None,
        *,
        slice_index: int,
        number: int,
        expected_seconds: ExpectedSeconds,
    ) -> Grant:
        """A lease of a job whose order is at hand, with the price that is agreed: by the hour, or for the slice."""
        order, slot = self._orders[job_id], candidate.slot
        rate = slice_price = None
        if order.slice_price is None:
            rate = self.prices.rate(candidate, ceiling, account_id)
        else:
            slice_price = self.prices.price_slice(candidate, order.slice_price, account_id)
        return Grant(
            AttemptId(new_id()),
            account_id,
            job_id,
            slice_index,
            number,
            slot.node_id,
            slot.name,
            # What the account is charged until it is known better.
            min(expected_seconds(account_id), order.wall_seconds),
            rate,
            self.prices.agree(candidate),
            slice_price,
            pooled=slot.welcome is not None,
        )

    # What nodes are told

    async def answer(self, leased: Sequence[Grant | Attempt]) -> NextAnswer:
        """What one node is told; the same again when an answer was lost on its way."""
        unknown = {lease.job_id for lease in leased if lease.job_id not in self._orders}
        if unknown:
            async with self.pool.acquire() as conn:
                await self._load_orders(Session(conn), unknown)
        return self.word([lease for lease in leased if lease.job_id in self._orders])

    def can_word(self, leased: Sequence[Grant | Attempt]) -> bool:
        """Whether nothing need be loaded for it."""
        return all(lease.job_id in self._orders for lease in leased)

    def word(self, leased: Sequence[Grant | Attempt]) -> NextAnswer:
        [answer] = self.word_all([leased])
        return answer

    def word_all(self, told: Sequence[Sequence[Grant | Attempt]]) -> list[NextAnswer]:
        """What several nodes are told at the same moment, each its own leases."""
        answers: list[NextAnswer] = []
        group: list[_Words] = []
        count = 0
        for leased in told:
            if group and count + len(leased) > ORDERS_PER_TOKEN:
                answers += self._to_answers(group)
                group, count = [], 0
            group.append(_Words(leased, [self._to_order(lease) for lease in leased]))
            count += len(leased)
        return answers + self._to_answers(group)

    def _to_answers(self, group: Sequence[_Words]) -> list[NextAnswer]:
        token = self._sign([words for words in group if words.leased])
        return [
            NextAnswer(
                assignments=[
                    Assignment(
                        attempt_id=lease.id,
                        slot=lease.slot,
                        lease_secret=self._keyring.lease_secret(lease.id),
                        lease_seconds=self.lease_seconds,
                        order=order.decode(),
                    )
                    for lease, order in zip(words.leased, words.orders, strict=True)
                ],
                token=token if words.leased else "",
            )
            for words in group
        ]

    def _sign(self, group: Sequence[_Words]) -> str:
        """One token for all of these nodes: each finds itself in the audience, and its attempts among the orders."""
        if not group:
            return ""
        now = int(clock.unix_seconds())
        nodes = [str(words.leased[0].node_id) for words in group]
        claims = {
            "iss": str(self._keyring.hub_id),
            "aud": nodes if len(nodes) > 1 else nodes[0],
            "jti": entropy.new_nonce(),
            "iat": now,
            "exp": now + self._settings.job_token_seconds,
            "orders": {
                str(lease.id): hashlib.sha256(order).hexdigest()
                for words in group
                for lease, order in zip(words.leased, words.orders, strict=True)
            },
        }
        return self._keyring.sign(claims, typ=JOB_TOKEN_TYPE)

    def _to_order(self, lease: Grant | Attempt) -> bytes:
        return msgspec.json.encode(self._to_run_order(lease, self._orders[lease.job_id]))

    def _to_run_order(self, lease: Grant | Attempt, order: Order) -> RunOrder:
        spec = order.spec
        need = spec.requirements
        return RunOrder(
            attempt_id=lease.id,
            node_id=lease.node_id,
            job_id=lease.job_id,
            slice_index=lease.slice_index,
            # As it was submitted: a slice that is run once more is one of as many.
            slice_count=spec.slice_count,
            attempt_number=lease.number,
            slot=lease.slot,
            command=spec.command or ("python3", SCRIPT_FILE_NAME),
            script=spec.script,
            files=spec.files,
            env=spec.env,
            vram_bytes=need.vram_bytes,
            cores=need.cores,
            ram_bytes=need.ram_bytes,
            disk_bytes=need.disk_bytes,
            wall_seconds=order.wall_seconds,
            log_bytes=self._settings.log_bytes_max,
            isolation=need.isolation,
            image=spec.image or msgspec.UNSET,
            packages=spec.packages or msgspec.UNSET,
            egress=spec.egress or msgspec.UNSET,
            host=self._to_host_order(order.run_id, lease.slice_index) if order.run_id else msgspec.UNSET,
            checkpoint_seconds=(
                msgspec.UNSET if spec.checkpoint_seconds == CHECKPOINT_SECONDS else spec.checkpoint_seconds
            ),
            secrets=open_secrets(self._keyring, lease.job_id, order.sealed) if order.sealed else msgspec.UNSET,
        )

    def _to_host_order(self, run_id: RunId, slice_index: int) -> HostOrder:
        return HostOrder(
            run_id=run_id,
            seat=seat_id(slice_index),
            rpc_address=self._settings.rpc_address,
            tls=bool(self._settings.rpc_tls_certificate_file),
        )

    def seal(self, job_id: JobId, secrets: Mapping[str, str]) -> bytes | None:
        """For a job on its way in; the node that is given a lease of it is told them again."""
        return seal_secrets(self._keyring, job_id, secrets)

    # What is remembered of jobs

    def find_order(self, job_id: JobId) -> Order | None:
        return self._orders.get(job_id)

    def remember(self, job_id: JobId, order: Order) -> None:
        """Saves loading it when its first slice is granted, which is often at once."""
        # Nodes that ask at the same moment load the same job twice.
        earlier = self._orders.get(job_id)
        self._orders_bytes += order.size_bytes - (earlier.size_bytes if earlier is not None else 0)
        self._orders[job_id] = order

    def forget_oldest(self) -> None:
        """Between transactions, never within one: what it has loaded must stay at hand."""
        while self._orders_bytes > ORDERS_BYTES_MAX and not self._granting:
            _, oldest = self._orders.popitem(last=False)
            self._orders_bytes -= oldest.size_bytes

    async def _load_orders(self, session: Session, job_ids: Set[JobId]) -> None:
        """After this the orders of these jobs are at hand."""
        known = job_ids & self._orders.keys()
        for job_id in known:
            self._orders.move_to_end(job_id)
        unknown = job_ids - known
        if unknown:
            rows = await job_store.list_orders(await session.ready(), unknown)
            for job_id, row in rows.items():
                spec = msgspec.json.decode(row.spec, type=JobSpec)
                order = Order(
                    row.account_id,
                    spec,
                    row.wall_seconds,
                    Wish(row.prefer, row.weight_set),
                    size_order(len(row.spec)),
                    row.run_id,
                    row.slice_price,
                    row.sealed,
                    row.reserve_microcredits,
                )
                self.remember(job_id, order)

    def wish_of(self, job_id: JobId) -> Wish:
        """Of a job whose order is at hand."""
        wish = self._orders[job_id].wish
        # A set that the operator has taken away since the job was submitted.
        return wish if wish.weight_set in self._weight_sets else Wish(wish.prefer, self._weight_sets[0])


def sort_out(pairs: Sequence[Pair], planned: Sequence[Grant], inserted: Set[AttemptId]) -> Granted:
    grants = [grant for grant in planned if grant.id in inserted]
    refused = [pair for pair, grant in zip(pairs, planned, strict=True) if grant.id not in inserted]
    return Granted(grants, refused, planned)


def size_order(spec_length: int) -> int:
    """Roughly what an order takes in memory."""
    return 1_500 + 2 * spec_length

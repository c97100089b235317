"""Payments on a real database, with a real provider and the hub's hook on real sockets, and both books to look at."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from computepool import entropy
from computepool.core.accounts.roles import DEFAULT_ROLES, Role
from computepool.core.errors import ComputePoolError
from computepool.core.ids import AccountId, AttemptId, KeyId
from computepool.core.ledger.accounts import SHARDS, AccountKind, LedgerAccount
from computepool.core.payments.books import Difference
from computepool.core.payments.cash import CREDIT, CashTerms
from computepool.core.payments.payout import PayoutState
from computepool.core.payments.webhook import SIGNATURE_HEADER
from computepool.hub.http.errors import AWAY
from computepool.hub.payments.manual import MANUAL, ManualAdapter
from computepool.hub.payments.port import Provider, Providers
from computepool.hub.payments.webhook import WebhookAdapter
from computepool.hub.services import disputes, reconciliation, releases
from computepool.hub.services import payouts as payout_service
from computepool.hub.services import top_ups as top_up_service
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.provider_events import receive_event
from computepool.hub.store import ledger as ledger_store
from computepool.hub.store.connect import Pool, create_pool
from computepool.hub.store.payments import StoredPayout, StoredTopUp
from tests.support.earnings import insert_pay
from tests.support.payment_provider import SILENT, PaymentProvider
from tests.support.rows import insert_account

PAY = "pay"
TERMS = CashTerms(cool_off_seconds=0)
# A call to the provider is given up after this: where an answer is awaited, and where it is known to keep silent.
CALL_SECONDS = 10.0
CALL_SECONDS_SHORT = 1.0
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
FAR_AHEAD = datetime(2100, 1, 1, tzinfo=UTC)

_numbers = itertools.count(1)


@dataclass
class PaymentLab:
    pool: Pool
    provider: PaymentProvider
    adapter: WebhookAdapter
    providers: Providers
    # The same, with less patience.
    impatient: Providers
    operator: AccountCaller
    terms: CashTerms = TERMS
    # Of owners that were made, the attempts that they earned with.
    earnings: list[AttemptId] = field(default_factory=list)

    # People

    async def sign_up(self) -> AccountCaller:
        async with self.pool.acquire() as conn:
            return to_caller(await insert_account(conn))

    # Money in

    async def request_top_up(
        self,
        person: AccountCaller,
        credits: int = 1_000,
        *,
        key: str = "",
        adapter: Any = None,
        currency: str = "INR",
    ) -> StoredTopUp:
        return await top_up_service.request_top_up(
            self.pool,
            adapter or self.adapter,
            self.terms,
            person,
            amount_microcredits=credits * CREDIT,
            currency=currency,
            idempotency_key=key or f"key{next(_numbers)}",
        )

    async def top_up(self, person: AccountCaller, credits: int = 1_000) -> UUID:
        top_up = await self.request_top_up(person, credits)
        [(status, answer)] = await self.provider.tell(self.provider.pay(top_up.id))
        assert (status, answer["verdict"]) == (200, "applied")
        return top_up.id

    async def get_top_up(self, id: UUID) -> str:
        return str(await self.fetch_value("SELECT state::text FROM top_ups WHERE id = $1", id))

    # Money earned

    async def earn(self, owner: AccountCaller, submitter: AccountCaller, credits: int) -> AttemptId:
        """The owner's part of a job that cost this much, free to be cashed out."""
        async with self.pool.acquire() as conn:
            pay = await insert_pay(
                conn,
                owner_id=owner.account_id,
                submitter_id=submitter.account_id,
                prices=[credits * CREDIT],
            )
        while (await releases.release_due(self.pool, limit=100)).attempt_count:
            pass
        return pay.attempt_ids[0]

    async def make_owner(self, credits: int = 800) -> AccountCaller:
        """Somebody with this much to cash out, payout details, and somebody else's top-up behind it."""
        owner, submitter = await self.sign_up(), await self.sign_up()
        await self.top_up(submitter, credits * 5 // 4)
        self.earnings.append(await self.earn(owner, submitter, credits * 5 // 4))
        await self.set_details(owner)
        return owner

    async def reverse(self, attempt_id: AttemptId) -> None:
        """Late fraud: the pay is taken back from wherever it is."""
        await disputes.reverse_earning(self.pool, self.operator, attempt_id, reason="the result was made up")

    # Money out

    async def set_details(self, person: AccountCaller, destination: str = "bank 1", currency: str = "INR") -> None:
        await payout_service.set_payout_details(
            self.pool, person, region="IN", currency=currency, destination=destination
        )

    async def request_payout(
        self, person: AccountCaller, credits: int = 500, *, key: str = "", provider: str = PAY, currency: str = "INR"
    ) -> StoredPayout:
        return await payout_service.request_payout(
            self.pool,
            provider,
            self.terms,
            person,
            amount_microcredits=credits * CREDIT,
            currency=currency,
            idempotency_key=key or f"key{next(_numbers)}",
        )

    async def approve(self, person: AccountCaller, credits: int = 500, *, provider: str = PAY) -> UUID:
        payout = await self.request_payout(person, credits, provider=provider)
        await payout_service.approve_payout(self.pool, self.operator, payout.id)
        return payout.id

    async def send(self, person: AccountCaller, credits: int = 500) -> UUID:
        """Asked for, approved and handed to the provider in whatever mood it is."""
        id = await self.approve(person, credits)
        await self.send_all()
        return id

    async def send_all(self) -> int:
        is_silent = SILENT & set(self.provider.moods)
        return await payout_service.send_payouts(
            self.pool, self.impatient if is_silent else self.providers, limit=100
        )

    async def reconcile(self, *, not_found_seconds: float = 3_600.0) -> int:
        return await reconciliation.reconcile_payouts(
            self.pool, self.providers, limit=100, quiet_seconds=0, not_found_seconds=not_found_seconds
        )

    async def get_payout(self, id: UUID) -> PayoutState:
        return PayoutState(await self.fetch_value("SELECT state::text FROM payouts WHERE id = $1", id))

    # Books

    async def get_balance(self, kind: AccountKind, person: AccountCaller | None = None) -> int:
        """In microcredits; of the platform's own, all shards together."""
        async with self.pool.acquire() as conn:
            accounts = [LedgerAccount(kind, person.account_id)] if person else SHARDS[kind]
            return sum((await ledger_store.get_balances(conn, accounts)).values())

    async def list_differences(self) -> list[Difference]:
        """Between the provider's own books and ours."""
        return await reconciliation.compare_with_provider(
            self.pool, self.provider.movements, since=LONG_AGO, until=FAR_AHEAD
        )

    async def check_books(self) -> None:
        """Ours add up, and the provider's say the same."""
        async with self.pool.acquire() as conn:
            assert await ledger_store.list_drifts(conn) == []
        assert await self.list_differences() == []
        cash = sum(movement.minor for movement in self.provider.movements) * TERMS.microcredits_per_minor_unit
        assert await self.get_balance(AccountKind.WORLD) == -cash

    # Rows

    async def execute(self, query: str, *args: Any) -> None:
        async with self.pool.acquire() as conn:
            await conn.execute(query, *args)

    async def fetch(self, query: str, *args: Any) -> list[Any]:
        async with self.pool.acquire() as conn:
            return await conn.fetch(query, *args)

    async def fetch_value(self, query: str, *args: Any) -> Any:
        async with self.pool.acquire() as conn:
            return await conn.fetchval(query, *args)

    async def list_doubts(self) -> list[str]:
        """Of refused events, in the order they came."""
        rows = await self.fetch("SELECT doubt FROM provider_events WHERE verdict = 'refused' ORDER BY received_at")
        return [row["doubt"] for row in rows]

    async def let_time_pass(self, id: UUID, by: timedelta) -> None:
        """As if the payout had been sent that much earlier."""
        # The guard against a second sending is in the way of a test's clock, and of nothing else.
        await self.execute("ALTER TABLE payouts DISABLE TRIGGER payouts_refuse_change")
        await self.execute("UPDATE payouts SET sent_at = sent_at - $2::interval WHERE id = $1", id, by)
        await self.execute("ALTER TABLE payouts ENABLE TRIGGER payouts_refuse_change")


def to_caller(account_id: AccountId, roles: frozenset[Role] = DEFAULT_ROLES) -> AccountCaller:
    return AccountCaller(account_id, KeyId(entropy.new_id()), roles, 60_000)


@contextlib.asynccontextmanager
async def open_lab(dsn: str, provider: PaymentProvider) -> AsyncIterator[PaymentLab]:
    pool = await create_pool(dsn, size_max=10)
    adapter, impatient = [
        WebhookAdapter(PAY, provider.url, secrets=provider.secrets, call_seconds=seconds)
        for seconds in (CALL_SECONDS, CALL_SECONDS_SHORT)
    ]
    providers = Providers([Provider(adapter, provider.secrets), Provider(ManualAdapter("Pay to bank 1."))])
    async with pool.acquire() as conn:
        operator = to_caller(await insert_account(conn), frozenset(Role))
    try:
        async with serve_in_loop(_to_hook(pool, providers)) as url:
            provider.hook_url = f"{url}/hook"
            yield PaymentLab(pool, provider, adapter, providers, Providers([Provider(impatient)]), operator)
    finally:
        await adapter.close()
        await impatient.close()
        await pool.close()


def _to_hook(pool: Pool, providers: Providers) -> Starlette:
    """The route as a hub has it: raw body and header in, the verdict or the error's code out."""

    async def hear(request: Request) -> Response:
        body, header = await request.body(), request.headers.get(SIGNATURE_HEADER, "")
        now = datetime.now(UTC)
        try:
            heard = await receive_event(pool, providers.get(PAY), header=header, body=body, now=now)
        except ComputePoolError as error:
            return JSONResponse({"code": error.code, **error.details}, status_code=400)
        except AWAY:
            return JSONResponse({"code": "hub_unavailable"}, status_code=503)
        doubt = heard.doubt.value if heard.doubt else None
        return JSONResponse({"verdict": heard.verdict.value, "doubt": doubt, "repeated": heard.repeated})

    return Starlette(routes=[Route("/hook", hear, methods=["POST"])])


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the test run's own."""
        yield


@contextlib.asynccontextmanager
async def serve_in_loop(app: Starlette) -> AsyncIterator[str]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = _Server(uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    async with asyncio.timeout(60):
        while not server.started:
            await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


__all__ = ["MANUAL", "PAY", "TERMS", "PaymentLab", "open_lab"]

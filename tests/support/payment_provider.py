"""A payment provider in a thread of its own, behind a real socket, with books of its own.

It takes top-ups and payouts as docs/reference/payment-provider.md says. On command it refuses, keeps silent before or
after it has paid, answers nonsense, forgets idempotency keys, charges back, and tells it all: truly, twice, late, in
any order, with a lie in it, or signed by somebody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any
from uuid import UUID

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from computepool.core.payments.books import CashMovement
from computepool.core.payments.errors import SignatureRefused
from computepool.core.payments.webhook import SIGNATURE_HEADER, to_signature_header, verify

SECRET = b"what hub and provider share"
# Longer than any test's patience, shorter than for ever.
SILENCE_SECONDS = 30.0

_numbers = itertools.count(1)


class Mood(Enum):
    """What it does with the next payout that it is asked for."""

    HONEST = "honest"
    REFUSE = "refuse"
    # It never hears of the payout, and the caller never hears of it.
    SILENT_BEFORE = "silent_before"
    # It takes the payout, and the caller never hears of it.
    SILENT_AFTER = "silent_after"
    ERROR_BEFORE = "error_before"
    ERROR_AFTER = "error_after"
    NONSENSE_AFTER = "nonsense_after"
    # Says that somebody asked for it before, as some do for a key that is in use.
    CONFLICT_AFTER = "conflict_after"


SILENT = {Mood.SILENT_BEFORE, Mood.SILENT_AFTER}
TAKES_IT = {Mood.HONEST, Mood.SILENT_AFTER, Mood.ERROR_AFTER, Mood.NONSENSE_AFTER, Mood.CONFLICT_AFTER}


@dataclass
class Entry:
    """A top-up or a payout as the provider knows it."""

    subject_id: UUID
    currency: str
    amount_minor: int
    status: str
    reference: str
    destination: str = ""


@dataclass(frozen=True)
class Event:
    body: dict[str, Any]

    def lie(self, **changes: Any) -> Event:
        """The same event with something else in it."""
        return Event({**self.body, **changes})

    def under_new_id(self) -> Event:
        """The same fact, told as another event."""
        return self.lie(id=f"evt_{next(_numbers)}")


@dataclass
class PaymentProvider:
    secrets: tuple[bytes, ...] = (SECRET,)
    # Where events go.
    hook_url: str = ""
    moods: deque[Mood] = field(default_factory=deque)
    forgets_keys: bool = False
    # Answers no question about anything.
    is_mute: bool = False
    # Says this amount when it is asked, whatever is true.
    status_amount_minor: int | None = None
    entries: dict[UUID, Entry] = field(default_factory=dict)
    # Every movement of cash, in its own books.
    movements: list[CashMovement] = field(default_factory=list)
    # Orders of payouts as they came: (payout, idempotency key).
    orders: list[tuple[UUID, str]] = field(default_factory=list)
    url: str = ""
    _keys: dict[str, Entry] = field(default_factory=dict)
    _released: threading.Event = field(default_factory=threading.Event)

    # What a person, a bank or the provider's own people do

    def pay(self, top_up_id: UUID) -> Event:
        return self._move(top_up_id, "top_up", "paid", +1)

    def give_up(self, top_up_id: UUID) -> Event:
        return self._move(top_up_id, "top_up", "failed", 0)

    def refund(self, top_up_id: UUID) -> Event:
        return self._move(top_up_id, "top_up", "refunded", -1)

    def charge_back(self, top_up_id: UUID) -> Event:
        return self._move(top_up_id, "top_up", "charged_back", -1)

    def confirm(self, payout_id: UUID) -> Event:
        return self._move(payout_id, "payout", "confirmed", -1)

    def fail(self, payout_id: UUID) -> Event:
        return self._move(payout_id, "payout", "failed", 0)

    def send_back(self, payout_id: UUID) -> Event:
        return self._move(payout_id, "payout", "returned", +1)

    def forget(self, subject_id: UUID) -> None:
        """As if it had never heard of it."""
        del self.entries[subject_id]

    def release_calls(self) -> None:
        """Ends every silence."""
        self._released.set()

    # What it tells the hub

    async def tell(self, *events: Event, secrets: tuple[bytes, ...] = (), seconds_ago: int = 0) -> list[Any]:
        """One after the other. The hub's answers, as they came."""
        answers = []
        async with httpx.AsyncClient(timeout=20, trust_env=False) as http:
            for event in events:
                body = json.dumps(event.body).encode()
                answers.append(await self._post(http, body, secrets or self.secrets, seconds_ago))
        return [(answer.status_code, answer.json()) for answer in answers]

    async def tell_at_once(self, *events: Event) -> list[Any]:
        """All at the same time, each on a connection of its own."""
        return [answer for [answer] in await asyncio.gather(*(self.tell(event) for event in events))]

    async def tell_in_a_storm(self, events: list[Event], *, tries_max: int = 20) -> None:
        """All at the same time, again and again what the hub had no time for, as a provider does."""
        left = events
        for _ in range(tries_max):
            answers = await self.tell_at_once(*left)
            assert {status for status, _ in answers} <= {200, 503}
            left = [event for event, (status, _) in zip(left, answers, strict=True) if status == 503]
            if not left:
                return
        raise AssertionError(f"the hub never heard {len(left)} events")

    async def _post(
        self, http: httpx.AsyncClient, body: bytes, secrets: tuple[bytes, ...], seconds_ago: int
    ) -> httpx.Response:
        signed = to_signature_header(secrets, body=body, unix_seconds=int(time.time()) - seconds_ago)
        return await http.post(self.hook_url, content=body, headers={SIGNATURE_HEADER: signed})

    def _move(self, subject_id: UUID, noun: str, status: str, direction: int) -> Event:
        entry = self.entries[subject_id]
        entry.status = status
        if direction:
            self.movements.append(CashMovement(subject_id, entry.currency, direction * entry.amount_minor))
        return Event(
            {
                "id": f"evt_{next(_numbers)}",
                "kind": f"{noun}.{status}",
                "subject_id": str(subject_id),
                "currency": entry.currency,
                "amount_minor": entry.amount_minor,
                "reference": entry.reference,
            }
        )

    # What the hub asks of it

    async def take_top_up(self, request: Request) -> Response:
        order = await self._read(request)
        if order is None:
            return JSONResponse({"status": "unsigned"}, status_code=401)
        subject_id = UUID(order["id"])
        entry = self.entries.setdefault(
            subject_id, Entry(subject_id, order["currency"], order["amount_minor"], "opened", f"pay_{next(_numbers)}")
        )
        return JSONResponse({"reference": entry.reference, "pay_url": f"{self.url}/pay/{entry.reference}"}, 201)

    async def take_payout(self, request: Request) -> Response:
        order = await self._read(request)
        if order is None:
            return JSONResponse({"status": "unsigned"}, status_code=401)
        subject_id, key = UUID(order["id"]), request.headers["idempotency-key"]
        mood = self.moods.popleft() if self.moods else Mood.HONEST
        self.orders.append((subject_id, key))
        if mood in TAKES_IT:
            self._accept(subject_id, key, order)
        if mood in SILENT:
            await self._keep_silent()
        return self._answer(mood, subject_id)

    def _accept(self, subject_id: UUID, key: str, order: dict[str, Any]) -> None:
        known = self._keys.get(key)
        if known is not None and self.forgets_keys:
            # Once more for the same payout: a second transfer of cash, which only its own books know of.
            self.movements.append(CashMovement(subject_id, order["currency"], -order["amount_minor"]))
        if known is None:
            entry = Entry(subject_id, order["currency"], order["amount_minor"], "accepted", f"out_{next(_numbers)}")
            self._keys[key] = self.entries[subject_id] = replace(entry, destination=order["destination"])

    def _answer(self, mood: Mood, subject_id: UUID) -> Response:
        if mood is Mood.REFUSE:
            return JSONResponse({"status": "refused", "why": "no such account"}, status_code=422)
        if mood in (Mood.ERROR_BEFORE, Mood.ERROR_AFTER, Mood.SILENT_BEFORE, Mood.SILENT_AFTER):
            return PlainTextResponse("internal error", status_code=500)
        if mood is Mood.NONSENSE_AFTER:
            return PlainTextResponse("<html>Welcome to the captive portal</html>")
        if mood is Mood.CONFLICT_AFTER:
            return JSONResponse({"status": "refused", "why": "this key is in use"}, status_code=409)
        return JSONResponse({"status": "accepted", "reference": self.entries[subject_id].reference}, status_code=202)

    async def tell_status(self, request: Request) -> Response:
        if self.is_mute:
            return PlainTextResponse("internal error", status_code=500)
        if not self._is_signed(request, request.url.path.encode()):
            return JSONResponse({"status": "unsigned"}, status_code=401)
        entry = self.entries.get(request.path_params["id"])
        if entry is None:
            return JSONResponse({"status": "not_found"}, status_code=404)
        return JSONResponse(
            {
                "status": entry.status,
                "amount_minor": self.status_amount_minor or entry.amount_minor,
                "currency": entry.currency,
                "reference": entry.reference,
            }
        )

    async def _read(self, request: Request) -> dict[str, Any] | None:
        body = await request.body()
        return json.loads(body) if self._is_signed(request, body) else None

    def _is_signed(self, request: Request, body: bytes) -> bool:
        try:
            header = request.headers.get(SIGNATURE_HEADER, "")
            verify(header, body, secrets=self.secrets, now=datetime.now(UTC))
        except SignatureRefused:
            return False
        return True

    async def _keep_silent(self) -> None:
        deadline = time.monotonic() + SILENCE_SECONDS
        while not self._released.is_set() and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    def to_app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/top-ups", self.take_top_up, methods=["POST"]),
                Route("/payouts", self.take_payout, methods=["POST"]),
                Route("/top-ups/{id:uuid}", self.tell_status, methods=["GET"]),
                Route("/payouts/{id:uuid}", self.tell_status, methods=["GET"]),
            ]
        )


@contextlib.contextmanager
def run_provider() -> Iterator[PaymentProvider]:
    provider = PaymentProvider()
    with serve_in_thread(provider.to_app()) as url:
        provider.url = url
        yield provider
        provider.release_calls()


@contextlib.contextmanager
def serve_in_thread(app: Starlette) -> Iterator[str]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not server.started:
        assert time.monotonic() < deadline, "the provider does not start"
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        listener.close()

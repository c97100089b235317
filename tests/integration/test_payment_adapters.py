"""The caller's side of the provider protocol, over real sockets, against whatever may answer there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from uuid import UUID

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from computepool.core.errors import InvalidRequest, NotFound
from computepool.core.payments.errors import ProviderUnavailable, SignatureRefused
from computepool.core.payments.webhook import SIGNATURE_HEADER, verify
from computepool.hub.payments.manual import ManualAdapter
from computepool.hub.payments.port import CallOutcome, PayoutOrder, Provider, Providers, SubjectKind, TopUpOrder
from computepool.hub.payments.webhook import ANSWER_BYTES_MAX, WebhookAdapter
from tests.support.payment_lab import serve_in_loop
from tests.support.payment_provider import SECRET

ID = UUID(int=7)
PAYOUT = PayoutOrder(ID, "INR", 50_000, "bank 1")
TOP_UP = TopUpOrder(ID, "INR", 50_000)
Answer = Callable[[Request], Awaitable[Response]]


@asynccontextmanager
async def provider_that(answer: Answer) -> AsyncIterator[WebhookAdapter]:
    """Answers every call like this."""
    app = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])
    async with serve_in_loop(app) as url:
        # Only what drips needs to be given up on.
        adapter = WebhookAdapter("pay", url, secrets=(SECRET,), call_seconds=0.5 if answer is drip else 10.0)
        yield adapter
        await adapter.close()


def always(response: Response) -> Answer:
    async def answer(request: Request) -> Response:
        return response

    return answer


async def drip(request: Request) -> Response:
    """Each byte comes in time, and the whole never."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" "
            await asyncio.sleep(0.1)

    return StreamingResponse(pieces(), status_code=202)


ODD = {
    "an error": always(PlainTextResponse("no", status_code=500)),
    "a page": always(PlainTextResponse("<html>Sign in to the network</html>")),
    "a refusal by somebody in between": always(PlainTextResponse("forbidden", status_code=403)),
    "a conflict": always(JSONResponse({"status": "refused"}, status_code=409)),
    "too many calls": always(JSONResponse({"status": "refused"}, status_code=429)),
    "a refusal called success": always(JSONResponse({"status": "refused"})),
    "a success called refusal": always(JSONResponse({"status": "accepted"}, status_code=422)),
    "another place": always(RedirectResponse("/elsewhere", status_code=307)),
    "nothing": always(Response(status_code=204)),
    "too much": always(PlainTextResponse(b" " * (ANSWER_BYTES_MAX + 1), status_code=202)),
    "an odd reference": always(JSONResponse({"status": "accepted", "reference": "\0"}, status_code=202)),
    "a drip": drip,
}


@pytest.mark.parametrize("answer", ODD.values(), ids=ODD)
async def test_whatever_is_not_a_clear_answer_leaves_the_payout_unknown(answer):
    async with provider_that(answer) as adapter:
        assert (await adapter.request_payout(PAYOUT)).outcome is CallOutcome.UNKNOWN


@pytest.mark.parametrize("answer", ODD.values(), ids=ODD)
async def test_whatever_is_not_a_clear_answer_says_nothing_of_a_status_nor_opens_a_top_up(answer):
    async with provider_that(answer) as adapter:
        with pytest.raises(ProviderUnavailable):
            await adapter.get_status(SubjectKind.PAYOUT, ID)
        with pytest.raises(ProviderUnavailable):
            await adapter.create_top_up(TOP_UP)


async def test_a_connection_that_is_cut_leaves_the_payout_unknown():
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.close()

    server = await asyncio.start_server(cut, "127.0.0.1", 0)
    adapter = WebhookAdapter(
        "pay", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", secrets=(SECRET,), call_seconds=2
    )
    assert (await adapter.request_payout(PAYOUT)).outcome is CallOutcome.UNKNOWN
    await adapter.close()
    server.close()


async def test_where_nobody_listens_nothing_was_sent():
    adapter = WebhookAdapter("pay", "http://127.0.0.1:9", secrets=(SECRET,), call_seconds=2)
    assert (await adapter.request_payout(PAYOUT)).outcome is CallOutcome.NOT_SENT
    await adapter.close()


async def test_a_clear_answer_is_understood():
    async with provider_that(always(JSONResponse({"status": "accepted", "reference": "r 1"}, 202))) as adapter:
        answer = await adapter.request_payout(PAYOUT)
        assert (answer.outcome, answer.reference) == (CallOutcome.ACCEPTED, "r 1")
    async with provider_that(always(JSONResponse({"status": "refused", "why": "no\0 such"}, 422))) as adapter:
        answer = await adapter.request_payout(PAYOUT)
        assert (answer.outcome, answer.why) == (CallOutcome.REFUSED, "no such")
    async with provider_that(always(JSONResponse({"status": "not_found"}, 404))) as adapter:
        assert await adapter.get_status(SubjectKind.PAYOUT, ID) is None
    known = {"status": "confirmed", "amount_minor": 5, "currency": "INR", "reference": "r"}
    async with provider_that(always(JSONResponse(known))) as adapter:
        claim = await adapter.get_status(SubjectKind.PAYOUT, ID)
        assert (claim.kind, claim.subject_id, claim.amount_minor) == ("payout.confirmed", ID, 5)


@pytest.mark.parametrize("amount", [0, -1, 5.5, "5", 10**16])
async def test_a_status_with_an_amount_that_is_none_says_nothing(amount):
    known = {"status": "confirmed", "amount_minor": amount, "currency": "INR"}
    async with provider_that(always(JSONResponse(known))) as adapter:
        with pytest.raises(ProviderUnavailable):
            await adapter.get_status(SubjectKind.PAYOUT, ID)


async def test_every_call_is_signed_and_an_order_carries_its_key():
    heard: list[tuple[str, str | None]] = []

    async def listen(request: Request) -> Response:
        body = await request.body() or request.url.path.encode()
        now, header = datetime.now(UTC), request.headers[SIGNATURE_HEADER]
        verify(header, body, secrets=(SECRET,), now=now)
        with pytest.raises(SignatureRefused):
            verify(header, body + b" ", secrets=(SECRET,), now=now)
        heard.append((request.url.path, request.headers.get("idempotency-key")))
        return JSONResponse({"status": "accepted", "reference": "r", "amount_minor": 1, "currency": "INR"})

    async with provider_that(listen) as adapter:
        await adapter.request_payout(PAYOUT)
        await adapter.create_top_up(TOP_UP)
        await adapter.get_status(SubjectKind.TOP_UP, ID)
    assert heard == [("/payouts", f"payout-{ID}"), ("/top-ups", f"top_up-{ID}"), (f"/top-ups/{ID}", None)]


@pytest.mark.parametrize(
    "url", ["http://pay.example.org", "ftp://127.0.0.1", "pay.example.org", "http://localhost.evil"]
)
def test_a_provider_is_called_by_https_unless_it_is_this_machine(url):
    with pytest.raises(InvalidRequest, match="https"):
        WebhookAdapter("pay", url, secrets=(SECRET,))


@pytest.mark.parametrize("secrets", [(), (b"",), (b"short",)])
def test_a_provider_needs_a_secret_that_cannot_be_guessed(secrets):
    with pytest.raises(InvalidRequest):
        WebhookAdapter("pay", "https://pay.example.org", secrets=secrets)


async def test_providers_are_found_by_name_and_the_first_is_the_default():
    manual = Provider(ManualAdapter("Pay to bank 1."))
    providers = Providers([manual])
    assert (providers.default, providers.get("manual"), providers.names) == (manual, manual, ["manual"])
    with pytest.raises(NotFound):
        providers.get("pay")
    with pytest.raises(NotFound):
        _ = Providers([]).default
    assert SECRET.decode() not in repr(Provider(manual.adapter, (SECRET,)))
    assert (await manual.adapter.request_payout(PAYOUT)).outcome is CallOutcome.ACCEPTED
    assert await manual.adapter.get_status(SubjectKind.PAYOUT, ID) is None

"""A provider that is called over HTTP and calls back. Speaks the protocol of docs/reference/payment-provider.md.

Every request is signed with its time, so that the provider refuses one that arrives long after it was sent. A payout
is asked for once. Whatever is not the provider's own clear answer to it counts as unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

import httpx
import msgspec

from computepool import clock
from computepool.core.errors import InvalidRequest
from computepool.core.payments.claim import Claim
from computepool.core.payments.errors import ProviderUnavailable
from computepool.core.payments.webhook import AMOUNT_MINOR_MAX, SIGNATURE_HEADER, check_secrets, to_signature_header
from computepool.hub.payments.port import CallOutcome, PayoutAnswer, PayoutOrder, SubjectKind, TopUpOpened, TopUpOrder

CONNECT_SECONDS = 5.0
CALL_SECONDS = 20.0
ANSWER_BYTES_MAX = 65_536
CONNECTIONS_MAX = 8
_PATHS = {SubjectKind.TOP_UP: "/top-ups", SubjectKind.PAYOUT: "/payouts"}

Answer = TypeVar("Answer")
_Text = Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[\x20-\x7e]*\Z")]
_Name = Annotated[str, msgspec.Meta(max_length=30, pattern=r"^[A-Za-z_]+\Z")]


class _Opened(msgspec.Struct, frozen=True):
    reference: _Text
    pay_url: Annotated[str, msgspec.Meta(max_length=2_000, pattern=r"^(https?://[\x21-\x7e]+)?\Z")] = ""


class _Taken(msgspec.Struct, frozen=True):
    """Of a payout: `accepted`, or `refused` with a reason."""

    status: str
    reference: _Text = ""
    why: Annotated[str, msgspec.Meta(max_length=500)] = ""


class _Status(msgspec.Struct, frozen=True):
    status: _Name
    amount_minor: Annotated[int, msgspec.Meta(gt=0, le=AMOUNT_MINOR_MAX)]
    currency: _Name
    reference: _Text = ""


class _Unheard(msgspec.Struct, frozen=True):
    status: str


class WebhookAdapter:
    can_be_asked = True

    def __init__(
        self,
        name: str,
        base_url: str,
        *,
        secrets: Sequence[bytes],
        call_seconds: float = CALL_SECONDS,
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        _check_url(base_url)
        if not secrets:
            raise InvalidRequest(f"The payment provider {name!r} needs a secret to sign what is sent to it.")
        check_secrets(secrets)
        self.name = name
        self._secrets = tuple(secrets)
        # The whole call, however slowly the answer drips.
        self._call_seconds = call_seconds
        self._http = httpx.AsyncClient(
            base_url=base_url.rstrip("/"),
            timeout=httpx.Timeout(call_seconds, connect=connect_seconds),
            # A connection for every call: what is written to one that was kept, and is dead, would be unknown.
            limits=httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=0),
            # A signed order goes where the operator said, and nowhere else.
            follow_redirects=False,
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def create_top_up(self, order: TopUpOrder) -> TopUpOpened:
        try:
            status, content = await self._post(SubjectKind.TOP_UP, order.id, msgspec.to_builtins(order))
        except (httpx.HTTPError, TimeoutError, _AnswerTooLarge) as error:
            raise _unavailable(self.name, error) from error
        opened = _read(content, _Opened) if status in (200, 201) else None
        if opened is None:
            raise ProviderUnavailable(f"The payment provider {self.name} took no top-up: status {status}.")
        return TopUpOpened(opened.reference, opened.pay_url)

    async def request_payout(self, order: PayoutOrder) -> PayoutAnswer:
        try:
            status, content = await self._post(SubjectKind.PAYOUT, order.id, msgspec.to_builtins(order))
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            return PayoutAnswer(CallOutcome.NOT_SENT, why=_say(error))
        except (httpx.HTTPError, TimeoutError, _AnswerTooLarge) as error:
            return PayoutAnswer(CallOutcome.UNKNOWN, why=_say(error))
        taken = _read(content, _Taken)
        if taken is not None and status in (200, 201, 202) and taken.status == "accepted":
            return PayoutAnswer(CallOutcome.ACCEPTED, reference=taken.reference)
        if taken is not None and status == 422 and taken.status == "refused":
            return PayoutAnswer(CallOutcome.REFUSED, why=_to_plain(taken.why))
        return PayoutAnswer(CallOutcome.UNKNOWN, why=f"answered with status {status}")

    async def get_status(self, kind: SubjectKind, subject_id: UUID) -> Claim | None:
        try:
            status, content = await self._send("GET", f"{_PATHS[kind]}/{subject_id}", b"", {})
        except (httpx.HTTPError, TimeoutError, _AnswerTooLarge) as error:
            raise _unavailable(self.name, error) from error
        unheard = _read(content, _Unheard)
        if status == 404 and unheard is not None and unheard.status == "not_found":
            return None
        known = _read(content, _Status) if status == 200 else None
        if known is None:
            raise ProviderUnavailable(f"The payment provider {self.name} does not say: status {status}.")
        return Claim(
            kind=f"{kind.value}.{known.status}",
            subject_id=subject_id,
            currency=known.currency,
            amount_minor=known.amount_minor,
            reference=known.reference,
        )

    async def _post(self, kind: SubjectKind, subject_id: UUID, fields: Any) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json", "Idempotency-Key": f"{kind.value}-{subject_id}"}
        return await self._send("POST", _PATHS[kind], msgspec.json.encode(fields), headers)

    async def _send(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        request = self._http.build_request(method, path, content=body or None, headers=headers)
        # A question has no body to sign: its path stands in, or one signed question would answer for all.
        request.headers[SIGNATURE_HEADER] = to_signature_header(
            self._secrets, body=body or request.url.raw_path, unix_seconds=int(clock.unix_seconds())
        )
        async with asyncio.timeout(self._call_seconds):
            return await self._read_answer(request)

    async def _read_answer(self, request: httpx.Request) -> tuple[int, bytes]:
        response = await self._http.send(request, stream=True)
        try:
            content = b""
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > ANSWER_BYTES_MAX:
                    raise _AnswerTooLarge
            return response.status_code, content
        finally:
            await response.aclose()


class _AnswerTooLarge(Exception):
    pass


def _check_url(base_url: str) -> None:
    parts = urlsplit(base_url)
    is_local = parts.hostname in ("127.0.0.1", "::1", "localhost")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_local):
        raise InvalidRequest(f"A payment provider is called by https, and {base_url!r} is not.")


def _read(content: bytes, kind: type[Answer]) -> Answer | None:
    """None: something that is not the provider's word, such as the page of a proxy."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _to_plain(text: str) -> str:
    """Others read it, and a database keeps it: nothing that cannot be printed."""
    return "".join(letter for letter in text if letter.isprintable())


def _say(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def _unavailable(name: str, error: Exception) -> ProviderUnavailable:
    return ProviderUnavailable(f"The payment provider {name} does not answer ({_say(error)}). Try again later.")

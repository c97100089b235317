"""Every call to the hub, and the only place that knows its URLs. One method per row of the protocol page.

Turns what comes back into wire messages or the errors of core/errors.py. Refuses to repeat calls: who wants
an answer at any price asks patience.py. The one exception is a worn-out token, which is renewed on the way.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import httpx
import msgspec

from computepool import clock
from computepool.core.errors import (
    ComputePoolError,
    HubUnavailable,
    InvalidRequest,
    NotFound,
    Unauthenticated,
    leaves,
)
from computepool.node import journal, tokens
from computepool.node.identity import Identity
from computepool.wire.accounts import HubView
from computepool.wire.artifacts import Upload
from computepool.wire.attempts import (
    Checkpoint,
    CheckpointAnswer,
    CompleteAnswer,
    CompleteBatch,
    CompleteBatchAnswer,
    CompleteRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    KeptCheckpoint,
    LogAnswer,
    NextAnswer,
    NextRequest,
)
from computepool.wire.challenges import (
    AskChallenge,
    ChallengeAnswer,
    Commit,
    CommitAnswer,
    OpenAnswer,
    OpenChallenge,
    OpenedSegment,
)
from computepool.wire.errors import ErrorBody
from computepool.wire.nodes import EnrolledNode, EnrolNode, NodeToken, RenewToken

Message = TypeVar("Message")
Body = bytes | Callable[[], AsyncIterator[bytes]]

CALL_SECONDS = 30.0
CONNECT_SECONDS = 10.0
# A held call may take as long as was asked for, and a little more for a busy hub.
HELD_CALL_SLACK_SECONDS = 10.0
# Smaller files are sent again as a whole rather than asked about.
RESUMED_BYTES_MIN = 4_000_000
RENEW_AT_SHARE = 0.75
# Beyond this, tokens would be judged by a clock that is simply wrong.
CLOCK_SKEW_SECONDS_MAX = float(tokens.CLOCK_LEEWAY_SECONDS)


@dataclass(frozen=True, slots=True)
class NextReply:
    """An empty `answer` stands for 204. `poll_seconds` is the hub's word on when to call again, if it gave one."""

    answer: NextAnswer
    poll_seconds: float | None


class HubClient:
    def __init__(
        self,
        hub_url: str,
        *,
        agent_version: str,
        ca_file: str = "",
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = httpx.AsyncClient(
            base_url=hub_url.rstrip("/"),
            verify=make_trust(ca_file),
            headers={"User-Agent": f"computepool-node/{agent_version}"},
            timeout=httpx.Timeout(CALL_SECONDS, connect=CONNECT_SECONDS),
            # Every attempt may be sending something; none may wait for another's connection.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=8),
            transport=transport,
        )
        self._identity: Identity | None = None
        # What this node's owner allows jobs; told with every renewal of the token.
        self._allows: tuple[str, ...] | None = None
        self._token = ""
        self._token_renew_at = 0.0
        self._renewing = asyncio.Lock()
        # When the hub last answered with success; the heartbeat looks at it.
        self.heard_at = clock.seconds()
        # Hub's clock minus ours, from the Date header.
        self.clock_skew_seconds = 0.0
        # Whether a key that this node has pinned vouches for the keys that the hub signs with now.
        self.has_trusted_keys = True

    @property
    def has_trusted_clock(self) -> bool:
        return abs(self.clock_skew_seconds) <= CLOCK_SKEW_SECONDS_MAX

    @property
    def doubt(self) -> str | None:
        """Why every job would be taken only to be refused, if so: its token could not be believed."""
        if not self.has_trusted_clock:
            return f"This clock differs from the hub's by {self.clock_skew_seconds:.0f} s. Set it right."
        if not self.has_trusted_keys:
            return (
                "The hub's keys changed while this node was away. Start it once with the owner's key to trust them."
            )
        return None

    async def close(self) -> None:
        await self._http.aclose()

    def sign_in_as(self, identity: Identity, *, allows: tuple[str, ...] | None = None) -> None:
        """From here on, calls are made in this node's name."""
        self._identity = identity
        self._allows = allows

    async def get_ready(self) -> None:
        """Renews the token if it is due."""
        await self._get_token()

    async def get_hub(self) -> HubView:
        response = await self._send("GET", "/v1/hub")
        return self._read(response, HubView)

    async def enrol(self, request: EnrolNode, *, owner_key: str) -> EnrolledNode:
        headers = {"Authorization": f"Bearer {owner_key}"}
        response = await self._send("POST", "/v1/nodes", body=_encode(request), headers=headers)
        answer = self._read(response, EnrolledNode)
        self._keep_token(answer.token, answer.token_seconds)
        return answer

    async def ask_challenge(self, slot: str) -> ChallengeAnswer:
        response = await self._call("POST", "/v1/nodes/challenges", body=_encode(AskChallenge(slot=slot)))
        return self._read(response, ChallengeAnswer)

    async def commit_challenge(self, challenge_id: UUID, *, root: str) -> CommitAnswer:
        path = f"/v1/nodes/challenges/{challenge_id}/commit"
        return self._read(await self._call("POST", path, body=_encode(Commit(root=root))), CommitAnswer)

    async def open_challenge(
        self, challenge_id: UUID, segments: tuple[OpenedSegment, ...], words: tuple[int, ...]
    ) -> OpenAnswer:
        path = f"/v1/nodes/challenges/{challenge_id}/open"
        body = _encode(OpenChallenge(segments=segments, words=words))
        return self._read(await self._call("POST", path, body=body), OpenAnswer)

    async def next(self, request: NextRequest) -> NextReply:
        seconds = request.wait_seconds + HELD_CALL_SLACK_SECONDS
        response = await self._call("POST", "/v1/jobs/next", body=_encode(request), seconds=seconds)
        told = _to_seconds(response.headers.get("Poll-Seconds"))
        if response.status_code == 204:
            return NextReply(NextAnswer(), told)
        return NextReply(self._read(response, NextAnswer), told)

    async def heartbeat(self, request: HeartbeatRequest, *, seconds: float) -> HeartbeatAnswer:
        response = await self._call("POST", "/v1/nodes/heartbeat", body=_encode(request), seconds=seconds)
        return self._read(response, HeartbeatAnswer)

    async def complete(self, request: CompleteRequest) -> CompleteAnswer:
        response = await self._call("POST", "/v1/jobs/complete", body=_encode(request))
        return self._read(response, CompleteAnswer)

    async def complete_batch(self, request: CompleteBatch) -> CompleteBatchAnswer:
        response = await self._call("POST", "/v1/jobs/complete/batch", body=_encode(request))
        return self._read(response, CompleteBatchAnswer)

    async def send_log(self, attempt_id: UUID, lease_secret: str, *, offset: int, piece: bytes) -> LogAnswer:
        response = await self._call(
            "POST",
            f"/v1/attempts/{attempt_id}/logs?offset={offset}",
            body=piece,
            headers={"Lease-Secret": lease_secret, "Content-Type": "application/octet-stream"},
        )
        return self._read(response, LogAnswer)

    async def put_output(
        self,
        attempt_id: UUID,
        lease_secret: str,
        *,
        sha256: str,
        size_bytes: int,
        body: Callable[[], AsyncIterator[bytes]],
    ) -> None:
        """`body` is the whole file; what has arrived before the line broke is not sent again."""
        path = f"/v1/attempts/{attempt_id}/outputs/{sha256}"
        arrived = await self._count_arrived(path, lease_secret) if size_bytes >= RESUMED_BYTES_MIN else 0
        if arrived > size_bytes:
            arrived = 0
        await self._call(
            "PUT",
            path,
            body=partial(_leave_out, body, arrived),
            headers={
                "Lease-Secret": lease_secret,
                "Content-Type": "application/octet-stream",
                "Content-Length": str(size_bytes - arrived),
                **({"Upload-Offset": str(arrived)} if arrived else {}),
            },
        )

    async def _count_arrived(self, path: str, lease_secret: str) -> int:
        try:
            response = await self._call("GET", path, headers={"Lease-Secret": lease_secret})
        except (NotFound, InvalidRequest):
            # A hub from before there was such a call: all of it is sent again.
            return 0
        return self._read(response, Upload).arrived_bytes

    async def save_checkpoint(self, attempt_id: UUID, lease_secret: str, checkpoint: Checkpoint) -> CheckpointAnswer:
        response = await self._call(
            "PUT",
            f"/v1/attempts/{attempt_id}/checkpoint",
            body=_encode(checkpoint),
            headers={"Lease-Secret": lease_secret},
        )
        return self._read(response, CheckpointAnswer)

    async def read_checkpoint(self, attempt_id: UUID, lease_secret: str) -> KeptCheckpoint:
        """What the attempt goes on from."""
        response = await self._call(
            "GET", f"/v1/attempts/{attempt_id}/checkpoint", headers={"Lease-Secret": lease_secret}
        )
        return self._read(response, KeptCheckpoint)

    @asynccontextmanager
    async def open_input(
        self, attempt_id: UUID, lease_secret: str, sha256: str
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The bytes of an input as they arrive. Whoever reads them checks the hash."""
        path = f"/v1/attempts/{attempt_id}/inputs/{sha256}"
        response = await self._call("GET", path, headers={"Lease-Secret": lease_secret}, stream=True)
        try:
            yield _pieces_of(response)
        finally:
            await response.aclose()

    async def _call(
        self, method: str, path: str, *, headers: dict[str, str] | None = None, **how: Any
    ) -> httpx.Response:
        """A call in the node's name. One refusal of the token is answered with a new token, the second is told."""
        for last_try in (False, True):
            token = await self._get_token()
            signed = {**(headers or {}), "Authorization": f"Bearer {token}"}
            try:
                response = await self._send(method, path, headers=signed, **how)
            except Unauthenticated:
                if last_try:
                    raise
                self._drop_token(token)
                continue
            self.heard_at = clock.seconds()
            return response
        raise AssertionError("unreachable")

    async def _get_token(self) -> str:
        async with self._renewing:
            if not self._token or clock.seconds() >= self._token_renew_at:
                await self._renew_token()
            return self._token

    async def _renew_token(self) -> None:
        if self._identity is None:
            raise Unauthenticated("This node has not enrolled yet.")
        identity = self._identity
        # The hub judges this one, so the hub's clock is the right one even where ours is wrong.
        now_seconds = clock.unix_seconds() + self.clock_skew_seconds
        assertion = tokens.make_assertion(
            identity.key, node_id=identity.node_id, hub_id=identity.hub_id, now_seconds=now_seconds
        )
        request = RenewToken(assertion=assertion, allows=self._allows)
        response = await self._send("POST", "/v1/nodes/token", body=_encode(request))
        answer = self._read(response, NodeToken)
        self._keep_token(answer.token, answer.token_seconds)
        self.has_trusted_keys = await asyncio.to_thread(
            identity.take_over_keys, answer.hub_keys_signed, now_seconds=now_seconds
        )

    def _keep_token(self, token: str, token_seconds: float) -> None:
        self._token = token
        self._token_renew_at = clock.seconds() + RENEW_AT_SHARE * token_seconds

    def _drop_token(self, refused: str) -> None:
        """Another call may have renewed it meanwhile; only the refused one is thrown away."""
        if self._token == refused:
            self._token = ""

    async def _send(
        self,
        method: str,
        path: str,
        *,
        body: Body | None = None,
        headers: dict[str, str] | None = None,
        seconds: float = CALL_SECONDS,
        stream: bool = False,
    ) -> httpx.Response:
        content = body() if callable(body) else body
        given = {"Content-Type": "application/json", **(headers or {})} if body is not None else headers
        timeout = httpx.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS))
        request = self._http.build_request(method, path, content=content, headers=given, timeout=timeout)
        began = clock.seconds()
        try:
            response = await self._http.send(request, stream=True)
            try:
                if not (stream and response.is_success):
                    await response.aread()
            except BaseException:
                await response.aclose()
                raise
        except (httpx.TransportError, httpx.DecodingError) as error:
            journal.debug("hub_call_failed", method=method, path=path, seconds=clock.seconds() - began)
            raise HubUnavailable(f"The hub cannot be reached: {_explain(error)}") from error
        journal.debug(
            "hub_call", method=method, path=path, status=response.status_code, seconds=clock.seconds() - began
        )
        self._compare_clocks(response)
        if not response.is_success:
            raise to_error(response.status_code, response.content, dict(response.headers))
        return response

    def _read(self, response: httpx.Response, kind: type[Message]) -> Message:
        try:
            return msgspec.json.decode(response.content, type=kind)
        except msgspec.DecodeError as error:
            # Most likely a captive portal or a proxy's page instead of the hub; it may pass.
            raise HubUnavailable(f"The answer is not the hub's: {error}") from None

    def _compare_clocks(self, response: httpx.Response) -> None:
        try:
            told = parsedate_to_datetime(response.headers["Date"]).timestamp()
        except (KeyError, ValueError, TypeError):
            return
        # The header has whole seconds; on average the moment lies in their middle.
        self.clock_skew_seconds = told + 0.5 - clock.unix_seconds()


def make_trust(ca_file: str) -> ssl.SSLContext | bool:
    """The authorities that everybody trusts, and the owner's own one."""
    if not ca_file:
        return True
    trust = httpx.create_ssl_context()
    trust.load_verify_locations(cafile=ca_file)
    return trust


def _explain(error: Exception) -> str:
    words = f"{type(error).__name__}: {error}"
    if "CERTIFICATE_VERIFY_FAILED" in words:
        words += ". If the hub's certificate is by an authority of your own, name it: COMPUTEPOOL_NODE_HUB_CA_FILE"
    return words


def to_error(status: int, content: bytes, headers: dict[str, str]) -> ComputePoolError:
    """The hub's error as the class that its code names. What no hub would say becomes "hub unavailable"."""
    details: dict[str, Any] = {"status": status}
    retry_after = _to_seconds({key.lower(): value for key, value in headers.items()}.get("retry-after"))
    if retry_after is not None:
        details["retry_after_seconds"] = retry_after
    try:
        body = msgspec.json.decode(content, type=ErrorBody)
    except msgspec.DecodeError:
        return HubUnavailable(f"Something that is not the hub answered with status {status}.", **details)
    return from_body(body, **details)


def from_body(body: ErrorBody, **details: Any) -> ComputePoolError:
    known = leaves().get(body.code)
    if known is None:
        known = HubUnavailable if body.retryable or details.get("status", 0) >= 500 else InvalidRequest
    return known(body.message, **{**body.details, **details})


def _encode(message: object) -> bytes:
    return msgspec.json.encode(message)


async def _leave_out(body: Callable[[], AsyncIterator[bytes]], size_bytes: int) -> AsyncIterator[bytes]:
    """The body without its first bytes."""
    async for piece in body():
        if size_bytes < len(piece):
            yield piece[size_bytes:]
        size_bytes = max(0, size_bytes - len(piece))


async def _pieces_of(response: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for piece in response.aiter_bytes():
            yield piece
    except (httpx.TransportError, httpx.DecodingError) as error:
        raise HubUnavailable(f"The hub went away during a download: {error}") from error


def _to_seconds(text: str | None) -> float | None:
    try:
        seconds = float(text) if text is not None else None
    except ValueError:
        return None
    # Nonsense (negative, infinite, not a number) counts as not said.
    return seconds if seconds is not None and 0 <= seconds < 86_400 else None

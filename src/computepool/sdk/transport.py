"""One HTTP exchange with the hub, repeated with patience where repeating is safe.

Turns the hub's refusals back into the classes of core.errors. Knows nothing of jobs or nodes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec

import computepool
from computepool import clock, entropy
from computepool.core.errors import (
    ComputePoolError,
    Conflict,
    Forbidden,
    HubUnavailable,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    Unauthenticated,
    leaves,
)
from computepool.core.jobs.polling import retry_seconds
from computepool.settings import InvalidSettings
from computepool.wire.errors import ErrorBody

if TYPE_CHECKING:
    import httpx


class Page(Protocol):
    """An answer that names where the next one begins, if there is one."""

    @property
    def cursor(self) -> str | None: ...


Reply = TypeVar("Reply")
Paged = TypeVar("Paged", bound=Page)
T = TypeVar("T")
Item = TypeVar("Item")

_CHUNK_BYTES = 256 * 1024
_CALLS_AT_ONCE = 8
_REPEATABLE_METHODS = frozenset({"GET", "HEAD", "PUT", "DELETE"})
_AWAY_STATUSES = frozenset({502, 503, 504})
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

# For answers whose code this client does not know yet, or that a proxy wrote.
_CLASS_OF_STATUS: Mapping[int, type[ComputePoolError]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    429: LimitExceeded,
}


class Transport:
    def __init__(
        self,
        *,
        hub_url: str,
        key: str | None,
        patience_seconds: float,
        on_trouble: Callable[[str], None] | None = None,
        http: httpx.Client | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.hub_url = hub_url
        self._headers = {"User-Agent": f"computepool/{computepool.__version__}"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._patience_seconds = patience_seconds
        self._on_trouble = on_trouble
        self._opened = http
        self._opening = threading.Lock()
        self.sleep = sleep

    def call(
        self,
        method: str,
        path: str,
        reply: type[Reply],
        *,
        body: object = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool | None = None,
    ) -> Reply:
        """`repeatable` says that doing it twice is the same as doing it once; the verb decides if not given."""
        raw = self._ask(method, path, body=body, params=params, headers=headers, repeatable=repeatable)
        return self._decode(raw, reply)

    def pages(self, path: str, reply: type[Paged], params: Mapping[str, Any]) -> Iterator[Paged]:
        """One after the other, each when it is asked for, until one names no next."""
        cursor: str | None = None
        while True:
            page = self.call("GET", path, reply, params={**params, "cursor": cursor})
            yield page
            cursor = page.cursor
            if cursor is None:
                return

    def tell(self, method: str, path: str, *, body: object = None) -> None:
        """A call that is answered with nothing but that it was done."""
        self._ask(method, path, body=body)

    def _ask(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool | None = None,
    ) -> bytes:
        try:
            content = None if body is None else msgspec.json.encode(body)
        except UnicodeEncodeError:
            # Python hides bytes that its locale does not know in texts that cannot be sent.
            raise InvalidRequest(
                "An argument holds bytes that are not UTF-8 text. Is the terminal's locale right?"
            ) from None
        extra = {"Content-Type": "application/json"} if content is not None else {}
        return self._patiently(
            lambda: self._exchange(
                method, path, content=content, params=params, headers={**extra, **(headers or {})}
            ),
            repeatable=method in _REPEATABLE_METHODS if repeatable is None else repeatable,
        )

    def delete(self, path: str) -> None:
        self._patiently(lambda: self._exchange("DELETE", path), repeatable=True)

    def exists(self, path: str) -> bool:
        try:
            self._patiently(lambda: self._exchange("HEAD", path), repeatable=True)
        except NotFound:
            return False
        return True

    def upload(self, path: str, source: Path, reply: type[Reply]) -> Reply:
        """Each try reads the file from its start, so a broken one leaves nothing behind but itself."""

        def put() -> bytes:
            with source.open("rb") as file:
                size = {"Content-Length": str(source.stat().st_size)}
                return self._exchange("PUT", path, content=_pieces(file), headers=size)

        return self._decode(self._patiently(put, repeatable=True), reply)

    def download(self, path: str, sink: Callable[[Iterator[bytes]], T]) -> T:
        """Hand the bytes to `sink`, which must begin anew on every call."""

        def fetch() -> T:
            with self._http.stream("GET", self.hub_url + path, headers=self._headers) as response:
                if response.status_code != 200:
                    response.read()
                    self._raise_refusal(response)
                return sink(response.iter_bytes(_CHUNK_BYTES))

        return self._patiently(fetch, repeatable=True)

    def get_text(self, path: str, *, params: Mapping[str, Any], header: str) -> tuple[str, str | None]:
        """A page of text, and the header that says where the next one begins."""

        def fetch() -> tuple[str, str | None]:
            given = {name: value for name, value in params.items() if value is not None}
            response = self._http.request("GET", self.hub_url + path, params=given, headers=self._headers)
            if response.status_code != 200:
                self._raise_refusal(response)
            return response.text, response.headers.get(header)

        return self._patiently(fetch, repeatable=True)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    @property
    def _http(self) -> httpx.Client:
        with self._opening:
            if self._opened is None:
                self._opened = self._open()
        return self._opened

    def _open(self) -> httpx.Client:
        import httpx

        return httpx.Client(
            timeout=httpx.Timeout(30.0, connect=10.0),
            # A key must not follow a redirect to another host.
            follow_redirects=False,
            # No proxy stands between this machine and itself, whatever the environment says.
            trust_env=urlsplit(self.hub_url).hostname not in _LOOPBACK,
        )

    def _exchange(
        self,
        method: str,
        path: str,
        *,
        content: bytes | Iterator[bytes] | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        given = {name: value for name, value in (params or {}).items() if value is not None}
        response = self._http.request(
            method, self.hub_url + path, content=content, params=given, headers={**self._headers, **(headers or {})}
        )
        if not 200 <= response.status_code < 300:
            self._raise_refusal(response)
        return response.content

    def _patiently(self, act: Callable[[], T], *, repeatable: bool) -> T:
        """Do it again while the hub is away, at most for the patience given, and only where that is safe."""
        import httpx

        deadline = clock.seconds() + self._patience_seconds
        failure_count = 0
        while True:
            try:
                return act()
            except _Away as away:
                trouble = away
            except httpx.TransportError as error:
                trouble = self._to_away(error)
            failure_count += 1
            seconds = trouble.after_seconds or retry_seconds(failure_count, jitter=entropy.jitter())
            if not (repeatable or trouble.harmless) or clock.seconds() + seconds > deadline:
                raise trouble.error from None
            if self._on_trouble is not None:
                self._on_trouble(trouble.error.message)
            self.sleep(seconds)

    def _to_away(self, error: httpx.TransportError) -> _Away:
        import httpx

        if isinstance(error, httpx.UnsupportedProtocol):
            raise InvalidSettings(f"{self.hub_url} cannot be called: {error}") from None
        words = str(error) or type(error).__name__
        # Without a connection nothing was sent: even what must happen only once may be tried again.
        unsent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
        advice = " Is that the right address, and is the hub running?" if unsent else ""
        return _Away(HubUnavailable(f"The hub at {self.hub_url} does not answer: {words}.{advice}"), harmless=unsent)

    def _decode(self, raw: bytes, reply: type[Reply]) -> Reply:
        try:
            return msgspec.json.decode(raw, type=reply)
        except msgspec.DecodeError as error:
            raise ComputePoolError(f"The answer of {self.hub_url} makes no sense: {error}. Is it a hub?") from None

    def _raise_refusal(self, response: httpx.Response) -> NoReturn:
        if 300 <= response.status_code < 400:
            target = response.headers.get("Location", "elsewhere")
            raise InvalidSettings(f"{self.hub_url} redirects to {target}. Name that address as the hub's.")
        error = rebuild_error(response.status_code, response.content)
        after_seconds = _retry_after(response)
        if response.status_code in _AWAY_STATUSES:
            raise _Away(error, harmless=False, after_seconds=after_seconds)
        # A limit without a time to come back will not go away by asking again.
        if response.status_code == 429 and after_seconds is not None:
            raise _Away(error, harmless=True, after_seconds=after_seconds)
        raise error


def many_at_once(do: Callable[[Item], T], items: Sequence[Item]) -> list[T]:
    """Many small files cost a round trip each; a few of them at a time share the wait. Results are in order."""
    if len(items) < 2:
        return [do(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_CALLS_AT_ONCE) as pool:
        return list(pool.map(do, items))


class _Away(Exception):
    """The hub could not do it now. `harmless`: it is certain that nothing was done."""

    def __init__(self, error: ComputePoolError, *, harmless: bool, after_seconds: float | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.harmless = harmless
        self.after_seconds = after_seconds


def rebuild_error(status: int, content: bytes) -> ComputePoolError:
    """The class that the hub raised, found by its code; by the status where there is no code that we know."""
    try:
        body = msgspec.json.decode(content, type=ErrorBody)
    except msgspec.DecodeError:
        body = ErrorBody(code="", message=f"The hub answered with status {status}.")
    by_status = _CLASS_OF_STATUS.get(status, InvalidRequest if status < 500 else HubUnavailable)
    error = leaves().get(body.code, by_status)(body.message)
    error.details = dict(body.details)
    if body.code and body.code != error.code:
        error.details["code"] = body.code
    return error


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds only; the form with a date is not used by hubs, and a clock that is wrong would make it worse."""
    try:
        return max(0.1, float(response.headers["Retry-After"]))
    except (KeyError, ValueError):
        return None


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(_CHUNK_BYTES):
        yield piece

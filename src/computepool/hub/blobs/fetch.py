"""Fetches contents from https addresses, for people whose data lies elsewhere. Never from a private network.

Every address that a name stands for is looked at before any is dialled, and the one that was looked at is dialled:
a name that means something else a moment later leads nowhere else. Redirects are followed under the same rules.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urljoin, urlsplit

import httpx

from computepool.core.networks.errors import DataRefused
from computepool.hub.blobs.local import LocalBlobs

# From a name and a port to the addresses behind them.
Resolve = Callable[[str, int], Awaitable[list[str]]]

REDIRECTS_MAX = 3
ADDRESS_LENGTH_MAX = 2_000
FETCH_SECONDS = 600.0
CONNECT_SECONDS = 10.0
# Ranges that lead to others inside them: IPv4 carried in IPv6.
_CARRIERS = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::/96")))


def is_address(uri: str) -> bool:
    """Whether it has the form of an https address that names a host, and carries no credentials."""
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        return False
    plain = uri.isprintable() and " " not in uri and len(uri) <= ADDRESS_LENGTH_MAX
    return plain and parts.scheme == "https" and bool(parts.hostname) and parts.username is None and port != 0


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the internet, and to no network behind it."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        elif any(found in carrier for carrier in _CARRIERS):
            return False
    return found.is_global and not found.is_multicast and not found.is_reserved and not found.is_unspecified


async def resolve(host: str, port: int) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return sorted({str(each[4][0]) for each in found})


class Fetcher:
    """`transport` is for tests, which serve what others would."""

    def __init__(
        self, blobs: LocalBlobs, *, resolve: Resolve = resolve, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._blobs = blobs
        self._resolve = resolve
        self._transport = transport

    async def fetch(self, uri: str, sha256: str, *, size_bytes_max: int) -> int:
        """Its size, once it is stored under its hash. Raises DataRefused with what is wrong with the address."""
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                return await self._fetch(uri, sha256, size_bytes_max)
        except TimeoutError:
            raise DataRefused(f"{uri} took longer than {FETCH_SECONDS:.0f} s. Upload the file instead.") from None
        except httpx.HTTPError as error:
            raise DataRefused(f"{uri} cannot be read ({type(error).__name__}). Upload the file instead.") from None

    async def _fetch(self, uri: str, sha256: str, size_bytes_max: int) -> int:
        timeout = httpx.Timeout(30.0, connect=CONNECT_SECONDS)
        async with httpx.AsyncClient(
            transport=self._transport, timeout=timeout, trust_env=False, follow_redirects=False
        ) as client:
            for _ in range(REDIRECTS_MAX + 1):
                request = await self._build(client, uri)
                response = await client.send(request, stream=True)
                try:
                    if response.is_redirect:
                        uri = urljoin(uri, response.headers.get("location", ""))
                        continue
                    if response.status_code != 200:
                        raise DataRefused(f"{uri} answers with status {response.status_code}. Check the address.")
                    return await self._blobs.write(sha256, _read(response), size_bytes_max=size_bytes_max)
                finally:
                    await response.aclose()
        raise DataRefused(f"{uri} redirects more than {REDIRECTS_MAX} times. Give the address that it ends at.")

    async def _build(self, client: httpx.AsyncClient, uri: str) -> httpx.Request:
        """To the address that was looked at, in the name that was asked for."""
        if not is_address(uri):
            raise DataRefused(f"{uri[:200]!r} is no https address. Only https is fetched.")
        parts = urlsplit(uri)
        host, port = parts.hostname or "", parts.port or 443
        addresses = await self._resolve(host, port)
        if not addresses:
            raise DataRefused(f"The name {host} cannot be resolved. Check the address.")
        private = [address for address in addresses if not is_public(address)]
        if private:
            raise DataRefused(
                f"{host} leads to {private[0]}, which is in a private or special network. The hub fetches from the "
                "internet only; upload the file instead."
            )
        shown = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        named = host if parts.port is None else f"{host}:{port}"
        return client.build_request(
            "GET",
            f"https://{shown}:{port}{path}",
            headers={"Host": named, "Accept-Encoding": "identity"},
            extensions={"sni_hostname": host},
        )


async def _read(response: httpx.Response) -> AsyncIterator[bytes]:
    async for chunk in response.aiter_raw():
        yield chunk

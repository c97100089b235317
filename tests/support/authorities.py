"""The certificates of all authorities, read once for a test run.

Every call by `httpx.get`, and every client, reads some 140 of them: 25 ms of a core, also for a hub that speaks plain
HTTP. Tests make thousands of calls, and poll.
"""

from __future__ import annotations

import contextlib
import functools
import os
import ssl
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from httpx._transports import default

# Whoever names other authorities means those.
NAMED_BY = ("SSL_CERT_FILE", "SSL_CERT_DIR")


@contextlib.contextmanager
def read_authorities_once() -> Iterator[None]:
    read = default.create_ssl_context

    @functools.cache
    def remember(named: tuple[str | None, ...], verify: Any, cert: Any, trust_env: bool) -> ssl.SSLContext:
        return read(verify=verify, cert=cert, trust_env=trust_env)

    def look(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        return remember(tuple(map(os.environ.get, NAMED_BY)), verify, cert, trust_env)

    with patch.object(default, "create_ssl_context", look):
        yield

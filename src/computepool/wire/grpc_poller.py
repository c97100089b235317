"""The thread that polls for `grpc.aio`, kept for the life of the process."""

from __future__ import annotations

from functools import cache

import grpc


@cache
def keep_poller() -> None:
    """Call it before the first channel or server.

    Otherwise gRPC ends the thread whenever the last channel is collected, and waits for it in the middle of whatever
    the event loop is doing: seen to wait for ever (grpc issue 22365). The thread is a daemon, so nothing waits for it
    when the process ends.
    """
    grpc.aio.init_grpc_aio()

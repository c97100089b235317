"""A hub reduced to its embedded database, as a process that tests can kill. Standard library only.

It says `ready <dsn>` or `refused <reason>`, watches the server, and leaves when its input ends, so that a test
run that dies takes its hubs with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
from pathlib import Path
from typing import Any

from computepool.core.errors import StoreError
from computepool.hub.store.embedded import EmbeddedPostgres


def say(word: str, text: str = "") -> None:
    print(word, text, flush=True)


async def main(options: dict[str, str]) -> None:
    data_dir = Path(options["data_dir"]) if "data_dir" in options else None
    home: dict[str, Any] = {"binaries_home": Path(options["binaries_home"])} if "binaries_home" in options else {}
    server = EmbeddedPostgres(data_dir, start_timeout=30, **home)
    # No rounds at all means rounds without end.
    rounds = int(options["rounds"])
    for _ in range(rounds) if rounds else itertools.count():
        try:
            say("ready", await server.start())
        except StoreError as error:
            say("refused", error.message)
            return
        watching = asyncio.create_task(server.watch())
        # Only a hub that goes round by itself does not wait for its input.
        if rounds == 1:
            await asyncio.to_thread(sys.stdin.readline)
        await server.stop()
        say("stopped")
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


if __name__ == "__main__":
    # The real hub runs on uvloop where it is installed, and uvloop starts processes in its own way.
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(main(json.loads(sys.argv[1])))

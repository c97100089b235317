"""The owner's word to the agent on this machine, as a file beside it: heard within a second, without a hub.

A pause stays over restarts until it is taken back; a drain is heard once.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from computepool.node import files


class Wish(msgspec.Struct, frozen=True):
    pause: bool = False
    # Do not let running jobs finish.
    now: bool = False
    drain: bool = False


NO_WISH = Wish()


def find_wish(path: Path) -> Wish:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Wish)
    except (OSError, msgspec.DecodeError):
        return NO_WISH


def record_wish(path: Path, wish: Wish) -> None:
    if wish == NO_WISH:
        path.unlink(missing_ok=True)
    else:
        files.write_whole(path, msgspec.json.encode(wish))

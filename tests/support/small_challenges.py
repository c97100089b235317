"""A hub whose challenges are small enough for a processor that plays a card.

`fair`: a processor that is not slowed down counts as the card that it plays. `never_again`: nobody is asked again.
"""

from __future__ import annotations

import sys

from computepool.core.trust import challenge
from computepool.hub.main import main

# What a round shows that takes about three seconds with the way there and back.
FAIR_TFLOPS = 2.5e-5


def be_fair() -> None:
    challenge._least_tflops = lambda claim: FAIR_TFLOPS if claim.is_by_name else 0.0
    # Whatever else runs on this machine: a sleep of seconds is a slower card.
    challenge.BUSY_SPREAD_RATIO = 0.9
    # A story asks in a minute what a year does not.
    challenge.ISSUED_MAX = 10_000


def never_ask_again() -> None:
    """The sweeper runs, and finds nothing due."""
    from computepool.hub.store import sittings

    async def nothing(conn, **options):
        return []

    sittings.list_turns = nothing


if __name__ == "__main__":
    challenge._SIZES = ((0.0, 256),)
    if "fair" in sys.argv:
        be_fair()
    if "never_again" in sys.argv:
        never_ask_again()
    sys.exit(main())

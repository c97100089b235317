"""An agent that starts every attempt from its inputs alone, to show that the tests would notice. Never shipped."""

from __future__ import annotations

import sys
from typing import Any

from computepool.node.attempts import HeldAttempt
from computepool.node.main import main


async def forget(self: HeldAttempt, order: Any) -> tuple[()]:
    return ()


HeldAttempt._fetch_checkpoint = forget  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.exit(main())

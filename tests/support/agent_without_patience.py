"""An agent that tries no second time: the planted bug that the story of nodes behind NAT must catch."""

from __future__ import annotations

import sys

from computepool.node import patience
from computepool.node.main import main

A_DAY = 86_400.0


def wait_seconds(*_: object, **__: object) -> float:
    return A_DAY


patience.wait_seconds = wait_seconds
sys.exit(main())

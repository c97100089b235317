"""An agent whose watch hears nothing: the planted bug that the tests of a returning owner must catch."""

from __future__ import annotations

import sys

from computepool.node.comfort.watch import Watch
from computepool.node.main import main


async def look(self: Watch) -> None:
    return None


Watch.look = look  # type: ignore[method-assign]
sys.exit(main())

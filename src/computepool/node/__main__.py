"""`python -m computepool.node` starts the agent."""

from __future__ import annotations

import sys

from computepool.node.main import main

if __name__ == "__main__":
    sys.exit(main())

"""An agent that sends a file from its start whenever the line broke: the planted bug for the test of cut uploads."""

from __future__ import annotations

import sys

from computepool.node import hub_client
from computepool.node.main import main

hub_client.RESUMED_BYTES_MIN = 10**18
sys.exit(main())

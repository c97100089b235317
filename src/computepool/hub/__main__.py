"""`python -m computepool.hub`."""

import sys

from computepool.hub.main import main

sys.exit(main())

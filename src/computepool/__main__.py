"""`python -m computepool`: the command line."""

import sys

from computepool.cli.main import main

sys.exit(main())

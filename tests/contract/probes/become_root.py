"""Takes user id 0."""

import os

from probe import report, works

report(works(lambda: os.setresuid(0, 0, 0)) and os.geteuid() == 0)

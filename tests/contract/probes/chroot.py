"""Changes its root folder."""

import os

from probe import report, works

report(works(lambda: os.chroot("/usr")))

"""Kills every process it may. argv: the PID namespace of the machine, where this must never run.

The effect is looked at from outside: whether a bystander died.
"""

import contextlib
import os
import signal
import sys

if os.readlink("/proc/self/ns/pid") == sys.argv[1]:
    sys.exit("refused: this is the machine's own PID namespace")
with contextlib.suppress(ProcessLookupError):
    os.kill(-1, signal.SIGKILL)
print("SURVIVED", flush=True)

"""Types into a terminal as if a person did (TIOCSTI): at its own, and at any it has inherited."""

import fcntl
import os
import termios

from probe import report, works


def inject(fd: int) -> bool:
    return works(lambda: fcntl.ioctl(fd, termios.TIOCSTI, b"x"))


inherited = any(os.isatty(fd) and inject(fd) for fd in (0, 1, 2))
_, terminal = os.openpty()
if os.fork() == 0:
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    os._exit(0 if inject(terminal) else 1)
own = os.waitstatus_to_exitcode(os.wait()[1]) == 0
report(inherited or own)

"""Finds another user's process by its command line. argv: a word in that command line, in two halves."""

import os
import sys

from probe import report

word = (sys.argv[1] + sys.argv[2]).encode()


def cmdline(name: str) -> bytes:
    try:
        with open(f"/proc/{name}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


report(any(word in cmdline(name) for name in os.listdir("/proc") if name.isdigit()))

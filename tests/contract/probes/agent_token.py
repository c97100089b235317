"""Searches every environment it can read for the agent's token. argv: the token, in two halves."""

import os
import sys

from probe import report

token = (sys.argv[1] + sys.argv[2]).encode()


def environ(name: str) -> bytes:
    try:
        with open(f"/proc/{name}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b""


report(any(token in environ(name) for name in os.listdir("/proc") if name.isdigit()))

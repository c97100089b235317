"""Connects to an abstract unix socket, which has no file that could be hidden. argv: name."""

import socket
import sys

from probe import report, works

report(works(lambda: socket.socket(socket.AF_UNIX).connect("\0" + sys.argv[1])))

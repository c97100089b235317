"""Connects to a service of the machine that listens on loopback only. argv: port."""

import socket
import sys

from probe import report, works

report(works(lambda: socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=2)))

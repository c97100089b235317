"""Sends a packet to a service of the machine on loopback; arrival is looked at from outside. argv: port."""

import socket
import sys

from probe import works

works(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"out", ("127.0.0.1", int(sys.argv[1]))))

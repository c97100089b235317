"""Opens sockets that can forge and overhear packets."""

import socket

from probe import report, works

raw = works(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
packet = works(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
report(raw or packet)

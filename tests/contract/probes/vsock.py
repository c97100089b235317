"""Opens a socket to the hypervisor, which no network namespace covers."""

import socket

from probe import report, works

report(works(lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)))

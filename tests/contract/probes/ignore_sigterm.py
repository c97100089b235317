"""Loops for ever and does not listen."""

import signal

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print("LOOPING", flush=True)
while True:
    pass

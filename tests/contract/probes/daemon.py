"""Leaves a process behind that belongs to nobody. argv: a word for its command line, a file for its number."""

import os
import subprocess
import sys

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)", sys.argv[1]])
        with open(sys.argv[2] + ".new", "w") as file:
            file.write(str(child.pid))
        os.rename(sys.argv[2] + ".new", sys.argv[2])
        child.wait()
    os._exit(0)
os.wait()
while not os.path.exists(sys.argv[2]):
    pass
print("LEFT", flush=True)

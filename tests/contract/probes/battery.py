"""Runs many probes in one sandbox, each in a process of its own. argv: a file with [[id, script, arguments], ...].

Prints a line for each: its id, how it ended, and its last word.
"""

import json
import os
import runpy
import select
import signal
import sys
import time

SECONDS_MAX = 20.0


def run(script, arguments):
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_fd)
        os.dup2(write_fd, 1)
        os.close(write_fd)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        sys.argv = [script, *arguments]
        try:
            runpy.run_path(script, run_name="__main__")
        except BaseException as error:
            print(f"BROKE {error!r}", flush=True)
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.close(write_fd)
    said, deadline = b"", time.monotonic() + SECONDS_MAX
    while select.select([read_fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
        piece = os.read(read_fd, 65536)
        if not piece:
            break
        said += piece
    os.close(read_fd)
    if time.monotonic() >= deadline:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    lines = said.decode(errors="replace").strip().splitlines()
    return code, lines[-1] if lines else ""


sys.path.insert(0, os.getcwd())
with open(sys.argv[1]) as cases:
    for name, script, arguments in json.load(cases):
        code, last = run(script, arguments)
        print(json.dumps([name, code, last[:200]]), flush=True)
print(json.dumps(["done", 0, ""]), flush=True)

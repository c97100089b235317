"""`python -m computepool.node.runner STATE_DIR`: run the one attempt that stands in this directory."""

from __future__ import annotations

import os
import sys

from computepool.node.runner.supervisor import run_attempt


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m computepool.node.runner STATE_DIR", file=sys.stderr)
        return 2
    state_dir = os.path.abspath(arguments[0])
    os.umask(0o077)
    os.chdir("/")
    run_attempt(state_dir)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The books under a crowd: many clients on few accounts, nodes of several owners, hubs killed with -9.

Afterwards all is added up: no transfer lost or made twice, no credit out of nothing, nothing held for what is over,
and no two hubs that ever waited for each other in a circle.

    python -m soaks.ledger [--seconds N] [--clients N] [--accounts N] [--kill-every SECONDS]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from soaks.hubs import run_alone

NOTHING_WRONG = {
    "lost": 0,
    "double_results": 0,
    "deadlocks": 0,
    "ledger_sum": 0,
    "drifts": 0,
    "mispaid_jobs": 0,
    "double_payments": 0,
    "held_too_long": 0,
    "uncovered_jobs": 0,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--accounts", type=int, default=20)
    parser.add_argument("--kill-every", type=float, default=5.0)
    options = parser.parse_args()
    outcome = asyncio.run(run_alone(options, clients=options.clients, owners=4))
    print(json.dumps(outcome))
    sys.exit(0 if {key: outcome[key] for key in NOTHING_WRONG} == NOTHING_WRONG else 1)


if __name__ == "__main__":
    main()

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
from collections.abc import Mapping

from soaks.hubs import run_alone

NOTHING_WRONG = {
    "lost": 0,
    "unfinished": 0,
    "double_results": 0,
    "deadlocks": 0,
    "ledger_sum": 0,
    "drifts": 0,
    "mispaid_jobs": 0,
    "double_payments": 0,
    "held_too_long": 0,
    "uncovered_jobs": 0,
}
# Without as much of it nothing was shown. On a slow machine the load goes on until there are so many kills and jobs.
KILLS_MIN = 5
JOBS_MIN = 1_000
SETTLEMENTS_MIN = 1_000


def list_faults(outcome: Mapping[str, int]) -> list[str]:
    """What is wrong, or was not tried at all."""
    faults = [f"{key} is {outcome[key]}" for key, wanted in NOTHING_WRONG.items() if outcome[key] != wanted]
    least = {"hub_kills": KILLS_MIN, "acknowledged": JOBS_MIN, "settlements": SETTLEMENTS_MIN}
    return faults + [
        f"{key} is {outcome[key]}, below {count}" for key, count in least.items() if outcome[key] < count
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--accounts", type=int, default=20)
    parser.add_argument("--kill-every", type=float, default=5.0)
    options = parser.parse_args()
    outcome = asyncio.run(
        run_alone(options, clients=options.clients, owners=4, kills_min=KILLS_MIN, acknowledged_min=JOBS_MIN)
    )
    faults = list_faults(outcome)
    for fault in faults:
        print(fault, file=sys.stderr)
    print(json.dumps(outcome))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()

"""Trains one of the four networks over processes of this machine, and says whether the curve is that of one machine.

python examples/networks/train.py mlp|conv|residual|chars [--pnodes 3] [--steps 200]
"""

from __future__ import annotations

import argparse

from models import MAKERS

from computepool.networks import local
from computepool.networks.pictures import print_curve


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("network", choices=sorted(MAKERS))
    parser.add_argument("--pnodes", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    network, data = MAKERS[options.network]()
    with local(pnodes=options.pnodes) as grid:
        run = grid.start(network, data, options.steps)
        for event in run.watch():
            if event.kind != "step":
                print(f"step {event.step:4d}  {event.message}")
            elif event.step % 20 == 0:
                print(f"step {event.step:4d}  loss {event.loss:.4f}  {event.samples_per_second:,.0f} samples/s")
        print_curve(run.losses)
    same = run.losses == network.reference(data, options.steps).losses
    print("The curve is, bit for bit, that of one machine." if same else "The curve is NOT that of one machine.")
    raise SystemExit(0 if same else 1)


if __name__ == "__main__":
    main()

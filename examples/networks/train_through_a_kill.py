"""Trains a character model over three processes, kills one with -9 on the way, and draws what became of the curve.

python examples/networks/train_through_a_kill.py [--network chars] [--steps 200] [--out through-a-kill.svg]

A fourth process stands by and takes over from the last checkpoint. The curve of one machine is drawn beneath that of
the run; nothing of it can be seen, because both are the same, bit for bit. That is asserted, not only drawn.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from models import MAKERS

from computepool.networks import local
from computepool.networks.pictures import Mark, draw_curves, print_curve


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--network", choices=sorted(MAKERS), default="chars")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("through-a-kill.svg"))
    options = parser.parse_args()
    network, data = MAKERS[options.network]()
    # Between two checkpoints, so that steps are lost and done again.
    kill_at = options.steps // 2 + network.spec.checkpoint_every // 2 + 1
    told, killed = [], None
    with local(pnodes=4) as grid:
        run = grid.start(network, data, options.steps, seats=3)
        for event in run.watch():
            told.append(event)
            if event.kind != "step":
                print(f"step {event.step:4d}  {event.message}", flush=True)
            if killed is None and event.kind == "step" and event.step >= kill_at:
                killed = event
                number = run.find_pnode("seat-1")
                print(f"step {event.step:4d}  kill -9 of PNode {number} on seat-1, process {grid.get_pid(number)}")
                grid.kill(number)
        losses, weights = run.losses, run.state_dict()
    assert killed is not None
    print("The same on one machine ...", flush=True)
    alone = network.reference(data, options.steps)
    print_curve(losses)
    steps = [event for event in told if event.kind == "step"]
    back = next(event for event in told if event.kind == "recovery")
    again = next(event for event in steps if event.at > back.at)
    lost = max(event.step for event in steps if event.at < back.at) - back.step
    lines = (
        f"{again.at - killed.at:.1f} s later it goes on from step {back.step}",
        f"on a spare; {lost} steps are done again",
    )
    draw_curves(
        options.out,
        title=f"{network.spec.name}: three processes, one killed with -9",
        reference=alone.losses,
        run=losses,
        marks=[Mark(killed.step, f"kill -9 at step {killed.step}", lines)],
    )
    print(f"Killed at step {killed.step}; {' '.join(lines)}.")
    print(f"Both curves: {options.out}")
    assert losses == alone.losses, "the curves differ"
    assert weights.keys() == alone.state_dict.keys()
    assert all(weights[name].equal(tensor) for name, tensor in alone.state_dict.items()), "the weights differ"
    print(f"All {len(losses)} losses and all {len(weights)} tensors of weights are equal, bit for bit.")


if __name__ == "__main__":
    main()

"""Runs an agent whose hosts compute with a rule taken out, to show that the tests would notice. Never part of the
product.

Usage: python -m tests.support.planted_host agent BUG; it starts `... host BUG` in the place of the real host.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def unordered_sum() -> None:
    """Gradients of what several VNodes read are added in another order than one machine adds them."""
    from computepool.node.vnodes import exchange, segment_run

    in_order = segment_run.add_in_order
    exchange.add_in_order = segment_run.add_in_order = lambda parts: in_order(parts[::-1])


def unfenced() -> None:
    """Listens to whoever had a seat once, and takes what it sends for a word of today."""
    from computepool.node.vnodes.edges import Edges, _reader
    from computepool.node.vnodes.engine import Engine
    from computepool.node.vnodes.links import Link

    def welcome_anybody(self, raw, stream):
        hello = self._guard.read_hello(raw)
        peer = kept = self._peers[hello.seat]
        if kept.link is not None and kept.link.hello.epoch > hello.epoch:
            # Beside the one that has the seat now, and as good.
            peer = self._add_peer(hello.seat)
            self._peers[hello.seat] = kept
        return peer, Link(_reader(stream.read), stream.write, relayed=False, hello=hello)

    receive = Engine.receive

    def receive_anything(self, head, tensor):
        now = self._placement.incarnation_of(head.source, head.replica)
        return receive(self, head._replace(epoch=self._epoch, incarnation=now), tensor)

    Edges._welcome = welcome_anybody
    Engine.receive = receive_anything


def corrupt_outputs() -> None:
    """Every twentieth tensor that it computes for others is a little off; all that it tells fits that."""
    from computepool.node.vnodes import epoch_run

    right = epoch_run.EpochRun.compute
    count = 0

    def compute(self: Any, job: Any) -> Any:
        nonlocal count
        outcome = right(self, job)
        count += 1
        if count % 20 == 0:
            outcome.outputs = [output * 1.001 for output in outcome.outputs]
            outcome.gradients = [None if each is None else each * 1.001 for each in outcome.gradients]
        return outcome

    epoch_run.EpochRun.compute = compute  # type: ignore[method-assign]


def send_otherwise() -> None:
    """Some of the frames that leave are not those that it tells of."""
    from computepool.node.vnodes import host

    right = host.Host._send
    count = 0

    def send(self: Any, frame: Any) -> None:
        nonlocal count
        count += 1
        if count % 40 == 0 and frame.tensor.is_floating_point():
            frame = frame._replace(tensor=frame.tensor * 1.001)
        right(self, frame)

    host.Host._send = send  # type: ignore[method-assign]


BUGS = {
    "unordered_sum": unordered_sum,
    "unfenced": unfenced,
    "corrupt_outputs": corrupt_outputs,
    "send_otherwise": send_otherwise,
}


def run_agent(bug: str) -> int:
    from computepool.node import hosting
    from computepool.node.main import main

    hosting.PROGRAM = ("-m", "tests.support.planted_host", "host", bug)
    return main([])


def run_host(bug: str) -> int:
    BUGS[bug]()
    from computepool.node.vnodes.__main__ import main

    return main()


if __name__ == "__main__":
    role, bug = sys.argv[1:3]
    if role == "agent":
        sys.exit(run_agent(bug))
    code = run_host(bug)
    sys.stdout.flush()
    os._exit(code)

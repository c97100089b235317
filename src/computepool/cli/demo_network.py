"""The network of `computepool demo --chaos`: trained at the demo's hub, on nodes whose plugs are pulled meanwhile."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from computepool.core.errors import ComputePoolError, HubUnavailable
from computepool.core.networks.run import OVER, FeedKind, RunState
from computepool.sdk import Client

if TYPE_CHECKING:
    from computepool.networks import Dataset, Network
    from computepool.networks.remote import HubGrid, HubRun
    from computepool.networks.run import TrainEvent
    from computepool.wire.pb.computepool.v1 import networks_pb2 as pb

# At some dozens of steps a second it is still at it when several plugs have been pulled.
STEPS = 3_000
# Some seconds' worth: what a pulled plug costs is seen, and is little.
CHECKPOINT_EVERY = 100
# So few that others stand by, and the network goes on while a machine is away.
SEATS = 2
# Slow enough that the curve still falls when the first machine is lost.
_LEARNING_RATE = 0.005
_EXTRA = ("torch", "numpy", "safetensors", "yaml", "grpc")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to."""

    state: RunState
    message: str
    steps: int
    # Hosts that it has lost.
    failures: int
    last_loss: float | None
    # That of one process that trained the same network on the same samples, bit for bit.
    same_curve: bool


def list_missing() -> list[str]:
    """What the network needs and is not installed."""
    return [name for name in _EXTRA if importlib.util.find_spec(name) is None]


def describe_missing(missing: Sequence[str]) -> str:
    return (
        f"No network is trained: that needs {', '.join(missing)}. Install them: pip install 'computepool[networks]'. "
        "All else goes on."
    )


class DemoNetwork:
    """One run, from its start to what it came to. Hub and hosts are other processes: here it is only asked for."""

    def __init__(self, grid: HubGrid, network: Network, data: Dataset, run: HubRun, *, hub_url: str) -> None:
        self._grid = grid
        self._network = network
        self._data = data
        self._run = run
        self._seen: pb.Run | None = None
        # Plugs of its hosts that were pulled.
        self.pulled = 0
        self.page = f"{hub_url}/run/?id={run.id}"

    @classmethod
    def start(cls, client: Client, key: str, *, steps: int = STEPS) -> DemoNetwork:
        from computepool.networks import HubGrid, TrainOptions
        from computepool.networks.digits import draw_digits, make_digits

        network = make_digits(lr=_LEARNING_RATE, checkpoint_every=CHECKPOINT_EVERY)
        data = draw_digits()
        grid = HubGrid(client.hub_url, key)
        run = grid.start(network, data, steps, TrainOptions(seats=SEATS))
        return cls(grid, network, data, run, hub_url=client.hub_url)

    def look(self) -> None:
        """As it is now; as it was, if the hub is away."""
        with suppress(HubUnavailable):
            self._seen = self._run.look()

    @property
    def is_over(self) -> bool:
        return self._seen is not None and RunState(self._seen.state) in OVER

    @property
    def is_at_work(self) -> bool:
        return self._seen is not None and RunState(self._seen.state) is RunState.RUNNING

    @property
    def can_lose_a_host(self) -> bool:
        """It trains, and there is a checkpoint to go on from."""
        return self.is_at_work and self._seen is not None and self._seen.checkpoint_step > 0

    def describe(self) -> str:
        seen = self._seen
        return (
            "network not begun" if seen is None else f"network {seen.state} at step {seen.step:,} of {seen.steps:,}"
        )

    def stop(self) -> None:
        """It is not to go on by itself when the demo starts again in the same folder."""
        with suppress(ComputePoolError):
            if not self.is_over:
                self._run.stop()
        self._grid.close()

    def conclude(self) -> Outcome:
        """Of a run that is over. Trains the same in this process, so that the curves can be compared."""
        from computepool.networks.run import list_losses

        assert self._seen is not None
        events = self._run.list_events()
        losses = list_losses(events)
        return Outcome(
            state=RunState(self._seen.state),
            message=self._seen.message,
            steps=len(losses),
            failures=count_failures(events),
            last_loss=losses[-1] if losses else None,
            same_curve=losses == self._network.reference(self._data, len(losses)).losses,
        )


def count_failures(events: Sequence[TrainEvent]) -> int:
    """Hosts that were lost. Recoveries are more: a run also begins anew to give a machine its part back."""
    return sum(event.kind == FeedKind.FAILURE.value for event in events)


def describe_outcome(outcome: Outcome) -> str:
    words = "equals" if outcome.same_curve else "does NOT equal"
    loss = "" if outcome.last_loss is None else f", loss {outcome.last_loss:.4f}"
    survived = f"{outcome.failures} failure{'' if outcome.failures == 1 else 's'} survived"
    return (
        f"The network {outcome.state.value}: {outcome.steps:,} steps{loss}, {survived}; its curve {words} that of "
        "one process, bit for bit."
    )


def list_network_faults(outcome: Outcome, *, steps: int) -> list[str]:
    """What chaos promises of the network and did not keep."""
    faults = []
    if outcome.state is not RunState.SUCCEEDED:
        faults.append(f"the network {outcome.state.value}: {outcome.message or 'no words'}")
    if outcome.steps != steps:
        faults.append(f"the network's curve has {outcome.steps} steps of {steps}")
    if outcome.failures == 0:
        faults.append("the network lost no machine: nothing was shown")
    if not outcome.same_curve:
        faults.append("the network's curve is not that of one process")
    return faults

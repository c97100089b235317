"""A run as people hold it, wherever it takes place: watch it, wait for it, stop it, go on, take its weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from computepool.core.networks.run import OVER, RunState

if TYPE_CHECKING:
    from torch import Tensor

R = TypeVar("R", bound="Run")


@dataclass(frozen=True, slots=True)
class TrainEvent:
    id: int
    # step, checkpoint, placement, failure, recovery, state, audit
    kind: str
    epoch: int
    # Steps count from 1.
    step: int
    # Of a step, and only of one.
    loss: float | None
    samples_per_second: float
    message: str
    # Unix seconds.
    at: float


class Run(ABC):
    id: str

    @property
    @abstractmethod
    def state(self) -> RunState: ...

    @abstractmethod
    def watch(self, after: int = 0) -> Iterator[TrainEvent]:
        """All events after this one, then live, until the run is over. A step that was done again is told again."""

    @abstractmethod
    def stop(self) -> None:
        """After a step that everybody stores; `resume` goes on from there."""

    @abstractmethod
    def resume(self, steps: int | None = None) -> None:
        """Goes on with a run that was stopped; `steps`: how many it is to have made in the end."""

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """Weights and buffers of the newest step that every VNode has stored, by their names in the uncut network."""

    @abstractmethod
    def infer(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """The network's output for these samples, at the newest step that every VNode has stored."""

    @property
    def losses(self) -> list[float]:
        """One per step, the last word on each, as far as the curve is whole."""
        return list_losses(self.list_events())

    def list_events(self) -> list[TrainEvent]:
        """What was told until now, or to the end for a run that is over."""
        return list(self.watch())

    def wait(self: R) -> R:
        """Until it is over. Raises RuntimeError for one that failed."""
        message = ""
        for event in self.watch():
            message = event.message if event.kind == "state" else message
        if self.state is RunState.FAILED:
            raise RuntimeError(f"run {self.id} {message or 'failed'}")
        return self

    @property
    def is_over(self) -> bool:
        return self.state in OVER


def list_losses(events: list[TrainEvent]) -> list[float]:
    losses = {event.step: event.loss for event in events if event.kind == "step" and event.loss is not None}
    found: list[float] = []
    while (loss := losses.get(len(found) + 1)) is not None:
        found.append(loss)
    return found

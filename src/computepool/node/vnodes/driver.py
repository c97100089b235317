"""Drives an engine on a thread of its own: frames in, frames and events out to an event loop, never waiting for it.

The loop stays free while the thread computes; all that crosses between them does so here.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Protocol

from computepool import clock
from computepool.core.networks.host_faults import HostFaultCode
from computepool.core.networks.placement import SeatId
from computepool.node import journal
from computepool.node.vnodes.engine import Engine
from computepool.node.vnodes.events import Event, FaultFound
from computepool.node.vnodes.frames import (
    FrameHead,
    FrameKind,
    FrameLimits,
    Outgoing,
    Refusal,
    RefusalCode,
    find_tensor_fault,
    to_tensor,
)

# Nothing is lost by it when every wake comes through; it bounds what one that did not would cost.
IDLE_SECONDS = 1.0
# After a piece of an answer, however small: the loop shares the interpreter with us, and carries training's frames.
REST_SECONDS_MIN = 0.0005
# How long a thread that computes may keep the interpreter from those who carry its frames. By default it is ten times
# as much, which is longer than a piece of work of a small network takes.
TURN_SECONDS = 0.0005
# A piece of work that takes longer is left to the end of the process.
JOIN_SECONDS = 0.2


def take_short_turns() -> None:
    """For a process that has a driver."""
    sys.setswitchinterval(TURN_SECONDS)


class Answering(Protocol):
    """Requests that are computed beside the training."""

    def receive(self, head: FrameHead, tensor_bytes: bytearray) -> Refusal | None: ...

    def run_ready(self) -> list[Outgoing] | None: ...


OnOutgoing = Callable[[Outgoing], None]
OnEvent = Callable[[Event], None]


class Driver:
    def __init__(self, *, on_outgoing: OnOutgoing, on_event: OnEvent, limits: FrameLimits | None = None) -> None:
        """Both are called on the loop that this was made on."""
        self._loop = asyncio.get_running_loop()
        self._on_outgoing = on_outgoing
        self._on_event = on_event
        self._limits = limits or FrameLimits()
        self._engine: Engine | None = None
        self._answering: Answering | None = None
        # No answer is computed before this.
        self._rest_until = 0.0
        self._running = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def engine(self) -> Engine | None:
        return self._engine

    def set_engine(self, engine: Engine) -> None:
        """Another run, or another network: the one before is forgotten."""
        before, self._engine = self._engine, engine
        if before is not None:
            before.close()

    def set_answering(self, answering: Answering) -> None:
        self._answering = answering

    def run(self) -> None:
        """Computes from now on whenever there is something to compute."""
        self._running = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="vnodes", daemon=True)
            self._thread.start()
        self._wake.set()

    def wake(self) -> None:
        self._wake.set()

    def receive(self, _: SeatId, head: FrameHead, content: bytearray) -> Refusal | None:
        """A whole tensor from another host; None if it was taken."""
        engine = self._engine
        fault = find_tensor_fault(head.dtype.value, head.shape, len(content), self._limits)
        if fault is not None:
            return fault
        if head.kind is FrameKind.INFERENCE and self._answering is not None:
            return self._answering.receive(head, content)
        if engine is None:
            return Refusal(RefusalCode.NOT_PREPARED, f"{head}: this host is not prepared yet")
        refusal = engine.receive(head, to_tensor(content, head.dtype, head.shape))
        self._wake.set()
        return refusal

    def tell(self, event: Event) -> None:
        """From any thread."""
        self._to_loop(lambda: self._on_event(event))

    async def close(self) -> None:
        self._running = False
        self._wake.set()
        thread, engine = self._thread, self._engine
        if thread is not None:
            await asyncio.to_thread(thread.join, JOIN_SECONDS)
        if engine is not None and (thread is None or not thread.is_alive()):
            engine.close()

    def _work(self) -> None:
        while self._running:
            engine = self._engine
            trained = self._compute(engine) if engine is not None else None
            answered = self._answer(engine)
            if trained is None and answered is None:
                rest_seconds = self._rest_until - clock.seconds()
                self._wake.wait(rest_seconds if rest_seconds > 0 else IDLE_SECONDS)
                self._wake.clear()
                continue
            for frame in (*(trained or ()), *(answered or ())):
                self._to_loop(lambda frame=frame: self._on_outgoing(frame))  # type: ignore[misc]

    def _answer(self, engine: Engine | None) -> list[Outgoing] | None:
        """One piece, and then none for as long as it took: whoever asks without end slows the training by half, and
        does not stop it. Without training there is nothing to leave room for."""
        began = clock.seconds()
        if self._answering is None or began < self._rest_until:
            return None
        answered = self._answering.run_ready()
        if answered is not None and engine is not None and not engine.progress.is_done:
            ended = clock.seconds()
            self._rest_until = ended + max(ended - began, REST_SECONDS_MIN)
        return answered

    def _compute(self, engine: Engine) -> list[Outgoing] | None:
        try:
            return engine.run_ready()
        except Exception as error:
            # The top of the thread: who waits for this host must hear that it will not get on.
            journal.error("engine_broke", trace=error)
            epoch, step, micro_batch, _, _ = engine.progress
            words = f"{type(error).__name__}: {error}"
            self.tell(FaultFound(epoch, "", step, micro_batch, HostFaultCode.HOST_BROKEN, words))
            return None

    def _to_loop(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            # The loop is closed: the process ends.
            journal.debug("loop_closed")

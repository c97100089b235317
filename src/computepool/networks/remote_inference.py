"""Asks the PNodes of a run at a hub for answers, through whichever hub owns the run by then.

What was asked and not answered when a hub went away is asked again of the next one, at the same checkpoint.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import grpc

from computepool import clock
from computepool.core.errors import ComputePoolError, Conflict, InvalidRequest
from computepool.core.networks.errors import RunElsewhere
from computepool.core.networks.requests import Given, RequestForm
from computepool.core.networks.spec import Dtype, NetworkSpec
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb
from computepool.wire.rpc import from_error_metadata

if TYPE_CHECKING:
    from torch import Tensor

ANSWER_SECONDS = 60.0
# Requests of a stream that are under way.
WINDOW = 8
PAUSE_SECONDS = 0.5

# By the address of a hub's gRPC, empty for the one that is signed in at: its stub.
FindStub = Callable[[str], Any]


class RemoteInference:
    def __init__(self, find_stub: FindStub, metadata: Any, run_id: str, spec: NetworkSpec) -> None:
        self._find_stub = find_stub
        self._metadata = metadata
        self._run_id = run_id
        self._form = RequestForm(spec)
        self._address = ""
        # Of the last answer.
        self.checkpoint_step = 0

    def name_inputs(self, inputs: tuple[Tensor, ...], named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors without a name are given in the order of the network's sources."""
        names = list(self._form.inputs)
        if len(inputs) > len(names):
            raise InvalidRequest(f"The network reads {', '.join(names)}; {len(inputs)} tensors were given.")
        return {**dict(zip(names, inputs, strict=False)), **named}

    def ask(self, inputs: Mapping[str, Tensor], *, checkpoint_step: int, seconds: float) -> Tensor:
        """One answer. Asks again while what is in the way may pass, and no longer than this."""
        request = self._word(inputs, checkpoint_step)
        until = clock.seconds() + seconds
        while True:
            left = max(0.1, until - clock.seconds())
            try:
                answer = self._find_stub(self._address).Infer(
                    request, metadata=self._metadata, timeout=left, wait_for_ready=not self._address
                )
            except grpc.RpcError as error:
                self._endure(error, until)
                continue
            return self._read(answer)

    def stream(
        self, batches: Iterable[Mapping[str, Tensor]], *, checkpoint_step: int, seconds: float
    ) -> Iterator[Tensor]:
        """One answer for each, in order. `seconds`: how long to wait for the next one, whatever is lost meanwhile."""
        source, waiting = iter(batches), deque[Mapping[str, "Tensor"]]()
        step, is_first, until = checkpoint_step, True, clock.seconds() + seconds
        has_more = True
        while has_more or waiting:
            asked: SimpleQueue[pb.InferRequest | None] = SimpleQueue()
            for each in waiting:
                asked.put(self._word(each, step))
            try:
                answers = self._find_stub(self._address).InferStream(
                    iter(asked.get, None), metadata=self._metadata, wait_for_ready=not self._address
                )
                while True:
                    while has_more and len(waiting) < WINDOW:
                        batch = next(source, None)
                        has_more = batch is not None
                        if batch is not None:
                            waiting.append(batch)
                        asked.put(self._word(batch, step) if batch is not None else None)
                    if not waiting:
                        return
                    answer = next(answers)
                    if not is_first and answer.checkpoint_step != step:
                        raise Conflict(f"Checkpoint {step}, which this stream asks, is gone. Ask the rest anew.")
                    step, is_first, until = answer.checkpoint_step, False, clock.seconds() + seconds
                    waiting.popleft()
                    yield self._read(answer)
            except grpc.RpcError as error:
                self._endure(error, until)
            except StopIteration:
                self._pause(until, RunElsewhere("The hub has ended the stream. Ask again."))
            finally:
                # Whatever reads it comes to its end.
                asked.put(None)

    def _endure(self, error: Any, until: float) -> None:
        told = from_error_metadata(error.trailing_metadata(), error.details() or "")
        if not told.retryable:
            raise told from None
        # A hub that owns the run no more, or is gone: the one that is signed in at knows who does.
        owner = str(told.details.get("owner_address", "")) if isinstance(told, RunElsewhere) else ""
        self._address = owner
        self._pause(until, told)

    @staticmethod
    def _pause(until: float, why: ComputePoolError) -> None:
        if clock.seconds() + PAUSE_SECONDS >= until:
            raise why from None
        time.sleep(PAUSE_SECONDS)

    def _word(self, inputs: Mapping[str, Tensor], step: int) -> pb.InferRequest:
        """Raises what the hub would: what is too large for a call would not even come so far."""
        from computepool.node.vnodes.frames import to_bytes

        given = {name: _describe(tensor) for name, tensor in inputs.items()}
        self._form.check(given)
        tensors = {
            name: pb.Tensor(dtype=given[name].dtype, shape=tensor.shape, content=bytes(to_bytes(tensor)))
            for name, tensor in inputs.items()
        }
        return pb.InferRequest(run_id=self._run_id, checkpoint_step=step, inputs=tensors)

    def _read(self, answer: pb.InferResponse) -> Tensor:
        from computepool.node.vnodes.frames import to_tensor

        self.checkpoint_step = answer.checkpoint_step
        output = answer.output
        return to_tensor(output.content, Dtype(output.dtype), tuple(output.shape))


def _describe(tensor: Tensor) -> Given:
    from computepool.node.vnodes.frames import TORCH_TYPES

    names = {torch_type: dtype.value for dtype, torch_type in TORCH_TYPES.items()}
    name = names.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    return Given(name, tuple(tensor.shape), tensor.numel() * tensor.element_size())

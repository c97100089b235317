"""A grid on one machine, without a hub: every PNode is a process, and what a run does is decided as a hub decides.

The same engine, the same gRPC streams with signed seat tokens and the same rules of epochs as on the open grid; only
orders come over pipes instead of sessions, and checkpoints lie in a temporary folder. For laptops, examples and
measurements: kill a PNode with -9 and see what the curve does.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from computepool import clock
from computepool.core.errors import Conflict, InvalidRequest
from computepool.core.networks.partition import Host
from computepool.core.networks.run import Part
from computepool.core.networks.spec import NetworkSpec
from computepool.core.networks.spec_json import to_json
from computepool.networks.local_run import LocalRun
from computepool.networks.network import Network
from computepool.networks.plan import MEMORY_BYTES_ANY, place_parts
from computepool.networks.run import TrainEvent
from computepool.node.vnodes.data import Dataset, list_data_faults

PNODES_MAX = 64
# To import torch on a busy machine.
READY_SECONDS = 120.0
END_SECONDS = 3.0
# Of one machine and its loopback: only their ratio counts, for the cut.
_SPEED = Host(MEMORY_BYTES_ANY, 1e10, 1e9)


def local(pnodes: int = 3, *, threads: int = 1) -> LocalGrid:
    """Starts a grid of so many PNodes on this machine; `threads` is how many each computes on."""
    return LocalGrid(pnodes, threads=threads)


class LocalGrid:
    """Use it in a `with` block, or close it: its processes end with it, and with this process at the latest."""

    def __init__(self, pnodes: int = 3, *, threads: int = 1, cores: Mapping[int, set[int]] | None = None) -> None:
        """`cores`: which of the machine's cores a PNode may use, by its number, for measurements."""
        if not 0 < pnodes <= PNODES_MAX:
            raise InvalidRequest(f"A local grid has 1 to {PNODES_MAX} PNodes, not {pnodes}.")
        self._threads, self._cores = threads, dict(cores or {})
        self._root = Path(tempfile.mkdtemp(prefix="computepool-grid-"))
        self._children: list[_Child] = []
        self._run: LocalRun | None = None
        self._runs = 0
        try:
            for _ in range(pnodes):
                self.add(wait=False)
            for child in self._children:
                child.wait_ready()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> LocalGrid:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Training

    def start(
        self,
        network: Network | NetworkSpec,
        data: Dataset,
        steps: int,
        *,
        seats: int = 0,
        places: Mapping[Part, int] | None = None,
        on_event: Callable[[TrainEvent], None] | None = None,
    ) -> LocalRun:
        """A run that goes on by itself. `seats`: how many PNodes compute it (0: all); the others are spares.

        `places` says for every VNode and replica which seat it is on; otherwise the cut is chosen.
        """
        network = network if isinstance(network, Network) else Network(network)
        spec = network.spec
        faults = list_data_faults(spec, data)
        if faults:
            raise InvalidRequest(f"The data does not fit the network: {'; '.join(faults)}.", faults=faults)
        if network.state is not None:
            raise InvalidRequest("A run starts from the seed: make the network without keep_weights.")
        if steps < 1:
            raise InvalidRequest(f"A run makes at least one step, not {steps}.")
        if self._run is not None and not self._run.is_over:
            raise Conflict("This grid trains already: wait for that run, or stop it.")
        for child in self._children:
            # One that was added a moment ago.
            if child.is_alive:
                child.wait_ready()
        ready = len(self.list_ready())
        wanted = len(set(places.values())) if places else seats or min(ready, len(spec.vnodes) * spec.replicas)
        if not 0 < wanted <= ready:
            raise InvalidRequest(f"{wanted} seats need as many PNodes; {ready} are ready. Start another: grid.add().")
        places = places or place_parts(spec, [_SPEED] * wanted)
        self._runs += 1
        folder = self._root / f"run-{self._runs}"
        folder.mkdir()
        (folder / "spec.json").write_text(to_json(spec), encoding="utf-8")
        (folder / "data.safetensors").write_bytes(data.to_bytes())
        run = self._run = LocalRun(self, spec, steps, places, folder, on_event)
        run.begin()
        return run

    def train(self, network: Network | NetworkSpec, data: Dataset, steps: int, **options: Any) -> LocalRun:
        """As `start`, and waits for the end. Raises RuntimeError if the run fails."""
        return self.start(network, data, steps, **options).wait()

    # PNodes

    def kill(self, number: int) -> None:
        """With -9, as a power cut would."""
        self._children[number].kill()

    def add(self, *, wait: bool = True) -> int:
        """Another PNode; its number. A run that lacks one takes it."""
        if sum(child.is_alive for child in self._children) >= PNODES_MAX:
            raise InvalidRequest(f"A local grid has at most {PNODES_MAX} PNodes.")
        number = len(self._children)
        child = _Child(number, self._root, self._threads, self._cores.get(number), self._hear)
        self._children.append(child)
        if wait:
            child.wait_ready()
        return number

    def list_ready(self) -> list[int]:
        return [child.number for child in self._children if child.is_alive and child.ready.is_set()]

    def get_pid(self, number: int) -> int:
        return self._children[number].process.pid

    def say(self, number: int, order: Mapping[str, Any]) -> None:
        self._children[number].say(order)

    def close(self) -> None:
        for child in self._children:
            child.end()
        deadline = clock.seconds() + END_SECONDS
        for child in self._children:
            child.wait_end(max(0.0, deadline - clock.seconds()))
        shutil.rmtree(self._root, ignore_errors=True)

    def _hear(self, number: int, said: dict[str, Any] | None) -> None:
        run = self._run
        if run is not None:
            run.heard.put((number, said))


class _Child:
    def __init__(
        self,
        number: int,
        root: Path,
        threads: int,
        cores: set[int] | None,
        hear: Callable[[int, dict[str, Any] | None], None],
    ) -> None:
        self.number = number
        self.ready = threading.Event()
        self._gone = False
        self._hear = hear
        self._log = root / f"pnode-{number}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "computepool.networks.local_pnode", str(threads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": str(threads), "GRPC_VERBOSITY": "NONE"},
            )
        if cores:
            os.sched_setaffinity(self.process.pid, cores)
        self._writing = threading.Lock()
        self._reader = threading.Thread(target=self._read, name=f"pnode-{number}", daemon=True)
        self._reader.start()

    @property
    def is_alive(self) -> bool:
        # Its output has ended a moment before the process can be seen to have.
        return not self._gone and self.process.poll() is None

    def wait_ready(self) -> None:
        deadline = clock.seconds() + READY_SECONDS
        while not self.ready.wait(0.1):
            if not self.is_alive or clock.seconds() > deadline:
                raise RuntimeError(
                    f"PNode {self.number} did not start: {self._log.read_text(errors='replace')[-1500:]}"
                )

    def say(self, order: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        # Who is dead hears nothing; that it is, its output tells.
        with self._writing, contextlib.suppress(BrokenPipeError, ValueError):
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)

    def end(self) -> None:
        """The end of its input tells it."""
        assert self.process.stdin is not None
        with self._writing, contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def wait_end(self, seconds: float) -> None:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(END_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            if said["kind"] == "ready":
                self.ready.set()
            else:
                self._hear(self.number, said)
        self._gone = True
        self._hear(self.number, None)

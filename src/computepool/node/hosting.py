"""Hosting: asks this machine what it computes like, and runs a host process for each seat that the hub gives it.

A host is the agent's child and never outlives it: it ends when its standard input does. It is our own program, and no
stranger's code runs in it, so it needs no sandbox; of the agent's environment it gets nothing but paths.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from computepool import clock
from computepool.core.jobs.cause import Cause
from computepool.core.placement.slot import Slot
from computepool.node import journal
from computepool.node.completion import Ending
from computepool.node.config import RELAY_ALONE, Device, NodeConfig
from computepool.node.host_options import PORT, REFUSED_EXIT_CODE, HostOptions, MachineView
from computepool.node.identity import Identity
from computepool.wire.attempts import Assignment, HostOrder, Usage
from computepool.wire.nodes import Hosting

PROGRAM = ("-m", "computepool.node.vnodes")
# Not part of the agent's own needs: the extra brings them.
NEEDED = ("torch", "numpy", "grpc", "google.protobuf", "safetensors")
INSTALL = "pip install 'computepool[networks]'"
# Loading the library from a cold disk takes its time.
DESCRIBE_SECONDS = 120.0
# From the wish that it ends to its end by force: an owner who comes back has the machine within two seconds.
STOP_SECONDS = 1.5
# What a host takes before it holds a single VNode: the interpreter and its libraries, or the card's context.
OWN_BYTES = {Device.CPU: 400_000_000, Device.CUDA: 800_000_000}
PASSED_ON = ("PATH", "LANG", "HOME", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "SYSTEMROOT")


class CannotHost(Exception):
    """This machine hosts no VNodes as it is; the words say what to do."""


@dataclass(frozen=True, slots=True)
class HostProcesses:
    config: NodeConfig
    machine: MachineView
    # What VNodes may take of any one slot.
    memory_bytes: int
    # Where hosts keep shards of data for later runs; none: nowhere.
    data_folder: Path | None = None

    @property
    def offer(self) -> Hosting:
        return Hosting(
            numeric_class=self.machine.numeric_class,
            memory_bytes=self.memory_bytes,
            flops_per_second=self.machine.flops_per_second,
            bytes_per_second=self.config.networks_uplink_mbit * 1e6 / 8 or None,
            latency_seconds=self.config.networks_latency_ms / 1e3 or None,
        )

    def make_options(self, assignment: Assignment, order: HostOrder, identity: Identity) -> HostOptions:
        listen = "" if self.config.networks_listen == RELAY_ALONE else self.config.networks_listen
        return HostOptions(
            rpc_address=order.rpc_address,
            node_id=str(identity.node_id),
            attempt_id=str(assignment.attempt_id),
            lease_secret=assignment.lease_secret,
            run_id=str(order.run_id),
            seat=order.seat,
            hub_keys=tuple(identity.hub_keys),
            numeric_class=self.machine.numeric_class,
            memory_bytes=self.memory_bytes,
            listen=listen or "127.0.0.1:0",
            advertise=f"{listen.rpartition(':')[0]}:{PORT}" if listen else "",
            device=self._find_device(assignment.slot),
            data_folder=str(self.data_folder or ""),
            data_bytes_max=self.config.cache_bytes_max,
            tls=order.tls,
            tls_roots=_read_roots(self.config.networks_roots_file),
        )

    def _find_device(self, slot: str) -> str:
        if self.config.networks_device is Device.CPU:
            return "cpu"
        return f"cuda:{slot.rpartition(':')[2]}"

    async def run(self, options: HostOptions, *, hurried: asyncio.Event) -> Ending:
        """Until the host ends by itself or `hurried` is set. If this is cancelled, the host is ended first."""
        began = clock.seconds()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *PROGRAM,
            stdin=subprocess.PIPE,
            env=make_env(self.config, os.environ),
            # Ctrl-C at the terminal tells the agent, and the agent alone decides when this ends.
            start_new_session=True,
        )
        journal.info("host_started", attempt_id=options.attempt_id, seat=options.seat, pid=process.pid)
        try:
            await _hand_over(process, options)
            await _wait_for_either(process, hurried)
        finally:
            await _end(process)
        usage = Usage(run_seconds=max(0.0, clock.seconds() - began))
        journal.info("host_ended", attempt_id=options.attempt_id, seat=options.seat, exit_code=process.returncode)
        return _to_ending(process.returncode, usage)


def _to_ending(exit_code: int | None, usage: Usage) -> Ending:
    """A host that ends in peace was told to: what that means for its seat is for the hub to say."""
    if exit_code == 0:
        return Ending(0, None, "", usage)
    if exit_code == REFUSED_EXIT_CODE:
        return Ending(exit_code, Cause.SANDBOX_REFUSED, "the hub refused the host; the node's log says why", usage)
    words = f"the host ended by signal {-exit_code}" if exit_code is not None and exit_code < 0 else "the host failed"
    return Ending(exit_code, Cause.SANDBOX_REFUSED, f"{words}; the node's log says more", usage)


async def prepare_hosting(
    config: NodeConfig, slots: Collection[Slot], *, data_folder: Path | None = None
) -> HostProcesses:
    """Looks at the machine, in a process of its own: the agent itself never loads what computes.

    Raises CannotHost.
    """
    missing = [name for name in NEEDED if not _is_installed(name)]
    if missing:
        raise CannotHost(f"To host networks this node needs {', '.join(missing)}. Install them: {INSTALL}")
    memory_bytes = count_memory(config.networks_device, slots)
    machine = await _describe(config)
    if config.networks_device is Device.CUDA and machine.device != "cuda":
        raise CannotHost("COMPUTEPOOL_NODE_NETWORKS_DEVICE=cuda, but PyTorch finds no usable GPU here. Use cpu.")
    journal.info(
        "hosts_networks",
        numeric_class=machine.numeric_class,
        gigaflops=machine.flops_per_second / 1e9,
        memory_bytes=memory_bytes,
    )
    return HostProcesses(config, machine, memory_bytes, data_folder)


def count_memory(device: Device, slots: Collection[Slot]) -> int:
    """What VNodes may take of the smallest slot: any of them may be asked to host."""
    least = min((slot.vram_bytes if device is Device.CUDA else slot.ram_bytes for slot in slots), default=0)
    if device is Device.CUDA and not least:
        raise CannotHost(
            "COMPUTEPOOL_NODE_NETWORKS_DEVICE=cuda, but a slot here has no GPU. Set COMPUTEPOOL_NODE_CPU_SLOTS=0: "
            "VNodes on a GPU and on a CPU do not come to the same bits."
        )
    if least <= OWN_BYTES[device]:
        raise CannotHost(
            f"A slot of this node has {least / 1e9:.1f} GB; a host alone takes {OWN_BYTES[device] / 1e9:.1f}. "
            "Lend more memory, or fewer slots, or start without --networks."
        )
    return least - OWN_BYTES[device]


def make_env(config: NodeConfig, env: Mapping[str, str]) -> dict[str, str]:
    return {
        **{name: env[name] for name in PASSED_ON if name in env},
        "COMPUTEPOOL_NODE_LOG_LEVEL": config.log_level.value,
        "COMPUTEPOOL_NODE_NETWORKS_THREADS": str(config.networks_threads),
        "COMPUTEPOOL_NODE_NETWORKS_DEVICE": config.networks_device.value,
    }


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        # The package that it would be part of.
        return False


async def _describe(config: NodeConfig) -> MachineView:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *PROGRAM,
        "--describe",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=make_env(config, os.environ),
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(DESCRIBE_SECONDS):
            said, complaint = await process.communicate()
        return msgspec.json.decode(said, type=MachineView)
    except TimeoutError:
        raise CannotHost(f"PyTorch did not start within {DESCRIBE_SECONDS:.0f} s on this machine.") from None
    except msgspec.DecodeError:
        last = complaint.decode(errors="replace").strip().rpartition("\n")[2]
        raise CannotHost(f"PyTorch does not work on this machine: {last[:300]}. Install it anew: {INSTALL}") from None
    finally:
        await _end(process)


def _read_roots(path: str) -> bytes | None:
    return Path(path).read_bytes() if path else None


async def _hand_over(process: asyncio.subprocess.Process, options: HostOptions) -> None:
    """The pipe stays open: its end is the host's."""
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):
        process.stdin.write(msgspec.json.encode(options) + b"\n")
        await process.stdin.drain()


async def _wait_for_either(process: asyncio.subprocess.Process, hurried: asyncio.Event) -> None:
    ending, hurrying = asyncio.ensure_future(process.wait()), asyncio.ensure_future(hurried.wait())
    try:
        await asyncio.wait({ending, hurrying}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ending.cancel()
        hurrying.cancel()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Asked first, so that it can leave its run without a loss; then by force."""
    if process.returncode is not None:
        return
    try:
        _signal(process, signal.SIGTERM)
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        journal.warning("host_killed", pid=process.pid)
    finally:
        if process.returncode is None:
            _signal(process, signal.SIGKILL)
            await process.wait()


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)

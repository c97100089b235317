"""Where everything of one agent lies on disk, and the lock that keeps a second agent out of it."""

from __future__ import annotations

import os
from pathlib import Path

from computepool.node import files, locks


class StateDirInUse(Exception):
    """Another agent works in this folder."""


class StateDir:
    """The private folder of one agent.

    node.key, enrolment.json   who this node is, and which hub it belongs to
    measurements.json          how fast the devices are, by the agent's own measure
    spent_tokens               job tokens that were used, so that none runs twice
    inputs/                    input files by content hash, kept between jobs
    network-data/              shards of networks' data by content hash, kept between runs
    packages/                  Python packages that jobs asked for, by what they asked for
    attempts/<attempt id>/     one folder per attempt that the agent holds
    self-test/                 the sandbox's tries at every start
    comfort.toml               when the machine is lent, by its owner's rules; none: always
    wish.json                  the owner's word on this machine: pause, drain
    status.json                how the agent stands, for `computepool node status`
    debug.log, debug.log.1     everything that the agent did lately, in two files of a few megabytes
    agent_alive                touched while the agent lives; runners watch it
    lock                       held for the agent's lifetime
    """

    def __init__(self, root: Path) -> None:
        self.root = files.make_private(root)
        self.key_path = root / "node.key"
        self.enrolment_path = root / "enrolment.json"
        self.measurements_path = root / "measurements.json"
        self.spent_path = root / "spent_tokens"
        self.alive_path = root / "agent_alive"
        self.comfort_path = root / "comfort.toml"
        self.wish_path = root / "wish.json"
        self.status_path = root / "status.json"
        self.debug_log_path = root / "debug.log"
        self.inputs = files.make_private(root / "inputs")
        # Shards of networks' data: hosts keep them for later runs.
        self.network_data = files.make_private(root / "network-data")
        self.packages = files.make_private(root / "packages")
        self.attempts = files.make_private(root / "attempts")
        self.self_test = root / "self-test"
        self._lock_descriptor: int | None = None

    def lock(self) -> None:
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            locks.lock(descriptor)
        except OSError:
            os.close(descriptor)
            raise StateDirInUse(
                f"Another agent is running in {self.root}. Give this one its own folder with --state-dir or --name."
            ) from None
        self._lock_descriptor = descriptor

    def unlock(self) -> None:
        if self._lock_descriptor is not None:
            os.close(self._lock_descriptor)
            self._lock_descriptor = None

    def touch_alive(self) -> None:
        """Runners stop their jobs when this gets older than a lease: then nobody could deliver the results."""
        descriptor = os.open(self.alive_path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.utime(descriptor)
        finally:
            os.close(descriptor)

"""A real agent as a process of its own, with real runners and sandboxes under it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support.people import Person


class AgentProcess:
    def __init__(
        self,
        *,
        hub_url: str,
        owner: Person,
        root: Path,
        name: str = "agent",
        program: tuple[str, ...] = ("-m", "computepool.node"),
        env: Mapping[str, str] | None = None,
        **settings: object,
    ) -> None:
        self.name = name
        self._program = program
        self.state_dir = root / f"state-{name}"
        self.log_path = root / f"{name}.log"
        self._env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("COMPUTEPOOL_")},
            "HUB_URL": hub_url,
            "COMPUTEPOOL_NODE_OWNER_KEY": owner.key,
            "COMPUTEPOOL_NODE_NAME": name,
            "COMPUTEPOOL_NODE_STATE_DIR": str(self.state_dir),
            "COMPUTEPOOL_NODE_LOG_LEVEL": "debug",
            # The sandbox suite tries all of them; a story needs one, and starts the sooner.
            "COMPUTEPOOL_NODE_SANDBOXES": "bubblewrap",
            **{f"COMPUTEPOOL_NODE_{k.upper()}": str(v) for k, v in settings.items()},
            **(env or {}),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> AgentProcess:
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self._program],
                env=self._env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def list_runners(self) -> list[int]:
        """Runners of this agent, by the state directory in their command line."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    command = (entry / "cmdline").read_bytes().decode(errors="replace")
                except OSError:
                    continue
                if "computepool.node.runner" in command and str(self.state_dir) in command:
                    found.append(int(entry.name))
        return found

    def kill(self, *, with_runners: bool = False) -> None:
        """kill -9: of the agent alone, or of all that it started, as a power cut would."""
        runners = self.list_runners() if with_runners else []
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in runners:
            os.kill(pid, signal.SIGKILL)

    def send(self, number: int, *, with_runners: bool = False) -> None:
        for pid in self.list_runners() if with_runners else []:
            os.kill(pid, number)
        os.kill(self.pid, number)

    def stop(self, seconds: float = 20.0) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(seconds)

    def end(self) -> None:
        """Clean-up after a test: nothing may be left, whatever the test did."""
        runners = self.list_runners()
        self.kill()
        for pid in runners:
            try:
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + 10
        while self.list_runners() and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in self.list_runners():
            os.kill(pid, signal.SIGKILL)

    def log_text(self) -> str:
        return self.log_path.read_text()[-8_000:] if self.log_path.exists() else ""

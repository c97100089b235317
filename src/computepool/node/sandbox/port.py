"""The one port behind which every sandbox lives: what to run, within what, and the handle on what runs.

Refuses to know how a backend builds its walls. A job never runs outside of a backend: there is no
plain-subprocess mode. Named tuples and not dataclasses, here and in the runner: importing `dataclasses` and
building twenty of them would take more than all the rest of a runner's start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from computepool.core.jobs.isolation import IsolationLevel

JOB_DIR = "/job"
OUTPUT_NAME = "out"
OUTPUT_DIR = f"{JOB_DIR}/{OUTPUT_NAME}"
# Where a job finds the Python packages it asked for.
ENVIRONMENT_DIR = "/environment"
# What the node itself puts beside the job's files: what the job saves, and a module for scripts.
NODE_NAME, CHECKPOINT_NAME, MODULE_NAME = ".computepool", "checkpoint", "lib"
CHECKPOINT_DIR = f"{JOB_DIR}/{NODE_NAME}/{CHECKPOINT_NAME}"
MODULE_DIR = f"{JOB_DIR}/{NODE_NAME}/{MODULE_NAME}"


class SandboxRefused(Exception):
    """This machine cannot give the walls or the limits that were asked for; the message says why."""


class InputMissing(Exception):
    """An input could not be put into the job's folder: gone, unreadable, misnamed or too large."""


class StartCancelled(Exception):
    """A stop came while the sandbox was being built; nothing ran and nothing is left."""


class Limits(NamedTuple):
    """What one job may use. All of them are held by the kernel or by the runner, none by goodwill."""

    memory_bytes: int  # memory and swap together; files in /tmp and /dev/shm count too
    pids_max: int  # processes and threads
    cpu_cores: float  # share of CPU time, 1.5 = one and a half cores
    disk_bytes: int  # everything under /job, inputs and outputs included
    wall_seconds: float  # from the start of the job's command
    log_bytes: int  # what is kept of stdout and stderr


class InputFile(NamedTuple):
    """One file to be copied into the job's folder."""

    path: str  # relative to /job, forward slashes
    source: str  # absolute path of a regular file on this machine
    executable: bool = False


class SandboxRequest(NamedTuple):
    """Everything a backend needs to start one job."""

    name: str  # unique on this machine; letters, digits, dot, dash, underscore
    command: tuple[str, ...]
    env: Mapping[str, str]
    inputs: tuple[InputFile, ...]
    limits: Limits
    state_dir: str  # private folder of this attempt; the backend may keep files of its own in it
    image: str | None = None  # name@sha256:digest, for backends that run images; None: the machine's own /usr
    devices: tuple[str, ...] = ()  # device nodes of the one GPU this job may see
    environment: str | None = None  # a folder of Python packages on this machine, to be seen read-only
    egress: tuple[str, ...] = ()  # host:port that may be reached, through a gate; empty: no network at all


class Usage(NamedTuple):
    """What the job has used so far, children included. The peak counts file cache, as the kernel does."""

    cpu_seconds: float
    memory_bytes_peak: int
    oom_kill_count: int


class Exit(NamedTuple):
    """How the sandbox's main process ended."""

    code: int  # 128 + signal when a signal ended it
    was_built: bool  # False: the walls could not be set up and the job's command never ran


class Report(NamedTuple):
    """Whether a backend can be offered here, and in plain words why not."""

    backend: str
    level: IsolationLevel
    usable: bool
    reasons: tuple[str, ...] = ()


class Sandbox(Protocol):
    """A started job. Every method is quick except `kill`, which returns when nothing of the job is left."""

    @property
    def output_fd(self) -> int:
        """Non-blocking read end of the pipe that carries stdout and stderr; end of file when all is over."""

    def poll(self) -> Exit | None:
        """The end, if it has come. Whoever calls it from a SIGCHLD wake-up learns of the end at once."""

    def terminate(self) -> None:
        """Ask the job's main process to end (SIGTERM); it may ignore that."""

    def kill(self) -> None:
        """End every process of the job, daemons included."""

    def usage(self) -> Usage: ...

    def open_outputs(self) -> int | None:
        """A descriptor of the output folder; None when the job removed it or put something else there.

        Only after `kill`: nothing may change under the collector's hands.
        """

    def open_checkpoint(self) -> int | None:
        """A descriptor of the folder in which the job keeps what it saves, also while it runs; None: it is gone."""

    def close(self) -> None:
        """Give back everything: disk, cgroup, mounts. The job's folder is gone afterwards."""


def never() -> bool:
    """The default answer to "has a stop been asked for?"."""
    return False


class Backend(Protocol):
    """One way of building walls."""

    @property
    def name(self) -> str: ...

    @property
    def level(self) -> IsolationLevel: ...

    @property
    def runs_images(self) -> bool: ...

    @property
    def has_egress(self) -> bool:
        """Whether a job may be given a gate to named hosts."""

    def probe(self) -> Report:
        """A look at what is installed and permitted, without running a job; some ten milliseconds to a second.

        What it finds usable must still pass the self-test, which runs the real thing.
        """

    def start(self, request: SandboxRequest, *, is_cancelled: Callable[[], bool] = never) -> Sandbox:
        """Build the walls and start the command behind them.

        Called at most once per process, from its main thread, by a process that lives as long as the job:
        the backend may change the calling process for good (mount namespace) and ties the job's life to it.
        Raises SandboxRefused, InputMissing or StartCancelled, and then leaves nothing behind.
        """

"""What walls cost and whether they hold: starting Python behind each sandbox, and every known way out tried in each.

    python -m benchmarks.sandbox [--rounds N] [--quick] [--out FILE]

Starts are measured from the call until the command has ended and nothing of it is left, in turns with a bare
subprocess on the same machine. The peers are the engines as people use them (`podman run`, `docker run`), without our
limits. Runs as root; dockerd is started for it where none runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import tables
from computepool.node.sandbox import container, engines, system_image
from computepool.node.sandbox.backends import NAMES, get_backend
from computepool.node.sandbox.port import Backend
from tests.contract.docker_daemon import DockerDaemon
from tests.contract.escape_cases import BOMBS, CASES, Case, is_contained, run_case_outside, run_shared, script_of
from tests.contract.sandbox_lab import PYTHON, Lab, Scene
from tests.contract.scene import make_scene

COMMAND = (PYTHON, "-c", "pass")
# In a process of its own, as the runner is: the backend may change its process for good.
STARTER = """
import os, sys, time
from computepool.node.sandbox.backends import get_backend
from computepool.node.sandbox.port import Limits, SandboxRequest
name, backend, state_dir, *command = sys.argv[1:]
request = SandboxRequest(name, tuple(command), {}, (), Limits(128 << 20, 64, 1.0, 16 << 20, 60.0, 65536), state_dir)
chosen = get_backend(backend)
began = time.perf_counter()
sandbox = chosen.start(request)
while (ended := sandbox.poll()) is None:
    time.sleep(0.0005)
sandbox.kill()
took = time.perf_counter() - began
sandbox.close()
assert (ended.code, ended.was_built) == (0, True), ended
print(took)
"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=30, help="starts of each kind")
    parser.add_argument("--quick", action="store_true", help="few starts, and the probes behind bubblewrap alone")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    if os.geteuid() != 0:
        print("this benchmark needs root: it makes control groups and disks as an agent does", file=sys.stderr)
        return 2
    rounds = 5 if options.quick else options.rounds
    report = tables.Report("sandbox", complete=not options.quick, out=options.out)
    with tempfile.TemporaryDirectory(prefix="computepool-bench-") as folder, contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, AssertionError):
            stack.enter_context(DockerDaemon())
        backends = find_backends(report)
        seconds = measure_starts(backends, Path(folder), rounds=rounds)
        show_starts(report, seconds)
        tried = backends[:1] if options.quick else backends
        figures = try_all(report, tried, Path(folder))
    bare, walled = statistics.median(seconds["bare"]), statistics.median(seconds["bubblewrap"])
    report.finish({"bubblewrap_start_vs_bare": walled / bare, **figures})
    return 0


def find_backends(report: tables.Report) -> list[Backend]:
    found = []
    for name in NAMES:
        backend = get_backend(name)
        probed = backend.probe()
        if probed.usable:
            found.append(backend)
        else:
            report.line(f"{name} was left out: {'; '.join(probed.reasons)}")
    return found


def measure_starts(backends: Sequence[Backend], folder: Path, *, rounds: int) -> dict[str, list[float]]:
    """One of each in every round, so that a busy moment of the machine meets all of them."""
    kinds: dict[str, Callable[[], float]] = {"bare": lambda: time_command(COMMAND)}
    for backend in backends:
        kinds[backend.name] = lambda backend=backend: start_once(backend, folder)  # type: ignore[misc]
    for backend in backends:
        if isinstance(backend, container.Container) and backend.name in ("podman", "docker"):
            plain = write_plain_run(backend.engine)
            kinds[f"{backend.name} run, as is"] = lambda plain=plain: time_command(plain)  # type: ignore[misc]
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, measure in kinds.items():
            seconds[kind].append(measure())
    return seconds


def start_once(backend: Backend, folder: Path) -> float:
    name = f"bench-{os.getpid()}-{time.monotonic_ns()}"
    state_dir = folder / name
    state_dir.mkdir()
    command = [sys.executable, "-c", STARTER, name, backend.name, str(state_dir), *COMMAND]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{backend.name}: {done.stderr[-1000:]}")
    return float(done.stdout)


def time_command(command: Sequence[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=True)
    return time.perf_counter() - began


def write_plain_run(engine: engines.Engine) -> list[str]:
    """As the engine's own manual has it: no limits, no profile, no disk of a size."""
    client = container.find_client(engine)
    image = container.system_image_name(engine, system_image.write_tar())
    limits = ["--ulimit", "nofile=1024:1024"] + (
        ["--ulimit", "nproc=4096:4096"] if engine.program == "podman" else []
    )
    return [*client, "run", "--rm", "--network", "none", *limits, "--volume", "/usr:/usr:ro", image, *COMMAND]


def show_starts(report: tables.Report, seconds: dict[str, list[float]]) -> None:
    bare = statistics.median(seconds["bare"])
    rows = []
    for kind, taken in seconds.items():
        middle, worst = statistics.median(taken), max(taken)
        rows.append((kind, f"{middle * 1000:.0f}", f"{worst * 1000:.0f}", f"{middle / bare:.1f}"))
    report.table(f"{' '.join(COMMAND)}, from start to end", ["behind", "median ms", "slowest ms", "of bare"], rows)


def try_all(report: tables.Report, backends: Sequence[Backend], folder: Path) -> dict[str, float]:
    with make_scene() as scene:
        outside = {case.name for case in CASES if "ESCAPED" in run_outside(case, scene, folder)}
        escaped: dict[str, list[str]] = {}
        rows = []
        for backend in backends:
            escaped[backend.name], slowest = try_inside(backend, scene, folder)
            rows.append((backend.name, len(CASES), len(escaped[backend.name]), f"{slowest:.1f}"))
    columns = ["sandbox", "ways tried", "open", "slowest bomb, s"]
    report.table("Every known way out, through the real runner", columns, rows)
    for case in CASES:
        if case.name not in outside:
            report.line(f"{case.name} did not get out without walls either, so it proves nothing here")
    for name, ways in escaped.items():
        if ways:
            report.line(f"{name} lets through: {', '.join(ways)}")
    return {
        "escapes": float(sum(map(len, escaped.values()))),
        "probes": float(len(CASES)),
        "probes_succeeding_outside": float(len(outside)),
    }


def run_outside(case: Case, scene: Scene, folder: Path) -> str:
    place = folder / f"outside-{case.name}"
    place.mkdir()
    place.chmod(0o777)
    return run_case_outside(case, scene, place)


def try_inside(backend: Backend, scene: Scene, folder: Path) -> tuple[list[str], float]:
    """The ways that are open, and how long the slowest bomb ran before it met its limit."""
    lab = Lab(folder / f"inside-{backend.name}", backend)
    try:
        told = run_shared(lab, scene)
        by_name = {case.name: case for case in CASES}
        is_gvisor = backend.name == "gvisor"
        ways = [
            name
            for name, said in told.items()
            if name in by_name and not is_contained(by_name[name], *said, is_gvisor=is_gvisor)
        ]
        slowest = 0.0
        for case in BOMBS:
            result = lab.run_probe(script_of(case), *case.arguments(scene), **dict(case.limits))
            slowest = max(slowest, result.status.run_seconds)
            is_out = "ESCAPED" in result.log and not (is_gvisor and case.emulated)
            if is_out or case.cause not in (None, result.status.cause):
                ways.append(case.name)
    finally:
        lab.close()
    return ways, slowest


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

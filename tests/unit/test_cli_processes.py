"""Children end with their parent: asked first, then forced."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from computepool.cli.processes import Child, Children, signals_end_the_block
from tests.support.living import is_alive


def start(children: Children, tmp_path: Path, code: str, name: str = "child") -> Child:
    return children.start(name, [sys.executable, "-c", code], env=os.environ, log_path=tmp_path / f"{name}.log")


def await_line(child: Child, line: str) -> None:
    deadline = time.monotonic() + 60
    while line not in child.last_lines(10):
        assert time.monotonic() < deadline, child.last_lines(10)
        time.sleep(0.01)


def test_a_child_is_asked_to_end_and_its_words_are_kept(tmp_path: Path) -> None:
    with Children(grace_seconds=20) as children:
        child = start(children, tmp_path, "print('up', flush=True); import time; time.sleep(60)")
        await_line(child, "up")
    assert child.exit_code == -signal.SIGTERM


def test_a_child_that_does_not_listen_is_forced(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    with Children(grace_seconds=0.2) as children:
        child = start(children, tmp_path, code)
        await_line(child, "up")
    assert child.exit_code == -signal.SIGKILL


def test_only_the_words_of_this_start_count(tmp_path: Path) -> None:
    with Children(grace_seconds=5) as children:
        for word in ("old", "new"):
            child = start(children, tmp_path, f"print('{word}')")
            child.process.wait(20)
        assert child.last_lines(10) == ["new"]
        assert len(children.list_ended()) == 2


def test_only_its_owner_can_read_the_log(tmp_path: Path) -> None:
    with Children(grace_seconds=5) as children:
        child = start(children, tmp_path, "pass")
    assert child.log_path.stat().st_mode & 0o777 == 0o600


def test_a_signal_unwinds_the_block(tmp_path: Path) -> None:
    started: list[Child] = []

    def sleep_until_told() -> None:
        with signals_end_the_block(), Children(grace_seconds=20) as children:
            started.append(start(children, tmp_path, "import time; time.sleep(60)"))
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(20)

    with pytest.raises(KeyboardInterrupt):
        sleep_until_told()
    assert started[0].exit_code is not None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a child of its parent's death")
def test_a_child_ends_even_if_its_parent_is_killed(tmp_path: Path) -> None:
    parent_code = f"""
import os, sys, time
from pathlib import Path
from computepool.cli.processes import Children
with Children(grace_seconds=1) as children:
    child = children.start("c", [sys.executable, "-c", "import time; time.sleep(60)"], env=os.environ,
                           log_path=Path({str(tmp_path)!r}) / "c.log")
    print(child.process.pid, flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", parent_code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child_pid = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 60
    while is_alive(child_pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)

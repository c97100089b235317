"""Puts the agent's service where this platform looks for it, and takes it away again. Says what it could not do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from computepool.node.service import LABEL, NAME, Service, render_launchd, render_systemd, render_windows

TOOL_SECONDS = 60.0

Run = Callable[[list[str]], str]


@dataclass(frozen=True, slots=True)
class Place:
    """One platform's way: the file, its text, and the commands that make it known or forgotten."""

    path: Path
    render: Callable[[Service], str]
    start: list[list[str]]
    stop: list[list[str]]
    encoding: str = "utf-8"


@dataclass(frozen=True, slots=True)
class Outcome:
    path: Path
    # Commands that did not work, with what they said. Empty: it runs, and starts again with the machine.
    troubles: list[str] = field(default_factory=list)


def find_place(env: Mapping[str, str], *, platform: str = sys.platform) -> Place:
    home = Path(env.get("HOME") or env.get("USERPROFILE") or Path.home())
    if platform == "darwin":
        path = home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
        return Place(
            path,
            render_launchd,
            start=[["launchctl", "load", "-w", str(path)]],
            stop=[["launchctl", "unload", "-w", str(path)]],
        )
    if platform == "win32":
        path = Path(env.get("LOCALAPPDATA") or home) / NAME / "task.xml"
        return Place(
            path,
            render_windows,
            start=[["schtasks", "/create", "/f", "/tn", NAME, "/xml", str(path)], ["schtasks", "/run", "/tn", NAME]],
            stop=[["schtasks", "/end", "/tn", NAME], ["schtasks", "/delete", "/f", "/tn", NAME]],
            encoding="utf-16",
        )
    folder = Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "systemd" / "user"
    user = ["systemctl", "--user"]
    return Place(
        folder / f"{NAME}.service",
        render_systemd,
        start=[[*user, "daemon-reload"], [*user, "enable", "--now", f"{NAME}.service"]],
        stop=[[*user, "disable", "--now", f"{NAME}.service"]],
    )


def install(place: Place, service: Service, *, run: Run | None = None) -> Outcome:
    place.path.parent.mkdir(parents=True, exist_ok=True)
    place.path.write_text(place.render(service), encoding=place.encoding)
    return Outcome(place.path, _run_all(place.start, run or run_tool))


def uninstall(place: Place, *, run: Run | None = None) -> Outcome | None:
    """None: there was none. The node's key and its folder stay."""
    if not place.path.exists():
        return None
    troubles = _run_all(place.stop, run or run_tool)
    place.path.unlink()
    return Outcome(place.path, troubles)


def _run_all(commands: list[list[str]], run: Run) -> list[str]:
    return [f"{' '.join(command)}: {trouble}" for command in commands if (trouble := run(command))]


def run_tool(command: list[str]) -> str:
    """What went wrong; empty: nothing."""
    program = shutil.which(command[0])
    if program is None:
        return "it is not installed"
    try:
        done = subprocess.run(
            [program, *command[1:]],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=TOOL_SECONDS,
            check=False,
            env=os.environ,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr or done.stdout).strip()[:300] or f"code {done.returncode}"

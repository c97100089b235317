"""Makes what the peers need and this project does not: their own virtual environment, and a Redis server."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".bench-venv"
PYTHON = VENV / "bin" / "python"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def ensure_venv() -> None:
    """Safe to call every time: does nothing while the pins are those that were installed."""
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    ready = VENV / ".ready"
    if ready.exists() and ready.read_text() == wanted:
        return
    print(f"bench: installing the peers into {VENV.name} (once, about a minute)", file=sys.stderr, flush=True)
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    pip = [str(PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    if subprocess.run([*pip, "-r", str(REQUIREMENTS)], capture_output=True).returncode == 0:
        ready.write_text(wanted)
        return
    # One wheel that this platform does not have must not cost us the other peers: they go in one by one, and the
    # run says which is missing.
    for line in REQUIREMENTS.read_text().splitlines():
        if line and not line.startswith("#"):
            subprocess.run([*pip, line], capture_output=True)
    ready.write_text(wanted)


def is_installed(distribution: str) -> bool:
    probe = f"import importlib.metadata as m; m.version({distribution!r})"
    return subprocess.run([str(PYTHON), "-c", probe], capture_output=True).returncode == 0


def find_redis_server() -> str | None:
    """Installs Debian's package when there is none and we may; None when that fails."""
    found = shutil.which("redis-server")
    if found or shutil.which("apt-get") is None:
        return found
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = [*as_root, "apt-get", "install", "-y", "-qq", "--no-install-recommends", "redis-server"]
    print("bench: installing redis-server", file=sys.stderr, flush=True)
    subprocess.run(command, env=env, capture_output=True)
    return shutil.which("redis-server")

"""The agent's modules import where the modules and functions of POSIX are missing: a stand-in for Windows, no more.

Nothing is run: on Windows no sandbox of ours works yet, and the agent says so at its start.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

# What Python on Windows lacks, of what anyone here might use.
MODULES = ("fcntl", "pwd", "grp", "resource", "termios", "tty", "pty", "syslog")
FUNCTIONS = (
    "fork",
    "geteuid",
    "getuid",
    "getgid",
    "getegid",
    "setsid",
    "mkfifo",
    "pidfd_open",
    "O_NONBLOCK",
    "O_CLOEXEC",
)
TRY = """
import os, signal, sys
# The standard library's own first: it knows where it runs, and this is not Windows.
import asyncio, subprocess, tempfile, shutil, select, socket, ssl, logging.handlers, multiprocessing
import click, cryptography, httpx, jwt, msgspec, rich
for name in {modules!r}:
    sys.modules[name] = None
for name in {functions!r}:
    if hasattr(os, name):
        delattr(os, name)
del signal.SIGKILL, signal.SIGHUP
import importlib
sys.platform = "win32"
importlib.import_module({module!r})
"""
MODULES_OF_OURS = (
    "computepool.node.config",
    "computepool.node.agent",
    "computepool.node.main",
    "computepool.node.doctor",
    "computepool.node.local_status",
    "computepool.node.installing",
    "computepool.node.debug_bundle",
    "computepool.node.comfort.readers",
    "computepool.cli.node",
    "computepool.cli.debug",
    "computepool.cli.doctor",
    "computepool.cli.main",
    "computepool.sdk",
)


def try_import(*modules: str) -> subprocess.CompletedProcess[str]:
    text = "".join(
        TRY.format(modules=MODULES, functions=FUNCTIONS, module=module)
        if number == 0
        else f"importlib.import_module({module!r})\n"
        for number, module in enumerate(modules)
    )
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False)


def test_the_agent_imports_without_posix():
    done = try_import(*MODULES_OF_OURS)
    assert done.returncode == 0, done.stderr


def test_the_stand_in_takes_away_what_it_says():
    """The control."""
    assert "ModuleNotFoundError" in try_import("fcntl").stderr


# A web framework, database drivers and tensors have no place on a lent machine's agent.
STRANGERS = (
    "fastapi",
    "starlette",
    "uvicorn",
    "asyncpg",
    "sqlalchemy",
    "alembic",
    "aiosql",
    "torch",
    "numpy",
    "grpc",
)
DEPENDENCIES_MAX = 6


def test_a_running_agent_has_none_of_the_hubs_libraries_in_it():
    text = (
        "import sys\nimport computepool.node.main, computepool.node.agent, computepool.cli.node\n"
        f"print([name for name in {STRANGERS!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_the_agents_base_install_is_small():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    # What a newer Python brings along is needed on the oldest alone.
    everywhere = [name for name in project["dependencies"] if "python_version <" not in name]
    assert len(everywhere) <= DEPENDENCIES_MAX, everywhere

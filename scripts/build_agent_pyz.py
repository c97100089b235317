"""Builds dist/agent.pyz: the whole agent in one file, for owners who do not want to install anything.

    python scripts/build_agent_pyz.py [--out dist/agent.pyz]
    python dist/agent.pyz node --hub-url https://hub.example.org

Some dependencies are compiled, so the file fits the platform and the Python version that it was built with.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENTRY_POINT = "computepool.node.main:main"
# The hub, the SDK and the command line stay at home; the agent imports none of them.
LEFT_OUT = ("hub", "sdk", "cli", "sim")


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the agent as one runnable file.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "agent.pyz")
    out = parser.parse_args().out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        site = Path(scratch, "site")
        install(site)
        prune(site)
        pack(site, out)
    print(f"{out} ({out.stat().st_size / 1e6:.1f} MB)")
    return 0


def install(site: Path) -> None:
    """The package and what it needs, in the versions that the tests ran with."""
    constrained = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(site)]
    subprocess.run([*pip, str(ROOT)], env=constrained, check=True)


def prune(site: Path) -> None:
    for room in LEFT_OUT:
        shutil.rmtree(site / "computepool" / room, ignore_errors=True)
    for cache in site.rglob("__pycache__"):
        shutil.rmtree(cache)
    # Console scripts point at the interpreter of the build.
    shutil.rmtree(site / "bin", ignore_errors=True)


def pack(site: Path, out: Path) -> None:
    shiv = [sys.executable, "-m", "shiv", "--site-packages", str(site), "--entry-point", ENTRY_POINT]
    # Reproducible: the same sources make the same bytes.
    options = ["--reproducible", "--compressed", "--python", "/usr/bin/env python3", "--output-file", str(out)]
    subprocess.run([*shiv, *options], check=True)


if __name__ == "__main__":
    sys.exit(main())

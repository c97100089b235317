"""Builds dist/computepool-*.whl with the dashboard inside, so that whoever installs it needs no Node.

    python scripts/build_wheel.py [--out dist] [--without-site]

What is in the wheel is read back: one that lacks a file of the site is an error.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The list that scripts/pack_site.py writes; inside of the wheel and of the sources.
SITE = "computepool/hub/site"
HOW_TO = (
    "The dashboard is not built, so the wheel would lack it. Run: make web (Node 20.9 or newer, with npm). "
    "For a wheel without it: --without-site"
)


def build(root: Path, out: Path) -> Path:
    """The wheel of the sources in this folder."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(out)]
    before = set(out.glob("*.whl"))
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise SystemExit(f"error: hatchling says: {(done.stderr or done.stdout).strip()}")
    made = set(out.glob("*.whl"))
    return max(made - before or made, key=lambda path: path.stat().st_mtime)


def list_site(wheel: Path) -> list[str]:
    """Files of the site that the wheel holds; empty if it has none. A list that names more is an error."""
    with zipfile.ZipFile(wheel) as found:
        names = set(found.namelist())
        if f"{SITE}/site.json" not in names:
            return []
        listed = [entry["file"] for entry in json.loads(found.read(f"{SITE}/site.json"))["files"]]
    missing = [name for name in listed if f"{SITE}/{name}" not in names]
    if missing:
        raise SystemExit(f"error: {wheel.name} lacks {len(missing)} files of the site, {missing[0]} among them")
    return listed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument(
        "--without-site", action="store_true", help="build it even if there is no dashboard to put in"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.without_site and not (options.root / "src" / SITE / "site.json").exists():
        print(f"error: {HOW_TO}", file=sys.stderr)
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    wheel = build(options.root, options.out.resolve())
    site = list_site(wheel)
    if not site and not options.without_site:
        print(f"error: {wheel.name} was built without the dashboard although there is one", file=sys.stderr)
        return 1
    what = f"the dashboard in {len(site)} files" if site else "no dashboard"
    print(f"{wheel} ({wheel.stat().st_size / 1e6:.1f} MB, {what})")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The built dashboard travels in the wheel; where there is none, people are told how to get it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts.build_wheel import SITE, build, list_site
from scripts.pack_site import pack

ROOT = Path(__file__).resolve().parents[2]
ARTIFACTS = 'artifacts = ["src/computepool/hub/site/**"]\n'


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """What the package is made of, with few modules, as a checkout has it: git ignores the site."""
    root = tmp_path / "sources"
    root.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, root / name)
    for name in ("__init__.py", "hub/__init__.py", "hub/http/site.py", "hub/store/schema.sql"):
        path = root / "src" / "computepool" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "src" / "computepool" / name, path)
    return root


def put_site(sources: Path) -> list[str]:
    out = sources.parent / "out"
    for name, text in {
        "index.html": "<!doctype html><script>1</script>",
        "jobs/index.html": "<!doctype html>",
        "_next/static/a.js": "console.log(1);" * 100,
    }.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text)
    _, faults = pack(out, sources / "src" / SITE)
    assert faults == []
    return ["_next/static/a.js", "index.html", "jobs/index.html"]


def build_by_hand(sources: Path, *options: str) -> subprocess.CompletedProcess[str]:
    script = ROOT / "scripts" / "build_wheel.py"
    command = [sys.executable, str(script), "--root", str(sources), "--out", str(sources / "dist"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_site_is_in_the_wheel_when_it_was_built(sources: Path) -> None:
    files = put_site(sources)
    done = build_by_hand(sources)
    assert done.returncode == 0, done.stderr
    assert "the dashboard in 3 files" in done.stdout
    [wheel] = (sources / "dist").glob("*.whl")
    assert sorted(list_site(wheel)) == files
    with zipfile.ZipFile(wheel) as found:
        names = set(found.namelist())
    # Twins for browsers that take gzip, and what was there before.
    assert {f"{SITE}/_next/static/a.js.gz", "computepool/hub/store/schema.sql"} <= names


def test_control_without_its_line_in_pyproject_the_wheel_lacks_the_site(sources: Path) -> None:
    put_site(sources)
    pyproject = sources / "pyproject.toml"
    assert ARTIFACTS in pyproject.read_text()
    pyproject.write_text(pyproject.read_text().replace(ARTIFACTS, ""))
    assert list_site(build(sources, sources)) == []
    done = build_by_hand(sources)
    assert (done.returncode, "was built without the dashboard" in done.stderr) == (1, True)


def test_without_a_built_site_nobody_gets_a_wheel_by_accident(sources: Path) -> None:
    done = build_by_hand(sources)
    assert done.returncode == 1
    assert "Run: make web (Node 20.9 or newer, with npm)" in done.stderr
    wanted = build_by_hand(sources, "--without-site")
    assert (wanted.returncode, "no dashboard" in wanted.stdout) == (0, True), wanted.stderr


def test_make_demo_without_npm_says_how_to_get_the_dashboard_and_goes_on(tmp_path: Path) -> None:
    """A machine without Node: only what `make` itself needs is found, and the demo is a stand-in that answers."""
    programs, venv = tmp_path / "programs", tmp_path / "venv"
    programs.mkdir()
    for name in ("bash", "sh", "find", "grep", "sed", "touch", "make"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    (venv / "bin").mkdir(parents=True)
    stand_in = venv / "bin" / "computepool"
    stand_in.write_text("#!/bin/sh\necho the demo runs with: $@\n")
    stand_in.chmod(0o755)
    # Newer than what it is made from: nothing is to be set up.
    (venv / ".ready").touch()
    done = subprocess.run(
        ["make", "demo", f"VENV={venv}", "ARGS=--once"],
        cwd=ROOT,
        env={"PATH": str(programs), "HOME": os.environ.get("HOME", "/")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "install Node 20.9 or newer with npm and run make web" in done.stdout
    assert "the demo runs with: demo --once" in done.stdout

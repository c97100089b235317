"""The agent's own look at its sandboxes: quick, and honest about holes."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from computepool.node.runner import self_test, self_test_job
from computepool.node.sandbox.port import Backend
from tests.support.quickest import quickest


@pytest.mark.engines
def test_sound_backend_passes_quickly_and_leaves_nothing(backend: Backend, tmp_path: Path) -> None:
    def check() -> float:
        began = time.monotonic()
        report = self_test.check_backend(backend, tmp_path)
        seconds = time.monotonic() - began
        assert list(tmp_path.iterdir()) == []
        # A look that a busy machine did not let end is a slow one, and says nothing of the walls.
        if any("ran longer than" in reason for reason in report.reasons):
            return math.inf
        assert report.usable, report.reasons
        return seconds

    # On a quiet machine half a second for bubblewrap and two for an engine.
    enough = 5.0 if backend.name == "bubblewrap" else 30.0
    assert quickest(check, enough=enough) < enough


def test_backend_with_a_hole_is_not_offered(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The same walls, but a test that takes an everyday ability for an escape.
    leaky = tmp_path / "self_test_job.py"
    source = Path(self_test_job.__file__).read_text()
    leaky.write_text(source.replace('open("/etc/shadow", "rb")', 'open("/etc/hosts", "rb")'))
    monkeypatch.setattr(self_test_job, "__file__", str(leaky))

    report = self_test.check_backend(backend, tmp_path / "work")

    assert not report.usable
    assert report.reasons == ("a job can read shadow",)


def test_backend_that_does_not_hold_memory_is_not_offered(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_test, "HOG_SCRIPT", "pass")

    report = self_test.check_backend(backend, tmp_path)

    assert not report.usable
    assert "memory limit" in report.reasons[0]


def test_tries_that_end_early_are_not_taken_for_success(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = tmp_path / "self_test_job.py"
    silent.write_text("pass\n")
    monkeypatch.setattr(self_test_job, "__file__", str(silent))

    report = self_test.check_backend(backend, tmp_path / "work")

    assert not report.usable
    assert "did not run to their end" in report.reasons[0]

"""The examples of networks run by one command, through a kill too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "networks"


@pytest.mark.timeout(280)
def test_training_through_a_kill_ends_with_both_curves_on_top_of_each_other(tmp_path):
    picture = tmp_path / "kill.svg"
    words = ["--network", "mlp", "--steps", "60", "--out", str(picture)]
    ended = subprocess.run(
        [sys.executable, str(FOLDER / "train_through_a_kill.py"), *words],
        capture_output=True,
        text=True,
        timeout=140,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2_000:]
    assert "kill -9 of PNode" in ended.stdout
    assert "All 60 losses" in ended.stdout
    assert "60 of 60 losses equal, bit for bit" in picture.read_text()

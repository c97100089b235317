"""Databases of tests lie in memory only where there is enough of it."""

from __future__ import annotations

from pathlib import Path

from tests.support import postgres
from tests.support.postgres import memory_folder


def test_where_memory_is_short_the_usual_place_serves(monkeypatch, tmp_path):
    monkeypatch.setattr(postgres, "MEMORY", tmp_path)
    monkeypatch.setattr(postgres, "MEMORY_BYTES_MIN", 1 << 62)
    assert memory_folder() is None


def test_where_there_is_no_such_folder_the_usual_place_serves(monkeypatch):
    monkeypatch.setattr(postgres, "MEMORY", Path("/nowhere"))
    assert memory_folder() is None


def test_where_there_is_room_it_is_used(monkeypatch, tmp_path):
    monkeypatch.setattr(postgres, "MEMORY", tmp_path)
    monkeypatch.setattr(postgres, "MEMORY_BYTES_MIN", 1)
    assert memory_folder() == tmp_path

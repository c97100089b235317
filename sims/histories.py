"""What a history of a hostile fleet was asked for and came to, and a shelf on disk that keeps it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from sims.forgers import Tally

ROOT = Path(__file__).resolve().parent.parent
# All that a history follows from.
_RULES = ("src/computepool/core/trust", "src/computepool/core/ledger", "sims/forgers.py", "sims/purse.py")


@dataclass(frozen=True, slots=True)
class Setting:
    nodes: int
    hostile: int
    strategy: str
    results: int
    seed: str
    validates: bool = True


class Outcome(NamedTuple):
    tally: Tally
    # What forging brought a machine on average (Purse.gain); in microcredits.
    gain: float


class Shelf:
    """One line for each history. Lines that were written by other rules than those of today are left alone."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "histories.jsonl"
        self._rules = fingerprint()

    def find_all(self, settings: Sequence[Setting]) -> dict[Setting, Outcome]:
        wanted = set(settings)
        kept = {Setting(**line["setting"]): line for line in self._read() if line["rules"] == self._rules}
        return {
            setting: Outcome(Tally(**line["tally"]), line["gain"])
            for setting, line in kept.items()
            if setting in wanted
        }

    def keep(self, setting: Setting, outcome: Outcome) -> None:
        line = {
            "rules": self._rules,
            "setting": asdict(setting),
            "tally": asdict(outcome.tally),
            "gain": outcome.gain,
        }
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _read(self) -> Iterator[dict[str, Any]]:
        if not self._file.exists():
            return
        text = self._file.read_text()
        # A run that was stopped within a line leaves a part of it: that history is told again.
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self._file.write_text(whole)
        yield from map(json.loads, whole.splitlines())


def fingerprint() -> str:
    digest = sha256()
    for name in _RULES:
        path = ROOT / name
        for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]

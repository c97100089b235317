"""The close of a day: what every kind of account stood at before and after, and whether that adds up."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from enum import Enum
from types import MappingProxyType

from computepool.core.ledger.accounts import AccountKind
from computepool.core.ledger.transfer import TransferKind


class DifferenceKind(str, Enum):
    """Stable: stands in answers and scripts."""

    # The accounts do not come to zero.
    TRIAL = "trial"
    # A balance or a hold is not what its transfers come to.
    DRIFT = "drift"
    # A checkpoint of the books is not as it was made; all transfers were counted instead.
    CHECKPOINT = "checkpoint"
    # Attempts were charged something else than was settled.
    CHARGE = "charge"
    # The payment provider's own books say something else.
    PROVIDER = "provider"
    # The day was closed before, and came to something else then.
    REOPENED = "reopened"


@dataclass(frozen=True, slots=True)
class TrialLine:
    """One kind of account over a day, all of its rows together. Microcredits."""

    kind: AccountKind
    opening: int
    # What came in and went out during the day.
    gained: int
    lost: int

    @property
    def closing(self) -> int:
        return self.opening + self.gained - self.lost


@dataclass(frozen=True, slots=True)
class KindLine:
    """What was moved under one name during the day."""

    kind: TransferKind
    transfer_count: int
    amount: int


@dataclass(frozen=True, slots=True)
class Figures:
    """A day as its transfers tell it. They never change, so a day that is over always comes to the same."""

    day: date
    trial: tuple[TrialLine, ...]
    kinds: tuple[KindLine, ...]
    payout_count: int
    payout_sha256: str


def make_trial(
    lines: Iterable[TrialLine], before: Mapping[AccountKind, int] = MappingProxyType({})
) -> tuple[TrialLine, ...]:
    """All kinds in their order, those without a transfer too. `before`: all up to the first that was read."""
    found = {line.kind: line for line in lines}
    trial = (found.get(kind, TrialLine(kind, 0, 0, 0)) for kind in AccountKind)
    return tuple(replace(line, opening=line.opening + before.get(line.kind, 0)) for line in trial)


def list_trial_faults(trial: Sequence[TrialLine]) -> list[str]:
    faults = []
    for name, total in (
        ("opening", sum(line.opening for line in trial)),
        ("closing", sum(line.closing for line in trial)),
        ("moved", sum(line.gained - line.lost for line in trial)),
    ):
        if total:
            faults.append(f"{name}: the accounts come to {total:,} microcredits and not to zero")
    return faults


def digest_figures(figures: Figures) -> bytes:
    """What makes two closes of a day the same."""
    text = json.dumps(asdict(figures), default=str, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).digest()

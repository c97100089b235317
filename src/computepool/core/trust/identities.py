"""How many new nodes one owner or one network may bring: a fresh identity must not be a way out of a bad name.

Free re-entry is what makes forging pay. Limits bind owners with many machines, too: the operator can raise them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from computepool.core.trust.standing import cool_off

WINDOW = timedelta(days=30)
NEW_PER_OWNER_MAX = 5
NEW_PER_NETWORK_MAX = 5
# After a node of the same owner or network was bugged within BAD_MEMORY.
NEW_AFTER_BUGGED_MAX = 1
BAD_MEMORY = timedelta(days=90)


@dataclass(frozen=True, slots=True)
class Origin:
    """What is known of an owner or of a network."""

    new_within_window: int
    # Over all of its nodes, within BAD_MEMORY.
    bugged_count: int = 0
    last_bugged_at: datetime | None = None
    # By the operator; None: the usual limit.
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class IdentityRefusal:
    # too_many, cooling_off
    reason: str
    words: str
    # When it may be tried again, if that is known.
    retry_at: datetime | None = None


def find_identity_refusal(*, owner: Origin, network: Origin, now: datetime) -> IdentityRefusal | None:
    """None: one more node may enrol."""
    return _refuse(owner, NEW_PER_OWNER_MAX, "This account", now) or _refuse(
        network, NEW_PER_NETWORK_MAX, "This network", now
    )


def _refuse(origin: Origin, usual: int, who: str, now: datetime) -> IdentityRefusal | None:
    if origin.bugged_count and origin.last_bugged_at is not None:
        until = origin.last_bugged_at + cool_off(origin.bugged_count)
        if now < until:
            words = (
                f"{who} has a node that returned wrong results. New ones may come from {until:%Y-%m-%d %H:%M} UTC."
            )
            return IdentityRefusal("cooling_off", words, until)
        usual = NEW_AFTER_BUGGED_MAX
    limit = usual if origin.limit is None else origin.limit
    if origin.new_within_window < limit:
        return None
    days = WINDOW.days
    words = f"{who} has brought {origin.new_within_window} nodes in {days} days, as many as may. Ask the operator."
    return IdentityRefusal("too_many", words)

"""How many new nodes one owner or one network may bring: a fresh identity must not be a way out of a bad name.

Free re-entry is what makes forging pay. Limits bind owners with many machines, too: the operator can raise them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import IPv6Address, ip_address, ip_network

from computepool.core.trust.standing import cool_off

WINDOW = timedelta(days=30)
NEW_PER_OWNER_MAX = 5
NEW_PER_NETWORK_MAX = 5
# After a node of the same owner or network was bugged within BAD_MEMORY.
NEW_AFTER_BUGGED_MAX = 1
BAD_MEMORY = timedelta(days=90)
# What one household or one customer of a host usually has.
_PREFIX_V4, _PREFIX_V6 = 24, 48


@dataclass(frozen=True, slots=True)
class Origin:
    """What is known of an owner or of a network."""

    new_within_window: int
    # Over all of its nodes, within BAD_MEMORY.
    bugged_count: int = 0
    last_bugged_at: datetime | None = None
    # Nodes that were bugged and are on their way back, or have come back within BAD_MEMORY.
    returned_count: int = 0
    # By the operator; None: the usual limit.
    limit: int | None = None
    # Of those that are new.
    oldest_new_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class IdentityRefusal:
    # too_many, cooling_off
    reason: str
    words: str
    # When it may be tried again, if that is known.
    retry_at: datetime | None = None


def find_network(address: str | None) -> str | None:
    """The network that a call comes from, such as 93.184.216.0/24; None: unknown.

    Addresses that many strangers share without being neighbours (loopback, private ranges, those of a carrier) say
    nothing of who is near whom.
    """
    try:
        parsed = ip_address(address or "")
    except ValueError:
        return None
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if not parsed.is_global or parsed.is_multicast:
        return None
    prefix = _PREFIX_V4 if parsed.version == 4 else _PREFIX_V6
    return str(ip_network((parsed, prefix), strict=False))


def find_identity_refusal(
    *, owner: Origin, network: Origin, now: datetime, usual: int | None = None
) -> IdentityRefusal | None:
    """None: one more node may enrol. `usual`: another limit than the one that is known here."""
    per_owner, per_network = (NEW_PER_OWNER_MAX, NEW_PER_NETWORK_MAX) if usual is None else (usual, usual)
    return _refuse(owner, per_owner, "This account", now) or _refuse(network, per_network, "This network", now)


def _refuse(origin: Origin, usual: int, who: str, now: datetime) -> IdentityRefusal | None:
    if origin.bugged_count and origin.last_bugged_at is not None:
        until = origin.last_bugged_at + cool_off(origin.bugged_count)
        if now < until:
            words = (
                f"{who} has a node that returned wrong results. New ones may come from {until:%Y-%m-%d %H:%M} UTC."
            )
            return IdentityRefusal("cooling_off", words, until)
    if origin.bugged_count or origin.returned_count:
        usual = min(usual, NEW_AFTER_BUGGED_MAX)
    limit = usual if origin.limit is None else origin.limit
    if origin.new_within_window < limit:
        return None
    days = WINDOW.days
    words = f"{who} has brought {origin.new_within_window} nodes in {days} days, as many as may. Ask the operator."
    if origin.oldest_new_at is None or origin.new_within_window != limit:
        return IdentityRefusal("too_many", words)
    return IdentityRefusal("too_many", words, origin.oldest_new_at + WINDOW)

"""Whether a node takes work. Being online is not a state: it is how long ago the node was heard."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import Enum


class NodeState(str, Enum):
    ACTIVE = "active"
    PAUSED = "paused"  # takes nothing new; what runs goes on
    DRAINING = "draining"  # like paused, and the agent ends when the last attempt has ended
    REMOVED = "removed"  # its token is refused; its history stays


NODE_CHANGES: Mapping[tuple[NodeState, str], NodeState] = {
    (NodeState.ACTIVE, "pause"): NodeState.PAUSED,
    (NodeState.ACTIVE, "drain"): NodeState.DRAINING,
    (NodeState.PAUSED, "resume"): NodeState.ACTIVE,
    (NodeState.PAUSED, "drain"): NodeState.DRAINING,
    (NodeState.DRAINING, "resume"): NodeState.ACTIVE,
    (NodeState.DRAINING, "pause"): NodeState.PAUSED,
    (NodeState.ACTIVE, "remove"): NodeState.REMOVED,
    (NodeState.PAUSED, "remove"): NodeState.REMOVED,
    (NodeState.DRAINING, "remove"): NodeState.REMOVED,
}


def change_node(state: NodeState, change: str) -> NodeState | None:
    """The state after an owner's word; asking twice for the same is no mistake. None: it cannot be done."""
    if change in {"pause", "drain", "resume", "remove"}:
        wanted = {"pause": NodeState.PAUSED, "drain": NodeState.DRAINING, "resume": NodeState.ACTIVE}.get(
            change, NodeState.REMOVED
        )
        if state is wanted:
            return state
    return NODE_CHANGES.get((state, change))


def is_online(last_seen_at: datetime | None, *, now: datetime, silence_seconds_max: float) -> bool:
    return last_seen_at is not None and now - last_seen_at <= timedelta(seconds=silence_seconds_max)

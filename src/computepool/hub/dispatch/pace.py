"""Tells agents that cannot hold a call open when to call again, so that they come evenly and not in a crowd."""

from __future__ import annotations

from computepool import clock, entropy
from computepool.core.ids import NodeId
from computepool.core.jobs.polling import CallCalendar

REMEMBERED_MAX = 200_000


class Pace:
    def __init__(self) -> None:
        self._calendar = CallCalendar()
        self._empty_counts: dict[NodeId, int] = {}

    def note_work(self, node_id: NodeId) -> None:
        self._empty_counts.pop(node_id, None)

    def plan_wait(self, node_id: NodeId) -> float:
        """Seconds until the node's next call, after one more empty answer."""
        if len(self._empty_counts) >= REMEMBERED_MAX:
            self._empty_counts.clear()
        empty_count = self._empty_counts.get(node_id, 0) + 1
        self._empty_counts[node_id] = empty_count
        return self._calendar.plan_wait(empty_count, now_seconds=clock.seconds(), jitter=entropy.jitter())

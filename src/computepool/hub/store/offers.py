"""Offers: the conditions at which owners lend their nodes."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from computepool.core.ids import NodeId
from computepool.core.market.offers import HOURS_PER_WEEK, Audience, Offer, Schedule
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("offers")

log = logging.getLogger("computepool.store")

_HOURS_BYTES = HOURS_PER_WEEK // 8


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """As it stands in a row; queries compare by it."""

    hours: bytes
    zone: str


@dataclass(frozen=True, slots=True)
class Closed:
    """Schedules that are closed at a moment, each with when it opens next. None: never."""

    schedules: list[StoredSchedule]
    opens_at: list[datetime | None]

    def to_arrays(self) -> dict[str, Any]:
        """What queries that look at the fleet are told of it."""
        return {
            "closed_hours": [each.hours for each in self.schedules],
            "closed_zones": [each.zone for each in self.schedules],
            "closed_opens_at": self.opens_at,
        }


async def list_offers(conn: Connection, node_ids: Iterable[NodeId]) -> dict[NodeId, Offer]:
    rows = _q.list_offers(conn, node_ids=sorted(node_ids))
    return {row["node_id"]: _to_offer(row) async for row in rows}


async def upsert_offer(conn: Connection, node_id: NodeId, offer: Offer) -> None:
    """The node's row is locked."""
    schedule = offer.schedule
    await _q.upsert_offer(
        conn,
        node_id=node_id,
        floor_microcredits_per_hour=offer.floor_microcredits_per_hour,
        hours=None if schedule is None else schedule.hours.to_bytes(_HOURS_BYTES, "little"),
        zone=None if schedule is None else str(schedule.zone),
        seconds_min=offer.seconds_min,
        kinds=sorted(offer.kinds),
        audience=offer.audience,
        named=sorted(offer.named),
    )


async def list_schedules(conn: Connection, *, limit: int) -> list[StoredSchedule]:
    """All that are different."""
    rows = _q.list_schedules(conn, limit_count=limit)
    return [StoredSchedule(row["hours"], row["zone"]) async for row in rows]


def to_schedule(hours: bytes | None, zone: str | None) -> Schedule | None:
    if hours is None or zone is None:
        return None
    found = find_zone(zone)
    if found is None:
        # The hub that took it knew the zone. Lending at the wrong hour would be worse than not lending.
        log.warning("zone_unknown zone=%s", zone)
        return Schedule(0, UTC)
    return Schedule(int.from_bytes(hours, "little"), found)


def find_zone(name: str) -> ZoneInfo | None:
    """By its name in the time zone database of this machine."""
    # Every place and clock of the database begins so; what else lies in its folder does not.
    if not name[:1].isupper():
        return None
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


def _to_offer(row: Any) -> Offer:
    plain = Offer(row["account_id"], row["floor_microcredits_per_hour"])
    if row["seconds_min"] is None:
        return plain
    return Offer(
        owner_id=plain.owner_id,
        floor_microcredits_per_hour=plain.floor_microcredits_per_hour,
        schedule=to_schedule(row["hours"], row["zone"]),
        seconds_min=row["seconds_min"],
        kinds=frozenset(row["kinds"]),
        audience=Audience(row["audience"]),
        named=frozenset(row["named"]),
    )

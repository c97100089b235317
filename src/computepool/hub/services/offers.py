"""Offers: what owners set, and which nodes are closed at a moment."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

from computepool.core.errors import Conflict, InvalidRequest, NotFound
from computepool.core.ids import AccountId, NodeId
from computepool.core.market.hours import parse_hours, say_hours
from computepool.core.market.offers import NAMED_ACCOUNTS_MAX, Offer, Schedule, list_offer_faults
from computepool.core.nodes.state import NodeState
from computepool.core.placement.price import PRICE_MICROCREDITS_MAX
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.nodes import NodeWithSlots, get_node, may_see
from computepool.hub.services.prices import PriceBook
from computepool.hub.store import accounts as account_store
from computepool.hub.store import events as event_store
from computepool.hub.store import hub as hub_store
from computepool.hub.store import nodes as node_store
from computepool.hub.store import offers as store
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.events import NewEvent
from computepool.hub.store.hub import ChangeKind
from computepool.hub.store.offers import Closed
from computepool.wire.nodes import SetOffer

# Different schedules of the fleet that are looked at when supply is counted. Dispatch knows each node's own.
SCHEDULES_MAX = 50_000
EMAIL_LENGTH_MAX = 320


async def set_offer(
    pool: Pool, prices: PriceBook, caller: AccountCaller, node_id: NodeId, request: SetOffer
) -> NodeWithSlots:
    """In place of all that was set before. What runs goes on as it was given."""
    schedule, faults = _to_schedule(request.hours, request.zone)
    async with pool.acquire() as conn, conn.transaction():
        node = await node_store.lock_node(conn, node_id)
        if node is None or not may_see(caller, node):
            raise NotFound("There is no such node.")
        if node.state is NodeState.REMOVED:
            raise Conflict("A node that is removed lends nothing any more.")
        named, unknown = await _find_accounts(conn, request.accounts)
        offer = Offer(
            owner_id=node.account_id,
            floor_microcredits_per_hour=request.floor_microcredits_per_hour,
            schedule=schedule,
            seconds_min=request.seconds_min,
            kinds=frozenset(request.kinds),
            audience=request.audience,
            # The owner is welcome anyway.
            named=named - {node.account_id},
        )
        faults += list_offer_faults(offer, kinds=prices.card.kinds, floor_max=PRICE_MICROCREDITS_MAX) + unknown
        if faults:
            raise InvalidRequest("The offer cannot be set: " + "; ".join(faults) + ".")
        before = (await store.list_offers(conn, [node_id]))[node_id]
        if offer != before:
            await store.upsert_offer(conn, node_id, offer)
            body = {**_to_body(offer), "before": _to_body(before)}
            await event_store.record_events(
                conn, [NewEvent(kind="node_offer_set", account_id=node.account_id, node_id=node_id, body=body)]
            )
            # Hubs remember the conditions of a node; this makes them read them again.
            await hub_store.record_change(conn, ChangeKind.NODE, node_id)
    return await get_node(pool, caller, node_id)


def _to_schedule(hours: str | None, zone: str | None) -> tuple[Schedule | None, list[str]]:
    if hours is None and zone is None:
        return None, []
    if hours is None:
        return None, [f"zone is {zone!r}, and no hours are given; give both, or neither to lend it at all hours"]
    if zone is None:
        return None, ["hours need the zone of the clock that they are read from, such as Europe/Berlin or UTC"]
    try:
        bits = parse_hours(hours)
    except ValueError as error:
        return None, [f"hours: {error}"]
    found = store.find_zone(zone)
    if found is None:
        return None, [f"zone {zone!r} is unknown; give a name of the time zone database, such as Asia/Kolkata or UTC"]
    return Schedule(bits, found), []


async def _find_accounts(conn: Connection, named: Iterable[str]) -> tuple[frozenset[AccountId], list[str]]:
    """By id or e-mail address, and what is wrong with the others."""
    wanted = {each.strip().lower(): _to_id(each.strip()) for each in named}
    # The owner may be among them.
    if len(wanted) > NAMED_ACCOUNTS_MAX + 1:
        return frozenset(), [f"{len(wanted)} accounts are named; a pool takes {NAMED_ACCOUNTS_MAX} at most"]
    emails = [each for each in wanted if each.isprintable() and len(each) <= EMAIL_LENGTH_MAX]
    found = await account_store.list_named(conn, emails=emails, ids=[id for id in wanted.values() if id is not None])
    known = set(found.values())
    strangers = [each[:EMAIL_LENGTH_MAX] for each, id in wanted.items() if each not in known and id not in found]
    return frozenset(found), [
        f"account {each!r} is unknown; name it by its id or e-mail address" for each in strangers
    ]


def _to_id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _to_body(offer: Offer) -> dict[str, Any]:
    schedule = offer.schedule
    return {
        "floor_microcredits_per_hour": offer.floor_microcredits_per_hour,
        "hours": say_hours(schedule.hours) if schedule else None,
        "zone": str(schedule.zone) if schedule else None,
        "seconds_min": offer.seconds_min,
        "kinds": sorted(offer.kinds),
        "audience": offer.audience.value,
        "accounts": sorted(map(str, offer.named)),
    }


async def find_closed(conn: Connection, now: datetime) -> Closed:
    """The schedules that lend nothing now. Hours are read by one rule, here as in dispatch, and not by the database's
    own idea of time zones."""
    schedules, opens_at = [], []
    for stored in await store.list_schedules(conn, limit=SCHEDULES_MAX):
        schedule = store.to_schedule(stored.hours, stored.zone)
        if schedule is not None and not schedule.is_open(now):
            schedules.append(stored)
            opens_at.append(schedule.next_open_at(now))
    return Closed(schedules, opens_at)

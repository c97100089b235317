"""Asks slots to show their speed again: when a request is due, who is to be told, and what silence comes to."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from computepool import clock, entropy
from computepool.core.ids import NodeId
from computepool.core.nodes.state import NodeState, is_online
from computepool.core.trust import challenge
from computepool.core.trust import sittings as rules
from computepool.core.trust.claims import CPU_SLOT, slot_of_proof
from computepool.hub.config import HubSettings
from computepool.hub.services.challenges import find_standing, has_slot, record_proof_event, record_verdict
from computepool.hub.store import hub as hub_store
from computepool.hub.store import nodes as node_store
from computepool.hub.store import sittings as store
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.nodes import Node

# A node that was told and offers the slot all the same is told again after this long: the answer may have been lost.
TELL_AGAIN_SECONDS = 30.0


class Sittings:
    """Which slots are to show their speed now, as it was known a moment ago, and which nodes were told so here.

    Read by every call for work, and empty for nearly all of them: the database is asked by the sweeper alone.
    """

    def __init__(self) -> None:
        # By the slot that is challenged: whether it takes no work until then.
        self._asked: dict[NodeId, dict[str, bool]] = {}
        self._told_at: dict[tuple[NodeId, str], float] = {}
        # Told since the last flush.
        self._unwritten: set[tuple[NodeId, str]] = set()

    def is_withheld(self, node_id: NodeId, slot: str) -> bool:
        """A card that is busy all the time would never sit. The processor is left to its work: its tier is no matter
        of speed, and it can only be measured when nothing runs at all."""
        asked = self._asked.get(node_id)
        return asked is not None and asked.get(slot, False)

    def list_to_tell(self, node_id: NodeId, free_slots: Collection[str], *, idle: bool) -> tuple[str, ...]:
        """Which slots of this node are to be shown, of those that can be now. They count as told."""
        asked = self._asked.get(node_id)
        if asked is None:
            return ()
        able = {slot_of_proof(name) for name in free_slots}
        now = clock.seconds()
        due = [
            slot
            for slot in asked
            if slot in able
            and (idle or slot != CPU_SLOT)
            and self._told_at.get((node_id, slot), float("-inf")) < now - TELL_AGAIN_SECONDS
        ]
        for slot in due:
            self._told_at[node_id, slot] = now
            self._unwritten.add((node_id, slot))
        return tuple(due)

    def forget(self, node_id: NodeId) -> None:
        """A slot of it has sat; what else is asked of it is known again with the next refresh."""
        self._asked.pop(node_id, None)

    async def flush(self, pool: Pool) -> None:
        """Writes who was told: from then on a request can be missed."""
        told, self._unwritten = self._unwritten, set()
        if not told:
            return
        try:
            async with pool.acquire() as conn:
                await store.record_told(conn, told)
        except BaseException:
            self._unwritten |= told
            raise

    async def refresh(self, pool: Pool) -> list[NodeId]:
        """Nodes of which something else is asked than a moment ago."""
        async with pool.acquire() as conn:
            found = await store.list_asked(conn)
        before, self._asked = self._asked, {}
        for each in found:
            withheld = each.proven and each.slot != CPU_SLOT
            self._asked.setdefault(each.node_id, {})[each.slot] = withheld
        self._told_at = {key: at for key, at in self._told_at.items() if key[1] in self._asked.get(key[0], ())}
        nodes = before.keys() | self._asked.keys()
        return [node_id for node_id in nodes if before.get(node_id) != self._asked.get(node_id)]


async def take_turns(pool: Pool, settings: HubSettings, *, limit: int) -> int:
    """Asks whom it is time to ask, and counts what was not answered. Returns how many slots it was about."""
    async with pool.acquire() as conn:
        turns = await store.list_turns(conn, within=rules.ANSWER_WITHIN, limit=limit)
    for node_id, slot in turns:
        # The node first, as everybody does who decides on its proofs.
        async with pool.acquire() as conn, conn.transaction():
            node = await node_store.lock_node(conn, node_id)
            if node is not None:
                await _take_turn(conn, settings, node, slot)
    return len(turns)


async def _take_turn(conn: Connection, settings: HubSettings, node: Node, slot: str) -> None:
    """Another hub may have been here first: then there is nothing left to decide."""
    sitting, now = await store.find_sitting(conn, node.id, slot), await hub_store.get_now(conn)
    if sitting is None:
        return
    if node.state is NodeState.REMOVED or not has_slot(node, slot):
        await store.delete_sitting(conn, node.id, slot)
        return
    standing = await find_standing(conn, node, slot)
    online = is_online(node.last_seen_at, now=now, silence_seconds_max=settings.lease_seconds)
    turn = rules.take_turn(
        sitting,
        standing.state,
        reachable=node.state is NodeState.ACTIVE and online,
        now=now,
        mean=timedelta(seconds=settings.challenge_again_seconds),
        draw=entropy.draw(),
    )
    await store.upsert_sitting(conn, node.id, slot, turn.sitting)
    if turn.loses_proof:
        slot_claim = standing.slot_claim
        verdict = challenge.lapse(slot_claim.claim, asked_count=rules.MISSES_MAX)
        await record_verdict(conn, settings, node, slot, slot_claim, verdict)
        await record_proof_event(conn, node, slot, slot_claim, verdict, tier=verdict.tier)

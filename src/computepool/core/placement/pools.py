"""The fleet: slots that anybody may have, and beside them one index for each private pool.

Apart, so that no question looks at slots that are not for whoever asks, however many pools there are. Nearly nobody
is in a pool; for all others this is the public index and nothing more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from itertools import chain

from computepool.core.ids import AccountId, NodeId, SlotName
from computepool.core.placement.fleet import FleetIndex, Root
from computepool.core.placement.scorers import Candidate, break_tie, score
from computepool.core.placement.shape import Shape
from computepool.core.placement.weights import Preference, Weights

Key = tuple[NodeId, SlotName]
# Whom a pool is for. Nodes that are for the same accounts are one pool.
Welcome = frozenset[AccountId]


class Fleet:
    """Slots that may be given work, and which of them are free. See `FleetIndex`, whose words these are."""

    def __init__(self, sets: Mapping[str, Weights]) -> None:
        self._sets = sets
        self._public = FleetIndex(sets)
        self._pools: dict[Welcome, FleetIndex] = {}
        self._pools_of: defaultdict[AccountId, set[Welcome]] = defaultdict(set)
        # Which pool a slot is in.
        self._welcome_of: dict[Key, Welcome] = {}
        self._free_in_pools = 0

    @property
    def first_weights(self) -> str:
        return self._public.first_weights

    def __len__(self) -> int:
        """How many slots are free."""
        return len(self._public) + self._free_in_pools

    def __iter__(self) -> Iterator[Candidate]:
        """The free slots, in no order that means anything."""
        return chain(self._public, *self._pools.values())

    def __contains__(self, key: Key) -> bool:
        return key in self._public or key in self._welcome_of

    def is_free(self, node_id: NodeId, slot_name: SlotName) -> bool:
        return self._find_index(node_id, slot_name).is_free(node_id, slot_name)

    def list_roots(self) -> list[Root]:
        """Of the public slots."""
        return self._public.list_roots()

    @property
    def pooled_accounts(self) -> Set[AccountId]:
        """Who is welcome in some pool."""
        return self._pools_of.keys()

    # Changes

    def add(self, candidate: Candidate) -> None:
        self._forget(candidate.slot.node_id, candidate.slot.name)
        self._insert(candidate)

    def update(self, candidate: Candidate) -> None:
        slot = candidate.slot
        key = (slot.node_id, slot.name)
        if self._welcome_of.get(key) == slot.welcome:
            self._find_index(*key).update(candidate)
            return
        # Into a pool, out of it or to another one: what was busy stays busy.
        free = self.is_free(*key)
        self._forget(*key)
        self._insert(candidate)
        if not free:
            self.take(*key)

    def remove(self, node_id: NodeId, slot_name: SlotName) -> None:
        if (node_id, slot_name) not in self:
            raise KeyError((node_id, slot_name))
        self._forget(node_id, slot_name)

    def take(self, node_id: NodeId, slot_name: SlotName) -> Candidate:
        if not self._pools:
            return self._public.take(node_id, slot_name)
        taken = self._find_index(node_id, slot_name).take(node_id, slot_name)
        self._free_in_pools -= taken.slot.welcome is not None
        return taken

    def withdraw(self, node_id: NodeId, slot_name: SlotName) -> None:
        if not self._pools:
            self._public.withdraw(node_id, slot_name)
            return
        self._find_index(node_id, slot_name).withdraw(node_id, slot_name)
        self._free_in_pools -= (node_id, slot_name) in self._welcome_of

    def give(self, node_id: NodeId, slot_name: SlotName) -> None:
        if not self._pools:
            self._public.give(node_id, slot_name)
            return
        self._find_index(node_id, slot_name).give(node_id, slot_name)
        self._free_in_pools += (node_id, slot_name) in self._welcome_of

    def _insert(self, candidate: Candidate) -> None:
        slot = candidate.slot
        if slot.welcome is None:
            self._public.add(candidate)
            return
        if slot.welcome not in self._pools:
            self._pools[slot.welcome] = FleetIndex(self._sets)
            for account_id in slot.welcome:
                self._pools_of[account_id].add(slot.welcome)
        self._welcome_of[slot.node_id, slot.name] = slot.welcome
        self._pools[slot.welcome].add(candidate)
        self._free_in_pools += 1

    def _forget(self, node_id: NodeId, slot_name: SlotName) -> None:
        key = (node_id, slot_name)
        if key in self._public:
            self._public.remove(*key)
        welcome = self._welcome_of.pop(key, None)
        if welcome is None:
            return
        pool = self._pools[welcome]
        self._free_in_pools -= pool.is_free(*key)
        pool.remove(*key)
        if pool.is_empty():
            self._close(welcome)

    def _close(self, welcome: Welcome) -> None:
        del self._pools[welcome]
        for account_id in welcome:
            self._pools_of[account_id].discard(welcome)
            if not self._pools_of[account_id]:
                del self._pools_of[account_id]

    def _find_index(self, node_id: NodeId, slot_name: SlotName) -> FleetIndex:
        """The public one too where the slot is in none: it knows what to say then."""
        welcome = self._welcome_of.get((node_id, slot_name))
        return self._public if welcome is None else self._pools[welcome]

    # Questions

    def best(
        self,
        shape: Shape,
        preference: Preference,
        *,
        account_id: AccountId | None = None,
        weights: str = "default",
        ceiling: int | None = None,
        avoid: NodeId | None = None,
    ) -> Candidate | None:
        """For this account's work: among the public slots, and those of its pools."""
        found = self._public.best(shape, preference, weights=weights, ceiling=ceiling, avoid=avoid)
        if account_id is None or account_id not in self._pools_of:
            return found
        pools = (self._pools[welcome] for welcome in self._pools_of[account_id])
        bests = [pool.best(shape, preference, weights=weights, ceiling=ceiling, avoid=avoid) for pool in pools]
        return min(
            (each for each in (found, *bests) if each is not None),
            key=lambda each: (
                -score(each, shape, self._sets[weights], preference),
                break_tie(each, gpu=shape.gpu),
            ),
            default=None,
        )

    def ranked(
        self, shape: Shape, preference: Preference, k: int, *, weights: str = "default", ceiling: int | None = None
    ) -> list[Candidate]:
        """Of the public slots."""
        return self._public.ranked(shape, preference, k, weights=weights, ceiling=ceiling)

    def count_feasible(self, shape: Shape, *, ceiling: int | None = None, limit: int | None = None) -> int:
        """How many public slots are free and pass every gate; with a limit, counting ends there."""
        return self._public.count_feasible(shape, ceiling=ceiling, limit=limit)

    def count_pooled(self, shape: Shape, account_id: AccountId, *, ceiling: int | None, limit: int) -> int:
        """The same of the pools that this account is welcome in."""
        total = 0
        for welcome in self._pools_of.get(account_id, ()):
            total += self._pools[welcome].count_feasible(shape, ceiling=ceiling, limit=limit - total)
        return total

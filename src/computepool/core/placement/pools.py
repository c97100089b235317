"""The fleet: slots that anybody may have, and beside them an index for each private pool and each owner who asks.

Apart, so that no question looks at slots that are not for whoever asks, however many pools there are. An owner's own
index has all their slots once more, public ones and those of pools, and there nothing costs anything. Nearly nobody
is in a pool or owns a node; for all others this is the public index and nothing more. Those who pay a fixed price per
slice have an order of their own: from the first of them on, the public slots are kept in it once more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from itertools import chain, count, islice

from computepool.core.ids import AccountId, NodeId, SlotName
from computepool.core.placement.fleet import FleetIndex
from computepool.core.placement.leaves import FRESH, Place, Root
from computepool.core.placement.scorers import Candidate, break_tie, score
from computepool.core.placement.shape import Shape
from computepool.core.placement.weights import Preference, Weights

Key = tuple[NodeId, SlotName]
# Whom a pool is for. Nodes that are for the same accounts are one pool.
Welcome = frozenset[AccountId]
# Owners whose own slots are kept in an index; who has not asked for longest is forgotten first.
OWN_INDEXES_MAX = 1_024


class Fleet:
    """Slots that may be given work, and which of them are free. See `FleetIndex`, whose words these are."""

    def __init__(self, sets: Mapping[str, Weights]) -> None:
        self._sets = sets
        self._turns = count(1)
        self._public = FleetIndex(sets, self._turns)
        self._pools: dict[Welcome, FleetIndex] = {}
        self._pools_of: defaultdict[AccountId, set[Welcome]] = defaultdict(set)
        # Which pool a slot is in.
        self._welcome_of: dict[Key, Welcome] = {}
        self._free_in_pools = 0
        # By owner: their slots; and, of those who have asked, an index of these in which nothing costs anything.
        self._owned: defaultdict[AccountId, set[Key]] = defaultdict(set)
        self._own: dict[AccountId | None, FleetIndex] = {}
        # The public slots in the order of fixed prices, once somebody has asked for it.
        self._fixed: FleetIndex | None = None
        # How often somebody has got slots that are not for everybody, who had none.
        self._apart_count = 0

    def make_empty(self) -> Fleet:
        """Another one, with the same sets of weights."""
        return Fleet(self._sets)

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

    def get(self, node_id: NodeId, slot_name: SlotName) -> Candidate:
        """The slot as it is known, be it free or busy. KeyError if it is not."""
        return self._find_index(node_id, slot_name).get(node_id, slot_name)

    def list_roots(self) -> list[Root]:
        """Of the public slots."""
        return self._public.list_roots()

    def list_apart(self, account_ids: Set[AccountId]) -> Set[AccountId]:
        """Of these accounts, those with slots that are not for everybody: their own, or of a pool."""
        return (self._owned.keys() & account_ids) | (self._pools_of.keys() & account_ids)

    def is_apart(self, account_id: AccountId) -> bool:
        return account_id in self._owned or account_id in self._pools_of

    @property
    def version(self) -> int:
        """While it stays the same, `may_suit` says of nothing that it may be run that it said no of before."""
        return self._public.widened_count + self._apart_count

    # Changes

    def add(self, candidate: Candidate) -> None:
        self._forget(candidate.slot.node_id, candidate.slot.name)
        self._insert(candidate)

    def update(self, candidate: Candidate) -> None:
        slot = candidate.slot
        key = (slot.node_id, slot.name)
        index = self._find_index(*key)
        if self._welcome_of.get(key) == slot.welcome and index.get(*key).owner_id == candidate.owner_id:
            index.update(candidate)
            if (own := self._own.get(candidate.owner_id)) is not None:
                own.update(to_own(candidate))
            if self._fixed is not None and slot.welcome is None:
                self._fixed.update(candidate)
            return
        # Into a pool, out of it or to another one: what was busy stays busy.
        place = index.get_place(*key)
        self._forget(*key)
        self._insert(candidate, place)

    def remove(self, node_id: NodeId, slot_name: SlotName) -> None:
        if (node_id, slot_name) not in self:
            raise KeyError((node_id, slot_name))
        self._forget(node_id, slot_name)

    def take(self, node_id: NodeId, slot_name: SlotName) -> Candidate:
        if not self._pools and not self._own and self._fixed is None:
            return self._public.take(node_id, slot_name)
        taken = self._find_index(node_id, slot_name).take(node_id, slot_name)
        self._free_in_pools -= taken.slot.welcome is not None
        for copy in self._list_copies(taken):
            copy.take(node_id, slot_name)
        return taken

    def withdraw(self, node_id: NodeId, slot_name: SlotName) -> None:
        index = self._find_index(node_id, slot_name)
        index.withdraw(node_id, slot_name)
        self._free_in_pools -= (node_id, slot_name) in self._welcome_of
        for copy in self._list_copies(index.get(node_id, slot_name)):
            copy.withdraw(node_id, slot_name)

    def give(self, node_id: NodeId, slot_name: SlotName) -> None:
        index = self._find_index(node_id, slot_name)
        index.give(node_id, slot_name)
        self._free_in_pools += (node_id, slot_name) in self._welcome_of
        for copy in self._list_copies(index.get(node_id, slot_name)):
            copy.give(node_id, slot_name, turn=index.get_place(node_id, slot_name).turn)

    def _list_copies(self, candidate: Candidate) -> list[FleetIndex]:
        """Where else the slot stands."""
        copies = []
        if self._own and (own := self._own.get(candidate.owner_id)) is not None:
            copies.append(own)
        if self._fixed is not None and candidate.slot.welcome is None:
            copies.append(self._fixed)
        return copies

    def _insert(self, candidate: Candidate, place: Place = FRESH) -> None:
        slot = candidate.slot
        if candidate.owner_id is not None:
            self._apart_count += candidate.owner_id not in self._owned
            self._owned[candidate.owner_id].add((slot.node_id, slot.name))
            if (own := self._own.get(candidate.owner_id)) is not None:
                own.add(to_own(candidate), place)
        if slot.welcome is None:
            self._public.add(candidate, place)
            if self._fixed is not None:
                self._fixed.add(candidate, place)
            return
        if slot.welcome not in self._pools:
            self._pools[slot.welcome] = FleetIndex(self._sets, self._turns)
            self._apart_count += 1
            for account_id in slot.welcome:
                self._pools_of[account_id].add(slot.welcome)
        self._welcome_of[slot.node_id, slot.name] = slot.welcome
        self._pools[slot.welcome].add(candidate, place)
        self._free_in_pools += place.free

    def _forget(self, node_id: NodeId, slot_name: SlotName) -> None:
        key = (node_id, slot_name)
        if key in self:
            self._disown(self._find_index(*key).get(*key).owner_id, key)
        if key in self._public:
            self._public.remove(*key)
            if self._fixed is not None:
                self._fixed.remove(*key)
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

    def _disown(self, owner_id: AccountId | None, key: Key) -> None:
        if owner_id is None:
            return
        if (own := self._own.get(owner_id)) is not None:
            own.remove(*key)
        self._owned[owner_id].discard(key)
        if not self._owned[owner_id]:
            del self._owned[owner_id]
            self._own.pop(owner_id, None)

    def _find_own(self, account_id: AccountId) -> FleetIndex | None:
        """The account's own slots, where nothing costs anything; None: it has none here.

        Made when its owner first asks, and kept up to date from then on: others pay nothing for it.
        """
        keys = self._owned.get(account_id)
        if keys is None:
            return None
        own = self._own.pop(account_id, None)
        if own is None:
            while len(self._own) >= OWN_INDEXES_MAX:
                del self._own[next(iter(self._own))]
            own = FleetIndex(self._sets, self._turns)
            for key in keys:
                index = self._find_index(*key)
                own.add(to_own(index.get(*key)), index.get_place(*key))
        # Those that ask stay longest.
        self._own[account_id] = own
        return own

    def _find_public(self, shape: Shape) -> FleetIndex:
        """The public slots in the order of those who pay so. Made when the first of them asks, like owners' own."""
        if shape.base_ceiling_microcredits_per_hour is None:
            return self._public
        if self._fixed is None:
            self._fixed = FleetIndex(self._sets, self._turns, fixed=True)
            for key in self._public.list_keys():
                self._fixed.add(self._public.get(*key), self._public.get_place(*key))
        return self._fixed

    def _find_index(self, node_id: NodeId, slot_name: SlotName) -> FleetIndex:
        """The public one too where the slot is in none: it knows what to say then."""
        welcome = self._welcome_of.get((node_id, slot_name))
        return self._public if welcome is None else self._pools[welcome]

    # Questions

    def list_pools(self, pools_max: int, slots_max: int) -> list[tuple[Welcome, list[Candidate]]]:
        """Some free slots of some pools, in no order that means anything."""
        free = ((welcome, list(islice(pool, slots_max))) for welcome, pool in self._pools.items() if len(pool))
        return list(islice(free, pools_max))

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
        """For this account's work: among the public slots, those of its pools, and its own, which cost it nothing."""
        found = self._find_public(shape).best(shape, preference, weights=weights, ceiling=ceiling, avoid=avoid)
        if account_id is None or not self.is_apart(account_id):
            return found
        indexes = [self._pools[welcome] for welcome in self._pools_of.get(account_id, ())]
        bests = [index.best(shape, preference, weights=weights, ceiling=ceiling, avoid=avoid) for index in indexes]
        if (own := self._find_own(account_id)) is not None:
            # Free of charge, and so of every ceiling; before what others would pay for, where all else is equal.
            bests.insert(0, own.best(shape, preference, weights=weights, avoid=avoid))
        return min(
            (each for each in (*bests, found) if each is not None),
            key=lambda each: (
                -score(each, shape, self._sets[weights], preference),
                break_tie(each, gpu=shape.gpu, turn=self._find_turn(each)),
            ),
            default=None,
        )

    def _find_turn(self, candidate: Candidate) -> int:
        node_id, slot_name = candidate.slot.node_id, candidate.slot.name
        return self._find_index(node_id, slot_name).get_place(node_id, slot_name).turn

    def ranked(
        self, shape: Shape, preference: Preference, k: int, *, weights: str = "default", ceiling: int | None = None
    ) -> list[Candidate]:
        """Of the public slots."""
        return self._find_public(shape).ranked(shape, preference, k, weights=weights, ceiling=ceiling)

    def may_suit(self, shape: Shape, account_ids: Set[AccountId]) -> bool:
        """Whether there may be a slot, free or busy, for such work of one of these accounts."""
        return (
            not self._owned.keys().isdisjoint(account_ids)
            or not self._pools_of.keys().isdisjoint(account_ids)
            or self._public.may_suit(shape, ceiling=shape.ceiling_microcredits_per_hour)
        )

    def count_feasible(self, shape: Shape, *, ceiling: int | None = None, limit: int | None = None) -> int:
        """How many public slots are free and pass every gate; with a limit, counting ends there."""
        return self._public.count_feasible(shape, ceiling=ceiling, limit=limit)

    def count_apart(self, shape: Shape, account_id: AccountId, *, ceiling: int | None, limit: int) -> int:
        """How many more there are for this account: its own, and those of its pools. One may be counted twice."""
        own = self._find_own(account_id)
        total = own.count_feasible(shape, limit=limit) if own is not None else 0
        for welcome in self._pools_of.get(account_id, ()):
            total += self._pools[welcome].count_feasible(shape, ceiling=ceiling, limit=limit - total)
        return total


def to_own(candidate: Candidate) -> Candidate:
    """As its owner sees it: for nothing."""
    return replace(
        candidate,
        price_microcredits_per_hour=0,
        base_price_microcredits_per_hour=0,
        spot_microcredits_per_hour=0,
        reference_microcredits_per_hour=0,
    )

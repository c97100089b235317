"""The fleet index: finds the best-scoring free slot for a shape without looking at all of them, and finds it exactly.

Slots lie in leaves, each a part of the space of gates (VRAM, cores, RAM, disk, isolation, price, region) of one tier
and of one kind of conditions (which jobs their owners take, how short ones, and what they allow them).
A leaf keeps its slots in order of score, once per kind of question; the leaves stand in order of their best slot.
A question walks the leaves from the best down, passes over those where nothing can fit, and stops at the first slot
that fits. Questions teach the index: one that meets many good slots that fail a gate cuts their leaf in two at the
value it asked for, and is never held up there again. Why it is built so: docs/internals/fleet-index.md.

Leaves and what they hold are in leaves.py. Knows neither time nor nodes nor queues, nor who may have a slot: private
pools are for pools.py. Not safe for threads: one round at a time owns it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from itertools import compress, count, islice
from math import inf
from typing import Any

from computepool.core.ids import NodeId, SlotName
from computepool.core.placement.leaves import (
    FRESH,
    NUMBERS,
    REGION,
    TURN,
    Entry,
    Fork,
    Key,
    Leaf,
    Mask,
    Ordering,
    Place,
    Plan,
    Root,
    make_keys,
    renew,
)
from computepool.core.placement.scorers import Candidate, to_factors
from computepool.core.placement.shape import Shape
from computepool.core.placement.slot import SlotKind
from computepool.core.placement.weights import Preference, Weights

# Leaves are walked one by one, so their number is bounded by the number of slots: strange wishes cut no further.
LEAVES_MIN = 256
SLOTS_PER_LEAF_MIN = 32
# One question does not pay for everything that is to be cut: the next ones go on where it stopped.
CUTS_PER_QUESTION_MAX = 2
# What is remembered per shape and ceiling is forgotten, oldest first, beyond this number.
PLANS_MAX = 4_096
MASKS_MAX = 4_096


class FleetIndex:
    """Slots that may be given work, and which of them are free.

    `add`, `update` and `remove` follow what is known of a node; `take` and `give` follow leases and are cheaper. Of
    slots that are alike the one that has been without work for longest is the best: work goes round.
    """

    def __init__(
        self, sets: Mapping[str, Weights], turns: Iterator[int] | None = None, *, fixed: bool = False
    ) -> None:
        """`turns` grow with every slot that comes back from work; indexes of one fleet share them.

        `fixed`: for questions of those who pay a fixed price per slice, and of nobody else.
        """
        self._fixed = fixed
        # The set of weights that stands first.
        self.first_weights = next(iter(sets), "")
        self._orderings: list[Ordering] = []
        self._by_wish: dict[tuple[bool, Preference, str], Ordering] = {}
        self._entries: dict[tuple[NodeId, SlotName], Entry] = {}
        # The leaf, or the fork that leads to its leaves.
        self._roots: dict[Root, Leaf | Fork] = {}
        # By position. A leaf that was cut keeps its place here but stands in no ordering any more.
        self._leaves: list[Leaf] = []
        self._plans: dict[tuple[Shape, int | None], Plan] = {}
        self._masks: dict[tuple[int, Any], Mask] = {}
        self._free_count = 0
        self._entry_count = 0
        # Grows when a slot comes that could run what none could before.
        self.widened_count = 0
        self._turns = count(1) if turns is None else turns
        for name, weights in sets.items():
            self._order_by(name, weights)
        # One bit per ordering, by kind of slot: GPU work never asks for the order of CPU slots.
        self._listable = {
            gpu: sum(1 << ordering.number for ordering in self._orderings if gpu or not ordering.gpu)
            for gpu in (False, True)
        }

    def _order_by(self, name: str, weights: Weights) -> None:
        """Wishes that come to the same factors share one ordering, such as all three of the set `classic`."""
        for gpu in (False, True):
            for preference in Preference:
                factors = to_factors(weights, preference)
                found = next((o for o in self._orderings if o.gpu is gpu and o.factors == factors), None)
                if found is None:
                    found = Ordering(len(self._orderings), gpu, factors)
                    self._orderings.append(found)
                self._by_wish[gpu, preference, name] = found

    def __len__(self) -> int:
        """How many slots are free."""
        return self._free_count

    def __iter__(self) -> Iterator[Candidate]:
        """The free slots, in no order that means anything."""
        return (entry.candidate for entry in self._entries.values() if entry.free)

    def __contains__(self, key: tuple[NodeId, SlotName]) -> bool:
        """Whether the slot is known, be it free or busy."""
        return key in self._entries

    def is_empty(self) -> bool:
        """Whether no slot is known, free or busy."""
        return not self._entries

    def list_roots(self) -> list[Root]:
        """The kinds of slots, tiers and conditions that are known."""
        return list(self._roots)

    def list_keys(self) -> list[tuple[NodeId, SlotName]]:
        """Of all slots, free and busy."""
        return list(self._entries)

    def is_free(self, node_id: NodeId, slot_name: SlotName) -> bool:
        """KeyError if it is not known."""
        return self._entries[node_id, slot_name].free

    def get(self, node_id: NodeId, slot_name: SlotName) -> Candidate:
        """The slot as it is known, be it free or busy. KeyError if it is not."""
        return self._entries[node_id, slot_name].candidate

    def get_place(self, node_id: NodeId, slot_name: SlotName) -> Place:
        """KeyError if it is not known."""
        entry = self._entries[node_id, slot_name]
        return Place(entry.free, entry.turn, entry.worked)

    @property
    def leaf_count(self) -> int:
        return sum(1 for leaf in self._leaves if not leaf.retired)

    # Changes

    def add(self, candidate: Candidate, place: Place = FRESH) -> None:
        """A slot, new or in place of what was known of it; free, unless its place in another index says otherwise."""
        self._forget((candidate.slot.node_id, candidate.slot.name))
        self._insert(candidate, place)

    def update(self, candidate: Candidate) -> None:
        """Another price, speed, reliability or capability. A busy slot stays busy. KeyError if it is not known."""
        key = (candidate.slot.node_id, candidate.slot.name)
        entry = self._entries[key]
        if entry.candidate == candidate:
            return
        place = self.get_place(*key)
        self._forget(key)
        self._insert(candidate, place)

    def remove(self, node_id: NodeId, slot_name: SlotName) -> None:
        """KeyError if it is not known."""
        if not self._forget((node_id, slot_name)):
            raise KeyError((node_id, slot_name))

    def take(self, node_id: NodeId, slot_name: SlotName) -> Candidate:
        """The slot has work from now on. The lists learn of it when somebody next looks there."""
        entry = self._entries[node_id, slot_name]
        if not entry.free:
            raise ValueError(f"slot {slot_name} of node {node_id} is taken already")
        entry.free = False
        entry.worked = True
        entry.leaf.free_count -= 1
        self._free_count -= 1
        return entry.candidate

    def withdraw(self, node_id: NodeId, slot_name: SlotName) -> None:
        """The slot is not offered for now, and comes back to the place that it has."""
        self.take(node_id, slot_name)
        self._entries[node_id, slot_name].worked = False

    def give(self, node_id: NodeId, slot_name: SlotName, *, turn: int | None = None) -> None:
        """The slot is free again. If it has had work, those that are like it and free already come before it.

        `turn` is the one that it has got in another index of the fleet.
        """
        entry = self._entries[node_id, slot_name]
        if entry.free:
            raise ValueError(f"slot {slot_name} of node {node_id} is free already")
        if entry.worked:
            entry.worked = False
            entry.turn = next(self._turns) if turn is None else turn
        entry.free = True
        entry.leaf.free_count += 1
        self._free_count += 1
        self._offer(entry)

    # Questions

    def best(
        self,
        shape: Shape,
        preference: Preference,
        *,
        weights: str = "default",
        ceiling: int | None = None,
        avoid: NodeId | None = None,
    ) -> Candidate | None:
        """The free slot with the highest score among those that pass every gate, or None.

        `ceiling` is the most that the job pays, in microcredits per hour; `avoid` is a node to keep away from.
        """
        ordering = self._by_wish[shape.gpu, preference, weights]
        plan = self._plans.get((shape, ceiling))
        if plan is None or plan.known < len(self._leaves):
            plan = self._plan(shape, ceiling)
        number, places, positions = ordering.number, ordering.places, ordering.positions
        may_fit = plan.may_fit
        cuts_left = CUTS_PER_QUESTION_MAX
        chosen: Key | None = None
        at = 0
        while True:
            # The next leaf where something may fit. Many are passed over, so this is left to C.
            at = next(compress(count(at), map(may_fit.__getitem__, islice(positions, at, None))), -1)
            if at < 0:
                break
            bound = places[at]
            if chosen is not None and chosen < bound:
                break
            leaf = self._leaves[positions[at]]
            first = leaf.settle(number)
            if first is not bound:
                # The leaf's best slot was taken, or had its turn, since it found its place here.
                if first is None or (at + 1 < len(places) and places[at + 1] < first):
                    ordering.move(leaf, first)
                    continue
                places[at] = leaf.bounds[number] = first
                if chosen is not None and chosen < first:
                    break
            entry = first[2]
            if plan.passes(entry) and entry.candidate.slot.node_id != avoid:
                # No other leaf can hold a better one: they stand in order.
                return entry.candidate
            found, spent = leaf.search(number, plan, avoid, chosen)
            if spent and cuts_left and self._may_cut(leaf):
                cuts_left -= 1
                self._cut(leaf, *plan.find_cut(leaf.lists[number]))
                plan = self._plan(shape, ceiling)
                may_fit = plan.may_fit
                continue
            if found is not None:
                chosen = found
            at += 1
        return chosen[2].candidate if chosen is not None else None

    def ranked(
        self,
        shape: Shape,
        preference: Preference,
        k: int,
        *,
        weights: str = "default",
        ceiling: int | None = None,
        avoid: NodeId | None = None,
    ) -> list[Candidate]:
        """The k best, best first: the winner and the runners-up. It answers people, so it need not be as fast."""
        ordering = self._by_wish[shape.gpu, preference, weights]
        plan = self._plan(shape, ceiling)
        found: list[Key] = []
        if k < 1:
            return []
        for bound, position in zip(ordering.places, ordering.positions, strict=True):
            if len(found) >= k and found[k - 1] < bound:
                break
            if not plan.may_fit[position]:
                continue
            leaf = self._leaves[position]
            leaf.settle(ordering.number)
            fitting = 0
            for key in leaf.lists[ordering.number]:
                if fitting >= k or (len(found) >= k and found[k - 1] < key):
                    break
                entry = key[2]
                if entry.free and plan.passes(entry) and entry.candidate.slot.node_id != avoid:
                    insort(found, renew(key))
                    # One that stands too far in front may yet fall behind the next ones.
                    fitting += key[1][TURN] == entry.turn
        return [key[2].candidate for key in found[:k]]

    def count_feasible(self, shape: Shape, *, ceiling: int | None = None, limit: int | None = None) -> int:
        """How many free slots pass every gate; with a limit, counting ends there."""
        plan = self._plan(shape, ceiling)
        most = len(self._entries) if limit is None else limit
        total = 0
        for position, leaf in enumerate(self._leaves):
            if total >= most:
                break
            if leaf.retired or not leaf.free_count or not plan.may_fit[position]:
                continue
            if plan.suits_all(leaf):
                total += leaf.free_count
            elif not plan.suits_none(leaf):
                total += sum(1 for entry in leaf.entries if entry.free and plan.passes(entry))
        return min(total, most)

    def may_suit(self, shape: Shape, *, ceiling: int | None = None) -> bool:
        """Whether there may be a slot, free or busy, that passes every gate. No: not before `widened_count` grows."""
        plan = self._plan(shape, ceiling)
        return any(
            fits and not leaf.retired and not plan.suits_none(leaf)
            for fits, leaf in zip(plan.may_fit, self._leaves, strict=True)
        )

    # Slots in and out of leaves

    def _insert(self, candidate: Candidate, place: Place) -> None:
        self._entry_count += 1
        entry = Entry(candidate, self._entry_count, place)
        leaf = self._leaf_of(entry)
        entry.keys = make_keys(entry, self._orderings, leaf.listable, fixed=self._fixed)
        entry.leaf = leaf
        self.widened_count += leaf.hold(entry)
        self._entries[candidate.slot.node_id, candidate.slot.name] = entry
        if place.free:
            leaf.free_count += 1
            self._free_count += 1
            self._offer(entry)
        if len(leaf.entries) > leaf.size_max:
            self._halve(leaf)

    def _forget(self, key: tuple[NodeId, SlotName]) -> bool:
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        if entry.free:
            entry.free = False
            entry.leaf.free_count -= 1
            self._free_count -= 1
        entry.leaf.drop(entry)
        return True

    def _offer(self, entry: Entry) -> None:
        """Makes sure that a free slot is found: it stands in every list, and its leaf not behind it in any order."""
        leaf = entry.leaf
        # Where it is listed, be it free or busy, its leaf does not stand behind it, nor behind a later turn of it.
        missing = leaf.listable & ~entry.listed
        entry.listed = leaf.listable
        while missing:
            number = missing.bit_length() - 1
            missing ^= 1 << number
            key = renew(entry.keys[number])
            leaf.fresh[number].append(key)
            bound = leaf.bounds[number]
            if bound is None or key < bound:
                self._orderings[number].move(leaf, key)

    # Leaves

    def _leaf_of(self, entry: Entry) -> Leaf:
        slot = entry.candidate.slot
        root = Root(slot.kind is SlotKind.GPU, slot.tier, slot.job_kinds, slot.slice_seconds_min, slot.allows)
        node = self._roots.get(root)
        if node is None:
            node = self._roots[root] = self._grow_leaf(root, (inf,) * NUMBERS, None, frozenset())
        while isinstance(node, Fork):
            node = node.lead(entry)
        return node

    def _grow_leaf(
        self,
        root: Root,
        highest: tuple[float, ...],
        regions: frozenset[str] | None,
        regions_barred: frozenset[str],
    ) -> Leaf:
        leaf = Leaf(len(self._leaves), len(self._orderings), root, highest, regions, regions_barred)
        leaf.listable = self._listable[root.gpu]
        self._leaves.append(leaf)
        return leaf

    def _may_cut(self, leaf: Leaf) -> bool:
        leaves_max = max(LEAVES_MIN, len(self._entries) // SLOTS_PER_LEAF_MIN)
        return leaf.is_worth_cutting() and len(self._leaves) < 2 * leaves_max

    def _cut(self, leaf: Leaf, gate: int, value: Any) -> None:
        """Replaces a leaf by two: slots that pass this gate with this wish, and those that do not."""
        if gate == REGION:
            within = value if leaf.regions is None else leaf.regions & value
            passing = self._grow_leaf(leaf.root, leaf.highest, within, leaf.regions_barred)
            barred = leaf.regions_barred | value
            failing = self._grow_leaf(leaf.root, leaf.highest, leaf.regions, barred)
        else:
            lower = (*leaf.highest[:gate], value - 1, *leaf.highest[gate + 1 :])
            passing = self._grow_leaf(leaf.root, leaf.highest, leaf.regions, leaf.regions_barred)
            failing = self._grow_leaf(leaf.root, lower, leaf.regions, leaf.regions_barred)
        fork = Fork(gate, value, passing, failing, leaf.parent)
        if leaf.parent is None:
            self._roots[leaf.root] = fork
        else:
            leaf.parent.replace(leaf, fork)
        passing.parent = failing.parent = fork
        for ordering in self._orderings:
            ordering.move(leaf, None)
        leaf.pour_into(fork)
        for part in (passing, failing):
            part.size_max = leaf.size_max
            for ordering in self._orderings:
                ordering.move(part, part.estimate(ordering.number))

    def _halve(self, leaf: Leaf) -> None:
        """Cuts where the two parts come out most alike; slots that are alike in every gate may well stay together."""
        size = len(leaf.entries)
        evenness, gate, value = 0, 0, 0
        for each in range(NUMBERS):
            numbers = sorted(entry.gates[each] for entry in leaf.entries)
            middle = numbers[size // 2]
            below = bisect_left(numbers, middle)
            if min(below, size - below) > evenness:
                evenness, gate, value = min(below, size - below), each, middle
        if evenness * 8 < size:
            leaf.size_max = 2 * size
        else:
            self._cut(leaf, gate, value)

    # Plans

    def _plan(self, shape: Shape, ceiling: int | None) -> Plan:
        """What is remembered of a shape and a ceiling, brought up to date."""
        plan = self._plans.get((shape, ceiling))
        if plan is None:
            _make_room(self._plans, PLANS_MAX)
            plan = self._plans[shape, ceiling] = Plan(shape, ceiling)
        leaf_count = len(self._leaves)
        if plan.known < leaf_count:
            # One byte per leaf in one long number: gates are put together by C, however many leaves there are.
            bits = (1 << 8 * leaf_count) - 1
            for gate, wish in plan.gates:
                bits &= self._mask(gate, wish)
            plan.may_fit = bits.to_bytes(leaf_count, "little")
            plan.known = leaf_count
        return plan

    def _mask(self, gate: int, wish: Any) -> int:
        """Which leaves may hold a slot that passes this gate. Shapes are many, but they share their wishes."""
        mask = self._masks.get((gate, wish))
        if mask is None:
            _make_room(self._masks, MASKS_MAX)
            mask = self._masks[gate, wish] = Mask()
        leaves = self._leaves
        if mask.known < len(leaves):
            grown = bytes(255 * leaf.may_pass(gate, wish) for leaf in leaves[mask.known :])
            mask.bits |= int.from_bytes(grown, "little") << 8 * mask.known
            mask.known = len(leaves)
        return mask.bits


def _make_room(remembered: dict[Any, Any], most: int) -> None:
    while len(remembered) >= most:
        del remembered[next(iter(remembered))]

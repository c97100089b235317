"""The fleet index: finds the best-scoring free slot for a shape without looking at all of them, and finds it exactly.

Slots lie in leaves, each a part of the space of gates (VRAM, cores, RAM, disk, isolation, price, region) of one tier
and of one kind of conditions (which jobs their owners take, and how short ones).
A leaf keeps its slots in order of score, once per kind of question; the leaves stand in order of their best slot.
A question walks the leaves from the best down, passes over those where nothing can fit, and stops at the first slot
that fits. Questions teach the index: one that meets many good slots that fail a gate cuts their leaf in two at the
value it asked for, and is never held up there again. Why it is built so: docs/internals/fleet-index.md.

Knows neither time nor nodes nor queues, nor who may have a slot: private pools are for pools.py. Not safe for
threads: one round at a time owns it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from itertools import compress, count, islice
from math import inf
from typing import Any, NamedTuple

from computepool.core.ids import NodeId, SlotName
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.placement.scorers import Candidate, add_up, break_tie, list_values, to_factors
from computepool.core.placement.shape import Shape
from computepool.core.placement.slot import SlotKind
from computepool.core.placement.weights import Preference, Weights

# A leaf is cut when it has refused as often as it has slots: by then a cut would have cost less than it has lost.
# Below this size a look at every slot is cheaper than one leaf more.
CUT_SIZE_MIN = 24
# A leaf larger than this is halved when a slot is added, so that one cut never takes long.
LEAF_SIZE_MAX = 2_048
# Leaves are walked one by one, so their number is bounded by the number of slots: strange wishes cut no further.
LEAVES_MIN = 256
SLOTS_PER_LEAF_MIN = 32
# One question does not pay for everything that is to be cut: the next ones go on where it stopped.
CUTS_PER_QUESTION_MAX = 2
# How many of the best slots that were refused are asked which gate to cut at.
CUT_SAMPLE_SIZE = 64
# A list that makes a question step over this many busy slots is rid of them.
BUSY_MAX = 32
# What is remembered per shape and ceiling is forgotten, oldest first, beyond this number.
PLANS_MAX = 4_096
MASKS_MAX = 4_096

# The numbers that gate, in the order of `_Entry.gates`; a slot passes where its number is not below the wish's.
_VRAM, _CORES, _RAM, _DISK, _ISOLATION, _PRICE, _BASE_PRICE = range(7)
_NUMBERS = 7
_REGION, _TIER, _GPU, _JOB_KIND, _SLICE_SECONDS = range(_NUMBERS, _NUMBERS + 5)

# (score, negated; what breaks ties, ending in a number of its own; the slot). The smallest is the best.
_Key = tuple[float, tuple[Any, ...], "_Entry"]
# Where the turn stands in what breaks ties: before two ids and that number.
_TURN = -4


class Root(NamedTuple):
    """What all slots of a leaf have in common: kind and tier, and whose work their owners take."""

    gpu: bool
    tier: str
    # Empty: all.
    job_kinds: frozenset[str]
    slice_seconds_min: int


class Place(NamedTuple):
    """Where a slot stands among those that are like it."""

    free: bool = True
    # When it last came back from work; 0: it has had none here.
    turn: int = 0
    # Busy, and with work.
    worked: bool = False


FRESH = Place()


class FleetIndex:
    """Slots that may be given work, and which of them are free.

    `add`, `update` and `remove` follow what is known of a node; `take` and `give` follow leases and are cheaper. Of
    slots that are alike the one that has been without work for longest is the best: work goes round.
    """

    def __init__(self, sets: Mapping[str, Weights], turns: Iterator[int] | None = None) -> None:
        """`turns` grow with every slot that comes back from work; indexes of one fleet share them."""
        # The set of weights that stands first.
        self.first_weights = next(iter(sets), "")
        self._orderings: list[_Ordering] = []
        self._by_wish: dict[tuple[bool, Preference, str], _Ordering] = {}
        self._entries: dict[tuple[NodeId, SlotName], _Entry] = {}
        # The leaf, or the fork that leads to its leaves.
        self._roots: dict[Root, _Leaf | _Fork] = {}
        # By position. A leaf that was cut keeps its place here but stands in no ordering any more.
        self._leaves: list[_Leaf] = []
        self._plans: dict[tuple[Shape, int | None], _Plan] = {}
        self._masks: dict[tuple[int, Any], _Mask] = {}
        self._free_count = 0
        self._entry_count = 0
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
                    found = _Ordering(len(self._orderings), gpu, factors)
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
        chosen: _Key | None = None
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
        found: list[_Key] = []
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
                    insort(found, _renew(key))
                    # One that stands too far in front may yet fall behind the next ones.
                    fitting += key[1][_TURN] == entry.turn
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
            else:
                total += sum(1 for entry in leaf.entries if entry.free and plan.passes(entry))
        return min(total, most)

    # Slots in and out of leaves

    def _insert(self, candidate: Candidate, place: Place) -> None:
        self._entry_count += 1
        entry = _Entry(candidate, self._entry_count, place)
        leaf = self._leaf_of(entry)
        entry.keys = _make_keys(entry, self._orderings, leaf.listable)
        entry.leaf = leaf
        leaf.hold(entry)
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

    def _offer(self, entry: _Entry) -> None:
        """Makes sure that a free slot is found: it stands in every list, and its leaf not behind it in any order."""
        leaf = entry.leaf
        # Where it is listed, be it free or busy, its leaf does not stand behind it, nor behind a later turn of it.
        missing = leaf.listable & ~entry.listed
        entry.listed = leaf.listable
        while missing:
            number = missing.bit_length() - 1
            missing ^= 1 << number
            key = _renew(entry.keys[number])
            leaf.fresh[number].append(key)
            bound = leaf.bounds[number]
            if bound is None or key < bound:
                self._orderings[number].move(leaf, key)

    # Leaves

    def _leaf_of(self, entry: _Entry) -> _Leaf:
        slot = entry.candidate.slot
        root = Root(slot.kind is SlotKind.GPU, slot.tier, slot.job_kinds, slot.slice_seconds_min)
        node = self._roots.get(root)
        if node is None:
            node = self._roots[root] = self._grow_leaf(root, (inf,) * _NUMBERS, None, frozenset())
        while isinstance(node, _Fork):
            node = node.lead(entry)
        return node

    def _grow_leaf(
        self,
        root: Root,
        highest: tuple[float, ...],
        regions: frozenset[str] | None,
        regions_barred: frozenset[str],
    ) -> _Leaf:
        leaf = _Leaf(len(self._leaves), len(self._orderings), root, highest, regions, regions_barred)
        leaf.listable = self._listable[root.gpu]
        self._leaves.append(leaf)
        return leaf

    def _may_cut(self, leaf: _Leaf) -> bool:
        leaves_max = max(LEAVES_MIN, len(self._entries) // SLOTS_PER_LEAF_MIN)
        return len(leaf.entries) >= CUT_SIZE_MIN and len(self._leaves) < 2 * leaves_max

    def _cut(self, leaf: _Leaf, gate: int, value: Any) -> None:
        """Replaces a leaf by two: slots that pass this gate with this wish, and those that do not."""
        if gate == _REGION:
            within = value if leaf.regions is None else leaf.regions & value
            passing = self._grow_leaf(leaf.root, leaf.highest, within, leaf.regions_barred)
            barred = leaf.regions_barred | value
            failing = self._grow_leaf(leaf.root, leaf.highest, leaf.regions, barred)
        else:
            lower = (*leaf.highest[:gate], value - 1, *leaf.highest[gate + 1 :])
            passing = self._grow_leaf(leaf.root, leaf.highest, leaf.regions, leaf.regions_barred)
            failing = self._grow_leaf(leaf.root, lower, leaf.regions, leaf.regions_barred)
        fork = _Fork(gate, value, passing, failing, leaf.parent)
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

    def _halve(self, leaf: _Leaf) -> None:
        """Cuts where the two parts come out most alike; slots that are alike in every gate may well stay together."""
        size = len(leaf.entries)
        evenness, gate, value = 0, 0, 0
        for each in range(_NUMBERS):
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

    def _plan(self, shape: Shape, ceiling: int | None) -> _Plan:
        """What is remembered of a shape and a ceiling, brought up to date."""
        plan = self._plans.get((shape, ceiling))
        if plan is None:
            _make_room(self._plans, PLANS_MAX)
            plan = self._plans[shape, ceiling] = _Plan(shape, ceiling)
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
            mask = self._masks[gate, wish] = _Mask()
        leaves = self._leaves
        if mask.known < len(leaves):
            grown = bytes(255 * leaf.may_pass(gate, wish) for leaf in leaves[mask.known :])
            mask.bits |= int.from_bytes(grown, "little") << 8 * mask.known
            mask.known = len(leaves)
        return mask.bits


def _make_room(remembered: dict[Any, Any], most: int) -> None:
    while len(remembered) >= most:
        del remembered[next(iter(remembered))]


class _Ordering:
    """One kind of question, and the leaves in the order in which it should look at them."""

    __slots__ = ("factors", "gpu", "number", "places", "positions")

    def __init__(self, number: int, gpu: bool, factors: tuple[float, ...]) -> None:
        self.number = number
        self.gpu = gpu
        self.factors = factors
        # A leaf stands at its best slot's key, or at a better one that was taken since: never at a worse.
        self.places: list[_Key] = []
        # The leaf that stands at each place.
        self.positions: list[int] = []

    def move(self, leaf: _Leaf, key: _Key | None) -> None:
        """To the place that this key gives it; a leaf without free slots stands nowhere."""
        place = leaf.bounds[self.number]
        if place is not None:
            at = bisect_left(self.places, place)
            del self.places[at], self.positions[at]
        if key is not None:
            at = bisect_left(self.places, key)
            self.places.insert(at, key)
            self.positions.insert(at, leaf.position)
        leaf.bounds[self.number] = key


class _Entry:
    """A slot as the index keeps it. Identity is all: an update makes a new one."""

    __slots__ = ("candidate", "free", "gates", "keys", "leaf", "listed", "region", "serial", "turn", "worked")

    leaf: _Leaf

    def __init__(self, candidate: Candidate, serial: int, place: Place) -> None:
        slot = candidate.slot
        self.candidate = candidate
        self.serial = serial
        # Keys with an earlier turn stand too far in front.
        self.free, self.turn, self.worked = place
        self.gates = (
            slot.vram_bytes,
            slot.cores,
            slot.ram_bytes,
            slot.disk_bytes,
            slot.isolation.rank,
            -candidate.price_microcredits_per_hour,
            -candidate.base_price_microcredits_per_hour,
        )
        self.region = slot.region
        # Its key in each ordering, by number, perhaps of an earlier turn.
        self.keys: tuple[_Key, ...] = ()
        # One bit per ordering in whose list (or among whose fresh ones) it stands.
        self.listed = 0


def _make_keys(entry: _Entry, orderings: list[_Ordering], listable: int) -> tuple[_Key, ...]:
    """One per ordering; where it is never listed, none that is worth making."""
    candidate = entry.candidate
    values = {gpu: list_values(candidate, _MODEST[gpu]) for gpu in (False, True)}
    # The serial number keeps an entry apart from the outdated one of the same slot that may still stand in a list.
    ties = {gpu: (*break_tie(candidate, gpu=gpu, turn=entry.turn), entry.serial) for gpu in (False, True)}
    nowhere: _Key = (inf, (), entry)
    return tuple(
        (-add_up(each.factors, values[each.gpu]), ties[each.gpu], entry) if listable >> each.number & 1 else nowhere
        for each in orderings
    )


def _renew(key: _Key) -> _Key:
    """With the turn that the slot has now. It only grows: an old key stands too far in front, never too far back."""
    score, tie, entry = key
    return key if tie[_TURN] == entry.turn else (score, (*tie[:_TURN], entry.turn, *tie[_TURN + 1 :]), entry)


def _make_modest_shape(gpu: bool) -> Shape:
    return Shape(
        gpu=gpu,
        vram_bytes=0,
        cores=0,
        ram_bytes=0,
        disk_bytes=0,
        tiers=(),
        regions=(),
        isolation=min(IsolationLevel, key=lambda level: level.rank),
    )


# Every slot that fits some shape gets the same score for the shape that asks for least: see scorers.py.
_MODEST = {gpu: _make_modest_shape(gpu) for gpu in (False, True)}


class _Fork:
    """Where a leaf was cut: slots that pass lie on one side, the others on the other."""

    __slots__ = ("failing", "gate", "parent", "passing", "value")

    def __init__(self, gate: int, value: Any, passing: _Leaf, failing: _Leaf, parent: _Fork | None) -> None:
        self.gate = gate
        self.value = value
        self.passing: _Leaf | _Fork = passing
        self.failing: _Leaf | _Fork = failing
        self.parent = parent

    def lead(self, entry: _Entry) -> _Leaf | _Fork:
        passes = entry.region in self.value if self.gate == _REGION else entry.gates[self.gate] >= self.value
        return self.passing if passes else self.failing

    def replace(self, leaf: _Leaf, fork: _Fork) -> None:
        if self.passing is leaf:
            self.passing = fork
        else:
            self.failing = fork


class _Leaf:
    """Slots of one root from one part of the space of gates."""

    __slots__ = (
        "bounds",
        "entries",
        "free_count",
        "fresh",
        "highest",
        "listable",
        "lists",
        "lowest",
        "outdated_count",
        "parent",
        "position",
        "refusal_count",
        "regions",
        "regions_barred",
        "regions_seen",
        "retired",
        "root",
        "size_max",
    )

    def __init__(
        self,
        position: int,
        ordering_count: int,
        root: Root,
        highest: tuple[float, ...],
        regions: frozenset[str] | None,
        regions_barred: frozenset[str],
    ) -> None:
        self.position = position
        self.root = root
        # No slot of this leaf, now or later, has a gate's number above these, or a region outside of these.
        self.highest = highest
        self.regions = regions
        self.regions_barred = regions_barred
        # No slot that is here, or ever was, has a lower number or another region.
        self.lowest: tuple[float, ...] = (inf,) * _NUMBERS
        self.regions_seen: set[str | None] = set()
        self.entries: set[_Entry] = set()
        self.free_count = 0
        self.outdated_count = 0
        self.refusal_count = 0
        self.size_max = LEAF_SIZE_MAX
        # One bit per ordering that its slots take part in.
        self.listable = 0
        self.parent: _Fork | None = None
        self.retired = False
        # Per ordering: slots in order, some of them busy by now; slots not yet sorted in; the leaf's place.
        self.lists: list[list[_Key]] = [[] for _ in range(ordering_count)]
        self.fresh: list[list[_Key]] = [[] for _ in range(ordering_count)]
        self.bounds: list[_Key | None] = [None] * ordering_count

    def hold(self, entry: _Entry) -> None:
        self.entries.add(entry)
        self.lowest = tuple(map(min, self.lowest, entry.gates))
        self.regions_seen.add(entry.region)

    def drop(self, entry: _Entry) -> None:
        """It stays in the lists until somebody comes by, but never do outdated ones outnumber the others."""
        self.entries.discard(entry)
        # An entry and its keys name each other; let go of, they need no collector to be freed.
        entry.keys = ()
        self.outdated_count += 1
        if self.outdated_count > CUT_SIZE_MIN + len(self.entries):
            self.outdated_count = 0
            for lists in (self.lists, self.fresh):
                for keys in lists:
                    keys[:] = [key for key in keys if key[2] in self.entries]

    def settle(self, number: int) -> _Key | None:
        """Sorts in what is fresh, lets go of the busy ones in front, puts those back whose turn is later by now, and
        returns the best."""
        keys, fresh = self.lists[number], self.fresh[number]
        if fresh:
            if len(fresh) * 16 > len(keys):
                keys.extend(fresh)
                keys.sort()
            else:
                for key in fresh:
                    insort(keys, key)
            fresh.clear()
        passed = 0
        late: tuple[_Key, ...] = ()
        for key in keys:
            entry = key[2]
            if not entry.free:
                entry.listed &= ~(1 << number)
            elif key[1][_TURN] == entry.turn:
                break
            else:
                late = (*late, _renew(key))
            passed += 1
        if passed == 1 and late and (len(keys) == 1 or late[0] < keys[1]):
            # It has had its turn, and nobody is like it.
            keys[0] = late[0]
        elif passed:
            del keys[:passed]
            for key in late:
                insort(keys, key)
        return keys[0] if keys else None

    def estimate(self, number: int) -> _Key | None:
        """The best slot or, if that is busy by now, a better one. Sorts nothing: perhaps nobody will ask."""
        return min([*self.lists[number][:1], *self.fresh[number]], default=None)

    def search(self, number: int, plan: _Plan, avoid: NodeId | None, chosen: _Key | None) -> tuple[_Key | None, bool]:
        """The first slot that passes and beats the chosen one, and whether the leaf has refused too often by now."""
        refusal_count = busy = 0
        found = None
        late: list[_Key] = []
        vram_wish, cores_wish, ram_wish, disk_wish, isolation_wish, price_wish, base_price_wish = plan.wish
        regions = plan.regions
        for key in self.lists[number]:
            entry = key[2]
            if not entry.free:
                busy += 1
                continue
            if chosen is not None and chosen < key:
                break
            vram, cores, ram, disk, isolation, price, base_price = entry.gates
            # The same as `_Plan.passes`, written out: most of the time that a search takes is spent here.
            if (
                ram < ram_wish
                or cores < cores_wish
                or price < price_wish
                or isolation < isolation_wish
                or disk < disk_wish
                or vram < vram_wish
                or base_price < base_price_wish
                or (regions and entry.region not in regions)
            ):
                refusal_count += 1
            elif entry.candidate.slot.node_id != avoid:
                if key[1][_TURN] == entry.turn:
                    found = key
                    break
                late.append(key)
        if late:
            renewed = min(self._put_back(number, late))
            if (found is None or renewed < found) and (chosen is None or renewed < chosen):
                found = renewed
        if busy > BUSY_MAX:
            self._let_go_of_busy(number)
        self.refusal_count += refusal_count
        return found, refusal_count > 0 and self.refusal_count >= len(self.entries)

    def _put_back(self, number: int, late: list[_Key]) -> list[_Key]:
        """To where their turns are by now."""
        keys = self.lists[number]
        renewed = [_renew(key) for key in late]
        for key in late:
            del keys[bisect_left(keys, key)]
        for key in renewed:
            insort(keys, key)
        return renewed

    def _let_go_of_busy(self, number: int) -> None:
        keys = self.lists[number]
        for key in keys:
            if not key[2].free:
                key[2].listed &= ~(1 << number)
        keys[:] = [key for key in keys if key[2].free]

    def pour_into(self, fork: _Fork) -> None:
        """Everything moves to the two parts in the order it has, so that nothing need be sorted again."""
        for entry in self.entries:
            part = fork.lead(entry)
            assert isinstance(part, _Leaf)
            entry.leaf = part
            part.entries.add(entry)
            part.free_count += entry.free
        for part in (fork.passing, fork.failing):
            assert isinstance(part, _Leaf)
            part.lowest, part.regions_seen = self.lowest, set(self.regions_seen)
            entries = part.entries
            part.lists = [[key for key in keys if key[2] in entries] for keys in self.lists]
            part.fresh = [[key for key in keys if key[2] in entries] for keys in self.fresh]
        self.retired = True
        self.entries, self.lists, self.fresh = set(), [], []

    def may_pass(self, gate: int, wish: Any) -> bool:
        """Whether this leaf can ever hold a slot that passes the gate. The answer never changes."""
        if gate < _REGION:
            return bool(self.highest[gate] >= wish)
        if gate == _TIER:
            return self.root.tier in wish
        if gate == _GPU:
            return self.root.gpu
        if gate == _JOB_KIND:
            return not self.root.job_kinds or wish in self.root.job_kinds
        if gate == _SLICE_SECONDS:
            return bool(self.root.slice_seconds_min <= wish)
        wanted = wish if self.regions is None else wish & self.regions
        return not wanted <= self.regions_barred


class _Mask:
    """One gate with one wish: a byte of ones for each leaf that may pass."""

    __slots__ = ("bits", "known")

    def __init__(self) -> None:
        self.bits = 0
        self.known = 0


class _Plan:
    """A shape with a ceiling, and which leaves may hold a slot for it."""

    __slots__ = ("gates", "known", "may_fit", "regions", "wish")

    def __init__(self, shape: Shape, ceiling: int | None) -> None:
        base_ceiling = shape.base_ceiling_microcredits_per_hour
        self.regions = frozenset(shape.regions)
        self.wish: tuple[float, ...] = (
            shape.vram_bytes,
            shape.cores,
            shape.ram_bytes,
            shape.disk_bytes,
            shape.isolation.rank,
            -inf if ceiling is None else -ceiling,
            -inf if base_ceiling is None else -base_ceiling,
        )
        self.gates: list[tuple[int, Any]] = list(enumerate(self.wish))
        if self.regions:
            self.gates.append((_REGION, self.regions))
        if shape.tiers:
            self.gates.append((_TIER, frozenset(shape.tiers)))
        if shape.gpu:
            self.gates.append((_GPU, True))
        self.gates += [(_JOB_KIND, shape.job_kind), (_SLICE_SECONDS, shape.slice_seconds)]
        # One byte per leaf, by position, for the first `known` of them.
        self.may_fit = b""
        self.known = 0

    def passes(self, entry: _Entry) -> bool:
        """All gates but those of the root, which all slots of the leaf share and which were looked at there."""
        vram, cores, ram, disk, isolation, price, base_price = entry.gates
        wish = self.wish
        return (
            ram >= wish[_RAM]
            and vram >= wish[_VRAM]
            and cores >= wish[_CORES]
            and disk >= wish[_DISK]
            and isolation >= wish[_ISOLATION]
            and price >= wish[_PRICE]
            and base_price >= wish[_BASE_PRICE]
            and (not self.regions or entry.region in self.regions)
        )

    def find_cut(self, keys: list[_Key]) -> tuple[int, Any]:
        """The gate, and the wish there, that holds back most of the slots a search would meet first."""
        refusals = [0] * (_NUMBERS + 1)
        refused = (key[2] for key in keys if key[2].free and not self.passes(key[2]))
        for entry in islice(refused, CUT_SAMPLE_SIZE):
            for gate, (number, wish) in enumerate(zip(entry.gates, self.wish, strict=True)):
                refusals[gate] += number < wish
            refusals[_REGION] += bool(self.regions) and entry.region not in self.regions
        gate = refusals.index(max(refusals))
        return gate, self.regions if gate == _REGION else self.wish[gate]

    def suits_all(self, leaf: _Leaf) -> bool:
        if any(lowest < wish for lowest, wish in zip(leaf.lowest, self.wish, strict=True)):
            return False
        return not self.regions or leaf.regions_seen <= self.regions

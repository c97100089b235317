"""What the fleet index is built of: slots with their keys, leaves that keep them in order, forks where one was cut,
and plans, which are questions made ready. See fleet.py for how they work together."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import islice
from math import inf
from typing import Any, NamedTuple

from computepool.core.ids import NodeId
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.wants import list_refused
from computepool.core.placement.scorers import Candidate, add_up, break_tie, list_values
from computepool.core.placement.shape import Shape

# A leaf is cut when it has refused as often as it has slots: by then a cut would have cost less than it has lost.
# Below this size a look at every slot is cheaper than one leaf more.
CUT_SIZE_MIN = 24
# A leaf larger than this is halved when a slot is added, so that one cut never takes long.
LEAF_SIZE_MAX = 2_048
# How many of the best slots that were refused are asked which gate to cut at.
CUT_SAMPLE_SIZE = 64
# A list that makes a question step over this many busy slots is rid of them.
BUSY_MAX = 32

# The numbers that gate, in the order of `Entry.gates`; a slot passes where its number is not below the wish's.
VRAM, CORES, RAM, DISK, ISOLATION, PRICE, BASE_PRICE = range(7)
NUMBERS = 7
REGION, TIER, GPU, JOB_KIND, SLICE_SECONDS, WANTS = range(NUMBERS, NUMBERS + 6)

# (score, negated; what breaks ties, ending in a number of its own; the slot). The smallest is the best.
Key = tuple[float, tuple[Any, ...], "Entry"]
# Where the turn stands in what breaks ties: before two ids and that number.
TURN = -4


class Root(NamedTuple):
    """What all slots of a leaf have in common: kind and tier, whose work their owners take, what they allow it."""

    gpu: bool
    tier: str
    # Empty: all.
    job_kinds: frozenset[str]
    slice_seconds_min: int
    allows: frozenset[str]


class Place(NamedTuple):
    """Where a slot stands among those that are like it."""

    free: bool = True
    # When it last came back from work; 0: it has had none here.
    turn: int = 0
    # Busy, and with work.
    worked: bool = False


FRESH = Place()


class Ordering:
    """One kind of question, and the leaves in the order in which it should look at them."""

    __slots__ = ("factors", "gpu", "number", "places", "positions")

    def __init__(self, number: int, gpu: bool, factors: tuple[float, ...]) -> None:
        self.number = number
        self.gpu = gpu
        self.factors = factors
        # A leaf stands at its best slot's key, or at a better one that was taken since: never at a worse.
        self.places: list[Key] = []
        # The leaf that stands at each place.
        self.positions: list[int] = []

    def move(self, leaf: Leaf, key: Key | None) -> None:
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


class Entry:
    """A slot as the index keeps it. Identity is all: an update makes a new one."""

    __slots__ = ("candidate", "free", "gates", "keys", "leaf", "listed", "region", "serial", "turn", "worked")

    leaf: Leaf

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
        self.keys: tuple[Key, ...] = ()
        # One bit per ordering in whose list (or among whose fresh ones) it stands.
        self.listed = 0


def make_keys(entry: Entry, orderings: list[Ordering], listable: int, *, fixed: bool = False) -> tuple[Key, ...]:
    """One per ordering; where it is never listed, none that is worth making. `fixed`: as those see it who pay so."""
    candidate = entry.candidate
    values = {gpu: list_values(candidate, _MODEST[gpu, fixed]) for gpu in (False, True)}
    # The serial number keeps an entry apart from the outdated one of the same slot that may still stand in a list.
    ties = {gpu: (*break_tie(candidate, gpu=gpu, turn=entry.turn), entry.serial) for gpu in (False, True)}
    nowhere: Key = (inf, (), entry)
    return tuple(
        (-add_up(each.factors, values[each.gpu]), ties[each.gpu], entry) if listable >> each.number & 1 else nowhere
        for each in orderings
    )


def renew(key: Key) -> Key:
    """With the turn that the slot has now. It only grows: an old key stands too far in front, never too far back."""
    score, tie, entry = key
    return key if tie[TURN] == entry.turn else (score, (*tie[:TURN], entry.turn, *tie[TURN + 1 :]), entry)


def _make_modest_shape(gpu: bool, fixed: bool) -> Shape:
    return Shape(
        gpu=gpu,
        vram_bytes=0,
        cores=0,
        ram_bytes=0,
        disk_bytes=0,
        tiers=(),
        regions=(),
        isolation=min(IsolationLevel, key=lambda level: level.rank),
        base_ceiling_microcredits_per_hour=0 if fixed else None,
    )


# Every slot that fits some shape gets the same score for the shape that asks for least: see scorers.py.
_MODEST = {(gpu, fixed): _make_modest_shape(gpu, fixed) for gpu in (False, True) for fixed in (False, True)}


class Fork:
    """Where a leaf was cut: slots that pass lie on one side, the others on the other."""

    __slots__ = ("failing", "gate", "parent", "passing", "value")

    def __init__(self, gate: int, value: Any, passing: Leaf, failing: Leaf, parent: Fork | None) -> None:
        self.gate = gate
        self.value = value
        self.passing: Leaf | Fork = passing
        self.failing: Leaf | Fork = failing
        self.parent = parent

    def lead(self, entry: Entry) -> Leaf | Fork:
        passes = entry.region in self.value if self.gate == REGION else entry.gates[self.gate] >= self.value
        return self.passing if passes else self.failing

    def replace(self, leaf: Leaf, fork: Fork) -> None:
        if self.passing is leaf:
            self.passing = fork
        else:
            self.failing = fork


class Leaf:
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
        "top",
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
        # No slot that is here, or ever was, has a lower number than these, a higher one, or another region.
        self.lowest: tuple[float, ...] = (inf,) * NUMBERS
        self.top: tuple[float, ...] = (-inf,) * NUMBERS
        self.regions_seen: set[str | None] = set()
        self.entries: set[Entry] = set()
        self.free_count = 0
        self.outdated_count = 0
        self.refusal_count = 0
        self.size_max = LEAF_SIZE_MAX
        # One bit per ordering that its slots take part in.
        self.listable = 0
        self.parent: Fork | None = None
        self.retired = False
        # Per ordering: slots in order, some of them busy by now; slots not yet sorted in; the leaf's place.
        self.lists: list[list[Key]] = [[] for _ in range(ordering_count)]
        self.fresh: list[list[Key]] = [[] for _ in range(ordering_count)]
        self.bounds: list[Key | None] = [None] * ordering_count

    def is_worth_cutting(self) -> bool:
        return len(self.entries) >= CUT_SIZE_MIN

    def hold(self, entry: Entry) -> bool:
        """Whether it has more of anything than every slot that was ever here, or another region."""
        self.entries.add(entry)
        self.lowest = tuple(map(min, self.lowest, entry.gates))
        top = tuple(map(max, self.top, entry.gates))
        widens = top != self.top or entry.region not in self.regions_seen
        self.top = top
        self.regions_seen.add(entry.region)
        return widens

    def drop(self, entry: Entry) -> None:
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

    def settle(self, number: int) -> Key | None:
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
        late: tuple[Key, ...] = ()
        for key in keys:
            entry = key[2]
            if not entry.free:
                entry.listed &= ~(1 << number)
            elif key[1][TURN] == entry.turn:
                break
            else:
                late = (*late, renew(key))
            passed += 1
        if passed == 1 and late and (len(keys) == 1 or late[0] < keys[1]):
            # It has had its turn, and nobody is like it.
            keys[0] = late[0]
        elif passed:
            del keys[:passed]
            for key in late:
                insort(keys, key)
        return keys[0] if keys else None

    def estimate(self, number: int) -> Key | None:
        """The best slot or, if that is busy by now, a better one. Sorts nothing: perhaps nobody will ask."""
        return min([*self.lists[number][:1], *self.fresh[number]], default=None)

    def search(self, number: int, plan: Plan, avoid: NodeId | None, chosen: Key | None) -> tuple[Key | None, bool]:
        """The first slot that passes and beats the chosen one, and whether the leaf has refused too often by now."""
        refusal_count = busy = 0
        found = None
        late: list[Key] = []
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
            # The same as `Plan.passes`, written out: most of the time that a search takes is spent here.
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
                if key[1][TURN] == entry.turn:
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

    def _put_back(self, number: int, late: list[Key]) -> list[Key]:
        """To where their turns are by now."""
        keys = self.lists[number]
        renewed = [renew(key) for key in late]
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

    def pour_into(self, fork: Fork) -> None:
        """Everything moves to the two parts in the order it has, so that nothing need be sorted again."""
        for entry in self.entries:
            part = fork.lead(entry)
            assert isinstance(part, Leaf)
            entry.leaf = part
            part.entries.add(entry)
            part.free_count += entry.free
        for part in (fork.passing, fork.failing):
            assert isinstance(part, Leaf)
            part.lowest, part.top, part.regions_seen = self.lowest, self.top, set(self.regions_seen)
            entries = part.entries
            part.lists = [[key for key in keys if key[2] in entries] for keys in self.lists]
            part.fresh = [[key for key in keys if key[2] in entries] for keys in self.fresh]
        self.retired = True
        self.entries, self.lists, self.fresh = set(), [], []

    def may_pass(self, gate: int, wish: Any) -> bool:
        """Whether this leaf can ever hold a slot that passes the gate. The answer never changes."""
        if gate < REGION:
            return bool(self.highest[gate] >= wish)
        if gate == TIER:
            return self.root.tier in wish
        if gate == GPU:
            return self.root.gpu
        if gate == JOB_KIND:
            return not self.root.job_kinds or wish in self.root.job_kinds
        if gate == SLICE_SECONDS:
            return bool(self.root.slice_seconds_min <= wish)
        if gate == WANTS:
            return not list_refused(wish, self.root.allows)
        wanted = wish if self.regions is None else wish & self.regions
        return not wanted <= self.regions_barred


class Mask:
    """One gate with one wish: a byte of ones for each leaf that may pass."""

    __slots__ = ("bits", "known")

    def __init__(self) -> None:
        self.bits = 0
        self.known = 0


class Plan:
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
            self.gates.append((REGION, self.regions))
        if shape.tiers:
            self.gates.append((TIER, frozenset(shape.tiers)))
        if shape.gpu:
            self.gates.append((GPU, True))
        self.gates += [(JOB_KIND, shape.job_kind), (SLICE_SECONDS, shape.slice_seconds)]
        if shape.wants:
            self.gates.append((WANTS, shape.wants))
        # One byte per leaf, by position, for the first `known` of them.
        self.may_fit = b""
        self.known = 0

    def passes(self, entry: Entry) -> bool:
        """All gates but those of the root, which all slots of the leaf share and which were looked at there."""
        vram, cores, ram, disk, isolation, price, base_price = entry.gates
        wish = self.wish
        return (
            ram >= wish[RAM]
            and vram >= wish[VRAM]
            and cores >= wish[CORES]
            and disk >= wish[DISK]
            and isolation >= wish[ISOLATION]
            and price >= wish[PRICE]
            and base_price >= wish[BASE_PRICE]
            and (not self.regions or entry.region in self.regions)
        )

    def find_cut(self, keys: list[Key]) -> tuple[int, Any]:
        """The gate, and the wish there, that holds back most of the slots a search would meet first."""
        refusals = [0] * (NUMBERS + 1)
        refused = (key[2] for key in keys if key[2].free and not self.passes(key[2]))
        for entry in islice(refused, CUT_SAMPLE_SIZE):
            for gate, (number, wish) in enumerate(zip(entry.gates, self.wish, strict=True)):
                refusals[gate] += number < wish
            refusals[REGION] += bool(self.regions) and entry.region not in self.regions
        gate = refusals.index(max(refusals))
        return gate, self.regions if gate == REGION else self.wish[gate]

    def suits_all(self, leaf: Leaf) -> bool:
        if any(lowest < wish for lowest, wish in zip(leaf.lowest, self.wish, strict=True)):
            return False
        return not self.regions or leaf.regions_seen <= self.regions

    def suits_none(self, leaf: Leaf) -> bool:
        """No slot that was ever there has enough of something. If none has enough of everything, it does not say."""
        if any(top < wish for top, wish in zip(leaf.top, self.wish, strict=True)):
            return True
        return bool(self.regions) and self.regions.isdisjoint(leaf.regions_seen)

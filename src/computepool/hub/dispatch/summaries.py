"""How hub processes word what they have free: a summary of the best slots, and notices of what has changed since.

Pure: slots and rows in, rows and slots out. A hub of before reads what it knows and passes over the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from computepool.core.ids import AccountId, NodeId, ShapeId, SlotName
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.order import PriorityClass
from computepool.core.jobs.spec import Requirements
from computepool.core.market.offers import DEFAULT_KIND, SECONDS_MIN_STEPS
from computepool.core.placement.pools import Fleet, Key, Welcome
from computepool.core.placement.rounds import Run
from computepool.core.placement.scorers import Candidate
from computepool.core.placement.shape import to_shape
from computepool.core.placement.slot import Slot, SlotKind
from computepool.core.placement.weights import Preference

# Of each kind and tier, so many of the best free slots are told, for each preference.
TOLD_PER_TIER = 32
TIERS_MAX = 32
# And so many free slots of so many private pools, which few can use.
POOLS_MAX = 32
TOLD_PER_POOL = 4
# Whose slot it is where a hub of before does not say.
NOBODY = NodeId(UUID(int=0))


def list_best(fleet: Fleet) -> list[Candidate]:
    """The best free public slots of each kind and tier, by every preference and for every kind of job."""
    found: dict[tuple[NodeId, SlotName], Candidate] = {}
    asked = {(root.gpu, root.tier, min(root.job_kinds, default=DEFAULT_KIND)) for root in fleet.list_roots()}
    for gpu, tier, job_kind in sorted(asked)[:TIERS_MAX]:
        shape = to_shape(
            Requirements(
                gpu=gpu,
                tiers=(tier,),
                cores=0,
                ram_bytes=0,
                disk_bytes=0,
                job_kind=job_kind,
                slice_seconds=SECONDS_MIN_STEPS[-1],
            )
        )
        for prefer in Preference:
            for candidate in fleet.ranked(shape, prefer, TOLD_PER_TIER, weights=fleet.first_weights):
                found[candidate.slot.node_id, candidate.slot.name] = candidate
    return list(found.values())


def list_summary(fleet: Fleet, *, number: int = 0, hears: bool = False) -> tuple[dict[str, Any], set[Key]]:
    """What is told in the table, and which slots it names. `number` is that of the last notice that it knows of."""
    slots, pools = list_best(fleet), fleet.list_pools(POOLS_MAX, TOLD_PER_POOL)
    told = {_key_of(each) for each in slots}.union(_key_of(each) for _, some in pools for each in some)
    return to_summary(slots, pools, number=number, hears=hears), told


def to_summary(
    slots: Sequence[Candidate],
    pools: Sequence[tuple[Welcome, list[Candidate]]] = (),
    *,
    number: int = 0,
    hears: bool = False,
) -> dict[str, Any]:
    """What came later stands beside the rows, so that a hub of before reads those as it did."""
    return {
        "slots": [to_row(candidate) for candidate in slots],
        "more": [_to_more(candidate) for candidate in slots],
        "references": [candidate.reference_microcredits_per_hour for candidate in slots],
        "allows": [sorted(candidate.slot.allows) for candidate in slots],
        "keys": [_to_key_row(candidate) for candidate in slots],
        "pools": [
            [sorted(map(str, welcome)), [[to_row(each), _to_more(each), _to_key_row(each)] for each in candidates]]
            for welcome, candidates in pools
        ],
        "number": number,
        "hears": hears,
    }


# What stands beside the rows, and what it is where a hub of before told nothing of it.
_LATER: tuple[tuple[str, Any], ...] = (("more", ()), ("references", 0), ("allows", ()), ("keys", ()))


def from_summary(free: dict[str, Any]) -> Iterable[Candidate]:
    columns = [free.get(name, repeat(none)) for name, none in _LATER]
    for row, rest, reference, allows, key in zip(free["slots"], *columns, strict=False):
        yield _from_parts(row, rest, reference, allows, key)
    for accounts, rows in free.get("pools", ()):
        welcome = frozenset(AccountId(UUID(each)) for each in accounts)
        for row, rest, *key in rows:
            candidate = _from_parts(row, rest, 0, (), key[0] if key else ())
            yield replace(candidate, slot=replace(candidate.slot, welcome=welcome))


# Notices


class Ask(NamedTuple):
    """A run of the queue that has got a slice, and the hub process whose slot is the best for it; None: nobody's."""

    run: Run
    hub_process_id: UUID | None


@dataclass(frozen=True, slots=True)
class Notice:
    """What one hub process tells the others by NOTIFY. Each has the next number, so that a lost one is missed."""

    hub_process_id: UUID
    number: int
    asks: Sequence[Ask] = ()
    gone: Sequence[Key] = ()
    free: Sequence[Candidate] = ()
    # There are free slots that stand neither here nor in the summary.
    more: bool = False
    # It shuts down.
    leaves: bool = False


# The most that a notice holds, so that its text stays below the 8,000 bytes that NOTIFY takes.
ASKS_MAX = 48
GONE_MAX = 24
FREE_MAX = 8
ROW_CHARS_MAX = 240
NOTICE_MARK = "{"


def to_notice_text(notice: Notice) -> str:
    """Rows that are too long for it are left out, and told of as `more`."""
    asks, gone, free = notice.asks, notice.gone, notice.free
    assert len(asks) <= ASKS_MAX
    assert len(gone) <= GONE_MAX
    assert len(free) <= FREE_MAX
    rows = [msgspec.Raw(row) for each in free if len(row := msgspec.json.encode(_to_parts(each))) <= ROW_CHARS_MAX]
    text: dict[str, Any] = {"hub": notice.hub_process_id, "number": notice.number}
    if asks:
        # Many accounts ask for the same, and of few hubs: each hub stands here once.
        hubs = list(dict.fromkeys(ask.hub_process_id for ask in asks))
        text["hubs"] = hubs
        text["asks"] = [[*ask.run, hubs.index(ask.hub_process_id)] for ask in asks]
    if gone:
        text["gone"] = [[str(node_id), name] for node_id, name in gone if len(name) <= _NAME_CHARS_MAX]
    if rows:
        text["free"] = rows
    if notice.more or len(rows) < len(free):
        text["more"] = True
    if notice.leaves:
        text["leaves"] = True
    return msgspec.json.encode(text).decode()


class _Head(msgspec.Struct):
    hub: UUID
    number: int


def read_head(text: str) -> tuple[UUID, int]:
    """Whose notice it is, and its number, without reading the rest. ValueError if it is none."""
    head = msgspec.json.decode(text, type=_Head)
    return head.hub, head.number


def from_notice_text(text: str) -> Notice:
    """ValueError or KeyError if it is none."""
    parts = msgspec.json.decode(text)
    hubs = [None if hub is None else UUID(hub) for hub in parts.get("hubs", ())]
    return Notice(
        UUID(parts["hub"]),
        parts["number"],
        [
            Ask(Run(ShapeId(shape_id), PriorityClass(priority_class), AccountId(UUID(account_id))), hubs[hub])
            for shape_id, priority_class, account_id, hub in parts.get("asks", ())
        ],
        [(NodeId(UUID(node_id)), SlotName(name)) for node_id, name in parts.get("gone", ())],
        [_from_parts(*row) for row in parts.get("free", ())],
        parts.get("more", False),
        parts.get("leaves", False),
    )


_NAME_CHARS_MAX = 32


# Rows


def _key_of(candidate: Candidate) -> Key:
    return candidate.slot.node_id, candidate.slot.name


def _to_key_row(candidate: Candidate) -> list[str]:
    return [str(candidate.slot.node_id), candidate.slot.name]


def _to_parts(candidate: Candidate) -> list[Any]:
    return [
        to_row(candidate),
        _to_more(candidate),
        candidate.reference_microcredits_per_hour,
        sorted(candidate.slot.allows),
        _to_key_row(candidate),
    ]


def _from_parts(
    row: list[Any], rest: Sequence[Any], reference: int, allows: Sequence[str], key: Sequence[str]
) -> Candidate:
    candidate = from_row(row, *rest)
    node_id, name = (NodeId(UUID(key[0])), SlotName(key[1])) if key else (NOBODY, SlotName(""))
    slot = replace(candidate.slot, node_id=node_id, name=name, allows=frozenset(allows))
    return replace(candidate, slot=slot, reference_microcredits_per_hour=reference)


def _to_more(candidate: Candidate) -> list[Any]:
    owner_id = candidate.owner_id
    return [
        candidate.base_price_microcredits_per_hour,
        candidate.spot_microcredits_per_hour,
        None if owner_id is None else str(owner_id),
    ]


def to_row(candidate: Candidate) -> list[Any]:
    slot = candidate.slot
    return [
        slot.kind.value,
        slot.tier,
        slot.vram_bytes,
        slot.cores,
        slot.ram_bytes,
        slot.disk_bytes,
        slot.region,
        slot.isolation.value,
        candidate.speed_tflops,
        candidate.price_microcredits_per_hour,
        candidate.reliability,
        # Told where there are some: a hub of before offers had conditions reads all other rows as it did.
        *([slot.slice_seconds_min, sorted(slot.job_kinds)] if slot.slice_seconds_min or slot.job_kinds else []),
    ]


def from_row(row: list[Any], base_price: int = 0, spot: int = 0, owner: str | None = None) -> Candidate:
    kind, tier, vram, cores, ram, disk, region, isolation, speed, price, reliability, *conditions = row
    slice_seconds_min, job_kinds = conditions or (0, ())
    slot = Slot(
        node_id=NOBODY,
        name=SlotName(""),
        kind=SlotKind(kind),
        tier=tier,
        vram_bytes=vram,
        cores=cores,
        ram_bytes=ram,
        disk_bytes=disk,
        region=region,
        isolation=IsolationLevel(isolation),
        slice_seconds_min=slice_seconds_min,
        job_kinds=frozenset(job_kinds),
    )
    owner_id = None if owner is None else AccountId(UUID(owner))
    return Candidate(slot, speed, price, reliability, base_price, owner_id, spot)

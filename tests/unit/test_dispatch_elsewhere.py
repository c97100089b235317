"""What other hubs have free: a hint that is right about the gates, about the score, and about how many it is for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from computepool.core.ids import ShapeId, SlotName
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.order import PriorityClass
from computepool.core.placement.pools import Fleet
from computepool.core.placement.rounds import Run, patience_seconds
from computepool.core.placement.scorers import Candidate, score
from computepool.core.placement.slot import SlotKind
from computepool.core.placement.weights import Preference
from computepool.hub.dispatch import elsewhere as elsewhere_module
from computepool.hub.dispatch.elsewhere import AWAITED_SECONDS, MARGIN, SCARCE_GAP, Elsewhere
from computepool.hub.dispatch.summaries import (
    ASKS_MAX,
    FREE_MAX,
    GONE_MAX,
    POOLS_MAX,
    TOLD_PER_POOL,
    TOLD_PER_TIER,
    Ask,
    Notice,
    from_notice_text,
    from_row,
    list_best,
    to_notice_text,
    to_row,
)
from tests.support.builders import GB, account_number, make_candidate, make_shape, make_slot, node_number
from tests.support.head_queue import SETS

WEIGHTS = SETS["default"]
HERE, THERE, FURTHER = UUID(int=1), UUID(int=2), UUID(int=3)
CREDIT = 1_000_000
RUN = Run(ShapeId(1), PriorityClass.NORMAL, account_number(1))
CPU_WORK, GPU_WORK = make_shape(), make_shape(gpu=True, vram_bytes=8 * GB)


def cpu(number: int = 1, *, price: int = CREDIT, **slot: Any) -> Candidate:
    return make_candidate(make_slot(node_id=node_number(number), **slot), price_microcredits_per_hour=price)


def card(number: int = 1, *, price: int = CREDIT, vram_bytes: int = 12 * GB, **slot: Any) -> Candidate:
    return cpu(number, price=price, vram_bytes=vram_bytes, **slot)


class Table:
    """The table hub_summaries, in memory; through JSON, as in the database."""

    def __init__(self) -> None:
        self.rows: dict[UUID, bytes] = {}

    async def exchange_summaries(
        self, conn: Any, *, hub_process_id: UUID, free: Any, seconds: float
    ) -> dict[UUID, Any]:
        self.rows[hub_process_id] = msgspec.json.encode(free)
        return {id: msgspec.json.decode(row) for id, row in self.rows.items() if id != hub_process_id}

    async def delete_summary(self, conn: Any, hub_process_id: UUID) -> None:
        self.rows.pop(hub_process_id, None)


class NoPool:
    """Whoever asks for a connection gets none: the table is in memory."""

    def acquire(self) -> NoPool:
        return self

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *_: object) -> None:
        return None


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    table = Table()
    monkeypatch.setattr(elsewhere_module.hub_store, "exchange_summaries", table.exchange_summaries)
    monkeypatch.setattr(elsewhere_module.hub_store, "delete_summary", table.delete_summary)
    return table


def make_hub(hub_process_id: UUID, *free: Candidate) -> Elsewhere:
    fleet = Fleet(SETS)
    for candidate in free:
        fleet.add(candidate)
    return Elsewhere(NoPool(), fleet, WEIGHTS, hub_process_id)


async def meet(*free: Candidate) -> Elsewhere:
    """A hub that has heard of another with these slots free."""
    here = make_hub(HERE)
    await make_hub(THERE, *free).exchange()
    await here.exchange()
    return here


async def test_a_hub_is_alone_until_it_hears_of_another(table):
    here, there = make_hub(HERE), make_hub(THERE)
    await here.exchange()
    assert here.alone
    assert not here.find_gap(CPU_WORK, Preference.VALUE, cpu())
    await there.exchange()
    await here.exchange()
    assert (here.alone, there.alone) == (False, False)


async def test_a_hub_that_leaves_is_not_waited_for(table):
    here, there = make_hub(HERE), make_hub(THERE, cpu(price=1))
    await there.exchange()
    await here.exchange()
    await there.leave()
    await here.exchange()
    assert here.alone


async def test_a_cheaper_or_faster_slot_elsewhere_is_better(table):
    here = await meet(cpu(price=CREDIT // 2))
    assert here.find_gap(CPU_WORK, Preference.VALUE, cpu(price=CREDIT))
    assert not here.find_gap(CPU_WORK, Preference.VALUE, cpu(price=CREDIT // 4))
    assert not here.find_gap(CPU_WORK, Preference.FASTEST, cpu(price=CREDIT)), "who wants speed is not lured by price"


async def test_a_slot_that_is_hardly_better_is_not_worth_waiting_for(table):
    here = await meet(cpu(price=CREDIT))
    assert not here.find_gap(CPU_WORK, Preference.VALUE, cpu(price=int(CREDIT * (1 + MARGIN / 2))))
    assert here.find_gap(CPU_WORK, Preference.VALUE, cpu(price=int(CREDIT * (1 + 2 * MARGIN))))


async def test_cpu_work_waits_for_a_cpu_slot_elsewhere_rather_than_take_a_gpu_here(table):
    here = await meet(cpu(price=100 * CREDIT))
    assert here.find_gap(CPU_WORK, Preference.VALUE, card(price=1))


async def test_cpu_work_waits_a_moment_before_it_takes_a_gpu_even_if_no_cpu_slot_was_told_of(table):
    here = await meet(card(price=1))
    assert here.find_gap(CPU_WORK, Preference.VALUE, card(price=1)) == SCARCE_GAP


async def test_cpu_work_takes_the_better_card_first(table):
    """Whoever has the worse one waits longer than whoever has the better one."""
    here = await meet(card(price=CREDIT))
    assert here.find_gap(CPU_WORK, Preference.VALUE, card(2, price=CREDIT // 2), "better here") == SCARCE_GAP
    worse = here.find_gap(CPU_WORK, Preference.VALUE, card(2, price=CREDIT + CREDIT // 20), "worse here")
    assert patience_seconds(worse) > patience_seconds(SCARCE_GAP)


async def test_cpu_work_never_leaves_a_cpu_slot_for_a_gpu_elsewhere(table):
    here = await meet(card(price=0))
    assert not here.find_gap(CPU_WORK, Preference.VALUE, cpu(price=100 * CREDIT))


@pytest.mark.parametrize(
    "shape",
    [
        replace(GPU_WORK, vram_bytes=24 * GB),
        replace(GPU_WORK, tiers=("rtx-4090",)),
        replace(GPU_WORK, cores=64),
        replace(GPU_WORK, ram_bytes=64 * GB),
        replace(GPU_WORK, disk_bytes=500 * GB),
        replace(GPU_WORK, regions=("DE",)),
        replace(GPU_WORK, isolation=IsolationLevel.GVISOR),
        replace(GPU_WORK, ceiling_microcredits_per_hour=0),
        replace(GPU_WORK, base_ceiling_microcredits_per_hour=1),
    ],
    ids=["vram", "tier", "cores", "ram", "disk", "region", "isolation", "price", "price per slice"],
)
async def test_a_slot_elsewhere_that_misses_a_gate_is_not_waited_for(table, shape):
    here = await meet(replace(card(price=1, tier="rtx-3090"), base_price_microcredits_per_hour=2))
    dear = card(price=100 * CREDIT)
    assert here.find_gap(GPU_WORK, Preference.VALUE, dear)
    assert not here.find_gap(shape, Preference.VALUE, dear)


async def test_no_two_slices_wait_for_the_same_slot(table):
    here = await meet(cpu(price=1), cpu(2, price=1))
    dear = cpu(price=CREDIT)
    assert here.find_gap(CPU_WORK, Preference.VALUE, dear, "first")
    assert here.find_gap(CPU_WORK, Preference.VALUE, dear, "second")
    assert not here.find_gap(CPU_WORK, Preference.VALUE, dear, "third")
    assert here.find_gap(CPU_WORK, Preference.VALUE, dear, "first"), "who waits already goes on waiting"


async def test_what_is_told_anew_is_for_everybody_again(table):
    here = await meet(cpu(price=1))
    assert here.find_gap(CPU_WORK, Preference.VALUE, cpu(), "first")
    assert not here.find_gap(CPU_WORK, Preference.VALUE, cpu(), "second")
    await here.exchange()
    assert here.find_gap(CPU_WORK, Preference.VALUE, cpu(), "second")


async def test_all_other_hubs_are_looked_at(table):
    here = await meet(cpu(price=10 * CREDIT))
    await make_hub(FURTHER, cpu(price=1)).exchange()
    await here.exchange()
    assert here.find_gap(CPU_WORK, Preference.VALUE, cpu(price=CREDIT))


# What is told


def test_only_free_slots_are_told():
    fleet = Fleet(SETS)
    for number in (1, 2):
        fleet.add(cpu(number))
    fleet.take(node_number(1), SlotName("cpu:0"))
    assert [each.slot.node_id for each in list_best(fleet)] == [node_number(2)]


def test_the_best_of_every_tier_are_told_and_no_more_than_a_few():
    fleet = Fleet(SETS)
    for number in range(2 * TOLD_PER_TIER):
        fleet.add(cpu(number, price=CREDIT + number))
        fleet.add(card(100 + number, price=CREDIT + number, tier="rtx-3060"))
        fleet.add(card(200 + number, price=CREDIT + number, tier="rtx-4090"))
    told = list_best(fleet)
    assert {each.slot.tier for each in told} == {"cpu", "rtx-3060", "rtx-4090"}
    assert len(told) <= 3 * len(Preference) * TOLD_PER_TIER
    cheapest = {
        each.slot.tier: min(c.price_microcredits_per_hour for c in told if c.slot.tier == each.slot.tier)
        for each in told
    }
    assert set(cheapest.values()) == {CREDIT}


def test_slots_of_private_pools_are_not_told_as_public_ones():
    fleet = Fleet(SETS)
    fleet.add(make_candidate(make_slot(welcome=frozenset({account_number(1)}))))
    assert list_best(fleet) == []


async def test_a_slot_of_a_pool_elsewhere_is_waited_for_by_those_who_are_welcome_there_alone(table):
    friend, stranger = account_number(1), account_number(2)
    here = await meet(cpu(price=CREDIT // 2, welcome=frozenset({friend})))
    assert here.find_gap(CPU_WORK, Preference.VALUE, cpu(), "first", friend)
    assert not here.find_gap(CPU_WORK, Preference.VALUE, cpu(), "second", stranger)
    assert not here.find_gap(CPU_WORK, Preference.VALUE, cpu(), "third")


@pytest.mark.parametrize("welcome", [None, frozenset(map(account_number, (1, 2)))], ids=["public", "in a pool"])
async def test_ones_own_slot_elsewhere_costs_nothing_and_is_waited_for(table, welcome):
    owner, other = account_number(1), account_number(2)
    here = await meet(replace(cpu(price=100 * CREDIT, welcome=welcome), owner_id=owner))
    cheap = make_shape(ceiling_microcredits_per_hour=CREDIT)
    assert here.find_gap(cheap, Preference.VALUE, cpu(), "own", owner)
    assert not here.find_gap(cheap, Preference.VALUE, cpu(), "other", other)


async def test_few_slots_of_few_pools_are_told(table):
    pools = [frozenset({account_number(number)}) for number in range(POOLS_MAX + 3)]
    slots = [cpu(10 * number + each, welcome=pool) for number, pool in enumerate(pools) for each in range(9)]
    there = make_hub(THERE, *slots)
    await there.exchange()
    told = msgspec.json.decode(table.rows[THERE])
    assert [len(rows) for _, rows in told["pools"]] == [TOLD_PER_POOL] * POOLS_MAX
    assert told["slots"] == []


async def test_all_that_a_slot_is_chosen_by_is_told_and_what_an_older_hub_tells_is_understood(table):
    sent = replace(
        cpu(), base_price_microcredits_per_hour=7, spot_microcredits_per_hour=9, owner_id=account_number(1)
    )
    here = await meet(sent)
    [told] = here._there
    assert told == sent
    older = {"slots": [to_row(sent), to_row(sent)]}
    table.rows[THERE] = msgspec.json.encode(older)
    await here.exchange()
    told, _ = here._there
    assert told.price_microcredits_per_hour == CREDIT
    assert (told.base_price_microcredits_per_hour, told.owner_id) == (0, None)


async def test_what_an_owner_allows_is_told_too(table):
    wanting = make_shape(wants=("packages",))
    sent = cpu()
    allowing = replace(sent, slot=replace(sent.slot, allows=frozenset({"packages"})))
    dearer = replace(allowing, price_microcredits_per_hour=9 * CREDIT)
    assert (await meet(allowing)).find_gap(wanting, Preference.CHEAPEST, dearer) > 0
    assert (await meet(sent)).find_gap(wanting, Preference.CHEAPEST, dearer) == 0


def test_a_slot_without_conditions_is_told_as_before_there_were_any():
    plain, asking = make_slot(), make_slot(slice_seconds_min=60, job_kinds=frozenset({"ml"}))
    rows = [to_row(make_candidate(slot)) for slot in (plain, asking)]
    assert [len(row) for row in rows] == [11, 13]
    for slot, row in zip((plain, asking), rows, strict=True):
        told = from_row(msgspec.json.decode(msgspec.json.encode(row)))
        assert replace(told.slot, node_id=slot.node_id, name=slot.name) == slot


CANDIDATES = st.builds(
    make_candidate,
    slot=st.builds(
        make_slot,
        node_id=st.integers(0, 30).map(node_number),
        vram_bytes=st.sampled_from([0, 8 * GB, 24 * GB]),
        cores=st.sampled_from([1, 4]),
        region=st.sampled_from([None, "IN"]),
        slice_seconds_min=st.sampled_from([0, 0, 60]),
        job_kinds=st.sampled_from([frozenset(), frozenset(), frozenset({"ml"}), frozenset({"compute", "ml"})]),
        welcome=st.sampled_from([None, None, frozenset({account_number(1)})]),
    ),
    price_microcredits_per_hour=st.sampled_from([0, CREDIT, 3 * CREDIT]),
    reliability=st.sampled_from([0.5, 0.9]),
)
SHAPES = st.sampled_from(
    [CPU_WORK, GPU_WORK, make_shape(gpu=True), make_shape(slice_seconds=60), make_shape(job_kind="ml")]
)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.lists(CANDIDATES, max_size=12), CANDIDATES, SHAPES, st.sampled_from(list(Preference)))
def test_a_hint_is_never_wrong_and_with_few_slots_never_missing(free, own, shape, prefer):
    """With so few slots of a tier that all are told, it is exactly the best one there that counts."""
    table, own = Table(), replace(own, slot=replace(own.slot, node_id=node_number(99)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elsewhere_module.hub_store, "exchange_summaries", table.exchange_summaries)
        here = asyncio.run(meet(*free))
    fleet = Fleet(SETS)
    for candidate in free:
        fleet.add(candidate)
    best = fleet.best(shape, prefer, ceiling=shape.ceiling_microcredits_per_hour)
    mine = score(own, shape, WEIGHTS, prefer)
    expected = best is not None and score(best, shape, WEIGHTS, prefer) > mine + MARGIN
    # With others about, a card is kept from plain work for a moment in any case.
    expected |= own.slot.kind is SlotKind.GPU and not shape.gpu
    assert (here.find_gap(shape, prefer, own) > 0) is expected


# Notices


class Wire:
    """NOTIFY, in memory: every text goes to every hub that listens, the one that sent it among them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.texts: list[str] = []
        self.listeners: list[Elsewhere] = []
        monkeypatch.setattr(elsewhere_module.hub_store, "notify", self.notify)

    async def notify(self, conn: Any, text: str) -> None:
        self.texts.append(text)
        for hub in self.listeners:
            hub.hear(text)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch, table: Table) -> Wire:
    return Wire(monkeypatch)


async def tell(hub: Elsewhere) -> None:
    """What it has to tell, now."""
    if hub._timer is not None:
        hub._timer.cancel()
    hub._start_telling()
    await hub._telling


async def link(wire: Wire, *free: Candidate) -> tuple[Elsewhere, Elsewhere]:
    """Two hubs that know of each other and listen; the second has these slots free."""
    here, there = make_hub(HERE), make_hub(THERE, *free)
    for hub in (there, here, there):
        await hub.exchange()
    wire.listeners += [here, there]
    for hub in (here, there):
        await tell(hub)
    return here, there


def lend(hub: Elsewhere, candidate: Candidate) -> None:
    hub._fleet.add(candidate)
    hub.note_free(candidate.slot.node_id, [candidate.slot.name])


def give_out(hub: Elsewhere, candidate: Candidate) -> None:
    hub._fleet.take(candidate.slot.node_id, candidate.slot.name)
    hub.note_gone(candidate.slot.node_id, [candidate.slot.name])


async def test_a_slot_that_is_given_out_there_is_not_waited_for_from_then_on(wire):
    cheap = cpu(price=1)
    here, there = await link(wire, cheap)
    give_out(there, cheap)
    assert here.find_gap(CPU_WORK, Preference.VALUE, cpu(9), "before it is told")
    await tell(there)
    assert not here.find_gap(CPU_WORK, Preference.VALUE, cpu(9), "after")


async def test_a_slot_that_comes_there_is_known_here_without_a_summary(wire):
    here, there = await link(wire)
    assert not here.find_gap(CPU_WORK, Preference.VALUE, cpu(9))
    lend(there, cpu(price=1))
    await tell(there)
    assert here.find_gap(CPU_WORK, Preference.VALUE, cpu(9))


async def test_a_slot_that_came_and_went_is_not_told_of(wire):
    here, there = await link(wire)
    candidate = cpu(price=1)
    lend(there, candidate)
    give_out(there, candidate)
    await tell(there)
    assert not here.find_gap(CPU_WORK, Preference.VALUE, cpu(9))


@pytest.mark.parametrize("heard", [True, False], ids=["heard", "lost"])
async def test_a_summary_from_before_a_notice_does_not_bring_back_what_the_notice_took(wire, table, heard):
    """The control: without the notice the same summary would."""
    cheap = cpu(price=1)
    here, there = await link(wire, cheap)
    before = table.rows[THERE]
    if not heard:
        wire.listeners.clear()
    give_out(there, cheap)
    await tell(there)
    assert table.rows[THERE] == before
    await here.exchange()
    assert bool(here.find_gap(CPU_WORK, Preference.VALUE, cpu(9))) is not heard


async def test_a_notice_that_was_lost_is_missed_and_the_next_summary_makes_it_good(wire):
    cheap, dear = cpu(price=1), cpu(2, price=9 * CREDIT)
    here, there = await link(wire, cheap)
    wire.listeners.clear()
    give_out(there, cheap)
    await tell(there)
    lend(there, dear)
    await tell(there)
    heard = here.hear(wire.texts[-1])
    assert heard is not None
    assert heard.missed
    assert here._hurry.is_set(), "the next exchange is not put off"
    assert here.find_gap(CPU_WORK, Preference.VALUE, cpu(9), "misled")
    await there.exchange()
    await here.exchange()
    assert not here.find_gap(CPU_WORK, Preference.VALUE, cpu(9), "first")
    lend(there, cpu(3, price=9 * CREDIT))
    await tell(there)
    heard = here.hear(wire.texts[-1])
    assert heard is not None
    assert not heard.missed


async def test_a_hub_that_leaves_says_so(wire):
    here, there = await link(wire, cpu(price=1))
    assert here.find_gap(CPU_WORK, Preference.VALUE, cpu(9))
    await there.leave()
    assert here.alone


async def test_summaries_are_rare_only_while_notices_arrive_at_every_hub(wire):
    here, there = await link(wire)
    assert here._plan_pause(0.0) == elsewhere_module.DEAF_SECONDS_MIN, "it has not heard of the other's ears yet"
    for hub in (here, there, here, there, here):
        await hub.exchange()
    assert (here.hears, there.hears) == (True, True)
    assert here._plan_pause(0.0) == elsewhere_module.SUMMARY_SECONDS
    wire.listeners.remove(there)
    await tell(there)
    await there.exchange()
    assert not there.hears
    assert there._plan_pause(0.0) == elsewhere_module.DEAF_SECONDS_MIN
    await there.exchange()
    await here.exchange()
    assert here._plan_pause(0.0) == elsewhere_module.DEAF_SECONDS_MIN, "one that cannot hear is told by the table"


async def test_a_hub_that_has_nothing_to_say_says_that(wire):
    here, _ = await link(wire)
    said = len(wire.texts)
    await here.exchange()
    await here.exchange()
    assert here._timer is not None
    await tell(here)
    assert len(wire.texts) == said + 1
    assert here.hears


async def test_a_hub_that_is_unknown_yet_is_asked_for_at_once(wire):
    here, _ = await link(wire)
    heard = here.hear(to_notice_text(Notice(FURTHER, 7, asks=[Ask(RUN, HERE)])))
    assert heard is not None
    assert list(heard.asks) == [Ask(RUN, HERE)]
    assert here._hurry.is_set()


def test_what_is_no_notice_is_for_others_to_understand():
    assert make_hub(HERE).hear("queue") is None
    assert make_hub(HERE).hear("{nonsense") is None


async def test_two_slices_without_a_number_are_not_left_to_the_same_slot(wire):
    here, _ = await link(wire, cpu(price=1))
    assert here.find_gap(CPU_WORK, Preference.VALUE, cpu(9))
    assert not here.find_gap(CPU_WORK, Preference.VALUE, cpu(9))
    assert here.find_gap(CPU_WORK, Preference.VALUE, cpu(9), "first"), "it has got its number by now"
    assert not here.find_gap(CPU_WORK, Preference.VALUE, cpu(9), "second")


async def test_a_slot_there_is_kept_for_one_slice_for_a_moment_only(wire, monkeypatch):
    here, _ = await link(wire, cpu(price=1))
    assert here.find_gap(CPU_WORK, Preference.VALUE, cpu(9), "first")
    now = elsewhere_module.clock.seconds()
    for passed, expected in ((0.9, False), (1.1, True)):
        monkeypatch.setattr(elsewhere_module.clock, "seconds", lambda passed=passed: now + passed * AWAITED_SECONDS)
        assert bool(here.find_gap(CPU_WORK, Preference.VALUE, cpu(9), "second")) is expected


async def test_it_is_said_once_whose_slot_a_slice_was_left_to(wire):
    here, _ = await link(wire, cpu(price=1))
    account = account_number(1)
    assert here.find_gap(CPU_WORK, Preference.VALUE, None, account_id=account)
    assert here.pop_left((CPU_WORK, account)) == THERE
    assert here.find_gap(CPU_WORK, Preference.VALUE, cpu(9), "first", account)
    assert here.pop_left("first") is None, "it was left to that slot before it had its number"
    here.keep(GPU_WORK, account)
    assert here.pop_left((GPU_WORK, account)) == HERE
    assert here.pop_left((GPU_WORK, account)) is None


async def test_a_run_that_somebody_has_a_slot_for_is_told_at_once_and_others_when_a_slot_comes(wire):
    here, there = await link(wire)
    for hub in (here, there, here, there):
        await hub.exchange()
    await tell(here)
    loop = asyncio.get_running_loop()
    here.ask(RUN, None)
    assert here._timer_at > loop.time() + elsewhere_module.CALM_SECONDS / 2
    lend(there, cpu(price=1))
    await tell(there)
    assert here._timer_at <= loop.time()
    await tell(here)
    assert [ask for text in wire.texts for ask in from_notice_text(text).asks] == [Ask(RUN, None)]
    here.ask(RUN, THERE)
    assert here._timer_at <= loop.time()


async def test_of_more_runs_than_a_notice_holds_it_is_told_that_the_queue_has_grown(wire):
    here, _ = await link(wire)
    for number in range(ASKS_MAX + 1):
        here.ask(RUN._replace(shape_id=ShapeId(number)), None)
    await tell(here)
    assert wire.texts[-1] == "queue"
    assert from_notice_text(wire.texts[-2]).asks == []


def test_the_longest_notice_is_short_enough_for_notify():
    worst = replace(
        card(price=10**12, tier="x" * 24, region="XX", disk_bytes=10**15, ram_bytes=10**13),
        base_price_microcredits_per_hour=10**12,
        spot_microcredits_per_hour=10**12,
        reference_microcredits_per_hour=10**12,
        owner_id=account_number(1),
    )
    longer = replace(worst, slot=replace(worst.slot, allows=frozenset({"x" * 300})))
    notice = Notice(
        HERE,
        10**12,
        [Ask(RUN._replace(shape_id=ShapeId(2**31 + number)), THERE) for number in range(ASKS_MAX)],
        [(node_number(number), SlotName("x" * 32)) for number in range(GONE_MAX)],
        [worst] * (FREE_MAX - 1) + [longer],
    )
    text = to_notice_text(notice)
    assert len(text.encode()) < 8_000
    read = from_notice_text(text)
    assert read == replace(notice, free=list(read.free), more=True)
    assert longer not in read.free, "what is too long is told of as more"


def test_a_notice_says_all_that_a_slot_is_chosen_by():
    sent = replace(card(tier="rtx-3060"), owner_id=account_number(1), reference_microcredits_per_hour=5)
    sent = replace(sent, slot=replace(sent.slot, allows=frozenset({"packages"}), job_kinds=frozenset({"ml"})))
    assert from_notice_text(to_notice_text(Notice(HERE, 1, free=[sent]))).free == [sent]

"""Shapes and slots over random input: what passes a shape passes the request, and slots never promise too much."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.spec import Requirements
from computepool.core.jobs.wants import list_refused
from computepool.core.market.offers import SECONDS_MIN_STEPS, Ask, Audience, Offer, find_offer_refusal
from computepool.core.nodes.slots import GpuCard, cut_into_slots, list_machine_faults
from computepool.core.placement.checks import find_refusal
from computepool.core.placement.shape import to_shape
from computepool.core.placement.slot import SlotKind
from tests.support.builders import GB, NOW, account_number, make_machine, make_slot, node_number

QUICK = settings(max_examples=60, deadline=None, derandomize=True, database=None, report_multiple_bugs=False)

TIERS = ["rtx-3060", "rtx-3090"]
ACCOUNTS = st.sampled_from([account_number(number) for number in (1, 2, 3)])
CPU_SLOTS = st.builds(
    make_slot,
    cores=st.sampled_from([1, 4]),
    ram_bytes=st.sampled_from([2 * GB, 8 * GB]),
    region=st.sampled_from([None, "IN", "DE"]),
)
GPU_SLOTS = st.builds(
    make_slot,
    vram_bytes=st.sampled_from([8 * GB, 24 * GB]),
    tier=st.sampled_from(TIERS),
    isolation=st.sampled_from(list(IsolationLevel)),
    slice_seconds_min=st.sampled_from(SECONDS_MIN_STEPS),
    job_kinds=st.sampled_from([frozenset(), frozenset({"ml"}), frozenset({"ml", "compute"})]),
    welcome=st.sampled_from(
        [None, frozenset({account_number(1)}), frozenset({account_number(1), account_number(2)})]
    ),
    allows=st.sampled_from([frozenset(), frozenset({"packages"}), frozenset({"packages", "egress *.org:443"})]),
)
NEEDS = st.builds(
    Requirements,
    gpu=st.booleans(),
    vram_bytes=st.integers(0, 30 * GB),
    cores=st.integers(1, 8),
    ram_bytes=st.integers(0, 10 * GB),
    disk_bytes=st.integers(0, 60 * GB),
    tiers=st.lists(st.sampled_from(["cpu", *TIERS]), max_size=3).map(tuple),
    regions=st.lists(st.sampled_from(["IN", "DE"]), max_size=2).map(tuple),
    ceiling_microcredits_per_hour=st.none() | st.integers(0, 10**12),
    job_kind=st.sampled_from(["compute", "ml", "gaming"]),
    slice_seconds=st.integers(0, 20_000),
    wants=st.sampled_from([(), ("packages",), ("egress a.org:443",), ("egress a.org:443", "packages")]),
)


@QUICK
@given(NEEDS, CPU_SLOTS | GPU_SLOTS, st.integers(0, 10**12), ACCOUNTS)
def test_a_slot_that_passes_the_shape_passes_the_request(need, slot, price, account_id):
    refusal = find_refusal(to_shape(need), slot, price_microcredits_per_hour=price, account_id=account_id)
    if refusal is None:
        assert slot.slice_seconds_min <= need.slice_seconds
        assert not slot.job_kinds or need.job_kind in slot.job_kinds
        assert not list_refused(need.wants, slot.allows)
        assert slot.welcome is None or account_id in slot.welcome
        assert need.ceiling_microcredits_per_hour is None or price <= need.ceiling_microcredits_per_hour
        assert slot.vram_bytes >= need.vram_bytes
        assert slot.ram_bytes >= need.ram_bytes
        assert slot.disk_bytes >= need.disk_bytes
        assert slot.cores >= need.cores
        assert not need.gpu or slot.kind is SlotKind.GPU
        assert not need.tiers or slot.tier in need.tiers
        assert not need.regions or slot.region in need.regions


@settings(QUICK, max_examples=300)
@given(
    kinds=st.sampled_from([frozenset(), frozenset({"ml"}), frozenset({"ml", "compute"})]),
    seconds_min=st.sampled_from(SECONDS_MIN_STEPS),
    audience=st.sampled_from(list(Audience)),
    kind=st.sampled_from(["compute", "ml", "gaming"]),
    seconds=st.integers(0, 20_000),
    account_id=ACCOUNTS,
    price=st.integers(0, 100),
    ceiling=st.none() | st.integers(1, 99),
)
def test_placement_takes_what_the_rules_of_offers_take(
    kinds, seconds_min, audience, kind, seconds, account_id, price, ceiling
):
    """Two ways to one answer: the rule of the market over offers, and the gates of placement over slots."""
    owner, friend = account_number(1), account_number(2)
    named = frozenset({friend}) if audience is Audience.NAMED else frozenset()
    offer = Offer(owner, price, None, seconds_min, kinds, audience, named)
    welcome = None if audience is Audience.ANYONE else frozenset({owner, *named})
    slot = make_slot(slice_seconds_min=seconds_min, job_kinds=kinds, welcome=welcome)
    need = Requirements(job_kind=kind, slice_seconds=seconds, ceiling_microcredits_per_hour=ceiling)
    # What is for its owner alone is lent for nothing.
    asked = 0 if audience is Audience.OWN else price
    refusal = find_refusal(to_shape(need), slot, price_microcredits_per_hour=asked, account_id=account_id)
    if account_id == owner and price > (ceiling or price) and audience is not Audience.OWN:
        # The one difference: the floor of a node that others use too stops its owner's jobs as well.
        return
    expected = find_offer_refusal(offer, Ask(account_id, kind, seconds, ceiling), now=NOW)
    assert (refusal is None) == (expected is None)


@QUICK
@given(NEEDS, NEEDS)
def test_two_digests_are_equal_exactly_when_the_shapes_are(one, other):
    assert (to_shape(one).digest == to_shape(other).digest) == (to_shape(one) == to_shape(other))


@QUICK
@given(NEEDS)
def test_rounding_a_shape_again_changes_nothing(need):
    shape = to_shape(need)
    again = Requirements(
        shape.gpu,
        shape.vram_bytes,
        shape.cores,
        shape.ram_bytes,
        shape.disk_bytes,
        shape.tiers,
        shape.regions,
        shape.isolation,
        shape.ceiling_microcredits_per_hour,
        shape.job_kind,
        shape.slice_seconds,
        wants=shape.wants,
    )
    assert to_shape(again) == shape


@settings(QUICK, max_examples=500)
@given(st.integers(0, 10**15))
def test_a_ceiling_loses_at_most_one_part_in_twenty_by_rounding(ceiling):
    rounded = to_shape(Requirements(ceiling_microcredits_per_hour=ceiling)).ceiling_microcredits_per_hour
    assert rounded is not None
    assert 0.95 * ceiling <= rounded <= ceiling


@QUICK
@given(
    gpus=st.lists(st.builds(GpuCard, name=st.just("x"), vram_bytes=st.integers(0, 80 * GB)), max_size=8),
    cpu_slots=st.integers(0, 20),
    cores=st.integers(1, 64),
    ram_bytes=st.integers(1, 100 * GB),
    disk_bytes=st.integers(0, 1000 * GB),
)
def test_slots_together_never_promise_more_memory_or_disk_than_there_is(
    gpus, cpu_slots, cores, ram_bytes, disk_bytes
):
    machine = make_machine(gpus=gpus, cpu_slots=cpu_slots, cores=cores, ram_bytes=ram_bytes, disk_bytes=disk_bytes)
    if list_machine_faults(machine):
        return
    slots = cut_into_slots(node_number(1), machine)
    assert len({slot.name for slot in slots}) == len(slots) == len(gpus) + cpu_slots
    assert sum(slot.ram_bytes for slot in slots) <= ram_bytes
    assert sum(slot.disk_bytes for slot in slots) <= disk_bytes
    assert sum(slot.vram_bytes for slot in slots) == sum(gpu.vram_bytes for gpu in gpus)
    # A slot has one core at least: with more slots than cores they share.
    assert sum(slot.cores for slot in slots) <= max(cores, len(slots))

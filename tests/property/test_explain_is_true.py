"""What is suggested to a waiting job is true: it would run on the stated number of slots, and nothing less would do.

Truth is counted from the slots themselves, one by one, with placement's own checks. Each property has a negative
control: an explanation made wrong on purpose, which the same property must catch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import combinations, product

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.spec import JobPrice, JobSpec, Requirements, list_faults
from computepool.core.jobs.wants import list_refused
from computepool.core.ledger.charging import PriceMode
from computepool.core.placement import gates, slot_classes
from computepool.core.placement.checks import check_job_kind, check_pool, check_price, find_refusal
from computepool.core.placement.explain import Explanation, explain_waiting
from computepool.core.placement.gates import Gate
from computepool.core.placement.price import PRICE_MICROCREDITS_MAX, SlicePrice, round_down_price
from computepool.core.placement.shape import Shape, to_shape
from computepool.core.placement.slot import Slot
from computepool.core.placement.slot_classes import SlotClass, SpotForce, Standing, choose_steps, cut_to_steps
from computepool.core.placement.suggestions import Suggestion
from tests.support.builders import GB, NOW, account_number, make_slot, make_spec

BOUNDED = settings(max_examples=300, deadline=None, derandomize=True, database=None, report_multiple_bugs=False)
CONTROLLED = settings(BOUNDED, max_examples=1_000, phases=[Phase.generate])

Explain = Callable[[Requirements, list[SlotClass]], Explanation]

# Odd amounts beside even ones: what lies between two steps is where a suggestion could be rounded out of reach.
RAM = [2 * GB, 8 * GB, 8_300_000_000, 33_700_000_001]
VRAM = [8 * GB, 12_884_901_888, 25_769_803_776]
PRICES = [0, 1, 8_000_000, 9_876_543, 12_000_000, 12_100_000, 40_000_000, PRICE_MICROCREDITS_MAX]
ME = account_number(1)
WANTED = {Gate.IMAGE, Gate.EGRESS, Gate.PACKAGES}
COMMON = {
    "cores": st.sampled_from([1, 4, 6]),
    "ram_bytes": st.sampled_from(RAM),
    "disk_bytes": st.sampled_from([10 * GB, 50_400_000_000]),
    "region": st.sampled_from([None, "IN", "DE"]),
    "isolation": st.sampled_from(list(IsolationLevel)),
}
CARD = {"vram_bytes": st.sampled_from(VRAM), "tier": st.sampled_from(["rtx-3060", "rtx-3090"])}
CONDITIONS = {
    "slice_seconds_min": st.sampled_from([0, 10, 3_600]),
    "job_kinds": st.sampled_from([frozenset(), frozenset({"ml"}), frozenset({"ml", "compute"})]),
    "allows": st.sampled_from([frozenset(), frozenset({"packages"}), frozenset({"packages", "egress *.org:443"})]),
    "welcome": st.sampled_from([None, frozenset({ME}), frozenset({account_number(2)})]),
}
# Most owners set no conditions.
SLOTS = st.one_of(
    st.builds(make_slot, **COMMON),
    st.builds(make_slot, **COMMON, **CARD),
    st.builds(make_slot, **COMMON, **CARD),
    st.builds(make_slot, **COMMON, **CONDITIONS),
)
PAYING = {
    "ceiling_microcredits_per_hour": st.sampled_from([None, None, 1, 9_900_000, 10_000_000, 12_000_000]),
    "job_kind": st.sampled_from(["compute", "gaming"]),
    "wants": st.sampled_from([(), (), (), ("packages",), ("egress a.org:443", "packages")]),
    "slice_seconds": st.sampled_from([1, 45, 3_600]),
}
DEMANDING_NEEDS = st.builds(
    Requirements,
    gpu=st.booleans(),
    vram_bytes=st.sampled_from([0, 0, 8 * GB, 12_884_901_888, 24 * GB]),
    cores=st.sampled_from([1, 4, 5, 8]),
    ram_bytes=st.sampled_from([0, 512_000_000, 8_300_000_000, 64 * GB]),
    disk_bytes=st.sampled_from([GB, 50_400_000_000, 900 * GB]),
    tiers=st.sampled_from([(), (), ("rtx-3090",), ("rtx-4090",), ("cpu", "rtx-4090")]),
    regions=st.sampled_from([(), (), ("IN",), ("US", "FR")]),
    isolation=st.sampled_from([IsolationLevel.SANDBOXED, IsolationLevel.CONTAINER, IsolationLevel.GVISOR]),
    **PAYING,
)
# Some ask for little: the price, or what an owner asks of them, is all that may stand in their way.
MODEST_NEEDS = st.builds(Requirements, **PAYING) | st.builds(
    Requirements,
    ram_bytes=st.sampled_from([512_000_000, 8_300_000_000]),
    ceiling_microcredits_per_hour=st.sampled_from([1, 9_900_000, 10_000_000]),
)
FIXED_NEEDS = st.builds(
    lambda need, base, ceiling, seconds: replace(
        need,
        ceiling_microcredits_per_hour=None,
        slice_seconds=seconds,
        slice_price=SlicePrice(base, ceiling, seconds),
    ),
    DEMANDING_NEEDS | MODEST_NEEDS,
    base=st.sampled_from([1, 999, 4_000_000, 10_000_000]),
    ceiling=st.sampled_from([1, 9_900_000, 10_000_000, 30_000_000]),
    seconds=st.sampled_from([1, 600, 3_599, 3_600]),
)
NEEDS = DEMANDING_NEEDS | MODEST_NEEDS | FIXED_NEEDS


@dataclass(frozen=True)
class Member:
    slot: Slot
    standing: Standing
    busy: bool
    floor: int
    # What others pay who wait for it; 0: nobody does.
    spot: int
    # Tier x region, in thousandths.
    multiplier: int

    @property
    def price(self) -> int:
        return max(self.floor, self.spot)

    @property
    def base_price(self) -> int:
        return self.to_base(self.price)

    def to_base(self, price: int) -> int:
        return min(-(-price * 1_000 // self.multiplier), PRICE_MICROCREDITS_MAX + 1)

    def refuses(self, shape: Shape) -> bool:
        return check_price(shape, self.price, self.base_price) is not None

    def refuses_by_spot(self, shape: Shape) -> bool:
        return self.refuses(shape) and check_price(shape, self.floor, self.to_base(self.floor)) is None


FLEETS = st.lists(
    st.builds(
        Member,
        slot=SLOTS,
        standing=st.sampled_from([Standing.READY, Standing.READY, Standing.READY, *Standing]),
        busy=st.booleans(),
        floor=st.sampled_from(PRICES),
        spot=st.sampled_from([0, 0, 9_000_000, 14_000_000]),
        multiplier=st.sampled_from([560, 1_000, 3_000]),
    ),
    max_size=10,
)


def to_classes(fleet: list[Member], need: Requirements, levels: int | None = None) -> list[SlotClass]:
    """As the store hands them over: no more than the request asks for, and what is short of it cut to steps."""
    shape = to_shape(need)
    steps = choose_steps(shape, levels)
    amount_steps = {name: step for name, step in asdict(steps).items() if not name.endswith("prices")}
    counts: dict[tuple[Slot, Standing, int, int, SpotForce | None], list[bool]] = {}
    for member in fleet:
        amounts = {
            name: asked if have >= asked else have // step * step
            for name, step in amount_steps.items()
            for asked, have in [(getattr(shape, name), getattr(member.slot, name))]
        }
        amounts["cores"] = max(1, amounts["cores"])
        slot = member.slot
        clamped = replace(
            slot,
            isolation=min(slot.isolation, shape.isolation),
            slice_seconds_min=slot.slice_seconds_min if slot.slice_seconds_min > shape.slice_seconds else 0,
            job_kinds=frozenset() if shape.job_kind in slot.job_kinds else slot.job_kinds,
            welcome=None if slot.welcome is None or ME in slot.welcome else frozenset(),
            allows=slot.allows if shape.wants else frozenset(),
            **amounts,
        )
        price = lift(member.price, shape.ceiling_microcredits_per_hour, steps.prices)
        base_price = lift(member.base_price, shape.base_ceiling_microcredits_per_hour, steps.base_prices)
        force = SpotForce("cpu", "in", member.spot) if member.refuses_by_spot(shape) else None
        counts.setdefault((clamped, member.standing, price, base_price, force), []).append(member.busy)
    return [
        SlotClass(slot, standing, len(busy), sum(busy), price, base_price, force)
        for (slot, standing, price, base_price, force), busy in counts.items()
    ]


def lift(price: int, ceiling: int | None, prices: tuple[int, ...]) -> int:
    if ceiling is None or price <= ceiling:
        return 0
    at = bisect_left(prices, price)
    return prices[at] if at < len(prices) else PRICE_MICROCREDITS_MAX + 1


def list_passing(fleet: list[Member], need: Requirements) -> list[Member]:
    shape = to_shape(need)
    return [m for m in fleet if m.standing is Standing.READY and is_passing(shape, m.slot, m.price, m.base_price)]


def is_passing(shape: Shape, slot: Slot, price: int, base_price: int) -> bool:
    prices = {"price_microcredits_per_hour": price, "base_price_microcredits_per_hour": base_price}
    return find_refusal(shape, slot, **prices, account_id=ME) is None


def the_counts_are_those_of_the_slots(need: Requirements, fleet: list[Member], explain: Explain) -> None:
    found, passing = explain(need, to_classes(fleet, need)), list_passing(fleet, need)
    ready = [m for m in fleet if m.standing is Standing.READY]
    assert found.slot_count == len(ready), "every slot is counted"
    assert found.pass_count == len(passing), "those that pass are counted"
    assert found.free_count == sum(not m.busy for m in passing), "those that are free are counted"
    shape = to_shape(need)
    failed = {g: sum(check(shape, m.slot) is not None for m in ready) for g, check in gates.CHECK_OF.items()}
    failed[Gate.POOL] = sum(check_pool(ME, m.slot) is not None for m in ready)
    failed[Gate.SPOT] = sum(m.refuses_by_spot(shape) for m in ready)
    failed[Gate.PRICE] = sum(m.refuses(shape) for m in ready) - failed[Gate.SPOT]
    assert {g.gate: g.failed_count for g in found.gates} == {g: n for g, n in failed.items() if n}, (
        "gates are counted"
    )


def every_suggestion_would_run_where_it_says(need: Requirements, fleet: list[Member], explain: Explain) -> None:
    found = explain(need, to_classes(fleet, need))
    for suggestion in found.suggestions:
        passing = list_passing(fleet, suggestion.requirements)
        assert suggestion.slot_count == len(passing) > 0, "it would run on as many slots as stated"
        assert suggestion.free_count == sum(not m.busy for m in passing), "as many of them are free as stated"
        assert not found.pass_count or suggestion.free_count, "if others fit already, it reaches a free one"
        assert list_faults(to_spec(suggestion.requirements), now=NOW) == [], "it can be submitted"


def to_spec(need: Requirements) -> JobSpec:
    fixed = need.slice_price
    if fixed is None:
        return make_spec(requirements=need)
    price = JobPrice(PriceMode.PER_SLICE, fixed.base_microcredits, fixed.ceiling_microcredits)
    return make_spec(requirements=replace(need, slice_price=None), price=price, wall_seconds=fixed.seconds)


def something_is_suggested_whenever_a_slot_is_there(
    need: Requirements, fleet: list[Member], explain: Explain
) -> None:
    found = explain(need, to_classes(fleet, need))
    ready = [m for m in fleet if m.standing is Standing.READY and is_lent_to_me(need, m.slot)]
    if any(can_be_paid(m, need) for m in ready) and not found.pass_count:
        assert found.suggestions, "there is always a change that would do"


def is_lent_to_me(need: Requirements, slot: Slot) -> bool:
    is_allowed = not list_refused(need.wants, slot.allows)
    return check_pool(ME, slot) is None and check_job_kind(to_shape(need), slot) is None and is_allowed


def what_only_time_or_owners_can_change_is_noted(need: Requirements, fleet: list[Member], explain: Explain) -> None:
    """One note for each reason that alone keeps a slot away, with how many slots it keeps."""
    found, shape = explain(need, to_classes(fleet, need)), to_shape(need)
    failures = [(m, gates.list_failed(shape, m.slot, m.price, m.base_price, account_id=ME)) for m in fleet]
    expected = {
        "not lent at this hour": sum(m.standing is Standing.CLOSED and not failed for m, failed in failures),
        "only; this one is": sum(m.standing is Standing.READY and failed == (Gate.KIND,) for m, failed in failures),
        "who do not allow": sum(
            m.standing is Standing.READY and bool(failed) and set(failed) <= WANTED for m, failed in failures
        ),
        "private pool": sum(m.standing is Standing.READY and failed == (Gate.POOL,) for m, failed in failures),
    }
    noted = {reason: next((note for note in found.notes if reason in note), "0 ").split()[0] for reason in expected}
    if found.free_count:
        assert found.notes == (), "nothing is noted while a slot is free"
    else:
        assert noted == {reason: str(count) for reason, count in expected.items()}, "what keeps slots away is noted"


def can_be_paid(member: Member, need: Requirements) -> bool:
    """Any price is a price by the hour; a fixed one has a bound."""
    return need.slice_price is None or member.base_price <= PRICE_MICROCREDITS_MAX


def nothing_less_would_do(need: Requirements, fleet: list[Member], explain: Explain) -> None:
    """No request between the wish and the suggestion, in steps of what slots have, would run as well."""
    found = explain(need, to_classes(fleet, need))
    for suggestion in found.suggestions:
        for less in list_lesser(need, suggestion, fleet):
            reached = [m for m in list_passing(fleet, less) if not found.pass_count or not m.busy]
            assert reached == [], f"nothing less would do, but {less} would"


def fewer_changes_would_not_do(need: Requirements, fleet: list[Member], explain: Explain) -> None:
    """No smaller set of requirements would, given up altogether. What is the owner's to say cannot be."""
    found = explain(need, to_classes(fleet, need))
    for suggestion in found.suggestions[:1]:
        for count in range(len(suggestion.changes)):
            for dropped in combinations([gate for gate in Gate if gate not in gates.OWNERS_GATES], count):
                less = need
                for gate in dropped:
                    less = drop(less, gate)
                reached = [m for m in list_passing(fleet, less) if not found.pass_count or not m.busy]
                assert reached == [], f"fewer changes would not do, but {dropped} would"


def drop(need: Requirements, gate: Gate) -> Requirements:
    """The request with one wish given up altogether. Without a GPU there is no VRAM to ask for."""
    nothing = {
        Gate.GPU: {"gpu": False, "vram_bytes": 0},
        Gate.VRAM: {"gpu": need.gpu or need.vram_bytes > 0, "vram_bytes": 0},
        Gate.CORES: {"cores": 1},
        Gate.RAM: {"ram_bytes": 0},
        Gate.DISK: {"disk_bytes": 0},
        Gate.ISOLATION: {"isolation": IsolationLevel.SANDBOXED},
        Gate.TIER: {"tiers": (*need.tiers, "cpu", "rtx-3060", "rtx-3090") if need.tiers else ()},
        Gate.REGION: {"regions": ()},
        Gate.PRICE: pay_anything(need),
        Gate.SPOT: pay_anything(need),
        Gate.SECONDS: let_run(need, max(need.slice_seconds, 14_400)),
    }
    return replace(need, **nothing[gate])


def let_run(need: Requirements, seconds: int) -> dict[str, object]:
    """For longer; at a fixed price, for as much an hour."""
    fixed = need.slice_price
    if fixed is None:
        return {"slice_seconds": seconds}
    base, ceiling = (
        min(-(-each * seconds // fixed.seconds), PRICE_MICROCREDITS_MAX)
        for each in (fixed.base_microcredits, fixed.ceiling_microcredits)
    )
    return {"slice_seconds": seconds, "slice_price": SlicePrice(base, ceiling, seconds)}


def pay_anything(need: Requirements) -> dict[str, object]:
    if need.slice_price is None:
        return {"ceiling_microcredits_per_hour": None}
    most = PRICE_MICROCREDITS_MAX
    return {"slice_price": replace(need.slice_price, base_microcredits=most, ceiling_microcredits=most)}


def list_lesser(need: Requirements, suggestion: Suggestion, fleet: list[Member]) -> Iterator[Requirements]:
    """Every request that gives up less in at least one point and more in none."""
    relaxed, gates = suggestion.requirements, {change.gate for change in suggestion.changes}
    # Who lets a slice run for longer pays as much an hour as before: a raise begins there.
    lasting = replace(need, **let_run(need, relaxed.slice_seconds)) if Gate.SECONDS in gates else need
    options = {
        gate: list_steps(lasting if gate is Gate.PRICE else need, relaxed, gate, fleet)
        for gate in Gate
        if gate in gates
    }
    for values in product(*options.values()):
        less = need
        for fields in values:
            less = replace(less, **fields)
        if less.slice_price is not None:
            # A fixed price is reckoned over the time that a slice may run: no request has two such times.
            less = replace(less, slice_price=replace(less.slice_price, seconds=less.slice_seconds))
        if less != suggestion.requirements:
            yield less


def list_steps(need: Requirements, relaxed: Requirements, gate: Gate, fleet: list[Member]) -> list[dict[str, object]]:
    """From the wish down to what is suggested for this gate, both included."""
    if gate is Gate.GPU:
        return [{"gpu": need.gpu, "vram_bytes": need.vram_bytes}, {"gpu": False, "vram_bytes": 0}]
    if gate is Gate.TIER:
        return [{"tiers": need.tiers}, {"tiers": relaxed.tiers}]
    if gate is Gate.REGION:
        return [{"regions": need.regions}, {"regions": relaxed.regions}]
    if gate is Gate.ISOLATION:
        levels = [level for level in IsolationLevel if relaxed.isolation <= level <= need.isolation]
        return [{"isolation": level} for level in levels]
    if gate is Gate.PRICE and need.slice_price is not None and relaxed.slice_price is not None:
        return [{"slice_price": each} for each in list_slice_prices(need.slice_price, relaxed.slice_price)]
    if gate is Gate.PRICE:
        return [{"ceiling_microcredits_per_hour": price} for price in list_ceilings(need, relaxed, fleet)]
    if gate is Gate.SECONDS:
        return [
            let_run(need, each) for each in (need.slice_seconds, relaxed.slice_seconds - 1, relaxed.slice_seconds)
        ]
    name = "cores" if gate is Gate.CORES else f"{gate.value}_bytes"
    low, high = getattr(relaxed, name), getattr(need, name)
    present = {getattr(slot, name) for m in fleet for slot in (m.slot, cut_to_steps(m.slot))}
    # One more than suggested, too: the finest step that there is.
    values = sorted({low, low + 1, high} | {value for value in present if low < value < high})
    gpu = {"gpu": True} if gate is Gate.VRAM else {}
    return [{name: value, **gpu} for value in values if value <= high]


def list_slice_prices(fixed: SlicePrice, raised: SlicePrice) -> list[SlicePrice]:
    """From what is paid up to what is suggested, and a microcredit less than that."""
    bases = {fixed.base_microcredits, raised.base_microcredits, raised.base_microcredits - 1}
    ceilings = {fixed.ceiling_microcredits, raised.ceiling_microcredits, raised.ceiling_microcredits - 1}
    return [
        replace(fixed, base_microcredits=base, ceiling_microcredits=ceiling)
        for base in bases
        for ceiling in ceilings
        if base >= fixed.base_microcredits and ceiling >= fixed.ceiling_microcredits
    ]


def list_ceilings(need: Requirements, relaxed: Requirements, fleet: list[Member]) -> list[int | None]:
    """From what is paid up to what is suggested, in figures of three digits, as suggestions are."""
    low, high = need.ceiling_microcredits_per_hour, relaxed.ceiling_microcredits_per_hour
    assert low is not None
    between = {low, *(m.price for m in fleet)} | ({PRICE_MICROCREDITS_MAX} if high is None else {high - 1})
    rounded = {low} | {round_down_price(price) for price in between}
    return [price for price in sorted(rounded) if low <= price and (high is None or price < high)] + [high]


def suggest_one_step_less(need: Requirements, classes: list[SlotClass]) -> Explanation:
    """Gives up one step less than it takes."""
    found = explain_waiting(need, classes)
    return replace(found, suggestions=tuple(_tighten(each) for each in found.suggestions))


def _tighten(suggestion: Suggestion) -> Suggestion:
    need, gate = suggestion.requirements, suggestion.changes[0].gate
    steps = {
        Gate.CORES: ("cores", 1),
        Gate.RAM: ("ram_bytes", 1),
        Gate.DISK: ("disk_bytes", 1),
        Gate.VRAM: ("vram_bytes", 1),
        Gate.PRICE: ("ceiling_microcredits_per_hour", -500_000),
        Gate.SECONDS: ("slice_seconds", -1),
    }
    if gate is Gate.PRICE and need.slice_price is not None:
        return replace(suggestion, requirements=replace(need, slice_price=_take_off(need.slice_price)))
    if gate not in steps or getattr(need, steps[gate][0]) is None:
        return suggestion
    name, step = steps[gate]
    return replace(suggestion, requirements=replace(need, **{name: getattr(need, name) + step}))


def _take_off(fixed: SlicePrice) -> SlicePrice:
    return replace(
        fixed,
        base_microcredits=max(1, fixed.base_microcredits - 1),
        ceiling_microcredits=max(1, fixed.ceiling_microcredits - 1),
    )


def suggest_one_step_more(need: Requirements, classes: list[SlotClass]) -> Explanation:
    """Has the submitter give up more than it takes."""
    found = explain_waiting(need, classes)
    return replace(found, suggestions=tuple(_loosen(each, classes) for each in found.suggestions))


def _loosen(suggestion: Suggestion, classes: list[SlotClass]) -> Suggestion:
    need = suggestion.requirements
    if suggestion.changes[0].gate is not Gate.RAM or not need.ram_bytes:
        return suggestion
    less = replace(need, ram_bytes=need.ram_bytes - 500_000_000)
    shape = to_shape(less)
    opened = [
        c
        for c in classes
        if c.standing is Standing.READY
        and is_passing(shape, c.slot, c.price_microcredits_per_hour, c.base_price_microcredits_per_hour)
    ]
    return replace(
        suggestion,
        requirements=less,
        slot_count=sum(c.slot_count for c in opened),
        free_count=sum(c.free_count for c in opened),
    )


def take_every_slot_for_free(need: Requirements, classes: list[SlotClass]) -> Explanation:
    """Forgets what owners ask."""
    gifts = [replace(c, price_microcredits_per_hour=0, base_price_microcredits_per_hour=0) for c in classes]
    return explain_waiting(need, gifts)


def take_others_for_owners(need: Requirements, classes: list[SlotClass]) -> Explanation:
    """Says that owners ask what others pay."""
    return explain_waiting(need, [replace(c, force=None) for c in classes])


def have_the_submitter_pay_a_tenth_more(need: Requirements, classes: list[SlotClass]) -> Explanation:
    found = explain_waiting(need, classes)
    return replace(found, suggestions=tuple(_overpay(each, classes) for each in found.suggestions))


def _overpay(suggestion: Suggestion, classes: list[SlotClass]) -> Suggestion:
    ceiling, fixed = suggestion.requirements.ceiling_microcredits_per_hour, suggestion.requirements.slice_price
    if suggestion.changes[0].gate is Gate.PRICE and fixed is not None:
        dearer = replace(fixed, base_microcredits=fixed.base_microcredits * 11 // 10 + 1)
        return replace(suggestion, requirements=replace(suggestion.requirements, slice_price=dearer))
    if suggestion.changes[0].gate is not Gate.PRICE or ceiling is None:
        return suggestion
    dearer = replace(suggestion.requirements, ceiling_microcredits_per_hour=ceiling * 11 // 10 + 1)
    return replace(suggestion, requirements=dearer)


def take_pools_for_public(need: Requirements, classes: list[SlotClass]) -> Explanation:
    """Forgets whom machines are lent to."""
    return explain_waiting(need, [replace(c, slot=replace(c.slot, welcome=None)) for c in classes])


def take_every_kind(need: Requirements, classes: list[SlotClass]) -> Explanation:
    """Forgets what owners take."""
    return explain_waiting(need, [replace(c, slot=replace(c.slot, job_kinds=frozenset())) for c in classes])


def take_what_owners_do_not_allow(need: Requirements, classes: list[SlotClass]) -> Explanation:
    """Forgets what owners allow jobs."""
    everything = frozenset({"packages", "egress *:443"})
    return explain_waiting(need, [replace(c, slot=replace(c.slot, allows=everything)) for c in classes])


def take_slices_of_any_length(need: Requirements, classes: list[SlotClass]) -> Explanation:
    return explain_waiting(need, [replace(c, slot=replace(c.slot, slice_seconds_min=0)) for c in classes])


def note_nothing(need: Requirements, classes: list[SlotClass]) -> Explanation:
    return replace(explain_waiting(need, classes), notes=())


def count_the_offline_too(need: Requirements, classes: list[SlotClass]) -> Explanation:
    return explain_waiting(need, [replace(c, standing=Standing.READY) for c in classes])


def suggest_nothing(need: Requirements, classes: list[SlotClass]) -> Explanation:
    return replace(explain_waiting(need, classes), suggestions=())


def give_up_two_where_one_would_do(need: Requirements, classes: list[SlotClass]) -> Explanation:
    """Looks at the poorest slots first."""
    ready = [c for c in classes if c.standing is Standing.READY]
    shape = to_shape(need)
    poorest = max(
        ready,
        key=lambda c: len(slot_classes.list_failed_of(shape, c)),
        default=None,
    )
    found = explain_waiting(need, classes)
    if poorest is None or not found.suggestions:
        return found
    worse = explain_waiting(need, [poorest]).suggestions
    return replace(found, suggestions=worse or found.suggestions)


PROPERTIES = [
    the_counts_are_those_of_the_slots,
    every_suggestion_would_run_where_it_says,
    something_is_suggested_whenever_a_slot_is_there,
    what_only_time_or_owners_can_change_is_noted,
    nothing_less_would_do,
    fewer_changes_would_not_do,
]


@pytest.mark.parametrize("check", PROPERTIES, ids=lambda check: check.__name__)
def test_an_explanation_is_true(check):
    @BOUNDED
    @given(need=NEEDS, fleet=FLEETS)
    def run(need: Requirements, fleet: list[Member]) -> None:
        check(need, fleet, explain_waiting)

    run()


@pytest.mark.parametrize(
    ("check", "broken"),
    [
        (the_counts_are_those_of_the_slots, count_the_offline_too),
        (the_counts_are_those_of_the_slots, take_every_slot_for_free),
        (the_counts_are_those_of_the_slots, take_pools_for_public),
        (the_counts_are_those_of_the_slots, take_every_kind),
        (the_counts_are_those_of_the_slots, take_slices_of_any_length),
        (the_counts_are_those_of_the_slots, take_what_owners_do_not_allow),
        (what_only_time_or_owners_can_change_is_noted, note_nothing),
        (every_suggestion_would_run_where_it_says, take_pools_for_public),
        (the_counts_are_those_of_the_slots, take_others_for_owners),
        (every_suggestion_would_run_where_it_says, suggest_one_step_less),
        (every_suggestion_would_run_where_it_says, count_the_offline_too),
        (something_is_suggested_whenever_a_slot_is_there, suggest_nothing),
        (nothing_less_would_do, suggest_one_step_more),
        (nothing_less_would_do, have_the_submitter_pay_a_tenth_more),
        (fewer_changes_would_not_do, give_up_two_where_one_would_do),
    ],
    ids=lambda part: part.__name__,
)
def test_control_a_wrong_explanation_is_caught(check, broken):
    @CONTROLLED
    @given(need=NEEDS, fleet=FLEETS)
    def run(need: Requirements, fleet: list[Member]) -> None:
        check(need, fleet, broken)

    with pytest.raises(AssertionError):
        run()


@pytest.mark.parametrize("levels", [16, 3, 1])
@pytest.mark.parametrize("check", PROPERTIES[:4], ids=lambda check: check.__name__)
def test_an_explanation_from_coarser_steps_is_as_true_though_not_the_least(check, levels):
    @BOUNDED
    @given(need=NEEDS, fleet=FLEETS)
    def run(need: Requirements, fleet: list[Member]) -> None:
        check(need, fleet, lambda need, _: explain_waiting(need, to_classes(fleet, need, levels)))

    run()


@BOUNDED
@given(need=NEEDS, slot=SLOTS)
def test_cutting_a_slot_to_steps_changes_no_verdict(need: Requirements, slot: Slot) -> None:
    shape: Shape = to_shape(need)
    cut = cut_to_steps(slot)
    assert (find_refusal(shape, slot, account_id=ME) is None) == (find_refusal(shape, cut, account_id=ME) is None)


@BOUNDED
@given(need=NEEDS, fleet=FLEETS, data=st.data())
def test_the_order_of_the_fleet_changes_nothing(need: Requirements, fleet: list[Member], data: st.DataObject) -> None:
    classes = to_classes(fleet, need)
    assert explain_waiting(need, data.draw(st.permutations(classes))) == explain_waiting(need, classes)

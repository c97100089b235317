"""Why a slice waits, how a slot fits it, how an attempt ended, and why a node is idle."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from computepool.core.jobs.cause import PLAIN_WORDS, Cause
from computepool.core.jobs.ending import Ended, Remedy, explain_end, more_ram
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.retry import ATTEMPTS_MAX
from computepool.core.jobs.spec import WALL_SECONDS_MAX, Requirements
from computepool.core.jobs.state import AttemptState, SliceState
from computepool.core.nodes.state import NodeState
from computepool.core.placement import checks
from computepool.core.placement.explain import Explanation, explain_waiting, say_waiting
from computepool.core.placement.gates import CHECK_OF, Gate, list_margins
from computepool.core.placement.idleness import Backlog, IdleReason, LowerFloor, NodeFacts, OfferChange, explain_idle
from computepool.core.placement.price import PRICE_MICROCREDITS_MAX, round_down_price, say_price
from computepool.core.placement.shape import list_ceiling_steps, to_shape
from computepool.core.placement.slot_classes import PLACES_MAX, SlotClass, Standing, choose_steps
from computepool.core.placement.suggestions import least_ceiling
from computepool.core.words import say_bytes
from tests.support.builders import GB, account_number, make_shape, make_slot


def make_class(**overrides: Any) -> SlotClass:
    """One ready, free slot; what is not of the class is of the slot."""
    own = (
        "standing",
        "slot_count",
        "busy_count",
        "node_name",
        "last_seen_at",
        "price_microcredits_per_hour",
        "opens_at",
    )
    values = {"standing": Standing.READY, "slot_count": 1, "busy_count": 0}
    values.update({name: overrides.pop(name) for name in own if name in overrides})
    return SlotClass(slot=make_slot(**overrides), **values)


def words_of(found: Explanation) -> list[str]:
    return [" and ".join(change.words for change in each.changes) for each in found.suggestions]


def test_every_check_of_placement_has_its_gate_in_the_same_order():
    assert tuple(CHECK_OF.values()) == checks.CHECKS
    assert {*CHECK_OF, Gate.POOL, Gate.PRICE, Gate.SPOT} == set(Gate)


def test_every_slot_is_counted_at_each_gate_that_it_fails():
    classes = [make_class(slot_count=3), make_class(slot_count=4, vram_bytes=8 * GB, region="DE")]
    found = explain_waiting(Requirements(vram_bytes=16 * GB, regions=("IN",)), classes)
    assert {each.gate: each.failed_count for each in found.gates} == {Gate.GPU: 3, Gate.VRAM: 7, Gate.REGION: 4}
    assert (found.slot_count, found.pass_count) == (7, 0)


def test_the_smallest_change_is_the_largest_card_that_there_is():
    classes = [
        make_class(slot_count=4, vram_bytes=12_884_901_888, tier="rtx-4070", node_name="attic-pc"),
        make_class(slot_count=9, vram_bytes=8 * GB, tier="gtx-1080"),
    ]
    found = explain_waiting(Requirements(vram_bytes=16 * GB), classes)
    assert words_of(found) == ["ask for 12.5 GB of VRAM instead of 16 GB"]
    suggestion = found.suggestions[0]
    assert (suggestion.slot_count, suggestion.free_count) == (4, 4)
    assert [(place.tier, place.node_name) for place in suggestion.places] == [("rtx-4070", "attic-pc")]
    assert suggestion.requirements == Requirements(gpu=True, vram_bytes=12_500_000_000)


def test_what_a_slot_has_beyond_a_step_is_not_suggested_for_it_would_be_rounded_up_and_refused():
    [suggestion] = explain_waiting(Requirements(ram_bytes=64 * GB), [make_class(ram_bytes=8_300_000_000)]).suggestions
    assert suggestion.requirements.ram_bytes == 8 * GB
    assert checks.find_refusal(to_shape(suggestion.requirements), make_slot(ram_bytes=8_300_000_000)) is None


def test_each_requirement_that_blocks_alone_gets_its_own_suggestion_the_smallest_first():
    classes = [
        make_class(cores=6),
        make_class(cores=8, ram_bytes=1 * GB),
        make_class(cores=8, region="DE"),
    ]
    found = explain_waiting(Requirements(cores=8, ram_bytes=4 * GB, regions=("IN",)), classes)
    assert words_of(found) == [
        "ask for 6 cores instead of 8 cores",
        "accept region DE too",
        "ask for 1 GB of RAM instead of 4 GB",
    ]


def test_two_changes_are_suggested_only_when_one_does_not_suffice():
    both = make_class(cores=4, ram_bytes=2 * GB)
    found = explain_waiting(Requirements(cores=8, ram_bytes=4 * GB), [both])
    assert words_of(found) == ["ask for 4 cores instead of 8 cores and ask for 2 GB of RAM instead of 4 GB"]
    found = explain_waiting(Requirements(cores=8, ram_bytes=4 * GB), [both, make_class(cores=1)])
    assert words_of(found) == ["ask for 1 core instead of 8 cores"]


def test_doing_without_a_gpu_is_one_change_and_drops_its_memory_too():
    found = explain_waiting(Requirements(gpu=True, vram_bytes=16 * GB), [make_class()])
    assert words_of(found) == ["do without a GPU"]
    assert found.suggestions[0].requirements == Requirements()


def test_a_request_for_a_card_by_name_is_widened_by_a_tier_that_is_there():
    classes = [make_class(vram_bytes=24 * GB, tier="rtx-3090"), make_class(slot_count=2)]
    found = explain_waiting(Requirements(tiers=("rtx-4090",)), classes)
    assert words_of(found) == ["accept tier cpu too"]
    assert found.suggestions[0].slot_count == 2
    found = explain_waiting(Requirements(gpu=True, tiers=("rtx-4090",)), classes)
    assert words_of(found) == ["accept tier rtx-3090 too"]


def test_a_node_of_no_known_region_is_reached_only_by_accepting_any():
    found = explain_waiting(Requirements(regions=("IN",)), [make_class(region=None)])
    assert words_of(found) == ["accept any region"]
    assert found.suggestions[0].requirements.regions == ()


def test_a_full_list_of_tiers_is_not_made_longer_than_a_request_may_be():
    tiers = tuple(f"tier-{i}" for i in range(32))
    found = explain_waiting(Requirements(gpu=True, tiers=tiers), [make_class(vram_bytes=8 * GB)])
    assert words_of(found) == ["accept any tier"]


def test_weaker_isolation_is_suggested_no_weaker_than_needed():
    classes = [make_class(), make_class(isolation=IsolationLevel.CONTAINER)]
    found = explain_waiting(Requirements(isolation=IsolationLevel.GVISOR), classes)
    assert words_of(found) == ["accept isolation container instead of gvisor"]


def test_amounts_that_look_alike_are_told_in_bytes():
    found = explain_waiting(Requirements(ram_bytes=4 * GB + 1), [make_class(ram_bytes=4 * GB)])
    assert words_of(found) == ["ask for 4,000,000,000 bytes of RAM instead of 4,000,000,001 bytes"]


def test_nothing_is_suggested_while_a_slot_that_fits_is_free():
    found = explain_waiting(Requirements(), [make_class(slot_count=2, busy_count=1), make_class(cores=1)])
    assert (found.pass_count, found.free_count, found.suggestions) == (3, 2, ())
    words = "3 of 3 slots fit, 2 free now: whoever's turn it is should start within seconds."
    assert say_waiting(found) == words


def test_when_all_that_fit_are_busy_a_change_must_reach_a_free_slot():
    busy = make_class(vram_bytes=24 * GB, slot_count=3, busy_count=3)
    near_but_busy = make_class(vram_bytes=16 * GB, busy_count=1)
    free = make_class(vram_bytes=8 * GB, slot_count=2, busy_count=1)
    found = explain_waiting(Requirements(vram_bytes=24 * GB), [busy, near_but_busy, free])
    assert words_of(found) == ["ask for 8 GB of VRAM instead of 24 GB"]
    assert (found.suggestions[0].slot_count, found.suggestions[0].free_count) == (6, 1)
    assert say_waiting(found) == "3 of 6 slots fit, but all are busy."


def test_an_empty_fleet_is_called_empty():
    found = explain_waiting(Requirements(), [])
    assert found.suggestions == ()
    assert say_waiting(found) == "No node is online and taking work."


@pytest.mark.parametrize("standing", [Standing.OFFLINE, Standing.PAUSED])
def test_a_node_that_is_away_and_would_fit_is_told_and_counts_for_nothing_else(standing: Standing):
    away = make_class(vram_bytes=24 * GB, slot_count=2, standing=standing, node_name="mine")
    found = explain_waiting(Requirements(vram_bytes=24 * GB), [away, make_class()])
    assert (found.slot_count, found.pass_count, found.away_count) == (1, 0, 2)
    assert [(place.standing, place.node_name) for place in found.places] == [(standing, "mine")]
    assert words_of(found) == ["do without a GPU"]
    assert say_waiting(found) == (
        "None of the 1 slot of the fleet fits. 2 slots on nodes that are offline or paused would fit."
    )


CREDIT = 1_000_000


def test_a_ceiling_below_every_floor_is_answered_with_the_lowest_price_that_would_do():
    classes = [
        make_class(slot_count=2, price_microcredits_per_hour=12 * CREDIT, tier="rtx-4090", vram_bytes=24 * GB),
        make_class(slot_count=5, price_microcredits_per_hour=40 * CREDIT, vram_bytes=24 * GB),
    ]
    need = Requirements(gpu=True, ceiling_microcredits_per_hour=10 * CREDIT)
    found = explain_waiting(need, classes)
    assert {each.gate: each.failed_count for each in found.gates} == {Gate.PRICE: 7}
    assert found.gates[0].asked == "at most 10 credits/h"
    [suggestion] = found.suggestions
    assert (suggestion.slot_count, suggestion.places[0].tier) == (2, "rtx-4090")
    assert words_of(found) == ["pay up to 12 credits/h instead of 10 credits/h"]


def test_a_slot_that_fits_in_all_but_price_is_dearer_than_a_smaller_one_that_is_cheap():
    dear = make_class(vram_bytes=24 * GB, price_microcredits_per_hour=15 * CREDIT)
    small = make_class(vram_bytes=20 * GB, price_microcredits_per_hour=5 * CREDIT)
    need = Requirements(vram_bytes=24 * GB, ceiling_microcredits_per_hour=10 * CREDIT)
    words = words_of(explain_waiting(need, [dear, small]))
    assert words[0] == "ask for 20 GB of VRAM instead of 24 GB"
    assert words[1].startswith("pay up to ")


def test_the_highest_price_that_there_is_can_still_be_named():
    need = Requirements(ceiling_microcredits_per_hour=10 * CREDIT)
    found = explain_waiting(need, [make_class(price_microcredits_per_hour=PRICE_MICROCREDITS_MAX)])
    assert words_of(found) == ["pay up to 1,000,000,000 credits/h instead of 10 credits/h"]


@pytest.mark.parametrize("credits", [1, 2, 5, 10, 12, 15, 18, 20, 24, 36, 40, 75, 80, 120, 1_000])
def test_whoever_pays_what_is_asked_gets_it_as_long_as_it_is_a_round_figure(credits: int):
    shape = to_shape(Requirements(ceiling_microcredits_per_hour=credits * CREDIT))
    assert checks.check_price(shape, credits * CREDIT) is None
    assert checks.check_price(shape, credits * CREDIT + 1) is not None


@pytest.mark.parametrize("ceiling", [1, 7, 99, 100, 104, 105, 199, 4_711, 9_999_999, 12_345_678, 10**15])
def test_a_ceiling_is_rounded_down_once_and_by_less_than_a_twentieth(ceiling: int):
    once = to_shape(Requirements(ceiling_microcredits_per_hour=ceiling)).ceiling_microcredits_per_hour
    assert once is not None
    assert 0.95 * ceiling < once <= ceiling
    twice = to_shape(Requirements(ceiling_microcredits_per_hour=once)).ceiling_microcredits_per_hour
    assert twice == once


@pytest.mark.parametrize("price", [1, 2, 7, 19, 20, 999, 9_999_999, 12 * CREDIT, 10**14])
def test_the_least_ceiling_pays_the_price_and_one_figure_less_does_not(price: int):
    least = least_ceiling(price)
    assert least is not None
    assert checks.check_price(to_shape(Requirements(ceiling_microcredits_per_hour=least)), price) is None
    if least > 1:
        less = to_shape(Requirements(ceiling_microcredits_per_hour=round_down_price(least - 1)))
        assert checks.check_price(less, price) is not None


def test_every_ceiling_of_a_shape_is_among_the_steps():
    steps = set(list_ceiling_steps())
    for ceiling in (1, 2, 3, 19, 20, 21, 100, 4_711, 9_999_999, 10 * CREDIT, 12 * CREDIT, 10**14 + 7):
        assert to_shape(Requirements(ceiling_microcredits_per_hour=ceiling)).ceiling_microcredits_per_hour in steps


@pytest.mark.parametrize("levels", [None, 16, 1])
def test_prices_are_told_apart_up_to_the_highest_that_there_is(levels: int | None):
    prices = choose_steps(make_shape(ceiling_microcredits_per_hour=10 * CREDIT), levels).prices
    assert list(prices) == sorted(prices)
    assert prices[0] > 10 * CREDIT
    assert prices[-1] == PRICE_MICROCREDITS_MAX
    assert levels is None or len(prices) <= levels
    assert choose_steps(make_shape(), levels).prices == ()


@pytest.mark.parametrize(
    ("price", "text"),
    [
        (0, "0 credits/h"),
        (1, "0.000001 credits/h"),
        (CREDIT, "1 credit/h"),
        (12_500_000, "12.5 credits/h"),
        (1_234 * CREDIT, "1,234 credits/h"),
    ],
)
def test_prices_are_said_in_credits(price: int, text: str):
    assert say_price(price) == text


def test_the_order_of_the_fleet_does_not_matter():
    classes = [make_class(cores=cores, region=region, slot_count=1) for cores in (1, 2, 6) for region in ("IN", "DE")]
    need = Requirements(cores=8, regions=("US",))
    assert explain_waiting(need, classes) == explain_waiting(need, list(reversed(classes)))


def test_places_are_few_and_ones_own_stands_first():
    classes = [make_class(region=region, slot_count=5) for region in ("IN", "DE", "US", "FR")]
    found = explain_waiting(Requirements(), [*classes, make_class(region="BR", node_name="mine")])
    assert len(found.places) == PLACES_MAX
    assert found.places[0].node_name == "mine"


def test_margins_tell_need_and_slot_for_each_gate_that_is_asked_for():
    need = Requirements(vram_bytes=16 * GB, cores=2, ram_bytes=4 * GB, tiers=("rtx-3090",))
    slot = make_slot(vram_bytes=24 * GB, cores=4)
    rows = {m.gate: (m.needs, m.has, m.spare, m.passes) for m in list_margins(need, slot)}
    assert rows == {
        Gate.VRAM: ("16 GB", "24 GB", "8 GB", True),
        Gate.CORES: ("2 cores", "4 cores", "2", True),
        Gate.RAM: ("4 GB", "8 GB", "4 GB", True),
        Gate.DISK: ("1 GB", "50 GB", "49 GB", True),
        Gate.ISOLATION: ("sandboxed", "sandboxed", None, True),
        Gate.TIER: ("rtx-3090", "rtx-3090", None, True),
    }
    [failed] = [m for m in list_margins(replace(need, cores=8), slot) if not m.passes]
    assert (failed.gate, failed.spare) == (Gate.CORES, None)
    priced = replace(need, ceiling_microcredits_per_hour=20 * CREDIT)
    [price] = [m for m in list_margins(priced, slot, 12 * CREDIT) if m.gate is Gate.PRICE]
    assert (price.needs, price.has, price.spare) == ("at most 20 credits/h", "12 credits/h", "8 credits/h")
    assert not list_margins(priced, slot, 21 * CREDIT)[-1].passes


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 GB"), (512_000_000, "512 MB"), (12_500_000_000, "12.5 GB"), (100 * GB, "100 GB")]
)
def test_sizes_are_said_as_people_write_them(size: int, text: str):
    assert say_bytes(size) == text


def make_ended(**overrides: Any) -> Ended:
    values: dict[str, Any] = {
        "cause": Cause.EXIT_CODE,
        "exit_code": 1,
        "state": AttemptState.FAILED,
        "slice_state": SliceState.QUEUED,
        "slice_cause": None,
        "failure_count": 1,
        "attempt_count": 1,
        "retries": 2,
        "ram_bytes": 4 * GB,
        "memory_bytes_peak": None,
        "wall_seconds": 3_600,
    }
    return Ended(**{**values, **overrides})


@pytest.mark.parametrize("cause", list(Cause))
@pytest.mark.parametrize("state", list(SliceState))
def test_every_end_is_told_in_words_whatever_became_of_the_slice(cause: Cause, state: SliceState):
    end = explain_end(make_ended(cause=cause, exit_code=None, slice_state=state))
    assert end.words == PLAIN_WORDS[cause]
    assert end.next_words


def test_a_failure_that_is_tried_again_tells_how_many_retries_are_left():
    assert explain_end(make_ended()).next_words == (
        "It is tried again, on another node if one is free: retry 1 of 2, 1 left after it."
    )
    assert "retry 2 of 2, none left after it" in explain_end(make_ended(failure_count=2)).next_words


def test_a_failure_that_was_forgiven_is_told_to_spend_no_retry():
    assert "this end spends no retry" in explain_end(make_ended(failure_count=0)).next_words


def test_a_lost_node_spends_no_retry_and_may_still_deliver():
    end = explain_end(make_ended(cause=Cause.NODE_VANISHED, state=AttemptState.LOST, failure_count=0))
    assert "spends no retry" in end.next_words
    assert "its result counts" in end.next_words
    assert end.advice == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"failure_count": 3}, "its 2 retries are spent"),
        ({"failure_count": 2, "retries": 1}, "its one retry is spent"),
        ({"failure_count": 1, "retries": 0}, "the job allows no retry"),
        ({"failure_count": 0, "attempt_count": ATTEMPTS_MAX}, f"tried {ATTEMPTS_MAX} times"),
        ({"slice_cause": Cause.EXPIRED}, "expiry time has passed"),
        # Stopped by a rule that is not known here: nothing is made up.
        ({"failure_count": 0}, "failed for good."),
    ],
)
def test_the_reason_why_it_is_over_is_the_true_one(changes: dict[str, Any], words: str):
    assert words in explain_end(make_ended(slice_state=SliceState.FAILED, **changes)).next_words


def test_a_checkpoint_is_no_failure():
    end = explain_end(make_ended(exit_code=85, failure_count=0))
    assert "asked to be queued again" in end.words
    assert "spends no retry" in end.next_words
    assert end.advice == ()


def test_out_of_memory_is_answered_with_a_figure():
    end = explain_end(make_ended(cause=Cause.OUT_OF_MEMORY, memory_bytes_peak=4 * GB))
    assert end.advice[0].remedy is Remedy.ASK_FOR_MORE_RAM
    assert end.advice[0].value == 6 * GB
    assert end.advice[0].words == "ask for 6 GB of RAM instead of 4 GB"


@pytest.mark.parametrize(
    ("asked", "peak", "more"),
    [(0, None, 500_000_000), (512_000_000, None, GB), (GB, 3 * GB, 4_500_000_000), (4 * GB, 0, 6 * GB)],
)
def test_more_ram_is_always_more_and_in_whole_steps(asked: int, peak: int | None, more: int):
    assert more_ram(asked, peak) == more
    assert more > asked


def test_a_timeout_is_answered_with_a_longer_limit_while_there_is_one():
    assert explain_end(make_ended(cause=Cause.TIMED_OUT)).advice[0].value == 7_200
    longest = explain_end(make_ended(cause=Cause.TIMED_OUT, wall_seconds=WALL_SECONDS_MAX)).advice[0]
    assert "more slices" in longest.words
    assert longest.value is None


def test_a_program_error_sends_to_the_log():
    assert [each.remedy for each in explain_end(make_ended()).advice] == [Remedy.READ_LOG]


# Conditions of owners


def test_slices_that_are_too_short_are_answered_with_the_wall_limit_that_would_do():
    classes = [make_class(slice_seconds_min=3_600), make_class(slice_seconds_min=60, slot_count=2)]
    found = explain_waiting(Requirements(slice_seconds=45), classes)
    assert [(each.gate, each.asked, each.failed_count) for each in found.gates] == [(Gate.SECONDS, "up to 45 s", 3)]
    [suggestion] = found.suggestions
    assert words_of(found) == [
        "let a slice run for up to 1 min instead of up to 45 s (the owner takes slices of 1 min or more)"
    ]
    assert (suggestion.requirements.slice_seconds, suggestion.slot_count) == (60, 2)


def test_slots_that_are_closed_are_told_with_the_hour_at_which_the_first_opens():
    monday = datetime(2030, 1, 7, 19, 0, tzinfo=UTC)
    classes = [
        make_class(standing=Standing.CLOSED, slot_count=2, opens_at=monday + timedelta(days=1)),
        make_class(standing=Standing.CLOSED, tier="other", opens_at=monday.astimezone(ZoneInfo("Asia/Kolkata"))),
        make_class(standing=Standing.CLOSED, cores=1, slot_count=9, opens_at=monday),
    ]
    found = explain_waiting(Requirements(cores=2), classes)
    assert found.notes == (
        "3 slots would fit, but are not lent at this hour. The first of them opens on Monday 19:00 UTC.",
    )
    assert (found.slot_count, found.pass_count, found.away_count) == (0, 0, 0)
    assert {(place.standing, place.opens_at) for place in found.places} == {
        (Standing.CLOSED, monday),
        (Standing.CLOSED, monday + timedelta(days=1)),
    }


def test_nobody_is_told_to_call_a_job_something_else_or_to_join_a_pool_but_why_it_waits():
    classes = [
        make_class(job_kinds=frozenset({"ml", "gaming"}), slot_count=3),
        make_class(welcome=frozenset()),
        make_class(welcome=frozenset(), cores=1),
    ]
    found = explain_waiting(Requirements(cores=2), classes)
    assert found.suggestions == ()
    assert found.notes == (
        "3 slots would fit, but are lent for jobs of the kind gaming or ml only; this one is compute.",
        "1 slot would fit, but is kept for a private pool: the owner would have to name you.",
    )
    assert {each.gate: (each.asked, each.failed_count) for each in found.gates} == {
        Gate.CORES: ("2 cores", 1),
        Gate.KIND: ("compute", 3),
        Gate.POOL: ("lent to you", 2),
    }


def test_nobody_is_told_to_do_without_an_image_or_hosts_but_who_does_not_allow_them():
    classes = [
        make_class(allows=frozenset({"image ghcr.io/*", "packages"}), slot_count=3),
        make_class(allows=frozenset({"image docker.io/library/*"})),
        make_class(allows=frozenset(), cores=1),
    ]
    wants = ("egress example.org:443", "image docker.io/library/python@sha256:ab", "packages")
    found = explain_waiting(Requirements(cores=2, wants=wants), classes)
    assert found.suggestions == ()
    assert found.notes == (
        "4 slots would fit, but are of owners who do not allow the image docker.io/library/python and jobs to reach "
        "example.org:443 and packages to be installed.",
    )
    assert {each.gate: (each.asked, each.failed_count) for each in found.gates} == {
        Gate.CORES: ("2 cores", 1),
        Gate.IMAGE: ("docker.io/library/python", 4),
        Gate.EGRESS: ("example.org:443", 5),
        Gate.PACKAGES: ("to be installed", 2),
    }


def test_what_a_job_wants_stands_in_the_table_of_a_slot_and_nothing_where_it_wants_nothing():
    slot = make_slot(allows=frozenset({"image docker.io/library/*", "packages"}))
    need = Requirements(wants=("image docker.io/library/python@sha256:ab", "packages"))
    margins = {each.gate: each for each in list_margins(need, slot)}
    assert [(margins[gate].needs, margins[gate].has) for gate in (Gate.IMAGE, Gate.PACKAGES)] == [
        ("docker.io/library/python", "docker.io/library/*"),
        ("to be installed", "allowed"),
    ]
    assert all(each.passes for each in margins.values())
    assert not {Gate.IMAGE, Gate.EGRESS, Gate.PACKAGES} & {each.gate for each in list_margins(Requirements(), slot)}


def test_nothing_is_noted_while_a_slot_that_fits_is_free():
    assert explain_waiting(Requirements(), [make_class(), make_class(welcome=frozenset())]).notes == ()


def test_the_conditions_that_an_owner_has_set_stand_in_the_table_of_a_slot():
    slot = make_slot(slice_seconds_min=60, job_kinds=frozenset({"ml"}), welcome=frozenset({account_number(1)}))
    need = Requirements(job_kind="ml", slice_seconds=600)
    margins = {each.gate: each for each in list_margins(need, slot, account_id=account_number(1))}
    assert [(margins[gate].needs, margins[gate].has) for gate in (Gate.KIND, Gate.SECONDS, Gate.POOL)] == [
        ("ml", "ml"),
        ("up to 10 min", "1 min or more"),
        ("lent to you", "a private pool"),
    ]
    assert all(each.passes for each in margins.values())
    assert Gate.POOL not in {each.gate for each in list_margins(need, make_slot())}


def make_node(**overrides: Any) -> NodeFacts:
    values: dict[str, Any] = {
        "state": NodeState.ACTIVE,
        "online": True,
        "seen": True,
        "slots": [(make_slot(), False)],
    }
    return NodeFacts(**{**values, **overrides})


FITS = Backlog(make_shape(), 3)
NEEDS_24_GB = Backlog(make_shape(gpu=True, vram_bytes=24 * GB), 100)
NEEDS_REGION = Backlog(make_shape(regions=("US",)), 7)


@pytest.mark.parametrize(
    ("node", "backlog", "reason"),
    [
        ({"state": NodeState.REMOVED, "online": False}, [FITS], IdleReason.REMOVED),
        ({"online": False, "seen": False}, [FITS], IdleReason.NEVER_SEEN),
        ({"online": False}, [FITS], IdleReason.OFFLINE),
        ({"state": NodeState.PAUSED}, [FITS], IdleReason.PAUSED),
        ({"state": NodeState.DRAINING}, [FITS], IdleReason.DRAINING),
        ({"closed": True}, [FITS], IdleReason.CLOSED),
        ({"slots": [(make_slot(), True)]}, [FITS], IdleReason.ALL_BUSY),
        ({}, [], IdleReason.NO_WORK),
        ({}, [NEEDS_24_GB], IdleReason.NOTHING_FITS),
        ({}, [NEEDS_24_GB, FITS], IdleReason.WORK_FITS),
    ],
)
def test_an_idle_node_is_told_the_first_reason_that_holds(
    node: dict[str, Any], backlog: list[Backlog], reason: IdleReason
):
    found = explain_idle(make_node(**node), backlog)
    assert found.reason is reason
    assert found.words.endswith(".") or found.words.endswith("computepool node")


def test_waiting_work_is_counted_by_the_gate_that_it_fails_and_the_largest_part_names_what_is_lacking():
    found = explain_idle(make_node(), [NEEDS_REGION, NEEDS_24_GB, FITS])
    assert (found.waiting_count, found.fitting_count) == (110, 3)
    assert {each.gate: (each.shape_count, each.slice_count) for each in found.gates} == {
        Gate.GPU: (1, 100),
        Gate.VRAM: (1, 100),
        Gate.REGION: (1, 7),
    }
    assert found.lack is not None
    assert found.lack.slice_count == 100
    assert [(m.gate, m.needs, m.has) for m in found.lack.missing] == [(Gate.VRAM, "24 GB", "0 GB")]
    assert found.lack.requirements.vram_bytes == 24 * GB


def test_the_best_free_slot_is_judged_and_a_busy_one_is_not():
    slots = [(make_slot(), False), (make_slot(vram_bytes=24 * GB), True)]
    assert explain_idle(make_node(slots=slots), [NEEDS_24_GB]).reason is IdleReason.NOTHING_FITS
    slots = [(make_slot(), False), (make_slot(vram_bytes=24 * GB), False)]
    assert explain_idle(make_node(slots=slots), [NEEDS_24_GB]).reason is IdleReason.WORK_FITS


def test_an_owner_is_told_how_far_to_come_down_and_what_that_would_bring():
    low = Backlog(make_shape(ceiling_microcredits_per_hour=5 * CREDIT), 100)
    near = Backlog(make_shape(ceiling_microcredits_per_hour=10 * CREDIT), 7)
    elsewhere = Backlog(make_shape(ceiling_microcredits_per_hour=11 * CREDIT, regions=("US",)), 50)
    node = make_node(floor_microcredits_per_hour=12 * CREDIT)
    found = explain_idle(node, [low, near, elsewhere])
    assert found.reason is IdleReason.NOTHING_FITS
    assert {each.gate: each.slice_count for each in found.gates} == {Gate.REGION: 50, Gate.PRICE: 157}
    assert found.lower_floor == LowerFloor(10 * CREDIT, 7)
    assert found.lack is not None
    assert [(m.needs, m.has) for m in found.lack.missing] == [("at most 5 credits/h", "12 credits/h")]
    assert explain_idle(make_node(), [low, near]).lower_floor is None


def test_a_closed_node_says_when_it_opens_on_its_owners_clock():
    opens = datetime(2030, 1, 7, 18, 0, tzinfo=UTC).astimezone(ZoneInfo("Europe/Berlin"))
    found = explain_idle(make_node(closed=True, opens_at=opens), [FITS])
    assert found.words.endswith("It opens on Monday 19:00 (Europe/Berlin).")


def test_an_owner_is_told_which_condition_keeps_work_away_and_what_giving_it_up_would_bring():
    slot = make_slot(slice_seconds_min=3_600, job_kinds=frozenset({"ml"}))
    short = Backlog(make_shape(job_kind="ml", slice_seconds=10), 40)
    longer = Backlog(make_shape(job_kind="ml", slice_seconds=60), 5)
    other = Backlog(make_shape(slice_seconds=3_600), 7)
    both = Backlog(make_shape(slice_seconds=10), 100)
    found = explain_idle(make_node(slots=[(slot, False)]), [short, longer, other, both])
    assert found.reason is IdleReason.NOTHING_FITS
    assert {each.gate: each.slice_count for each in found.gates} == {Gate.KIND: 107, Gate.SECONDS: 145}
    assert found.offer_changes == (
        OfferChange(Gate.SECONDS, "take slices of 1 min or more, not only of 1 h or more", "60", 5),
        OfferChange(Gate.KIND, "take jobs of the kind compute too", "compute,ml", 7),
    )


def test_work_of_strangers_does_not_count_for_a_private_node_but_what_it_would_bring_is_told():
    private = [(make_slot(welcome=frozenset({account_number(1)})), False)]
    strangers = Backlog(make_shape(ceiling_microcredits_per_hour=20 * CREDIT), 30, is_welcome=False)
    found = explain_idle(make_node(slots=private, floor_microcredits_per_hour=12 * CREDIT), [strangers])
    assert (found.reason, found.waiting_count, found.fitting_count) == (IdleReason.NOTHING_FITS, 30, 0)
    assert found.lack is None
    assert found.offer_changes == (
        OfferChange(Gate.POOL, "lend it to anyone, not only to a private pool", "anyone", 30),
    )


@pytest.mark.parametrize("welcome", [None, frozenset({account_number(1)}), frozenset(map(account_number, (1, 2)))])
def test_the_owners_own_work_pays_nothing_on_their_nodes(welcome):
    dear = {"slots": [(make_slot(welcome=welcome), False)], "floor_microcredits_per_hour": 12 * CREDIT}
    own = Backlog(make_shape(ceiling_microcredits_per_hour=1), 3, is_own=True)
    assert explain_idle(make_node(**dear), [own]).reason is IdleReason.WORK_FITS
    assert explain_idle(make_node(**dear), [replace(own, is_own=False)]).lower_floor is not None

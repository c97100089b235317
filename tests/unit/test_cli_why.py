"""What a person reads who asks why, and an operator who compares weights: in 80 columns, with commands to copy."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from computepool.cli.experiment import describe_experiment
from computepool.cli.why import describe_job, describe_node, lay_out, say_run
from computepool.core.jobs.cause import PLAIN_WORDS, Cause
from computepool.core.jobs.ending import Remedy
from computepool.core.jobs.order import PriorityClass
from computepool.core.jobs.state import AttemptState, JobState, SliceState
from computepool.core.ledger.charging import PriceMode
from computepool.core.nodes.state import NodeState
from computepool.core.placement.experiment import Verdict
from computepool.core.placement.gates import Gate
from computepool.core.placement.idleness import IdleReason
from computepool.core.placement.slot_classes import Standing
from computepool.core.placement.weights import Preference
from computepool.wire import placement as wire_placement
from computepool.wire import why as wire
from computepool.wire.jobs import JobPrice, Requirements, SliceCounts

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
CREDIT = 1_000_000
COLUMNS = 80


def make_turn(**overrides: Any) -> wire.WhyTurn:
    fields: dict[str, Any] = {
        "words": "40 slices of this account go before it.",
        "priority_class": PriorityClass.NORMAL,
        "priority": 0,
        "class_ahead_count": 0,
        "class_ahead_is_more": False,
        "ahead_count": 40,
        "ahead_is_more": False,
        "account_count": 0,
        "account_is_more": False,
        "account_less_count": 0,
        "used_slot_seconds": 0.0,
        "fair_weight": 1.0,
    }
    return wire.WhyTurn(**(fields | overrides))


def make_waiting(**overrides: Any) -> wire.WhyWaiting:
    place = wire.WhyPlace(tier="rtx-4090", standing=Standing.READY, slot_count=3, free_count=2, region="IN")
    dearer = Requirements(gpu=True, ceiling_microcredits_per_hour=12_400_000)
    change = wire.WhyChange(
        gate=Gate.PRICE,
        asked="at most 10 credits/h",
        instead="at most 12.4 credits/h",
        words="pay up to 12.4 credits/h instead of 10 credits/h",
    )
    fields: dict[str, Any] = {
        "words": "None of the 9 slots of the fleet fits.",
        "slot_count": 9,
        "pass_count": 0,
        "free_count": 0,
        "away_count": 0,
        "fleet_is_more": False,
        "turn": make_turn(),
        "gates": [
            wire.WhyGate(gate=Gate.GPU, asked="a GPU", failed_count=6),
            wire.WhyGate(gate=Gate.PRICE, asked="at most 10 credits/h", failed_count=3),
        ],
        "places": [],
        "suggestions": [
            wire.WhySuggestion(changes=[change], requirements=dearer, slot_count=3, free_count=2, places=[place])
        ],
    }
    return wire.WhyWaiting(**(fields | overrides))


def test_a_suggested_price_per_slice_can_be_typed() -> None:
    change = wire.WhyChange(gate=Gate.PRICE, asked="5", instead="10", words="pay 10 credits a slice instead of 5")
    price = JobPrice(
        mode=PriceMode.PER_SLICE, microcredits_per_slice=10 * CREDIT, ceiling_microcredits_per_slice=30_500_000
    )
    suggestion = wire.WhySuggestion(
        changes=[change], requirements=Requirements(), price=price, slot_count=3, free_count=2, places=[]
    )
    assert say_run(suggestion) == "computepool run --price-per-slice 10 --max-price-per-slice 30.5 ..."


def make_candidate(rank: int, **overrides: Any) -> wire.WhyCandidate:
    fields: dict[str, Any] = {
        "rank": rank,
        "chosen": False,
        "busy": False,
        "slot": "gpu:0",
        "tier": "rtx-4090",
        "price_microcredits_per_hour": 36 * CREDIT,
        "speed_tflops": 82.6,
        "reliability": 0.93,
        "points": {"price": -17.4, "speed": 4.41, "reliability": -0.07},
        "total": -13.06,
        "region": "IN",
    }
    return wire.WhyCandidate(**(fields | overrides))


def make_choice(**overrides: Any) -> wire.WhyChoice:
    fields: dict[str, Any] = {
        "words": "Of 12 slots that fit, it has the highest score today: mostly for its speed.",
        "weight_set": "default",
        "prefer": Preference.VALUE,
        "fit_count": 12,
        "is_cut": False,
        "candidates": [
            make_candidate(1, chosen=True, busy=True, node_name="attic-pc"),
            make_candidate(2, busy=True, price_microcredits_per_hour=24 * CREDIT, tier="rtx-3090", total=-13.5),
            make_candidate(3, region=None, total=-14.0),
            make_candidate(4, tier="gtx-1080ti", reliability=0.05, total=-20.0),
        ],
        "reckoned_at": NOW,
    }
    return wire.WhyChoice(**(fields | overrides))


def make_attempt(**overrides: Any) -> wire.WhyAttempt:
    fields: dict[str, Any] = {
        "number": 1,
        "state": AttemptState.RUNNING,
        "node_id": UUID(int=7),
        "slot": "gpu:0",
        "leased_at": NOW,
        "tier": "rtx-4090",
        "region": "IN",
    }
    return wire.WhyAttempt(**(fields | overrides))


def make_slice(**overrides: Any) -> wire.WhySlice:
    fields: dict[str, Any] = {
        "index": 0,
        "state": SliceState.RUNNING,
        "attempt_count": 1,
        "failure_count": 0,
        "retries": 2,
        "cause": None,
        "cause_words": None,
        "attempts": [make_attempt()],
    }
    return wire.WhySlice(**(fields | overrides))


def make_job(**overrides: Any) -> wire.JobWhy:
    fields: dict[str, Any] = {
        "job_id": UUID(int=0xABCDEF12),
        "name": "train",
        "state": JobState.QUEUED,
        "counts": SliceCounts(queued=41),
        "requirements": Requirements(),
    }
    return wire.JobWhy(**(fields | overrides))


def make_node(**overrides: Any) -> wire.NodeWhy:
    fields: dict[str, Any] = {
        "node_id": UUID(int=3),
        "name": "attic pc",
        "state": NodeState.ACTIVE,
        "online": True,
        "reason": IdleReason.NOTHING_FITS,
        "words": "Work is waiting, but none of it fits a free slot of this node.",
        "slot_count": 2,
        "free_count": 2,
        "waiting_count": 157,
        "fitting_count": 0,
        "waiting_is_more": False,
        "gates": [wire.WhyGateBacklog(gate=Gate.PRICE, shape_count=2, slice_count=157)],
        "last_seen_at": NOW,
        "floor_microcredits_per_hour": 12 * CREDIT,
        "lower_floor": wire.WhyFloor(floor_microcredits_per_hour=10 * CREDIT, slice_count=57),
    }
    return wire.NodeWhy(**(fields | overrides))


def check(lines: list[str]) -> str:
    assert [line for line in lines if len(line) > COLUMNS] == []
    assert "None" not in "\n".join(lines).replace("None of", "")
    return "\n".join(lines)


def test_a_ceiling_that_is_too_low_is_answered_with_the_option_to_type():
    text = check(describe_job(make_job(waiting=make_waiting())))
    assert "price  at most 10 credits/h  3 of 9" in text
    assert "Pay up to 12.4 credits/h instead of 10 credits/h: 3 slots, 2 free now" in text
    assert "computepool run --max-price 12.4 ..." in text


def test_a_price_that_cannot_be_named_is_an_option_to_leave_out():
    waiting = make_waiting()
    any_price = wire.WhySuggestion(
        changes=waiting.suggestions[0].changes,
        requirements=Requirements(),
        slot_count=1,
        free_count=1,
        places=waiting.suggestions[0].places,
    )
    text = check(describe_job(make_job(waiting=make_waiting(suggestions=[any_price]))))
    assert "computepool run ...  (without --max-price)" in text


def test_whose_turn_it_is_and_a_deadline_are_told():
    turn = make_turn(deadline_at=NOW + timedelta(hours=1))
    text = check(describe_job(make_job(waiting=make_waiting(turn=turn, pass_count=2))))
    assert "Turn: 40 slices of this account go before it." in text
    assert "Deadline: 2026-01-01" in text
    raised = make_turn(deadline_at=NOW, raised_at=NOW, words="It was moved to the front.")
    assert "Deadline" not in check(describe_job(make_job(waiting=make_waiting(turn=raised))))


def test_where_no_slot_fits_nobody_is_told_of_turns():
    assert "Turn" not in check(describe_job(make_job(waiting=make_waiting())))


def test_a_large_fleet_that_was_looked_at_in_part_is_called_so():
    assert "part of the fleet" in check(describe_job(make_job(waiting=make_waiting(fleet_is_more=True))))
    story = make_slice(choice=make_choice(is_cut=True))
    assert "part of the fleet" in check(describe_job(make_job(slice=story)))


def test_the_slot_that_was_chosen_is_marked_in_the_table_of_scores():
    text = check(describe_job(make_job(slice=make_slice(choice=make_choice()))))
    assert "Why this slot: Of 12 slots that fit" in text
    [chosen] = [line for line in text.splitlines() if line.strip().startswith("> 1.")]
    assert "gpu:0 rtx-4090 IN at" in chosen
    assert "36 (-17.40)" in chosen
    assert chosen.endswith("-13.06")
    assert "2. gpu:0 rtx-3090 IN busy" in text
    assert "3. gpu:0 rtx-4090 free" in text
    assert "Reckoned now" in text


def test_points_without_a_figure_have_a_column_of_their_own():
    classic = [make_candidate(1, points={"vram_fit": 10.0, "cores_fit": 5.0}, total=15.0, chosen=True)]
    text = check(describe_job(make_job(slice=make_slice(choice=make_choice(candidates=classic)))))
    assert "VRAM FITS" in text
    assert "(10.00)" in text
    assert "36 (" not in text


def test_a_long_name_of_a_node_leaves_the_figures_alone():
    long = [make_candidate(1, chosen=True, node_name="n" * 100), make_candidate(2)]
    text = check(describe_job(make_job(slice=make_slice(choice=make_choice(candidates=long)))))
    assert "-13.06" in text


def test_an_attempt_that_killed_three_machines_is_told_with_its_end():
    attempts = [
        make_attempt(
            number=number, state=AttemptState.LOST, cause=Cause.NODE_VANISHED, cause_words="the node went silent"
        )
        for number in (3, 2, 1)
    ]
    story = make_slice(
        state=SliceState.FAILED,
        attempt_count=3,
        cause=Cause.POISONOUS,
        cause_words=PLAIN_WORDS[Cause.POISONOUS],
        attempts=attempts,
        next_words="The slice failed for good.",
        advice=[wire.WhyAdvice(remedy=Remedy.READ_LOG, words="read its log")],
    )
    text = check(describe_job(make_job(state=JobState.FAILED, slice=story)))
    assert "machines went down three times" in " ".join(text.split())
    assert "computepool logs abcdef12 --slice 0 --attempt 3" in text


def test_what_only_time_or_owners_can_change_is_told_and_a_longer_limit_is_an_option_to_type():
    change = wire.WhyChange(gate=Gate.SECONDS, asked="up to 45 s", instead="up to 1 min", words="let a slice run")
    opens = datetime(2026, 1, 5, 19, 0, tzinfo=UTC)
    place = wire.WhyPlace(tier="cpu", standing=Standing.CLOSED, slot_count=3, free_count=3, opens_at=opens)
    waiting = make_waiting(
        notes=["3 slots would fit, but are not lent at this hour."],
        places=[place],
        suggestions=[
            wire.WhySuggestion(
                changes=[change], requirements=Requirements(), slot_count=1, free_count=1, places=[], wall_seconds=60
            )
        ],
    )
    text = check(describe_job(make_job(waiting=waiting)))
    assert "3 slots would fit, but are not lent at this hour." in text
    assert f"Would fit: 3 x cpu, opens {opens.astimezone():%a %H:%M}." in text
    assert "computepool run --wall 60s ..." in text


def test_an_owner_is_told_which_condition_to_give_up_and_how():
    changes = [
        wire.WhyOfferChange(gate=gate, words="take more", value=value, slice_count=7)
        for gate, value in ((Gate.SECONDS, "10"), (Gate.KIND, "compute,ml"), (Gate.POOL, "anyone"))
    ]
    text = check(describe_node(make_node(lower_floor=None, offer_changes=changes)))
    assert "Take more, and 7 waiting slices would fit:" in text
    typed = [shlex.split(line) for line in text.splitlines() if "computepool nodes" in line]
    assert [words[:4] for words in typed] == [["computepool", "nodes", "attic pc", "offer"]] * 3
    assert [words[4:] for words in typed] == [
        ["--min-seconds", "10"],
        ["--kinds", "compute,ml"],
        ["--pool", "anyone"],
    ]
    # What is told there is not told as something that the machine lacks.
    kind = wire.WhyMargin(gate=Gate.KIND, needs="compute", has="ml", passes=False)
    lack = wire.WhyLack(requirements=Requirements(), slice_count=7, slot="cpu:0", missing=[kind])
    assert "lacks" not in check(describe_node(make_node(offer_changes=changes, lack=lack)))


def test_an_owner_is_told_what_a_lower_floor_would_bring_and_how_to_set_it():
    text = check(describe_node(make_node()))
    assert "You ask 12 credits/h for a slot. For 10 credits/h, 57 waiting slices would fit:" in text
    [typed] = [line.strip() for line in text.splitlines() if "computepool nodes" in line]
    assert shlex.split(typed) == ["computepool", "nodes", "attic pc", "floor", "10"]
    assert "You ask" not in check(describe_node(make_node(lower_floor=None)))


def test_a_price_is_what_the_owner_asks_and_is_told_once():
    price = wire.WhyMargin(gate=Gate.PRICE, needs="at most 10 credits/h", has="12 credits/h", passes=False)
    region = wire.WhyMargin(gate=Gate.REGION, needs="US", has="IN", passes=False)

    def make_lack(*missing: wire.WhyMargin) -> wire.WhyLack:
        return wire.WhyLack(requirements=Requirements(), slice_count=9, slot="gpu:0", missing=list(missing))

    assert "lacks" not in check(describe_node(make_node(lack=make_lack(price))))
    text = check(describe_node(make_node(lack=make_lack(region, price))))
    assert "region: US (it has IN); price: at most 10 credits/h (you ask 12 credits/h)." in text


@pytest.mark.parametrize("width", [10, 60, 300])
def test_a_table_keeps_within_its_columns_and_cuts_only_the_widest(width: int):
    lines = lay_out(("A", "B", "C"), [("a", "b" * width, "c" * 12)], right=(2,))
    assert all(len(line) <= COLUMNS for line in lines)
    assert lines[1].endswith("c" * 12)


def make_side(name: str, **overrides: Any) -> wire_placement.SetOutcome:
    fields: dict[str, Any] = {
        "name": name,
        "share": 0.5,
        "weights": {"price": 1.0, "speed": 1.0, "reliability": 1.0},
        "job_count": 1_234,
        "finished_count": 1_200,
        "succeeded_count": 1_100,
        "slice_count": 56_789,
        "attempt_count": 30_000,
        "fault_count": 120,
        "faulty_job_count": 60,
        "wait_seconds": wire_placement.Summary(median=0.2, mean=12.0),
        "turnaround_seconds": wire_placement.Summary(median=61.0, mean=4_000.0),
        "run_seconds": wire_placement.Summary(median=30.0, mean=45.0),
        "price_microcredits_per_hour": 23_456_789.0,
    }
    return wire_placement.SetOutcome(**(fields | overrides))


def make_experiment(**overrides: Any) -> wire_placement.Experiment:
    fields: dict[str, Any] = {
        "since": NOW,
        "first": make_side("default"),
        "second": make_side("classic", weights={"vram_fit": 10.0, "cores_fit": 5.0}),
        "job_count": 2_468,
        "is_cut": False,
        "verdict": Verdict.FIRST,
        "words": "default is better: jobs of classic take 12 % more time (4 % to 21 %).",
        "turnaround_ratio": wire_placement.Interval(estimate=1.12, low=1.04, high=1.21),
        "fault_share": wire_placement.Interval(estimate=0.01, low=-0.005, high=0.025),
    }
    return wire_placement.Experiment(**(fields | overrides))


def test_two_sets_stand_side_by_side_with_what_is_sure_and_the_verdict():
    text = check(describe_experiment(make_experiment()))
    assert "Looked at 2,468 jobs submitted since 2026-01-01" in text
    assert "classic: 50 %, placed by vram_fit 10, cores_fit 5" in text
    assert "x 1.04 to x 1.21" in text
    assert "+1.00 in 100" in text
    assert text.endswith("(4 % to 21 %).")


def test_an_experiment_without_jobs_is_told_without_figures():
    empty = {"job_count": 0, "finished_count": 0, "succeeded_count": 0, "slice_count": 0, "attempt_count": 0}
    empty |= {"fault_count": 0, "faulty_job_count": 0, "wait_seconds": None, "turnaround_seconds": None}
    empty |= {"run_seconds": None, "price_microcredits_per_hour": None}
    found = make_experiment(
        first=make_side("default", **empty),
        second=make_side("classic", **empty),
        job_count=0,
        turnaround_ratio=None,
        fault_share=None,
        words="Cannot be told yet.",
    )
    text = check(describe_experiment(found))
    assert "95 % SURE" not in text
    assert "Looked at 0 jobs" in text

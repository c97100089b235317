"""Proof of hardware: the work, the promise about it, and what rounds of it come to."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.nodes.slots import GpuCard, Machine
from computepool.core.placement.scorers import TIER_TFLOPS, make_candidate
from computepool.core.placement.slot import Slot, SlotKind
from computepool.core.placement.tier import MEASURED_STEPS, tier_by_speed
from computepool.core.trust.challenge import (
    ALLOWANCE_SECONDS,
    KEEP_RATIO,
    ROUNDS,
    SAMPLES,
    Claim,
    ProofState,
    Round,
    judge,
    may_try,
    needs_more,
    plan_work,
)
from computepool.core.trust.claims import Granted, Shown, grant, list_claims
from computepool.core.trust.commitment import Tree, is_proved
from computepool.core.trust.products import (
    Spot,
    Work,
    compute_spots,
    diagonal,
    list_work_faults,
    row_of_a,
    row_of_b,
    signs,
)

SEED = bytes(range(32))
NOW = datetime(2026, 1, 1, tzinfo=UTC)
CARD_4090 = Claim("rtx-4090", None, 16)


def run_at(tflops: float, claim: Claim = CARD_4090, *, right: bool = True) -> Round:
    """A round of two seconds' work by a machine of this speed."""
    work = plan_work(claim, seed=SEED, seconds=2.0)
    return Round(work.flops, work.flops / tflops / 1e12 + ALLOWANCE_SECONDS, right)


# The work


def test_a_spot_is_computed_exactly():
    work = Work(SEED, 64, 2)
    spot = Spot(product=1, row=5, strip=0)
    a, d = memoryview(row_of_a(work, 5)).cast("h"), memoryview(diagonal(work, 1)).cast("b")
    b = [memoryview(row_of_b(work, row)).cast("h") for row in range(64)]
    entries = [sum(a[at] * d[at] * b[at][column] for at in range(64)) for column in range(64)]
    value = sum(-abs(entry) if sign & 1 else abs(entry) for entry, sign in zip(entries, signs(work), strict=True))
    (expected,) = compute_spots(work, [spot])
    assert expected.value == float(value)
    assert expected.norm == pytest.approx(sum(entry**2 for entry in entries) ** 0.5)


def test_spots_of_several_strips_come_in_the_order_in_which_they_were_asked():
    work = Work(SEED, 2048, 1)
    spots = [Spot(0, 3, 1), Spot(0, 3, 0), Spot(0, 9, 1)]
    assert [each.spot for each in compute_spots(work, spots)] == spots


def test_what_is_no_number_is_never_near():
    (expected,) = compute_spots(Work(SEED, 64, 1), [Spot(0, 0, 0)])
    assert expected.is_near(expected.value)
    assert not any(map(expected.is_near, (float("nan"), float("inf"), -expected.value, 0.0)))


@pytest.mark.parametrize("work", [Work(b"", 64, 1), Work(SEED, 65, 1), Work(SEED, 8192, 1), Work(SEED, 64, 0)])
def test_impossible_work_is_named(work):
    assert list_work_faults(work)


@pytest.mark.parametrize("tflops", [1e-5, 1e-3, 0.1, 3.0, 82.6, 1000.0])
def test_planned_work_is_possible_and_lasts_about_as_long_as_asked(tflops):
    work = plan_work(Claim("unknown", tflops, 4), seed=SEED, seconds=2.0)
    assert list_work_faults(work) == []
    if 0.1 <= tflops < 200:
        assert 1.0 < work.flops / tflops / 1e12 < 4.0


# The promise


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
def test_every_piece_is_proved_at_its_place_and_nowhere_else(count):
    pieces = [bytes([number]) * 40 for number in range(count)]
    tree = Tree(pieces)
    for index, place in itertools.product(range(count), range(-1, count + 1)):
        proved = is_proved(root=tree.root, count=count, index=place, piece=pieces[index], path=tree.prove(index))
        assert proved == (index == place)


def test_another_piece_a_short_path_or_a_long_one_proves_nothing():
    pieces = [bytes([number]) * 40 for number in range(6)]
    tree = Tree(pieces)
    path = tree.prove(2)
    assert is_proved(root=tree.root, count=6, index=2, piece=pieces[2], path=path)
    for piece, steps in ((b"forged", path), (pieces[2], path[:-1]), (pieces[2], [*path, path[0]])):
        assert not is_proved(root=tree.root, count=6, index=2, piece=piece, path=steps)


# The verdict


def test_a_4090_that_computes_like_one_keeps_its_tier():
    verdict = judge(CARD_4090, [run_at(58.0)])
    assert (verdict.state, verdict.tier) == (ProofState.PROVEN, "rtx-4090")
    assert verdict.tflops == pytest.approx(58.0)


def test_a_4090_that_computes_like_a_3060_has_the_tier_that_it_showed():
    verdict = judge(CARD_4090, [run_at(speed) for speed in (9.8, 10.1, 9.9)])
    assert (verdict.state, verdict.tier) == (ProofState.SLOWER, "unknown-8")
    assert "10.1 TFLOPS" in verdict.reason
    assert "rtx-4090" in verdict.reason


def test_a_busy_machine_is_judged_by_its_best_round():
    rounds = [run_at(21.0), run_at(55.0)]
    assert needs_more(CARD_4090, rounds[:1])
    assert not needs_more(CARD_4090, rounds)
    assert judge(CARD_4090, rounds).state is ProofState.PROVEN


def test_a_machine_that_was_busy_all_along_is_asked_again_soon_and_not_called_a_liar():
    verdict = judge(CARD_4090, [run_at(speed) for speed in (12.0, 30.0, 21.0)])
    assert verdict.state is ProofState.UNSURE
    assert may_try(verdict.state, decided_at=NOW, now=NOW + timedelta(minutes=10))
    assert not may_try(verdict.state, decided_at=NOW, now=NOW + timedelta(minutes=9))
    # It counts as what it showed all the same: a spread can be made.
    assert verdict.tier == "unknown-29"


def test_one_wrong_answer_ends_it_however_fast_it_was():
    rounds = [run_at(70.0), run_at(900.0, right=False)]
    assert not needs_more(CARD_4090, [rounds[1]])
    verdict = judge(CARD_4090, rounds)
    assert (verdict.state, verdict.tier, verdict.tflops) == (ProofState.FORGED, "unknown", None)


def test_an_unknown_card_has_its_tier_by_measurement():
    verdict = judge(Claim("unknown", 41.0, 8), [run_at(40.0, Claim("unknown", 41.0, 8))])
    assert (verdict.state, verdict.tier) == (ProofState.PROVEN, "unknown-29")


def test_a_processor_that_says_too_much_counts_by_what_it_showed():
    claim = Claim("cpu", 5.0, 8)
    verdict = judge(claim, [run_at(0.4, claim)] * ROUNDS)
    assert (verdict.state, verdict.tier) == (ProofState.SLOWER, "cpu")
    assert verdict.tflops == pytest.approx(0.4, rel=0.05)


def test_no_more_than_half_of_a_round_is_forgiven():
    assert Round(2e12, 0.1, True).tflops == pytest.approx(40.0)


def test_a_proof_is_not_asked_for_twice_and_the_first_try_is_free():
    assert not may_try(ProofState.PROVEN, decided_at=NOW, now=NOW + timedelta(days=400))
    assert may_try(ProofState.UNPROVEN, decided_at=None, now=NOW)


@pytest.mark.parametrize("tier", [tier for tier, speed in TIER_TFLOPS.items() if not tier.startswith("unknown")])
def test_honest_cards_pass_through_noise_and_slower_ones_do_not(tier):
    """200 sittings each: libraries at 65 % of the maker's figure, rounds slowed by up to 40 % by other programs."""
    random, claim = Random(7), Claim(tier, None, 8)

    def sit(speed: float, slowed_most: float) -> ProofState:
        rounds: list[Round] = []
        while needs_more(claim, rounds):
            rounds.append(run_at(speed * (1 - random.uniform(0, slowed_most)), claim))
        return judge(claim, rounds).state

    honest = [sit(0.65 * TIER_TFLOPS[tier], 0.15) for _ in range(200)]
    busy = [sit(0.65 * TIER_TFLOPS[tier], 0.4) for _ in range(200)]
    slower = [sit(0.65 * TIER_TFLOPS[tier] / 1.3, 0.15) for _ in range(200)]
    assert honest.count(ProofState.PROVEN) >= 198
    assert ProofState.FORGED not in busy
    assert slower.count(ProofState.PROVEN) <= 2


def test_leaving_out_a_quarter_of_the_work_is_seen_in_ninety_nine_of_a_hundred_rounds():
    assert 0.75**SAMPLES <= 0.0101


# What is granted


def make_machine(**overrides: object) -> Machine:
    values: dict[str, object] = {
        "gpus": [GpuCard("NVIDIA GeForce RTX 4090", 24 << 30, 70.0)],
        "cores": 8,
        "ram_bytes": 64 << 30,
        "disk_bytes": 1 << 40,
        "cpu_slots": 1,
        "region": None,
        "isolation": IsolationLevel.SANDBOXED,
        "cpu_tflops": 1.0,
        **overrides,
    }
    return Machine(**values)  # type: ignore[arg-type]


def test_a_name_alone_earns_no_tier_where_proof_is_demanded():
    assert grant(make_machine(), {}, demanded=True)[0] == Granted("unknown", None)
    assert grant(make_machine(), {}, demanded=False)[0] == Granted("rtx-4090", 70.0)


def test_what_was_shown_beats_what_is_said_whether_demanded_or_not():
    shown = {"gpu:0": Shown("unknown-8", 10.0), "cpu:0": Shown("cpu", 0.5)}
    for demanded in (True, False):
        assert grant(make_machine(), shown, demanded=demanded) == [Granted("unknown-8", 10.0), Granted("cpu", 0.25)]


def test_another_card_is_another_claim():
    before = list_claims(make_machine())
    after = list_claims(make_machine(gpus=[GpuCard("NVIDIA GeForce RTX 3060", 12 << 30)]))
    assert before["gpu:0"].fingerprint != after["gpu:0"].fingerprint
    assert before["cpu:0"].fingerprint == after["cpu:0"].fingerprint


@pytest.mark.parametrize("step", MEASURED_STEPS)
def test_a_measured_tier_counts_with_its_speed_in_placement(step):
    tier = tier_by_speed(step * 1.05)
    slot = Slot(
        None,
        "gpu:0",
        SlotKind.GPU,
        tier,
        8 << 30,
        1,
        1,
        1,
        None,
        IsolationLevel.SANDBOXED,  # type: ignore[arg-type]
    )
    candidate = make_candidate(slot, price_microcredits_per_hour=1, reliability=0.9, declared_tflops=step * 1.05)
    assert candidate.speed_tflops == pytest.approx(step * 1.05)
    assert KEEP_RATIO < 1

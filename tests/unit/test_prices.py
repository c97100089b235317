"""The price book: what a match costs, what a slot asks where spot has force, and the operator's rate card."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computepool import clock
from computepool.core.errors import InvalidSpec
from computepool.core.jobs.spec import JobPrice, Requirements
from computepool.core.ledger.charging import LeaseTerms, PriceMode
from computepool.core.market.rate_card import Bucket
from computepool.core.placement.price import Asked, SlicePrice, round_spot
from computepool.core.placement.shape import to_shape
from computepool.hub.services.market import keep_contested
from computepool.hub.services.prices import PriceBook, load_rate_card, read_rate_card
from computepool.settings import InvalidSettings
from tests.support.builders import account_number, make_candidate, make_slot, make_spec

CARD = load_rate_card()
CPU, GPU = Bucket("cpu", "in"), Bucket("rtx-4090", "in")
SLOT = make_slot(tier="cpu", region="IN")
OWNER, SUBMITTER = account_number(1), account_number(2)


@pytest.fixture
def book() -> PriceBook:
    return PriceBook(CARD, holdback_seconds=60)


def ask(book: PriceBook, floor: int) -> int:
    price, base_price, *_ = book.ask(SLOT, 1.0, floor)
    # 0.8 x 0.7 of it is the price.
    assert base_price == -(-price * 100 // 56)
    return price


def test_a_slot_asks_its_floor_unless_spot_has_force_in_its_bucket(book):
    spot = 2 * CARD.reference(CPU)
    book.spots = {CPU: spot}
    assert ask(book, 7) == 7
    book.contested = frozenset({GPU})
    assert ask(book, 7) == 7
    book.contested = frozenset({CPU})
    assert ask(book, 7) == spot
    assert ask(book, spot + 1) == spot + 1


@pytest.mark.parametrize("ceiling_parts", [10, 15, 20, 30])
def test_a_match_where_spot_has_force_costs_spot_and_never_more_than_the_ceiling(book, ceiling_parts):
    spot = 2 * CARD.reference(CPU)
    ceiling = CARD.reference(CPU) * ceiling_parts // 10
    book.spots, book.contested = {CPU: spot}, frozenset({CPU})
    candidate = make_candidate(slot=SLOT, price_microcredits_per_hour=ask(book, 7))
    if candidate.price_microcredits_per_hour <= ceiling:
        assert book.rate(candidate, ceiling, SUBMITTER) == spot
    else:
        assert ceiling_parts < 20


def test_a_private_pool_is_lent_at_its_owners_price_whatever_spot_is_and_ones_own_for_nothing(book):
    book.spots, book.contested = {CPU: 2 * CARD.reference(CPU)}, frozenset({CPU})
    owner, friend = account_number(1), account_number(2)
    for welcome, price in ((frozenset({owner, friend}), 7), (frozenset({owner}), 0)):
        slot = make_slot(tier="cpu", region="IN", welcome=welcome)
        # Before tier and region, of which a slot of this bucket has 0.56.
        assert book.ask(slot, 1.0, 7) == Asked(price, {7: 13, 0: 0}[price], 0)
        candidate = make_candidate(slot=slot, price_microcredits_per_hour=price, owner_id=owner)
        assert (book.rate(candidate, 10**9, friend), book.rate(candidate, 10**9, owner)) == (price, 0)


def test_slots_are_scored_by_spot_whether_it_has_force_or_not_but_asked_for_it_only_where_it_has(book):
    book.spots = {CPU: 5_000_000}
    assert book.ask(SLOT, 1.0, 7)[::2] == (7, round_spot(5_000_000))
    book.contested = frozenset({CPU})
    assert book.ask(SLOT, 1.0, 7)[::2] == (5_000_000, round_spot(5_000_000))
    assert book.ask(SLOT, 1.0, 7).reference == CARD.reference(CPU), "what fixed prices go by, whatever spot is"


def test_the_market_has_changed_when_spot_has_moved_by_a_step_or_has_force(book):
    reference = CARD.reference(CPU)
    assert not book.follow({CPU: reference}, frozenset()), "where it stood without a row"
    assert book.follow({CPU: reference * 2}, frozenset())
    lower = round_spot(reference * 2)
    assert not book.follow({CPU: lower + 1}, frozenset()), "within one step"
    assert book.spots == {CPU: lower + 1}
    assert book.follow({CPU: lower + 1}, frozenset({CPU}))
    assert book.follow({CPU: lower + 2}, frozenset({CPU})), "with force, to the microcredit"
    assert not book.follow({CPU: lower + 2}, frozenset({CPU}))
    assert book.follow({}, frozenset()), "back to the reference"


@given(st.integers(0, 10**15), st.integers(0, 10**15))
def test_a_step_of_spot_is_two_percent_and_keeps_the_order(one, other):
    assert one * 0.98 - 2 <= round_spot(one) <= one
    if one <= other:
        assert round_spot(one) <= round_spot(other)


def test_a_bucket_without_a_spot_stands_at_its_reference(book):
    book.contested = frozenset({CPU})
    assert ask(book, 0) == CARD.reference(CPU)


@pytest.mark.parametrize(
    ("need", "kept"),
    [
        (Requirements(), {CPU, GPU}),
        (Requirements(gpu=True), {GPU}),
        (Requirements(tiers=("rtx-4090",)), {GPU}),
        (Requirements(tiers=("cpu",)), {CPU}),
        (Requirements(tiers=("rtx-3060",)), set()),
        (Requirements(regions=("IN", "DE")), {CPU, GPU}),
        (Requirements(regions=("DE",)), set()),
        (Requirements(ceiling_microcredits_per_hour=99), set()),
        (Requirements(ceiling_microcredits_per_hour=100), {CPU}),
        # A base of 180 comes to 100 in the one and to 378 in the other.
        (Requirements(slice_price=SlicePrice(90, 10**6, 3_600)), set()),
        (Requirements(slice_price=SlicePrice(96, 10**6, 3_600)), {GPU}),
        (Requirements(slice_price=SlicePrice(180, 10**6, 3_600)), {CPU, GPU}),
        (Requirements(slice_price=SlicePrice(180, 199, 3_600)), {CPU}),
    ],
)
def test_spot_keeps_its_force_only_where_somebody_may_still_pay_it(need, kept):
    spots = {CPU: 100, GPU: 200}
    assert keep_contested(CARD, spots, {CPU, GPU}, [to_shape(need)]) == kept
    assert keep_contested(CARD, spots, {CPU, GPU}, []) == set()
    assert keep_contested(CARD, spots, set(), [to_shape(need)]) == set()


def test_a_card_without_a_row_of_its_own_may_be_in_any_bucket_of_such_cards():
    unknown = Bucket(CARD.unknown_steps[0].tier, "in")
    for tier, kept in (("unknown", {unknown}), ("rtx-4090", set())):
        shape = to_shape(Requirements(tiers=(tier,)))
        assert keep_contested(CARD, {unknown: 1}, {unknown}, [shape]) == kept


# Fixed prices


def fix(book: PriceBook, *, wall_seconds: int = 3_600, kind: str = "compute", need: Any = None, **price: Any):
    wanted = JobPrice(PriceMode.PER_SLICE, **price)
    need = replace(need or Requirements(), job_kind=kind)
    return book.fix_price(make_spec(wall_seconds=wall_seconds, price=wanted, requirements=need))


@pytest.mark.parametrize(("kind", "base"), [("ml", 2_500_000), ("gaming", 3_000_000), ("compute", 1_000_000)])
def test_without_a_figure_of_its_own_a_job_pays_the_rate_cards_for_its_kind(book, kind, base):
    assert fix(book, kind=kind).base_microcredits == base
    assert fix(book, kind=kind, microcredits_per_slice=7).base_microcredits == 7


@pytest.mark.parametrize(
    ("need", "dearest"),
    [
        (Requirements(), 800_000),
        (Requirements(gpu=True), 3_000_000),
        (Requirements(gpu=True, regions=("IN",)), 2_100_000),
        (Requirements(regions=("IN", "DE")), 760_000),
        (Requirements(tiers=("rtx-3060", "gtx-1660")), 2_000_000),
        (Requirements(tiers=("unheard-of",)), 1_000_000),
    ],
)
def test_a_slice_may_cost_what_it_costs_on_the_dearest_slot_that_it_may_get_or_less(book, need, dearest):
    assert fix(book, need=need).ceiling_microcredits == dearest
    assert fix(book, need=need, ceiling_microcredits_per_slice=dearest - 1).ceiling_microcredits == dearest - 1
    assert fix(book, need=need, ceiling_microcredits_per_slice=10**15).ceiling_microcredits == dearest


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"kind": "poetry"}, "'poetry'; there are ml, gaming, compute"),
        ({"microcredits_per_slice": 1, "wall_seconds": 3_601}, "less than a microcredit an hour"),
        ({"ceiling_microcredits_per_slice": 1, "wall_seconds": 3_601}, "less than a microcredit an hour"),
    ],
)
def test_a_fixed_price_that_is_none_is_refused_with_what_would_be_one(book, asked, words):
    with pytest.raises(InvalidSpec, match=words) as refusal:
        fix(book, **asked)
    assert len(str(refusal.value)) < 400


def test_a_slice_costs_base_times_tier_and_region_of_the_slot_within_its_ceiling(book):
    fixed = fix(book, need=Requirements(gpu=True), microcredits_per_slice=1_000_000)
    card = make_candidate(slot=make_slot(vram_bytes=1, tier="rtx-4090", region="IN"), owner_id=OWNER)
    assert book.price_slice(card, fixed, SUBMITTER) == 2_100_000
    assert book.price_slice(card, replace(fixed, ceiling_microcredits=2_000_000), SUBMITTER) == 2_000_000


def test_work_that_asks_for_no_card_pays_for_none_wherever_it_runs(book):
    card = make_candidate(slot=make_slot(vram_bytes=1, tier="rtx-4090", region="US"), owner_id=OWNER)
    assert book.price_slice(card, fix(book), SUBMITTER) == 800_000


def test_ones_own_slot_costs_nothing_in_either_mode(book):
    book.spots, book.contested = {CPU: 100}, frozenset({CPU})
    own = make_candidate(slot=SLOT, price_microcredits_per_hour=ask(book, 50), owner_id=OWNER)
    assert (book.rate(own, 10, OWNER), book.price_slice(own, fix(book), OWNER)) == (0, 0)
    assert (book.rate(own, 100, SUBMITTER), book.price_slice(own, fix(book), SUBMITTER)) == (100, 560_000)


# Terms


@pytest.mark.parametrize(
    ("served", "fee_ppm", "hours"),
    [
        (None, 200_000, 72),
        (-3, 200_000, 72),
        (29, 200_000, 72),
        (105, 175_000, 39),
        (180, 150_000, 6),
        (999, 150_000, 6),
    ],
)
def test_what_is_agreed_with_a_lease_follows_the_days_that_its_node_has_served(served, fee_ppm, hours):
    book = PriceBook(CARD, holdback_seconds=72 * 3_600)
    since = None if served is None else clock.now() - timedelta(days=served, hours=1)
    candidate = make_candidate(slot=SLOT, serving_since=since)
    assert book.agree(candidate) == LeaseTerms(fee_ppm, hours * 3_600)


def test_a_hub_that_runs_on_sees_the_days_go_by_without_reading_the_node_again(monkeypatch):
    book = PriceBook(CARD, holdback_seconds=72 * 3_600)
    candidate = make_candidate(slot=SLOT, serving_since=clock.now())
    assert book.agree(candidate) == book.terms
    later = clock.now() + timedelta(days=180)
    monkeypatch.setattr(clock, "now", lambda: later)
    assert book.agree(candidate) == LeaseTerms(150_000, 6 * 3_600)


# The file


def test_without_a_file_the_shipped_card_is_in_force():
    card, text = read_rate_card("")
    assert (card, load_rate_card(text)) == (CARD, CARD)


def test_the_operators_file_is_in_force_as_it_is_written(tmp_path: Path):
    _, shipped = read_rate_card()
    path = tmp_path / "card.toml"
    path.write_text(shipped.replace("base_credits_per_hour = 12", "base_credits_per_hour = 24"))
    card, text = read_rate_card(path)
    assert card.reference(CPU) == 2 * CARD.reference(CPU)
    assert card.version != CARD.version
    assert text == path.read_text()


@pytest.mark.parametrize("content", [None, "fee = ", "fee = 0.3"])
def test_a_file_that_cannot_be_used_is_a_fault_of_the_settings_that_names_it(tmp_path: Path, content: str | None):
    path = tmp_path / "card.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidSettings, match=r"card\.toml"):
        read_rate_card(path)

"""Which PNodes take which VNodes: memory and class are hard, holders of the data read it, survivors keep theirs."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations
from uuid import UUID

import pytest

from computepool.core.ids import NodeId, SlotName
from computepool.core.networks import allocation
from computepool.core.networks.allocation import (
    Chosen,
    PNode,
    Question,
    Unplaceable,
    choose_placement,
    count_seats_min,
)
from computepool.core.networks.needs import Need, list_links, list_needs
from computepool.core.networks.partition import Host, Link
from computepool.core.networks.placement import SeatId
from computepool.core.networks.run import seat_id
from computepool.core.networks.spec import Exactness
from tests.support.networks import make_mlp

FIRST, SECOND, THIRD = seat_id(0), seat_id(1), seat_id(2)
MB = 1_000_000


def make_pnode(number: int, *, memory: int = 100, kind: str = "avx2", flops: float = 1e9, **values) -> PNode:
    """`memory` in megabytes."""
    return PNode(NodeId(UUID(int=number)), SlotName("cpu:0"), memory * MB, kind, flops, **values)


NEEDS = (
    Need(("a", 0), 30 * MB, 30.0, reads=True),
    Need(("b", 0), 30 * MB, 30.0),
    Need(("c", 0), 20 * MB, 20.0),
)
LINKS = (Link(0, 1, 100), Link(1, 2, 10))


def ask(*, seats: int = 2, exact: Exactness = Exactness.REQUIRED, **values) -> Question:
    return Question(NEEDS, {seat_id(index): () for index in range(seats)}, exact, links=LINKS, **values)


def chosen(answer: Chosen | Unplaceable) -> Chosen:
    assert isinstance(answer, Chosen), answer
    return answer


def refused(answer: Chosen | Unplaceable) -> str:
    assert isinstance(answer, Unplaceable), answer
    return "; ".join(answer.reasons)


# The first placement


def test_vnodes_go_to_seats_in_the_order_of_the_network_and_every_seat_gets_some():
    answer = chosen(choose_placement(ask(seats=3), [make_pnode(n) for n in range(3)]))
    assert answer.moves == {("a", 0): FIRST, ("b", 0): SECOND, ("c", 0): THIRD}
    answer = chosen(choose_placement(ask(seats=2), [make_pnode(n) for n in range(2)]))
    assert set(answer.moves.values()) == {FIRST, SECOND}


def test_memory_is_a_hard_limit():
    answer = chosen(choose_placement(ask(seats=2), [make_pnode(1, memory=50), make_pnode(2, memory=50)]))
    for seat, pnode in answer.pnodes.items():
        used = sum(need.memory_bytes for need in NEEDS if answer.moves[need.part] == seat)
        assert used <= pnode.memory_bytes


def test_pnodes_with_memory_are_taken_where_the_best_ones_have_too_little():
    pnodes = [make_pnode(1, memory=20, flops=9e9), make_pnode(2, memory=20, flops=9e9), make_pnode(3, memory=90)]
    assert chosen(choose_placement(ask(seats=1), pnodes)).pnodes[FIRST].node_id == pnodes[2].node_id


def test_the_faster_of_two_pnodes_gets_more_of_the_work():
    slow, fast = make_pnode(1, flops=1e9), make_pnode(2, flops=3e9)
    answer = chosen(choose_placement(ask(), [slow, fast]))
    work = {
        pnode.node_id: sum(need.flops for need in NEEDS if answer.moves[need.part] == seat)
        for seat, pnode in answer.pnodes.items()
    }
    assert work == {slow.node_id: 20.0, fast.node_id: 60.0}


def test_the_narrow_edge_is_cut_and_not_the_wide_one():
    answer = chosen(choose_placement(ask(), [make_pnode(n, bytes_per_second=1e3) for n in range(2)]))
    assert answer.moves["a", 0] == answer.moves["b", 0] != answer.moves["c", 0]


def test_the_order_in_which_pnodes_are_listed_does_not_matter():
    pnodes = [make_pnode(1, memory=60), make_pnode(2, held_bytes=5), make_pnode(3, reachable=True)]
    answers = [chosen(choose_placement(ask(), order)) for order in permutations(pnodes)]
    assert all(answer == answers[0] for answer in answers)


def holder_of(answer: Chosen, part: tuple[str, int]) -> int:
    return answer.pnodes[answer.moves[part]].held_bytes


@pytest.mark.parametrize("seats", [2, 3])
@pytest.mark.parametrize("number", [1, 5, 9])
def test_whoever_holds_the_data_computes_what_reads_it(seats, number):
    others = [make_pnode(n, reachable=True, flops=1.1e9) for n in (2, 3, 4, 6, 7)]
    answer = chosen(choose_placement(ask(seats=seats), [*others, make_pnode(number, held_bytes=7)]))
    assert holder_of(answer, ("a", 0)) == 7


def check_all_holders() -> None:
    for number in (1, 5, 9):
        test_whoever_holds_the_data_computes_what_reads_it(3, number)


def test_control_without_the_exchange_for_its_sake_the_data_is_fetched(monkeypatch):
    monkeypatch.setattr(allocation, "HOLDERS_MAX", 0)
    with pytest.raises(AssertionError):
        check_all_holders()


TRUSTED_NEEDS = (*NEEDS[:2], Need(("c", 0), 20 * MB, 20.0, critical=True))


def ask_trust(*, first: bool, seats: int = 2) -> Question:
    vacant = {seat_id(index): () for index in range(seats)}
    return Question(TRUSTED_NEEDS, vacant, Exactness.REQUIRED, links=LINKS, trusted_first=first)


def tells_the_curve(answer: Chosen) -> PNode:
    return answer.pnodes[answer.moves["c", 0]]


def test_whoever_is_trusted_comes_first_and_tells_the_curve():
    """The others are faster, and can be dialled."""
    others = [make_pnode(n, flops=1.1e9, reachable=True) for n in (1, 2, 3)]
    for number in (4, 5):
        answer = chosen(choose_placement(ask_trust(first=True), [*others, make_pnode(number, trusted=True)]))
        assert tells_the_curve(answer).trusted
    both = [*others, make_pnode(4, trusted=True), make_pnode(5, trusted=True)]
    answer = chosen(choose_placement(ask_trust(first=True), both))
    assert all(pnode.trusted for pnode in answer.pnodes.values())


def test_control_without_the_wish_nobody_asks_for_trust():
    others = [make_pnode(n, flops=1.1e9, reachable=True) for n in (1, 2, 3)]
    answer = chosen(choose_placement(ask_trust(first=False), [*others, make_pnode(4, trusted=True)]))
    assert not any(pnode.trusted for pnode in answer.pnodes.values())


def test_control_without_the_exchange_for_its_sake_somebody_else_tells_the_curve(monkeypatch):
    slow, quick = make_pnode(1, trusted=True), make_pnode(2, flops=1.2e9)
    assert tells_the_curve(chosen(choose_placement(ask_trust(first=True), [slow, quick]))).trusted
    monkeypatch.setattr(allocation, "TRUSTED_MAX", 0)
    assert not tells_the_curve(chosen(choose_placement(ask_trust(first=True), [slow, quick]))).trusted


def test_trust_is_no_reason_to_wait_or_to_be_much_slower():
    slow, quick = make_pnode(1, trusted=True, flops=1e8), make_pnode(2)
    needs = (Need(("a", 0), MB, 10.0), Need(("b", 0), MB, 90.0, critical=True))
    question = Question(
        needs, {FIRST: (), SECOND: ()}, Exactness.REQUIRED, links=(Link(0, 1, 1),), trusted_first=True
    )
    answer = chosen(choose_placement(question, [slow, quick]))
    assert answer.pnodes[answer.moves["b", 0]] == quick
    assert chosen(choose_placement(ask_trust(first=True), [make_pnode(1), make_pnode(2)])).pnodes


def test_a_spare_that_is_trusted_is_taken_before_a_faster_one():
    quick, trusted = make_pnode(1, flops=3e9), make_pnode(2, trusted=True)
    question = replace(lost(), trusted_first=True)
    assert chosen(choose_placement(question, [quick, trusted])).pnodes[SECOND] == trusted
    assert chosen(choose_placement(lost(), [quick, trusted])).pnodes[SECOND] == quick


def test_what_tells_the_curve_is_critical():
    assert {need.part[0] for need in list_needs(make_mlp()) if need.critical} == {"loss"}


def test_a_holder_that_is_far_too_slow_for_what_reads_it_does_not_get_it():
    slow = make_pnode(1, held_bytes=7, flops=1e8)
    needs = (Need(("a", 0), MB, 90.0, reads=True), Need(("b", 0), MB, 10.0))
    question = Question(needs, {FIRST: (), SECOND: ()}, Exactness.REQUIRED, links=(Link(0, 1, 1),))
    answer = chosen(choose_placement(question, [slow, make_pnode(2)]))
    assert holder_of(answer, ("a", 0)) == 0


def test_an_exact_run_is_never_spread_over_two_classes_and_another_may_be():
    mixed = [make_pnode(1, kind="avx2"), make_pnode(2, kind="cuda")]
    assert "only 1 PNodes are free" in refused(choose_placement(ask(), mixed))
    assert len(chosen(choose_placement(ask(exact=Exactness.PREFERRED), mixed)).pnodes) == 2


def test_why_nothing_fits_names_the_vnode_the_pnode_and_what_to_do():
    words = refused(choose_placement(ask(), [make_pnode(7, memory=10), make_pnode(8, memory=20)]))
    for said in ("VNode a needs 30 MB", str(UUID(int=8)), "20 MB", "smaller"):
        assert said in words
    assert "computepool node --networks" in refused(choose_placement(ask(), []))
    assert "more than fits on 1 seats" in refused(choose_placement(ask(seats=1), [make_pnode(1, memory=60)]))


def test_fewer_seats_than_memory_allows_are_not_even_tried():
    pnodes = [make_pnode(1, memory=50), make_pnode(2, memory=40), make_pnode(3, memory=10)]
    assert count_seats_min(NEEDS, pnodes) == 2
    assert count_seats_min(NEEDS, []) == 1


# After a loss


def lost(
    *, survivors: dict[SeatId, int] | None = None, kind: str = "avx2", exact: Exactness = Exactness.REQUIRED
) -> Question:
    """Of three VNodes the last two are lost; who stays has so many megabytes left."""
    hosts = {seat: Host(memory * MB, 1e9) for seat, memory in (survivors or {}).items()}
    return Question(NEEDS, {SECOND: [("b", 0), ("c", 0)]}, exact, kind, LINKS, hosts, {("a", 0): FIRST})


def test_what_a_lost_seat_had_goes_to_one_spare_and_nothing_else_moves():
    answer = chosen(choose_placement(lost(survivors={FIRST: 1_000}), [make_pnode(1, memory=50)]))
    assert answer.moves == {("b", 0): SECOND, ("c", 0): SECOND}


def test_the_fastest_spare_is_taken_by_what_it_computes_and_by_what_it_sends():
    quick, wide = make_pnode(1, flops=2e9, bytes_per_second=1e-3), make_pnode(2, bytes_per_second=1e9)
    assert chosen(choose_placement(lost(), [quick, wide])).pnodes[SECOND] == wide
    same = make_pnode(1, flops=2e9, bytes_per_second=1e9)
    assert chosen(choose_placement(lost(), [same, wide])).pnodes[SECOND] == same


def test_a_spare_that_holds_the_data_is_taken_if_what_was_lost_reads_it():
    quick, holder = make_pnode(1, flops=2e9), make_pnode(2, held_bytes=7)
    reading = Question(NEEDS, {FIRST: [("a", 0)]}, Exactness.REQUIRED, "avx2", LINKS)
    assert chosen(choose_placement(reading, [quick, holder])).pnodes[FIRST] == holder
    assert chosen(choose_placement(lost(), [quick, holder])).pnodes[SECOND] == quick


def test_without_a_spare_it_goes_to_hosts_with_room_and_without_room_it_waits():
    answer = chosen(choose_placement(lost(survivors={FIRST: 30, THIRD: 20}), []))
    assert answer.moves == {("b", 0): FIRST, ("c", 0): THIRD}
    assert answer.pnodes == {}
    assert "needs a PNode with 50 MB" in refused(choose_placement(lost(survivors={FIRST: 49}), []))


def test_a_spare_that_holds_a_part_of_it_shares_it_with_those_who_stay():
    answer = chosen(choose_placement(lost(survivors={FIRST: 25}), [make_pnode(1, memory=35)]))
    assert answer.moves == {("b", 0): SECOND, ("c", 0): FIRST}
    assert answer.pnodes[SECOND].node_id == UUID(int=1)


def test_what_is_shared_out_goes_where_its_neighbours_are():
    """`b` exchanges much with `a`, which the first host has; the third is as free as the first."""
    answer = chosen(choose_placement(lost(survivors={THIRD: 500, FIRST: 500}), []))
    assert answer.moves["b", 0] == FIRST or answer.moves["b", 0] == answer.moves["c", 0]


def test_a_spare_of_the_class_is_taken_before_another():
    spares = [make_pnode(1, kind="cuda", reachable=True), make_pnode(2, kind="avx2")]
    answer = chosen(choose_placement(lost(exact=Exactness.PREFERRED), spares))
    assert answer.pnodes[SECOND].numeric_class == "avx2"
    only_other = [make_pnode(1, kind="cuda")]
    assert "of numeric class avx2" in refused(choose_placement(lost(), only_other))
    assert chosen(choose_placement(lost(exact=Exactness.PREFERRED), only_other)).pnodes[SECOND].node_id


def make_loss(rng: random.Random) -> tuple[Question, list[PNode]]:
    needs = [Need((f"v{n}", 0), rng.randint(1, 9) * MB, float(rng.randint(1, 9))) for n in range(8)]
    links = [Link(n, n + 1, rng.randint(1, 9)) for n in range(7)]
    seats = [seat_id(n) for n in range(4)]
    where = {need.part: rng.choice(seats) for need in needs}
    gone = set(rng.sample(seats, rng.randint(1, 3)))
    vacant = {seat: [part for part, there in where.items() if there == seat] for seat in gone}
    question = Question(
        needs,
        {seat: parts for seat, parts in vacant.items() if parts},
        Exactness.REQUIRED,
        "avx2",
        links,
        {seat: Host(rng.randint(0, 20) * MB, 1e9) for seat in seats if seat not in gone},
        {part: seat for part, seat in where.items() if seat not in gone},
    )
    spares = [
        make_pnode(n, memory=rng.randint(1, 25), kind=rng.choice(["avx2", "cuda"])) for n in range(rng.randint(0, 3))
    ]
    return question, spares


@pytest.mark.parametrize("seed", range(150))
def test_whatever_is_lost_survivors_keep_theirs_and_no_memory_is_passed(seed):
    question, spares = make_loss(random.Random(seed))
    if not any(question.vacant.values()):
        return
    answer = choose_placement(question, spares)
    if isinstance(answer, Unplaceable):
        assert answer.reasons
        return
    assert set(answer.moves) == {part for parts in question.vacant.values() for part in parts}
    room = {seat: host.memory_bytes for seat, host in question.survivors.items()}
    room |= {seat: pnode.memory_bytes for seat, pnode in answer.pnodes.items()}
    for need in question.needs:
        if need.part in answer.moves:
            room[answer.moves[need.part]] -= need.memory_bytes
    assert min(room.values()) >= 0
    assert len({(pnode.node_id, pnode.slot) for pnode in answer.pnodes.values()}) == len(answer.pnodes)
    assert all(pnode.numeric_class == "avx2" for pnode in answer.pnodes.values())
    assert set(answer.pnodes) <= set(answer.moves.values()), "nobody is paid for a seat with nothing on it"


# What is placed


def test_links_of_a_network_are_between_its_needs_and_stay_within_a_replica():
    spec = make_mlp(replicas=2)
    needs, links = list_needs(spec), list_links(spec)
    assert {(needs[link.first].part, needs[link.second].part) for link in links} == {
        ((one, replica), (other, replica))
        for replica in (0, 1)
        for one, other in (("a", "b"), ("b", "head"), ("head", "loss"))
    }
    assert {need.part[0] for need in needs if need.reads} == {"a", "loss"}

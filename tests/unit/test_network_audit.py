"""Audits: what is drawn, who is asked, how claims and replays are compared, and whose fault a difference is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from uuid import UUID

import pytest

from computepool.core.ids import AccountId, AttemptId, NodeId
from computepool.core.networks.audit import (
    DEVIATION_MAX,
    NO_FRAMES,
    AskLog,
    AskReplay,
    AuditEffect,
    AuditOutcome,
    Claim,
    Conclude,
    MarkAudited,
    PeerDigests,
    Reject,
    Replayed,
    SpanDigest,
    Standing,
    Told,
    Witness,
    audit_rate,
    find_difference,
    is_bugged,
)
from computepool.core.networks.audit_book import CLAIM_SECONDS, LOG_SECONDS, REPLAY_SECONDS, AuditBook
from computepool.core.networks.placement import SeatId

FIRST, MIDDLE, LAST = SEATS = (SeatId("seat-0"), SeatId("seat-1"), SeatId("seat-2"))
TOLD = Told({"v": b"state"}, b"")


def digest(word: str) -> bytes:
    return word.encode().ljust(32, b".")


class Table:
    """A chain of three hosts of three owners, and a book that their claims go into."""

    def __init__(self, *, owners: tuple[int, ...] = (1, 2, 3), draw: float = 0.5, validated: int = 0) -> None:
        self.now = 0.0
        self._ids = 0
        self.draws: list[float] = []
        self.book = AuditBook(checkpoint_every=10, draw=self._draw(draw), new_id=self._new_id)
        self.hosts: dict[SeatId, Witness] = {}
        for number, owner in enumerate(owners):
            self.sit(SEATS[number], number, owner, validated=validated)
        self.begin(1)

    def begin(self, epoch: int, from_step: int = 0) -> None:
        seats = {seat: (host.attempt_id, host.node_id) for seat, host in self.hosts.items()}
        self.book.begin_epoch(epoch, seats, from_step=from_step)

    def _draw(self, value: float):
        def draw() -> float:
            self.draws.append(value)
            return value

        return draw

    def _new_id(self) -> UUID:
        self._ids += 1
        return UUID(int=self._ids)

    def sit(self, seat: SeatId, number: int, owner: int, *, numeric_class: str = "avx2", validated: int = 0) -> None:
        standing = Standing(AccountId(UUID(int=owner)), numeric_class, validated)
        self.hosts[seat] = Witness(seat, AttemptId(UUID(int=100 + number)), NodeId(UUID(int=200 + number)), standing)

    def span(self, seat: SeatId, *, lies: Mapping[SeatId, str] | None = None, from_step: int = 0, epoch: int = 1):
        """What neighbours in the chain say of the frames between them; `lies` are told of what was sent."""
        peers = {}
        number = list(self.hosts).index(seat)
        for other in list(self.hosts)[max(0, number - 1) : number + 2]:
            if other != seat:
                sent = (lies or {}).get(other, f"{seat}>{other}")
                peers[other] = PeerDigests(digest(sent), digest(f"{other}>{seat}"))
        return SpanDigest(epoch, from_step, from_step + 10, peers)

    def claim(self, seat: SeatId, **options) -> list[AuditEffect]:
        host = self.hosts[seat]
        claim = Claim(seat, host.attempt_id, host.node_id, host.standing, self.span(seat, **options))
        return self.book.claim(claim, self.hosts, now=self.now)

    def claim_all(self, *, lies: Mapping[SeatId, Mapping[SeatId, str]] | None = None, **options):
        effects = []
        for seat in list(self.hosts):
            effects += self.claim(seat, lies=(lies or {}).get(seat), **options)
        return effects + self.book.complete(options.get("from_step", 0) + 10, self.hosts, now=self.now)

    def show_all(self, effects: list[AuditEffect]) -> list[AuditEffect]:
        """Everybody who is asked shows a log. Returns what else was asked for, and what follows."""
        found = [effect for effect in effects if not isinstance(effect, AskLog)]
        for effect in effects:
            if isinstance(effect, AskLog):
                seat = next(host.seat for host in self.hosts.values() if host.attempt_id == effect.attempt_id)
                found += self.book.show(effect.audit_id, seat, f"log of {seat}", self.hosts, now=self.now)
        return found

    def replayed(self, claim: Claim, *, differs: str = "") -> Replayed:
        peers = {
            seat: PeerDigests(digest(differs) if differs else digests.sent, digests.received)
            for seat, digests in claim.span.peers.items()
        }
        return Replayed(peers, b"", {"v": b"state"}, {"v": b"state"})

    def answer(self, ask: AskReplay, *, differs: str = "") -> list[AuditEffect]:
        found = self.replayed(ask.claim, differs=differs)
        return self.book.hear_replay(ask.audit_id, ask.witness.attempt_id, found, TOLD, self.hosts, now=self.now)

    def ask_about(self, seat: SeatId, effects: list[AuditEffect]) -> AskReplay:
        [ask] = [each for each in effects if isinstance(each, AskReplay) and each.claim.seat == seat]
        return ask


def outcomes(effects: list[AuditEffect]) -> list[AuditOutcome]:
    return [effect.outcome for effect in effects if isinstance(effect, Conclude)]


def only(kind, effects):
    return [effect for effect in effects if isinstance(effect, kind)]


# What is looked at


def test_nothing_is_drawn_before_every_seat_has_claimed_and_the_checkpoint_is_complete():
    table = Table()
    for seat in SEATS:
        assert table.claim(seat) == []
    assert table.draws == []
    assert only(AskLog, table.book.complete(10, table.hosts, now=0.0)) != []
    assert table.draws != []


def test_neighbours_show_what_they_sent_and_who_is_looked_at_is_not_asked():
    table = Table()
    asked = only(AskLog, table.claim_all())
    by_seat = {seat: {each.attempt_id for each in asked if each.claim.seat == seat} for seat in SEATS}
    attempts = {seat: host.attempt_id for seat, host in table.hosts.items()}
    assert by_seat[MIDDLE] == {attempts[FIRST], attempts[LAST]}
    assert by_seat[FIRST] == {attempts[MIDDLE]}


def test_the_first_word_of_a_seat_counts():
    table = Table()
    table.claim(MIDDLE, lies={FIRST: "something else"})
    effects = table.claim_all()
    assert only(Reject, effects) != []
    table = Table()
    table.claim_all()
    assert table.claim(MIDDLE, lies={FIRST: "something else"}) == []


def test_all_spans_of_a_newcomer_are_looked_at_and_some_of_a_veteran():
    assert {audit_rate(count) for count in range(20)} == {1.0}
    assert audit_rate(20) == 0.5
    assert audit_rate(50) == 0.2
    assert audit_rate(10_000) == 0.15
    assert only(AskLog, Table(validated=10_000, draw=0.149).claim_all()) != []
    assert Table(validated=10_000, draw=0.151).claim_all() == []


def test_nobody_is_audited_by_himself():
    assert Table(owners=(7, 7, 7)).claim_all() == []
    table = Table(owners=(7, 7, 3))
    effects = table.show_all(table.claim_all())
    assert table.ask_about(FIRST, effects).witness.seat == LAST
    assert table.ask_about(MIDDLE, effects).witness.seat == LAST


def test_claims_of_other_seats_epochs_and_steps_are_not_listened_to():
    table = Table()
    stranger = replace(table.hosts[FIRST], seat=SeatId("seat-9"))
    claim = Claim(stranger.seat, stranger.attempt_id, stranger.node_id, stranger.standing, table.span(FIRST))
    assert table.book.claim(claim, table.hosts, now=0.0) == []
    assert table.claim(FIRST, epoch=2) == []
    assert table.book.oldest_step is None


# What comes of it


def test_a_checkpoint_is_audited_when_every_seat_was_replayed_to_the_same():
    table = Table()
    effects = table.show_all(table.claim_all())
    found = []
    for seat in SEATS:
        assert only(MarkAudited, found) == []
        found += table.answer(table.ask_about(seat, effects))
    assert outcomes(found) == [AuditOutcome.AGREED] * 3
    assert only(MarkAudited, found) == [MarkAudited(10)]
    assert table.book.is_settled(now=0.0)


def test_two_owners_who_agree_decide_against_a_third():
    table = Table()
    first = table.ask_about(MIDDLE, table.show_all(table.claim_all(from_step=20)))
    second = table.ask_about(MIDDLE, table.answer(first, differs="right"))
    assert second.witness.standing.owner_id != first.witness.standing.owner_id
    effects = table.answer(second, differs="right")
    [conclusion] = [each for each in only(Conclude, effects) if each.claim.seat == MIDDLE]
    assert conclusion.outcome is AuditOutcome.WRONG
    assert {each.seat for each in conclusion.witnesses} == {FIRST, LAST}
    [reject] = only(Reject, effects)
    assert (reject.step, reject.claim.seat, reject.blamed) == (20, MIDDLE, True)
    # What else was under way there is done again.
    assert table.book.oldest_step is None


def test_two_replays_that_differ_from_each_other_blame_nobody_and_after_three_such_nobody_is_asked():
    table = Table()
    for round_ in range(4):
        effects = table.show_all(table.claim_all(from_step=10 * round_))
        if round_ == 3:
            assert effects == []
            break
        asks = {seat: table.ask_about(seat, effects) for seat in SEATS}
        second = table.ask_about(MIDDLE, table.answer(asks[MIDDLE], differs="one"))
        found = table.answer(second, differs="two")
        assert outcomes(found) == [AuditOutcome.UNDECIDED]
        assert only(Reject, found) == []
        for seat in (FIRST, LAST):
            table.answer(asks[seat])


def test_who_alone_doubts_what_another_confirms_is_not_asked_again():
    table = Table()
    effects = table.show_all(table.claim_all())
    first = table.ask_about(MIDDLE, effects)
    second = table.ask_about(MIDDLE, table.answer(first, differs="a lie"))
    found = table.answer(second)
    assert outcomes(found) == [AuditOutcome.UNDECIDED]
    assert only(Reject, found) == []
    later = table.show_all(table.claim_all(from_step=10))
    assert first.witness.seat not in {each.witness.seat for each in only(AskReplay, later)}


def test_a_doubt_without_a_third_owner_blames_nobody_and_costs_the_seat_once():
    table = Table(owners=(1, 2))
    effects = table.show_all(table.claim_all())
    found = table.answer(table.ask_about(MIDDLE, effects), differs="right")
    assert AuditOutcome.UNDECIDED in outcomes(found)
    [reject] = only(Reject, found)
    assert (reject.claim.seat, reject.blamed, reject.step) == (MIDDLE, False, 0)
    # The same host does not get away with it again.
    table.sit(MIDDLE, 8, 8)
    table.begin(2)
    again = table.show_all(table.claim_all(epoch=2))
    assert [each.witness.seat for each in only(AskReplay, again)] == [MIDDLE]


def test_of_two_neighbours_who_tell_different_things_one_goes_unblamed():
    table = Table()
    [reject] = only(Reject, table.claim_all(lies={MIDDLE: {FIRST: "other"}}, from_step=10))
    assert reject.claim.seat in (FIRST, MIDDLE)
    assert (reject.blamed, reject.step) == (False, 10)


def test_who_tells_different_things_than_two_owners_is_wrong():
    table = Table()
    effects = table.claim_all(lies={MIDDLE: {FIRST: "other", LAST: "another"}})
    [reject] = only(Reject, effects)
    assert (reject.claim.seat, reject.blamed) == (MIDDLE, True)
    assert outcomes(effects) == [AuditOutcome.WRONG]
    # Also one after the other: if the honest one had to go first, the next finds who it was.
    table = Table()
    table.claim_all(lies={MIDDLE: {FIRST: "other"}})
    table.sit(FIRST, 9, 9)
    table.begin(2)
    [reject] = only(Reject, table.claim_all(lies={MIDDLE: {FIRST: "other"}}, epoch=2))
    assert (reject.claim.seat, reject.blamed) == (MIDDLE, True)


def test_two_neighbours_of_one_owner_are_no_two_owners():
    table = Table(owners=(1, 2, 1))
    [reject] = only(Reject, table.claim_all(lies={MIDDLE: {FIRST: "other", LAST: "another"}}))
    assert not reject.blamed


# What is compared


@pytest.fixture
def claim() -> Claim:
    table = Table()
    host = table.hosts[MIDDLE]
    return Claim(MIDDLE, host.attempt_id, host.node_id, host.standing, table.span(MIDDLE))


def test_all_that_a_seat_gave_stored_and_told_is_compared(claim: Claim):
    same = Table().replayed(claim)

    def differ(**changes) -> str:
        return find_difference(claim, TOLD, replace(same, **changes), same_class=True)

    assert differ() == ""
    assert "sent seat-0" in differ(peers={**same.peers, FIRST: PeerDigests(digest("x"), digest("y"))})
    assert "sent seat-2" in differ(peers={FIRST: same.peers[FIRST]})
    assert "another state of VNode v" in differ(states={"v": b"other"})
    assert "not what it said" in differ(stored={"v": b"other"})
    assert "losses" in differ(losses=digest("loss"))
    telling = replace(claim, span=replace(claim.span, losses=digest("loss")))
    told = Told({}, digest("another curve"))
    right = replace(same, losses=digest("loss"))
    assert find_difference(telling, Told({}, digest("loss")), right, same_class=True) == ""
    assert "losses" in find_difference(telling, told, right, same_class=True)


def test_between_numeric_classes_numbers_are_compared_and_the_frames_must_be_those_told_of(claim: Claim):
    near = Replayed(claim.span.peers, deviation=DEVIATION_MAX)
    far, nan = replace(near, deviation=2 * DEVIATION_MAX), replace(near, deviation=float("nan"))
    other = replace(near, peers={FIRST: PeerDigests(digest("x"), NO_FRAMES)})
    assert find_difference(claim, TOLD, near, same_class=False) == ""
    assert "off by" in find_difference(claim, TOLD, far, same_class=False)
    assert "off by" in find_difference(claim, TOLD, nan, same_class=False)
    assert "not those that it told of" in find_difference(claim, TOLD, other, same_class=False)


def test_the_numeric_class_is_looked_for_first_and_only_without_it_the_seat_shows_its_own_frames():
    table = Table()
    table.sit(LAST, 5, 5, numeric_class="neon")
    effects = table.claim_all()
    asked = [each.attempt_id for each in only(AskLog, effects) if each.claim.seat == MIDDLE]
    assert table.hosts[MIDDLE].attempt_id not in asked
    assert table.ask_about(MIDDLE, table.show_all(effects)).witness.seat == FIRST
    table = Table()
    for number, seat in enumerate((FIRST, LAST)):
        table.sit(seat, 5 + number, 5 + number, numeric_class="neon")
    effects = table.claim_all()
    asked = [each.attempt_id for each in only(AskLog, effects) if each.claim.seat == MIDDLE]
    assert table.hosts[MIDDLE].attempt_id in asked
    ask = table.ask_about(MIDDLE, table.show_all(effects))
    near = Replayed(ask.claim.span.peers, deviation=1e-7)
    found = table.book.hear_replay(ask.audit_id, ask.witness.attempt_id, near, TOLD, table.hosts, now=0.0)
    assert outcomes(found) == [AuditOutcome.AGREED]


def test_frames_that_are_not_those_that_both_ends_told_of_prove_nothing():
    table = Table()
    ask = table.ask_about(MIDDLE, table.show_all(table.claim_all()))
    wrong = Replayed({FIRST: PeerDigests(digest("x"), digest("not what was sent"))})
    found = table.book.hear_replay(ask.audit_id, ask.witness.attempt_id, wrong, TOLD, table.hosts, now=0.0)
    assert outcomes(found) == [AuditOutcome.UNVERIFIED]


# Who is gone


def test_who_has_left_is_audited_all_the_same():
    table = Table()
    effects = table.show_all(table.claim_all())
    del table.hosts[MIDDLE]
    found = [effect for effect in table.book.tick(table.hosts, now=1.0) if effect.claim.seat == MIDDLE]
    assert found == []
    ask = table.ask_about(MIDDLE, effects)
    second = table.ask_about(MIDDLE, table.answer(ask, differs="right"))
    assert outcomes(table.answer(second, differs="right"))[0] is AuditOutcome.WRONG


def test_frames_that_went_with_their_sender_leave_the_span_unverified():
    table = Table()
    table.claim_all()
    table.sit(FIRST, 9, 9)
    found = table.book.tick(table.hosts, now=1.0)
    assert {effect.claim.seat for effect in only(Conclude, found)} == {MIDDLE}
    assert outcomes(found) == [AuditOutcome.UNVERIFIED]


def test_a_witness_that_cannot_is_followed_by_another_and_then_it_is_unverified():
    table = Table()
    ask = table.ask_about(MIDDLE, table.show_all(table.claim_all()))

    def refuse(ask: AskReplay) -> list[AuditEffect]:
        return table.book.hear_replay(
            ask.audit_id, ask.witness.attempt_id, None, TOLD, table.hosts, now=0.0, reason="no room"
        )

    second = table.ask_about(MIDDLE, refuse(ask))
    assert second.witness.seat != ask.witness.seat
    [conclusion] = only(Conclude, refuse(second))
    assert (conclusion.outcome, conclusion.message) == (AuditOutcome.UNVERIFIED, "no room")
    assert table.answer(ask) == []


def test_nobody_is_waited_for_for_ever():
    table = Table()
    asks = table.claim_all()
    assert table.book.tick(table.hosts, now=LOG_SECONDS) == []
    assert outcomes(table.book.tick(table.hosts, now=LOG_SECONDS + 1)) == [AuditOutcome.UNVERIFIED] * 3
    assert asks
    table = Table()
    first = table.ask_about(MIDDLE, table.show_all(table.claim_all()))
    later = table.book.tick(table.hosts, now=REPLAY_SECONDS + 1)
    assert table.ask_about(MIDDLE, later).witness.seat != first.witness.seat


def test_who_tells_nothing_of_steps_that_are_stored_loses_its_seat_and_they_do_not_count():
    table = Table()
    for seat in (FIRST, LAST):
        table.claim(seat)
    table.book.complete(10, table.hosts, now=0.0)
    assert table.book.tick(table.hosts, now=0.0) == []
    assert not table.book.is_settled(now=CLAIM_SECONDS)
    # Also if it is gone by then, and however often others have stored something since.
    del table.hosts[MIDDLE]
    table.book.complete(20, table.hosts, now=CLAIM_SECONDS)
    effects = table.book.tick(table.hosts, now=CLAIM_SECONDS + 1)
    assert outcomes(effects) == [AuditOutcome.UNDECIDED]
    [reject] = only(Reject, effects)
    assert (reject.claim.seat, reject.step, reject.blamed) == (MIDDLE, 0, False)
    assert table.book.oldest_step is None


def test_nobody_can_make_up_spans_that_others_know_nothing_of():
    table = Table()
    host = table.hosts[FIRST]
    for from_step, until_step in [(3, 10), (0, 7), (0, 20), (10, 10), (20, 10)]:
        span = SpanDigest(1, from_step, until_step, {})
        claim = Claim(FIRST, host.attempt_id, host.node_id, host.standing, span)
        table.book.claim(claim, table.hosts, now=0.0)
        assert table.book.oldest_step is None
    table.book.note_end(1, 7)
    claim = Claim(FIRST, host.attempt_id, host.node_id, host.standing, SpanDigest(1, 0, 7, {}))
    table.book.claim(claim, table.hosts, now=0.0)
    assert table.book.oldest_step == 0


def test_who_claims_what_is_not_yet_stored_keeps_nobody_elses_claims_out():
    table = Table()
    for step in range(0, 10_000, 10):
        table.claim(MIDDLE, from_step=step)
    assert only(AskLog, table.claim_all()) != []


def test_a_new_epoch_keeps_what_is_stored_and_forgets_what_is_done_again():
    table = Table()
    table.claim_all()
    for seat in SEATS:
        table.claim(seat, from_step=10)
    assert not table.book.is_settled(now=0.0)
    table.begin(2)
    # Audits of the span that is stored go on; the next one is done again.
    assert only(AskLog, table.book.complete(20, table.hosts, now=0.0)) == []
    assert table.book.oldest_step == 0


def test_logs_that_nobody_needs_any_more_are_named():
    table = Table()
    effects = table.show_all(table.claim_all())
    [conclusion] = only(Conclude, table.answer(table.ask_about(MIDDLE, effects)))
    assert conclusion.logs == ("log of seat-0", "log of seat-2")


def test_two_wrong_in_fifty_make_a_pnode_bugged():
    right, wrong = AuditOutcome.AGREED, AuditOutcome.WRONG
    assert not is_bugged([wrong, *[right] * 60])
    assert is_bugged([right] * 48 + [wrong, wrong])
    assert not is_bugged([right] * 49 + [wrong, wrong])


def test_whatever_hosts_answer_the_book_blames_only_on_the_word_of_two_owners():
    """A hundred histories: the honest answer truly, the corrupter and its one ally say anything."""
    for seed in range(100):
        random = Random(seed)
        table = Table(draw=random.random())
        liar = random.choice(SEATS)
        effects = table.claim_all()
        for _ in range(200):
            if not effects:
                break
            effect = effects.pop(0)
            if isinstance(effect, AskLog):
                effects = table.show_all([effect, *effects])
            elif isinstance(effect, AskReplay):
                honest = effect.witness.seat != liar
                word = "right" if effect.claim.seat == liar else ""
                effects += table.answer(effect, differs=word if honest else random.choice(["", "right", "lie"]))
            elif isinstance(effect, Conclude) and effect.outcome is AuditOutcome.WRONG:
                assert effect.claim.seat == liar

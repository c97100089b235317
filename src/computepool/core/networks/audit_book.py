"""The audits of one run on their way: which claims are in, who was asked for what, and what follows from the answers.

Kept by the run's owner. Whoever looks at the clock or draws lots does so outside; the same book and the same events
give the same effects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from computepool.core.ids import AccountId, AttemptId, NodeId
from computepool.core.networks.audit import (
    AskLog,
    AskReplay,
    AuditEffect,
    AuditOutcome,
    Claim,
    Conclude,
    MarkAudited,
    Reject,
    Replayed,
    SpanDigest,
    SpanKey,
    Standing,
    Told,
    Witness,
    are_same,
    audit_rate,
    find_difference,
    is_fed_right,
    list_disagreements,
)
from computepool.core.networks.placement import SeatId

# From a complete checkpoint to the last claim about it. Hosts tell it before they report what they stored.
CLAIM_SECONDS = 20.0
# Of one seat.
CLAIMS_MAX = 64
LOG_SECONDS = 300.0
REPLAY_SECONDS = 600.0
# Of one run: audits that wait, and those under way for each host.
OPEN_MAX = 256
UNDER_WAY_PER_HOST = 2
# Networks that come to other bits every time are not audited any more after so many times.
UNLIKE_MAX = 3

Hosts = Mapping[SeatId, Witness]
# Of a host that is gone, of which nothing was told.
_UNKNOWN = Standing(AccountId(UUID(int=0)), "")


@dataclass(frozen=True, slots=True)
class Audit:
    id: UUID
    claim: Claim
    # Who filled the seats then: their hosts have kept what they sent.
    holders: Mapping[SeatId, AttemptId] = field(default_factory=dict)
    # No other host of the numeric class is there: numbers are compared instead of bits.
    tolerant: bool = False
    begun: bool = False
    # Whose log is not there yet, and those that are.
    wanted: frozenset[SeatId] = frozenset()
    logs: Mapping[SeatId, str] = field(default_factory=dict)
    # Who replays it now, and since when.
    asked: Witness | None = None
    asked_at: float = 0.0
    # Who came to something else than was claimed.
    doubts: tuple[tuple[Witness, Replayed, str], ...] = ()
    # Hosts that were asked and gave no answer.
    tried: frozenset[AttemptId] = frozenset()


@dataclass(frozen=True, slots=True)
class _Epoch:
    """Who claims what in it: hosts store and tell at its ends and at every so many steps."""

    seats: Mapping[SeatId, tuple[AttemptId, NodeId]]
    from_step: int
    ends: frozenset[int] = frozenset()


class AuditBook:
    def __init__(self, *, checkpoint_every: int, draw: Callable[[], float], new_id: Callable[[], UUID]) -> None:
        self._checkpoint_every = checkpoint_every
        self._draw = draw
        self._new_id = new_id
        self._epochs: dict[int, _Epoch] = {}
        self._claims: dict[SpanKey, dict[SeatId, Claim]] = {}
        self._audits: dict[UUID, Audit] = {}
        # Of spans that are looked at: seats whose audit is not over.
        self._open_seats: dict[SpanKey, set[SeatId]] = {}
        # The newest checkpoint that every VNode has stored, as far as the book was told.
        self.complete_step = 0
        self._complete_at = 0.0
        # By epoch: how far claims were looked at. What is told of those steps later is not listened to.
        self._looked: dict[int, int] = {}
        # Spans that are stored and of which claims are missing, and since when.
        self._missing_at: dict[SpanKey, float] = {}
        # Owners of neighbours that a PNode has disagreed with about a frame.
        self._against: dict[NodeId, set[AccountId]] = {}
        # PNodes whose doubts nobody shared: they are not asked any more.
        self._doubted_alone: set[NodeId] = set()
        self._unlike = 0

    # What happens

    def begin_epoch(self, epoch: int, seats: Mapping[SeatId, tuple[AttemptId, NodeId]], *, from_step: int) -> None:
        """What was claimed of steps that are done again now counts no more."""
        self._epochs[epoch] = _Epoch(dict(seats), from_step)
        for key in [key for key in self._claims if key[0] < epoch and key[2] > self.complete_step]:
            del self._claims[key]
        kept = {key[0] for key in self._claims} | {epoch}
        self._epochs = {each: known for each, known in self._epochs.items() if each in kept}
        self._looked = {each: step for each, step in self._looked.items() if each in kept}

    def note_end(self, epoch: int, until_step: int) -> None:
        """Hosts are told to stop there: they store and tell that step, too."""
        known = self._epochs.get(epoch)
        if known is not None:
            self._epochs[epoch] = replace(known, ends=known.ends | {until_step})

    def claim(self, claim: Claim, hosts: Hosts, *, now: float) -> list[AuditEffect]:
        """The first word counts: nobody can change it once it may be known what is looked at."""
        key = claim.span.key
        known = self._epochs.get(key[0])
        if known is None or claim.seat not in known.seats or not self._is_span(known, key):
            return []
        told = sum(claim.seat in claims for claims in self._claims.values())
        if told < CLAIMS_MAX and key[1] >= self._looked.get(key[0], 0):
            self._claims.setdefault(key, {}).setdefault(claim.seat, claim)
        return self._look(hosts, now)

    def _is_span(self, known: _Epoch, key: SpanKey) -> bool:
        """From one step that everybody stores to the next: nobody can make spans up that others know nothing of."""
        _, from_step, until_step = key
        every = self._checkpoint_every
        begins = from_step == known.from_step or from_step % every == 0 or from_step in known.ends
        ends = until_step % every == 0 or until_step in known.ends
        return begins and ends and known.from_step <= from_step < until_step <= (from_step // every + 1) * every

    def complete(self, step: int, hosts: Hosts, *, now: float) -> list[AuditEffect]:
        self.complete_step, self._complete_at = step, now
        return self._look(hosts, now)

    def show(self, audit_id: UUID, seat: SeatId, sha256: str, hosts: Hosts, *, now: float) -> list[AuditEffect]:
        """A log was stored; without a hash there is none."""
        audit = self._audits.get(audit_id)
        if audit is None or seat not in audit.wanted:
            return []
        if not sha256:
            return [*self._give_up(audit, f"{seat} has not kept its frames"), *self._look(hosts, now)]
        audit = replace(audit, wanted=audit.wanted - {seat}, logs={**audit.logs, seat: sha256})
        self._audits[audit_id] = audit
        return [] if audit.wanted else self._ask(audit, hosts, now)

    def hear_replay(
        self,
        audit_id: UUID,
        attempt_id: AttemptId,
        replayed: Replayed | None,
        told: Told,
        hosts: Hosts,
        *,
        now: float,
        reason: str = "",
    ) -> list[AuditEffect]:
        audit = self._audits.get(audit_id)
        if audit is None or audit.asked is None or audit.asked.attempt_id != attempt_id:
            return []
        witness = audit.asked
        audit = replace(audit, asked=None, tried=audit.tried | {attempt_id})
        self._audits[audit_id] = audit
        if replayed is None:
            effects = self._ask(audit, hosts, now, why=reason)
        elif not is_fed_right(audit.claim, replayed):
            effects = self._give_up(audit, "neighbours show other frames than they told of")
        else:
            effects = self._judge(audit, witness, replayed, told, hosts, now)
        return [*effects, *self._look(hosts, now)]

    def tick(self, hosts: Hosts, *, now: float) -> list[AuditEffect]:
        """Who is gone or silent is waited for no longer."""
        effects: list[AuditEffect] = []
        present = {host.attempt_id for host in hosts.values()}
        for id in list(self._audits):
            # What is concluded may take others with it.
            audit = self._audits.get(id)
            if audit is None or not audit.begun:
                continue
            if audit.wanted and now - audit.asked_at > LOG_SECONDS:
                effects += self._give_up(audit, f"{', '.join(sorted(audit.wanted))} did not show the frames in time")
            elif audit.wanted and not self._can_show(audit, hosts):
                effects += self._give_up(audit, f"{', '.join(sorted(audit.wanted))} went with its frames")
            elif audit.asked is not None:
                gone = audit.asked.attempt_id not in present
                if gone or now - audit.asked_at > REPLAY_SECONDS:
                    late = replace(audit, asked=None, tried=audit.tried | {audit.asked.attempt_id})
                    self._audits[audit.id] = late
                    effects += self._ask(late, hosts, now, why="who was asked gave no answer")
        return [*effects, *self._look(hosts, now), *self._look_for_silent(hosts, now)]

    def drop(self, audit_id: UUID, why: str) -> list[AuditEffect]:
        """What it needs is not to be had."""
        audit = self._audits.get(audit_id)
        return [] if audit is None else self._give_up(replace(audit, asked=None), why)

    def is_settled(self, *, now: float) -> bool:
        """All steps up to the last complete checkpoint were looked at, and nothing of them is under way."""
        looked = max(self._looked.values(), default=0) >= self.complete_step
        return not self._audits and (looked or now - self._complete_at > CLAIM_SECONDS)

    @property
    def oldest_step(self) -> int | None:
        """The oldest checkpoint that a replay may still begin at."""
        steps = [audit.claim.span.from_step for audit in self._audits.values()]
        return min([*steps, *(key[1] for key in self._claims)], default=None)

    # What follows

    def _look(self, hosts: Hosts, now: float) -> list[AuditEffect]:
        """Spans whose claims are all in, oldest first; then audits that may begin."""
        effects: list[AuditEffect] = []
        for key in sorted(self._claims, key=lambda key: (key[2], key[0])):
            claims = self._claims.get(key)
            if claims is None or key[2] > self.complete_step or key[0] not in self._epochs:
                continue
            if claims.keys() != self._epochs[key[0]].seats.keys():
                continue
            del self._claims[key]
            self._looked[key[0]] = max(key[2], self._looked.get(key[0], 0))
            pairs = list_disagreements(claims)
            if pairs:
                effects += self._settle_disagreement(claims, pairs)
                break
            self._pick(key, claims)
        for audit in [each for each in self._audits.values() if not each.begun]:
            if sum(each.begun for each in self._audits.values()) < UNDER_WAY_PER_HOST * max(1, len(hosts)):
                effects += self._begin(audit, hosts, now)
        return effects

    def _look_for_silent(self, hosts: Hosts, now: float) -> list[AuditEffect]:
        """Who tells nothing of steps that are stored cannot be looked at: they do not count, and it has to go."""
        waiting = [key for key in sorted(self._claims, key=lambda key: key[1:]) if key[2] <= self.complete_step]
        self._missing_at = {key: self._missing_at.get(key, now) for key in waiting}
        late = [key for key in waiting if now - self._missing_at[key] > CLAIM_SECONDS]
        if not late:
            return []
        key = late[0]
        claims, seats = self._claims.pop(key), self._epochs[key[0]].seats
        self._looked[key[0]] = max(key[2], self._looked.get(key[0], 0))
        seat = min(seats.keys() - claims.keys())
        standing = hosts[seat].standing if seat in hosts else _UNKNOWN
        if {standing.owner_id} == {claim.standing.owner_id for claim in claims.values()}:
            return []
        claim = Claim(seat, *seats[seat], standing, SpanDigest(*key, {}))
        message = f"{seat} did not tell what it did in steps {key[1] + 1} to {key[2]}"
        conclusion = Conclude(self._new_id(), claim, AuditOutcome.UNDECIDED, (), message)
        return [conclusion, *self._reject(claim, blamed=False, message=message)]

    def _pick(self, key: SpanKey, claims: Mapping[SeatId, Claim]) -> None:
        owners = {claim.standing.owner_id for claim in claims.values()}
        if self._unlike >= UNLIKE_MAX or len(owners) < 2:
            # Nobody is audited by himself.
            return
        picked = [claim for _, claim in sorted(claims.items()) if self._draw() < audit_rate(claim.standing.validated)]
        picked = picked[: max(0, OPEN_MAX - len(self._audits))]
        if len(picked) == len(claims):
            self._open_seats[key] = {claim.seat for claim in picked}
        for claim in picked:
            audit = Audit(self._new_id(), claim, {seat: each.attempt_id for seat, each in claims.items()})
            self._audits[audit.id] = audit

    def _settle_disagreement(
        self, claims: Mapping[SeatId, Claim], pairs: list[tuple[SeatId, SeatId]]
    ) -> list[AuditEffect]:
        """One of two lies. Who disagrees with two owners is wrong; of one pair alone somebody must go, unblamed."""
        for one, two in pairs:
            for seat, other in ((one, two), (two, one)):
                owner_id = claims[other].standing.owner_id
                if owner_id != claims[seat].standing.owner_id:
                    self._against.setdefault(claims[seat].node_id, set()).add(owner_id)
        among = sorted({seat for pair in pairs for seat in pair})
        weights = {seat: len(self._against.get(claims[seat].node_id, ())) for seat in among}
        chances = {seat: self._draw() for seat in among}
        goes = min(among, key=lambda seat: (-weights[seat], claims[seat].standing.validated, chances[seat]))
        blamed = weights[goes] >= 2 and sum(weight >= 2 for weight in weights.values()) == 1
        others = sorted({other for pair in pairs if goes in pair for other in pair if other != goes})
        outcome = AuditOutcome.WRONG if blamed else AuditOutcome.UNDECIDED
        claim = claims[goes]
        message = f"{goes} and {', '.join(others)} tell different things of the frames between them"
        conclusion = Conclude(self._new_id(), claim, outcome, (), message)
        return [conclusion, *self._reject(claim, blamed=blamed, message=message)]

    def _begin(self, audit: Audit, hosts: Hosts, now: float) -> list[AuditEffect]:
        """Neighbours show what they sent: whoever is looked at is not asked, and may be gone."""
        candidates = self._list_candidates(audit, hosts)
        if not candidates:
            return self._give_up(audit, "no host of another owner can be asked")
        claim = audit.claim
        tolerant = all(each.standing.numeric_class != claim.standing.numeric_class for each in candidates)
        wanted = frozenset(claim.span.peers) | ({claim.seat} if tolerant else frozenset())
        audit = replace(audit, begun=True, wanted=wanted, tolerant=tolerant, asked_at=now)
        self._audits[audit.id] = audit
        if not self._can_show(audit, hosts):
            return self._give_up(audit, "a neighbour went with its frames")
        if not wanted:
            return self._ask(audit, hosts, now)
        return [AskLog(audit.id, hosts[seat].attempt_id, claim) for seat in sorted(wanted)]

    def _can_show(self, audit: Audit, hosts: Hosts) -> bool:
        return all(seat in hosts and hosts[seat].attempt_id == audit.holders.get(seat) for seat in audit.wanted)

    def _ask(self, audit: Audit, hosts: Hosts, now: float, why: str = "") -> list[AuditEffect]:
        candidates = self._list_candidates(audit, hosts)
        if not candidates:
            return self._end_alone(audit, why)
        busy = [each.asked.seat for each in self._audits.values() if each.asked is not None]
        chances = {each.seat: self._draw() for each in candidates}
        witness = min(
            candidates, key=lambda each: (busy.count(each.seat), -each.standing.validated, chances[each.seat])
        )
        self._audits[audit.id] = replace(audit, asked=witness, asked_at=now)
        return [AskReplay(audit.id, witness, audit.claim, audit.logs)]

    def _list_candidates(self, audit: Audit, hosts: Hosts) -> list[Witness]:
        """Of other owners than the one that is looked at and those that were heard."""
        heard = {audit.claim.standing.owner_id, *(witness.standing.owner_id for witness, _, _ in audit.doubts)}
        found = [
            host
            for _, host in sorted(hosts.items())
            if host.standing.owner_id not in heard
            and host.attempt_id not in audit.tried
            and host.node_id not in self._doubted_alone
        ]
        alike = [each for each in found if each.standing.numeric_class == audit.claim.standing.numeric_class]
        return found if audit.tolerant or (not audit.begun and not alike) else alike

    def _judge(
        self, audit: Audit, witness: Witness, replayed: Replayed, told: Told, hosts: Hosts, now: float
    ) -> list[AuditEffect]:
        same_class = witness.standing.numeric_class == audit.claim.standing.numeric_class and not audit.tolerant
        difference = find_difference(audit.claim, told, replayed, same_class=same_class)
        if not difference:
            if not audit.doubts:
                return self._conclude(audit, AuditOutcome.AGREED, (witness,), "")
            [(doubter, _, said)] = audit.doubts
            self._doubted_alone.add(doubter.node_id)
            words = f"{doubter.seat} doubted it ({said}), {witness.seat} did not"
            return self._conclude(audit, AuditOutcome.UNDECIDED, (doubter, witness), words)
        before, audit = audit, replace(audit, doubts=(*audit.doubts, (witness, replayed, difference)))
        self._audits[audit.id] = audit
        if not before.doubts:
            return self._ask(audit, hosts, now)
        witnesses = tuple(each for each, _, _ in audit.doubts)
        if are_same(before.doubts[0][1], replayed):
            return self._conclude(audit, AuditOutcome.WRONG, witnesses, difference)
        self._unlike += 1
        words = "two replays differ from it and from each other: the network does not come to the same bits again"
        return self._conclude(audit, AuditOutcome.UNDECIDED, witnesses, words)

    def _end_alone(self, audit: Audit, why: str) -> list[AuditEffect]:
        """Nobody is left to ask. A doubt alone costs no more than the seat, and its author is not asked again."""
        if not audit.doubts:
            return self._give_up(audit, why or "no host of another owner can be asked")
        [(doubter, _, said)] = audit.doubts
        words = f"{doubter.seat} doubts it ({said}), and there is no third owner to ask"
        effects = self._conclude(audit, AuditOutcome.UNDECIDED, (doubter,), words)
        self._doubted_alone.add(doubter.node_id)
        return [*effects, *self._reject(audit.claim, blamed=False, message=words)]

    def _give_up(self, audit: Audit, why: str) -> list[AuditEffect]:
        if audit.doubts:
            return self._end_alone(audit, why)
        return self._conclude(audit, AuditOutcome.UNVERIFIED, (), why)

    def _conclude(
        self, audit: Audit, outcome: AuditOutcome, witnesses: tuple[Witness, ...], message: str
    ) -> list[AuditEffect]:
        del self._audits[audit.id]
        claim, key = audit.claim, audit.claim.span.key
        effects: list[AuditEffect] = [
            Conclude(audit.id, claim, outcome, witnesses, message, tuple(sorted(set(audit.logs.values()))))
        ]
        if outcome is AuditOutcome.WRONG:
            return [*effects, *self._reject(claim, blamed=True, message=f"{claim.seat}: {message}")]
        if key in self._open_seats:
            if outcome is not AuditOutcome.AGREED:
                del self._open_seats[key]
                return effects
            self._open_seats[key].discard(claim.seat)
            if not self._open_seats[key]:
                del self._open_seats[key]
                effects.append(MarkAudited(key[2]))
        return effects

    def _reject(self, claim: Claim, *, blamed: bool, message: str) -> list[AuditEffect]:
        """All that was claimed of later steps is void: they are done again."""
        step = claim.span.from_step
        self.complete_step = min(self.complete_step, step)
        self._looked = {}
        self._claims = {key: claims for key, claims in self._claims.items() if key[2] <= step}
        self._open_seats = {key: seats for key, seats in self._open_seats.items() if key[2] <= step}
        dropped = [audit for audit in self._audits.values() if audit.claim.span.until_step > step]
        effects: list[AuditEffect] = []
        for audit in dropped:
            del self._audits[audit.id]
            words = "these steps are done again"
            logs = tuple(sorted(set(audit.logs.values())))
            effects.append(Conclude(audit.id, audit.claim, AuditOutcome.UNVERIFIED, (), words, logs))
        return [*effects, Reject(step, claim, blamed, message)]

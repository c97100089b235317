"""A fleet of which some forge results, on the real rules of trust; the forgers' pay moves on the real ledger.

Time goes in steps: in each, every node that may lease delivers one result. Audits are decided at once, which favours
nobody: all that is not finalised can still be put right. Seeded: the same seed makes the same history.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from uuid import UUID

from computepool.core.ids import AccountId, NodeId
from computepool.core.trust.identities import BAD_MEMORY, WINDOW, Origin, find_identity_refusal
from computepool.core.trust.standing import (
    NodeTrust,
    Standing,
    TrustEffect,
    cool_off,
    is_paid,
    is_trusted,
    may_decide,
    may_lease,
    may_release_pay,
    readmit,
    record_validated,
)
from computepool.core.trust.tenure import plan_holdback
from computepool.core.trust.validation import (
    MoreRuns,
    Ruling,
    Runner,
    audit_rate,
    choose_auditors,
    choose_deciders,
    judge_audit,
    judge_known_answer,
)
from sims.purse import Purse

START = datetime(2030, 1, 1, tzinfo=UTC)
# One result of a node: 200 of them are held back at a time.
STEP = timedelta(hours=72) / 200
DAY_STEPS = 67
# Marked by the operator, of the honest ones.
VOUCHED = 5
# One honest result in half a million is wrong by itself, such as by a flipped bit.
FLIP_RATIO = 2e-6
# Jobs whose results differ from run to run, and slices of a job.
NONDETERMINISTIC_RATIO = 0.01
JOB_SLICES = 40
# What forging together agrees on. Right answers are 0, all others are like no other.
TOGETHER = 1
NETWORKS_PER_FORGER = 2


@dataclass(slots=True)
class Result:
    step: int
    is_wrong: bool
    is_nondeterministic: bool
    is_checked: bool = False
    is_rejected: bool = False
    earning: int | None = None


@dataclass(slots=True, eq=False)
class Node:
    number: int
    runner: Runner
    trust: NodeTrust
    strategy: str | None = None
    rate: float = 1.0
    online: bool = True
    # Delivered by this identity, and slices that it has forged.
    delivered: int = 0
    forged: int = 0
    held: deque[Result] = field(default_factory=deque)
    held_steps: int = 200
    back_at_step: int | None = None
    enrolled: list[tuple[int, str]] = field(default_factory=list)
    bugged: list[tuple[int, str]] = field(default_factory=list)


@dataclass(slots=True)
class Tally:
    results: int = 0
    finalised: int = 0
    wrong_finalised: int = 0
    forged_finalised: int = 0
    # Of those: put in place of a right one, by forgers who decided against it.
    wrong_replacements: int = 0
    extra_runs: int = 0
    honest_suspected: int = 0
    honest_bugged: int = 0
    forgers_bugged: int = 0
    nondeterministic: int = 0
    identities: int = 0
    # Wrong results by the step in which they were finalised, for the plots.
    wrong_steps: list[int] = field(default_factory=list)


Forge = Callable[[Node, random.Random], bool]
PROBATION = 25
# Known to the attacker: from here on nothing more can be gained by waiting. Forgers wake one after the other, or the
# looking back at one would be given to others that have just begun to forge.
PATIENCE = 300


def is_awake(node: Node) -> bool:
    return node.delivered >= PATIENCE + node.number * 61 % 600


BURST = 4

FORGE: dict[str, Forge] = {
    "honest": lambda node, rng: False,
    "always": lambda node, rng: True,
    "trickle": lambda node, rng: rng.random() < 0.02,
    "sleeper": lambda node, rng: is_awake(node),
    "hit_and_run": lambda node, rng: is_awake(node) and node.forged < BURST,
    # Behaves until it is trusted, and vouches for every forgery of the others.
    "collude": lambda node, rng: node.delivered >= 100 and rng.random() < 0.02,
    # Every other one forges from the start; the rest pass probation, forge two and leave for a new name.
    "reenter": lambda node, rng: node.number % 2 == 0 or node.delivered >= PROBATION,
    # Beyond what the targets ask for: trickles, but only once audits are as rare as they get.
    "patient_trickle": lambda node, rng: is_awake(node) and rng.random() < 0.0115,
    # The same, and so rarely that two forgeries seldom lie within the fifty validated results that would bug it.
    "rare": lambda node, rng: is_awake(node) and (node.delivered + node.number * 61) % 260 == 0,
}


class Fleet:
    def __init__(self, *, nodes: int, hostile: int, strategy: str, seed: str, validates: bool = True) -> None:
        self.random = random.Random(seed)
        self.strategy = strategy
        self.validates = validates
        self.forge = FORGE[strategy]
        self.tally = Tally()
        self.purse = Purse()
        self.now = START
        self.step = 0
        self.nodes: list[Node] = []
        self._unlike = count(2)
        self._job_left = 0
        self._job_is_nondeterministic = False
        self._job_is_marked = False
        self._to_look_back: list[Node] = []
        self._candidates: list[Runner] = []
        self._by_id: dict[NodeId, Node] = {}
        # Names that were left behind, with what they have delivered.
        self._ghosts: list[Node] = []
        for number in range(nodes):
            self._add(number, is_hostile=number < hostile, is_vouched=hostile <= number < hostile + VOUCHED)
        self._list_candidates()

    def run(self, steps: int) -> Tally:
        for self.step in range(steps):
            self.now = START + self.step * STEP
            for node in self.nodes:
                if not node.online:
                    self._come_back(node)
                if node.online:
                    self._deliver(node)
                self._finalise(node)
            for ghost in self._ghosts:
                self._finalise(ghost)
            if self.step % DAY_STEPS == 0:
                self._post_day()
        self.purse.close(now=self.now)
        return self.tally

    # One result

    def _deliver(self, node: Node) -> None:
        self._next_slice()
        self.tally.results += 1
        answer = self._answer(node, ())
        # Below zero: the job's own chance.
        is_wrong = answer > 0
        result = Result(self.step, is_wrong, self._job_is_nondeterministic)
        node.delivered += 1
        node.held.append(result)
        paid = node.strategy is not None and is_paid(node.trust)
        rate = node.rate if self.validates else 0.0
        if rate < 1.0 and paid:
            result.earning = self._pay(node)
        if rate >= 1.0 or self.random.random() < rate:
            self._audit(node, result, answer)
            while self._to_look_back:
                self._look_back(self._to_look_back.pop())
            if rate >= 1.0 and paid and not result.is_rejected and is_paid(node.trust):
                result.earning = self._pay(node)
        if node.strategy is not None:
            self.purse.note_run(node.number, forged=is_wrong)
            if self.strategy == "reenter" and node.number % 2 and node.forged >= 2 and may_lease(node.trust):
                self._leave(node)

    def _pay(self, node: Node) -> int:
        since = node.trust.serving_since
        holdback = plan_holdback(self.now - since if since else timedelta(0))
        return self.purse.settle(node.number, node.runner.owner_id, due_at=self.now + holdback, now=self.now)

    def _next_slice(self) -> None:
        if self._job_left == 0:
            self._job_left = JOB_SLICES
            self._job_is_nondeterministic = self.random.random() < NONDETERMINISTIC_RATIO
            self._job_is_marked = False
        self._job_left -= 1

    def _answer(self, node: Node, others: tuple[tuple[Node, int], ...]) -> int:
        """What a node returns for a slice that others have run before. Nodes know neither that nor what for."""
        if node.strategy is not None:
            if self.strategy == "collude" and any(answer == TOGETHER for _, answer in others):
                return TOGETHER
            if self.forge(node, self.random):
                node.forged += 1
                return TOGETHER if self.strategy == "collude" else next(self._unlike)
        if self._job_is_nondeterministic:
            return -next(self._unlike)
        return next(self._unlike) if self.random.random() < FLIP_RATIO else 0

    # Audits

    def _audit(self, node: Node, result: Result, answer: int, *, is_retro: bool = False) -> None:
        self.tally.extra_runs += 1
        if self._job_is_marked:
            # The slice with the known answer is one more like all the others.
            forges = node.strategy is not None and self.forge(node, self.random)
            self._apply(judge_known_answer(answer=int(forges), expected=0), [node], result)
            self.tally.extra_runs += result.is_rejected
            return
        result.is_checked = True
        runs = [(node, answer)]
        needed = 1
        while True:
            chosen = self._choose(runs, needed)
            if len(chosen) < needed:
                result.is_checked = False
                return
            for auditor in chosen:
                runs.append((auditor, self._answer(auditor, tuple(runs))))
            ruling = judge_audit([said for _, said in runs])
            if isinstance(ruling, Ruling):
                break
            needed = ruling.count if isinstance(ruling, MoreRuns) else 0
            self.tally.extra_runs += needed
        if ruling.is_nondeterministic:
            self.tally.nondeterministic += 1
            self._job_is_marked = True
        elif not ruling.verdicts[0] and runs[-1][1] > 0:
            # Whoever decided last is right by the ruling: what they got is delivered, and not looked at again.
            self.tally.finalised += 1
            self.tally.wrong_finalised += 1
            self.tally.wrong_replacements += 1
            self.tally.wrong_steps.append(self.step)
        self._apply(ruling, [each for each, _ in runs], result, is_retro=is_retro)

    def _choose(self, runs: list[tuple[Node, int]], needed: int) -> list[Node]:
        draw = self.random.getrandbits(128)
        choose = choose_auditors if len(runs) == 1 else choose_deciders
        chosen = choose(self._candidates, [each.runner for each, _ in runs], count=needed, draw=draw)
        return [self._by_id[each.node_id] for each in chosen]

    def _apply(self, ruling: Ruling, nodes: list[Node], result: Result, *, is_retro: bool = False) -> None:
        for index, (node, right) in enumerate(zip(nodes, ruling.verdicts, strict=True)):
            if right is None:
                continue
            before = node.trust
            node.trust, effects = record_validated(
                before, right=right, now=self.now, is_retro=is_retro and index == 0
            )
            if index == 0 and not right:
                self._reject(node, result)
            self._refresh(node)
            if effects:
                self._follow(node, before.standing, effects)

    def _follow(self, node: Node, before: Standing, effects: tuple[TrustEffect, ...]) -> None:
        honest = node.strategy is None
        if TrustEffect.FREEZE_PAY in effects and honest and before is Standing.CLEAR:
            self.tally.honest_suspected += 1
        if TrustEffect.STOP_LEASES in effects:
            self.tally.honest_bugged += honest
            self.tally.forgers_bugged += not honest
            node.online = False
            node.bugged.append((self.step, node.runner.network))
            node.back_at_step = None
            if node.trust.standing is Standing.BUGGED:
                node.back_at_step = self.step + int(cool_off(node.trust.bugged_count) / STEP) + 1
        if TrustEffect.RETRO_AUDIT in effects:
            self._to_look_back.append(node)

    def _look_back(self, node: Node) -> None:
        """Everything of it that is not finalised. What nobody can check is not kept from a node found out."""
        job = self._job_is_nondeterministic, self._job_is_marked
        for result in list(node.held):
            if result.is_checked:
                continue
            if result.is_nondeterministic:
                self._reject(node, result)
                self.tally.extra_runs += 1
                continue
            self._job_is_nondeterministic, self._job_is_marked = False, False
            self._audit(node, result, self._answer_again(node, result), is_retro=True)
        self._job_is_nondeterministic, self._job_is_marked = job
        if not may_lease(node.trust):
            self.purse.forfeit(node.number, now=self.now)

    def _answer_again(self, node: Node, result: Result) -> int:
        """What it answered then."""
        if not result.is_wrong:
            return 0
        return TOGETHER if self.strategy == "collude" and node.strategy else next(self._unlike)

    def _reject(self, node: Node, result: Result) -> None:
        """Nothing is paid for it. What a check has got takes its place; without one the slice runs again."""
        result.is_checked, result.is_rejected = True, True
        if result.earning is not None:
            self.purse.reverse(result.earning, now=self.now)
            result.earning = None

    # Time passes

    def _finalise(self, node: Node) -> None:
        held, tally = node.held, self.tally
        if not held:
            return
        if self.step % 100 == 0 and node.trust.serving_since is not None:
            node.held_steps = int(plan_holdback(self.now - node.trust.serving_since) / STEP)
        while held and held[0].step + node.held_steps <= self.step:
            result = held.popleft()
            if result.is_rejected:
                continue
            tally.finalised += 1
            if result.is_wrong:
                tally.wrong_finalised += 1
                tally.forged_finalised += node.strategy is not None
                tally.wrong_steps.append(self.step)

    def _post_day(self) -> None:
        forgers = [node for node in self.nodes if node.strategy is not None]
        self.purse.post_day({node.number: may_release_pay(node.trust) for node in forgers}, now=self.now)

    def _refresh(self, node: Node) -> None:
        was = node.runner
        trusted, decides = is_trusted(node.trust, now=self.now), may_decide(node.trust, now=self.now)
        node.rate = audit_rate(node.trust, now=self.now)
        if (trusted, decides) != (was.is_trusted, was.may_decide):
            node.runner = replace(was, is_trusted=trusted, may_decide=decides)
            self._list_candidates()

    def _list_candidates(self) -> None:
        here = [node for node in self.nodes if node.runner.is_trusted and node.online]
        self._candidates = [node.runner for node in here]
        self._by_id = {node.runner.node_id: node for node in here}

    # Coming and going

    def _add(self, number: int, *, is_hostile: bool, is_vouched: bool) -> None:
        trust = NodeTrust(is_vouched=is_vouched)
        # Honest owners have two nodes each; every forger is a stranger to all others, which is the worst case.
        owner = f"forger {number}" if is_hostile else f"honest {number // 2}"
        runner = Runner(NodeId(UUID(int=number)), to_owner(owner), f"net {owner}", is_vouched, is_vouched, is_vouched)
        node = Node(number, runner, trust, self.strategy if is_hostile else None)
        node.rate = audit_rate(trust, now=self.now)
        self.nodes.append(node)
        self.tally.identities += is_hostile

    def _leave(self, node: Node) -> None:
        node.online = False
        node.back_at_step = None
        self._list_candidates()

    def _come_back(self, node: Node) -> None:
        if self.strategy == "reenter" and node.strategy is not None:
            if self.step % 20 == node.number % 20:
                self._enrol_anew(node)
            return
        if node.back_at_step is not None and self.step >= node.back_at_step:
            node.trust = readmit(node.trust, now=self.now)
            node.online = may_lease(node.trust)
            node.back_at_step = None
            self._refresh(node)

    def _enrol_anew(self, node: Node) -> None:
        """With a new account every time, from one of the few networks that the attacker has for this machine."""
        for number in range(NETWORKS_PER_FORGER):
            network = f"net forger {node.number}" + (f" {number}" if number else "")
            origin = self._origin(node, network)
            if find_identity_refusal(owner=Origin(0), network=origin, now=self.now) is None:
                break
        else:
            return
        node.enrolled.append((self.step, network))
        self.tally.identities += 1
        self.purse.part(node.number)
        serial = 1_000_000 + 1_000 * node.number + len(node.enrolled)
        node.runner = Runner(NodeId(UUID(int=serial)), to_owner(f"new {serial}"), network, False)
        # What the old name has delivered is finalised or not by the old name's record.
        ghost = Node(node.number, node.runner, node.trust, node.strategy, held=node.held, online=False)
        self._ghosts.append(ghost)
        node.trust, node.held = NodeTrust(), deque()
        node.delivered = node.forged = 0
        node.online = True
        self._refresh(node)
        self._list_candidates()

    def _origin(self, node: Node, network: str) -> Origin:
        bad = [step for step, where in node.bugged if where == network and (self.step - step) * STEP < BAD_MEMORY]
        new = [step for step, where in node.enrolled if where == network and (self.step - step) * STEP < WINDOW]
        first = 1 if network == f"net forger {node.number}" else 0
        last = START + bad[-1] * STEP if bad else None
        return Origin(len(new) + first, len(bad), last)


def to_owner(name: str) -> AccountId:
    return AccountId(UUID(int=random.Random(name).getrandbits(120)))

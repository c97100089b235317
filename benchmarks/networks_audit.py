"""Whether audits find a PNode that corrupts one micro-batch in a hundred, and leave honest ones alone.

    python -m benchmarks.networks_audit [--trials N]

Real engines compute every span that is corrupted and replay it from logs; the rules by which hubs draw, ask and judge
decide; only processes and streams are left out. Spans without corruption come to the bits of an honest training that
was done once. A trial begins with PNodes that nobody knows, and ends when the corrupter has lost its seat, or after
200 computed steps.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from uuid import UUID

import torch

from computepool.core.ids import AccountId, AttemptId, NodeId
from computepool.core.networks.audit import (
    DEVIATION_MAX,
    AskLog,
    AskReplay,
    AuditEffect,
    AuditOutcome,
    Claim,
    Conclude,
    Reject,
    Replayed,
    SpanDigest,
    Standing,
    Told,
    Witness,
)
from computepool.core.networks.audit_book import AuditBook
from computepool.core.networks.placement import Placement, SeatId
from computepool.core.networks.spec import NetworkSpec
from computepool.node.vnodes.checkpoints import Checkpoint, digest_content
from computepool.node.vnodes.data import Dataset
from computepool.node.vnodes.epoch_run import EpochRun, Job, Outcome
from computepool.node.vnodes.events import CheckpointReady, DigestKnown
from computepool.node.vnodes.frames import FrameHead, to_bytes, to_tensor
from computepool.node.vnodes.replay import measure_deviation, replay
from tests.support.vnode_cluster import Cluster, Parcel
from tests.support.vnode_nets import make_net, make_samples, place_all

TRIALS = 200
STEPS = 200
SPAN = 20
SHARE = 0.01
SEATS = 3
NETS = ("mlp", "residual")
# What a corrupter does: computes something else and stands by it, or sends other frames than it tells of.
KINDS = ("computes", "sends")

Frame = tuple[SeatId, FrameHead, torch.Tensor]
Moment = tuple[int, int]


@dataclass(slots=True)
class Work:
    """What all seats did between two checkpoints, and what they say that they did."""

    from_step: int
    claims: dict[SeatId, SpanDigest] = field(default_factory=dict)
    # By the seat that sent them.
    logs: dict[SeatId, list[Frame]] = field(default_factory=dict)
    states: dict[str, bytes] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)
    # By the seat and who has replayed it.
    replayed: dict[tuple[SeatId, SeatId], Replayed] = field(default_factory=dict)


class Stage:
    """One network on three seats, trained honestly once, span by span."""

    def __init__(self, kind: str, *, steps: int = STEPS, span: int = SPAN) -> None:
        torch.set_num_threads(1)
        self.spec: NetworkSpec = make_net(kind, checkpoint_every=span)
        self.samples: Dataset = make_samples(self.spec)
        self.placement: Placement = place_all(self.spec, SEATS)
        self.span = span
        self._honest: dict[int, Work] = {}
        for step in range(0, steps, span):
            self._honest[step] = self.compute(step)

    @property
    def seats(self) -> tuple[SeatId, ...]:
        return self.placement.seats

    def honest(self, from_step: int) -> Work:
        return self._honest[from_step]

    def compute(
        self, from_step: int, corrupter: SeatId | None = None, moments: Iterable[Moment] = (), kind: str = KINDS[0]
    ) -> Work:
        work = Work(from_step)
        spoiled = frozenset(moments)

        def carry(parcel: Parcel) -> list[Parcel]:
            source = self._find_seat(parcel.head)
            tensor = to_tensor(parcel.content, parcel.head.dtype, parcel.head.shape)
            work.logs.setdefault(source, []).append((parcel.seat, parcel.head, tensor))
            is_spoiled = source == corrupter and (parcel.head.step, parcel.head.micro_batch) in spoiled
            if kind == "sends" and is_spoiled and tensor.is_floating_point() and tensor.numel():
                return [replace(parcel, content=bytes(to_bytes(spoil(tensor))))]
            return [parcel]

        cluster = Cluster(self.spec, self.samples, self.placement, meddle=carry)
        if from_step:
            cluster.checkpoints[from_step] = self._honest[from_step - self.span].contents
        cluster.prepare(from_step)
        if corrupter is not None and kind == "computes":
            plant(cluster.engines[corrupter]._run, spoiled)
        cluster.start(from_step + self.span, from_step=from_step)
        cluster.run()
        cluster.close()
        assert cluster.is_done
        for seat, event in cluster.events:
            if isinstance(event, DigestKnown):
                work.claims[seat] = event.span
            elif isinstance(event, CheckpointReady):
                work.states[event.vnode_id], work.contents[event.vnode_id] = event.digest, event.content
        return work

    def replay(self, work: Work, seat: SeatId) -> Replayed:
        """By another host, from what the neighbours have kept."""
        received = [(head, tensor) for log in work.logs.values() for target, head, tensor in log if target == seat]
        found = replay(
            self.spec,
            self.placement,
            seat,
            received,
            self.samples,
            checkpoint=self._find_checkpoint(work.from_step),
            until_step=work.from_step + self.span,
        )
        stored = {id: digest_content(work.contents[id], id) for id in found.states}
        return Replayed(found.span.peers, found.span.losses, found.states, stored)

    def measure_noise(self, work: Work, seat: SeatId, *, threads: int) -> float:
        """How far an honest replay is off in another numeric class: one with more threads."""
        received = [
            (head, tensor)
            for log in work.logs.values()
            for target, head, tensor in log
            if target == seat and head.step == work.from_step
        ]
        torch.set_num_threads(threads)
        try:
            found = replay(
                self.spec,
                self.placement,
                seat,
                received,
                self.samples,
                checkpoint=self._find_checkpoint(work.from_step),
                until_step=work.from_step + 1,
                keeps_frames=True,
            )
        finally:
            torch.set_num_threads(1)
        return measure_deviation(found.sent, work.logs.get(seat, []), step=work.from_step)

    def tell(self, work: Work, seat: SeatId) -> Told:
        mine = {each.vnode_id for each in self.placement.at(seat)}
        return Told({id: digest for id, digest in work.states.items() if id in mine}, work.claims[seat].losses)

    def _find_checkpoint(self, step: int) -> Checkpoint | None:
        return Checkpoint(step, self._honest[step - self.span].contents) if step else None

    def _find_seat(self, head: FrameHead) -> SeatId:
        return self.placement.seat_of(head.source, head.replica)


def spoil(tensor: torch.Tensor) -> torch.Tensor:
    """One number in it, by a tenth of a percent and a little."""
    spoiled = tensor.clone()
    flat = spoiled.view(-1)
    flat[0] = flat[0] * 1.001 + 1e-6
    return spoiled


def plant(run: EpochRun | None, moments: frozenset[Moment]) -> None:
    assert run is not None
    right = run.compute

    def compute(job: Job) -> Outcome:
        outcome = right(job)
        if job.moment in moments:
            outcome.outputs = [spoil(output) if output.is_floating_point() else output for output in outcome.outputs]
            outcome.gradients = [each if each is None else spoil(each) for each in outcome.gradients]
        return outcome

    run.compute = compute  # type: ignore[method-assign]


@dataclass(slots=True)
class Trial:
    caught_at: int | None = None
    honest_flagged: int = 0
    audits: int = 0


class Play:
    """One run with a corrupter among its hosts, each of an owner of its own."""

    def __init__(self, stage: Stage, *, seed: int, kind: str, share: float = SHARE, audited: bool = True) -> None:
        self._stage = stage
        self._random = Random(seed)
        self._kind = kind
        self._share = share
        self._audited = audited
        self._book = AuditBook(
            checkpoint_every=stage.span,
            draw=self._random.random,
            new_id=lambda: UUID(int=self._random.getrandbits(128)),
        )
        self._corrupter = self._random.choice(stage.seats)
        self._known = 0
        self._hosts = {seat: self._hire(seat) for seat in stage.seats}
        self._trial = Trial()

    def run(self, steps: int = STEPS) -> Trial:
        at, computed, epoch = 0, 0, 1
        self._begin(epoch, at)
        while computed < steps and self._trial.caught_at is None:
            work = self._compute(at)
            computed += self._stage.span
            rejected = self._audit(work, epoch, computed) if self._audited else None
            if rejected is None:
                at = (at + self._stage.span) % steps
                continue
            self._hosts[rejected.claim.seat] = self._hire(rejected.claim.seat)
            at, epoch = rejected.step, epoch + 1
            self._begin(epoch, at)
        return self._trial

    def _begin(self, epoch: int, from_step: int) -> None:
        seats = {seat: (host.attempt_id, host.node_id) for seat, host in self._hosts.items()}
        self._book.begin_epoch(epoch, seats, from_step=from_step)

    def _hire(self, seat: SeatId) -> Witness:
        self._known += 1
        node_id, owner_id = NodeId(UUID(int=self._known)), AccountId(UUID(int=self._known))
        return Witness(seat, AttemptId(UUID(int=self._known)), node_id, Standing(owner_id, "one"))

    def _compute(self, at: int) -> Work:
        micro_batches = range(self._stage.spec.micro_batches)
        moments = [
            (step, micro_batch)
            for step in range(at, at + self._stage.span)
            for micro_batch in micro_batches
            if self._random.random() < self._share
        ]
        if not moments:
            return self._stage.honest(at)
        return self._stage.compute(at, self._corrupter, moments, self._kind)

    def _audit(self, work: Work, epoch: int, computed: int) -> Reject | None:
        book, effects = self._book, list[AuditEffect]()
        for seat, host in self._hosts.items():
            span = replace(work.claims[seat], epoch=epoch)
            claim = Claim(seat, host.attempt_id, host.node_id, host.standing, span)
            effects += book.claim(claim, self._hosts, now=0.0)
        effects += book.complete(work.from_step + self._stage.span, self._hosts, now=0.0)
        rejected: Reject | None = None
        while effects:
            effect = effects.pop(0)
            if isinstance(effect, AskLog):
                seat = next(host.seat for host in self._hosts.values() if host.attempt_id == effect.attempt_id)
                effects += book.show(effect.audit_id, seat, f"log of {seat}", self._hosts, now=0.0)
            elif isinstance(effect, AskReplay):
                effects += self._replay(work, effect)
            elif isinstance(effect, Conclude):
                self._note(effect)
            elif isinstance(effect, Reject):
                rejected = effect
                if effect.claim.seat == self._corrupter:
                    self._trial.caught_at = computed
        return rejected

    def _replay(self, work: Work, effect: AskReplay) -> list[AuditEffect]:
        seat, witness = effect.claim.seat, effect.witness
        if (seat, witness.seat) not in work.replayed:
            work.replayed[seat, witness.seat] = self._stage.replay(work, seat)
        found, told = work.replayed[seat, witness.seat], self._stage.tell(work, seat)
        return self._book.hear_replay(effect.audit_id, witness.attempt_id, found, told, self._hosts, now=0.0)

    def _note(self, effect: Conclude) -> None:
        self._trial.audits += 1
        if effect.outcome is AuditOutcome.WRONG and effect.claim.seat != self._corrupter:
            self._trial.honest_flagged += 1


def measure(trials: int = TRIALS, *, steps: int = STEPS, span: int = SPAN) -> dict[str, Any]:
    """The figures of bench.networks that are about audits, and what they are made of."""
    stages = {kind: Stage(kind, steps=steps, span=span) for kind in NETS}
    found: list[Trial] = []
    for seed in range(trials):
        stage = stages[NETS[seed % len(NETS)]]
        kind = KINDS[seed // len(NETS) % len(KINDS)]
        found.append(Play(stage, seed=seed, kind=kind).run(steps))
    noise = [
        stage.measure_noise(stage.honest(step), seat, threads=2)
        for stage in stages.values()
        for seat in stage.seats
        for step in range(0, steps, span)
    ]
    caught = [trial.caught_at for trial in found if trial.caught_at is not None]
    return {
        "corrupter_caught_share": len(caught) / trials,
        # Also who would be flagged by a witness with other threads.
        "honest_flagged": sum(trial.honest_flagged for trial in found) + sum(each > DEVIATION_MAX for each in noise),
        "audit_trials": trials,
        "audits": sum(trial.audits for trial in found),
        "corrupter_caught_after_steps_mean": sum(caught) / len(caught) if caught else None,
        "honest_deviation_of_other_class_max": max(noise),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=TRIALS)
    print(json.dumps(measure(parser.parse_args().trials)))


if __name__ == "__main__":
    main()

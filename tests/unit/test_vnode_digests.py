"""Digest chains and replays: honest hosts agree bit for bit; who computes otherwise is found, with the step."""

from __future__ import annotations

import pytest
import torch

from computepool.core.networks.placement import SeatId
from computepool.core.networks.spec import NetworkSpec
from computepool.node.vnodes.checkpoints import Checkpoint
from computepool.node.vnodes.digests import DigestChain, find_first_difference
from computepool.node.vnodes.events import DigestKnown
from computepool.node.vnodes.frames import FrameHead, to_tensor
from computepool.node.vnodes.replay import ReplayFailed, replay
from tests.support.vnode_cluster import Cluster, Parcel
from tests.support.vnode_nets import make_net, make_samples, place_all

STEPS = 6
SEAT = SeatId("seat-1")


class Recorded:
    """A run of three hosts, with all that reached the second one."""

    def __init__(self, spec: NetworkSpec, *, seed: int = 0, seats: int = 3) -> None:
        self.spec = spec
        self.placement = place_all(spec, seats)
        self.log: list[tuple[FrameHead, torch.Tensor]] = []
        self.cluster = Cluster(spec, make_samples(spec), self.placement, seed=seed, meddle=self._log)
        self.cluster.prepare()

    def train(self) -> None:
        self.cluster.start(STEPS)
        self.cluster.run()
        self.cluster.close()

    def told(self, seat: SeatId = SEAT) -> list[DigestKnown]:
        return [event for at, event in self.cluster.events if at == seat and isinstance(event, DigestKnown)]

    def replay(self, from_step: int = 0) -> list[DigestKnown]:
        checkpoint = Checkpoint(from_step, self.cluster.checkpoints[from_step]) if from_step else None
        log = [(head, tensor) for head, tensor in self.log if head.step >= from_step]
        return replay(
            self.spec,
            self.placement,
            SEAT,
            log,
            make_samples(self.spec),
            checkpoint=checkpoint,
            until_step=STEPS,
        )

    def _log(self, parcel: Parcel) -> list[Parcel]:
        if parcel.seat == SEAT:
            self.log.append((parcel.head, to_tensor(parcel.content, parcel.head.dtype, parcel.head.shape)))
        return [parcel]


@pytest.mark.parametrize("kind", ["mlp", "residual", "conv", "chars"])
def test_a_replay_of_an_honest_seat_gives_its_digests(kind: str) -> None:
    recorded = Recorded(make_net(kind))
    recorded.train()

    found = {(each.vnode_id, each.until_step): each for each in recorded.replay()}
    told = {(each.vnode_id, each.until_step): each for each in recorded.told()}

    assert set(found) == set(told)
    assert {key: each.chain for key, each in found.items()} == {key: each.chain for key, each in told.items()}
    assert {(each.from_step, each.until_step) for each in told.values()} == {(0, 3), (3, 6)}


def test_digests_do_not_depend_on_the_order_in_which_frames_arrive() -> None:
    chains = []
    for seed in range(3):
        recorded = Recorded(make_net("residual"), seed=seed)
        recorded.train()
        chains.append({(each.vnode_id, each.until_step): each.chain for each in recorded.told()})

    assert chains[0] == chains[1] == chains[2]


def test_a_replay_may_begin_at_a_checkpoint() -> None:
    recorded = Recorded(make_net("chars"))
    recorded.train()

    told = {each.vnode_id: each.links for each in recorded.told() if each.from_step == 3}
    found = {each.vnode_id: each.links for each in recorded.replay(from_step=3)}

    for vnode_id, links in told.items():
        assert find_first_difference(links, found[vnode_id]) is None
        assert [link.step for link in found[vnode_id]] == [3, 4, 5]


def test_a_host_that_changes_its_weights_is_found_with_the_step() -> None:
    recorded = Recorded(make_net("mlp"))
    engine = recorded.cluster.engines[SEAT]
    recorded.cluster.start(STEPS)
    recorded.cluster.run(until=lambda: engine.progress.step == 2)
    vnode = next(each for each in engine._hosted.values() if each.parameters)
    with torch.no_grad():
        # The smallest lie there is: one bit of one weight.
        vnode.parameters[0][1].view(torch.int32)[0, 0] ^= 1
    recorded.train()

    told = {(each.vnode_id, each.from_step): each.links for each in recorded.told()}
    found = {(each.vnode_id, each.from_step): each.links for each in recorded.replay()}

    assert find_first_difference(told[vnode.id, 0], found[vnode.id, 0]) == 2


def test_a_host_that_sends_what_it_did_not_compute_is_found() -> None:
    recorded = Recorded(make_net("mlp"))
    engine = recorded.cluster.engines[SEAT]
    recorded.cluster.start(STEPS)
    run = engine._run
    assert run is not None
    right = run.runs[0].forward

    def spoil(moment: tuple[int, int], parts: list[torch.Tensor]) -> list[torch.Tensor]:
        return [output * (1.01 if moment == (4, 1) else 1.0) for output in right(moment, parts)]

    run.runs[0].forward = spoil  # type: ignore[method-assign,assignment]
    recorded.train()

    told = {(each.vnode_id, each.from_step): each.links for each in recorded.told()}
    found = {(each.vnode_id, each.from_step): each.links for each in recorded.replay()}

    assert find_first_difference(told["d", 3], found["d", 3]) == 4
    assert find_first_difference(told["d", 0], found["d", 0]) is None


def test_a_log_with_a_hole_says_what_is_missing_and_blames_nobody() -> None:
    recorded = Recorded(make_net("mlp"))
    recorded.train()
    del recorded.log[0]

    with pytest.raises(ReplayFailed, match="the log lacks activation of VNode b on seat-0, step 0, micro-batch 0"):
        recorded.replay()


def test_a_log_with_a_frame_of_somebody_else_is_no_proof() -> None:
    recorded = Recorded(make_net("mlp"))
    recorded.train()
    head, tensor = recorded.log[0]
    recorded.log[0] = (head._replace(target="e"), tensor)

    with pytest.raises(ReplayFailed, match="a frame that no seat takes"):
        recorded.replay()


def test_digests_can_be_left_out() -> None:
    spec = make_net("mlp")
    cluster = Cluster(spec, make_samples(spec), place_all(spec, 2), engine_options={"records_digests": False})
    cluster.train(STEPS)
    cluster.close()

    assert cluster.digests == []
    assert cluster.is_done


def test_a_chain_covers_all_that_went_before() -> None:
    weights = torch.ones(3)

    def grow(change: float) -> DigestChain:
        chain = DigestChain("v", 0)
        chain.record_received(torch.ones(2) + change, is_gradient=False)
        chain.close_step(0, [weights])
        chain.close_step(1, [weights])
        return chain

    same, other = grow(0.0), grow(1e-7)

    assert same.head == grow(0.0).head
    assert same.head != other.head
    assert same.links[1].chain != other.links[1].chain
    assert find_first_difference(same.links, other.links) == 0


def test_what_is_received_is_not_what_is_sent_and_an_activation_is_no_gradient() -> None:
    heads = set()
    for is_gradient in (False, True):
        for verb in ("record_received", "record_sent"):
            chain = DigestChain("v", 0)
            getattr(chain, verb)(torch.ones(2), is_gradient=is_gradient)
            chain.close_step(0, [])
            heads.add(chain.head)

    assert len(heads) == 4

"""Challenges: the calls by which a node shows how fast its slots are."""

from __future__ import annotations

from computepool.core.trust.challenge import ProofState
from computepool.hub.http.routing import Access, Call, Routes
from computepool.hub.services import challenges as service
from computepool.hub.services.challenges import Standing
from computepool.wire import challenges as wire

routes = Routes()


@routes.add(
    "POST", "/v1/nodes/challenges", Access.NODE, body=wire.AskChallenge, answer=wire.ChallengeAnswer, status=201
)
async def ask_challenge(call: Call) -> wire.ChallengeAnswer:
    """Ask for a round of timed work for one slot. Its clock runs from the answer on."""
    hub = call.hub
    standing, issued = await service.issue_challenge(hub.pool, hub.settings, call.node.node_id, call.body.slot)
    if issued is None:
        return wire.ChallengeAnswer(proof=to_slot_proof(standing))
    return wire.ChallengeAnswer(
        proof=to_slot_proof(standing),
        challenge=wire.Challenge(
            id=issued.id,
            seed=issued.work.seed.hex(),
            size=issued.work.size,
            products=issued.work.products,
            memory_bytes=issued.memory_bytes,
            answer_seconds=(issued.expires_at - issued.issued_at).total_seconds(),
        ),
    )


@routes.add(
    "POST", "/v1/nodes/challenges/{challenge_id}/commit", Access.NODE, body=wire.Commit, answer=wire.CommitAnswer
)
async def commit_challenge(call: Call) -> wire.CommitAnswer:
    """Commit to the whole result, which stops the clock. The answer names the segments to be opened."""
    root = bytes.fromhex(call.body.root)
    wanted = await service.commit_challenge(call.hub.pool, call.node.node_id, call.path["challenge_id"], root)
    return wire.CommitAnswer(segments=wanted.segments, words=wanted.words)


@routes.add(
    "POST",
    "/v1/nodes/challenges/{challenge_id}/open",
    Access.NODE,
    body=wire.OpenChallenge,
    answer=wire.OpenAnswer,
)
async def open_challenge(call: Call) -> wire.OpenAnswer:
    """Show the segments that were asked for. The answer says what has been shown so far."""
    hub, node_id = call.hub, call.node.node_id
    opening = await service.open_challenge(
        hub.pool, hub.settings, hub.examiner, node_id, call.path["challenge_id"], call.body.segments, call.body.words
    )
    if not opening.again:
        hub.sittings.forget(node_id)
        await hub.reception.look_at_node(node_id)
        hub.rounds.hear("node")
    return wire.OpenAnswer(proof=to_slot_proof(opening.standing), again=opening.again)


def to_slot_proof(standing: Standing) -> wire.SlotProof:
    proof, claimed = standing.proof, standing.slot_claim.claim.tier
    if proof is None:
        return wire.SlotProof(state=ProofState.UNPROVEN, claimed_tier=claimed)
    return wire.SlotProof(
        state=proof.state,
        claimed_tier=claimed,
        tier=proof.tier,
        reason=proof.reason,
        shown_tflops=proof.shown_tflops,
        spread_ratio=proof.spread_ratio,
        decided_at=proof.decided_at,
    )

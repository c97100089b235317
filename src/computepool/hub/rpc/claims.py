"""What hosts say for audits, read and measured: digests of spans, and what came of replays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from computepool.core.errors import InvalidRequest
from computepool.core.networks.audit import PeerDigests, Replayed, SpanDigest
from computepool.core.networks.placement import SEAT_LENGTH_MAX, SeatId
from computepool.core.networks.spec import STEPS_MAX
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb

DIGEST_BYTES = 32
PEERS_MAX = 1_024
STATES_MAX = 100_000
VNODE_ID_LENGTH_MAX = 64


def read_span(said: pb.AuditDigest) -> SpanDigest:
    if not (
        said.epoch > 0 and said.from_step < said.until_step <= STEPS_MAX and len(said.losses) in (0, DIGEST_BYTES)
    ):
        raise InvalidRequest("A digest needs epoch and steps, and 32 bytes for its losses if it tells any.")
    return SpanDigest(said.epoch, said.from_step, said.until_step, _read_peers(said.peers), bytes(said.losses))


def read_replayed(said: pb.AuditResult) -> Replayed:
    states = said.states
    if len(states) > STATES_MAX or any(len(each.vnode_id) > VNODE_ID_LENGTH_MAX for each in states):
        raise InvalidRequest("A replay tells of VNodes that no network has.")
    deviation = said.deviation if said.HasField("deviation") else None
    if deviation is not None and not deviation >= 0:
        deviation = math.inf
    return Replayed(
        peers=_read_peers(said.peers),
        losses=bytes(said.losses[:DIGEST_BYTES]),
        states={each.vnode_id: bytes(each.digest[:DIGEST_BYTES]) for each in states},
        stored={each.vnode_id: bytes(each.stored[:DIGEST_BYTES]) for each in states},
        deviation=deviation,
    )


def read_audit_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidRequest("An audit is named by the id that came with its order.") from None


def _read_peers(said: Sequence[Any]) -> dict[SeatId, PeerDigests]:
    plausible = len(said) <= PEERS_MAX and all(
        0 < len(each.seat) <= SEAT_LENGTH_MAX and len(each.sent) == len(each.received) == DIGEST_BYTES
        for each in said
    )
    if not plausible:
        raise InvalidRequest("A digest names each other seat with 32 bytes for what was sent and what was received.")
    return {SeatId(each.seat): PeerDigests(bytes(each.sent), bytes(each.received)) for each in said}

"""Tokens with which the hosts of one run open streams to each other and to the relay.

Signed by the hub, so that hosts who have never met can tell each other's seat, and an old epoch from the present one.
"""

from __future__ import annotations

from dataclasses import dataclass

from computepool import clock
from computepool.core.errors import Unauthenticated
from computepool.hub.services.keyring import SEAT_TOKEN_TYPE, Keyring


@dataclass(frozen=True, slots=True)
class SeatToken:
    run_id: str
    seat: str
    epoch: int


def issue_seat_token(keyring: Keyring, *, run_id: str, seat: str, epoch: int, seconds: int) -> str:
    now = int(clock.unix_seconds())
    claims = {
        "iss": str(keyring.hub_id),
        "aud": run_id,
        "sub": seat,
        "epoch": epoch,
        "iat": now,
        "exp": now + seconds,
    }
    return keyring.sign(claims, typ=SEAT_TOKEN_TYPE)


def verify_seat_token(keyring: Keyring, token: str, *, run_id: str) -> SeatToken:
    """Raises Unauthenticated unless one of this grid's hubs made it for this run, a short while ago."""
    claims = keyring.verify(token, typ=SEAT_TOKEN_TYPE, audience=run_id)
    seat, epoch = claims.get("sub"), claims.get("epoch")
    if not isinstance(seat, str) or not isinstance(epoch, int):
        raise Unauthenticated("The seat token names no seat and epoch.")
    return SeatToken(run_id, seat, epoch)

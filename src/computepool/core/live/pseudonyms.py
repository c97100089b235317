"""Names that tell nothing, and places that mean nothing but a country.

All of them follow from an id and the hub's secret key: stable, and not to be traced back without the key.
"""

from __future__ import annotations

import hashlib
import re
from uuid import UUID

from computepool.core.live.countries import BOXES

PSEUDONYM = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.-]{1,28}[A-Za-z0-9]\Z")

_QUALITIES_TEXT = """
amber brave brisk calm clever copper crisp curious dapper daring eager early fabled gentle glad golden happy
hardy honest humble jolly keen kind lively lucky mellow merry mighty modest nimble noble patient plucky polite
proud quick quiet rapid ready royal rustic sage silent silver sleek smart snug solid spry steady stellar sunny
swift tidy trusty vivid warm wise witty young zesty
"""
_ANIMALS_TEXT = """
badger bear beaver bison crane deer dingo dolphin eagle egret falcon ferret finch fox gecko gull hare hawk heron
ibex ibis jackal jay kestrel kite koala lark lemur lion llama lynx magpie marten mole moose newt okapi orca
otter owl panda pika puffin quail rabbit raven robin seal shrew skink sparrow stork swan tapir tern tiger toad
trout turtle vole walrus weasel wolf wombat
"""
_QUALITIES, _ANIMALS = _QUALITIES_TEXT.split(), _ANIMALS_TEXT.split()


def to_pseudonym(key: bytes, kind: str, id: UUID) -> str:
    """16 hex digits."""
    return _digest(key, kind, id).hex()[:16]


def to_name(key: bytes, id: UUID) -> str:
    """Three words for an account that has chosen none."""
    digest = _digest(key, "name", id)
    number = int.from_bytes(digest[4:8], "big") % 10_000
    quality = _QUALITIES[int.from_bytes(digest[0:2], "big") % len(_QUALITIES)]
    return f"{quality}-{_ANIMALS[int.from_bytes(digest[2:4], 'big') % len(_ANIMALS)]}-{number:04d}"


def to_point(key: bytes, id: UUID, country: str | None) -> tuple[float, float] | None:
    """(longitude, latitude) somewhere in the country; None where no country is named, or none that we know."""
    box = BOXES.get(country or "")
    if box is None:
        return None
    west, south, east, north = box
    digest = _digest(key, "point", id)
    x, y = (int.from_bytes(digest[i : i + 4], "big") / 2**32 for i in (0, 4))
    return round(west + (east - west) * x, 3), round(south + (north - south) * y, 3)


def _digest(key: bytes, kind: str, id: UUID) -> bytes:
    return hashlib.blake2b(id.bytes, key=key, person=kind.encode(), digest_size=16).digest()

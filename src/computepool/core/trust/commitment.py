"""A promise about many pieces in 32 bytes, of which any piece can be shown later: a tree of hashes."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

ROOT_BYTES = 32
# Leaves and nodes are hashed under different first bytes, or a node could be passed off as a leaf.
_LEAF, _NODE = b"\0", b"\1"


class Tree:
    """All levels of it, the leaves' hashes first. An odd one at the end of a level moves up as it is."""

    def __init__(self, pieces: Sequence[bytes | memoryview]) -> None:
        if not pieces:
            raise ValueError("there is nothing to commit to")
        level = [hash_leaf(piece) for piece in pieces]
        self._levels = [level]
        while len(level) > 1:
            pairs = [_hash_pair(*level[at : at + 2]) for at in range(0, len(level) - 1, 2)]
            level = pairs + level[2 * len(pairs) :]
            self._levels.append(level)

    @property
    def root(self) -> bytes:
        return self._levels[-1][0]

    def prove(self, index: int) -> list[bytes]:
        """The neighbours on the way from this piece up to the root."""
        path = []
        for level in self._levels[:-1]:
            neighbour = index ^ 1
            if neighbour < len(level):
                path.append(level[neighbour])
            index >>= 1
        return path


def is_proved(*, root: bytes, count: int, index: int, piece: bytes, path: Sequence[bytes]) -> bool:
    """Whether this piece stands at this place of what was promised."""
    if not 0 <= index < count:
        return False
    found, left = hash_leaf(piece), list(path)
    while count > 1:
        neighbour = index ^ 1
        if neighbour < count:
            if not left:
                return False
            other = left.pop(0)
            found = _hash_pair(other, found) if index & 1 else _hash_pair(found, other)
        index, count = index >> 1, (count + 1) >> 1
    return not left and found == root


def hash_leaf(piece: bytes | memoryview) -> bytes:
    digest = sha256(_LEAF)
    digest.update(piece)
    return digest.digest()


def _hash_pair(left: bytes, right: bytes) -> bytes:
    return sha256(_NODE + left + right).digest()

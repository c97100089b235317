"""The pattern by which a card shows that its memory is there: words that follow from a seed and their place.

A card that only says it is large loses words, because two places are one. It proves nothing against an agent that was
rewritten to compute the words when it is asked for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

WORD_BYTES = 4
# Of what is claimed: a desktop and the driver keep some for themselves.
FILL_RATIO = 0.85
# Words that are looked at. With a tenth of the memory missing, one of 1,000 gets through.
WORDS = 64
_MASK = 0xFFFFFFFF


def plan_fill_bytes(vram_bytes: int) -> int:
    """Whole MiB."""
    return int(vram_bytes * FILL_RATIO) >> 20 << 20


def split_seed(seed: bytes) -> tuple[int, int]:
    """The two numbers that the pattern is made with."""
    digest = sha256(b"memory" + seed).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def word_at(first: int, second: int, index: int) -> int:
    return mix(mix((index & _MASK) ^ first) ^ (index >> 32) ^ second)


def mix(word: int) -> int:
    """Every bit of the result follows from every bit of the word. Engines compute the same in 32 bits."""
    word ^= word >> 16
    word = word * 0x7FEB352D & _MASK
    word ^= word >> 15
    word = word * 0x846CA68B & _MASK
    return word ^ word >> 16


def is_filled(seed: bytes, indices: Sequence[int], words: Sequence[int]) -> bool:
    first, second = split_seed(seed)
    return len(indices) == len(words) and all(
        word_at(first, second, index) == word for index, word in zip(indices, words, strict=True)
    )

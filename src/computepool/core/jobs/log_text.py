"""Logs are bytes in pieces; people read characters."""

from __future__ import annotations


def whole_characters(content: bytes) -> int:
    """How many bytes to show now, so that a character cut in two by the end of a piece comes whole with the next."""
    for back in range(1, min(4, len(content)) + 1):
        byte = content[-back]
        if byte & 0b1100_0000 == 0b1000_0000:
            continue
        length = 1 if byte < 0x80 else 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4
        return len(content) - back if length > back else len(content)
    return len(content)

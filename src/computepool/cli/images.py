"""Just enough of two picture formats to put tiles together: reads PPM, writes PNG. Pure."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

_PPM_HEAD = re.compile(rb"P6\s+(\d+)\s+(\d+)\s+255\s")
_BYTES_PER_POINT = 3


@dataclass(frozen=True, slots=True)
class Picture:
    """Rows of red, green and blue bytes, from the top left."""

    width: int
    height: int
    points: bytes


def read_ppm(content: bytes) -> Picture:
    head = _PPM_HEAD.match(content)
    if head is None:
        raise ValueError("this is not a binary PPM picture with 8 bits per colour")
    picture = Picture(int(head[1]), int(head[2]), content[head.end() :])
    if len(picture.points) != picture.width * picture.height * _BYTES_PER_POINT:
        raise ValueError("the PPM picture has not as many points as it says")
    return picture


def stitch(tiles: Sequence[Picture], *, columns: int) -> Picture:
    """Tiles of one size, row by row from the top left."""
    if not tiles or len(tiles) % columns or len({(tile.width, tile.height) for tile in tiles}) != 1:
        raise ValueError("the tiles do not fill a rectangle")
    width, height = tiles[0].width, tiles[0].height
    line_bytes = width * _BYTES_PER_POINT
    lines = [
        tile.points[line * line_bytes : (line + 1) * line_bytes]
        for first in range(0, len(tiles), columns)
        for line in range(height)
        for tile in tiles[first : first + columns]
    ]
    return Picture(width * columns, height * (len(tiles) // columns), b"".join(lines))


def to_png(picture: Picture) -> bytes:
    line_bytes = picture.width * _BYTES_PER_POINT
    # Each line is preceded by the number of its filter; 0 is "none".
    lines = b"".join(
        b"\0" + picture.points[start : start + line_bytes] for start in range(0, len(picture.points), line_bytes)
    )
    head = struct.pack(">IIBBBBB", picture.width, picture.height, 8, 2, 0, 0, 0)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", head),
            _chunk(b"IDAT", zlib.compress(lines, 9)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

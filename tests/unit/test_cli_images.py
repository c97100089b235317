import struct
import zlib

import pytest

from computepool.cli.images import Picture, read_ppm, stitch, to_png


def tile(value: int) -> Picture:
    return read_ppm(b"P6 2 1 255\n" + bytes([value] * 6))


def decode(png: bytes) -> tuple[int, int, bytes]:
    """Enough of a PNG reader to see what was written; every chunk's check sum is verified."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(png):
        (length,) = struct.unpack_from(">I", png, place)
        kind, body = png[place + 4 : place + 8], png[place + 8 : place + 8 + length]
        assert struct.unpack_from(">I", png, place + 8 + length)[0] == zlib.crc32(kind + body)
        chunks[kind] = body
        place += 12 + length
    width, height = struct.unpack_from(">II", chunks[b"IHDR"])
    raw = zlib.decompress(chunks[b"IDAT"])
    lines = [raw[i * (width * 3 + 1) :][: width * 3 + 1] for i in range(height)]
    assert all(line[0] == 0 for line in lines)
    return width, height, b"".join(line[1:] for line in lines)


def test_tiles_come_together_row_by_row() -> None:
    whole = stitch([tile(1), tile(2), tile(3), tile(4)], columns=2)
    assert (whole.width, whole.height) == (4, 2)
    assert whole.points == bytes([1] * 6 + [2] * 6 + [3] * 6 + [4] * 6)


def test_a_png_holds_the_picture() -> None:
    whole = stitch([tile(1), tile(2), tile(3), tile(4)], columns=2)
    assert decode(to_png(whole)) == (4, 2, whole.points)


@pytest.mark.parametrize("content", [b"", b"P5 1 1 255\n.", b"P6 2 2 255\n" + b"." * 11])
def test_what_is_no_picture_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="PPM"):
        read_ppm(content)


def test_tiles_that_leave_a_gap_are_refused() -> None:
    with pytest.raises(ValueError, match="rectangle"):
        stitch([tile(1), tile(2), tile(3)], columns=2)

"""Reads where a frame goes, and no further: the first five fields of its bytes, without decoding the rest."""

from __future__ import annotations

from dataclasses import dataclass

from computepool.core.errors import InvalidRequest

_VARINT, _BYTES = 0, 2
# run_id, epoch, source_seat, target_seat, kind; which of them are numbers.
_LAST_FIELD = 5
_NUMBERS = (2, 5)
NAME_BYTES_MAX = 128


@dataclass(frozen=True, slots=True)
class Address:
    run_id: str = ""
    epoch: int = 0
    source_seat: str = ""
    target_seat: str = ""
    kind: int = 0


def peek(raw: bytes) -> Address:
    """Raises InvalidRequest when the bytes do not begin as a frame must."""
    found: dict[int, str | int] = {}
    at, last = 0, 0
    try:
        while at < len(raw) and last < _LAST_FIELD:
            tag, after = _read_varint(raw, at)
            number, wire_type = tag >> 3, tag & 7
            if number <= last:
                raise InvalidRequest("The frame's first five fields must stand in order, before all others.")
            if number > _LAST_FIELD:
                break
            if wire_type != (_VARINT if number in _NUMBERS else _BYTES):
                raise InvalidRequest(f"The frame's field {number} is not of its type.")
            value, at = _read_varint(raw, after)
            if number in _NUMBERS:
                found[number] = value
            else:
                if value > NAME_BYTES_MAX:
                    raise InvalidRequest("The frame names a run or a seat that is longer than any.")
                found[number] = raw[at : at + value].decode()
                at += value
            last = number
    except (IndexError, UnicodeDecodeError):
        raise InvalidRequest("The frame is malformed: its first fields cannot be read.") from None
    if at > len(raw):
        raise InvalidRequest("The frame is malformed: it ends in the middle of its first fields.")
    return Address(
        str(found.get(1, "")),
        int(found.get(2, 0)),
        str(found.get(3, "")),
        str(found.get(4, "")),
        int(found.get(5, 0)),
    )


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise InvalidRequest("The frame is malformed: a number has no end.")

"""Reads .npy, .npz and .safetensors with the standard library alone: numbers and shapes, nothing that could run.

Files come from strangers: every size that a file states is held against what is there before it is used. Arrays of
objects would have to be unpickled and are refused.
"""

from __future__ import annotations

import ast
import io
import json
import math
import struct
import sys
import zipfile
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from computepool.core.trust.comparators.tolerance import Tolerance, Unreadable, find_far_number

HEADER_BYTES_MAX = 10_000
SAFETENSORS_HEADER_BYTES_MAX = 8 << 20
MEMBERS_MAX = 1_000
DIMENSIONS_MAX = 64
# Of one file, unpacked.
UNPACKED_BYTES_MAX = 256 << 20

_MAGIC = b"\x93NUMPY"
# Bytes of one number, and its code in `array`; complex ones are two floats. Whatever has no code is compared exactly.
_FLOATS = {"f4": (4, "f"), "f8": (8, "d"), "c8": (8, "f"), "c16": (16, "d"), "f2": (2, "e"), "bf16": (2, "b")}
# Sums of single precision that nearly cancel are off by a few roundings of what was summed, whatever is left of them:
# products of matrices on another number of threads by 16 of the usual size in the result. Half precision has too few
# digits for that.
ROUNDING_STEPS = 64
_SINGLE = ("f4", "c8")
_SINGLE_STEP = 2.0**-23
_EXACT = {"b1": 1, "i1": 1, "u1": 1, "i2": 2, "u2": 2, "i4": 4, "u4": 4, "i8": 8, "u8": 8, "f8_e4m3": 1, "f8_e5m2": 1}
_SAFETENSORS = {
    "F64": "f8", "F32": "f4", "F16": "f2", "BF16": "bf16", "F8_E4M3": "f8_e4m3", "F8_E5M2": "f8_e5m2",
    "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1",
    "U64": "u8", "U32": "u4", "U16": "u2", "U8": "u1", "BOOL": "b1",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    kind: str
    shape: tuple[int, ...]
    # Column by column instead of row by row.
    is_fortran: bool
    is_big_endian: bool
    content: memoryview


def find_tensor_difference(one: Tensor, other: Tensor, tolerance: Tolerance) -> str | None:
    if (one.kind, one.shape) != (other.kind, other.shape):
        return f"{one.kind} {list(one.shape)} here, {other.kind} {list(other.shape)} there"
    if (one.is_fortran, one.is_big_endian) != (other.is_fortran, other.is_big_endian):
        return "the numbers stand in another order"
    if one.content == other.content:
        return None
    if one.kind not in _FLOATS:
        return f"{one.kind} numbers differ"
    ones, others = _to_floats(one), _to_floats(other)
    difference = find_far_number(ones, others, tolerance)
    if difference is None or one.kind not in _SINGLE:
        return difference
    # Of both the smaller: one large number of a forger's must not make room for others.
    usual = min(_find_usual_size(ones), _find_usual_size(others))
    rounding = min(ROUNDING_STEPS * _SINGLE_STEP, tolerance.relative) * usual
    return find_far_number(ones, others, replace(tolerance, absolute=tolerance.absolute + rounding))


def _find_usual_size(numbers: Sequence[float]) -> float:
    """The root of the mean square."""
    squares = [number * number for number in numbers if math.isfinite(number)]
    return math.sqrt(math.fsum(squares) / len(squares)) if squares else 0.0


def find_members_difference(ones: dict[str, Tensor], others: dict[str, Tensor], tolerance: Tolerance) -> str | None:
    if ones.keys() != others.keys():
        return f"only one of the two has {min(ones.keys() ^ others.keys())!r}"
    for name, one in ones.items():
        difference = find_tensor_difference(one, others[name], tolerance)
        if difference is not None:
            return f"{name!r}: {difference}"
    return None


def read_npy(content: bytes) -> Tensor:
    if content[:6] != _MAGIC or len(content) < 12:
        raise Unreadable("it does not begin as an .npy file does")
    start, layout = (10, "<H") if content[6] == 1 else (12, "<I")
    [length] = struct.unpack_from(layout, content, 8)
    if length > HEADER_BYTES_MAX or start + length > len(content):
        raise Unreadable("its header is too long")
    header = _read_header(content[start : start + length])
    descr, shape, is_fortran = header.get("descr"), header.get("shape"), header.get("fortran_order")
    if not isinstance(descr, str) or not isinstance(is_fortran, bool):
        raise Unreadable("it holds neither numbers nor truth values")
    kind = descr[1:] if descr[:1] in "<>|=" else descr
    is_big_endian = descr[:1] == ">" or (descr[:1] == "=" and sys.byteorder == "big")
    return _to_tensor(kind, shape, is_fortran, is_big_endian, memoryview(content)[start + length :])


def _read_header(text: bytes) -> dict[str, object]:
    try:
        header = ast.literal_eval(text.decode("utf-8").strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise Unreadable("its header cannot be read") from error
    if not isinstance(header, dict):
        raise Unreadable("its header cannot be read")
    return header


def read_npz(content: bytes) -> dict[str, Tensor]:
    left = UNPACKED_BYTES_MAX
    found: dict[str, Tensor] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
            if len(names) > MEMBERS_MAX or len(set(names)) != len(names):
                raise Unreadable("it has too many members, or one twice")
            for name in names:
                with archive.open(name) as member:
                    # One byte more than there may be: what a member states of its size proves nothing.
                    unpacked = member.read(left + 1)
                left -= len(unpacked)
                if left < 0:
                    raise Unreadable(f"it unpacks to more than {UNPACKED_BYTES_MAX >> 20} MiB")
                found[name] = read_npy(unpacked)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise Unreadable("it is no whole archive") from error
    return found


def read_safetensors(content: bytes) -> dict[str, Tensor]:
    if len(content) < 8:
        raise Unreadable("it is too short")
    [length] = struct.unpack_from("<Q", content)
    if length > SAFETENSORS_HEADER_BYTES_MAX or 8 + length > len(content):
        raise Unreadable("its header is too long")
    try:
        header = json.loads(content[8 : 8 + length])
    except (ValueError, RecursionError) as error:
        raise Unreadable("its header cannot be read") from error
    if not isinstance(header, dict):
        raise Unreadable("its header cannot be read")
    body = memoryview(content)[8 + length :]
    return {name: _read_entry(entry, body) for name, entry in header.items() if name != "__metadata__"}


def _read_entry(entry: object, body: memoryview) -> Tensor:
    if not isinstance(entry, dict):
        raise Unreadable("its header cannot be read")
    kind, offsets = _SAFETENSORS.get(str(entry.get("dtype")), ""), entry.get("data_offsets")
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(type(each) is int for each in offsets)):
        raise Unreadable("its header says not where a tensor lies")
    first, last = offsets
    if not 0 <= first <= last <= len(body):
        raise Unreadable("a tensor lies outside of it")
    return _to_tensor(kind, entry.get("shape"), False, False, body[first:last])


def _to_tensor(kind: str, shape: object, is_fortran: bool, is_big_endian: bool, content: memoryview) -> Tensor:
    size = _FLOATS[kind][0] if kind in _FLOATS else _EXACT.get(kind)
    if size is None:
        raise Unreadable(f"it holds {kind!r}, which is no kind of number that can be compared")
    if not isinstance(shape, list | tuple) or len(shape) > DIMENSIONS_MAX:
        raise Unreadable("its shape cannot be read")
    if not all(type(each) is int and each >= 0 for each in shape):
        raise Unreadable("its shape cannot be read")
    if prod(shape) * size != len(content):
        raise Unreadable("it is not as long as its shape says")
    return Tensor(kind, tuple(shape), is_fortran, is_big_endian, content)


def _to_floats(tensor: Tensor) -> Sequence[float]:
    code = _FLOATS[tensor.kind][1]
    if code == "e":
        order = ">" if tensor.is_big_endian else "<"
        return struct.unpack(f"{order}{len(tensor.content) // 2}e", tensor.content)
    if code == "b":
        # The upper half of a single-precision number.
        halves = struct.unpack(f"<{len(tensor.content) // 2}H", tensor.content)
        return array("f", struct.pack(f"={len(halves)}I", *(half << 16 for half in halves)))
    numbers = array(code)
    numbers.frombytes(tensor.content)
    if tensor.is_big_endian != (sys.byteorder == "big"):
        numbers.byteswap()
    return numbers

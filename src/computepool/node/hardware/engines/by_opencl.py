"""OpenCL by ctypes: it comes with the drivers of NVIDIA, AMD and Intel, so that nothing has to be installed."""

from __future__ import annotations

import ctypes
import ctypes.util
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from computepool.core.trust.memory import WORD_BYTES, split_seed
from computepool.core.trust.products import Work, diagonal, row_of_a, row_of_b, signs
from computepool.node.hardware.engines.port import NoEngine, nothing, say_short

SOURCE = Path(__file__).with_name("products.cl")
TILE, SIDE, EACH = 64, 16, 4
_LIBRARIES = ("libOpenCL.so.1", "/System/Library/Frameworks/OpenCL.framework/OpenCL", "OpenCL.dll")
_DEVICE_CPU, _DEVICE_GPU = 1 << 1, 1 << 2
_READ_WRITE, _READ_ONLY_COPY, _BLOCKING = 1 << 0, 1 << 2 | 1 << 5, 1
_NAME, _BUILD_LOG, _MAX_GROUP = 0x102B, 0x1183, 0x1004
_IDS_MAX = 16
_CHUNK_WORDS = 1 << 24


class OpenClEngine:
    """`on_gpu` or not; the device is the first whose name holds `wanted`, or the first at all."""

    size_least = 512

    def __init__(self, *, on_gpu: bool, wanted: str = "") -> None:
        self._cl = _load()
        self._device, device_name = self._find_device(_DEVICE_GPU if on_gpu else _DEVICE_CPU, wanted)
        self.name = f"OpenCL on {device_name}"
        code = ctypes.c_int(0)
        device = ctypes.c_void_p(self._device)
        self._context = self._made(
            self._cl.clCreateContext(None, 1, ctypes.byref(device), None, None, ctypes.byref(code)), code
        )
        self._queue = self._made(
            self._cl.clCreateCommandQueue(self._context, device, ctypes.c_ulong(0), ctypes.byref(code)), code
        )
        self._program = self._build(device)

    def compute(self, work: Work, *, on_ready: Callable[[], None] = nothing) -> bytes:
        if work.size % TILE:
            raise NoEngine(f"products of size {work.size} are not cut into tiles of {TILE}")
        a = self._upload(_to_floats("h", b"".join(row_of_a(work, row) for row in range(work.size))))
        b = self._upload(_to_floats("h", b"".join(row_of_b(work, row) for row in range(work.size))))
        factors = self._upload(array("f", (-1.0 if sign & 1 else 1.0 for sign in signs(work))))
        entries = self._allocate(work.size**2 * 4)
        rows = work.size * work.strips
        folded = self._allocate(work.products * rows * 4)
        multiply, fold = self._kernel("multiply"), self._kernel("fold")
        scales = [self._upload(_to_floats("b", diagonal(work, product))) for product in range(work.products)]
        size, strip = ctypes.c_int(work.size), ctypes.c_int(work.strip)
        on_ready()
        for product, scale in enumerate(scales):
            self._enqueue(multiply, (size, a, scale, b, entries), (work.size // EACH,) * 2, (SIDE, SIDE))
            offset = ctypes.c_long(product * rows)
            self._enqueue(fold, (size, strip, entries, factors, offset, folded), (rows,), None)
        found = ctypes.create_string_buffer(work.products * rows * 4)
        self._check(
            self._cl.clEnqueueReadBuffer(
                self._queue, folded, _BLOCKING, ctypes.c_size_t(0), ctypes.c_size_t(len(found)), found, 0, None, None
            ),
            "reading the result",
        )
        for buffer in (a, b, factors, entries, folded, *scales):
            self._cl.clReleaseMemObject(buffer)
        return found.raw

    def fill(self, seed: bytes, byte_count: int, indices: Sequence[int]) -> list[int]:
        first, second = (ctypes.c_uint(half) for half in split_seed(seed))
        kernel = self._kernel("fill")
        held: list[ctypes.c_void_p] = []
        words = byte_count // WORD_BYTES
        try:
            for begin in range(0, words, _CHUNK_WORDS):
                count = min(_CHUNK_WORDS, words - begin)
                held.append(self._allocate(count * WORD_BYTES))
                self._enqueue(kernel, (ctypes.c_ulong(begin), first, second, held[-1]), (count,), None)
            # Drivers promise memory and look for it later: only now is it known to be there.
            self._check(self._cl.clFinish(self._queue), "filling")
            return [self._read_word(held[index // _CHUNK_WORDS], index % _CHUNK_WORDS) for index in indices]
        except NoEngine:
            raise NoEngine(say_short(max(0, len(held) - 1) * _CHUNK_WORDS * WORD_BYTES, byte_count)) from None
        finally:
            for buffer in held:
                self._cl.clReleaseMemObject(buffer)

    def _read_word(self, buffer: ctypes.c_void_p, index: int) -> int:
        found = ctypes.c_uint(0)
        offset, width = ctypes.c_size_t(index * WORD_BYTES), ctypes.c_size_t(WORD_BYTES)
        code = self._cl.clEnqueueReadBuffer(
            self._queue, buffer, _BLOCKING, offset, width, ctypes.byref(found), 0, None, None
        )
        self._check(code, "reading a word")
        return found.value

    def stream(self, byte_count: int) -> int:
        source, target = self._allocate(byte_count), self._allocate(byte_count)
        none = ctypes.c_size_t(0)
        self._check(
            self._cl.clEnqueueCopyBuffer(
                self._queue, source, target, none, none, ctypes.c_size_t(byte_count), 0, None, None
            ),
            "copying",
        )
        self._check(self._cl.clFinish(self._queue), "copying")
        self._cl.clReleaseMemObject(source)
        self._cl.clReleaseMemObject(target)
        return 2 * byte_count

    def _find_device(self, kind: int, wanted: str) -> tuple[int, str]:
        platforms = (ctypes.c_void_p * _IDS_MAX)()
        count = ctypes.c_uint(0)
        self._cl.clGetPlatformIDs(_IDS_MAX, platforms, ctypes.byref(count))
        found: list[tuple[int, str]] = []
        for platform in platforms[: min(count.value, _IDS_MAX)]:
            devices = (ctypes.c_void_p * _IDS_MAX)()
            number = ctypes.c_uint(0)
            if self._cl.clGetDeviceIDs(
                ctypes.c_void_p(platform), ctypes.c_ulong(kind), _IDS_MAX, devices, ctypes.byref(number)
            ):
                continue
            for device in devices[: min(number.value, _IDS_MAX)]:
                if device is not None:
                    found.append((device, self._device_name(device)))
        if not found:
            raise NoEngine("OpenCL is installed, but lists no such device")
        return next(((device, name) for device, name in found if wanted and wanted in name), found[0])

    def _device_name(self, device: int) -> str:
        text = ctypes.create_string_buffer(256)
        self._cl.clGetDeviceInfo(ctypes.c_void_p(device), _NAME, ctypes.c_size_t(len(text)), text, None)
        return text.value.decode(errors="replace").strip()

    def _build(self, device: ctypes.c_void_p) -> ctypes.c_void_p:
        code = ctypes.c_int(0)
        source = ctypes.c_char_p(SOURCE.read_bytes())
        program = self._made(
            self._cl.clCreateProgramWithSource(self._context, 1, ctypes.byref(source), None, ctypes.byref(code)), code
        )
        if self._cl.clBuildProgram(program, 1, ctypes.byref(device), None, None, None):
            text = ctypes.create_string_buffer(4096)
            self._cl.clGetProgramBuildInfo(program, device, _BUILD_LOG, ctypes.c_size_t(len(text)), text, None)
            raise NoEngine(f"OpenCL cannot build its program: {text.value.decode(errors='replace')[:300]}")
        return program

    def _kernel(self, name: str) -> ctypes.c_void_p:
        code = ctypes.c_int(0)
        return self._made(self._cl.clCreateKernel(self._program, name.encode(), ctypes.byref(code)), code)

    def _upload(self, values: array[float]) -> ctypes.c_void_p:
        address, count = values.buffer_info()
        return self._allocate(count * 4, flags=_READ_ONLY_COPY, source=ctypes.c_void_p(address))

    def _allocate(
        self, byte_count: int, *, flags: int = _READ_WRITE, source: ctypes.c_void_p | None = None
    ) -> ctypes.c_void_p:
        code = ctypes.c_int(0)
        return self._made(
            self._cl.clCreateBuffer(
                self._context, ctypes.c_ulong(flags), ctypes.c_size_t(byte_count), source, ctypes.byref(code)
            ),
            code,
        )

    def _enqueue(
        self, kernel: ctypes.c_void_p, arguments: Sequence[Any], size: Sequence[int], group: Sequence[int] | None
    ) -> None:
        for index, argument in enumerate(arguments):
            width = ctypes.c_size_t(ctypes.sizeof(argument))
            self._check(self._cl.clSetKernelArg(kernel, index, width, ctypes.byref(argument)), "preparing")
        sizes = (ctypes.c_size_t * len(size))(*size)
        groups = (ctypes.c_size_t * len(group))(*group) if group else None
        self._check(
            self._cl.clEnqueueNDRangeKernel(self._queue, kernel, len(size), None, sizes, groups, 0, None, None),
            "computing",
        )

    def _made(self, handle: int | None, code: ctypes.c_int) -> ctypes.c_void_p:
        self._check(code.value, "setting up")
        return ctypes.c_void_p(handle)

    def _check(self, code: int, what: str) -> None:
        if code:
            raise NoEngine(f"OpenCL fails while {what} (code {code})")


def _to_floats(kind: str, raw: bytes) -> array[float]:
    whole: array[int] = array(kind)
    whole.frombytes(raw)
    return array("f", whole)


def _load() -> Any:
    for name in _LIBRARIES:
        try:
            loaded = ctypes.CDLL(name)
        except OSError:
            continue
        for maker in ("Context", "CommandQueue", "ProgramWithSource", "Kernel", "Buffer"):
            getattr(loaded, f"clCreate{maker}").restype = ctypes.c_void_p
        return loaded
    raise NoEngine("OpenCL is not installed")

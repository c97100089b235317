"""torch: CUDA, ROCm and Metal by the vendors' own libraries."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from computepool.core.trust.memory import WORD_BYTES, split_seed
from computepool.core.trust.products import Work, diagonal, row_of_a, row_of_b, signs
from computepool.node.hardware.engines.port import NoEngine, nothing, say_short

_CHUNK_WORDS = 1 << 22
_MASK = 0xFFFFFFFF


class TorchEngine:
    """The first device that is visible: whoever starts the process shows it the card that is meant."""

    size_least = 1024

    def __init__(self) -> None:
        try:
            import torch
        except ImportError as error:
            raise NoEngine(f"torch is not installed: {error}") from None
        self._torch = torch
        self._device = _find_device(torch)
        # Single precision as promised, without the short cuts that newer cards take by default.
        torch.set_float32_matmul_precision("highest")
        what = torch.cuda.get_device_name(0) if self._device == "cuda" else "Metal"
        self.name = f"torch {torch.__version__} on {what}"

    def compute(self, work: Work, *, on_ready: Callable[[], None] = nothing) -> bytes:
        torch, size = self._torch, work.size

        def matrix(row_of: Callable[[Work, int], bytes]) -> Any:
            rows = bytearray(b"".join(row_of(work, row) for row in range(size)))
            return torch.frombuffer(rows, dtype=torch.int16).reshape(size, size).to(self._device).float()

        a, b = matrix(row_of_a), matrix(row_of_b)
        minus = torch.frombuffer(bytearray(signs(work)), dtype=torch.uint8).to(self._device) & 1
        factors = 1.0 - 2.0 * minus.float()
        scales = bytearray(b"".join(diagonal(work, product) for product in range(work.products)))
        scales = torch.frombuffer(scales, dtype=torch.int8).reshape(work.products, size).to(self._device).float()
        folded = torch.empty((work.products, size, work.strips), device=self._device)
        scaled, entries = torch.empty_like(a), torch.empty_like(a)
        on_ready()
        for product in range(work.products):
            torch.mul(a, scales[product], out=scaled)
            torch.matmul(scaled, b, out=entries)
            entries.abs_().mul_(factors)
            folded[product] = entries.view(size, work.strips, work.strip).sum(dim=2)
        return _to_bytes(folded)

    def fill(self, seed: bytes, byte_count: int, indices: Sequence[int]) -> list[int]:
        torch = self._torch
        first, second = split_seed(seed)
        held = []
        try:
            for begin in range(0, byte_count // WORD_BYTES, _CHUNK_WORDS):
                end = min(begin + _CHUNK_WORDS, byte_count // WORD_BYTES)
                place = torch.arange(begin, end, dtype=torch.int64, device=self._device)
                word = _mix(_mix(place & _MASK ^ first) ^ place >> 32 ^ second)
                held.append(word.to(torch.int32))
        except torch.cuda.OutOfMemoryError:
            found = len(held) * _CHUNK_WORDS * WORD_BYTES
            raise NoEngine(say_short(found, byte_count)) from None
        return [int(held[index // _CHUNK_WORDS][index % _CHUNK_WORDS]) & _MASK for index in indices]

    def stream(self, byte_count: int) -> int:
        torch = self._torch
        source = torch.zeros(byte_count // 4, device=self._device)
        target = torch.ones_like(source)
        target.copy_(source)
        # Nothing is done until somebody asks for a number of it.
        float(target[-1])
        return 2 * 4 * int(source.numel())


def _find_device(torch: Any) -> str:
    if torch.cuda.is_available():
        return "cuda"
    if getattr(torch.backends, "mps", None) is not None and torch.backends.mps.is_available():
        return "mps"
    raise NoEngine("torch is installed, but finds no GPU that it can use")


def _to_bytes(tensor: Any) -> bytes:
    # Without numpy, which torch can do without.
    held = tensor.cpu().contiguous()
    return ctypes.string_at(held.data_ptr(), held.numel() * 4)


def _mix(word: Any) -> Any:
    """In 64 bits, of which 32 count: torch has no unsigned ones."""
    word = word ^ word >> 16
    word = word * 0x7FEB352D & _MASK
    word = word ^ word >> 15
    word = word * 0x846CA68B & _MASK
    return word ^ word >> 16

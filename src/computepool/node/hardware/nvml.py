"""NVIDIA's management library, asked in a process of its own: a driver that hangs takes only that process along.

Started by its path and with the standard library alone. Prints one JSON object, and says what NVML said.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

LIBRARIES = {
    "linux": ("libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1"),
    "win32": ("nvml.dll", "C:\\Program Files\\NVIDIA Corporation\\NVSMI\\nvml.dll"),
}
TEXT_BYTES = 96
CARDS_MAX = 64
UNINITIALIZED, NOT_SUPPORTED, NOT_FOUND = 1, 3, 6


class NvmlError(Exception):
    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


class Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Library:
    def __init__(self, loaded: ctypes.CDLL) -> None:
        self._loaded = loaded
        self._loaded.nvmlErrorString.restype = ctypes.c_char_p

    def call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._loaded, name, None)
        if function is None:
            raise NvmlError(NOT_SUPPORTED, f"{name} is missing in this driver")
        code = function(*arguments)
        if code != 0:
            words = self._loaded.nvmlErrorString(code)
            raise NvmlError(code, words.decode(errors="replace") if words else f"error {code}")

    def text(self, name: str, *arguments: Any) -> str:
        buffer = ctypes.create_string_buffer(TEXT_BYTES)
        self.call(name, *arguments, buffer, TEXT_BYTES)
        return buffer.value.decode(errors="replace")

    def number(self, name: str, *arguments: Any) -> int:
        value = ctypes.c_uint(0)
        self.call(name, *arguments, ctypes.byref(value))
        return value.value

    def handle(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        found = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(found))
        return found


def load() -> Library | None:
    for name in LIBRARIES.get(sys.platform, ()):
        try:
            return Library(ctypes.CDLL(name))
        except (OSError, AttributeError):
            continue
    return None


def look(nvml: Library) -> dict[str, Any]:
    nvml.call("nvmlInit_v2")
    try:
        return {
            "driver": _or_empty(nvml, "nvmlSystemGetDriverVersion"),
            "cuda": _find_cuda(nvml),
            "cards": [
                _describe(nvml, index) for index in range(min(nvml.number("nvmlDeviceGetCount_v2"), CARDS_MAX))
            ],
        }
    finally:
        nvml.call("nvmlShutdown")


def _describe(nvml: Library, index: int) -> dict[str, Any]:
    """A card that cannot be read is told with its trouble; its neighbours are none the worse."""
    try:
        card = nvml.handle("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index))
        name = nvml.text("nvmlDeviceGetName", card)
    except NvmlError as error:
        return {"index": index, "code": error.code, "trouble": str(error)}
    said: dict[str, Any] = {"index": index, "name": name, "uuid": _or_empty(nvml, "nvmlDeviceGetUUID", card)}
    parts = _find_parts(nvml, card)
    if parts is not None:
        return {**said, "parts": parts}
    try:
        return {**said, "vram_bytes": _memory(nvml, card)}
    except NvmlError as error:
        return {**said, "code": error.code, "trouble": str(error)}


def _find_parts(nvml: Library, card: ctypes.c_void_p) -> list[dict[str, Any]] | None:
    """The instances of a card that is cut by MIG; None: it is whole."""
    now, later = ctypes.c_uint(0), ctypes.c_uint(0)
    try:
        nvml.call("nvmlDeviceGetMigMode", card, ctypes.byref(now), ctypes.byref(later))
        if not now.value:
            return None
        count = nvml.number("nvmlDeviceGetMaxMigDeviceCount", card)
    except NvmlError:
        return None
    parts = []
    for index in range(min(count, CARDS_MAX)):
        try:
            part = nvml.handle("nvmlDeviceGetMigDeviceHandleByIndex", card, ctypes.c_uint(index))
            parts.append(
                {
                    "name": nvml.text("nvmlDeviceGetName", part),
                    "uuid": _or_empty(nvml, "nvmlDeviceGetUUID", part),
                    "vram_bytes": _memory(nvml, part),
                }
            )
        except NvmlError:
            # Places without an instance answer so.
            continue
    return parts


def _memory(nvml: Library, card: ctypes.c_void_p) -> int:
    memory = Memory()
    nvml.call("nvmlDeviceGetMemoryInfo", card, ctypes.byref(memory))
    return int(memory.total)


def _find_cuda(nvml: Library) -> str:
    value = ctypes.c_int(0)
    try:
        nvml.call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(value))
    except NvmlError:
        return ""
    return f"{value.value // 1000}.{value.value % 1000 // 10}"


def _or_empty(nvml: Library, name: str, *arguments: Any) -> str:
    try:
        return nvml.text(name, *arguments)
    except NvmlError:
        return ""


def main() -> None:
    nvml = load()
    if nvml is None:
        print(json.dumps({"absent": True}))
        return
    try:
        print(json.dumps(look(nvml)))
    except NvmlError as error:
        print(json.dumps({"code": error.code, "trouble": str(error)}))


if __name__ == "__main__":
    main()

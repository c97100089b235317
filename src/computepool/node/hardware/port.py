"""What a vendor's module gives, and the one way in which it may look at the machine.

A module looks through `Sight` alone: tools are cut by a time-out, files are read from under one root. So a test, or
a played machine, hands in another sight and every line of the module is the same.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

# A healthy driver answers within a second or two; a broken one may hang for ever.
TOOL_SECONDS = 20.0
PRINTED_BYTES_MAX = 1 << 20
FILE_BYTES_MAX = 1 << 20
MIB = 1 << 20
# What of a machine's memory a card without memory of its own may count as its own: programs live there, too.
SHARED_MEMORY_RATIO = 0.5


@dataclass(frozen=True, slots=True)
class Card:
    """One card as its driver describes it. `vram_bytes` is the driver's figure and never follows from the name."""

    vendor: str
    name: str
    vram_bytes: int
    driver: str = ""
    # What computes on it, with its version: "CUDA 12.4", "ROCm", "Metal".
    runtime: str = ""
    # By which a process on this machine is given this card and no other: a UUID, or an address on the PCI bus.
    address: str = ""


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that keeps a card from being lent: what is wrong, and what the owner can do about it."""

    what: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.what}. {self.fix}." if self.fix else f"{self.what}."


@dataclass(frozen=True, slots=True)
class Reading:
    cards: tuple[Card, ...] = ()
    remarks: tuple[Remark, ...] = ()


@dataclass(frozen=True, slots=True)
class Printed:
    """What a tool printed, or why it printed nothing of use."""

    text: str = ""
    trouble: str = ""
    absent: bool = False


@dataclass(frozen=True, slots=True)
class Sight:
    """`root` is where the machine's files lie; `tools` is the search path for programs, or None for the process's."""

    root: Path = field(default_factory=lambda: Path("/"))
    tools: str | None = None
    tool_seconds: float = TOOL_SECONDS

    def run(self, program: str, *arguments: str) -> Printed:
        found = shutil.which(program, path=self.tools)
        if found is None:
            return Printed(trouble=f"{program} is not installed", absent=True)
        try:
            done = subprocess.run(
                [found, *arguments],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.tool_seconds,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return Printed(trouble=f"{program} did not answer within {self.tool_seconds:.0f} s; the driver hangs")
        except OSError as error:
            return Printed(trouble=f"{program} cannot be started: {error}")
        if done.returncode != 0:
            words = (done.stdout + done.stderr).strip().splitlines()
            reason = words[0][:300] if words else "it gave no reason"
            return Printed(trouble=f"{program} failed (code {done.returncode}): {reason}")
        return Printed(text=done.stdout[:PRINTED_BYTES_MAX])

    def read(self, path: str) -> str:
        """The text of a file under the root, or nothing when it is absent or may not be read."""
        try:
            with (self.root / path.lstrip("/")).open(encoding="utf-8", errors="replace") as file:
                return file.read(FILE_BYTES_MAX)
        except OSError:
            return ""

    def read_int(self, path: str) -> int | None:
        text = self.read(path).strip()
        try:
            return int(text, 0)
        except ValueError:
            return None

    def glob(self, pattern: str) -> list[str]:
        """Paths under the root, in order, as they would be written on the machine itself."""
        try:
            found = sorted(self.root.glob(pattern.lstrip("/")))
        except OSError:
            return []
        return ["/" + str(path.relative_to(self.root)) for path in found]

    def exists(self, path: str) -> bool:
        try:
            return (self.root / path.lstrip("/")).exists()
        except OSError:
            return False

    def link_name(self, path: str) -> str:
        """The last part of where a link points to: sysfs names drivers so."""
        try:
            return (self.root / path.lstrip("/")).readlink().name
        except OSError:
            return ""


class Vendor(Protocol):
    """One module per vendor. Absent hardware is an empty reading; trouble is a remark and never an exception."""

    def __call__(self, sight: Sight, /) -> Reading: ...

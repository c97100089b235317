"""Played machines for demos: a TOML file with the texts that such a machine would print.

A profile replaces the source of the texts and nothing else. What it makes is always marked synthetic.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from computepool.node.hardware.cpu import parse_core_count, parse_cpu_name, parse_instruction_set, parse_ram_bytes
from computepool.node.hardware.nvidia import parse_nvidia_smi
from computepool.node.hardware.source import Found

SHIPPED = Path(__file__).with_name("profiles_data")


class UnknownProfile(Exception):
    """There is no such profile, or it cannot be read."""


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The texts of one played machine, in the formats of the real ones."""

    nvidia_smi: str = ""
    proc_cpuinfo: str
    proc_meminfo: str
    proc_status: str
    disk_free_bytes: int


def list_profiles() -> list[str]:
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def get_profile_path(name_or_path: str) -> Path:
    """A shipped profile by its name, or any file by its path."""
    shipped = SHIPPED / f"{name_or_path}.toml"
    if "/" not in name_or_path and shipped.is_file():
        return shipped
    path = Path(name_or_path)
    if path.is_file():
        return path
    raise UnknownProfile(f"There is no profile {name_or_path!r}. Shipped are: {', '.join(list_profiles())}.")


def read_profile(path: Path) -> Found:
    try:
        content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        profile = msgspec.convert(content, Profile)
    except (OSError, ValueError) as error:
        raise UnknownProfile(f"The profile {path} cannot be used: {error}") from None
    return Found(
        cards=parse_nvidia_smi(profile.nvidia_smi),
        cpu_name=parse_cpu_name(profile.proc_cpuinfo),
        cores=parse_core_count(profile.proc_status),
        ram_bytes=parse_ram_bytes(profile.proc_meminfo),
        disk_free_bytes=profile.disk_free_bytes,
        # A played machine computes on this one; what it plays need not be told twice.
        instruction_set=parse_instruction_set(profile.proc_cpuinfo, "x86_64"),
        synthetic=True,
    )

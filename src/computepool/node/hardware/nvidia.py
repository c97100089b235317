"""NVIDIA cards: by NVML; by nvidia-smi where that library is not to be had. A card that cannot be read is left out
and said so, never guessed.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from computepool.node.hardware import jetson, nvml, pci
from computepool.node.hardware.port import MIB, Card, Reading, Remark, Sight

VENDOR = "nvidia"
# The fields in this order, one GPU per line; memory in MiB. See `nvidia-smi --help-query-gpu`.
QUERY = ("--query-gpu=index,name,memory.total,driver_version", "--format=csv,noheader,nounits")

_INSTALL = "Install NVIDIA's driver for this card and restart the machine"
_WSL = "Install NVIDIA's driver in Windows, not in Linux, run `wsl --update` there, then `wsl --shutdown`"
_RESTART = "Restart the machine"
# What NVML's codes mean to an owner, with the fix.
_TROUBLES = {
    4: (
        "this user may not ask the NVIDIA driver",
        "Give it access to /dev/nvidia*: usually `sudo usermod -aG video,render $USER`, then sign in anew",
    ),
    9: ("the NVIDIA driver is not loaded", f"Run `sudo modprobe nvidia`; if that fails: {_INSTALL}"),
    15: ("the card has dropped off the bus", f"{_RESTART}; if it happens again, look at power and cooling"),
    18: ("the NVIDIA driver was updated and the old one still runs", _RESTART),
    999: ("the NVIDIA driver answers with an unknown error", f"{_RESTART}; if it stays, install the driver anew"),
}


def read(sight: Sight) -> Reading:
    if jetson.is_jetson(sight):
        return jetson.read(sight)
    reading = _to_reading(_ask_nvml(sight), wsl=_is_wsl(sight))
    if reading is None:
        reading = _ask_nvidia_smi(sight)
    if reading.cards or reading.remarks:
        return reading
    return Reading(remarks=_explain_idle_devices(sight))


def _ask_nvml(sight: Sight) -> dict[str, Any]:
    printed = sight.run(sys.executable, "-I", "-S", str(Path(nvml.__file__)))
    try:
        said = json.loads(printed.text)
    except ValueError:
        return {"trouble": printed.trouble or "NVML's answer cannot be read", "code": 0}
    return said if isinstance(said, dict) else {"trouble": "NVML's answer cannot be read", "code": 0}


def _to_reading(said: dict[str, Any], *, wsl: bool) -> Reading | None:
    """None: there is no NVML here that answers, so another way must be tried."""
    if said.get("absent"):
        return None
    if "trouble" in said:
        # A hanging or broken library: nvidia-smi uses the same one, and may still know a better word for it.
        return Reading(remarks=(_to_remark(said, "NVIDIA's driver cannot be asked", wsl=wsl),))
    cards: list[Card] = []
    remarks: list[Remark] = []
    runtime = f"CUDA {said['cuda']}" if said.get("cuda") else ""
    for each in said.get("cards", ()):
        label = f"card {each['index']}" + (f" ({each['name']})" if each.get("name") else "")
        if "trouble" in each:
            remarks.append(_to_remark(each, f"{label} cannot be read", wsl=wsl))
            continue
        parts = each.get("parts")
        if parts == []:
            remarks.append(
                Remark(
                    f"{label} is set to be cut by MIG, but has no instances",
                    "Make some with `sudo nvidia-smi mig -cgi <profile> -C`, or switch MIG off: `nvidia-smi -mig 0`",
                )
            )
        for part in [each] if parts is None else parts:
            cards.append(
                Card(VENDOR, part["name"][:200], part["vram_bytes"], said["driver"][:100], runtime, part["uuid"])
            )
    return Reading(tuple(cards), tuple(remarks))


def _to_remark(said: dict[str, Any], what: str, *, wsl: bool) -> Remark:
    meaning, fix = _TROUBLES.get(said.get("code", 0), (said["trouble"], ""))
    if wsl and said.get("code") in (9, 999):
        fix = _WSL
    return Remark(f"{what}: {meaning}", fix)


def _ask_nvidia_smi(sight: Sight) -> Reading:
    printed = sight.run("nvidia-smi", *QUERY)
    if printed.absent:
        return Reading()
    if printed.trouble:
        return Reading(remarks=(Remark(printed.trouble, f"{_RESTART}; if it stays, install NVIDIA's driver anew"),))
    reading = parse_nvidia_smi(printed.text)
    cut = re.search(r"^\s+MIG ", sight.run("nvidia-smi", "-L").text, re.MULTILINE)
    if cut is None:
        return reading
    # Without NVML an instance's memory is not told, and the whole card's must not be promised.
    return Reading(
        remarks=(Remark("a card is cut by MIG, and NVML is not here to describe its instances", _INSTALL),)
    )


def parse_nvidia_smi(printed: str) -> Reading:
    """One line per card: index, name, memory in MiB, driver version."""
    cards, remarks = [], []
    for line in printed.splitlines():
        if not line.strip():
            continue
        try:
            cards.append(_parse_line(line))
        except ValueError as error:
            remarks.append(Remark(str(error)))
    return Reading(tuple(cards), tuple(remarks))


def _parse_line(line: str) -> Card:
    fields = [field.strip() for field in line.split(",")]
    if len(fields) < 4 or not fields[0].isdigit():
        raise ValueError(f"nvidia-smi printed {line.strip()!r}, which names no card")
    # A name may hold a comma; what stands around it may not.
    name, memory, driver = ", ".join(fields[1:-2]), fields[-2], fields[-1]
    if not memory.isdigit():
        raise ValueError(f"the memory of card {fields[0]} ({name}) cannot be read: {memory}")
    version = "" if driver.startswith("[") else driver[:100]
    return Card(VENDOR, name[:200], int(memory) * MIB, version, address=fields[0])


def _explain_idle_devices(sight: Sight) -> tuple[Remark, ...]:
    """No driver answers: is there a card all the same?"""
    if _is_wsl(sight):
        if sight.exists("/dev/dxg"):
            return (Remark("this is WSL with a GPU, but NVIDIA's library for it is not here", _WSL),)
        return ()
    remarks = []
    for device in pci.list_displays(sight, pci.NVIDIA):
        if device.driver == "nouveau":
            remarks.append(
                Remark(f"an NVIDIA card ({device.address}) is run by nouveau, which cannot compute", _INSTALL)
            )
        elif device.driver == "vfio-pci":
            remarks.append(
                Remark(f"an NVIDIA card ({device.address}) is set aside for a virtual machine", "Lend it from there")
            )
        else:
            remarks.append(Remark(f"an NVIDIA card ({device.address}) has no working driver", _INSTALL))
    return tuple(remarks)


def _is_wsl(sight: Sight) -> bool:
    return "microsoft" in sight.read("/proc/version").lower()

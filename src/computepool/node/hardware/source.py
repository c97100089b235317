"""Where the texts about a machine come from: this machine, or a profile that plays another one.

Everything above this file reads the same texts in the same formats, so a played machine takes the same way
through the parsers as a real one.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

# The fields in this order, one GPU per line; memory in MiB. See `nvidia-smi --help-query-gpu`.
NVIDIA_SMI_QUERY = (
    "nvidia-smi",
    "--query-gpu=index,name,memory.total,driver_version",
    "--format=csv,noheader,nounits",
)
# A healthy driver answers within a second or two; a broken one may hang for ever.
NVIDIA_SMI_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class MachineTexts:
    """`nvidia_smi` is what the query printed, or empty with the reason in `nvidia_smi_trouble`."""

    nvidia_smi: str
    nvidia_smi_trouble: str
    proc_cpuinfo: str
    proc_meminfo: str
    # /proc/self/status: which cores this process may use.
    proc_status: str
    disk_free_bytes: int
    synthetic: bool = False


def read_machine(disk_of: Path) -> MachineTexts:
    printed, trouble = _ask_nvidia_smi()
    return MachineTexts(
        nvidia_smi=printed,
        nvidia_smi_trouble=trouble,
        proc_cpuinfo=Path("/proc/cpuinfo").read_text(errors="replace"),
        proc_meminfo=Path("/proc/meminfo").read_text(errors="replace"),
        proc_status=Path("/proc/self/status").read_text(errors="replace"),
        disk_free_bytes=shutil.disk_usage(disk_of).free,
    )


def _ask_nvidia_smi() -> tuple[str, str]:
    program = shutil.which(NVIDIA_SMI_QUERY[0])
    if program is None:
        return "", "nvidia-smi is not installed, so there is no NVIDIA driver here"
    try:
        done = subprocess.run(
            [program, *NVIDIA_SMI_QUERY[1:]],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=NVIDIA_SMI_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return "", f"nvidia-smi did not answer within {NVIDIA_SMI_SECONDS:.0f} s; the driver hangs"
    except OSError as error:
        return "", f"nvidia-smi cannot be started: {error}"
    if done.returncode != 0:
        words = (done.stdout + done.stderr).strip().splitlines()
        return "", f"nvidia-smi failed (code {done.returncode}): {words[0] if words else 'it gave no reason'}"
    return done.stdout, ""

"""What decides whether two machines come to the same bits, and how fast this one is.

Same library, same instructions, same number of threads: within such a class a run is exact wherever its VNodes are.
"""

from __future__ import annotations

import platform

import torch

from computepool import clock
from computepool.node.host_options import MachineView

MATRIX_SIZE = 384
MEASURE_SECONDS = 0.3


def describe_machine(wanted: str = "cpu") -> MachineView:
    """`wanted`: cpu or cuda. Where there is no GPU it is the CPU that is described, and said so."""
    device = "cuda" if wanted == "cuda" and torch.cuda.is_available() else "cpu"
    return MachineView(numeric_class=name_class(device), flops_per_second=measure_flops(device), device=device)


def name_class(device: str) -> str:
    """For people to read, too: torch-2.13.0/x86_64-avx512/1-thread."""
    version = torch.__version__.partition("+")[0]
    if device == "cuda":
        card = torch.cuda.get_device_name(0).lower().replace(" ", "-")
        return f"torch-{version}/cuda-{torch.version.cuda}/{card}"
    instructions = torch.backends.cpu.get_cpu_capability().lower()
    threads = torch.get_num_threads()
    return f"torch-{version}/{platform.machine().lower()}-{instructions}/{threads}-thread{'s' if threads > 1 else ''}"


def measure_flops(device: str) -> float:
    """A product of matrices, again and again for a moment: the best of the times that it took."""
    left = torch.ones(MATRIX_SIZE, MATRIX_SIZE, device=device)
    best, ends_at = float("inf"), clock.seconds() + MEASURE_SECONDS
    while clock.seconds() < ends_at:
        started = clock.seconds()
        left @ left
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, clock.seconds() - started)
    return 2.0 * MATRIX_SIZE**3 / max(best, 1e-9)

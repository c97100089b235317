"""Whether two machines may be asked for the same bits: only within one numeric class.

The last bits of a sum depend on what adds it up: a library chooses its kernels by the maker of the processor and by
its instructions, and a GPU has its own. How many threads there are is the job's choice, and the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from computepool.core.trust.comparators.kinds import Comparator, ComparatorKind

_GPU_SLOT = "gpu:"


def find_numeric_class(hardware: Mapping[str, Any], slot: str, *, uses_gpu: bool) -> str:
    """Of one slot, by what its node has told of its hardware. For people to read, too."""
    # Of an agent that tells no instructions the name has to do.
    processor = str(hardware.get("instruction_set") or hardware.get("cpu_name") or "")
    if not uses_gpu or not slot.startswith(_GPU_SLOT):
        return processor
    gpu = hardware["gpus"][int(slot.removeprefix(_GPU_SLOT))]
    return "/".join([gpu["name"], gpu.get("driver", ""), gpu.get("runtime", ""), processor])


def may_judge(comparator: Comparator, one: str, other: str) -> bool:
    """Whether a difference between two classes is evidence at all. A tolerance holds across classes, bits do not,
    unless the submitter says that theirs do."""
    return comparator.kind is not ComparatorKind.EXACT or comparator.anywhere or one == other

"""Whether two results of one slice are the same, by what the job declared: every byte, or numbers within a tolerance.

A third way, a command of the submitter's, runs in a sandbox and is not decided here. Results are never unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping

from computepool.core.trust.comparators.arrays import (
    UNPACKED_BYTES_MAX,
    find_members_difference,
    find_tensor_difference,
    read_npy,
    read_npz,
    read_safetensors,
)
from computepool.core.trust.comparators.kinds import Comparator, ComparatorKind
from computepool.core.trust.comparators.texts import find_csv_difference, find_json_difference
from computepool.core.trust.comparators.tolerance import Tolerance, Unreadable

NUMERIC_SUFFIXES = (".npy", ".npz", ".safetensors", ".csv", ".json")


def needs_content(path: str) -> bool:
    """Whether a file is compared by its numbers; all others by their hash alone."""
    return path.lower().endswith(NUMERIC_SUFFIXES)


def find_hash_difference(ours: Mapping[str, bytes], theirs: Mapping[str, bytes]) -> str | None:
    """Hashes of all outputs by path."""
    if ours.keys() != theirs.keys():
        return f"only one of the two has {min(ours.keys() ^ theirs.keys())!r}"
    return next((f"{path!r} differs" for path in sorted(ours) if ours[path] != theirs[path]), None)


def list_to_compare(
    ours: Mapping[str, bytes], theirs: Mapping[str, bytes], comparator: Comparator
) -> list[str] | str:
    """Paths whose content must be looked at because their hashes differ; or, as text, why that would be in vain."""
    if ours.keys() != theirs.keys() or comparator.kind is ComparatorKind.EXACT:
        return find_hash_difference(ours, theirs) or []
    unlike = [path for path in sorted(ours) if ours[path] != theirs[path]]
    exact = [path for path in unlike if not needs_content(path)]
    return f"{exact[0]!r} differs" if exact else unlike


def find_file_difference(path: str, ours: bytes, theirs: bytes, tolerance: Tolerance) -> str | None:
    """None: the two agree. A file that only one of the two can be read from differs; if neither can, bytes decide."""
    if ours == theirs:
        return None
    if max(len(ours), len(theirs)) > UNPACKED_BYTES_MAX:
        return f"it differs, and is larger than {UNPACKED_BYTES_MAX >> 20} MiB, up to which numbers are compared"
    try:
        return _find_difference(path.lower(), ours, theirs, tolerance)
    except Unreadable as error:
        return f"it differs, and cannot be read as numbers: {error}"


def _find_difference(path: str, ours: bytes, theirs: bytes, tolerance: Tolerance) -> str | None:
    if path.endswith(".npy"):
        return find_tensor_difference(read_npy(ours), read_npy(theirs), tolerance)
    if path.endswith(".npz"):
        return find_members_difference(read_npz(ours), read_npz(theirs), tolerance)
    if path.endswith(".safetensors"):
        return find_members_difference(read_safetensors(ours), read_safetensors(theirs), tolerance)
    if path.endswith(".csv"):
        return find_csv_difference(ours, theirs, tolerance)
    if path.endswith(".json"):
        return find_json_difference(ours, theirs, tolerance)
    return "it differs"

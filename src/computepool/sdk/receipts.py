"""Receipts in the submitter's hand: whether nodes have signed for the results, and whether files are those results.

Asks no hub. Which key is which node's, and which hub it was, are in the file as the hub gave it; the node's signature
is over everything else. Refuses to take anybody's word for a hash: it computes them.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from uuid import UUID

import msgspec

from computepool.core.errors import InvalidRequest
from computepool.core.jobs.manifest import manifest_sha256
from computepool.core.jobs.spec import is_safe_relative_path
from computepool.receipts import ReceiptRefused, read_results
from computepool.sdk.files import hash_file
from computepool.wire.receipts import JobReceipts, Receipt, SignedResult


class FaultCode(str, Enum):
    """What does not hold of a result. They stand in other people's programs: none is ever renamed."""

    RECEIPT_MISSING = "receipt_missing"  # there is no receipt for it
    RECEIPT_REFUSED = "receipt_refused"  # not signed by this node's key, or for another hub
    RESULT_UNSIGNED = "result_unsigned"  # the receipt is good, and says nothing of it or something else
    OUTPUTS_DIFFER = "outputs_differ"  # the outputs listed do not come to the hash that was signed
    FILE_MISSING = "file_missing"
    FILE_CHANGED = "file_changed"
    FILE_UNSIGNED = "file_unsigned"  # a file beside the results that nobody has signed for


@dataclass(frozen=True, slots=True)
class Fault:
    code: FaultCode
    words: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Of one result, or of a slice without one. Without faults everything holds."""

    slice_index: int
    faults: tuple[Fault, ...]
    # None: files lie where the slice's results would, but the receipts know of none.
    result: SignedResult | None = None
    node_id: UUID | None = None


# What a receipt vouches for, or why it is refused.
Vouched = Mapping[str, str] | ReceiptRefused


def read_receipts(path: Path | str) -> JobReceipts:
    """A file as `JobHandle.receipts` gave it and somebody has kept it as JSON."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=JobReceipts)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"{path} holds no receipts of a job: {error}.") from None


def verify_receipts(
    signed: JobReceipts,
    *,
    files: Path | str | None = None,
    hub_id: UUID | None = None,
    ignoring: Collection[Path] = (),
) -> list[Finding]:
    """What holds of each result and what does not, by slice.

        findings = verify_receipts(read_receipts("receipts.json"), files="results")
        assert not any(finding.faults for finding in findings)

    `files` is the folder of a download; files in it that nobody has signed for are faults, but those in `ignoring`.
    `hub_id` is the hub that they must have been signed for; else it is the one that the file names.
    """
    receipts = {receipt.id: receipt for receipt in signed.receipts}
    vouched = {id: _read(receipt, hub_id or signed.hub_id) for id, receipt in receipts.items()}
    findings = []
    for result in signed.results:
        receipt = receipts.get(result.receipt_id) if result.receipt_id is not None else None
        faults = _find_faults(result, vouched[receipt.id] if receipt is not None else None)
        if files is not None and result.accepted:
            faults += _find_file_faults(result, _place(signed, Path(files), result.slice_index), ignoring)
        node_id = receipt.node_id if receipt is not None else None
        findings.append(Finding(result.slice_index, tuple(faults), result, node_id))
    if files is not None:
        findings += _find_strays(signed, Path(files), ignoring)
    return findings


def _read(receipt: Receipt, hub_id: UUID) -> Vouched:
    try:
        text = receipt.public_key
        public_key = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return read_results(receipt.token, node_id=receipt.node_id, public_key=public_key, hub_id=hub_id)
    except (ValueError, binascii.Error):
        return ReceiptRefused("the node's key is no base64url")
    except ReceiptRefused as refusal:
        return refusal


def _find_faults(result: SignedResult, vouched: Vouched | None) -> list[Fault]:
    """Of the signature, and of what is listed under it."""
    if vouched is None:
        return [Fault(FaultCode.RECEIPT_MISSING, "there is no receipt for it")]
    if isinstance(vouched, ReceiptRefused):
        return [Fault(FaultCode.RECEIPT_REFUSED, f"its receipt is refused: {vouched}")]
    promised = vouched.get(str(result.signed_id or result.attempt_id))
    if promised is None or promised != result.result_sha256:
        return [Fault(FaultCode.RESULT_UNSIGNED, "its receipt says nothing of it, or something else")]
    if manifest_sha256((output.path, output.sha256) for output in result.outputs) != promised:
        return [Fault(FaultCode.OUTPUTS_DIFFER, "its outputs are not those that were signed for")]
    return []


def _find_file_faults(result: SignedResult, folder: Path, ignoring: Collection[Path]) -> list[Fault]:
    faults = []
    for output in result.outputs:
        target = folder / output.path
        if not is_safe_relative_path(output.path) or not target.is_file():
            faults.append(Fault(FaultCode.FILE_MISSING, f"{output.path} is not there"))
        elif hash_file(target) != output.sha256:
            faults.append(Fault(FaultCode.FILE_CHANGED, f"{output.path} is not as it was signed for"))
    known = {output.path for output in result.outputs}
    return [*faults, *_list_unsigned(folder, known, ignoring)]


def _find_strays(signed: JobReceipts, files: Path, ignoring: Collection[Path]) -> Iterator[Finding]:
    """Files in the place of a slice whose result is not among these."""
    delivered = {result.slice_index for result in signed.results if result.accepted}
    for index in _list_places(signed, files):
        if index in delivered:
            continue
        faults = tuple(_list_unsigned(_place(signed, files, index), (), ignoring))
        if faults:
            yield Finding(index, faults)


def _list_unsigned(folder: Path, known: Collection[str], ignoring: Collection[Path]) -> Iterator[Fault]:
    own = {path.resolve() for path in ignoring}
    for parent, _, names in os.walk(folder):
        for path in sorted(Path(parent, name) for name in names):
            name = path.relative_to(folder).as_posix()
            if name not in known and path.resolve() not in own:
                yield Fault(FaultCode.FILE_UNSIGNED, f"{name} was signed for by nobody")


def _list_places(signed: JobReceipts, files: Path) -> list[int]:
    """Slices that have a folder there."""
    if signed.slice_count == 1 or not files.is_dir():
        return [0]
    return sorted(int(path.name) for path in files.iterdir() if path.name.isdecimal() and path.is_dir())


def _place(signed: JobReceipts, files: Path, index: int) -> Path:
    """Where a download puts a slice's results."""
    return files if signed.slice_count == 1 else files / str(index)

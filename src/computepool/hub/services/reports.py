"""What nodes report of the ends of attempts: checked for all that can be known without looking anything up, and what
of it is written beside the attempt."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from computepool.core.errors import ComputePoolError, InvalidRequest, StaleLease
from computepool.core.ids import AccountId, AttemptId, NodeId
from computepool.core.jobs.cause import REPORTABLE
from computepool.core.jobs.manifest import manifest_sha256
from computepool.core.jobs.spec import is_safe_relative_path, is_sha256
from computepool.hub.services.callers import NodeCaller
from computepool.hub.services.keyring import Keyring
from computepool.hub.store import artifacts as artifact_store
from computepool.hub.store.attempts import ReceiptRow, ReportRow
from computepool.hub.store.connect import Connection
from computepool.hub.store.ids import new_id, to_driver_id
from computepool.wire.attempts import Completion
from computepool.wire.jobs import OutputFile

OUTPUTS_MAX = 10_000
# Sums of it must stay numbers, whatever nodes say.
USAGE_SECONDS_MAX = 1e12
MESSAGE_LENGTH_MAX = 2_000
RECEIPT_LENGTH_MAX = 100_000


class Report(NamedTuple):
    """A node's checked word on the end of one attempt, on its way into the database."""

    node_id: NodeId
    # Whose node it is.
    owner_id: AccountId
    completion: Completion
    sha256: bytes
    # The signed statement that covers it, shared by all reports of one call.
    receipt: ReceiptRow | None
    attempt_id: AttemptId


def check_completions(
    keyring: Keyring, caller: NodeCaller, completions: Sequence[Completion], receipt: str
) -> list[Report | ComputePoolError]:
    """Everything that can be said about a call's reports without looking anything up.

    Whether the receipt holds is found out later, by a sweeper: it costs more than all the rest, and nothing that it
    guards happens before.
    """
    if len(receipt) > RECEIPT_LENGTH_MAX or "\0" in receipt:
        raise InvalidRequest(f"A receipt has at most {RECEIPT_LENGTH_MAX:,} characters, none of them NUL.")
    succeeded = any(completion.cause is None for completion in completions)
    if succeeded and receipt.count(".") != 2:
        raise InvalidRequest("A result needs a receipt: a JWT signed by the node; see the protocol page.")
    row = ReceiptRow(new_id(), caller.node_id, receipt) if succeeded else None
    return [_check_completion(keyring, caller, completion, row) for completion in completions]


def _check_completion(
    keyring: Keyring, caller: NodeCaller, completion: Completion, receipt: ReceiptRow | None
) -> Report | ComputePoolError:
    # A forged secret and another node's attempt look the same from outside.
    attempt_id = AttemptId(to_driver_id(completion.attempt_id))
    if not keyring.is_lease_secret(attempt_id, completion.lease_secret):
        return StaleLease("This node holds no such lease. Forget the attempt.")
    fault = _find_fault(completion)
    if fault is not None:
        return InvalidRequest(fault)
    kept = receipt if completion.cause is None else None
    return Report(caller.node_id, caller.account_id, completion, _digest(completion), kept, attempt_id)


async def list_outputs(
    conn: Connection, wanted: Iterable[tuple[AccountId, Report]]
) -> dict[tuple[AccountId, bytes], int]:
    """Of the files that these reports name, by the submitter who must have them: those that were uploaded."""
    files = [
        (account_id, bytes.fromhex(output.sha256))
        for account_id, report in wanted
        for output in report.completion.outputs
    ]
    return await artifact_store.list_present(conn, files) if files else {}


def check_outputs(
    completion: Completion, account_id: AccountId, present: Mapping[tuple[AccountId, bytes], int]
) -> InvalidRequest | None:
    # One content may stand under several names, each with a size of its own to be checked.
    missing = [
        o.path for o in completion.outputs if present.get((account_id, bytes.fromhex(o.sha256))) != o.size_bytes
    ]
    if not missing:
        return None
    return InvalidRequest("Outputs were not uploaded, or with another size: " + ", ".join(sorted(missing)[:5]))


def _find_fault(completion: Completion) -> str | None:
    usage, outputs = completion.usage, completion.outputs
    if completion.cause is not None and completion.cause not in REPORTABLE:
        return f"A node cannot report the cause {completion.cause.value}."
    if completion.cause is None and completion.exit_code != 0:
        return "Success means exit_code 0; otherwise give a cause."
    if usage.run_seconds < 0 or usage.cpu_seconds < 0 or usage.memory_bytes_peak < 0:
        return "Usage cannot be negative."
    if max(usage.run_seconds, usage.cpu_seconds) > USAGE_SECONDS_MAX:
        return "Usage is more than any machine can have had."
    if completion.exit_code is not None and not -1_000 <= completion.exit_code <= 1_000:
        return "exit_code is out of any range that a program can end with."
    if outputs and (fault := _find_output_fault(outputs)):
        return fault
    if completion.cause is None and completion.result_sha256 != _manifest(outputs):
        return "result_sha256 is not the hash of the outputs' manifest; see the protocol page."
    return None


def _find_output_fault(outputs: Sequence[OutputFile]) -> str | None:
    if len(outputs) > OUTPUTS_MAX:
        return f"More than {OUTPUTS_MAX:,} output files; pack them into an archive."
    if not all(is_sha256(output.sha256) and output.size_bytes >= 0 for output in outputs):
        return "Every output needs its sha256 as 64 lower-case hex digits, and its size."
    paths = [output.path for output in outputs]
    if len(set(paths)) != len(paths) or not all(is_safe_relative_path(path) for path in paths):
        return "Output paths must be relative, without '..', each once."
    return None


_EMPTY_MANIFEST = manifest_sha256(())


def _manifest(outputs: Sequence[OutputFile]) -> str:
    return manifest_sha256((o.path, o.sha256) for o in outputs) if outputs else _EMPTY_MANIFEST


def _digest(completion: Completion) -> bytes:
    """What makes two completions the same. The boot may differ: the agent may have restarted in between."""
    same = (
        completion.attempt_id,
        completion.exit_code,
        completion.cause,
        completion.result_sha256,
        [(o.path, o.sha256) for o in completion.outputs],
    )
    return hashlib.sha256(msgspec.json.encode(same)).digest()


def to_row(report: Report) -> ReportRow:
    """What is written of it."""
    completion = report.completion
    return ReportRow(
        exit_code=completion.exit_code,
        message=completion.message[:MESSAGE_LENGTH_MAX].replace("\0", ""),
        run_seconds=completion.usage.run_seconds,
        cpu_seconds=completion.usage.cpu_seconds,
        memory_bytes_peak=min(completion.usage.memory_bytes_peak, 1 << 62),
        outputs=[msgspec.to_builtins(output) for output in completion.outputs],
        result_sha256=bytes.fromhex(completion.result_sha256) if completion.cause is None else None,
        receipt_id=report.receipt.id if report.receipt is not None else None,
    )

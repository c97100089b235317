"""How a runner's report becomes the completion that the hub reads."""

from __future__ import annotations

import hashlib
from uuid import uuid4

import msgspec
import pytest

from computepool.core.jobs.cause import REPORTABLE, Cause
from computepool.node.completion import Ending, from_status, make_completion, refuse
from computepool.node.runner.status import FINISHED, STOP_CAUSES, VANISHED, Output, RefusedOutput, Status
from computepool.wire.jobs import OutputFile


def test_success_carries_the_outputs_and_the_usage() -> None:
    status = Status(
        state=FINISHED,
        exit_code=0,
        run_seconds=2.5,
        cpu_seconds=1.0,
        memory_bytes_peak=7,
        outputs=(Output("a", 3, "ff" * 32),),
    )
    ending = from_status(status)
    assert ending.cause is None
    assert ending.outputs == (OutputFile(path="a", sha256="ff" * 32, size_bytes=3),)
    assert (ending.usage.run_seconds, ending.usage.cpu_seconds, ending.usage.memory_bytes_peak) == (2.5, 1.0, 7)


def test_a_failure_has_no_results() -> None:
    status = Status(state=FINISHED, exit_code=3, cause="exit_code", outputs=(Output("a", 3, "ff" * 32),))
    ending = from_status(status)
    assert (ending.exit_code, ending.cause, ending.outputs) == (3, Cause.EXIT_CODE, ())
    assert ending.result_sha256 == hashlib.sha256(b"").hexdigest()


def test_an_exit_code_without_a_cause_is_never_taken_for_success() -> None:
    assert from_status(Status(state=FINISHED, exit_code=1)).cause is Cause.EXIT_CODE
    assert from_status(Status(state=FINISHED, exit_code=None)).cause is Cause.EXIT_CODE


@pytest.mark.parametrize("cause", sorted(STOP_CAUSES | {"out_of_memory", "sandbox_refused", "something_new"}))
def test_every_cause_that_is_told_is_one_that_a_node_may_tell(cause: str) -> None:
    assert from_status(Status(state=FINISHED, cause=cause)).cause in REPORTABLE


def test_a_vanished_runner_is_no_success_even_with_an_exit_code() -> None:
    assert from_status(Status(state=VANISHED, exit_code=0)).cause is Cause.SANDBOX_REFUSED


def test_refused_outputs_are_named_in_the_message() -> None:
    refused = tuple(RefusedOutput(f"link{n}", "a link, not a regular file") for n in range(7))
    ending = from_status(Status(state=FINISHED, exit_code=0, outputs_refused=refused))
    assert ending.cause is None
    assert "link0 (a link, not a regular file)" in ending.message
    assert "and 2 more" in ending.message


def test_the_result_hash_is_over_the_manifest_sorted_by_path() -> None:
    outputs = (
        OutputFile(path="b/x.txt", sha256="11" * 32, size_bytes=1),
        OutputFile(path="ü", sha256="33" * 32, size_bytes=1),
        OutputFile(path="a", sha256="22" * 32, size_bytes=1),
    )
    manifest = f"{'22' * 32}  a\n{'11' * 32}  b/x.txt\n{'33' * 32}  ü\n"
    assert Ending(0, None, "", outputs=outputs).result_sha256 == hashlib.sha256(manifest.encode()).hexdigest()


def test_a_completion_has_the_fields_of_the_protocol_page() -> None:
    attempt_id = uuid4()
    ending = refuse(Cause.INPUT_MISSING, "x" * 5_000)
    told = msgspec.to_builtins(make_completion(ending, attempt_id=attempt_id, lease_secret="s"))
    assert told["attempt_id"] == str(attempt_id)
    assert (told["exit_code"], told["cause"], told["outputs"]) == (None, "input_missing", ())
    assert told["result_sha256"] == hashlib.sha256(b"").hexdigest()
    assert len(told["message"]) == 1_000
    assert set(told) == {
        "attempt_id",
        "lease_secret",
        "exit_code",
        "cause",
        "message",
        "usage",
        "outputs",
        "result_sha256",
    }

"""Receipts are checked without a hub: what a node has signed for holds, and every single change is found."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from computepool import receipts as rule
from computepool.cli.main import EXIT_REFUSED, run
from computepool.core.errors import InvalidRequest
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.manifest import manifest_sha256
from computepool.node import tokens
from computepool.sdk.receipts import FaultCode, Finding, read_receipts, verify_receipts
from computepool.wire.attempts import Completion
from computepool.wire.jobs import OutputFile
from computepool.wire.receipts import JobReceipts, Receipt, SignedResult

HUB_ID, NODE_ID = uuid4(), uuid4()
KEY = Ed25519PrivateKey.generate()
NOW = time.time() - 60
CONTENTS = {"a.txt": b"first", "deep/b.txt": b"second"}


def list_outputs(contents: dict[str, bytes]) -> list[OutputFile]:
    return [
        OutputFile(path=path, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
        for path, content in contents.items()
    ]


def make_result(index: int = 0, **changes: Any) -> SignedResult:
    outputs = changes.get("outputs", list_outputs(CONTENTS))
    values: dict[str, Any] = {
        "attempt_id": uuid4(),
        "slice_index": index,
        "number": 1,
        "accepted": True,
        "result_sha256": manifest_sha256((each.path, each.sha256) for each in outputs),
        "outputs": outputs,
        **changes,
    }
    return SignedResult(**values)


def sign(*results: SignedResult, key: Ed25519PrivateKey = KEY, hub_id: UUID = HUB_ID, **changes: Any) -> JobReceipts:
    """As an agent signs for all results of one call, and a hub hands it out."""
    completions = [
        Completion(attempt_id=each.attempt_id, lease_secret="s", exit_code=0, result_sha256=each.result_sha256 or "")
        for each in results
    ]
    token = tokens.make_receipt(key, node_id=NODE_ID, hub_id=hub_id, completions=completions, now_seconds=NOW)
    receipt = Receipt(
        id=uuid4(),
        node_id=NODE_ID,
        public_key=tokens.to_key_text(KEY.public_key()),
        token=changes.get("token", token),
    )
    return JobReceipts(
        hub_id=HUB_ID,
        job_id=uuid4(),
        slice_count=changes.get("slice_count", len(results)),
        results=[msgspec.structs.replace(each, receipt_id=receipt.id) for each in results],
        receipts=[receipt],
    )


def list_codes(findings: list[Finding]) -> list[str]:
    return [fault.code.value for finding in findings for fault in finding.faults]


def write_files(folder: Path, contents: dict[str, bytes] = CONTENTS) -> Path:
    for path, content in contents.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return folder


def test_what_a_node_signed_for_holds(tmp_path: Path) -> None:
    signed = sign(make_result(0), make_result(1, outputs=[]))
    write_files(tmp_path / "0")
    findings = verify_receipts(signed, files=tmp_path)
    assert list_codes(findings) == []
    assert [finding.node_id for finding in findings] == [NODE_ID] * 2


def test_a_failure_is_signed_for_by_nobody() -> None:
    failed = Completion(attempt_id=uuid4(), lease_secret="s", exit_code=1, cause=Cause.EXIT_CODE)
    assert tokens.make_receipt(KEY, node_id=NODE_ID, hub_id=HUB_ID, completions=[failed], now_seconds=NOW) == ""


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda folder: (folder / "a.txt").write_bytes(b"forged"), FaultCode.FILE_CHANGED),
        (lambda folder: (folder / "deep/b.txt").write_bytes(b""), FaultCode.FILE_CHANGED),
        (lambda folder: (folder / "a.txt").unlink(), FaultCode.FILE_MISSING),
        (lambda folder: (folder / "more.txt").write_bytes(b"x"), FaultCode.FILE_UNSIGNED),
    ],
)
def test_a_file_that_is_not_as_it_was_signed_for_is_found(tmp_path: Path, change: Any, code: FaultCode) -> None:
    signed = sign(make_result())
    change(write_files(tmp_path))
    assert list_codes(verify_receipts(signed, files=tmp_path)) == [code.value]
    # The signature itself is as good as before.
    assert list_codes(verify_receipts(signed)) == []


def test_the_receipts_may_lie_beside_the_files(tmp_path: Path) -> None:
    signed, kept = sign(make_result()), tmp_path / "receipts.json"
    write_files(tmp_path)
    kept.write_bytes(msgspec.json.encode(signed))
    assert list_codes(verify_receipts(signed, files=tmp_path, ignoring=[kept])) == []
    assert list_codes(verify_receipts(signed, files=tmp_path)) == ["file_unsigned"]


def test_files_of_a_slice_that_was_left_out_of_the_receipts_are_found(tmp_path: Path) -> None:
    signed = sign(make_result(0), slice_count=2)
    write_files(tmp_path / "0")
    write_files(tmp_path / "1")
    findings = verify_receipts(signed, files=tmp_path)
    assert [(finding.slice_index, len(finding.faults)) for finding in findings] == [(0, 0), (1, 2)]
    assert set(list_codes(findings)) == {"file_unsigned"}


def test_an_output_whose_name_leads_out_of_the_folder_is_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"first")
    signed = sign(make_result(outputs=list_outputs({"../secret": b"first"})))
    (tmp_path / "files").mkdir()
    assert list_codes(verify_receipts(signed, files=tmp_path / "files")) == ["file_missing"]


def test_a_result_that_was_taken_over_was_signed_for_under_another_attempt() -> None:
    signed = sign(make_result())
    taken = msgspec.structs.replace(signed.results[0], attempt_id=uuid4(), signed_id=signed.results[0].attempt_id)
    assert list_codes(verify_receipts(msgspec.structs.replace(signed, results=[taken]))) == []


def test_only_what_was_accepted_is_held_against_files(tmp_path: Path) -> None:
    late = make_result(0, number=2, accepted=False, outputs=list_outputs({"a.txt": b"late"}))
    signed = sign(make_result(0), late, slice_count=1)
    assert list_codes(verify_receipts(signed, files=write_files(tmp_path))) == []


def test_a_changed_receipt_is_refused() -> None:
    signed = sign(make_result())
    [receipt] = signed.receipts
    head, body, signature = receipt.token.split(".")
    claims = jwt.decode(receipt.token, options={"verify_signature": False})
    [attempt_id] = claims["results"]
    claims["results"][attempt_id]["result_sha256"] = "0" * 64
    forged_body = jwt.encode(claims, Ed25519PrivateKey.generate(), algorithm="EdDSA").split(".")[1]
    for token in (f"{head}.{forged_body}.{signature}", f"{head}.{body}.{signature[:-4]}AAAA", "", "a.b.c"):
        forged = msgspec.structs.replace(signed, receipts=[msgspec.structs.replace(receipt, token=token)])
        assert list_codes(verify_receipts(forged)) == ["receipt_refused"]


def test_another_nodes_key_is_refused() -> None:
    assert list_codes(verify_receipts(sign(make_result(), key=Ed25519PrivateKey.generate()))) == ["receipt_refused"]
    signed = sign(make_result())
    for text in (tokens.to_key_text(Ed25519PrivateKey.generate().public_key()), "AAAA", "no key", "ä"):
        [receipt] = signed.receipts
        other = msgspec.structs.replace(signed, receipts=[msgspec.structs.replace(receipt, public_key=text)])
        assert list_codes(verify_receipts(other)) == ["receipt_refused"]


def test_another_nodes_name_is_refused() -> None:
    signed = sign(make_result())
    [receipt] = signed.receipts
    other = msgspec.structs.replace(signed, receipts=[msgspec.structs.replace(receipt, node_id=uuid4())])
    assert list_codes(verify_receipts(other)) == ["receipt_refused"]


def test_a_receipt_of_another_hub_is_refused() -> None:
    assert list_codes(verify_receipts(sign(make_result(), hub_id=uuid4()))) == ["receipt_refused"]
    signed = sign(make_result())
    assert list_codes(verify_receipts(signed, hub_id=HUB_ID)) == []
    assert list_codes(verify_receipts(signed, hub_id=uuid4())) == ["receipt_refused"]


def test_a_result_that_the_receipt_does_not_name_is_unsigned() -> None:
    signed = sign(make_result())
    other = msgspec.structs.replace(signed.results[0], attempt_id=uuid4())
    assert list_codes(verify_receipts(msgspec.structs.replace(signed, results=[other]))) == ["result_unsigned"]


def test_outputs_that_do_not_come_to_the_signed_hash_are_found() -> None:
    signed = sign(make_result())
    changed = msgspec.structs.replace(signed.results[0], outputs=list_outputs({"a.txt": b"forged"}))
    assert list_codes(verify_receipts(msgspec.structs.replace(signed, results=[changed]))) == ["outputs_differ"]


def test_a_result_without_a_receipt_is_found() -> None:
    signed = msgspec.structs.replace(sign(make_result()), receipts=[])
    assert list_codes(verify_receipts(signed)) == ["receipt_missing"]


def test_what_a_node_signed_for_does_not_run_out() -> None:
    """Else it could be paid, and deny it a day later."""
    result = make_result()
    claims = {
        "iss": str(NODE_ID),
        "aud": str(HUB_ID),
        "iat": int(NOW) - 7_200,
        "exp": int(NOW) - 3_600,
        "results": {str(result.attempt_id): {"result_sha256": result.result_sha256}},
    }
    token = jwt.encode(claims, KEY, algorithm="EdDSA", headers={"typ": rule.RECEIPT_TYPE})
    assert list_codes(verify_receipts(sign(result, token=token))) == []


# The command


def keep(signed: JobReceipts, path: Path) -> str:
    path.write_bytes(msgspec.json.encode(signed))
    return str(path)


def test_verify_says_of_each_slice_what_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, folder = keep(sign(make_result(0), make_result(1)), tmp_path / "r.json"), tmp_path / "files"
    for index in "01":
        write_files(folder / index)
    assert run(["verify", path, "--files", str(folder)]) == 0
    said = capsys.readouterr()
    assert said.out.count(f"good: node {NODE_ID} signed for 2 files") == 2
    assert said.err == ""
    (folder / "1" / "a.txt").write_bytes(b"forged")
    assert run(["verify", path, "--files", str(folder)]) == 1
    said = capsys.readouterr()
    assert "slice 0, attempt 1: good" in said.out
    assert "slice 1, attempt 1: BAD: a.txt is not as it was signed for (file_changed)" in said.out
    assert said.err == "error: 1 of 2 results do not hold. (receipts_refused)\n"


def test_verify_tells_programs_the_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = keep(sign(make_result(), hub_id=uuid4()), tmp_path / "r.json")
    assert run(["verify", path, "--json"]) == 1
    [job] = msgspec.json.decode(capsys.readouterr().out)
    assert [fault["code"] for finding in job["findings"] for fault in finding["faults"]] == ["receipt_refused"]


def test_receipts_without_results_prove_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = keep(msgspec.structs.replace(sign(make_result()), results=[], receipts=[]), tmp_path / "r.json")
    assert run(["verify", path]) == 1
    assert "(receipts_missing)" in capsys.readouterr().err


def test_verify_asks_for_the_hub_that_was_meant(tmp_path: Path) -> None:
    path = keep(sign(make_result()), tmp_path / "r.json")
    assert run(["verify", path, "--hub-id", str(HUB_ID)]) == 0
    assert run(["verify", path, "--hub-id", str(uuid4())]) == 1


def test_a_file_that_holds_no_receipts_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    path.write_text("{}")
    with pytest.raises(InvalidRequest, match="no receipts"):
        read_receipts(path)
    assert run(["verify", str(path)]) == EXIT_REFUSED
    assert "(invalid_request)" in capsys.readouterr().err


def test_one_folder_goes_with_one_job(tmp_path: Path) -> None:
    paths = [keep(sign(make_result()), tmp_path / name) for name in ("a.json", "b.json")]
    assert run(["verify", *paths]) == 0
    assert run(["verify", *paths, "--files", str(tmp_path)]) == EXIT_REFUSED

"""Comparators: numbers summed in another order agree, forged ones do not, and strangers' files do no harm."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile

import numpy
import pytest
from safetensors.numpy import save as save_safetensors

from computepool.core.trust.comparators import arrays
from computepool.core.trust.comparators.compare import (
    Comparator,
    ComparatorKind,
    find_file_difference,
    find_hash_difference,
    list_to_compare,
)
from computepool.core.trust.comparators.numerics import find_numeric_class, may_judge
from computepool.core.trust.comparators.tolerance import Tolerance, Unreadable, are_close

TOLERANCE = Tolerance()
NUMERIC = Comparator(ComparatorKind.NUMERIC)
JOB = """
import io, sys, numpy
rng = numpy.random.default_rng(7)
left, right = (rng.standard_normal((700, 700), dtype=numpy.float32) for _ in range(2))
kept = io.BytesIO()
numpy.save(kept, numpy.abs(left @ right).mean(axis=0))
sys.stdout.buffer.write(kept.getvalue())
"""

WHOLE = "numpy.abs(left @ right).mean(axis=0)"
CANCELLING = JOB.replace(WHOLE, "left @ right")
# Summed in another order even where there is one core.
OTHERWISE = JOB.replace(WHOLE, "left[:, :300] @ right[:300] + left[:, 300:] @ right[300:]")


def to_npy(values: object) -> bytes:
    kept = io.BytesIO()
    numpy.save(kept, numpy.asarray(values), allow_pickle=False)
    return kept.getvalue()


def to_npz(**values: object) -> bytes:
    kept = io.BytesIO()
    numpy.savez_compressed(kept, **{name: numpy.asarray(value) for name, value in values.items()})
    return kept.getvalue()


def run_job(threads: int, job: str = JOB) -> bytes:
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = os.environ | dict.fromkeys(names, str(threads))
    return subprocess.run(
        [sys.executable, "-c", job], env=environment, check=True, timeout=240, capture_output=True
    ).stdout


def corrupt(content: numpy.ndarray, share: float = 0.01) -> numpy.ndarray:
    bad = content.copy()
    bad.reshape(-1)[:: round(1 / share)] *= 1.01
    return bad


def find(name: str, ours: bytes, theirs: bytes) -> str | None:
    return find_file_difference(name, ours, theirs, TOLERANCE)


def test_the_same_numpy_job_on_other_thread_counts_agrees_and_a_corrupted_one_does_not():
    one, two = run_job(1), run_job(2)
    assert find("out.npy", one, two) is None
    bad = corrupt(numpy.load(io.BytesIO(two)))
    assert "number 0 is" in (find("out.npy", one, to_npy(bad)) or "")


def test_single_precision_that_nearly_cancels_agrees_on_other_thread_counts_and_mixed_sizes_hide_nothing():
    one, two = (numpy.load(io.BytesIO(run_job(*each))) for each in ((1, CANCELLING), (2, OTHERWISE)))
    assert (one != two).any(), "or nothing is shown"
    assert not numpy.allclose(one, two, rtol=TOLERANCE.relative, atol=TOLERANCE.absolute)
    assert find("out.npy", to_npy(one), to_npy(two)) is None
    assert find("out.npy", to_npy(one), to_npy(corrupt(two))) is not None
    # A large number of one side makes no room for others, nor does any where digits suffice.
    forged = one + numpy.float32(1.0)
    forged[0, 0] = 1e30
    assert "number 0 is" in (find("out.npy", to_npy(one), to_npy(forged)) or "")
    forged[0, 0] = one[0, 0]
    assert find("out.npy", to_npy(one), to_npy(forged)) is not None
    mixed = numpy.array([1e6, 0.1])
    assert find("out.npy", to_npy(mixed), to_npy([1e6, 0.101])) is not None
    exact = Tolerance(relative=0.0, absolute=0.0)
    assert find_file_difference("out.npy", to_npy(one), to_npy(two), exact) is not None


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", ">f8", "c8", "c16"])
def test_last_bits_agree_and_one_percent_of_wrong_numbers_does_not(dtype):
    values = (numpy.arange(1, 1_001) * 0.37).astype(dtype)
    # A half-precision number has three digits: there, nothing but the same is near enough.
    near = values if dtype == "f2" else (values * (1 + 1e-6)).astype(dtype)
    assert find("a.npy", to_npy(values), to_npy(near)) is None
    assert find("a.npz", to_npz(a=values), to_npz(a=near)) is None
    assert find("a.npy", to_npy(values), to_npy(corrupt(values))) is not None
    assert find("a.npz", to_npz(a=values), to_npz(a=corrupt(values))) is not None


def test_whole_numbers_must_be_the_same():
    assert find("a.npy", to_npy([10**9, 2]), to_npy([10**9 + 1, 2])) is not None


def test_shape_kind_and_order_must_be_the_same():
    values = numpy.arange(6.0)
    assert "[6]" in (find("a.npy", to_npy(values), to_npy(values.reshape(2, 3))) or "")
    assert find("a.npy", to_npy(values), to_npy(values.astype("f4"))) is not None
    square = values.reshape(2, 3)
    assert "order" in (find("a.npy", to_npy(square), to_npy(numpy.asfortranarray(square))) or "")
    assert "only one" in (find("a.npz", to_npz(a=values), to_npz(b=values)) or "")


def test_safetensors_agree_within_the_tolerance():
    values = numpy.linspace(1, 2, 500, dtype="f4")
    ours = save_safetensors({"w": values, "n": numpy.arange(3)})
    near = save_safetensors({"w": values * numpy.float32(1 + 1e-6), "n": numpy.arange(3)})
    far = save_safetensors({"w": corrupt(values), "n": numpy.arange(3)})
    assert find("m.safetensors", ours, near) is None
    assert "'w': number 0" in (find("m.safetensors", ours, far) or "")


def test_bfloat16_is_read():
    def pack(*halves: int) -> bytes:
        header = json.dumps({"w": {"dtype": "BF16", "shape": [len(halves)], "data_offsets": [0, 2 * len(halves)]}})
        return struct.pack("<Q", len(header)) + header.encode() + struct.pack(f"<{len(halves)}H", *halves)

    assert "is 1.0 here and 2.0 there" in (find("m.safetensors", pack(0x3F80), pack(0x4000)) or "")


def test_tables_and_json_agree_by_number_and_to_the_letter_otherwise():
    assert find("t.csv", b"name,x\na,1.0000001\n", b"name,x\na,1.0\n") is None
    assert find("t.csv", b"name,x\na,1.01\n", b"name,x\na,1.0\n") is not None
    assert find("t.csv", b"name,x\nb,1.0\n", b"name,x\na,1.0\n") is not None
    assert find("t.csv", b"x\n1\n", b"x\n1\n2\n") is not None
    assert find("r.json", b'{"loss": 0.12345678, "n": [1, 2]}', b'{"n": [1, 2.0], "loss": 0.1234567}') is None
    assert "$.loss" in (find("r.json", b'{"loss": 0.1}', b'{"loss": 0.2}') or "")
    assert "kind" in (find("r.json", b'{"ok": true}', b'{"ok": 1}') or "")
    assert find("r.json", b'["1"]', b'["2"]') is not None


def test_what_is_no_number_agrees_only_with_its_like():
    nan, infinite = float("nan"), float("inf")
    assert are_close(nan, nan, TOLERANCE)
    assert are_close(infinite, infinite, TOLERANCE)
    assert not are_close(nan, 1.0, TOLERANCE)
    assert not are_close(infinite, 1e308, TOLERANCE)
    assert not are_close(infinite, -infinite, TOLERANCE)


@pytest.mark.parametrize(
    "bad", [{"relative": 1.0}, {"relative": -1e-9}, {"absolute": float("inf")}, {"relative": float("nan")}]
)
def test_a_tolerance_that_would_let_everything_pass_is_refused(bad):
    with pytest.raises(ValueError, match="tolerance"):
        Tolerance(**bad)


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a stranger's file was unpickled",))


def test_arrays_of_objects_are_refused_and_never_unpickled():
    kept = io.BytesIO()
    numpy.save(kept, numpy.array([None], dtype=object), allow_pickle=True)
    header_end = kept.getvalue().index(b"\n") + 1
    forged = kept.getvalue()[:header_end] + pickle.dumps(Bomb())
    with pytest.raises(Unreadable):
        arrays.read_npy(forged)
    assert "cannot be read" in (find("a.npy", forged, to_npy([1.0])) or "")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x01\x00\xff\xff{}",
        b"\x93NUMPY\x01\x00\x10\x00" + b"(" * 16,
        b"\x93NUMPY\x01\x00\x04\x00None",
        to_npy([1.0, 2.0])[:-1],
        to_npy([1.0, 2.0]).replace(b"(2,)", b"(-2,)"[:4]),
        to_npy([1.0]).replace(b"'<f8'", b"'<V8'"),
    ],
)
def test_broken_arrays_are_refused_in_words(content):
    with pytest.raises(Unreadable):
        arrays.read_npy(content)


@pytest.mark.parametrize(
    "header",
    [
        '{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 400]}}',
        '{"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}',
        '{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
        '{"w": {"dtype": "OBJ", "shape": [1], "data_offsets": [0, 4]}}',
        '{"w": 3}',
        "[1]",
        "{",
        "[" * 100_000,
    ],
)
def test_broken_safetensors_are_refused_in_words(header):
    with pytest.raises(Unreadable):
        arrays.read_safetensors(struct.pack("<Q", len(header)) + header.encode() + bytes(4))


def test_an_archive_that_unpacks_to_too_much_is_refused(monkeypatch):
    monkeypatch.setattr(arrays, "UNPACKED_BYTES_MAX", 100_000)
    kept = io.BytesIO()
    with zipfile.ZipFile(kept, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(1_000_000))
    assert len(kept.getvalue()) < 5_000
    with pytest.raises(Unreadable, match="unpacks"):
        arrays.read_npz(kept.getvalue())
    with pytest.raises(Unreadable, match="whole archive"):
        arrays.read_npz(kept.getvalue()[:50])


def test_deeply_nested_json_is_no_way_to_stop_the_auditor():
    deep = b"[" * 100_000 + b"]" * 100_000
    assert "cannot be read" in (find("r.json", deep, deep + b" ") or "")


def test_only_files_with_numbers_are_looked_into():
    ours, theirs = {"a.npy": b"1", "b.txt": b"1"}, {"a.npy": b"2", "b.txt": b"1"}
    assert list_to_compare(ours, theirs, NUMERIC) == ["a.npy"]
    assert list_to_compare(ours, theirs, Comparator()) == "'a.npy' differs"
    assert list_to_compare(ours, {**theirs, "b.txt": b"2"}, NUMERIC) == "'b.txt' differs"
    assert list_to_compare(ours, {"a.npy": b"1"}, NUMERIC) == "only one of the two has 'b.txt'"
    assert list_to_compare(ours, ours, NUMERIC) == []
    assert find_hash_difference(ours, ours) is None


def test_bits_are_asked_for_within_one_numeric_class_only():
    assert may_judge(Comparator(), "x86_64-v3", "x86_64-v3")
    assert not may_judge(Comparator(), "x86_64-v3", "x86_64-v4")
    assert may_judge(Comparator(anywhere=True), "x86_64-v3", "x86_64-v4")
    assert may_judge(NUMERIC, "x86_64-v3", "x86_64-v4")


def test_the_numeric_class_of_a_slot_is_what_the_job_computes_with():
    card = {"name": "RTX 4090", "driver": "555.42", "runtime": "CUDA 12.4"}
    machine = {"cpu_name": "Ryzen 9", "instruction_set": "x86_64-v4-AuthenticAMD", "gpus": [{"name": "A2"}, card]}
    assert find_numeric_class(machine, "cpu:0", uses_gpu=False) == "x86_64-v4-AuthenticAMD"
    assert find_numeric_class(machine, "gpu:1", uses_gpu=False) == "x86_64-v4-AuthenticAMD"
    assert find_numeric_class(machine, "gpu:1", uses_gpu=True) == "RTX 4090/555.42/CUDA 12.4/x86_64-v4-AuthenticAMD"
    assert find_numeric_class({"cpu_name": "Ryzen 9", "gpus": []}, "cpu:0", uses_gpu=False) == "Ryzen 9"

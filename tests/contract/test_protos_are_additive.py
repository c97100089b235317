"""The protocol only grows: what was shipped (proto/shipped.json) keeps its name, number, type and place."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from computepool.hub.rpc.routing import list_declared

ROOT = Path(__file__).resolve().parents[2]


def load_builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_protos", ROOT / "scripts" / "build_protos.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BUILDER = load_builder()
SHIPPED: dict[str, str] = json.loads(BUILDER.SHIPPED.read_text())


def test_everything_that_was_shipped_is_still_as_it_was():
    present = BUILDER.list_contents(BUILDER.read_descriptors())
    assert BUILDER.merge_shipped(SHIPPED, present) == SHIPPED, "something new: run `make generate`"


def test_the_list_holds_every_call_and_the_numbers_of_frames():
    calls = {path.removeprefix("computepool.v1.") for path in SHIPPED if "/" in path}
    assert calls == set(list_declared())
    assert SHIPPED["computepool.v1.Frame#19"] == "content: optional bytes"
    assert SHIPPED["computepool.v1.FrameKind#2"] == "FRAME_KIND_GRADIENT"


# What somebody might do to the files: the text, what stands there instead, and what the refusal must name.
CHANGES: dict[str, tuple[str, str, str]] = {
    "a changed number": (
        "bytes content = 19;",
        "bytes content = 29;",
        "Frame#19 was `content: optional bytes` and is gone",
    ),
    "a changed type": ("uint32 step = 12;", "uint64 step = 12;", "Frame#12"),
    "a changed name": ("string source = 6;", "string origin = 6;", "Frame#6"),
    "a field that is repeated now": ("string dtype = 14;", "repeated string dtype = 14;", "Frame#14"),
    "a number that is used again": ("uint64 offset = 16;", "bytes offset = 16;", "Frame#16"),
    "a field that is gone": ("  fixed32 crc = 18;\n", "", "Frame#18"),
    "a changed enum": ("FRAME_KIND_GRADIENT = 2;", "FRAME_KIND_GRADIENT = 22;", "FrameKind#2"),
    "a call that streams now": (
        "rpc Infer(InferRequest) returns (InferResponse);",
        "rpc Infer(InferRequest) returns (stream InferResponse);",
        "NetworkService/Infer",
    ),
    "a call that is gone": ("  rpc Leave(LeaveRequest) returns (LeaveResponse);\n", "", "MembershipService/Leave"),
    "a field outside of its choice": (
        "    Hello hello = 1;\n",
        "    Hello greeting = 1;\n",
        "HostMessage#1",
    ),
}
ADDED = {
    "a field": ("bytes content = 19;", "bytes content = 19;\n  string comment = 900;"),
    "an enum value": ("FRAME_KIND_GRADIENT = 2;", "FRAME_KIND_GRADIENT = 2;\n  FRAME_KIND_WAVE = 900;"),
    "a call": ("rpc Infer(", "rpc Guess(InferRequest) returns (InferResponse);\n  rpc Infer("),
    "a message": ("message Frame {", "message Wave { string name = 1; }\nmessage Frame {"),
}


@pytest.fixture
def change(tmp_path, monkeypatch):
    """The contents of the .proto files after a change to one of them."""

    def apply(old: str, new: str) -> dict[str, str]:
        copy = tmp_path / "proto"
        shutil.copytree(BUILDER.PROTO, copy)
        path = copy / "computepool/v1/networks.proto"
        text = path.read_text()
        assert text.count(old) == 1, f"the text to change stands there {text.count(old)} times: {old!r}"
        path.write_text(text.replace(old, new))
        real = BUILDER.run_protoc
        monkeypatch.setattr(BUILDER, "run_protoc", lambda *options: real(*options, proto=copy))
        return BUILDER.list_contents(BUILDER.read_descriptors())

    return apply


@pytest.mark.parametrize("name", CHANGES)
def test_control_a_change_that_would_break_programs_out_there_is_caught(change, name):
    old, new, words = CHANGES[name]
    with pytest.raises(BUILDER.BreakingChange, match=re.escape(words)):
        BUILDER.merge_shipped(SHIPPED, change(old, new))


@pytest.mark.parametrize("name", ADDED)
def test_something_new_is_added_to_the_list(change, name):
    merged = BUILDER.merge_shipped(SHIPPED, change(*ADDED[name]))
    assert len(merged) == len(SHIPPED) + 1

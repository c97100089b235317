#!/usr/bin/env python3
"""Builds the Python stubs of proto/ and the list of what was shipped.

    python scripts/build_protos.py           write src/computepool/wire/pb and proto/shipped.json
    python scripts/build_protos.py --check   fail when one of them differs from the .proto files

proto/shipped.json lists every field, enum value and call by its number. New ones are added to it; whatever stands in
it already must stay as it is, and a build that would change it is refused: programs out there speak it.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
SHIPPED = PROTO / "shipped.json"
STUBS = ROOT / "src/computepool/wire/pb"
# protoc puts a package's stubs at the root of all imports, where our own package of that name already is.
IMPORT = re.compile(r"^from computepool\.v1 import", re.MULTILINE)
NOTE = '"""Generated from proto/ by scripts/build_protos.py."""\n'


class BreakingChange(Exception):
    """The .proto files contradict what was shipped."""


def build_stubs() -> dict[Path, str]:
    with tempfile.TemporaryDirectory(prefix="cp-protos-") as folder:
        out = Path(folder)
        run_protoc(f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}")
        found = {path.relative_to(out): path.read_text() for path in out.rglob("*.py*")}
    stubs = {path: IMPORT.sub("from computepool.wire.pb.computepool.v1 import", text) for path, text in found.items()}
    # The package itself stays empty: whoever needs jobs alone does not load the rest.
    return {**stubs, **{Path(folder, "__init__.py"): NOTE for folder in (".", "computepool", "computepool/v1")}}


def read_descriptors() -> descriptor_pb2.FileDescriptorSet:
    with tempfile.TemporaryDirectory(prefix="cp-protos-") as folder:
        out = Path(folder) / "set"
        run_protoc(f"--descriptor_set_out={out}")
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def run_protoc(*options: str, proto: Path = PROTO) -> None:
    files = sorted(str(path.relative_to(proto)) for path in proto.rglob("*.proto"))
    known = str(resources.files("grpc_tools").joinpath("_proto"))
    if protoc.main(["protoc", f"-I{proto}", f"-I{known}", *options, *files]) != 0:
        raise SystemExit("protoc refused the .proto files; its words are above.")


def list_contents(found: descriptor_pb2.FileDescriptorSet) -> dict[str, str]:
    """What programs out there rely on: from a path that never changes (names and numbers) to what stands there."""
    listed: dict[str, str] = {}
    for file in found.file:
        for message in file.message_type:
            _list_message(f"{file.package}.{message.name}", message, listed)
        for enum in file.enum_type:
            _list_enum(f"{file.package}.{enum.name}", enum, listed)
        for service in file.service:
            for call in service.method:
                listed[f"{file.package}.{service.name}/{call.name}"] = (
                    f"{_stream(call.client_streaming)}{call.input_type} -> "
                    f"{_stream(call.server_streaming)}{call.output_type}"
                )
    return listed


def _list_message(name: str, message: Any, listed: dict[str, str]) -> None:
    kinds = descriptor_pb2.FieldDescriptorProto
    for field in message.field:
        kind = field.type_name or kinds.Type.Name(field.type).removeprefix("TYPE_").lower()
        label = kinds.Label.Name(field.label).removeprefix("LABEL_").lower()
        presence = " explicit" if field.proto3_optional else ""
        inside = f" in {message.oneof_decl[field.oneof_index].name}" if field.HasField("oneof_index") else ""
        listed[f"{name}#{field.number}"] = f"{field.name}: {label}{presence} {kind}{inside}"
    for inner in message.nested_type:
        _list_message(f"{name}.{inner.name}", inner, listed)
    for enum in message.enum_type:
        _list_enum(f"{name}.{enum.name}", enum, listed)


def _list_enum(name: str, enum: Any, listed: dict[str, str]) -> None:
    for value in enum.value:
        listed[f"{name}#{value.number}"] = value.name


def _stream(is_stream: bool) -> str:
    return "stream " if is_stream else ""


def merge_shipped(shipped: dict[str, str], present: dict[str, str]) -> dict[str, str]:
    """What was shipped, and what is new. Raises BreakingChange when something shipped is gone or another."""
    faults = [
        f"{path} was `{was}` and is {f'`{present[path]}`' if path in present else 'gone'}"
        for path, was in shipped.items()
        if present.get(path) != was
    ]
    if faults:
        raise BreakingChange(
            "Programs out there speak what was shipped. Add something new instead:\n" + "\n".join(faults)
        )
    return {**shipped, **present}


def build_all() -> dict[Path, str]:
    shipped = json.loads(SHIPPED.read_text()) if SHIPPED.exists() else {}
    merged = merge_shipped(shipped, list_contents(read_descriptors()))
    files = {STUBS / path: text for path, text in build_stubs().items()}
    return {**files, SHIPPED: json.dumps(merged, indent=1, sort_keys=True) + "\n"}


def main() -> int:
    check = "--check" in sys.argv
    try:
        built = build_all()
    except BreakingChange as error:
        print(error, file=sys.stderr)
        return 1
    orphans = {path for path in STUBS.rglob("*.py*") if "__pycache__" not in path.parts} - built.keys()
    drifted = sorted(
        orphans | {path for path, text in built.items() if not path.exists() or path.read_text() != text}
    )
    names = [str(path.relative_to(ROOT)) for path in drifted]
    if check and drifted:
        print("generated files have drifted; run `make generate`:", *names, sep="\n  ", file=sys.stderr)
        return 1
    for path in drifted:
        if path in orphans:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(built[path])
    if drifted and not check:
        print("wrote", *names)
    return 0


if __name__ == "__main__":
    sys.exit(main())

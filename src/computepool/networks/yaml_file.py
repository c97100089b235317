"""Networks as YAML files: the spec's fields, with shorter ways to write sources, inputs and the output.

name: digits
sources: {x: "f32[64]", y: "i64[]"}
vnodes:
  - {id: hidden, block: linear, config: {features: 32}, inputs: ["@x"]}
  - {id: head, block: linear, config: {features: 10}, inputs: [hidden]}
  - {id: loss, block: cross_entropy, inputs: [head, "@y"]}
loss: loss
output: head
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from computepool.core.errors import InvalidSpec
from computepool.core.networks.spec import SPEC_BYTES_MAX, NetworkSpec, OptimizerSpec
from computepool.core.networks.spec_json import from_plain, to_plain

_DEPTH_MAX = 64
_END = re.compile(r"(.+):([0-9]{1,9})\Z")


def read_yaml(path: Path) -> NetworkSpec:
    try:
        with path.open("rb") as file:
            content = file.read(SPEC_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidSpec(
            f"{path} cannot be read: {error.strerror}. Give the path of a network's YAML file."
        ) from None
    if len(content) > SPEC_BYTES_MAX:
        raise InvalidSpec(f"{path} has more than {SPEC_BYTES_MAX:,} bytes. Use fewer, larger blocks.")
    return from_yaml(content)


def write_yaml(spec: NetworkSpec, path: Path) -> None:
    path.write_text(to_yaml(spec), encoding="utf-8")


def from_yaml(text: str | bytes) -> NetworkSpec:
    try:
        plain = yaml.load(text, Loader=_StrictLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InvalidSpec(f"The network is not YAML that can be read: {error}") from None
    if not isinstance(plain, dict):
        raise InvalidSpec("The network's YAML must begin with its fields: name, sources, vnodes, loss, output.")
    return from_plain(_lengthen(plain))


def to_yaml(spec: NetworkSpec) -> str:
    """For a spec without faults. What equals its default is left out."""
    plain = to_plain(spec)
    vnodes = []
    for vnode in plain["vnodes"]:
        inputs = [edge for edge in spec.edges if edge.target == vnode["id"]]
        names = [edge.source + (f":{edge.source_slot}" if edge.source_slot else "") for edge in inputs]
        short = {key: vnode[key] for key in ("id", "block")}
        short |= {"config": vnode["config"]} if vnode["config"] else {}
        short |= {"path": vnode["path"]} if vnode["path"] != vnode["id"] else {}
        vnodes.append({**short, "inputs": names})
    slot = f":{spec.output[1]}" if spec.output[1] else ""
    long = {
        "name": spec.name,
        "seed": spec.seed,
        "sources": {source["name"]: source["type"] for source in plain["sources"]},
        "vnodes": vnodes,
        "loss": spec.loss,
        "output": spec.output[0] + slot,
    }
    optimizer = _changed(plain["optimizer"], OptimizerSpec)
    settings = _changed(plain, NetworkSpec)
    settings = {
        key: value for key, value in settings.items() if key not in long and key not in ("edges", "optimizer")
    }
    content = {**long, **({"optimizer": optimizer} if optimizer else {}), **settings}
    return yaml.safe_dump(content, sort_keys=False, width=118, default_flow_style=None, allow_unicode=True)


def _changed(plain: Mapping[str, Any], cls: type) -> dict[str, Any]:
    """Entries that differ from what the class has without being told."""
    defaults = {field.name: field.default for field in fields(cls)}
    return {
        name: value
        for name, value in plain.items()
        if defaults[name] != (tuple(value) if isinstance(value, list) else value)
    }


def _lengthen(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The shorter ways written out; whatever is of another kind is left for the strict reader to refuse."""
    found = dict(plain)
    if isinstance(found.get("sources"), Mapping):
        found["sources"] = [{"name": name, "type": kind} for name, kind in found["sources"].items()]
    if isinstance(found.get("output"), str):
        found["output"] = list(_split_end(found["output"]))
    edges = found.get("edges", [])
    found["edges"] = edges
    if isinstance(found.get("vnodes"), list) and isinstance(edges, list):
        found["vnodes"] = [_without_inputs(vnode) for vnode in found["vnodes"]]
        found["edges"] = [*edges, *(edge for vnode in plain["vnodes"] for edge in _list_inputs(vnode))]
    return found


def _without_inputs(vnode: object) -> object:
    if not isinstance(vnode, Mapping) or not isinstance(vnode.get("inputs", []), list):
        return vnode
    return {key: value for key, value in vnode.items() if key != "inputs"}


def _list_inputs(vnode: object) -> list[dict[str, Any]]:
    if not isinstance(vnode, Mapping) or not isinstance(vnode.get("inputs"), list):
        return []
    edges = []
    for slot, given in enumerate(vnode["inputs"]):
        source, source_slot = _split_end(given) if isinstance(given, str) else (given, 0)
        edges.append({"source": source, "source_slot": source_slot, "target": vnode.get("id"), "target_slot": slot})
    return edges


def _split_end(text: str) -> tuple[str, int]:
    match = _END.match(text)
    return (match[1], int(match[2])) if match else (text, 0)


class _StrictLoader(yaml.SafeLoader):
    """Refuses keys that stand twice, references (a few lines of which can stand for a million), and great depth."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("references (*name) are not allowed: write out what they stand for")
        depth = getattr(self, "_depth", 0)
        if depth >= _DEPTH_MAX:
            raise yaml.YAMLError(f"it is nested deeper than {_DEPTH_MAX}")
        self._depth = depth + 1
        node = super().compose_node(parent, index)
        self._depth = depth
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if isinstance(name, Hashable) and name in seen:
                raise yaml.YAMLError(f"the key {name!r} stands twice{node.start_mark}")
            seen |= {name} if isinstance(name, Hashable) else set()
        return super().construct_mapping(node, deep=deep)


# YAML 1.1 reads 1e-3 as a word.
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+\Z"), list("-+0123456789")
)

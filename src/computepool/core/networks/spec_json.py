"""A spec as canonical JSON, and back. Reading is strict: everything that is not understood is named, at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from enum import Enum
from math import isfinite
from reprlib import repr as shorten
from typing import Any, TypeVar

from computepool.core.errors import InvalidSpec
from computepool.core.networks.spec import (
    EDGES_MAX,
    SOURCES_MAX,
    SPEC_BYTES_MAX,
    VNODES_MAX,
    ConfigValue,
    Dtype,
    Edge,
    Exactness,
    NetworkSpec,
    OptimizerKind,
    OptimizerSpec,
    Schedule,
    Source,
    TensorType,
    TrustPolicy,
    VNodeSpec,
    find_tensor_type,
)

_T = TypeVar("_T")
_E = TypeVar("_E", bound=Enum)
_ADVICE = {
    "tie": "tied weights are not supported: give each VNode weights of its own",
    "tied": "tied weights are not supported: give each VNode weights of its own",
    "code": "no code travels: describe the network by blocks",
}
_CONFIG_DEPTH_MAX = 32


def to_json(spec: NetworkSpec) -> str:
    """The same text for equal specs: keys sorted, nothing left out, no spaces."""
    return json.dumps(to_plain(spec), sort_keys=True, separators=(",", ":"), allow_nan=False)


def from_json(text: str | bytes) -> NetworkSpec:
    """Refuses what is not a spec; whether it makes sense is for `list_spec_faults`."""
    if len(text) > SPEC_BYTES_MAX:
        raise InvalidSpec(
            f"The spec has {len(text):,} bytes; {SPEC_BYTES_MAX:,} are allowed. Use fewer, larger blocks."
        )
    try:
        plain = json.loads(text, object_pairs_hook=_refuse_double_keys, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidSpec(f"The spec is not JSON: {error}. Write it with to_json, or load it from YAML.") from None
    return from_plain(plain)


def to_plain(spec: NetworkSpec) -> dict[str, Any]:
    """Dicts, lists, strings and numbers only."""
    plain = {field.name: to_plain_value(getattr(spec, field.name)) for field in fields(spec)}
    plain["optimizer"] = {
        field.name: to_plain_value(getattr(spec.optimizer, field.name)) for field in fields(spec.optimizer)
    }
    plain["sources"] = [{"name": source.name, "type": str(source.type)} for source in spec.sources]
    for name, cls in (("vnodes", VNodeSpec), ("edges", Edge)):
        plain[name] = [
            {field.name: to_plain_value(getattr(each, field.name)) for field in fields(cls)}
            for each in getattr(spec, name)
        ]
    return plain


def from_plain(plain: object) -> NetworkSpec:
    reader = _Reader()
    spec = _read_network(reader, plain)
    if reader.faults or spec is None:
        raise InvalidSpec("The network cannot be read: " + "; ".join(reader.faults) + ".", faults=reader.faults)
    return spec


def to_plain_value(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [to_plain_value(each) for each in value]
    if isinstance(value, Mapping):
        return {key: to_plain_value(each) for key, each in value.items()}
    return value


def _refuse_double_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(
            f"the key {next(name for name in names if names.count(name) > 1)!r} stands twice in one object"
        )
    return found


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number that a spec may hold")


class _Reader:
    """Collects what is wrong, so that one reading tells everything."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def table(self, where: str, given: object, known: Sequence[str], *, needed: Sequence[str]) -> dict[str, Any]:
        """The object's keys, without unknown ones; keys that are missing are told of and left out."""
        if not isinstance(given, Mapping):
            self.faults.append(f"{where} must be an object with {', '.join(needed) or ', '.join(known)}")
            return {}
        for key in given:
            if key not in known:
                self.faults.append(f"{where}.{shorten(key)[1:-1]} is unknown; {_advise(key, known)}")
        for key in needed:
            if key not in given:
                self.faults.append(f"{where}.{key} is missing")
        return {key: value for key, value in given.items() if key in known}

    def items(self, where: str, given: object, most: int) -> list[Any]:
        if not isinstance(given, (list, tuple)):
            self.faults.append(f"{where} must be a list")
            return []
        if len(given) > most:
            self.faults.append(f"{where} has {len(given):,} entries; {most:,} are allowed")
            return []
        return list(given)

    def text(self, where: str, given: object) -> str:
        return self._take(where, given, "a string", lambda value: isinstance(value, str), "")

    def whole(self, where: str, given: object) -> int:
        return self._take(where, given, "a whole number", _is_whole, 0)

    def number(self, where: str, given: object) -> float:
        value = self._take(where, given, "a number", lambda value: _is_whole(value) or _is_finite(value), 0.0)
        return float(value) if abs(value) < 1e300 else 1e300

    def word(self, where: str, given: object, enum: type[_E]) -> _E:
        words = [each.value for each in enum]
        text = self._take(where, given, f"one of {', '.join(words)}", lambda value: value in words, words[0])
        return enum(text)

    def _take(self, where: str, given: Any, kind: str, fits: Callable[[Any], bool], otherwise: _T) -> _T:
        if fits(given):
            return given  # type: ignore[no-any-return]
        self.faults.append(f"{where} is {shorten(given)}; it must be {kind}")
        return otherwise


def _read_network(reader: _Reader, plain: object) -> NetworkSpec | None:
    known = [field.name for field in fields(NetworkSpec)]
    needed = ("name", "vnodes", "edges", "sources", "loss", "output")
    given = reader.table("network", plain, known, needed=needed)
    readers: dict[str, Callable[[str, Any], Any]] = {
        "name": reader.text,
        "loss": reader.text,
        "output": lambda where, value: _read_output(reader, value),
        "vnodes": lambda where, value: _read_each(reader, where, value, VNODES_MAX, _read_vnode),
        "edges": lambda where, value: _read_each(reader, where, value, EDGES_MAX, _read_edge),
        "sources": lambda where, value: _read_each(reader, where, value, SOURCES_MAX, _read_source),
        "optimizer": lambda where, value: _read_optimizer(reader, value),
        "wire": lambda where, value: reader.word(where, value, Dtype),
        "exact": lambda where, value: reader.word(where, value, Exactness),
        "trust": lambda where, value: reader.word(where, value, TrustPolicy),
    }
    values = {name: readers.get(name, reader.whole)(name, value) for name, value in given.items()}
    return NetworkSpec(**values) if all(name in values for name in needed) else None


def _read_each(
    reader: _Reader, where: str, given: object, most: int, read: Callable[[_Reader, str, object], _T]
) -> tuple[_T, ...]:
    return tuple(
        read(reader, f"{where}[{number}]", each) for number, each in enumerate(reader.items(where, given, most))
    )


def _read_output(reader: _Reader, given: object) -> tuple[str, int]:
    pair = reader.items("output", given, 2)
    if len(pair) != 2:
        reader.faults.append("output must be a VNode and its slot, such as [head, 0]")
        return "", 0
    return reader.text("output[0]", pair[0]), reader.whole("output[1]", pair[1])


def _read_vnode(reader: _Reader, where: str, given: object) -> VNodeSpec:
    values = reader.table(where, given, ("id", "block", "config", "path"), needed=("id", "block"))
    config = values.get("config", {})
    if not isinstance(config, Mapping):
        reader.faults.append(f"{where}.config must be an object")
        config = {}
    return VNodeSpec(
        id=reader.text(f"{where}.id", values.get("id", "")),
        block=reader.text(f"{where}.block", values.get("block", "")),
        config={str(key): _read_config_value(reader, f"{where}.config.{key}", each) for key, each in config.items()},
        path=reader.text(f"{where}.path", values.get("path", "")),
    )


def _read_config_value(reader: _Reader, where: str, given: object, depth: int = 0) -> ConfigValue:
    if isinstance(given, (bool, int, str)) or _is_finite(given):
        return given  # type: ignore[return-value]
    if depth < _CONFIG_DEPTH_MAX and isinstance(given, (list, tuple)):
        return tuple(
            _read_config_value(reader, f"{where}[{number}]", each, depth + 1) for number, each in enumerate(given)
        )
    if depth < _CONFIG_DEPTH_MAX and isinstance(given, Mapping):
        return {
            str(key): _read_config_value(reader, f"{where}.{key}", each, depth + 1) for key, each in given.items()
        }
    reader.faults.append(f"{where} is {shorten(given)}; it must be a number, a string, true, false or a list of them")
    return 0


def _read_edge(reader: _Reader, where: str, given: object) -> Edge:
    names = ("source", "target", "source_slot", "target_slot")
    values = reader.table(where, given, names, needed=names[:2])
    return Edge(
        source=reader.text(f"{where}.source", values.get("source", "")),
        target=reader.text(f"{where}.target", values.get("target", "")),
        source_slot=reader.whole(f"{where}.source_slot", values.get("source_slot", 0)),
        target_slot=reader.whole(f"{where}.target_slot", values.get("target_slot", 0)),
    )


def _read_source(reader: _Reader, where: str, given: object) -> Source:
    values = reader.table(where, given, ("name", "type"), needed=("name", "type"))
    text = values.get("type", "f32[]")
    found = find_tensor_type(text) if isinstance(text, str) else None
    if found is None:
        dtypes = ", ".join(dtype.value for dtype in Dtype)
        reader.faults.append(f"{where}.type is {shorten(text)}; it is written as f32[3,8,8] or i64[], of {dtypes}")
    return Source(reader.text(f"{where}.name", values.get("name", "")), found or TensorType(()))


def _read_optimizer(reader: _Reader, given: object) -> OptimizerSpec:
    values = reader.table("optimizer", given, [field.name for field in fields(OptimizerSpec)], needed=())
    readers: dict[str, Callable[[str, Any], Any]] = {
        "kind": lambda where, value: reader.word(where, value, OptimizerKind),
        "schedule": lambda where, value: reader.word(where, value, Schedule),
        "betas": lambda where, value: _read_betas(reader, value),
        "warmup_steps": reader.whole,
        "schedule_steps": reader.whole,
        "clip_norm": lambda where, value: None if value is None else reader.number(where, value),
    }
    return OptimizerSpec(
        **{name: readers.get(name, reader.number)(f"optimizer.{name}", value) for name, value in values.items()}
    )


def _read_betas(reader: _Reader, given: object) -> tuple[float, float]:
    pair = reader.items("optimizer.betas", given, 2)
    if len(pair) != 2:
        reader.faults.append("optimizer.betas must be two numbers")
        return 0.9, 0.999
    return reader.number("optimizer.betas[0]", pair[0]), reader.number("optimizer.betas[1]", pair[1])


def _advise(key: object, known: Sequence[str]) -> str:
    if str(key) in _ADVICE:
        return _ADVICE[str(key)]
    close = get_close_matches(str(key), known, n=1)
    return f"did you mean {close[0]}?" if close else f"known are: {', '.join(known)}"


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    return isinstance(value, float) and isfinite(value)

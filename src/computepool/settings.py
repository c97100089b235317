"""Reads a settings class from the environment: once, at start, with every fault reported together.

Hub and agent each declare one frozen msgspec struct; this module fills it, and generates `.env.example` and the
JSON schema from the same class. A misspelt variable is an error with a suggestion, never silently ignored.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec

from computepool.core.errors import InvalidRequest

Settings = TypeVar("Settings", bound=msgspec.Struct)


class InvalidSettings(InvalidRequest):
    code = "invalid_settings"


def load(cls: type[Settings], env: Mapping[str, str], *, prefix: str, **overrides: Any) -> Settings:
    """`overrides` come from the command line and win over the environment; None means "not given"."""
    names = _variable_names(cls, prefix)
    values: dict[str, Any] = {}
    faults = [_explain_unknown(name, names) for name in env if name.startswith(prefix) and name not in names]
    for variable, field in names.items():
        raw = env.get(variable)
        if raw is None or raw == "":
            continue
        try:
            values[field.name] = _convert(raw, field.type)
        except (msgspec.ValidationError, ValueError) as error:
            faults.append(f"{variable}={_mask(variable, raw)}: {error}")
    if faults:
        raise InvalidSettings("The settings cannot be used:\n  " + "\n  ".join(faults))
    values.update({key: value for key, value in overrides.items() if value is not None})
    return msgspec.convert(values, cls)


def describe(cls: type[msgspec.Struct], *, prefix: str) -> list[tuple[str, str, str]]:
    """(variable, default as text, meaning) of every setting, in the order of the class."""
    rows = []
    for variable, field in _variable_names(cls, prefix).items():
        default = "" if field.default in (msgspec.NODEFAULT, None) else _to_text(field.default)
        rows.append((variable, default, _description(field.type)))
    return rows


def json_schema(cls: type[msgspec.Struct], *, prefix: str) -> dict[str, Any]:
    """The environment as a JSON schema: every variable is a string, as environments are."""
    rows = describe(cls, prefix=prefix)
    return {
        variable: {"type": "string", "description": meaning, **({"default": default} if default else {})}
        for variable, default, meaning in rows
    }


def _variable_names(cls: type[msgspec.Struct], prefix: str) -> dict[str, msgspec.structs.FieldInfo]:
    """Each field is PREFIX_FIELD, unless its metadata gives it a well-known name (DATABASE_URL, HUB_URL, PORT)."""
    named = {}
    for field in msgspec.structs.fields(cls):
        extra = _meta(field.type).extra or {} if _meta(field.type) else {}
        named[str(extra.get("env", prefix + field.name.upper()))] = field
    return named


def _meta(kind: Any) -> Any:
    if get_origin(kind) is Annotated:
        return next((m for m in get_args(kind)[1:] if isinstance(m, msgspec.Meta)), None)
    return None


def _description(kind: Any) -> str:
    meta = _meta(kind)
    return (meta.description or "") if meta else ""


def _convert(raw: str, kind: Any) -> Any:
    if get_origin(kind) is Annotated:
        inner = get_args(kind)[0]
    else:
        inner = kind
    options = get_args(inner) if get_origin(inner) in (typing.Union, types.UnionType) else (inner,)
    if bool in options:
        lowered = raw.strip().lower()
        if lowered in ("1", "true", "yes", "on"):
            return True
        if lowered in ("0", "false", "no", "off"):
            return False
        raise ValueError("expected true or false")
    return msgspec.convert(raw, kind, strict=False)


def _explain_unknown(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"{name} is not a setting" + (f"; did you mean {close[0]}?" if close else "")


def _mask(variable: str, raw: str) -> str:
    return "***" if any(word in variable for word in ("SECRET", "KEY", "URL", "PASSWORD")) else repr(raw)


def _to_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(getattr(value, "value", value))

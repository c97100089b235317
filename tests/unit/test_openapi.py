"""The OpenAPI document can be read by a generator: whatever it refers to is in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from computepool.hub.http.app import all_routes
from computepool.hub.http.openapi import build_openapi

HERE = "#/components/schemas/"


def list_dangling(document: Any) -> list[str]:
    known = set(document["components"]["schemas"])
    return sorted({ref for ref in _list_refs(document) if ref.removeprefix(HERE) not in known})


def _list_refs(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for each in part.values():
            yield from _list_refs(each)
    elif isinstance(part, list):
        for each in part:
            yield from _list_refs(each)


def test_every_reference_leads_somewhere() -> None:
    document = json.loads(msgspec.json.encode(build_openapi(all_routes())))
    assert len(list(_list_refs(document))) > 100
    assert list_dangling(document) == []


def test_control_a_reference_into_the_parameter_itself_is_noticed() -> None:
    parameter = {"schema": {"$ref": "#/$defs/JobState", "$defs": {"JobState": {"enum": ["queued"]}}}}
    assert list_dangling({"components": {"schemas": {}}, "paths": [parameter]}) == ["#/$defs/JobState"]

"""The OpenAPI document, made from the same routes that serve the calls."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from computepool import __version__
from computepool.hub.http.routing import Access, Route
from computepool.wire.errors import ErrorBody

_ERRORS = {"400": "Invalid", "401": "Unauthenticated", "403": "Forbidden", "404": "Not found", "409": "Conflict"}
_ERRORS |= {"413": "Too large", "429": "Limit exceeded", "500": "Fault", "503": "Unavailable", "507": "Store full"}


def build_openapi(routes: Iterable[Route]) -> dict[str, Any]:
    routes = [route for route in routes if route.path.startswith("/v1/")]
    types = {t for route in routes for t in (route.body, route.answer) if t is not None} | {ErrorBody}
    ordered = sorted(types, key=lambda t: t.__name__)
    asked = list({field.type: None for route in routes for field in _list_query_fields(route)})
    schemas, components = msgspec.json.schema_components(
        [*ordered, *asked], ref_template="#/components/schemas/{name}"
    )
    # Types of query parameters are no structs: `str | None` is one, and equal types share a schema.
    refs = dict(zip([*ordered, *asked], schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, refs)
    return {
        "openapi": "3.1.0",
        "info": {"title": "ComputePool hub", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "account": {"type": "http", "scheme": "bearer", "description": "API key of an account"},
                "node": {"type": "http", "scheme": "bearer", "description": "node token"},
            },
        },
    }


def _operation(route: Route, refs: dict[Any, Any]) -> dict[str, Any]:
    content = {route.media_type: {"schema": refs[route.answer]}} if route.answer else None
    answers: dict[str, Any] = {
        str(route.status): {"description": "Done", **({"content": content} if content else {})}
    }
    if route.path == "/v1/jobs/next":
        answers["204"] = {"description": "Nothing to do: call again"}
    error = {"application/json": {"schema": refs[ErrorBody]}}
    answers |= {status: {"description": text, "content": error} for status, text in _ERRORS.items()}
    operation: dict[str, Any] = {
        "operationId": route.endpoint.__name__,
        "summary": (route.endpoint.__doc__ or "").split("\n")[0],
        "description": f"Who may call: {route.access.value}.",
        "responses": answers,
    }
    parameters = [_path_parameter(name) for name in re.findall(r"{(\w+)}", route.path)]
    parameters += _query_parameters(route, refs)
    if parameters:
        operation["parameters"] = parameters
    if route.body:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": refs[route.body]}}}
    if route.access is not Access.PUBLIC:
        operation["security"] = [{"node" if route.access is Access.NODE else "account": []}]
    return operation


def _path_parameter(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "format": "uuid"} if name.endswith("_id") else {"type": "string"}
    if name == "index":
        schema = {"type": "integer", "minimum": 0}
    if name == "sha256":
        schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _query_parameters(route: Route, refs: dict[Any, Any]) -> list[dict[str, Any]]:
    return [
        {"name": field.encode_name, "in": "query", "required": field.required, "schema": refs[field.type]}
        for field in _list_query_fields(route)
    ]


def _list_query_fields(route: Route) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(route.query) if route.query else ()

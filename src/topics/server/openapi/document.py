"""The OpenAPI 3.1 document of a server: made from its routes, the structs of its bodies, and its settings.

Nothing is listed twice. Routes say which methods, paths and scopes there are, and which errors follow from them; the
structs say what bodies look like; `openapi_operations` and `openapi_members` add words, examples and what handlers
check by themselves. A route without words fails a test, and so do words without a route.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from topics.engine.names import TOPIC_NAME_PATTERN
from topics.engine.routers.router import ROUTER_NAME_PATTERN
from topics.engine.writing.staging import WRITER_NAME_PATTERN
from topics.errors import (
    Closed,
    Forbidden,
    HeadersTooLarge,
    InvalidRequest,
    NotReady,
    PayloadTooLarge,
    RequestTimeout,
    Throttled,
    TopicsError,
    Unauthorized,
    UnsupportedMediaType,
    UriTooLong,
)
from topics.protocol.error_codes import ERROR_CODES
from topics.protocol.response_body import ErrorEnvelope
from topics.server.auth import scope_names
from topics.server.http.routes import Access, Body, Endpoint, RouteTable
from topics.server.openapi.members import add_limits, meaning
from topics.server.openapi.operations import OPERATIONS, TAGS, Operation, Parameter, Reply
from topics.server.settings_schema import ServerSettings
from topics.version import package_version

OPENAPI_VERSION: Final = "3.1.1"

_NAME_PATTERN: Final = f"^{TOPIC_NAME_PATTERN}$"

_ABOUT: Final = (
    "A durable event log. Bodies are JSON objects; unknown members are ignored, and so are query parameters that make "
    "no sense. Integers are written without a fraction or an exponent. HEAD answers wherever GET does. A failure has a "
    "top-level member `error`; its codes are listed under `x-error-codes`. Unknown paths are `404 not_found`, other "
    "methods `405 method_not_allowed`."
)
_REF: Final = "#/components/schemas/{name}"
_TYPE: Final = "application/json"

# What any request can run into, before it is known what it wants.
_ERRORS_ANYWHERE: Final[tuple[type[TopicsError], ...]] = (
    InvalidRequest,
    Forbidden,
    RequestTimeout,
    UriTooLong,
    HeadersTooLarge,
    TopicsError,
)

_HEADERS_BY_STATUS: Final = {
    401: {"WWW-Authenticate": "`Bearer`."},
    429: {"Retry-After": "Seconds to wait."},
    503: {"Retry-After": "Seconds to wait."},
}


def openapi_document(routes: RouteTable, settings: ServerSettings) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    names: set[str] = set()
    for method, path, endpoint in routes.endpoints():
        # A second path to the same endpoint goes by the path.
        name = endpoint.name if endpoint.name not in names else path.rpartition("/")[2]
        names.add(name)
        paths.setdefault(path, {})[method.lower()] = _operation(name, path, endpoint, settings)
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": "topics", "version": package_version(), "description": _ABOUT, "license": {"name": "MIT"}},
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": description} for name, description in TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": _components(settings),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "An API key of the server."}
            },
        },
        "x-error-codes": [
            {"code": entry.code, "status": entry.status, "meaning": entry.meaning, "retriable": entry.retriable}
            for entry in ERROR_CODES
        ],
    }


# Operations.


def _operation(name: str, path: str, endpoint: Endpoint, settings: ServerSettings) -> dict[str, Any]:
    about = OPERATIONS[endpoint.name]
    made: dict[str, Any] = {"operationId": name, "tags": [about.tag], "summary": about.summary}
    if about.description:
        made["description"] = about.description
    made["security"] = _security(endpoint, settings)
    made["x-scopes"] = scope_names(endpoint.scopes)
    parameters = [_parameter(parameter) for parameter in about.parameters]
    if "{group}" in path:
        parameters.insert(0, _group_parameter(about))
    if "{topic}" in path:
        parameters.insert(0, _name_parameter(about))
    if "{router}" in path:
        parameters.insert(0, _router_parameter(about))
    if "{wid}" in path:
        parameters.insert(0, _session_parameter())
    if "{writer}" in path:
        parameters.insert(0, _writer_parameter())
    if parameters:
        made["parameters"] = parameters
    if about.body is not None:
        made["requestBody"] = _request_body(about, endpoint, settings)
    made["responses"] = _responses(about, endpoint, settings)
    return made


def _security(endpoint: Endpoint, settings: ServerSettings) -> list[dict[str, list[str]]]:
    if not _takes_key(endpoint, settings):
        return []
    # Without keys, authentication is off, and a key that is shown does no harm.
    return [{"bearer": []}] if settings.api_keys.count else [{}, {"bearer": []}]


def _takes_key(endpoint: Endpoint, settings: ServerSettings) -> bool:
    return endpoint.access is Access.KEY or (endpoint.access is Access.PROBE and settings.probe_auth)


def _name_parameter(about: Operation) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "minLength": 1}
    if about.checks_name:
        schema["pattern"] = _NAME_PATTERN
    return {
        "name": "topic",
        "in": "path",
        "required": True,
        "description": "Name of the topic.",
        "schema": schema,
        "example": "parcels",
    }


def _router_parameter(about: Operation) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "minLength": 1}
    if about.checks_name:
        schema["pattern"] = f"^{ROUTER_NAME_PATTERN}$"
    return {
        "name": "router",
        "in": "path",
        "required": True,
        "description": "Name of the router.",
        "schema": schema,
        "example": "parcels->ledger",
    }


def _session_parameter() -> dict[str, Any]:
    return {
        "name": "wid",
        "in": "path",
        "required": True,
        "description": "The watch session.",
        "schema": {"type": "string", "minLength": 1},
        "example": "wid_3sN0v9Xk2m1Qe8aTzYbC7w",
    }


def _writer_parameter() -> dict[str, Any]:
    return {
        "name": "writer",
        "in": "path",
        "required": True,
        "description": "Name of the writer.",
        "schema": {"type": "string", "pattern": f"^{WRITER_NAME_PATTERN}$"},
        "example": "import:parcels",
    }


def _group_parameter(about: Operation) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "minLength": 1}
    if about.checks_name:
        schema["pattern"] = _NAME_PATTERN
    return {
        "name": "group",
        "in": "path",
        "required": True,
        "description": "Name of the consumer group.",
        "schema": schema,
        "example": "billing",
    }


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.description,
        "schema": parameter.schema,
    }


def _request_body(about: Operation, endpoint: Endpoint, settings: ServerSettings) -> dict[str, Any]:
    assert about.body is not None
    content: dict[str, Any] = {"schema": {"$ref": _REF.format(name=about.body.__name__)}}
    if about.body_example is not None:
        content["example"] = about.body_example
    return {
        "description": f"At most {settings.max_body_bytes} bytes, plain or with `Content-Encoding: gzip`.",
        "required": endpoint.body is not Body.OPTIONAL,
        "content": {_TYPE: content},
    }


# Answers.


def _responses(about: Operation, endpoint: Endpoint, settings: ServerSettings) -> dict[str, Any]:
    responses = {str(status): _success(reply) for status, reply in about.replies.items()}
    errors_by_status: dict[int, set[str]] = {}
    for error in (*_ERRORS_ANYWHERE, *_errors_of_route(endpoint, settings), *about.errors):
        errors_by_status.setdefault(error.status, set()).add(error.code)
    for status, codes in sorted(errors_by_status.items()):
        responses[str(status)] = _failure(status, codes)
    return responses


def _errors_of_route(endpoint: Endpoint, settings: ServerSettings) -> Iterable[type[TopicsError]]:
    if _takes_key(endpoint, settings):
        yield from (Unauthorized, Throttled)
    if endpoint.body is not Body.IGNORED:
        yield from (PayloadTooLarge, UnsupportedMediaType)
    if not endpoint.before_ready:
        yield from (NotReady, Closed)


def _success(reply: Reply) -> dict[str, Any]:
    if not reply.has_body:
        return {"description": reply.description}
    schema = {"type": "object"} if reply.shape is None else {"$ref": _REF.format(name=reply.shape.__name__)}
    content: dict[str, Any] = {_TYPE: {"schema": schema}}
    if reply.example is not None:
        content[_TYPE]["example"] = reply.example
    if reply.text_type is not None:
        content = {reply.text_type: {"schema": {"type": "string"}}} | (content if reply.shape is not None else {})
    return {"description": reply.description, "content": content}


def _failure(status: int, codes: set[str]) -> dict[str, Any]:
    meanings = [f"- `{entry.code}`: {entry.meaning}" for entry in ERROR_CODES if entry.code in codes]
    schema = {
        "allOf": [
            {"$ref": _REF.format(name=ErrorEnvelope.__name__)},
            {"properties": {"error": {"properties": {"code": {"enum": sorted(codes)}}}}},
        ]
    }
    made: dict[str, Any] = {
        "description": "\n".join(meanings),
        "content": {_TYPE: {"schema": schema}},
    }
    if status in _HEADERS_BY_STATUS:
        made["headers"] = {
            name: {"description": description, "schema": {"type": "string"}, "required": True}
            for name, description in _HEADERS_BY_STATUS[status].items()
        }
    return made


# Schemas.


def _components(settings: ServerSettings) -> dict[str, Any]:
    shapes: set[type[msgspec.Struct]] = {ErrorEnvelope}
    for about in OPERATIONS.values():
        shapes |= {shape for shape in (about.body, *(reply.shape for reply in about.replies.values())) if shape}
    _, components = msgspec.json.schema_components(sorted(shapes, key=lambda shape: shape.__name__), ref_template=_REF)
    for shape, schema in components.items():
        for member, described in schema["properties"].items():
            text = meaning(shape, member)
            if text is not None:
                described["description"] = text
    add_limits(components, settings, _NAME_PATTERN)
    components["ErrorMembers"]["properties"]["code"]["enum"] = [entry.code for entry in ERROR_CODES]
    return components

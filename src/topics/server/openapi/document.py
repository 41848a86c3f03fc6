"""The OpenAPI 3.1 document of a server, made from its routes, the structs of its bodies, and its settings.

The routes give methods, paths, scopes, and the errors that follow from them. The structs give the bodies and the
meaning of each member. `operations.py` adds words, `examples.json` examples, `schema_limits.py` the limits that
handlers check. A test fails for a route without words, and for words without a route.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from typing import Any, Final, NamedTuple

import msgspec

from topics.engine.names import TOPIC_NAME_PATTERN
from topics.engine.routers.definition import ROUTER_NAME_PATTERN
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
from topics.server.openapi.named_shapes import name_pairs
from topics.server.openapi.operations import OPERATIONS, TAGS, Operation, Parameter, Reply
from topics.server.openapi.schema_limits import add_limits
from topics.server.settings_schema import ServerSettings
from topics.version import VERSION

OPENAPI_VERSION: Final = "3.1.1"

_NAME_PATTERN: Final = f"^{TOPIC_NAME_PATTERN}$"

_ABOUT: Final = (
    "A durable event log. Bodies are JSON objects. The server ignores unknown members, and query parameters with "
    "invalid values. Integers are written without a fraction or an exponent. Every path with GET also has HEAD. A "
    "failure has a top-level member `error`; its codes are listed under `x-error-codes`. An unknown path is `404 "
    "not_found`, an unknown method `405 method_not_allowed`."
)
_REF: Final = "#/components/schemas/{name}"
_TYPE: Final = "application/json"

# Errors that every request can get, before its endpoint is known.
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


def examples() -> dict[str, dict[str, Any]]:
    """Examples by operation, then by `request` or the status of the answer."""
    text = files(__package__).joinpath("examples.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, dict[str, Any]])


def openapi_document(routes: RouteTable, settings: ServerSettings) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    names: set[str] = set()
    examples_by_operation = examples()
    for method, path, endpoint in routes.endpoints():
        # The second path of an endpoint is named after the path.
        name = endpoint.name if endpoint.name not in names else path.rpartition("/")[2]
        names.add(name)
        paths.setdefault(path, {})[method.lower()] = _operation(
            name, path, endpoint, settings, examples_by_operation.get(endpoint.name, {})
        )
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": "topics", "version": VERSION, "description": _ABOUT, "license": {"name": "MIT"}},
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


def _operation(
    name: str, path: str, endpoint: Endpoint, settings: ServerSettings, shown: dict[str, Any]
) -> dict[str, Any]:
    about = OPERATIONS[endpoint.name]
    made: dict[str, Any] = {"operationId": name, "tags": [about.tag], "summary": about.summary}
    if about.description:
        made["description"] = about.description
    made["security"] = _security(endpoint, settings)
    made["x-scopes"] = scope_names(endpoint.scopes)
    parameters = [
        _path_parameter(parameter_name, parameter, about)
        for parameter_name, parameter in _PATH_PARAMETERS.items()
        if f"{{{parameter_name}}}" in path
    ]
    parameters += map(_parameter, about.parameters)
    if parameters:
        made["parameters"] = parameters
    if about.body is not None:
        made["requestBody"] = _request_body(about, endpoint, settings, shown.get("request"))
    made["responses"] = _responses(about, endpoint, settings, shown)
    return made


def _security(endpoint: Endpoint, settings: ServerSettings) -> list[dict[str, list[str]]]:
    if not _takes_key(endpoint, settings):
        return []
    # Without keys, authentication is off, and the server ignores a key in the request.
    return [{"bearer": []}] if settings.api_keys.count else [{}, {"bearer": []}]


def _takes_key(endpoint: Endpoint, settings: ServerSettings) -> bool:
    return endpoint.access is Access.KEY or (endpoint.access is Access.PROBE and settings.probe_auth)


class _PathParameter(NamedTuple):
    description: str
    example: str
    # What a well-formed name looks like; None where any text may be one.
    pattern: str | None = None
    # Some endpoints take an ill-formed name as the name of nothing.
    is_checked_everywhere: bool = False


# In the order in which an operation lists them.
_PATH_PARAMETERS: Final = {
    "writer": _PathParameter("Name of the writer.", "import:parcels", f"^{WRITER_NAME_PATTERN}$", True),
    "wid": _PathParameter("The watch session.", "wid_3sN0v9Xk2m1Qe8aTzYbC7w"),
    "router": _PathParameter("Name of the router.", "parcels->ledger", f"^{ROUTER_NAME_PATTERN}$"),
    "topic": _PathParameter("Name of the topic.", "parcels", _NAME_PATTERN),
    "group": _PathParameter("Name of the consumer group.", "billing", _NAME_PATTERN),
    "stream": _PathParameter("Name or number of the stream.", "orders"),
    "partition": _PathParameter("Number of the partition.", "0"),
}


def _path_parameter(name: str, parameter: _PathParameter, about: Operation) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if parameter.is_checked_everywhere:
        schema["pattern"] = parameter.pattern
    else:
        schema["minLength"] = 1
        if parameter.pattern is not None and about.checks_name:
            schema["pattern"] = parameter.pattern
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": parameter.description,
        "schema": schema,
        "example": parameter.example,
    }


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.description,
        "schema": parameter.schema,
    }


def _request_body(about: Operation, endpoint: Endpoint, settings: ServerSettings, example: Any) -> dict[str, Any]:
    assert about.body is not None
    content: dict[str, Any] = {"schema": {"$ref": _REF.format(name=about.body.__name__)}}
    if example is not None:
        content["example"] = example
    return {
        "description": f"At most {settings.max_body_bytes} bytes, plain or with `Content-Encoding: gzip`.",
        "required": endpoint.body is not Body.OPTIONAL,
        "content": {_TYPE: content},
    }


# Answers.


def _responses(about: Operation, endpoint: Endpoint, settings: ServerSettings, shown: dict[str, Any]) -> dict[str, Any]:
    responses = {str(status): _success(reply, shown.get(str(status))) for status, reply in about.replies.items()}
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


def _success(reply: Reply, example: Any) -> dict[str, Any]:
    if not reply.has_body:
        return {"description": reply.description}
    schema = {"type": "object"} if reply.shape is None else {"$ref": _REF.format(name=reply.shape.__name__)}
    content: dict[str, Any] = {_TYPE: {"schema": schema}}
    if example is not None:
        content[_TYPE]["example"] = example
    if reply.text_type is not None:
        schema = {"type": "string"} if reply.text_type.startswith("text/") else {"type": "string", "format": "binary"}
        content = {reply.text_type: {"schema": schema}} | (content if reply.shape is not None else {})
    return {"description": reply.description, "content": content}


def _failure(status: int, codes: set[str]) -> dict[str, Any]:
    meanings = [f"- `{entry.code}`: {entry.meaning}" for entry in ERROR_CODES if entry.code in codes]
    # The same schema everywhere: a schema for each set of codes would be a model for each answer in generated clients.
    made: dict[str, Any] = {
        "description": "\n".join(meanings),
        "content": {_TYPE: {"schema": {"$ref": _REF.format(name=ErrorEnvelope.__name__)}}},
        "x-error-codes": sorted(codes),
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
    components = name_pairs(components)
    add_limits(components, settings, _NAME_PATTERN)
    components["ErrorMembers"]["properties"]["code"]["enum"] = [entry.code for entry in ERROR_CODES]
    return components

"""The OpenAPI document of a running server, for tests."""

from collections.abc import Iterator
from typing import Any

from tests.server.clients import CLIENTS, HTTP1, Answer, Headers
from tests.server.running import Running


def ask(server: Running, method: str, path: str, body: Any = None, headers: Headers | None = None) -> Answer:
    with CLIENTS[HTTP1](server.host, server.port) as client:
        return client.request(method, path, body, headers)


def fetch_document(server: Running, headers: Headers | None = None) -> dict[str, Any]:
    document: dict[str, Any] = ask(server, "GET", "/v0/openapi.json", headers=headers).json
    return document


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path, and operation."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation

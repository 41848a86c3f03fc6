"""Modules that a server needs and its start does not: HTTP/2, WebSockets and the OpenAPI document.

They take a third of the time that all imports of a server take. A server imports them on another thread once it is
ready, so that the first client that needs one does not wait for it.
"""

from importlib import import_module
from typing import Final

_MODULES: Final = ("topics.server.api.ws_commands", "topics.server.http.http2", "topics.server.openapi.document")


def import_late_modules() -> None:
    for name in _MODULES:
        import_module(name)

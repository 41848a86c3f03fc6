"""Modules that a server needs and its start does not: HTTP/2, WebSockets, and the documents about the server.

They take a third of the time that all imports of a server take. A server imports them on another thread once it is
ready, so that the first client that needs one does not wait for it.
"""

import logging
from importlib import import_module
from typing import Final

logger = logging.getLogger(__name__)

_MODULES: Final = (
    "topics.server.api.ws_commands",
    "topics.server.http.http2",
    "topics.server.openapi.document",
    "topics.server.openapi.streams_document",
)


def import_late_modules() -> None:
    """Without file descriptors it stops. Then a module is imported when a client needs it.

    A module of Python is then not found with an `OSError`, a shared library with an `ImportError`.
    """
    try:
        for name in _MODULES:
            import_module(name)
    except (OSError, ImportError) as error:
        logger.warning("not all modules could be imported ahead of need", extra={"fields": {"reason": str(error)}})

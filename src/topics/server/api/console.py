"""The files of the web console at `/`. They need no key, because they contain no data of the server."""

from __future__ import annotations

from functools import partial

from topics.console.files import SECURITY_HEADERS, ConsoleFile, load_files
from topics.server.app import Application
from topics.server.http.exchange import NOT_MODIFIED, Exchange, Response
from topics.server.http.routes import Access, Endpoint


class ConsoleFiles:
    """Reads the files once, at the start of the server."""

    def __init__(self, app: Application) -> None:
        for file in load_files():
            handler = partial(_answer, file)
            app.routes.add_page(
                file.path, Endpoint("console", handler, access=Access.OPEN, before_ready=True, is_page=True)
            )


def _answer(file: ConsoleFile, exchange: Exchange) -> None:
    # A browser asks again each time, and gets the file only if it has changed.
    headers = ((b"etag", file.etag), (b"cache-control", b"no-cache"), *SECURITY_HEADERS)
    if _has(file, exchange.headers.get(b"if-none-match")):
        exchange.reply(Response(NOT_MODIFIED, b"", file.content_type, headers))
    else:
        exchange.reply(Response(200, file.body, file.content_type, headers))


def _has(file: ConsoleFile, asked: bytes | None) -> bool:
    """Whether the browser has this version of the file."""
    return asked is not None and file.etag in [tag.strip() for tag in asked.split(b",")]

"""HTTP/1.1 as a client speaks it, without a socket: requests as bytes, answers from bytes.

An answer is complete, or it is no answer. An answer that says neither its length nor its end is refused: it could not
be told from one that was cut.
"""

from __future__ import annotations

from typing import Final

import httptools

from topics.limits import KIB

# The first bytes of a body may come with the last ones of the headers.
HEADER_BYTES_MAX: Final = 256 * KIB


class BadAnswer(Exception):
    """The bytes are no answer of an HTTP/1.1 server."""


def request_text(head: bytes, method: str, target: str, body: bytes | None, accept: str | None = None) -> bytes:
    """The bytes of a request. `head` are header lines, each with its line end."""
    lines = b"%b %b HTTP/1.1\r\n%b" % (method.encode("ascii"), target.encode("ascii"), head)
    if accept is not None:
        lines += b"Accept: %b\r\n" % accept.encode("ascii")
    if body is not None:
        return lines + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    return lines + (b"Content-Length: 0\r\n\r\n" if method == "POST" else b"\r\n")


class AnswerReader:
    """Takes the bytes of one answer. `status` and `headers` are there when `has_head` is set."""

    def __init__(self) -> None:
        # The callbacks are methods of an object of its own, so that they are no methods of this class.
        self._parser = httptools.HttpResponseParser(_Callbacks(self))
        self._head_bytes = 0
        self._parts: list[bytes] = []
        self.status = 0
        self.headers: dict[str, str] = {}
        self.has_head = False
        self.is_complete = False
        self.may_be_kept = False

    def feed(self, data: bytes) -> None:
        """Takes bytes from the connection. Raises `BadAnswer`."""
        if not self.has_head:
            self._head_bytes += len(data)
            if self._head_bytes > 2 * HEADER_BYTES_MAX:
                raise BadAnswer("the headers are too long")
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, UnicodeDecodeError) as error:
            raise BadAnswer(f"not an answer of HTTP/1.1: {type(error).__name__}") from error

    def end(self) -> None:
        """The connection has ended. Raises `BadAnswer` unless the answer was complete."""
        if not self.is_complete:
            raise BadAnswer("the connection ended in the middle of an answer" if self.has_head else "no answer came")

    def take_body(self) -> bytes:
        """The bytes of the body that came since the last call."""
        parts, self._parts = self._parts, []
        return b"".join(parts)

    def _on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def _on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self.headers.clear()
            return
        has_end = "content-length" in self.headers or "chunked" in self.headers.get("transfer-encoding", "").lower()
        if not has_end and status not in (204, 304):
            raise BadAnswer("an answer without a length")
        self.status = status
        self.has_head = True
        self.may_be_kept = self._parser.should_keep_alive()

    def _on_body(self, data: bytes) -> None:
        self._parts.append(data)

    def _on_message_complete(self) -> None:
        self.is_complete = self.has_head


class _Callbacks:
    """What the parser calls."""

    def __init__(self, reader: AnswerReader) -> None:
        self.on_header = reader._on_header
        self.on_headers_complete = reader._on_headers_complete
        self.on_body = reader._on_body
        self.on_message_complete = reader._on_message_complete

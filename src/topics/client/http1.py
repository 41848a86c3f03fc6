"""HTTP/1.1 as a client speaks it, without a socket: requests as bytes, answers from bytes.

rule 1  An answer is complete, or it is no answer. An answer that says neither its length nor its end is refused: it
        could not be told from one that was cut.
rule 2  Memory is bounded, whatever the server sends. An answer has a largest number of bytes, and is refused before its
        body is read if it announces more. So has what is around a body: headers, lines of chunks, trailers. A stream
        has no end; who reads it takes its bytes, and bounds its events.
"""

from __future__ import annotations

from typing import Final

import httptools

from topics.client.retrying import AnswerTooLong
from topics.limits import KIB, MIB

# The largest page of a server, with frames of segments, has 64 MiB.
ANSWER_BYTES_MAX: Final = 128 * MIB
# A picture of a whole topic or log comes in one answer, and grows with its number of segments.
PICTURE_BYTES_MAX: Final = 1024 * MIB
# Bytes before the body, or between two pieces of it. The first bytes of a piece may come with the last of them.
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

    def __init__(self, bytes_max: int = ANSWER_BYTES_MAX) -> None:
        # The callbacks are methods of an object of its own, so that they are no methods of this class.
        self._parser = httptools.HttpResponseParser(_Callbacks(self))
        self._bytes_max: int | None = bytes_max
        self._answer_bytes = 0
        # Since the last bytes of the body.
        self._header_bytes = 0
        # Pieces of a list would take far more memory than their bytes if the server sends very small ones.
        self._body = bytearray()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.has_head = False
        self.is_complete = False
        self.may_be_kept = False

    def allow_no_end(self) -> None:
        """The answer is a stream."""
        self._bytes_max = None

    def feed(self, data: bytes) -> None:
        """Takes bytes from the connection. Raises `BadAnswer`, or `AnswerTooLong`."""
        self._answer_bytes += len(data)
        self._header_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, UnicodeDecodeError) as error:
            if isinstance(error.__context__, BadAnswer | AnswerTooLong):
                raise error.__context__ from None
            raise BadAnswer(f"not an answer of HTTP/1.1: {type(error).__name__}") from error
        if self._header_bytes > HEADER_BYTES_MAX:
            raise AnswerTooLong(
                f"the answer has more than {HEADER_BYTES_MAX} bytes before its body, or between two pieces of it"
            )
        if self._bytes_max is not None and self._answer_bytes > self._bytes_max:
            raise AnswerTooLong(f"the answer has more than {self._bytes_max} bytes, the most that a client takes")

    def end(self) -> None:
        """The connection has ended. Raises `BadAnswer` unless the answer was complete."""
        if not self.is_complete:
            raise BadAnswer("the connection ended in the middle of an answer" if self.has_head else "no answer came")

    def take_body(self) -> bytes:
        """The bytes of the body that came since the last call."""
        body, self._body = self._body, bytearray()
        return bytes(body)

    def _on_header(self, name: bytes, value: bytes) -> None:
        if self.has_head:
            return  # A trailer.
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def _on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self.headers.clear()
            return
        length = self.headers.get("content-length")
        has_end = length is not None or "chunked" in self.headers.get("transfer-encoding", "").lower()
        if not has_end and status not in (204, 304):
            raise BadAnswer("an answer without a length")
        if length is not None and self._bytes_max is not None and int(length) > self._bytes_max:
            raise AnswerTooLong(f"the answer announces {length} bytes, and a client takes at most {self._bytes_max}")
        self.status = status
        self.has_head = True
        self.may_be_kept = self._parser.should_keep_alive()

    def _on_body(self, data: bytes) -> None:
        self._header_bytes = 0
        self._body += data

    def _on_message_complete(self) -> None:
        self.is_complete = self.has_head


class _Callbacks:
    """What the parser calls."""

    def __init__(self, reader: AnswerReader) -> None:
        self.on_header = reader._on_header
        self.on_headers_complete = reader._on_headers_complete
        self.on_body = reader._on_body
        self.on_message_complete = reader._on_message_complete

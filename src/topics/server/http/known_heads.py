"""Heads of requests that were parsed before: a client that keeps its connection often repeats the same head.

Equal bytes have an equal meaning, so the result of the parser, with all its checks, is remembered. That saves a third
of a small request (8 of 25 µs). Only plain heads are kept: with a length or without a body, without headers that change
the connection, and without credentials.
"""

from typing import Final, NamedTuple

from topics.server.http.exchange import Exchange

HEADS_MAX: Final = 1024
HEAD_BYTES_MAX: Final = 1024
_NEVER_KEPT: Final = frozenset(
    {b"authorization", b"cookie", b"expect", b"proxy-authorization", b"transfer-encoding", b"upgrade"}
)
_END: Final = b"\r\n\r\n"


class KnownHead(NamedTuple):
    method: bytes
    path: bytes
    query: bytes
    # Shared by all requests with this head, and never changed.
    headers: dict[bytes, bytes]
    # Head and body.
    message_bytes: int


class KnownHeads:
    """Shared by the HTTP/1.1 connections of a server. Loop thread only."""

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[bytes, KnownHead] = {}

    def find(self, data: bytes) -> tuple[KnownHead, int] | None:
        """The known head of the one message in `data`, and the offset of its body."""
        end = data.find(_END, 0, HEAD_BYTES_MAX) + len(_END)
        head = self._heads.get(data[:end])
        if head is None or head.message_bytes != len(data):
            return None
        return head, end

    def learn(self, data: bytes, exchange: Exchange) -> None:
        """Keeps the head of `data`, which is exactly this one request over HTTP/1.1."""
        end = data.find(_END, 0, HEAD_BYTES_MAX) + len(_END)
        headers = exchange.headers
        if len(data) != end + len(exchange.body) or b"token=" in exchange.query or not _NEVER_KEPT.isdisjoint(headers):
            return
        if len(self._heads) >= HEADS_MAX:
            # Too many different heads: all are forgotten, and the frequent ones are soon known again.
            self._heads.clear()
        method = b"HEAD" if exchange.is_head else exchange.method
        self._heads[data[:end]] = KnownHead(method, exchange.path, exchange.query, headers, len(data))

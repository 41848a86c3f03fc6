"""Finds the protocol of a connection by its first bytes: HTTP/2 begins with a preface, otherwise it is HTTP/1.1.

Under TLS, client and server have already agreed on the protocol.
"""

import asyncio
from typing import Final, cast

from topics.server.http.connections import ConnectionSet, Wire
from topics.server.http.http1 import Http1Connection
from topics.server.http.http2_meter import H2_PREFACE
from topics.server.limits import WRITE_HIGH_WATER_BYTES

_TLS_HANDSHAKE: Final = 0x16


class Sniffer(asyncio.Protocol):
    """Reads the first bytes of a connection, then hands it over to its protocol."""

    def __init__(self, connections: ConnectionSet) -> None:
        self._connections = connections
        self._received = b""
        self._begun_s = 0.0
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self._arm(self._connections.timeouts.idle_s)
        if self._connections.is_draining:
            self._transport.abort()
            return
        self._connections.silent.add(self._transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() == "h2":
            self._become_h2(b"")

    def data_received(self, data: bytes) -> None:
        if not self._received:
            self._begun_s = self._connections.loop.time()
            self._arm(self._connections.timeouts.head_s)
        self._received += data
        received = self._received
        if received[:1] == b"P" and H2_PREFACE.startswith(received[: len(H2_PREFACE)]):
            if len(received) >= len(H2_PREFACE):
                self._become_h2(received)
            return
        if received[0] == _TLS_HANDSHAKE:
            peer = self._transport.get_extra_info("peername")
            self._connections.note_tls(str(peer[0]) if peer else "local")
            self._transport.abort()
            return
        wire = Http1Connection(self._connections, self._transport)
        self._become(wire, received)
        wire.note_first_byte(self._begun_s)

    def _arm(self, timeout_s: float) -> None:
        self._disarm()
        self._timer = self._connections.loop.call_later(timeout_s, self._transport.abort)

    def _become_h2(self, received: bytes) -> None:
        # Not needed by a start: see `late_imports`.
        from topics.server.http.http2 import Http2Connection

        self._become(Http2Connection(self._connections, self._transport), received)

    def _become(self, wire: Wire, received: bytes) -> None:
        self._step_aside()
        self._transport.set_protocol(cast(asyncio.Protocol, wire))
        if received:
            wire.data_received(received)

    def connection_lost(self, error: Exception | None) -> None:
        self._step_aside()

    def _step_aside(self) -> None:
        self._connections.silent.discard(self._transport)
        self._disarm()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

"""Connections without sockets: the test hands bytes over, moves the time, and an application notes its calls.

A test sees each turn of the loop, and thousands of connections take no longer than the parsing.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final, cast

from topics.errors import TopicsError
from topics.server.http.connections import ConnectionSet
from topics.server.http.exchange import Exchange, Response, error_response
from topics.server.http.http1 import Http1Connection
from topics.server.http.listener import Sniffer
from topics.server.limits import WRITE_HIGH_WATER_BYTES, Timeouts
from topics.server.metrics import Counters
from topics.server.origins import Headers
from topics.testing.clock import ManualClock

_DATE: Final = re.compile(rb"date: [^\r]*\r\n")


class Handle:
    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._callback = callback
        self._args = args
        self._is_cancelled = False

    def cancel(self) -> None:
        self._is_cancelled = True

    def run(self) -> None:
        if not self._is_cancelled:
            self._callback(*self._args)


class ManualLoop:
    """The part of an event loop that a connection uses. It runs when the test says so."""

    def __init__(self) -> None:
        self._now_s = 1000.0
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._timer_count = 0

    def time(self) -> float:
        return self._now_s

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Handle:
        handle = Handle(callback, args)
        self._ready.append(handle)
        return handle

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> Handle:
        handle = Handle(callback, args)
        self._timer_count += 1
        heappush(self._timers, (self._now_s + delay_s, self._timer_count, handle))
        return handle

    def turn(self) -> bool:
        """One turn: runs what is ready now, not what becomes ready by it. Returns whether there was anything."""
        handles, self._ready = self._ready, deque()
        for handle in handles:
            handle.run()
        return bool(handles)

    def settle(self) -> None:
        while self.turn():
            pass

    def advance(self, seconds: float) -> None:
        end_s = self._now_s + seconds
        while self._timers and self._timers[0][0] <= end_s:
            self._now_s, _, handle = heappop(self._timers)
            handle.run()
            self.settle()
        self._now_s = end_s


class FakeTransport(asyncio.Transport):
    """Keeps what is written. While `takes` is False the bytes stay, as with a client that does not read."""

    def __init__(self, loop: ManualLoop) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self._loop = loop
        self._protocol: asyncio.Protocol
        self._buffered_bytes = 0
        self._is_over_high_water = False
        self._written: list[bytes] = []
        self.takes = True
        self.is_paused = False
        self.has_written_eof = False
        self.is_ended = False
        self.is_aborted = False

    @property
    def written(self) -> bytes:
        return b"".join(self._written)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_ended
        assert not self.has_written_eof
        self._written.append(bytes(data))
        if not self.takes:
            self._buffered_bytes += len(data)
            if self._buffered_bytes > WRITE_HIGH_WATER_BYTES and not self._is_over_high_water:
                self._is_over_high_water = True
                self._protocol.pause_writing()

    def take(self, byte_count: int) -> None:
        """The client reads this many bytes."""
        self._buffered_bytes = max(self._buffered_bytes - byte_count, 0)
        if self._is_over_high_water and self._buffered_bytes <= WRITE_HIGH_WATER_BYTES // 4:
            self._is_over_high_water = False
            self._protocol.resume_writing()
        if self.is_ended and not self._buffered_bytes:
            self._lose()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == WRITE_HIGH_WATER_BYTES

    def get_write_buffer_size(self) -> int:
        return self._buffered_bytes

    def pause_reading(self) -> None:
        assert not self.is_ended
        self.is_paused = True

    def resume_reading(self) -> None:
        assert not self.is_ended
        self.is_paused = False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_written_eof = True

    def close(self) -> None:
        if not self.is_ended:
            self.is_ended = True
            if not self._buffered_bytes:
                self._lose()

    def abort(self) -> None:
        self.is_aborted = True
        if not self.is_ended or self._buffered_bytes:
            self.is_ended = True
            self._lose()

    def _lose(self) -> None:
        self._loop.call_soon(self._protocol.connection_lost, None)

    # Actions of the client.

    def receive(self, data: bytes) -> None:
        if not self.is_ended:
            self._protocol.data_received(data)

    def receive_eof(self) -> None:
        if not self._protocol.eof_received():
            self.close()

    def reset(self) -> None:
        self.is_ended = True
        self._protocol.connection_lost(ConnectionResetError())


class RecordingApp:
    """Notes every exchange. Answers at once; with `holds`, when `release` is called."""

    def __init__(self, *, body_bytes_max: int = 1_000_000) -> None:
        self.body_bytes_max = body_bytes_max
        self.counters = Counters(ManualClock())
        self.refuses: TopicsError | None = None
        self.handled: list[Exchange] = []
        self.refused: list[TopicsError] = []
        self.gone: list[Exchange] = []
        self.hurried: list[Exchange] = []
        self.holds = False
        self.held: deque[Exchange] = deque()
        self.answer_bytes = 0

    def refusal(self, exchange: Exchange) -> TopicsError | None:
        return self.refuses

    def handle(self, exchange: Exchange) -> None:
        self.handled.append(exchange)
        if self.holds:
            self.held.append(exchange)
        else:
            self._answer(exchange)

    def release(self) -> None:
        self._answer(self.held.popleft())

    def _answer(self, exchange: Exchange) -> None:
        exchange.reply(Response(200, b'{"n":%d}' % len(self.handled) + b" " * self.answer_bytes))

    def refuse(self, exchange: Exchange, error: TopicsError) -> None:
        self.refused.append(error)
        self.finish(exchange, error_response(error))

    def hurry(self, exchange: Exchange) -> None:
        self.hurried.append(exchange)

    def finish(self, exchange: Exchange, response: Response) -> None:
        exchange.answered = True
        exchange.connection.send(exchange, response)

    def note_answer(self, exchange: Exchange, status: int) -> None:
        exchange.answered = True

    def origin_headers(self, exchange: Exchange) -> Headers:
        return ()

    def abandon(self, exchange: Exchange) -> None:
        exchange.answered = True
        self.gone.append(exchange)


class Wires:
    """Connections of one server, with a loop and an application of the test."""

    def __init__(self, app: RecordingApp | None = None, timeouts: Timeouts | None = None) -> None:
        self.app = app or RecordingApp()
        self.loop = ManualLoop()
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.connections = ConnectionSet(self.app, loop, ManualClock(), timeouts or Timeouts())

    def connect_unknown(self) -> FakeTransport:
        """A connection whose protocol is not known yet."""
        transport = FakeTransport(self.loop)
        sniffer = Sniffer(self.connections)
        transport.set_protocol(sniffer)
        sniffer.connection_made(transport)
        return transport

    def connect(self) -> FakeTransport:
        transport = FakeTransport(self.loop)
        transport.set_protocol(Http1Connection(self.connections, transport))
        return transport


def without_dates(written: bytes) -> bytes:
    return _DATE.sub(b"", written)

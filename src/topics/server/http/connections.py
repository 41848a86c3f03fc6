"""All connections of a server: deadlines, backpressure, draining.

One timer checks all connections, because a timer per connection would cost more than the requests. A deadline is
absolute: bytes that arrive slowly do not move it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, cast

from mypy_extensions import mypyc_attr

from topics.clock import Clock
from topics.errors import MethodNotAllowed
from topics.server.http.exchange import App, Exchange
from topics.server.http.known_heads import KnownHeads
from topics.server.limits import UNSENT_BYTES_MAX, UNSENT_GRACE_S, Timeouts
from topics.server.logs import RateLimited

logger = logging.getLogger(__name__)

_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def http_date(unix_s: float) -> bytes:
    """The time as the `Date` header has it. `email.utils` would do, but its import takes longer than the rest of a
    small start.
    """
    year, month, day, hour, minute, second, weekday, _, _ = time.gmtime(unix_s)
    text = f"{_DAYS[weekday]}, {day:02} {_MONTHS[month - 1]} {year} {hour:02}:{minute:02}:{second:02} GMT"
    return text.encode()


SWEEPS_PER_TIMEOUT: Final = 8
SWEEP_S_MAX: Final = 1.0
# The bytes that wait are counted at most this often.
UNSENT_COUNT_S: Final = 0.05


class ConnectionSet:
    """Every open connection, and what connections share. Loop thread only."""

    def __init__(self, app: App, loop: asyncio.AbstractEventLoop, clock: Clock, timeouts: Timeouts) -> None:
        self.app = app
        self.loop = loop
        self.timeouts = timeouts
        self.open: set[Wire] = set()
        # Connections whose protocol is not known yet.
        self.silent: set[asyncio.Transport] = set()
        self.is_draining = False
        self.date = b""
        self.date_line = b""
        self.known_heads = KnownHeads()
        # First lines of a usual answer, by status. Cleared when the date changes.
        self.heads: dict[int, bytes] = {}
        # The time of the last sweep: exact enough for deadlines, and it costs no system call.
        self.now_s = 0.0
        # About how many bytes wait for clients. Exact after each count.
        self._unsent_bytes = 0
        self._counted_s = 0.0
        self._empty: asyncio.Future[None] | None = None
        shortest_s = min(
            timeouts.head_s,
            timeouts.body_s,
            timeouts.idle_s,
            timeouts.stalled_s,
            timeouts.ping_s,
            timeouts.pong_s,
        )
        self._sweep_s = min(SWEEP_S_MAX, shortest_s / SWEEPS_PER_TIMEOUT)
        self._tls_on_plain = RateLimited(logger, clock)
        self._sweep()

    def _sweep(self) -> None:
        self.date = http_date(time.time())
        self.date_line = b"date: %b\r\n" % self.date
        self.now_s = now_s = self.loop.time()
        self.heads.clear()
        for connection in list(self.open):
            connection.check_deadlines(now_s)
        self._limit_unsent(now_s)
        self._timer = self.loop.call_later(self._sweep_s, self._sweep)

    def note_unsent(self, count: int) -> None:
        """`count` more bytes may have to wait for a client."""
        self._unsent_bytes += count
        if self._unsent_bytes > UNSENT_BYTES_MAX:
            now_s = self.loop.time()
            if now_s - self._counted_s >= UNSENT_COUNT_S:
                # In the next turn, because the connection is in the middle of its work.
                self._counted_s = now_s
                self.loop.call_soon(self._limit_unsent, now_s)

    @property
    def is_full(self) -> bool:
        """Whether too many bytes wait for clients: a large answer that can wait should wait."""
        if self._unsent_bytes > UNSENT_BYTES_MAX and self.loop.time() - self._counted_s >= UNSENT_COUNT_S:
            self._count_unsent(self.loop.time())
        return self._unsent_bytes > UNSENT_BYTES_MAX

    def _count_unsent(self, now_s: float) -> None:
        self._counted_s = now_s
        self._unsent_bytes = sum([connection.unsent_bytes for connection in self.open])

    def _limit_unsent(self, now_s: float) -> None:
        """Ends connections of clients that take nothing while too many bytes wait, the oldest first."""
        self._count_unsent(now_s)
        if self._unsent_bytes <= UNSENT_BYTES_MAX:
            return
        waiting = [connection for connection in self.open if connection.unsent_bytes and not connection.is_closed]
        for connection in sorted(waiting, key=lambda connection: connection.taken_s):
            if self._unsent_bytes <= UNSENT_BYTES_MAX or now_s - connection.taken_s < UNSENT_GRACE_S:
                break
            self._unsent_bytes -= connection.unsent_bytes
            logger.warning(
                "a client takes nothing, and too many bytes wait: its connection ends",
                extra={"fields": {"peer": connection.peer_host, "bytes": connection.unsent_bytes}},
            )
            connection.give_up()

    def note_tls(self, peer_host: str) -> None:
        self._tls_on_plain.warning("tls", "a client speaks TLS to the plain HTTP port", {"peer": peer_host})

    async def drain(self) -> None:
        """Closes idle connections now and the others after their answer. Aborts what is left after `drain_s`."""
        self.is_draining = True
        for transport in list(self.silent):
            transport.abort()
        for connection in list(self.open):
            connection.drain()
        if self.open:
            self._empty = self.loop.create_future()
            try:
                await asyncio.wait_for(self._empty, self.timeouts.drain_s)
            except TimeoutError:
                logger.warning(
                    "aborting connections that did not end in time", extra={"fields": {"count": len(self.open)}}
                )
        for connection in list(self.open):
            connection.abort()

    def close(self) -> None:
        self._timer.cancel()

    def remove(self, connection: Wire) -> None:
        self.open.discard(connection)
        if not self.open and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)


@mypyc_attr(allow_interpreted_subclasses=True)
class Wire(ABC):
    """What connections of all protocols have in common: deadlines and backpressure.

    It has the methods of `asyncio.Protocol`, and is no subclass of it: such a class is not compiled as a native class.
    """

    def __init__(self, connections: ConnectionSet, transport: asyncio.Transport) -> None:
        self.connections = connections
        self.app = connections.app
        self.loop = connections.loop
        self.transport = transport
        self.is_closed = False
        # The client does not take its answers: the write buffer is above its limit.
        self.is_congested = False
        self._congested_bytes = 0
        self._congested_until_s = 0.0
        self.is_reading_paused = False
        self._paused_s = 0.0
        # Requests of this connection that wait for room.
        self._parked_count = 0
        # When a closed connection is aborted.
        self._gone_by_s = 0.0
        # When the current phase must have ended.
        self._deadline_s: float | None = None
        # What the client is told after the deadline; empty to close without an answer.
        self._late = ""
        self._body_begun_s: float | None = None
        self._body_received = 0
        peer = transport.get_extra_info("peername")
        self.peer_host = str(peer[0]) if isinstance(peer, tuple) and peer else "local"
        connections.open.add(self)
        self.counters = connections.app.counters
        self.counters.connections_total += 1
        self.counters.connections_open += 1
        self.note_idle()

    @property
    def is_draining(self) -> bool:
        return self.connections.is_draining

    # Phases.

    def note_idle(self) -> None:
        self._deadline_s = self.connections.now_s + self.connections.timeouts.idle_s
        self._late = ""

    def note_head_begun(self) -> None:
        self._body_begun_s = None
        self._deadline_s = self.connections.now_s + self.connections.timeouts.head_s
        self._late = "the header took too long"

    def note_first_byte(self, begun_s: float) -> None:
        """A head that is still arriving began at `begun_s`, before the protocol was known."""
        if self._deadline_s is not None and self._late:
            self._deadline_s = min(self._deadline_s, begun_s + self.connections.timeouts.head_s)

    def note_body_begun(self) -> None:
        self._deadline_s = None
        self._body_begun_s = self.connections.now_s
        self._body_received = 0

    def note_body_bytes(self, count: int) -> None:
        self._body_received += count

    def note_message_complete(self) -> None:
        self._deadline_s = None
        self._body_begun_s = None

    def check_deadlines(self, now_s: float) -> None:
        timeouts = self.connections.timeouts
        if self.is_congested:
            left = self.transport.get_write_buffer_size()
            if left < self._congested_bytes:
                self._congested_bytes = left
                # A client that was given up, and now takes the last frame, has time until `_gone_by_s`.
                self._congested_until_s = max(now_s + timeouts.stalled_s, self._gone_by_s)
            elif now_s >= self._congested_until_s:
                self.give_up()
            return
        if self.is_closed:
            if now_s >= self._gone_by_s:
                self.abort()
            return
        if self.is_reading_paused:
            return
        if self._deadline_s is not None and now_s >= self._deadline_s:
            if self._late:
                self.time_out(self._late)
            else:
                self.close()
        elif self._body_begun_s is not None and timeouts.is_body_late(now_s - self._body_begun_s, self._body_received):
            self.time_out("the body came too slowly")

    @abstractmethod
    def data_received(self, data: bytes) -> None: ...

    def eof_received(self) -> bool:
        """False: the transport closes itself."""
        return False

    @abstractmethod
    def time_out(self, reason: str) -> None:
        """The client is too slow: answers so, and closes."""

    @abstractmethod
    def drain(self) -> None:
        """The server stops: closes now if nothing is under way, otherwise after the answer."""

    def step_aside(self, successor: Wire) -> None:
        """Hands the transport over to another protocol. The metrics still count one connection."""
        self.is_closed = True
        self.transport.set_protocol(cast(asyncio.Protocol, successor))
        self.counters.connections_total -= 1
        self.counters.connections_open -= 1
        self.connections.remove(self)

    def upgrade(self, exchange: Exchange, make_wire: MakeWire) -> None:
        """Hands the transport over to another protocol. Raises a `TopicsError` if the request cannot ask for that."""
        raise MethodNotAllowed("WebSockets are opened over HTTP/1.1", allowed="")

    def begin(self, received: bytes) -> None:
        """Takes a connection over from another protocol. `received` are the bytes after its last request."""
        if received:
            self.data_received(received)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for the client in the memory of the server."""
        return self.transport.get_write_buffer_size()

    @property
    def taken_s(self) -> float:
        """When the client last took bytes, as far as that is known."""
        if not self.is_congested:
            return self.connections.now_s
        return self._congested_until_s - self.connections.timeouts.stalled_s

    @property
    def must_wait(self) -> bool:
        return self.connections.is_full

    def write(self, data: bytes) -> None:
        self.counters.bytes_sent += len(data)
        self.transport.write(data)

    # Backpressure and the end.

    def pause_writing(self) -> None:
        self.is_congested = True
        self._congested_bytes = self.transport.get_write_buffer_size()
        self._congested_until_s = self.loop.time() + self.connections.timeouts.stalled_s
        self.connections.note_unsent(self._congested_bytes)

    def resume_writing(self) -> None:
        self.is_congested = False

    @property
    def is_parked(self) -> bool:
        return self._parked_count > 0

    def park(self) -> None:
        self._parked_count += 1
        if not self.is_closed:
            self.note_parked()

    def unpark(self) -> None:
        self._parked_count -= 1
        if not self.is_closed:
            self.note_parked()

    @abstractmethod
    def note_parked(self) -> None:
        """A request began or ended to wait for room: reading and starting requests may have to change."""

    def pause_reading(self) -> None:
        self.is_reading_paused = True
        self._paused_s = self.loop.time()
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Moves the deadlines by the time without reading, which was not the client's fault."""
        self.is_reading_paused = False
        paused_s = self.loop.time() - self._paused_s
        if self._deadline_s is not None:
            self._deadline_s += paused_s
        if self._body_begun_s is not None:
            self._body_begun_s += paused_s
        self.transport.resume_reading()

    def close(self) -> None:
        """Ends the connection when everything that was written has been sent."""
        if not self.is_closed:
            self.is_closed = True
            self._gone_by_s = self.loop.time() + self.connections.timeouts.stalled_s
            self.transport.close()

    def close_after_last_words(self) -> None:
        """Ends the connection of a client that may still send.

        Bytes that arrive and are not read would reset the connection, and the reset can arrive before the last answer.
        So for a short time everything is read, and `data_received` ignores it.
        """
        if self.is_closed:
            return
        if not self.transport.can_write_eof():
            self.close()
            return
        self.is_closed = True
        self._gone_by_s = self.loop.time() + self.connections.timeouts.linger_s
        self.transport.write_eof()
        self.transport.resume_reading()

    def give_up(self) -> None:
        """Ends the connection of a client that took no bytes for too long, with a last frame that says why."""
        if self.is_closed or not self.say_last_words():
            self.abort()
            return
        self.close_after_last_words()
        self._congested_until_s = self._gone_by_s = self.loop.time() + self.connections.timeouts.linger_s

    def say_last_words(self) -> bool:
        """Writes a last frame after the bytes that the client did not take. Returns whether there was one."""
        return False

    def abort(self) -> None:
        self.is_closed = True
        self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        self.counters.connections_open -= 1
        self.connections.remove(self)


# Makes the connection of another protocol. Raises a `TopicsError` to refuse the upgrade.
MakeWire = Callable[[ConnectionSet, asyncio.Transport], Wire]


def upgrade(exchange: Exchange, make_wire: MakeWire) -> None:
    """Answers with another protocol, whose first bytes are the answer. Raises a `TopicsError` if that is refused."""
    assert not exchange.answered
    connection = exchange.connection
    assert isinstance(connection, Wire)
    connection.upgrade(exchange, make_wire)
    exchange.app.note_answer(exchange, 101)

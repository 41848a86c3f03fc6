"""The streams of a server, from its start to its stop: the engine, the port, the connections, the threads.

| Step | What |
|---|---|
| `listen` | takes the port |
| `open_engine` | recovers the data directory. Any thread, because it takes as long as the disk does |
| `accept` | accepts clients. Before `start` they wait for their answers |
| `start` | requests are answered from now on, and the regular work begins |
| `drain` | tells clients that the server stops, after the answers to their running requests |
| `close` | flushes and syncs everything |

This module imports nothing of the engine: a server without streams starts without its packages.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Final

from topics.clock import Clock
from topics.errors import TopicsError
from topics.limits import MIB
from topics.protocol.iggy.frames import LARGE_BYTES_MAX
from topics.server.limits import Timeouts
from topics.server.listening import Listener
from topics.server.settings_schema import ServerSettings, StreamsConfig
from topics.server.streams.config import (
    check_streams,
    read_settings,
    root_user,
    streams_directory,
)
from topics.server.streams.connection import RECEIVED_BYTES_MAX, Connection
from topics.server.streams.counters import StreamsCounters
from topics.server.streams.request_room import RequestRoom
from topics.server.work_pool import WorkPool

if TYPE_CHECKING:
    from topics.server.streams.service import Service
    from topics.streams.running.upkeep_thread import UpkeepThread
    from topics.streams.system import System

logger = logging.getLogger(__name__)

# Requests of up to this size are received into memory of the engine's pool.
POOLED_BYTES_MAX: Final = 4 * MIB

# Large requests of up to this size have a room of their own, so that they do not wait for huge ones, which may take
# long to arrive.
ORDINARY_BYTES_MAX: Final = MIB
# Bytes of requests in each of the two rooms, of all clients together and of one user.
ROOM_BYTES_MAX: Final = 128 * MIB
USER_ROOM_BYTES_MAX: Final = 64 * MIB
# Bytes of requests and of answers of all clients together. Beyond it clients that move nothing for a while lose their
# connections, the one that waits longest first. Clients that have room for which others wait do so, too.
HELD_BYTES_MAX: Final = 256 * MIB
HELD_GRACE_S: Final = 1.0
assert max(LARGE_BYTES_MAX.values()) <= USER_ROOM_BYTES_MAX <= ROOM_BYTES_MAX, "each request can have room"
assert 2 * ROOM_BYTES_MAX <= HELD_BYTES_MAX
SWEEPS_PER_TIMEOUT: Final = 8
SWEEP_S_MAX: Final = 1.0


class StreamsHost:
    """Loop thread only, except for `open_engine`. `system` is None until `start`, and in a server without streams."""

    def __init__(
        self,
        settings: ServerSettings,
        config: StreamsConfig,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        timeouts: Timeouts,
    ) -> None:
        self.loop = loop
        self.counters = StreamsCounters()
        self.received = memoryview(bytearray(RECEIVED_BYTES_MAX))
        self.connections: set[Connection] = set()
        self._ordinary_room = RequestRoom(ROOM_BYTES_MAX, USER_ROOM_BYTES_MAX)
        self._huge_room = RequestRoom(ROOM_BYTES_MAX, USER_ROOM_BYTES_MAX)
        self.system: System | None = None
        # From 0 to 1. Another thread sets it.
        self.recovery_progress = 0.0
        # Host and port of the listener.
        self.address: tuple[str, int] | None = None
        self._settings = settings
        self._config = config
        self._clock = clock
        self._timeouts = timeouts
        self._listener: Listener | None = None
        self._tls: ssl.SSLContext | None = None
        self._service: Service | None = None
        self._upkeep: UpkeepThread | None = None
        self._empty: asyncio.Future[None] | None = None
        self._is_draining = False
        self.linger_s = timeouts.linger_s
        self._sweep_s = min(SWEEP_S_MAX, timeouts.stalled_s / SWEEPS_PER_TIMEOUT)
        self._sweeping: asyncio.TimerHandle | None = None

    @property
    def is_on(self) -> bool:
        """Whether the server has streams: clients of Apache Iggy can connect."""
        return self._listener is not None

    @property
    def directory(self) -> str:
        return streams_directory(self._settings, self._config)

    def room_for(self, size: int) -> RequestRoom:
        """Where a large request of this size gets its room."""
        return self._ordinary_room if size <= ORDINARY_BYTES_MAX else self._huge_room

    def allocate(self, size: int) -> memoryview:
        """Memory for a large request. That of most is used again later. That of a huge one is taken from the system
        when its bytes arrive."""
        if size <= RECEIVED_BYTES_MAX or self.system is None:
            return memoryview(bytearray(size))
        if size <= POOLED_BYTES_MAX:
            with self.system.pool.acquire(size) as buffer:
                # The view keeps the memory out of the pool for as long as it lives.
                return buffer.view[:]
        from numpy import empty, uint8

        return empty(size, uint8).data

    # Start.

    def listen(self, tls: ssl.SSLContext | None) -> None:
        """Takes the port, unless streams are off. Raises `SettingsError` if that is impossible, or not safe."""
        port = self._settings.streams_port
        if port is None:
            return
        check_streams(self._settings, self._config)
        self._tls = tls
        self._listener = Listener(
            self._settings.host, port, advice="choose another TOPICS_STREAMS_PORT for streams, or 0 for any"
        )
        self.address = self._listener.address

    async def accept(self) -> None:
        """Accepts clients. Until `start` they wait for their answers."""
        if self._listener is not None:
            await self._listener.accept(partial(Connection, self), self._tls)

    def open_engine(self, progress: Callable[[float], None]) -> System:
        """Any thread. Raises `StartRefused` if the directory cannot be served."""
        from topics.streams.embedded import open_system

        # The loop needs it next. It takes longer to import than the loop may be busy.
        import_module("topics.server.streams.service")

        return open_system(
            self.directory,
            read_settings(self._config),
            clock=self._clock,
            root_user=root_user(self._config),
            progress=progress,
        )

    def start(self, system: System) -> None:
        """Begins to answer requests, also those of clients that are connected already."""
        from topics.server.streams.service import Service
        from topics.streams.running.upkeep_thread import UpkeepThread

        self.system = system
        self._service = Service(self, system, self._clock)
        self._upkeep = UpkeepThread(system.tick)
        for connection in list(self.connections):
            connection.start(self._service.begin(connection))
        self._sweep()

    def run(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Looks at the streams on a thread, then calls `then` on the loop. `work` raises nothing."""
        assert self._service is not None

        def whole() -> bytes:
            work()
            return b""

        self._service.run("browse", whole, lambda _: then())

    # Connections.

    def _sweep(self) -> None:
        """Ends connections of clients that take nothing of their answers, or leave a request unfinished: after
        `stalled_s`, and earlier while too many bytes are held for all of them, or while others wait for their room. A
        large request that arrives too slowly ends its connection, too."""
        now_s = self.loop.time()
        for connection in self.connections:
            connection.check_stalled(now_s)
        held_bytes = sum(connection.held_bytes for connection in self.connections)
        waiting = [each for each in self.connections if each.unsent_bytes or each.partial_bytes]
        for connection in sorted(waiting, key=lambda connection: connection.moved_s):
            is_urgent = held_bytes > HELD_BYTES_MAX or connection.is_in_the_way
            limit_s = HELD_GRACE_S if is_urgent else self._timeouts.stalled_s
            if now_s - connection.moved_s < limit_s and not connection.is_late(now_s, self._timeouts):
                continue
            held_bytes -= connection.held_bytes
            logger.warning(
                "a client of the streams takes no answer, or does not end its request: its connection ends",
                extra={"fields": {"peer": connection.peer, "bytes": connection.held_bytes}},
            )
            connection.abort()
        self._sweeping = self.loop.call_later(self._sweep_s, self._sweep)

    def note_connected(self, connection: Connection) -> None:
        self.counters.connections_total += 1
        if self._is_draining:
            connection.abort()
            return
        self.connections.add(connection)
        if self._service is not None:
            connection.start(self._service.begin(connection))

    def note_lost(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self._empty is not None and not self.connections and not self._empty.done():
            self._empty.set_result(None)

    # Stop.

    async def drain(self) -> None:
        """Ends all connections: idle ones now, the others after their answers, and the rest after `drain_s`."""
        self._is_draining = True
        if self._listener is None:
            return
        self._listener.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._service is not None:
            self._service.stop()
        for connection in list(self.connections):
            connection.drain()
        if self.connections:
            self._empty = self.loop.create_future()
            try:
                await asyncio.wait_for(self._empty, self._timeouts.drain_s)
            except TimeoutError:
                logger.warning(
                    "aborting connections of streams that did not end in time",
                    extra={"fields": {"count": len(self.connections)}},
                )
        for connection in list(self.connections):
            connection.abort()

    async def close(self) -> None:
        """Flushes and syncs everything, after `drain`."""
        system, self.system = self.system, None
        service, upkeep = self._service, self._upkeep
        if system is None or service is None or upkeep is None:
            return
        closer = WorkPool(1, "topics-streams-close")
        try:
            await self.loop.run_in_executor(closer, _close, system, upkeep)
        except TopicsError as error:
            logger.error("the streams were not all saved", extra={"fields": {"reason": error.message}})
        finally:
            service.shutdown()
            closer.shutdown()


def _close(system: System, upkeep: UpkeepThread) -> None:
    upkeep.stop()
    system.close()

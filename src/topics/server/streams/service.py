"""All clients of the streams, the threads that work for them, and heartbeats."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from topics.clock import Clock
from topics.server.streams.catalog_commands import CATALOG_COMMANDS
from topics.server.streams.connection import Answer, Connection
from topics.server.streams.counters import StreamsCounters
from topics.server.streams.group_commands import GROUP_COMMANDS
from topics.server.streams.offset_commands import OFFSET_COMMANDS
from topics.server.streams.server_commands import SERVER_COMMANDS
from topics.server.streams.session import Handler, Session
from topics.server.streams.user_commands import LOGIN_COMMANDS, USER_COMMANDS
from topics.server.streams.work_threads import WorkThreads
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.system import System

if TYPE_CHECKING:
    from topics.server.streams.host import StreamsHost

logger = logging.getLogger(__name__)

# Sends and polls, which wait for nothing but their partition and its disk.
DATA_THREADS: Final = 8
# Requests that change or list things. Each change waits for the one before.
CONTROL_THREADS: Final = 4
# Looking at streams over HTTP, which may wait for the lock of a slow change: it must not hold up anything else.
BROWSE_THREADS: Final = 2
# Logins and passwords, whose hashes are slow on purpose: many of them must not hold up anything else.
LOGIN_THREADS: Final = 2

# A client whose last ping is older than this many intervals has missed its heartbeats.
_LATE_INTERVALS: Final = 1.2

Done = Callable[[Answer | StreamsError], None]


class Service:
    """Loop thread only."""

    def __init__(self, host: StreamsHost, system: System, clock: Clock) -> None:
        self.host = host
        self.loop: asyncio.AbstractEventLoop = host.loop
        self.system = system
        self.clock = clock
        self.counters: StreamsCounters = host.counters
        # By client id. Other threads may read it.
        self.clients: dict[int, Session] = {}
        self.started_us = clock.now_ms() * 1000
        self.commands: dict[int, tuple[str, Handler]] = {
            **{code: ("control", handler) for code, handler in CATALOG_COMMANDS.items()},
            **{code: ("control", handler) for code, handler in GROUP_COMMANDS.items()},
            **{code: ("control", handler) for code, handler in SERVER_COMMANDS.items()},
            **{code: ("control", handler) for code, handler in USER_COMMANDS.items()},
            **{code: ("login", handler) for code, handler in LOGIN_COMMANDS.items()},
            **OFFSET_COMMANDS,
        }
        self._pools: dict[str, WorkThreads[Answer | StreamsError]] = {
            name: WorkThreads(self.loop, threads_max, f"topics-streams-{name}")
            for name, threads_max in (
                ("data", DATA_THREADS),
                ("control", CONTROL_THREADS),
                ("login", LOGIN_THREADS),
                ("browse", BROWSE_THREADS),
            )
        }
        self._next_client_id = count(1)
        heartbeat = system.settings.heartbeat
        self._heartbeat_s = heartbeat.interval_us / 1e6
        self._heartbeat: asyncio.TimerHandle | None = None
        if heartbeat.enabled:
            self._heartbeat = self.loop.call_later(self._heartbeat_s, self._drop_silent_clients)

    # Clients.

    def begin(self, connection: Connection) -> Session:
        client_id = next(number for number in self._next_client_id if number not in self.clients)
        session = self.clients[client_id] = Session(self, connection, client_id)
        return session

    def note_ended(self, session: Session) -> None:
        self.clients.pop(session.client_id, None)
        if session.has_joined:
            self.forget(session)

    def is_connected(self, client_id: int) -> bool:
        """Any thread."""
        return client_id in self.clients

    def forget(self, session: Session) -> None:
        """The client leaves all its groups."""
        self.run("control", lambda: self._forget(session.client_id), _ignore)

    def _forget(self, client_id: int) -> Answer:
        self.system.forget_client(client_id)
        return b""

    def _drop_silent_clients(self) -> None:
        """Clients that missed their heartbeats leave the register and their groups. Their connections stay."""
        earliest_s = self.loop.time() - _LATE_INTERVALS * self._heartbeat_s
        for session in list(self.clients.values()):
            if session.pinged_s < earliest_s:
                session.is_registered = False
                self.note_ended(session)
        self._heartbeat = self.loop.call_later(self._heartbeat_s, self._drop_silent_clients)

    # Threads.

    def run(self, pool: str, work: Callable[[], Answer], done: Done) -> None:
        """Runs `work` on a thread, then `done` on the loop with its result, or with its error."""
        self._pools[pool].run(partial(_result, work), done)

    # Stop.

    def stop(self) -> None:
        """No regular work begins any more."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()

    def shutdown(self) -> None:
        """Ends the threads."""
        for pool in self._pools.values():
            pool.shutdown()


def _result(work: Callable[[], Answer]) -> Answer | StreamsError:
    try:
        return work()
    except StreamsError as error:
        return error
    except Exception:
        logger.exception("a request of a client of the streams failed")
        return StreamsError(StreamStatus.ERROR, "something went wrong in the server")


def _ignore(_result: Answer | StreamsError) -> None:
    """For work without an answer."""

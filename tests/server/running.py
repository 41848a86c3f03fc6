"""A real server for tests: on a thread with its own loop, on a free port, with a data directory of the test."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from topics.clock import Clock
from topics.errors import TopicsError
from topics.server.event_loop import new_event_loop
from topics.server.limits import Timeouts
from topics.server.serve import OpenLog, Server
from topics.server.settings_schema import KeyList, ServerSettings, StreamsConfig

T = TypeVar("T")
PATIENCE_S = 30


class Running:
    """A server that listens. `call` runs a coroutine on its loop."""

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop, host: str, port: int) -> None:
        self.server = server
        self.loop = loop
        self.host = host
        self.port = port

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=PATIENCE_S)


@contextmanager
def running(
    data_dir: Path | str,
    *,
    keys: str = "",
    timeouts: Timeouts | None = None,
    clock: Clock | None = None,
    open_log: OpenLog | None = None,
    recovers: bool = True,
    streams_table: Mapping[str, Any] | None = None,
    streams_environ: Mapping[str, str] | None = None,
    **settings: Any,
) -> Iterator[Running]:
    """Serves until the block ends, then stops as SIGTERM would. `recovers=False` leaves the log closed."""
    wanted = ServerSettings(**{"port": 0, "data_dir": str(data_dir), "api_keys": KeyList(keys)} | settings)
    loop = new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="server-loop")
    thread.start()

    async def start() -> tuple[Server, str, int]:
        streams = StreamsConfig(table=streams_table or {}, environ=streams_environ or {})
        server = Server(wanted, streams=streams, timeouts=timeouts, clock=clock, open_log=open_log)
        server.listen()
        if recovers:
            try:
                await server.recover()
            except TopicsError:
                await server.stop()
                raise
        await server.accept()
        return server, *server.address

    try:
        server, host, port = asyncio.run_coroutine_threadsafe(start(), loop).result(PATIENCE_S)
        try:
            yield Running(server, loop, host, port)
        finally:
            asyncio.run_coroutine_threadsafe(server.stop(), loop).result(PATIENCE_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()

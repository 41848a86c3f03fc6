"""Open streams (SSE and WebSocket): their limits, and their end when the server stops."""

from __future__ import annotations

from collections.abc import Callable

from topics.errors import Throttled
from topics.server.auth import FULL_ACCESS, Key
from topics.server.metrics import Counters
from topics.server.settings_schema import ServerSettings


class OpenStreams:
    """Loop thread only. A limit of 0 means no limit."""

    def __init__(self, settings: ServerSettings, counters: Counters) -> None:
        self._max = settings.max_sse_connections
        self._max_per_key = settings.max_sse_connections_per_key
        self._counters = counters
        self._closers: dict[object, Callable[[], None]] = {}

    def check(self, key: Key) -> None:
        """Raises `Throttled` when the key may open no more streams."""
        if self._max and len(self._closers) >= self._max:
            raise Throttled("there are too many streams")
        if self._max_per_key and key is not FULL_ACCESS and key.streams >= self._max_per_key:
            raise Throttled("this key has too many streams")

    def add(self, key: Key, close: Callable[[], None]) -> Callable[[], None]:
        """Counts a stream that passed `check`. `close` ends the stream when the server stops.

        The caller calls the returned function when the stream has ended. A second call does nothing.
        """
        place = object()
        self._closers[place] = close
        self._counters.sse_connections += 1
        key.streams += 1

        def remove() -> None:
            if self._closers.pop(place, None) is not None:
                self._counters.sse_connections -= 1
                key.streams -= 1

        return remove

    def close_all(self) -> None:
        """The server stops: each stream tells its client, and ends."""
        for close in list(self._closers.values()):
            close()

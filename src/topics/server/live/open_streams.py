"""Streams that are open: SSE and WebSocket connections, how many there may be, and how they end with the server."""

from __future__ import annotations

from collections.abc import Callable

from topics.errors import Throttled
from topics.server.auth import FULL_ACCESS, Key
from topics.server.metrics import Counters
from topics.server.settings_schema import ServerSettings


class OpenStreams:
    """Loop thread only. A cap of 0 is none."""

    def __init__(self, settings: ServerSettings, counters: Counters) -> None:
        self._max = settings.max_sse_connections
        self._max_per_key = settings.max_sse_connections_per_key
        self._counters = counters
        self._closers: dict[object, Callable[[], None]] = {}

    def check(self, key: Key) -> None:
        """Raises `Throttled` when there is no room for another one of the key."""
        if self._max and len(self._closers) >= self._max:
            raise Throttled("there are too many streams")
        if self._max_per_key and key is not FULL_ACCESS and key.streams >= self._max_per_key:
            raise Throttled("this key has too many streams")

    def add(self, key: Key, close: Callable[[], None]) -> Callable[[], None]:
        """Counts a stream, after `check`. `close` ends it when the server stops. To be called when it ended: the
        function that this gives back; calling it again does nothing."""
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
        """The server stops: each stream says so, and ends."""
        for close in list(self._closers.values()):
            close()

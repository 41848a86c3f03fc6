"""Open streams (SSE and WebSocket): their limits, and their end when the server stops or their key is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from topics.errors import Throttled
from topics.server.auth import FULL_ACCESS, Key
from topics.server.metrics import Counters
from topics.server.settings_schema import ServerSettings


class StreamEnd(NamedTuple):
    """Why the server ends a stream: code and message of the last frame."""

    code: str
    message: str


STOPPING: Final = StreamEnd("server_shutting_down", "the server stops; connect again")
KEY_GONE: Final = StreamEnd("unauthorized", "the key was removed, or has other rights now; connect with a valid key")

Close = Callable[[StreamEnd], None]


class OpenStreams:
    """Loop thread only. A limit of 0 means no limit."""

    def __init__(self, counters: Counters) -> None:
        self._max = 0
        self._max_per_key = 0
        self._counters = counters
        self._closers: dict[object, tuple[Key, Close]] = {}

    def limit(self, settings: ServerSettings) -> None:
        self._max = settings.max_sse_connections
        self._max_per_key = settings.max_sse_connections_per_key

    def check(self, key: Key) -> None:
        """Raises `Throttled` when the key may open no more streams."""
        if self._max and len(self._closers) >= self._max:
            raise Throttled("there are too many streams")
        if self._max_per_key and key is not FULL_ACCESS and key.streams >= self._max_per_key:
            raise Throttled("this key has too many streams")

    def add(self, key: Key, close: Close) -> Callable[[], None]:
        """Counts a stream that passed `check`. `close` tells its client why, and ends the stream.

        The caller calls the returned function when the stream has ended. A second call does nothing.
        """
        place = object()
        self._closers[place] = (key, close)
        self._counters.sse_connections += 1
        key.streams += 1

        def remove() -> None:
            if self._closers.pop(place, None) is not None:
                self._counters.sse_connections -= 1
                key.streams -= 1

        return remove

    def close_all(self) -> None:
        """The server stops: each stream tells its client, and ends."""
        for _, close in list(self._closers.values()):
            close(STOPPING)

    def close_of(self, keys: set[Key]) -> int:
        """These keys are gone: their streams end. Returns how many."""
        ended = [close for key, close in self._closers.values() if key in keys]
        for close in ended:
            close(KEY_GONE)
        return len(ended)

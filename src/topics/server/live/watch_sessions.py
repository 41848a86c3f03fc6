"""Watch sessions: the topics that a client watches, and the cursor of each.

A session stays when its stream ends, so that a client can connect again and continue. It ends with the process. Loop
thread only.
"""

from __future__ import annotations

import base64
import hmac
import os
from collections import OrderedDict
from typing import Final

from topics.clock import Clock
from topics.errors import Throttled
from topics.server.auth import Key
from topics.server.live.reading import ReadOptions
from topics.server.metrics import Counters

SESSION_TTL_MS: Final = 300_000
TICKET_TTL_MS: Final = 30_000
_SECRET_BYTES: Final = 16


class Watched:
    """One topic of a session."""

    __slots__ = ("cursor", "topic_id")

    def __init__(self, topic_id: int, cursor: int) -> None:
        # Number of the topic that the cursor belongs to.
        self.topic_id = topic_id
        # The last seq that was handed to a transport, or skipped.
        self.cursor = cursor


class WatchSession:
    __slots__ = (
        "accessed_ms",
        "heartbeat_ms",
        "is_strong",
        "key",
        "open_count",
        "options",
        "prefixes",
        "ticket",
        "ticket_until_ms",
        "topics",
        "wid",
    )

    def __init__(self, key: Key, options: ReadOptions, heartbeat_ms: int, *, is_strong: bool = False) -> None:
        self.wid = "wid_" + _secret()
        # The key that made the session. Only this key may open its stream.
        self.key = key
        self.options = options
        self.heartbeat_ms = heartbeat_ms
        # Only synced records are pushed.
        self.is_strong = is_strong
        # By name.
        self.topics: dict[str, Watched] = {}
        # Every topic whose name begins with one of these is watched, also if it is created later.
        self.prefixes: tuple[str, ...] = ()
        self.open_count = 0
        self.accessed_ms = 0
        # Opens the stream once, instead of the key; None when it was used.
        self.ticket: str | None = None
        self.ticket_until_ms = 0

    def wants(self, name: str) -> bool:
        """Whether a new topic of this name is watched."""
        return bool(self.prefixes) and name.startswith(self.prefixes)

    def cursors(self) -> dict[str, int]:
        return {name: watched.cursor for name, watched in self.topics.items()}


class WatchSessions:
    def __init__(self, clock: Clock, counters: Counters, sessions_max: int) -> None:
        self._clock = clock
        self._counters = counters
        # 0 = unlimited.
        self.sessions_max = sessions_max
        self._by_wid: dict[str, WatchSession] = {}
        # Sessions without a stream, the oldest access first.
        self._idle: OrderedDict[str, WatchSession] = OrderedDict()

    def check_room(self) -> None:
        self._remove_expired()
        if self.sessions_max and len(self._by_wid) >= self.sessions_max:
            raise Throttled(
                f"there are {self.sessions_max} watch sessions already",
                {"limit": "max_watch_sessions", "max": self.sessions_max},
            )

    def add(self, session: WatchSession, *, with_ticket: bool) -> None:
        now_ms = self._clock.monotonic_ms()
        if with_ticket:
            session.ticket = "ticket_" + _secret()
            session.ticket_until_ms = now_ms + TICKET_TTL_MS
        session.accessed_ms = now_ms
        self._by_wid[session.wid] = self._idle[session.wid] = session
        self._counters.watch_sessions = len(self._by_wid)

    def find(self, wid: str) -> WatchSession | None:
        self._remove_expired()
        return self._by_wid.get(wid)

    def has_ticket(self, session: WatchSession, given: bytes) -> bool:
        """Whether this is the session's ticket and is still valid. The ticket stays valid until a stream is opened."""
        ticket = session.ticket
        if ticket is None or self._clock.monotonic_ms() >= session.ticket_until_ms:
            return False
        return hmac.compare_digest(ticket.encode(), given)

    def open(self, session: WatchSession) -> None:
        session.open_count += 1
        session.accessed_ms = self._clock.monotonic_ms()
        self._idle.pop(session.wid, None)

    def close(self, session: WatchSession) -> None:
        session.open_count -= 1
        session.accessed_ms = self._clock.monotonic_ms()
        if session.open_count == 0:
            self._idle[session.wid] = session

    def _remove_expired(self) -> None:
        oldest_ms = self._clock.monotonic_ms() - SESSION_TTL_MS
        while self._idle:
            wid, session = next(iter(self._idle.items()))
            if session.accessed_ms > oldest_ms:
                break
            del self._idle[wid], self._by_wid[wid]
        self._counters.watch_sessions = len(self._by_wid)


def _secret() -> str:
    """22 random characters."""
    return base64.urlsafe_b64encode(os.urandom(_SECRET_BYTES)).rstrip(b"=").decode()

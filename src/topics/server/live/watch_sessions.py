"""Watch sessions: what a client wants to follow, and how far it has come (http-api.md §14.2).

A session outlives its streams, so that a client that lost its connection goes on where it was. It does not outlive
the process. Loop thread only.
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
from topics.server.live.delivery import ReadOptions
from topics.server.metrics import Counters

SESSION_TTL_MS: Final = 300_000
TICKET_TTL_MS: Final = 30_000
_SECRET_BYTES: Final = 16


class Watched:
    """One topic of a session."""

    __slots__ = ("cursor", "topic_id")

    def __init__(self, topic_id: int, cursor: int) -> None:
        # The instance that the cursor counts in.
        self.topic_id = topic_id
        # Last seq that was handed to a transport, or skipped.
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
        # Who made it: nobody else may open it.
        self.key = key
        self.options = options
        self.heartbeat_ms = heartbeat_ms
        # Only what is synced is pushed.
        self.is_strong = is_strong
        # By name.
        self.topics: dict[str, Watched] = {}
        # Topics whose names begin so belong to it too, also those that come later.
        self.prefixes: tuple[str, ...] = ()
        self.open_count = 0
        self.accessed_ms = 0
        # Opens the stream once, in place of the key; None once it has.
        self.ticket: str | None = None
        self.ticket_until_ms = 0

    def wants(self, name: str) -> bool:
        """Whether a topic that is new has to be added."""
        return bool(self.prefixes) and name.startswith(self.prefixes)

    def cursors(self) -> dict[str, int]:
        return {name: watched.cursor for name, watched in self.topics.items()}


class WatchSessions:
    def __init__(self, clock: Clock, counters: Counters, sessions_max: int) -> None:
        self._clock = clock
        self._counters = counters
        # 0 = unlimited.
        self._max = sessions_max
        self._by_wid: dict[str, WatchSession] = {}
        # Those without a stream, by their last access: the first ones go first.
        self._idle: OrderedDict[str, WatchSession] = OrderedDict()

    def check_room(self) -> None:
        self._collect()
        if self._max and len(self._by_wid) >= self._max:
            raise Throttled(
                f"there are {self._max} watch sessions already", {"limit": "max_watch_sessions", "max": self._max}
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
        self._collect()
        return self._by_wid.get(wid)

    def has_ticket(self, session: WatchSession, given: bytes) -> bool:
        """Whether this is the session's ticket, and still good. Opening the stream uses it up."""
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

    def _collect(self) -> None:
        oldest_ms = self._clock.monotonic_ms() - SESSION_TTL_MS
        while self._idle:
            wid, session = next(iter(self._idle.items()))
            if session.accessed_ms > oldest_ms:
                break
            del self._idle[wid], self._by_wid[wid]
        self._counters.watch_sessions = len(self._by_wid)


def _secret() -> str:
    """22 characters that nobody guesses."""
    return base64.urlsafe_b64encode(os.urandom(_SECRET_BYTES)).rstrip(b"=").decode()

"""The life of watch sessions."""

from typing import Any

import pytest

from topics.errors import Throttled
from topics.server.auth import FULL_ACCESS
from topics.server.live.reading import ReadOptions
from topics.server.live.watch_sessions import SESSION_TTL_MS, TICKET_TTL_MS, WatchSession, WatchSessions
from topics.server.metrics import Counters
from topics.testing.clock import ManualClock


class Sessions:
    """`WatchSessions` with the clock of the test."""

    def __init__(self, sessions_max: int = 0) -> None:
        self.clock = ManualClock()
        self.counters = Counters(self.clock)
        self._sessions = WatchSessions(self.clock, self.counters, sessions_max)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sessions, name)

    def new(self, *, with_ticket: bool = False) -> WatchSession:
        session = WatchSession(FULL_ACCESS, ReadOptions(1, 1), 1000)
        self.check_room()
        self.add(session, with_ticket=with_ticket)
        return session


def test_a_session_is_found_until_nobody_asked_for_it_for_its_time() -> None:
    sessions = Sessions()
    session = sessions.new()
    sessions.clock.advance(SESSION_TTL_MS - 1)
    assert sessions.find(session.wid) is session
    sessions.clock.advance(1)
    assert sessions.find(session.wid) is None
    assert sessions.counters.watch_sessions == 0


def test_a_session_with_a_stream_stays_and_its_time_begins_with_the_end_of_the_last_one() -> None:
    sessions = Sessions()
    session = sessions.new()
    sessions.open(session)
    sessions.open(session)
    sessions.close(session)
    sessions.clock.advance(10 * SESSION_TTL_MS)
    assert sessions.find(session.wid) is session
    sessions.close(session)
    sessions.clock.advance(SESSION_TTL_MS - 1)
    assert sessions.find(session.wid) is session
    sessions.clock.advance(1)
    assert sessions.find(session.wid) is None


def test_sessions_are_collected_in_the_order_of_their_last_access() -> None:
    sessions = Sessions()
    old, reopened, young = sessions.new(), sessions.new(), sessions.new()
    sessions.clock.advance(SESSION_TTL_MS - 1)
    sessions.open(reopened)
    sessions.close(reopened)
    sessions.open(young)
    sessions.clock.advance(1)
    assert [sessions.find(one.wid) is one for one in (old, reopened, young)] == [False, True, True]
    assert sessions.counters.watch_sessions == 2


def test_the_cap_counts_what_is_there_after_the_old_ones_have_gone() -> None:
    sessions = Sessions(sessions_max=2)
    sessions.new()
    sessions.new()
    with pytest.raises(Throttled):
        sessions.check_room()
    sessions.clock.advance(SESSION_TTL_MS)
    sessions.new()
    assert sessions.counters.watch_sessions == 1


def test_a_ticket_is_its_sessions_and_for_a_while() -> None:
    sessions = Sessions()
    session, other = sessions.new(with_ticket=True), sessions.new(with_ticket=True)
    assert session.ticket is not None
    assert sessions.has_ticket(session, session.ticket.encode())
    assert not sessions.has_ticket(other, session.ticket.encode())
    assert not sessions.has_ticket(sessions.new(), b"")
    sessions.clock.advance(TICKET_TTL_MS)
    assert not sessions.has_ticket(session, session.ticket.encode())
    assert session.wid != other.wid

"""Heartbeats without a server. The test moves the time."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from tests.server.wires import ManualLoop
from topics.server.api.work import HEARTBEAT_S
from topics.server.http.exchange import Stream
from topics.server.live.sse_feed import Heartbeat


class NotingStream(Stream):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.takes = True

    @property
    def is_ready(self) -> bool:
        return self.takes

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def end(self) -> None:
        self.is_over = True


class Silence:
    """A stream, its heartbeat, and the time."""

    def __init__(self, interval_s: float) -> None:
        self.loop = ManualLoop()
        self.stream = NotingStream()
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.heartbeat = Heartbeat(self.stream, loop, interval_s, lambda: 1_790_000_009_000)

    def beats(self, seconds: float) -> int:
        """How many heartbeats come in this time."""
        self.stream.sent.clear()
        self.loop.advance(seconds)
        assert set(self.stream.sent) <= {b": hb 1790000009000\n\n"}
        return len(self.stream.sent)


@pytest.fixture
def silence() -> Silence:
    return Silence(15.0)


def test_the_interval_of_pushed_jobs_is_that_of_the_contract() -> None:
    assert HEARTBEAT_S == 15


def test_a_comment_comes_after_each_interval_without_output(silence: Silence) -> None:
    assert silence.beats(14.9) == 0
    assert silence.beats(0.2) == 1
    assert silence.beats(45) == 3


def test_output_puts_the_next_one_off(silence: Silence) -> None:
    silence.beats(10)
    silence.heartbeat.note_output()
    assert silence.beats(14.9) == 0
    assert silence.beats(0.2) == 1


def test_a_client_that_takes_nothing_gets_no_more_to_take(silence: Silence) -> None:
    silence.stream.takes = False
    assert silence.beats(60) == 0
    silence.stream.takes = True
    assert silence.beats(15) == 1


def test_a_stream_that_ended_has_none(silence: Silence) -> None:
    silence.heartbeat.stop()
    assert silence.beats(60) == 0

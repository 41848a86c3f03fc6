"""Events out of the bytes of a stream."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.protocol import sse, sse_reader
from topics.protocol.sse_reader import SseEvent, SseReader, StreamTooLong

STREAM = sse.RETRY + sse.id_line(b"abc") + sse.event_text(b"record", b'{"a":1}') + sse.comment(b"hb 1")
STREAM += sse.event_text(b"caught-up", b"{}") + b"data: one\ndata:two\n\n"
EVENTS = [SseEvent("record", b'{"a":1}', "abc"), SseEvent("caught-up", b"{}"), SseEvent("message", b"one\ntwo")]


@given(st.lists(st.integers(0, len(STREAM)), max_size=5))
def test_any_split_gives_the_same_events(cuts: list[int]) -> None:
    reader = SseReader()
    places = [0, *sorted(cuts), len(STREAM)]
    found = [event for start, end in pairwise(places) for event in reader.feed(STREAM[start:end])]
    assert found == EVENTS


def test_line_ends_of_a_proxy_are_understood() -> None:
    assert SseReader().feed(STREAM.replace(b"\n", b"\r\n")) == EVENTS


def test_an_event_without_an_end_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse_reader, "EVENT_BYTES_MAX", 100)
    reader = SseReader()
    assert reader.feed(b"data: " + b"x" * 90) == []
    with pytest.raises(StreamTooLong):
        reader.feed(b"x" * 20)

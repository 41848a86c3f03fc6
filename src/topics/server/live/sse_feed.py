"""A watch stream: the hub's deliveries as server-sent events.

The cursors belong to the session. A cursor moves when its frame is handed to the transport. The id of a frame holds all
cursors after that frame. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import msgspec

from topics.limits import U64_MAX
from topics.protocol.record_text import json_string
from topics.protocol.sse import RETRY, comment, encode_cursor, event_text, id_line
from topics.protocol.sse_event import CaughtUpEvent, EndEvent, PressureEvent, TombstoneEvent, TopicDeletedEvent
from topics.results import Reason, Tombstone
from topics.server.http.exchange import SharedPiece, Stream
from topics.server.live.delivery import SLOW_CONSUMER, SLOW_CONSUMER_MESSAGE, Feed, Hub, Subscription
from topics.server.live.open_streams import StreamEnd
from topics.server.live.reading import Reading
from topics.server.live.watch_sessions import WatchSession

_encode: Final = msgspec.json.Encoder().encode
_FRAME: Final = "sse"
# A frame with records and the mark that no more follow, for streams whose ids have only this topic.
_WHOLE: Final = "sse-whole"


# Cached, because all streams of one topic get the same text one after the other.
@lru_cache(maxsize=64)
def _caught_up_text(name: str, head_seq: int) -> bytes:
    return event_text(b"caught-up", _encode(CaughtUpEvent(topic=name, head_seq=head_seq)))


@lru_cache(maxsize=64)
def _id_line_of_one(name: str, seq: int) -> bytes:
    return id_line(encode_cursor({name: seq}))


class Heartbeat:
    """Sends a comment on a stream after a time of silence."""

    def __init__(
        self, stream: Stream, loop: asyncio.AbstractEventLoop, interval_s: float, now_ms: Callable[[], int]
    ) -> None:
        self._stream = stream
        self._loop = loop
        self._interval_s = interval_s
        # The time that the comment shows.
        self._now_ms = now_ms
        self._last_s = loop.time()
        self._timer = loop.call_later(interval_s, self._check)

    def note_output(self) -> None:
        """Starts no timer: the running timer checks when the last output was."""
        self._last_s = self._loop.time()

    def _check(self) -> None:
        left_s = self._last_s + self._interval_s - self._loop.time()
        if left_s <= 0:
            # A congested stream gets no comment.
            if self._stream.is_ready:
                self._stream.send(comment(b"hb %d" % self._now_ms()))
            self.note_output()
            left_s = self._interval_s
        self._timer = self._loop.call_later(left_s, self._check)

    def stop(self) -> None:
        self._timer.cancel()


class SseFeed(Feed):
    """One open stream of a session. `on_end` is set before `start`, and is called once, however the stream ends."""

    def __init__(self, hub: Hub, session: WatchSession, stream: Stream) -> None:
        super().__init__(hub)
        self._session = session
        self._stream = stream
        # The cursors of this stream. Another stream of the same session may have other cursors.
        self._cursors: dict[str, int] = {}
        # Frames of the read under way.
        self._held: list[bytes] = []
        self.on_end: Callable[[], None] = _nothing
        self._heartbeat = Heartbeat(stream, hub.loop, session.heartbeat_ms / 1000, hub.engine.now_ms)
        stream.on_ready = self._resume
        stream.on_stalled = self._give_up
        stream.on_gone = self._close

    def start(self, last_event_id: dict[str, int] | None) -> None:
        """Subscribes to the topics of the session. `last_event_id` may move a cursor back, never ahead."""
        session = self._session
        self._stream.send(RETRY)
        for name, seq in (last_event_id or {}).items():
            watched = session.topics.get(name)
            if watched is not None:
                watched.cursor = min(watched.cursor, seq)
        self._cursors = session.cursors()
        for name in session.topics:
            self._subscribe(name)
        self._end_if_empty()

    def add(self, name: str) -> None:
        """Subscribes to a topic that was created while the stream was open."""
        if name not in self.subscriptions:
            self._cursors[name] = self._session.topics[name].cursor
            self._subscribe(name)

    def _subscribe(self, name: str) -> None:
        session = self._session
        watched = session.topics[name]
        topic = self.hub.engine.topics.get(name)
        topic_id, cursor = watched.topic_id, watched.cursor
        if topic is not None and topic.id != topic_id:
            # The cursor belongs to a deleted topic of this name. A cursor above the head makes the read report that.
            topic_id, cursor = topic.id, U64_MAX
        self.hub.subscribe(self, Subscription(name, topic_id, cursor, session.options, is_strong=session.is_strong))

    def _end_if_empty(self) -> None:
        if not self.subscriptions and not self._session.prefixes:
            self._end()

    def _resume(self) -> None:
        self.hub.resume(self)

    # Calls of the hub.

    def is_ready(self) -> bool:
        return self._stream.is_ready

    def push(self, subscription: Subscription, reading: Reading) -> None:
        if len(self._cursors) > 1:
            # The ids hold the cursors of all topics, which other streams do not share.
            super().push(subscription, reading)
            return
        piece = reading.pieces.get(_WHOLE)
        if piece is None:
            piece = reading.pieces[_WHOLE] = _whole_piece(subscription.name, reading)
        self.on_moved(subscription)
        self._stream.send_shared(piece)
        self._heartbeat.note_output()

    def on_records(self, subscription: Subscription, from_seq: int, reading: Reading) -> None:
        self._send(subscription, _record_frame(from_seq, reading))

    def on_tombstone(self, subscription: Subscription, tombstone: Tombstone, reason: Reason) -> None:
        # On the first read of a stream the records were gone before the client came.
        is_late = subscription.is_first and reason != "corrupt"
        event = TombstoneEvent(
            topic=subscription.name,
            reason="from_seq_too_old" if is_late else reason,
            gap_from=tombstone.gap_from,
            gap_to=tombstone.gap_to,
            earliest_seq=tombstone.earliest_seq,
            head_seq=tombstone.head_seq,
        )
        self._send(subscription, event_text(b"tombstone", _encode(event)))

    def on_caught_up(self, subscription: Subscription, head_seq: int) -> None:
        self._send(subscription, _caught_up_text(subscription.name, head_seq))

    def on_moved(self, subscription: Subscription) -> None:
        self._cursors[subscription.name] = subscription.cursor
        watched = self._session.topics[subscription.name]
        watched.topic_id, watched.cursor = subscription.topic_id, subscription.cursor

    def on_deleted(self, subscription: Subscription) -> None:
        self._send_frame(event_text(b"topic-deleted", _encode(TopicDeletedEvent(topic=subscription.name))))
        self._end_if_empty()

    def on_pressure(self, topics: list[str], retry_after_ms: int) -> None:
        # The event has no id, because no cursor has moved.
        event = PressureEvent(retry_after_ms=retry_after_ms, topics=topics)
        self._stream.send(event_text(b"error", _encode(event)))
        self._heartbeat.note_output()

    def on_failed(self) -> None:
        self._end()

    def _send(self, subscription: Subscription, frame: bytes) -> None:
        """Sends the frame together with the other frames of the same read: writes to a socket are expensive."""
        self.on_moved(subscription)
        self._held.append(self._id_line() + frame)

    def _id_line(self) -> bytes:
        if len(self._cursors) == 1:
            return _id_line_of_one(*next(iter(self._cursors.items())))
        return id_line(encode_cursor(self._cursors))

    def after_read(self) -> None:
        if self._held:
            frames, self._held = self._held, []
            self._stream.send(b"".join(frames))
            self._heartbeat.note_output()

    def _send_frame(self, frame: bytes) -> None:
        self._stream.send(self._id_line() + frame)
        self._heartbeat.note_output()

    # The end.

    def shut_down(self, end: StreamEnd) -> None:
        """The server ends the stream."""
        self._end_with_error(*end)

    def _give_up(self) -> None:
        self._end_with_error(SLOW_CONSUMER, SLOW_CONSUMER_MESSAGE)

    def _end_with_error(self, code: str, message: str) -> None:
        self._send_frame(event_text(b"error", _encode(EndEvent(code=code, message=message))))
        self._end()

    def _end(self) -> None:
        self._stream.end()
        self._close()

    def _close(self) -> None:
        if not self.is_closed:
            self.hub.remove(self)
            self._heartbeat.stop()
            self.on_end()


def _record_frame(from_seq: int, reading: Reading) -> bytes:
    frame = reading.frames.get(_FRAME)
    if frame is None:
        frame = reading.frames[_FRAME] = event_text(b"record", record_event_text(from_seq, reading))
    return frame


def _whole_piece(name: str, reading: Reading) -> SharedPiece:
    """The events `record` and `caught-up`, with their ids."""
    head_seq = reading.page.head_seq
    id_of_both = _id_line_of_one(name, head_seq)
    record_frame = _record_frame(reading.from_seq, reading)
    return SharedPiece(b"".join((id_of_both, record_frame, id_of_both, _caught_up_text(name, head_seq))))


def record_event_text(from_seq: int, reading: Reading) -> bytes:
    """The data of `sse_event.RecordEvent`, rendered from stored bytes."""
    page = reading.page
    return b'{"topic":%b,"records":[%b],"from_seq":%d,"to_seq":%d,"head_seq":%d}' % (
        json_string(page.topic),
        b",".join(reading.records),
        from_seq,
        page.next_from_seq,
        page.head_seq,
    )


def _nothing() -> None:
    pass

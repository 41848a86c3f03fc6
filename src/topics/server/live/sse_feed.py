"""A watch stream: what the hub delivers, as server-sent events (http-api.md §14.4 to §14.6).

The cursors are the session's. One is moved when its frame is handed to the transport, and every frame says in its id
where all of them stand then. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import msgspec

from topics.engine.topic.page import Reason, Tombstone
from topics.limits import U64_MAX
from topics.protocol.record_text import json_string
from topics.protocol.sse import RETRY, comment, encode_cursor, event_text, id_line
from topics.server.http.exchange import Stream
from topics.server.live.delivery import SLOW_CONSUMER, SLOW_CONSUMER_MESSAGE, Feed, Hub, Reading, Subscription
from topics.server.live.watch_sessions import WatchSession

_encode: Final = msgspec.json.Encoder().encode
_FRAME: Final = "sse"


# A thousand streams of one topic get the same, one after the other.
@lru_cache(maxsize=64)
def _caught_up_text(name: str, head_seq: int) -> bytes:
    return event_text(b"caught-up", _encode({"topic": name, "head_seq": head_seq}))


@lru_cache(maxsize=64)
def _id_line_of_one(name: str, seq: int) -> bytes:
    return id_line(encode_cursor({name: seq}))


class Heartbeat:
    """A comment on a stream that was silent for a while."""

    def __init__(
        self, stream: Stream, loop: asyncio.AbstractEventLoop, interval_s: float, now_ms: Callable[[], int]
    ) -> None:
        self._stream = stream
        self._loop = loop
        self._interval_s = interval_s
        # What time to say it is.
        self._now_ms = now_ms
        self._last_s = loop.time()
        self._timer = loop.call_later(interval_s, self._check)

    def note_output(self) -> None:
        """Costs no timer: the one that runs looks at it."""
        self._last_s = self._loop.time()

    def _check(self) -> None:
        left_s = self._last_s + self._interval_s - self._loop.time()
        if left_s <= 0:
            # One that takes nothing gets no more to take.
            if self._stream.is_ready:
                self._stream.send(comment(b"hb %d" % self._now_ms()))
            self.note_output()
            left_s = self._interval_s
        self._timer = self._loop.call_later(left_s, self._check)

    def stop(self) -> None:
        self._timer.cancel()


class SseFeed(Feed):
    """One open stream of a session. `on_end` is called once, however it ends."""

    def __init__(self, hub: Hub, session: WatchSession, stream: Stream, on_end: Callable[[], None]) -> None:
        super().__init__(hub)
        self._session = session
        self._stream = stream
        # Where this stream stands: another one of the same session may be elsewhere.
        self._cursors: dict[str, int] = {}
        # Frames of the read under way.
        self._held: list[bytes] = []
        self._on_end = on_end
        self._heartbeat = Heartbeat(stream, hub.loop, session.heartbeat_ms / 1000, hub.engine.now_ms)
        stream.on_ready = self._resume
        stream.on_stalled = self._give_up
        stream.on_gone = self._close

    def start(self, last_event_id: dict[str, int] | None) -> None:
        """Goes back to where the client says it was, never ahead, and subscribes."""
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
        """A topic is new, and the session wants it."""
        if name not in self.subscriptions:
            self._cursors[name] = self._session.topics[name].cursor
            self._subscribe(name)

    def _subscribe(self, name: str) -> None:
        session = self._session
        watched = session.topics[name]
        topic = self.hub.engine.topics.get(name)
        topic_id, cursor = watched.topic_id, watched.cursor
        if topic is not None and topic.id != topic_id:
            # The cursor counts in a topic that is gone: as good as one above the head, whatever the head is.
            topic_id, cursor = topic.id, U64_MAX
        self.hub.subscribe(self, Subscription(name, topic_id, cursor, session.options, is_strong=session.is_strong))

    def _end_if_empty(self) -> None:
        if not self.subscriptions and not self._session.prefixes:
            self._end()

    def _resume(self) -> None:
        self.hub.resume(self)

    # What the hub tells.

    def is_ready(self) -> bool:
        return self._stream.is_ready

    def on_records(self, subscription: Subscription, from_seq: int, reading: Reading) -> None:
        frame = reading.frames.get(_FRAME)
        if frame is None:
            page = reading.page
            frame = reading.frames[_FRAME] = event_text(
                b"record",
                b'{"topic":%b,"records":[%b],"from_seq":%d,"to_seq":%d,"head_seq":%d}'
                % (json_string(page.topic), b",".join(reading.records), from_seq, page.next_from_seq, page.head_seq),
            )
        self._send(subscription, frame)

    def on_tombstone(self, subscription: Subscription, tombstone: Tombstone, reason: Reason) -> None:
        # On the first read of a stream nobody knows what happened since: the client has come too late.
        is_late = subscription.is_first and reason != "corrupt"
        members = {
            "topic": subscription.name,
            "reason": "from_seq_too_old" if is_late else reason,
            "gap_from": tombstone.gap_from,
            "gap_to": tombstone.gap_to,
            "earliest_seq": tombstone.earliest_seq,
            "head_seq": tombstone.head_seq,
        }
        self._send(subscription, event_text(b"tombstone", _encode(members)))

    def on_caught_up(self, subscription: Subscription, head_seq: int) -> None:
        self._send(subscription, _caught_up_text(subscription.name, head_seq))

    def on_moved(self, subscription: Subscription) -> None:
        self._cursors[subscription.name] = subscription.cursor
        watched = self._session.topics[subscription.name]
        watched.topic_id, watched.cursor = subscription.topic_id, subscription.cursor

    def on_deleted(self, subscription: Subscription) -> None:
        members = {"topic": subscription.name, "head_seq": 0, "reason": "deleted"}
        self._send_frame(event_text(b"topic-deleted", _encode(members)))
        self._end_if_empty()

    def on_pressure(self, topics: list[str], retry_after_ms: int) -> None:
        # Advice only: it has no id, because nothing has moved.
        members = {"code": 429, "error": "throttled", "retry_after_ms": retry_after_ms, "topics": topics}
        self._stream.send(event_text(b"error", _encode(members)))
        self._heartbeat.note_output()

    def on_failed(self) -> None:
        self._end()

    def _send(self, subscription: Subscription, frame: bytes) -> None:
        """With the other frames of the same read: each write to a socket costs more than all the rest."""
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

    def shut_down(self) -> None:
        """The server stops."""
        self._end_with_error("server_shutting_down", "the server stops; connect again")

    def _give_up(self) -> None:
        self._end_with_error(SLOW_CONSUMER, SLOW_CONSUMER_MESSAGE)

    def _end_with_error(self, code: str, message: str) -> None:
        self._send_frame(event_text(b"error", _encode({"code": code, "message": message})))
        self._end()

    def _end(self) -> None:
        self._stream.end()
        self._close()

    def _close(self) -> None:
        if not self.is_closed:
            self.hub.remove(self)
            self._heartbeat.stop()
            self._on_end()

"""The subscriptions of a WebSocket: the hub's deliveries as messages. Loop thread only."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct
from websockets.frames import CloseCode

from topics.protocol.record_text import json_string
from topics.protocol.ws_message import CaughtUpMessage, TombstoneMessage, TopicDeletedMessage
from topics.results import Reason, Tombstone
from topics.server.http.websocket import WebSocketConnection, text_frame
from topics.server.live.delivery import Feed, Hub, Subscription
from topics.server.live.reading import Reading

_encode: Final = msgspec.json.Encoder().encode
_FRAME: Final = "websocket"
# Two messages: records, and the mark that no more follow.
_WHOLE: Final = "websocket-whole"


class WsFeed(Feed):
    """The subscriptions of one connection. A frame is made only when the connection has room for it."""

    def __init__(self, hub: Hub, connection: WebSocketConnection) -> None:
        super().__init__(hub)
        self._connection = connection

    def is_ready(self) -> bool:
        return self._connection.has_room

    def push(self, subscription: Subscription, reading: Reading) -> None:
        frames = reading.frames.get(_WHOLE)
        if frames is None:
            head_seq = reading.page.head_seq
            mark = CaughtUpMessage(topic=subscription.name, head_seq=head_seq)
            records = text_frame(record_message_text(reading.from_seq, reading))
            frames = reading.frames[_WHOLE] = records + text_frame(_encode(mark))
        self._connection.send(frames, message_count=2)

    def on_records(self, subscription: Subscription, from_seq: int, reading: Reading) -> None:
        frame = reading.frames.get(_FRAME)
        if frame is None:
            frame = reading.frames[_FRAME] = text_frame(record_message_text(from_seq, reading))
        self._connection.send(frame)

    def on_tombstone(self, subscription: Subscription, tombstone: Tombstone, reason: Reason) -> None:
        self._send(
            TombstoneMessage(
                topic=subscription.name,
                reason=reason,
                gap_from=tombstone.gap_from,
                gap_to=tombstone.gap_to,
                earliest_seq=tombstone.earliest_seq,
                head_seq=tombstone.head_seq,
            )
        )

    def on_caught_up(self, subscription: Subscription, head_seq: int) -> None:
        self._send(CaughtUpMessage(topic=subscription.name, head_seq=head_seq))

    def on_deleted(self, subscription: Subscription) -> None:
        self._send(TopicDeletedMessage(topic=subscription.name))

    def on_failed(self) -> None:
        self._connection.fail(CloseCode.INTERNAL_ERROR, "something went wrong in the server; see its log")

    def _send(self, message: Struct) -> None:
        self._connection.send(text_frame(_encode(message)))


def record_message_text(from_seq: int, reading: Reading) -> bytes:
    """The message `ws_message.RecordMessage`, rendered from stored bytes."""
    page = reading.page
    return b'{"op":"record","topic":%b,"from_seq":%d,"to_seq":%d,"head_seq":%d,"records":[%b]}' % (
        json_string(page.topic),
        from_seq,
        page.next_from_seq,
        page.head_seq,
        b",".join(reading.records),
    )

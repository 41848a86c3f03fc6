"""HTTP/2 on one connection: frames become exchanges, answers go back as the client's windows allow.

The h2 library speaks the protocol. This module keeps the limits that h2 leaves open: how much is received, how much
waits to be sent, and how long each part may take.

Rules of this file:

1. While frames are read, the application is only asked whether a body is wanted. Requests are started in turns, a few
   at a time, never from `send`.
2. While the client does not take its answers, nothing is read from the socket. While answers only wait for windows, or
   a request waits for room, frames are read (they open windows), but no request is started. While a request waits for
   room, the client's windows are not given back, so the size of the bodies that can arrive is bounded.
3. The library may know that a stream is reset before this module has read the event. What is sent to that stream is
   dropped.
4. A client that breaks the protocol, or floods the server, gets a GOAWAY and loses the connection. A bad request costs
   only its stream.

Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingAckReceived,
    RequestReceived,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame

from topics.errors import PayloadTooLarge, RequestTimeout, Throttled, TopicsError
from topics.server.http.connections import ConnectionSet, Wire
from topics.server.http.exchange import NOT_MODIFIED, Exchange, Response, Stream
from topics.server.http.http2_head import MalformedHead, StaticEncoder, read_head
from topics.server.http.http2_meter import Flood, FrameMeter, OversizedFrame
from topics.server.limits import (
    DRAINED_BODY_BYTES_MAX,
    EXCHANGES_PER_TURN,
    H2_CONNECTION_WINDOW_BYTES,
    H2_ENDLESS_BYTES_MAX,
    H2_FRAMES_PER_TURN,
    H2_HEADER_LIST_BYTES_MAX,
    H2_STREAM_WINDOW_BYTES,
    H2_STREAMS_MAX,
    H2_UNSENT_BYTES_HIGH,
    H2_UNSENT_BYTES_MAX,
    WRITE_HIGH_WATER_BYTES,
)

_CONFIG: Final = H2Configuration(
    client_side=False,
    header_encoding=None,
    # `read_head` checks the headers of requests. The headers of answers are made by this module.
    validate_inbound_headers=False,
    normalize_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)
_SETTINGS: Final[dict[SettingCodes, int]] = {
    SettingCodes.MAX_CONCURRENT_STREAMS: H2_STREAMS_MAX,
    SettingCodes.INITIAL_WINDOW_SIZE: H2_STREAM_WINDOW_BYTES,
    SettingCodes.MAX_HEADER_LIST_SIZE: H2_HEADER_LIST_BYTES_MAX,
}
_WINDOW_BYTES_BY_DEFAULT: Final = 65_535
# A header list that is a little too long is decoded, so that its stream gets an answer. A longer one ends the
# connection.
_DECODED_LIST_BYTES_MAX: Final = 2 * H2_HEADER_LIST_BYTES_MAX
# The library forgets closed streams only after this many new streams.
_STREAMS_SWEPT: Final = 64
# Frames of one stream before the next stream gets its turn.
_SLICE_FRAMES: Final = 4
# Limit for the bodies of all streams of a connection that the application does not have yet, in bodies of the largest
# size.
_LARGEST_BODIES_MAX: Final = 2
_UNFED_BYTES_MAX: Final = 64 * 1024
_PING: Final = b"topics\0\0"
_CONTINUE: Final = ((b":status", b"100"),)


class _Frames(H2Connection):
    """The library's connection, with the settings of this server."""

    def __init__(self) -> None:
        super().__init__(_CONFIG)
        self.encoder = StaticEncoder()
        self.decoder.max_header_list_size = _DECODED_LIST_BYTES_MAX
        self._swept_at_count = _STREAMS_SWEPT
        self.local_settings = Settings(client=False, initial_values=dict(_SETTINGS))
        self.initiate_connection()
        self.increment_flow_control_window(H2_CONNECTION_WINDOW_BYTES - _WINDOW_BYTES_BY_DEFAULT)
        # A client that has not seen the settings may open too many streams. They are refused one by one; the library
        # would end the connection.
        tolerated = {SettingCodes.MAX_CONCURRENT_STREAMS: H2_STREAMS_MAX + H2_FRAMES_PER_TURN + _STREAMS_SWEPT}
        self.local_settings = Settings(client=False, initial_values={**_SETTINGS, **tolerated})

    @property
    def open_inbound_streams(self) -> int:
        """The library counts streams, and forgets closed ones, at each new stream.

        With many open streams that is most of its work, so it is done only now and then. Until then closed streams
        count as open.
        """
        if len(self.streams) < self._swept_at_count:
            return len(self.streams)
        open_count = super().open_inbound_streams
        self._swept_at_count = len(self.streams) + _STREAMS_SWEPT
        return open_count


class _Stream:
    """One request, and the unsent rest of its answer."""

    __slots__ = (
        "begun_s",
        "body",
        "body_bytes",
        "ends",
        "endless",
        "exchange",
        "has_ended",
        "id",
        "is_admitted",
        "progress_s",
        "received_bytes",
        "rest",
        "unsent",
    )

    def __init__(self, stream_id: int, exchange: Exchange, begun_s: float) -> None:
        self.id = stream_id
        self.exchange = exchange
        self.begun_s = begun_s
        self.received_bytes = 0
        # The received body.
        self.body: list[bytes] = []
        self.body_bytes = 0
        # The head was accepted for a large body.
        self.is_admitted = False
        # The client has sent the whole request.
        self.has_ended = False
        self.unsent = memoryview(b"")
        # Further pieces of the answer, to be sent after `unsent`.
        self.rest: deque[bytes] = deque()
        # The answer ends after the unsent bytes.
        self.ends = True
        # The answer, if it is a stream.
        self.endless: _Http2Stream | None = None
        # When the client last took bytes of the answer, or had everything.
        self.progress_s = begun_s


class Http2Connection(Wire):
    """A stream is in `_streams` from its head until its answer is sent. Meanwhile it is in `_arriving`, in `_queue`,
    with the application, or in `_sending`.
    """

    def __init__(self, connections: ConnectionSet, transport: asyncio.Transport) -> None:
        super().__init__(connections, transport)
        now_s = self.loop.time()
        self._frames = _Frames()
        self._meter = FrameMeter(now_s)
        # Received and not parsed yet.
        self._unfed = b""
        self._streams: dict[int, _Stream] = {}
        self._arriving: dict[int, _Stream] = {}
        self._queue: deque[_Stream] = deque()
        self._sending: dict[int, _Stream] = {}
        # A body of this size is accepted before the application is asked whether it is wanted.
        self._unasked_bytes_max = min(DRAINED_BODY_BYTES_MAX, self.app.body_bytes_max)
        # Bytes of the bodies of all streams that are arriving or in the queue.
        self._body_bytes = 0
        self._body_bytes_max = max(_LARGEST_BODIES_MAX * self.app.body_bytes_max, H2_CONNECTION_WINDOW_BYTES)
        # Bytes of answers that wait to be sent.
        self._unsent_bytes = 0
        # Window that is not given back while a request waits for room, by stream.
        self._withheld: dict[int, int] = {}
        self._parked_s = 0.0
        # Unsent bytes of answers without an end. They hold up each other, but no request.
        self._endless_bytes = 0
        self._progress_s = now_s
        self._ping_at_s = now_s + connections.timeouts.ping_s
        self._pong_by_s: float | None = None
        self._is_in_turn = False
        self._turn_is_due = False
        self._is_in_head = False
        # The client was told that no further streams are served.
        self._has_said_goodbye = False
        self._flush()

    # Turns.

    def data_received(self, data: bytes) -> None:
        self.counters.bytes_received += len(data)
        if not self.is_closed:
            if self._pong_by_s is not None:
                # Any bytes prove that the client is there. The ping may still wait in front of a slow client.
                self._pong_by_s = self.loop.time() + self.connections.timeouts.pong_s
            self._unfed = self._unfed + data if self._unfed else data
            self._go_on()

    def _go_on(self) -> None:
        """Parses received bytes and starts requests, a few of each, so that other connections get their turn."""
        self._turn_is_due = False
        if self.is_closed:
            return
        self._is_in_turn = True
        try:
            if self._unfed and not self.is_congested:
                self._feed()
            self._start_some()
            self._send_some()
        except Flood as flood:
            self._end(ErrorCodes.ENHANCE_YOUR_CALM, str(flood))
        except OversizedFrame:
            self._end(ErrorCodes.FRAME_SIZE_ERROR, "a frame is longer than announced")
        finally:
            self._is_in_turn = False
        self._settle()

    def _feed(self) -> None:
        now_s = self.loop.time()
        end = self._meter.measure(self._unfed, now_s)
        data, self._unfed = self._unfed[:end], self._unfed[end:]
        try:
            events = self._frames.receive_data(data)
        except ProtocolError as error:
            # The library has already written the GOAWAY.
            self._end(None, str(error))
            return
        for event in events:
            self._take(event, now_s)

    def _take(self, event: Event, now_s: float) -> None:
        match event:
            case RequestReceived():
                self._begin_stream(event, now_s)
            case DataReceived():
                self._take_body(event)
            case StreamEnded():
                self._end_request(event.stream_id)
            case StreamReset():
                if not event.remote_reset:
                    # The library resets a stream whose window overflowed.
                    self._meter.note_reset(now_s)
                self._drop(event.stream_id)
            case PingAckReceived():
                self._pong_by_s = None
                self._ping_at_s = now_s + self.connections.timeouts.ping_s
            case ConnectionTerminated():
                self._end(None, "the client said goodbye")
            case _:
                # `_send_some` uses new windows and settings. Trailers are ignored.
                pass

    def _start_some(self) -> None:
        for _ in range(EXCHANGES_PER_TURN):
            if not self._may_start():
                return
            stream = self._queue.popleft()
            self._body_bytes -= stream.body_bytes
            self._meter.note_request()
            self.app.handle(stream.exchange)

    def _may_start(self) -> bool:
        return (
            len(self._queue) > 0
            and self._unsent_bytes < H2_UNSENT_BYTES_HIGH
            and not self.is_congested
            and not self.is_parked
            and not self.is_closed
        )

    def note_parked(self) -> None:
        if self.is_parked:
            self._parked_s = self._parked_s or self.loop.time()
            return
        # The client was not at fault during this time.
        parked_s, self._parked_s = self.loop.time() - self._parked_s, 0.0
        for stream in self._arriving.values():
            stream.begun_s += parked_s
        withheld, self._withheld = self._withheld, {}
        for stream_id, count in withheld.items():
            self._frames.acknowledge_received_data(count, stream_id)
        self._take_another_turn()

    def _settle(self) -> None:
        """Called after every change: sends what is ready, and schedules the next turn."""
        if self.is_closed:
            return
        self._flush()
        if self._meter.is_in_head:
            if not self._is_in_head:
                self._is_in_head = True
                self.note_head_begun()
        elif self._streams:
            self._is_in_head = False
            self.note_message_complete()
        elif self.is_draining:
            self.close()
            return
        elif self._is_in_head or self._deadline_s is None:
            self._is_in_head = False
            self.note_idle()
        if self._may_start() or (self._unfed and not self.is_congested and self._meter.can_measure(self._unfed)):
            self._take_another_turn()
        self._adjust_reading()

    def _take_another_turn(self) -> None:
        if not self._turn_is_due:
            self._turn_is_due = True
            self.loop.call_soon(self._go_on)

    def _adjust_reading(self) -> None:
        is_full = self.is_congested or len(self._unfed) > _UNFED_BYTES_MAX
        if is_full == self.is_reading_paused:
            return
        if is_full:
            self.pause_reading()
        else:
            self.resume_reading()

    def resume_reading(self) -> None:
        paused_s = self.loop.time() - self._paused_s
        for stream in self._arriving.values():
            stream.begun_s += paused_s
        if self._pong_by_s is not None:
            self._pong_by_s += paused_s
        super().resume_reading()

    def _flush(self) -> None:
        data = self._frames.data_to_send()
        if data:
            self.write(data)

    # Requests in.

    def _begin_stream(self, event: RequestReceived, now_s: float) -> None:
        stream_id = event.stream_id
        if self._has_said_goodbye or len(self._streams) >= H2_STREAMS_MAX:
            self._reset(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        try:
            head = read_head(event.headers)
        except MalformedHead:
            self._reset(stream_id, ErrorCodes.PROTOCOL_ERROR)
            self._meter.note_reset(now_s)
            return
        exchange = Exchange(self.app, self, head.method, head.path, head.query, head.headers)
        exchange.stream_id = stream_id
        stream = self._streams[stream_id] = self._arriving[stream_id] = _Stream(stream_id, exchange, now_s)
        if head.refused is not None:
            self._refuse(stream, head.refused)
        elif event.stream_ended is None:
            self._decide_early(stream)

    def _decide_early(self, stream: _Stream) -> None:
        """Decides by the head: a large body is neither read nor asked for if the request is refused anyway."""
        headers = stream.exchange.headers
        length = int(headers.get(b"content-length", b"0"))
        expects = headers.get(b"expect", b"").lower() == b"100-continue"
        if (expects or length > self._unasked_bytes_max) and self._is_admitted(stream, length) and expects:
            try:
                self._frames.send_headers(stream.id, _CONTINUE)
            except ProtocolError:
                pass

    def _is_admitted(self, stream: _Stream, size: int) -> bool:
        """Whether a body of at least this size may arrive. Otherwise its stream is refused."""
        exchange = stream.exchange
        if not stream.is_admitted:
            refused = self.app.refusal(exchange)
            if refused is not None:
                self._refuse(stream, refused)
                return False
            stream.is_admitted = True
        bytes_max = exchange.body_bytes_max
        if size > bytes_max and not (exchange.ignores_body and size <= DRAINED_BODY_BYTES_MAX):
            self._refuse(stream, PayloadTooLarge(f"a body has at most {bytes_max} bytes"))
            return False
        return True

    def _take_body(self, event: DataReceived) -> None:
        if self.is_parked:
            self._withheld[event.stream_id] = self._withheld.get(event.stream_id, 0) + event.flow_controlled_length
        else:
            # The received bytes are bounded below, so the window can be given back at once.
            self._frames.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        stream = self._arriving.get(event.stream_id)
        if stream is None or not event.data:
            return
        stream.received_bytes += len(event.data)
        if stream.received_bytes > self._unasked_bytes_max and not self._is_admitted(stream, stream.received_bytes):
            return
        if not stream.exchange.ignores_body:
            stream.body.append(event.data)
            stream.body_bytes += len(event.data)
            self._body_bytes += len(event.data)
            if self._body_bytes > self._body_bytes_max:
                self._refuse(stream, Throttled("this connection has too many large bodies under way"))

    def _end_request(self, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        stream.has_ended = True
        if self._arriving.pop(stream_id, None) is not None:
            body = stream.body
            stream.exchange.body = body[0] if len(body) == 1 else b"".join(body)
            stream.body = []
            self._queue.append(stream)

    def _drop(self, stream_id: int) -> None:
        """The stream was reset, and its answer is not wanted any more."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            if stream in self._queue:
                self._queue.remove(stream)
                self._body_bytes -= stream.body_bytes
            self._forget(stream)
            stream.exchange.gone()
            if stream.endless is not None:
                stream.endless.gone()

    # Answers out.

    def send(self, exchange: Exchange, response: Response) -> None:
        stream = self._streams[exchange.stream_id]
        assert stream.exchange is exchange
        self._respond(stream, response)
        if not self._is_in_turn:
            if stream.unsent:
                self._send_some()
            self._settle()

    def send_json(self, exchange: Exchange, status: int, body: bytes) -> None:
        self.send(exchange, Response(status, body))

    def begin_stream(self, exchange: Exchange, head: Response) -> Stream:
        stream = self._streams[exchange.stream_id]
        assert stream.exchange is exchange
        endless = _Http2Stream(self, stream)
        fields = (
            (b":status", b"%d" % head.status),
            (b"content-type", head.content_type),
            (b"date", self.connections.date),
            *head.headers,
        )
        try:
            self._frames.send_headers(stream.id, fields, end_stream=exchange.is_head)
        except ProtocolError:
            # The stream was reset, but its event was not read yet.
            endless.is_over = True
            return endless
        if exchange.is_head:
            endless.is_over = True
            self._finish(stream)
        else:
            stream.ends = False
            stream.endless = endless
            stream.progress_s = self.loop.time()
        if not self._is_in_turn:
            self._settle()
        return endless

    def takes_endless(self, stream: _Stream) -> bool:
        """Whether a stream may send more. The library may hold bytes for which the client's window is closed."""
        is_held_up = self.is_congested or self.is_closed or self._endless_bytes >= H2_ENDLESS_BYTES_MAX
        return not stream.unsent and not is_held_up

    def send_endless(self, stream: _Stream, data: bytes, *, ends: bool) -> None:
        if self.is_closed or stream.id not in self._streams:
            return
        stream.ends = ends
        if not stream.unsent:
            stream.progress_s = self.loop.time()
        if data:
            stream.unsent = memoryview(bytes(stream.unsent) + data if stream.unsent else data)
            self._endless_bytes += len(data)
            self.connections.note_unsent(len(data))
            self._sending[stream.id] = stream
            if not self.is_congested:
                self._send_slice(stream)
        elif ends and not stream.unsent:
            self._end_endless(stream)
        if not self._is_in_turn:
            if stream.unsent:
                self._send_some()
            self._settle()

    def _end_endless(self, stream: _Stream) -> None:
        try:
            self._frames.end_stream(stream.id)
        except ProtocolError:
            pass
        self._finish(stream)

    def _wake_endless(self) -> None:
        for stream in self._streams.values():
            if stream.endless is not None and stream.endless.is_ready:
                stream.endless.ready()

    def _refuse(self, stream: _Stream, error: TopicsError) -> None:
        """Refuses the stream, and ignores what it still sends."""
        self._stop_arriving(stream)
        self.app.refuse(stream.exchange, error)

    def _respond(self, stream: _Stream, response: Response) -> None:
        body = b"" if stream.exchange.is_head else response.body
        body_bytes = response.body_bytes if body else 0
        if self._unsent_bytes + body_bytes > H2_UNSENT_BYTES_MAX:
            self._reset(stream.id, ErrorCodes.ENHANCE_YOUR_CALM)
            self._forget(stream)
            return
        fields = [(b":status", b"%d" % response.status)]
        if response.status != NOT_MODIFIED:
            fields.append((b"content-type", response.content_type))
            fields.append((b"content-length", b"%d" % response.body_bytes))
        fields.append((b"date", self.connections.date))
        fields += response.headers
        try:
            self._frames.send_headers(stream.id, fields, end_stream=not body)
        except ProtocolError:
            return
        if not body:
            self._finish(stream)
            return
        stream.progress_s = self.loop.time()
        if not self._sending:
            self._progress_s = stream.progress_s
        stream.unsent = memoryview(body)
        stream.rest.extend(response.rest)
        self._unsent_bytes += body_bytes
        self.connections.note_unsent(body_bytes)
        self._sending[stream.id] = stream
        if not self.is_congested:
            self._send_slice(stream)

    def _send_some(self) -> None:
        """Sends as much as the windows and the socket take, a slice of each stream at a time."""
        budget = WRITE_HIGH_WATER_BYTES
        while budget > 0 and self._sending and not self.is_congested and self._frames.outbound_flow_control_window > 0:
            sent_bytes = 0
            for stream in list(self._sending.values()):
                sent_bytes += self._send_slice(stream)
                if sent_bytes >= budget:
                    break
            if not sent_bytes:
                return
            budget -= sent_bytes
            self._flush()
        if budget <= 0:
            self._take_another_turn()

    def _send_slice(self, stream: _Stream) -> int:
        """Sends one slice and returns its bytes. A stream with more to send goes to the end of the line."""
        frames = self._frames
        sent_bytes = 0
        for _ in range(_SLICE_FRAMES):
            library_stream = frames.streams.get(stream.id)
            if library_stream is None or library_stream.closed:
                break
            room = min(
                library_stream.outbound_flow_control_window,
                frames.outbound_flow_control_window,
                frames.max_outbound_frame_size,
            )
            if room <= 0:
                break
            part = stream.unsent[:room]
            stream.unsent = stream.unsent[room:]
            if not stream.unsent and stream.rest:
                stream.unsent = memoryview(stream.rest.popleft())
            self._note_sent(stream, len(part))
            sent_bytes += len(part)
            self._meter.note_data_sent(len(part))
            frames.send_data(stream.id, part, end_stream=stream.ends and not stream.unsent)
            if not stream.unsent:
                if stream.ends:
                    self._finish(stream)
                else:
                    del self._sending[stream.id]
                    assert stream.endless is not None
                    stream.endless.ready()
                break
        if sent_bytes:
            self._progress_s = stream.progress_s = self.loop.time()
            if stream.unsent:
                self._sending[stream.id] = self._sending.pop(stream.id)
        return sent_bytes

    def _note_sent(self, stream: _Stream, count: int) -> None:
        """Notes that this many bytes of the stream were sent."""
        if stream.endless is None:
            self._unsent_bytes -= count
            return
        was_full = self._endless_bytes >= H2_ENDLESS_BYTES_MAX
        self._endless_bytes -= count
        if was_full and self._endless_bytes < H2_ENDLESS_BYTES_MAX:
            self._wake_endless()

    def _finish(self, stream: _Stream) -> None:
        """The answer was sent, and the rest of the request is not wanted."""
        if not stream.has_ended:
            self._reset(stream.id, ErrorCodes.NO_ERROR)
        self._forget(stream)

    def _reset(self, stream_id: int, code: ErrorCodes) -> None:
        try:
            self._frames.reset_stream(stream_id, code)
        except ProtocolError:
            pass

    def _forget(self, stream: _Stream) -> None:
        self._stop_arriving(stream)
        self._streams.pop(stream.id, None)
        if self._sending.pop(stream.id, None) is not None:
            self._note_sent(stream, len(stream.unsent) + sum(map(len, stream.rest)))

    def _stop_arriving(self, stream: _Stream) -> None:
        if self._arriving.pop(stream.id, None) is not None:
            self._body_bytes -= stream.body_bytes
            stream.body = []

    def resume_writing(self) -> None:
        super().resume_writing()
        self._progress_s = self.loop.time()
        # Not now, because under TLS a write of this connection may be calling.
        self._take_another_turn()
        self._wake_endless()

    @property
    def unsent_bytes(self) -> int:
        return super().unsent_bytes + self._unsent_bytes + self._endless_bytes

    @property
    def taken_s(self) -> float:
        return super().taken_s if self.is_congested else self._progress_s

    # Deadlines and ends.

    def check_deadlines(self, now_s: float) -> None:
        super().check_deadlines(now_s)
        if self.is_closed or self.is_congested:
            return
        timeouts = self.connections.timeouts
        has_answers = any(stream.endless is None for stream in self._sending.values())
        if has_answers and now_s - self._progress_s >= timeouts.stalled_s:
            self._end(ErrorCodes.ENHANCE_YOUR_CALM, "no window was opened for the answers")
            return
        self._drop_stalled(now_s - timeouts.stalled_s)
        if self._pong_by_s is not None:
            if now_s >= self._pong_by_s:
                self._end(ErrorCodes.NO_ERROR, "a ping was not answered")
                return
        elif now_s >= self._ping_at_s:
            self._pong_by_s = now_s + timeouts.pong_s
            self._frames.ping(_PING)
        for stream in list(self._arriving.values()):
            if not self.is_parked and timeouts.is_body_late(now_s - stream.begun_s, stream.received_bytes):
                self._refuse(stream, RequestTimeout("the body came too slowly"))
        self._settle()

    def _drop_stalled(self, since_s: float) -> None:
        """Resets streams of which the client took no bytes since then, even if other streams go on.

        Their windows are closed, so the reset is all they can get. A stream that only waits for the window of the
        connection stays.
        """
        for stream in list(self._sending.values()):
            if stream.progress_s <= since_s and (stream.endless is not None or self._is_shut(stream)):
                self._reset(stream.id, ErrorCodes.ENHANCE_YOUR_CALM)
                self._drop(stream.id)

    def _is_shut(self, stream: _Stream) -> bool:
        library_stream = self._frames.streams.get(stream.id)
        return library_stream is None or library_stream.outbound_flow_control_window <= 0

    def say_last_words(self) -> bool:
        """Sends a last event to streams without an end, as far as their windows allow, then GOAWAY."""
        stalled = [stream for stream in self._streams.values() if stream.endless is not None]
        for stream in stalled:
            assert stream.endless is not None
            stream.endless.stalled()
            while stream.unsent and self._send_slice(stream):
                pass
        self._end(ErrorCodes.ENHANCE_YOUR_CALM, "the client took no bytes for too long")
        return True

    def time_out(self, reason: str) -> None:
        self._end(ErrorCodes.ENHANCE_YOUR_CALM, reason)

    def drain(self) -> None:
        if self.is_closed:
            self.transport.close()
        elif not self._streams:
            self.close()
        elif not self._has_said_goodbye:
            # The library can send this frame only as its last one.
            goodbye = GoAwayFrame(0, last_stream_id=self._frames.highest_inbound_stream_id)
            self._has_said_goodbye = True
            self._flush()
            self.write(goodbye.serialize())

    def close(self) -> None:
        self._end(ErrorCodes.NO_ERROR, "")

    def _end(self, code: ErrorCodes | None, reason: str) -> None:
        """Sends GOAWAY, unless the library has sent it, and closes."""
        if self.is_closed:
            return
        if code is not None:
            self._frames.close_connection(code, reason.encode())
        self._flush()
        self._abandon_all()
        if code is ErrorCodes.NO_ERROR:
            super().close()
        else:
            self.close_after_last_words()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._abandon_all()

    def _abandon_all(self) -> None:
        streams, self._streams = self._streams, {}
        self._arriving.clear()
        self._queue.clear()
        self._sending.clear()
        self._unfed = b""
        for stream in streams.values():
            stream.exchange.gone()
            if stream.endless is not None:
                stream.endless.gone()


class _Http2Stream(Stream):
    """An answer in DATA frames, as far as the client's windows allow."""

    __slots__ = ("_connection", "_stream")

    def __init__(self, connection: Http2Connection, stream: _Stream) -> None:
        super().__init__()
        self._connection = connection
        self._stream = stream

    @property
    def is_ready(self) -> bool:
        return not self.is_over and self._connection.takes_endless(self._stream)

    def send(self, data: bytes) -> None:
        if data and not self.is_over:
            self._connection.send_endless(self._stream, data, ends=False)

    def end(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._connection.send_endless(self._stream, b"", ends=True)

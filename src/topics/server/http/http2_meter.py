"""Counts the frames of an HTTP/2 client before anything acts on them.

The h2 library limits a header block and little else. It accepts and answers any number of resets, pings and empty
frames, and buffers frames that it will refuse for their length. So the frames are counted here by their heads, and a
client that only causes work loses its connection (RFC 9113, section 10.5).

Time is passed in. Loop thread only.
"""

from typing import Final

from topics.server.limits import (
    H2_FRAME_BYTES_MAX,
    H2_FRAMES_PER_TURN,
    H2_HEADER_BLOCK_BYTES_MAX,
    H2_IDLE_FRAMES_MAX,
    H2_IDLE_FRAMES_PER_S,
    H2_RESETS_MAX,
    H2_RESETS_S,
)

H2_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

_FRAME_HEAD_BYTES: Final = 9
_DATA: Final = 0x0
_HEADERS: Final = 0x1
_RST_STREAM: Final = 0x3
_SETTINGS: Final = 0x4
_CONTINUATION: Final = 0x9

_END_STREAM: Final = 0x1
_END_HEADERS: Final = 0x4
_PADDED: Final = 0x8

# A change of settings touches every stream.
_SETTINGS_COST: Final = 20
# Priority and window frames that a request, or a frame of an answer, may bring with it.
_FRAMES_PER_REQUEST: Final = 8
_FRAMES_PER_DATA_FRAME: Final = 2
_USEFUL_DATA_BYTES_MIN: Final = 256


class Flood(Exception):
    """The client sends too many frames that only cause work. The text says which."""


class OversizedFrame(Exception):
    """A frame that is longer than the announced maximum."""


class FrameMeter:
    """The frames of one connection."""

    def __init__(self, now_s: float) -> None:
        # Bytes left of the payload of the current frame. The preface counts as a frame.
        self._payload_left_bytes = len(H2_PREFACE)
        self._kind = _SETTINGS
        # Bytes of the header block that has begun and not ended; None between blocks.
        self._block_bytes: int | None = None
        self._idle_frames = 0.0
        self._idle_frames_at_s = now_s
        self._reset_count = 0
        self._resets_since_s = now_s

    @property
    def is_in_head(self) -> bool:
        """Whether a header block has begun and is not complete."""
        return self._block_bytes is not None or (self._payload_left_bytes > 0 and self._kind == _HEADERS)

    def can_measure(self, data: bytes) -> bool:
        """Whether `measure` would accept any of the data."""
        return len(data) >= _FRAME_HEAD_BYTES or (len(data) > 0 and self._payload_left_bytes > 0)

    def measure(self, data: bytes, now_s: float) -> int:
        """Returns how many bytes of `data` make up one turn: a few frames, of which the last may be incomplete.

        The next call gets the rest, and the bytes that arrived after it. Raises `Flood` and `OversizedFrame`.
        """
        position = self._payload_left_bytes
        end = len(data)
        for _ in range(H2_FRAMES_PER_TURN):
            if position + _FRAME_HEAD_BYTES > end:
                break
            length = int.from_bytes(data[position : position + 3], "big")
            self._kind = data[position + 3]
            self._note_frame(length, data[position + 4], now_s)
            position += _FRAME_HEAD_BYTES + length
        self._payload_left_bytes = max(0, position - end)
        return min(position, end)

    def _note_frame(self, length: int, flags: int, now_s: float) -> None:
        kind = self._kind
        if length > H2_FRAME_BYTES_MAX:
            raise OversizedFrame
        if kind == _DATA:
            if (length == 0 or flags & _PADDED) and not flags & _END_STREAM:
                self._note_idle_frame(1, now_s)
        elif kind == _HEADERS:
            self._block_bytes = None if flags & _END_HEADERS else length
        elif kind == _CONTINUATION:
            self._block_bytes = (self._block_bytes or 0) + length
            if self._block_bytes > H2_HEADER_BLOCK_BYTES_MAX:
                raise Flood("a header block is too long")
            if flags & _END_HEADERS:
                self._block_bytes = None
            self._note_idle_frame(1, now_s)
        elif kind == _RST_STREAM:
            self.note_reset(now_s)
        else:
            self._note_idle_frame(_SETTINGS_COST if kind == _SETTINGS else 1, now_s)

    def _note_idle_frame(self, cost: int, now_s: float) -> None:
        forgiven = (now_s - self._idle_frames_at_s) * H2_IDLE_FRAMES_PER_S
        self._idle_frames_at_s = now_s
        self._idle_frames = max(0.0, self._idle_frames - forgiven) + cost
        if self._idle_frames > H2_IDLE_FRAMES_MAX:
            raise Flood("too many frames that only cause work")

    def note_reset(self, now_s: float) -> None:
        """A stream was reset by the client, or because of it. Raises `Flood`."""
        if now_s - self._resets_since_s > H2_RESETS_S:
            self._resets_since_s = now_s
            self._reset_count = 0
        self._reset_count += 1
        if self._reset_count > H2_RESETS_MAX:
            raise Flood("too many streams reset")

    def note_request(self) -> None:
        self._idle_frames -= _FRAMES_PER_REQUEST

    def note_data_sent(self, size_bytes: int) -> None:
        """Sent data allows more frames. A client that opens its windows byte by byte gains nothing from that."""
        if size_bytes >= _USEFUL_DATA_BYTES_MIN:
            self._idle_frames -= _FRAMES_PER_DATA_FRAME

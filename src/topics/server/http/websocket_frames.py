"""Large frames of a WebSocket client, cut into fragments before the library reads them (RFC 6455).

The library keeps a frame until it is whole, then copies it and takes its mask off, each in one call: a frame of 64 MiB
holds up the loop for a tenth of a second. A frame may be cut into fragments of the same message, with the same mask,
without a change of its bytes: only the heads are new. Frames that the library refuses are not cut.

Sans-io: bytes in, bytes out.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from topics.limits import KIB

# A multiple of the mask's length, so that every fragment begins with the first byte of the mask.
PIECE_BYTES: Final = 256 * KIB
assert PIECE_BYTES % 4 == 0

_FIN: Final = 0x80
_MASKED: Final = 0x80
_OPCODES: Final = 0x0F
_CONT, _TEXT, _BINARY = 0, 1, 2
_KNOWN_OPCODES: Final = frozenset((_CONT, _TEXT, _BINARY, 8, 9, 10))
_MASK_BYTES: Final = 4
_SHORT: Final = Struct("!H")
_LONG: Final = Struct("!Q")
_LONG_HEAD: Final = Struct("!BBQ")


class FrameCutter:
    """Reads the heads of all frames of one client. A frame that makes its message larger than `message_bytes_max` stays
    as it is."""

    def __init__(self, message_bytes_max: int) -> None:
        self._message_bytes_max = message_bytes_max
        # Bytes of the frames of the current message, up to the current frame.
        self._message_bytes = 0
        # The bytes of a head that is not whole yet.
        self._head = b""
        # Bytes of the current frame, and of the current piece of it, that have not come yet.
        self._left_bytes = 0
        self._piece_left_bytes = 0
        # Of the frame that is being cut: whether its message ends with it, and its mask.
        self._is_last = False
        self._mask = b""
        # The library refuses what comes now, and nothing is looked at any more.
        self._is_broken = False

    @property
    def has_part_of_head(self) -> bool:
        return bool(self._head)

    @property
    def is_cutting(self) -> bool:
        """Whether more pieces of a large frame are to come."""
        return self._left_bytes > self._piece_left_bytes

    def cut(self, data: bytes) -> bytes:
        """The same frames, with large ones in pieces. The bytes of a head come when the head is whole."""
        if len(data) <= self._piece_left_bytes:
            self._piece_left_bytes -= len(data)
            self._left_bytes -= len(data)
            return data
        parts: list[bytes] = []
        at = 0
        while at < len(data) and not self._is_broken:
            if self._left_bytes:
                if not self._piece_left_bytes:
                    parts.append(self._next_head(_CONT))
                part = data[at : at + self._piece_left_bytes]
                self._piece_left_bytes -= len(part)
                self._left_bytes -= len(part)
            else:
                head = self._head + data[at : at + 2 - len(self._head)] if len(self._head) < 2 else self._head
                at += len(head) - len(self._head)
                self._head = head
                if len(head) < 2:
                    break
                if head[0] & _OPCODES not in _KNOWN_OPCODES or not head[1] & _MASKED:
                    self._is_broken = True
                    parts.append(head)
                    break
                part = data[at : at + _head_bytes(head) - len(head)]
                self._head += part
                if len(self._head) == _head_bytes(head):
                    parts.append(self._take_head())
                at += len(part)
                continue
            parts.append(part)
            at += len(part)
        if self._is_broken:
            parts.append(data[at:])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _take_head(self) -> bytes:
        """The frame begins. Its head, or the head of its first piece."""
        head, self._head = self._head, b""
        length = head[1] & ~_MASKED
        if length == 126:
            (length,) = _SHORT.unpack_from(head, 2)
        elif length == 127:
            (length,) = _LONG.unpack_from(head, 2)
        self._left_bytes = self._piece_left_bytes = length
        # The reserved bits are 0, because no extension is agreed on.
        opcode = head[0] & ~_FIN
        if opcode not in (_CONT, _TEXT, _BINARY):
            return head
        self._is_last = bool(head[0] & _FIN)
        message_bytes = length + (self._message_bytes if opcode == _CONT else 0)
        self._message_bytes = 0 if self._is_last else message_bytes
        if length <= PIECE_BYTES or message_bytes > self._message_bytes_max:
            return head
        self._mask = head[-_MASK_BYTES:]
        return self._next_head(opcode)

    def _next_head(self, opcode: int) -> bytes:
        size = self._piece_left_bytes = min(self._left_bytes, PIECE_BYTES)
        ends = self._is_last and size == self._left_bytes
        return _LONG_HEAD.pack(_FIN * ends | opcode, _MASKED | 127, size) + self._mask


def _head_bytes(head: bytes) -> int:
    length = head[1] & ~_MASKED
    return 2 + (2 if length == 126 else 8 if length == 127 else 0) + _MASK_BYTES

"""The bare server of streams: uvloop without an engine. Its speed is the ceiling of every server of streams in Python.

It takes the same frames as a server with an engine. A send is copied once into a file and answered. A poll is answered
with a view of that file, from the offset on that the poll asks for: all messages have the size of the first send.
Nothing is looked at but lengths and codes.
"""

import asyncio
import mmap
import os
import signal
import sys
from struct import Struct
from typing import Final, cast

import uvloop

from topics.bench.floor_server import write_port

RECEIVED_BYTES: Final = 64 * 1024
_HEAD: Final = Struct("<II")
_POLLED: Final = Struct("<IIIQI")
# Where a poll by number ids has its offset and its count, after the length and the code.
_POLL_OFFSET: Final = Struct("<QI")
POLL_OFFSET_AT: Final = 33
_SEND: Final = 101
_POLL: Final = 100
# A send of this protocol begins with its metadata and an index entry for each message.
METADATA_BYTES: Final = 26
ENTRY_BYTES: Final = 16
_COUNT_AT: Final = 22
_COUNT: Final = Struct("<I")
OK: Final = bytes(8)


class Store:
    """One file of messages of one size."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o600)
        self._end = 0
        self._message_bytes = 0
        self._view = memoryview(b"")

    def write(self, payload: memoryview) -> None:
        (count,) = _COUNT.unpack_from(payload, _COUNT_AT)
        messages = payload[METADATA_BYTES + count * ENTRY_BYTES :]
        self._message_bytes = len(messages) // count
        position = 0
        while position < len(messages):
            position += os.pwrite(self._fd, messages[position:], self._end + position)
        self._end += len(messages)

    def view(self, offset: int, count: int) -> tuple[memoryview, int]:
        """Messages, and how many they are."""
        if len(self._view) < self._end:
            self._view = memoryview(mmap.mmap(self._fd, self._end, prot=mmap.PROT_READ))
        size = self._message_bytes
        found = self._view[offset * size : (offset + count) * size]
        return found, len(found) // size if size else 0


class Connection(asyncio.BufferedProtocol):
    """One client with one request at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._start = memoryview(bytearray(RECEIVED_BYTES))
        self._frame: memoryview | None = None
        self._filled = 0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._start[self._filled :] if self._frame is None else self._frame[self._filled :]

    def buffer_updated(self, count: int) -> None:
        self._filled += count
        if self._frame is None:
            if self._filled < _HEAD.size:
                return
            frame_bytes = 4 + _HEAD.unpack_from(self._start)[0]
            self._frame = memoryview(bytearray(frame_bytes))
            self._frame[: self._filled] = self._start[: self._filled]
        if self._filled == len(self._frame):
            frame, self._frame, self._filled = self._frame, None, 0
            self._answer(frame)

    def _answer(self, frame: memoryview) -> None:
        code = _HEAD.unpack_from(frame)[1]
        if code == _SEND:
            self._store.write(frame[_HEAD.size :])
        elif code == _POLL:
            offset, count = _POLL_OFFSET.unpack_from(frame, POLL_OFFSET_AT)
            messages, found = self._store.view(offset, count)
            self._transport.writelines([_POLLED.pack(0, 16 + len(messages), 0, 0, found), messages])
            return
        self._transport.write(OK)


async def serve(port_file: str, path: str) -> None:
    loop = asyncio.get_running_loop()
    store = Store(path)
    server = await loop.create_server(lambda: Connection(store), "127.0.0.1", 0)
    is_over = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, is_over.set)
    write_port(port_file, server.sockets[0].getsockname()[1])
    await is_over.wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], sys.argv[2]))

"""The bare server: llhttp and uvloop without an engine. Its CPU time is the floor of every HTTP server in Python.

It answers each POST with the same bytes. A GET opens a stream: each POST also sends one event to all streams, joined
for each turn of the loop. So it takes the same requests as a server with an engine and sends as many bytes.
"""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Final, cast

import httptools
import uvloop

_STREAM_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Broadcast:
    """The open streams, and how many events they get at the end of the turn."""

    def __init__(self, event: bytes) -> None:
        self._event = event
        self._loop = asyncio.get_running_loop()
        self._due = 0
        self.streams: set[asyncio.WriteTransport] = set()

    def publish(self) -> None:
        if not self.streams or not self._event:
            return
        if not self._due:
            self._loop.call_soon(self._flush)
        self._due += 1

    def _flush(self) -> None:
        data, self._due = self._event * self._due, 0
        for stream in self.streams:
            stream.write(data)


class Connection(asyncio.Protocol):
    """One client, which may send several requests at once."""

    def __init__(self, answer: bytes, broadcast: Broadcast) -> None:
        self._answer = answer
        self._broadcast = broadcast
        self._answers = 0
        self._transport: asyncio.WriteTransport
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, _: Exception | None) -> None:
        self._broadcast.streams.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)
        if self._answers:
            self._transport.write(self._answer * self._answers)
            self._answers = 0

    def on_message_complete(self) -> None:
        if self._parser.get_method() == b"GET":
            self._transport.write(_STREAM_HEAD)
            self._broadcast.streams.add(self._transport)
        else:
            self._answers += 1
            self._broadcast.publish()


def write_port(path: str, port: int) -> None:
    """In one step: a reader never sees an empty file."""
    Path(f"{path}.new").write_text(f"127.0.0.1:{port}\n")
    Path(f"{path}.new").rename(path)


async def serve(port_file: str, answer: bytes, event: bytes) -> None:
    loop = asyncio.get_running_loop()
    broadcast = Broadcast(event)
    server = await loop.create_server(lambda: Connection(answer, broadcast), "127.0.0.1", 0)
    is_over = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, is_over.set)
    write_port(port_file, server.sockets[0].getsockname()[1])
    await is_over.wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], Path(sys.argv[2]).read_bytes(), Path(sys.argv[3]).read_bytes()))

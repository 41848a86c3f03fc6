"""Answers as both clients read them: messages of streams, and answers that would be asked for again without end."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import topics
from tests.server.running import running
from topics.client.answers import StreamRecord
from topics.streams.partitions.batch import NewMessage, encode_send
from topics.streams.partitions.partitioning import PartitionId


async def read_async(url: str, **options: int) -> list[StreamRecord]:
    async with topics.AsyncClient(url) as client:
        return [record async for record in client.read_stream("orders", "events", 0, **options)]


def test_both_clients_read_all_messages_page_by_page_with_their_bytes(tmp_path: Path) -> None:
    payloads = [b'{ "id": 1.0e2 }', b"\0\xff", b"", b"text"]
    with running(tmp_path, streams_port=0) as server, topics.Client(server.url) as client:
        system = server.server.streams.system
        assert system is not None
        system.create_stream("orders")
        system.create_topic("orders", "events", partitions_count=1)
        messages = [NewMessage(payload, 2**127 + number) for number, payload in enumerate(payloads)]
        system.send("orders", "events", encode_send(messages), PartitionId(0))
        for options in ({"page_bytes": 1}, {}, {"offset": 2}, {"timestamp_us": 0}):
            found = list(client.read_stream("orders", "events", 0, **options))
            assert [record.payload for record in found] == payloads[options.get("offset", 0) :]
            assert found == asyncio.run(read_async(server.url, **options))
        assert [record.id for record in client.read_stream("orders", "events", 0)] == [
            message.id for message in messages
        ]
        assert list(client.read_stream("orders", "events", 0, offset=9)) == []


# --- a server that makes no progress ------------------------------------------------------------------------------


TIME = '"performance":{"server_total_ms":1}'
LIST = '{"%s":[],"next_cursor":"a",' + TIME + "}"
# A page in the middle of a topic, which ends where it begins.
DIFF = (
    '{"topic":"t","records":[],"next_from_seq":0,"head_seq":9,"earliest_seq":1,"caught_up":false,"tombstone":null,'
    '"lag":9,' + TIME + "}"
)


@contextmanager
def answering(text: str) -> Iterator[str]:
    """The URL of a server that gives every request the same answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.send_response(200)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_GET  # noqa: N815 - as the library names it.

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("read", "text"),
    [("topics", LIST % "topics"), ("routers", LIST % "routers"), ("streams", LIST % "streams"), ("read_all", DIFF)],
)
def test_a_server_that_makes_no_progress_is_an_error(read: str, text: str) -> None:
    arguments = ("t",) if read == "read_all" else ()
    with answering(text) as url:
        with topics.Client(url) as client, pytest.raises(topics.TopicsError, match="without progress"):
            list(getattr(client, read)(*arguments))

        async def read_async() -> None:
            async with topics.AsyncClient(url) as client:
                found = getattr(client, read)(*arguments)
                if hasattr(found, "__aiter__"):
                    async for _ in found:
                        pass
                else:
                    await found

        with pytest.raises(topics.TopicsError, match="without progress"):
            asyncio.run(read_async())

"""Messages of streams, as both clients read them."""

import asyncio
from pathlib import Path

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

"""Directories that the partitioned engine wrote, and what a read of them gives, without a JVM."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import topics.streams
from topics.formats.user_headers import encode_user_headers
from topics.spark.options import ReadOptions, parse_options
from topics.spark.schemas import schema_of
from topics.spark.streams.source import StreamsReader, StreamsStreamReader
from topics.streams import NewMessage, Streams
from topics.streams.settings import StreamsSettings, from_mapping

KEY: Final = base64.b64encode(bytes(range(32))).decode()
OTHER_KEY: Final = base64.b64encode(bytes(range(1, 33))).decode()
HEADERS: Final = encode_user_headers({"kind": "test"})

Row = dict[str, Any]


def settings_of(
    *, flavour: str = "page", key: str | None = None, compression: str = "none", segment_bytes: int = 4096
) -> StreamsSettings:
    """Small segments, and every message in the files at once."""
    return from_mapping(
        {
            "system": {
                "flavour": flavour,
                "segment": {"size": segment_bytes},
                "partition": {"messages_required_to_save": 1},
                "encryption": {"enabled": key is not None, "key": key or ""},
                "compression": {"default_algorithm": compression, "force": True},
            }
        }
    )


def open_world(path: Path, settings: StreamsSettings | None = None, *, partitions: int = 1) -> Streams:
    """An engine with the topic `events` of the stream `orders`."""
    streams = topics.streams.open(path, settings or settings_of())
    if not streams.streams():
        streams.create_stream("orders")
        streams.create_topic("orders", "events", partitions=partitions)
    return streams


def payload(number: int) -> bytes:
    return f"message {number} ".encode() * 5


def send(streams: Streams, count: int, *, partition: int = 0, first: int = 0) -> None:
    """In batches of ten, every third message with headers of its own."""
    messages = [
        NewMessage(
            payload(number),
            user_headers=HEADERS if number % 3 == 0 else None,
            id=number + 1,
            origin_timestamp=number,
        )
        for number in range(first, first + count)
    ]
    for start in range(0, count, 10):
        streams.send("orders", "events", messages[start : start + 10], partition=partition)


def write(path: Path, count: int = 100, settings: StreamsSettings | None = None) -> None:
    """A directory with so many messages, closed again."""
    with open_world(path, settings) as streams:
        send(streams, count)


def options_of(path: Path, mode: Any = "batch", **given: str) -> ReadOptions:
    named = {"path": str(path), "stream": "orders", "topic": "events", **given}
    return parse_options(named, mode=mode, source="topics_streams")


def batch_reader(path: Path, **given: str) -> StreamsReader:
    options = options_of(path, **given)
    return StreamsReader(options, schema_of(options, "topics_streams"))


def stream_reader(path: Path, **given: str) -> StreamsStreamReader:
    options = options_of(path, "stream", **given)
    return StreamsStreamReader(options, schema_of(options, "topics_streams"))


def rows_of(reader: StreamsReader | StreamsStreamReader, partitions: Sequence[Any]) -> list[Row]:
    """What the tasks give, one after the other."""
    return [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]


def read(path: Path, **given: str) -> list[Row]:
    reader = batch_reader(path, **given)
    return rows_of(reader, reader.partitions())


def offsets(rows: Sequence[Row]) -> list[int]:
    return [row["offset"] for row in rows]

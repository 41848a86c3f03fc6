"""The speed of the partitioned engine in one process: sends into the page cache, polls of sealed segments, opening."""

import os
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from topics.bench.report import Row, not_measured
from topics.bench.setting import Setting
from topics.clock import SystemClock
from topics.formats.message_index import ENTRY_BYTES
from topics.storage.fs import RealFs
from topics.streams.consumers.polling import Consumer, PollingStrategy
from topics.streams.partitions.batch import IncomingBatch, NewMessage, encode_send
from topics.streams.partitions.message_view import PolledMessages
from topics.streams.partitions.partitioning import PartitionId
from topics.streams.settings import StreamsSettings, from_mapping
from topics.streams.system import System

BATCH_MESSAGES: Final = 1000
OPEN_MESSAGES: Final = 1_000_000

TOPIC: Final = ("bench", "topic")


@dataclass(frozen=True, slots=True)
class StreamsResult:
    send_large_bytes_per_s: float
    # The same bytes, copied and written without the engine.
    raw_large_bytes_per_s: float
    send_small_per_s: float
    poll_large_bytes_per_s: float
    open_s: float
    open_messages: int


class _Template:
    """A send request of equal messages. Each send takes a copy, as a server reads one from a socket."""

    def __init__(self, payload_bytes: int) -> None:
        batch = encode_send([NewMessage(os.urandom(payload_bytes)) for _ in range(BATCH_MESSAGES)])
        self.messages = bytes(batch.buffer)
        ends = batch.ends.astype("<u4").tobytes()
        self.indexes = b"".join(bytes(4) + ends[place : place + 4] + bytes(8) for place in range(0, len(ends), 4))
        assert len(self.indexes) == BATCH_MESSAGES * ENTRY_BYTES

    def batch(self) -> IncomingBatch:
        return IncomingBatch.check(self.indexes, bytearray(self.messages))


def measure(setting: Setting) -> list[Row]:
    if setting.python_path is not None:
        return [not_measured("streams", "it runs in this process, with the package of this process")]
    result = _measure(
        setting.directory, send_bytes=setting.count(600_000_000), open_messages=setting.count(OPEN_MESSAGES)
    )
    return [
        Row("streams: raw copy and write of 1 MB", result.raw_large_bytes_per_s / 1e6, "MB/s"),
        Row("streams: send 1000 x 1 KB", result.send_large_bytes_per_s / 1e6, "MB/s", floor=700),
        Row("streams: send 1000 x 100 B", result.send_small_per_s / 1e6, "M messages/s", floor=1),
        Row("streams: poll 1000 x 1 KB, sealed", result.poll_large_bytes_per_s / 1e6, "MB/s", floor=1000),
        Row(f"streams: open {result.open_messages} messages", result.open_s, "s", ceiling=0.1),
    ]


def _measure(directory: str, *, send_bytes: int, open_messages: int) -> StreamsResult:
    large, small = _Template(1000), _Template(100)
    rounds = max(2, send_bytes // len(large.messages))
    raw = _raw_rate(f"{directory}/raw", large, rounds)
    with_large = _open(f"{directory}/large")
    send_large = _send_rate(with_large, large, rounds) * len(large.messages) / BATCH_MESSAGES
    with_large.close()
    # Polls read the directory again after it was closed and reopened.
    poll = _poll_rate(f"{directory}/large")
    with_small = _open(f"{directory}/small")
    send_small = _send_rate(with_small, small, max(2, open_messages // BATCH_MESSAGES))
    with_small.close()
    began = perf_counter()
    reopened = System.open(RealFs(), f"{directory}/small", _settings(), clock=SystemClock())
    open_s = perf_counter() - began
    count = reopened.topic_state(*TOPIC).messages_count
    reopened.close()
    return StreamsResult(send_large, raw, send_small, poll, open_s, count)


def _settings(segment_size: int = 1024 * 1024 * 1024) -> StreamsSettings:
    return from_mapping({"system": {"segment": {"size": segment_size}}})


def _open(directory: str) -> System:
    system = System.open(RealFs(), directory, _settings(256 * 1024 * 1024), clock=SystemClock())
    system.create_stream(TOPIC[0])
    system.create_topic(*TOPIC)
    return system


def _send_rate(system: System, template: _Template, rounds: int) -> float:
    """Messages a second."""
    partitioning = PartitionId(0)
    began = perf_counter()
    for _ in range(rounds):
        system.send(*TOPIC, template.batch(), partitioning)
    return rounds * BATCH_MESSAGES / (perf_counter() - began)


def _raw_rate(path: str, template: _Template, rounds: int) -> float:
    """Bytes a second."""
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        began = perf_counter()
        for _ in range(rounds):
            os.write(fd, bytearray(template.messages))
        return rounds * len(template.messages) / (perf_counter() - began)
    finally:
        os.close(fd)
        os.unlink(path)


def _poll_rate(directory: str) -> float:
    """Bytes a second of messages in sealed segments, checksums verified."""
    system = System.open(RealFs(), directory, _settings(256 * 1024 * 1024), clock=SystemClock())
    consumer = Consumer(0)
    offset = size = 0
    began = perf_counter()
    while True:
        polled: PolledMessages = system.poll(*TOPIC, consumer, PollingStrategy.offset(offset), BATCH_MESSAGES)
        if not polled.count:
            break
        offset += polled.count
        size += polled.size_bytes
    rate = size / (perf_counter() - began)
    system.close()
    return rate

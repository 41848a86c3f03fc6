"""The numbers of the streams for a scrape: numbers of the listener and numbers of the engine."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING

from topics.protocol.iggy.codes import Code
from topics.server.metrics import StreamsFigures, StreamTopicRow
from topics.stream_errors import StreamStatus

if TYPE_CHECKING:
    from topics.server.streams.host import StreamsHost
    from topics.streams.system import System


def listener_figures(host: StreamsHost) -> StreamsFigures:
    """On the loop."""
    counters = host.counters
    return StreamsFigures(
        recovery_progress=host.recovery_progress,
        connections_open=len(host.connections),
        connections_total=counters.connections_total,
        bytes_received=counters.bytes_received,
        bytes_sent=counters.bytes_sent,
        requests={_name(Code, code): count for code, count in counters.requests.items()},
        errors={_name(StreamStatus, status): count for status, count in counters.errors.items()},
    )


def with_engine_figures(
    listener: StreamsFigures, system: System, may_name: Callable[[str], bool], rows_max: int
) -> StreamsFigures:
    """On a thread: 3 µs for each partition. The prefixes of a key limit the names of streams that it sees."""
    figures = system.figures()
    topics = figures.topics
    shown = [topic for topic in topics if may_name(topic.stream)] if rows_max else []
    return listener._replace(
        streams=figures.streams_count,
        topics=len(topics),
        partitions=sum(topic.partitions_count for topic in topics),
        messages=sum(topic.messages_count for topic in topics),
        size_bytes=sum(topic.size_bytes for topic in topics),
        unsaved_messages=sum(topic.unsaved_messages_count for topic in topics),
        stopped_partitions=sum(topic.stopped_count for topic in topics),
        rows=tuple(
            StreamTopicRow(topic.stream, topic.topic, topic.messages_count, topic.size_bytes, topic.sent_count)
            for topic in shown[:rows_max]
        ),
        rows_truncated=len(shown) > rows_max,
    )


def _name(kind: type[IntEnum], number: int) -> str:
    try:
        return kind(number).name.lower()
    except ValueError:
        return str(number)

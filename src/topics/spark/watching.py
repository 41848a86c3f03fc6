"""How far a streaming query is: lag of each topic, records and bytes of its last batch.

Spark lets a Python source report the newest offsets, and no metrics of its own. So the lag is computed here, from the
offsets that the progress of a query has: `endOffset` is what it has read, `latestOffset` the heads of the topics at
that time. Bytes are there when the stream was read with `observe`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.listener import StreamingQueryListener
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True)
class TopicProgress:
    """One topic of a query, or one partition of a stream."""

    topic: str
    # The last seq that was read, and the newest one that there was.
    seq: int
    head_seq: int
    # Seqs of the last batch.
    batch_seqs: int

    @property
    def lag(self) -> int:
        return max(0, self.head_seq - self.seq)


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """The last batch of a query, and what it has not read yet."""

    name: str
    batch: int
    records: int
    records_per_s: float
    # Of `data`, when the stream was read with `observe`.
    bytes: int | None
    topics: tuple[TopicProgress, ...]

    @property
    def lag(self) -> int:
        return sum(topic.lag for topic in self.topics)

    def __str__(self) -> str:
        size = "" if self.bytes is None else f", {self.bytes} bytes"
        lags = ", ".join(f"{topic.topic} {topic.lag}" for topic in self.topics) or "none"
        return (
            f"{self.name}: batch {self.batch}, {self.records} records{size}, {self.records_per_s:.0f}/s; "
            f"not read yet: {lags}"
        )


def parse_progress(text: str | bytes) -> StreamProgress:
    """From the JSON that Spark has for a progress. Sources of other formats have no part in it."""
    told: dict[str, Any] = msgspec.json.decode(text)
    measured = map(_by_name, told.get("observedMetrics", {}).values())
    observed = [metrics for metrics in measured if "topics_bytes" in metrics]
    return StreamProgress(
        name=told.get("name") or told["id"],
        batch=told["batchId"],
        records=sum(source["numInputRows"] for source in told["sources"]),
        records_per_s=sum(source.get("processedRowsPerSecond") or 0.0 for source in told["sources"]),
        bytes=sum(metrics["topics_bytes"] or 0 for metrics in observed) if observed else None,
        topics=tuple(topic for source in told["sources"] for topic in _topics_of(source)),
    )


def _by_name(metrics: Mapping[str, Any]) -> Mapping[str, Any]:
    """Spark Connect has names and values apart."""
    if "schema" not in metrics:
        return metrics
    return dict(zip((field["name"] for field in metrics["schema"]["fields"]), metrics["values"], strict=True))


def _topics_of(source: Mapping[str, Any]) -> Iterator[TopicProgress]:
    ends = _seqs(source.get("endOffset"))
    starts, heads = _seqs(source.get("startOffset")), _seqs(source.get("latestOffset"))
    # A topic that nothing was read of yet is in the heads only.
    for topic in sorted(ends | heads):
        seq = ends.get(topic, 0)
        yield TopicProgress(topic, seq, max(seq, heads.get(topic, seq)), max(0, seq - starts.get(topic, 0)))


def _seqs(offset: Any) -> dict[str, int]:
    """Seqs by topic, or offsets by partition; nothing for an offset of another source."""
    if isinstance(offset, str):
        # Spark Connect has offsets as text.
        try:
            offset = msgspec.json.decode(offset)
        except msgspec.DecodeError:
            return {}
    if not isinstance(offset, dict):
        return {}
    for members, unit in (("topics", "seq"), ("partitions", "offset")):
        found = offset.get(members)
        if isinstance(found, dict):
            return {name: known[unit] for name, known in found.items() if unit in known}
    return {}


def progress(query: "StreamingQuery") -> StreamProgress | None:
    """Of the last batch of a query; None before its first."""
    last: Any = query.lastProgress
    return None if last is None else parse_progress(last.json)


def listener(tell: Callable[[StreamProgress], object]) -> "StreamingQueryListener":
    """A listener for `spark.streams.addListener`, which calls the function after every batch of every query."""
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryListener,
    )

    class _Listener(StreamingQueryListener):
        def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
            pass

        def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
            told: Any = event.progress
            tell(parse_progress(told.json))

        def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
            pass

        def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
            pass

    return _Listener()


def observed(rows: "DataFrame", name: str) -> "DataFrame":
    """The same rows; each progress of a query has their number and the bytes of `data` under this name."""
    from pyspark.sql import functions as f

    measures = [f.count(f.lit(1)).alias("topics_records")]
    if dict(rows.dtypes).get("data") == "string":
        measures.append(f.sum(f.octet_length("data")).alias("topics_bytes"))
    return rows.observe(name, *measures)

"""Readers of the format `topics_streams`: a topic of the partitioned engine, read from its files.

As in `topics`, constructors do nothing, a partition has all that its task needs, and a restarted streaming query needs
only its offsets. Driver and tasks must see the directory under the same path. An engine may be using it.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from topics.spark import schemas
from topics.spark.errors import BadOption
from topics.spark.manifest import OFFSETS, Manifest
from topics.spark.options import ReadOptions, parse_columns, parse_options
from topics.spark.reading import trigger_plan
from topics.spark.reading.pace import Pace
from topics.spark.reading.plan import Partition, plan_batch
from topics.spark.reading.trigger_plan import Offset
from topics.spark.streams.partition_manifest import with_times_as_offsets
from topics.spark.streams.read import Place, read_messages
from topics.spark.streams.topic import StreamTopic, open_directory

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def schema_text(given: Mapping[str, str]) -> str:
    """The columns of a read with these options, as DDL."""
    return schemas.ddl(schemas.schema_of(parse_columns(given, "topics_streams"), "topics_streams"))


def batch_reader(given: Mapping[str, str], schema: "StructType") -> "StreamsReader":
    options = parse_options(given, mode="batch", source="topics_streams")
    return StreamsReader(options, schemas.read_schema(options, schema, "topics_streams"))


def stream_reader(given: Mapping[str, str], schema: "StructType") -> "StreamsStreamReader":
    options = parse_options(given, mode="stream", source="topics_streams")
    return StreamsStreamReader(options, schemas.read_schema(options, schema, "topics_streams"))


class MessagesTask(InputPartition):
    """The partition that one task reads, and where."""

    def __init__(self, partition: Partition, place: Place) -> None:
        super().__init__(None)
        self.partition = partition
        self.place = place


# Batch.


class StreamsReader(DataSourceReader):
    """One snapshot: its partitions are planned once, at the first action."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        directory = open_directory(self._options, os.environ)
        topic = StreamTopic(directory, self._options)
        found, options = with_times_as_offsets(directory.fs, list(topic.manifests().values()), self._options)
        with topic.named_in_losses():
            planned = plan_batch(found, options)
        return [MessagesTask(partition, topic.place) for partition in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, MessagesTask):
            yield from read_messages(partition.partition, partition.place, self._options, self._schema)


# Streams.


class StreamsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver's side of a streaming query, in a separate process. Tasks get a pickled copy."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._opened: StreamTopic | None = None
        self._initial: dict[str, Any] | None = None
        # With the trigger AvailableNow the query ends at these heads.
        self._ceilings: dict[str, int] | None = None
        self._heads: Offset | None = None
        self._pace = Pace(options)

    @property
    def _topic(self) -> StreamTopic:
        if self._opened is None:
            self._opened = StreamTopic(open_directory(self._options, os.environ), self._options)
        return self._opened

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        # Spark asks twice, and both answers must be the same although heads move.
        if self._initial is None:
            manifests = list(self._manifests_now().values())
            found, options = with_times_as_offsets(self._topic.directory.fs, manifests, self._options)
            with self._topic.named_in_losses():
                self._initial = trigger_plan.initial_offset(found, options).as_json(OFFSETS)
        return self._initial

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        # A topic that is gone is handled in `latestOffset`, which knows whether the query has read it.
        manifests = self._manifests_now(is_known=True)
        self._ceilings = {name: manifest.head_seq for name, manifest in manifests.items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return self._pace.default_limit()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = Offset.from_json(start, OFFSETS)
        self._require_wanted(begin)
        manifests = self._manifests_now(is_known=True)
        with self._topic.named_in_losses():
            end = trigger_plan.next_offset(
                begin,
                manifests,
                self._options,
                read_all=isinstance(limit, ReadAllAvailable),
                ceilings=self._ceilings,
                may_wait=self._ceilings is None and self._pace.may_wait(),
            )
        if end is begin:
            return start
        self._pace.note_batch()
        return end.as_json(OFFSETS)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._heads is None else self._heads.as_json(OFFSETS)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, target = Offset.from_json(start, OFFSETS), Offset.from_json(end, OFFSETS)
        with self._topic.named_in_losses():
            planned = trigger_plan.partitions_between(begin, target, self._manifests_now(is_known=True), self._options)
        return [MessagesTask(partition, self._topic.place) for partition in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, MessagesTask):
            yield from read_messages(partition.partition, partition.place, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: Spark calls it late, and not always."""

    def stop(self) -> None:
        """Does nothing: no file is open between triggers."""

    def _require_wanted(self, begin: Offset) -> None:
        """Raises `BadOption` for a partition that is not wanted any more: it must not look like a deleted one."""
        wanted = self._options.partitions
        for name in begin.topics:
            if wanted and int(name) not in wanted:
                raise BadOption(
                    f"the checkpoint has partition {name}, which is not in option `partitions` any more: add it again, "
                    "or begin a new checkpoint"
                )

    def _manifests_now(self, *, is_known: bool = False) -> dict[str, Manifest]:
        found = self._topic.manifests(is_known=is_known)
        self._heads = trigger_plan.heads(found.values())
        return found

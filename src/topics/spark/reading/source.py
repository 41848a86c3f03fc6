"""Readers of the format `topics`, for batches and streams.

Constructors do nothing: Spark makes these objects several times for each query, on the driver and in tasks, and sends
them as pickles. A partition has all that its task needs. A reader keeps only state that it may lose: a streaming query
that is restarted needs only its offsets.

`pushFilters` is not overridden. Spark keeps the plan with the pushed filters in the DataFrame, so that a second use of
the DataFrame would get the rows of the first filter.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
from msgspec import structs
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from topics.client.sync.client import Client
from topics.errors import TopicNotFound
from topics.spark import schemas
from topics.spark.access import open_client
from topics.spark.errors import BadOption
from topics.spark.manifest import Manifest, epoch_of
from topics.spark.options import ReadOptions, parse_options
from topics.spark.reading import offline, trigger_plan
from topics.spark.reading.locate import ask_manifest, read_partitions
from topics.spark.reading.pace import Pace
from topics.spark.reading.plan import Partition, plan_batch
from topics.spark.reading.tables import TableName, TopicFacts, facts_of, table_batches
from topics.spark.reading.trigger_plan import Offset
from topics.spark.shaping.shape import Shape, shape_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

REQUESTS_AT_ONCE: Final = 8
# When all requests together take less, they are sent one after the other: a near server answers faster so.
IN_TURN_S_MAX: Final = 0.2
# Bounds of partitions that share a task.
PACKED_RECORDS_MAX: Final = 20_000
PACKED_PARTITIONS_MAX: Final = 50


def batch_reader(given: Mapping[str, str], schema: "StructType") -> "TopicsReader":
    options = parse_options(given, mode="batch", environment=os.environ)
    text_schema = schemas.read_schema(options, schema)
    return TopicsReader(options, text_schema, _shape(options, schema, text_schema))


def stream_reader(given: Mapping[str, str], schema: "StructType") -> "TopicsStreamReader":
    options = parse_options(given, mode="stream", environment=os.environ)
    text_schema = schemas.read_schema(options, schema)
    return TopicsStreamReader(options, text_schema, _shape(options, schema, text_schema))


def _shape(options: ReadOptions, requested: "StructType", text_schema: pa.Schema) -> Shape | None:
    return None if options.schema is None else shape_of(requested, text_schema)


class RecordsTask(InputPartition):
    """The partitions that one task reads, one after the other."""

    def __init__(self, partitions: Sequence[Partition]) -> None:
        super().__init__(None)
        self.partitions = tuple(partitions)


def pack(partitions: Sequence[Partition], cursors: Mapping[str, int], options: ReadOptions) -> list[RecordsTask]:
    """Tasks for these partitions. Small partitions of several topics share a task: starting a task costs more than
    reading a thousand records.

    Only seqs decide, from the cursors on. Floors and files change between two attempts of a batch, and both attempts
    must be split in the same way.
    """
    tasks: list[RecordsTask] = []
    waiting: list[Partition] = []
    waiting_records = 0
    records_max = 0 if options.min_partitions else min(options.max_records_per_partition, PACKED_RECORDS_MAX)
    before = dict(cursors)
    for partition in partitions:
        records = partition.last_seq - before.get(partition.topic, partition.first_seq - 1)
        before[partition.topic] = partition.last_seq
        if waiting and (waiting_records + records > records_max or len(waiting) == PACKED_PARTITIONS_MAX):
            tasks.append(RecordsTask(waiting))
            waiting, waiting_records = [], 0
        waiting.append(partition)
        waiting_records += records
    return [*tasks, RecordsTask(waiting)] if waiting else tasks


def _rows(task: RecordsTask, options: ReadOptions, schema: pa.Schema, shape: Shape | None) -> Iterator[pa.RecordBatch]:
    batches = read_partitions(task.partitions, options, schema)
    return batches if shape is None else shape.apply(batches)


class TableTask(InputPartition):
    """The input of a table other than `records`."""

    def __init__(self, table: TableName, manifests: Sequence[Manifest], facts: Mapping[str, TopicFacts]) -> None:
        super().__init__(None)
        self.table = table
        self.manifests = manifests
        self.facts = facts


# Batch.


class TopicsReader(DataSourceReader):
    """One snapshot: its partitions are planned once, at the first action."""

    def __init__(self, options: ReadOptions, schema: pa.Schema, shape: Shape | None = None) -> None:
        self._options = options
        self._schema = schema
        self._shape = shape

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        if options.table == "records":
            return pack(plan_batch(take_manifests(options), options), {}, options)
        if options.path is not None:
            view = offline.take_manifests(options)
            return [TableTask(options.table, _subscribed(view.manifests, options), view.facts)]
        manifests = take_manifests(replace(options, pin_ms=0))
        if options.table != "topics":
            return [TableTask(options.table, manifests, {})]
        facts = take_facts(options, [manifest.topic for manifest in manifests])
        return [TableTask("topics", [manifest for manifest in manifests if manifest.topic in facts], facts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, RecordsTask):
            yield from _rows(partition, self._options, self._schema, self._shape)
        elif isinstance(partition, TableTask):
            for batch in table_batches(partition.table, partition.manifests, partition.facts):
                yield schemas.with_schema(batch, self._schema)


def take_manifests(options: ReadOptions) -> list[Manifest]:
    """One manifest of each topic that the options name, with its files pinned as long as the options say."""
    if options.path is not None:
        return _subscribed(offline.take_manifests(options).manifests, options)
    with open_client(options) as client:
        topics = _Topics(client, options)
        return list(topics.manifests([Wanted(name) for name in topics.names()], pin_ms=options.pin_ms).values())


def _subscribed(manifests: Sequence[Manifest], options: ReadOptions) -> list[Manifest]:
    """Those of a directory that the options name; all when they name none. Raises `BadOption` for a missing one."""
    if options.subscribe_pattern is not None:
        return [each for each in manifests if re.fullmatch(options.subscribe_pattern, each.topic)]
    missing = set(options.subscribe) - {each.topic for each in manifests}
    if missing:
        known = ", ".join(sorted(each.topic for each in manifests)) or "none at all"
        raise BadOption(f'{options.path} has no topic "{min(missing)}"; it has {known}')
    return [each for each in manifests if not options.subscribe or each.topic in options.subscribe]


def take_facts(options: ReadOptions, names: Sequence[str]) -> dict[str, TopicFacts]:
    """Facts of these topics that are not in a manifest. A topic that is gone is left out."""
    facts: dict[str, TopicFacts] = {}
    with open_client(options) as client:
        for name in names:
            with suppress(TopicNotFound):
                facts[name] = facts_of(client.state(name))
    return facts


class Wanted(NamedTuple):
    """A request for a manifest. With `may_be_gone` a missing topic is no error."""

    topic: str
    from_seq: int = 0
    to_seq: int | None = None
    may_be_gone: bool = False


class _Topics:
    """The subscribed topics of a server."""

    def __init__(self, client: Client, options: ReadOptions) -> None:
        self._client = client
        self._options = options

    def names(self) -> Sequence[str]:
        """The topics of the list, which may not exist, or the topics that match the pattern now."""
        if self._options.subscribe_pattern is None:
            return self._options.subscribe
        return list(filter(self.is_subscribed, self._client.topics()))

    def is_subscribed(self, name: str) -> bool:
        pattern = self._options.subscribe_pattern
        return name in self._options.subscribe if pattern is None else re.fullmatch(pattern, name) is not None

    def manifests(self, wanted: Sequence[Wanted], *, pin_ms: int = 0) -> dict[str, Manifest]:
        """By name, in the given order. When the server answers slowly, several requests run at a time.

        Raises `TopicNotFound` for a topic that was asked for by name and does not exist.
        """

        def ask(each: Wanted) -> Manifest | None:
            try:
                return ask_manifest(self._client, each.topic, each.from_seq, each.to_seq, pin_ms=pin_ms)
            except TopicNotFound:
                if each.may_be_gone or self._options.subscribe_pattern is not None:
                    return None
                raise

        started_s = monotonic()
        found = [ask(each) for each in wanted[:1]]
        rest = wanted[1:]
        if len(rest) * (monotonic() - started_s) < IN_TURN_S_MAX:
            found += map(ask, rest)
        else:
            with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
                found += pool.map(ask, rest)
        return {each.topic: manifest for each, manifest in zip(wanted, found, strict=True) if manifest is not None}


# Streams.


class TopicsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver's side of a streaming query, in a separate process. Tasks get a pickled copy."""

    def __init__(self, options: ReadOptions, schema: pa.Schema, shape: Shape | None = None) -> None:
        self._options = options
        self._schema = schema
        self._shape = shape
        self._client: Client | None = None
        self._initial: dict[str, Any] | None = None
        # With the trigger AvailableNow the query ends at these heads.
        self._ceilings: dict[str, int] | None = None
        self._heads: Offset | None = None
        self._pace = Pace(options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        # Spark asks twice, and both answers must be the same although heads move.
        if self._initial is None:
            manifests = self._manifests_now([Wanted(name) for name in self._topics.names()])
            self._initial = trigger_plan.initial_offset(list(manifests.values()), self._options).as_json()
        return self._initial

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        # A topic that is gone is handled in `latestOffset`, which knows whether the query has read it.
        wanted = [Wanted(name, may_be_gone=True) for name in self._topics.names()]
        self._ceilings = {name: manifest.head_seq for name, manifest in self._manifests_now(wanted).items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return self._pace.default_limit()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = Offset.from_json(start)
        self._require_subscribed(begin)
        # With gap rows a topic that was deleted has left the offset. It may be created again later.
        may_be_gone = self._options.gaps == "rows"
        wanted = [
            Wanted(name, known.seq + 1, may_be_gone=True)
            if (known := begin.topics.get(name))
            else Wanted(name, may_be_gone=may_be_gone)
            for name in self._topics.names()
        ]
        end = trigger_plan.next_offset(
            begin,
            self._manifests_now(wanted),
            self._options,
            read_all=isinstance(limit, ReadAllAvailable),
            ceilings=self._ceilings,
            may_wait=self._ceilings is None and self._pace.may_wait(),
        )
        if end is begin:
            return start
        self._pace.note_batch()
        return end.as_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._heads is None else self._heads.as_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, target = Offset.from_json(start), Offset.from_json(end)
        planned = trigger_plan.partitions_between(begin, target, self._manifests_between(begin, target), self._options)
        cursors = {
            # A topic that is new to the query, or was created again, begins with its first seq.
            name: known.seq if (known := begin.topics.get(name)) and known.epoch == topic.epoch else 0
            for name, topic in target.topics.items()
        }
        partitions = [replace(partition, epoch=epoch_of(partition.epoch)) for partition in planned]
        return pack(partitions, cursors, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, RecordsTask):
            yield from _rows(partition, self._options, self._schema, self._shape)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: Spark calls it late, and not always."""

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()

    # Manifests.

    @property
    def _topics(self) -> _Topics:
        if self._client is None:
            self._client = open_client(self._options)
        return _Topics(self._client, self._options)

    def _require_subscribed(self, begin: Offset) -> None:
        """Raises `BadOption` for a topic that is not subscribed any more: it must not look like a deleted topic."""
        for name in begin.topics:
            if not self._topics.is_subscribed(name):
                raise BadOption(
                    f'the checkpoint has topic "{name}", which is not subscribed any more: subscribe to it again, '
                    "or begin a new checkpoint"
                )

    def _manifests_now(self, wanted: Sequence[Wanted]) -> dict[str, Manifest]:
        found = _by_instance(self._topics.manifests(wanted))
        self._heads = trigger_plan.heads(found.values())
        return found

    def _manifests_between(self, begin: Offset, target: Offset) -> dict[str, Manifest]:
        """Manifests of the topics with new records, with the files of the batch pinned."""
        wanted: list[Wanted] = []
        for name, topic in target.topics.items():
            known = begin.topics.get(name)
            if known is not None and known[:2] == topic[:2]:
                continue
            first_seq = known.seq + 1 if known is not None and known.epoch == topic.epoch else 0
            wanted.append(Wanted(name, first_seq, topic.seq, may_be_gone=True))
        return _by_instance(self._topics.manifests(wanted, pin_ms=self._options.pin_ms))


def _by_instance(manifests: Mapping[str, Manifest]) -> dict[str, Manifest]:
    """The manifests with the number of the instance as epoch, because an offset is about one instance."""
    return {name: structs.replace(manifest, epoch=manifest.instance) for name, manifest in manifests.items()}

"""Writers of format `topics`: what Spark calls on executors and on the driver.

*Staged*: tasks stage chunks, which are not visible, and the driver commits all of them at once. The server's ledger has
the last epoch of each writer, so that an epoch counts once, however often it is run. *Direct*: tasks append records,
which are visible at once.

rule 1  `commit` and `abort` know the writer only from the messages of tasks, because they run on the driver.
rule 2  Spark calls `abort` also after a commit that failed. The commit may have succeeded on the server, so that the
        server is asked first.
rule 3  Constructors do nothing, because Spark makes and pickles writers several times.
"""

import logging
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from topics.client.calls import PartOfEpoch
from topics.client.sync.client import Client
from topics.errors import InvalidRequest, TopicsError
from topics.protocol.response_body import EpochCommitted
from topics.spark.access import open_client
from topics.spark.options import Mode
from topics.spark.writing.body import SERVER_COLUMNS, check_columns, without_server_columns
from topics.spark.writing.options import WriteOptions, parse_write_options
from topics.spark.writing.part import DirectSender, PartWriter, StagedSender, TopicPart, with_topic

logger = logging.getLogger(__name__)

# Larger numbers are not exact in every JSON reader.
_ATTEMPT_BITS: Final = 53

_warned: set[str] = set()


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> "TopicsBatchWriter":  # noqa: FBT001 -- as Spark calls it
    """What `DataSource.writer` returns. Raises `BadOption` for options or columns that cannot be written."""
    return TopicsBatchWriter(_sink(options, schema, "batch", overwrite=overwrite))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> "TopicsStreamWriter":  # noqa: FBT001 -- as Spark calls it
    """What `DataSource.streamWriter` returns. Raises `BadOption` for options or columns that cannot be written."""
    return TopicsStreamWriter(_sink(options, schema, "stream", overwrite=overwrite))


def _sink(given: Mapping[str, str], schema: StructType, mode: Mode, *, overwrite: bool) -> "Sink":
    options = parse_write_options(given, mode=mode, overwrite=overwrite, environment=os.environ)
    # An INSERT into a table has all columns of the table, with nulls in those that it does not name.
    columns = [column for column in schema if not (column.nullable and column.name in SERVER_COLUMNS)]
    check_columns([(column.name, column.dataType.simpleString()) for column in columns], options.topic)
    return Sink(options, mode, truncates=overwrite)


class TopicsBatchWriter(DataSourceArrowWriter):
    def __init__(self, sink: "Sink") -> None:
        self.sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.sink.write(iterator, _this_task())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.sink.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.sink.abort(messages)


class TopicsStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, sink: "Sink") -> None:
        self.sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.sink.write(iterator, _this_task())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's name
        self.sink.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's name
        self.sink.abort(messages)


class Task(NamedTuple):
    """The task that writes. A batch write has no query and no batch."""

    part: int
    query_id: str | None = None
    batch_id: int | None = None


def _this_task() -> Task:
    context = TaskContext.get()
    assert context is not None
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    return Task(
        context.partitionId(),
        context.getLocalProperty("sql.streaming.queryId"),
        None if batch_id is None else int(batch_id),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWritten(WriterCommitMessage):
    """What a task tells the driver."""

    writer: str
    epoch: int
    part: int
    attempt: int
    is_staged: bool
    topics: dict[str, TopicPart]


@dataclass(slots=True)
class Sink:
    """One write, on driver and executors. It has plain values only, because Spark pickles it."""

    options: WriteOptions
    mode: Mode
    # Whether the commit removes all older records.
    truncates: bool = False
    # The writer when no option names it. It is the same for all attempts of one run.
    run_id: str = field(default_factory=lambda: f"run:{uuid4()}")

    # On executors.

    def write(self, batches: Iterable[pa.RecordBatch], task: Task) -> PartWritten:
        """Sends the rows of a partition."""
        options = self.options
        if self.mode == "stream":
            assert task.query_id is not None
            assert task.batch_id is not None
            writer, epoch = options.writer_id or task.query_id, task.batch_id
        else:
            writer, epoch = options.writer_id or self.run_id, options.epoch
        with self._client() as client:
            is_staged = options.write_mode == "staged" and "stage" in client.health().features
            # Spark numbers attempts from 0 again after a restart and when it repeats a stage. Chunks of an earlier
            # attempt may have other rows, so that the number of an attempt is random.
            attempt = secrets.randbits(_ATTEMPT_BITS)
            sender = (
                StagedSender(client, options, writer, epoch, task.part, attempt)
                if is_staged
                else DirectSender(client, options, writer, epoch, task.part)
            )
            with PartWriter(options, sender, task.part) as part:
                for batch in batches:
                    part.add(without_server_columns(batch))
                topics = part.finish()
        return PartWritten(
            writer=writer, epoch=epoch, part=task.part, attempt=attempt, is_staged=is_staged, topics=topics
        )

    def _client(self) -> Client:
        waits = self.options.backpressure == "wait"
        return open_client(self.options, throttle_wait_s=self.options.write_timeout_ms / 1000 if waits else 0.0)

    # On the driver.

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Makes staged rows visible, topic by topic. A repeat commits only the topics that are not done."""
        written = [message for message in messages if isinstance(message, PartWritten)]
        if len(written) != len(messages):
            raise TopicsError("a task has not told what it wrote: nothing is committed")
        if self.options.write_mode == "staged" and not all(message.is_staged for message in written):
            _warn_once(
                f"{self.options.endpoint} has no staged writes: rows were appended at once (writeMode=direct), "
                "seen before the write was complete, and repeated rows are known for a limited time only"
            )
        names = {name for message in written for name in message.topics}
        if self.truncates and self.options.topic is not None:
            names.add(self.options.topic)
        if not names:
            return
        with self._client() as client:
            for name in sorted(names):
                first_seq = self._commit_topic(client, name, written)
                if self.truncates and first_seq is not None:
                    client.delete(name, before_seq=first_seq)

    def _commit_topic(self, client: Client, name: str, written: Sequence[PartWritten]) -> int | None:
        """The first seq of the new records in the topic; None when it is not known any more."""
        is_direct = self.options.write_mode == "direct" or any(not message.is_staged for message in written)
        direct_seqs = [
            part.first_seq
            for message in written
            if (part := message.topics.get(name)) is not None and part.first_seq is not None
        ]
        first_seq = min(direct_seqs, default=None)
        staged = [message for message in written if message.is_staged and name in message.topics]
        if staged or not is_direct:
            committed_seq = self._commit_staged(client, name, staged, written)
            if first_seq is None or committed_seq is None:
                return committed_seq
            return min(first_seq, committed_seq)
        if first_seq is None:
            # No new records, and all older ones go.
            return with_topic(client, name, self.options, lambda: client.state(name).head_seq + 1, is_direct=True)
        return first_seq

    def _commit_staged(
        self, client: Client, name: str, staged: Sequence[PartWritten], written: Sequence[PartWritten]
    ) -> int | None:
        if written:
            writer, epoch = written[0].writer, written[0].epoch
        else:
            # No partition, which only a batch can have. The options name its writer.
            assert self.options.writer_id is not None
            writer, epoch = self.options.writer_id, self.options.epoch
        assert all((message.writer, message.epoch) == (writer, epoch) for message in written)
        parts = [
            PartOfEpoch(message.part, message.attempt, message.topics[name].chunks, message.topics[name].records)
            for message in sorted(staged, key=lambda message: message.part)
        ]
        answer = with_topic(
            client, name, self.options, lambda: client.commit_epoch(writer, epoch, name, parts), is_direct=False
        )
        if answer.deduped:
            self._note_repeat(answer, sum(part.records for part in parts))
        return answer.first_seq

    def _note_repeat(self, known: EpochCommitted, records: int) -> None:
        """Warns, or fails, because the epoch was committed before. Its rows are assumed to be the same."""
        where = f'epoch {known.epoch} of writer "{known.writer}" in topic "{known.topic}"'
        if self.mode == "batch":
            logger.warning(
                "%s was committed before, so nothing was added; new rows need a new `writerId` or a higher `epoch`",
                where,
            )
        elif known.count is None:
            # Spark repeats only the last batch. So this is another query or an old checkpoint, and its rows must not
            # be dropped without an error.
            raise InvalidRequest(
                f"{where} comes after a later one was committed: another query writes under the same name, or the "
                "checkpoint is older than the topic. Nothing was added; give the query a `writerId` of its own"
            )
        elif known.count != records:
            logger.warning("%s was committed with %d records, the %d of now are not added", where, known.count, records)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drops staged rows, unless the commit has succeeded. The server drops forgotten rows after a day."""
        written = [message for message in messages if isinstance(message, PartWritten) and message.is_staged]
        names = {name for message in written for name in message.topics}
        if not names:
            return
        writer, epoch = written[0].writer, written[0].epoch
        try:
            with self._client() as client:
                epoch_by_topic = {known.topic: known.epoch for known in client.writer(writer).topics}
                if any(epoch_by_topic.get(name, -1) < epoch for name in names):
                    client.abort_epoch(writer, epoch)
        except TopicsError as error:
            # The error that made Spark abort matters more.
            logger.warning("staged records of writer %s, epoch %d stay for a day: %s", writer, epoch, error)


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        logger.warning(text)

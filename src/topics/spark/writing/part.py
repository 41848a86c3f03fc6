"""Sends the rows of one partition to the server, in chunks, several requests at a time.

*Staged* chunks wait for the commit, which takes them in the order of their numbers. They may arrive in any order.
*Direct* chunks are appended when they arrive, so that chunks of a topic are sent one after the other. The key of a
direct chunk names its place and its content: a repeat adds nothing while the topic remembers keys.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar, cast

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import xxhash

from topics.client.sync.client import Client
from topics.errors import BatchTooLarge, InvalidRequest, PayloadTooLarge, RecordTooLarge, TopicNotFound, TopicsError
from topics.results import ConfigMembers
from topics.spark.errors import BadOption
from topics.spark.writing.body import BadRow, ChunkCutter, ChunkLimits, RowChunk, first_null, record_texts, refused_row
from topics.spark.writing.options import WriteOptions

T = TypeVar("T")

# With a shorter window a restart may repeat chunks that the topic has forgotten.
WINDOW_MS_MIN: Final = 3_600_000
# The window of topics that a direct write creates, unless `topicConfig` has one.
WINDOW_MS_CREATED: Final = 86_400_000
# Rows of several topics may wait for so many chunks. Then chunks are sent that are not full.
_WAITING_CHUNKS_MAX: Final = 4


class TopicPart(NamedTuple):
    """What a task has written to one topic. Only direct writes know `first_seq`."""

    chunks: int
    records: int
    first_seq: int | None = None


def with_topic(client: Client, name: str, options: WriteOptions, call: Callable[[], T], *, is_direct: bool) -> T:
    """Returns what the call returns. A missing topic is created first, if the options allow it."""
    try:
        return call()
    except TopicNotFound as error:
        if not options.create_topic:
            raise BadOption(
                f"{error.message}: create it, or write with option `createTopic=true` (`--create`)"
            ) from error
    # The server checks the members, which a user wrote as an option.
    config = cast(ConfigMembers, dict(options.topic_config))
    if is_direct:
        config.setdefault("idempotency_window_ms", WINDOW_MS_CREATED)
    # Several tasks may do this at once. All ask for the same topic, and the first request creates it.
    client.create(name, **config)
    return call()


class Sender(ABC):
    """Sends a chunk to the server. Thread-safe."""

    # Whether records are visible at once. Then chunks of a topic are sent one after the other.
    is_direct: bool

    def __init__(self, client: Client, options: WriteOptions) -> None:
        self._client = client
        self._options = options

    def _with_topic(self, name: str, call: Callable[[], T]) -> T:
        return with_topic(self._client, name, self._options, call, is_direct=self.is_direct)

    def _require_all(self, topic: str, taken: int, chunk: RowChunk) -> None:
        """A row is a record: raises `TopicsError` when the server says another number."""
        if taken != len(chunk):
            raise TopicsError(f'{self._client.url}: topic "{topic}": the server took {taken} of {len(chunk)} records')

    @abstractmethod
    def check_topic(self, name: str) -> None:
        """Raises `BadOption` for a topic that cannot be written. Called before its first chunk."""

    @abstractmethod
    def send(self, topic: str, number: int, chunk: RowChunk) -> int | None:
        """The first seq of the records, if they have seqs already."""


class StagedSender(Sender):
    is_direct = False

    def __init__(self, client: Client, options: WriteOptions, writer: str, epoch: int, part: int, attempt: int) -> None:
        super().__init__(client, options)
        self._writer = writer.encode()
        self._place = (epoch, part, attempt)

    def check_topic(self, name: str) -> None:
        """Does nothing: a missing topic is found when it is written."""

    def send(self, topic: str, number: int, chunk: RowChunk) -> int | None:
        # Without blanks, because the server checks such a body fastest.
        body = b'{"writer":"%b","epoch":%d,"part":%d,"attempt":%d,"chunk":%d,"records":%b}' % (
            self._writer,
            *self._place,
            number,
            chunk.records,
        )
        answer = self._with_topic(topic, lambda: self._client.stage(topic, body))
        self._require_all(topic, answer.records, chunk)
        return None


class DirectSender(Sender):
    is_direct = True

    def __init__(self, client: Client, options: WriteOptions, writer: str, epoch: int, part: int) -> None:
        super().__init__(client, options)
        self._key_start = f"sp1:{writer}:{epoch}:{part}"

    def check_topic(self, name: str) -> None:
        """Raises `BadOption` for a topic that may forget keys before a restart repeats them."""
        if self._options.accept_window:
            return
        state = self._with_topic(name, lambda: self._client.state(name))
        window_ms = state.config.idempotency_window_ms
        if window_ms < WINDOW_MS_MIN:
            raise BadOption(
                f'topic "{name}" knows repeats for {window_ms} ms, too short for a restart: set its '
                f"idempotency_window_ms to {WINDOW_MS_MIN} or more, or accept duplicates with `acceptWindow=true`"
            )

    def send(self, topic: str, number: int, chunk: RowChunk) -> int | None:
        records = chunk.records
        key = f"{self._key_start}:{number}:{xxhash.xxh3_64_hexdigest(records)}"
        answer = self._with_topic(topic, lambda: self._client.append_encoded(topic, records, key=key))
        self._require_all(topic, answer.count, chunk)
        return answer.first_seq


class _TopicRows:
    """The rows of the partition for one topic: waiting ones, and counts of sent ones."""

    def __init__(self, name: str, limits: ChunkLimits) -> None:
        self.name = name
        self.cutter = ChunkCutter(limits)
        self.chunks = 0
        self.records = 0
        self.first_seq: int | None = None
        self.last_sent: Future[int | None] | None = None


class PartWriter:
    """Takes the rows of a partition and sends them. Not thread-safe."""

    def __init__(self, options: WriteOptions, sender: Sender, part: int) -> None:
        self._options = options
        self._sender = sender
        self._part = part
        self._rows = 0
        self._topics: dict[str, _TopicRows] = {}
        self._limits = ChunkLimits(options.chunk_records, options.chunk_bytes)
        # The largest chunk that the server has taken. Its limits may be lower than the default.
        self._proven_records = 0
        self._pool = ThreadPoolExecutor(options.max_in_flight, "topics-write")
        self._in_flight: deque[tuple[_TopicRows, Future[int | None]]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def add(self, batch: pa.RecordBatch) -> None:
        if not len(batch):
            return
        first_row = self._rows
        self._rows += len(batch)
        texts = record_texts(batch, self._part, first_row)
        rows = np.arange(first_row, self._rows)
        for name, positions in self._positions_by_topic(batch, first_row):
            topic = self._topics.get(name)
            if topic is None:
                self._sender.check_topic(name)
                topic = self._topics[name] = _TopicRows(name, self._limits)
            if positions is None:
                topic.cutter.add(texts, rows)
            else:
                topic.cutter.add(texts.take(pa.array(positions)), rows[positions])
            for chunk in topic.cutter.full():
                self._send(topic, chunk)
        self._make_room()

    def _positions_by_topic(
        self, batch: pa.RecordBatch, first_row: int
    ) -> Iterator[tuple[str, "np.ndarray[Any, Any] | None"]]:
        """The rows of each topic; None for all rows."""
        if self._options.topic is not None:
            yield self._options.topic, None
            return
        column = batch.column("topic")
        if column.null_count:
            raise BadRow(self._part, first_row + first_null(column), "`topic` is null")
        encoded = column.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        if len(names) == 1:
            yield names[0], None
            return
        codes = encoded.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        starts = np.searchsorted(codes[order], np.arange(len(names) + 1))
        for code, name in enumerate(names):
            yield name, order[starts[code] : starts[code + 1]]

    def _make_room(self) -> None:
        """Sends waiting rows when many topics have chunks that are not full."""
        waiting_bytes = sum(topic.cutter.size_bytes for topic in self._topics.values())
        if waiting_bytes <= _WAITING_CHUNKS_MAX * self._limits.bytes_max:
            return
        for topic in self._topics.values():
            self._send_all(topic)

    def _send_all(self, topic: _TopicRows) -> None:
        for chunk in topic.cutter.all():
            self._send(topic, chunk)

    def finish(self) -> dict[str, TopicPart]:
        """Sends the rest, and waits for all answers."""
        for topic in self._topics.values():
            self._send_all(topic)
        while self._in_flight:
            self._wait()
        return {topic.name: TopicPart(topic.chunks, topic.records, topic.first_seq) for topic in self._topics.values()}

    # Requests.

    def _send(self, topic: _TopicRows, chunk: RowChunk) -> None:
        if len(chunk) > self._proven_records:
            self._probe(topic, chunk)
            return
        while len(self._in_flight) >= self._options.max_in_flight:
            self._wait()
        sent = self._pool.submit(self._sent, topic.name, topic.chunks, chunk, topic.last_sent)
        topic.last_sent = sent
        self._in_flight.append((topic, sent))
        topic.chunks += 1
        topic.records += len(chunk)

    def _probe(self, topic: _TopicRows, chunk: RowChunk) -> None:
        """Sends a chunk and waits. A chunk that is too large is sent in halves, and later chunks are cut smaller."""
        try:
            first_seq = self._sent(topic.name, topic.chunks, chunk, topic.last_sent)
        except (BatchTooLarge, PayloadTooLarge) as error:
            if len(chunk) == 1:
                raise
            first, second = chunk.halves()
            if isinstance(error, BatchTooLarge):
                self._limits.records_max = len(first)
            else:
                self._limits.bytes_max = max(1, chunk.size_bytes // 2)
            self._send(topic, first)
            self._send(topic, second)
            return
        self._proven_records = len(chunk)
        topic.chunks += 1
        topic.records += len(chunk)
        _note(topic, first_seq)

    def _sent(self, topic: str, number: int, chunk: RowChunk, before: "Future[int | None] | None") -> int | None:
        """Sends the chunk, on any thread. `before` was submitted earlier, so that it runs or is done."""
        if before is not None and self._sender.is_direct:
            before.result()
        try:
            return self._sender.send(topic, number, chunk)
        except BadOption:
            raise
        except (InvalidRequest, RecordTooLarge) as error:
            raise refused_row(chunk, self._part, error) from error

    def _wait(self) -> None:
        topic, sent = self._in_flight.popleft()
        _note(topic, sent.result())


def _note(topic: _TopicRows, first_seq: int | None) -> None:
    if first_seq is not None:
        topic.first_seq = first_seq if topic.first_seq is None else min(topic.first_seq, first_seq)

"""What a task does with a partition of messages: opens the files that planning saw, and makes batches of them.

Retention removed a file that is gone, which is a gap. A file under the planned path may belong to a newer partition. So
the state log is read *after* the file was opened: the engine logs that a partition is emptied or deleted before it
touches the files.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]

from topics.errors import CorruptRecord
from topics.formats.buffers import Buffer
from topics.formats.columnar import GAP_COLUMNS, GapRow
from topics.formats.columnar_messages import (
    BodyDecoder,
    MessageTable,
    PartitionOrigin,
    message_batches,
    message_gap_batch,
    schema,
)
from topics.formats.message import PAYLOAD_BYTES_MAX
from topics.formats.message_cipher import Cipher
from topics.formats.message_codec import Codec
from topics.formats.stream_layout import Flavour, segment_starts
from topics.spark.loss import Gap, Reason, TopicsDataLoss, accept_gaps
from topics.spark.manifest import OFFSETS, Segment
from topics.spark.options import ReadOptions
from topics.spark.reading.plan import Partition
from topics.spark.schemas import with_schema
from topics.spark.streams.directory import KeyPlace, StreamDirectory, find_cipher, folder_names
from topics.spark.streams.files import OpenSegment, Vanished
from topics.storage.fs import RealFs
from topics.stream_errors import StreamsError


class Place(NamedTuple):
    """Which topic of which directory."""

    root: str
    stream: str
    topic: str
    stream_id: int
    topic_id: int

    @property
    def label(self) -> str:
        return f'stream "{self.stream}", topic "{self.topic}"'


def read_messages(
    partition: Partition, place: Place, options: ReadOptions, wanted_schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition in the order of their offsets, under exactly this schema.

    Raises `TopicsDataLoss` for missing messages, unless gaps may be rows.
    """
    task = _Task(partition, place, options, wanted_schema)
    try:
        yield from task.batches()
    except TopicsDataLoss as loss:
        raise loss.within(place.label) from None


class _Task:
    def __init__(self, partition: Partition, place: Place, options: ReadOptions, wanted_schema: pa.Schema) -> None:
        self._partition = partition
        self._place = place
        self._options = options
        self._schema = wanted_schema
        self._columns = [*wanted_schema.names]
        if options.has_gap_rows:
            self._columns += [column for column in GAP_COLUMNS if column not in wanted_schema.names]
        self._origin = PartitionOrigin(place.stream, place.topic, int(partition.topic))
        self._opened: StreamDirectory | None = None
        # The length of the state log when it confirmed that the partition is the planned one.
        self._checked_at_bytes = -1

    @property
    def _directory(self) -> StreamDirectory:
        if self._opened is None:
            fs = RealFs()
            cipher = find_cipher(fs, KeyPlace(self._options.key_env, self._options.key_file), os.environ)
            self._opened = StreamDirectory(fs, self._place.root, folder_names(os.environ), cipher)
        return self._opened

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Messages and the gaps that planning found, in the order of their offsets."""
        partition = self._partition
        first_offset = partition.first_seq
        # A gap of an instance that is gone has other offsets, and comes first.
        for gap in sorted(partition.gaps, key=lambda gap: (gap.reason != "recreated", gap.first_seq)):
            if gap.reason == "recreated":
                yield self._gap_row(gap)
                continue
            yield from self._range(first_offset, min(gap.first_seq - 1, partition.last_seq))
            yield self._gap_row(gap)
            if gap.last_seq is not None:
                first_offset = max(first_offset, gap.last_seq + 1)
        yield from self._range(first_offset, partition.last_seq)

    def _range(self, first_offset: int, last_offset: int) -> Iterator[pa.RecordBatch]:
        for file in self._partition.files:
            first, last = max(first_offset, file.first_seq), min(last_offset, file.last_seq)
            if first <= last:
                yield from self._file(file, first, last)

    def _file(self, file: Segment, first_offset: int, last_offset: int) -> Iterator[pa.RecordBatch]:
        try:
            segment = OpenSegment(self._directory.fs, file)
        except Vanished:
            yield from self._vanished(first_offset, last_offset)
            return
        try:
            self._check_epoch(first_offset, last_offset)
            for table, first, last in self._tables(segment, first_offset, last_offset):
                yield from self._decode(table, first, last, segment)
        finally:
            segment.close()

    def _tables(
        self, segment: OpenSegment, first_offset: int, last_offset: int
    ) -> Iterator[tuple[MessageTable, int, int]]:
        try:
            yield from segment.tables(first_offset, last_offset)
        except Vanished:
            # The epoch is the same: messages that were not synced were lost with the power, or a user removed files.
            raise self._loss(first_offset, last_offset, "regressed") from None

    # Changes of the partition since it was planned.

    def _check_epoch(self, first_offset: int, last_offset: int) -> None:
        size = self._directory.state_log_bytes
        if size == self._checked_at_bytes:
            return
        stream = self._directory.catalog().find(self._place.stream_id)
        topic = None if stream is None else stream.find(self._place.topic_id)
        number = self._origin.partition
        if topic is None or number >= len(topic.epochs):
            raise self._loss(first_offset, last_offset, "topic_deleted")
        if topic.epochs[number] != self._partition.epoch:
            raise self._loss(first_offset, last_offset, "recreated")
        self._checked_at_bytes = size

    def _vanished(self, first_offset: int, last_offset: int) -> Iterator[pa.RecordBatch]:
        self._checked_at_bytes = -1
        self._check_epoch(first_offset, last_offset)
        directory, place = self._directory, self._place
        path = directory.partition_path(place.stream_id, place.topic_id, self._origin.partition)
        starts = segment_starts(directory.fs.listdir(path)) if directory.fs.exists(path) else []
        reason: Reason = "mixed" if starts and starts[0] > last_offset else "missing"
        gap = Gap(self._partition.topic, first_offset, last_offset, reason, numbering=OFFSETS)
        for accepted in accept_gaps([gap], self._options.gaps):
            yield self._gap_row(accepted)

    def _loss(self, first_offset: int, last_offset: int, reason: Reason) -> TopicsDataLoss:
        return TopicsDataLoss(Gap(self._partition.topic, first_offset, last_offset, reason, numbering=OFFSETS))

    # Rows.

    def _decode(
        self, table: MessageTable, first_offset: int, last_offset: int, segment: OpenSegment
    ) -> Iterator[pa.RecordBatch]:
        options = self._options
        batches = message_batches(
            table,
            self._origin,
            columns=self._columns,
            first_offset=first_offset,
            last_offset=last_offset,
            body=body_decoder(self._directory.flavour, segment.codec, self._directory.cipher),
            verify=options.verify,
            on_corrupt=options.on_corrupt,
            batch_records=options.batch_records,
        )
        try:
            for batch in batches:
                yield with_schema(batch, self._schema)
        except CorruptRecord as error:
            # The error counts positions from the start of the piece; `topics verify` shows positions in the file.
            offset = (error.detail or {})["seq"]
            assert isinstance(offset, int)
            raise self._loss(offset, offset, "corrupt").within(segment.path) from error
        except StreamsError as error:
            # The checksum is right, so that the key or the compression is another one than at the write.
            raise StreamsError(
                error.number, f"{segment.path}, offsets {first_offset}-{last_offset}: {error.message}"
            ) from error

    def _gap_row(self, gap: Gap) -> pa.RecordBatch:
        row = GapRow(gap.first_seq, gap.last_seq, gap.reason, gap.ts * 1000)
        return with_schema(message_gap_batch([row], schema(self._columns), self._origin), self._schema)


def body_decoder(flavour: Flavour, codec: Codec, cipher: Cipher | None) -> BodyDecoder:
    """Decrypts bodies, then expands them: the engine compresses first and encrypts last."""
    if codec is Codec.NONE:
        decrypt = None if cipher is None else cipher.decrypt
        return BodyDecoder(order=flavour.body_order, payload=decrypt, user_headers=decrypt)

    def payload(data: Buffer) -> Buffer:
        return codec.expand(data if cipher is None else cipher.decrypt(data), PAYLOAD_BYTES_MAX)

    return BodyDecoder(
        order=flavour.body_order, payload=payload, user_headers=None if cipher is None else cipher.decrypt
    )

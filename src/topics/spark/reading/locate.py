"""What a task does: it finds the bytes of a partition, and makes batches of them.

For each file it reads the file on this machine, or the cold tier, or frames over HTTP. A file that is gone was moved or
evicted after the plan was made. Then the task asks the server again: it reads what the server still has, and the rest
is a gap. So a task ends with every seq delivered or named in a gap, or with an error.

Another machine may have other files under the same path. So the STORE object of a tier must have the id that is in the
manifest. A file with records of another topic is an error, whatever the options say: the right file must be restored.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Self

import pyarrow as pa  # type: ignore[import-untyped]

from topics.client.answers import Frames, FramesGap
from topics.client.sync.client import Client
from topics.errors import BadFrame, ColdUnavailable, CorruptRecord, FormatError, Throttled, TopicNotFound
from topics.formats.columnar import GAP_COLUMNS, Origin, RecordFilter, record_batches
from topics.formats.frame_table import FrameTable, from_frames
from topics.spark.access import open_client
from topics.spark.errors import BadOption
from topics.spark.loss import Gap, Reason, TopicsDataLoss, accept_gaps, check_cursor, corrupt_loss, find_gaps, gap_rows
from topics.spark.manifest import Manifest, Segment, decode_manifest
from topics.spark.options import ReadOptions
from topics.spark.reading.file_manifest import DamagedFiles
from topics.spark.reading.plan import Partition, cut_partitions
from topics.spark.reading.segment_files import Elsewhere, Foreign, Moved, open_segment, tier_and_name
from topics.spark.schemas import with_schema

logger = logging.getLogger(__name__)

# How often files may be moved while a task reads them, before the task fails. Pins prevent such moves.
MOVES_MAX: Final = 20
# How often the server is asked again about a file with other records. It may have replaced the file meanwhile.
_FOREIGN_MOVES_MAX: Final = 3


def read_partition(partition: Partition, options: ReadOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a partition in the order of their seqs, under exactly this schema.

    Raises `TopicsDataLoss` for missing records, unless gaps may be rows.
    """
    yield from read_partitions([partition], options, schema)


def read_partitions(
    partitions: Iterable[Partition], options: ReadOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of several partitions, one after the other."""
    with _PartitionReader(options, schema) as task:
        for partition in partitions:
            yield from task.batches(partition)


class _Range(NamedTuple):
    """Seqs, both included. Empty when the last is below the first."""

    first_seq: int
    last_seq: int


class _PartitionReader:
    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._opened: Client | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._opened is not None:
            self._opened.close()

    @property
    def _client(self) -> Client:
        if self._opened is None:
            self._opened = open_client(self._options)
        return self._opened

    def batches(self, partition: Partition, moves: int = 0) -> Iterator[pa.RecordBatch]:
        """Records and the gaps that planning found, in the order of their seqs. Gaps of an instance that is gone come
        first. `moves` counts how often the server was asked again for these seqs."""
        first_seq = partition.first_seq
        for gap in sorted(partition.gaps, key=lambda gap: (gap.reason != "recreated", gap.first_seq)):
            if gap.reason != "recreated":
                yield from self._range(partition, _Range(first_seq, gap.first_seq - 1), moves)
                first_seq = max(first_seq, gap.last_seq + 1 if gap.last_seq is not None else 0)
            yield gap_rows([gap], self._schema, partition.epoch)
        yield from self._range(partition, _Range(first_seq, partition.last_seq), moves)

    def _range(self, partition: Partition, wanted: _Range, moves: int) -> Iterator[pa.RecordBatch]:
        """First the seqs of files, then the seqs of the tail. Seqs between files never had a record."""
        wanted = _Range(wanted.first_seq, min(wanted.last_seq, partition.last_seq))
        next_seq = wanted.first_seq
        if self._options.access == "http" and self._options.path is None:
            yield from self._frames(partition, wanted)
            return
        for place, file in enumerate(partition.files):
            part = _Range(max(next_seq, file.first_seq), min(wanted.last_seq, file.last_seq))
            if part.first_seq > part.last_seq:
                continue
            try:
                # A missing file fails here, before any of its rows is delivered.
                table = open_segment(file, part.first_seq, part.last_seq, partition.store_id)
            except Moved:
                # Later files may be gone, too: the server is asked once for all of them, and the rest is one gap.
                part = _Range(part.first_seq, min(wanted.last_seq, partition.files[-1].last_seq))
                yield from self._moved(partition, part, moves)
            except Foreign as error:
                if self._options.path is not None or moves >= _FOREIGN_MOVES_MAX:
                    raise _foreign(partition, file, error) from None
                yield from self._moved(partition, part, moves)
            except Elsewhere as error:
                self._require_server(partition, part, error)
                # The next files in the same tier cannot be read here either.
                last_seq = _last_seq_beside(partition.files[place:])
                part = _Range(part.first_seq, min(wanted.last_seq, last_seq))
                yield from self._frames(partition, part)
            else:
                yield from self._table(partition, part, file, table, moves)
            next_seq = part.last_seq + 1
        tail = _Range(max(next_seq, partition.tail_first_seq), wanted.last_seq)
        yield from self._frames(partition, tail)

    # Files.

    def _require_server(self, partition: Partition, part: _Range, error: Elsewhere) -> None:
        """Raises `ColdUnavailable` or `BadOption` unless the server may be asked instead of the file."""
        what = f'topic "{partition.topic}": seqs {part.first_seq}-{part.last_seq} cannot be read here: {error}'
        if self._options.path is not None:
            raise ColdUnavailable(what) from error
        if self._options.access == "files":
            raise ColdUnavailable(f"{what}; with option access=auto they are read from the server") from error
        if self._options.include_deleted:
            raise BadOption(f"option `includeDeleted` needs the files. {what}") from error

    def _table(
        self, partition: Partition, part: _Range, file: Segment, table: FrameTable, moves: int
    ) -> Iterator[pa.RecordBatch]:
        if table.bad and not file.sealed and not moves and self._options.path is None:
            # It may be no damage: the server may have sealed and rewritten the file during the read.
            yield from self._moved(partition, part, moves)
            return
        if table.index_problem is not None:
            logger.warning("%s: %s; the records were read without it", file.uri, table.index_problem)
        yield from self._decode(partition, table, part, file.uri)

    def _moved(self, partition: Partition, part: _Range, moves: int) -> Iterator[pa.RecordBatch]:
        """Asks the server again where the seqs are. Seqs that are gone are a gap."""
        if self._options.path is not None or moves >= MOVES_MAX:
            raise ColdUnavailable(
                f'topic "{partition.topic}": the files of seqs {part.first_seq}-{part.last_seq} are gone or '
                "change all the time; read again"
            )
        manifest = self._manifest_now(partition, part)
        check_cursor(manifest, part.last_seq)
        gaps = [
            gap
            for gap in find_gaps(manifest, part.first_seq - 1, part.last_seq)
            # Gaps that the plan knew have their row already, in this partition or another.
            if not any(first <= gap.first_seq and (gap.last_seq or 0) <= last for first, last in partition.hidden)
        ]
        accept_gaps(gaps, self._options.gaps, manifest)
        found = cut_partitions(
            manifest, part.first_seq, [part.last_seq], gaps, include_deleted=self._options.include_deleted
        )
        for each in found:
            yield from self.batches(each, moves + 1)

    def _manifest_now(self, partition: Partition, part: _Range) -> Manifest:
        try:
            manifest = ask_manifest(
                self._client, partition.topic, part.first_seq, part.last_seq, pin_ms=self._options.pin_ms
            )
        except TopicNotFound:
            raise _lost(partition, part, "topic_deleted") from None
        _require_instance(partition, manifest.topic_id, manifest.epoch, part)
        return manifest

    # Frames.

    def _frames(self, partition: Partition, part: _Range) -> Iterator[pa.RecordBatch]:
        """The seqs as frames from the server, which leaves out deleted and hidden records."""
        next_seq, last_seq = part
        if next_seq <= last_seq and self._options.include_deleted:
            raise BadOption("option `includeDeleted` needs the files: give `path`, or run where they are")
        assert next_seq > last_seq or self._options.path is None, "a path has no tail that is not in the partition"
        while next_seq <= last_seq:
            answer = self._ask_frames(partition, next_seq, last_seq)
            _require_instance(partition, answer.topic_id, answer.epoch, _Range(next_seq, last_seq))
            self._require_progress(partition, _Range(next_seq, last_seq), answer)
            # The gap comes before the records.
            if answer.gap is not None:
                lost = _Range(max(answer.gap.first_seq, next_seq), min(answer.gap.last_seq, last_seq))
                yield self._gap_row(partition, lost, answer.gap.reason)
                next_seq = max(next_seq, lost.last_seq + 1)
            if answer.body:
                told = _Range(next_seq, min(answer.next_seq - 1, last_seq))
                table = from_frames(answer.body, first_seq=told.first_seq, last_seq=told.last_seq)
                yield from self._decode(partition, table, told, self._client.url)
            next_seq = max(next_seq, answer.next_seq)

    def _ask_frames(self, partition: Partition, first_seq: int, last_seq: int) -> Frames:
        try:
            return self._client.frames(partition.topic, first_seq, last_seq)
        except TopicNotFound:
            raise _lost(partition, _Range(first_seq, last_seq), "topic_deleted") from None
        except CorruptRecord as error:
            # The server answers so only when the next record is damaged.
            seq = (error.detail or {}).get("seq")
            if not isinstance(seq, int):
                raise
            if self._options.on_corrupt == "fail":
                raise corrupt_loss(error, partition.topic) from error
            return Frames(b"", seq + 1, last_seq, partition.epoch, FramesGap(seq, seq, "corrupt"))

    def _require_progress(self, partition: Partition, part: _Range, answer: Frames) -> None:
        """Raises the error of an answer that would be asked for again for ever. Above its head a topic answers so."""
        if answer.next_seq > part.first_seq:
            return
        if answer.head_seq < part.first_seq:
            raise _lost(partition, part, "regressed").within(self._client.url)
        raise BadFrame(
            f'{self._client.url}: topic "{partition.topic}" from seq {part.first_seq} on: the server answers without '
            f"progress, with next seq {answer.next_seq}; look for a proxy or a cache before it"
        )

    def _gap_row(self, partition: Partition, lost: _Range, reason: str) -> pa.RecordBatch:
        """The row of a gap that the read met, or the error, with the floors of a new manifest."""
        if reason == "corrupt":
            return gap_rows([Gap(partition.topic, *lost, "corrupt")], self._schema, partition.epoch)
        manifest = self._manifest_now(partition, lost)
        gap = Gap(partition.topic, *lost, _reason(reason), manifest.time_near(lost.last_seq))
        return gap_rows(accept_gaps([gap], self._options.gaps, manifest), self._schema, partition.epoch)

    # Rows.

    def _decode(self, partition: Partition, table: FrameTable, part: _Range, where: str) -> Iterator[pa.RecordBatch]:
        options = self._options
        names = self._schema.names
        if options.on_corrupt == "rows":
            # The read may have asked for some of these columns only.
            names = [*names, *(name for name in GAP_COLUMNS if name not in names)]
        batches = record_batches(
            table,
            Origin(partition.topic, partition.epoch, where),
            columns=names,
            where=_filter(options, partition, part),
            verify=options.verify,
            on_corrupt=options.on_corrupt,
            batch_records=options.batch_records,
        )
        try:
            for batch in batches:
                yield with_schema(batch, self._schema)
        except CorruptRecord as error:
            raise corrupt_loss(error, partition.topic) from error
        except FormatError as error:
            raise type(error)(f"{where}: {error.message}") from error


def ask_manifest(
    client: Client, topic: str, from_seq: int = 0, to_seq: int | None = None, *, pin_ms: int = 0
) -> Manifest:
    """The manifest of a topic, with its files pinned. When the server has no pin left, the manifest comes without."""
    try:
        body = client.manifest(topic, from_seq=from_seq, to_seq=to_seq, pin_ms=pin_ms)
    except Throttled as error:
        if not pin_ms or "pins_max" not in (error.detail or {}):
            raise
        body = client.manifest(topic, from_seq=from_seq, to_seq=to_seq)
    return decode_manifest(body)


def _last_seq_beside(files: Sequence[Segment]) -> int:
    """The last seq of the files at the beginning of the list that are in one tier."""
    address, _ = tier_and_name(files[0].uri)
    last_seq = files[0].last_seq
    for file in files:
        if tier_and_name(file.uri)[0] != address:
            break
        last_seq = file.last_seq
    return last_seq


def _foreign(partition: Partition, file: Segment, error: Foreign) -> DamagedFiles:
    return DamagedFiles(
        str(error),
        f'seqs {file.first_seq} to {file.last_seq} of topic "{partition.topic}"',
        "a file of another topic or another instance, or one that was replaced since the read began",
    )


def _require_instance(partition: Partition, topic_id: int, epoch: int, part: _Range) -> None:
    """Raises `TopicsDataLoss` when a topic of the same name has taken its place. An id of 0 is not compared."""
    is_same = epoch == partition.epoch and (not topic_id or topic_id == partition.topic_id)
    if not is_same:
        raise _lost(partition, part, "recreated")


def _lost(partition: Partition, part: _Range, reason: Reason) -> TopicsDataLoss:
    return TopicsDataLoss(Gap(partition.topic, part.first_seq, part.last_seq, reason))


def _filter(options: ReadOptions, partition: Partition, part: _Range) -> RecordFilter:
    return RecordFilter(
        first_seq=part.first_seq,
        last_seq=part.last_seq,
        from_ts=options.starting_ms_of(partition.topic),
        before_ts=options.ending_ms_of(partition.topic),
        tag=options.tag,
        tag_prefix=options.tag_prefix,
        node=options.node,
        exclude_nodes=options.exclude_node,
        include_deleted=options.include_deleted,
        hidden=partition.hidden,
        deleted=partition.deleted,
    )


def _reason(text: str) -> Reason:
    known: dict[str, Reason] = {"cap": "cap", "ttl": "ttl", "source_trim": "source_trim", "power_loss": "power_loss"}
    # A reason of a newer server that is not known here.
    return known.get(text, "mixed")

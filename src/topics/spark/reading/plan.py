"""Manifests in, partitions out: what a read covers, and how it is cut into tasks.

A *cut* is the last seq of a partition. Cuts are chosen from the sizes in the manifest. Neighbouring segments are read
together: starting a task for every segment of the default size would cost ten times as much as reading it.

Pure: no Spark, no clock, no files.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappush, heapreplace
from typing import Final, NamedTuple

from topics.spark.loss import Gap, accept_gaps, check_cursor, find_gaps
from topics.spark.manifest import Manifest, Segment, SeqRange
from topics.spark.options import EARLIEST, LATEST, Offsets, ReadOptions

# A file is 250 bytes of the pickle, so that a partition stays below 64 KiB.
FILES_PER_PARTITION_MAX: Final = 200
# The assumed size of a record when there is no segment.
RECORD_BYTES_ASSUMED: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """What one task reads, with all that the task needs.

    A gap belongs to the partition in which it begins. A partition without seqs has a `last_seq` below `first_seq`; it
    may have gaps. Seqs from `tail_first_seq` on have no file: the task asks the server for frames. Lower seqs that no
    file covers never had a record.
    """

    topic: str
    store_id: str
    topic_id: int
    epoch: int
    first_seq: int
    last_seq: int
    tail_first_seq: int
    files: tuple[Segment, ...] = ()
    hidden: tuple[SeqRange, ...] = ()
    # Deleted, although their frames may not say so yet. Only for a read that includes deleted records.
    deleted: tuple[SeqRange, ...] = ()
    gaps: tuple[Gap, ...] = ()

    @property
    def record_count(self) -> int:
        """How many seqs, with or without records."""
        return max(0, self.last_seq - self.first_seq + 1)


# Sizes. A range of a topic consists of pieces: parts of segments, and seqs without a file.


class _Piece(NamedTuple):
    """Seqs of one segment or of the tail, and about how many bytes they are."""

    first_seq: int
    last_seq: int
    size_bytes: int

    @property
    def record_count(self) -> int:
        return self.last_seq - self.first_seq + 1


def _pieces(manifest: Manifest, first_seq: int, last_seq: int) -> list[_Piece]:
    pieces: list[_Piece] = []
    next_seq = first_seq
    for segment in manifest.segments:
        first, last = max(next_seq, segment.first_seq), min(last_seq, segment.last_seq)
        if first > last:
            continue
        if first > next_seq:
            pieces.append(_Piece(next_seq, first - 1, 0))  # Between two segments nothing was ever written.
        size_bytes = segment.data_len * (last - first + 1) // (segment.last_seq - segment.first_seq + 1)
        pieces.append(_Piece(first, last, size_bytes))
        next_seq = last + 1
    tail_first_seq = max(next_seq, manifest.checkpointed_seq + 1)
    if next_seq <= min(last_seq, tail_first_seq - 1):
        pieces.append(_Piece(next_seq, min(last_seq, tail_first_seq - 1), 0))
    if tail_first_seq <= last_seq:
        tail_bytes = (last_seq - tail_first_seq + 1) * _typical_record_bytes(manifest)
        pieces.append(_Piece(tail_first_seq, last_seq, tail_bytes))
    return pieces


def _typical_record_bytes(manifest: Manifest) -> int:
    records = sum(segment.records for segment in manifest.segments)
    return sum(segment.data_len for segment in manifest.segments) // records if records else RECORD_BYTES_ASSUMED


def range_bytes(manifest: Manifest, first_seq: int, last_seq: int) -> int:
    """About how many bytes these seqs are."""
    return sum(piece.size_bytes for piece in _pieces(manifest, first_seq, last_seq))


def last_seq_within(manifest: Manifest, first_seq: int, last_seq: int, size_bytes: int) -> int:
    """The last seq so that the range has about so many bytes; at least the first seq."""
    for piece in _pieces(manifest, first_seq, last_seq):
        if piece.size_bytes >= size_bytes:
            fitting = piece.record_count * size_bytes // piece.size_bytes if piece.size_bytes else piece.record_count
            return max(first_seq, piece.first_seq + fitting - 1)
        size_bytes -= piece.size_bytes
    return last_seq


# Cuts.


def choose_cuts(manifest: Manifest, first_seq: int, last_seq: int, options: ReadOptions) -> list[int]:
    """The last seq of each partition of the range, ascending, the end of the range included.

    Neighbouring segments share a partition up to its bounds. A larger segment is split evenly.
    """
    cuts: list[int] = []
    open_bytes = open_records = open_files = 0
    for piece in _pieces(manifest, first_seq, last_seq):
        parts = max(
            _divided(piece.size_bytes, options.partition_bytes),
            _divided(piece.record_count, options.max_records_per_partition),
        )
        is_full = (
            open_bytes + piece.size_bytes > options.partition_bytes
            or open_records + piece.record_count > options.max_records_per_partition
            or open_files == FILES_PER_PARTITION_MAX
        )
        if open_records and is_full:
            cuts.append(piece.first_seq - 1)
            open_bytes = open_records = open_files = 0
        if parts > 1:
            cuts += _even_cuts(piece.first_seq, piece.last_seq, parts)
        else:
            open_bytes += piece.size_bytes
            open_records += piece.record_count
            open_files += 1
    if open_records:
        cuts.append(last_seq)
    return cuts


def _divided(amount: int, unit: int) -> int:
    return -(-amount // unit)


def _even_cuts(first_seq: int, last_seq: int, parts: int) -> list[int]:
    count = last_seq - first_seq + 1
    parts = min(parts, count)
    return [first_seq + count * part // parts - 1 for part in range(1, parts + 1)]


def split_further(cuts: dict[str, list[int]], first_seqs: Mapping[str, int], partition_count: int) -> None:
    """Halves the partition with most seqs until there are so many partitions, or each has one seq."""
    heap: list[tuple[int, str, int, int]] = []
    for name, ends in cuts.items():
        starts = [first_seqs[name], *(end + 1 for end in ends)][: len(ends)]
        heap += [(start - end - 1, name, start, end) for start, end in zip(starts, ends, strict=True)]
    heapify(heap)
    for _ in range(partition_count - len(heap)):
        if not heap or heap[0][0] >= -1:
            break
        _, name, start, end = heap[0]
        middle = (start + end) // 2
        cuts[name].insert(bisect_left(cuts[name], middle), middle)
        heapreplace(heap, (start - middle - 1, name, start, middle))
        heappush(heap, (middle - end, name, middle + 1, end))


def cut_partitions(
    manifest: Manifest,
    first_seq: int,
    cuts: Sequence[int],
    gaps: Sequence[Gap] = (),
    *,
    include_deleted: bool = False,
) -> list[Partition]:
    """The partitions of one topic from `first_seq` on, each up to its cut. Gaps without a cut get one partition."""
    floor = first_readable_seq(manifest, include_deleted=include_deleted)
    hidden = list(manifest.lost_ranges)
    deleted = [*manifest.pending_deletes, (0, manifest.delete_below - 1)]
    if not include_deleted:
        hidden += manifest.pending_deletes
    if not cuts and gaps:
        cuts = [first_seq - 1]
    homes: list[list[Gap]] = [[] for _ in cuts]
    for gap in gaps:
        # A gap of an instance that is gone has other seqs.
        place = 0 if gap.reason == "recreated" else bisect_left(cuts, gap.first_seq)
        homes[min(place, len(homes) - 1)].append(gap)
    made: list[Partition] = []
    for last_seq, home in zip(cuts, homes, strict=True):
        first = min(max(first_seq, floor), last_seq + 1)
        made.append(
            Partition(
                topic=manifest.topic,
                store_id=manifest.store_id,
                topic_id=manifest.topic_id,
                epoch=manifest.epoch,
                first_seq=first,
                last_seq=last_seq,
                tail_first_seq=manifest.checkpointed_seq + 1,
                files=_files(manifest, first, last_seq),
                hidden=_clip(hidden, first, last_seq),
                deleted=_clip(deleted, first, last_seq) if include_deleted else (),
                gaps=tuple(home),
            )
        )
        first_seq = last_seq + 1
    return made


def _files(manifest: Manifest, first_seq: int, last_seq: int) -> tuple[Segment, ...]:
    if first_seq > last_seq:
        return ()
    return tuple(
        segment for segment in manifest.segments if segment.first_seq <= last_seq and segment.last_seq >= first_seq
    )


def _clip(ranges: Iterable[SeqRange], first_seq: int, last_seq: int) -> tuple[SeqRange, ...]:
    clipped = ((max(first, first_seq), min(last, last_seq)) for first, last in ranges)
    return tuple((first, last) for first, last in clipped if first <= last)


# Where a read begins and ends.


def visible_head(manifest: Manifest, options: ReadOptions) -> int:
    """The last seq that may be read."""
    return min(manifest.head_seq, manifest.durable_seq) if options.isolation == "durable" else manifest.head_seq


def starting_cursor(manifest: Manifest, options: ReadOptions) -> int:
    """The seq before the first wanted seq.

    A time leads to the first segment with such times. The filter on `ts` leaves out older records of this segment.
    """
    first_seq = first_readable_seq(manifest, include_deleted=options.include_deleted)
    starting_ms = options.starting_ms_of(manifest.topic)
    if starting_ms is not None:
        return max(_first_seq_from(manifest, starting_ms), first_seq) - 1
    wanted = _offset_of(options.starting_offsets, manifest.topic, default=EARLIEST)
    if wanted == EARLIEST:
        return first_seq - 1
    return visible_head(manifest, options) if wanted == LATEST else max(wanted, manifest.numbering.first) - 1


def _first_seq_from(manifest: Manifest, ts: int) -> int:
    for segment in manifest.segments:
        if segment.max_ts >= ts:
            return segment.first_seq
    return manifest.checkpointed_seq + 1


def _offset_of(offsets: Offsets, topic: str, *, default: int) -> int:
    if offsets == "earliest":
        return EARLIEST
    if offsets == "latest":
        return LATEST
    return offsets.get(topic, default)


def _last_seq_wanted(manifest: Manifest, options: ReadOptions) -> int:
    head_seq = visible_head(manifest, options)
    if options.max_seq is not None:
        head_seq = min(head_seq, options.max_seq)
    ending_ms = options.ending_ms_of(manifest.topic)
    if ending_ms is not None:
        later = [segment for segment in manifest.segments if segment.min_ts >= ending_ms]
        return min(head_seq, later[0].first_seq - 1) if later else head_seq
    wanted = _offset_of(options.ending_offsets, manifest.topic, default=LATEST)
    return head_seq if wanted == LATEST else min(wanted, head_seq)


def first_readable_seq(manifest: Manifest, *, include_deleted: bool = False) -> int:
    """The first seq that can be read. Deleted seqs count only with `include_deleted`."""
    return max(manifest.evict_floor, manifest.numbering.first) if include_deleted else manifest.first_seq


def plan_batch(manifests: Sequence[Manifest], options: ReadOptions) -> list[Partition]:
    """The partitions of a batch read, topics in the order of their names, seqs ascending in each.

    Raises `TopicsDataLoss` when seqs that were asked for are gone and gaps may not become rows.
    """
    by_name = {manifest.topic: manifest for manifest in sorted(manifests, key=lambda manifest: manifest.topic)}
    cuts: dict[str, list[int]] = {}
    first_seqs: dict[str, int] = {}
    gaps: dict[str, list[Gap]] = {}
    for name, manifest in by_name.items():
        cursor = starting_cursor(manifest, options)
        check_cursor(manifest, cursor)
        if options.min_seq is not None:
            cursor = max(cursor, min(options.min_seq - 1, visible_head(manifest, options)))
        last_seq = _last_seq_wanted(manifest, options)
        gaps[name] = accept_gaps(find_gaps(manifest, cursor, last_seq), options.gaps, manifest)
        floor = first_readable_seq(manifest, include_deleted=options.include_deleted)
        first_seqs[name] = max(cursor + 1, floor)
        cuts[name] = choose_cuts(manifest, first_seqs[name], last_seq, options)
    split_further(cuts, first_seqs, options.min_partitions or 0)
    return [
        partition
        for name, manifest in by_name.items()
        for partition in cut_partitions(
            manifest, first_seqs[name], cuts[name], gaps[name], include_deleted=options.include_deleted
        )
    ]

"""Segments of a partition, which an engine may be writing at the same time.

The engine writes `.log` first and `.index` afterwards, so that every message of the index is complete. Planning reads
sizes and the last entry of each index. A task reads only the part of both files that it needs, and nothing that was
written after planning. A sealed segment never changes. When its index does not cover its log, the messages are found
without the index, as an engine does at its next start. The index of the last segment must be sound, because the
partition ends where it ends.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from topics.errors import BadFrame, StartRefused
from topics.formats import message_index
from topics.formats.columnar_messages import MessageTable, locate_messages
from topics.formats.message import HEADER_BYTES
from topics.formats.message_codec import Codec
from topics.formats.message_index import ENTRY_BYTES
from topics.formats.stream_layout import CODEC, INDEX, LOG, segment_path, segment_starts
from topics.limits import MIB
from topics.spark.manifest import Segment
from topics.storage.fs import File, Fs, read_file

# So many bytes of a log are read at once.
PIECE_BYTES: Final = 32 * MIB
# How often files of a partition may be removed while they are listed, before that is an error.
LOOKS_MAX: Final = 5


class Vanished(Exception):
    """A file is gone or became shorter: retention removed it, or the partition was emptied."""


class SegmentExtent(NamedTuple):
    """The readable part of a segment: `message_count` messages in the index, which end at byte `end` of `log_bytes`."""

    start_offset: int
    message_count: int
    end: int
    log_bytes: int
    # Microseconds; 0 without messages.
    first_timestamp: int
    last_timestamp: int

    @property
    def is_whole(self) -> bool:
        """Whether the index covers the whole log."""
        return self.end == self.log_bytes


class SegmentExtents:
    """Keeps the extents of sealed segments: a trigger without news reads only the last segment of each partition."""

    def __init__(self, fs: Fs) -> None:
        self._fs = fs
        self._sealed: dict[tuple[str, int], dict[int, SegmentExtent]] = {}

    def of_partition(self, directory: str, epoch: int) -> list[SegmentExtent]:
        """In the order of offsets. Empty for a partition without files."""
        for _ in range(LOOKS_MAX):
            try:
                return self._look(directory, epoch)
            except FileNotFoundError:
                continue  # Retention removed a segment after it was listed.
        raise StartRefused(f"{directory}: segments come and go faster than they can be listed; try again")

    def _look(self, directory: str, epoch: int) -> list[SegmentExtent]:
        if not self._fs.exists(directory):
            return []
        known = self._sealed.get((directory, epoch), {})
        starts = segment_starts(self._fs.listdir(directory))
        sealed = {
            start: known.get(start) or read_extent(self._fs, directory, start, is_sealed=True) for start in starts[:-1]
        }
        self._sealed[directory, epoch] = sealed
        return [*sealed.values(), *(read_extent(self._fs, directory, start, is_sealed=False) for start in starts[-1:])]


def read_extent(fs: Fs, directory: str, start_offset: int, *, is_sealed: bool) -> SegmentExtent:
    log_path, index_path = (segment_path(directory, start_offset, suffix) for suffix in (LOG, INDEX))
    if not fs.exists(index_path):
        return _extent_without_index(fs, log_path, start_offset, is_sealed=is_sealed)
    index = fs.open(index_path, "read")
    try:
        # The index first: it never covers more than a log that is read later.
        total = index.size() // ENTRY_BYTES
        log_bytes = fs.size(log_path)
        count = bisect_right(range(total), log_bytes, key=lambda place: _entry(index, place)[1])
        if not count:
            if log_bytes and not is_sealed and total:
                raise _unsound(index_path)
            return SegmentExtent(start_offset, 0, 0, log_bytes, 0, 0)
        offset, end, last_timestamp = _entry(index, count - 1)
        if offset != count - 1 or end < count * HEADER_BYTES:
            if not is_sealed:
                raise _unsound(index_path)
            return SegmentExtent(start_offset, 0, 0, log_bytes, 0, 0)
        return SegmentExtent(start_offset, count, end, log_bytes, _entry(index, 0)[2], last_timestamp)
    finally:
        index.close()


def _extent_without_index(fs: Fs, log_path: str, start_offset: int, *, is_sealed: bool) -> SegmentExtent:
    log_bytes = fs.size(log_path)
    if log_bytes and not is_sealed:
        raise _unsound(log_path.removesuffix(LOG) + INDEX)
    return SegmentExtent(start_offset, 0, 0, log_bytes, 0, 0)


def _unsound(index_path: str) -> StartRefused:
    return StartRefused(
        f"{index_path} does not fit its log; the next start of the engine makes it again, and so does "
        "`topics pipeline rebuild-index`"
    )


def _entry(index: File, place: int) -> tuple[int, int, int]:
    data = index.pread(ENTRY_BYTES, place * ENTRY_BYTES)
    if len(data) < ENTRY_BYTES:
        raise FileNotFoundError(f"{index.path} became shorter")
    entry = message_index.decode_entries(data)[0]
    return int(entry["offset"]), int(entry["position"]), int(entry["timestamp"])


def first_offset_at(fs: Fs, segments: tuple[Segment, ...], ts: int, default: int) -> int:
    """The offset of the first message that is not older than `ts`, in milliseconds; else the default."""
    for segment in segments:
        count = segment.idx_len // ENTRY_BYTES
        if count < segment.records:
            raise _unsound(segment.uri.removesuffix(LOG) + INDEX)
        if segment.max_ts < ts:
            continue
        index = fs.open(segment.uri.removesuffix(LOG) + INDEX, "read")
        try:
            return segment.first_seq + bisect_left(range(count), ts * 1000, key=lambda place: _entry(index, place)[2])
        finally:
            index.close()
    return default


# In a task.


class OpenSegment:
    """The open files of a segment: a file that is removed meanwhile can still be read."""

    def __init__(self, fs: Fs, segment: Segment) -> None:
        """Raises `Vanished`."""
        stem = segment.uri.removesuffix(LOG)
        self._segment = segment
        self.path = segment.uri
        self._index: File | None = None
        # Before the log, because it is removed after the log: when the log exists, a missing codec never existed.
        self.codec = _read_codec(fs, stem + CODEC)
        try:
            self._log = fs.open(segment.uri, "read")
        except FileNotFoundError:
            raise Vanished from None
        if segment.idx_len:
            try:
                self._index = fs.open(stem + INDEX, "read")
            except FileNotFoundError:
                self._log.close()
                raise Vanished from None

    def close(self) -> None:
        self._log.close()
        if self._index is not None:
            self._index.close()

    def tables(self, first_offset: int, last_offset: int) -> Iterator[tuple[MessageTable, int, int]]:
        """The messages from first to last offset, both included: tables, with the offsets to take of each table."""
        segment = self._segment
        start = segment.first_seq
        indexed_last = start + segment.idx_len // ENTRY_BYTES - 1
        while first_offset <= last_offset:
            piece_last = min(last_offset, indexed_last)
            table = None
            if first_offset <= piece_last:
                table, piece_last = self._piece(first_offset, piece_last)
            if table is None:
                table, piece_last = self._whole(), last_offset
            yield table, first_offset, piece_last
            first_offset = piece_last + 1

    def _piece(self, first_offset: int, last_offset: int) -> tuple[MessageTable | None, int]:
        """A table of these messages, and its last offset. No table when the index is wrong."""
        assert self._index is not None
        first = first_offset - self._segment.first_seq
        before = 1 if first else 0
        count = last_offset - first_offset + 1
        data = self._index.pread((count + before) * ENTRY_BYTES, (first - before) * ENTRY_BYTES)
        if len(data) < (count + before) * ENTRY_BYTES:
            raise Vanished
        entries = message_index.decode_entries(data)
        base = int(entries["position"][0]) if before else 0
        # At least one message, of any size.
        positions = entries["position"][before:]
        fitting = max(1, int((positions <= base + PIECE_BYTES).sum())) if base <= int(positions[-1]) else count
        end = int(positions[fitting - 1])
        last_offset = first_offset + fitting - 1
        if not base < end <= self._segment.data_len:
            return None, last_offset
        log = self._log.pread(end - base, base)
        if len(log) < end - base:
            raise Vanished
        rebased = entries[before : before + fitting].copy()
        rebased["offset"] -= first
        rebased["position"] -= base
        table = locate_messages(log, rebased.tobytes(), first_offset, last_offset=last_offset)
        return (table if table.index_problem is None and not table.bad else None), last_offset

    def _whole(self) -> MessageTable:
        """A table of the whole log: the index is wrong, and messages are found without it."""
        segment = self._segment
        log = memoryview(self._log.map() if segment.sealed else self._log.pread(segment.data_len, 0))
        if len(log) < segment.data_len:
            raise Vanished
        index = None if self._index is None else self._index.pread(segment.idx_len, 0)
        return locate_messages(log[: segment.data_len], index, segment.first_seq, last_offset=segment.last_seq)


def _read_codec(fs: Fs, path: str) -> Codec:
    try:
        return Codec.from_file(read_file(fs, path))
    except FileNotFoundError:
        return Codec.NONE
    except BadFrame as error:
        raise StartRefused(f"{path}: {error.message}") from error

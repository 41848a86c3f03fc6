"""One segment of an open partition: what is known of it, writing at its end, reading from it.

Rules of this file:

1. `.log` is written before `.index`, each at its known end. Numbers change after both writes have returned, so that
   a reader never looks for what may not be there.
2. What a failed write left behind the known end is cut off durably before the failure is reported. A start would
   take whole messages there for accepted ones.
3. Bytes of files are never mapped: a file that is cut under a map takes the process along.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topics.formats.message import HEADER_BYTES
from topics.formats.message_codec import Codec
from topics.formats.message_index import ENTRY_BYTES, Entries, make_entries
from topics.storage.fs import Fs, write_all, write_vectors
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.partitions.batch import StoredBatch
from topics.streams.partitions.segment_files import SegmentFiles, open_files
from topics.streams.partitions.segment_index import IndexView, SegmentIndex, Spans

logger = logging.getLogger(__name__)


class SyncFailed(Exception):
    """Nobody knows what the disk holds of the file now, and no later sync can tell."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment as it is told to others. Of the active one, what is buffered counts."""

    start_offset: int
    end_offset: int
    start_timestamp: int
    end_timestamp: int
    size_bytes: int
    is_sealed: bool
    messages_count: int
    codec: Codec


class Segment:
    """Numbers are of what is in the files. Caller holds the partition's lock for whatever changes them."""

    __slots__ = (
        "_directory",
        "_fs",
        "codec",
        "codec_is_noted",
        "end_timestamp",
        "files",
        "index",
        "is_sealed",
        "is_synced",
        "size_bytes",
        "start_offset",
        "start_timestamp",
    )

    def __init__(self, fs: Fs, directory: str, start_offset: int, codec: Codec, index: SegmentIndex) -> None:
        self._fs = fs
        self._directory = directory
        self.start_offset = start_offset
        self.codec = codec
        # False after a failed change: `.codec` may say anything, and must be written before a message is.
        self.codec_is_noted = True
        self.index = index
        self.size_bytes = 0
        # 0 while there is no message.
        self.start_timestamp = 0
        self.end_timestamp = 0
        self.is_sealed = False
        self.is_synced = True
        # Open while the segment is active, waits for a sync, or was read last.
        self.files: SegmentFiles | None = None

    @property
    def messages_count(self) -> int:
        return self.index.count

    @property
    def next_offset(self) -> int:
        return self.start_offset + self.index.count

    def info(self) -> SegmentInfo:
        return SegmentInfo(
            self.start_offset,
            max(self.next_offset - 1, self.start_offset),
            self.start_timestamp,
            self.end_timestamp,
            self.size_bytes,
            self.is_sealed,
            self.messages_count,
            self.codec,
        )

    # Writing. Of the active segment only.

    def write(self, batches: Sequence[StoredBatch], *, enforce_fsync: bool) -> Entries:
        """Puts batches behind the known end; the entries are for `advance`. An `OSError` is one of a write."""
        files = self._open_for_writing()
        # All memory that is needed comes before the first byte that would have to be taken back.
        entries = self._entries(batches)
        entry_bytes = entries.tobytes()
        self.index.reserve(len(entries))
        self.is_synced = False
        write_vectors(files.log, [batch.buffer for batch in batches], self.size_bytes)
        if enforce_fsync:
            self._sync_log()
        write_all(files.index, entry_bytes, self.index.count * ENTRY_BYTES)
        if enforce_fsync:
            self._sync_index()
        return entries

    def _open_for_writing(self) -> SegmentFiles:
        assert not self.is_sealed, "a sealed segment is never written again"
        assert self.files is not None
        return self.files

    def _entries(self, batches: Sequence[StoredBatch]) -> Entries:
        """Of all batches at once: many small ones are the usual case of a flush."""
        counts = [batch.count for batch in batches]
        positions = self.size_bytes + np.cumsum([0, *(batch.size_bytes for batch in batches[:-1])], dtype=np.int64)
        timestamps = np.array([batch.timestamp for batch in batches], dtype=np.uint64)
        return make_entries(
            self.index.count,
            np.concatenate([batch.ends for batch in batches]) + np.repeat(positions, counts),
            np.repeat(timestamps, counts),
        )

    def advance(self, batches: Sequence[StoredBatch], entries: Entries) -> None:
        """What was written is there from now on."""
        assert batches[0].first_offset == self.next_offset, "the n-th entry belongs to relative offset n"
        if not self.index.count:
            self.start_timestamp = batches[0].timestamp
        self.end_timestamp = batches[-1].timestamp
        self.size_bytes += sum(batch.size_bytes for batch in batches)
        self.index.append(entries)

    def cut_back(self, *, log_bytes: int | None = None) -> None:
        """Takes whatever is behind the known end out of the files, durably.

        `log_bytes` keeps that much of the log: messages without an entry, which a start picks up.
        """
        files = self._open_for_writing()
        files.index.truncate(self.index.count * ENTRY_BYTES)
        files.log.truncate(self.size_bytes if log_bytes is None else log_bytes)
        if log_bytes is None:
            # Not `fdatasync`, which need not cover that a file became shorter.
            try:
                files.log.fsync()
                files.index.fsync()
            except OSError as error:
                raise SyncFailed(str(error)) from error
            self.is_synced = True

    def sync(self) -> None:
        """`.log` first: an entry must not outlive its message."""
        if self.is_synced:
            return
        self._sync_log()
        self._sync_index()

    def _sync_index(self) -> None:
        assert self.files is not None
        try:
            self.files.index.fdatasync()
        except OSError as error:
            raise SyncFailed(str(error)) from error
        self.is_synced = True

    def _sync_log(self) -> None:
        assert self.files is not None, "a segment that is not synced keeps its files open"
        try:
            self.files.log.fdatasync()
        except OSError as error:
            raise SyncFailed(str(error)) from error

    # Reading.

    def hold_files(self) -> SegmentFiles:
        """Open handles that the caller lets go of when it is done."""
        if self.files is None:
            self.files = open_files(self._fs, self._directory, self.start_offset, is_writable=False)
        self.files.hold()
        return self.files

    def close_files(self) -> None:
        """Readers that hold them read on."""
        if self.files is not None:
            self.files.let_go()
            self.files = None


@dataclass(frozen=True, slots=True)
class Piece:
    """Messages of one segment to be read: `first` is relative to it. The files are held until `close`."""

    start_offset: int
    codec: Codec
    files: SegmentFiles
    index: IndexView
    # The known end of the log: no message lies behind it.
    log_bytes: int
    first: int
    count: int

    @property
    def first_offset(self) -> int:
        return self.start_offset + self.first

    def spans(self, bytes_max: int, *, at_least_one: bool) -> Spans:
        """Where the messages are in the log, as many as fit."""
        # No message is smaller than its header: more entries than this are not worth reading.
        count = min(self.count, bytes_max // HEADER_BYTES + 1)
        starts, ends = self.index.spans(self.files.index, self.first, count)
        start = int(starts[0])
        fitting = int(np.searchsorted(ends, start + bytes_max, side="right"))
        if at_least_one:
            fitting = max(fitting, 1)
        # The index may be bad. What it leads to is verified message by message, but memory for that comes first.
        if fitting and not start + HEADER_BYTES * fitting <= int(ends[fitting - 1]) <= self.log_bytes:
            raise StreamsError(
                StreamStatus.CANNOT_READ_INDEX_POSITION,
                f"{self.files.index.path}: entry {self.first} or one behind it has a wrong position; "
                "a restart makes the index again",
            )
        return Spans(starts[:fitting], ends[:fitting])

    def read_into(self, buffer: memoryview, position: int) -> None:
        if self.files.log.pread_into(buffer, position) < len(buffer):
            raise StreamsError(
                StreamStatus.CANNOT_READ_MESSAGE,
                f"{self.files.log.path}: ends before position {position + len(buffer)}, where its index says "
                "a message is; restart to see what is left",
            )

    def close(self) -> None:
        self.files.let_go()

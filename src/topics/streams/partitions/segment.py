"""One segment of an open partition: its numbers, writing at its end, reading from it.

Rules of this file:

1. A write puts messages into `.log` first and then their entries into `.index`, each at the known end of the file. The
   numbers change after both writes have returned, so a reader never looks for bytes that may be missing.
2. Bytes that a failed write left after the known end are cut off durably before the failure is reported. A start would
   take whole messages there for accepted ones.
3. The files are never mapped into memory: a file that is cut while it is mapped kills the process.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topics.formats.message import HEADER_BYTES
from topics.formats.message_codec import Codec
from topics.formats.message_index import ENTRY_BYTES, Entries, make_entries
from topics.formats.stream_layout import LOG, segment_path
from topics.storage.fs import Fs, write_all, write_vectors
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.partitions.batch import StoredBatch
from topics.streams.partitions.must_wait import MustWait
from topics.streams.partitions.segment_files import SegmentFiles, open_files, write_codec
from topics.streams.partitions.segment_index import IndexView, SegmentIndex, Spans

logger = logging.getLogger(__name__)


class SyncFailed(Exception):
    """A sync of a file failed. What the disk holds of the file is unknown from then on, and no later sync can tell."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment as other modules see it. The numbers of the active segment include the buffered messages."""

    start_offset: int
    end_offset: int
    start_timestamp: int
    end_timestamp: int
    size_bytes: int
    is_sealed: bool
    messages_count: int
    codec: Codec


class Segment:
    """The numbers count what is in the files, without buffered messages.

    `PartitionContents` holds its lock around every call that changes what readers see.
    """

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

    def __init__(
        self,
        fs: Fs,
        directory: str,
        start_offset: int,
        codec: Codec,
        index: SegmentIndex,
        *,
        size_bytes: int = 0,
        start_timestamp: int = 0,
        end_timestamp: int = 0,
        files: SegmentFiles | None = None,
        is_sealed: bool = False,
    ) -> None:
        """`files` are open handles that the segment takes over; the active segment needs them."""
        self._fs = fs
        self._directory = directory
        self.start_offset = start_offset
        self.codec = codec
        # False after a failed change of the codec: `.codec` may hold either one and must be written before a message.
        self.codec_is_noted = True
        self.index = index
        self.size_bytes = size_bytes
        # Both times are 0 while the segment has no message.
        self.start_timestamp = start_timestamp
        self.end_timestamp = end_timestamp
        self.is_sealed = is_sealed
        self.is_synced = True
        # Open while the segment is active, while it waits for a sync, and while it is the one that was read last.
        self.files = files

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

    # Writing: the active segment only.

    def write(self, batches: Sequence[StoredBatch], *, enforce_fsync: bool) -> Entries:
        """Writes batches after the known end. The caller hands the returned entries to `advance`.

        Raises `OSError` when a write fails and `SyncFailed` when a sync fails.
        """
        files = self._open_for_writing()
        # All memory is allocated before the first byte is written, so that a lack of memory leaves no partial write.
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
        """The entries of all batches in one pass: a flush usually has many small batches."""
        counts = [batch.count for batch in batches]
        positions = self.size_bytes + np.cumsum([0, *[batch.size_bytes for batch in batches[:-1]]], dtype=np.int64)
        timestamps = np.array([batch.timestamp for batch in batches], dtype=np.uint64)
        return make_entries(
            self.index.count,
            np.concatenate([batch.ends for batch in batches]) + np.repeat(positions, counts),
            np.repeat(timestamps, counts),
        )

    def advance(self, batches: Sequence[StoredBatch], entries: Entries) -> None:
        """Counts batches that `write` has written."""
        assert batches[0].first_offset == self.next_offset, "the n-th entry belongs to relative offset n"
        if not self.index.count:
            self.start_timestamp = batches[0].timestamp
        self.end_timestamp = batches[-1].timestamp
        self.size_bytes += sum(batch.size_bytes for batch in batches)
        self.index.append(entries)

    def cut_back(self, *, log_bytes: int | None = None) -> None:
        """Cuts everything after the known end out of both files, durably.

        With `log_bytes` the log keeps that many bytes: messages without an entry, which a start takes in. Then
        nothing is synced.
        """
        files = self._open_for_writing()
        files.index.truncate(self.index.count * ENTRY_BYTES)
        files.log.truncate(self.size_bytes if log_bytes is None else log_bytes)
        if log_bytes is None:
            # Not `fdatasync`: it need not cover that a file became shorter.
            try:
                files.log.fsync()
                files.index.fsync()
            except OSError as error:
                raise SyncFailed(str(error)) from error
            self.is_synced = True

    def write_codec(self, codec: Codec) -> None:
        """Notes the codec of a segment without messages in its `.codec` file, durably. `use_codec` must follow."""
        assert not self.index.count, "messages of one segment share one codec"
        self.codec_is_noted = False
        write_codec(self._fs, self._directory, self.start_offset, codec)

    def use_codec(self, codec: Codec) -> None:
        """Messages from now on have the codec that `write_codec` noted."""
        self.codec = codec
        self.codec_is_noted = True

    def seal(self, *, keeps_index_cached: bool) -> None:
        """Nothing is written to the segment any more. A segment that is not synced keeps its files open."""
        self.is_sealed = True
        if not keeps_index_cached:
            self.index.drop_cache()
        if self.is_synced:
            self.close_files()

    def sync(self) -> None:
        """Syncs `.log` before `.index`: an entry must not survive a power loss that takes its message."""
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

    def slice(self, first: int, count: int) -> "SegmentSlice":
        """The messages from relative offset `first` on, for a reader. The caller closes the slice."""
        files = self._hold_files()
        return SegmentSlice(
            self.start_offset, self.codec, files, self.index.view(), self.size_bytes, first=first, count=count
        )

    def _hold_files(self) -> SegmentFiles:
        """Open handles; the caller calls `let_go` on them when it is done."""
        if self.files is None:
            self.files = open_files(self._fs, self._directory, self.start_offset, is_writable=False)
        self.files.hold()
        return self.files

    def close_files(self) -> None:
        """A reader that holds the files can still read them."""
        if self.files is not None:
            self.files.let_go()
            self.files = None

    def unlink_log(self) -> None:
        """Deletes the `.log`. The caller removes the other files once that is durable."""
        try:
            self._fs.unlink(segment_path(self._directory, self.start_offset, LOG))
        except OSError as error:
            raise StreamsError(
                StreamStatus.IO_ERROR,
                f"{self._directory}: segment {self.start_offset} could not be deleted: {error}",
            ) from error


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """Messages of one segment that a reader is about to read. Its files stay open until `close`."""

    start_offset: int
    codec: Codec
    files: SegmentFiles
    index: IndexView
    # The known end of the log: every message ends here or earlier.
    log_bytes: int
    # Relative to the start offset of the segment.
    first: int
    count: int

    @property
    def first_offset(self) -> int:
        return self.start_offset + self.first

    def spans(self, bytes_max: int, *, at_least_one: bool, may_wait: bool = True) -> Spans:
        """Where the messages are in the log: as many messages as fit into `bytes_max`."""
        # Every message has a header, so more entries than this cannot fit and need not be read.
        count = min(self.count, bytes_max // HEADER_BYTES + 1)
        starts, ends = self.index.spans(self.files.index, self.first, count, may_wait=may_wait)
        start = int(starts[0])
        fitting = int(np.searchsorted(ends, start + bytes_max, side="right"))
        if at_least_one:
            fitting = max(fitting, 1)
        # The index may be damaged. The reader verifies every message, but it allocates memory for them first.
        if fitting and not start + HEADER_BYTES * fitting <= int(ends[fitting - 1]) <= self.log_bytes:
            raise StreamsError(
                StreamStatus.CANNOT_READ_INDEX_POSITION,
                f"{self.files.index.path}: entry {self.first} or a later one has a wrong position; "
                "restart to rebuild the index",
            )
        return Spans(starts[:fitting], ends[:fitting])

    def read_into(self, buffer: memoryview, position: int, *, may_wait: bool = True) -> None:
        """Without `may_wait` it raises `MustWait` if the system has to read from the disk."""
        if not may_wait:
            if not self.files.log.pread_into_nowait(buffer, position):
                raise MustWait
            return
        if self.files.log.pread_into(buffer, position) < len(buffer):
            raise StreamsError(
                StreamStatus.CANNOT_READ_MESSAGE,
                f"{self.files.log.path}: ends before position {position + len(buffer)}, where its index has "
                "a message; restart to see which messages are left",
            )

    def offset_at(self, timestamp: int) -> int:
        """The offset of the first message that is not older than the time; one after the last when all are older."""
        return self.start_offset + self.index.lower_bound(self.files.index, timestamp)

    def close(self) -> None:
        self.files.let_go()

"""The contents of an open partition: its segments, its journal, and the numbers that follow from them.

One lock guards all of it. The lock is held for moments only, never during a write or a sync of messages, so that a poll
waits for neither. The partition, which holds its own lock for writing, makes every change through one method of
`PartitionContents`. The reader takes slices: a slice can be read without any lock, whatever happens to its segment
meanwhile.

Offsets never restart, except by a purge: a partition whose messages are all deleted continues with the next offset.
"""

import threading
from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from topics.formats.message_codec import Codec
from topics.formats.message_index import Entries
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.partitions.batch import StoredBatch
from topics.streams.partitions.journal import Journal, Window
from topics.streams.partitions.must_wait import MustWait
from topics.streams.partitions.segment import Segment, SegmentInfo, SegmentSlice


class Moment(NamedTuple):
    """What the partition holds when a poll begins. The poll answers from that, whatever is appended meanwhile."""

    # Changes when offsets restart.
    epoch: int
    current_offset: int
    # One after the last message.
    end_offset: int


class JournalSlice(NamedTuple):
    """Messages of the journal for a reader. The journal has the codec of the active segment."""

    first_offset: int
    codec: Codec
    windows: list[Window]


class PartitionContents:
    """Any thread may read the public fields; only the methods here assign them."""

    def __init__(self, segments: Sequence[Segment] = (), *, next_offset: int = 0) -> None:
        """`segments` are in rising order. The last one is the active segment, unless it is sealed."""
        self._lock = threading.Lock()
        self._segments = list(segments)
        # None while the next segment could not be created.
        self.active = segments[-1] if segments and not segments[-1].is_sealed else None
        self.journal = Journal()
        self.next_offset = next_offset
        self.last_timestamp = max((segment.end_timestamp for segment in segments), default=0)
        # Both count buffered messages as well.
        self.size_bytes = sum(segment.size_bytes for segment in segments)
        self.messages_count = sum(segment.messages_count for segment in segments)
        self._epoch = 0
        # The sealed segment that was read last keeps its files open.
        self._last_read: Segment | None = None
        # What every later call gets as its error.
        self._closed: StreamsError | None = None

    @property
    def current_offset(self) -> int:
        return max(self.next_offset - 1, 0)

    @property
    def is_closed(self) -> bool:
        return self._closed is not None

    def check_open(self) -> None:
        if self._closed is not None:
            raise self._closed.with_traceback(None)

    def infos(self) -> list[SegmentInfo]:
        """All segments, oldest first; the last one with the buffered messages."""
        with self._lock:
            infos = [segment.info() for segment in self._segments]
            batches = self.journal.batches
            if batches:
                info = infos[-1]
                infos[-1] = SegmentInfo(
                    info.start_offset,
                    self.next_offset - 1,
                    info.start_timestamp if info.messages_count else batches[0].timestamp,
                    batches[-1].timestamp,
                    info.size_bytes + self.journal.size_bytes,
                    info.is_sealed,
                    info.messages_count + self.journal.messages_count,
                    info.codec,
                )
            return infos

    def start_offsets(self) -> list[int]:
        with self._lock:
            return [segment.start_offset for segment in self._segments]

    # Changes. The caller holds the partition's lock for writing.

    def buffer(self, batch: StoredBatch) -> None:
        """Accepts a batch into the journal."""
        with self._lock:
            self.journal.add(batch)
            self._accept(batch)

    def note_written(
        self, active: Segment, batches: Sequence[StoredBatch], entries: Entries, accepted: StoredBatch | None
    ) -> None:
        """The whole journal, and after it the batch that is accepted now, are in the files of the active segment."""
        with self._lock:
            active.advance(batches, entries)
            self.journal.clear()
            if accepted is not None:
                self._accept(accepted)

    def _accept(self, batch: StoredBatch) -> None:
        """Readers see the messages of the batch from now on. The caller holds the lock."""
        assert batch.first_offset == self.next_offset
        self.next_offset += batch.count
        self.last_timestamp = batch.timestamp
        self.size_bytes += batch.size_bytes
        self.messages_count += batch.count

    def use_codec(self, active: Segment, codec: Codec) -> None:
        with self._lock:
            active.use_codec(codec)

    def seal_active(self, *, keeps_index_cached: bool) -> Segment | None:
        """The segment that was active."""
        with self._lock:
            active, self.active = self.active, None
            if active is not None:
                active.seal(keeps_index_cached=keeps_index_cached)
            return active

    def add_active(self, segment: Segment) -> None:
        with self._lock:
            self._segments.append(segment)
            self.active = segment

    def find_sealed(self, start_offset: int) -> Segment | None:
        for segment in self._segments:
            if segment.start_offset == start_offset and segment.is_sealed:
                return segment
        return None

    def is_last(self, segment: Segment) -> bool:
        return segment is self._segments[-1]

    def delete(self, segment: Segment) -> None:
        """Unlinks the log of a segment. A reader opens files under the same lock: it finds the segment or does not."""
        with self._lock:
            self._delete(segment)

    def delete_all(self) -> None:
        """Unlinks every log and restarts offsets at 0."""
        with self._lock:
            # Oldest first: after a crash or an error in between, the segments that are left still end where they did.
            for segment in list(self._segments):
                self._delete(segment)
            self.active = None
            self.journal.clear()
            self.size_bytes = 0
            self.messages_count = 0
            self.next_offset = 0
            self._epoch += 1

    def _delete(self, segment: Segment) -> None:
        segment.unlink_log()
        self._segments.remove(segment)
        self.size_bytes -= segment.size_bytes
        self.messages_count -= segment.messages_count
        segment.close_files()
        if segment is self._last_read:
            self._last_read = None

    def close_synced(self, segment: Segment) -> None:
        """A sealed segment is synced, so its files close, unless it is the segment that was read last."""
        with self._lock:
            if segment is not self._last_read:
                segment.close_files()

    def close(self, answer: StreamsError) -> None:
        """Closes all files. Every later call raises `answer`."""
        with self._lock:
            self._closed = answer
            for segment in self._segments:
                segment.close_files()

    # Reading.

    def now(self, *, may_wait: bool = True) -> Moment:
        """Without `may_wait` it raises `MustWait` if another thread holds the lock."""
        if not self._lock.acquire(blocking=may_wait):
            raise MustWait
        try:
            self.check_open()
            return Moment(self._epoch, self.current_offset, self.next_offset)
        finally:
            self._lock.release()

    def find_messages(
        self, moment: Moment, offset: int, count: int, compressed_count: int, *, may_wait: bool = True
    ) -> SegmentSlice | JournalSlice | None:
        """The next messages at the offset or, if there is a gap, after it; None if there are none.

        At most `count`, and at most `compressed_count` where messages are compressed. None also when offsets have
        restarted since the moment. Without `may_wait` it raises `MustWait` if another thread holds the lock, if a file
        has to be opened, and if messages are compressed.
        """
        if not self._lock.acquire(blocking=may_wait):
            raise MustWait
        try:
            self.check_open()
            if self._epoch != moment.epoch:
                return None
            return self._find(offset, moment.end_offset, count, compressed_count, may_wait)
        finally:
            self._lock.release()

    def _find(
        self,
        offset: int,
        end_offset: int,
        count: int,
        compressed_count: int,
        may_wait: bool,  # noqa: FBT001 - a hot call.
    ) -> SegmentSlice | JournalSlice | None:
        segments = self._segments
        place = max(bisect_right(segments, offset, key=_start_offset) - 1, 0)
        while place and segments[place - 1].next_offset > offset:
            place -= 1
        for segment in islice(segments, place, None):
            first = max(offset - segment.start_offset, 0)
            available = min(segment.messages_count - first, end_offset - segment.start_offset - first)
            if available > 0:
                if segment.codec is not Codec.NONE:
                    count = min(count, compressed_count)
                if not may_wait and (segment.files is None or segment.codec is not Codec.NONE):
                    raise MustWait
                return self._slice(segment, first, min(available, count))
        active = self.active
        if active is None:
            return None
        if not may_wait and active.codec is not Codec.NONE:
            raise MustWait
        first_offset = max(offset, active.next_offset)
        if active.codec is not Codec.NONE:
            count = min(count, compressed_count)
        windows = self.journal.windows(first_offset, min(count, end_offset - first_offset))
        return JournalSlice(first_offset, active.codec, windows) if windows else None

    def find_timestamp(self, timestamp: int) -> SegmentSlice | int | None:
        """Where the first message that is not older than the time is: the whole segment that has it, or its offset if
        it is in the journal. None if all messages are older."""
        with self._lock:
            self.check_open()
            for segment in self._segments:
                if segment.messages_count and segment.end_timestamp >= timestamp:
                    return self._slice(segment, 0, segment.messages_count)
            return self.journal.offset_at(timestamp)

    def _slice(self, segment: Segment, first: int, count: int) -> SegmentSlice:
        """Of all sealed segments, only the one that was read last keeps its files open. The caller holds the lock."""
        try:
            found = segment.slice(first, count)
        except OSError as error:
            raise cannot_read(error) from error
        if segment.is_sealed and segment is not self._last_read:
            if self._last_read is not None and self._last_read.is_synced:
                self._last_read.close_files()
            self._last_read = segment
        return found


def cannot_read(error: OSError) -> StreamsError:
    return StreamsError(StreamStatus.IO_ERROR, f"the messages cannot be read now: {error}")


def _start_offset(segment: Segment) -> int:
    return segment.start_offset

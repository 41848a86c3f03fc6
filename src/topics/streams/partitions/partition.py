"""A partition: an append-only sequence of messages, numbered from 0, in segments on disk and a journal in memory.

Rules of this file:

1. Two locks. `_writing` is held by every call that changes files: append, flush, roll, delete, purge. The lock of
   `PartitionContents` guards the numbers and is held for moments only, so that a poll waits for neither a write nor a
   sync. A thread that needs both takes `_writing` first.
2. Readers see a batch once it is accepted, not earlier. An append that has to flush writes the journal and its own
   batch together. If that fails, the files are cut back, the journal stays as it was, and the batch is refused: no
   reader has seen it, and its offsets and message ids are free.
3. A failed sync is final, because what the disk holds is unknown after it. The partition refuses every later append
   until a restart; polls go on.
4. A new segment is durable in its directory before a message goes into it. A sealed segment that was never synced is
   remembered, and the next call that promises durability syncs it.
"""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from topics.clock import Clock
from topics.formats.message import Bytes
from topics.formats.message_cipher import Cipher
from topics.formats.message_codec import Codec
from topics.formats.message_index import POSITION_MAX
from topics.formats.stream_layout import BodyOrder
from topics.limits import MIB
from topics.storage.fs import Fs
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.partitions.batch import IncomingBatch, PreparedBatch, StoredBatch, prepare
from topics.streams.partitions.contents import PartitionContents
from topics.streams.partitions.deduplication import Deduplicator
from topics.streams.partitions.memory_pool import MemoryPool
from topics.streams.partitions.must_wait import MustWait
from topics.streams.partitions.reader import PartitionReader
from topics.streams.partitions.recent_ids import recall_ids
from topics.streams.partitions.recovery import RecoveredSegment, recover
from topics.streams.partitions.segment import Segment, SegmentInfo, SyncFailed
from topics.streams.partitions.segment_files import create_files, open_files, remove_side_files
from topics.streams.partitions.segment_index import SegmentIndex, no_entries, read_entries
from topics.streams.settings import CacheIndexes
from topics.streams.times import now_us

logger = logging.getLogger(__name__)

# The most sealed segments that wait for a sync: each of them keeps its files open.
UNSYNCED_SEGMENTS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class PartitionOptions:
    """The settings of partitions and segments, by the names they have in `StreamsSettings`."""

    segment_size: int = 1024 * MIB
    messages_required_to_save: int = 1024
    size_of_messages_required_to_save: int = MIB
    enforce_fsync: bool = False
    validate_checksum: bool = False
    cache_indexes: CacheIndexes = "open_segment"
    max_poll_bytes: int = 64 * MIB
    # No setting: a position in a segment is a number of 32 bits.
    position_max: int = POSITION_MAX


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a batch went. `count` leaves out the messages that were dropped as duplicates."""

    first_offset: int
    count: int


class Partition:
    """Thread-safe. Made by `open`. `reader` polls it."""

    def __init__(
        self,
        fs: Fs,
        directory: str,
        options: PartitionOptions,
        contents: PartitionContents,
        *,
        partition_id: int,
        order: BodyOrder,
        cipher: Cipher | None,
        pool: MemoryPool,
        clock: Clock,
        codec: Codec,
        deduplicator: Deduplicator | None,
    ) -> None:
        self.partition_id = partition_id
        self.directory = directory
        self.reader = PartitionReader(
            contents,
            partition_id=partition_id,
            order=order,
            cipher=cipher,
            pool=pool,
            max_poll_bytes=options.max_poll_bytes,
        )
        self._fs = fs
        self._options = options
        self._order = order
        self._cipher = cipher
        self._clock = clock
        self._codec = codec
        self._deduplicator = deduplicator
        self._writing = threading.Lock()
        self._contents = contents
        # Sealed segments that no sync has covered yet, in rising order.
        self._unsynced: list[Segment] = []
        self._stopped: str | None = None

    @classmethod
    def open(
        cls,
        fs: Fs,
        directory: str,
        options: PartitionOptions,
        *,
        partition_id: int,
        order: BodyOrder,
        pool: MemoryPool,
        clock: Clock,
        cipher: Cipher | None = None,
        codec: Codec = Codec.NONE,
        deduplicator: Deduplicator | None = None,
    ) -> "Partition":
        """Recovers the partition in the directory, or begins a new one. Makes the directory if it is missing.

        `codec` is for messages that are appended from now on; each segment knows the codec of its own messages.
        """
        fs.makedirs(directory)
        # The directory may exist without being durable: the process that made it may have been killed before its sync.
        fs.sync_dir(directory.rpartition("/")[0])
        recovered = recover(fs, directory, validate_checksum=options.validate_checksum)
        if deduplicator is not None:
            recall_ids(deduplicator, fs, directory, recovered, now_us(clock))
        partition = cls(
            fs,
            directory,
            options,
            _load_contents(fs, directory, options, recovered),
            partition_id=partition_id,
            order=order,
            cipher=cipher,
            pool=pool,
            clock=clock,
            codec=codec,
            deduplicator=deduplicator,
        )
        if partition._contents.active is None:
            partition._create_active(codec)
        return partition

    # What the partition holds.

    @property
    def current_offset(self) -> int:
        """The offset of the last message; also 0 when there is no message yet, see `has_messages`."""
        return self._contents.current_offset

    @property
    def has_messages(self) -> bool:
        """Whether a message was appended since the beginning or the last purge. Deleted messages count."""
        return self._contents.next_offset > 0

    @property
    def size_bytes(self) -> int:
        """The bytes of all messages, buffered ones included."""
        return self._contents.size_bytes

    @property
    def messages_count(self) -> int:
        return self._contents.messages_count

    @property
    def unsaved_messages_count(self) -> int:
        """The messages that a kill of the process would lose."""
        return self._contents.journal.messages_count

    @property
    def stopped(self) -> str | None:
        """Why appends are refused until a restart; None while they are not."""
        return self._stopped

    @property
    def segments(self) -> list[SegmentInfo]:
        return self._contents.infos()

    def set_codec(self, codec: Codec) -> None:
        """Sets the codec of messages that are appended from now on. The next append begins a new segment."""
        self._codec = codec

    # Appending.

    def append(self, batch: IncomingBatch) -> Appended:
        """Appends the whole batch or, if it raises, nothing of it."""
        codec = self._codec
        prepared = prepare(batch, order=self._order, codec=codec, cipher=self._cipher)
        with self._writing:
            return self._append(prepared, codec)

    def append_nowait(self, batch: IncomingBatch) -> Appended:
        """The same for a batch that is only buffered. Raises `MustWait` if it has to be compressed, encrypted or
        written, or if another thread works on the partition; then the batch can be appended again."""
        codec = self._codec
        if codec is not Codec.NONE or self._cipher is not None or not self._writing.acquire(blocking=False):
            raise MustWait
        try:
            active = self._contents.active
            if active is None or active.codec is not codec or not active.codec_is_noted:
                raise MustWait
            if self._must_write(active, batch.count, batch.size_bytes):
                raise MustWait
            return self._append(prepare(batch, order=self._order), codec)
        finally:
            self._writing.release()

    def _append(self, prepared: PreparedBatch, codec: Codec) -> Appended:
        contents = self._contents
        self._check_writable()
        now = now_us(self._clock)
        sent_ids: Bytes | None = None
        if self._deduplicator is not None:
            prepared, sent_ids = self._without_duplicates(self._deduplicator, prepared, now)
            if not prepared.count:
                return Appended(contents.next_offset, 0)
        active = self._make_room(codec, prepared.size_bytes)
        stored = prepared.stamp(contents.next_offset, max(now, contents.last_timestamp))
        is_full = self._is_full(active, stored.size_bytes)
        if self._must_write(active, stored.count, stored.size_bytes):
            self._write(active, [*contents.journal.batches, stored], accepting=stored)
        else:
            contents.buffer(stored)
        if sent_ids is not None:
            assert self._deduplicator is not None
            self._deduplicator.note(sent_ids, now)
        if is_full:
            self._roll_if_possible(codec)
        return Appended(stored.first_offset, stored.count)

    def _is_full(self, active: Segment, batch_bytes: int) -> bool:
        """Whether the segment reaches its size with the batch."""
        return active.size_bytes + self._contents.journal.size_bytes + batch_bytes >= self._options.segment_size

    def _must_write(self, active: Segment, batch_count: int, batch_bytes: int) -> bool:
        """Whether the journal reaches a limit with the batch."""
        journal = self._contents.journal
        return (
            self._is_full(active, batch_bytes)
            or journal.messages_count + batch_count >= self._options.messages_required_to_save
            or journal.size_bytes + batch_bytes >= self._options.size_of_messages_required_to_save
        )

    def _without_duplicates(
        self, deduplicator: Deduplicator, prepared: PreparedBatch, now: int
    ) -> tuple[PreparedBatch, Bytes]:
        """The new messages, and those of their ids that the sender chose."""
        ids = prepared.read_ids()
        is_sent = np.asarray(ids.any(axis=1))
        keep = deduplicator.keep_mask(ids, ~is_sent, now)
        if keep is None:
            return prepared, ids[is_sent]
        return prepared.without(~keep), ids[is_sent & keep]

    def _write(self, active: Segment, batches: list[StoredBatch], *, accepting: StoredBatch | None = None) -> None:
        """Writes the whole journal, and after it the batch that is being accepted, into the files: all or nothing."""
        try:
            entries = active.write(batches, enforce_fsync=self._options.enforce_fsync)
        except SyncFailed as failed_sync:
            self._stop(f"a sync failed: {failed_sync}")
            self._cut_refused(active, accepting)
            raise self._refusal() from failed_sync
        except OSError as error:
            self._cut_back(active)
            raise self._append_failed(error) from error
        except BaseException:
            # An interrupt between two writes. The next batch may be shorter than the bytes that are left of this one.
            self._cut_back(active)
            raise
        self._contents.note_written(active, batches, entries, accepting)

    def _append_failed(self, error: OSError) -> StreamsError:
        return StreamsError(StreamStatus.CANNOT_APPEND_TO_FILE, f"nothing was appended to {self.directory}: {error}")

    def _cut_back(self, active: Segment) -> None:
        try:
            active.cut_back()
        except (OSError, SyncFailed) as error:
            self._stop(f"the bytes of a failed write cannot be cut off: {error}")

    def _cut_refused(self, active: Segment, refused: StoredBatch | None) -> None:
        """After a failed sync: cuts off the refused batch and keeps accepted batches, which may reach the disk."""
        if refused is None:
            return
        try:
            active.cut_back(log_bytes=active.size_bytes + self._contents.journal.size_bytes)
        except OSError as error:
            logger.warning("%s: the next start may find a batch that was refused: %s", self.directory, error)

    # Segments.

    def _make_room(self, codec: Codec, batch_bytes: int) -> Segment:
        """The active segment; a new one if the present one cannot take the batch."""
        if batch_bytes > self._options.position_max:
            raise StreamsError(
                StreamStatus.INVALID_MESSAGES_SIZE, f"{batch_bytes} bytes are more than a segment can hold"
            )
        active = self._contents.active
        if active is None:
            return self._create_active(codec)
        position = active.size_bytes + self._contents.journal.size_bytes
        if position == 0:
            if active.codec is not codec or not active.codec_is_noted:
                self._change_codec(active, codec)
        elif (
            active.codec is not codec
            or position >= self._options.segment_size
            or position + batch_bytes > self._options.position_max
        ):
            return self._roll(codec)
        return active

    def _change_codec(self, active: Segment, codec: Codec) -> None:
        """Of a segment without messages. A new segment instead would need the same name."""
        try:
            active.write_codec(codec)
        except OSError as error:
            raise self._append_failed(error) from error
        self._contents.use_codec(active, codec)

    def _roll(self, codec: Codec) -> Segment:
        """Flushes everything into the active segment, seals it, and begins the next segment."""
        self._flush()
        sealed = self._contents.seal_active(keeps_index_cached=self._options.cache_indexes == "all")
        if sealed is not None and not sealed.is_synced:
            self._unsynced.append(sealed)
            if len(self._unsynced) > UNSYNCED_SEGMENTS_MAX:
                self._sync([self._unsynced[0]])
        return self._create_active(codec)

    def _roll_if_possible(self, codec: Codec) -> None:
        """After the append that filled the segment. Its messages are accepted, so the next append reports a failure."""
        try:
            self._roll(codec)
        except StreamsError as error:
            logger.warning("%s: no new segment yet: %s", self.directory, error.message)

    def _create_active(self, codec: Codec) -> Segment:
        start_offset = self._contents.next_offset
        try:
            files = create_files(self._fs, self.directory, start_offset, codec)
        except OSError as error:
            raise StreamsError(
                StreamStatus.CANNOT_APPEND_TO_FILE, f"{self.directory}: a new segment cannot be created: {error}"
            ) from error
        try:
            self._fs.sync_dir(self.directory)
        except OSError as error:
            files.let_go()
            self._stop(f"a sync of its directory failed: {error}")
            raise self._refusal() from error
        index = SegmentIndex(0, no_entries() if self._options.cache_indexes != "none" else None)
        segment = Segment(self._fs, self.directory, start_offset, codec, index, files=files)
        self._contents.add_active(segment)
        return segment

    # Flushing and syncing.

    def flush(self, *, fsync: bool = False) -> None:
        """Writes buffered messages into the files; with `fsync` all accepted messages are durable afterwards."""
        with self._writing:
            self._check_writable()
            self._flush()
            if fsync:
                self._sync_all()

    def save(self, *, fsync: bool) -> bool:
        """The same for the regular saver. False: there was nothing to do, or the partition is stopped or closed."""
        with self._writing:
            if self._stopped is not None or self._contents.is_closed:
                return False
            has_unsynced = fsync and any(not segment.is_synced for segment in self._all_unsynced())
            if not self._contents.journal.batches and not has_unsynced:
                return False
            self._flush()
            if fsync:
                self._sync_all()
            return True

    def _flush(self) -> None:
        batches = self._contents.journal.batches
        if batches:
            active = self._contents.active
            assert active is not None, "buffered messages belong to the active segment"
            self._write(active, batches)

    def _all_unsynced(self) -> list[Segment]:
        active = self._contents.active
        return [*self._unsynced, active] if active is not None else list(self._unsynced)

    def _sync_all(self) -> None:
        self._sync(self._all_unsynced())

    def _sync(self, segments: Sequence[Segment]) -> None:
        """Syncs the segments in the order of offsets, so that the durable messages have no gap."""
        for segment in segments:
            try:
                segment.sync()
            except SyncFailed as error:
                self._stop(f"a sync failed: {error}")
                raise self._refusal() from error
            if segment.is_sealed:
                self._unsynced.remove(segment)
                self._contents.close_synced(segment)

    def _stop(self, why: str) -> None:
        if self._stopped is None:
            self._stopped = why
            logger.error("%s: appends are refused until a restart: %s", self.directory, why)

    def _refusal(self) -> StreamsError:
        return StreamsError(
            StreamStatus.CANNOT_SYNC_FILE,
            f"partition {self.partition_id} takes no more messages ({self._stopped}); check the disk, then restart",
        )

    def _check_writable(self) -> None:
        self._contents.check_open()
        if self._stopped is not None:
            raise self._refusal()

    # Deleting.

    def delete_segment(self, start_offset: int) -> SegmentInfo:
        """Deletes a sealed segment, durably; the active one is never deleted. A poll that is reading it can finish."""
        with self._writing:
            self._contents.check_open()
            segment = self._contents.find_sealed(start_offset)
            if segment is None:
                raise StreamsError(
                    StreamStatus.RESOURCE_NOT_FOUND,
                    f"partition {self.partition_id} has no sealed segment {start_offset}",
                )
            if self._contents.is_last(segment):
                # The next segment could not be created when this one was full. It must exist first: after a restart
                # only its name tells the next offset.
                self._create_active(self._codec)
            self._contents.delete(segment)
            self._forget_deleted()
            self._remove_side_files([start_offset])
            return segment.info()

    def purge(self) -> None:
        """Deletes all messages, buffered ones included. Offsets restart at 0."""
        with self._writing:
            self._check_writable()
            start_offsets = self._contents.start_offsets()
            try:
                self._contents.delete_all()
            finally:
                self._forget_deleted()
                left = set(self._contents.start_offsets())
                self._remove_side_files([offset for offset in start_offsets if offset not in left])
            if self._deduplicator is not None:
                self._deduplicator.clear()
            self._create_active(self._codec)

    def _forget_deleted(self) -> None:
        """A deleted segment needs no sync."""
        left = set(self._contents.start_offsets())
        self._unsynced = [segment for segment in self._unsynced if segment.start_offset in left]

    def _remove_side_files(self, start_offsets: Sequence[int]) -> None:
        try:
            remove_side_files(self._fs, self.directory, start_offsets)
        except OSError as error:
            raise StreamsError(
                StreamStatus.IO_ERROR,
                f"{self.directory}: segments were deleted, but a crash may bring them back: {error}",
            ) from error

    # The end.

    def close(self) -> None:
        """Flushes and syncs everything. Files are closed even when that fails."""
        with self._writing:
            if self._contents.is_closed:
                return
            try:
                if self._stopped is None:
                    self._flush()
                    self._sync_all()
            finally:
                self._contents.close(StreamsError(StreamStatus.IO_ERROR, f"partition {self.partition_id} is closed"))

    def drop(self) -> None:
        """Closes the partition without saving anything, for a caller that deletes the directory."""
        with self._writing:
            self._contents.close(
                StreamsError(StreamStatus.PARTITION_NOT_FOUND, f"partition {self.partition_id} was deleted")
            )


def _load_contents(
    fs: Fs, directory: str, options: PartitionOptions, recovered: Sequence[RecoveredSegment]
) -> PartitionContents:
    next_offset = max((found.next_offset for found in recovered), default=0)
    segments = []
    for found in recovered:
        # The last segment stays active, unless an earlier one has higher offsets: then files of two partitions were
        # mixed.
        is_active = found is recovered[-1] and found.next_offset == next_offset
        segments.append(_load_segment(fs, directory, found, is_active=is_active, cache_indexes=options.cache_indexes))
    return PartitionContents(segments, next_offset=next_offset)


def _load_segment(
    fs: Fs, directory: str, found: RecoveredSegment, *, is_active: bool, cache_indexes: CacheIndexes
) -> Segment:
    index = SegmentIndex(found.messages_count)
    if cache_indexes == "all" or (cache_indexes == "open_segment" and is_active):
        files = open_files(fs, directory, found.start_offset, is_writable=False)
        try:
            index = SegmentIndex(found.messages_count, read_entries(files.index, 0, found.messages_count))
        finally:
            files.let_go()
    return Segment(
        fs,
        directory,
        found.start_offset,
        found.codec,
        index,
        size_bytes=found.size_bytes,
        start_timestamp=found.start_timestamp,
        end_timestamp=found.end_timestamp,
        files=open_files(fs, directory, found.start_offset, is_writable=True) if is_active else None,
        is_sealed=not is_active,
    )

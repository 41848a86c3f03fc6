"""A partition: an append-only sequence of messages, numbered from 0, in segments on disk and a journal in memory.

Rules of this file:

1. Two locks. `_writing` is held by whatever changes files: append, flush, roll, delete, purge. `_state` guards the
   numbers and is held for moments only, never during a write or a sync, so that a poll waits for neither. Who needs
   both takes `_writing` first.
2. A batch shows when it is accepted, not before. An append that has to flush writes the journal and its own batch
   together; if that fails, the files are cut back, the journal stays as it was, and its own batch never was: it is
   refused, no reader has seen it, its offsets and message ids are free.
3. A failed sync is final: nobody knows what the disk holds. The partition takes nothing more until a restart; polls
   go on.
4. A new segment is durable in its directory before a message goes into it. A sealed one that was never synced is
   remembered, and synced by the next call that promises to be durable.
5. Offsets never restart, but by a purge: with all its messages deleted a partition goes on where it was.
"""

import logging
import threading
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal, NamedTuple

import numpy as np

from topics.clock import Clock
from topics.formats.message import BodyOrder, Positions
from topics.formats.message_cipher import Cipher
from topics.formats.message_codec import Codec
from topics.formats.message_index import POSITION_MAX
from topics.formats.stream_layout import LOG, segment_path
from topics.limits import KIB, MIB
from topics.storage.fs import Fs
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.partitions.batch import IncomingBatch, PreparedBatch, StoredBatch, prepare
from topics.streams.partitions.deduplication import Deduplicator
from topics.streams.partitions.journal import Journal, Window
from topics.streams.partitions.memory_pool import MemoryPool
from topics.streams.partitions.message_view import Chunk, PolledMessages
from topics.streams.partitions.outgoing import to_wire, verify
from topics.streams.partitions.recovery import RecoveredSegment, recover
from topics.streams.partitions.segment import Piece, Segment, SegmentInfo, SyncFailed
from topics.streams.partitions.segment_files import (
    SegmentFiles,
    create_files,
    open_files,
    remove_side_files,
    write_codec,
)
from topics.streams.partitions.segment_index import SegmentIndex, no_entries, read_entries
from topics.streams.times import now_us

logger = logging.getLogger(__name__)

# Sealed segments that wait for a sync. They keep their files open, so there is an end to that.
UNSYNCED_SEGMENTS_MAX: Final = 8

# Neighbouring batches of the journal that are smaller become one chunk of a poll: a copy is cheaper than a chunk.
JOINED_BATCH_BYTES_MAX: Final = 64 * KIB

# The length of an answer is a u32; this much of it is for what surrounds the messages.
ANSWER_BYTES_MAX: Final = 2**32 - 1 - KIB

CacheIndexes = Literal["all", "open_segment", "none"]


@dataclass(frozen=True, slots=True)
class PartitionOptions:
    """What settings say of partitions and segments, by the names they have there."""

    segment_size: int = 1024 * MIB
    messages_required_to_save: int = 1024
    size_of_messages_required_to_save: int = MIB
    enforce_fsync: bool = False
    validate_checksum: bool = False
    cache_indexes: CacheIndexes = "open_segment"
    max_poll_bytes: int = 64 * MIB


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a batch went. Messages that were dropped as duplicates do not count."""

    first_offset: int
    count: int


class _Moment(NamedTuple):
    """What there is when a poll begins. It answers from that, whatever happens meanwhile."""

    # Changes when offsets restart.
    epoch: int
    current_offset: int
    # One behind the last message.
    end_offset: int


class Partition:
    """Thread-safe. Made by `open`."""

    def __init__(
        self,
        fs: Fs,
        directory: str,
        options: PartitionOptions,
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
        self._fs = fs
        self._options = options
        self._order = order
        self._cipher = cipher
        self._pool = pool
        self._clock = clock
        self._codec = codec
        self._deduplicator = deduplicator
        self._writing = threading.Lock()
        self._state = threading.Lock()
        # Rising. The active one is the last of them; there is none while the next one could not be made.
        self._segments: list[Segment] = []
        self._active: Segment | None = None
        self._journal = Journal()
        self._unsynced: list[Segment] = []
        self._last_read: Segment | None = None
        self._next_offset = 0
        self._last_timestamp = 0
        self._size_bytes = 0
        self._messages_count = 0
        self._epoch = 0
        self._stopped: str | None = None
        self._closed: StreamsError | None = None

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
        """Recovers what is in the directory, or begins a new partition in it. Makes the directory when missing.

        `codec` is for what is appended from now on; each segment knows its own.
        """
        fs.makedirs(directory)
        # It may be there because a process made it that was killed before it could do this.
        fs.sync_dir(directory.rpartition("/")[0])
        partition = cls(
            fs,
            directory,
            options,
            partition_id=partition_id,
            order=order,
            cipher=cipher,
            pool=pool,
            clock=clock,
            codec=codec,
            deduplicator=deduplicator,
        )
        recovered = recover(fs, directory, validate_checksum=options.validate_checksum)
        partition._take_over(recovered)
        if partition._active is None:
            partition._create_active(codec)
        return partition

    def _take_over(self, recovered: Sequence[RecoveredSegment]) -> None:
        next_offset = max((found.start_offset + found.messages_count for found in recovered), default=0)
        for found in recovered:
            # The last one goes on, unless somebody put files together in which an earlier one goes further.
            is_active = found is recovered[-1] and found.start_offset + found.messages_count == next_offset
            mode = self._options.cache_indexes
            segment = self._load(found, is_cached=mode == "all" or (mode == "open_segment" and is_active))
            self._segments.append(segment)
            self._size_bytes += segment.size_bytes
            self._messages_count += segment.messages_count
            self._last_timestamp = max(self._last_timestamp, segment.end_timestamp)
            if is_active:
                segment.files = open_files(self._fs, self.directory, segment.start_offset, is_writable=True)
                self._active = segment
            else:
                segment.is_sealed = True
        self._next_offset = next_offset

    def _load(self, found: RecoveredSegment, *, is_cached: bool) -> Segment:
        index = SegmentIndex(found.messages_count)
        if is_cached:
            files = open_files(self._fs, self.directory, found.start_offset, is_writable=False)
            try:
                index = SegmentIndex(found.messages_count, read_entries(files.index, 0, found.messages_count))
            finally:
                files.let_go()
        segment = Segment(self._fs, self.directory, found.start_offset, found.codec, index)
        segment.size_bytes = found.size_bytes
        segment.start_timestamp = found.start_timestamp
        segment.end_timestamp = found.end_timestamp
        return segment

    # What is there.

    @property
    def current_offset(self) -> int:
        """Of the last message; 0 also when there is none yet, see `has_messages`."""
        return max(self._next_offset - 1, 0)

    @property
    def has_messages(self) -> bool:
        """Whether there ever was one: deleted segments count, a purge begins anew."""
        return self._next_offset > 0

    @property
    def size_bytes(self) -> int:
        """Of all messages, buffered ones too."""
        return self._size_bytes

    @property
    def messages_count(self) -> int:
        return self._messages_count

    @property
    def unsaved_messages_count(self) -> int:
        """Those that a kill would take."""
        return self._journal.messages_count

    @property
    def stopped(self) -> str | None:
        """Why nothing more is taken until a restart; None while all is well."""
        return self._stopped

    @property
    def segments(self) -> list[SegmentInfo]:
        with self._state:
            infos = [segment.info() for segment in self._segments]
            batches = self._journal.batches
            if batches:
                info = infos[-1]
                infos[-1] = SegmentInfo(
                    info.start_offset,
                    self._next_offset - 1,
                    info.start_timestamp if info.messages_count else batches[0].timestamp,
                    batches[-1].timestamp,
                    info.size_bytes + self._journal.size_bytes,
                    info.is_sealed,
                    info.messages_count + self._journal.messages_count,
                    info.codec,
                )
            return infos

    def set_codec(self, codec: Codec) -> None:
        """For what comes from now on; the next append rolls the segment."""
        self._codec = codec

    # Writing.

    def append(self, batch: IncomingBatch) -> Appended:
        """Takes the batch, all of it or, with an error, nothing of it."""
        codec = self._codec
        prepared = prepare(batch, order=self._order, codec=codec, cipher=self._cipher)
        with self._writing:
            self._check_writable()
            now = now_us(self._clock)
            prepared = self._without_duplicates(prepared, now)
            if not prepared.count:
                return Appended(self._next_offset, 0)
            active = self._make_room(codec, prepared.size_bytes)
            stored = prepared.stamp(self._next_offset, max(now, self._last_timestamp))
            journal = self._journal
            buffered_bytes = journal.size_bytes + stored.size_bytes
            is_full = active.size_bytes + buffered_bytes >= self._options.segment_size
            if (
                is_full
                or journal.messages_count + stored.count >= self._options.messages_required_to_save
                or buffered_bytes >= self._options.size_of_messages_required_to_save
            ):
                self._write(active, [*journal.batches, stored], accepting=stored)
            else:
                with self._state:
                    journal.add(stored)
                    self._accept(stored)
            self._note_ids(prepared, now)
            if is_full:
                self._roll_if_possible(codec)
            return Appended(stored.first_offset, stored.count)

    def _without_duplicates(self, prepared: PreparedBatch, now: int) -> PreparedBatch:
        if self._deduplicator is None:
            return prepared
        keep = self._deduplicator.keep_mask(prepared.ids, prepared.is_assigned, now)
        return prepared if keep is None else prepared.without(~keep)

    def _note_ids(self, prepared: PreparedBatch, now: int) -> None:
        if self._deduplicator is not None and not prepared.is_assigned.all():
            self._deduplicator.note(prepared.ids[~prepared.is_assigned], now)

    def _accept(self, batch: StoredBatch) -> None:
        """Its messages exist from here on. Caller holds both locks."""
        assert batch.first_offset == self._next_offset
        self._next_offset += batch.count
        self._last_timestamp = batch.timestamp
        self._size_bytes += batch.size_bytes
        self._messages_count += batch.count

    def _write(self, active: Segment, batches: list[StoredBatch], *, accepting: StoredBatch | None = None) -> None:
        """The whole journal, and the batch that is being accepted behind it, into the files: all or nothing."""
        try:
            entries = active.write(batches, enforce_fsync=self._options.enforce_fsync)
        except SyncFailed as error:
            self._stop(f"a sync failed: {error}")
            self._cut_refused(active, accepting)
            raise self._refusal(StreamStatus.CANNOT_SYNC_FILE) from error
        except OSError as error:
            self._cut_back(active)
            raise StreamsError(
                StreamStatus.CANNOT_APPEND_TO_FILE, f"nothing was appended to {self.directory}: {error}"
            ) from error
        except BaseException:
            # An interrupt between two writes. The next batch may be shorter than what it would be written over.
            self._cut_back(active)
            raise
        with self._state:
            active.advance(batches, entries)
            self._journal.clear()
            if accepting is not None:
                self._accept(accepting)

    def _cut_back(self, active: Segment) -> None:
        try:
            active.cut_back()
        except (OSError, SyncFailed) as error:
            self._stop(f"what a failed write left behind cannot be cut off: {error}")

    def _cut_refused(self, active: Segment, refused: StoredBatch | None) -> None:
        """After a failed sync: the batch of the request goes, accepted ones stay, in case they reached the disk."""
        if refused is None:
            return
        try:
            active.cut_back(log_bytes=active.size_bytes + self._journal.size_bytes)
        except OSError as error:
            logger.warning("%s: a batch that was refused may be found at the next start: %s", self.directory, error)

    def _make_room(self, codec: Codec, batch_bytes: int) -> Segment:
        """The active segment, after a roll if it cannot take the batch."""
        if batch_bytes > POSITION_MAX:
            raise StreamsError(
                StreamStatus.INVALID_MESSAGES_SIZE, f"{batch_bytes} bytes are more than a segment can hold"
            )
        active = self._active
        if active is None:
            return self._create_active(codec)
        position = active.size_bytes + self._journal.size_bytes
        if position == 0:
            if active.codec is not codec or not active.codec_is_noted:
                self._change_codec(active, codec)
        elif (
            active.codec is not codec or position >= self._options.segment_size or position + batch_bytes > POSITION_MAX
        ):
            return self._roll(codec)
        return active

    def _change_codec(self, active: Segment, codec: Codec) -> None:
        """Of a segment without messages: the next one would have its name."""
        active.codec_is_noted = False
        try:
            write_codec(self._fs, self.directory, active.start_offset, codec)
        except OSError as error:
            raise StreamsError(
                StreamStatus.CANNOT_APPEND_TO_FILE, f"nothing was appended to {self.directory}: {error}"
            ) from error
        with self._state:
            active.codec = codec
        active.codec_is_noted = True

    def _roll(self, codec: Codec) -> Segment:
        """Everything buffered into the active segment, which is sealed, and a new one behind it."""
        self._flush()
        active = self._active
        if active is not None:
            with self._state:
                active.is_sealed = True
                if self._options.cache_indexes != "all":
                    active.index.drop_cache()
                if active.is_synced:
                    active.close_files()
                self._active = None
            if not active.is_synced:
                self._unsynced.append(active)
                if len(self._unsynced) > UNSYNCED_SEGMENTS_MAX:
                    self._sync([self._unsynced[0]])
        return self._create_active(codec)

    def _roll_if_possible(self, codec: Codec) -> None:
        """At once when a segment is full. The messages are in it either way, so a failure is for the next append."""
        try:
            self._roll(codec)
        except StreamsError as error:
            logger.warning("%s: no new segment yet: %s", self.directory, error.message)

    def _create_active(self, codec: Codec) -> Segment:
        start_offset = self._next_offset
        try:
            files = create_files(self._fs, self.directory, start_offset, codec)
        except OSError as error:
            raise StreamsError(
                StreamStatus.CANNOT_APPEND_TO_FILE, f"{self.directory}: no new segment: {error}"
            ) from error
        try:
            self._fs.sync_dir(self.directory)
        except OSError as error:
            files.let_go()
            self._stop(f"a sync of its directory failed: {error}")
            raise self._refusal(StreamStatus.CANNOT_SYNC_FILE) from error
        is_cached = self._options.cache_indexes != "none"
        segment = Segment(
            self._fs, self.directory, start_offset, codec, SegmentIndex(0, no_entries() if is_cached else None)
        )
        segment.files = files
        with self._state:
            self._segments.append(segment)
            self._active = segment
        return segment

    def flush(self, *, fsync: bool = False) -> None:
        """Puts what is buffered into the files; with `fsync` all that was accepted is durable afterwards."""
        with self._writing:
            self._check_writable()
            self._flush()
            if fsync:
                self._sync_all()

    def save(self, *, fsync: bool) -> bool:
        """The same for whoever comes by now and then. False: there was nothing to do, or nothing can be done."""
        with self._writing:
            if self._stopped is not None or self._closed is not None:
                return False
            has_unsynced = fsync and any(not segment.is_synced for segment in self._all_unsynced())
            if not self._journal.batches and not has_unsynced:
                return False
            self._flush()
            if fsync:
                self._sync_all()
            return True

    def _flush(self) -> None:
        if self._journal.batches:
            assert self._active is not None, "what is buffered belongs to the active segment"
            self._write(self._active, self._journal.batches)

    def _all_unsynced(self) -> list[Segment]:
        return [*self._unsynced, self._active] if self._active is not None else list(self._unsynced)

    def _sync_all(self) -> None:
        self._sync(self._all_unsynced())

    def _sync(self, segments: Sequence[Segment]) -> None:
        """In the order of offsets: what is durable has no holes."""
        for segment in segments:
            try:
                segment.sync()
            except SyncFailed as error:
                self._stop(f"a sync failed: {error}")
                raise self._refusal(StreamStatus.CANNOT_SYNC_FILE) from error
            if segment.is_sealed:
                self._unsynced.remove(segment)
                with self._state:
                    if segment is not self._last_read:
                        segment.close_files()

    def _stop(self, why: str) -> None:
        if self._stopped is None:
            self._stopped = why
            logger.error("%s: takes no more messages until a restart: %s", self.directory, why)

    def _refusal(self, number: StreamStatus) -> StreamsError:
        return StreamsError(
            number,
            f"partition {self.partition_id} takes no more messages ({self._stopped}); check the disk, then restart",
        )

    def _check_writable(self) -> None:
        self._check_open()
        if self._stopped is not None:
            raise self._refusal(StreamStatus.CANNOT_SYNC_FILE)

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed.with_traceback(None)

    # Deleting.

    def delete_segment(self, start_offset: int) -> SegmentInfo:
        """Deletes a sealed segment, durably; who reads it reads on. The active one is never deleted."""
        with self._writing:
            self._check_open()
            segment = self._find_sealed(start_offset)
            if segment is self._segments[-1]:
                # The next one could not be made when this one was full. It must be there first: its name is all that
                # a restart would know the offsets by.
                self._create_active(self._codec)
            with self._state:
                # Readers open files under the same lock: they find it whole, or not at all.
                self._unlink_log(segment)
                self._forget(segment)
            self._remove_side_files([start_offset])
            return segment.info()

    def _find_sealed(self, start_offset: int) -> Segment:
        for segment in self._segments:
            if segment.start_offset == start_offset and segment.is_sealed:
                return segment
        raise StreamsError(
            StreamStatus.RESOURCE_NOT_FOUND, f"partition {self.partition_id} has no sealed segment {start_offset}"
        )

    def _unlink_log(self, segment: Segment) -> None:
        try:
            self._fs.unlink(segment_path(self.directory, segment.start_offset, LOG))
        except OSError as error:
            raise StreamsError(
                StreamStatus.IO_ERROR, f"{self.directory}: segment {segment.start_offset} stays: {error}"
            ) from error

    def _forget(self, segment: Segment) -> None:
        """Caller holds both locks."""
        self._segments.remove(segment)
        self._size_bytes -= segment.size_bytes
        self._messages_count -= segment.messages_count
        segment.close_files()
        if segment in self._unsynced:
            self._unsynced.remove(segment)
        if segment is self._last_read:
            self._last_read = None

    def _remove_side_files(self, start_offsets: Sequence[int]) -> None:
        try:
            remove_side_files(self._fs, self.directory, start_offsets)
        except OSError as error:
            raise StreamsError(
                StreamStatus.IO_ERROR, f"{self.directory}: deleted, but a crash may bring it back: {error}"
            ) from error

    def purge(self) -> None:
        """Drops all messages, buffered ones too. Offsets restart at 0."""
        with self._writing:
            self._check_writable()
            start_offsets: list[int] = []
            try:
                with self._state:
                    # Oldest first: if a crash or an error comes in between, what is left still ends where it did.
                    for segment in list(self._segments):
                        self._unlink_log(segment)
                        self._forget(segment)
                        start_offsets.append(segment.start_offset)
                    self._restart_offsets()
            finally:
                self._remove_side_files(start_offsets)
            self._create_active(self._codec)

    def _restart_offsets(self) -> None:
        """Nothing is left. Caller holds both locks."""
        self._active = None
        self._journal.clear()
        self._size_bytes = 0
        self._messages_count = 0
        self._next_offset = 0
        self._epoch += 1
        if self._deduplicator is not None:
            self._deduplicator.clear()

    def close(self) -> None:
        """Flushes and syncs everything. Files are closed even when that fails."""
        with self._writing:
            if self._closed is not None:
                return
            try:
                if self._stopped is None:
                    self._flush()
                    self._sync_all()
            finally:
                self._close_files(StreamsError(StreamStatus.IO_ERROR, f"partition {self.partition_id} is closed"))

    def drop(self) -> None:
        """Closes it without saving anything, for a caller that deletes the directory."""
        with self._writing:
            self._close_files(
                StreamsError(StreamStatus.PARTITION_NOT_FOUND, f"partition {self.partition_id} was deleted")
            )

    def _close_files(self, answer: StreamsError) -> None:
        with self._state:
            self._closed = answer
            for segment in self._segments:
                segment.close_files()

    # Reading.

    def poll_offset(self, offset: int, count: int) -> PolledMessages:
        """From an offset on. One below the oldest message begins there."""
        return self._collect(self._now(), offset, count)

    def poll_first(self, count: int) -> PolledMessages:
        return self._collect(self._now(), 0, count)

    def poll_last(self, count: int) -> PolledMessages:
        moment = self._now()
        return self._collect(moment, moment.end_offset - min(count, moment.end_offset), count)

    def poll_timestamp(self, timestamp: int, count: int) -> PolledMessages:
        """From the first message on that is not older than the time, in microseconds."""
        moment = self._now()
        offset = self._offset_at(timestamp) if count > 0 else None
        return self._collect(moment, moment.end_offset if offset is None else offset, count)

    def _now(self) -> _Moment:
        with self._state:
            self._check_open()
            return _Moment(self._epoch, self.current_offset, self._next_offset)

    def _offset_at(self, timestamp: int) -> int | None:
        with self._state:
            self._check_open()
            for segment in self._segments:
                if segment.messages_count and segment.end_timestamp >= timestamp:
                    piece = self._piece(segment, 0, segment.messages_count)
                    break
            else:
                return self._journal.offset_at(timestamp)
        try:
            return piece.start_offset + piece.index.lower_bound(piece.files.index, timestamp)
        except OSError as error:
            raise _unreadable(error) from error
        finally:
            piece.close()

    def _collect(self, moment: _Moment, offset: int, count: int) -> PolledMessages:
        """Up to `count` messages from the offset on, from disk and journal, over as many segments as it takes."""
        chunks: list[Chunk] = []
        taken = 0
        bytes_left = min(self._options.max_poll_bytes, ANSWER_BYTES_MAX)
        # What a compressed message expands to is seen afterwards: the first goes alone, then more and more at a time.
        expand_count = 1
        while taken < count and offset < moment.end_offset and (bytes_left > 0 or not taken):
            with self._state:
                self._check_open()
                if self._epoch != moment.epoch:
                    break
                found = self._find(offset, moment.end_offset, count - taken, expand_count)
            if found is None:
                break
            expand_count *= 4
            chunk = self._read(found, bytes_left, at_least_one=not taken)
            chunk_count = len(chunk)
            if not chunk_count:
                break
            chunks.append(chunk)
            taken += chunk_count
            bytes_left -= len(chunk.buffer)
            offset = found.first_offset + chunk_count
        return PolledMessages(self.partition_id, moment.current_offset, taken, chunks)

    def _find(self, offset: int, end_offset: int, count: int, expand_count: int) -> "Piece | _Buffered | None":
        """Where the next messages are, at the offset or, if there is a gap, behind it. Caller holds `_state`."""
        segments = self._segments
        place = max(bisect_right(segments, offset, key=_start_offset) - 1, 0)
        while place and segments[place - 1].next_offset > offset:
            place -= 1
        for segment in islice(segments, place, None):
            first = max(offset - segment.start_offset, 0)
            available = min(segment.messages_count - first, end_offset - segment.start_offset - first)
            if available > 0:
                if segment.codec is not Codec.NONE:
                    count = min(count, expand_count)
                return self._piece(segment, first, min(available, count))
        if self._active is None:
            return None
        codec = self._active.codec
        first_offset = max(offset, self._active.next_offset)
        count = min(count if codec is Codec.NONE else min(count, expand_count), end_offset - first_offset)
        windows = self._journal.windows(first_offset, count)
        return _Buffered(first_offset, codec, windows) if windows else None

    def _piece(self, segment: Segment, first: int, count: int) -> Piece:
        files = self._hold_files(segment)
        index = segment.index.view()
        return Piece(segment.start_offset, segment.codec, files, index, segment.size_bytes, first, count)

    def _hold_files(self, segment: Segment) -> SegmentFiles:
        """Of sealed segments those of the one read last stay open. Caller holds `_state`."""
        try:
            files = segment.hold_files()
        except OSError as error:
            raise _unreadable(error) from error
        if segment.is_sealed and segment is not self._last_read:
            if self._last_read is not None and self._last_read.is_synced:
                self._last_read.close_files()
            self._last_read = segment
        return files

    def _read(self, found: "Piece | _Buffered", bytes_max: int, *, at_least_one: bool) -> Chunk:
        if isinstance(found, Piece):
            try:
                chunk = self._read_piece(found, bytes_max, at_least_one=at_least_one)
            except OSError as error:
                raise _unreadable(error) from error
            finally:
                found.close()
        else:
            chunk = self._read_buffered(found, bytes_max)
        return _fitting(chunk, bytes_max, at_least_one=at_least_one)

    def _read_piece(self, piece: Piece, bytes_max: int, *, at_least_one: bool) -> Chunk:
        starts, ends = piece.spans(bytes_max, at_least_one=at_least_one)
        if not len(starts):
            return Chunk(memoryview(b""), starts, ends)
        position = int(starts[0])
        starts, ends = starts - position, ends - position
        # The views in the chunk keep the buffer out of the pool for as long as they live.
        with self._pool.acquire(int(ends[-1])) as buffer:
            piece.read_into(buffer.view, position)
            verify(buffer.view, starts, ends, piece.first_offset)
            return to_wire(buffer.view, starts, ends, order=self._order, codec=piece.codec, cipher=self._cipher)

    def _read_buffered(self, buffered: "_Buffered", bytes_max: int) -> Chunk:
        """The first window, with the ones behind it as long as they are small."""
        windows = buffered.windows
        run = 0
        size = 0
        while run < len(windows) and size < bytes_max and windows[run].batch.size_bytes < JOINED_BATCH_BYTES_MAX:
            size += windows[run].batch.size_bytes
            run += 1
        if run < 2:
            batch, places = windows[0].batch, windows[0].places
            buffer, starts, ends = batch.buffer, batch.starts[places], batch.ends[places]
        else:
            buffer, starts, ends = _join(windows[:run])
        return to_wire(
            buffer,
            starts,
            ends,
            order=self._order,
            codec=buffered.codec,
            cipher=self._cipher,
            has_user_headers=any(window.batch.has_user_headers for window in windows[: max(run, 1)]),
        )


class _Buffered(NamedTuple):
    """Messages of the journal, which has the codec of the active segment."""

    first_offset: int
    codec: Codec
    windows: list[Window]


def _join(windows: Sequence[Window]) -> tuple[memoryview, Positions, Positions]:
    """Windows as one piece of memory, and where the messages are in it."""
    sizes = np.concatenate([(window.batch.ends - window.batch.starts)[window.places] for window in windows])
    ends = np.cumsum(sizes)
    return memoryview(b"".join([window.bytes for window in windows])), ends - sizes, ends


def _fitting(chunk: Chunk, bytes_max: int, *, at_least_one: bool) -> Chunk:
    """As many messages of a chunk as there is room for."""
    if len(chunk.buffer) <= bytes_max:
        return chunk
    count = max(int(np.searchsorted(chunk.ends, bytes_max, side="right")), 1 if at_least_one else 0)
    end = int(chunk.ends[count - 1]) if count else 0
    return Chunk(chunk.buffer[:end], chunk.starts[:count], chunk.ends[:count])


def _start_offset(segment: Segment) -> int:
    return segment.start_offset


def _unreadable(error: OSError) -> StreamsError:
    return StreamsError(StreamStatus.IO_ERROR, f"cannot be read now: {error}")

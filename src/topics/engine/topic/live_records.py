"""What is live in one topic: where its records are, the floors that retention raised, and the numbers that readers see.

Records are in three places, in seq order: segments (files), the replayed part of the WAL (after a start, until the next
checkpoint), and the resident tail. The tail may overlap the other two: a record that is in memory is read from memory.

Rules that hold after every call of a public method, except between `begin_replay` and `finish_replay`:

1. `head_seq` is the last published seq; `tail.end_seq == head_seq + 1`.
2. `count` and `size_bytes` count the live records at or above `first_live`.
3. `first_live` is the first live seq, or `head_seq + 1`.
4. Floors only rise, and `evict_floor <= earliest_seq`.
5. Every live record up to `checkpointed_seq` is in a segment; every live record above it is in `replayed` or `tail`.

Only this module assigns the fields of `LiveRecords`. Owner only. Nothing in here writes to disk.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from topics.engine.topic import slot_bits
from topics.engine.topic.leases import LeaseTable
from topics.engine.topic.lost_ranges import LossReason, LostRanges
from topics.engine.topic.moved_records import MovedRecords
from topics.engine.topic.replayed import Replayed, WalFiles
from topics.engine.topic.segment_set import HotRecords, SegmentSet
from topics.engine.topic.tag_index import TagIndex
from topics.engine.topic.tail import Tail
from topics.formats.snapshot import SegmentState, TopicState
from topics.storage.segments.cache import TagSelector
from topics.storage.segments.reader import Measured, SegmentColumns

if TYPE_CHECKING:
    from topics.engine.topic.write_state import Write

logger = logging.getLogger(__name__)

# Records in memory that a byte cap evicts together, if it evicts more.
EVICTED_RUN: Final = 1024

# The lost ranges of every topic that has none, so nothing is ever added to them.
_NOTHING_LOST: Final = LostRanges()


class LiveBytes:
    """Live bytes and bytes in flight over all topics of an engine: the number that the server's byte quota limits."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0

    def add(self, size: int) -> None:
        self.total += size


class DeadMarks(NamedTuple):
    """One byte for each slot from `first_seq` on: 1 for a dead one."""

    first_seq: int
    marks: bytes


class _Captured(NamedTuple):
    """Which records a checkpoint puts into segments, and which of them were dead when it captured the topic."""

    first_seq: int
    upto_seq: int
    pieces: list[DeadMarks]
    delete_below: int


def _dead_number(pieces: list[DeadMarks], first_seq: int) -> int:
    """One bit for each seq from `first_seq` on: whether it is dead."""
    number = 0
    for piece in pieces:
        number |= slot_bits.number_of_marks(piece.marks) << (piece.first_seq - first_seq)
    return number


class LiveRecords:
    __slots__ = (
        "_captured",
        "_leases",
        "_live_bytes",
        "_name",
        "cap_floor",
        "checkpointed_seq",
        "count",
        "delete_below",
        "first_live",
        "head_seq",
        "logged_last_seq",
        "lost",
        "moved",
        "replayed",
        "segments",
        "size_bytes",
        "tags",
        "tags_missing_to",
        "tail",
        "ttl_floor",
        "unlogged_last_seq",
    )

    def __init__(self, name: str, segments: SegmentSet, live_bytes: LiveBytes, leases: LeaseTable | None) -> None:
        self._name = name
        self.segments = segments
        self.replayed: Replayed | None = None
        self.tail = Tail(1)
        self.head_seq = 0
        self.count = 0
        # Accounted bytes of the live records.
        self.size_bytes = 0
        self._live_bytes = live_bytes
        # A queue's lease table is told about every job that is gone.
        self._leases = leases
        # Records that another topic has by now; None while no record was ever moved out of the topic.
        self.moved: MovedRecords | None = None
        # Floors: every seq up to a floor is gone. 0 means that nothing is gone.
        self.cap_floor = 0
        self.ttl_floor = 0
        # A delete took every record below this seq.
        self.delete_below = 0
        self.first_live = 1
        # Seqs that have no records although no floor has passed them and no delete took them.
        self.lost = _NOTHING_LOST
        self.checkpointed_seq = 0
        # Last seq that was written while the topic was ephemeral. The WAL has no frames of ephemeral records.
        self.unlogged_last_seq = 0
        # Last seq that the WAL has a frame of: what a checkpoint of an ephemeral topic still puts into segments.
        self.logged_last_seq = 0
        self.tags = TagIndex()
        # The tags of the active segment up to this seq are read from its file when they are needed for the first time.
        self.tags_missing_to = 0
        # What was dead when a checkpoint captured the topic; None while no checkpoint has it.
        self._captured: _Captured | None = None

    # Bytes.

    def _add_size(self, size: int) -> None:
        self.size_bytes += size
        self._live_bytes.add(size)

    def leave_total(self) -> None:
        """The topic instance has ended: nothing that still happens to it counts against the quota."""
        self._live_bytes.add(-self.size_bytes)
        self._live_bytes = LiveBytes()

    # Floors.

    @property
    def evict_floor(self) -> int:
        """First seq that retention has not taken."""
        floor = max(self.cap_floor, self.ttl_floor) + 1
        return min(floor, self.head_seq + 1)

    @property
    def earliest_seq(self) -> int:
        return max(self.evict_floor, min(self.delete_below, self.head_seq + 1), self.first_live)

    def raise_floors(self, *, cap_floor: int = 0, ttl_floor: int = 0) -> None:
        """Raises floors, and drops the records that they passed."""
        self.note_floors(cap_floor=cap_floor, ttl_floor=ttl_floor)
        self._settle_first_live()

    def note_floors(self, *, cap_floor: int = 0, ttl_floor: int = 0) -> None:
        """Raises floors without dropping records: a replay counts at its end."""
        self.cap_floor = max(self.cap_floor, cap_floor)
        self.ttl_floor = max(self.ttl_floor, ttl_floor)

    def floor_by_count(self, cap_records: int) -> int:
        """The highest seq that a cap of so many records evicts. Lost seqs take no room. 0 or less: it evicts none."""
        floor = self.head_seq - cap_records
        return self.lost.floor_by_count(self.head_seq, cap_records) if self.lost and floor > self.cap_floor else floor

    def _settle_first_live(self) -> None:
        """Drops the records that the floors passed, then moves `first_live` over dead slots."""
        floor = max(self.evict_floor, min(self.delete_below, self.head_seq + 1))
        if floor > self.first_live:
            self._forget_below(floor)
        if self.count == 0:
            self.first_live = self.head_seq + 1
        elif not self._is_live(self.first_live):
            live = self.next_live(self.first_live)
            if live is None:
                self._recount()
                live = self.head_seq + 1
            self.first_live = live
        if self._leases is not None:
            self._leases.forget_below(self.first_live)
        if self.moved is not None:
            self.moved.forget_below(self.first_live)
        if self.lost:
            # The tombstone of the floor covers what is below it.
            self.lost.forget_below(self.evict_floor)

    def _recount(self) -> None:
        """The files have no live record, and the numbers say that some are live. The files are right: a delete byte is
        set before the snapshot that counts it, and a disk that lies about a sync may keep the byte without the
        snapshot."""
        logger.warning(
            'topic "%s": %d records are deleted in their segment files, not live as the snapshot says',
            self._name,
            self.count,
        )
        for state in self.segments.segments:
            self.segments.recount(state, self.first_live)
        self.count = 0
        self._add_size(-self.size_bytes)

    def _is_live(self, seq: int) -> bool:
        return seq >= self.tail.first_seq and self.tail.next_live(seq) == seq

    def _forget_below(self, seq: int) -> None:
        # The tail may overlap segments and the replayed part: each record is counted in one place only.
        counted_by_tail = max(self.checkpointed_seq, self._replayed_end - 1) + 1
        count, size = self.segments.forget_below(seq, self.first_live)
        if self.replayed is not None:
            more = self.replayed.forget_below(seq)
            count, size = count + more[0], size + more[1]
        if seq > counted_by_tail:
            more = self.tail.live_numbers(counted_by_tail, seq - 1)
            count, size = count + more[0], size + more[1]
        self.tail.forget_below(seq)
        self.count -= count
        self._add_size(-size)
        self.first_live = seq
        assert self.count >= 0

    @property
    def _replayed_end(self) -> int:
        return self.replayed.end_seq if self.replayed is not None else 0

    def next_live(self, seq: int) -> int | None:
        """First live seq at or above `seq`."""
        if seq <= self.checkpointed_seq:
            live = self.segments.next_live(seq)
            if live is not None:
                return live
            seq = self.checkpointed_seq + 1
        if self.replayed is not None and seq < self.replayed.end_seq:
            live = self.replayed.next_live(max(seq, self.replayed.first_seq))
            if live is not None:
                return live
            seq = self.replayed.end_seq
        return self.tail.next_live(seq)

    @property
    def head_has_record(self) -> bool:
        """Whether the record at the head is in a segment, or will be put into one by the next checkpoint."""
        if self.head_seq > self.checkpointed_seq:
            return self.next_live(self.head_seq) == self.head_seq
        return self.segments.end_seq > self.head_seq

    def ts_of(self, seq: int) -> int:
        """When the live record with this seq was written. In a cold segment, or in one that cannot be read now, the
        time of the segment's first record instead: the record is not older."""
        if seq >= self.tail.first_seq:
            return self.tail.ts_of(seq)
        if seq <= self.checkpointed_seq:
            return self.segments.ts_of(seq)
        assert self.replayed is not None
        return self.replayed.ts_of(seq)

    def live_sizes(self, seq: int) -> Iterator[tuple[int, int, bool]]:
        """(last seq, bytes, whether they are one record) of live records from `seq` on, in order: single records, or
        all of a cold segment."""
        if seq <= self.checkpointed_seq:
            yield from self.segments.live_sizes(seq)
            seq = self.checkpointed_seq + 1
        if self.replayed is not None and seq < self.replayed.end_seq:
            for live, size in self.replayed.live_sizes(max(seq, self.replayed.first_seq)):
                yield live, size, True
            seq = self.replayed.end_seq
        for live, size in self.tail.live_sizes(seq):
            yield live, size, True

    def whole_segments(self, floor: int, excess: int, by_count: int) -> tuple[int, int]:
        """(floor, bytes) of the oldest segments, and then runs of records, above `floor` that caps evict as a whole:
        the byte cap, because all their bytes are less than `excess`, or the record cap, because they end at or below
        `by_count`."""
        evicted = 0
        for state in self.segments.segments:
            if max(state.first_seq, self.first_live) <= floor:
                # Writes in flight evict a part of it.
                if state.last_seq > floor:
                    break
                continue
            if state.live_bytes >= excess - evicted and state.last_seq > by_count:
                break
            evicted += state.live_bytes
            floor = state.last_seq
        else:
            return self._whole_runs(floor, evicted, excess, by_count)
        return floor, evicted

    def _whole_runs(self, floor: int, evicted: int, excess: int, by_count: int) -> tuple[int, int]:
        """Goes on with runs of records that are in memory, or in the replayed part of the log."""
        first_seq = max(floor, self.checkpointed_seq, self.first_live - 1) + 1
        while first_seq <= self.head_seq:
            last_seq = min(first_seq + EVICTED_RUN - 1, self.head_seq)
            _, size = self._memory_numbers(first_seq, last_seq)
            if size >= excess - evicted and last_seq > by_count:
                break
            evicted += size
            floor, first_seq = last_seq, last_seq + 1
        return floor, evicted

    def use_cold_columns(self, state: SegmentState, columns: SegmentColumns) -> None:
        """The columns of a cold segment came: its numbers are exact from here on."""
        count, size = self.segments.use_cold_columns(state, columns, self.first_live)
        self.count -= count
        self._add_size(-size)
        self._settle_first_live()

    def count_unread(self) -> None:
        """Corrects numbers that changed while a segment file could not be read, if it can be read now."""
        count, size = self.segments.count_unread(self.first_live)
        self.count -= count
        self._add_size(-size)
        self._settle_first_live()

    def expire(self, cutoff_ts: int) -> bool:
        """Raises the TTL floor over every record that is older than `cutoff_ts`; whether a live record was."""
        expired = self._expired_last_seq(cutoff_ts)
        # Dead slots at the front are no loss: something live must have expired.
        if expired < self.first_live:
            return False
        self.raise_floors(ttl_floor=expired)
        return True

    def _expired_last_seq(self, cutoff_ts: int) -> int:
        if cutoff_ts <= 0:
            return 0
        seq = self.first_live
        if seq <= self.checkpointed_seq:
            expired = self.segments.expired_last_seq(seq, cutoff_ts)
            if expired < self.segments.end_seq - 1:
                return expired
        if self.replayed is not None:
            expired = self.replayed.expired_last_seq(cutoff_ts)
            if expired < self.replayed.end_seq - 1:
                return expired
        if self.tail.end_seq == self.tail.first_seq:
            return self.head_seq
        return max(self.tail.expired_last_seq(cutoff_ts), self.first_live - 1)

    # Publishing.

    def publish(self, write: Write, cap_records: int) -> int:
        """Makes a committed write visible, in seq order, and raises the cap floor; the bytes that the floor took.

        `cap_records` is 0 unless the topic drops its oldest records to keep that many.
        """
        assert write.first_seq == self.head_seq + 1, "a gap here would become a silent loss"
        tail = self.tail
        if tail.end_seq != write.first_seq:
            assert tail.end_seq == tail.first_seq
            self.tail = tail = Tail(write.first_seq)
        if self.count == 0:
            self.first_live = write.first_seq
        tail.extend(write.bodies, write.sizes, write.ts)
        count = len(write.bodies)
        self.head_seq += count
        self.count += count
        # The engine's total has these bytes since the write was in flight.
        self.size_bytes += write.size_bytes
        if not write.is_unlogged:
            self.logged_last_seq = self.head_seq
        if write.tags is not None:
            self._add_tags(write.first_seq, write.tags)
        floor = write.cap_floor
        if cap_records:
            floor = max(floor, self.floor_by_count(cap_records))
        if floor <= self.cap_floor:
            return 0
        before = self.size_bytes
        self.raise_floors(cap_floor=floor)
        return before - self.size_bytes

    def _add_tags(self, first_seq: int, tags: Sequence[bytes | None]) -> None:
        add = self.tags.add
        for seq, tag in enumerate(tags, first_seq):
            if tag is not None:
                add(tag, seq)

    def publish_holes(self, write: Write) -> None:
        """Adds seqs without records, in place of records that the source of a router lost. Older records stay."""
        assert write.first_seq == self.head_seq + 1, "a gap here would become a silent loss"
        if self.tail.end_seq != write.first_seq:
            assert self.tail.end_seq == self.tail.first_seq
            self.tail = Tail(write.first_seq)
        self.tail.extend_holes(write.last_seq - write.first_seq + 1, write.ts)
        self.head_seq = write.last_seq
        if self.count == 0:
            self.first_live = self.head_seq + 1
        self.note_lost(write.first_seq, write.last_seq, "source_trim")

    def note_logged(self, last_seq: int) -> None:
        """The WAL has frames of all records up to `last_seq` now."""
        self.logged_last_seq = max(self.logged_last_seq, last_seq)

    def note_unlogged(self, last_seq: int) -> None:
        """The topic was ephemeral up to `last_seq` and is not any more. The WAL has no frames of the records up to
        there."""
        if last_seq:
            self.unlogged_last_seq = last_seq

    # Deleting.

    def delete_before(self, before_seq: int, cold: Mapping[int, Measured], hot: HotRecords) -> tuple[int, int] | None:
        """Deletes every live record below `before_seq`; (count, bytes) of them. None when an earlier delete did
        that. `cold` and `hot` have the live records of a segment that `before_seq` lies in."""
        before_seq = min(before_seq, self.head_seq + 1)
        if before_seq <= self.delete_below:
            return None
        self.delete_below = before_seq
        before = self.count, self.size_bytes
        if before_seq > self.first_live:
            # Delete bytes are set at the next checkpoint, so that the files alone tell the truth too.
            count, size = self.segments.kill_below(before_seq, self.first_live, hot)
            more_count, more_size = self._kill_cold(cold, before_seq)
            count, size = count + more_count, size + more_size
            self.count -= count
            self._add_size(-size)
        self._settle_first_live()
        return before[0] - self.count, before[1] - self.size_bytes

    def _kill_cold(self, cold: Mapping[int, Measured], end_seq: int) -> tuple[int, int]:
        count, size = 0, 0
        for measured in cold.values():
            more_count, more_size = self.segments.kill_measured(measured, self.first_live, end_seq)
            count, size = count + more_count, size + more_size
        return count, size

    def delete_seqs(self, seqs: Sequence[int], cold: Mapping[int, Measured], hot: HotRecords) -> tuple[int, int]:
        """Deletes the live records with these seqs (ascending), and the live records of `cold`. Returns the count and
        the bytes of the deleted records. `hot` has the seqs that are live in hot segments."""
        count, size = self._kill_cold(cold, self.head_seq + 1)
        for measured in cold.values():
            # The newest records may be in memory too.
            self._kill_in_memory(measured.seqs[bisect_left(measured.seqs, self.tail.first_seq) :])
            self._forget_gone(measured.seqs)
        seqs = seqs[bisect_left(seqs, self.first_live) : bisect_right(seqs, self.head_seq)]
        filed_count = bisect_right(seqs, self.checkpointed_seq)
        more = self._kill_in_memory(seqs[filed_count:])
        count, size = count + more[0], size + more[1]
        if filed_count:
            filed = seqs[:filed_count]
            self._kill_in_memory(filed)
            more = self.segments.kill_many(filed, hot)
            count, size = count + more[0], size + more[1]
        self._forget_gone(seqs)
        self.count -= count
        self._add_size(-size)
        self._settle_first_live()
        return count, size

    def _forget_gone(self, seqs: Sequence[int]) -> None:
        if self._leases is not None:
            for seq in seqs:
                self._leases.forget(seq)
        if self.moved is not None:
            self.moved.forget(seqs)

    def note_moved(self, seqs: Iterable[int]) -> None:
        """Another topic has these records; their deletion here follows."""
        if self.moved is None:
            self.moved = MovedRecords()
        self.moved.note(seqs)

    def _kill_in_memory(self, seqs: Sequence[int]) -> tuple[int, int]:
        """Releases the memory of the records with these ascending seqs. Returns (count, bytes) of those that were live
        there."""
        count, size = 0, 0
        if self.replayed is not None:
            for seq in seqs[bisect_left(seqs, self.replayed.first_seq) : bisect_left(seqs, self.replayed.end_seq)]:
                freed = self.replayed.kill(seq)
                if freed is not None:
                    count += 1
                    size += freed
        more_count, more_size = self.tail.kill_many(seqs[bisect_left(seqs, self.tail.first_seq) :])
        return count + more_count, size + more_size

    # Tags.

    def tagged_seqs(self, tag: bytes, *, is_prefix: bool, end_seq: int, waits_for_cold: bool = False) -> list[int]:
        """Seqs below `end_seq` whose tag matches, from the indexes alone; seqs of dead records may be among them.

        Cold segments are left out, unless the caller, a start, may wait for their tier.
        """
        found: list[int] = []
        selector = TagSelector(tag, is_prefix, self.first_live, end_seq)
        for state in self.segments.segments:
            is_read = state.tier == "hot" or waits_for_cold
            if is_read and state.sealed and state.tagged_count and state.last_seq >= self.first_live:
                found += self.segments.tagged(state, selector)
        return found + self.tagged_unsealed(selector)

    def tagged_unsealed(self, selector: TagSelector) -> list[int]:
        """Seqs of records with the tag that are in no sealed segment."""
        self._load_missing_tags()
        found = self.tags.seqs_by_prefix(selector.tag) if selector.is_prefix else self.tags.seqs(selector.tag)
        return found[bisect_left(found, selector.first_seq) : bisect_left(found, selector.end_seq)]

    def _load_missing_tags(self) -> None:
        """Loads the tags of the active segment, which a start does not read. All their seqs are below the seqs of the
        tail."""
        upto_seq = self.tags_missing_to
        if not upto_seq:
            return
        loaded = TagIndex()
        for state in self.segments.segments:
            if not state.sealed:
                for tag, seqs in self.segments.built_tags(state):
                    for seq in seqs:
                        # A checkpoint may have added records since; their tags are in the index already.
                        if seq <= upto_seq:
                            loaded.add(tag, seq)
        loaded.merge(self.tags)
        self.tags = loaded
        self.tags_missing_to = 0

    # Checkpoints.

    def active_segment(self) -> SegmentState | None:
        segments = self.segments.segments
        return segments[-1] if segments and not segments[-1].sealed else None

    def _dead_marks(self, first_seq: int, last_seq: int) -> list[DeadMarks]:
        """The slots of the inclusive range that are in no segment yet: which of them are dead."""
        pieces: list[DeadMarks] = []
        if self.replayed is not None:
            end_seq = self.replayed.end_seq
            replayed_to = min(last_seq, end_seq - 1)
            if first_seq <= replayed_to:
                pieces.append(DeadMarks(first_seq, self.replayed.dead_marks(first_seq, replayed_to)))
            first_seq = max(first_seq, end_seq)
        first_seq = max(first_seq, self.tail.first_seq)
        if first_seq <= last_seq:
            pieces.append(DeadMarks(first_seq, self.tail.dead_marks(first_seq, last_seq)))
        return pieces

    def begin_capture(self, upto_seq: int) -> list[DeadMarks]:
        """A checkpoint puts the present records up to `upto_seq` into segments. Returns which slots of them are dead.
        The deletes until `end_capture` are told then."""
        first_seq = max(self.checkpointed_seq + 1, self.first_live)
        pieces = self._dead_marks(first_seq, upto_seq)
        self._captured = _Captured(first_seq, upto_seq, pieces, self.delete_below)
        return pieces

    def end_capture(self) -> tuple[int, int]:
        """(seq, bits) of the captured records that were deleted since `begin_capture`: one bit for each seq from that
        seq on."""
        captured, self._captured = self._captured, None
        if captured is None:
            return 0, 0
        first_seq = captured.first_seq
        pieces = self._dead_marks(max(first_seq, self.first_live), captured.upto_seq)
        number = _dead_number(pieces, first_seq) & ~_dead_number(captured.pieces, first_seq)
        deleted_to = min(self.delete_below, captured.upto_seq + 1)
        if self.delete_below > captured.delete_below and deleted_to > first_seq:
            number |= (1 << (deleted_to - first_seq)) - 1
        return first_seq, number

    def take_over_segments(self, after_seq: int, upto_seq: int, touched: list[SegmentState]) -> None:
        """A checkpoint has put the records from `after_seq + 1` to `upto_seq` into these segments."""
        segments = self.segments
        segment_by_first_seq = {segment.first_seq: segment for segment in segments.segments}
        for segment in touched:
            old = segment_by_first_seq.get(segment.first_seq)
            count, size = (old.live_count, old.live_bytes) if old is not None else (0, 0)
            first, last = max(after_seq + 1, segment.first_seq, self.first_live), segment.last_seq
            more_count, more_size = self._memory_numbers(first, last)
            segment.live_count, segment.live_bytes = count + more_count, size + more_size
            segment_by_first_seq[segment.first_seq] = segment
        segments.replace([segment_by_first_seq[first_seq] for first_seq in sorted(segment_by_first_seq)])
        self.checkpointed_seq = max(self.checkpointed_seq, upto_seq)
        self.replayed = None
        segments.drop([segment for segment in segments.segments if segment.last_seq < self.first_live])
        sealed = [segment.last_seq for segment in segments.segments if segment.sealed]
        if len(self.tags):
            self.tags.forget_below(max(sealed[-1] + 1 if sealed else 0, self.first_live))

    def _memory_numbers(self, first: int, last: int) -> tuple[int, int]:
        count, size = 0, 0
        if self.replayed is not None:
            count, size = self.replayed.live_numbers(first, last)
            first = max(first, self.replayed.end_seq)
        more_count, more_size = self.tail.live_numbers(first, last)
        return count + more_count, size + more_size

    def cached_from(self, cache_bytes: int) -> int:
        """The first seq that the tail keeps: of records that are in segments too, it keeps as many as the cache
        allows."""
        last_seq = min(self.checkpointed_seq, self.tail.end_seq - 1)
        return self.tail.cache_from(last_seq, cache_bytes) if last_seq >= self.tail.first_seq else 0

    # Starting.

    def restore(self, state: TopicState) -> None:
        """The numbers of a snapshot entry."""
        self.head_seq = state.head_seq
        self.logged_last_seq = state.checkpointed_seq
        self.checkpointed_seq = state.checkpointed_seq
        self.cap_floor, self.ttl_floor = max(state.cap_floor, state.trim_floor), state.ttl_floor
        self.delete_below = state.delete_below
        self.first_live = state.first_live
        # First, so that a range which a rebuilt state has in both lists keeps its reason.
        for first, last in state.source_trims:
            self.note_lost(first, last, "source_trim")
        for first, last in state.lost:
            self.note_lost(first, last)
        if any(segment.tagged_count and not segment.sealed for segment in state.segments):
            self.tags_missing_to = state.checkpointed_seq
        for first, last in state.pending_deletes:
            self.segments.mark_pending_range(first, last + 1)
        if state.moved:
            self.note_moved(state.moved)

    def use_leases(self, leases: LeaseTable) -> None:
        """The topic turns out to be a queue while the log is read."""
        self._leases = leases

    def begin_replay(self, wal_files: WalFiles) -> Replayed:
        """The log is read from the first record that no segment has."""
        self.replayed = Replayed(wal_files, self.checkpointed_seq + 1)
        return self.replayed

    def note_replayed(self, last_seq: int) -> None:
        """A whole write up to this seq was read."""
        if last_seq > self.head_seq:
            self.head_seq = last_seq
            self.logged_last_seq = last_seq

    def note_delete_below(self, seq: int) -> None:
        """A delete of everything below `seq` was read."""
        self.delete_below = max(self.delete_below, seq)

    def note_lost(self, first_seq: int, last_seq: int, reason: LossReason = "power_loss") -> None:
        if self.lost is _NOTHING_LOST:
            self.lost = LostRanges()
        self.lost.add(first_seq, last_seq, reason)

    def raise_head(self, head_seq: int) -> None:
        """Seqs up to here are used, whether or not they have records."""
        self.head_seq = max(self.head_seq, head_seq)

    def lose_unlogged(self) -> None:
        """The head of an ephemeral topic is that of the last checkpoint; the records after it went with the process."""
        assert self.replayed is not None
        first = self.replayed.end_seq
        if self.head_seq >= first:
            self.note_lost(first, self.head_seq)

    def begin_copies(self) -> None:
        """Copies of routers are made again: they go into the tail, after the last seq that is used."""
        self.tail = Tail(self.head_seq + 1)

    def add_copies(
        self, bodies: Sequence[bytes], sizes: Sequence[int], ts: int, tags: Sequence[bytes | None] | None
    ) -> None:
        """Copies of a router that a start makes again. They are counted by `finish_replay`."""
        self.tail.extend(bodies, sizes, ts)
        if tags is not None:
            self._add_tags(self.head_seq + 1, tags)
        self.head_seq += len(bodies)

    def finish_replay(self, cap_records: int, *, recount: bool) -> None:
        """Floors that have no frame, then the numbers, from what the files and the log really have.

        `recount`: delete marks of files were changed, so the numbers of all segments are counted again.
        """
        replayed = self.replayed
        assert replayed is not None
        if replayed.end_seq == replayed.first_seq:
            self.replayed = None
        if self.tail.end_seq != self.head_seq + 1:
            # Otherwise the tail holds the copies that routers have just made again.
            self.tail = Tail(self.head_seq + 1)
        # The head of an ephemeral topic falls back to the last checkpoint: higher floors are about seqs to come.
        self.cap_floor = min(self.cap_floor, self.head_seq)
        self.ttl_floor = min(self.ttl_floor, self.head_seq)
        self.delete_below = min(self.delete_below, self.head_seq + 1)
        if cap_records and (floor := self.floor_by_count(cap_records)) >= self.evict_floor:
            # A lower floor evicts nothing. It may count lost seqs, because the TTL has passed them.
            self.cap_floor = floor
        self._count_again(recount=recount)

    def _count_again(self, *, recount: bool) -> None:
        floor = max(self.evict_floor, min(self.delete_below, self.head_seq + 1))
        segments = self.segments
        straddled = floor > self.first_live
        for segment in segments.segments:
            is_cut = straddled and segment.first_seq < floor <= segment.last_seq
            if segment.tier == "cold":
                # The replay has counted what the log deletes there. A start does not wait for the tier.
                if is_cut:
                    self._mark_deleted_below(segment)
                    segments.forget_part(segment, floor, self.first_live)
            elif recount or segments.has_pending(segment) or is_cut:
                self._mark_deleted_below(segment)
                segments.recount(segment, floor)
        segments.drop([segment for segment in segments.segments if segment.last_seq < floor])
        count, size = segments.live_numbers()
        if self.replayed is not None:
            self.replayed.forget_below(floor)
            more_count, more_size = self.replayed.live_numbers(floor, self.head_seq)
            count, size = count + more_count, size + more_size
        self.tail.forget_below(floor)
        more_count, more_size = self.tail.live_numbers(floor, self.head_seq)
        self.count = count = count + more_count
        self._add_size(size + more_size - self.size_bytes)
        if not count:
            self.first_live = self.head_seq + 1
        elif recount or floor > self.first_live or self.first_live > self.checkpointed_seq:
            # Otherwise the snapshot's number is right, and no file needs to be read.
            self.first_live = self.next_live(floor) or self.head_seq + 1
            segments.doubt(self.first_live)

    def _mark_deleted_below(self, segment: SegmentState) -> None:
        """A delete by `before_seq` whose delete bytes no checkpoint has set."""
        if segment.first_seq < self.delete_below <= segment.last_seq:
            self.segments.mark_pending_range(segment.first_seq, self.delete_below)

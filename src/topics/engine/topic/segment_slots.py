"""What is live in the segments of one topic: counts, bytes, the next live record, what has expired.

A few numbers of each segment are in memory. Sizes and liveness of single slots are read from the file a block at a
time. One block is kept, as a rule the one with the oldest live record, where retention works. So retention costs what
it removes, and a checkpoint or a delete elsewhere in the topic costs it nothing.

No method waits for the cold tier. The columns of a cold segment are brought by `ColdColumns`, which `want_columns` asks
for them. Until they are there:

- A floor inside the segment counts records of equal size, and the dead ones first. So the numbers may be too high, and
  no live record is taken for dead. The segment is *inexact*: the columns correct its numbers.
- The first live record may be said to be lower than it is.
- Records in the middle of the segment expire when the times are known, and a byte cap evicts the segment as a whole.

The same holds for a hot segment whose file cannot be opened or read: it is *unread*, and `count_unread` corrects its
numbers when the file can be read again. So no change of a topic fails because of a segment file, also in the middle of
a group of the log. Only a start raises the error.
"""

import logging
from bisect import bisect_left
from collections.abc import Collection, Iterator
from typing import Final

from topics.engine.topic import slot_bits
from topics.engine.topic.segment_list import SegmentList
from topics.formats import envelope, segment
from topics.formats.snapshot import SegmentState
from topics.storage.segments.cache import SegmentCache
from topics.storage.segments.reader import BLOCK_SLOTS, SegmentColumns, SlotBlock

logger = logging.getLogger(__name__)

# Bytes of a segment frame beyond its accounted bytes, without tag, node and meta.
_FRAME_OVERHEAD_BYTES: Final = segment.OVERHEAD_BYTES + envelope.PLAIN_OVERHEAD_BYTES


class _ColdNotes:
    """What a topic knows about its cold segments beside their numbers, each by the first seq of the segment."""

    __slots__ = ("columns", "flagged", "inexact")

    def __init__(self) -> None:
        # Columns of the segments that have them.
        self.columns: dict[int, SegmentColumns] = {}
        # How often pending deletes became delete bytes. What was read from the file before that is not true any more.
        self.flagged: dict[int, int] = {}
        # Segments whose live numbers may be too high.
        self.inexact: dict[int, None] = {}


_NOTHING_COLD: Final = _ColdNotes()


class SegmentSlots(SegmentList):
    __slots__ = ("_block", "_cold", "_mean_bytes", "_oldest", "dropped", "unread")

    def __init__(self, cache: SegmentCache, topic_id: int, segments: list[SegmentState]) -> None:
        super().__init__(cache, topic_id, segments)
        # The block of a hot segment that was used last.
        self._block: SlotBlock | None = None
        # (seq, time) of the slot that expires next, as it was found last.
        self._oldest = (0, 0)
        # Shared by all topics that have nothing to note there: see `_own_cold`.
        self._cold = _NOTHING_COLD
        # First seq of a segment -> bytes of its files for each live record, as a checkpoint job counted them.
        self._mean_bytes: dict[int, float] = {}
        # Segments whose records are all dead. Their files are removed when no kept snapshot lists them.
        self.dropped: list[SegmentState] = []
        # First seqs of hot segments that could not be read when their numbers changed: the numbers may be too high.
        self.unread: tuple[int, ...] = ()

    def _own_cold(self) -> _ColdNotes:
        if self._cold is _NOTHING_COLD:
            self._cold = _ColdNotes()
        return self._cold

    @property
    def inexact(self) -> Collection[int]:
        """First seqs of cold segments whose live numbers may be too high."""
        return self._cold.inexact

    # Slots.

    def _block_at(self, state: SegmentState, seq: int) -> SlotBlock | None:
        """A block with the slot of this seq: pending deletes are dead in it, and whatever is below the first live seq
        may be live in it. None for a cold segment whose columns are not there: they are on their way then. None for a
        hot segment that cannot be read now."""
        if state.tier == "cold":
            columns = self._cold.columns.get(state.first_seq)
            if columns is None:
                self._cache.want_columns(self._topic_id, state.first_seq)
            return columns
        block = self._block
        if block is None or not block.first_seq <= seq < block.end_seq:
            first_seq = seq - (seq - state.first_seq) % BLOCK_SLOTS
            try:
                reader = self._cache.reader(self._topic_id, state)
                block = reader.block(first_seq, min(first_seq + BLOCK_SLOTS - 1, state.last_seq))
            except OSError as error:
                self._note_unread(state, error)
                return None
            self._clear_pending_in(state, block)
            self._block = block
        return block

    def _clear_pending_in(self, state: SegmentState, block: SlotBlock) -> None:
        """Records whose deletes are pending are not live."""
        pending = self._pending.get(state.first_seq)
        if pending is not None:
            start = block.first_seq - state.first_seq
            number = slot_bits.number_within(pending, start, start + len(block.live))
            if number:
                for place in slot_bits.places(number.to_bytes(len(block.live) // 8 + 1, "little")):
                    block.live[place] = 0

    def release_block(self) -> None:
        self._block = None

    def _note_unread(self, state: SegmentState, error: OSError) -> None:
        if self._cache.is_starting:
            raise error
        if state.first_seq not in self.unread:
            logger.warning("numbers of a topic wait for a segment file: %s", error)
            self.unread += (state.first_seq,)

    def _numbers(self, state: SegmentState, first_seq: int, end_seq: int) -> tuple[int, int] | None:
        """(count, bytes) of the live slots of the segment in this range; None when the slots are not known."""
        count, size = 0, 0
        seq, end_seq = max(first_seq, state.first_seq), min(end_seq, state.last_seq + 1)
        while seq < end_seq:
            block = self._block_at(state, seq)
            if block is None:
                return None
            more_count, more_size = block.numbers(seq, end_seq)
            count, size = count + more_count, size + more_size
            seq = block.end_seq
        return count, size

    def _count(self, state: SegmentState, first_live: int) -> bool:
        """Counts the live records of the segment from its slots; whether they are known."""
        numbers = self._numbers(state, first_live, state.last_seq + 1)
        if numbers is not None:
            state.live_count, state.live_bytes = numbers
        return numbers is not None

    def _estimate_below(self, state: SegmentState, seq: int) -> None:
        """The records below `seq` are not live any more, and it is not known which of the slots below `seq` had one."""
        pending = self._pending.get(state.first_seq)
        slots = state.last_seq + 1 - seq
        if pending is not None:
            slots -= slot_bits.number_within(pending, seq - state.first_seq, state.entry_count).bit_count()
        left = min(state.live_count, slots)
        if left:
            if state.tier == "cold":
                self._own_cold().inexact[state.first_seq] = None
            state.live_bytes = state.live_bytes * left // state.live_count
        else:
            state.live_bytes = 0
        state.live_count = left

    # Asking.

    def live_numbers(self) -> tuple[int, int]:
        return sum(s.live_count for s in self.segments), sum(s.live_bytes for s in self.segments)

    def next_live(self, seq: int) -> int | None:
        for index in range(self._index(seq), len(self.segments)):
            state = self.segments[index]
            if state.live_count == 0:
                continue
            if state.first_seq >= seq and state.live_count == state.entry_count:
                return state.first_seq
            live = self._next_live_in(state, max(seq, state.first_seq))
            if live is not None:
                return live
        return None

    def _next_live_in(self, state: SegmentState, seq: int) -> int | None:
        while seq <= state.last_seq:
            block = self._block_at(state, seq)
            if block is None:
                return self._not_pending(state, seq)
            place = block.live.find(1, seq - block.first_seq)
            if place >= 0:
                return block.first_seq + place
            seq = block.end_seq
        return None

    def _not_pending(self, state: SegmentState, seq: int) -> int | None:
        """The first seq from `seq` on whose delete is not pending."""
        pending = self._pending.get(state.first_seq)
        if pending is None:
            return seq
        number = slot_bits.number_within(pending, seq - state.first_seq, state.entry_count)
        # The lowest bit that is not set.
        seq += (~number & (number + 1)).bit_length() - 1
        return seq if seq <= state.last_seq else None

    def live_sizes(self, seq: int) -> Iterator[tuple[int, int, bool]]:
        """(last seq, bytes, whether they are one record) of live records from `seq` on: single records, or all that
        a cold segment has."""
        for index in range(self._index(seq), len(self.segments)):
            state = self.segments[index]
            at = max(seq, state.first_seq)
            while state.live_count and at <= state.last_seq:
                block = self._block_at(state, at)
                if block is None:
                    yield state.last_seq, state.live_bytes, False
                    break
                place = block.live.find(1, at - block.first_seq)
                while place >= 0:
                    yield block.first_seq + place, block.sizes[place], True
                    place = block.live.find(1, place + 1)
                at = block.end_seq

    @property
    def inexact_bytes(self) -> int:
        """Bytes that may not be live: the numbers of these segments may be too high."""
        inexact = {*self._cold.inexact, *self.unread}
        return sum(state.live_bytes for state in self.segments if state.first_seq in inexact)

    def expired_last_seq(self, seq: int, cutoff_ts: int) -> int:
        """The last seq of the run from `seq` on with times before `cutoff_ts`; `seq - 1` when there is no such run."""
        if self._oldest[0] == seq and self._oldest[1] >= cutoff_ts:
            return seq - 1
        for index in range(self._index(seq), len(self.segments)):
            state = self.segments[index]
            if state.last_ts < cutoff_ts:
                seq = state.last_seq + 1
                continue
            if state.first_ts < cutoff_ts:
                seq = max(seq, self._first_since(state, max(seq, state.first_seq), cutoff_ts))
            break
        return seq - 1

    def _first_since(self, state: SegmentState, seq: int, cutoff_ts: int) -> int:
        """The first seq from `seq` on whose time is not before `cutoff_ts`. The last record of the segment is such
        one. `seq` itself when the times are not known."""
        if state.tier == "cold":
            columns = self._cold.columns.get(state.first_seq)
            if columns is None:
                self._cache.want_columns(self._topic_id, state.first_seq)
            times = self._cache.resident_times(self._topic_id, state) if columns is None else columns.ts
            return seq if times is None else state.first_seq + bisect_left(times, cutoff_ts)
        try:
            self._oldest = self._cache.reader(self._topic_id, state).first_since(seq, cutoff_ts)
        except OSError as error:
            self._note_unread(state, error)
            return seq
        return self._oldest[0]

    def ts_of(self, seq: int) -> int:
        """When the record was written; the time of its segment's first record when the times are not at hand."""
        state = self.segment_of(seq)
        assert state is not None
        if state.tier == "cold":
            columns = self._cold.columns.get(state.first_seq)
            times = self._cache.resident_times(self._topic_id, state) if columns is None else columns.ts
            return state.first_ts if times is None else times[seq - state.first_seq]
        try:
            return self._cache.reader(self._topic_id, state).first_since(seq, 0)[1]
        except OSError:
            return state.first_ts

    def is_mostly_deleted(self, state: SegmentState) -> bool:
        """Whether more than half of the bytes of a sealed, hot segment seem to be deleted. The numbers in memory do not
        count tags and nodes, so the file may show that less is deleted."""
        if not state.sealed or state.tier != "hot" or not state.live_count:
            return False
        mean_bytes = self._mean_bytes.get(state.first_seq)
        if mean_bytes is None:
            kept_bytes = float(state.live_bytes + state.live_count * _FRAME_OVERHEAD_BYTES)
        else:
            kept_bytes = state.live_count * mean_bytes
        return 2 * kept_bytes < state.data_bytes

    def note_kept_bytes(self, state: SegmentState, mean_bytes: float) -> None:
        """A checkpoint job looked at the file: it has this many bytes for each live record."""
        self._mean_bytes[state.first_seq] = mean_bytes

    # Retention.

    def forget_below(self, seq: int, first_live: int) -> tuple[int, int]:
        """Every record below `seq` dies. Segments that are all below are dropped. The segment with `seq` loses its
        first slots.

        No record below `first_live` was live before. Returns (count, bytes) of the records that died.
        """
        count, total, gone = 0, 0, 0
        for state in self.segments:
            if state.last_seq < seq:
                count += state.live_count
                total += state.live_bytes
                gone += 1
                continue
            if state.first_seq < seq and state.live_count:
                before = state.live_count, state.live_bytes
                self.forget_part(state, seq, first_live)
                count += before[0] - state.live_count
                total += before[1] - state.live_bytes
            break
        if gone:
            self.drop(self.segments[:gone])
        return count, total

    def forget_part(self, state: SegmentState, seq: int, first_live: int) -> None:
        """Every record of the segment below `seq` dies. No record below `first_live` was live before."""
        numbers = self._numbers(state, first_live, seq)
        if numbers is None:
            self._estimate_below(state, seq)
            return
        state.live_count -= numbers[0]
        state.live_bytes -= numbers[1]

    def drop(self, doomed: list[SegmentState]) -> None:
        for state in doomed:
            self._cache.forget(self._topic_id, state.first_seq)
            self._pending.pop(state.first_seq, None)
            self._cold.columns.pop(state.first_seq, None)
            self._cold.flagged.pop(state.first_seq, None)
            self._cold.inexact.pop(state.first_seq, None)
            self._mean_bytes.pop(state.first_seq, None)
        self.dropped += doomed
        if doomed and doomed[-1] is self.segments[len(doomed) - 1]:
            self.segments = self.segments[len(doomed) :]
        else:
            self.segments = [state for state in self.segments if state not in doomed]

    def drop_dead(self) -> None:
        """Drops every sealed segment whose records are all deleted."""
        doomed = [state for state in self.segments if state.sealed and state.live_count == 0]
        if doomed:
            self.drop(doomed)

    def note_dropped(self, dropped: list[SegmentState]) -> None:
        """Segments that a start found below the floors: their files are to be removed."""
        self.dropped += dropped

    def take_dropped(self) -> list[SegmentState]:
        """The segments that were dropped since the last call. The caller removes their files."""
        dropped, self.dropped = self.dropped, []
        return dropped

    # Exact numbers after estimates.

    def count_unread(self, first_live: int) -> tuple[int, int]:
        """Counts the segments that could not be read, if they can be read now. Returns (count, bytes) by which their
        live numbers were too high."""
        count, size = 0, 0
        still_unread: list[int] = []
        for first_seq in self.unread:
            state = self.segment_of(first_seq)
            if state is None or state.first_seq != first_seq:
                continue
            before = state.live_count, state.live_bytes
            if self._count(state, first_live):
                count += before[0] - state.live_count
                size += before[1] - state.live_bytes
            elif state.tier == "cold":
                # It was moved there meanwhile.
                self._own_cold().inexact[first_seq] = None
            else:
                still_unread.append(first_seq)
        self.unread = tuple(still_unread)
        return count, size

    def recount(self, state: SegmentState, first_live: int) -> None:
        """Counts the live records of a segment again from its file, without pending deletes and records below
        `first_live`. A cold segment is counted when its columns are there."""
        self.release_block()
        if not self._count(state, first_live):
            if state.first_seq < first_live:
                self._estimate_below(state, first_live)
            if state.tier == "cold":
                self._own_cold().inexact[state.first_seq] = None

    def doubt(self, first_live: int) -> None:
        """A start has found the first live seq without the columns of cold segments. They are asked for if it may be
        wrong."""
        state = self.segment_of(first_live)
        if state is not None and state.tier == "cold" and state.live_count != state.last_seq + 1 - first_live:
            self._own_cold().inexact[state.first_seq] = None

    def doubt_numbers(self, first_seqs: list[int]) -> None:
        """The numbers of these cold segments may not fit their files."""
        if first_seqs:
            self._own_cold().inexact.update(dict.fromkeys(first_seqs))

    def use_cold_columns(self, state: SegmentState, columns: SegmentColumns, first_live: int) -> tuple[int, int]:
        """Takes over the columns of a cold segment. Returns (count, bytes) by which its live numbers were too high."""
        self._clear_pending_in(state, columns)
        columns.clear(state.first_seq, first_live)
        self._own_cold().columns[state.first_seq] = columns
        if state.first_seq not in self._cold.inexact:
            return 0, 0
        self._cold.inexact.pop(state.first_seq, None)
        before = state.live_count, state.live_bytes
        self._count(state, first_live)
        return before[0] - state.live_count, before[1] - state.live_bytes

    def release_cold_columns(self, first_seq: int) -> None:
        self._cold.columns.pop(first_seq, None)

    # Checkpoints.

    def replace(self, segments: list[SegmentState]) -> None:
        """Takes over the segments of a checkpoint, in place of the present ones."""
        for state in self.segments:
            if not state.sealed:
                self._cache.forget(self._topic_id, state.first_seq)
        self.segments = segments
        for state in segments:
            bits = self._pending.get(state.first_seq)
            if bits is not None:
                bits.extend(bytes(max(0, state.entry_count // 8 + 1 - len(bits))))

    def exchange(self, old: SegmentState, new: SegmentState) -> None:
        """Puts `new` in the place of `old`: the same segment in another tier, or without some of its deleted
        records."""
        self.release_block()
        self._cache.forget(self._topic_id, old.first_seq)
        self.segments = [new if held is old else held for held in self.segments]

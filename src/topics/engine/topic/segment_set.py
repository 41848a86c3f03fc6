"""The segments of one topic: a few numbers of each segment in memory, everything else in the files.

The delete of a record in a segment is *pending* until a checkpoint has set the delete byte in the file. A segment with
pending deletes has one bit per slot in memory. Sizes and times of single slots are loaded for one segment only, as a
rule the oldest, where retention works. The next checkpoint releases them.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from topics.errors import ColdUnavailable, FormatError
from topics.formats import envelope, segment
from topics.formats.snapshot import SegmentState
from topics.formats.tag_sidecar import TagSidecar
from topics.storage.segments.cache import SegmentCache
from topics.storage.segments.reader import SegmentColumns, build_tags

# Bytes of a segment frame beyond its accounted bytes, without tag, node and meta.
_FRAME_OVERHEAD_BYTES: Final = segment.OVERHEAD_BYTES + envelope.PLAIN_OVERHEAD_BYTES


class SlotRun(NamedTuple):
    """Slots of consecutive seqs up to `last_seq`, and whether they come from the cold tier."""

    last_seq: int
    slots: list[bytes | FormatError | None]
    is_cold: bool = False


class SegmentPart(NamedTuple):
    """An inclusive range of seqs inside one segment."""

    state: SegmentState
    first_seq: int
    last_seq: int


class SegmentSet:
    """Segments in ascending order, without overlap. Seqs between two segments have no record. Owner only."""

    __slots__ = ("_cache", "_columns", "_columns_of", "_mean_bytes", "_pending", "_topic_id", "dropped", "segments")

    def __init__(self, cache: SegmentCache, topic_id: int, segments: list[SegmentState]) -> None:
        self._cache = cache
        self._topic_id = topic_id
        self.segments = segments
        # First seq of a segment -> one bit per slot: its delete is pending.
        self._pending: dict[int, bytearray] = {}
        # The columns of the segment with this first seq, when they are loaded.
        self._columns: SegmentColumns | None = None
        self._columns_of = 0
        # First seq of a segment -> bytes of its files for each live record, as a checkpoint job counted them.
        self._mean_bytes: dict[int, float] = {}
        # Segments whose records are all dead. Their files are removed when no kept snapshot lists them.
        self.dropped: list[SegmentState] = []

    @property
    def first_seq(self) -> int:
        return self.segments[0].first_seq if self.segments else 0

    @property
    def end_seq(self) -> int:
        return self.segments[-1].last_seq + 1 if self.segments else 0

    def _index(self, seq: int) -> int:
        """Index of the segment that has `seq`, or of the next segment with higher seqs."""
        return bisect_left(self.segments, seq, key=_last_seq)

    def segment_of(self, seq: int) -> SegmentState | None:
        index = self._index(seq)
        if index < len(self.segments) and self.segments[index].first_seq <= seq:
            return self.segments[index]
        return None

    # Reading.

    def read_run(self, first_seq: int, last_seq: int, bytes_max: int | None = None) -> SlotRun:
        """Slots from `first_seq` on, within one segment or one gap, and roughly within `bytes_max`."""
        index = self._index(first_seq)
        if index == len(self.segments):
            return SlotRun(last_seq, [None] * (last_seq - first_seq + 1))
        state = self.segments[index]
        if state.first_seq > first_seq:
            last_seq = min(last_seq, state.first_seq - 1)
            return SlotRun(last_seq, [None] * (last_seq - first_seq + 1))
        last_seq = min(last_seq, state.last_seq)
        slots = self._cache.reader(self._topic_id, state).read(first_seq, last_seq, bytes_max)
        pending = self._pending.get(state.first_seq)
        if pending is not None:
            place = first_seq - state.first_seq
            for index, slot in enumerate(slots):
                if slot is not None and _bit(pending, place + index):
                    slots[index] = None
        return SlotRun(first_seq + len(slots) - 1, slots, is_cold=state.tier == "cold")

    def is_at_hand(self, first_seq: int, last_seq: int, bytes_max: int) -> bool:
        """Whether `read_run` of this range would not wait for a disk or a network. Opens the segment if it is not
        open."""
        state = self.segment_of(first_seq)
        if state is None:
            return True
        reader = self._cache.reader(self._topic_id, state)
        return reader.at_hand(first_seq, min(last_seq, state.last_seq), bytes_max) is not None

    def parts(self, first_seq: int, last_seq: int, count_max: int) -> list[SegmentPart]:
        """The parts of segments that a read of this range needs, at most `count_max`."""
        start = self._index(first_seq)
        return [
            SegmentPart(state, max(first_seq, state.first_seq), min(last_seq, state.last_seq))
            for state in self.segments[start : start + count_max]
            if state.first_seq <= last_seq
        ]

    def at_hand(self, part: SegmentPart, bytes_max: int) -> tuple[int, int] | None:
        """(slots, bytes) that a read of the part within `bytes_max` gives; None when the read, or opening the file,
        waits."""
        if not self._cache.is_open(self._topic_id, part.state):
            return None
        reader = self._cache.reader(self._topic_id, part.state)
        return reader.at_hand(part.first_seq, part.last_seq, bytes_max)

    def fetch(self, part: SegmentPart, bytes_max: int) -> tuple[int, int]:
        """Waits for the bytes of the part, so that a read does not: see `SegmentCache.fetch`.

        For any thread. All other methods are for the owner only.
        """
        return self._cache.fetch(self._topic_id, part.state, part.first_seq, part.last_seq, bytes_max)

    # Liveness.

    def _columns_for(self, state: SegmentState) -> SegmentColumns:
        if self._columns is None or self._columns_of != state.first_seq:
            columns = self._read_columns(state)
            pending = self._pending.get(state.first_seq)
            if pending is not None:
                for place in range(state.entry_count):
                    if _bit(pending, place):
                        columns.live[place] = 0
            self._columns, self._columns_of = columns, state.first_seq
        return self._columns

    def _read_columns(self, state: SegmentState) -> SegmentColumns:
        try:
            return self._cache.reader(self._topic_id, state).columns()
        except (ColdUnavailable, FileNotFoundError):
            if state.tier != "cold":
                raise
            # Retention goes on without the cold tier, with estimates. They are corrected when the whole segment is
            # dropped.
            return _estimated_columns(state)

    def release_columns(self) -> None:
        self._columns = None

    def kill_many(self, seqs: list[int]) -> tuple[int, int, list[int]]:
        """Marks the live records among these ascending seqs as deleted. Returns (count, bytes, seqs) of them."""
        count, total, killed = 0, 0, []
        for state, inside in self._by_segment(seqs):
            reader = self._cache.reader(self._topic_id, state)
            columns = self._columns_for(state) if len(inside) * 8 > state.entry_count else None
            pending = self._pending.setdefault(state.first_seq, bytearray(state.entry_count // 8 + 1))
            for seq in inside:
                place = seq - state.first_seq
                if _bit(pending, place):
                    continue
                if columns is None:
                    size = _live_size(reader.single(seq))
                else:
                    size = columns.sizes[place] if columns.live[place] else None
                if size is None:
                    continue
                _set_bit(pending, place)
                if self._columns is not None and self._columns_of == state.first_seq:
                    self._columns.live[place] = 0
                count += 1
                total += size
                state.live_count -= 1
                state.live_bytes -= size
                killed.append(seq)
        return count, total, killed

    def _by_segment(self, seqs: list[int]) -> Iterator[tuple[SegmentState, list[int]]]:
        start = 0
        while start < len(seqs):
            state = self.segment_of(seqs[start])
            if state is None:
                start += 1
                continue
            end = bisect_right(seqs, state.last_seq, start)
            yield state, seqs[start:end]
            start = end

    def kill_below(self, seq: int, first_live: int) -> tuple[int, int]:
        """Deletes every live record below `seq`. A segment that is all below only gets new numbers; the last one gets a
        bit per record."""
        count, total = 0, 0
        for state in self.segments:
            if state.first_seq >= seq:
                break
            if state.last_seq < seq:
                count += state.live_count
                total += state.live_bytes
                state.live_count = state.live_bytes = 0
            elif state.last_seq >= first_live and state.live_count:
                columns = self._columns_for(state)
                inside = [
                    place + state.first_seq
                    for place in range(max(first_live - state.first_seq, 0), seq - state.first_seq)
                    if columns.live[place]
                ]
                more = self.kill_many(inside)
                count += more[0]
                total += more[1]
        return count, total

    def next_live(self, seq: int) -> int | None:
        for index in range(self._index(seq), len(self.segments)):
            state = self.segments[index]
            if state.live_count == 0:
                continue
            if state.first_seq >= seq and state.live_count == state.entry_count:
                return state.first_seq
            columns = self._columns_for(state)
            place = columns.live.find(1, max(seq - state.first_seq, 0))
            if place >= 0:
                return state.first_seq + place
        return None

    def live_sizes(self, seq: int) -> Iterator[tuple[int, int]]:
        for index in range(self._index(seq), len(self.segments)):
            state = self.segments[index]
            if state.live_count:
                columns = self._columns_for(state)
                for place in range(max(seq - state.first_seq, 0), state.entry_count):
                    if columns.live[place]:
                        yield state.first_seq + place, columns.sizes[place]

    def expired_last_seq(self, seq: int, cutoff_ts: int) -> int:
        """The last seq of the run from `seq` on with times before `cutoff_ts`; `seq - 1` when there is no such run."""
        for index in range(self._index(seq), len(self.segments)):
            state = self.segments[index]
            if state.last_ts < cutoff_ts:
                seq = state.last_seq + 1
                continue
            if state.first_ts >= cutoff_ts:
                break
            columns = self._columns_for(state)
            seq = max(seq, state.first_seq + bisect_left(columns.ts, cutoff_ts))
            break
        return seq - 1

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
                columns = self._columns_for(state)
                start, end = max(first_live - state.first_seq, 0), seq - state.first_seq
                lost = [place for place in range(start, end) if columns.live[place]]
                size = sum(columns.sizes[place] for place in lost)
                columns.live[start:end] = bytes(end - start)
                state.live_count -= len(lost)
                state.live_bytes -= size
                count += len(lost)
                total += size
            break
        if gone:
            self.drop(self.segments[:gone])
        return count, total

    def drop(self, doomed: list[SegmentState]) -> None:
        for state in doomed:
            self._cache.forget(self._topic_id, state.first_seq)
            self._pending.pop(state.first_seq, None)
            self._mean_bytes.pop(state.first_seq, None)
        self.dropped += doomed
        self.segments = [state for state in self.segments if state not in doomed]

    def replace(self, segments: list[SegmentState]) -> None:
        """Takes over the segments of a checkpoint, in place of the present ones."""
        self.release_columns()
        for state in self.segments:
            if not state.sealed:
                self._cache.forget(self._topic_id, state.first_seq)
        self.segments = segments
        for state in segments:
            bits = self._pending.get(state.first_seq)
            if bits is not None:
                bits.extend(bytes(max(0, state.entry_count // 8 + 1 - len(bits))))

    def holds(self, state: SegmentState) -> bool:
        return any(held is state for held in self.segments)

    def exchange(self, old: SegmentState, new: SegmentState) -> None:
        """Puts `new` in the place of `old`: the same segment in another tier, or without some of its deleted
        records."""
        self._cache.forget(self._topic_id, old.first_seq)
        self.segments = [new if held is old else held for held in self.segments]

    def is_mostly_deleted(self, state: SegmentState) -> bool:
        """Whether more than half of the bytes of a sealed, hot segment seem to be deleted. The numbers in memory do not
        count tags and nodes, so that the file may show that it is less."""
        if not state.sealed or state.tier != "hot" or not state.live_count:
            return False
        mean_bytes = self._mean_bytes.get(state.first_seq)
        if mean_bytes is None:
            kept_bytes: float = state.live_bytes + state.live_count * _FRAME_OVERHEAD_BYTES
        else:
            kept_bytes = state.live_count * mean_bytes
        return 2 * kept_bytes < state.data_bytes

    def note_kept_bytes(self, state: SegmentState, mean_bytes: float) -> None:
        """A checkpoint job looked at the file: it has this many bytes for each live record."""
        self._mean_bytes[state.first_seq] = mean_bytes

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

    def live_numbers(self) -> tuple[int, int]:
        return sum(s.live_count for s in self.segments), sum(s.live_bytes for s in self.segments)

    def recount(self, state: SegmentState, first_live: int) -> None:
        """Counts the live records of a segment again from its file, without pending deletes and records below
        `first_live`."""
        self.release_columns()
        columns = self._columns_for(state)
        start = max(first_live - state.first_seq, 0)
        live = [place for place in range(start, state.entry_count) if columns.live[place]]
        state.live_count = len(live)
        state.live_bytes = sum(columns.sizes[place] for place in live)
        self.release_columns()

    # Tags.

    def tags(self, state: SegmentState) -> TagSidecar:
        """The tag sidecar of a sealed segment."""
        return self._cache.tags(self._topic_id, state)

    def built_tags(self, state: SegmentState) -> TagSidecar:
        """The tags of the active segment, built from its frames."""
        return TagSidecar(build_tags(self._cache.reader(self._topic_id, state)))

    # Pending deletes.

    def mark_pending(self, seqs: Iterable[int]) -> None:
        """Notes deletes, without a change of the live numbers: a replay counts at its end, a checkpoint has counted
        before."""
        for seq in seqs:
            state = self.segment_of(seq)
            if state is not None:
                bits = self._pending.setdefault(state.first_seq, bytearray(state.entry_count // 8 + 1))
                _set_bit(bits, seq - state.first_seq)

    def has_pending(self, state: SegmentState) -> bool:
        return state.first_seq in self._pending

    def pending_seqs(self, state: SegmentState) -> list[int]:
        bits = self._pending.get(state.first_seq)
        if bits is None:
            return []
        return [state.first_seq + place for place in range(state.entry_count) if _bit(bits, place)]

    def clear_pending(self, first_seq: int, seqs: list[int]) -> None:
        """The delete bytes of these seqs are set in the file, so their deletes are not pending any more."""
        bits = self._pending.get(first_seq)
        if bits is None:
            return
        for seq in seqs:
            place = seq - first_seq
            bits[place >> 3] &= ~(1 << (place & 7))
        if not any(bits):
            del self._pending[first_seq]


def _estimated_columns(state: SegmentState) -> SegmentColumns:
    """Slots guessed from the numbers of the segment: dead slots first, all records of the same size, no record
    expired."""
    live = state.live_count
    dead = state.entry_count - live
    mean = state.live_bytes // live if live else 0
    sizes = array("I", [0] * dead + [mean] * live)
    return SegmentColumns(
        sizes, array("Q", [state.last_ts] * state.entry_count), bytearray(dead) + bytearray(b"\1" * live)
    )


def _last_seq(state: SegmentState) -> int:
    return state.last_seq


def _bit(bits: bytearray, place: int) -> int:
    return bits[place >> 3] >> (place & 7) & 1


def _set_bit(bits: bytearray, place: int) -> None:
    bits[place >> 3] |= 1 << (place & 7)


def _live_size(size_and_liveness: tuple[int, bool] | None) -> int | None:
    """The accounted size of a live record, else None."""
    return size_and_liveness[0] if size_and_liveness is not None and size_and_liveness[1] else None

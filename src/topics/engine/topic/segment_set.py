"""The segments of one topic: a few numbers of each segment in memory, everything else in the files.

The delete of a record in a segment is *pending* until the delete byte in the file is set. A segment with pending
deletes has one bit per slot in memory. Sizes and times of single slots (*columns*) are loaded for one hot segment only,
as a rule the oldest, where retention works. The next checkpoint releases them.

No method waits for the cold tier. The columns of a cold segment are brought by `ColdColumns`, which `want_columns` asks
for them. Until they are there:

- A floor inside the segment counts records of equal size, and the dead ones first. So the numbers may be too high, and
  no live record is taken for dead. The segment is *inexact*: the columns correct its numbers.
- The first live record may be said to be lower than it is.
- Records in the middle of the segment expire when the times are known, and a byte cap evicts the segment as a whole.

The same holds for a hot segment whose file cannot be opened or read: it is *unread*, and `count_unread` corrects its
numbers when the file can be read again. So no change of a topic fails because of a segment file, also in the middle of
a group of the log. Only a start raises the error. What a delete needs to know for certain, `measure_hot` tells before
the delete is logged.
"""

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from topics.errors import FormatError
from topics.formats import envelope, segment
from topics.formats.control import ColdDeaths
from topics.formats.snapshot import SegmentState
from topics.formats.tag_sidecar import TagSidecar
from topics.storage.segments.cache import SegmentCache, TagSelector
from topics.storage.segments.reader import Measured, SegmentColumns, build_tags

logger = logging.getLogger(__name__)

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


class HotRecords:
    """Live records of hot segments, as their files had them before a delete was logged."""

    __slots__ = ("checkpointed_seq", "sizes", "versions")

    def __init__(self, checkpointed_seq: int = 0) -> None:
        # Records with higher seqs were in memory.
        self.checkpointed_seq = checkpointed_seq
        # Seq -> accounted size.
        self.sizes: dict[int, int] = {}
        # First seq of a segment that was looked into -> version of its file.
        self.versions: dict[int, int] = {}


NOTHING_HOT: Final = HotRecords()


class SegmentSet:
    """Segments in ascending order, without overlap. Seqs between two segments have no record. Owner only."""

    __slots__ = (
        "_cache",
        "_cold",
        "_columns",
        "_columns_of",
        "_mean_bytes",
        "_pending",
        "_topic_id",
        "dropped",
        "segments",
        "unread",
    )

    def __init__(self, cache: SegmentCache, topic_id: int, segments: list[SegmentState]) -> None:
        self._cache = cache
        self._topic_id = topic_id
        self.segments = segments
        # First seq of a segment -> one bit per slot: its delete is pending.
        self._pending: dict[int, bytearray] = {}
        # The columns of the segment with this first seq, when they are loaded.
        self._columns: SegmentColumns | None = None
        self._columns_of = 0
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

    def is_cold(self, seq: int) -> bool:
        state = self.segment_of(seq)
        return state is not None and state.tier == "cold"

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

    def _columns_for(self, state: SegmentState) -> SegmentColumns | None:
        """None for a cold segment whose columns are not there: they are on their way then. None for a hot segment that
        cannot be read now."""
        if state.tier == "cold":
            columns = self._cold.columns.get(state.first_seq)
            if columns is None:
                self._cache.want_columns(self._topic_id, state.first_seq)
            return columns
        if self._columns is None or self._columns_of != state.first_seq:
            try:
                columns = self._cache.reader(self._topic_id, state).columns()
            except OSError as error:
                self._note_unread(state, error)
                return None
            self._clear_dead(state, columns, state.first_seq)
            self._columns, self._columns_of = columns, state.first_seq
        return self._columns

    def _note_unread(self, state: SegmentState, error: OSError) -> None:
        if self._cache.is_starting:
            raise error
        if state.first_seq not in self.unread:
            logger.warning("numbers of a topic wait for a segment file: %s", error)
            self.unread += (state.first_seq,)

    def count_unread(self, first_live: int) -> tuple[int, int]:
        """Counts the segments that could not be read, if they can be read now. Returns (count, bytes) by which their
        live numbers were too high."""
        count, size = 0, 0
        still_unread: list[int] = []
        for first_seq in self.unread:
            state = self.segment_of(first_seq)
            if state is None or state.first_seq != first_seq:
                continue
            columns = self._columns_for(state)
            if columns is not None:
                before = state.live_count, state.live_bytes
                self._count(state, columns, first_live)
                count += before[0] - state.live_count
                size += before[1] - state.live_bytes
            elif state.tier == "cold":
                # It was moved there meanwhile.
                self._own_cold().inexact[first_seq] = None
            else:
                still_unread.append(first_seq)
        self.unread = tuple(still_unread)
        return count, size

    def _clear_dead(self, state: SegmentState, columns: SegmentColumns, first_live: int) -> None:
        """Pending deletes and records below `first_live` are not live."""
        pending = self._pending.get(state.first_seq)
        if pending is not None:
            for place in range(state.entry_count):
                if _bit(pending, place):
                    columns.live[place] = 0
        below = min(max(first_live - state.first_seq, 0), state.entry_count)
        columns.live[:below] = bytes(below)

    def version(self, first_seq: int) -> int:
        """Changes when delete bytes are set in the file of the segment."""
        return self._cold.flagged.get(first_seq, 0)

    def use_cold_columns(self, state: SegmentState, columns: SegmentColumns, first_live: int) -> tuple[int, int]:
        """Takes over the columns of a cold segment. Returns (count, bytes) by which its live numbers were too high."""
        self._clear_dead(state, columns, first_live)
        self._own_cold().columns[state.first_seq] = columns
        if state.first_seq not in self._cold.inexact:
            return 0, 0
        self._cold.inexact.pop(state.first_seq, None)
        before = state.live_count, state.live_bytes
        self._count(state, columns, first_live)
        return before[0] - state.live_count, before[1] - state.live_bytes

    def release_cold_columns(self, first_seq: int) -> None:
        self._cold.columns.pop(first_seq, None)

    def _count(self, state: SegmentState, columns: SegmentColumns, first_live: int) -> None:
        start = max(first_live - state.first_seq, 0)
        live = [place for place in range(start, state.entry_count) if columns.live[place]]
        state.live_count = len(live)
        state.live_bytes = sum(columns.sizes[place] for place in live)

    def _estimate_below(self, state: SegmentState, seq: int) -> None:
        """The records below `seq` are not live any more, and it is not known which of the slots below `seq` had one."""
        pending = self._pending.get(state.first_seq)
        slots = state.last_seq + 1 - seq
        if pending is not None:
            slots -= sum(_bit(pending, place) for place in range(seq - state.first_seq, state.entry_count))
        left = min(state.live_count, slots)
        if left:
            if state.tier == "cold":
                self._own_cold().inexact[state.first_seq] = None
            state.live_bytes = state.live_bytes * left // state.live_count
        else:
            state.live_bytes = 0
        state.live_count = left

    def release_columns(self) -> None:
        self._columns = None

    def measure_hot(self, seqs: Sequence[int], checkpointed_seq: int) -> HotRecords:
        """The live ones among these ascending seqs that are in hot segments. Raises OSError when a file cannot be
        read."""
        found = HotRecords(checkpointed_seq)
        for state, inside in self._by_segment(seqs):
            if state.tier != "hot":
                continue
            found.versions[state.first_seq] = self.version(state.first_seq)
            reader = self._cache.reader(self._topic_id, state)
            pending = self._pending.get(state.first_seq)
            is_loaded = self._columns is not None and self._columns_of == state.first_seq
            columns = self._columns_for(state) if is_loaded or len(inside) * 8 > state.entry_count else None
            for seq in inside:
                place = seq - state.first_seq
                if pending is not None and _bit(pending, place):
                    continue
                if columns is not None:
                    size = columns.sizes[place] if columns.live[place] else None
                else:
                    size = _live_size(reader.single(seq))
                if size is not None:
                    found.sizes[seq] = size
        return found

    def measure_hot_range(self, first_seq: int, end_seq: int, checkpointed_seq: int) -> HotRecords:
        """`measure_hot` of the seqs of this range that are in the segment of its end: all that a delete of the range
        must know, because of segments with lower seqs every record dies."""
        state = self.segment_of(end_seq - 1)
        if state is None or state.last_seq < end_seq:
            return HotRecords(checkpointed_seq)
        return self.measure_hot(range(max(first_seq, state.first_seq), end_seq), checkpointed_seq)

    def kill_many(self, seqs: Sequence[int], hot: HotRecords = NOTHING_HOT) -> tuple[int, int]:
        """Marks the live records among these ascending seqs as deleted. Returns (count, bytes) of them.

        Records of cold segments are deleted by `kill_measured`. `hot` has the records of hot segments. A checkpoint may
        have put others into segments since, or have set delete bytes: those are looked up here. If the segment has
        become cold, the seqs count as live until the columns tell. If it cannot be read, they are
        deleted too, and its numbers may be too high until it can.
        """
        count, total = 0, 0
        for state, inside in self._by_segment(seqs):
            is_known = hot.versions.get(state.first_seq) == self.version(state.first_seq)
            known_to = hot.checkpointed_seq if is_known else 0
            columns = self._columns_for(state) if inside[-1] > known_to else None
            pending = self._pending_of(state)
            before = state.live_count, state.live_bytes
            is_unread = False
            for seq in inside:
                place = seq - state.first_seq
                if _bit(pending, place):
                    continue
                if seq <= known_to:
                    size = hot.sizes.get(seq)
                elif columns is not None:
                    size = columns.sizes[place] if columns.live[place] else None
                elif state.tier == "cold":
                    self._own_cold().inexact[state.first_seq] = None
                    size = state.live_bytes // state.live_count if state.live_count else None
                else:
                    is_unread = True
                    size = None
                    _set_bit(pending, place)
                if size is not None:
                    # The bytes of a segment that could not be read may be too few for its largest records.
                    self._kill(state, pending, place, min(size, state.live_bytes))
            if is_unread:
                self._estimate_below(state, state.first_seq)
            count += before[0] - state.live_count
            total += before[1] - state.live_bytes
        return count, total

    def kill_measured(self, measured: Measured, first_live: int, end_seq: int) -> tuple[int, int]:
        """Marks records as deleted that were found live in the file of their segment. Returns (count, bytes) of
        them."""
        state = self.segment_of(measured.seqs[0]) if measured.seqs else None
        if state is None:
            return 0, 0
        pending = self._pending_of(state)
        if (
            self._is_whole(state, measured, first_live, end_seq)
            and state.first_seq not in self._cold.columns
            and state.live_count >= len(measured.seqs)
            and state.live_bytes >= measured.size_bytes
        ):
            bits = int.from_bytes(pending, "little") | measured.bits
            pending[:] = bits.to_bytes(len(pending), "little")
            state.live_count -= len(measured.seqs)
            state.live_bytes -= measured.size_bytes
            return len(measured.seqs), measured.size_bytes
        count, total = 0, 0
        for seq, size in zip(measured.seqs, measured.sizes, strict=True):
            if first_live <= seq < end_seq and not _bit(pending, seq - state.first_seq) and state.live_count:
                size = min(size, state.live_bytes)
                self._kill(state, pending, seq - state.first_seq, size)
                count += 1
                total += size
        return count, total

    def _is_whole(self, state: SegmentState, measured: Measured, first_live: int, end_seq: int) -> bool:
        """Whether all these records may still be live: nothing has happened to any of them."""
        pending = self._pending.get(state.first_seq)
        if measured.seqs[0] < first_live or measured.seqs[-1] >= end_seq:
            return False
        return pending is None or not int.from_bytes(pending, "little") & measured.bits

    def deaths(self, measured: Measured, first_live: int, end_seq: int) -> ColdDeaths | None:
        """What `kill_measured` would delete now, for the log; None when that is nothing."""
        state = self.segment_of(measured.seqs[0]) if measured.seqs else None
        if state is None:
            return None
        if self._is_whole(state, measured, first_live, end_seq):
            whole = measured.bits.to_bytes(state.entry_count // 8 + 1, "little")
            return ColdDeaths(state.first_seq, whole, len(measured.seqs), measured.size_bytes)
        pending = self._pending.get(state.first_seq)
        bits = bytearray(state.entry_count // 8 + 1)
        count, total = 0, 0
        for seq, size in zip(measured.seqs, measured.sizes, strict=True):
            place = seq - state.first_seq
            if first_live <= seq < end_seq and (pending is None or not _bit(pending, place)):
                _set_bit(bits, place)
                count += 1
                total += size
        return ColdDeaths(state.first_seq, bytes(bits), count, total) if count else None

    def replay_deaths(self, deaths: ColdDeaths) -> list[int]:
        """Notes deletes that the log names by their place in a segment. Returns the deleted seqs. The live numbers of a
        cold segment change here. The live numbers of a hot segment are counted at the end of the replay."""
        state = self.segment_of(deaths.first_seq)
        if state is None or state.first_seq != deaths.first_seq:
            return []
        places = [place for place in range(min(state.entry_count, 8 * len(deaths.bits))) if _bit(deaths.bits, place)]
        pending = self._pending_of(state)
        if state.tier == "cold":
            fresh = sum(not _bit(pending, place) for place in places)
            size = deaths.size_bytes
            if fresh < deaths.count:
                # Two deletes that were under way at the same time name the same records.
                self._own_cold().inexact[state.first_seq] = None
                size = size * fresh // deaths.count
            state.live_count = max(state.live_count - fresh, 0)
            state.live_bytes = max(state.live_bytes - size, 0) if state.live_count else 0
        for place in places:
            _set_bit(pending, place)
        return [state.first_seq + place for place in places]

    def _pending_of(self, state: SegmentState) -> bytearray:
        return self._pending.setdefault(state.first_seq, bytearray(state.entry_count // 8 + 1))

    def _kill(self, state: SegmentState, pending: bytearray, place: int, size: int) -> None:
        _set_bit(pending, place)
        if state.tier == "cold":
            columns = self._cold.columns.get(state.first_seq)
        else:
            columns = self._columns if self._columns_of == state.first_seq else None
        if columns is not None:
            columns.live[place] = 0
        state.live_count -= 1
        state.live_bytes -= size

    def _by_segment(self, seqs: Sequence[int]) -> Iterator[tuple[SegmentState, Sequence[int]]]:
        start = 0
        while start < len(seqs):
            state = self.segment_of(seqs[start])
            if state is None:
                start += 1
                continue
            end = bisect_right(seqs, state.last_seq, start)
            yield state, seqs[start:end]
            start = end

    def kill_below(self, seq: int, first_live: int, hot: HotRecords = NOTHING_HOT) -> tuple[int, int]:
        """Deletes every live record below `seq`. A segment that is all below only gets new numbers; a hot one that has
        `seq` gets a bit per record, see `kill_many`. Records of a cold one are deleted by `kill_measured`."""
        count, total = 0, 0
        for state in self.segments:
            if state.first_seq >= seq:
                break
            if state.last_seq < seq:
                count += state.live_count
                total += state.live_bytes
                state.live_count = state.live_bytes = 0
            elif state.last_seq >= first_live and state.live_count and state.tier == "hot":
                more = self.kill_many(range(max(first_live, state.first_seq), seq), hot)
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
            start = max(seq - state.first_seq, 0)
            place = self._not_pending(state, start) if columns is None else columns.live.find(1, start)
            if place >= 0:
                return state.first_seq + place
        return None

    def _not_pending(self, state: SegmentState, start: int) -> int:
        """The first place from `start` on whose delete is not pending; -1 when there is none."""
        pending = self._pending.get(state.first_seq)
        if pending is None:
            return start if start < state.entry_count else -1
        return next((place for place in range(start, state.entry_count) if not _bit(pending, place)), -1)

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

    def live_sizes(self, seq: int) -> Iterator[tuple[int, int, bool]]:
        """(last seq, bytes, whether they are one record) of live records from `seq` on: single records, or all that
        a cold segment has."""
        for index in range(self._index(seq), len(self.segments)):
            state = self.segments[index]
            if state.live_count:
                columns = self._columns_for(state)
                if columns is None:
                    yield state.last_seq, state.live_bytes, False
                    continue
                for place in range(max(seq - state.first_seq, 0), state.entry_count):
                    if columns.live[place]:
                        yield state.first_seq + place, columns.sizes[place], True

    @property
    def inexact_bytes(self) -> int:
        """Bytes that may not be live: the numbers of these segments may be too high."""
        inexact = {*self._cold.inexact, *self.unread}
        return sum(state.live_bytes for state in self.segments if state.first_seq in inexact)

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
            times: Sequence[int] | None = None if columns is None else columns.ts
            if columns is None and state.tier == "cold":
                times = self._cache.resident_times(self._topic_id, state)
            if times is not None:
                seq = max(seq, state.first_seq + bisect_left(times, cutoff_ts))
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
        columns = self._columns_for(state)
        if columns is None:
            self._estimate_below(state, seq)
            return
        start, end = max(first_live - state.first_seq, 0), seq - state.first_seq
        lost = [place for place in range(start, end) if columns.live[place]]
        columns.live[start:end] = bytes(end - start)
        state.live_count -= len(lost)
        state.live_bytes -= sum(columns.sizes[place] for place in lost)

    def drop(self, doomed: list[SegmentState]) -> None:
        for state in doomed:
            self._cache.forget(self._topic_id, state.first_seq)
            self._pending.pop(state.first_seq, None)
            self._cold.columns.pop(state.first_seq, None)
            self._cold.flagged.pop(state.first_seq, None)
            self._cold.inexact.pop(state.first_seq, None)
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
        `first_live`. A cold segment is counted when its columns are there."""
        self.release_columns()
        columns = self._columns_for(state)
        if columns is None:
            if state.first_seq < first_live:
                self._estimate_below(state, first_live)
            if state.tier == "cold":
                self._own_cold().inexact[state.first_seq] = None
            return
        self._count(state, columns, first_live)
        self.release_columns()

    # Tags.

    def tagged(self, state: SegmentState, selector: TagSelector) -> list[int]:
        """Seqs of a sealed segment by their tag. Of a cold one it waits for the tier: for a start only."""
        return self._cache.tagged(self._topic_id, state, selector)

    def built_tags(self, state: SegmentState) -> TagSidecar:
        """The tags of the active segment, built from its frames."""
        return TagSidecar(build_tags(self._cache.reader(self._topic_id, state)))

    # Cold segments.

    def measure_resident(self, state: SegmentState, seqs: list[int]) -> Measured | None:
        """The live ones among these records of a cold segment, if that is known without the tier."""
        columns = self._cold.columns.get(state.first_seq)
        if columns is None:
            return self._cache.measure_resident(self._topic_id, state, seqs)
        measured = Measured()
        for seq in seqs:
            if columns.live[seq - state.first_seq]:
                measured.add(seq, columns.sizes[seq - state.first_seq])
        return measured.pack(state)

    def measure(self, state: SegmentState, wanted: list[int] | TagSelector) -> Measured:
        """The live ones among these records in the file of a cold segment. For any thread: it waits for the tier."""
        return self._cache.measure(self._topic_id, state, wanted)

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
        self._own_cold().flagged[first_seq] = self.version(first_seq) + 1
        if bits is None:
            return
        for seq in seqs:
            place = seq - first_seq
            bits[place >> 3] &= ~(1 << (place & 7))
        if not any(bits):
            del self._pending[first_seq]


def _last_seq(state: SegmentState) -> int:
    return state.last_seq


def _bit(bits: bytes | bytearray, place: int) -> int:
    return bits[place >> 3] >> (place & 7) & 1


def _set_bit(bits: bytearray, place: int) -> None:
    bits[place >> 3] |= 1 << (place & 7)


def _live_size(size_and_liveness: tuple[int, bool] | None) -> int | None:
    """The accounted size of a live record, else None."""
    return size_and_liveness[0] if size_and_liveness is not None and size_and_liveness[1] else None

"""The segments of one topic: a few numbers of each segment in memory, everything else in the files.

| Part | What it has |
|---|---|
| `SegmentList` | which segments there are, and reading from them |
| `SegmentSlots` | what is live in them, and what retention takes |
| `SegmentSet` | deletes of records in them |

The delete of a record in a segment is *pending* until the delete byte in the file is set. A segment with pending
deletes has one bit per slot in memory. What a delete needs to know for certain, `measure_hot` tells before the delete
is logged. A delete costs what it deletes, and some microseconds for each segment.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from topics.engine.topic import slot_bits
from topics.engine.topic.segment_list import SegmentPart, SlotRun
from topics.engine.topic.segment_slots import SegmentSlots
from topics.formats.control import ColdDeaths
from topics.formats.snapshot import SegmentState
from topics.storage.segments.cache import TagSelector
from topics.storage.segments.reader import Measured

__all__ = ["NOTHING_HOT", "HotRecords", "SegmentPart", "SegmentSet", "SlotRun"]


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


class SegmentSet(SegmentSlots):
    __slots__ = ()

    def version(self, first_seq: int) -> int:
        """Changes when delete bytes are set in the file of the segment."""
        return self._cold.flagged.get(first_seq, 0)

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

    # Deletes of records in hot segments.

    def measure_hot(self, seqs: Sequence[int], checkpointed_seq: int) -> HotRecords:
        """The live ones among these ascending seqs that are in hot segments. Raises OSError when a file cannot be
        read."""
        found = HotRecords(checkpointed_seq)
        for state, inside in self._by_segment(seqs):
            if state.tier == "hot":
                found.versions[state.first_seq] = self.version(state.first_seq)
                found.sizes.update(self._live_sizes_of(state, inside))
        return found

    def _live_sizes_of(self, state: SegmentState, seqs: Sequence[int]) -> dict[int, int]:
        """The live ones among these ascending seqs of a hot segment, with their sizes."""
        pending = self._pending.get(state.first_seq)
        if pending is not None:
            first_seq = state.first_seq
            seqs = [seq for seq in seqs if not pending[(seq - first_seq) >> 3] >> ((seq - first_seq) & 7) & 1]
        if not seqs:
            return {}
        sizes = self._cache.reader(self._topic_id, state).live_sizes(seqs)
        return {seq: size for seq, size in zip(seqs, sizes, strict=True) if size is not None}

    def measure_tagged(self, state: SegmentState, selector: TagSelector) -> Measured:
        """The live records of a sealed hot segment by their tag. Raises OSError when a file cannot be read."""
        measured = Measured()
        for seq, size in self._live_sizes_of(state, self.tagged(state, selector)).items():
            measured.add(seq, size)
        return measured.pack(state) if measured.seqs else measured

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
            known = inside[: bisect_right(inside, known_to)]
            before = state.live_count, state.live_bytes
            self._kill_sized(state, {seq: hot.sizes[seq] for seq in known if seq in hot.sizes})
            if len(known) < len(inside):
                self._kill_unknown(state, inside[len(known) :])
            count += before[0] - state.live_count
            total += before[1] - state.live_bytes
        return count, total

    def _kill_unknown(self, state: SegmentState, seqs: Sequence[int]) -> None:
        """Deletes the live ones among these seqs of a segment."""
        if state.tier == "cold":
            columns = self._cold.columns.get(state.first_seq)
            if columns is None:
                self._cache.want_columns(self._topic_id, state.first_seq)
                self._own_cold().inexact[state.first_seq] = None
                mean = state.live_bytes // state.live_count if state.live_count else 0
                self._kill_sized(state, dict.fromkeys(seqs, mean))
            else:
                places = {seq: seq - state.first_seq for seq in seqs}
                self._kill_sized(
                    state, {seq: columns.sizes[place] for seq, place in places.items() if columns.live[place]}
                )
            return
        try:
            sizes = self._live_sizes_of(state, seqs)
        except OSError as error:
            self._note_unread(state, error)
            pending = self._pending_of(state)
            for seq in seqs:
                slot_bits.set_bit(pending, seq - state.first_seq)
            self.release_block()
            self._estimate_below(state, state.first_seq)
            return
        self._kill_sized(state, sizes)

    def _kill_sized(self, state: SegmentState, sizes: dict[int, int]) -> None:
        """Deletes these records, unless their deletes are pending already."""
        if not sizes:
            return
        first_seq = state.first_seq
        pending = self._pending_of(state)
        count, size = state.live_count, state.live_bytes
        block = self._cold.columns.get(first_seq) if state.tier == "cold" else self._block
        block_first, block_end = (block.first_seq, block.end_seq) if block is not None else (0, 0)
        for seq, size_bytes in sizes.items():
            place = seq - first_seq
            bit = 1 << (place & 7)
            if pending[place >> 3] & bit or not count:
                continue
            pending[place >> 3] |= bit
            if block is not None and block_first <= seq < block_end:
                block.live[seq - block_first] = 0
            count -= 1
            # The bytes of a segment that could not be read may be too few for its largest records.
            size = max(size - size_bytes, 0)
        state.live_count, state.live_bytes = count, size

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

    # Deletes of measured records: of cold segments, and of hot segments by tag.

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

    def kill_measured(self, measured: Measured, first_live: int, end_seq: int) -> tuple[int, int]:
        """Marks records as deleted that were found live in the file of their segment. Returns (count, bytes) of
        them."""
        state = self.segment_of(measured.seqs[0]) if measured.seqs else None
        if state is None:
            return 0, 0
        before = state.live_count, state.live_bytes
        if (
            self._is_whole(state, measured, first_live, end_seq)
            and state.first_seq not in self._cold.columns
            and state.live_count >= len(measured.seqs)
            and state.live_bytes >= measured.size_bytes
        ):
            slot_bits.merge(self._pending_of(state), measured.bits)
            state.live_count -= len(measured.seqs)
            state.live_bytes -= measured.size_bytes
            if self._block is not None and state.first_seq <= self._block.first_seq <= state.last_seq:
                self._clear_pending_in(state, self._block)
        else:
            sizes = zip(measured.seqs, measured.sizes, strict=True)
            self._kill_sized(state, {seq: size for seq, size in sizes if first_live <= seq < end_seq})
        return before[0] - state.live_count, before[1] - state.live_bytes

    def _is_whole(self, state: SegmentState, measured: Measured, first_live: int, end_seq: int) -> bool:
        """Whether all these records may still be live: nothing has happened to any of them."""
        pending = self._pending.get(state.first_seq)
        if measured.seqs[0] < first_live or measured.seqs[-1] >= end_seq:
            return False
        return pending is None or not slot_bits.number_of(pending) & measured.bits

    def deaths(self, measured: Measured, first_live: int, end_seq: int) -> ColdDeaths | None:
        """What `kill_measured` would delete now, for the log; None when that is nothing."""
        state = self.segment_of(measured.seqs[0]) if measured.seqs else None
        if state is None:
            return None
        if self._is_whole(state, measured, first_live, end_seq):
            whole = measured.bits.to_bytes(state.entry_count // 8 + 1, "little")
            return ColdDeaths(state.first_seq, whole, len(measured.seqs), measured.size_bytes)
        pending = self._pending.get(state.first_seq)
        bits = slot_bits.no_bits(state.entry_count)
        count, total = 0, 0
        for seq, size in zip(measured.seqs, measured.sizes, strict=True):
            place = seq - state.first_seq
            if first_live <= seq < end_seq and (pending is None or not slot_bits.has_bit(pending, place)):
                slot_bits.set_bit(bits, place)
                count += 1
                total += size
        return ColdDeaths(state.first_seq, bytes(bits), count, total) if count else None

    def replay_deaths(self, deaths: ColdDeaths) -> list[int]:
        """Notes deletes that the log names by their place in a segment. Returns the deleted seqs. The live numbers of a
        cold segment change here. The live numbers of a hot segment are counted at the end of the replay."""
        state = self.segment_of(deaths.first_seq)
        if state is None or state.first_seq != deaths.first_seq:
            return []
        named = slot_bits.number_within(deaths.bits, 0, state.entry_count)
        pending = self._pending_of(state)
        if state.tier == "cold":
            fresh = (named & ~slot_bits.number_of(pending)).bit_count()
            size = deaths.size_bytes
            if fresh < deaths.count:
                # Two deletes that were under way at the same time name the same records.
                self._own_cold().inexact[state.first_seq] = None
                size = size * fresh // deaths.count
            state.live_count = max(state.live_count - fresh, 0)
            state.live_bytes = max(state.live_bytes - size, 0) if state.live_count else 0
        slot_bits.merge(pending, named)
        return [state.first_seq + place for place in slot_bits.places(named.to_bytes(len(pending), "little"))]

    # Pending deletes.

    def _pending_of(self, state: SegmentState) -> bytearray:
        bits = self._pending.get(state.first_seq)
        if bits is None:
            bits = self._pending[state.first_seq] = slot_bits.no_bits(state.entry_count)
        return bits

    def mark_pending(self, seqs: Iterable[int]) -> None:
        """Notes deletes, without a change of the live numbers: a replay counts at its end."""
        self.release_block()
        state: SegmentState | None = None
        for seq in seqs:
            if state is None or not state.first_seq <= seq <= state.last_seq:
                state = self.segment_of(seq)
            if state is not None:
                slot_bits.set_bit(self._pending_of(state), seq - state.first_seq)

    def mark_pending_range(self, first_seq: int, end_seq: int) -> None:
        """`mark_pending` of the seqs from `first_seq` up to `end_seq - 1`."""
        if end_seq > first_seq:
            self.mark_pending_bits(first_seq, (1 << (end_seq - first_seq)) - 1)

    def mark_pending_bits(self, first_seq: int, number: int) -> None:
        """Notes deletes, one bit for each seq from `first_seq` on, without a change of the live numbers: a checkpoint
        has counted before."""
        if not number:
            return
        self.release_block()
        end_seq = first_seq + number.bit_length()
        for index in range(self._index(first_seq), len(self.segments)):
            state = self.segments[index]
            if state.first_seq >= end_seq:
                break
            shift = state.first_seq - first_seq
            inside = (number >> shift if shift >= 0 else number << -shift) & ((1 << state.entry_count) - 1)
            if inside:
                slot_bits.merge(self._pending_of(state), inside)

    def has_pending(self, state: SegmentState) -> bool:
        return state.first_seq in self._pending

    def pending_bits(self, state: SegmentState) -> bytes:
        """One bit per slot: its delete is pending."""
        return bytes(self._pending.get(state.first_seq, b""))

    def pending_runs(self, states: Iterable[SegmentState], without: Collection[int] = ()) -> list[tuple[int, int]]:
        """[first, last] ranges of the seqs whose deletes are pending in these segments, without the segments with these
        first seqs."""
        runs: list[tuple[int, int]] = []
        for state in states:
            bits = self._pending.get(state.first_seq)
            if bits is None or state.first_seq in without:
                continue
            found = [(state.first_seq + first, state.first_seq + last) for first, last in slot_bits.runs(bits)]
            if runs and found and runs[-1][1] + 1 == found[0][0]:
                found[0] = (runs.pop()[0], found[0][1])
            runs += found
        return runs

    def clear_pending(self, first_seq: int, set_bits: bytes) -> None:
        """The delete bytes of these slots are set in the file, so their deletes are not pending any more."""
        bits = self._pending.get(first_seq)
        self._own_cold().flagged[first_seq] = self.version(first_seq) + 1
        if bits is None:
            return
        slot_bits.clear(bits, slot_bits.number_of(set_bits))
        if not any(bits):
            del self._pending[first_seq]

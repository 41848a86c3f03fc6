"""The segments of one topic in the order of their seqs: which segment has a seq, and reading from them."""

from bisect import bisect_left
from typing import NamedTuple

from topics.engine.topic import slot_bits
from topics.errors import FormatError
from topics.formats.snapshot import SegmentState
from topics.formats.tag_sidecar import TagSidecar
from topics.storage.segments.cache import SegmentCache, TagSelector
from topics.storage.segments.reader import build_tags


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


class SegmentList:
    """Segments in ascending order, without overlap. Seqs between two segments have no record. Owner only."""

    __slots__ = ("_cache", "_pending", "_topic_id", "segments")

    def __init__(self, cache: SegmentCache, topic_id: int, segments: list[SegmentState]) -> None:
        self._cache = cache
        self._topic_id = topic_id
        self.segments = segments
        # First seq of a segment -> one bit per slot: its delete is pending.
        self._pending: dict[int, bytearray] = {}

    @property
    def first_seq(self) -> int:
        return self.segments[0].first_seq if self.segments else 0

    @property
    def end_seq(self) -> int:
        return self.segments[-1].last_seq + 1 if self.segments else 0

    def _index(self, seq: int) -> int:
        """Index of the segment that has `seq`, or of the next segment with higher seqs."""
        segments = self.segments
        if segments and seq <= segments[0].last_seq:
            # Retention works in the oldest segment.
            return 0
        return bisect_left(segments, seq, key=_last_seq)

    def segment_of(self, seq: int) -> SegmentState | None:
        index = self._index(seq)
        if index < len(self.segments) and self.segments[index].first_seq <= seq:
            return self.segments[index]
        return None

    def is_cold(self, seq: int) -> bool:
        state = self.segment_of(seq)
        return state is not None and state.tier == "cold"

    def holds(self, state: SegmentState) -> bool:
        return any(held is state for held in self.segments)

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
            start = first_seq - state.first_seq
            if slot_bits.number_within(pending, start, start + len(slots)):
                for index, slot in enumerate(slots):
                    if slot is not None and slot_bits.has_bit(pending, start + index):
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

    # Tags.

    def tagged(self, state: SegmentState, selector: TagSelector) -> list[int]:
        """Seqs of a sealed segment by their tag. Of a cold one it waits for the tier: for a start only."""
        return self._cache.tagged(self._topic_id, state, selector)

    def built_tags(self, state: SegmentState) -> TagSidecar:
        """The tags of the active segment, built from its frames."""
        return TagSidecar(build_tags(self._cache.reader(self._topic_id, state)))


def _last_seq(state: SegmentState) -> int:
    return state.last_seq

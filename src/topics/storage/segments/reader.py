"""Reading one segment.

A record is found by its entry in `.idx`, but the index is only derived: the checksum and the seq of every returned
frame are compared. When an entry leads to no good frame, the frames are walked from the front instead. A bad frame is
reported for its seq only; its neighbours stay readable. When the file is another one than the snapshot lists (`proof`),
every one of its records is reported.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator, Sequence
from itertools import compress
from struct import error as struct_error
from typing import Final, Self

from topics.errors import BadFrame, FormatError
from topics.formats import envelope, kernel, segment, segment_index, tag_sidecar
from topics.formats.record_layout import (
    DELETED,
    DELETED_BYTE,
    FRAME_LEN_BYTES,
    LENGTHS,
    SEGMENT_BODY,
    SEGMENT_FRAME_LEAD,
    SEGMENT_TRAILER_BYTES,
    raw_tag,
)
from topics.formats.segment_index import ENTRY, ENTRY_BYTES
from topics.formats.snapshot import SegmentState
from topics.limits import COLD_GAP_BYTES_MAX, COLD_RANGE_BYTES_MAX, U64_MAX
from topics.storage import layout
from topics.storage.segments.frame_walk import FRAME_LENGTHS_AT, walk_entries
from topics.storage.segments.proof import has_proof, is_proved, sample_places, sample_range
from topics.storage.segments.sources import ByteSource

logger = logging.getLogger(__name__)

# Parts of a frame. Bound once: a constant of another module costs 40 ns at every use.
_LABELS_AT: Final = segment.HEADER_BYTES
_PLAIN_OVERHEAD_BYTES: Final = envelope.PLAIN_OVERHEAD_BYTES
_PLAIN_BYTES_MIN: Final = segment.OVERHEAD_BYTES
_CLOSE: Final = envelope.CLOSE[0]

# Slots that retention and deletes read at once.
BLOCK_SLOTS: Final = 256
# Seqs are read as a block when at least one of so many slots is wanted.
DENSE_SLOTS: Final = 8

Slot = bytes | FormatError | None
"""The segment body of a live record; None for a hole or a deleted record; the error of a bad frame."""


class SlotBlock:
    """Accounted sizes and liveness (1 or 0) of consecutive slots of one segment, from `first_seq` on."""

    __slots__ = ("first_seq", "live", "sizes")

    def __init__(self, first_seq: int, sizes: array[int], live: bytearray) -> None:
        self.first_seq = first_seq
        self.sizes = sizes
        self.live = live

    @property
    def end_seq(self) -> int:
        return self.first_seq + len(self.live)

    def numbers(self, first_seq: int, end_seq: int) -> tuple[int, int]:
        """(count, bytes) of the live records of the block in this range."""
        start = max(first_seq - self.first_seq, 0)
        end = max(end_seq - self.first_seq, start)
        live, sizes = self.live[start:end], self.sizes[start:end]
        count = live.count(1)
        return count, sum(sizes) if count == len(live) else sum(compress(sizes, live))

    def clear(self, first_seq: int, end_seq: int) -> None:
        """The slots of the block in this range are not live."""
        start = max(first_seq - self.first_seq, 0)
        end = min(max(end_seq - self.first_seq, start), len(self.live))
        self.live[start:end] = bytes(end - start)


class SegmentColumns(SlotBlock):
    """All slots of one segment as one block, and their times."""

    __slots__ = ("ts",)

    def __init__(self, first_seq: int, sizes: array[int], live: bytearray, ts: array[int]) -> None:
        super().__init__(first_seq, sizes, live)
        self.ts = ts


class Measured:
    """Live records of one segment, ascending by seq, and the accounted size of each."""

    __slots__ = ("bits", "seqs", "size_bytes", "sizes")

    def __init__(self) -> None:
        self.seqs = array("Q")
        self.sizes = array("I")
        # One bit per slot of the segment, and the sum of all sizes: set by `pack`.
        self.bits = 0
        self.size_bytes = 0

    def add(self, seq: int, size: int) -> None:
        self.seqs.append(seq)
        self.sizes.append(size)

    def pack(self, state: SegmentState) -> Self:
        """Sums up, so that the owner need not visit every record."""
        bits = bytearray(state.entry_count // 8 + 1)
        for seq in self.seqs:
            place = seq - state.first_seq
            bits[place >> 3] |= 1 << (place & 7)
        self.bits = int.from_bytes(bits, "little")
        self.size_bytes = sum(self.sizes)
        return self


class SegmentReader:
    def __init__(self, source: ByteSource, state: SegmentState, *, is_checked: bool = False) -> None:
        self._source = source
        self.state = state
        self._walked: list[tuple[int, int, int, int]] | None = None
        self._is_checked = is_checked
        self._index_is_bad = False
        # Whether the file turned out to be another one than the snapshot lists.
        self._is_foreign = False

    def close(self) -> None:
        self._source.close()

    def _entries(self, first_seq: int, count: int) -> list[tuple[int, int, int, int]]:
        return list(ENTRY.iter_unpack(self._raw_entries(first_seq, count)))

    def _raw_entries(self, first_seq: int, count: int) -> bytes:
        """The bytes of these index entries, or of the entries that a bad index should have."""
        place = first_seq - self.state.first_seq
        if not self._is_checked:
            self._check_index()
        if self._index_is_bad:
            return b"".join([ENTRY.pack(*entry) for entry in self._walk()[place : place + count]])
        return bytes(self._source.index(place * ENTRY_BYTES, count * ENTRY_BYTES))

    def _check_index(self) -> None:
        """Checks the whole index once: an entry that calls a record a hole would hide the record."""
        state = self.state
        raw = self._source.index(0, state.entry_count * ENTRY_BYTES)
        try:
            segment_index.check(raw, entry_count=state.entry_count, data_bytes=state.data_bytes)
        except BadFrame:
            self._index_is_bad = True
        self._is_checked = True
        if has_proof(state) and not is_proved(state, self._entry_at, self._source.data):
            # The index is only derived: the frames decide.
            walked = self._walk()
            self._is_foreign = not is_proved(state, walked.__getitem__, self._source.data)
        if self._is_foreign:
            logger.error("%s", self._foreign_frame().message)

    def _entry_at(self, place: int) -> tuple[int, int, int, int]:
        return self._entries(self.state.first_seq + place, 1)[0]

    def _foreign_frame(self) -> BadFrame:
        name = f"{layout.segment_stem(self.state.first_seq)}.data"
        return BadFrame(f"{name} is a file of another topic or another instance: restore the right one from a copy", 0)

    def _has_samples(self) -> bool:
        """Whether the check of the file would not wait."""
        if not has_proof(self.state):
            return True
        raw = [self._source.index(place * ENTRY_BYTES, ENTRY_BYTES) for place in sample_places(self.state.entry_count)]
        entries = [ENTRY.unpack(entry) for entry in raw if len(entry) == ENTRY_BYTES]
        return all(self._source.has_data(*sample_range(entry)) for entry in entries if entry[1])

    def fetch_samples(self) -> None:
        """Reads what the first use of the segment compares with its proof."""
        if has_proof(self.state):
            is_proved(self.state, self._entry_at, self._source.data)

    def _walk(self) -> list[tuple[int, int, int, int]]:
        """The entries that the index should have, found by walking the frames."""
        if self._walked is None:
            data = self._source.data(0, self.state.data_bytes)
            self._walked = walk_entries(data, self.state.first_seq, self.state.entry_count)
        return self._walked

    def at_hand(self, first_seq: int, last_seq: int, bytes_max: int) -> tuple[int, int] | None:
        """(slots, bytes) that `read` would read, if it would not wait for them; else None."""
        source, state = self._source, self.state
        if self._is_checked and not self._index_is_bad:
            place = first_seq - state.first_seq
            has_index = source.has_index(place * ENTRY_BYTES, (last_seq - first_seq + 1) * ENTRY_BYTES)
        else:
            has_index = source.has_index(0, state.entry_count * ENTRY_BYTES)
        if not has_index:
            return None
        if not self._is_checked:
            if not self._has_samples():
                return None
            self._check_index()
        if self._is_foreign:
            return last_seq - first_seq + 1, 0
        if self._index_is_bad and self._walked is None and not source.has_data(0, state.data_bytes):
            return None
        slots, base, end = self.extent(first_seq, last_seq, bytes_max)
        return (slots, end - base) if source.has_data(base, end - base) else None

    def extent(self, first_seq: int, last_seq: int, bytes_max: int) -> tuple[int, int, int]:
        """(slots, start, end) of the bytes that `read` reads. Two entries are enough if both have frames within the
        bounds."""
        (first,) = self._entries(first_seq, 1)
        (last,) = self._entries(last_seq, 1)
        base, end = first[0], last[0] + last[1]
        if first[1] and last[1] and base < end <= min(base + bytes_max, self.state.data_bytes):
            return last_seq - first_seq + 1, base, end
        entries, base, end = self._piece(first_seq, last_seq, bytes_max)
        return len(entries) // ENTRY_BYTES, base, end

    def _piece(self, first_seq: int, last_seq: int, bytes_max: int | None) -> tuple[bytes, int, int]:
        """Entries from `first_seq` on whose frames are within `bytes_max`, at least one; start and end of their
        bytes."""
        assert self.state.first_seq <= first_seq <= last_seq <= self.state.last_seq
        entries = self._raw_entries(first_seq, last_seq - first_seq + 1)
        data_bytes = self.state.data_bytes
        count, base, end = kernel.entry_span(entries, data_bytes, U64_MAX if bytes_max is None else bytes_max)
        return entries[: count * ENTRY_BYTES], base, end

    def read(self, first_seq: int, last_seq: int, bytes_max: int | None = None) -> list[Slot]:
        """Slots of an inclusive seq range inside the segment, each frame verified. Only the first slots of the range
        if all frames together have more than `bytes_max`."""
        entries, base, end = self._piece(first_seq, last_seq, bytes_max)
        if self._is_foreign:
            return [self._foreign_frame() for _ in range(first_seq, last_seq + 1)]
        found, wrong = kernel.read_slots(self._source.data(base, end - base), base, entries, first_seq)
        slots: list[Slot] = found  # type: ignore[assignment]
        for place in wrong:
            slots[place] = self._read_walked(first_seq + place)
        return slots

    def _read_walked(self, seq: int) -> Slot:
        """The slot of a seq whose index entry leads to no good frame: found by walking, or the error of its frame."""
        state = self.state
        offset, length, _, _ = self._walk()[seq - state.first_seq]
        if length == 0:
            return BadFrame(f"no frame for seq {seq} is found in the segment", offset)
        data = bytes(self._source.data(offset, min(length, state.data_bytes - offset)))
        try:
            frame = segment.check(data, 0, len(data))
        except FormatError as error:
            error.offset += offset
            return error
        if frame.seq != seq:
            return BadFrame(f"the frame holds seq {frame.seq}, not {seq}", offset)
        return None if frame.deleted else data[FRAME_LEN_BYTES:-SEGMENT_TRAILER_BYTES]

    def columns(self) -> SegmentColumns:
        state = self.state
        block = self.block(state.first_seq, state.last_seq)
        times = [state.last_ts] * state.entry_count if self._is_foreign else self.times()
        return SegmentColumns(state.first_seq, block.sizes, block.live, array("Q", times))

    def block(self, first_seq: int, last_seq: int) -> SlotBlock:
        """Sizes and liveness of an inclusive range of slots. No checksum is compared: a frame that makes no sense
        counts as live, so that a read reaches it and reports it."""
        entries = self._entries(first_seq, last_seq - first_seq + 1)
        if self._is_foreign:
            live = bytearray([entry[1] > 0 for entry in entries])
            return SlotBlock(first_seq, array("I", [0]) * len(entries), live)
        base, end = _span(entries, self.state.data_bytes)
        data = bytes(self._source.data(base, end - base))
        return SlotBlock(first_seq, *_sizes_and_liveness(data, base, entries))

    def live_sizes(self, seqs: Sequence[int]) -> list[int | None]:
        """Accounted sizes of these ascending seqs of the segment; None for a hole or a deleted record. A frame that
        makes no sense counts as live, without a size.

        Many seqs that are near each other are read as blocks, other seqs one by one.
        """
        found: list[int | None] = []
        if len(seqs) * DENSE_SLOTS <= seqs[-1] - seqs[0]:
            for seq in seqs:
                ((offset, length, _, _),) = self._entries(seq, 1)
                data = b"" if self._is_foreign else bytes(self._source.data(offset, length))
                size = _accounted(data, 0, length)
                is_dead = length == 0 or (size is not None and data[length - 1] == DELETED)
                found.append(None if is_dead else size or 0)
            return found
        block = SlotBlock(0, array("I"), bytearray())
        for seq in seqs:
            if seq >= block.end_seq:
                block = self.block(seq, min(seq + BLOCK_SLOTS - 1, seqs[-1]))
            place = seq - block.first_seq
            found.append(block.sizes[place] if block.live[place] else None)
        return found

    def measure(self, seqs: Sequence[int]) -> Measured:
        """The live ones among these ascending seqs. A frame that makes no sense counts as live, without a size.

        Frames that are near each other are read with one request: each request costs a network as much as many bytes.
        """
        measured = Measured()
        if not seqs:
            return measured
        first_seq = self.state.first_seq
        entries = self._entries(first_seq, self.state.entry_count)
        framed = [(seq, *entries[seq - first_seq][:2]) for seq in seqs]
        framed = [(seq, offset, length) for seq, offset, length in framed if length]
        for start, stop, base, end in _near(framed, self.state.data_bytes):
            data = bytes(self._source.data(base, end - base))
            for seq, offset, length in framed[start:stop]:
                at = offset - base
                size = _accounted(data, at, length)
                if size is None or data[at + length - 1 : at + length] != DELETED_BYTE:
                    measured.add(seq, size or 0)
        return measured.pack(self.state)

    def times(self) -> list[int]:
        """The time of every slot. Times never fall, so a wrong time may keep records too long, but never removes them
        too early."""
        state = self.state
        times: list[int] = []
        newest_ts = 0
        for _, _, when, _ in self._entries(state.first_seq, state.entry_count):
            newest_ts = min(max(newest_ts, when), state.last_ts)
            times.append(newest_ts)
        return times

    def first_since(self, first_seq: int, cutoff_ts: int) -> tuple[int, int]:
        """(seq, time) of the first slot from `first_seq` on whose time is not before `cutoff_ts`; the last slot when
        there is none. The cost is that of the slots before it."""
        seq, last_seq = first_seq, self.state.last_seq
        step = 1
        while True:
            entries = self._entries(seq, min(step, last_seq + 1 - seq))
            if self._is_foreign:
                return seq, self.state.last_ts
            for _, _, when, _ in entries:
                if when >= cutoff_ts or seq == last_seq:
                    return seq, when
                seq += 1
            step = BLOCK_SLOTS

    def positions(self, seqs: list[int]) -> list[tuple[int, int]]:
        """(offset, length) of each of the seqs; length 0 where there is no frame, or none that is whole."""
        first_seq = self.state.first_seq
        entries = self._entries(first_seq, self.state.entry_count)
        if self._is_foreign:
            return [(0, 0)] * len(seqs)
        return [self._position(seq, *entries[seq - first_seq][:2]) for seq in seqs]

    def _position(self, seq: int, offset: int, length: int) -> tuple[int, int]:
        lead = self._source.data(offset, SEGMENT_FRAME_LEAD.size)
        if length == 0 or len(lead) < SEGMENT_FRAME_LEAD.size:
            return offset, 0
        frame_len, _, frame_seq = SEGMENT_FRAME_LEAD.unpack(lead)
        return (offset, length) if frame_len == length - FRAME_LEN_BYTES and frame_seq == seq else (offset, 0)


def _near(framed: list[tuple[int, int, int]], data_bytes: int) -> Iterator[tuple[int, int, int, int]]:
    """Runs of frames, given as (seq, offset, length), that are read together: (start, stop, base, end) of each run."""
    start = 0
    for place in range(1, len(framed) + 1):
        _, base, _ = framed[start]
        _, offset, length = framed[place - 1]
        if place < len(framed):
            _, next_offset, next_length = framed[place]
            gap_bytes = next_offset - (offset + length)
            if 0 <= gap_bytes <= COLD_GAP_BYTES_MAX and next_offset + next_length - base <= COLD_RANGE_BYTES_MAX:
                continue
        base, end = _span([(at, size, 0, 0) for _, at, size in framed[start:place]], data_bytes)
        yield start, place, base, end
        start = place


def _span(entries: list[tuple[int, int, int, int]], data_bytes: int) -> tuple[int, int]:
    """The byte range that holds these frames, kept inside the file whatever the entries claim."""
    framed = [(offset, offset + length) for offset, length, _, _ in entries if length]
    if not framed:
        return 0, 0
    base = min(framed)[0]
    end = max(end for _, end in framed)
    return min(base, data_bytes), min(end, data_bytes)


def _sizes_and_liveness(
    data: bytes, base: int, entries: list[tuple[int, int, int, int]]
) -> tuple[array[int], bytearray]:
    """Accounted sizes and liveness of the frames of these entries. `data` begins at `base`.

    Retention calls this for every record that it evicts: 0.7 µs each.
    """
    sizes, live = array("I"), bytearray()
    add_size, add_live = sizes.append, live.append
    lengths_of, begins, open_mark = LENGTHS.unpack_from, data.startswith, envelope.OPEN
    # Without a meta the size follows from the lengths. From the end, because that search is the faster one.
    end = len(data) if data.rfind(envelope.META) < 0 else 0
    for offset, length, _, _ in entries:
        at = offset - base
        frame_end = at + length
        if length >= _PLAIN_BYTES_MIN and at >= 0 and frame_end <= end:
            node_len, tag_len, data_len = lengths_of(data, at + FRAME_LENGTHS_AT)
            data_end = frame_end - SEGMENT_TRAILER_BYTES
            data_at = data_end - data_len
            if (
                data_at == at + _LABELS_AT + node_len + tag_len
                and data_len > _PLAIN_OVERHEAD_BYTES
                and begins(open_mark, data_at)
                and data[data_end - 1] == _CLOSE
            ):
                add_size(data_len - _PLAIN_OVERHEAD_BYTES)
                add_live(data[frame_end - 1] != DELETED)
                continue
        size = _accounted(data, at, length)
        add_size(size or 0)
        add_live(length > 0 and (size is None or data[frame_end - 1] != DELETED))
    return sizes, live


def _accounted(data: bytes, offset: int, length: int) -> int | None:
    """Accounted bytes of the frame there; None for a hole or a frame that makes no sense."""
    if length == 0 or offset < 0 or offset + length > len(data):
        return None
    try:
        node_len, tag_len, data_len = LENGTHS.unpack_from(data, offset + FRAME_LENGTHS_AT)
        if segment.OVERHEAD_BYTES + node_len + tag_len + data_len != length:
            return None
        start = offset + segment.HEADER_BYTES + node_len + tag_len
        return envelope.accounted_within(data, start, start + data_len)
    except (struct_error, FormatError):
        return None


def build_tags(reader: SegmentReader) -> bytes:
    """Sidecar bytes of a segment, from its frames. Deleted and bad ones are left out."""
    state = reader.state
    tags: dict[bytes, list[int]] = {}
    if state.entry_count:
        for seq, slot in enumerate(reader.read(state.first_seq, state.last_seq), state.first_seq):
            if isinstance(slot, bytes) and (tag := raw_tag(slot, SEGMENT_BODY)) is not None:
                tags.setdefault(tag, []).append(seq)
    return tag_sidecar.encode(state.first_seq, tags)

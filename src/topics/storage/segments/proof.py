"""The proof that a file is the segment that a snapshot lists: a few stored checksums of its frames.

Frames do not name their topic. A file that was swapped with a file of another topic, or restored into another topic's
directory, has valid frames of the wrong records. So the snapshot entry of a segment holds a *proof*, and the first use
of a file compares it. Four checksums are read, wherever they are in the file: nothing is hashed.

| Offset | Size | Meaning |
|---|---|---|
| 0 | 4 | length of `.data` that the proof was made for; at another length it says nothing |
| 4 | 4 each | first half of the checksum of the first frame, of the last one, and of two between them; 0 for a hole |

A file is another one when fewer than half of these checksums agree. So damage to one frame does not take away the
other records. Of a file that is shorter than noted one is enough: it was cut, or it was written again without deleted
records, and keeps its last frame. An entry without a proof was written by an older version: any file is taken.

A losing option: the digest of a sealed segment proves more, but a first read would have to read the whole file.
"""

from collections.abc import Callable
from struct import Struct
from struct import error as struct_error
from typing import Final

from topics.formats.record_layout import FRAME_LEN_BYTES, SEGMENT_FRAME_LEAD, SEGMENT_TRAILER_BYTES
from topics.formats.segment_index import ENTRY, ENTRY_BYTES
from topics.formats.snapshot import SegmentState
from topics.storage.fs import Buffer, Fs
from topics.storage.segments.frame_walk import walk_entries
from topics.storage.segments.sources import FileSource

_LENGTH: Final = Struct("<I")
_SAMPLE_BYTES: Final = 4
_SAMPLES_MAX: Final = 4
_HOLE: Final = bytes(_SAMPLE_BYTES)
# So many entries are read at once: that takes less time than to read the four that are needed.
_ENTRIES_READ_MAX: Final = 1000

Entry = tuple[int, int, int, int]
"""Offset, length, time and flags of a frame: an entry of the index."""

Read = Callable[[int, int], Buffer]
"""Bytes of a file, by offset and size; fewer at its end."""


def sample_places(entry_count: int) -> list[int]:
    """The places of the frames that prove a segment with so many entries."""
    return sorted({number * (entry_count - 1) // (_SAMPLES_MAX - 1) for number in range(_SAMPLES_MAX)})


def sample_range(entry: Entry) -> tuple[int, int]:
    """(offset, size) of the bytes of `.data` that a proof holds of this frame."""
    return max(0, entry[0] + entry[1] - SEGMENT_TRAILER_BYTES), _SAMPLE_BYTES


def has_proof(state: SegmentState) -> bool:
    proof = state.proof
    return len(proof) > _LENGTH.size and _LENGTH.unpack_from(proof)[0] == state.data_bytes


def prove(state: SegmentState, entry_at: Callable[[int], Entry], read: Read) -> bytes:
    """The proof of a segment. `entry_at` gives the entry at a place, `read` bytes of `.data`."""
    samples = [_sample(entry_at(place), read) for place in sample_places(state.entry_count)]
    return _LENGTH.pack(state.data_bytes) + b"".join(samples)


def is_proved(state: SegmentState, entry_at: Callable[[int], Entry], read: Read) -> bool:
    """Whether the bytes are those of the segment, as far as its proof tells."""
    agreed = checked = 0
    for number, place in enumerate(sample_places(state.entry_count)):
        start = _LENGTH.size + number * _SAMPLE_BYTES
        expected = state.proof[start : start + _SAMPLE_BYTES]
        found = _sample(entry_at(place), read)
        if expected != _HOLE or found != _HOLE:
            checked += 1
            agreed += found == expected
    if agreed * 2 >= checked:
        return True
    is_shorter = not read(state.data_bytes - 1, 1)
    return is_shorter and agreed > 0


def _sample(entry: Entry, read: Read) -> bytes:
    return bytes(read(*sample_range(entry))) if entry[1] else _HOLE


def prove_file(fs: Fs, stem: str, state: SegmentState) -> bytes:
    """The proof of a file that was just written; empty when its index does not lead to its frames."""
    source = FileSource(fs, stem)
    try:
        entry_at = _entries_of(source.index, state.entry_count)
        places = sample_places(state.entry_count)
        for place in places:
            offset, length, _, _ = entry_at(place)
            if length == 0 and place not in (places[0], places[-1]):
                continue
            # A segment begins and ends with a record.
            frame_len, _, seq = SEGMENT_FRAME_LEAD.unpack(source.data(offset, SEGMENT_FRAME_LEAD.size))
            if (frame_len, seq) != (length - FRAME_LEN_BYTES, state.first_seq + place):
                return b""
        return prove(state, entry_at, source.data)
    except struct_error:
        return b""
    finally:
        source.close()


def is_file_proved(fs: Fs, stem: str, state: SegmentState) -> bool:
    """Whether a hot file is the one that was proved. True also when there is no proof, or no file."""
    if not has_proof(state) or not fs.exists(f"{stem}.data") or not fs.exists(f"{stem}.idx"):
        return True
    source = FileSource(fs, stem)
    try:
        return is_pair_proved(state, source.index, source.data)
    finally:
        source.close()


def is_pair_proved(state: SegmentState, read_index: Read, read: Read) -> bool:
    """Whether a pair of files is the one that was proved. True also when there is no proof."""
    if not has_proof(state) or is_proved(state, _entries_of(read_index, state.entry_count), read):
        return True
    # The index is only derived: the frames decide.
    walked = walk_entries(read(0, state.data_bytes), state.first_seq, state.entry_count)
    return is_proved(state, walked.__getitem__, read)


def _entries_of(read_index: Read, entry_count: int) -> Callable[[int], Entry]:
    if entry_count <= _ENTRIES_READ_MAX:
        index = read_index(0, entry_count * ENTRY_BYTES)

        def read_index(offset: int, size: int) -> Buffer:
            return index[offset : offset + size]

    def entry_at(place: int) -> Entry:
        raw = read_index(place * ENTRY_BYTES, ENTRY_BYTES)
        return ENTRY.unpack(raw) if len(raw) == ENTRY_BYTES else (0, 0, 0, 0)

    return entry_at

"""Segment `.idx`: 20 bytes an entry, entry i is seq `first_seq + i`. Little-endian.

    offset size  field
    0      4     offset of the frame in `.data` u32
    4      4     whole framed length u32, 0 for a seq that never got a record
    8      8     ts u64
    16     1     flags: 1 has tag, 2 has node, 128 deleted (a hint; the delete byte rules)
    17     3     zero

Derived from `.data`: never evidence against it. There is no checksum: an index is believed when it agrees
with the size of its `.data` (`check`), an entry when the frame it points to is whole and has the right seq.
A hole carries the ts of the entry before it, so that ts stays sorted for binary search; its offset means
nothing.
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from topics.errors import BadFrame
from topics.formats.buffers import Buffer
from topics.formats.record_layout import FLAG_NODE, FLAG_TAG, SEGMENT_FRAME_HEADER, SEGMENT_TRAILER_BYTES

ENTRY: Final = Struct("<IIQB3x")
ENTRY_BYTES: Final = ENTRY.size
_FRAME_BYTES_MIN: Final = SEGMENT_FRAME_HEADER.size + SEGMENT_TRAILER_BYTES
FLAG_DELETED: Final = 128

_FLAGS_KNOWN: Final = FLAG_TAG | FLAG_NODE | FLAG_DELETED
# The same with the padding: flags in the lowest byte, zeros above it.
_ENTRY_WHOLE: Final = Struct("<IIQI")

assert ENTRY_BYTES == 20
assert _ENTRY_WHOLE.size == ENTRY_BYTES


class IndexEntry(NamedTuple):
    offset: int
    length: int
    ts: int
    flags: int


def encode(entries: Iterable[tuple[int, int, int, int]]) -> bytes:
    pack = ENTRY.pack
    return b"".join([pack(*entry) for entry in entries])


def decode(buffer: Buffer) -> Iterator[IndexEntry]:
    """All entries, unchecked. Raises `BadFrame` when they are not a whole number."""
    if len(buffer) % ENTRY_BYTES:
        raise BadFrame(f"{len(buffer)} bytes are not a whole number of index entries")
    return map(IndexEntry._make, ENTRY.iter_unpack(buffer))


def entry_at(buffer: Buffer, index: int) -> IndexEntry:
    """Entry `index`, unchecked. Raises `BadFrame` when the index has no such entry."""
    offset = index * ENTRY_BYTES
    if index < 0 or offset + ENTRY_BYTES > len(buffer):
        raise BadFrame(f"an index of {len(buffer)} bytes has no entry {index}", max(offset, 0))
    return IndexEntry._make(ENTRY.unpack_from(buffer, offset))


def check(buffer: Buffer, *, entry_count: int, data_bytes: int) -> None:
    """Raises `BadFrame` unless this is an index of `entry_count` entries over exactly `data_bytes` of `.data`.

    Its frames must follow each other from offset 0 to the end, each long enough to be one. So zeros in the
    place of entries are found, and an index that is short, long, or has entries twice.
    """
    if len(buffer) != entry_count * ENTRY_BYTES:
        raise BadFrame(f"the index has {len(buffer)} bytes, not {entry_count} entries")
    position = 0
    for index, (offset, length, _, flags) in enumerate(_ENTRY_WHOLE.iter_unpack(buffer)):
        if flags & ~_FLAGS_KNOWN:
            raise BadFrame(f"index entry {index} has unknown flags {flags:#x}", index * ENTRY_BYTES)
        if length == 0:
            continue
        if offset != position or length < _FRAME_BYTES_MIN:
            raise BadFrame(
                f"index entry {index} has a frame of {length} bytes at {offset}, expected at {position}",
                index * ENTRY_BYTES,
            )
        position += length
    if position != data_bytes:
        raise BadFrame(f"the index ends at {position} of {data_bytes} data bytes")

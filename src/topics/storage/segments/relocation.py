"""Moving sealed segments to the cold tier: copy, verify, note in a snapshot, and only then remove the hot copy.

A segment is cold once a snapshot says so. The hot files stay until a second snapshot says so too, because a start may
fall back to the older snapshot. If both copies exist, the hot one is used.
"""

from xxhash import xxh3_128

from topics.errors import ColdUnavailable, FormatError
from topics.formats import segment as codec
from topics.formats.record_layout import DELETED
from topics.formats.segment_index import ENTRY, ENTRY_BYTES
from topics.formats.snapshot import SegmentState
from topics.storage import layout
from topics.storage.fs import Fs, read_file
from topics.storage.segments.reader import SegmentReader
from topics.storage.segments.sources import FileSource
from topics.storage.segments.writer import flag_deleted
from topics.storage.tiers.store import SegmentStore


def copy_to_cold(fs: Fs, root: str, cold: SegmentStore, topic_id: int, segment: SegmentState) -> None:
    """Copies the files of a sealed segment, verified frame by frame. `.data` goes last, because its presence means
    that the copy is complete."""
    stem = f"{layout.topic_directory(root, topic_id)}/{layout.segment_stem(segment.first_seq)}"
    data = read_file(fs, f"{stem}.data")
    digest = xxh3_128()
    try:
        for frame in codec.walk(data, 0, segment.data_bytes):
            digest.update(frame.checksum_in(data))
        if segment.digest and digest.digest() != segment.digest:
            raise FormatError("its frames are not the ones that were sealed", 0)
    except FormatError as error:
        raise FormatError(
            f"{stem}.data is damaged at offset {error.offset}; it is not moved: {error.message}", error.offset
        ) from error
    for kind in ("idx", "tags"):
        if fs.exists(f"{stem}.{kind}"):
            cold.put(layout.segment_object(topic_id, segment.first_seq, kind), read_file(fs, f"{stem}.{kind}"))
    name = layout.segment_object(topic_id, segment.first_seq, "data")
    cold.put(name, data)
    if cold.read_range(name, 0, len(data) + 1) != data:
        raise ColdUnavailable(f"{cold.address} does not give back what it was given for {name}; the hot copy stays")


def flag_hot_copy(fs: Fs, root: str, topic_id: int, segment: SegmentState, seqs: list[int]) -> None:
    """Sets delete bytes in the hot files of a segment that is cold, if it still has them."""
    stem = f"{layout.topic_directory(root, topic_id)}/{layout.segment_stem(segment.first_seq)}"
    try:
        reader = SegmentReader(FileSource(fs, stem), segment)
        try:
            positions = reader.positions(seqs)
        finally:
            reader.close()
        flag_deleted(fs, stem, positions)
    except FileNotFoundError:
        # They were removed.
        return


def flag_deleted_cold(cold: SegmentStore, topic_id: int, segment: SegmentState, seqs: list[int]) -> None:
    """Objects cannot be changed in place: `.data` is put again with its delete bytes set."""
    data_name = layout.segment_object(topic_id, segment.first_seq, "data")
    index_name = layout.segment_object(topic_id, segment.first_seq, "idx")
    data = bytearray(cold.read_range(data_name, 0, segment.data_bytes))
    index = cold.read_range(index_name, 0, segment.entry_count * ENTRY_BYTES)
    if len(data) != segment.data_bytes or len(index) != segment.entry_count * ENTRY_BYTES:
        raise ColdUnavailable(f"{cold.address} gives back only a part of {data_name}")
    for seq in seqs:
        offset, length, _, _ = ENTRY.unpack_from(index, (seq - segment.first_seq) * ENTRY_BYTES)
        if length:
            data[offset + length - 1] = DELETED
    cold.put(data_name, data)

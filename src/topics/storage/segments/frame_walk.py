"""The index of a segment, found again by walking the frames of its `.data`."""

from struct import error as struct_error
from typing import Final

from topics.errors import FormatError
from topics.formats import segment, segment_index
from topics.formats.record_layout import (
    FRAME_LEN_BYTES,
    LABEL_FLAGS,
    LENGTHS,
    LENGTHS_AT,
    SEGMENT_CORE_AT,
    SEGMENT_FRAME_LEAD,
    TS,
    TS_AT,
)
from topics.formats.snapshot import SegmentState
from topics.storage.fs import Buffer, Fs, read_file, write_atomic

# Where the core and its parts begin in a frame.
_CORE_AT: Final = FRAME_LEN_BYTES + SEGMENT_CORE_AT
_TS_AT: Final = _CORE_AT + TS_AT
FRAME_LENGTHS_AT: Final = _CORE_AT + LENGTHS_AT


def walk_entries(data: Buffer, first_seq: int, entry_count: int | None) -> list[tuple[int, int, int, int]]:
    """Index entries of `.data`, by walking frame lengths without trusting anything else.

    Skipped seqs become holes. At a frame whose length makes no sense the next valid frame with an expected seq is
    searched. The seqs before that frame get an entry over all the bytes between: these bytes are not a valid frame of
    theirs, so a reader reports damage. A record that cannot be read must not look like a hole.
    """
    entries: list[tuple[int, int, int, int]] = []
    offset, end, last_ts = 0, len(data), 0
    bad_offset: int | None = None
    while offset < end:
        try:
            frame_len, flags, seq = SEGMENT_FRAME_LEAD.unpack_from(data, offset)
            (ts,) = TS.unpack_from(data, offset + _TS_AT)
            node_len, tag_len, data_len = LENGTHS.unpack_from(data, offset + FRAME_LENGTHS_AT)
        except struct_error:
            break
        expected = first_seq + len(entries)
        frame_bytes = FRAME_LEN_BYTES + frame_len
        fits = frame_bytes == segment.OVERHEAD_BYTES + node_len + tag_len + data_len
        if not fits or offset + frame_bytes > end or seq < expected or (entry_count and seq >= first_seq + entry_count):
            found = _resync(data, offset + 1, expected, first_seq + (entry_count or len(entries) + 10_000))
            if found is None:
                break
            bad_offset, offset = offset, found
            continue
        between = (offset, 0) if bad_offset is None else (bad_offset, offset - bad_offset)
        bad_offset = None
        entries += [(*between, last_ts, 0)] * (seq - expected)
        entries.append((offset, frame_bytes, ts, flags & LABEL_FLAGS))
        last_ts = ts
        offset += frame_bytes
    if entry_count is not None:
        # A segment ends with a record, so seqs that are missing at its end had records.
        entries += [(offset, max(end - offset, 1), last_ts, 0)] * (entry_count - len(entries))
    return entries


def _resync(data: Buffer, offset: int, expected: int, end_seq: int) -> int | None:
    """The next offset where a whole valid frame of an expected or later seq begins."""
    end = len(data)
    while offset + segment.OVERHEAD_BYTES <= end:
        frame_len, _, seq = SEGMENT_FRAME_LEAD.unpack_from(data, offset)
        if expected <= seq < end_seq and offset + FRAME_LEN_BYTES + frame_len <= end:
            try:
                segment.check(memoryview(data), offset, end)
            except FormatError:
                pass
            else:
                return offset
        offset += 1
    return None


def rebuild_index(fs: Fs, stem: str, state: SegmentState) -> None:
    """Writes `.idx` again from `.data`, through a temporary file."""
    data = read_file(fs, f"{stem}.data")[: state.data_bytes]
    entries = walk_entries(data, state.first_seq, state.entry_count)
    write_atomic(fs, f"{stem}.idx", segment_index.encode(entries))

"""The frames of a segment as a table: where each one starts and what its header says, by columns.

There are two ways to make a table. With an `.idx`, all headers are gathered at its offsets and compared with it at
once: `.data` and `.idx` hold the same numbers, so a header that agrees with its entry is in the right place. Without
an index (frames that come over HTTP, or an index that is wrong) the lengths are walked, and no header is believed
before the checksum of its frame was compared.

An index is never evidence against a frame. When the two disagree the checksum of the frame decides. If the frame is
whole, the index is wrong: it is repaired here, in memory, and reported. If the frame is not whole, it is damage, and
it is reported with its seq and offset. Only when neither index nor lengths lead on, the bytes after the damage are
searched for the next whole frame. Payloads are JSON and have no byte below 0x20, so no payload looks like a header.

Checksums of frames that look right are not computed here. `columnar` compares them for the frames that it delivers.

Import this module where it is used: numpy is not among the things every installation has.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topics.errors import BadFrame, FormatError
from topics.formats import segment, segment_index
from topics.formats.buffers import Buffer
from topics.formats.record_layout import FLAG_NODE, FLAG_TAG, FRAME_LEN, FRAME_LEN_BYTES, LABEL_FLAGS
from topics.limits import U64_MAX

HEADERS: Final = np.dtype(
    [
        ("frame_len", "<u4"),
        ("flags", "u1"),
        ("seq", "<u8"),
        ("ts", "<u8"),
        ("node_len", "<u2"),
        ("tag_len", "<u2"),
        ("data_len", "<u4"),
    ]
)
# The flags and the three zero bytes after them, read as one number.
ENTRIES: Final = np.dtype([("offset", "<u4"), ("length", "<u4"), ("ts", "<u8"), ("flags", "<u4")])
assert HEADERS.itemsize == segment.HEADER_BYTES
assert ENTRIES.itemsize == segment_index.ENTRY_BYTES

Positions = NDArray[np.int64]
Table = NDArray[np.void]
Mask = NDArray[np.bool_]

# Bytes that are searched at a time for the next whole frame after damage.
_SEARCH_BYTES: Final = 1 << 18


class BadRange(NamedTuple):
    """Seqs that should have been at `offset` and cannot be read; `ts` is the time of a neighbour, in milliseconds."""

    first_seq: int
    last_seq: int
    offset: int
    reason: str
    ts: int


@dataclass(frozen=True, slots=True, eq=False)
class FrameTable:
    """Frames of `data`, by seq. `starts` and `ends` are positions in it."""

    data: Buffer
    starts: Positions
    ends: Positions
    headers: Table
    # Frames that are damaged, as far as headers show. They are not in the columns.
    bad: tuple[BadRange, ...]
    # What was wrong with the index, or None. The columns are right in either case.
    index_problem: str | None
    # Whether an index or the checksums confirm the headers. An unconfirmed header must not be used to leave its frame
    # out: call `salvage` if a single checksum is wrong.
    is_confirmed: bool
    # The seqs that belong here, both included, and the offset of `data` in its file.
    bounds: tuple[int, int]
    data_start: int

    def __len__(self) -> int:
        return len(self.starts)


def windows(data: Buffer, dtype: np.dtype[np.void] | str, field_at: int = 0) -> Table:
    """The value of the field at every byte position of `data`. It is a view, so it costs nothing."""
    wanted = np.dtype(dtype)
    count = max(0, len(data) - field_at - wanted.itemsize + 1)
    return np.ndarray((count,), dtype=wanted, buffer=data, offset=field_at if count else 0, strides=(1,))


def gather_headers(data: Buffer, starts: Positions) -> Table:
    """A copy of the headers at these positions. They are copied as plain bytes first, which numpy does eight times as
    fast."""
    return windows(data, f"V{HEADERS.itemsize}")[starts].view(HEADERS)


def select_headers(headers: Table, wanted: Mask) -> Table:
    return headers.view(f"V{HEADERS.itemsize}")[wanted].view(HEADERS)


def from_index(
    data: Buffer,
    idx: Buffer,
    first_seq: int,
    *,
    last_seq: int | None = None,
    wanted: tuple[int, int] = (0, U64_MAX),
    data_start: int = 0,
) -> FrameTable:
    """The frames of the seqs in `wanted`, both included, and perhaps more when the index is wrong.

    Entry 0 of `idx` is `first_seq`, and its frame is at the beginning of `data`. `data_start` is the offset of `data`
    in the file, for callers that read only a part of the file. `last_seq` is the last seq that the segment should
    have, if the caller knows it.
    """
    entries: Table = np.frombuffer(idx, dtype=ENTRIES, count=len(idx) // ENTRIES.itemsize)
    entry_count = len(entries) if last_seq is None else last_seq - first_seq + 1
    problem = _index_problem(entries, idx, len(data), data_start, entry_count)
    if problem is None:
        try:
            return _by_index(data, entries, first_seq, wanted, data_start)
        except BadFrame as error:
            problem = error.message
    if last_seq is None:
        last_seq = first_seq + len(entries) - 1 if len(entries) else U64_MAX
    return _by_walking(data, first_seq, last_seq, problem, data_start)


def from_frames(data: Buffer, *, first_seq: int = 0, last_seq: int = U64_MAX) -> FrameTable:
    """Frames back to back without an index. The seqs bound what damage may have taken; others are damage, too."""
    return _by_walking(data, first_seq, last_seq, None, 0)


def _index_problem(entries: Table, idx: Buffer, data_bytes: int, data_start: int, entry_count: int) -> str | None:
    """Why the index cannot be that of these bytes: the rules of `segment_index.check`, by columns."""
    if len(idx) != entry_count * ENTRIES.itemsize:
        return f"the index has {len(idx)} bytes, not {entry_count} entries"
    unknown = entries["flags"] & ~np.uint32(LABEL_FLAGS | segment_index.FLAG_DELETED) != 0
    if bool(unknown.any()):
        return f"index entry {int(unknown.argmax())} has unknown flags"
    present = np.flatnonzero(entries["length"])
    lengths = entries["length"][present].astype(np.int64)
    ends = np.cumsum(lengths) + data_start
    wrong = (entries["offset"][present] != ends - lengths) | (lengths < segment.OVERHEAD_BYTES)
    if bool(wrong.any()):
        return f"index entry {int(present[wrong.argmax()])} does not follow the one before it"
    end = int(ends[-1]) if len(ends) else data_start
    if end != data_start + data_bytes:
        return f"the index ends at {end} of {data_start + data_bytes} data bytes"
    return None


def _by_index(data: Buffer, entries: Table, first_seq: int, wanted: tuple[int, int], data_start: int) -> FrameTable:
    """Raises `BadFrame` when a whole frame is not where the index has it."""
    bounds = (first_seq, first_seq + len(entries) - 1)
    present = np.flatnonzero(entries["length"])
    low, high = np.searchsorted(present, [_place(wanted[0], first_seq), _place(wanted[1] + 1, first_seq)])
    rows = present[low:high]
    # Without holes the entries are taken as they lie there, which is much cheaper.
    entries = entries[low:high] if len(present) == len(entries) else entries[rows]
    starts = entries["offset"].astype(np.int64) - data_start
    ends = starts + entries["length"]
    headers = gather_headers(data, starts)
    seqs = rows.astype(np.uint64) + np.uint64(first_seq)
    doubtful = ~_is_plausible(headers, ends - starts)
    doubtful |= headers["seq"] != seqs
    doubtful |= headers["ts"] != entries["ts"]
    doubtful |= headers["flags"] != entries["flags"] & LABEL_FLAGS
    if not bool(doubtful.any()):
        return FrameTable(data, starts, ends, headers, (), None, True, bounds, data_start)
    bad: list[BadRange] = []
    problem: str | None = None
    good = np.ones(len(starts), dtype=np.bool_)
    for row in np.flatnonzero(doubtful).tolist():
        start, end, seq = int(starts[row]), int(ends[row]), int(seqs[row])
        entry = int(rows[row])
        try:
            frame = segment.check(data, start, end)
        except FormatError as error:
            good[row] = False
            bad.append(BadRange(seq, seq, start + data_start, error.message, int(entries["ts"][row])))
            continue
        if frame.seq != seq or frame.end != end:
            raise BadFrame(f"index entry {entry} is for seq {seq}, its frame is seq {frame.seq}", start + data_start)
        problem = problem or f"index entry {entry} disagrees with its frame"
    starts, ends, headers = starts[good], ends[good], select_headers(headers, good)
    return FrameTable(data, starts, ends, headers, tuple(bad), problem, True, bounds, data_start)


def _place(seq: int, first_seq: int) -> int:
    """The number of the entry of a seq, within what an array can be asked for."""
    return max(-1, min(seq - first_seq, 2**62))


def _is_plausible(headers: Table, lengths: Positions) -> Mask:
    """Lengths that add up, flags that are known and fit: all that can be said without the checksum."""
    flags = headers["flags"]
    plausible: Mask = headers["frame_len"] + np.int64(FRAME_LEN.size) == lengths
    parts = headers["data_len"] + np.int64(segment.OVERHEAD_BYTES) + headers["tag_len"] + headers["node_len"]
    plausible &= parts == lengths
    plausible &= flags <= LABEL_FLAGS
    plausible &= (headers["tag_len"] == 0) | (flags & FLAG_TAG != 0)
    plausible &= (headers["node_len"] == 0) | (flags & FLAG_NODE != 0)
    return plausible


def salvage(table: FrameTable) -> FrameTable:
    """The same once more with every checksum verified, and the damage named."""
    return _by_salvaging(table.data, *table.bounds, table.index_problem, table.data_start)


def _by_walking(data: Buffer, first_seq: int, last_seq: int, problem: str | None, data_start: int) -> FrameTable:
    starts, end = _walk(data)
    if end == len(data):
        ends = np.append(starts[1:], np.int64(end)) if len(starts) else starts
        headers = gather_headers(data, starts)
        seqs = headers["seq"]
        well = bool(_is_plausible(headers, ends - starts).all()) and bool((seqs[1:] > seqs[:-1]).all())
        if well and (not len(seqs) or first_seq <= int(seqs[0]) <= int(seqs[-1]) <= last_seq):
            return FrameTable(data, starts, ends, headers, (), problem, False, (first_seq, last_seq), data_start)
    return _by_salvaging(data, first_seq, last_seq, problem, data_start)


def _walk(data: Buffer) -> tuple[Positions, int]:
    """Where frames start if every length is right, and where that ends."""
    unpack = FRAME_LEN.unpack_from
    position, last_start = 0, len(data) - segment.OVERHEAD_BYTES
    starts: list[int] = []
    while position <= last_start:
        starts.append(position)
        position += unpack(data, position)[0] + FRAME_LEN_BYTES
    return np.array(starts, dtype=np.int64), position


def _by_salvaging(data: Buffer, first_seq: int, last_seq: int, problem: str | None, data_start: int) -> FrameTable:
    """Whole frames, one by one, and the damage between them."""
    view = memoryview(data)
    starts: list[int] = []
    ends: list[int] = []
    bad: list[BadRange] = []
    position, seq, ts = 0, first_seq, 0
    while position < len(view):
        try:
            frame = _check_between(view, position, seq, last_seq)
        except FormatError as error:
            found = next(_whole_frames_after(view, position, seq, last_seq), None)
            if found is not None:
                last_bad_seq, ts = max(seq, found.seq - 1), ts or found.ts
            else:
                last_bad_seq = seq if last_seq == U64_MAX else max(seq, last_seq)
            bad.append(BadRange(seq, last_bad_seq, position + data_start, error.message, ts))
            if found is None:
                break
            frame = found
        starts.append(frame.offset)
        ends.append(frame.end)
        position, seq, ts = frame.end, frame.seq + 1, frame.ts
    at = np.array(starts, dtype=np.int64)
    headers = gather_headers(data, at)
    bounds = (first_seq, last_seq)
    return FrameTable(data, at, np.array(ends, dtype=np.int64), headers, tuple(bad), problem, True, bounds, data_start)


def _check_between(view: memoryview, position: int, seq_min: int, seq_max: int) -> segment.SegmentFrame:
    frame = segment.check(view, position, len(view))
    if not seq_min <= frame.seq <= seq_max:
        raise BadFrame(f"seq {frame.seq} is not in {seq_min}-{seq_max}", position)
    return frame


def _whole_frames_after(view: memoryview, position: int, seq_min: int, seq_max: int) -> Iterator[segment.SegmentFrame]:
    """The one that the lengths of the damaged header lead to, the nearer first; then whatever is found."""
    for candidate in chain(sorted(_ends_named_at(view, position)), _headers_after(view, position)):
        try:
            yield _check_between(view, candidate, seq_min, seq_max)
        except FormatError:
            continue


def _ends_named_at(view: memoryview, position: int) -> Iterator[int]:
    if position + segment.HEADER_BYTES <= len(view):
        header = windows(view, HEADERS)[position]
        yield position + FRAME_LEN_BYTES + int(header["frame_len"])
        yield position + segment.OVERHEAD_BYTES + sum(int(header[part]) for part in ("node_len", "tag_len", "data_len"))


def _headers_after(view: memoryview, position: int) -> Iterator[int]:
    """Every place after the position where the lengths of a header add up."""
    everywhere = windows(view, HEADERS)
    for begin in range(position + 1, len(everywhere), _SEARCH_BYTES):
        headers = everywhere[begin : begin + _SEARCH_BYTES]
        hits = np.flatnonzero(_is_plausible(headers, headers["frame_len"] + np.int64(FRAME_LEN_BYTES)))
        yield from (hits + begin).tolist()

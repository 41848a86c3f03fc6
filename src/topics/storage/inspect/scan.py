"""Reading through damage: every valid frame of a WAL or segment file, and the bad bytes between them.

For `verify`, `repair` and `dump` only. A start never reads after a bad frame like this: what may be cut, and
what must stop it, is decided in `wal.reader`.

Memory is bounded by a window, whatever the file's size. A header is looked at before its frame is read, and a
frame longer than the limit is none. Behind bad bytes the next frame is searched for by its checksum: a pattern
finds the few places where a header could be, and each of them is checked.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from topics.errors import BadFrame, FormatError, FutureVersion, Torn
from topics.formats import segment, wal_frame
from topics.formats.record_layout import FRAME_LEN, FRAME_LEN_BYTES, SEGMENT_FRAME_HEADER, WAL_FRAME_HEADER
from topics.formats.segment import SegmentFrame
from topics.formats.wal_frame import Frame
from topics.limits import FRAME_BYTES_MAX, MIB

WINDOW_BYTES: Final = 4 * MIB
_ZEROS: Final = bytes(MIB)

# (offset, size) -> bytes, fewer only at the end. A file's `pread` with its arguments swapped, or a store's range.
Read = Callable[[int, int], bytes]


class BadBytes(NamedTuple):
    """Bytes that are no frame: from `offset` up to the next valid frame, or to the end of what is not zeros."""

    offset: int
    end: int
    message: str
    # Whether there is a valid frame at `end`.
    is_followed: bool


class WalItem(NamedTuple):
    """A valid frame at `offset` of its file; `body` is type to data."""

    offset: int
    frame: Frame
    body: bytes


class SegmentItem(NamedTuple):
    """A valid frame at `offset` of its file; `raw` is all of it. `frame` is relative to `raw`."""

    offset: int
    frame: SegmentFrame
    raw: bytes


# A WAL header can be where `frame_len` ends in a byte of at most 2 (32 MiB), followed by a known type and flags.
assert FRAME_BYTES_MAX >> 24 == 2
_WAL_CANDIDATE: Final = re.compile(rb"[\x00-\x02](?=[\x01-\x0e][\x00-\x1f])")
assert max(wal_frame.FrameType) == 0x0E


def scan_wal(read: Read, size: int, offset: int = 0) -> Iterator[WalItem | BadBytes]:
    """Frames of a WAL file and bad spans between them. Zeros at the end are its clean end and give nothing.

    Begins at `offset`, where a frame must begin, and treats the first `size` bytes as the whole file.

    Raises `FutureVersion` at a valid frame of an unknown kind: only a newer version can read the rest.
    """
    position, window = offset, WINDOW_BYTES
    while position < size:
        base = position
        buffer = read(base, min(window, size - base))
        is_whole = base + len(buffer) >= size or not buffer
        reason = "zeros"
        try:
            for frame in wal_frame.walk(buffer, 0, len(buffer), FRAME_BYTES_MAX):
                position = base + frame.end
                yield WalItem(base + frame.offset, frame, frame.body_in(buffer))
            if not is_whole and len(buffer) - (position - base) < wal_frame.HEADER_BYTES:
                continue
        except Torn as error:
            if not is_whole:
                if position == base:
                    window *= 2
                continue
            reason = error.message
        except BadFrame as error:
            reason = error.message
        last = _last_byte(read, position, size)
        found = find_wal_frame(read, size, position + 1) if last > position else None
        if last > position and _is_frame_by_now(read, size, position):
            # A server appends to the file: what was its end has been written since.
            continue
        end = found if found is not None else last
        if end > position:
            yield BadBytes(position, end, reason, found is not None)
        if found is None:
            return
        position, window = found, WINDOW_BYTES


def find_wal_frame(read: Read, size: int, offset: int) -> int | None:
    """Where the next valid frame begins, at or after `offset`."""
    overlap = wal_frame.HEADER_BYTES
    base = offset
    while base < size:
        chunk = read(base, WINDOW_BYTES + overlap)
        if not chunk:
            return None
        if chunk.count(0) == len(chunk):
            base += WINDOW_BYTES
            continue
        for match in _WAL_CANDIDATE.finditer(chunk):
            start = match.start() - (FRAME_LEN_BYTES - 1)
            if 0 <= start < WINDOW_BYTES and _is_wal_frame(read, size, chunk, base, start):
                return base + start
        base += WINDOW_BYTES
    return None


def _is_frame_by_now(read: Read, size: int, position: int) -> bool:
    header = read(position, wal_frame.HEADER_BYTES)
    return len(header) == wal_frame.HEADER_BYTES and _is_wal_frame(read, size, header, position, 0)


def _is_wal_frame(read: Read, size: int, chunk: bytes, base: int, start: int) -> bool:
    (frame_len,) = FRAME_LEN.unpack_from(chunk, start)
    total = FRAME_LEN_BYTES + frame_len
    if not wal_frame.FRAME_LEN_MIN <= frame_len <= FRAME_BYTES_MAX or base + start + total > size:
        return False
    header = chunk[start : start + wal_frame.HEADER_BYTES]
    if len(header) < wal_frame.HEADER_BYTES:
        return False
    if frame_len != sum(WAL_FRAME_HEADER.unpack(header)[-3:]) + wal_frame.FRAME_LEN_MIN:
        return False
    raw = chunk[start : start + total] if start + total <= len(chunk) else read(base + start, total)
    try:
        return next(wal_frame.walk(raw, 0, len(raw), FRAME_BYTES_MAX), None) is not None
    except FormatError:
        return False
    except FutureVersion:
        return True


def _last_byte(read: Read, offset: int, size: int) -> int:
    """Where the non-zero bytes from `offset` on end; `offset` when there are none."""
    last = position = offset
    while position < size:
        chunk = read(position, len(_ZEROS))
        if not chunk:
            break
        if chunk != _ZEROS[: len(chunk)]:
            last = position + len(chunk.rstrip(b"\0"))
        position += len(chunk)
    return last


def scan_segment(read: Read, size: int, first_seq: int, end_seq: int) -> Iterator[SegmentItem | BadBytes]:
    """Frames of the first `size` bytes of a `.data` file and bad spans between them.

    Seqs ascend from `first_seq` and stay below `end_seq`; a frame that breaks this is not where it belongs.
    """
    position, next_seq = 0, first_seq
    base, buffer = 0, b""
    while position < size:
        if position >= base + len(buffer):
            base, buffer = position, read(position, min(WINDOW_BYTES, size - position))
            if not buffer:
                yield BadBytes(position, size, "the file ends here", is_followed=False)
                return
        at = position - base
        try:
            frame = segment.check(buffer, at, len(buffer))
            if not next_seq <= frame.seq < end_seq:
                raise BadFrame(f"the frame holds seq {frame.seq}, expected {next_seq}", at)
        except FormatError as error:
            if isinstance(error, Torn) and base + len(buffer) < size:
                # Only the window may end here, not the frame.
                wanted = WINDOW_BYTES if at else min(_claimed_bytes(buffer), size - position)
                if at or len(buffer) < wanted:
                    base, buffer = position, read(position, min(wanted, size - position))
                    continue
            found = _segment_frame_after(read, size, position, buffer[at:], next_seq, end_seq)
            yield BadBytes(position, size if found is None else found, error.message, found is not None)
            if found is None:
                return
            position, base, buffer = found, 0, b""
            continue
        raw = buffer[at : frame.end]
        whole = frame._replace(offset=0, end=frame.end - at)
        yield SegmentItem(position, whole, raw)
        position += whole.end
        next_seq = frame.seq + 1


def _claimed_bytes(head: bytes) -> int:
    """Length of the frame that begins there, 0 when it is longer than any."""
    (frame_len,) = FRAME_LEN.unpack_from(head)
    return FRAME_LEN_BYTES + frame_len if frame_len <= FRAME_BYTES_MAX else 0


def _segment_frame_after(read: Read, size: int, position: int, head: bytes, next_seq: int, end_seq: int) -> int | None:
    """The next frame: where the bad one's own length says, if that is one; else searched for byte by byte."""
    if len(head) >= segment.HEADER_BYTES:
        (frame_len,) = FRAME_LEN.unpack_from(head)
        after: int = position + FRAME_LEN_BYTES + frame_len
        if FRAME_LEN_BYTES + frame_len >= segment.OVERHEAD_BYTES and _is_segment_frame(
            read, size, after, next_seq, end_seq
        ):
            return after
    return find_segment_frame(read, size, position + 1, next_seq, end_seq)


def find_segment_frame(read: Read, size: int, offset: int, next_seq: int, end_seq: int) -> int | None:
    """Where the next valid frame with a seq in the range begins, at or after `offset`."""
    pattern = _segment_pattern(next_seq, end_seq)
    overlap = segment.HEADER_BYTES
    base = offset
    while base < size:
        chunk = read(base, min(WINDOW_BYTES + overlap, size - base))
        if not chunk:
            return None
        for match in pattern.finditer(chunk):
            start = match.start() - FRAME_LEN_BYTES
            if 0 <= start < WINDOW_BYTES and _is_segment_frame(read, size, base + start, next_seq, end_seq):
                return base + start
        base += WINDOW_BYTES
    return None


def _segment_pattern(next_seq: int, end_seq: int) -> re.Pattern[bytes]:
    """Flags, then a seq whose high bytes are the high bytes of the range."""
    low, high = next_seq.to_bytes(8, "big"), max(end_seq - 1, next_seq).to_bytes(8, "big")
    shared = 0
    while shared < 8 and low[shared] == high[shared]:
        shared += 1
    fixed = b"".join(re.escape(bytes((byte,))) for byte in reversed(low[:shared]))
    return re.compile(rb"[\x00-\x03](?=.{%d}%s)" % (8 - shared, fixed), re.DOTALL)


def _is_segment_frame(read: Read, size: int, offset: int, next_seq: int, end_seq: int) -> bool:
    header = read(offset, segment.HEADER_BYTES)
    if len(header) < segment.HEADER_BYTES:
        return False
    frame_len, _, seq, _, node_len, tag_len, data_len = SEGMENT_FRAME_HEADER.unpack(header)
    total = FRAME_LEN_BYTES + frame_len
    if total != segment.OVERHEAD_BYTES + node_len + tag_len + data_len:
        return False
    if frame_len > FRAME_BYTES_MAX or offset + total > size:
        return False
    if not next_seq <= seq < end_seq:
        return False
    raw = read(offset, total)
    try:
        segment.check(raw, 0, len(raw))
    except FormatError:
        return False
    return True

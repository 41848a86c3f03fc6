"""The work that is done for every record, in plain Python: the reference of `compiled_kernel`.

Both modules have the same functions with the same results. `kernel` says which form runs. These functions say which
frames are good and where the others are. They never say why a frame is bad: callers find that out for one frame, in
code that both forms share.
"""

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby, repeat
from operator import add, sub
from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING, Final

from xxhash import xxh3_64_digest, xxh3_64_intdigest

from topics.formats.buffers import Buffer
from topics.formats.record_layout import (
    CHECKSUM,
    CHECKSUM_BYTES,
    CORE_HEADER_BYTES,
    DELETED,
    FLAG_NODE,
    FLAG_TAG,
    FRAME_LEN,
    FRAME_LEN_BYTES,
    LABEL_FLAGS,
    LIVE,
    SEGMENT_FRAME_HEADER,
    SEGMENT_FRAME_LEAD,
    SEGMENT_TRAILER,
    SEGMENT_TRAILER_BYTES,
    WAL_BODY_HEADER,
    WAL_CORE_AT,
    WAL_FLAGS_AT,
    WAL_FRAME_HEADER,
    WAL_HEAD,
)
from topics.formats.records import RecordBatch
from topics.formats.segment_index import ENTRY

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from topics.formats.wal_frame import FrameColumns

WalColumns = tuple[
    "array[int]",
    "array[int]",
    bytes,
    bytes,
    "array[int]",
    "array[int]",
    "array[int]",
    "array[int]",
    "array[int]",
    "array[int]",
]
"""The columns of `wal_frame.FrameColumns`, in their order."""

SegmentColumns = tuple["array[int]", bytes, bytes, "array[int]", "array[int]", "array[int]", "array[int]"]
"""The columns of `segment.SegmentColumns`, in their order."""

# Flags and types of WAL frames, as in `wal_frame`.
_FLAG_MORE: Final = 8
_FLAG_FIRST: Final = 16
_FLAGS_KNOWN: Final = 31
_APPEND: Final = 1
_SYNC: Final = 13
_TYPE_LAST: Final = 14

# A body header that is packed in four parts: the head; seq; ts, node_len and tag_len; data_len.
_MIDDLE: Final = Struct("<QHH")
_PLAIN_BODY: Final = Struct(f"<{WAL_HEAD.size}sQ{_MIDDLE.size}sI")
assert _PLAIN_BODY.size == WAL_BODY_HEADER.size
# The checksum of a frame and the length of the next frame.
_SEAM: Final = Struct("<QI")
# Checksum and delete byte of a segment frame, and the length of the next frame.
_SEGMENT_SEAM: Final = Struct("<QBI")
_FLAGS_BYTES: Final = tuple(bytes((flags,)) for flags in range(LABEL_FLAGS + 1))
# Bound once: Python looks the method of an imported object up anew at every call, which costs 50 ns.
_pack_length: Final = FRAME_LEN.pack
_pack_header: Final = WAL_BODY_HEADER.pack
_pack_trailer: Final = SEGMENT_TRAILER.pack

_WAL_HEADER_BYTES: Final = WAL_FRAME_HEADER.size
_WAL_FRAME_LEN_MIN: Final = WAL_BODY_HEADER.size + CHECKSUM_BYTES
_WAL_OVERHEAD_BYTES: Final = _WAL_HEADER_BYTES + CHECKSUM_BYTES
# A search for fewer bytes is not worth a call.
_TEXT_BYTES_MIN: Final = 5
# Offsets of pieces are 32-bit numbers.
_GATHERED_BYTES_MAX: Final = 0x7FFFFFFF
# Fewer frames than this are hashed one by one: seeing that they have one size would take longer.
_CUT_AT_ONCE_MIN: Final = 32
_DIGITS_ALIKE: Final = bytes.maketrans(b"123456789E", b"000000000e")
_LONG_EXPONENT: Final = b"e000"
_LONG_NUMBER: Final = b"0" * 200
# The ids of messages: SplitMix64, and the bits that make its numbers the two halves of a UUID of version 4.
_SPLITMIX_STEP: Final = 0x9E3779B97F4A7C15
_UUID_KEPT: Final = (0xFF0FFFFFFFFFFFFF, 0xFFFFFFFFFFFFFF3F)
_UUID_SET: Final = (0x0040000000000000, 0x80)
_SEGMENT_OVERHEAD_BYTES: Final = SEGMENT_FRAME_HEADER.size + SEGMENT_TRAILER_BYTES


def checksum(data: Buffer) -> int:
    """XXH3-64."""
    return xxh3_64_intdigest(data)


def plain_envelopes(datas: Sequence[Buffer]) -> list[bytes]:
    """The envelopes of payloads without meta: `envelope.encode` of each one. `datas` is a list."""
    # A join takes two thirds of the time of a format.
    return [b"".join((b'{"d":', data, b"}")) for data in datas]


# WAL frames.


def append_bodies(
    topic_id: int,
    first_seq: int,
    ts: int,
    batch: RecordBatch,
    base: int,
    opens: bool,  # noqa: FBT001 - all arguments go by position, which costs less in compiled code
    closes: bool,  # noqa: FBT001
) -> list[bytes]:
    """The bodies of one write. `base` are flags of every frame. `opens` and `closes` say whether the first and the last
    frame of the write are among these."""
    make = _plain_bodies if batch.tags is None and batch.nodes is None else _labelled_bodies
    return make(topic_id, first_seq, ts, batch, base, opens=opens, closes=closes)


def encode_writes(
    topic_id: int, first_seq: int, ts: int, batches: Sequence[RecordBatch], base: int
) -> tuple[bytes, list[bytes]]:
    """Whole writes: their frames, and their bodies."""
    single = base & ~_FLAG_MORE | _FLAG_FIRST
    pack, length, stored, digest = _pack_header, _pack_length, CHECKSUM.pack, xxh3_64_intdigest
    bodies: list[bytes] = []
    parts: list[bytes] = []
    seq = first_seq
    for batch in batches:
        envelopes = batch.envelopes
        if len(envelopes) == 1 and batch.tags is None and batch.nodes is None:
            envelope = envelopes[0]
            size = len(envelope)
            body = pack(_APPEND, single, topic_id, seq, ts, 0, 0, size) + envelope
            bodies.append(body)
            parts += (length(size + _WAL_FRAME_LEN_MIN), body, stored(digest(body)))
            seq += 1
            continue
        more = append_bodies(topic_id, seq, ts, batch, base, True, True)
        bodies += more
        parts.append(seal_bodies(more))
        seq += len(more)
    return b"".join(parts), bodies


def _plain_bodies(
    topic_id: int, first_seq: int, ts: int, batch: RecordBatch, base: int, *, opens: bool, closes: bool
) -> list[bytes]:
    """Columns in, columns out: `map` calls C from C, which takes half the time of a loop."""
    envelopes = batch.envelopes
    count = len(envelopes)
    flags = [base] * count
    if opens:
        flags[0] |= _FLAG_FIRST
    if closes:
        flags[-1] &= ~_FLAG_MORE
    # The bytes that are the same in most headers are packed once.
    leads = {each: WAL_HEAD.pack(_APPEND, each, topic_id) for each in set(flags)}
    seqs = range(first_seq, first_seq + count)
    middle = repeat(_MIDDLE.pack(ts, 0, 0))
    headers = map(_PLAIN_BODY.pack, map(leads.__getitem__, flags), seqs, middle, map(len, envelopes))
    return list(map(add, headers, envelopes))


def _labelled_bodies(
    topic_id: int, first_seq: int, ts: int, batch: RecordBatch, base: int, *, opens: bool, closes: bool
) -> list[bytes]:
    pack = _pack_header
    absent = (None,) * len(batch)
    bodies: list[bytes] = []
    keep = bodies.append
    seq = first_seq
    last_seq = first_seq + len(batch) - 1
    flags = base | _FLAG_FIRST if opens else base
    for envelope, tag, node in zip(batch.envelopes, batch.tags or absent, batch.nodes or absent, strict=True):
        if seq == last_seq and closes:
            flags &= ~_FLAG_MORE
        if tag is None:
            tag = b""
        else:
            flags |= FLAG_TAG
        if node is None:
            node = b""
        else:
            flags |= FLAG_NODE
        header = pack(_APPEND, flags, topic_id, seq, ts, len(node), len(tag), len(envelope))
        keep(b"".join((header, node, tag, envelope)))
        flags = base
        seq += 1
    return bodies


def seal_bodies(bodies: list[bytes]) -> bytes:
    """Length and checksum around each body, all in one buffer."""
    if not bodies:
        return b""
    lengths = list(map(CHECKSUM_BYTES.__add__, map(len, bodies)))
    # Between two bodies are the checksum of the first and the length of the second.
    seams = list(map(_SEAM.pack, map(xxh3_64_intdigest, bodies), [*lengths[1:], 0]))
    seams[-1] = seams[-1][:CHECKSUM_BYTES]
    parts: list[bytes] = [b""] * (2 * len(bodies))
    parts[::2] = bodies
    parts[1::2] = seams
    return _pack_length(lengths[0]) + b"".join(parts)


def seal_copies(raws: list[bytes], flags_at: int, core_at: int, topic_id: int, closes: bool) -> bytes:  # noqa: FBT001 - as in C.
    """The frames of raw records as records of this topic, in one buffer. Each frame says that more frames of its write
    follow; with `closes` the last one does not."""
    if not 0 <= flags_at < core_at:
        raise ValueError("the flags are before the core")
    if any(len(raw) < core_at for raw in raws):
        raise ValueError("a raw record is cut")
    pack, labels = WAL_HEAD.pack, LABEL_FLAGS
    bodies = [pack(_APPEND, raw[flags_at] & labels | _FLAG_MORE, topic_id) + raw[core_at:] for raw in raws]
    if closes and raws:
        bodies[-1] = pack(_APPEND, raws[-1][flags_at] & labels, topic_id) + raws[-1][core_at:]
    return seal_bodies(bodies)


def scan_frames(buffer: Buffer, offset: int, end: int, frame_bytes_max: int) -> tuple[WalColumns, list[int], int]:
    """Valid frames of `buffer[offset:end]`: their columns, the places of sync marks among them, and where they stop."""
    if offset < 0:
        raise IndexError("a scan begins before its bytes")
    frames: list[tuple[int, ...]] = []
    marks: list[int] = []
    keep = frames.append
    unpack, digest, number = WAL_FRAME_HEADER.unpack_from, xxh3_64_intdigest, int.from_bytes
    # Small slices of bytes are cheaper than views of them.
    data = buffer if isinstance(buffer, bytes) else memoryview(buffer)
    end = min(end, len(data))
    last_start = end - _WAL_HEADER_BYTES
    while offset <= last_start:
        frame_len, kind, flags, topic_id, seq, ts, node_len, tag_len, data_len = unpack(data, offset)
        frame_end = offset + FRAME_LEN_BYTES + frame_len
        checksum_at = frame_end - CHECKSUM_BYTES
        if (
            frame_len != node_len + tag_len + data_len + _WAL_FRAME_LEN_MIN
            or frame_len > frame_bytes_max
            or frame_end > end
            or digest(data[offset + FRAME_LEN_BYTES : checksum_at]) != number(data[checksum_at:frame_end], "little")
            or not 0 < kind <= _TYPE_LAST
            or flags > _FLAGS_KNOWN
            or (tag_len and not flags & FLAG_TAG)
            or (node_len and not flags & FLAG_NODE)
        ):
            break
        if kind == _SYNC:
            marks.append(len(frames))
        keep((offset, frame_end, kind, flags, topic_id, seq, ts, node_len, tag_len, data_len))
        offset = frame_end
    if isinstance(data, memoryview):
        data.release()
    offsets, ends, kinds, flag_column, topic_ids, seqs, times, node_lens, tag_lens, data_lens = (
        zip(*frames, strict=True) if frames else [()] * 10
    )
    columns = (
        array("q", offsets),
        array("q", ends),
        bytes(kinds),
        bytes(flag_column),
        array("Q", topic_ids),
        array("Q", seqs),
        array("Q", times),
        array("H", node_lens),
        array("H", tag_lens),
        array("I", data_lens),
    )
    return columns, marks, offset


def append_runs(kinds: bytes, topic_ids: "array[int]", seqs: "array[int]") -> list[tuple[int, int, int]]:
    """(topic id, start, end) of append frames of one topic that follow each other and whose seqs do, too. Topic id 0:
    any other frames."""
    runs: list[tuple[int, int, int]] = []
    # Frames of one run have the same difference between seq and place.
    owners = [
        (topic_id, seq - place) if kind == _APPEND and topic_id else (0, 0)
        for place, (kind, topic_id, seq) in enumerate(zip(kinds, topic_ids, seqs, strict=True))
    ]
    end = 0
    for (topic_id, _), group in groupby(owners):
        start, end = end, end + len(list(group))
        runs.append((topic_id, start, end))
    return runs


def frame_places(
    offsets: "array[int]",
    ends: "array[int]",
    data_lens: "array[int]",
    start: int,
    stop: int,
    base: int,
    overhead: int,
) -> tuple["array[int]", "array[int]", "array[int]"]:
    """Of the frames from `start` up to `stop`: the offset in the file, the length, and the bytes of data beyond
    `overhead`. Raises `OverflowError` when data has fewer bytes."""
    part = offsets[start:stop]
    return (
        array("Q", [base + offset for offset in part]),
        array("I", map(sub, ends[start:stop], part)),
        array("I", [data_len - overhead for data_len in data_lens[start:stop]]),
    )


def has_text(buffer: bytes, start: int, end: int, text: bytes) -> bool:
    """Whether the text, five bytes or more, is somewhere in `buffer[start:end]`."""
    if len(text) < _TEXT_BYTES_MIN:
        raise ValueError("the text is too short")
    return buffer.find(text, start, end) >= 0


def may_overflow(text: bytes) -> bool:
    """Whether JSON text may have a number that overflows a double: an `e` or `E` with three digits after it, or 200
    digits in a row. Plus signs are left out. Strings count, too."""
    # The search makes all digits equal first, which is ten times faster than a pattern.
    alike = text.translate(_DIGITS_ALIKE, b"+")
    return _LONG_EXPONENT in alike or _LONG_NUMBER in alike


def add_tags(
    buffer: bytes, frames: "FrameColumns", start: int, stop: int, seqs_by_tag: dict[bytes, "array[int]"]
) -> None:
    """Adds the seqs of the tagged frames from `start` up to `stop` to the seqs of their tags. Raises `IndexError` for a
    tag outside of the buffer."""
    tags_at = map(add, frames.offsets[start:stop], frames.node_lens[start:stop])
    columns = zip(tags_at, frames.tag_lens[start:stop], frames.flags[start:stop], frames.seqs[start:stop], strict=True)
    for node_end, tag_len, flags, seq in columns:
        if flags & FLAG_TAG:
            tag_at = node_end + _WAL_HEADER_BYTES
            tag_end = tag_at + tag_len
            if tag_at < 0 or tag_end > len(buffer):
                raise IndexError("a tag is outside of its bytes")
            tag = buffer[tag_at:tag_end]
            seqs = seqs_by_tag.get(tag)
            if seqs is None:
                seqs = seqs_by_tag[tag] = array("Q")
            seqs.append(seq)


# Segment frames.


def segment_frames(raws: Iterable[bytes], flags_at: int, core_at: int) -> list[bytes]:
    """The frames, live, of verified raw records whose flags and cores begin there."""
    if not 0 <= flags_at < core_at:
        raise ValueError("the flags are before the core")
    frames: list[bytes] = []
    for raw in raws:
        if len(raw) < core_at + CORE_HEADER_BYTES:
            raise ValueError("a raw record is shorter than its header")
        body = b"%c%b" % (raw[flags_at] & LABEL_FLAGS, raw[core_at:])
        trailer = _pack_trailer(xxh3_64_intdigest(body), LIVE)
        frames.append(b"".join((_pack_length(len(body) + SEGMENT_TRAILER_BYTES), body, trailer)))
    return frames


def scan_segment(buffer: bytes, offset: int, end: int) -> SegmentColumns:
    """Valid segment frames of `buffer[offset:end]`, as long as their seqs ascend."""
    if offset < 0:
        raise IndexError("a scan begins before its bytes")
    ends: list[int] = []
    flag_column, deleted = bytearray(), bytearray()
    seqs, times, data_lens, stored = array("Q"), array("Q"), array("I"), array("Q")
    end = min(end, len(buffer))
    while end - offset >= _SEGMENT_OVERHEAD_BYTES:
        frame_len, flags, seq, ts, node_len, tag_len, data_len = SEGMENT_FRAME_HEADER.unpack_from(buffer, offset)
        frame_end = offset + FRAME_LEN_BYTES + frame_len
        if frame_len != node_len + tag_len + data_len + _SEGMENT_OVERHEAD_BYTES - FRAME_LEN_BYTES or frame_end > end:
            break
        found, delete_byte = SEGMENT_TRAILER.unpack_from(buffer, frame_end - SEGMENT_TRAILER_BYTES)
        if (
            xxh3_64_intdigest(buffer[offset + FRAME_LEN_BYTES : frame_end - SEGMENT_TRAILER_BYTES]) != found
            or flags > LABEL_FLAGS
            or (tag_len and not flags & FLAG_TAG)
            or (node_len and not flags & FLAG_NODE)
            or (seqs and seq <= seqs[-1])
        ):
            break
        ends.append(frame_end)
        flag_column.append(flags)
        deleted.append(delete_byte == DELETED)
        seqs.append(seq)
        times.append(ts)
        data_lens.append(data_len)
        stored.append(found)
        offset = frame_end
    return array("q", ends), bytes(flag_column), bytes(deleted), seqs, times, data_lens, stored


def filed_frames(buffer: bytes, offsets: "array[int]", ends: "array[int]") -> tuple[bytes, "array[int]", "array[int]"]:
    """The segment frames, live, of verified append frames of the WAL, one after the other; where each of them ends, and
    their checksums. Raises `IndexError` for a frame outside of the buffer."""
    bodies: list[bytes] = []
    for offset, end in zip(offsets, ends, strict=True):
        if offset < 0 or end - offset < _WAL_OVERHEAD_BYTES or end > len(buffer):
            raise IndexError("a frame is outside of its bytes")
        # The byte before the core becomes the flags.
        core_at = offset + FRAME_LEN_BYTES + WAL_CORE_AT
        flags = buffer[offset + FRAME_LEN_BYTES + WAL_FLAGS_AT] & LABEL_FLAGS
        if flags == buffer[core_at - 1]:
            bodies.append(buffer[core_at - 1 : end - CHECKSUM_BYTES])
        else:
            bodies.append(_FLAGS_BYTES[flags] + buffer[core_at : end - CHECKSUM_BYTES])
    lengths = list(map(SEGMENT_TRAILER_BYTES.__add__, map(len, bodies)))
    stored = list(map(xxh3_64_intdigest, bodies))
    # Between two bodies are checksum and delete byte of the first and the length of the second.
    seams = list(map(_SEGMENT_SEAM.pack, stored, repeat(LIVE), [*lengths[1:], 0]))
    parts: list[bytes] = [b""] * (2 * len(bodies))
    parts[::2] = bodies
    parts[1::2] = seams
    if parts:
        parts[-1] = parts[-1][:SEGMENT_TRAILER_BYTES]
        parts.insert(0, _pack_length(lengths[0]))
    return b"".join(parts), array("I", accumulate(map(FRAME_LEN_BYTES.__add__, lengths))), array("Q", stored)


def index_entries(
    ends: "array[int]", times: "array[int]", flags: bytes, start: int, stop: int, data_offset: int
) -> bytes:
    """The index entries of frames `start` to `stop - 1`, whose bytes follow each other. The first of them is at
    `data_offset` of its file. Raises `OverflowError` when an offset does not fit 32 bits."""
    begins = [ends[start - 1] if start else 0, *ends[start : stop - 1]]
    offsets = map((data_offset - begins[0]).__add__, begins)
    lengths = map(sub, ends[start:stop], begins)
    try:
        return b"".join(map(ENTRY.pack, offsets, lengths, times[start:stop], flags[start:stop]))
    except struct_error as error:
        raise OverflowError("an offset does not fit an index entry") from error


def read_slots(buffer: Buffer, base: int, entries: bytes, first_seq: int) -> tuple[list[bytes | None], list[int]]:
    """The bodies of live records by their index entries, and the places of entries that lead to no good frame.

    `base` is the offset of the buffer in the file, `first_seq` the seq of the first entry. A hole, a deleted record and
    a bad frame are None.
    """
    slots: list[bytes | None] = []
    wrong: list[int] = []
    keep = slots.append
    lead, stored, digest = SEGMENT_FRAME_LEAD.unpack_from, CHECKSUM.unpack_from, xxh3_64_intdigest
    data_bytes = len(buffer)
    for place, (offset, length, _, _) in enumerate(ENTRY.iter_unpack(entries)):
        body: bytes | None = None
        if length:
            at = offset - base
            if length < _SEGMENT_OVERHEAD_BYTES or at < 0 or at + length > data_bytes:
                wrong.append(place)
            else:
                checksum_at = at + length - SEGMENT_TRAILER_BYTES
                frame_len, _, seq = lead(buffer, at)
                body = bytes(buffer[at + FRAME_LEN_BYTES : checksum_at])
                if (
                    frame_len != length - FRAME_LEN_BYTES
                    or seq != first_seq + place
                    or digest(body) != stored(buffer, checksum_at)[0]
                ):
                    wrong.append(place)
                    body = None
                elif buffer[at + length - 1] == DELETED:
                    body = None
        keep(body)
    return slots, wrong


def entry_span(entries: bytes, data_bytes: int, bytes_max: int) -> tuple[int, int, int]:
    """How many of these index entries have frames of at most `bytes_max` together, at least one; and start and end of
    the bytes of these frames, kept inside the file whatever the entries claim."""
    total = count = end = 0
    base = data_bytes
    has_frame = False
    for offset, length, _, _ in ENTRY.iter_unpack(entries):
        if length:
            total += length
            if total > bytes_max and count:
                break
            base = min(base, offset)
            end = max(end, offset + length)
            has_frame = True
        count += 1
    return (count, base, min(end, data_bytes)) if has_frame else (count, 0, 0)


def checksums(
    buffer: Buffer,
    starts: "NDArray[np.int64]",
    ends: "NDArray[np.int64]",
    found: "NDArray[np.uint64]",
    skip: int,
    rest: int,
) -> None:
    """Puts what the checksum of each frame should be into `found`. It covers neither the first `skip` bytes of a frame
    nor the last `rest` bytes. Raises `IndexError` for a frame outside of the buffer."""
    import numpy as np

    if not len(starts):
        return
    if int((starts + skip > ends - rest).any() or starts.min() < 0 or ends.max() - rest > len(buffer)):
        raise IndexError("a frame is outside of its bytes")
    # Small slices of bytes are cheaper than views of them.
    data = buffer
    if not isinstance(buffer, bytes):
        base = int(starts.min())
        data = bytes(memoryview(buffer)[base : int(ends.max())])
        starts, ends = starts - base, ends - base
    digest = xxh3_64_digest
    size = _common_size(starts, ends)
    if size:
        cut = Struct(f"<{skip}x{size - skip - rest}s{rest}x").iter_unpack
        pieces = [digest(piece) for (piece,) in cut(memoryview(data)[int(starts[0]) : int(ends[-1])])]
    else:
        spans = zip((starts + skip).tolist(), (ends - rest).tolist(), strict=True)
        pieces = [digest(data[start:end]) for start, end in spans]
    # The canonical form of a digest is big-endian.
    found[:] = np.frombuffer(b"".join(pieces), dtype=">u8")


def _common_size(starts: "NDArray[np.int64]", ends: "NDArray[np.int64]") -> int:
    """The size of each frame when all have the same and leave no gaps; else 0."""
    if len(starts) < _CUT_AT_ONCE_MIN:
        return 0
    size = int(ends[0] - starts[0])
    if int(ends[-1] - starts[0]) != size * len(starts) or not bool((ends - starts == size).all()):
        return 0
    return size


# Messages of the partitioned engine. They are back to back in a buffer, and `ends` says where each one ends.


def check_messages(indexes: Buffer, messages: Buffer, ends: "NDArray[np.int64]") -> int:
    """Checks the messages of a send and puts where they end, as their index entries say, into `ends`.

    Returns 0 if a rule of `streams/partitions/batch.py` is broken; else 1, or 2 if a message has user headers.
    """
    import numpy as np

    from topics.formats.message import HEADER_BYTES, PAYLOAD_BYTES_MAX, USER_HEADERS_BYTES_MAX, read_headers, starts_of
    from topics.formats.message_index import ENTRY as MESSAGE_ENTRY

    entries = np.frombuffer(indexes, dtype=MESSAGE_ENTRY)
    if not len(entries) == len(ends) > 0:
        raise ValueError("each message has an index entry and an end")
    positions = entries["position"].astype(np.int64)
    starts = starts_of(positions)
    sizes = positions - starts
    if entries["offset"].any() or entries["timestamp"].any() or int(sizes.min()) < HEADER_BYTES:
        return 0
    if int(positions[-1]) != len(messages):
        return 0
    headers = read_headers(messages, starts)
    payload_lengths = headers["payload_length"].astype(np.int64)
    user_headers_lengths = headers["user_headers_length"].astype(np.int64)
    offsets = headers["offset"]
    if (
        int(payload_lengths.max()) > PAYLOAD_BYTES_MAX
        or int(user_headers_lengths.max()) > USER_HEADERS_BYTES_MAX
        or headers["reserved"].any()
        or bool((offsets[1:] < offsets[:-1]).any())
        or bool((payload_lengths + user_headers_lengths + HEADER_BYTES != sizes).any())
    ):
        return 0
    ends[:] = positions
    return 2 if user_headers_lengths.any() else 1


def stamp_messages(messages: Buffer, ends: "NDArray[np.int64]", first_offset: int, timestamp: int, seed: bytes) -> None:
    """Sets the offset, the time and the checksum of each message, and the id if it is 0: a UUID of version 4, in the
    byte order of a UUID. The two halves of an id are numbers of SplitMix64, which begins with the 16 bytes of `seed`.

    Raises `IndexError` for a message outside of the buffer.
    """
    import numpy as np

    from topics.formats.message import (
        CHECKSUM_AT,
        HEADER_BYTES,
        ID_AT,
        read_headers,
        starts_of,
        write_column,
        write_headers,
    )

    if not len(ends):
        return
    starts = starts_of(ends)
    if int((ends - starts).min()) < HEADER_BYTES or int(ends.max()) > len(messages):
        raise IndexError("a message is outside of its bytes")
    headers = read_headers(messages, starts)
    halves = headers["id"]
    places = np.flatnonzero((halves[:, 0] | halves[:, 1]) == 0)
    if len(places):
        steps = (places.astype(np.uint64)[:, None] + np.uint64(1)) * np.uint64(_SPLITMIX_STEP)
        numbers = _splitmix(np.frombuffer(seed, dtype="<u8") + steps)
        halves[places] = numbers & np.array(_UUID_KEPT, dtype=np.uint64) | np.array(_UUID_SET, dtype=np.uint64)
    headers["offset"] = np.arange(len(ends), dtype=np.uint64) + np.uint64(first_offset)
    headers["timestamp"] = timestamp
    write_headers(messages, starts, headers)
    found = np.empty(len(ends), dtype=np.uint64)
    checksums(messages, starts, ends, found, ID_AT, 0)
    write_column(messages, starts, CHECKSUM_AT, found)


def _splitmix(states: "NDArray[np.uint64]") -> "NDArray[np.uint64]":
    import numpy as np

    states = (states ^ (states >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    states = (states ^ (states >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return states ^ (states >> np.uint64(31))


def verify_messages(messages: Buffer, starts: "NDArray[np.int64]", ends: "NDArray[np.int64]", first_offset: int) -> int:
    """Returns 0 if these are not the undamaged messages from `first_offset` on; else 1, or 2 if a message has user
    headers. The positions need not be right."""
    import numpy as np

    from topics.formats.message import (
        CHECKSUM_AT,
        HEADER_BYTES,
        ID_AT,
        OFFSET_AT,
        USER_HEADERS_LENGTH_AT,
        read_column,
    )

    if not len(starts):
        return 1
    if int(starts.min()) < 0 or int((ends - starts).min()) < HEADER_BYTES or int(ends.max()) > len(messages):
        return 0
    found = np.empty(len(starts), dtype=np.uint64)
    checksums(messages, starts, ends, found, ID_AT, 0)
    numbers = np.arange(len(starts), dtype=np.uint64) + np.uint64(first_offset)
    if not bool((found == read_column(messages, starts, CHECKSUM_AT, 8)).all()):
        return 0
    if not bool((numbers == read_column(messages, starts, OFFSET_AT, 8)).all()):
        return 0
    return 2 if read_column(messages, starts, USER_HEADERS_LENGTH_AT, 4).any() else 1


# Pieces of a buffer.


def gather(
    buffer: Buffer, starts: "NDArray[np.int64]", ends: "NDArray[np.int64]", offsets: "NDArray[np.int32]"
) -> bytes:
    """A copy of the pieces, one after the other. Puts where each one begins into `offsets`, and where the last one
    ends. A piece whose end is before its start is empty. Raises `IndexError` for a piece outside of the buffer."""
    import numpy as np

    sizes = np.maximum(ends - starts, 0)
    if bool(((sizes > 0) & ((starts < 0) | (ends > len(buffer)))).any()):
        raise IndexError("a piece is outside of its bytes")
    if int(sizes.sum()) > _GATHERED_BYTES_MAX:
        raise OverflowError("the pieces are too many bytes")
    offsets[0] = 0
    np.cumsum(sizes, out=offsets[1:])
    data = buffer if isinstance(buffer, bytes) else bytes(buffer)
    return b"".join([data[start:end] for start, end in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)])


def have_ends(
    buffer: Buffer,
    starts: "NDArray[np.int64]",
    ends: "NDArray[np.int64]",
    first: bytes,
    last: bytes,
    found: "NDArray[np.uint8]",
) -> None:
    """Puts 1 into `found` for each piece that begins and ends with these bytes and has more between them, else 0.
    Raises `IndexError` for a piece outside of the buffer."""
    import numpy as np

    if bool(((starts < 0) | (ends > len(buffer))).any()):
        raise IndexError("a piece is outside of its bytes")
    content = np.frombuffer(buffer, dtype=np.uint8)
    rows = np.flatnonzero(ends - starts > len(first) + len(last))
    fits = np.ones(len(rows), dtype=np.bool_)
    for place, byte in enumerate(first):
        fits &= content[starts[rows] + place] == byte
    for place, byte in enumerate(reversed(last), 1):
        fits &= content[ends[rows] - place] == byte
    found[:] = 0
    found[rows] = fits

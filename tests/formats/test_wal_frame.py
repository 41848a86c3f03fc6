"""Frames of the log: what is written comes back, and nothing else ever does."""

import mmap
import tracemalloc
from pathlib import Path
from struct import pack
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from tests.formats.strategies import U64_MAX, batches, flip, flips, seqs, u64
from topics.errors import BadFrame, FormatError, FutureVersion, Torn
from topics.formats import wal_frame
from topics.formats.buffers import Buffer
from topics.formats.record_layout import FLAG_NODE, FLAG_TAG
from topics.formats.records import RecordBatch
from topics.formats.wal_frame import (
    FLAG_DURABLE,
    FLAG_FIRST,
    FLAG_MORE,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    SYNC_FRAME_BYTES,
    SYNC_MAGIC,
    Frame,
    FrameType,
)

FRAME_BYTES_MAX: Final = 1 << 20


def append(*payloads: bytes, topic_id: int = 7, first_seq: int = 1) -> bytes:
    frames, _ = wal_frame.encode_appends(
        topic_id, first_seq, 1_700_000_000_000, RecordBatch(payloads, [len(one) for one in payloads]), durable=True
    )
    return frames


def raw_frame(
    *,
    kind: int = 1,
    flags: int = FLAG_FIRST,
    node: bytes = b"",
    tag: bytes = b"",
    data: bytes = b"",
    frame_len: int | None = None,
    data_len: int | None = None,
) -> bytes:
    """A frame with a right checksum, whatever else is wrong with it."""
    body = pack("<BBQQQHHI", kind, flags, 7, 1, 2, len(node), len(tag), len(data) if data_len is None else data_len)
    body += node + tag + data
    length = len(body) + 8 if frame_len is None else frame_len
    return pack("<I", length) + body + pack("<Q", xxh3_64_intdigest(body))


def walked(buffer: Buffer, offset: int = 0, end: int | None = None) -> tuple[list[Frame], FormatError | None]:
    """The frames, and the error they ended with."""
    frames: list[Frame] = []
    try:
        for frame in wal_frame.walk(buffer, offset, len(buffer) if end is None else end, FRAME_BYTES_MAX):
            frames.append(frame)  # noqa: PERF402 - those before an error count.
    except FormatError as error:
        return frames, error
    return frames, None


# --- encoding -----------------------------------------------------------------------------------------------


def test_an_append_has_the_documented_layout() -> None:
    batch = RecordBatch([b'{"d":1}'], [1], tags=[b"tag"], nodes=[b"node"])
    buffer, bodies = wal_frame.encode_appends(5, 6, 7, batch, durable=True)
    flags = FLAG_TAG | FLAG_NODE | FLAG_DURABLE | FLAG_FIRST
    body = bytes((1, flags)) + pack("<QQQHHI", 5, 6, 7, 4, 3, 7) + b'nodetag{"d":1}'
    assert bodies == [body]
    assert buffer == pack("<I", len(body) + 8) + body + pack("<Q", xxh3_64_intdigest(body))


@given(
    batch=batches(),
    topic_id=u64.filter(bool),
    first_seq=seqs,
    ts=u64,
    durable=st.booleans(),
    opens=st.booleans(),
    closes=st.booleans(),
)
def test_appends_are_walked_back(
    batch: RecordBatch, topic_id: int, first_seq: int, ts: int, durable: bool, opens: bool, closes: bool
) -> None:
    buffer, bodies = wal_frame.encode_appends(
        topic_id, first_seq, ts, batch, durable=durable, opens=opens, closes=closes
    )
    frames, error = walked(buffer)
    assert error is None
    assert [buffer[frame.offset + 4 : frame.end - 8] for frame in frames] == bodies
    assert [wal_frame.body_header(body) for body in bodies] == [frame[2:] for frame in frames]
    assert frames[0].offset == 0
    assert [frame.end for frame in frames] == [*(frame.offset for frame in frames[1:]), len(buffer)]

    tags = batch.tags or [None] * len(batch)
    nodes = batch.nodes or [None] * len(batch)
    for place, (frame, body) in enumerate(zip(frames, bodies, strict=True)):
        node, tag, data = nodes[place], tags[place], batch.envelopes[place]
        assert frame.type == FrameType.APPEND
        assert (frame.topic_id, frame.seq, frame.ts) == (topic_id, first_seq + place, ts)
        assert body[wal_frame.BODY_HEADER_BYTES :] == (node or b"") + (tag or b"") + data
        assert (frame.node_len, frame.tag_len, frame.data_len) == (len(node or b""), len(tag or b""), len(data))
        assert frame.end - frame.offset == OVERHEAD_BYTES + frame.node_len + frame.tag_len + frame.data_len
        # Empty is not absent.
        assert bool(frame.flags & FLAG_TAG) == (tag is not None)
        assert bool(frame.flags & FLAG_NODE) == (node is not None)
        assert bool(frame.flags & FLAG_DURABLE) == durable
        assert bool(frame.flags & FLAG_FIRST) == (opens and place == 0)
        assert bool(frame.flags & FLAG_MORE) == (not closes or place + 1 < len(batch))


@given(
    frame_type=st.sampled_from([kind for kind in FrameType if kind != FrameType.APPEND]),
    topic_id=u64,
    ts=u64,
    seq=u64,
    data=st.binary(max_size=40),
    flags=st.sampled_from((0, FLAG_FIRST, FLAG_FIRST | FLAG_MORE, FLAG_MORE | FLAG_DURABLE)),
)
def test_a_control_frame_is_walked_back(
    frame_type: FrameType, topic_id: int, ts: int, seq: int, data: bytes, flags: int
) -> None:
    buffer = wal_frame.encode_control(frame_type, topic_id, ts, data, seq=seq, flags=flags)
    frames, error = walked(buffer)
    assert error is None
    assert frames == [Frame(0, len(buffer), frame_type, flags, topic_id, seq, ts, 0, 0, len(data))]
    assert buffer[HEADER_BYTES : frames[0].end - 8] == data


def test_a_control_frame_is_a_whole_write_by_itself() -> None:
    ((frame,), _) = walked(wal_frame.encode_control(FrameType.TOPIC_DELETE, 3, 4, b"\x80"))
    assert frame.flags == FLAG_FIRST


def test_the_highest_seq_can_be_written() -> None:
    frames, error = walked(append(b'{"d":1}', topic_id=U64_MAX, first_seq=U64_MAX))
    assert error is None
    assert (frames[0].topic_id, frames[0].seq) == (U64_MAX, U64_MAX)


def test_every_frame_type_is_documented() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "formats.md").read_text("utf-8")
    for kind in FrameType:
        assert f"\n| {kind.value} | {kind.name.lower().replace('_', ' ').split()[0]}" in text, kind


# --- the end of the frames ----------------------------------------------------------------------------------


def test_b01_a_frame_cut_at_any_byte_is_torn_and_all_before_it_is_kept() -> None:
    """In the length prefix, header, payload and checksum alike."""
    before = append(b'{"d":1}', b'{"d":2}')
    last = append(b'{"d":{"a":"b"}}', first_seq=3)
    for size in range(1, len(last)):
        frames, error = walked(before + last[:size])
        assert [frame.seq for frame in frames] == [1, 2]
        assert isinstance(error, Torn), size
        assert error.offset == len(before)


def test_b01_zeros_in_the_place_of_what_was_torn_off_are_an_error_or_the_clean_end() -> None:
    """The file was preallocated, so a torn frame goes on in zeros."""
    before = append(b'{"d":1}')
    last = append(b'{"d":{"a":"b"}}', first_seq=2)
    for size in range(len(last)):
        frames, error = walked(before + last[:size] + bytes(len(last) - size) + bytes(100))
        assert [frame.seq for frame in frames] == [1]
        if size == 0:
            assert error is None
        else:
            assert isinstance(error, BadFrame), size
            assert error.offset == len(before)


@given(data=st.data())
def test_b05_any_flipped_byte_of_the_last_frame_ends_the_walk_before_it(data: st.DataObject) -> None:
    """And no flip gives another frame instead."""
    before, last = append(b'{"d":1}'), append(b'{"d":[1,2,3]}', first_seq=2)
    position, bits = data.draw(flips(len(last)))
    frames, error = walked(before + flip(last, position, bits))
    assert [frame.seq for frame in frames] == [1]
    assert error is not None
    assert error.offset == len(before)


def test_b05_every_single_bit_of_a_frame_counts() -> None:
    """B05, for each bit of a small frame."""
    frame = append(b'{"d":1}')
    for position in range(len(frame)):
        for bit in range(8):
            frames, error = walked(flip(frame, position, 1 << bit))
            assert not frames
            assert error is not None


@pytest.mark.parametrize("size", [0, 1, 3, 4, 37, 38, 39, 45, 46, 47, 4096])
def test_b06_zeros_are_the_clean_end_and_never_a_frame(size: int) -> None:
    """Whatever their number."""
    before = append(b'{"d":1}')
    assert walked(bytes(size)) == ([], None)
    frames, error = walked(before + bytes(size))
    assert [frame.seq for frame in frames] == [1]
    assert error is None


def test_b06_a_zero_length_with_something_behind_it_is_no_clean_end() -> None:
    """Half a header that reached the disk is not mistaken for preallocated space."""
    for position in range(4, HEADER_BYTES):
        frames, error = walked(flip(bytes(200), position, 1))
        assert not frames
        assert isinstance(error, BadFrame)


@given(garbage=st.binary(min_size=1, max_size=300))
def test_b07_garbage_behind_the_frames_takes_none_of_them_away(garbage: bytes) -> None:
    """A tail of any size and content."""
    before = append(b'{"d":1}', b'{"d":2}')
    frames, error = walked(before + garbage)
    assert [frame.seq for frame in frames] == [1, 2]
    assert error is not None or not any(garbage[:HEADER_BYTES])


@pytest.mark.parametrize("frame_len", [0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 1 << 20, 42, 41, 40, 4, 1])
def test_b08_a_length_that_cannot_be_is_refused_without_an_allocation(frame_len: int) -> None:
    """All ones, negative as a signed number, below the minimum."""
    frame = raw_frame(data=b'{"d":1}', frame_len=frame_len)
    peaks_bytes = []
    # The least of some counts: other threads of the process are counted, too.
    for _ in range(5):
        tracemalloc.start()
        try:
            frames, error = walked(frame)
            peaks_bytes.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert not frames
        assert isinstance(error, BadFrame)
    assert min(peaks_bytes) < 100_000


@pytest.mark.parametrize("frame_len", [0xFFFFFFFF, 0x80000000, (1 << 20) + 1])
def test_b08_a_length_that_agrees_with_its_parts_is_held_against_the_limit(frame_len: int) -> None:
    """The whole header lies, so only the limit is left."""
    frame = raw_frame(frame_len=frame_len, data_len=frame_len - wal_frame.FRAME_LEN_MIN)
    with pytest.raises(BadFrame, match=f"frame length {frame_len} is over the limit of 1048576"):
        list(wal_frame.walk(frame, 0, len(frame), FRAME_BYTES_MAX))


def test_a_frame_over_the_limit_is_refused_also_when_all_of_it_is_there() -> None:
    frame = append(b'{"d":"12345678"}')
    frame_len = len(frame) - 4
    assert len(list(wal_frame.walk(frame, 0, len(frame), frame_len))) == 1
    with pytest.raises(BadFrame):
        list(wal_frame.walk(frame, 0, len(frame), frame_len - 1))


@pytest.mark.parametrize("kind", [0, 15, 16, 128, 255])
def test_b18_a_valid_frame_of_an_unknown_type_comes_from_a_newer_version(kind: int) -> None:
    """The frames before it were given out; the error says where it is."""
    before = append(b'{"d":1}')
    walk = wal_frame.walk(before + raw_frame(kind=kind), 0, 1000, FRAME_BYTES_MAX)
    assert next(walk).seq == 1
    with pytest.raises(FutureVersion, match=f"frame type {kind} .* unknown to WAL version 2") as caught:
        next(walk)
    assert caught.value.offset == len(before)


@pytest.mark.parametrize("flags", [32, 64, 128 | FLAG_FIRST, 255])
def test_b18_a_valid_frame_with_an_unknown_flag_comes_from_a_newer_version(flags: int) -> None:
    frame = raw_frame(flags=flags)
    with pytest.raises(FutureVersion):
        list(wal_frame.walk(frame, 0, len(frame), FRAME_BYTES_MAX))


def test_an_unknown_type_with_a_wrong_checksum_is_only_a_bad_frame() -> None:
    frame = flip(raw_frame(), 4, 0xF0)
    assert isinstance(walked(frame)[1], BadFrame)


@pytest.mark.parametrize(
    ("tag", "node", "flags"), [(b"t", b"", FLAG_NODE), (b"", b"n", FLAG_TAG), (b"t", b"n", 0), (b"t", b"n", FLAG_TAG)]
)
def test_tag_or_node_bytes_without_their_flag_are_a_bad_frame(tag: bytes, node: bytes, flags: int) -> None:
    assert isinstance(walked(raw_frame(tag=tag, node=node, flags=flags))[1], BadFrame)
    assert walked(raw_frame(tag=tag, node=node, flags=FLAG_TAG | FLAG_NODE))[1] is None


@given(garbage=st.binary(max_size=400), offset=st.integers(0, 500), end=st.integers(0, 500))
@example(garbage=bytes(37) + b"\1", offset=0, end=38)
def test_any_bytes_walk_or_raise_a_documented_error(garbage: bytes, offset: int, end: int) -> None:
    frames, error = walked(garbage, offset, end)
    assert not frames
    assert error is None or offset <= error.offset < end


@given(batch=batches(), data=st.data())
def test_any_window_gives_the_same_frames(batch: RecordBatch, data: st.DataObject) -> None:
    """A reader with a window goes on where the last whole frame of it ended."""
    buffer, _ = wal_frame.encode_appends(1, 1, 1, batch, durable=False)
    whole, _ = walked(buffer)
    cut = data.draw(st.integers(0, len(buffer)))
    first, error = walked(buffer, 0, cut)
    resume = first[-1].end if first else 0
    # Nothing, or a part of the length prefix that happens to be zeros, is a clean end.
    assert isinstance(error, Torn) == any(buffer[resume:cut])
    rest, error = walked(buffer, resume)
    assert error is None
    assert first + rest == whole


# --- buffers ------------------------------------------------------------------------------------------------


def as_map(content: bytes) -> mmap.mmap:
    mapped = mmap.mmap(-1, len(content))
    mapped[:] = content
    return mapped


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview, as_map, lambda content: memoryview(as_map(content))])
def test_every_kind_of_buffer_gives_the_same_frames_and_marks(make: type[bytes]) -> None:
    content = append(b'{"d":1}', b'{"d":2}') + wal_frame.encode_sync_mark(2, 9) + bytes(64)
    buffer = make(content)
    assert walked(buffer) == walked(content)
    assert list(wal_frame.find_sync_marks(buffer, 0, len(buffer))) == [(106, 2)]


def test_a_map_can_be_closed_once_the_walk_has_failed_or_was_left() -> None:
    content = append(b'{"d":1}', b'{"d":2}')
    mapped: Any = as_map(content + b"garbage")
    walk: Any = wal_frame.walk(mapped, 0, len(mapped), FRAME_BYTES_MAX)
    next(walk)
    walk.close()
    try:
        list(wal_frame.walk(mapped, 0, len(mapped), FRAME_BYTES_MAX))
    except Torn:
        mapped.close()
    assert mapped.closed


# --- sync marks ---------------------------------------------------------------------------------------------


@given(synced_frame=u64, ts=u64)
def test_a_sync_mark_is_a_frame_that_says_what_is_synced(synced_frame: int, ts: int) -> None:
    mark = wal_frame.encode_sync_mark(synced_frame, ts)
    assert len(mark) == SYNC_FRAME_BYTES
    ((frame,), error) = walked(mark)
    assert error is None
    assert (frame.type, frame.flags, frame.topic_id, frame.seq, frame.ts) == (FrameType.SYNC, FLAG_FIRST, 0, 0, ts)
    assert wal_frame.decode_sync_mark(mark[HEADER_BYTES:-8]) == synced_frame


def test_the_magic_of_sync_marks_cannot_be_written_by_a_client() -> None:
    """JSON, tags and nodes are UTF-8, and no part of the string is a way around: it fails at its first byte."""
    with pytest.raises(UnicodeDecodeError) as caught:
        (b"a" + SYNC_MAGIC).decode()
    assert caught.value.start == 1


@given(before=st.binary(max_size=90), between=st.binary(max_size=90), behind=st.binary(max_size=90))
def test_sync_marks_are_found_wherever_they_stand(before: bytes, between: bytes, behind: bytes) -> None:
    first, second = wal_frame.encode_sync_mark(10, 1), wal_frame.encode_sync_mark(20, 2)
    buffer = before + first + between + second + behind
    at = len(before) + SYNC_FRAME_BYTES + len(between)
    assert list(wal_frame.find_sync_marks(buffer, 0, len(buffer))) == [(len(before), 10), (at, 20)]
    assert list(wal_frame.find_sync_marks(memoryview(buffer), len(before) + 1, len(buffer))) == [(at, 20)]
    assert list(wal_frame.find_sync_marks(buffer, 0, at + SYNC_FRAME_BYTES - 1)) == [(len(before), 10)]


@given(data=st.data())
def test_a_sync_mark_with_any_flipped_byte_is_not_found(data: st.DataObject) -> None:
    position, bits = data.draw(flips(SYNC_FRAME_BYTES))
    buffer = b"garbage" + flip(wal_frame.encode_sync_mark(10, 1), position, bits)
    assert list(wal_frame.find_sync_marks(buffer, 0, len(buffer))) == []


@pytest.mark.parametrize(
    "lookalike",
    [
        SYNC_MAGIC,
        bytes(HEADER_BYTES) + SYNC_MAGIC + bytes(16),
        raw_frame(kind=FrameType.SYNC, data=SYNC_MAGIC),
        raw_frame(kind=FrameType.SYNC, data=SYNC_MAGIC + bytes(7)),
        raw_frame(kind=FrameType.SYNC, data=SYNC_MAGIC + bytes(9)),
        raw_frame(kind=FrameType.SYNC, flags=FLAG_TAG, tag=SYNC_MAGIC, data=bytes(8)),
        raw_frame(kind=FrameType.NOTE, data=SYNC_MAGIC + bytes(8)),
        raw_frame(kind=15, data=SYNC_MAGIC + bytes(8)),
    ],
    ids=["magic", "zeros", "no-number", "short", "long", "in-tag", "note", "future"],
)
def test_what_only_looks_like_a_sync_mark_is_passed_over(lookalike: bytes) -> None:
    buffer = lookalike + wal_frame.encode_sync_mark(3, 1)
    assert list(wal_frame.find_sync_marks(buffer, 0, len(buffer))) == [(len(lookalike), 3)]


@given(data=st.binary(max_size=40) | st.binary(max_size=12).map(lambda rest: SYNC_MAGIC + rest))
def test_any_bytes_are_the_data_of_a_sync_mark_or_a_bad_frame(data: bytes) -> None:
    try:
        synced_frame = wal_frame.decode_sync_mark(data)
    except BadFrame:
        assert not data.startswith(SYNC_MAGIC) or len(data) != 24
    else:
        assert data == SYNC_MAGIC + pack("<Q", synced_frame)


def test_a_body_shorter_than_its_header_is_torn() -> None:
    body = append(b'{"d":1}')[4:-8]
    for size in range(wal_frame.BODY_HEADER_BYTES):
        with pytest.raises(Torn):
            wal_frame.body_header(body[:size])

"""Frames of segment files: what is written comes back, and damage stays where it is."""

import mmap
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from tests.formats.strategies import U64_MAX, batches, flip, flips, records, seqs, u64
from topics.errors import BadFrame, FormatError, Torn
from topics.formats import envelope, segment, wal_frame
from topics.formats.record_layout import FLAG_NODE, FLAG_TAG
from topics.formats.records import Record, RecordBatch


def record(seq: int = 1, data: bytes = b"1") -> Record:
    return Record(seq, 1_700_000_000_000, None, None, data, None)


def raw_frame(
    *,
    flags: int = 0,
    node: bytes = b"",
    tag: bytes = b"",
    data: bytes = b'{"d":1}',
    frame_len: int | None = None,
    data_len: int | None = None,
) -> bytes:
    """A frame with a right checksum, whatever else is wrong with it."""
    core = pack("<BQQHHI", flags, 1, 2, len(node), len(tag), len(data) if data_len is None else data_len)
    core += node + tag + data
    length = len(core) + 9 if frame_len is None else frame_len
    return pack("<I", length) + core + pack("<QB", xxh3_64_intdigest(core), 0)


def read(frame: bytes) -> Record:
    return segment.decode(frame, segment.check(frame, 0, len(frame)))


def test_a_frame_has_the_documented_layout() -> None:
    frame = segment.encode(Record(5, 6, "node", "tag", b"1", b"2"))
    core = bytes((FLAG_TAG | FLAG_NODE,)) + pack("<QQHHI", 5, 6, 4, 3, 13) + b'nodetag{"d":1,"m":2}'
    assert frame == pack("<I", len(core) + 9) + core + pack("<Q", xxh3_64_intdigest(core)) + b"\0"


@given(record=records())
def test_a_record_comes_back(record: Record) -> None:
    """Empty is not absent, and a null meta is a meta."""
    frame = segment.encode(record)
    found = segment.check(frame, 0, len(frame))
    assert segment.decode(frame, found) == record
    assert (found.offset, found.end, found.seq, found.ts, found.deleted) == (
        0,
        len(frame),
        record.seq,
        record.ts,
        False,
    )
    assert len(frame) == segment.OVERHEAD_BYTES + found.node_len + found.tag_len + found.data_len
    assert segment.frame_checksum(frame) == pack("<Q", xxh3_64_intdigest(frame[4:-9]))


@given(batch=batches(), topic_id=u64.filter(bool), first_seq=seqs, ts=u64, durable=st.booleans())
def test_a_wal_body_becomes_the_frame_of_its_record(
    batch: RecordBatch, topic_id: int, first_seq: int, ts: int, durable: bool
) -> None:
    """Type, topic id and the flags of the write are left out; the rest is the same."""
    _, bodies = wal_frame.encode_appends(topic_id, first_seq, ts, batch, durable=durable)
    tags, nodes = batch.tags or [None] * len(batch), batch.nodes or [None] * len(batch)
    for place, body in enumerate(bodies):
        tag, node = tags[place], nodes[place]
        assert segment.from_wal_body(body) == segment.encode(
            Record(
                seq=first_seq + place,
                ts=ts,
                node=None if node is None else node.decode(),
                tag=None if tag is None else tag.decode(),
                data=batch.envelopes[place][5:-1],
                meta=None,
            )
        )


def test_the_delete_byte_alone_says_whether_a_record_is_deleted() -> None:
    frame = segment.encode(record())
    for byte in range(256):
        found = segment.check(frame[:-1] + bytes((byte,)), 0, len(frame))
        assert found.deleted == (byte == 0xD5)
        assert found[:-1] == segment.check(frame, 0, len(frame))[:-1]


def test_b01_a_frame_cut_at_any_byte_is_torn_and_all_before_it_is_kept() -> None:
    """B01, for an active segment."""
    before, last = segment.encode(record(1)), segment.encode(record(2, b'{"a":"b"}'))
    for size in range(1, len(last)):
        walk = segment.walk(before + last[:size], 0, len(before) + size)
        assert next(walk).seq == 1
        with pytest.raises(Torn) as caught:
            next(walk)
        assert caught.value.offset == len(before)


@given(data=st.data())
def test_c06_any_flipped_byte_gives_an_error_or_for_the_delete_byte_the_same_record(data: st.DataObject) -> None:
    """Never another record."""
    frame = segment.encode(Record(3, 4, "n", "t", b'{"a":1}', b"null"))
    position, bits = data.draw(flips(len(frame)))
    flipped = flip(frame, position, bits)
    if position == len(frame) - 1:
        assert read(flipped) == read(frame)
    else:
        with pytest.raises(FormatError):
            segment.check(flipped, 0, len(flipped))


def test_c06_a_bad_frame_leaves_its_neighbours_readable() -> None:
    """The error names the offset of the bad one."""
    frames = [segment.encode(record(seq, b"%d" % seq)) for seq in (1, 2, 3)]
    size = len(frames[0])
    buffer = frames[0] + flip(frames[1], 30, 1) + frames[2]
    assert [segment.check(buffer, at, len(buffer)).seq for at in (0, 2 * size)] == [1, 3]
    with pytest.raises(
        BadFrame, match=r"checksum does not agree: stored [0-9a-f]{16}, computed [0-9a-f]{16}"
    ) as caught:
        segment.check(buffer, size, len(buffer))
    assert caught.value.offset == size


@pytest.mark.parametrize("size", [1, 37, 38, 39, 4096])
def test_b06_zeros_are_never_a_frame(size: int) -> None:
    with pytest.raises(FormatError):
        segment.check(bytes(size), 0, size)


@pytest.mark.parametrize("frame_len", [0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 33, 34, 4, 0])
def test_b08_a_length_that_cannot_be_is_refused(frame_len: int) -> None:
    """Also when the lengths inside agree with it."""
    frame = raw_frame(frame_len=frame_len)
    with pytest.raises(BadFrame):
        segment.check(frame, 0, len(frame))
    if frame_len > 34:
        frame = raw_frame(frame_len=frame_len, data_len=frame_len - 34)
        with pytest.raises(Torn):
            segment.check(frame, 0, len(frame))


@pytest.mark.parametrize(
    ("tag", "node", "flags"), [(b"t", b"", 2), (b"", b"n", 1), (b"t", b"n", 0), (b"", b"", 4), (b"", b"", 0x80)]
)
def test_flags_that_are_unknown_or_do_not_fit_are_a_bad_frame(tag: bytes, node: bytes, flags: int) -> None:
    frame = raw_frame(flags=flags, tag=tag, node=node)
    with pytest.raises(BadFrame, match=f"flags {flags} "):
        segment.check(frame, 0, len(frame))


@given(offset=st.integers(0, 300), end=st.integers(0, 300))
def test_c05_whatever_place_an_index_names_there_is_a_whole_frame_or_an_error(offset: int, end: int) -> None:
    """And the frame says which seq it is."""
    frames = [segment.encode(record(seq)) for seq in (1, 2, 3)]
    buffer, size = b"".join(frames), len(frames[0])
    if offset % size == 0 and offset + size <= min(end, len(buffer)):
        found = segment.check(buffer, offset, end)
        assert (found.offset, found.end) == (offset, offset + size)
        assert found.seq == offset // size + 1
    else:
        with pytest.raises(FormatError) as caught:
            segment.check(buffer, offset, end)
        assert caught.value.offset == offset


@given(garbage=st.binary(max_size=120), offset=st.integers(0, 130), end=st.integers(0, 130))
def test_any_bytes_are_a_frame_or_raise_a_documented_error(garbage: bytes, offset: int, end: int) -> None:
    with pytest.raises(FormatError):
        segment.check(garbage, offset, end)


@given(
    data=st.binary(max_size=30) | st.binary(max_size=12).map(envelope.encode),
    tag=st.binary(max_size=4),
    node=st.binary(max_size=4),
)
def test_any_bytes_under_a_right_checksum_are_a_record_or_a_bad_frame(data: bytes, tag: bytes, node: bytes) -> None:
    buffer = raw_frame(flags=3, tag=tag, node=node, data=data)
    found = segment.check(buffer, 0, len(buffer))
    try:
        decoded = segment.decode(buffer, found)
    except BadFrame:
        return
    assert decoded.tag == tag.decode()
    assert decoded.node == node.decode()
    assert envelope.encode(decoded.data, decoded.meta) == data


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (raw_frame(flags=1, tag=b"\xff"), "tag or node is not UTF-8"),
        (raw_frame(flags=2, node=b"\xed\xa0\x80"), "tag or node is not UTF-8"),
        (raw_frame(data=b"null"), "the payload is not an envelope"),
    ],
    ids=["tag", "node", "payload"],
)
def test_a_valid_frame_that_holds_no_record_is_a_bad_frame_with_its_offset(frame: bytes, message: str) -> None:
    buffer = segment.encode(record(0)) + frame
    first, second = segment.walk(buffer, 0, len(buffer))
    assert segment.decode(buffer, first) == record(0)
    with pytest.raises(BadFrame, match=message) as caught:
        segment.decode(buffer, second)
    assert caught.value.offset == first.end


def test_a_walk_gives_ascending_seqs_with_gaps_where_seqs_never_got_a_record() -> None:
    buffer = b"".join(segment.encode(record(seq)) for seq in (0, 1, 5, U64_MAX))
    assert [frame.seq for frame in segment.walk(buffer, 0, len(buffer))] == [0, 1, 5, U64_MAX]
    assert list(segment.walk(buffer, len(buffer), len(buffer))) == []


@pytest.mark.parametrize("seq", [1, 2])
def test_a_seq_that_does_not_ascend_ends_the_walk(seq: int) -> None:
    buffer = segment.encode(record(2)) + segment.encode(record(seq))
    walk = segment.walk(buffer, 0, len(buffer))
    next(walk)
    with pytest.raises(BadFrame, match=f"seq {seq} follows seq 2"):
        next(walk)


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_gives_the_same_records(make: type[bytes]) -> None:
    expected = [Record(1, 2, "n", "t", b"1", None), Record(2, 2, None, "", b"2", b"null")]
    buffer = make(b"".join(map(segment.encode, expected)))
    assert [segment.decode(buffer, frame) for frame in segment.walk(buffer, 0, len(buffer))] == expected
    assert segment.frame_checksum(buffer) == bytes(buffer[-9:-1])


def test_a_map_can_be_closed_while_the_error_is_handled() -> None:
    mapped: Any = mmap.mmap(-1, 4096)
    try:
        segment.check(mapped, 0, len(mapped))
    except BadFrame:
        mapped.close()
    assert mapped.closed


def test_a_scan_finds_what_a_walk_finds_before_it_raises() -> None:
    frames = [segment.encode(record(seq)) for seq in (3, 4, 7)]
    data = b"".join(frames)
    for bad in (b"", frames[0], frames[2][:-1], b"\xff" * 60):
        walked = list(segment.walk(data, 0, len(data)))
        found = segment.scan(data + bad, 0, len(data + bad))
        assert list(found.seqs) == [frame.seq for frame in walked]
        assert list(found.ends) == [frame.end for frame in walked]
        assert [number.to_bytes(8, "little") for number in found.checksums] == [
            frame.checksum_in(data) for frame in walked
        ]
        assert list(found.part(1, 2).seqs) == [4]

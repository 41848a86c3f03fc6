"""Snapshots: what is written comes back, and a bad one is recognised before it is parsed."""

from pathlib import Path
from struct import pack
from typing import Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from tests.formats.strategies import flip, flips, texts, u64
from topics.errors import BadFrame, FormatError, FutureVersion, Torn
from topics.formats import snapshot
from topics.formats.snapshot import (
    GroupState,
    KeyState,
    LeaseState,
    SegmentState,
    Snapshot,
    TopicState,
    WalPosition,
    WriterState,
)

ranges: Final = st.lists(st.tuples(u64, u64), max_size=2)
segments: Final = st.builds(
    SegmentState,
    first_seq=u64,
    entry_count=u64,
    data_bytes=u64,
    first_ts=u64,
    last_ts=u64,
    live_count=u64,
    live_bytes=u64,
    sealed=st.booleans(),
    tier=st.sampled_from(("hot", "cold")),
    created_ts=u64,
    tagged_count=u64,
    digest=st.binary(max_size=16),
)
topics: Final = st.builds(
    TopicState,
    name=texts,
    id=u64,
    epoch=u64,
    config=st.dictionaries(texts, st.none() | st.booleans() | u64 | texts, max_size=2),
    head_seq=u64,
    last_ts=u64,
    cap_floor=u64,
    ttl_floor=u64,
    trim_floor=u64,
    delete_below=u64,
    first_live=u64,
    checkpointed_seq=u64,
    segments=st.lists(segments, max_size=2),
    ceiling=u64,
    lost=ranges,
    keys=st.lists(st.builds(KeyState, texts, u64, u64, u64, u64), max_size=2),
    leases=st.lists(st.builds(LeaseState, u64, u64, u64, texts, u64), max_size=2),
    lease_ceiling=u64,
    moved=st.lists(u64, max_size=2),
    groups=st.lists(st.builds(GroupState, texts, u64, u64), max_size=2),
    pending_deletes=ranges,
)
positions: Final = st.builds(WalPosition, u64, u64, u64)


def small() -> Snapshot:
    entry = snapshot.encode_topic(TopicState(name="orders", id=1, epoch=1, config={"ttl_ms": 5}, head_seq=3))
    return Snapshot(number=2, next_topic_id=2, wal=[WalPosition(10, 1, 4096)], topics=[entry])


def sealed(body: bytes, *, magic: bytes = b"TSNP", version: int = 1, reserved: int = 0) -> bytes:
    """A snapshot file with a right length and checksum around any body."""
    return magic + pack("<IIIQ", version, len(body), reserved, xxh3_64_intdigest(body)) + body


def test_a_snapshot_has_the_documented_layout() -> None:
    body = msgspec.msgpack.encode({"number": 3, "next_topic_id": 4, "wal": [[5, 6, 7]]})
    assert snapshot.encode(Snapshot(number=3, next_topic_id=4, wal=[WalPosition(5, 6, 7)])) == sealed(body)


@given(
    number=u64, next_topic_id=u64, wal=st.lists(positions, min_size=1, max_size=3), states=st.lists(topics, max_size=2)
)
def test_a_snapshot_comes_back(
    number: int, next_topic_id: int, wal: list[WalPosition], states: list[TopicState]
) -> None:
    written = Snapshot(number, next_topic_id, wal, [snapshot.encode_topic(state) for state in states])
    read = snapshot.decode(snapshot.encode(written))
    assert (read.number, read.next_topic_id, read.wal) == (number, next_topic_id, wal)
    assert [snapshot.decode_topic(entry) for entry in read.topics] == states


def test_a_topic_that_did_not_change_is_written_again_as_it_was_read() -> None:
    once = snapshot.encode(small())
    assert snapshot.encode(snapshot.decode(once)) == once


def test_a_segment_knows_its_last_seq() -> None:
    state = SegmentState(11, 10, 1, 2, 3, 4, 5)
    assert state.last_seq == 20


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_gives_the_same_snapshot(make: type[bytes]) -> None:
    read = snapshot.decode(make(snapshot.encode(small())))
    assert snapshot.decode_topic(read.topics[0]).name == "orders"


def test_a_snapshot_cut_at_any_byte_is_torn() -> None:
    buffer = snapshot.encode(small())
    for size in range(len(buffer)):
        with pytest.raises(Torn):
            snapshot.decode(buffer[:size])
    with pytest.raises(Torn):
        snapshot.decode(buffer + b"\0")


def test_d06_every_single_bit_of_a_snapshot_counts() -> None:
    """In its length fields above all. Only the version may look like one from the future."""
    buffer = snapshot.encode(small())
    for position in range(len(buffer)):
        for bit in range(8):
            with pytest.raises((FormatError, FutureVersion)) as caught:
                snapshot.decode(flip(buffer, position, 1 << bit))
            assert isinstance(caught.value, FutureVersion) == (4 <= position < 8 and (position, bit) != (4, 0))


@given(data=st.data())
def test_d06_any_flipped_byte_is_an_error(data: st.DataObject) -> None:
    buffer = snapshot.encode(small())
    with pytest.raises((FormatError, FutureVersion)):
        snapshot.decode(flip(buffer, *data.draw(flips(len(buffer)))))


def test_b18_a_newer_version_is_named_whatever_the_rest_of_it_looks_like() -> None:
    """Its length and checksum may mean something else."""
    for buffer in (sealed(b"\x80", version=2), sealed(b"\x80", version=2)[:-1], flip(sealed(b"", version=2), 16, 1)):
        with pytest.raises(FutureVersion, match=r"snapshot version 2 is unknown \(this is 1\)"):
            snapshot.decode(buffer)


def test_what_is_not_a_snapshot_is_refused() -> None:
    body = snapshot.encode(small())[24:]
    assert snapshot.decode(sealed(body)).number == 2
    for buffer in (
        sealed(body, magic=b"TSNQ"),
        sealed(body, version=0),
        sealed(body, reserved=1),
        sealed(b""),
        sealed(b"\x80"),
        sealed(body + b"\0"),
        bytes(24),
        bytes(1000),
    ):
        with pytest.raises(BadFrame):
            snapshot.decode(buffer)


@given(garbage=st.binary(max_size=60))
def test_any_bytes_are_a_snapshot_or_a_documented_error(garbage: bytes) -> None:
    for buffer in (garbage, sealed(garbage), b"TSNP" + garbage):
        with pytest.raises((FormatError, FutureVersion)):
            snapshot.decode(buffer)
    with pytest.raises(BadFrame):
        snapshot.decode_topic(garbage)


@pytest.mark.parametrize(
    "bomb", [b"\xdd\xff\xff\xff\xff", b"\x91" * 100_000, b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xa1\xff"]
)
def test_k11_a_bomb_under_a_right_checksum_is_a_bad_frame(bomb: bytes) -> None:
    for body in (bomb, b"\x81\xa3wal" + bomb, b"\x81\xa6topics" + bomb, b"\x81\xa5other" + bomb):
        with pytest.raises(BadFrame):
            snapshot.decode(sealed(body))
        with pytest.raises(BadFrame):
            snapshot.decode_topic(body)


@pytest.mark.parametrize(
    "change",
    [{"head_seq": -1}, {"id": "1"}, {"segments": [{}]}, {"lost": [[1]]}, {"lost": [[1, -2]]}, {"keys": [["a", 1]]}],
)
def test_a_topic_entry_of_another_shape_is_refused(change: dict[str, object]) -> None:
    members = {"name": "a", "id": 1, "epoch": 1, "config": {}}
    assert snapshot.decode_topic(msgspec.msgpack.encode(members)).name == "a"
    with pytest.raises(BadFrame, match="not a topic entry: "):
        snapshot.decode_topic(msgspec.msgpack.encode(members | change))


def test_a_tier_that_is_not_known_is_refused() -> None:
    state = SegmentState(1, 1, 1, 1, 1, 1, 1, tier="glacier")  # type: ignore[arg-type]
    entry = snapshot.encode_topic(TopicState("a", 1, 1, {}, segments=[state]))
    with pytest.raises(BadFrame):
        snapshot.decode_topic(entry)


@pytest.mark.parametrize(
    "kind", [Snapshot, TopicState, SegmentState, WalPosition, KeyState, LeaseState, GroupState, WriterState]
)
def test_every_member_is_documented(kind: type[msgspec.Struct]) -> None:
    """Those of a map by its name, those of an array by the list of them."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "formats.md").read_text("utf-8")
    names = kind.__struct_fields__
    if kind.__struct_config__.array_like:
        assert f"`[{', '.join(names)}]`" in text
    else:
        assert [name for name in names if f"`{name}`" not in text] == []

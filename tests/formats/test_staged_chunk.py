"""Staged chunks: what was put in comes out, and no changed byte goes unnoticed."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import BadFrame, FormatError, FutureVersion, Torn
from topics.formats import envelope, staged_chunk, wal_frame
from topics.formats.records import RecordBatch
from topics.formats.staged_chunk import HEAD_BYTES_MAX, LEAD_BYTES, ChunkHead

labels = st.none() | st.binary(max_size=4)
records = st.lists(st.tuples(st.sampled_from([b"1", b'"x"', b'{"m":2}']), st.booleans(), labels, labels), min_size=1)


def chunk_of(batch: RecordBatch) -> tuple[ChunkHead, bytes]:
    head = ChunkHead(7, "w:1", 2**64 - 1, 0, 3, 4, 1_763_000_000_000, len(batch), batch.size_bytes)
    return head, staged_chunk.encode(head, batch)


def small_batch() -> RecordBatch:
    envelopes = [envelope.encode(b"1", None), envelope.encode(b'{"a":2}', b"{}"), envelope.encode(b"3", None)]
    return RecordBatch(envelopes, [1, 9, 1], [None, b"t", b""], None)


@given(records)
def test_records_come_back_with_their_labels(rows: list[tuple[bytes, bool, bytes | None, bytes | None]]) -> None:
    envelopes = [envelope.encode(data, b'{"k":1}' if has_meta else None) for data, has_meta, _, _ in rows]
    tags = [tag for _, _, tag, _ in rows]
    nodes = [node for _, _, _, node in rows]
    batch = RecordBatch(envelopes, list(map(envelope.accounted_bytes, envelopes)), tags, nodes)
    head, data = chunk_of(batch)
    found_head, found = staged_chunk.decode(data)
    assert found_head == head
    assert staged_chunk.decode_head(data[: LEAD_BYTES + HEAD_BYTES_MAX])[0] == head
    assert (found.envelopes, found.sizes, found.size_bytes) == (envelopes, batch.sizes, batch.size_bytes)
    assert list(found.tags or [None] * len(rows)) == tags
    assert list(found.nodes or [None] * len(rows)) == nodes


def test_every_changed_bit_and_every_lost_byte_is_noticed() -> None:
    _, data = chunk_of(small_batch())
    for place in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            with pytest.raises((FormatError, FutureVersion)):
                staged_chunk.decode(bytes(changed))
        with pytest.raises(FormatError):
            staged_chunk.decode(data[:place])
    with pytest.raises(FormatError):
        staged_chunk.decode(data + bytes(1))
    with pytest.raises(FormatError):
        staged_chunk.decode(data + bytes(100))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_chunk_or_the_documented_error(data: bytes) -> None:
    with pytest.raises((FormatError, FutureVersion)):
        staged_chunk.decode(data)


def test_a_newer_version_is_told_apart_from_damage() -> None:
    _, data = chunk_of(small_batch())
    with pytest.raises(FutureVersion, match="version 2 is unknown"):
        staged_chunk.decode(data[:4] + struct.pack("<I", 2) + data[8:])
    with pytest.raises(BadFrame, match="wrong magic"):
        staged_chunk.decode(b"TSNP" + data[4:])
    with pytest.raises(Torn):
        staged_chunk.decode(data[:10])


def test_frames_of_others_and_other_counts_are_refused() -> None:
    batch = small_batch()
    head, data = chunk_of(batch)
    start = staged_chunk.decode_head(data)[1]
    for first_seq in (2, 7):
        frames, _ = wal_frame.encode_appends(7, first_seq, head.ts, batch, durable=False, opens=False, closes=False)
        with pytest.raises(BadFrame, match="not its records"):
            staged_chunk.decode(data[:start] + frames)
    one, _ = wal_frame.encode_appends(7, 1, head.ts, RecordBatch(batch.envelopes[:1], [1]), durable=False)
    with pytest.raises(BadFrame, match="1 whole records of 3"):
        staged_chunk.decode(data[:start] + one)


def test_the_bytes_are_those_of_the_page() -> None:
    """docs/formats.md: magic, version, head, frames from seq 1 on, all from the middle of a write."""
    head, data = chunk_of(small_batch())
    assert data[:8] == b"TSTG" + struct.pack("<I", 1)
    start = staged_chunk.decode_head(data)[1]
    frames = list(wal_frame.walk(data, start, len(data), 1 << 20))
    assert [(frame.topic_id, frame.seq, frame.ts) for frame in frames] == [(7, seq, head.ts) for seq in (1, 2, 3)]
    assert {frame.flags & (wal_frame.FLAG_FIRST | wal_frame.FLAG_MORE) for frame in frames} == {wal_frame.FLAG_MORE}

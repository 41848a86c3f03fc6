"""Staged chunks: what was put in comes out, and no changed byte goes unnoticed."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from topics.errors import BadFrame, FormatError, FutureVersion, Torn
from topics.formats import envelope, staged_chunk
from topics.formats.records import RecordBatch
from topics.formats.staged_chunk import HEAD_BYTES_MAX, LEAD_BYTES, ChunkHead

labels = st.none() | st.binary(max_size=4)
records = st.lists(st.tuples(st.sampled_from([b"1", b'"x"', b'{"m":2}']), st.booleans(), labels, labels), min_size=1)


def chunk_of(batch: RecordBatch) -> tuple[ChunkHead, bytes]:
    has_labels = batch.tags is not None or batch.nodes is not None
    head = ChunkHead(
        7, "w:1", 2**64 - 1, 0, 3, 4, 1_763_000_000_000, len(batch), batch.size_bytes, has_labels=has_labels
    )
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
    assert (found.envelopes, list(found.sizes), found.size_bytes) == (envelopes, batch.sizes, batch.size_bytes)
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


def rebuilt(data: bytes, columns: bytes) -> bytes:
    """The chunk with other columns, under a checksum that agrees."""
    start = staged_chunk.decode_head(data)[1]
    return data[:start] + columns + struct.pack("<Q", xxh3_64_intdigest(columns))


def test_columns_that_are_not_the_records_of_the_head_are_refused() -> None:
    _, data = chunk_of(small_batch())
    columns = data[staged_chunk.decode_head(data)[1] : -8]
    assert staged_chunk.decode(rebuilt(data, columns))[1].sizes == (1, 9, 1)
    with pytest.raises(Torn, match="inside its records"):
        staged_chunk.decode(rebuilt(data, columns[:-1]))
    with pytest.raises(BadFrame, match="not the records"):
        staged_chunk.decode(rebuilt(data, columns + b"x"))
    with pytest.raises(BadFrame, match="not the records"):
        # Another accounted size.
        staged_chunk.decode(rebuilt(data, columns[:12] + b"\x02" + columns[13:]))
    with pytest.raises(Torn, match="before its 3 records"):
        staged_chunk.decode(rebuilt(data, columns[:20]))


def test_the_bytes_are_those_of_the_page() -> None:
    """docs/formats.md: magic, version, head, then lengths, sizes, flags, label lengths and contents."""
    _, data = chunk_of(small_batch())
    assert data[:8] == b"TSTG" + struct.pack("<I", 1)
    columns = data[staged_chunk.decode_head(data)[1] : -8]
    envelopes = [b'{"d":1}', b'{"d":{"a":2},"m":{}}', b'{"d":3}']
    assert columns == b"".join(
        (
            struct.pack("<3I", *map(len, envelopes)),
            struct.pack("<3I", 1, 9, 1),
            bytes((0, 1, 1)),
            struct.pack("<3H", 0, 1, 0),
            struct.pack("<3H", 0, 0, 0),
            *envelopes,
            b"t",
        )
    )


def test_records_without_labels_have_no_columns_for_them() -> None:
    head, data = chunk_of(RecordBatch([b'{"d":1}'], [1]))
    assert not head.has_labels
    assert len(data) == staged_chunk.decode_head(data)[1] + 4 + 4 + 7 + 8

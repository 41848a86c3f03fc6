"""Records as the contract shows them."""

import json
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.formats import envelope, segment, wal_frame
from topics.formats.record_layout import SEGMENT_BODY, WAL_BODY
from topics.formats.records import RecordBatch
from topics.protocol.record_text import pieces_of, record_texts

FIRST_SEQ = 7
TS = 1_790_000_000_123


class Written(NamedTuple):
    data: Any
    meta: Any
    tag: str | None
    node: str | None
    has_meta: bool


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | st.sampled_from(["d", "m", "data"]), inner, max_size=3)
    ),
    max_leaves=6,
)
labels = st.none() | st.text(max_size=20)
written = st.builds(Written, json_values, json_values, labels, labels, st.booleans())


def bodies_of(records: list[Written], **dumps: Any) -> list[bytes]:
    """WAL bodies, as the log makes them."""
    pairs = [
        (json.dumps(record.data, **dumps).encode(), json.dumps(record.meta, **dumps).encode()) for record in records
    ]
    envelopes = [
        envelope.encode(data, meta if record.has_meta else None)
        for record, (data, meta) in zip(records, pairs, strict=True)
    ]
    tags = [None if record.tag is None else record.tag.encode() for record in records]
    nodes = [None if record.node is None else record.node.encode() for record in records]
    batch = RecordBatch(
        envelopes,
        [len(text) for text in envelopes],
        None if tags.count(None) == len(tags) else tags,
        None if nodes.count(None) == len(nodes) else nodes,
    )
    return wal_frame.encode_appends(1, FIRST_SEQ, TS, batch, durable=False)[1]


def segment_raws(bodies: list[bytes]) -> list[bytes]:
    """The same records as a reader of segments hands them out: flags and core."""
    return [segment.from_wal_body(body)[4 : -segment.TRAILER_BYTES] for body in bodies]


def expected(record: Written, seq: int, *, include_tags: bool, include_meta: bool) -> dict[str, Any]:
    members: dict[str, Any] = {"$seq": seq, "$ts": TS, "data": record.data}
    if record.node is not None:
        members["$node"] = record.node
    if record.tag is not None and include_tags:
        members["$tag"] = record.tag
    if record.has_meta and include_meta:
        members["meta"] = record.meta
    return members


def no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({name for name, _ in pairs}) == len(pairs)
    return dict(pairs)


@pytest.mark.parametrize("form", ["log", "segment"])
@given(
    st.lists(written, min_size=1, max_size=4),
    st.booleans(),
    st.booleans(),
    st.sampled_from([{}, {"ensure_ascii": False}, {"separators": (",", ":")}]),
)
def test_what_is_rendered_parses_back_to_what_was_written(
    form: str, records: list[Written], include_tags: bool, include_meta: bool, dumps: dict[str, Any]
) -> None:
    bodies = bodies_of(records, **dumps)
    chunk = (WAL_BODY, bodies) if form == "log" else (SEGMENT_BODY, segment_raws(bodies))
    texts = record_texts([chunk], include_tags=include_tags, include_meta=include_meta)
    assert [json.loads(text, object_pairs_hook=no_repeats) for text in texts] == [
        expected(record, seq, include_tags=include_tags, include_meta=include_meta)
        for seq, record in enumerate(records, FIRST_SEQ)
    ]


def test_payload_bytes_are_cut_out_as_they_are() -> None:
    data, meta = b'{ "a" : 1e5,"a":2, "m":{},"x":"\\u0041"}', b'[ 1 ,{"m":2}]'
    batch = RecordBatch([envelope.encode(data), envelope.encode(data, meta)], [1, 1])
    bodies = wal_frame.encode_appends(1, FIRST_SEQ, TS, batch, durable=True)[1]
    first, second = record_texts([(WAL_BODY, bodies)], include_tags=True, include_meta=True)
    assert first == b'{"$seq":7,"$ts":%d,"data":%b}' % (TS, data)
    assert second == b'{"$seq":8,"$ts":%d,"data":%b,"meta":%b}' % (TS, data, meta)


def test_chunks_of_both_forms_follow_each_other() -> None:
    bodies = bodies_of([Written(number, None, None, None, has_meta=False) for number in range(4)])
    chunks = [(SEGMENT_BODY, segment_raws(bodies[:2])), (WAL_BODY, bodies[2:])]
    texts = record_texts(chunks, include_tags=False, include_meta=False)
    assert [json.loads(text)["$seq"] for text in texts] == [7, 8, 9, 10]


def test_nothing_is_rendered_of_nothing() -> None:
    assert record_texts([], include_tags=True, include_meta=True) == []


def test_a_page_is_cut_into_pieces_and_nothing_is_lost() -> None:
    chunks = [(WAL_BODY, [b"x" * size for size in (5, 20, 1, 1, 1, 40)]), (SEGMENT_BODY, [b"y" * 3])]
    assert list(pieces_of(chunks, 100)) == [chunks]
    pieces = list(pieces_of(chunks, 20))
    assert [[len(raw) for _, raws in piece for raw in raws] for piece in pieces] == [[5, 20], [1, 1, 1, 40], [3]]
    assert [form for piece in pieces for form, _ in piece] == [WAL_BODY, WAL_BODY, SEGMENT_BODY]

"""Messages as records, and records as messages."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.formats.envelope import split
from topics.formats.records import Record
from topics.formats.user_headers import encode_user_headers
from topics.limits import RECORD_BYTES_MAX
from topics.server.bridges.copies import WRITE_BYTES, copies_of, message_of
from topics.server.bridges.definition import BridgeSpec
from topics.streams.partitions.batch import NewMessage, encode_send
from topics.streams.partitions.message_view import MessageView

FROM = BridgeSpec("stream:s/t", "a")
TO = BridgeSpec("a", "stream:s/t")


def views(*messages: NewMessage) -> list[MessageView]:
    batch = encode_send(list(messages))
    return [
        MessageView(batch.buffer, int(start), int(end)) for start, end in zip(batch.starts, batch.ends, strict=True)
    ]


def copied(*messages: NewMessage, spec: BridgeSpec = FROM) -> list[tuple[Any, Any, str | None, str | None]]:
    """Data, meta, tag and node of the copies."""
    rows: list[tuple[Any, Any, str | None, str | None]] = []
    for copies in copies_of(views(*messages), 3, spec):
        batch = copies.batch
        for place, envelope in enumerate(batch.envelopes):
            data, meta = split(envelope)
            tag = None if batch.tags is None else batch.tags[place]
            node = None if batch.nodes is None else batch.nodes[place]
            rows.append(
                (
                    json.loads(data),
                    None if meta is None else json.loads(meta),
                    None if tag is None else tag.decode(),
                    None if node is None else node.decode(),
                )
            )
    return rows


def test_json_is_copied_as_it_is_and_other_bytes_as_base64() -> None:
    payloads = [b'{"id":1}', b"not json", b"\xff\x00", b"[1,2]"]
    assert [row[0] for row in copied(*map(NewMessage, payloads))] == [
        {"id": 1},
        {"base64": base64.b64encode(b"not json").decode()},
        {"base64": base64.b64encode(b"\xff\x00").decode()},
        [1, 2],
    ]


def test_the_meta_says_where_the_message_was() -> None:
    ((_, meta, tag, node),) = copied(NewMessage(b"1", id=0xABC))
    assert meta == {"stream": {"partition": 3, "offset": 0, "timestamp_us": 0, "id": f"{0xABC:032x}"}}
    assert (tag, node) == (None, None)


def test_user_headers_are_in_the_meta_and_give_tag_and_node() -> None:
    headers = {"topics.tag": "x", "topics.node": "n1", "count": 7, "big": 2**60, "raw": b"\xff", "ok": True}
    message = NewMessage(b"1", user_headers=encode_user_headers(headers))
    ((_, meta, tag, node),) = copied(message)
    assert (tag, node) == ("x", "n1")
    assert meta["headers"] == {
        "topics.tag": "x",
        "topics.node": "n1",
        "count": 7,
        "big": str(2**60),
        "raw": {"base64": "/w=="},
        "ok": True,
    }
    ((_, _, tag, node),) = copied(message, spec=BridgeSpec("stream:s/t", "a", preserve_node=False, preserve_tag=False))
    assert (tag, node) == (None, None)


def test_headers_that_do_not_fit_are_left_out_and_told() -> None:
    headers = encode_user_headers({f"k{number}": "v" * 200 for number in range(61)})
    ((_, meta, _, _),) = copied(NewMessage(b"1", user_headers=headers))
    assert "headers" not in meta
    assert meta["stream"]["headers_bytes"] == len(headers)


def test_a_payload_that_is_too_large_for_a_record_is_told() -> None:
    huge = b'"' + b"x" * RECORD_BYTES_MAX + b'"'
    rows = copied(NewMessage(b"1"), NewMessage(huge), NewMessage(b"2"))
    assert [row[0] for row in rows] == [1, None, 2]
    assert rows[1][1]["stream"]["too_large_bytes"] == len(huge)


def test_a_write_has_a_bounded_size_and_ends_at_its_last_message() -> None:
    payload = b'"' + b"x" * (WRITE_BYTES // 3) + b'"'
    copies = list(copies_of(views(*[NewMessage(payload)] * 5), 0, FROM))
    assert [each.message_count for each in copies] == [2, 2, 1]


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=10))
def test_every_payload_comes_back(payloads: list[bytes]) -> None:
    for payload, (data, _, _, _) in zip(payloads, copied(*map(NewMessage, payloads)), strict=True):
        if isinstance(data, dict) and data.keys() == {"base64"}:
            assert base64.b64decode(data["base64"]) == payload
        else:
            assert data == json.loads(payload)


# Into a stream.


def test_a_record_is_a_message_with_its_numbers_in_headers() -> None:
    record = Record(7, 1000, "n1", "x", b'{"id":1}', b'{"m":1}')
    message = message_of(record, "a", 5, 2, TO)
    assert bytes(message.payload) == b'{"id":1}'
    assert message.id == 5 << 96 | 2 << 64 | 7
    assert message.origin_timestamp == 1_000_000
    assert message.user_headers == {
        "topics.topic": "a",
        "topics.seq": 7,
        "topics.ts": 1000,
        "topics.tag": "x",
        "topics.node": "n1",
        "topics.meta": '{"m":1}',
    }


@pytest.mark.parametrize("preserves", [True, False])
def test_a_copy_that_comes_back_has_its_labels_if_they_are_preserved(*, preserves: bool) -> None:
    spec = BridgeSpec("a", "stream:s/t", preserve_node=preserves, preserve_tag=preserves)
    record = Record(7, 1000, "n1", "x", b"1", None)
    ((data, _, tag, node),) = copied(message_of(record, "a", 5, 2, spec))
    assert (data, tag, node) == (1, "x" if preserves else None, "n1" if preserves else None)


def test_a_long_meta_is_left_out_and_told() -> None:
    meta = b'{"m":"' + b"x" * 300 + b'"}'
    message = message_of(Record(1, 1, None, None, b"1", meta), "a", 1, 1, TO)
    assert isinstance(message.user_headers, dict)
    assert message.user_headers["topics.meta_bytes"] == len(meta)
    assert "topics.meta" not in message.user_headers

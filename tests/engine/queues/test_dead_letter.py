"""A dead letter keeps the content of its job and names the queue that it comes from."""

import msgspec
import pytest

from topics.engine.queues.dead_letter import dead_letter_batch, extended_meta
from topics.formats import envelope
from topics.formats.records import Record

ADDED = {"$dead_letter_from": "q"}


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        (None, b'{"$dead_letter_from":"q"}'),
        (b"{}", b'{"$dead_letter_from":"q"}'),
        (b"{ }", b'{"$dead_letter_from":"q"}'),
        (b'"text"', b'{"$dead_letter_from":"q"}'),
        (b"[1]", b'{"$dead_letter_from":"q"}'),
        (b"null", b'{"$dead_letter_from":"q"}'),
        (b'{"a":1.0}', b'{"a":1.0,"$dead_letter_from":"q"}'),
        (b' {"a" : 1e2, "b":"}" } ', b'{"a" : 1e2, "b":"}" ,"$dead_letter_from":"q"}'),
        (b'{"a":1,"a":2}', b'{"a":1,"a":2,"$dead_letter_from":"q"}'),
        (b'{"$dead_letter_from":"old","a":1.0}', b'{"a":1.0,"$dead_letter_from":"q"}'),
        (b'{"\\u0024dead_letter_from":"old"}', b'{"$dead_letter_from":"q"}'),
    ],
)
def test_members_come_behind_those_that_are_there(meta: bytes | None, expected: bytes) -> None:
    assert extended_meta(meta, ADDED) == expected


def test_the_record_stays_as_it_was() -> None:
    batch = dead_letter_batch(Record(7, 1, "node", "tag", b'{"x":1.50}', None), "jobs", 3, "")
    data, meta = envelope.split(batch.envelopes[0])
    assert (data, batch.tags, batch.nodes) == (b'{"x":1.50}', [b"tag"], [b"node"])
    assert msgspec.json.decode(meta or b"") == {
        "$dead_letter_from": "jobs",
        "$dead_letter_deliveries": "3",
        "$dead_letter_src_seq": "7",
    }
    assert batch.sizes == [envelope.accounted_bytes(batch.envelopes[0])]


def test_a_record_without_labels_gets_none() -> None:
    batch = dead_letter_batch(Record(7, 1, None, None, b"1", None), "jobs", 3, "")
    assert (batch.tags, batch.nodes) == (None, None)

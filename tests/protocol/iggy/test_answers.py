"""Answers: what is written is read again, byte by byte as clients know it."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.iggy.iggy_values import ANSWERS
from topics.formats.stream_permissions import Permissions
from topics.protocol.iggy import answers
from topics.protocol.iggy.answers import decode_records, encode_records


@pytest.mark.parametrize("kind", ANSWERS, ids=lambda kind: kind.__name__)
@settings(max_examples=25)
@given(data=st.data())
def test_what_is_written_is_read_again(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    records = data.draw(st.lists(ANSWERS[kind], max_size=3))
    assert decode_records(encode_records(*records), kind) == records


@given(ANSWERS[answers.TopicRecord], st.lists(ANSWERS[answers.PartitionRecord], max_size=3))
def test_a_record_is_followed_by_records_of_another_kind(topic: object, partitions: list[object]) -> None:
    data = encode_records(topic, *partitions)  # type: ignore[arg-type]
    assert decode_records(data, answers.TopicRecord, answers.PartitionRecord) == [topic, *partitions]


def test_records_have_the_sizes_that_clients_expect() -> None:
    name = "orders"
    sizes = {
        answers.StreamRecord(0, 0, 0, 0, 0, name): 33 + 6,
        answers.TopicRecord(0, 0, 0, 0, 1, 0, 1, 0, 0, name): 51 + 6,
        answers.PartitionRecord(0, 0, 0, 0, 0, 0): 40,
        answers.GroupRecord(0, 0, 0, name): 13 + 6,
        answers.ClientRecord(1, 0, 1, "1.2.3.4:5", 0): 17 + 9,
        answers.ClientGroupRecord(0, 0, 0): 12,
        answers.UserRecord(0, 0, 1, "iggy"): 14 + 4,
    }
    assert {record: len(encode_records(record)) for record in sizes} == sizes


def test_a_new_stream_is_answered_as_documented() -> None:
    created_at = 1_700_000_000_000_000
    record = answers.StreamRecord(0, created_at, 0, 0, 0, "orders")
    expected = "00000000" + created_at.to_bytes(8, "little").hex() + "00000000" + "00" * 16 + "066f7264657273"
    assert encode_records(record).hex() == expected


def test_a_user_without_permissions_ends_with_four_zero_bytes() -> None:
    user = answers.UserDetails(1, 0, 1, "ada", None)
    assert encode_records(user)[-4:] == bytes(4)
    with_some = encode_records(answers.UserDetails(1, 0, 1, "ada", Permissions(read_users=True)))
    assert with_some[17:] == b"\1" + (11).to_bytes(4, "little") + bytes([0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0])


def test_the_text_of_a_token_is_not_shown() -> None:
    assert "hush" not in repr(answers.TokenAnswer("hush"))

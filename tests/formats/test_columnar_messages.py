"""Messages by columns: their headers, and damage that is found and named."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.strategies import flip
from topics.errors import CorruptRecord
from topics.formats import columnar_messages, message, message_index
from topics.formats.columnar import GAP_COLUMNS
from topics.formats.columnar_messages import (
    COLUMNS,
    BodyDecoder,
    MessageTable,
    PartitionOrigin,
    locate_messages,
    message_batches,
)
from topics.formats.stream_layout import BodyOrder

ORIGIN: Final = PartitionOrigin("s", "t", 2)
WITH_GAPS: Final = COLUMNS + GAP_COLUMNS

Rows = list[dict[str, Any]]


class Stored(NamedTuple):
    log: bytes
    index: bytes
    first_offset: int


def make(bodies: Sequence[tuple[bytes, bytes]], order: BodyOrder = BodyOrder.PAYLOAD_FIRST, first: int = 40) -> Stored:
    """A segment of messages with these payloads and user headers."""
    messages = [
        message.encode_message(
            payload,
            user_headers,
            message_id=(place + 1) << 100 | 7,
            offset=first + place,
            timestamp=1_700_000_000_000_000 + place,
            origin_timestamp=place % 2 and 5_000 + place,
            order=order,
        )
        for place, (payload, user_headers) in enumerate(bodies)
    ]
    ends = np.cumsum([len(each) for each in messages], dtype=np.int64)
    times = np.array([1_700_000_000_000_000 + place for place in range(len(bodies))], dtype=np.uint64)
    return Stored(b"".join(messages), message_index.make_entries(0, ends, times).tobytes(), first)


def plain() -> Stored:
    return make([(b"payload-%d" % place, b"headers" if place % 3 == 1 else b"") for place in range(6)])


def locate(stored: Stored, **options: Any) -> MessageTable:
    return locate_messages(stored.log, stored.index, stored.first_offset, **options)


def rows_of(table: MessageTable, columns: Sequence[str] = COLUMNS, **options: Any) -> Rows:
    rows: Rows = []
    for batch in message_batches(table, ORIGIN, columns=columns, **options):
        batch.validate(full=True)
        assert batch.schema == columnar_messages.schema(columns)
        assert batch.num_rows
        for name in ("timestamp", "origin_timestamp"):
            position = batch.schema.get_field_index(name)
            if position >= 0:
                batch = batch.set_column(position, name, batch.column(name).view("int64"))
        rows += batch.to_pylist()
    return rows


bodies = st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=6)), max_size=8)


@given(bodies=bodies, order=st.sampled_from(BodyOrder), batch_records=st.integers(1, 5), with_index=st.booleans())
def test_all_columns_are_what_was_written(
    bodies: list[tuple[bytes, bytes]], order: BodyOrder, batch_records: int, with_index: bool
) -> None:
    """A message without user headers has null, and so has an origin timestamp of 0."""
    stored = make(bodies, order)
    table = locate_messages(stored.log, stored.index if with_index else None, 40)
    assert table.index_problem is None
    found = rows_of(table, WITH_GAPS, body=BodyDecoder(order=order), batch_records=batch_records)
    assert found == [
        {
            "stream": "s",
            "topic": "t",
            "partition": 2,
            "offset": 40 + place,
            "id": ((place + 1) << 100 | 7).to_bytes(16, "little").hex(),
            "timestamp": 1_700_000_000_000_000 + place,
            "origin_timestamp": 5_000 + place if place % 2 else None,
            "headers": user_headers or None,
            "payload": payload,
            "kind": "record",
            "gap_to": None,
            "gap_reason": None,
        }
        for place, (payload, user_headers) in enumerate(bodies)
    ]


@given(bodies=bodies, order=st.sampled_from(BodyOrder))
def test_bodies_are_given_as_the_functions_of_the_directory_make_them(
    bodies: list[tuple[bytes, bytes]], order: BodyOrder
) -> None:
    stored = make(bodies, order)
    body = BodyDecoder(order=order, payload=lambda data: bytes(data) * 2, user_headers=lambda data: bytes(data)[:1])
    found = rows_of(locate(stored), ("payload", "headers"), body=body)
    assert found == [{"payload": payload * 2, "headers": user_headers[:1] or None} for payload, user_headers in bodies]
    again = rows_of(locate(stored), ("payload",), body=BodyDecoder(order=order))
    assert [row["payload"] for row in again] == [payload for payload, _ in bodies], "the bytes are not changed"


def test_only_the_offsets_that_are_asked_for_are_given() -> None:
    table = locate(plain())
    for first, last in ((0, 100), (41, 43), (45, 45), (46, 99), (0, 39), (44, 41)):
        expected = [offset for offset in range(40, 46) if first <= offset <= last]
        found = rows_of(table, ("offset",), first_offset=first, last_offset=last)
        assert [row["offset"] for row in found] == expected


def test_every_changed_byte_of_a_log_is_found_and_named(full: bool) -> None:
    stored = plain()
    intact = rows_of(locate(stored), WITH_GAPS)
    ends = message_index.decode_entries(stored.index)["position"].tolist()
    for position in range(len(stored.log)):
        offset = 40 + next(place for place, end in enumerate(ends) if position < end)
        for bits in (1, 2, 4, 8, 16, 32, 64, 128, 255) if full else (1, 255):
            log = flip(stored.log, position, bits)
            for index in (stored.index, None):
                rows = rows_of(locate_messages(log, index, 40, last_offset=45), WITH_GAPS, on_corrupt="rows")
                gaps = [row for row in rows if row["kind"] == "gap"]
                assert len(gaps) == 1
                assert gaps[0]["offset"] == offset
                # Without an index a wrong length hides the messages after it.
                assert gaps[0]["gap_to"] == offset or index is None
                assert [row for row in rows if row["kind"] == "record"] == [
                    row for row in intact if not offset <= row["offset"] <= gaps[0]["gap_to"]
                ]


def test_every_changed_byte_of_an_index_is_reported_and_changes_no_row() -> None:
    stored = plain()
    expected = rows_of(locate(stored))
    for position in range(len(stored.index)):
        for bits in (1, 0xFF):
            table = locate(Stored(stored.log, flip(stored.index, position, bits), 40))
            assert table.index_problem is not None
            assert rows_of(table) == expected


@pytest.mark.parametrize(
    "index_of", [lambda index: b"", lambda index: index[:-1], lambda index: index[16:], lambda index: index * 2]
)
def test_an_index_that_is_short_long_or_shifted_is_repaired_and_reported(index_of: Any) -> None:
    stored = plain()
    table = locate(Stored(stored.log, index_of(stored.index), 40), last_offset=45)
    assert table.index_problem is not None
    assert rows_of(table) == rows_of(locate(stored))


def test_a_bad_length_under_a_bad_index_leaves_its_neighbours_readable() -> None:
    stored = plain()
    second = int(message_index.decode_entries(stored.index)["position"][0])
    log = flip(stored.log, second + message.PAYLOAD_LENGTH_AT, 0x40)
    table = locate(Stored(log, flip(stored.index, 5 * 16, 1), 40))
    rows = rows_of(table, WITH_GAPS, on_corrupt="rows")
    assert [(row["offset"], row["kind"]) for row in rows][:3] == [(40, "record"), (41, "gap"), (42, "record")]
    assert len(rows) == 6


def test_messages_that_are_missing_at_the_end_are_damage() -> None:
    stored = plain()
    ends = message_index.decode_entries(stored.index)["position"].tolist()
    for size in (ends[3], ends[3] + 10, ends[4] - 1):
        rows = rows_of(locate(stored._replace(log=stored.log[:size])), WITH_GAPS, on_corrupt="rows")
        assert [(row["offset"], row["gap_to"]) for row in rows if row["kind"] == "gap"] == [(44, 45)]


def test_the_error_names_partition_offset_and_position() -> None:
    stored = plain()
    third = int(message_index.decode_entries(stored.index)["position"][1])
    with pytest.raises(CorruptRecord) as caught:
        rows_of(locate(stored._replace(log=flip(stored.log, third + 70, 1))))
    assert caught.value.detail == {"topic": "s/t/2", "seq": 42}
    assert f"position {third}: checksum does not agree" in caught.value.message


def test_a_time_of_origin_beyond_all_timestamps_is_the_last_one() -> None:
    """A client may send any number as its time; the message is still valid."""
    log = message.encode_message(b"x", origin_timestamp=2**64 - 1)
    (row,) = rows_of(locate_messages(log, None, 0), ("origin_timestamp",))
    assert row["origin_timestamp"] == 2**63 - 1


def test_messages_of_another_server_have_no_bad_checksum(shared_fixtures: Path) -> None:
    logs = sorted((shared_fixtures / "iggy-0.8.0").rglob("*.log"))
    assert logs
    for path in logs:
        index = path.with_suffix(".index").read_bytes()
        table = locate_messages(path.read_bytes(), index, int(path.stem))
        assert table.index_problem is None
        rows = rows_of(table)
        assert [row["offset"] for row in rows] == list(range(int(path.stem), int(path.stem) + len(index) // 16))

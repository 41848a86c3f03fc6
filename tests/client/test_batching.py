"""Which records go together, and when."""

from __future__ import annotations

import pytest

from topics import NewRecord
from topics.client.batching import Batches, Entry, ProducerOptions, ProducerSettings, encoded
from topics.errors import InvalidRequest


def batches(**options: float) -> Batches[int]:
    return Batches(ProducerSettings.of(options))  # type: ignore[arg-type]


def add(made: Batches[int], number: int, *, size_bytes: int = 100, now_s: float = 0.0) -> None:
    made.add(Entry(NewRecord(number), size_bytes, now_s, number))


def taken(made: Batches[int]) -> list[int]:
    return [entry.future for entry in made.take()]


def test_a_batch_is_due_when_its_oldest_record_has_waited() -> None:
    made = batches(linger_ms=50)
    assert made.due_in_s(0.0) is None
    add(made, 1, now_s=10.0)
    add(made, 2, now_s=10.04)
    assert made.due_in_s(10.0) == pytest.approx(0.05)
    assert made.due_in_s(10.05) == 0.0
    assert taken(made) == [1, 2]


def test_a_batch_is_due_at_once_when_it_is_full_or_flushed() -> None:
    made = batches(linger_ms=1000, max_records=3)
    for number in range(4):
        add(made, number)
    assert made.due_in_s(0.0) == 0.0
    assert taken(made) == [0, 1, 2]
    made.landed()
    assert made.due_in_s(0.0) == 1.0
    made.flush()
    assert made.due_in_s(0.0) == 0.0
    assert taken(made) == [3]
    made.landed()
    assert made.is_idle


def test_a_batch_has_no_more_bytes_than_it_may_but_at_least_one_record() -> None:
    made = batches(max_bytes=250)
    for number, size_bytes in enumerate([100, 100, 100, 900, 10]):
        add(made, number, size_bytes=size_bytes)
    assert [taken(made), taken(made), taken(made), taken(made)] == [[0, 1], [2], [3], [4]]


def test_only_so_many_batches_are_on_their_way() -> None:
    made = batches(max_in_flight=2, linger_ms=0, max_records=1)
    for number in range(3):
        add(made, number)
    assert (taken(made), taken(made)) == ([0], [1])
    assert made.due_in_s(0.0) is None
    made.landed()
    assert made.due_in_s(0.0) == 0.0
    assert not made.is_idle


def test_a_full_buffer_has_no_room_and_an_empty_one_always() -> None:
    made = batches(buffer_bytes=150)
    assert made.has_room(10_000)
    add(made, 1)
    assert made.has_room(50)
    assert not made.has_room(51)


def test_payloads_are_encoded_before_they_wait() -> None:
    record, size_bytes = encoded(NewRecord({"a": 1}, "t", "n", {"m": 1}))
    assert record == NewRecord(b'{"a":1}', "t", "n", b'{"m":1}')
    assert size_bytes > 14
    with pytest.raises(InvalidRequest):
        encoded(NewRecord(b"{"))


@pytest.mark.parametrize(
    "options", [{"linger_ms": -1}, {"max_records": 0}, {"max_records": 10_001}, {"max_in_flight": 0}]
)
def test_settings_that_cannot_be_are_refused(options: ProducerOptions) -> None:
    with pytest.raises(InvalidRequest):
        ProducerSettings.of(options)

"""Lookups in the journal."""

from hypothesis import given
from hypothesis import strategies as st

from tests.streams.partitions.partition_world import batch
from topics.formats.stream_layout import BodyOrder
from topics.streams.partitions.batch import prepare
from topics.streams.partitions.journal import Journal

shapes = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=12)


def journal_of(shape: list[tuple[int, int]], first_offset: int) -> tuple[Journal, list[int]]:
    """The journal, and the time of each of its messages."""
    journal = Journal()
    times: list[int] = []
    timestamp = 100
    for count, step in shape:
        timestamp += step
        prepared = prepare(batch(*[b"x"] * count), order=BodyOrder.PAYLOAD_FIRST)
        journal.add(prepared.stamp(first_offset + len(times), timestamp))
        times += [timestamp] * count
    return journal, times


@given(shapes, st.integers(0, 50), st.integers(0, 50), st.integers(0, 60))
def test_windows_are_the_asked_messages_in_order(
    shape: list[tuple[int, int]], first_offset: int, ahead: int, count: int
) -> None:
    journal, times = journal_of(shape, first_offset)
    found = [
        window.batch.first_offset + place
        for window in journal.windows(first_offset + ahead, count)
        for place in range(window.first, window.first + window.count)
    ]
    assert found == list(range(first_offset + ahead, first_offset + len(times)))[:count]


@given(shapes, st.integers(98, 130))
def test_by_time_the_first_message_that_is_not_older_is_found(shape: list[tuple[int, int]], timestamp: int) -> None:
    journal, times = journal_of(shape, 40)
    expected = next((40 + place for place, value in enumerate(times) if value >= timestamp), None)
    assert journal.offset_at(timestamp) == expected


def test_sums_follow_what_is_in_it_and_a_list_that_is_being_written_stays_whole() -> None:
    journal, times = journal_of([(2, 0), (3, 1)], 0)
    writing = journal.batches
    assert journal.messages_count == len(times) == 5
    assert journal.size_bytes == sum(batch.size_bytes for batch in writing) == 5 * 65
    journal.clear()
    assert (journal.messages_count, journal.size_bytes, journal.batches) == (0, 0, [])
    assert [batch.count for batch in writing] == [2, 3]
    assert journal.windows(0, 10) == []

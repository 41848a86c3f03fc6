"""Lookups in a segment's index, cached or not, and how many entries of an index are good."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.formats.message import HEADER_BYTES
from topics.formats.message_index import ENTRY_BYTES, Entries, make_entries
from topics.storage.fs import File
from topics.streams.partitions.segment_index import CHECK_ENTRIES, SegmentIndex, count_good, no_entries
from topics.testing.fake_disk import FakeDisk


def entries_of(sizes: list[int], steps: list[int]) -> Entries:
    return make_entries(0, np.cumsum(sizes, dtype=np.int64), np.cumsum(steps, dtype=np.int64).astype(np.uint64))


def file_with(data: bytes) -> File:
    disk = FakeDisk()
    disk.replace("/index", data)
    return disk.open("/index", "read")


def file_of(entries: Entries) -> File:
    return file_with(entries.tobytes())


messages = st.lists(st.tuples(st.integers(64, 200), st.integers(0, 2)), min_size=1, max_size=30)


@given(messages, st.data())
def test_a_message_lies_between_the_end_of_the_one_before_and_its_own(
    shape: list[tuple[int, int]], data: st.DataObject
) -> None:
    sizes = [size for size, _ in shape]
    entries = entries_of(sizes, [step for _, step in shape])
    first = data.draw(st.integers(0, len(shape) - 1))
    count = data.draw(st.integers(0, len(shape) - first))
    cached = SegmentIndex(len(entries), entries).view().spans(file_with(b""), first, count)
    read = SegmentIndex(len(entries)).view().spans(file_of(entries), first, count)
    for spans in (cached, read):
        assert spans.starts.tolist() == [sum(sizes[:place]) for place in range(first, first + count)]
        assert (spans.ends - spans.starts).tolist() == sizes[first : first + count]


@given(messages, st.integers(0, 70))
def test_by_time_the_first_message_that_is_not_older_is_found(shape: list[tuple[int, int]], timestamp: int) -> None:
    entries = entries_of([size for size, _ in shape], [step for _, step in shape])
    times = [int(value) for value in entries["timestamp"]]
    expected = next((place for place, value in enumerate(times) if value >= timestamp), len(times))
    assert SegmentIndex(len(entries), entries).view().lower_bound(file_with(b""), timestamp) == expected
    assert SegmentIndex(len(entries)).view().lower_bound(file_of(entries), timestamp) == expected


def test_a_view_keeps_the_entries_it_began_with_while_the_index_grows() -> None:
    index = SegmentIndex(0, no_entries())
    whole = entries_of([100] * 3000, [1] * 3000)
    views = []
    for first in range(0, 3000, 100):
        views.append(index.view())
        index.append(whole[first : first + 100])
    file = file_with(b"")
    for place, view in enumerate(views):
        assert view.count == place * 100
        assert view.spans(file, 0, view.count).ends.tolist() == whole["position"][: place * 100].tolist()


def test_a_part_of_the_entries_is_not_taken_for_a_cache() -> None:
    with pytest.raises(AssertionError, match="a part of a segment's entries"):
        SegmentIndex(10, entries_of([100] * 4, [1] * 4))


def test_an_index_that_was_not_cached_counts_and_stays_so() -> None:
    entries = entries_of([100] * 4, [1] * 4)
    index = SegmentIndex(2)
    index.append(entries[2:])
    assert (index.count, index.is_cached) == (4, False)
    assert index.view().spans(file_of(entries), 1, 3).ends.tolist() == [200, 300, 400]


def test_a_file_that_ends_before_an_entry_is_an_error_and_not_an_answer() -> None:
    with pytest.raises(OSError, match="ends before entry 3"):
        SegmentIndex(4).view().spans(file_of(entries_of([100] * 3, [1] * 3)), 0, 4)


@pytest.mark.parametrize(
    ("field", "value"),
    [("offset", 9), ("offset", 0), ("position", 0), ("position", 263), ("position", 1 << 31), ("timestamp", 1)],
)
def test_entries_count_up_to_the_first_that_is_out_of_order(field: str, value: int) -> None:
    entries = entries_of([100] * 6, [5] * 6)
    entries[field][2] = value
    assert count_good(file_of(entries), 600) == (2, 6)


def test_entries_behind_the_end_of_the_log_do_not_count() -> None:
    entries = entries_of([100] * 6, [0] * 6)
    assert count_good(file_of(entries), 600) == (6, 6)
    assert count_good(file_of(entries), 599) == (5, 6)
    assert count_good(file_of(entries), 0) == (0, 6)


def test_zeros_and_a_rest_of_an_entry_do_not_count() -> None:
    entries = entries_of([100] * 2, [1] * 2)
    assert count_good(file_with(entries.tobytes() + bytes(3 * ENTRY_BYTES + 7)), 10_000) == (2, 5)
    assert count_good(file_with(bytes(64)), 10_000) == (0, 4)
    assert count_good(file_with(b""), 10_000) == (0, 0)


@pytest.mark.parametrize("bad", [CHECK_ENTRIES - 1, CHECK_ENTRIES, CHECK_ENTRIES + 1])
@pytest.mark.parametrize("field", ["offset", "position", "timestamp"])
def test_order_is_checked_over_the_borders_of_pieces(bad: int, field: str) -> None:
    count = CHECK_ENTRIES + 5
    entries = make_entries(0, np.arange(1, count + 1) * HEADER_BYTES, np.arange(10, count + 10).astype(np.uint64))
    assert count_good(file_of(entries), count * HEADER_BYTES) == (count, count)
    entries[field][bad] = entries[field][bad - 1] - (field == "timestamp")
    assert count_good(file_of(entries), count * HEADER_BYTES) == (bad, count)

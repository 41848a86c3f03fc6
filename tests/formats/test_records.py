"""The columns of a write."""

import pytest

from topics.formats.records import RecordBatch


def test_a_batch_counts_its_records_and_their_bytes() -> None:
    batch = RecordBatch([b'{"d":1}', b'{"d":22}'], [1, 2], tags=[None, b""])
    assert len(batch) == 2
    assert batch.size_bytes == 3
    assert batch.nodes is None


def test_an_empty_batch_or_columns_of_unequal_length_are_our_bug() -> None:
    with pytest.raises(AssertionError):
        RecordBatch([], [])
    with pytest.raises(AssertionError):
        RecordBatch([b'{"d":1}'], [1, 2])
    with pytest.raises(AssertionError):
        RecordBatch([b'{"d":1}'], [1], tags=[b"a", b"b"])
    with pytest.raises(AssertionError):
        RecordBatch([b'{"d":1}'], [1], nodes=[])

"""Records that a start took in from segments, compared with the frames of the log."""

from array import array

import pytest

from topics.engine.starting.adopted_records import AdoptedRecords
from topics.errors import Damaged
from topics.formats import segment as codec
from topics.formats.records import Record

PATH = "topics/00000001/seg-0000000000000011.data"
SEQS = (11, 12, 14)


def frame(seq: int, data: bytes = b"1") -> bytes:
    return codec.encode(Record(seq, 1000 + seq, None, None, data, None))


def checksums(*frames: bytes) -> "array[int]":
    return array("Q", [int.from_bytes(codec.frame_checksum(one), "little") for one in frames])


@pytest.fixture
def adopted() -> AdoptedRecords:
    """Seqs 11, 12 and 14; there is no record with seq 13."""
    data = b"".join(map(frame, SEQS))
    records = AdoptedRecords(11)
    records.add(PATH, codec.scan(data, 0, len(data)))
    return records


def test_a_log_with_the_same_records_is_right(adopted: AdoptedRecords) -> None:
    for seq in (10, *SEQS, 13, 11, 15):
        adopted.meet(seq, checksums(frame(seq)))
        adopted.finish_write()
    adopted.check_end()


def test_another_record_in_the_log_names_the_file(adopted: AdoptedRecords) -> None:
    adopted.meet(12, checksums(frame(12, b"2")))
    with pytest.raises(Damaged, match="seq 12") as caught:
        adopted.finish_write()
    assert caught.value.path == PATH


def test_a_write_that_was_not_finished_says_nothing(adopted: AdoptedRecords) -> None:
    adopted.meet(11, checksums(frame(11, b"2")))
    adopted.drop_write()
    for seq in SEQS:
        adopted.meet(seq, checksums(frame(seq)))
    adopted.finish_write()
    adopted.check_end()


def test_a_record_that_the_log_does_not_have_is_damage_unless_it_is_old_enough_to_have_no_frame(
    adopted: AdoptedRecords,
) -> None:
    adopted.meet(11, checksums(frame(11)))
    adopted.finish_write()
    with pytest.raises(Damaged, match="seq 12"):
        adopted.check_end()
    adopted.expect_unlogged_to(12)
    with pytest.raises(Damaged, match="seq 14"):
        adopted.check_end()
    adopted.expect_unlogged_to(14)
    adopted.check_end()


def test_in_the_dest_of_a_router_any_record_may_have_no_frame(adopted: AdoptedRecords) -> None:
    adopted.expect_unlogged()
    adopted.check_end()


def test_frames_that_follow_each_other_are_compared_together(adopted: AdoptedRecords) -> None:
    """Also frames below and above the records that were taken in, and a seq that the segment has no record of."""
    adopted.meet(9, checksums(*map(frame, range(9, 17))))
    adopted.finish_write()
    adopted.check_end()


def test_one_other_record_among_many_names_its_seq(adopted: AdoptedRecords) -> None:
    adopted.meet(11, checksums(frame(11), frame(12), frame(13), frame(14, b"2")))
    with pytest.raises(Damaged, match="seq 14"):
        adopted.finish_write()

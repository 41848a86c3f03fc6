"""Loss: a gap fails the read or becomes a row, and the error says what to do."""

import pickle

import msgspec
import pytest

from tests.engine.small_log import SmallLog
from tests.spark.manifests import make_manifest
from topics.engine.manifest import take_manifest
from topics.errors import CorruptRecord
from topics.formats import columnar
from topics.spark.loss import (
    Gap,
    TopicsDataLoss,
    accept_gaps,
    check_cursor,
    corrupt_loss,
    eviction_reason,
    find_gaps,
    gap_rows,
)
from topics.spark.manifest import Manifest
from topics.testing.fake_disk import FakeDisk


def test_seqs_below_the_floor_are_a_gap_from_the_cursor_on() -> None:
    manifest = make_manifest(evict_floor=41, earliest_seq=41, cap_floor=40, ttl_floor=0)
    assert find_gaps(manifest, 20, 100) == [Gap("orders", 21, 40, "cap", 41_000)]
    assert find_gaps(manifest, 20, 30) == [Gap("orders", 21, 30, "cap", 41_000)]
    assert find_gaps(manifest, 40, 100) == []


def test_deleted_seqs_are_no_gap() -> None:
    assert find_gaps(make_manifest(delete_below=50, earliest_seq=60), 0, 100) == []


def test_lost_ranges_are_gaps_where_they_are_and_not_below_the_floor_again() -> None:
    manifest = make_manifest(evict_floor=11, earliest_seq=11, lost_ranges=((30, 35), (8, 12)))
    assert [(gap.first_seq, gap.last_seq, gap.reason) for gap in find_gaps(manifest, 0, 33)] == [
        (1, 10, "mixed"),
        (11, 12, "power_loss"),
        (30, 33, "power_loss"),
    ]
    assert find_gaps(manifest, 35, 100) == []


@pytest.mark.parametrize(
    ("cap_floor", "ttl_floor", "reason"),
    [(40, 40, "mixed"), (40, 5, "cap"), (5, 40, "ttl"), (5, 5, "source_trim"), (None, None, "mixed")],
)
def test_the_reason_is_the_floor_that_reaches_the_gap(
    cap_floor: int | None, ttl_floor: int | None, reason: str
) -> None:
    manifest = make_manifest(evict_floor=41, cap_floor=cap_floor, ttl_floor=ttl_floor)
    assert eviction_reason(manifest, 21) == reason


@pytest.mark.parametrize(
    "floors",
    [
        {"cap_floor": 9},
        {"ttl_floor": 9},
        {"cap_floor": 9, "ttl_floor": 4},
        {"cap_floor": 4, "ttl_floor": 9},
    ],
    ids=str,
)
def test_a_gap_is_the_one_that_a_diff_tells_of(floors: dict[str, int]) -> None:
    log = SmallLog(FakeDisk())
    log.append(count=12)
    log.topic().live.raise_floors(**floors)
    log.topic().live.note_lost(10, 10, "source_trim")
    log.topic().live.note_lost(12, 12)
    manifest = msgspec.convert(take_manifest(log.engine, "a"), Manifest)
    for cursor in range(12):
        told = log.topic().read(cursor, 1, 1_000_000, None).tombstone
        found = [(gap.first_seq, gap.last_seq, gap.reason) for gap in find_gaps(manifest, cursor, 12)]
        # A page begins with one gap at most; the other gaps are for later pages.
        found = [gap for gap in found if gap[0] == cursor + 1]
        assert found == ([] if told is None else [(told.gap_from, told.gap_to, told.reason)])


def test_the_error_names_topic_range_reason_floors_head_and_the_ways_out() -> None:
    manifest = make_manifest(evict_floor=41, earliest_seq=45)
    with pytest.raises(TopicsDataLoss) as caught:
        accept_gaps([Gap("orders", 21, 40, "ttl")], "fail", manifest)
    assert caught.value.message == (
        'data loss: topic "orders": seqs 21-40 are expired (evict_floor 41, earliest_seq 45, head_seq 100). '
        "Ways out: accept it as a row with option gaps=rows; move on with a new checkpoint and startingOffsets; "
        "restore the records with `topics pipeline restore`"
    )
    assert caught.value.detail == {"topic": "orders", "reason": "ttl"}


def test_gaps_that_may_be_rows_are_given_back_and_none_is_no_error() -> None:
    gaps = [Gap("orders", 21, 40, "ttl")]
    assert accept_gaps(gaps, "rows") == gaps
    assert accept_gaps([], "fail") == []


def test_a_cursor_above_the_head_fails_and_cannot_be_accepted() -> None:
    check_cursor(make_manifest(head_seq=100), 100)
    with pytest.raises(TopicsDataLoss, match="seqs 101-120 are above the head") as caught:
        check_cursor(make_manifest(head_seq=100), 120)
    assert "gaps=rows" not in caught.value.message
    assert "topics pipeline restore" in caught.value.message


def test_the_error_travels_from_a_task_to_the_driver() -> None:
    error = TopicsDataLoss(Gap("orders", 1, None, "recreated"), make_manifest())
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, TopicsDataLoss)
    assert (copy.message, str(copy), copy.gap, copy.detail) == (error.message, str(error), error.gap, error.detail)
    assert "seqs 1-… are of an instance" in copy.message
    assert "onRecreated=restart" in copy.message


def test_a_damaged_record_is_a_loss_with_its_own_way_out() -> None:
    loss = corrupt_loss(CorruptRecord("orders", 7, "seg-1, offset 3: checksum"), "orders")
    assert loss.gap == Gap("orders", 7, 7, "corrupt")
    assert "seg-1, offset 3: checksum" in str(loss)
    assert "onCorrupt=rows" in str(loss)


def test_gaps_become_rows_under_any_schema_of_records() -> None:
    gaps = [Gap("orders", 21, 40, "ttl", 5), Gap("orders", 50, None, "topic_deleted")]
    batch = gap_rows(gaps, columnar.schema(("seq", "data", "epoch", "kind", "gap_to", "gap_reason")), 3)
    batch.validate(full=True)
    assert batch.to_pylist() == [
        {"seq": 21, "data": None, "epoch": 3, "kind": "gap", "gap_to": 40, "gap_reason": "ttl"},
        {"seq": 50, "data": None, "epoch": 3, "kind": "gap", "gap_to": None, "gap_reason": "topic_deleted"},
    ]

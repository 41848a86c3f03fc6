"""Planning a batch read: every seq in exactly one partition, none too large, none needlessly small."""

import pickle
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spark.manifests import make_manifest, make_segment
from topics.spark.loss import TopicsDataLoss
from topics.spark.manifest import Manifest
from topics.spark.options import ReadOptions
from topics.spark.reading.plan import (
    FILES_PER_PARTITION_MAX,
    Partition,
    choose_cuts,
    last_seq_within,
    plan_batch,
    range_bytes,
)

READ = ReadOptions(endpoint="h", subscribe=("orders",))


def ranges(partitions: list[Partition]) -> list[tuple[int, int]]:
    return [(partition.first_seq, partition.last_seq) for partition in partitions]


@st.composite
def manifests(draw: st.DrawFn, topic: str = "orders") -> Manifest:
    """Segments of any size with holes between them, a tail, floors, deletes, losses."""
    segments = []
    seq = 1
    for _ in range(draw(st.integers(0, 6))):
        seq += draw(st.sampled_from((0, 0, 3)))
        last = seq + draw(st.integers(0, 30))
        segments.append(make_segment(seq, last, draw(st.integers(38, 500))))
        seq = last + 1
    checkpointed_seq = segments[-1].last_seq if segments else 0
    head_seq = checkpointed_seq + draw(st.integers(0, 20))
    evict_floor = draw(st.integers(1, head_seq + 1))
    below = st.integers(1, head_seq + 1)
    return make_manifest(
        topic,
        head_seq=head_seq,
        durable_seq=draw(st.integers(checkpointed_seq, head_seq)),
        checkpointed_seq=checkpointed_seq,
        segments=tuple(segments),
        evict_floor=evict_floor,
        earliest_seq=max(evict_floor, draw(below)),
        lost_ranges=tuple(draw(st.lists(st.tuples(below, below).map(lambda pair: (min(pair), max(pair))), max_size=2))),
    )


limits = st.builds(
    lambda size, records, least: replace(
        READ, partition_bytes=size, max_records_per_partition=records, min_partitions=least, gaps="rows"
    ),
    st.integers(50, 5000),
    st.integers(1, 50),
    st.none() | st.integers(1, 12),
)


@given(manifest=manifests(), other=manifests("zebra"), options=limits)
def test_every_seq_from_the_first_to_the_head_is_in_exactly_one_partition(
    manifest: Manifest, other: Manifest, options: ReadOptions
) -> None:
    partitions = plan_batch([other, manifest], options)
    for each in (manifest, other):
        mine = [partition for partition in partitions if partition.topic == each.topic]
        covered = [seq for first, last in ranges(mine) for seq in range(first, last + 1)]
        assert covered == list(range(each.first_seq, each.head_seq + 1))
        for partition in mine:
            assert partition.record_count <= options.max_records_per_partition
            in_files = {seq for file in partition.files for seq in range(file.first_seq, file.last_seq + 1)}
            wanted = set(range(partition.first_seq, partition.last_seq + 1))
            in_segments = {seq for file in each.segments for seq in range(file.first_seq, file.last_seq + 1)}
            assert wanted & in_segments <= in_files
            assert all(seq <= each.checkpointed_seq for seq in in_files)
    assert [partition.topic for partition in partitions] == sorted(partition.topic for partition in partitions)
    assert partitions == plan_batch([manifest, other], options), "the order of manifests must not matter"


@given(manifest=manifests(), options=limits, cursor=st.integers(0, 150))
def test_what_was_asked_for_is_a_record_a_gap_or_was_deleted(
    manifest: Manifest, options: ReadOptions, cursor: int
) -> None:
    options = replace(options, starting_offsets={"orders": cursor + 1})
    if cursor > manifest.head_seq:
        with pytest.raises(TopicsDataLoss, match="above the head"):
            plan_batch([manifest], options)
        return
    partitions = plan_batch([manifest], options)
    gone = {
        seq
        for partition in partitions
        for gap in partition.gaps
        for seq in range(gap.first_seq, (gap.last_seq or 0) + 1)
    }
    shown = {seq for first, last in ranges(partitions) for seq in range(first, last + 1)}
    lost = {seq for first, last in manifest.lost_ranges for seq in range(first, last + 1)}
    asked = set(range(cursor + 1, manifest.head_seq + 1))
    assert gone == {seq for seq in asked if seq < manifest.evict_floor or seq in lost}
    assert asked - shown - gone <= set(range(manifest.evict_floor, manifest.first_seq))
    if gone:
        with pytest.raises(TopicsDataLoss):
            plan_batch([manifest], replace(options, gaps="fail"))


def test_neighbours_share_a_partition_up_to_its_bytes() -> None:
    manifest = make_manifest(head_seq=100, segment_size=10, tail=0)
    assert ranges(plan_batch([manifest], READ)) == [(1, 100)]
    assert ranges(plan_batch([manifest], replace(READ, partition_bytes=3000))) == [
        (1, 30),
        (31, 60),
        (61, 90),
        (91, 100),
    ]


def test_a_segment_beyond_the_bounds_is_split_evenly() -> None:
    manifest = make_manifest(head_seq=100, segment_size=100, tail=0)
    assert ranges(plan_batch([manifest], replace(READ, max_records_per_partition=40))) == [(1, 33), (34, 66), (67, 100)]


def test_partitions_are_split_until_there_are_enough_or_nothing_is_left_to_split() -> None:
    small, large = make_manifest("a", head_seq=3), make_manifest("b", head_seq=100)
    found = plan_batch([small, large], replace(READ, min_partitions=4))
    assert [(partition.topic, partition.record_count) for partition in found] == [
        ("a", 3),
        ("b", 25),
        ("b", 25),
        ("b", 50),
    ]
    assert len(plan_batch([small], replace(READ, min_partitions=9))) == 3


def test_a_partition_stays_small_on_its_way_to_a_task() -> None:
    manifest = make_manifest(head_seq=5000, segment_size=1, tail=0)
    partitions = plan_batch([manifest], READ)
    assert max(len(partition.files) for partition in partitions) == FILES_PER_PARTITION_MAX
    assert max(len(pickle.dumps(partition)) for partition in partitions) <= 64 * 1024
    assert pickle.loads(pickle.dumps(partitions)) == partitions


def test_the_end_may_be_a_seq_what_is_durable_or_a_time() -> None:
    manifest = make_manifest(head_seq=100, durable_seq=97)
    assert plan_batch([manifest], replace(READ, ending_offsets={"orders": 42}))[-1].last_seq == 42
    assert plan_batch([manifest], replace(READ, ending_offsets={"orders": 142}))[-1].last_seq == 100
    assert plan_batch([manifest], replace(READ, isolation="durable"))[-1].last_seq == 97
    # To the segment; the filter does the rest.
    assert plan_batch([manifest], replace(READ, ending_timestamp_ms=35_000))[-1].last_seq == 40


def test_a_time_begins_with_the_segment_that_reaches_it_and_wins_over_seqs() -> None:
    manifest = make_manifest(head_seq=100)
    options = replace(READ, starting_timestamp_ms=35_000, starting_offsets={"orders": 99})
    assert plan_batch([manifest], options)[0].first_seq == 31
    assert plan_batch([manifest], replace(READ, starting_timestamp_ms=10**9))[0].first_seq == 96
    by_topic = replace(READ, starting_ms_by_topic={"orders": 35_000}, ending_ms_by_topic={"orders": 65_000})
    planned = plan_batch([manifest], by_topic)
    assert (planned[0].first_seq, planned[-1].last_seq) == (31, 70)
    assert plan_batch([manifest], replace(by_topic, starting_ms_by_topic={"other": 1}))[0].first_seq == 1


def test_earliest_is_what_is_there_and_no_gap() -> None:
    manifest = make_manifest(head_seq=100, evict_floor=41, earliest_seq=45, delete_below=45)
    assert ranges(plan_batch([manifest], READ)) == [(45, 100)]
    assert ranges(plan_batch([manifest], replace(READ, starting_offsets={"orders": -2}))) == [(45, 100)]


def test_deleted_records_are_there_for_those_who_ask_for_them() -> None:
    manifest = make_manifest(evict_floor=3, earliest_seq=45, delete_below=45, pending_deletes=((50, 52), (99, 120)))
    (partition,) = plan_batch([manifest], READ)
    assert partition.hidden == ((50, 52), (99, 100))
    (partition,) = plan_batch([manifest], replace(READ, include_deleted=True, starting_offsets={"orders": 3}))
    assert (partition.first_seq, partition.hidden) == (3, ())
    assert partition.deleted == ((50, 52), (99, 100), (3, 44))


def test_the_earliest_record_is_a_deleted_one_for_those_who_ask_for_them() -> None:
    manifest = make_manifest(delete_below=50, earliest_seq=60, evict_floor=4)
    (partition,) = plan_batch([manifest], replace(READ, include_deleted=True))
    assert partition.first_seq == 4
    (partition,) = plan_batch([manifest], READ)
    assert partition.first_seq == 60


def test_a_range_that_is_gone_as_a_whole_is_a_partition_of_its_gap() -> None:
    manifest = make_manifest(evict_floor=101, earliest_seq=101)
    options = replace(READ, starting_offsets={"orders": 5}, gaps="rows")
    (partition,) = plan_batch([manifest], options)
    assert partition.record_count == 0
    assert [(gap.first_seq, gap.last_seq) for gap in partition.gaps] == [(5, 100)]
    assert plan_batch([make_manifest(head_seq=0)], READ) == []


def test_gaps_go_with_the_partition_that_they_begin_in() -> None:
    manifest = make_manifest(evict_floor=11, earliest_seq=11, lost_ranges=((38, 44), (71, 71)))
    options = replace(READ, starting_offsets={"orders": 1}, gaps="rows", max_records_per_partition=30)
    found = [
        (partition.first_seq, partition.last_seq, [gap.first_seq for gap in partition.gaps])
        for partition in plan_batch([manifest], options)
    ]
    assert found == [(11, 40, [1, 38]), (41, 70, []), (71, 100, [71])]


def test_the_tail_is_named_and_has_no_file() -> None:
    (partition,) = plan_batch([make_manifest(head_seq=100, tail=5)], READ)
    assert partition.tail_first_seq == 96
    assert max(file.last_seq for file in partition.files) == 95


def test_planning_needs_neither_spark_nor_arrow() -> None:
    """It runs where a driver starts, and in tests without a JVM."""
    program = (
        "import sys, topics.spark.reading.trigger_plan\n"
        "print(sorted({'pyspark', 'pyarrow', 'numpy', 'pandas'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@given(manifest=manifests(), size_bytes=st.integers(0, 20_000))
def test_a_prefix_by_bytes_is_not_larger_than_asked_for_but_for_its_first_record(
    manifest: Manifest, size_bytes: int
) -> None:
    if manifest.head_seq == 0:
        return
    last_seq = last_seq_within(manifest, 1, manifest.head_seq, size_bytes)
    assert 1 <= last_seq <= manifest.head_seq
    assert last_seq == 1 or range_bytes(manifest, 1, last_seq) <= size_bytes
    assert choose_cuts(manifest, 1, last_seq, READ)[-1] == last_seq

"""Streaming offsets: canonical text, limits without starvation, replays that split alike, and loss that shows."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spark.manifests import make_manifest, make_segment
from topics.errors import InvalidRequest
from topics.spark.loss import TopicsDataLoss
from topics.spark.manifest import Manifest
from topics.spark.options import ReadOptions
from topics.spark.reading.plan import Partition
from topics.spark.reading.trigger_plan import (
    Offset,
    TopicOffset,
    initial_offset,
    next_offset,
    partitions_between,
    proportional_shares,
)

READ = ReadOptions(endpoint="h", subscribe_pattern=".*")
ROWS = replace(READ, gaps="rows")


def by_name(*manifests: Manifest) -> dict[str, Manifest]:
    return {manifest.topic: manifest for manifest in manifests}


def offset(**seqs: int) -> Offset:
    return Offset({name: TopicOffset(1, seq) for name, seq in seqs.items()})


def seqs_of(end: Offset) -> dict[str, int]:
    return {name: topic.seq for name, topic in end.topics.items()}


def gaps_of(partitions: list[Partition]) -> list[tuple[int, int | None, str]]:
    return [(gap.first_seq, gap.last_seq, gap.reason) for partition in partitions for gap in partition.gaps]


def ranges(partitions: list[Partition]) -> list[tuple[int, int]]:
    return [(partition.first_seq, partition.last_seq) for partition in partitions]


# The text.


def test_an_offset_is_the_documented_text_whatever_the_order_it_was_made_in() -> None:
    made = Offset({"b": TopicOffset(3, 120_000, (40_000, 80_000)), "a": TopicOffset(1, 0)})
    text = (
        '{"topics": {"a": {"cuts": [], "epoch": 1, "seq": 0}, '
        '"b": {"cuts": [40000, 80000], "epoch": 3, "seq": 120000}}, "v": 1}'
    )
    assert json.dumps(made.as_json()) == text
    again = Offset.from_json(json.loads(text))
    assert json.dumps(again.as_json()) == text


@pytest.mark.parametrize("value", [{"v": 2, "topics": {}}, {"topics": {}}, {}])
def test_another_version_is_an_error_that_says_what_to_do(value: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="begin a new checkpoint"):
        Offset.from_json(value)


@pytest.mark.parametrize("topics", [None, {"a": 5}, {"a": {"seq": 5}}, {"a": {"seq": "x", "epoch": 1, "cuts": []}}])
def test_offsets_that_are_not_ours_are_refused(topics: Any) -> None:
    with pytest.raises(InvalidRequest, match="offsets that are not ours"):
        Offset.from_json({"v": 1, "topics": topics})


def test_nothing_new_is_the_start_itself() -> None:
    start = Offset({"a": TopicOffset(1, 100, (50,))})
    assert next_offset(start, by_name(make_manifest("a", head_seq=100)), READ) is start


# Beginning.


def test_a_query_begins_where_it_was_told() -> None:
    manifest = make_manifest("a", evict_floor=11, earliest_seq=11)
    for wanted, seq in (("earliest", 10), ("latest", 100), ({"a": 31}, 30), ({"a": -1}, 100), ({"b": 3}, 10)):
        options = replace(READ, starting_offsets=wanted)
        assert initial_offset([manifest], options) == Offset({"a": TopicOffset(1, seq)})
    with pytest.raises(TopicsDataLoss, match="above the head"):
        initial_offset([manifest], replace(READ, starting_offsets={"a": 102}))


def test_a_topic_that_is_new_under_a_pattern_begins_with_its_first_seq() -> None:
    options = replace(READ, starting_offsets="latest")
    end = next_offset(offset(a=100), by_name(make_manifest("a"), make_manifest("b", head_seq=7)), options)
    assert seqs_of(end) == {"a": 100, "b": 7}
    found = partitions_between(offset(a=100), end, by_name(make_manifest("a"), make_manifest("b", head_seq=7)), options)
    assert [(partition.topic, partition.first_seq, partition.last_seq) for partition in found] == [("b", 1, 7)]


def test_too_many_topics_are_refused_with_their_number() -> None:
    manifests = {f"t{number}": make_manifest(f"t{number}", head_seq=0) for number in range(10_001)}
    with pytest.raises(InvalidRequest, match="10001 topics are more than the 10000"):
        next_offset(Offset({}), manifests, READ)


# Limits.


@given(amounts=st.dictionaries(st.text(max_size=3), st.integers(1, 10_000), max_size=12), limit=st.integers(1, 20_000))
def test_shares_fill_the_limit_and_every_topic_has_one(amounts: dict[str, int], limit: int) -> None:
    shares = proportional_shares(amounts, limit)
    total = sum(amounts.values())
    assert shares.keys() == amounts.keys()
    assert all(1 <= shares[name] <= amount for name, amount in amounts.items())
    assert sum(shares.values()) == min(total, max(limit, len(amounts)))
    assert shares == proportional_shares(dict(reversed(amounts.items())), limit)
    for name, amount in amounts.items():
        for other, less in amounts.items():
            assert shares[name] >= shares[other] - 1 or amount < less


def test_one_hot_topic_starves_none_of_many_cold_ones() -> None:
    cold = [make_manifest(f"cold{number:02}", head_seq=2) for number in range(99)]
    manifests = by_name(make_manifest("hot", head_seq=1_000_000, segment_size=10_000), *cold)
    options = replace(READ, max_records_per_trigger=1000)
    start = offset(**dict.fromkeys(manifests, 0))
    first = next_offset(start, manifests, options)
    assert sum(seqs_of(first).values()) == 1000
    assert all(topic.seq >= 1 for topic in first.topics.values())
    assert first == next_offset(start, dict(reversed(manifests.items())), options)
    second = next_offset(first, manifests, options)
    assert all(second.topics[manifest.topic].seq == 2 for manifest in cold)


def test_bytes_limit_a_trigger_softly() -> None:
    manifests = by_name(
        make_manifest("a", head_seq=100, tail=0), make_manifest("b", segments=(make_segment(1, 95, 10),))
    )
    start = offset(a=0, b=0)
    end = next_offset(start, manifests, replace(READ, max_bytes_per_trigger=5500))
    assert 45 <= end.topics["a"].seq <= 50
    assert 45 <= end.topics["b"].seq <= 60
    assert seqs_of(next_offset(start, manifests, replace(READ, max_bytes_per_trigger=1))) == {"a": 1, "b": 1}


def test_a_trigger_may_leave_the_limits_aside() -> None:
    options = replace(READ, max_records_per_trigger=1, max_bytes_per_trigger=1)
    assert seqs_of(next_offset(offset(a=0), by_name(make_manifest("a")), options, read_all=True)) == {"a": 100}


def test_a_small_batch_waits_for_more_only_while_it_may() -> None:
    options = replace(READ, min_records_per_trigger=11)
    start, manifests = offset(a=90), by_name(make_manifest("a"))
    assert next_offset(start, manifests, options, may_wait=True) is start
    assert seqs_of(next_offset(start, manifests, options)) == {"a": 100}
    assert seqs_of(next_offset(offset(a=89), manifests, options, may_wait=True)) == {"a": 100}


def test_available_now_ends_at_the_heads_of_its_start_and_reads_nothing_twice() -> None:
    options = replace(READ, max_records_per_trigger=30)
    ceilings = {"a": 50, "b": 10}
    now = by_name(make_manifest("a", head_seq=80), make_manifest("b", head_seq=10), make_manifest("new", head_seq=5))
    at, batches = offset(a=0, b=0), 0
    while (end := next_offset(at, now, options, ceilings=ceilings)) is not at:
        at, batches = end, batches + 1
    assert seqs_of(at) == {"a": 50, "b": 10}
    assert batches == 2
    assert seqs_of(next_offset(at, now, options, ceilings={"a": 80, "b": 10, "new": 5}, read_all=True)) == {
        "a": 80,
        "b": 10,
        "new": 5,
    }


def test_only_what_is_durable_is_read_when_that_is_asked_for_and_never_backwards() -> None:
    manifests = by_name(make_manifest("a", head_seq=100, durable_seq=60))
    options = replace(READ, isolation="durable")
    assert seqs_of(next_offset(offset(a=0), manifests, options)) == {"a": 60}
    start = offset(a=70)
    assert next_offset(start, manifests, options) is start


# Partitions.


@given(
    head_seq=st.integers(0, 300),
    seq=st.integers(0, 300),
    records=st.integers(1, 50),
    least=st.none() | st.integers(1, 9),
    limit=st.none() | st.integers(1, 200),
    new_size=st.integers(1, 60),
    new_head=st.integers(300, 400),
)
def test_a_replayed_batch_is_split_alike_over_other_files(
    head_seq: int, seq: int, records: int, least: int | None, limit: int | None, new_size: int, new_head: int
) -> None:
    """Segments were merged, sealed and moved meanwhile; the same seqs go to the same partitions."""
    options = replace(READ, max_records_per_partition=records, min_partitions=least, max_records_per_trigger=limit)
    start = offset(a=min(seq, head_seq))
    before = by_name(make_manifest("a", head_seq=head_seq))
    end = next_offset(start, before, options)
    logged = Offset.from_json(json.loads(json.dumps(end.as_json())))
    first = partitions_between(start, logged, before, options)
    after = by_name(make_manifest("a", head_seq=new_head, segment_size=new_size, tail=0))
    second = partitions_between(start, logged, after, options)
    assert ranges(first) == ranges(second)
    covered = [number for low, high in ranges(first) for number in range(low, high + 1)]
    assert covered == list(range(start.topics["a"].seq + 1, end.topics["a"].seq + 1))
    assert all(partition.record_count <= records for partition in first)


def test_an_offset_without_change_has_no_partitions() -> None:
    start = Offset({"a": TopicOffset(1, 50, (20,)), "b": TopicOffset(1, 10)})
    end = Offset({"a": TopicOffset(1, 50), "b": TopicOffset(1, 12)})
    manifests = by_name(make_manifest("a"), make_manifest("b"))
    assert ranges(partitions_between(start, end, manifests, READ)) == [(11, 12)]


def test_deleted_seqs_are_passed_without_a_gap() -> None:
    manifests = by_name(make_manifest("a", delete_below=101, earliest_seq=101))
    end = next_offset(offset(a=0), manifests, READ)
    assert seqs_of(end) == {"a": 100}
    assert [partition.record_count for partition in partitions_between(offset(a=0), end, manifests, READ)] == [0]


# Loss.


def test_a_floor_that_passed_the_checkpoint_fails_or_is_exactly_one_gap_row() -> None:
    manifests = by_name(make_manifest("a", evict_floor=41, earliest_seq=41))
    with pytest.raises(TopicsDataLoss, match="seqs 21-40"):
        next_offset(offset(a=20), manifests, READ)
    end = next_offset(offset(a=20), manifests, replace(ROWS, max_records_per_trigger=10))
    assert seqs_of(end) == {"a": 50}
    found = partitions_between(offset(a=20), end, manifests, ROWS)
    assert gaps_of(found) == [(21, 40, "mixed")]
    assert ranges(found) == [(41, 50)]
    with pytest.raises(TopicsDataLoss):
        partitions_between(offset(a=20), end, manifests, READ)


def test_a_floor_that_passes_a_planned_batch_widens_its_gap_and_keeps_its_partitions() -> None:
    options = replace(ROWS, max_records_per_partition=10)
    end = next_offset(offset(a=0), by_name(make_manifest("a", head_seq=40)), options)
    later = by_name(make_manifest("a", head_seq=60, evict_floor=16, earliest_seq=16))
    found = partitions_between(offset(a=0), end, later, options)
    assert gaps_of(found) == [(1, 15, "mixed")]
    assert len(found) == 4
    assert [partition.record_count for partition in found] == [0, 5, 10, 10]


def test_a_topic_that_was_created_again_fails_unless_told_to_restart() -> None:
    manifests = by_name(make_manifest("a", epoch=2, head_seq=30))
    for options in (READ, ROWS, replace(READ, on_recreated="restart")):
        with pytest.raises(TopicsDataLoss, match="created again"):
            next_offset(offset(a=20), manifests, options)
    restart = replace(ROWS, on_recreated="restart")
    end = next_offset(offset(a=20), manifests, restart)
    assert end.topics["a"][:2] == (2, 30)
    found = partitions_between(offset(a=20), end, manifests, restart)
    assert gaps_of(found) == [(21, None, "recreated")]
    assert ranges(found) == [(1, 30)]


def test_a_cursor_above_the_head_fails_whatever_the_options() -> None:
    restart = replace(ROWS, on_recreated="restart", on_corrupt="rows")
    with pytest.raises(TopicsDataLoss, match="above the head"):
        next_offset(offset(a=200), by_name(make_manifest("a")), restart)
    with pytest.raises(TopicsDataLoss, match="above the head"):
        partitions_between(offset(a=90), offset(a=120), by_name(make_manifest("a")), restart)


def test_a_deleted_topic_fails_or_leaves_the_offset_with_a_gap_row() -> None:
    manifests = by_name(make_manifest("b"))
    with pytest.raises(TopicsDataLoss, match="which was deleted"):
        next_offset(offset(a=20, b=100), manifests, READ)
    end = next_offset(offset(a=20, b=100), manifests, ROWS)
    assert seqs_of(end) == {"b": 100}
    assert gaps_of(partitions_between(offset(a=20, b=100), end, manifests, ROWS)) == [(21, None, "topic_deleted")]
    assert next_offset(end, manifests, ROWS) is end


def test_a_topic_that_goes_between_planning_and_reading_is_a_gap_to_the_end_of_the_batch() -> None:
    with pytest.raises(TopicsDataLoss):
        partitions_between(offset(a=20), offset(a=30), {}, READ)
    assert gaps_of(partitions_between(offset(a=20), offset(a=30), {}, ROWS)) == [(21, 30, "topic_deleted")]
    created_again = by_name(make_manifest("a", epoch=2))
    with pytest.raises(TopicsDataLoss, match="created again"):
        partitions_between(offset(a=20), offset(a=30), created_again, ROWS)
    restart = replace(ROWS, on_recreated="restart")
    assert gaps_of(partitions_between(offset(a=20), offset(a=30), created_again, restart)) == [(21, 30, "recreated")]


def test_a_power_loss_inside_the_log_is_a_gap_where_it_is() -> None:
    manifests = by_name(make_manifest("a", lost_ranges=((30, 35),)))
    with pytest.raises(TopicsDataLoss, match="seqs 30-35 are taken by a power loss"):
        next_offset(offset(a=20), manifests, READ)
    end = next_offset(offset(a=20), manifests, ROWS)
    found = partitions_between(offset(a=20), end, manifests, ROWS)
    assert gaps_of(found) == [(30, 35, "power_loss")]
    assert found[0].hidden == ((30, 35),)

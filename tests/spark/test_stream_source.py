"""Streaming reads with a real server, driven as Spark drives them without a JVM: offsets, attempts, loss, limits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from tests.spark.world import SEGMENT_EVENTS, World, gaps, short, world
from topics.errors import TopicNotFound
from topics.spark import schemas
from topics.spark.errors import BadOption
from topics.spark.loss import TopicsDataLoss
from topics.spark.options import parse_options
from topics.spark.reading.source import RecordsTask, TopicsStreamReader

OffsetJson = dict[str, Any]


class Query:
    """A streaming query between two restarts: what Spark would write to its checkpoint is kept by the test."""

    def __init__(self, place: World, **given: object) -> None:
        texts = {"endpoint": place.url, **{name: str(value) for name, value in given.items()}}
        self.options = parse_options(texts, mode="stream")
        self.reader = TopicsStreamReader(self.options, schemas.schema_of(self.options))

    def __enter__(self) -> Query:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.stop()

    def begin(self) -> OffsetJson:
        first = self.reader.initialOffset()
        assert self.reader.initialOffset() == first
        return first

    def next(self, start: OffsetJson) -> OffsetJson:
        return self.reader.latestOffset(start, self.reader.getDefaultReadLimit())

    def rows_by_partition(self, start: OffsetJson, end: OffsetJson) -> list[list[dict[str, Any]]]:
        # As text, like in a checkpoint.
        start, end = json.loads(json.dumps(start)), json.loads(json.dumps(end))
        return [
            [row for batch in self.reader.read(part) for row in batch.to_pylist()]
            for part in self.reader.partitions(start, end)
        ]

    def rows(self, start: OffsetJson, end: OffsetJson) -> list[dict[str, Any]]:
        return [row for rows in self.rows_by_partition(start, end) for row in rows]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, cold_dir=str(tmp_path / "cold"), hot_retain_segments=1) as made:
        yield made


def seqs_by_topic(rows: list[dict[str, Any]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(row["topic"], []).append(row["seq"])
    return found


def test_attempts_of_a_batch_give_the_same_rows_per_partition_whatever_became_of_the_files(place: World) -> None:
    """Sealed, written again, moved between attempts; the second comes after a restart of the query."""
    place.fill("t", 330)
    with Query(place, subscribe="t", minPartitions=4, pinMs=0) as query:
        start = query.begin()
        end = query.next(start)
        first = query.rows_by_partition(start, end)
        assert [len(rows) for rows in first] == [83, 82, 83, 82]
        assert short([row for rows in first for row in rows]) == place.rows("t")
    for happens in (place.checkpoint, lambda: place.purge("t"), place.relocate, lambda: place.fill("t", 50)):
        happens()
        with Query(place, subscribe="t", minPartitions=4, pinMs=0) as again:
            assert again.rows_by_partition(start, end) == first


def test_a_purge_between_attempts_takes_only_what_was_deleted(place: World) -> None:
    """The cuts stay, and no gap comes of it."""
    place.fill("t", 3 * SEGMENT_EVENTS)
    place.client.seal("t")
    with Query(place, subscribe="t", minPartitions=4, pinMs=0, gaps="rows") as query:
        start = query.begin()
        end = query.next(start)
        before = query.rows_by_partition(start, end)
        place.client.delete("t", tag="t1")
        place.checkpoint()
        assert place.purge("t") > 0
        after = query.rows_by_partition(start, end)
    assert after == [[row for row in rows if row["tag"] != "t1"] for rows in before]


@pytest.mark.parametrize("access", ["auto", "http"])
def test_what_a_cap_took_behind_the_checkpoint_fails_with_the_range_or_is_one_row(place: World, access: str) -> None:
    place.client.create("c", cap_records=50)
    place.fill("c", 20)
    with Query(place, subscribe="c", access=access) as query:
        begun = query.next(query.begin())
        assert begun["topics"]["c"]["seq"] == 20
        place.fill("c", 100)
        with pytest.raises(
            TopicsDataLoss, match=r'topic "c": seqs 21-70 .*cap.*evict_floor 71.*head_seq 120'
        ) as caught:
            query.next(begun)
        assert "gaps=rows" in caught.value.message
        assert "startingOffsets" in caught.value.message
    with Query(place, subscribe="c", access=access, failOnDataLoss="false") as query:
        end = query.next(begun)
        rows = query.rows(begun, end)
        assert gaps(rows) == [(21, 70, "cap")]
        assert [row["seq"] for row in rows] == [21, *range(71, 121)]
        # The next attempt comes later, when more is gone: the gap is wider, and still one row.
        place.fill("c", 30)
        rows = query.rows(begun, end)
        assert gaps(rows) == [(21, 100, "cap")]
        assert [row["seq"] for row in rows] == [21, *range(101, 121)]


def test_what_expired_behind_the_checkpoint_is_told_as_such(place: World) -> None:
    place.client.create("e")
    place.fill("e", 30)
    with Query(place, subscribe="e", gaps="rows") as query:
        start = query.begin()
        place.client.create("e", ttl_ms=1)
        while place.manifest("e").evict_floor <= 30:
            place.fill("e", 1)
        end = query.next(start)
        rows = query.rows(start, end)
    # What expires between the plan and the read is a gap of its own.
    lost = [seq for first, last, _ in gaps(rows) for seq in range(first, (last or 0) + 1)]
    assert lost[:30] == list(range(1, 31))
    assert {reason for _, _, reason in gaps(rows)} == {"ttl"}
    kept = [row["seq"] for row in rows if row["kind"] == "record"]
    assert sorted(lost + kept) == list(range(1, end["topics"]["e"]["seq"] + 1))


def test_deleted_records_are_no_gap(place: World) -> None:
    place.fill("t", 250)
    place.checkpoint()
    with Query(place, subscribe="t") as query:
        start = query.begin()
        place.client.delete("t", before_seq=101)
        place.client.delete("t", tag="t2")
        end = query.next(start)
        assert short(query.rows(start, end)) == place.rows("t")


def test_a_topic_that_was_created_again_fails_or_begins_again(place: World) -> None:
    """Also when the new one is as long as the old one was."""
    place.client.create("r")
    place.fill("r", 20)
    with Query(place, subscribe="r", gaps="rows") as query:
        begun = query.next(query.begin())
        place.client.drop("r")
        place.client.create("r")
        place.fill("r", 40)
        with pytest.raises(TopicsDataLoss, match="created again"):
            query.next(begun)
    with Query(place, subscribe="r", gaps="rows", onRecreated="restart") as query:
        end = query.next(begun)
        rows = query.rows(begun, end)
        assert gaps(rows) == [(21, None, "recreated")]
        assert [row["seq"] for row in rows] == [21, *range(1, 41)]
        assert query.next(end) == end
        # Created again between two attempts of the batch, the topic is another instance.
        place.client.drop("r")
        place.client.create("r")
        place.fill("r", 60)
        assert gaps(query.rows(begun, end)) == [(1, 40, "recreated")]


def test_an_offset_above_the_head_fails_whatever_the_options_say(place: World) -> None:
    place.fill("t", 20)
    with Query(place, subscribe="t", gaps="rows", onRecreated="restart") as query:
        begun = query.next(query.begin())
        begun["topics"]["t"]["seq"] = 30
        with pytest.raises(TopicsDataLoss, match="seqs 21-30 are above the head"):
            query.next(begun)


def test_a_topic_that_was_deleted_fails_or_leaves_the_offset_with_a_row(place: World) -> None:
    place.client.create("d")
    place.fill("d", 20)
    place.fill("t", 20)
    with Query(place, subscribe="d,t") as query:
        begun = query.next(query.begin())
        place.client.drop("d")
        with pytest.raises(TopicsDataLoss, match=r'topic "d": seqs 21-… are gone with the topic'):
            query.next(begun)
    for is_limited in (False, True):
        with Query(place, subscribe="d,t", gaps="rows") as query:
            if is_limited:
                query.reader.prepareForTriggerAvailableNow()
            end = query.next(begun)
            assert list(end["topics"]) == ["t"]
            assert gaps(query.rows(begun, end)) == [(21, None, "topic_deleted")]
            assert query.reader.latestOffset(end, ReadAllAvailable()) == end, "the query goes on without the topic"
    with Query(place, subscribe="d,t") as query, pytest.raises(TopicNotFound):
        query.begin()


def test_a_topic_that_is_not_subscribed_any_more_is_not_taken_for_one_that_was_deleted(place: World) -> None:
    place.client.create("u")
    with Query(place, subscribe="t,u") as query:
        begun = query.next(query.begin())
    with Query(place, subscribe="t", gaps="rows") as query, pytest.raises(BadOption, match=r'"u".*not subscribed'):
        query.next(begun)


def test_available_now_ends_at_the_heads_of_its_start(place: World) -> None:
    """Three topics, limits, a topic that comes meanwhile."""
    lengths = {"p.a": 100, "p.b": 40, "p.c": 7}
    for name, count in lengths.items():
        place.client.create(name)
        place.fill(name, count)
    given = {"subscribePattern": r"p\..*", "maxRecordsPerTrigger": 50}
    with Query(place, **given) as query:
        offset = query.begin()
        query.reader.prepareForTriggerAvailableNow()
        for name in lengths:
            place.fill(name, 10)
        place.client.create("p.new")
        place.fill("p.new", 5)
        read: list[dict[str, Any]] = []
        batches = 0
        while (end := query.next(offset)) != offset:
            rows = query.rows(offset, end)
            assert len(rows) <= 50
            read += rows
            offset = end
            batches += 1
        assert batches == 3
        assert seqs_by_topic(read) == {name: list(range(1, count + 1)) for name, count in lengths.items()}
    with Query(place, **given) as query:
        query.reader.prepareForTriggerAvailableNow()
        read = []
        while (end := query.next(offset)) != offset:
            read += query.rows(offset, end)
            offset = end
        assert seqs_by_topic(read) == {
            **{name: list(range(count + 1, count + 11)) for name, count in lengths.items()},
            "p.new": [1, 2, 3, 4, 5],
        }
    with Query(place, **given) as query:
        query.reader.prepareForTriggerAvailableNow()
        assert query.next(offset) is offset


def test_topics_under_a_pattern_begin_with_their_first_seq_and_end_by_the_rules(place: World) -> None:
    """Whatever `startingOffsets` says."""
    place.client.create("p1")
    place.fill("p1", 30)
    place.fill("t", 5)
    with Query(place, subscribePattern="p.", startingOffsets="latest", gaps="rows") as query:
        begun = query.begin()
        assert begun["topics"]["p1"]["seq"] == 30
        assert query.next(begun) is begun
        place.client.create("p2")
        place.fill("p2", 12)
        place.fill("p1", 1)
        end = query.next(begun)
        assert seqs_by_topic(query.rows(begun, end)) == {"p1": [31], "p2": list(range(1, 13))}
        place.client.drop("p2")
        gone = query.next(end)
        assert list(gone["topics"]) == ["p1"]
        assert gaps(query.rows(end, gone)) == [(13, None, "topic_deleted")]
    with Query(place, subscribePattern="p.") as query, pytest.raises(TopicsDataLoss, match='topic "p2"'):
        query.next(end)


def test_limits_are_shared_in_proportion_and_no_topic_starves(place: World) -> None:
    """One hot topic and 99 cold ones. An idle query makes no batches."""
    for number in range(99):
        place.client.create(f"s{number:02d}", durability="memory")
        place.fill(f"s{number:02d}", 2)
    place.client.create("shot")
    place.fill("shot", 3000)
    with Query(place, subscribePattern="s.*", maxRecordsPerTrigger=400) as query:
        start = query.begin()
        end = query.next(start)
        found = seqs_by_topic(query.rows(start, end))
        assert len(found) == 100
        assert sum(map(len, found.values())) == 400
        assert len(found["shot"]) > 250
        # A task for each would take a hundred times as long to start as to run.
        assert len(query.reader.partitions(start, end)) == 2
        # Without the limit, as `Trigger.Once` has it, all of it.
        everything = query.reader.latestOffset(start, ReadAllAvailable())
        assert everything["topics"]["shot"]["seq"] == 3000
        assert query.reader.latestOffset(everything, ReadMaxRows(400)) is everything
        assert json.dumps(query.reader.reportLatestOffset()) == json.dumps(
            {**everything, "topics": {name: {**topic, "cuts": []} for name, topic in everything["topics"].items()}}
        )


def test_small_partitions_share_tasks_in_the_same_way_whatever_retention_took(place: World) -> None:
    names = [f"n{number}" for number in range(5)]
    for name in names:
        place.client.create(name)
        place.fill(name, 90)
    with Query(place, subscribe=",".join(names), maxRecordsPerPartition=200, gaps="rows") as query:
        start = query.begin()
        end = query.next(start)

        def tasks() -> list[list[str]]:
            parts = query.reader.partitions(start, end)
            return [[each.topic for each in part.partitions] for part in parts if isinstance(part, RecordsTask)]

        assert tasks() == [["n0", "n1"], ["n2", "n3"], ["n4"]]
        place.client.create("n1", cap_records=5)
        assert tasks() == [["n0", "n1"], ["n2", "n3"], ["n4"]]
        rows = query.rows(start, end)
    assert gaps(rows) == [(1, 85, "cap")]
    assert len(rows) == 4 * 90 + 5 + 1


def test_a_small_batch_waits_for_more_but_not_for_ever(place: World) -> None:
    place.fill("t", 5)
    with Query(place, subscribe="t", minRecordsPerTrigger=10, maxTriggerDelay="1h") as query:
        start = query.begin()
        assert query.next(start) is start
        place.fill("t", 5)
        assert query.next(start)["topics"]["t"]["seq"] == 10
        query.reader.prepareForTriggerAvailableNow()
    with Query(place, subscribe="t", minRecordsPerTrigger=100, maxTriggerDelay="1ms") as query:
        start = query.begin()
        while query.next(start) is start:
            pass


def test_only_what_is_synced_is_read_when_that_was_asked_for(place: World) -> None:
    for durability in ("ephemeral", "fsync"):
        place.client.create(durability, durability=durability)
        place.fill(durability, 10)
    for isolation, wanted in (("visible", [10, 10]), ("durable", [0, 10])):
        with Query(place, subscribe="ephemeral,fsync", isolation=isolation) as query:
            end = query.next(query.begin())
            assert [topic["seq"] for topic in end["topics"].values()] == wanted

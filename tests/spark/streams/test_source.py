"""Streaming reads of messages: offsets, limits, restarts, and the whole of it on Spark."""

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from tests.spark.queries import run_to_end
from tests.spark.streams_world import (
    KEY,
    Row,
    offsets,
    open_world,
    payload,
    read,
    rows_of,
    send,
    settings_of,
    stream_reader,
    write,
)
from topics.spark.errors import BadOption
from topics.spark.loss import TopicsDataLoss
from topics.spark.streams.source import StreamsStreamReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

Offset = dict[str, Any]
NO_LIMIT = ReadAllAvailable()


def step(reader: StreamsStreamReader, start: Offset, limit: Any = NO_LIMIT) -> tuple[Offset, list[Row]]:
    """A batch, with its offsets as Spark hands them back: through JSON."""
    end = json.loads(json.dumps(reader.latestOffset(start, limit)))
    return end, rows_of(reader, reader.partitions(start, end)) if end != start else []


def test_batches_follow_each_other_and_nothing_new_is_the_same_offset(tmp_path: Path) -> None:
    with open_world(tmp_path, partitions=2) as streams:
        reader = stream_reader(tmp_path)
        start = reader.initialOffset()
        assert step(reader, start) == (start, [])
        send(streams, 25)
        first, rows = step(reader, start)
        assert offsets(rows) == list(range(25))
        send(streams, 15, first=25)
        send(streams, 5, partition=1)
        # Another process, as after a restart.
        second, rows = step(stream_reader(tmp_path), first)
        assert [(row["partition"], row["offset"]) for row in rows] == [
            *((0, offset) for offset in range(25, 40)),
            *((1, offset) for offset in range(5)),
        ]
        assert stream_reader(tmp_path).latestOffset(second, NO_LIMIT) is second
        assert json.dumps(second, sort_keys=True) == json.dumps(second)
        assert second["partitions"]["0"]["offset"] == 39
        assert reader.reportLatestOffset() is not None


def test_a_limit_is_shared_among_partitions_by_their_lag(tmp_path: Path) -> None:
    with open_world(tmp_path, partitions=3) as streams:
        for partition, count in enumerate((90, 30, 1)):
            send(streams, count, partition=partition)
    reader = stream_reader(tmp_path, maxRecordsPerTrigger="40")
    end = reader.initialOffset()
    seen: list[tuple[int, int]] = []
    for _ in range(4):
        end, rows = step(reader, end, ReadMaxRows(40))
        assert len(rows) <= 40
        assert len({row["partition"] for row in rows}) == 3 or seen
        seen += [(row["partition"], row["offset"]) for row in rows]
    assert sorted(seen) == [(partition, at) for partition, count in enumerate((90, 30, 1)) for at in range(count)]
    assert step(reader, end, ReadMaxRows(40)) == (end, [])


def test_available_now_ends_at_the_heads_of_its_start(tmp_path: Path) -> None:
    with open_world(tmp_path) as streams:
        send(streams, 50)
        reader = stream_reader(tmp_path, maxRecordsPerTrigger="30")
        reader.prepareForTriggerAvailableNow()
        send(streams, 50, first=50)
        first, rows = step(reader, reader.initialOffset(), ReadMaxRows(30))
        second, more = step(reader, first, ReadMaxRows(30))
        assert offsets(rows + more) == list(range(50))
        assert step(reader, second, ReadMaxRows(30)) == (second, [])


def test_a_batch_is_cut_the_same_way_when_it_is_tried_again(tmp_path: Path) -> None:
    with open_world(tmp_path) as streams:
        send(streams, 100)
        reader = stream_reader(tmp_path, partitionBytes="4k")
        start = reader.initialOffset()
        end = reader.latestOffset(start, NO_LIMIT)
        before = [rows_of(reader, [part]) for part in reader.partitions(start, end)]
        # The last segment grows and is sealed meanwhile.
        send(streams, 100, first=100)
        again = stream_reader(tmp_path, partitionBytes="4k")
        assert [rows_of(again, [part]) for part in again.partitions(start, end)] == before
        assert len(before) > 3


def test_partitions_that_are_added_are_read_from_their_first_message(tmp_path: Path) -> None:
    with open_world(tmp_path) as streams:
        send(streams, 10)
        reader = stream_reader(tmp_path, startingOffsets="latest")
        start = reader.initialOffset()
        streams.system.create_partitions("orders", "events", 1)
        send(streams, 10, partition=1)
        end, rows = step(reader, start)
        assert [(row["partition"], row["offset"]) for row in rows] == [(1, offset) for offset in range(10)]
        assert set(end["partitions"]) == {"0", "1"}


def test_a_checkpoint_that_retention_passed_is_told(tmp_path: Path) -> None:
    with open_world(tmp_path) as streams:
        send(streams, 20)
        start, _ = step(stream_reader(tmp_path), stream_reader(tmp_path).initialOffset())
        send(streams, 100, first=20)
        streams.system.delete_segments("orders", "events", 0, 2)
        first = min(int(log.stem) for log in tmp_path.glob("streams/0/topics/0/partitions/0/*.log"))
        assert first > 20
        with pytest.raises(TopicsDataLoss, match=f"offsets 20-{first - 1} are evicted"):
            step(stream_reader(tmp_path), start)
        _, rows = step(stream_reader(tmp_path, gaps="rows"), start)
        assert [(row["offset"], row["gap_to"]) for row in rows if row["kind"] == "gap"] == [(20, first - 1)]
        assert offsets(rows)[1:] == list(range(first, 120))


def test_a_topic_that_was_emptied_or_deleted_is_no_progress(tmp_path: Path) -> None:
    with open_world(tmp_path) as streams:
        send(streams, 20)
        start, _ = step(stream_reader(tmp_path), stream_reader(tmp_path).initialOffset())
        streams.purge_topic("orders", "events")
        send(streams, 60, first=500)
        for given in ({}, {"gaps": "rows"}):
            with pytest.raises(TopicsDataLoss, match="of an instance of the topic that is gone"):
                step(stream_reader(tmp_path, **given), start)
        restarting = stream_reader(tmp_path, gaps="rows", onRecreated="restart")
        end, (gap, *rest) = step(restarting, start)
        assert (gap["offset"], gap["gap_to"], gap["gap_reason"]) == (20, None, "recreated")
        assert [row["payload"] for row in rest] == [payload(number) for number in range(500, 560)]
        streams.delete_topic("orders", "events")
        with pytest.raises(TopicsDataLoss, match='stream "orders", topic "events": data loss: partition "0": offsets'):
            step(stream_reader(tmp_path), end)
        end, rows = step(stream_reader(tmp_path, gaps="rows"), end)
        assert [(row["offset"], row["gap_reason"]) for row in rows] == [(60, "topic_deleted")]
        assert end["partitions"] == {}


def test_a_small_batch_is_held_back_for_more(tmp_path: Path) -> None:
    with open_world(tmp_path) as streams:
        send(streams, 20)
        reader = stream_reader(tmp_path, minRecordsPerTrigger="30", maxTriggerDelay="1h")
        start = reader.initialOffset()
        assert step(reader, start) == (start, [])
        send(streams, 10, first=20)
        assert len(step(reader, start)[1]) == 30


def test_a_partition_that_is_not_asked_for_any_more_is_no_deleted_one(tmp_path: Path) -> None:
    with open_world(tmp_path, partitions=2) as streams:
        send(streams, 10)
    start = stream_reader(tmp_path).initialOffset()
    with pytest.raises(BadOption) as caught:
        step(stream_reader(tmp_path, partitions="1", gaps="rows"), start)
    assert caught.value.message == (
        "the checkpoint has partition 0, which is not in option `partitions` any more: add it again, "
        "or begin a new checkpoint"
    )


def test_a_query_may_begin_at_a_time(tmp_path: Path) -> None:
    write(tmp_path, 20)
    late = stream_reader(tmp_path, startingTimestamp="2100-01-01T00:00:00Z")
    assert late.initialOffset()["partitions"]["0"]["offset"] == 19
    early = stream_reader(tmp_path, startingTimestamp="2020-01-01T00:00:00Z")
    assert early.initialOffset()["partitions"]["0"]["offset"] == -1


def test_beside_a_writer_and_retention_every_offset_is_read_once_or_told_of(tmp_path: Path) -> None:
    count = 3000
    with open_world(tmp_path) as streams:

        def work() -> None:
            for first in range(0, count, 50):
                send(streams, 50, first=first)
                if first % 300 == 0:
                    streams.system.delete_segments("orders", "events", 0, 2)

        writer = threading.Thread(target=work)
        writer.start()
        reader = stream_reader(tmp_path, gaps="rows", startingOffsets='{"0": 0}', maxRecordsPerTrigger="70")
        end = reader.initialOffset()
        next_offset = 0
        while next_offset < count:
            is_last = not writer.is_alive()
            end, rows = step(reader, end, ReadMaxRows(70))
            for row in rows:
                assert row["offset"] == next_offset
                if row["kind"] == "gap":
                    next_offset = row["gap_to"] + 1
                else:
                    assert row["payload"] == payload(next_offset)
                    next_offset += 1
            assert rows or not is_last, "the writer is done, and not all of it came"
        writer.join()


# With Spark.


def load(spark: "SparkSession", path: Path, **given: str) -> "DataFrame":
    options = {"path": str(path), "stream": "orders", "topic": "events", **given}
    return spark.read.format("topics_streams").options(**options).load()


def run_query(spark: "SparkSession", path: Path, checkpoint: Path, target: Path, **given: str) -> "StreamingQuery":
    options = {"path": str(path), "stream": "orders", "topic": "events", **given}
    writer = (
        spark.readStream.format("topics_streams")
        .options(**options)
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
    )
    return run_to_end(lambda: writer.start(str(target)))


def test_spark_reads_a_batch_and_a_stream_with_limits_over_a_restart(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, checkpoint, target = tmp_path / "data", tmp_path / "checkpoint", tmp_path / "out"
    key_file = tmp_path / "key"
    key_file.write_text(KEY)
    given = {"keyFile": str(key_file)}
    with open_world(data, settings_of(key=KEY, compression="zstd"), partitions=2) as streams:
        send(streams, 60)
        send(streams, 30, partition=1)
        rows = load(spark, data, **given).where("payload is not null").select("partition", "offset").collect()
        assert sorted(tuple(row) for row in rows) == [(0, at) for at in range(60)] + [(1, at) for at in range(30)]
        query = run_query(spark, data, checkpoint, target, maxRecordsPerTrigger="50", **given)
        assert [progress.numInputRows for progress in query.recentProgress] == [50, 40]
        send(streams, 20, first=60)
        query = run_query(spark, data, checkpoint, target, maxRecordsPerTrigger="50", **given)
        assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [20]
        expected = [(row["partition"], row["offset"], row["payload"]) for row in read(data, **given)]
    written = pq.read_table(target, columns=["partition", "offset", "payload"]).to_pylist()
    assert sorted(tuple(row.values()) for row in written) == sorted(expected)
    assert len(written) == 110
    for path in [*checkpoint.rglob("*"), *target.rglob("*")]:
        assert not path.is_file() or KEY.encode() not in path.read_bytes()


def test_spark_says_what_is_lost_and_where(spark: "SparkSession", tmp_path: Path) -> None:
    with open_world(tmp_path) as streams:
        send(streams, 100)
        streams.system.delete_segments("orders", "events", 0, 1)
    with pytest.raises(Exception, match='stream "orders", topic "events": data loss: partition "0": offsets 0-'):
        load(spark, tmp_path, startingOffsets='{"0": 0}').count()
    frame = load(spark, tmp_path, startingOffsets='{"0": 0}', gaps="rows")
    assert frame.where("kind = 'gap'").count() == 1

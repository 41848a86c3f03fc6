"""What is told about a running query: parsed from the JSON of a progress, and seen in a real session."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import topics.spark
from tests.spark.queries import run_to_end, wait_for_listeners
from topics.client.sync.client import Client
from topics.spark.watching import StreamProgress, TopicProgress, parse_progress
from topics.testing.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def offset(**seqs: int) -> dict[str, Any]:
    return {"topics": {name: {"cuts": [], "epoch": 1, "seq": seq} for name, seq in seqs.items()}, "v": 1}


def told(*sources: dict[str, Any], **others: Any) -> str:
    rows = {"numInputRows": 7, "processedRowsPerSecond": 3.5}
    return json.dumps({"id": "x", "name": None, "batchId": 4, "sources": [rows | each for each in sources], **others})


@pytest.mark.parametrize(
    ("source", "topics_progress"),
    [
        (
            {"startOffset": offset(a=10), "endOffset": offset(a=15, b=3), "latestOffset": offset(a=20, b=3, c=9)},
            (TopicProgress("a", 15, 20, 5), TopicProgress("b", 3, 3, 3), TopicProgress("c", 0, 9, 0)),
        ),
        ({"startOffset": None, "endOffset": offset(a=5), "latestOffset": None}, (TopicProgress("a", 5, 5, 5),)),
        # Heads that are older than what was read since are no negative lag.
        ({"startOffset": None, "endOffset": offset(a=5), "latestOffset": offset(a=4)}, (TopicProgress("a", 5, 5, 5),)),
        (
            {"endOffset": {"partitions": {"0": {"cuts": [], "epoch": 1, "offset": 8}}, "v": 1}},
            (TopicProgress("0", 8, 8, 8),),
        ),
        ({"endOffset": 5, "latestOffset": "x"}, ()),
    ],
)
def test_the_lag_of_each_topic_is_read_from_offsets(
    source: dict[str, Any], topics_progress: tuple[TopicProgress, ...]
) -> None:
    assert parse_progress(told(source)) == StreamProgress("x", 4, 7, 3.5, None, topics_progress)


def test_spark_connect_tells_the_same_in_other_forms() -> None:
    fields = [{"name": "topics_records"}, {"name": "topics_bytes"}]
    found = parse_progress(
        told(
            {"startOffset": None, "endOffset": json.dumps(offset(a=15)), "latestOffset": json.dumps(offset(a=20))},
            observedMetrics={"read": {"values": [7, 90], "schema": {"type": "struct", "fields": fields}}},
        )
    )
    assert found == StreamProgress("x", 4, 7, 3.5, 90, (TopicProgress("a", 15, 20, 15),))


def test_a_progress_is_one_line() -> None:
    source = {"endOffset": offset(a=15, b=3), "latestOffset": offset(a=20, b=3)}
    observed = {"read": {"topics_records": 7, "topics_bytes": 90}, "mine": {"n": 1}}
    found = parse_progress(told(source, source, name="orders", observedMetrics=observed))
    assert found.lag == 10
    assert str(found) == ("orders: batch 4, 14 records, 90 bytes, 7/s; not read yet: a 5, b 0, a 5, b 0")


def test_lag_records_and_bytes_of_a_query_that_updates_a_topic(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    seen: list[StreamProgress] = []
    listener = topics.spark.listener(seen.append)
    with Client(server.url) as client:
        for name in ("left", "right", "counts"):
            client.create(name)
        for name in ("left", "right"):
            records = [{"data": {"n": number}, "tag": f"t{number % 2}"} for number in range(30)]
            client.append_encoded(name, json.dumps(records).encode())
        spark.streams.addListener(listener)
        try:
            stream = topics.spark.read_stream(
                spark, observe="read", endpoint=server.url, subscribe="left,right", maxRecordsPerTrigger="40"
            )
            counts = stream.groupBy("tag").count().selectExpr("to_json(struct(*)) AS data", "tag")
            writer = (
                counts.writeStream.outputMode("update")
                .queryName("left, right → counts")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .foreachBatch(topics.spark.each_batch(endpoint=server.url, topic="counts", writerId="counts"))
                .trigger(availableNow=True)
            )
            last = topics.spark.progress(run_to_end(writer.start))
            wait_for_listeners(spark)
        finally:
            spark.streams.removeListener(listener)
        written = [(record.tag, json.loads(record.data)["count"]) for record in client.read("counts", 0).records]
    assert written == [("t0", 20), ("t1", 20), ("t0", 30), ("t1", 30)]
    assert last is not None
    assert (last.name, last.batch, last.lag, last.records) == ("left, right → counts", 1, 0, 20)
    assert last.bytes == sum(len(f'{{"n": {number}}}') for number in range(20, 30)) * 2
    # Events of queries of other tests may come late.
    first = next(told for told in seen if told.name == last.name)
    assert [(topic.topic, topic.seq, topic.lag) for topic in first.topics] == [("left", 20, 10), ("right", 20, 10)]

"""`compact --latest-by-tag`: what a window query over the same snapshot gives, in order, and once."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from topics.client.sync.client import Client
from topics.spark.errors import BadOption
from topics.spark.jobs.compact_latest import run
from topics.spark.jobs.job_options import CompactOptions
from topics.testing.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A machine with other things to do takes a minute to start Spark.
pytestmark = pytest.mark.timeout(900)
WINDOW = """
SELECT tag, node, data, meta FROM (
  SELECT *, row_number() OVER (PARTITION BY tag ORDER BY seq DESC) AS place FROM orders
) WHERE {rule} ORDER BY seq
"""


def records_of(client: Client, topic: str) -> list[tuple[Any, ...]]:
    """(tag, node, data, meta) of each; None for what is not there."""

    def value(text: bytes | None) -> Any:
        return None if text is None else msgspec.json.decode(text)

    return [
        (record.tag, record.node, value(record.data), value(record.meta))
        for record in client.read(topic, 0, limit=1000).records
    ]


def test_the_last_live_record_of_each_tag_is_what_a_window_query_gives(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    with Client(server.url) as client:
        client.create("orders")
        records: list[dict[str, Any]] = [
            {"data": {"n": n}, "node": f"n{n % 2}", **({"tag": f"t{n * n % 23}"} if n % 9 else {})} for n in range(450)
        ]
        records[440]["meta"] = {"why": "it is late"}
        client.append_encoded("orders", json.dumps(records).encode())
        config = CompactOptions(endpoint=server.url, topics=("orders",), latest_by_tag=True, into="topic:latest")
        done = run(spark, config)
        again = run(spark, config)
        spark.read.format("topics").options(endpoint=server.url, subscribe="orders").load().createOrReplaceTempView(
            "orders"
        )
        expected = [
            (row["tag"], row["node"], json.loads(row["data"]), json.loads(row["meta"]) if row["meta"] else None)
            for row in spark.sql(WINDOW.format(rule="place = 1 OR tag IS NULL")).collect()
        ]
        assert records_of(client, "latest") == expected
        assert (done.records, again.records, again.items_skipped) == (len(expected), 0, 1)
        files = run(spark, replace(config, into=f"parquet:{tmp_path}/latest", untagged="drop"))
    wanted = spark.sql(WINDOW.format(rule="place = 1 AND tag IS NOT NULL")).collect()
    found = spark.read.parquet(f"{tmp_path}/latest").orderBy("seq").select("tag", "node", "data", "meta").collect()
    assert found == wanted
    assert files.records == len(wanted)
    with pytest.raises(BadOption, match="into itself"):
        run(spark, replace(config, into="topic:orders"))

"""Where a copied record comes from, in its meta."""

import json
from typing import TYPE_CHECKING

from topics.spark.jobs.marks import ORIGIN, marked, source_mark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_mark_is_added_to_whatever_meta_there_is(spark: "SparkSession") -> None:
    from pyspark.sql.functions import col, timestamp_millis

    metas = [
        *(None, "{}", " { } ", '{"a":1}', '{"a":{"b":"}"}} ', '{"c":"x"}\n'),
        *("[1]", '"{"', "7", "null", '{"_topics_origin":1}'),
    ]
    rows = spark.createDataFrame([(seq, meta) for seq, meta in enumerate(metas)], "seq long, meta string")
    mark = source_mark(col("seq"), timestamp_millis(col("seq") + 1_767_225_600_123), 'or"ders')
    found = [
        row["meta"] for row in rows.orderBy("seq").select(marked(col("meta"), ORIGIN, mark).alias("meta")).collect()
    ]
    for seq, (meta, text) in enumerate(zip(metas, found, strict=True)):
        before = None if meta is None else json.loads(meta)
        kept = before if isinstance(before, dict) else {} if meta is None else {"meta": before}
        expected = {"topic": 'or"ders', "seq": seq, "ts": 1_767_225_600_123 + seq}
        assert json.loads(text) == {**kept, ORIGIN: expected}, meta

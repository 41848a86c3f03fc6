"""The columns of a read, before it begins. For `schema=infer` a few records of its topics are read, on the driver."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from topics.spark import schemas
from topics.spark.options import ReadOptions, parse_columns, parse_source
from topics.spark.reading.locate import read_partitions
from topics.spark.reading.plan import Partition, plan_batch
from topics.spark.reading.source import take_manifests
from topics.spark.shaping.schema_option import SAMPLE_RECORDS, given_type, inferred_type

# A sample is of the first so many topics.
TOPICS_MAX: Final = 100


def schema_text(given: Mapping[str, str]) -> str:
    """The columns of a read with these options, as DDL. A schema that is to be inferred is inferred here."""
    options = parse_columns(given)
    return schemas.ddl(schemas.schema_of(options), _data_type(given, options))


def _data_type(given: Mapping[str, str], options: ReadOptions) -> str | None:
    if options.schema is None:
        return None
    known = given_type(options.schema)
    return known or inferred_type(options.schema_location, lambda: sample_texts(given, SAMPLE_RECORDS))


def sample_texts(given: Mapping[str, str], records: int) -> Iterator[str | None]:
    """`data` of the oldest and the newest records of each topic, together at most so many of a topic."""
    options = replace(
        parse_source(given, environment=os.environ), columns=("data",), gaps="rows", on_corrupt="rows", pin_ms=0
    )
    by_topic: dict[str, list[Partition]] = {}
    for partition in plan_batch(take_manifests(options), options):
        if partition.record_count:
            by_topic.setdefault(partition.topic, []).append(partition)
    for partitions in list(by_topic.values())[:TOPICS_MAX]:
        yield from _of_topic(partitions, options, max(1, records // 2))


def _of_topic(partitions: list[Partition], options: ReadOptions, count: int) -> Iterator[str | None]:
    oldest, newest = partitions[0], partitions[-1]
    end = min(oldest.last_seq, oldest.first_seq + count - 1)
    yield from _texts(replace(oldest, last_seq=end), options)
    start = max(newest.first_seq, newest.last_seq - count + 1)
    if newest is oldest:
        start = max(start, end + 1)
    if start <= newest.last_seq:
        yield from _texts(replace(newest, first_seq=start), options)


def _texts(partition: Partition, options: ReadOptions) -> Iterator[str | None]:
    for batch in read_partitions([replace(partition, gaps=())], options, schemas.schema_of(options)):
        yield from batch.column("data").to_pylist()

"""The tables `segments`, `topics` and `gaps`, made from the same manifests as a read of records.

Pure: manifests and facts of topics in, batches out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]

from topics.protocol.response_body import TopicState
from topics.spark.loss import find_gaps
from topics.spark.manifest import Manifest
from topics.spark.options import ReadOptions
from topics.spark.schemas import schema_of

TableName = Literal["segments", "topics", "gaps"]

BATCH_ROWS: Final = 10_000
_US_PER_MS: Final = 1000

Row = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """Facts of a topic that are not in its manifest. `config` is JSON."""

    type: str
    count: int
    bytes: int
    config: str


def facts_of(state: TopicState) -> TopicFacts:
    """From the answer of a server."""
    return TopicFacts(state.type, state.count, state.bytes, msgspec.json.encode(state.config).decode())


def table_batches(
    name: TableName,
    manifests: Sequence[Manifest],
    facts: Mapping[str, TopicFacts],
    *,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """The rows of a table under the schema of `schemas`, by name of topic. Only the table `topics` needs facts."""
    ordered = sorted(manifests, key=lambda manifest: manifest.topic)
    rows: Iterable[Row]
    if name == "segments":
        rows = (row for manifest in ordered for row in _segment_rows(manifest))
    elif name == "topics":
        rows = (_topic_row(manifest, facts[manifest.topic]) for manifest in ordered)
    else:
        rows = (row for manifest in ordered for row in _gap_rows(manifest))
    return _batches(rows, schema_of(ReadOptions(table=name)), batch_rows)


def _segment_rows(manifest: Manifest) -> Iterator[Row]:
    for segment in manifest.segments:
        yield (
            manifest.topic,
            manifest.topic_id,
            manifest.epoch,
            segment.first_seq,
            segment.last_seq,
            segment.records,
            segment.live,
            segment.data_len,
            segment.min_ts * _US_PER_MS,
            segment.max_ts * _US_PER_MS,
            segment.tier,
            segment.uri,
            segment.sealed,
            segment.digest or None,
        )


def _topic_row(manifest: Manifest, facts: TopicFacts) -> Row:
    return (
        manifest.topic,
        manifest.topic_id,
        facts.type,
        manifest.epoch,
        manifest.head_seq,
        manifest.earliest_seq,
        manifest.evict_floor,
        facts.count,
        facts.bytes,
        facts.config,
    )


def _gap_rows(manifest: Manifest) -> Iterator[Row]:
    """All gaps that a read from the first seq meets."""
    for gap in find_gaps(manifest, 0, manifest.head_seq):
        yield gap.topic, gap.first_seq, gap.last_seq, gap.reason


def _batches(rows: Iterable[Row], schema: pa.Schema, batch_rows: int) -> Iterator[pa.RecordBatch]:
    pending: list[Row] = []
    for row in rows:
        pending.append(row)
        if len(pending) == batch_rows:
            yield _batch(pending, schema)
            pending = []
    if pending:
        yield _batch(pending, schema)


def _batch(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)

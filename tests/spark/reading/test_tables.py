"""The tables segments, topics and gaps: rows under exactly the schema that Spark is told."""

from datetime import UTC, datetime

import msgspec
import pytest

from tests.spark.manifests import make_manifest
from topics.protocol.response_body import TopicState
from topics.spark.options import ReadOptions
from topics.spark.reading.tables import TableName, TopicFacts, facts_of, table_batches
from topics.spark.schemas import schema_of

FACTS = TopicFacts("log", 90, 9000, '{"ttl_ms":5}')


def rows(name: TableName, *manifests: object, batch_rows: int = 10_000) -> list[dict[str, object]]:
    facts = {manifest.topic: FACTS for manifest in manifests}  # type: ignore[attr-defined]
    found: list[dict[str, object]] = []
    for batch in table_batches(name, manifests, facts, batch_rows=batch_rows):  # type: ignore[arg-type]
        assert batch.schema.equals(schema_of(ReadOptions(table=name)), check_metadata=True)
        assert 0 < batch.num_rows <= batch_rows
        found += batch.to_pylist()
    return found


def test_segments_are_rows_in_the_order_of_topics_and_seqs() -> None:
    found = rows("segments", make_manifest("b", head_seq=30), make_manifest("a", head_seq=20), batch_rows=2)
    assert [(row["topic"], row["first_seq"], row["last_seq"]) for row in found] == [
        *(("a", 1, 10), ("a", 11, 15)),
        *(("b", 1, 10), ("b", 11, 20), ("b", 21, 25)),
    ]
    assert found[0] == {
        "topic": "a",
        "topic_id": 7,
        "epoch": 1,
        "first_seq": 1,
        "last_seq": 10,
        "records": 10,
        "live": 10,
        "bytes": 1000,
        "min_ts": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        "max_ts": datetime(1970, 1, 1, 0, 0, 10, tzinfo=UTC),
        "tier": "hot",
        "uri": "file:///data/topics/00000007/seg-0000000000000001.data",
        "sealed": True,
        "digest": "0" * 32,
    }


def test_a_segment_without_a_digest_has_none() -> None:
    manifest = make_manifest(head_seq=10, tail=0)
    unsealed = tuple(msgspec.structs.replace(segment, digest="", sealed=False) for segment in manifest.segments)
    (row,) = rows("segments", msgspec.structs.replace(manifest, segments=unsealed))
    assert (row["digest"], row["sealed"]) == (None, False)


def test_a_topic_is_a_row_of_its_manifest_and_its_facts() -> None:
    (row,) = rows("topics", make_manifest(evict_floor=11, earliest_seq=12))
    assert row == {
        "name": "orders",
        "id": 7,
        "type": "log",
        "epoch": 1,
        "head_seq": 100,
        "earliest_seq": 12,
        "evict_floor": 11,
        "count": 90,
        "bytes": 9000,
        "config": '{"ttl_ms":5}',
    }


def test_gaps_are_all_that_a_reader_from_the_first_seq_on_is_told_of() -> None:
    manifest = make_manifest(evict_floor=11, earliest_seq=11, cap_floor=10, ttl_floor=0, lost_ranges=((30, 35),))
    assert rows("gaps", manifest, make_manifest("whole")) == [
        {"topic": "orders", "gap_from": 1, "gap_to": 10, "reason": "cap"},
        {"topic": "orders", "gap_from": 30, "gap_to": 35, "reason": "power_loss"},
    ]


@pytest.mark.parametrize("name", ["segments", "topics", "gaps"])
def test_without_topics_there_are_no_batches(name: TableName) -> None:
    assert rows(name) == []


def test_facts_are_those_that_a_server_tells() -> None:
    config = {
        "type": "queue",
        "ttl_ms": 0,
        "cap_records": 5,
        "cap_bytes": 0,
        "discard": "old",
        "durable": False,
        "durability": "disk",
        "priority": None,
        "auto_priority": True,
        "auto_create": True,
        "idempotency_window_ms": 1,
        "dedupe_node": True,
        "lease_ms": 1,
        "claim_jitter_ms": 0,
        "max_deliveries": 0,
        "dead_letter": None,
        "leases_durable": False,
    }
    state = msgspec.convert(
        {
            "topic": "a",
            "type": "queue",
            "head_seq": 9,
            "earliest_seq": 1,
            "next_seq": 10,
            "count": 8,
            "bytes": 800,
            "epoch": 1,
            "evict_floor": 1,
            "lost_ranges": [],
            "config": config,
            "effective_priority": 0,
            "last_write_ts": None,
            "last_read_ts": None,
            "performance": {"server_total_ms": 0.1},
        },
        TopicState,
    )
    facts = facts_of(state)
    assert (facts.type, facts.count, facts.bytes) == ("queue", 8, 800)
    assert msgspec.json.decode(facts.config) == config

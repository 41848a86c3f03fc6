"""Manifests for the tests of planning."""

from typing import Any

from topics.spark.manifest import Manifest, Segment


def make_segment(first_seq: int, last_seq: int, record_bytes: int = 100) -> Segment:
    count = last_seq - first_seq + 1
    return Segment(
        first_seq=first_seq,
        last_seq=last_seq,
        tier="hot",
        uri=f"file:///data/topics/00000007/seg-{first_seq:016d}.data",
        data_len=count * record_bytes,
        idx_len=count * 20,
        min_ts=first_seq * 1000,
        max_ts=last_seq * 1000,
        records=count,
        live=count,
        sealed=True,
        digest="0" * 32,
    )


def make_manifest(
    topic: str = "orders", *, head_seq: int = 100, segment_size: int = 10, tail: int = 5, **changes: Any
) -> Manifest:
    """Seqs from 1 to the head in segments of one size, but for the tail."""
    checkpointed_seq = max(0, head_seq - tail)
    members: dict[str, Any] = {
        "topic": topic,
        "store_id": "store",
        "topic_id": 7,
        "epoch": 1,
        "head_seq": head_seq,
        "durable_seq": head_seq,
        "earliest_seq": 1,
        "evict_floor": 1,
        "delete_below": 0,
        "checkpointed_seq": checkpointed_seq,
        "segments": tuple(
            make_segment(first, min(first + segment_size - 1, checkpointed_seq))
            for first in range(1, checkpointed_seq + 1, segment_size)
        ),
    }
    return Manifest(**(members | changes))

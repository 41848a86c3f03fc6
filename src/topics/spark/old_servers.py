"""What a server from before manifests and frames can still be asked for: the state of a topic, and diffs.

A thousand records a call and no files, so it is slow; it is there so that a query does not stop at an old server.
"""

import logging
from functools import cache
from typing import Final

import msgspec

from topics.client import Client, Frames, FramesGap
from topics.formats import segment
from topics.formats.records import Record
from topics.spark.manifest import Manifest

logger = logging.getLogger(__name__)

_EVICTED: Final = frozenset({"cap", "ttl", "mixed", "source_trim"})


def manifest_by_state(client: Client, topic: str) -> Manifest:
    """A picture without files: all of it is tail. Such a server does not tell which instance of the topic it is."""
    _warn(client.endpoint)
    state = client.topic(topic)
    # Only a reader from the beginning is told what is gone.
    gap = client.diff(topic, 0, limit=1).tombstone
    reason = "" if gap is None else gap.reason
    floor = gap.gap_to if gap is not None and reason in _EVICTED else 0
    return Manifest(
        topic=topic,
        store_id="",
        topic_id=0,
        epoch=1,
        head_seq=state.head_seq,
        durable_seq=state.head_seq,
        earliest_seq=state.earliest_seq,
        evict_floor=floor + 1,
        cap_floor=floor if reason in {"cap", "mixed"} else 0,
        ttl_floor=floor if reason in {"ttl", "mixed"} else 0,
        delete_below=0,
        checkpointed_seq=0,
    )


def frames_by_diff(client: Client, topic: str, epoch: int, first_seq: int, last_seq: int) -> Frames:
    """What `frames` would have answered."""
    page = client.diff(topic, first_seq - 1)
    gap = page.tombstone
    return Frames(
        b"".join(
            segment.encode(
                Record(
                    record.seq,
                    record.ts,
                    None if record.node is msgspec.UNSET else record.node,
                    None if record.tag is msgspec.UNSET else record.tag,
                    bytes(record.data),
                    None if record.meta is msgspec.UNSET else bytes(record.meta),
                )
            )
            for record in page.records
            if record.seq <= last_seq
        ),
        min(page.next_from_seq, max(last_seq, gap.gap_to if gap is not None else 0)) + 1,
        page.head_seq,
        epoch,
        None if gap is None else FramesGap(gap.gap_from, gap.gap_to, gap.reason),
    )


@cache
def _warn(endpoint: str) -> None:
    """Once per server and process."""
    logger.warning("%s is from before manifests: records are read from it a thousand at a time", endpoint)

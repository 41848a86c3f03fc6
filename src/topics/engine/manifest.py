"""The manifest of a topic: one consistent state, for programs that read its segment files directly.

Segments are in seq order and end at `checkpointed_seq`. Records with higher seqs, up to `head_seq`, are only in the
log: a reader asks for them as frames. A segment file may have records that a reader must not show: records at or below
a floor, below `delete_below`, in `lost_ranges`, or in `pending_deletes` (deleted, but the delete byte in the file is
not set yet).
"""

from typing import Any, Final

from topics.engine.engine import Engine
from topics.engine.pins import Pin
from topics.engine.topic.reading import Page
from topics.engine.topic.topic import Topic
from topics.formats import segment as codec
from topics.formats.segment_index import ENTRY_BYTES
from topics.formats.snapshot import SegmentState
from topics.storage import layout
from topics.storage.tiers.addresses import file_address

FRAMES_BYTES_DEFAULT: Final = 8 * 1024 * 1024
FRAMES_BYTES_MAX: Final = 64 * 1024 * 1024
# Most records of one answer. The owner looks them up, and other requests wait for the owner.
FRAMES_RECORDS_MAX: Final = 16_384


def take_manifest(
    engine: Engine,
    name: str,
    *,
    from_seq: int = 0,
    to_seq: int | None = None,
    from_ts: int = 0,
    to_ts: int | None = None,
    pin_ms: int = 0,
) -> dict[str, Any]:
    """Segments that may hold records with seqs from `from_seq` to `to_seq` and times from `from_ts` to before `to_ts`.

    Their files are pinned for `pin_ms`; 0 makes no pin.
    """
    topic = engine.topic(name)
    if topic.links.routers_in:
        engine.forwarder.bring_up_to_date(topic)
    topic.refresh(engine.now_ms())
    states = [
        state
        for state in topic.live.segments.segments
        if state.last_seq >= from_seq
        and (to_seq is None or state.first_seq <= to_seq)
        and state.last_ts >= from_ts
        and (to_ts is None or state.first_ts < to_ts)
    ]
    pin: Pin | None = None
    if pin_ms and states:
        pin = engine.pins.pin(frozenset((topic.id, state.first_seq) for state in states), pin_ms)
    return {
        "topic": topic.name,
        "store_id": engine.directory.store_id,
        "topic_id": topic.id,
        "epoch": topic.epoch,
        "head_seq": topic.head_seq,
        "durable_seq": _durable_seq(engine, topic),
        "earliest_seq": topic.earliest_seq,
        "evict_floor": topic.live.evict_floor,
        # The parts of `evict_floor`: the last seq that was lost for each reason. A reader finds the reason of a gap
        # here.
        "cap_floor": topic.live.cap_floor,
        "ttl_floor": topic.live.ttl_floor,
        "delete_below": topic.live.delete_below,
        "lost_ranges": topic.live.lost.pairs(),
        # The lost ranges that a router's source lost. A power loss took the other lost ranges.
        "source_trims": topic.live.lost.pairs("source_trim"),
        "checkpointed_seq": topic.live.checkpointed_seq,
        "pending_deletes": topic.live.segments.pending_runs(states),
        "segments": [_entry(engine, topic, state) for state in states],
        "pin": None if pin is None else {"id": pin.id, "until": pin.until_ms},
    }


def _durable_seq(engine: Engine, topic: Topic) -> int:
    """A power loss takes no record up to this seq. It may be too low: the engine knows per shard, not per topic, what
    is synced."""
    if topic.config.durability == "fsync" and not topic.links.routers_in:
        return topic.head_seq
    if topic.config.durability == "ephemeral":
        return topic.live.checkpointed_seq
    # Copies of a router may be derived from records in other shards.
    shards = engine.wal.shards if topic.links.routers_in else [topic.shard]
    return topic.head_seq if all(shard.is_synced for shard in shards) else topic.live.checkpointed_seq


def _entry(engine: Engine, topic: Topic, state: SegmentState) -> dict[str, Any]:
    return {
        "first_seq": state.first_seq,
        "last_seq": state.last_seq,
        "tier": state.tier,
        # The address of the `.data` file. The `.idx` file is in the same folder.
        "uri": _uri(engine, topic, state),
        "data_len": state.data_bytes,
        "idx_len": state.entry_count * ENTRY_BYTES,
        "min_ts": state.first_ts,
        "max_ts": state.last_ts,
        # Number of index entries, holes included.
        "records": state.entry_count,
        "live": state.live_count,
        "sealed": state.sealed,
        # 32 hexadecimal digits. Empty while the segment is not sealed.
        "digest": state.digest.hex(),
        # Tells the file from a file of another topic (`storage/segments/proof.py`). Empty: not known.
        "proof": state.proof.hex(),
    }


def _uri(engine: Engine, topic: Topic, state: SegmentState) -> str:
    if state.tier == "cold" and engine.cold is not None:
        address = engine.cold.address
    else:
        address = engine.directory.root
    name = layout.segment_object(topic.id, state.first_seq, "data")
    return f"{address}/{name}" if "://" in address else file_address(f"{address}/{name}")


# Frames.


def frames_bounds(max_bytes: int) -> tuple[int, int]:
    """(most records, most bytes) of one answer."""
    return FRAMES_RECORDS_MAX, min(max_bytes or FRAMES_BYTES_DEFAULT, FRAMES_BYTES_MAX)


def encode_frames(page: Page, to_seq: int | None = None) -> tuple[bytes, int]:
    """The records of the page as segment frames, joined, and the last seq that the answer covers.

    For any thread: only the caller uses the page.
    """
    frames: list[bytes] = []
    for form, raws in page.chunks:
        frames += codec.from_raws(raws, form)
    next_seq = page.next_from_seq
    if to_seq is not None and next_seq > to_seq:
        while frames and codec.frame_seq(frames[-1]) > to_seq:
            frames.pop()
        next_seq = max(to_seq, page.tombstone.gap_to if page.tombstone is not None else 0)
    return b"".join(frames), next_seq

"""The whole log as of one turn, for a backup: the state that a checkpoint would write down, with the files pinned.

Nothing is written and nothing is held up. Records above the last segment of a topic, up to `checkpointed_seq` of its
entry, are only in the log: a reader asks for them as frames.
"""

from typing import NamedTuple

import msgspec

from topics.engine.checkpointing.topic_capture import capture_state, stored_last_seq
from topics.engine.engine import Engine
from topics.engine.pins import Pin
from topics.engine.topic.topic import Topic
from topics.formats import snapshot as codec
from topics.formats.snapshot import Snapshot, WalPosition
from topics.storage.tiers.addresses import file_address


class CapturedLog(NamedTuple):
    store_id: str
    ts: int
    # Addresses of the data directory and of the cold tier; None without a cold tier.
    data_uri: str
    cold_uri: str | None
    # A snapshot file, as in the folder `meta`. Its number and its positions in the log have no meaning.
    snapshot: bytes
    pin: Pin | None


def capture_log(engine: Engine, pin_ms: int) -> CapturedLog:
    """All topics and routers in one turn. The files of all segments are pinned for `pin_ms`; 0 makes no pin."""
    now_ms = engine.now_ms()
    for topic in engine.topics.values():
        topic.refresh(now_ms)
    # A topic that did not change since the last snapshot has its entry at hand.
    entries = [topic.checkpoint.entry or _entry(topic, now_ms) for topic in engine.topics.values()]
    snapshot = Snapshot(
        1,
        engine.core.next_topic_id,
        [WalPosition(1, 1, 0)],
        [msgspec.Raw(entry) for entry in entries],
        engine.routing.next_router_id,
        [router.published_state() for router in engine.routing.routers.values()],
    )
    pin: Pin | None = None
    if pin_ms:
        segments = frozenset(
            (topic.id, state.first_seq) for topic in engine.topics.values() for state in topic.live.segments.segments
        )
        pin = engine.pins.pin(segments, pin_ms) if segments else None
    cold = engine.cold
    return CapturedLog(
        engine.directory.store_id,
        now_ms,
        _address(engine.directory.root),
        None if cold is None else _address(cold.address),
        codec.encode(snapshot),
        pin,
    )


def _entry(topic: Topic, now_ms: int) -> bytes:
    return bytes(codec.encode_topic(capture_state(topic, stored_last_seq(topic), now_ms)))


def _address(root: str) -> str:
    return root if "://" in root else file_address(root)

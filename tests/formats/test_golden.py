"""Bytes that earlier builds wrote: today's code writes the same, and reads them as what they were.

The files in `tests/golden/` change only by `TOPICS_REGENERATE_GOLDEN=1 pytest tests/formats/test_golden.py`,
and only for a format that was never released: a new version gets a new file, and the old one must still open.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from topics.formats import control, segment, segment_index, snapshot, staged_chunk, tag_sidecar, wal_frame
from topics.formats.control import CheckpointMark, ConfigUpdate, Delete, Evict, Head, Lost, Note, TopicCreate, TopicMark
from topics.formats.record_layout import DELETED, FLAG_NODE, FLAG_TAG
from topics.formats.records import Record, RecordBatch
from topics.formats.snapshot import KeyState, SegmentState, Snapshot, TopicState, WalPosition
from topics.formats.staged_chunk import ChunkHead
from topics.formats.tag_sidecar import TagSidecar
from topics.formats.wal_frame import FLAG_DURABLE, FLAG_FIRST, FLAG_MORE, FrameType

GOLDEN: Final = Path(__file__).resolve().parents[1] / "golden"
REGENERATE: Final = os.environ.get("TOPICS_REGENERATE_GOLDEN") == "1"

TS: Final = 1_763_000_000_000
TOPIC: Final = 0x1F
ENVELOPES: Final = (
    b'{"d":{"id":1}}',
    '{"d":"päckchen","m":{"src":"api"}}'.encode(),
    b'{"d":[1,{"a":0,"m":2}],"m":null}',
)
SIZES: Final = (8, 24, 21)
PREALLOCATED: Final = 64

RECORDS: Final = (
    Record(41, TS, None, None, b'{"id":1}', None),
    Record(42, TS, "edge-1", "acme:1", '"päckchen"'.encode(), b'{"src":"api"}'),
    Record(45, TS + 5, "", "", b'[1,{"a":0,"m":2}]', b"null"),
    Record(46, 2**64 - 1, None, "acme:2", b"null", None),
)


def wal_controls() -> list[tuple[FrameType, bytes]]:
    """Data of every frame type that is neither an append, a note nor a sync mark, in this order."""
    return [
        (FrameType.TOPIC_CREATE, control.encode(TopicCreate("orders", 1, {"durability": "fsync", "ttl_ms": 60_000}))),
        (FrameType.CONFIG, control.encode(ConfigUpdate({"ttl_ms": 5}, cap_floor=3, ttl_floor=4, unlogged_last_seq=5))),
        (FrameType.DELETE, control.encode(Delete(44, before_seq=9, tag="acme:1"))),
        (FrameType.DELETE, control.encode(Delete(44, tag_prefix="acme:"))),
        (FrameType.DELETE, control.encode(Delete(2**64 - 1, seqs=[41, 43]))),
        (FrameType.EVICT, control.encode(Evict(cap_floor=41))),
        (FrameType.HEAD, control.encode(Head(ceiling=300, lost_first=44))),
        (FrameType.ROUTER_CREATE, control.encode({})),
        (FrameType.ROUTER_DELETE, control.encode({})),
        (FrameType.LEASE, control.encode({})),
        (FrameType.TOPIC_DELETE, control.encode({})),
        (FrameType.CHECKPOINT, control.encode(CheckpointMark(7, [TopicMark(TOPIC, 43, 3, 4, 4096)]))),
    ]


def make_wal() -> bytes:
    batch = RecordBatch(ENVELOPES, SIZES, tags=[None, b"acme:1", b""], nodes=[None, b"edge-1", b""])
    note = control.encode(Note(key="order-1"))
    appends, _ = wal_frame.encode_appends(TOPIC, 41, TS, batch, durable=True, opens=False)
    single, _ = wal_frame.encode_appends(TOPIC, 44, TS, RecordBatch(ENVELOPES[:1], SIZES[:1]), durable=False)
    return b"".join(
        (
            wal_frame.encode_sync_mark(0, TS),
            *(wal_frame.encode_control(kind, TOPIC, TS, data) for kind, data in wal_controls()),
            wal_frame.encode_control(FrameType.NOTE, TOPIC, TS, note, flags=FLAG_FIRST | FLAG_MORE | FLAG_DURABLE),
            appends,
            single,
            wal_frame.encode_sync_mark(17, TS + 1),
            bytes(PREALLOCATED),
        )
    )


LOST: Final = Lost(44, 49, router=3, cursor_before=7, cursor=13, forwarded_total=2**64 - 1)


def make_lost_frame() -> bytes:
    """A frame type that was added later. A log with such a frame is refused by older builds."""
    return wal_frame.encode_control(FrameType.LOST, TOPIC, TS, control.encode(LOST))


def make_segment_data() -> bytes:
    frames = [segment.encode(record) for record in RECORDS]
    frames[2] = frames[2][:-1] + bytes((DELETED,))
    return b"".join(frames)


def segment_entries() -> list[tuple[int, int, int, int]]:
    """Of 41, 42, 45 and 46; the two between never got a record."""
    return [
        (0, 52, TS, 0),
        (52, 85, TS, FLAG_TAG | FLAG_NODE),
        (137, 0, TS, 0),
        (137, 0, TS, 0),
        (137, 70, TS + 5, FLAG_TAG | FLAG_NODE | segment_index.FLAG_DELETED),
        (207, 54, 2**64 - 1, FLAG_TAG),
    ]


def make_segment_index() -> bytes:
    return segment_index.encode(segment_entries())


def topic_states() -> list[TopicState]:
    return [
        TopicState(name="empty", id=1, epoch=1, config={}),
        TopicState(
            name="orders",
            id=TOPIC,
            epoch=2,
            config={
                "durability": "disk",
                "cap_records": 1000,
                "queue": {"lease_ms": 30_000},
                "tags": True,
                "dlq": None,
            },
            head_seq=45,
            last_ts=TS + 5,
            cap_floor=3,
            ttl_floor=4,
            trim_floor=5,
            delete_below=9,
            first_live=41,
            checkpointed_seq=45,
            segments=[
                SegmentState(
                    1, 40, 5120, TS - 9, TS, 0, 0, sealed=True, tier="cold", created_ts=TS - 9, digest=b"\1" * 16
                ),
                SegmentState(41, 5, 333, TS, TS + 5, 2, 40, created_ts=TS, tagged_count=2),
            ],
            ceiling=300,
            lost=[(43, 44)],
            keys=[KeyState("order-1", TS, 41, 3, 43)],
            pending_deletes=[(10, 12), (14, 14)],
        ),
    ]


def make_snapshot() -> bytes:
    entries = [snapshot.encode_topic(state) for state in topic_states()]
    wal = [WalPosition(18, 1, 2048), WalPosition(2**64 - 1, 2**63, 0)]
    return snapshot.encode(Snapshot(number=7, next_topic_id=TOPIC + 1, wal=wal, topics=entries))


def make_tags() -> bytes:
    return tag_sidecar.encode(41, {b"acme:1": [42], b"": [45], "ä".encode(): [43, 44, 41 + 2**32 - 1]})


CHUNK_HEAD: Final = ChunkHead(TOPIC, "import:7", 2**64 - 1, 3, 1, 0, TS, 3, sum(SIZES), has_labels=True)


def make_chunk() -> bytes:
    batch = RecordBatch(ENVELOPES, SIZES, tags=[None, b"acme:1", b""], nodes=[None, b"edge-1", b""])
    return staged_chunk.encode(CHUNK_HEAD, batch)


MAKERS: Final[dict[str, Callable[[], bytes]]] = {
    "wal-v2.log": make_wal,
    "wal-v2-lost.log": make_lost_frame,
    "segment-v1.data": make_segment_data,
    "segment-v1.idx": make_segment_index,
    "snapshot-v1.bin": make_snapshot,
    "sidecar-v1.tags": make_tags,
    "chunk-v1.staged": make_chunk,
}


@pytest.fixture(scope="module", autouse=True)
def regenerate() -> None:
    if REGENERATE:
        for name, make in MAKERS.items():
            (GOLDEN / name).write_bytes(make())


@pytest.mark.parametrize("name", MAKERS)
def test_the_same_content_gives_the_same_bytes_as_ever(name: str) -> None:
    assert MAKERS[name]() == (GOLDEN / name).read_bytes()


def test_a_log_of_version_2_is_read_with_every_frame_type() -> None:
    buffer = (GOLDEN / "wal-v2.log").read_bytes()
    frames = list(wal_frame.walk(buffer, 0, len(buffer), 1000))
    data = [buffer[frame.end - 8 - frame.data_len : frame.end - 8] for frame in frames]
    assert {frame.type for frame in frames} == set(FrameType) - {FrameType.LOST}
    assert frames[-1].end == len(buffer) - PREALLOCATED

    assert [(frame.type, body) for frame, body in zip(frames[1:13], data[1:13], strict=True)] == wal_controls()
    assert {(frame.topic_id, frame.seq, frame.ts, frame.flags) for frame in frames[1:13]} == {
        (TOPIC, 0, TS, FLAG_FIRST)
    }
    assert control.decode(Note, data[13]) == Note(key="order-1")

    assert [(frame.type, frame.seq) for frame in frames[14:18]] == [(1, 41), (1, 42), (1, 43), (1, 44)]
    assert [frame.flags for frame in frames[13:18]] == [
        FLAG_FIRST | FLAG_MORE | FLAG_DURABLE,
        FLAG_MORE | FLAG_DURABLE,
        FLAG_MORE | FLAG_DURABLE | FLAG_TAG | FLAG_NODE,
        FLAG_DURABLE | FLAG_TAG | FLAG_NODE,
        FLAG_FIRST,
    ]
    assert data[14:18] == [*ENVELOPES, ENVELOPES[0]]
    marks = [(frames[0].offset, 0), (frames[18].offset, 17)]
    assert list(wal_frame.find_sync_marks(buffer, 0, len(buffer))) == marks


def test_a_lost_range_is_read() -> None:
    buffer = (GOLDEN / "wal-v2-lost.log").read_bytes()
    (frame,) = wal_frame.walk(buffer, 0, len(buffer), 1000)
    assert (frame.type, frame.topic_id, frame.flags) == (FrameType.LOST, TOPIC, FLAG_FIRST)
    assert control.decode(Lost, frame.data_in(buffer)) == LOST


def test_a_segment_of_version_1_is_read_with_its_index() -> None:
    data = (GOLDEN / "segment-v1.data").read_bytes()
    frames = list(segment.walk(data, 0, len(data)))
    assert [segment.decode(data, frame) for frame in frames] == list(RECORDS)
    assert [frame.deleted for frame in frames] == [False, False, True, False]

    idx = (GOLDEN / "segment-v1.idx").read_bytes()
    segment_index.check(idx, entry_count=6, data_bytes=len(data))
    entries = list(segment_index.decode(idx))
    assert entries == segment_entries()
    for frame in frames:
        assert entries[frame.seq - 41][:3] == (frame.offset, frame.end - frame.offset, frame.ts)


def test_a_snapshot_of_version_1_is_read() -> None:
    read = snapshot.decode((GOLDEN / "snapshot-v1.bin").read_bytes())
    assert (read.number, read.next_topic_id) == (7, TOPIC + 1)
    assert read.wal == [WalPosition(18, 1, 2048), WalPosition(2**64 - 1, 2**63, 0)]
    assert [snapshot.decode_topic(entry) for entry in read.topics] == topic_states()


def test_a_tag_sidecar_of_version_1_is_read() -> None:
    sidecar = TagSidecar((GOLDEN / "sidecar-v1.tags").read_bytes())
    assert list(sidecar) == [(b"", [45]), (b"acme:1", [42]), ("ä".encode(), [43, 44, 2**32 + 40])]


def test_a_staged_chunk_of_version_1_is_read() -> None:
    head, batch = staged_chunk.decode((GOLDEN / "chunk-v1.staged").read_bytes())
    assert head == CHUNK_HEAD
    assert (tuple(batch.envelopes), tuple(batch.sizes)) == (ENVELOPES, SIZES)
    assert (batch.tags, batch.nodes) == ([None, b"acme:1", b""], [None, b"edge-1", b""])

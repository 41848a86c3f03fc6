"""Segments made the way a checkpoint makes them, and a look into them."""

from topics.errors import FormatError
from topics.formats import segment_index, wal_frame
from topics.formats.records import RecordBatch
from topics.formats.snapshot import SegmentState, TopicState
from topics.storage import layout
from topics.storage.fs import Fs
from topics.storage.segments.reader import SegmentReader
from topics.storage.segments.sources import FileSource
from topics.storage.segments.writer import SegmentAppender, SegmentLimits
from topics.testing.fake_disk import FakeDisk

ROOT = "/data"
TOPIC = 1
DIRECTORY = layout.topic_directory(ROOT, TOPIC)
NOW_MS = 1_700_000_000_000
LARGE = SegmentLimits(1000, 1 << 20, 0)


def body(seq: int, *, tag: str | None = None, node: str | None = None, size: int = 20, ts: int | None = None) -> bytes:
    """A WAL body with a payload that names its seq."""
    text = b'"%b"' % (b"%d-" % seq).ljust(size - 2, b"x")
    batch = RecordBatch(
        [b'{"d":%b}' % text],
        [len(text)],
        None if tag is None else [tag.encode()],
        None if node is None else [node.encode()],
    )
    return wal_frame.encode_appends(TOPIC, seq, ts or 1000 + seq, batch, durable=False)[1][0]


def write(
    fs: Fs,
    seqs: list[int],
    *,
    active: SegmentState | None = None,
    limits: SegmentLimits = LARGE,
    tags: dict[int, str] | None = None,
) -> list[SegmentState]:
    """Appends these records as one checkpoint; the segments it touched."""
    appender = SegmentAppender(fs, DIRECTORY, active, limits, NOW_MS)
    for seq in seqs:
        appender.add_bodies([body(seq, tag=(tags or {}).get(seq))])
    appender.finish()
    return appender.touched


def stem(first_seq: int) -> str:
    return f"{DIRECTORY}/{layout.segment_stem(first_seq)}"


def live_seqs(reader: SegmentReader, first_seq: int | None = None, last_seq: int | None = None) -> list[int]:
    """Seqs of the records that are there, from their own bytes."""
    first = first_seq or reader.state.first_seq
    slots = reader.read(first, last_seq or reader.state.last_seq)
    seqs = []
    for seq, slot in enumerate(slots, first):
        if isinstance(slot, FormatError):
            raise slot
        if slot is not None:
            assert int.from_bytes(slot[1:9], "little") == seq
            assert b'"%d-' % seq in slot
            seqs.append(seq)
    return seqs


def seqs_of(disk: FakeDisk, state: TopicState) -> list[int]:
    """Seqs of the records in all segments of a topic, each of which must have a good index."""
    seqs: list[int] = []
    for segment in state.segments:
        name = stem(segment.first_seq)
        segment_index.check(
            disk.read(f"{name}.idx")[: segment.entry_count * segment_index.ENTRY_BYTES],
            entry_count=segment.entry_count,
            data_bytes=segment.data_bytes,
        )
        seqs += live_seqs(SegmentReader(FileSource(disk, name), segment))
    return seqs

"""What is in a backup: names of its objects, and their content. docs/formats.md, "Backup", says the same.

    BACKUP                                        which store this is a backup of
    points/0001794880219123.json                  one finished backup: when, and the catalog entry of each topic
    catalog/0000001F/<sha256>.json                one topic at a point: its state, and its files
    files/0000001F/seg-0000000000000041-<digest>.data    records: a sealed segment
    files/0000001F/tail-0000000000000841-<sha256>.data   records that were in no sealed segment

Objects are never changed. A point is written last: until then nothing refers to the new files. Entries and tails are
named by their content. A segment is named by its digest, which delete bytes do not change: its entry says which of its
records were live. So an object that is already there is not written again.
"""

import sys
from hashlib import sha256
from typing import Final, TypeVar

import msgspec
from xxhash import xxh3_64_hexdigest, xxh3_128_hexdigest

from topics.backup.ranges import Ranges
from topics.errors import Damaged, FormatError, FutureVersion
from topics.formats import segment as codec
from topics.formats.buffers import Buffer
from topics.formats.control import RouterState
from topics.formats.segment import SegmentColumns
from topics.formats.snapshot import TopicState
from topics.storage import layout

FORMAT: Final = 1
MARK: Final = "BACKUP"
POINTS: Final = "points/"
CATALOG: Final = "catalog/"
FILES: Final = "files/"

T = TypeVar("T")


class Mark(msgspec.Struct, frozen=True):
    """The object `BACKUP`."""

    format: int
    store_id: str = ""


class StoredFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Records of one topic, as segment frames."""

    name: str
    # Seqs of the first and the last frame, and their times.
    first_seq: int
    last_seq: int
    first_ts: int
    last_ts: int
    size_bytes: int
    xxh3: str
    sha256: str
    # Seqs of the frames that were neither deleted nor missing when the point was taken.
    live: Ranges
    # A sealed segment: its digest and how many records the log counted as live in it. Empty and 0 for a tail.
    digest: str = ""
    counted_live: int = 0


class TopicEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One topic at a point. `state` is its entry in a snapshot, without segments."""

    format: int = FORMAT
    state: TopicState
    # By seq.
    files: list[StoredFile]


class TopicRef(msgspec.Struct, frozen=True, kw_only=True):
    """A topic in a point, and its catalog entry."""

    id: int
    name: str
    entry: str
    records: int
    size_bytes: int


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One finished backup."""

    format: int = FORMAT
    # When the state was captured, by the clock of the server.
    ts: int
    store_id: str
    # The version that took the backup.
    version: str
    topics: list[TopicRef]
    routers: list[RouterState]
    next_topic_id: int
    next_router_id: int
    # What the run that took this point added to the backup.
    new_files: int = 0
    new_bytes: int = 0


class _Sealed(msgspec.Struct, frozen=True):
    """A point as it is stored: the checksum is the SHA-256 of the bytes of `point`."""

    point: msgspec.Raw
    sha256: str


class _Versioned(msgspec.Struct, frozen=True):
    format: int


_encode: Final = msgspec.json.Encoder().encode


# Names.


def point_name(ts: int) -> str:
    return f"{POINTS}{ts:016d}.json"


def entry_name(topic_id: int, content: bytes) -> str:
    return f"{CATALOG}{layout.topic_name(topic_id)}/{sha256(content).hexdigest()}.json"


def segment_name(topic_id: int, first_seq: int, digest: str) -> str:
    return f"{FILES}{layout.topic_name(topic_id)}/{layout.segment_stem(first_seq)}-{digest}.data"


def tail_name(topic_id: int, first_seq: int, content: Buffer) -> str:
    return f"{FILES}{layout.topic_name(topic_id)}/tail-{first_seq:016d}-{sha256(content).hexdigest()}.data"


# Content.


def encode_mark(store_id: str) -> bytes:
    return _encode(Mark(FORMAT, store_id))


def decode_mark(where: str, content: bytes) -> Mark:
    return _decode(where, content, Mark)


def encode_entry(entry: TopicEntry) -> bytes:
    return _encode(entry)


def decode_entry(where: str, name: str, content: bytes) -> TopicEntry:
    """Raises `Damaged` when the content is not the one that the name says."""
    found = sha256(content).hexdigest()
    expected = name.rpartition("/")[2].removesuffix(".json")
    if found != expected:
        raise Damaged(where, 0, f"SHA-256 {expected}", found)
    return _decode(where, content, TopicEntry)


def encode_point(point: Point) -> bytes:
    body = _encode(point)
    return _encode(_Sealed(msgspec.Raw(body), sha256(body).hexdigest()))


def decode_point(where: str, content: bytes) -> Point:
    sealed = _decode_plain(where, content, _Sealed)
    body = bytes(sealed.point)
    found = sha256(body).hexdigest()
    if found != sealed.sha256:
        raise Damaged(where, 0, f"SHA-256 {sealed.sha256}", found)
    return _decode(where, body, Point)


def _decode(where: str, content: bytes, wanted: type[T]) -> T:
    version = _decode_plain(where, content, _Versioned).format
    if version > FORMAT:
        raise FutureVersion(f"{where}: format {version}, this version knows {FORMAT}; use a newer topics")
    return _decode_plain(where, content, wanted)


def _decode_plain(where: str, content: bytes, wanted: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=wanted)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(where, 0, f"JSON of a {wanted.__name__.strip('_')}", str(error)) from error


# Files.


def scan_frames(where: str, data: bytes) -> SegmentColumns:
    """The verified frames of all bytes. Raises `Damaged` at the first frame that is not whole and valid."""
    frames = codec.scan(data, 0, len(data))
    end = frames.ends[-1] if len(frames) else 0
    if end != len(data):
        raise Damaged(where, end, "a whole frame with a higher seq", _why_bad(data, end))
    return frames


def _why_bad(data: bytes, offset: int) -> str:
    try:
        codec.check(data, offset, len(data))
    except FormatError as error:
        return error.message
    return "a frame whose seq is not above the one before it"


def digest_of(frames: SegmentColumns) -> str:
    """The digest of a sealed segment: XXH3-128 over the stored checksums."""
    checksums = frames.checksums[:]
    if sys.byteorder == "big":
        checksums.byteswap()
    return xxh3_128_hexdigest(checksums.tobytes())


def stored_file(
    name: str, data: bytes, frames: SegmentColumns, live: Ranges, *, digest: str = "", counted_live: int = 0
) -> StoredFile:
    assert len(frames), "a file has at least one record"
    return StoredFile(
        name=name,
        first_seq=frames.seqs[0],
        last_seq=frames.seqs[-1],
        first_ts=frames.times[0],
        last_ts=max(frames.times),
        size_bytes=len(data),
        xxh3=xxh3_64_hexdigest(data),
        sha256=sha256(data).hexdigest(),
        live=live,
        digest=digest,
        counted_live=counted_live,
    )


def check_file(where: str, file: StoredFile, data: bytes) -> SegmentColumns:
    """The frames of a file. Raises `Damaged` unless every byte is as its entry says, and every frame is valid."""
    if len(data) != file.size_bytes:
        raise Damaged(where, min(len(data), file.size_bytes), f"{file.size_bytes} bytes", f"{len(data)}")
    if (found := xxh3_64_hexdigest(data)) != file.xxh3:
        raise Damaged(where, 0, f"XXH3-64 {file.xxh3}", found)
    if (found := sha256(data).hexdigest()) != file.sha256:
        raise Damaged(where, 0, f"SHA-256 {file.sha256}", found)
    frames = scan_frames(where, data)
    if (frames.seqs[0], frames.seqs[-1]) != (file.first_seq, file.last_seq):
        raise Damaged(where, 0, f"seqs {file.first_seq} to {file.last_seq}", f"{frames.seqs[0]} to {frames.seqs[-1]}")
    return frames

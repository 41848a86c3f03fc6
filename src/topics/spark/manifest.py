"""The manifest of a topic: planning starts from it. `POST /v0/topics/{topic}/manifest` returns it.

Seqs are inclusive on both ends, times are milliseconds. Segments are in the order of their seqs and do not overlap; the
last one ends at `checkpointed_seq`. Seqs above it, up to `head_seq`, are the tail, which is in no file yet.
"""

from typing import Final, Literal, NamedTuple

from msgspec import Struct, json

from topics.errors import BadFrame

SeqRange = tuple[int, int]

_TOPIC_ID_BITS: Final = 32


class Numbering(NamedTuple):
    """What is counted, and its first number: seqs of a topic, or offsets of a partition of the partitioned engine.

    Planning is the same for both, and calls both seqs. Messages to users take their words from here.
    """

    subject: str
    unit: str
    first: int


SEQS: Final = Numbering("topic", "seq", 1)
OFFSETS: Final = Numbering("partition", "offset", 0)


class Segment(Struct, frozen=True, kw_only=True):
    """A pair of files. `uri` is that of `.data`; `.idx` is in the same folder. Later bytes do not count."""

    first_seq: int
    last_seq: int
    tier: str
    uri: str
    data_len: int
    idx_len: int
    min_ts: int
    max_ts: int
    # Seqs of the segment, holes included, and seqs with live records.
    records: int
    live: int
    sealed: bool
    digest: str
    # Tells the file from a file of another topic (`storage/segments/proof.py`), in hexadecimal. Empty: not known.
    proof: str = ""
    # Records that are in no file that a task could open, as frames. Only for reads without a server.
    frames: bytes = b""


class Pin(Struct, frozen=True, kw_only=True):
    """The server keeps the listed files until then."""

    id: int
    until: int


class Manifest(Struct, frozen=True, kw_only=True):
    """One topic at one moment."""

    topic: str
    store_id: str
    topic_id: int
    epoch: int
    head_seq: int
    durable_seq: int
    earliest_seq: int
    evict_floor: int
    delete_below: int
    lost_ranges: tuple[SeqRange, ...] = ()
    # Those of the lost ranges that are in place of records that a router's source lost.
    source_trims: tuple[SeqRange, ...] = ()
    checkpointed_seq: int
    # Deleted records that are not marked as deleted in their file yet.
    pending_deletes: tuple[SeqRange, ...] = ()
    segments: tuple[Segment, ...] = ()
    pin: Pin | None = None
    # The parts of `evict_floor`, which give a gap its reason. None when they are not known.
    cap_floor: int | None = None
    ttl_floor: int | None = None

    @property
    def numbering(self) -> Numbering:
        return SEQS

    @property
    def instance(self) -> int:
        """The number of the instance among all topics of this name. The epoch may begin at 1 again when a topic is
        deleted and created again, but its id is unique. The number has both; `epoch_of` returns the epoch."""
        return self.topic_id | (self.epoch - 1) << _TOPIC_ID_BITS

    def lost_reason(self, lost: SeqRange) -> Literal["power_loss", "source_trim", "missing"]:
        """Why a lost range is lost."""
        return "source_trim" if lost in self.source_trims else "power_loss"

    @property
    def first_seq(self) -> int:
        """The first seq that readers may see."""
        return max(self.earliest_seq, self.evict_floor, self.delete_below, self.numbering.first)

    def time_near(self, seq: int) -> int:
        """The time of a record near the seq, of a later one if possible; 0 when no segment has one."""
        for segment in self.segments:
            if segment.last_seq >= seq:
                return segment.min_ts
        return self.segments[-1].max_ts if self.segments else 0


def epoch_of(instance: int) -> int:
    return (instance >> _TOPIC_ID_BITS) + 1


def decode_manifest(body: bytes) -> Manifest:
    """Raises `BadFrame` for a body that is no manifest, or whose segments are not in order below the head."""
    try:
        manifest = json.decode(body, type=Manifest)
    except ValueError as error:
        raise BadFrame(f"the manifest is not readable: {error}") from error
    before = 0
    for segment in manifest.segments:
        if not before < segment.first_seq <= segment.last_seq <= manifest.checkpointed_seq:
            raise BadFrame(
                f'the manifest of "{manifest.topic}" has segment {segment.first_seq}-{segment.last_seq} out of order'
            )
        before = segment.last_seq
    if not manifest.checkpointed_seq <= manifest.head_seq:
        raise BadFrame(f'the manifest of "{manifest.topic}" ends above its head {manifest.head_seq}')
    return manifest

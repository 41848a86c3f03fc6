"""The picture of a topic that planning starts from, as `POST /v0/topics/{topic}/manifest` gives it.

Seqs are inclusive on both ends, times are milliseconds. Segments lie side by side, end at `checkpointed_seq` and
overlap nowhere; what follows up to `head_seq` is the tail, which has no file yet.
"""

from typing import Final, Literal, NamedTuple

from msgspec import Struct, json

from topics.errors import BadFrame

SeqRange = tuple[int, int]

_TOPIC_ID_BITS: Final = 32


class Numbering(NamedTuple):
    """What is counted, and from where on: seqs of a topic, or offsets of a partition of a stream's topic.

    Planning is the same for both. It says seq for either; these are the words for those who read about it.
    """

    subject: str
    unit: str
    first: int


SEQS: Final = Numbering("topic", "seq", 1)
OFFSETS: Final = Numbering("partition", "offset", 0)


class Segment(Struct, frozen=True, kw_only=True):
    """A pair of files. `uri` is that of `.data`, the `.idx` lies beside it; the lengths are those that count."""

    first_seq: int
    last_seq: int
    tier: str
    uri: str
    data_len: int
    idx_len: int
    min_ts: int
    max_ts: int
    # Seqs it covers, holes included, and those that hold live records.
    records: int
    live: int
    sealed: bool
    digest: str
    # Of records that are in no file that a task could open: they travel with it. Without a server only.
    frames: bytes = b""


class Pin(Struct, frozen=True, kw_only=True):
    """Until when the listed files stay where they are."""

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
    checkpointed_seq: int
    # Deleted, and not yet marked so in a file.
    pending_deletes: tuple[SeqRange, ...] = ()
    segments: tuple[Segment, ...] = ()
    pin: Pin | None = None
    # The parts of `evict_floor`, from servers that tell: they give a gap its reason.
    cap_floor: int | None = None
    ttl_floor: int | None = None
    trim_floor: int | None = None

    @property
    def numbering(self) -> Numbering:
        return SEQS

    @property
    def instance(self) -> int:
        """Which topic of this name it is. The epoch begins with 1 again when a topic is deleted and made anew, the id
        of a topic is never given out twice: both are in this number, and `epoch_of` gets the epoch out of it."""
        return self.topic_id | (self.epoch - 1) << _TOPIC_ID_BITS

    @property
    def lost_reason(self) -> Literal["power_loss", "missing"]:
        """What took the lost ranges."""
        return "power_loss"

    @property
    def first_seq(self) -> int:
        """The first seq that may be shown."""
        return max(self.earliest_seq, self.evict_floor, self.delete_below, self.numbering.first)

    def time_near(self, seq: int) -> int:
        """The time of a record close to the seq, the later side first; 0 when no segment says."""
        for segment in self.segments:
            if segment.last_seq >= seq:
                return segment.min_ts
        return self.segments[-1].max_ts if self.segments else 0


def epoch_of(instance: int) -> int:
    return (instance >> _TOPIC_ID_BITS) + 1


def decode_manifest(body: bytes) -> Manifest:
    """Raises `BadFrame` for a body that is none, or whose segments do not lie in order below the head."""
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

"""Data of control frames: MessagePack maps with named members, so that members can be added.

| Frame | Data |
|---|---|
| TOPIC_CREATE | `TopicCreate` |
| TOPIC_DELETE | empty map |
| ROUTER_CREATE | `RouterState`; also for a change of an existing one |
| ROUTER_DELETE | `RouterDelete` |
| CONFIG | `ConfigUpdate` |
| DELETE | `Delete` |
| EVICT | `Evict` |
| LEASE | `Lease` |
| HEAD | `Head` |
| NOTE | `Note` |
| CHECKPOINT | `CheckpointMark` |
| LOST | `Lost` |
| SYNC | not MessagePack: see `wal_frame` |

Decoding accepts unknown members (a newer minor version may add them) and refuses everything else that is
not the documented shape with `BadFrame`: a member that is missing or of another type, a negative number, an
extension type, bytes after the map, depth without end. Inside `config` only the outermost keys are checked; the
engine checks the values of the settings.

No length in the data sizes an allocation: a container grows with the elements that are there. The parser
recurses: call this on a thread with a full-size stack (8 MiB, the default of Linux).
"""

from typing import Annotated, Any, Final, Literal, NoReturn, TypeVar

import msgspec

from topics.errors import BadFrame
from topics.formats.buffers import Buffer

# MessagePack itself ends at 2^64 - 1.
U64 = Annotated[int, msgspec.Meta(ge=0)]

# What the decoder raises for bytes that are not the shape it was made for.
MALFORMED: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class TopicCreate(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    epoch: U64
    config: dict[str, Any]


class ConfigUpdate(msgspec.Struct, frozen=True, omit_defaults=True):
    """A new config, with the floors the old one had reached: relaxing it brings nothing back.

    `unlogged_last_seq` is the last seq written while the topic was `ephemeral`, when the class changes to
    a stored one. Records up to that seq are in no frame, and a replay must call them lost.
    """

    config: dict[str, Any]
    cap_floor: U64 = 0
    ttl_floor: U64 = 0
    unlogged_last_seq: U64 = 0


class ColdDeaths(msgspec.Struct, frozen=True, array_like=True):
    """Records of one cold segment that a delete removes: one bit per slot, and how many records and bytes they are."""

    first_seq: U64
    bits: bytes
    count: U64
    size_bytes: U64


class Delete(msgspec.Struct, frozen=True, omit_defaults=True):
    """Live seqs below `bound` that match: all below `before_seq`, and/or a tag, or exactly `seqs`.

    `ttl_floor` is the last seq that had expired before the delete. Without it a replay could not tell expired records
    from deleted ones. `cold` names the records of segments that were in the cold tier, so that a replay need not ask
    the tier. It is None in frames of versions that did not name them.
    """

    bound: U64
    before_seq: U64 | None = None
    tag: str | None = None
    tag_prefix: str | None = None
    seqs: list[U64] | None = None
    ttl_floor: U64 = 0
    cold: list[ColdDeaths] | None = None


class RouterState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A router: its definition, and how far it is. Source and dest are topic ids; `id` is never given out again.

    Everything up to source seq `cursor` is done, and its copies are at or below dest seq `dest_seq`. `spec` holds
    the members of the definition that are not at their defaults. Exactly once: records of dest up to `searched_seq`
    were searched for keys of later copies, and `evidence` holds (source seq, dest seq) of each key that was found.
    """

    id: U64
    name: str
    source: U64
    dest: U64
    spec: dict[str, Any] = {}
    cursor: U64 = 0
    dest_seq: U64 = 0
    dest_base: U64 = 0
    forwarded_total: U64 = 0
    searched_seq: U64 = 0
    evidence: list[tuple[U64, U64]] = []


class RouterDelete(msgspec.Struct, frozen=True, omit_defaults=True):
    id: U64


class Copies(msgspec.Struct, frozen=True, omit_defaults=True):
    """The write to a router's dest holds copies of `router`: with it, source seqs up to `cursor` are done, and the
    copies end at `dest_seq`. `hops` are [first seq, last seq, hops] runs, where the dest is a source itself."""

    router: U64
    cursor: U64
    dest_seq: U64
    forwarded_total: U64 = 0
    hops: list[tuple[U64, U64, U64]] = []


class Evict(msgspec.Struct, frozen=True, omit_defaults=True):
    """A byte-cap floor that rises with its write. `ttl_floor` is the last seq that had expired before it. Without it a
    replay could not tell expired records from evicted ones.

    With `trim_floor` it is a source trim of an older version, which writes a `Lost` now: seqs from `trim_first` up to
    there are holes, records with lower seqs are gone too, and `copies` says how far the router is.
    """

    cap_floor: U64 = 0
    ttl_floor: U64 = 0
    trim_floor: U64 = 0
    copies: Copies | None = None
    trim_first: U64 = 0


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """A disk-class reservation: seqs below `ceiling` may be answered. With `lost_first` it also says that
    a power loss took the seqs from there up to `ceiling - 1`."""

    ceiling: U64
    lost_first: U64 = 0


class Lost(msgspec.Struct, frozen=True, omit_defaults=True):
    """The source of a router lost records before they were copied: the topic, its dest, has no records with seqs from
    `first_seq` to `last_seq`. The router was done with source seqs up to `cursor_before`, and with this frame up to
    `cursor`. The copies of source seqs up to `cursor_before` are in older frames. `hops`: how often a record with one
    of these seqs would have been copied, where the dest is a source itself."""

    first_seq: U64
    last_seq: U64
    router: U64
    cursor_before: U64
    cursor: U64
    forwarded_total: U64
    hops: U64 = 0


class Lease(msgspec.Struct, frozen=True, omit_defaults=True):
    """Lease events of one call on a queue: `seqs`, with the id of each one's lease in `lease_ids`.

    | Event | Says |
    |---|---|
    | `claimed` | leased to `node` until `until_ms`, for the n-th time (`deliveries`) |
    | `extended` | leased on, until `until_ms` |
    | `released` | not leased any more; ready at `until_ms`, 0 = at once; `reason` is what its holder said |
    | `reserved` | names no jobs: lease ids below `ceiling` may be given out |

    Jobs that were acked are named by a delete.
    """

    event: Literal["claimed", "extended", "released", "reserved"]
    seqs: list[U64] = []
    lease_ids: list[U64] = []
    deliveries: list[U64] = []
    node: str = ""
    until_ms: U64 = 0
    ceiling: U64 = 0
    reason: str = ""


class DeadLetter(msgspec.Struct, frozen=True, array_like=True):
    """A job that the write moves out of its queue. Frames of older versions have it; `Moved` says the same."""

    queue_id: U64
    seq: U64
    ts: U64


class Moved(msgspec.Struct, frozen=True, array_like=True):
    """Records that the write moves out of another topic. The time of each one tells it from a later record with the
    same seq."""

    topic_id: U64
    seqs: list[U64]
    times: list[U64]


class GroupUpdate(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happened to a consumer group of the topic.

    | Event | Says |
    |---|---|
    | `created` | the position is `seq`, if the group did not exist |
    | `moved` | the position is `seq`, whether the group existed or not |
    | `committed` | the position is `seq`, if the group existed and its position was lower |
    | `rewound` | the position is `seq`, if the group existed |
    | `deleted` | the group is gone |
    """

    name: str
    event: Literal["created", "moved", "committed", "rewound", "deleted"]
    seq: U64 = 0


class BridgeUpdate(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happened to a bridge of the topic. `definition` and `position` mean something to the program that copies.

    | Event | Says |
    |---|---|
    | `put` | the bridge has this definition and this position, whether it existed or not |
    | `advanced` | the position is another one, if the bridge existed; the records of the write were copied up to it |
    | `deleted` | the bridge is gone |
    """

    name: str
    event: Literal["put", "advanced", "deleted"]
    definition: bytes = b""
    position: bytes = b""


class WriterEpoch(msgspec.Struct, frozen=True, array_like=True):
    """The writer of a commit, the epoch that it commits, and the seq of its first record (if it has records)."""

    writer: str
    epoch: U64
    first_seq: U64


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """First frame of a write that says more than its records do.

    `key` is an idempotency key; the answer to the write follows from its frames. `moved` are the records of another
    topic that the records of the write are copies of: a replay deletes them there. `dead_letter` says the same of one
    job, in frames of older versions. `copies` says that a router made the records.
    `group` is in a note without records. `writer` says that the write is a commit of staged records; a commit without
    records is a note only. `keys` is in a note without records too: [key, ts, first seq, count, head seq] of writes
    whose records have no frames. `bridge` is in a note with the records that a bridge copied, or without records.
    """

    key: str | None = None
    dead_letter: DeadLetter | None = None
    copies: Copies | None = None
    group: GroupUpdate | None = None
    writer: WriterEpoch | None = None
    keys: list[tuple[str, U64, U64, U64, U64]] = []
    moved: Moved | None = None
    bridge: BridgeUpdate | None = None


class TopicMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """`hops` are [first seq, last seq, hops] runs, where the topic is dest and source of routers."""

    id: U64
    seq: U64
    cap_floor: U64 = 0
    ttl_floor: U64 = 0
    active_bytes: U64 = 0
    hops: list[tuple[U64, U64, U64]] = []


class CheckpointMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a snapshot holds that a start without any readable snapshot needs: topics that changed, and the routers
    whose dest is in this shard."""

    snapshot: U64
    topics: list[TopicMark] = []
    routers: list[RouterState] = []


T = TypeVar("T", bound=msgspec.Struct)


def refuse_extension(code: int, _data: memoryview) -> NoReturn:
    raise msgspec.ValidationError(f"extension type {code} is not used here")


encode: Final = msgspec.msgpack.Encoder().encode
_decoders: Final[dict[type, msgspec.msgpack.Decoder[Any]]] = {
    kind: msgspec.msgpack.Decoder(kind, ext_hook=refuse_extension)
    for kind in (
        TopicCreate,
        RouterState,
        RouterDelete,
        ConfigUpdate,
        Delete,
        Evict,
        Lease,
        Head,
        Note,
        CheckpointMark,
        Lost,
    )
}


def decode(kind: type[T], data: Buffer) -> T:
    """Raises `BadFrame` when the data is not a `kind`."""
    try:
        decoded: T = _decoders[kind].decode(data)
    except MALFORMED as error:
        raise BadFrame(f"not a {kind.__name__}: {error}") from error
    return decoded

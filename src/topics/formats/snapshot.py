"""Snapshot file, version 1. Little-endian.

    offset size  field
    0      4     magic "TSNP"
    4      4     version u32
    8      4     body_len u32
    12     4     reserved, zero
    16     8     XXH3-64 of the body u64
    24     …     body: MessagePack map, see `Snapshot`

The version is checked first, because only a newer version of topics knows what the other bytes of a newer snapshot
mean. The checksum is compared before anything is parsed. Topic entries are raw MessagePack inside the body, so that a
topic that did not change is not encoded again. Decoded entries are slices of the file's bytes and keep those bytes in
memory. The parser recurses, and no length sizes an allocation: see `control`.
"""

from struct import Struct
from typing import Any, Final, Literal

import msgspec
from xxhash import xxh3_64_intdigest

from topics.errors import BadFrame, FutureVersion, Torn
from topics.formats.buffers import Buffer
from topics.formats.control import MALFORMED, U64, RouterState, refuse_extension

MAGIC: Final = b"TSNP"
VERSION: Final = 1
_HEADER: Final = Struct("<4sIIIQ")
HEADER_BYTES: Final = _HEADER.size
assert HEADER_BYTES == 24

Tier = Literal["hot", "cold"]


class WalPosition(msgspec.Struct, frozen=True, array_like=True):
    """Everything before frame number `frame` is in segments. That frame is, or will be, at `offset` of the WAL file
    named by `file_frame`."""

    frame: U64
    file_frame: U64
    offset: U64


class SegmentState(msgspec.Struct, omit_defaults=True):
    """The numbers kept in memory for one segment file pair."""

    first_seq: U64
    # Index entries, holes included: the segment covers first_seq … first_seq + entry_count - 1.
    entry_count: U64
    data_bytes: U64
    first_ts: U64
    last_ts: U64
    live_count: U64
    live_bytes: U64
    sealed: bool = False
    tier: Tier = "hot"
    created_ts: U64 = 0
    # Records with a tag, live or not. Without any there is no sidecar.
    tagged_count: U64 = 0
    # XXH3-128 over the frames' stored checksums in order; set when the segment is sealed.
    digest: bytes = b""
    # A few of the stored checksums, to tell the file from a file of another topic (`storage/segments/proof.py`).
    proof: bytes = b""

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.entry_count - 1


class KeyState(msgspec.Struct, frozen=True, array_like=True):
    """An idempotency key with the answer that was given."""

    key: str
    ts: U64
    first_seq: U64
    count: U64
    head_seq: U64


class LeaseState(msgspec.Struct, frozen=True, array_like=True):
    """A job that was handed out: leased to `node` until `until_ms`; without a node ready at `until_ms`, 0 = now."""

    seq: U64
    lease_id: U64
    deliveries: U64
    node: str
    until_ms: U64
    # What the last holder that gave the job back said, if it said something.
    reason: str = ""


class GroupState(msgspec.Struct, frozen=True, array_like=True):
    """A consumer group: its readers are done up to `seq`, as of `ts`."""

    name: str
    seq: U64
    ts: U64


class WriterState(msgspec.Struct, frozen=True, array_like=True):
    """The newest epoch that a writer committed, and the seqs of its records; without any, `last_seq` is one less."""

    name: str
    epoch: U64
    first_seq: U64
    last_seq: U64

    @property
    def count(self) -> int:
        return self.last_seq - self.first_seq + 1


class BridgeState(msgspec.Struct, frozen=True, array_like=True):
    """A bridge between the topic and something outside of the log: what it connects, and how far it has copied."""

    name: str
    definition: bytes
    position: bytes


class TopicState(msgspec.Struct, omit_defaults=True):
    name: str
    id: U64
    epoch: U64
    config: dict[str, Any]
    head_seq: U64 = 0
    last_ts: U64 = 0
    cap_floor: U64 = 0
    ttl_floor: U64 = 0
    # Only in entries of older versions: read as a cap floor.
    trim_floor: U64 = 0
    delete_below: U64 = 0
    # First seq that may be live: leading dead slots lie below it.
    first_live: U64 = 1
    # Highest seq that is in segments (or was dead before it got there).
    checkpointed_seq: U64 = 0
    segments: list[SegmentState] = []
    # Disk-class reservation: seqs below it may have been answered. 0 = none.
    ceiling: U64 = 0
    # [first, last] seq ranges that a power loss, or the end of an ephemeral process, took.
    lost: list[tuple[U64, U64]] = []
    # [first, last] seq ranges in place of records that the source of a router lost before they were copied.
    source_trims: list[tuple[U64, U64]] = []
    keys: list[KeyState] = []
    # [first, last] seq ranges deleted but not yet flagged in a segment file.
    pending_deletes: list[tuple[U64, U64]] = []
    # Queues: jobs that were handed out, when leases are durable; ids below the ceiling may have been given out.
    leases: list[LeaseState] = []
    lease_ceiling: U64 = 1
    # Records that another topic has by now and that must go.
    moved: list[U64] = []
    # Router dests that are sources too: [first seq, last seq, hops] runs of copies that are not forwarded yet.
    hops: list[tuple[U64, U64, U64]] = []
    groups: list[GroupState] = []
    writers: list[WriterState] = []
    bridges: list[BridgeState] = []


class Snapshot(msgspec.Struct, omit_defaults=True):
    number: U64
    next_topic_id: U64
    # One per shard: its length is the shard count.
    wal: list[WalPosition]
    topics: list[msgspec.Raw] = []
    next_router_id: U64 = 1
    routers: list[RouterState] = []


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_snapshot: Final = msgspec.msgpack.Decoder(Snapshot, ext_hook=refuse_extension).decode
_decode_topic: Final = msgspec.msgpack.Decoder(TopicState, ext_hook=refuse_extension).decode


def encode_topic(state: TopicState) -> msgspec.Raw:
    return msgspec.Raw(_encode(state))


def decode_topic(entry: msgspec.Raw | bytes) -> TopicState:
    """Raises `BadFrame` when this is not a topic entry."""
    try:
        return _decode_topic(entry)
    except MALFORMED as error:
        raise BadFrame(f"not a topic entry: {error}") from error


def encode(snapshot: Snapshot) -> bytes:
    body = _encode(snapshot)
    return _HEADER.pack(MAGIC, VERSION, len(body), 0, xxh3_64_intdigest(body)) + body


def decode(buffer: Buffer) -> Snapshot:
    """Raises `Torn`, `BadFrame` or `FutureVersion`. Topic entries are left to `decode_topic`."""
    if len(buffer) < HEADER_BYTES:
        raise Torn("the snapshot ends inside its header")
    magic, version, body_len, reserved, stored = _HEADER.unpack_from(buffer)
    if magic != MAGIC:
        raise BadFrame("not a snapshot: wrong magic")
    if version > VERSION:
        raise FutureVersion(
            f"snapshot version {version} is unknown (this is {VERSION}); it was written by a newer version of topics"
        )
    if version < VERSION or reserved != 0:
        raise BadFrame(f"not a snapshot: version {version}, reserved {reserved}")
    if len(buffer) != HEADER_BYTES + body_len:
        raise Torn(f"the snapshot has {len(buffer) - HEADER_BYTES} body bytes of {body_len}")
    body = memoryview(buffer)[HEADER_BYTES:]
    computed = xxh3_64_intdigest(body)
    if computed != stored:
        raise BadFrame(f"checksum does not agree: stored {stored:016x}, computed {computed:016x}")
    try:
        return _decode_snapshot(body)
    except MALFORMED as error:
        raise BadFrame(f"the snapshot's body is not what it should be: {error}") from error

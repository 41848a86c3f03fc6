"""The answers to clients: records that follow each other to the end of the payload.

A record is a struct whose members are written in their order. `encode_records` and `decode_records` are for lists of
records, which have no count.
"""

from struct import Struct
from typing import Any, Final, TypeVar

import msgspec

from topics.formats.buffers import Buffer
from topics.formats.stream_permissions import Permissions, decode_permissions, encode_permissions
from topics.formats.stream_wire import BYTE, COUNT, LONG, STR8, FieldCodec, read_members, write_members
from topics.formats.wire_reader import WireReader
from topics.protocol.iggy.requests import STR32

# The id of the user of a client that is not logged in.
NO_USER_ID: Final = 2**32 - 1
TRANSPORT_TCP: Final = 1
ROLE_LEADER: Final = 0
STATUS_HEALTHY: Final = 0
CLIENT_VERSION_SEMVER: Final = 8000

_U16: Final = Struct("<H")
_U32: Final = Struct("<I")
_F32: Final = Struct("<f")
_OFFSET: Final = Struct("<IQQ")
POLLED_HEAD: Final = Struct("<IQI")

R = TypeVar("R", bound=msgspec.Struct)


class StreamRecord(msgspec.Struct, frozen=True):
    id: int
    created_at: int
    topics_count: int
    size_bytes: int
    messages_count: int
    name: str


class TopicRecord(msgspec.Struct, frozen=True):
    id: int
    created_at: int
    partitions_count: int
    message_expiry: int
    compression: int
    max_topic_size: int
    replication_factor: int
    size_bytes: int
    messages_count: int
    name: str


class PartitionRecord(msgspec.Struct, frozen=True):
    id: int
    created_at: int
    segments_count: int
    current_offset: int
    size_bytes: int
    messages_count: int


class GroupRecord(msgspec.Struct, frozen=True):
    id: int
    partitions_count: int
    members_count: int
    name: str


class MemberRecord(msgspec.Struct, frozen=True):
    id: int
    partitions: tuple[int, ...]


class ClientRecord(msgspec.Struct, frozen=True):
    client_id: int
    user_id: int
    transport: int
    address: str
    consumer_groups_count: int


class ClientGroupRecord(msgspec.Struct, frozen=True):
    stream_id: int
    topic_id: int
    group_id: int


class UserRecord(msgspec.Struct, frozen=True):
    id: int
    created_at: int
    status: int
    username: str


class UserDetails(msgspec.Struct, frozen=True):
    id: int
    created_at: int
    status: int
    username: str
    permissions: Permissions | None


class TokenRecord(msgspec.Struct, frozen=True):
    name: str
    expiry_at: int


class TokenAnswer(msgspec.Struct, frozen=True):
    token: str

    def __repr__(self) -> str:
        return "TokenAnswer()"


class LoginAnswer(msgspec.Struct, frozen=True):
    user_id: int


class OffsetAnswer(msgspec.Struct, frozen=True):
    partition_id: int
    current_offset: int
    stored_offset: int


class CacheRecord(msgspec.Struct, frozen=True):
    stream_id: int
    topic_id: int
    partition_id: int
    hits: int
    misses: int
    ratio: float


class Stats(msgspec.Struct, frozen=True):
    """Percent of CPU; times in microseconds."""

    process_id: int
    cpu_usage: float
    total_cpu_usage: float
    memory_usage: int
    total_memory: int
    available_memory: int
    run_time: int
    start_time: int
    read_bytes: int
    written_bytes: int
    messages_size_bytes: int
    streams_count: int
    topics_count: int
    partitions_count: int
    segments_count: int
    messages_count: int
    clients_count: int
    consumer_groups_count: int
    hostname: str
    os_name: str
    os_version: str
    kernel_version: str
    server_version: str
    server_semver: int
    caches: tuple[CacheRecord, ...]
    threads_count: int
    free_disk_space: int
    total_disk_space: int


class NodeRecord(msgspec.Struct, frozen=True):
    name: str
    ip: str
    tcp: int
    quic: int
    http: int
    websocket: int
    role: int
    status: int


class Cluster(msgspec.Struct, frozen=True):
    name: str
    nodes: tuple[NodeRecord, ...]


# Members.


def _read_partitions(reader: WireReader) -> tuple[int, ...]:
    count = reader.u32()
    data = reader.take(4 * count)
    return tuple(int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4))


def _write_partitions(partitions: tuple[int, ...]) -> bytes:
    return _U32.pack(len(partitions)) + b"".join([_U32.pack(partition) for partition in partitions])


def _read_u16(reader: WireReader) -> int:
    return int.from_bytes(reader.take(2), "little")


def _read_f32(reader: WireReader) -> float:
    value: float = _F32.unpack(reader.take(4))[0]
    return value


def _read_permissions(reader: WireReader) -> Permissions | None:
    """`1 u8, length u32, permissions`, or four zero bytes."""
    if reader.has():
        return decode_permissions(reader.take(reader.u32()))
    reader.take(3)
    return None


def _write_permissions(permissions: Permissions | None) -> bytes:
    if permissions is None:
        return bytes(4)
    data = encode_permissions(permissions)
    return b"\1" + _U32.pack(len(data)) + data


def _read_caches(reader: WireReader) -> tuple[CacheRecord, ...]:
    return tuple(_read(reader, CacheRecord) for _ in range(reader.u32()))


def _read_nodes(reader: WireReader) -> tuple[NodeRecord, ...]:
    return tuple(_read(reader, NodeRecord) for _ in range(reader.u32()))


def _write_counted(records: tuple[msgspec.Struct, ...]) -> bytes:
    return _U32.pack(len(records)) + encode_records(*records)


_U16_CODEC: Final = FieldCodec(_read_u16, _U16.pack)
_F32_CODEC: Final = FieldCodec(_read_f32, _F32.pack)
_PARTITIONS: Final = FieldCodec(_read_partitions, _write_partitions)
_PERMISSIONS: Final = FieldCodec(_read_permissions, _write_permissions)
_CACHES: Final = FieldCodec(_read_caches, _write_counted)
_NODES: Final = FieldCodec(_read_nodes, _write_counted)

_USER: Final = (COUNT, LONG, BYTE, STR8)
_PORTS: Final = (_U16_CODEC, _U16_CODEC, _U16_CODEC, _U16_CODEC)

_LAYOUTS: Final[dict[type[msgspec.Struct], tuple[FieldCodec[Any], ...]]] = {
    StreamRecord: (COUNT, LONG, COUNT, LONG, LONG, STR8),
    TopicRecord: (COUNT, LONG, COUNT, LONG, BYTE, LONG, BYTE, LONG, LONG, STR8),
    PartitionRecord: (COUNT, LONG, COUNT, LONG, LONG, LONG),
    GroupRecord: (COUNT, COUNT, COUNT, STR8),
    MemberRecord: (COUNT, _PARTITIONS),
    ClientRecord: (COUNT, COUNT, BYTE, STR32, COUNT),
    ClientGroupRecord: (COUNT, COUNT, COUNT),
    UserRecord: _USER,
    UserDetails: (*_USER, _PERMISSIONS),
    TokenRecord: (STR8, LONG),
    TokenAnswer: (STR8,),
    LoginAnswer: (COUNT,),
    OffsetAnswer: (COUNT, LONG, LONG),
    CacheRecord: (COUNT, COUNT, COUNT, LONG, LONG, _F32_CODEC),
    Stats: (
        *(COUNT, _F32_CODEC, _F32_CODEC, LONG, LONG, LONG, LONG, LONG, LONG, LONG, LONG),
        *(COUNT, COUNT, COUNT, COUNT, LONG, COUNT, COUNT),
        *(STR32, STR32, STR32, STR32, STR32, COUNT, _CACHES, COUNT, LONG, LONG),
    ),
    NodeRecord: (STR32, STR32, *_PORTS, BYTE, BYTE),
    Cluster: (STR32, _NODES),
}
assert all(len(kind.__struct_fields__) == len(layout) for kind, layout in _LAYOUTS.items())


def encode_records(*records: msgspec.Struct) -> bytes:
    """Records one after the other, without a count."""
    return b"".join([write_members(record, _LAYOUTS[type(record)]) for record in records])


def decode_records(payload: Buffer, *kinds: type[msgspec.Struct]) -> list[Any]:
    """Records to the end of the payload, of the kinds in turn; the last kind repeats."""
    reader = WireReader(payload)
    found: list[Any] = []
    while reader.position < len(payload):
        found.append(_read(reader, kinds[min(len(found), len(kinds) - 1)]))
    return found


def _read(reader: WireReader, kind: type[R]) -> R:
    return read_members(reader, kind, _LAYOUTS[kind])

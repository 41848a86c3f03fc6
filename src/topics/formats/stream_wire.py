"""Requests of the wire protocol that change metadata, and the commands of the `iggy` flavour, which are such requests.

    str8 = u8 length, bytes | identifier = kind u8, length u8, value: 1 numeric, 4, u32; 2 name, 1..255, UTF-8

A request has the members of its command, without what the server adds to it. Five commands hold more than their
request and are stored wrapped: `user_id`, `stream_id`, `topic_id`, `group_id` (u32) or the hash of a token (u32 length,
bytes) comes first, then the length of the request (u32) and the request. A stored change_password has an empty current
password and the hash of the new one.

Bytes that end too early, text that is not UTF-8 and unknown kinds are INVALID_COMMAND. An empty name of a stream, topic
or group, an identifier of the wrong length, and permissions of another length than announced are INVALID_FORMAT. Bytes
after a request are ignored, as the protocol says. The engine judges the lengths of passwords and of the names of users
and tokens: each has a status of its own.

Encoders take commands that were checked: a number out of its range or a name that is too long is a bug of ours.
"""

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, Generic, TypeVar

import msgspec

from topics.formats.buffers import Buffer
from topics.formats.stream_command import (
    COMMANDS,
    NAME_BYTES_MAX,
    U8,
    U64,
    ChangePassword,
    Command,
    CompressionCode,
    CreateConsumerGroup,
    CreatePartitions,
    CreatePersonalAccessToken,
    CreateStream,
    CreateTopic,
    CreateUser,
    DeleteConsumerGroup,
    DeletePartitions,
    DeletePersonalAccessToken,
    DeleteSegments,
    DeleteStream,
    DeleteTopic,
    DeleteUser,
    Identifier,
    PlainCommand,
    PurgeStream,
    PurgeTopic,
    UpdatePermissions,
    UpdateStream,
    UpdateTopic,
    UpdateUser,
    UserStatus,
    refuse,
)
from topics.formats.stream_permissions import U32, Permissions, encode_permissions
from topics.formats.wire_reader import KIND_ID, KIND_NAME, WireReader

R = TypeVar("R", bound=msgspec.Struct)
V = TypeVar("V")


# Requests to which the server adds something before they are stored.


class CreateUserRequest(msgspec.Struct, frozen=True):
    username: str
    password: str
    status: UserStatus
    permissions: Permissions | None

    def __repr__(self) -> str:
        """Without the password, which is plain text here."""
        return f"CreateUserRequest(username={self.username!r}, status={self.status!r})"


class ChangePasswordRequest(msgspec.Struct, frozen=True):
    user_id: Identifier
    current_password: str
    new_password: str

    def __repr__(self) -> str:
        return f"ChangePasswordRequest(user_id={self.user_id!r})"


class CreatePersonalAccessTokenRequest(msgspec.Struct, frozen=True):
    name: str
    expiry: U64


class CreateStreamRequest(msgspec.Struct, frozen=True):
    name: str


class CreateTopicRequest(msgspec.Struct, frozen=True):
    stream_id: Identifier
    partitions_count: U32
    compression_algorithm: CompressionCode
    message_expiry: U64
    max_topic_size: U64
    replication_factor: U8
    name: str


class CreateConsumerGroupRequest(msgspec.Struct, frozen=True):
    stream_id: Identifier
    topic_id: Identifier
    name: str


Request = (
    PlainCommand
    | CreateUserRequest
    | ChangePasswordRequest
    | CreatePersonalAccessTokenRequest
    | CreateStreamRequest
    | CreateTopicRequest
    | CreateConsumerGroupRequest
)

_U32: Final = Struct("<I")
_U64: Final = Struct("<Q")


def encode_str8(text: str) -> bytes:
    data = text.encode()
    assert len(data) <= NAME_BYTES_MAX, "names are checked before they are written"
    return bytes((len(data),)) + data


def encode_identifier(identifier: int | str) -> bytes:
    if isinstance(identifier, int):
        return bytes((KIND_ID, 4)) + _U32.pack(identifier)
    return bytes((KIND_NAME,)) + encode_str8(identifier)


def _encode_u8(value: int) -> bytes:
    return bytes((value,))


def _encode_sized(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data


def _encode_optional_name(name: str | None) -> bytes:
    return b"\0" if name is None else b"\1" + encode_str8(name)


def _encode_optional_status(status: UserStatus | None) -> bytes:
    return b"\0" if status is None else bytes((1, status))


def _encode_optional_permissions(permissions: Permissions | None) -> bytes:
    return b"\0" if permissions is None else b"\1" + _encode_sized(encode_permissions(permissions))


@dataclass(frozen=True, slots=True)
class FieldCodec(Generic[V]):
    """How one member of a request is read and written."""

    read: Callable[[WireReader], V]
    write: Callable[[V], bytes]


ID: Final = FieldCodec(WireReader.identifier, encode_identifier)
NAME: Final = FieldCodec(WireReader.name, encode_str8)
STR8: Final = FieldCodec(WireReader.str8, encode_str8)
STATUS: Final = FieldCodec(WireReader.status, _encode_u8)
OPTIONAL_NAME: Final = FieldCodec(WireReader.optional_name, _encode_optional_name)
OPTIONAL_STATUS: Final = FieldCodec(WireReader.optional_status, _encode_optional_status)
PERMISSIONS: Final = FieldCodec(WireReader.optional_permissions, _encode_optional_permissions)
COMPRESSION: Final = FieldCodec(WireReader.compression, _encode_u8)
BYTE: Final = FieldCodec(WireReader.u8, _encode_u8)
COUNT: Final = FieldCodec(WireReader.u32, _U32.pack)
LONG: Final = FieldCodec(WireReader.u64, _U64.pack)

TOPIC_OPTIONS: Final = (COMPRESSION, LONG, LONG, BYTE)

# How the members of each request are written, in the order of the struct.
_LAYOUTS: Final[dict[type[msgspec.Struct], tuple[FieldCodec[Any], ...]]] = {
    CreateUserRequest: (STR8, STR8, STATUS, PERMISSIONS),
    DeleteUser: (ID,),
    UpdateUser: (ID, OPTIONAL_NAME, OPTIONAL_STATUS),
    UpdatePermissions: (ID, PERMISSIONS),
    ChangePasswordRequest: (ID, STR8, STR8),
    CreatePersonalAccessTokenRequest: (STR8, LONG),
    DeletePersonalAccessToken: (STR8,),
    CreateStreamRequest: (NAME,),
    DeleteStream: (ID,),
    UpdateStream: (ID, NAME),
    PurgeStream: (ID,),
    CreateTopicRequest: (ID, COUNT, *TOPIC_OPTIONS, NAME),
    DeleteTopic: (ID, ID),
    UpdateTopic: (ID, ID, *TOPIC_OPTIONS, NAME),
    PurgeTopic: (ID, ID),
    CreatePartitions: (ID, ID, COUNT),
    DeletePartitions: (ID, ID, COUNT),
    DeleteSegments: (ID, ID, COUNT, COUNT),
    CreateConsumerGroupRequest: (ID, ID, NAME),
    DeleteConsumerGroup: (ID, ID, ID),
}
assert all(len(kind.__struct_fields__) == len(codecs) for kind, codecs in _LAYOUTS.items())

# The requests that change metadata, by their codes.
CHANGES: Final = dict(zip(COMMANDS, _LAYOUTS, strict=True))


def encode_request(request: Request) -> bytes:
    """The payload that a client sends."""
    return write_members(request, _LAYOUTS[type(request)])


def write_members(values: msgspec.Struct, layout: tuple[FieldCodec[Any], ...]) -> bytes:
    members = msgspec.structs.astuple(values)
    return b"".join([codec.write(value) for codec, value in zip(layout, members, strict=True)])


def read_members(reader: WireReader, kind: type[R], layout: tuple[FieldCodec[Any], ...]) -> R:
    return kind(*[codec.read(reader) for codec in layout])


def decode_request(code: int, payload: Buffer) -> Request:
    """The request of a client with one of the codes in `COMMANDS`."""
    return read_change(code, WireReader(payload))


def read_change(code: int, reader: WireReader) -> Request:
    if code not in CHANGES:
        refuse(f"{code} is no command that changes metadata")
    request: Request = _read_request(reader, CHANGES[code])  # type: ignore[assignment]
    return request


def _read_request(reader: WireReader, kind: type[R]) -> R:
    return read_members(reader, kind, _LAYOUTS[kind])


# The `iggy` flavour.


def encode_wire(command: Command) -> bytes:
    match command:
        case CreateUser():
            user = CreateUserRequest(command.username, command.password, command.status, command.permissions)
            return _U32.pack(command.user_id) + _encode_sized(encode_request(user))
        case ChangePassword():
            return encode_request(ChangePasswordRequest(command.user_id, "", command.password))
        case CreatePersonalAccessToken():
            token = CreatePersonalAccessTokenRequest(command.name, command.expiry)
            return _encode_sized(command.hash.encode()) + _encode_sized(encode_request(token))
        case CreateStream():
            return _U32.pack(command.stream_id) + _encode_sized(encode_request(CreateStreamRequest(command.name)))
        case CreateTopic():
            topic = CreateTopicRequest(
                command.stream_id,
                command.partitions_count,
                command.compression_algorithm,
                command.message_expiry,
                command.max_topic_size,
                command.replication_factor,
                command.name,
            )
            return _U32.pack(command.topic_id) + _encode_sized(encode_request(topic))
        case CreateConsumerGroup():
            group = CreateConsumerGroupRequest(command.stream_id, command.topic_id, command.name)
            return _U32.pack(command.group_id) + _encode_sized(encode_request(group))
        case _:
            return encode_request(command)


def decode_wire(code: int, payload: Buffer) -> Command:
    reader = WireReader(payload)
    kind = COMMANDS.get(code) or refuse(f"{code} is no command of the state log")
    if kind is CreateUser:
        user_id, user = reader.u32(), _read_wrapped(reader, CreateUserRequest)
        return CreateUser(user_id, user.username, user.password, user.status, user.permissions)
    if kind is ChangePassword:
        change = _read_request(reader, ChangePasswordRequest)
        return ChangePassword(change.user_id, change.new_password)
    if kind is CreatePersonalAccessToken:
        token_hash, token = reader.text(reader.u32()), _read_wrapped(reader, CreatePersonalAccessTokenRequest)
        return CreatePersonalAccessToken(token.name, token_hash, token.expiry)
    if kind is CreateStream:
        stream_id, stream = reader.u32(), _read_wrapped(reader, CreateStreamRequest)
        return CreateStream(stream_id, stream.name)
    if kind is CreateTopic:
        topic_id, topic = reader.u32(), _read_wrapped(reader, CreateTopicRequest)
        return CreateTopic(topic_id=topic_id, **msgspec.structs.asdict(topic))
    if kind is CreateConsumerGroup:
        group_id, group = reader.u32(), _read_wrapped(reader, CreateConsumerGroupRequest)
        return CreateConsumerGroup(group.stream_id, group.topic_id, group_id, group.name)
    return _read_request(reader, kind)


def _read_wrapped(reader: WireReader, kind: type[R]) -> R:
    return _read_request(WireReader(reader.take(reader.u32())), kind)

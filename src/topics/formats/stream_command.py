"""The commands that change metadata of the partitioned engine: what the state log keeps, and what clients ask for.

A stored command is a struct whose members are the keys of the `page` flavour, in their order. It is written

* by the `page` flavour as the MessagePack array `[code, body]`, `body` a map of all members; absent options are nil,
* by the `iggy` flavour as the request of the wire protocol. Five requests do not hold what the server added, and are
  wrapped: `user_id`, `stream_id`, `topic_id`, `group_id` (u32) or the hash of a token (u32 length, bytes) stands in
  front, then the length of the request (u32) and the request. A stored change_password holds an empty current
  password and the hash of the new one.

Requests (`…Request`, or the command itself where the two are the same) have functions of their own:

    str8 = u8 length, bytes | identifier = kind u8, length u8, value: 1 numeric, 4, u32; 2 name, 1..255, UTF-8

Bytes that end too early, text that is not UTF-8 and unknown kinds are INVALID_COMMAND; an empty name of a stream, topic
or group, an identifier of the wrong length and permissions of another length than announced are INVALID_FORMAT. Bytes
behind a request are ignored, as the protocol has it; behind a MessagePack array they are not. Members of a map that
nobody knows are ignored: a later version may add some. Lengths of names of users and tokens and of passwords are for
the engine to judge: each has its own status.

Encoders take commands that were checked: a number out of its range or a name too long is a bug of ours.
"""

from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import Annotated, Any, Final, NamedTuple, NoReturn, TypeVar

import msgspec

from topics.formats.buffers import Buffer
from topics.formats.control import MALFORMED, refuse_extension
from topics.formats.stream_permissions import (
    U32,
    Permissions,
    ascending,
    decode_permissions,
    encode_permissions,
)
from topics.stream_errors import StreamsError, StreamStatus

U8 = Annotated[int, msgspec.Meta(ge=0, le=255)]
U64 = Annotated[int, msgspec.Meta(ge=0)]
CompressionCode = Annotated[int, msgspec.Meta(ge=1, le=4)]

# An id or a name. Names are names, also those made of digits.
Identifier = U32 | Annotated[str, msgspec.Meta(min_length=1)]

NAME_BYTES_MAX: Final = 255
COMPRESSION_CODE_MIN: Final = 1
COMPRESSION_CODE_MAX: Final = 4


class UserStatus(IntEnum):
    ACTIVE = 1
    INACTIVE = 2


# What is stored.


class CreateUser(msgspec.Struct, frozen=True):
    user_id: U32
    username: str
    # The PHC string, never the password itself.
    password: str
    status: UserStatus
    permissions: Permissions | None


class DeleteUser(msgspec.Struct, frozen=True):
    user_id: Identifier


class UpdateUser(msgspec.Struct, frozen=True):
    user_id: Identifier
    username: str | None
    status: UserStatus | None


class UpdatePermissions(msgspec.Struct, frozen=True):
    user_id: Identifier
    permissions: Permissions | None


class ChangePassword(msgspec.Struct, frozen=True):
    user_id: Identifier
    # As in `CreateUser`.
    password: str


class CreatePersonalAccessToken(msgspec.Struct, frozen=True):
    """Of the user who asked: the entry names them. `expiry` is a duration in microseconds; 0 and 2^64-1: never."""

    name: str
    hash: str
    expiry: U64


class DeletePersonalAccessToken(msgspec.Struct, frozen=True):
    name: str


class CreateStream(msgspec.Struct, frozen=True):
    stream_id: U32
    name: str


class DeleteStream(msgspec.Struct, frozen=True):
    stream_id: Identifier


class UpdateStream(msgspec.Struct, frozen=True):
    stream_id: Identifier
    name: str


class PurgeStream(msgspec.Struct, frozen=True):
    stream_id: Identifier


class CreateTopic(msgspec.Struct, frozen=True):
    """Values as they were asked for: 0 is the server's default, resolved anew by each start."""

    stream_id: Identifier
    topic_id: U32
    partitions_count: U32
    compression_algorithm: CompressionCode
    message_expiry: U64
    max_topic_size: U64
    replication_factor: U8
    name: str


class DeleteTopic(msgspec.Struct, frozen=True):
    stream_id: Identifier
    topic_id: Identifier


class UpdateTopic(msgspec.Struct, frozen=True):
    stream_id: Identifier
    topic_id: Identifier
    compression_algorithm: CompressionCode
    message_expiry: U64
    max_topic_size: U64
    replication_factor: U8
    name: str


class PurgeTopic(msgspec.Struct, frozen=True):
    stream_id: Identifier
    topic_id: Identifier


class CreatePartitions(msgspec.Struct, frozen=True):
    stream_id: Identifier
    topic_id: Identifier
    partitions_count: U32


class DeletePartitions(msgspec.Struct, frozen=True):
    stream_id: Identifier
    topic_id: Identifier
    partitions_count: U32


class DeleteSegments(msgspec.Struct, frozen=True):
    stream_id: Identifier
    topic_id: Identifier
    partition_id: U32
    segments_count: U32


class CreateConsumerGroup(msgspec.Struct, frozen=True):
    stream_id: Identifier
    topic_id: Identifier
    group_id: U32
    name: str


class DeleteConsumerGroup(msgspec.Struct, frozen=True):
    stream_id: Identifier
    topic_id: Identifier
    group_id: Identifier


# What is asked for, where the server adds to it before it is stored.


class CreateUserRequest(msgspec.Struct, frozen=True):
    username: str
    password: str
    status: UserStatus
    permissions: Permissions | None

    def __repr__(self) -> str:
        """Without the password, which is still readable here."""
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


# Stored exactly as asked for.
PlainCommand = (
    DeleteUser
    | UpdateUser
    | UpdatePermissions
    | DeletePersonalAccessToken
    | DeleteStream
    | UpdateStream
    | PurgeStream
    | DeleteTopic
    | UpdateTopic
    | PurgeTopic
    | CreatePartitions
    | DeletePartitions
    | DeleteSegments
    | DeleteConsumerGroup
)
Command = (
    PlainCommand
    | CreateUser
    | ChangePassword
    | CreatePersonalAccessToken
    | CreateStream
    | CreateTopic
    | CreateConsumerGroup
)
Request = (
    PlainCommand
    | CreateUserRequest
    | ChangePasswordRequest
    | CreatePersonalAccessTokenRequest
    | CreateStreamRequest
    | CreateTopicRequest
    | CreateConsumerGroupRequest
)

R = TypeVar("R", bound=msgspec.Struct)

COMMANDS: Final[dict[int, type[Command]]] = {
    33: CreateUser,
    34: DeleteUser,
    35: UpdateUser,
    36: UpdatePermissions,
    37: ChangePassword,
    42: CreatePersonalAccessToken,
    43: DeletePersonalAccessToken,
    202: CreateStream,
    203: DeleteStream,
    204: UpdateStream,
    205: PurgeStream,
    302: CreateTopic,
    303: DeleteTopic,
    304: UpdateTopic,
    305: PurgeTopic,
    402: CreatePartitions,
    403: DeletePartitions,
    503: DeleteSegments,
    602: CreateConsumerGroup,
    603: DeleteConsumerGroup,
}
_CODES: Final[dict[type[Command], int]] = {kind: code for code, kind in COMMANDS.items()}


def command_code(command: Command) -> int:
    return _CODES[type(command)]


# The `page` flavour.

_encode_array: Final = msgspec.msgpack.Encoder().encode
_decode_array: Final = msgspec.msgpack.Decoder(tuple[U32, msgspec.Raw], ext_hook=refuse_extension).decode
_decode_body: Final[dict[int, Callable[[Buffer], Any]]] = {
    code: msgspec.msgpack.Decoder(kind, ext_hook=refuse_extension).decode for code, kind in COMMANDS.items()
}


def encode_page(command: Command) -> bytes:
    if isinstance(command, CreateUser | UpdatePermissions) and command.permissions is not None:
        command = msgspec.structs.replace(command, permissions=ascending(command.permissions))
    return _encode_array((command_code(command), command))


def decode_page(data: Buffer) -> Command:
    try:
        code, body = _decode_array(data)
        if code not in _decode_body:
            _refuse(f"{code} is no command of the state log")
        command: Command = _decode_body[code](body)
    except MALFORMED as error:
        raise StreamsError(StreamStatus.INVALID_COMMAND, f"not a command of the state log: {error}") from error
    return command


# The wire.

_U32: Final = Struct("<I")
_U64: Final = Struct("<Q")

_KIND_ID: Final = 1
_KIND_NAME: Final = 2


def _refuse(message: str, status: StreamStatus = StreamStatus.INVALID_COMMAND) -> NoReturn:
    raise StreamsError(status, message)


class WireReader:
    """Takes the parts of a request one after the other; raises `StreamsError` where they are not there."""

    __slots__ = ("_data", "position")

    def __init__(self, data: Buffer) -> None:
        self._data = bytes(data)
        self.position = 0

    def take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self._data):
            _refuse(f"the request ends at byte {len(self._data)}, inside a part that ends at {end}")
        taken = self._data[self.position : end]
        self.position = end
        return taken

    def u8(self) -> int:
        return self.take(1)[0]

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def has(self) -> bool:
        return self.u8() == 1

    def text(self, size: int) -> str:
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise StreamsError(StreamStatus.INVALID_COMMAND, f"text that is not UTF-8: {error.reason}") from error

    def str8(self) -> str:
        return self.text(self.u8())

    def name(self) -> str:
        """A str8 that may not be empty."""
        return self.str8() or _refuse("a name is empty", StreamStatus.INVALID_FORMAT)

    def identifier(self) -> int | str:
        kind, size = self.u8(), self.u8()
        if kind not in (_KIND_ID, _KIND_NAME):
            _refuse(f"{kind} is no kind of an identifier")
        if size == 0 if kind == _KIND_NAME else size != 4:
            _refuse(f"an identifier of kind {kind} has {size} bytes", StreamStatus.INVALID_FORMAT)
        return self.u32() if kind == _KIND_ID else self.text(size)

    def status(self) -> UserStatus:
        value = self.u8()
        return UserStatus(value) if value in (1, 2) else _refuse(f"{value} is no status of a user")

    def compression(self) -> int:
        value = self.u8()
        if not COMPRESSION_CODE_MIN <= value <= COMPRESSION_CODE_MAX:
            _refuse(f"{value} is no code of a compression algorithm")
        return value

    def optional_name(self) -> str | None:
        return self.str8() if self.has() else None

    def optional_status(self) -> UserStatus | None:
        return self.status() if self.has() else None

    def optional_permissions(self) -> Permissions | None:
        return decode_permissions(self.take(self.u32())) if self.has() else None


def encode_str8(text: str) -> bytes:
    data = text.encode()
    assert len(data) <= NAME_BYTES_MAX, "names are checked before they are written"
    return bytes((len(data),)) + data


def encode_identifier(identifier: int | str) -> bytes:
    if isinstance(identifier, int):
        return bytes((_KIND_ID, 4)) + _U32.pack(identifier)
    return bytes((_KIND_NAME,)) + encode_str8(identifier)


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


class _Part(NamedTuple):
    read: Callable[[WireReader], Any]
    write: Callable[[Any], bytes]


_ID: Final = _Part(WireReader.identifier, encode_identifier)
_NAME: Final = _Part(WireReader.name, encode_str8)
_STR8: Final = _Part(WireReader.str8, encode_str8)
_STATUS: Final = _Part(WireReader.status, _encode_u8)
_OPTIONAL_NAME: Final = _Part(WireReader.optional_name, _encode_optional_name)
_OPTIONAL_STATUS: Final = _Part(WireReader.optional_status, _encode_optional_status)
_PERMISSIONS: Final = _Part(WireReader.optional_permissions, _encode_optional_permissions)
_COMPRESSION: Final = _Part(WireReader.compression, _encode_u8)
_BYTE: Final = _Part(WireReader.u8, _encode_u8)
_COUNT: Final = _Part(WireReader.u32, _U32.pack)
_LONG: Final = _Part(WireReader.u64, _U64.pack)

_TOPIC_OPTIONS: Final = (_COMPRESSION, _LONG, _LONG, _BYTE)

# The parts of each request: its members, in the order of the struct.
_LAYOUTS: Final[dict[type[msgspec.Struct], tuple[_Part, ...]]] = {
    CreateUserRequest: (_STR8, _STR8, _STATUS, _PERMISSIONS),
    DeleteUser: (_ID,),
    UpdateUser: (_ID, _OPTIONAL_NAME, _OPTIONAL_STATUS),
    UpdatePermissions: (_ID, _PERMISSIONS),
    ChangePasswordRequest: (_ID, _STR8, _STR8),
    CreatePersonalAccessTokenRequest: (_STR8, _LONG),
    DeletePersonalAccessToken: (_STR8,),
    CreateStreamRequest: (_NAME,),
    DeleteStream: (_ID,),
    UpdateStream: (_ID, _NAME),
    PurgeStream: (_ID,),
    CreateTopicRequest: (_ID, _COUNT, *_TOPIC_OPTIONS, _NAME),
    DeleteTopic: (_ID, _ID),
    UpdateTopic: (_ID, _ID, *_TOPIC_OPTIONS, _NAME),
    PurgeTopic: (_ID, _ID),
    CreatePartitions: (_ID, _ID, _COUNT),
    DeletePartitions: (_ID, _ID, _COUNT),
    DeleteSegments: (_ID, _ID, _COUNT, _COUNT),
    CreateConsumerGroupRequest: (_ID, _ID, _NAME),
    DeleteConsumerGroup: (_ID, _ID, _ID),
}
assert all(len(kind.__struct_fields__) == len(parts) for kind, parts in _LAYOUTS.items())

_REQUESTS: Final = dict(zip(COMMANDS, _LAYOUTS, strict=True))


def encode_request(request: Request) -> bytes:
    """The payload a client sends."""
    values = msgspec.structs.astuple(request)
    return b"".join(part.write(value) for part, value in zip(_LAYOUTS[type(request)], values, strict=True))


def decode_request(code: int, payload: Buffer) -> Request:
    """What a client asks for with one of the codes in `COMMANDS`."""
    if code not in _REQUESTS:
        _refuse(f"{code} is no command that changes metadata")
    request: Request = _read_request(WireReader(payload), _REQUESTS[code])  # type: ignore[assignment]
    return request


def _read_request(reader: WireReader, kind: type[R]) -> R:
    return kind(*(part.read(reader) for part in _LAYOUTS[kind]))


# The `iggy` flavour: requests, six of them with what the server added.


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
    kind = COMMANDS.get(code) or _refuse(f"{code} is no command of the state log")
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

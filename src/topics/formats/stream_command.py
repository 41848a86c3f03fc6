"""The commands that change metadata of the partitioned engine, as the state log keeps them.

A command is a struct whose members are the keys of the `page` flavour, in their order. The `page` flavour stores it as
the MessagePack array `[code, body]`; `body` is a map of all members, and an absent option is nil. A member of a map
that this version does not know is ignored, because a later version may add one. Bytes after the array are refused.

The `iggy` flavour stores a command as a request of the wire protocol: `stream_wire.py`.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Annotated, Any, Final, NoReturn

import msgspec

from topics.formats.buffers import Buffer
from topics.formats.control import MALFORMED, refuse_extension
from topics.formats.stream_permissions import U32, Permissions, ascending
from topics.stream_errors import StreamsError, StreamStatus

U8 = Annotated[int, msgspec.Meta(ge=0, le=255)]
U64 = Annotated[int, msgspec.Meta(ge=0)]
CompressionCode = Annotated[int, msgspec.Meta(ge=1, le=4)]

# An id or a name. A name may consist of digits only.
Identifier = U32 | Annotated[str, msgspec.Meta(min_length=1)]

NAME_BYTES_MAX: Final = 255
COMPRESSION_CODE_MIN: Final = 1
COMPRESSION_CODE_MAX: Final = 4


class UserStatus(IntEnum):
    ACTIVE = 1
    INACTIVE = 2


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
    # The PHC string, as in `CreateUser`.
    password: str


class CreatePersonalAccessToken(msgspec.Struct, frozen=True):
    """A token of the user that the entry names. `expiry` is a duration in microseconds; 0 and 2^64-1: never."""

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
    """The values that the client asked for. 0 is the default of the settings, which each start resolves."""

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


# Stored exactly as a client asked for it.
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


def refuse(message: str, status: StreamStatus = StreamStatus.INVALID_COMMAND) -> NoReturn:
    raise StreamsError(status, message)


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
            refuse(f"{code} is no command of the state log")
        command: Command = _decode_body[code](body)
    except MALFORMED as error:
        raise StreamsError(StreamStatus.INVALID_COMMAND, f"not a command of the state log: {error}") from error
    return command

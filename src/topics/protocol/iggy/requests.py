"""The requests of clients: what the payload of each command says.

    identifier          kind u8, length u8, value: 1 numeric, 4, u32; 2 name, 1..255, UTF-8
    consumer            kind u8 (1 a single consumer, 2 a group), identifier
    optional partition  flag u8, u32: 1 present, anything else absent
    strategy            kind u8 (1..5), u64

Requests that change metadata are the entries of the state log, so `formats/stream_wire.py` has them.

Bytes that end too early, text that is not UTF-8 and unknown kinds are INVALID_COMMAND; lengths of names, identifiers
and permissions that do not fit are INVALID_FORMAT.  Bytes after a request are ignored,
with a line in the log of level debug.
"""

import logging
from struct import Struct
from typing import Any, Final

import msgspec

from topics.formats.buffers import Buffer
from topics.formats.message_codec import Codec
from topics.formats.stream_command import COMMANDS, Identifier, PlainCommand, refuse
from topics.formats.stream_wire import (
    BYTE,
    CHANGES,
    COUNT,
    ID,
    LONG,
    STR8,
    ChangePasswordRequest,
    CreateConsumerGroupRequest,
    CreatePersonalAccessTokenRequest,
    CreateStreamRequest,
    CreateTopicRequest,
    CreateUserRequest,
    FieldCodec,
    read_change,
    read_members,
    write_members,
)
from topics.formats.stream_wire import encode_request as encode_change
from topics.formats.wire_reader import WireReader
from topics.protocol.iggy.codes import Code

__all__ = [
    "ChangePasswordRequest",
    "Codec",
    "CreateConsumerGroupRequest",
    "CreatePersonalAccessTokenRequest",
    "CreateStreamRequest",
    "CreateTopicRequest",
    "CreateUserRequest",
    "Identifier",
]

logger = logging.getLogger(__name__)

CONSUMER_KINDS: Final = (1, 2)
STRATEGY_KINDS: Final = (1, 2, 3, 4, 5)

_U32: Final = Struct("<I")


class GetSnapshot(msgspec.Struct, frozen=True):
    compression: int
    types: tuple[int, ...]


class GetClient(msgspec.Struct, frozen=True):
    client_id: int


class GetUser(msgspec.Struct, frozen=True):
    user_id: Identifier


class LoginUser(msgspec.Struct, frozen=True):
    """`version` and `context` are informational."""

    username: str
    password: str
    version: str = ""
    context: str = ""

    def __repr__(self) -> str:
        return f"LoginUser(username={self.username!r})"


class LoginWithPersonalAccessToken(msgspec.Struct, frozen=True):
    token: str

    def __repr__(self) -> str:
        return "LoginWithPersonalAccessToken()"


class PollMessages(msgspec.Struct, frozen=True):
    consumer_kind: int
    consumer_id: Identifier
    stream_id: Identifier
    topic_id: Identifier
    partition_id: int | None
    strategy_kind: int
    strategy_value: int
    count: int
    auto_commit: bool


class FlushUnsavedBuffer(msgspec.Struct, frozen=True):
    stream_id: Identifier
    topic_id: Identifier
    partition_id: int
    fsync: bool


class GetConsumerOffset(msgspec.Struct, frozen=True):
    consumer_kind: int
    consumer_id: Identifier
    stream_id: Identifier
    topic_id: Identifier
    partition_id: int | None


class StoreConsumerOffset(msgspec.Struct, frozen=True):
    consumer_kind: int
    consumer_id: Identifier
    stream_id: Identifier
    topic_id: Identifier
    partition_id: int | None
    offset: int


class DeleteConsumerOffset(msgspec.Struct, frozen=True):
    consumer_kind: int
    consumer_id: Identifier
    stream_id: Identifier
    topic_id: Identifier
    partition_id: int | None


class GetStream(msgspec.Struct, frozen=True):
    stream_id: Identifier


class GetTopic(msgspec.Struct, frozen=True):
    stream_id: Identifier
    topic_id: Identifier


class GetTopics(msgspec.Struct, frozen=True):
    stream_id: Identifier


class GetConsumerGroup(msgspec.Struct, frozen=True):
    stream_id: Identifier
    topic_id: Identifier
    group_id: Identifier


class GetConsumerGroups(msgspec.Struct, frozen=True):
    stream_id: Identifier
    topic_id: Identifier


class JoinConsumerGroup(msgspec.Struct, frozen=True):
    stream_id: Identifier
    topic_id: Identifier
    group_id: Identifier


class LeaveConsumerGroup(msgspec.Struct, frozen=True):
    stream_id: Identifier
    topic_id: Identifier
    group_id: Identifier


Question = (
    GetSnapshot
    | GetClient
    | GetUser
    | LoginUser
    | LoginWithPersonalAccessToken
    | PollMessages
    | FlushUnsavedBuffer
    | GetConsumerOffset
    | StoreConsumerOffset
    | DeleteConsumerOffset
    | GetStream
    | GetTopic
    | GetTopics
    | GetConsumerGroup
    | GetConsumerGroups
    | JoinConsumerGroup
    | LeaveConsumerGroup
)
Change = (
    PlainCommand
    | CreateUserRequest
    | ChangePasswordRequest
    | CreatePersonalAccessTokenRequest
    | CreateStreamRequest
    | CreateTopicRequest
    | CreateConsumerGroupRequest
)
Request = Question | Change


# Members.


def _read_str32(reader: WireReader) -> str:
    return reader.text(reader.u32())


def _write_str32(text: str) -> bytes:
    data = text.encode()
    return _U32.pack(len(data)) + data


def _read_types(reader: WireReader) -> tuple[int, ...]:
    return tuple(reader.take(reader.u8()))


def _write_types(types: tuple[int, ...]) -> bytes:
    return bytes((len(types), *types))


def _read_consumer_kind(reader: WireReader) -> int:
    kind = reader.u8()
    return kind if kind in CONSUMER_KINDS else refuse(f"{kind} is no kind of a consumer")


def _read_strategy_kind(reader: WireReader) -> int:
    kind = reader.u8()
    return kind if kind in STRATEGY_KINDS else refuse(f"{kind} is no polling strategy")


def _read_partition(reader: WireReader) -> int | None:
    is_present, partition_id = reader.has(), reader.u32()
    return partition_id if is_present else None


def _write_partition(partition_id: int | None) -> bytes:
    return bytes(5) if partition_id is None else b"\1" + _U32.pack(partition_id)


def _write_flag(value: bool) -> bytes:  # noqa: FBT001 - the value of a member.
    return b"\1" if value else b"\0"


STR32: Final = FieldCodec(_read_str32, _write_str32)
_TYPES: Final = FieldCodec(_read_types, _write_types)
_CONSUMER_KIND: Final = FieldCodec(_read_consumer_kind, BYTE.write)
_STRATEGY_KIND: Final = FieldCodec(_read_strategy_kind, BYTE.write)
_PARTITION: Final = FieldCodec(_read_partition, _write_partition)
_FLAG: Final = FieldCodec(WireReader.has, _write_flag)

_OFFSET_SLOT: Final = (_CONSUMER_KIND, ID, ID, ID, _PARTITION)
_GROUP: Final = (ID, ID, ID)

_QUESTIONS: Final[dict[int, tuple[type[Any], tuple[FieldCodec[Any], ...]]]] = {
    Code.GET_SNAPSHOT: (GetSnapshot, (BYTE, _TYPES)),
    Code.GET_CLIENT: (GetClient, (COUNT,)),
    Code.GET_USER: (GetUser, (ID,)),
    Code.LOGIN_USER: (LoginUser, (STR8, STR8, STR32, STR32)),
    Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN: (LoginWithPersonalAccessToken, (STR8,)),
    Code.POLL_MESSAGES: (PollMessages, (*_OFFSET_SLOT, _STRATEGY_KIND, LONG, COUNT, _FLAG)),
    Code.FLUSH_UNSAVED_BUFFER: (FlushUnsavedBuffer, (ID, ID, COUNT, _FLAG)),
    Code.GET_CONSUMER_OFFSET: (GetConsumerOffset, _OFFSET_SLOT),
    Code.STORE_CONSUMER_OFFSET: (StoreConsumerOffset, (*_OFFSET_SLOT, LONG)),
    Code.DELETE_CONSUMER_OFFSET: (DeleteConsumerOffset, _OFFSET_SLOT),
    Code.GET_STREAM: (GetStream, (ID,)),
    Code.GET_TOPIC: (GetTopic, (ID, ID)),
    Code.GET_TOPICS: (GetTopics, (ID,)),
    Code.GET_CONSUMER_GROUP: (GetConsumerGroup, _GROUP),
    Code.GET_CONSUMER_GROUPS: (GetConsumerGroups, (ID, ID)),
    Code.JOIN_CONSUMER_GROUP: (JoinConsumerGroup, _GROUP),
    Code.LEAVE_CONSUMER_GROUP: (LeaveConsumerGroup, _GROUP),
}
_LAYOUTS: Final = dict(_QUESTIONS.values())
assert all(len(kind.__struct_fields__) == len(layout) for kind, layout in _QUESTIONS.values())

# Commands without members.
BARE_CODES: Final = frozenset(
    {
        int(Code.PING),
        int(Code.GET_STATS),
        int(Code.GET_CLUSTER_METADATA),
        int(Code.GET_ME),
        int(Code.GET_CLIENTS),
        int(Code.GET_USERS),
        int(Code.LOGOUT_USER),
        int(Code.GET_PERSONAL_ACCESS_TOKENS),
        int(Code.GET_STREAMS),
    }
)


CODES_BY_REQUEST: Final[dict[type[Any], int]] = {
    **{kind: code for code, (kind, _) in _QUESTIONS.items()},
    **{kind: code for code, kind in CHANGES.items()},
}


def request_code(request: Request) -> int:
    return CODES_BY_REQUEST[type(request)]


def decode_request(code: int, payload: Buffer) -> Request | None:
    """The request. None for a command without members. `send_request.py` has the decoder of send_messages."""
    reader = WireReader(payload)
    known = _QUESTIONS.get(code)
    request: Request | None = None
    if known is not None:
        request = read_members(reader, *known)
    elif code not in BARE_CODES:
        request = read_change(code, reader)
    if reader.rest_bytes:
        logger.debug("%d bytes after a request with code %d are ignored", reader.rest_bytes, code)
    return request


def encode_request(request: Request) -> bytes:
    layout = _LAYOUTS.get(type(request))
    return encode_change(request) if layout is None else write_members(request, layout)  # type: ignore[arg-type]


assert frozenset(Code) == BARE_CODES | _QUESTIONS.keys() | COMMANDS.keys() | {Code.SEND_MESSAGES}

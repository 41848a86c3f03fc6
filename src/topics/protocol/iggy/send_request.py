"""The request send_messages: metadata, an index entry for each message, and the messages.

    metadata length u32 | stream identifier, topic identifier, partitioning, count u32 | entries | messages
    partitioning   kind u8, length u8, value: 1 balanced, 0; 2 partition id, 4, u32; 3 messages key, 1..255

Every error of an identifier is INVALID_IDENTIFIER, and every other one INVALID_COMMAND.
"""

from struct import Struct
from typing import Final, NamedTuple

from topics.formats.buffers import Buffer
from topics.formats.message import HEADER_BYTES, PAYLOAD_BYTES_MAX, USER_HEADERS_BYTES_MAX
from topics.formats.message_index import ENTRY_BYTES
from topics.formats.stream_command import Identifier, refuse
from topics.formats.stream_wire import encode_identifier
from topics.formats.wire_reader import WireReader
from topics.protocol.iggy.frames import METADATA_BYTES_MAX, SEND_BYTES_MAX
from topics.stream_errors import StreamsError, StreamStatus

_BALANCED: Final = 1
_PARTITION_ID: Final = 2
_MESSAGES_KEY: Final = 3

_U32: Final = Struct("<I")

_LARGEST_MESSAGE_BYTES: Final = ENTRY_BYTES + HEADER_BYTES + PAYLOAD_BYTES_MAX + USER_HEADERS_BYTES_MAX
assert METADATA_BYTES_MAX + _LARGEST_MESSAGE_BYTES <= SEND_BYTES_MAX, "each message that is legal can be sent"

Partitioning = int | bytes | None
"""A partition, the key of the messages, or None: the partitions take turns."""


class SendMetadata(NamedTuple):
    stream_id: Identifier
    topic_id: Identifier
    partitioning: Partitioning
    messages_count: int
    # Where the entries begin.
    end: int


class SendMessages:
    """`indexes` and `messages` are views of the payload."""

    __slots__ = ("stream_id", "topic_id", "partitioning", "indexes", "messages")

    def __init__(
        self,
        stream_id: Identifier,
        topic_id: Identifier,
        partitioning: Partitioning,
        indexes: memoryview,
        messages: memoryview,
    ) -> None:
        self.stream_id = stream_id
        self.topic_id = topic_id
        self.partitioning = partitioning
        self.indexes = indexes
        self.messages = messages


def decode_metadata(payload: Buffer) -> SendMetadata:
    """What a send says before its messages, of which nothing has to be there."""
    if len(payload) < _U32.size:
        refuse("the request ends inside of the length of its metadata")
    end = _U32.size + _U32.unpack_from(payload)[0]
    if end > min(len(payload), METADATA_BYTES_MAX):
        refuse(f"{end} bytes of metadata do not fit into a request of {len(payload)}, or are longer than any can be")
    reader = WireReader(payload[_U32.size : end])
    try:
        stream_id, topic_id = reader.identifier(), reader.identifier()
    except StreamsError as error:
        raise StreamsError(StreamStatus.INVALID_IDENTIFIER, error.message) from error
    return SendMetadata(stream_id, topic_id, _read_partitioning(reader), reader.u32(), end)


def decode_send(payload: memoryview) -> SendMessages:
    metadata = decode_metadata(payload)
    indexes_end = metadata.end + ENTRY_BYTES * metadata.messages_count
    if indexes_end > len(payload):
        refuse("there are fewer bytes than the indexes of all messages have")
    indexes, messages = payload[metadata.end : indexes_end], payload[indexes_end:]
    return SendMessages(metadata.stream_id, metadata.topic_id, metadata.partitioning, indexes, messages)


def _read_partitioning(reader: WireReader) -> Partitioning:
    kind, size = reader.u8(), reader.u8()
    value = reader.take(size)
    if kind == _BALANCED and size == 0:
        return None
    if kind == _PARTITION_ID and size == _U32.size:
        return int.from_bytes(value, "little")
    if kind == _MESSAGES_KEY and size:
        return value
    return refuse(f"a partitioning of kind {kind} does not have {size} bytes")


def encode_send_head(stream_id: Identifier, topic_id: Identifier, partitioning: Partitioning, count: int) -> bytes:
    """The part of a send before the indexes of `count` messages."""
    match partitioning:
        case None:
            how = bytes((_BALANCED, 0))
        case int():
            how = bytes((_PARTITION_ID, _U32.size)) + _U32.pack(partitioning)
        case _:
            how = bytes((_MESSAGES_KEY, len(partitioning))) + partitioning
    metadata = encode_identifier(stream_id) + encode_identifier(topic_id) + how + _U32.pack(count)
    return _U32.pack(len(metadata)) + metadata

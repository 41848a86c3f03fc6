"""Messages of a stream as records of a topic, and the other way round. Pure.

| Message | Record |
|---|---|
| payload that is JSON | `data`, byte for byte |
| payload that is not JSON | `data` is `{"base64": …}` |
| payload that is too large for a record | `data` is `null`, `meta.stream.too_large_bytes` has its size |
| partition, offset, time, id | `meta.stream` |
| user headers | `meta.headers`: numbers, truth values and text as they are, bytes as `{"base64": …}` |
| headers `topics.tag`, `topics.node` | `tag`, `node`, if the router preserves them |

A record becomes a message with its `data` as payload and these headers: `topics.topic`, `topics.seq`, `topics.ts`, and
`topics.tag`, `topics.node`, `topics.meta` where the record has them. A header has at most 255 bytes: a longer `meta` is
left out, and `topics.meta_bytes` says how long it was. The id of the message is made of the topic and the seq, so a
stream with deduplication drops a message that is sent again.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from topics.engine.bridges import Batch
from topics.engine.writing.intake import batch_of_records
from topics.errors import InvalidRequest, RecordTooLarge
from topics.limits import BATCH_RECORDS_MAX, KIB, META_BYTES_MAX, NODE_BYTES_MAX, TAG_BYTES_MAX
from topics.results import NewRecord
from topics.server.bridges.definition import BridgeSpec

if TYPE_CHECKING:
    from topics.streams.partitions.batch import NewMessage
    from topics.streams.partitions.message_view import MessageView

# One write of copies has at most so many bytes of payload, unless a single message is larger.
WRITE_BYTES: Final = 256 * KIB
HEADER_BYTES_MAX: Final = 255
HEADERS_IN_META_MAX: Final = 60
_JSON_INTEGER_MAX: Final = 2**53


class ReadRecord(Protocol):
    """What a message takes of a record."""

    @property
    def seq(self) -> int: ...
    @property
    def ts(self) -> int: ...
    @property
    def node(self) -> str | None: ...
    @property
    def tag(self) -> str | None: ...
    @property
    def data(self) -> bytes: ...
    @property
    def meta(self) -> bytes | None: ...


class Copies(NamedTuple):
    """Messages of one partition as one write, and the offset after them."""

    batch: Batch
    next_offset: int
    message_count: int


# From a stream.


def copies_of(
    messages: Iterable[MessageView], partition_id: int, spec: BridgeSpec, records_max: int = BATCH_RECORDS_MAX
) -> Iterator[Copies]:
    """Writes of at most `records_max` records each."""
    for group in _groups(messages, records_max):
        records = [_record(message, partition_id, spec) for message in group]
        yield Copies(_fitting_batch(records), group[-1].offset + 1, len(group))


def _groups(messages: Iterable[MessageView], records_max: int) -> Iterator[list[MessageView]]:
    group: list[MessageView] = []
    size = 0
    for message in messages:
        payload_bytes = len(message.payload)
        if group and (size + payload_bytes > WRITE_BYTES or len(group) == records_max):
            yield group
            group, size = [], 0
        group.append(message)
        size += payload_bytes
    if group:
        yield group


def _fitting_batch(records: list[NewRecord]) -> Batch:
    try:
        return batch_of_records(records)
    except (InvalidRequest, RecordTooLarge):
        return batch_of_records(_fitting(record) for record in records)


def _fitting(record: NewRecord) -> NewRecord:
    """The record, or a record that says why its payload is not there as it was."""
    payload = record.data
    tries = [record, _with_data(record, {"base64": base64.b64encode(payload).decode()})]
    for candidate in tries:
        try:
            batch_of_records([candidate])
        except (InvalidRequest, RecordTooLarge):
            continue
        return candidate
    place = {**record.meta["stream"], "too_large_bytes": len(payload)}
    return NewRecord(None, record.tag, record.node, {"stream": place})


def _with_data(record: NewRecord, data: Any) -> NewRecord:
    return NewRecord(data, record.tag, record.node, record.meta)


def _record(message: MessageView, partition_id: int, spec: BridgeSpec) -> NewRecord:
    meta: dict[str, Any] = {
        "stream": {
            "partition": partition_id,
            "offset": message.offset,
            "timestamp_us": message.timestamp,
            "id": f"{message.id:032x}",
        }
    }
    tag = node = None
    header_bytes = len(message.user_headers_bytes)
    if header_bytes:
        headers = _headers(message)
        tag = _label(headers, "topics.tag", TAG_BYTES_MAX) if spec.preserve_tag else None
        node = _label(headers, "topics.node", NODE_BYTES_MAX) if spec.preserve_node else None
        if len(headers) <= HEADERS_IN_META_MAX and header_bytes * 6 <= META_BYTES_MAX:
            meta["headers"] = headers
        else:
            meta["stream"]["headers_bytes"] = header_bytes
    return NewRecord(bytes(message.payload), tag, node, meta)


def _headers(message: MessageView) -> dict[str, Any]:
    """User headers as JSON. Headers that cannot be read are bytes under the name `unreadable`."""
    from topics.stream_errors import StreamsError

    try:
        decoded = message.user_headers
    except StreamsError:
        return {"unreadable": _bytes_as_json(bytes(message.user_headers_bytes))}
    return {
        key if isinstance(key, str) else f"base64:{base64.b64encode(key.data).decode()}": _as_json(field.value)
        for key, field in decoded.items()
    }


def _as_json(value: object) -> Any:
    if isinstance(value, bytes):
        return _bytes_as_json(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) > _JSON_INTEGER_MAX:
        return str(value)
    if isinstance(value, float) and not abs(value) < float("inf"):
        return str(value)
    return value


def _bytes_as_json(value: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(value).decode()}


def _label(headers: dict[str, Any], name: str, bytes_max: int) -> str | None:
    value = headers.get(name)
    return value if isinstance(value, str) and len(value.encode()) <= bytes_max else None


# Into a stream.


def message_of(record: ReadRecord, topic_name: str, topic_id: int, epoch: int, spec: BridgeSpec) -> NewMessage:
    from topics.streams.partitions.batch import NewMessage

    headers: dict[str, str | int] = {"topics.seq": record.seq, "topics.ts": record.ts}
    if len(topic_name) <= HEADER_BYTES_MAX:
        headers["topics.topic"] = topic_name
    if record.tag and spec.preserve_tag and len(record.tag.encode()) <= HEADER_BYTES_MAX:
        headers["topics.tag"] = record.tag
    if record.node and spec.preserve_node:
        headers["topics.node"] = record.node
    if record.meta is not None:
        if len(record.meta) <= HEADER_BYTES_MAX:
            headers["topics.meta"] = record.meta.decode()
        else:
            headers["topics.meta_bytes"] = len(record.meta)
    message_id = (topic_id & 0xFFFFFFFF) << 96 | (epoch & 0xFFFFFFFF) << 64 | record.seq
    return NewMessage(record.data, message_id, headers, record.ts * 1000)

"""The body of a write: from JSON text to columns of records, and to the batch that the engine takes.

This is the hot path of the server, so cheap checks come first. A body is *minimal* when it is exactly as long as its
values need without blanks: then it has no room for a repeated or unknown member, or for deep nesting outside of the
payloads. Most writers send minimal bodies. Other bodies are made compact and checked in that form. Only a body that is
still not minimal is checked member by member.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import UNSET

from topics.errors import BatchTooLarge, InvalidRequest, RecordTooLarge
from topics.formats import envelope, kernel
from topics.formats.records import RecordBatch
from topics.limits import (
    BATCH_RECORDS_MAX,
    IDEMPOTENCY_KEY_BYTES_MAX,
    JSON_DEPTH_MAX,
    META_BYTES_MAX,
    META_MEMBERS_MAX,
    NODE_BYTES_MAX,
    RECORD_BYTES_MAX,
    TAG_BYTES_MAX,
    U64_MAX,
)
from topics.protocol.body_decoder import (
    CONFIG_DECODER,
    MalformedBody,
    check_repeats,
    check_text,
    decoded,
    pairs_of,
)
from topics.protocol.config_warnings import config_warnings
from topics.protocol.json_text import check_depth, check_numbers, check_unicode, fitted, one_line
from topics.protocol.request_body import ConfigBody, RecordBody, RecordsBody, SentConfig, StageBody, WriteBody
from topics.protocol.ws_command import NO_REQUEST_ID, Publish

_decode: Final = msgspec.json.Decoder(WriteBody).decode
_decode_publish: Final = msgspec.json.Decoder(Publish).decode
_decode_stage: Final = msgspec.json.Decoder(StageBody).decode
_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_WRITE_NAMES: Final = frozenset(WriteBody.__struct_fields__)
_PUBLISH_NAMES: Final = frozenset(Publish.__struct_fields__) | {"op"}
_STAGE_NAMES: Final = frozenset(StageBody.__struct_fields__)
# The names of all members that a body with records may have.
BODY_NAMES: Final = _WRITE_NAMES | _PUBLISH_NAMES | _STAGE_NAMES
# The numbers of a chunk.
_STAGE_NUMBERS: Final = ("epoch", "part", "attempt", "chunk")
RECORD_NAMES: Final = frozenset(RecordBody.__struct_fields__)
_CONFIG_NAMES: Final = frozenset(ConfigBody.__struct_fields__)

# A payload is inside the body, its list of records, and its record.
_PAYLOAD_DEPTH_MAX: Final = JSON_DEPTH_MAX - 3
# A payload that is nested one level too deep has at least two brackets for each level.
_DEEP_PAYLOAD_BYTES_MIN: Final = 2 * (_PAYLOAD_DEPTH_MAX + 1)


# The records of a write, as the engine takes them.
WriteBatch = RecordBatch


@dataclass(frozen=True, kw_only=True)
class WriteLimits:
    records_max: int = BATCH_RECORDS_MAX
    record_bytes_max: int = RECORD_BYTES_MAX
    meta_bytes_max: int = META_BYTES_MAX
    tag_bytes_max: int = TAG_BYTES_MAX
    node_bytes_max: int = NODE_BYTES_MAX


_decode_config: Final = msgspec.json.Decoder(SentConfig).decode


class WriteRequest:
    """A decoded write. `batch` makes its records, and raises an error for what is over a limit."""

    __slots__ = (
        "_has_breaks",
        "_made_batch",
        "_plain",
        "_records",
        "config",
        "create",
        "key",
        "node",
        "waits_for_room",
        "warnings",
    )

    def __init__(
        self, body: RecordsBody, plain: tuple[list[msgspec.Raw], list[int]] | None, *, has_breaks: bool
    ) -> None:
        self._records = body.records
        # Node of the records that name none.
        self.node = None if plain is not None or body.node is UNSET else body.node
        self._has_breaks = has_breaks
        # Makes the batch instead, if the records of this body were checked in steps.
        self._made_batch: Callable[[WriteRequest], WriteBatch] | None = None
        # Payloads and their sizes, if the body has nothing else.
        self._plain = plain
        self.key: str | None = None
        self.create: bool | None = None
        self.config: ConfigBody | None = None
        self.waits_for_room = False
        # About the config, for the answer.
        self.warnings: Sequence[str] = ()
        if plain is None and isinstance(body, WriteBody):
            self.key = None if body.idempotency_key is UNSET else body.idempotency_key
            self.create = None if body.create is UNSET else body.create
            self.config = None if body.config is UNSET else body.config
            self.waits_for_room = body.disable_backpressure is True

    def use_batch(self, made_batch: Callable[[WriteRequest], WriteBatch]) -> None:
        """The records of this body were checked in steps, and are not in it."""
        self._made_batch = made_batch

    def batch(self, limits: WriteLimits) -> WriteBatch:
        """The records, checked against the limits: their count first, then the key, then each record."""
        records = self._records
        if not records:
            raise InvalidRequest("a write has at least one record")
        if len(records) > limits.records_max:
            raise BatchTooLarge(f"a write has at most {limits.records_max} records, this one has {len(records)}")
        if self.key is not None and len(self.key.encode()) > IDEMPOTENCY_KEY_BYTES_MAX:
            raise InvalidRequest(f"an idempotency key has at most {IDEMPOTENCY_KEY_BYTES_MAX} bytes")
        if self._made_batch is not None:
            return self._made_batch(self)
        envelopes, sizes = self.payloads(limits)
        if self._plain is not None and self.node is None:
            return RecordBatch(envelopes, sizes)
        tags = label_column([record.tag for record in records], None, "tag", limits.tag_bytes_max)
        nodes = label_column([record.node for record in records], self.node, "node", limits.node_bytes_max)
        return RecordBatch(envelopes, sizes, tags, nodes)

    def payloads(self, limits: WriteLimits) -> tuple[list[bytes], list[int]]:
        """The envelopes of the records, and their accounted sizes."""
        if self._plain is not None and not self._has_breaks:
            datas, sizes = self._plain
            if max(sizes) <= limits.record_bytes_max:
                return kernel.plain_envelopes(datas), sizes
        return self._general_payloads(limits)

    def _general_payloads(self, limits: WriteLimits) -> tuple[list[bytes], list[int]]:
        """The general case: metas, line breaks, and payloads that are only too large because of their blanks."""
        envelopes: list[bytes] = []
        sizes: list[int] = []
        for record in self._records:
            data, meta = bytes(record.data), _checked_meta(record, limits)
            if self._has_breaks:
                data = one_line(data)
            meta_bytes = 0 if meta is None else len(meta)
            data = fitted(data, limits.record_bytes_max - meta_bytes)
            size = len(data) + meta_bytes
            if size > limits.record_bytes_max:
                raise RecordTooLarge(f"a record has at most {limits.record_bytes_max} bytes of data and meta")
            envelopes.append(envelope.encode(data, meta))
            sizes.append(size)
        return envelopes, sizes


def _checked_meta(record: RecordBody, limits: WriteLimits) -> bytes | None:
    if record.meta is UNSET:
        return None
    meta = fitted(one_line(bytes(record.meta)), limits.meta_bytes_max)
    if meta == b"null":
        return None
    if len(meta) > limits.meta_bytes_max:
        raise InvalidRequest(f"meta has at most {limits.meta_bytes_max} bytes of JSON")
    if meta.startswith(b"{") and len(_decode_members(meta)) > META_MEMBERS_MAX:
        raise InvalidRequest(f"meta has at most {META_MEMBERS_MAX} members")
    return meta


def label_column(
    given: Sequence[str | msgspec.UnsetType | None], default: str | None, name: str, bytes_max: int
) -> list[bytes | None] | None:
    """Tags or nodes as a column; None if no record has one."""
    if given.count(UNSET) == len(given):
        if default is None:
            return None
        return [_label(default, name, bytes_max)] * len(given)
    labels = [_label(default if value is None or value is UNSET else value, name, bytes_max) for value in given]
    return None if labels.count(None) == len(labels) else labels


def _label(value: str | None, name: str, bytes_max: int) -> bytes | None:
    if value is None:
        return None
    label = value.encode()
    if len(label) > bytes_max:
        raise InvalidRequest(f"a {name} has at most {bytes_max} bytes")
    return label


def decode_write(text: bytes) -> WriteRequest:
    """The write in the text, with syntax and types checked. `WriteRequest.batch` checks the limits."""
    return _checked(text, decoded(_decode, text), 0)


def decode_stage(text: bytes) -> tuple[StageBody, WriteRequest]:
    """The chunk in the text, and its records. The checks of a write apply to the records."""
    body = decoded(_decode_stage, text)
    request = _checked(text, body, _other_bytes(body))
    for name in _STAGE_NUMBERS:
        if getattr(body, name) > U64_MAX:
            raise MalformedBody(f"{name} is larger than {U64_MAX}")
    return body, request


def checked_publish(text: bytes, command: Publish) -> WriteRequest:
    """The write in a command. Raises `InvalidRequest` for rules that a JSON parser does not check."""
    check_depth(bytes(command.request_id), JSON_DEPTH_MAX - 1)
    return _checked(text, command, _other_bytes(command))


def decode_publish(text: bytes) -> tuple[Publish, WriteRequest]:
    """The `publish` in the text, with syntax and types checked."""
    command = decoded(_decode_publish, text)
    return command, checked_publish(text, command)


def checked_records(text: bytes, body: RecordsBody) -> WriteRequest:
    """A body with records only."""
    return _checked(text, body, 0)


def records_request(text: bytes, body: RecordsBody) -> WriteRequest:
    """A body with records only, which was checked before."""
    datas = [record.data for record in body.records]
    sizes = list(map(len, datas))
    is_plain = len(text) == 13 + 10 * len(sizes) + sum(sizes)
    return WriteRequest(body, (datas, sizes) if is_plain else None, has_breaks=b"\n" in text or b"\r" in text)


def _other_bytes(command: RecordsBody) -> int:
    """How many bytes of a minimal command belong to members that a write does not have."""
    if isinstance(command, StageBody):
        # "writer":"", with the name between the quotes, "epoch":1, and the other numbers.
        numbers = sum([len(name) + 4 + len(str(getattr(command, name))) for name in _STAGE_NUMBERS])
        return 12 + len(command.writer.encode()) + numbers
    if not isinstance(command, Publish):
        return 0
    # "op":"publish", and "topic":"", with the name between the quotes.
    size = 15 + 11 + len(command.topic.encode())
    if command.request_id is not NO_REQUEST_ID:
        size += 14 + len(command.request_id)
    # ,"return_seqs":false
    return size if command.return_seqs else size + 20


def _checked(text: bytes, body: RecordsBody, other_bytes: int) -> WriteRequest:
    has_breaks = b"\n" in text or b"\r" in text
    try:
        check_unicode(text)
        check_numbers(text)
        datas = [record.data for record in body.records]
        sizes = list(map(len, datas))
        # The rule of `_is_minimal` for bodies with only payloads: there is no room for anything else.
        is_plain = len(sizes) > 0 and len(text) == other_bytes + 13 + 10 * len(sizes) + sum(sizes)
        if is_plain:
            if max(sizes) >= _DEEP_PAYLOAD_BYTES_MIN:
                _check_payload_depths(body.records)
        elif _is_minimal(text, body, other_bytes):
            _check_payload_depths(body.records)
        else:
            _check_loose(text, body)
    except MalformedBody:
        raise
    except InvalidRequest as error:
        raise MalformedBody(error.message) from None
    request = WriteRequest(body, (datas, sizes) if is_plain else None, has_breaks=has_breaks)
    if request.config is not None:
        request.warnings = config_warnings(request.config, _decode_config(text).config or ())
    return request


def _is_minimal(text: bytes, body: RecordsBody, other_bytes: int) -> bool:
    """Whether the decoded values account for every byte of the text."""
    records = body.records
    count = len(records)
    if count == 0:
        return False
    # {"records":[]}, then {"data":} for each record, and commas between them.
    size = other_bytes + 14 + 9 * count + count - 1 + sum([len(record.data) for record in records])
    # Labels such as ,"tag":
    size += _labels_bytes([record.tag for record in records], 7)
    size += _labels_bytes([record.node for record in records], 8)
    size += _labels_bytes([body.node], 8)
    if isinstance(body, WriteBody):
        if body.config is not UNSET or body.disable_backpressure is not UNSET:
            return False
        size += _labels_bytes([body.idempotency_key], 19)
        if body.create is not UNSET:
            size += 15 if body.create is False else 14
    metas = [record.meta for record in records]
    if metas.count(UNSET) != count:
        size += sum(8 + len(meta) for meta in metas if meta is not UNSET)
    assert size <= len(text)
    return size == len(text)


def _labels_bytes(labels: Sequence[str | msgspec.UnsetType | None], name_bytes: int) -> int:
    if labels.count(UNSET) == len(labels):
        return 0
    return sum(name_bytes + (4 if label is None else 2 + len(label.encode())) for label in labels if label is not UNSET)


def _check_payload_depths(records: list[RecordBody]) -> None:
    for record in records:
        if len(record.data) >= _DEEP_PAYLOAD_BYTES_MIN:
            check_depth(bytes(record.data), _PAYLOAD_DEPTH_MAX)
        if record.meta is not UNSET and len(record.meta) >= _DEEP_PAYLOAD_BYTES_MIN:
            check_depth(bytes(record.meta), _PAYLOAD_DEPTH_MAX)


def _check_loose(text: bytes, body: RecordsBody) -> None:
    """Checks a body with blanks, unknown members, a config, or rule violations."""
    decode, names = _kind_of(body)
    compact = msgspec.json.format(text, indent=-1)
    if len(compact) < len(text):
        compact_body = decode(compact)
        if _is_minimal(compact, compact_body, _other_bytes(compact_body)):
            _check_payload_depths(compact_body.records)
            return
    check_text(text)
    if type(body) is RecordsBody and has_each_name_once(text, body.records):
        return
    pairs = pairs_of(text)
    check_repeats(pairs, names)
    for name, value in pairs:
        if name == "records":
            for record in value:
                check_repeats(record, RECORD_NAMES)
        elif name == "config" and value is not None and isinstance(body, WriteBody):
            check_repeats(value, _CONFIG_NAMES)
    if isinstance(body, WriteBody) and body.config is not UNSET and body.config is not None:
        CONFIG_DECODER.check_ranges(body.config)


def has_each_name_once(text: bytes, records: list[RecordBody]) -> bool:
    """Whether no record has a known member twice, by counting names. False also means: not known.

    Each name is there once for each record that has the member, if no value holds the same text. A name with escapes
    would not be counted, so there must be none. This is a tenth of the time of a check member by member.
    """
    count = len(records)
    return (
        b"\\u" not in text
        and text.count(b'"data"') == count
        and text.count(b'"tag"') == count - [record.tag for record in records].count(UNSET)
        and text.count(b'"node"') == count - [record.node for record in records].count(UNSET)
        and text.count(b'"meta"') == count - [record.meta for record in records].count(UNSET)
    )


def _kind_of(body: RecordsBody) -> tuple[Callable[[bytes], RecordsBody], frozenset[str]]:
    """The decoder of a body of this kind, and the names of its members."""
    if isinstance(body, Publish):
        return _decode_publish, _PUBLISH_NAMES
    if isinstance(body, StageBody):
        return _decode_stage, _STAGE_NAMES
    return _decode, _WRITE_NAMES

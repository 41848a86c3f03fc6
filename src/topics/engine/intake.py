"""From Python values to a checked `RecordBatch`: what the embedded APIs accept.

A record's `data` (and `meta`) is any value `msgspec` can write as JSON, or JSON text as `bytes`, which is
checked and then kept byte for byte.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from topics.errors import BatchTooLarge, InvalidRequest, RecordTooLarge
from topics.formats import envelope
from topics.formats.records import RecordBatch
from topics.limits import (
    BATCH_RECORDS_MAX,
    JSON_DEPTH_MAX,
    META_BYTES_MAX,
    META_MEMBERS_MAX,
    NODE_BYTES_MAX,
    RECORD_BYTES_MAX,
    TAG_BYTES_MAX,
)

_encode: Final = msgspec.json.Encoder().encode
_decode_raws: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_MEMBERS: Final = frozenset(("data", "meta", "tag", "node"))


class NewRecord(msgspec.Struct, frozen=True):
    """A record to append. `data` and `meta`: any JSON-able value, or JSON text as bytes."""

    data: Any
    tag: str | None = None
    node: str | None = None
    meta: Any = None


def batch_of_payloads(payloads: Sequence[Any]) -> RecordBatch:
    """Plain payloads, without tags, nodes or meta: the fast way in."""
    check_count(len(payloads))
    texts = [payload if type(payload) is bytes else _encode(payload) for payload in payloads]
    given = [text for text, payload in zip(texts, payloads, strict=True) if type(payload) is bytes]
    if given:
        _check_json(given)
    if any(b"\n" in text or b"\r" in text for text in given):
        texts = [one_line(text) for text in texts]
    sizes = [len(text) for text in texts]
    if max(sizes) > RECORD_BYTES_MAX:
        raise RecordTooLarge(f"a record has at most {RECORD_BYTES_MAX} bytes of JSON")
    return RecordBatch([b'{"d":%b}' % text for text in texts], sizes)


def batch_of_records(records: Iterable[NewRecord]) -> RecordBatch:
    """Records with tags, nodes or meta."""
    given = list(records)
    check_count(len(given))
    envelopes: list[bytes] = []
    sizes: list[int] = []
    for record in given:
        data = _text(record.data)
        meta = None if record.meta is None else _meta(record.meta)
        size = len(data) + (0 if meta is None else len(meta))
        if size > RECORD_BYTES_MAX:
            raise RecordTooLarge(f"a record has at most {RECORD_BYTES_MAX} bytes of JSON")
        envelopes.append(envelope.encode(data, meta))
        sizes.append(size)
    tags = [_label(record.tag, "tag", TAG_BYTES_MAX) for record in given]
    nodes = [_label(record.node, "node", NODE_BYTES_MAX) for record in given]
    return RecordBatch(
        envelopes,
        sizes,
        tags if any(tag is not None for tag in tags) else None,
        nodes if any(node is not None for node in nodes) else None,
    )


def check_count(count: int) -> None:
    if count == 0:
        raise InvalidRequest("a write has at least one record")
    if count > BATCH_RECORDS_MAX:
        raise BatchTooLarge(f"a write has at most {BATCH_RECORDS_MAX} records, this one has {count}")


def one_line(text: bytes) -> bytes:
    """JSON text without line breaks: as it is when it has none, else compact."""
    if b"\n" in text or b"\r" in text:
        return msgspec.json.format(text, indent=-1)
    return text


def _text(value: Any) -> bytes:
    if type(value) is not bytes:
        return _encode(value)
    _check_json([value])
    return one_line(value)


def _meta(value: Any) -> bytes:
    text = _text(value)
    if len(text) > META_BYTES_MAX:
        raise InvalidRequest(f"meta has at most {META_BYTES_MAX} bytes of JSON")
    if text[:1] == b"{" and len(msgspec.json.decode(text, type=dict[str, msgspec.Raw])) > META_MEMBERS_MAX:
        raise InvalidRequest(f"meta has at most {META_MEMBERS_MAX} members")
    return text


def _label(value: str | None, name: str, bytes_max: int) -> bytes | None:
    if value is None:
        return None
    try:
        label = value.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"the {name} is not valid Unicode") from error
    if len(label) > bytes_max:
        raise InvalidRequest(f"a {name} has at most {bytes_max} bytes")
    return label


def _check_json(texts: list[bytes]) -> None:
    """Each text must be one JSON value. All are parsed by one call, as the elements of one array."""
    joined = b"[%b]" % b",".join(texts)
    if joined.count(b"[") + joined.count(b"{") > JSON_DEPTH_MAX:
        for text in texts:
            check_depth(text)
    try:
        if not joined.isascii():
            joined.decode()
        # As many values as texts, and none of them empty or several: the lengths must agree too.
        values = _decode_raws(joined)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"a payload given as bytes is not JSON: {error}") from error
    if len(values) != len(texts) or any(
        len(bytes(value)) != len(text.strip(b" \t\r\n")) for value, text in zip(values, texts, strict=True)
    ):
        raise InvalidRequest("a payload given as bytes is not one JSON value")


def check_depth(text: bytes) -> None:
    """Refuses nesting beyond the limit before a recursive parser sees it."""
    depth = 0
    in_string = False
    escaped = False
    for byte in text:
        if in_string:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                in_string = False
        elif byte == 0x22:
            in_string = True
        elif byte in b"[{":
            depth += 1
            if depth > JSON_DEPTH_MAX:
                raise InvalidRequest(f"JSON is nested deeper than {JSON_DEPTH_MAX} levels")
        elif byte in b"]}":
            depth -= 1


def new_record(value: Mapping[str, Any] | NewRecord) -> NewRecord:
    if isinstance(value, NewRecord):
        return value
    unknown = value.keys() - _MEMBERS
    if unknown or "data" not in value:
        raise InvalidRequest(f"a record has data, and may have tag, node and meta; got {sorted(value)}")
    return NewRecord(**value)

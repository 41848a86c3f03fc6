"""Turns Python values, as the embedded APIs accept them, into a checked `RecordBatch`.

The `data` and the `meta` of a record are values that `msgspec` can write as JSON, or JSON text as `bytes`. JSON text is
checked and stored byte for byte, with two exceptions: a text with line breaks between its tokens, and a text that is
larger than the limit only because of blanks. Such a text is stored without blanks.
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
from topics.protocol.json_text import check_depth, check_numbers, fitted, one_line
from topics.protocol.payload_text import payload_text
from topics.results import NewRecord

_decode_raws: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_BLANKS: Final = b" \t\r\n"


def batch_of_payloads(payloads: Sequence[Any]) -> RecordBatch:
    """Payloads without tags, nodes or meta. Faster than `batch_of_records`."""
    if type(payloads) is not list and isinstance(payloads, str | bytes | Mapping):
        # Without this check each character, or each key, would become a record.
        raise InvalidRequest("a write is a list of payloads: put a single payload into a list")
    if len(payloads) == 1:
        texts = [payload_text(payloads[0])]
    else:
        check_count(len(payloads))
        texts = _texts(payloads)
    sizes = [len(text) for text in texts]
    if max(sizes) > RECORD_BYTES_MAX:
        texts = [fitted(text, RECORD_BYTES_MAX) for text in texts]
        sizes = [len(text) for text in texts]
        if max(sizes) > RECORD_BYTES_MAX:
            raise RecordTooLarge(f"a record has at most {RECORD_BYTES_MAX} bytes of JSON")
    return RecordBatch([b'{"d":%b}' % text for text in texts], sizes)


def _texts(payloads: Sequence[Any]) -> list[bytes]:
    """JSON texts of several payloads. When all payloads are bytes, one call checks them."""
    if set(map(type, payloads)) != {bytes}:
        return [payload_text(payload) for payload in payloads]
    texts = list(payloads)
    if _check_json(texts):
        return [one_line(text) for text in texts]
    return texts


def batch_of_records(records: Iterable[NewRecord]) -> RecordBatch:
    """Records with tags, nodes or meta."""
    given = list(records)
    check_count(len(given))
    envelopes: list[bytes] = []
    sizes: list[int] = []
    for record in given:
        data = payload_text(record.data)
        meta = None if record.meta is None else _meta(record.meta)
        meta_bytes = 0 if meta is None else len(meta)
        data = fitted(data, RECORD_BYTES_MAX - meta_bytes)
        size = len(data) + meta_bytes
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


def _meta(value: Any) -> bytes:
    text = fitted(payload_text(value), META_BYTES_MAX)
    if len(text) > META_BYTES_MAX:
        raise InvalidRequest(f"meta has at most {META_BYTES_MAX} bytes of JSON")
    is_object = text.lstrip(_BLANKS)[:1] == b"{"
    if is_object and len(msgspec.json.decode(text, type=dict[str, msgspec.Raw])) > META_MEMBERS_MAX:
        raise InvalidRequest(f"meta has at most {META_MEMBERS_MAX} members")
    return text


def _label(value: str | None, name: str, bytes_max: int) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidRequest(f"a {name} is a string")
    try:
        label = value.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"the {name} is not valid Unicode") from error
    if len(label) > bytes_max:
        raise InvalidRequest(f"a {name} has at most {bytes_max} bytes")
    return label


def _check_json(texts: list[bytes]) -> bool:
    """Checks that each text is one JSON value. One call parses all texts, as the elements of one array.

    Returns whether a text has a line break between its tokens.
    """
    joined = b"[%b]" % b",".join(texts)
    if joined.count(b"[") + joined.count(b"{") > JSON_DEPTH_MAX:
        for text in texts:
            check_depth(text)
    try:
        if not joined.isascii():
            joined.decode()
        values = _decode_raws(joined)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"a payload given as bytes is not JSON: {error}") from error
    # There are as many values as texts, and each is as long as its text: so no text has two values, or half a value.
    lengths = list(map(len, values))
    if lengths != list(map(len, texts)) and lengths != [len(text.strip(_BLANKS)) for text in texts]:
        raise InvalidRequest("a payload given as bytes is not one JSON value")
    check_numbers(joined)
    return b"\n" in joined or b"\r" in joined

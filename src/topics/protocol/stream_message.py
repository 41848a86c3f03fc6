"""A message of the partitioned engine as a JSON object, for the HTTP interface and for `topics dump`.

A payload that is JSON text is a JSON value in it, byte for byte; any other payload is base64. Numbers that a double
cannot hold exactly are texts: ids always, because they have 128 bits, other numbers if they need more than 53 bits.
"""

import math
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from topics.errors import InvalidRequest
from topics.formats.buffers import Buffer
from topics.formats.user_headers import HeaderField, HeaderKey, HeaderKind, Scalar
from topics.protocol.json_text import check_depth, check_numbers, check_unicode

EXACT_INTEGER_MAX: Final = 2**53

_decode: Final = msgspec.json.Decoder().decode


def message_members(
    *,
    offset: int,
    message_id: int,
    timestamp: int,
    origin_timestamp: int,
    headers: Mapping[HeaderKey, HeaderField],
    payload: bytes | None,
    payload_bytes: int,
) -> dict[str, Any]:
    """The members of the object. Without a `payload` only its length is told."""
    members: dict[str, Any] = {
        "offset": exact(offset),
        "id": str(message_id),
        "timestamp": exact(timestamp),
        "origin_timestamp": exact(origin_timestamp),
    }
    if headers:
        members["headers"] = [_header(key, value) for key, value in headers.items()]
    members["payload_bytes"] = payload_bytes
    if payload is not None:
        members |= payload_members(payload)
    return members


def payload_members(payload: bytes) -> dict[str, Any]:
    """`payload` with the JSON value, or `payload_base64`."""
    if is_json(payload):
        return {"payload": msgspec.Raw(payload)}
    return {"payload_base64": _base64(payload)}


def is_json(payload: bytes) -> bool:
    """Whether the payload is JSON text as the interface takes it in records: UTF-8, and no number beyond a double."""
    try:
        check_depth(payload)
        _decode(payload)
        check_unicode(payload)
        check_numbers(payload)
    except (msgspec.DecodeError, InvalidRequest, RecursionError, UnicodeDecodeError):
        return False
    return True


def exact(number: int) -> int | str:
    """The number as JSON: a text if a double cannot hold it exactly."""
    return number if -EXACT_INTEGER_MAX <= number <= EXACT_INTEGER_MAX else str(number)


def _header(key: HeaderKey, value: HeaderField) -> dict[str, Any]:
    members = {"key": key} if isinstance(key, str) else {"key_kind": _kind(key.kind), **_scalar("key", key.value)}
    return {**members, "kind": _kind(value.kind), **_scalar("value", value.value)}


def _kind(kind: int) -> str:
    try:
        return HeaderKind(kind).name.lower()
    except ValueError:
        return str(kind)


def _scalar(name: str, value: Scalar) -> dict[str, Any]:
    match value:
        case bytes():
            return {f"{name}_base64": _base64(value)}
        case bool() | str():
            return {name: value}
        case int():
            return {name: exact(value)}
        case float():
            return {name: value if math.isfinite(value) else str(value)}


def _base64(data: Buffer) -> str:
    return b64encode(data).decode("ascii")

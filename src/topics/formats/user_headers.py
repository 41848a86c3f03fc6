"""The user headers of a message: pairs of a typed key and a typed value, back to back.

    key_kind u8 | key_length u32 | key | value_kind u8 | value_length u32 | value

Little-endian; each length is 1 to 255. The engine stores user headers without looking inside. A field of an unknown
kind is decoded as its bytes.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from topics.formats.buffers import Buffer
from topics.stream_errors import StreamsError, StreamStatus

FIELD_BYTES_MAX: Final = 255
_PREFIX: Final = struct.Struct("<BI")


class HeaderKind(IntEnum):
    RAW = 1
    STRING = 2
    BOOL = 3
    INT8 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    INT128 = 8
    UINT8 = 9
    UINT16 = 10
    UINT32 = 11
    UINT64 = 12
    UINT128 = 13
    FLOAT32 = 14
    FLOAT64 = 15


_INTEGER_BYTES: Final = {
    HeaderKind.INT8: 1,
    HeaderKind.INT16: 2,
    HeaderKind.INT32: 4,
    HeaderKind.INT64: 8,
    HeaderKind.INT128: 16,
    HeaderKind.UINT8: 1,
    HeaderKind.UINT16: 2,
    HeaderKind.UINT32: 4,
    HeaderKind.UINT64: 8,
    HeaderKind.UINT128: 16,
}
_FLOATS: Final = {HeaderKind.FLOAT32: struct.Struct("<f"), HeaderKind.FLOAT64: struct.Struct("<d")}

Scalar = bytes | str | bool | int | float


@dataclass(frozen=True, slots=True)
class HeaderField:
    """A key or a value as it is stored: its kind and its bytes."""

    kind: int
    data: bytes

    @classmethod
    def of(cls, kind: HeaderKind, value: Scalar) -> "HeaderField":
        """The value as a field of the kind. Raises `ValueError` if the kind cannot hold it."""
        try:
            return cls(kind, _encode_scalar(kind, value))
        except (OverflowError, TypeError, AttributeError, struct.error) as error:
            raise ValueError(f"{value!r} is not a value of the kind {kind.name.lower()}") from error

    @property
    def value(self) -> Scalar:
        """The value in Python; the bytes if they are not valid for the kind."""
        return _decode_scalar(self.kind, self.data)


HeaderKey = str | HeaderField
# A key is a field or a scalar as well. With that type a type checker would refuse a dict of plain strings.
UserHeaders = Mapping[Any, HeaderField | Scalar]


def encode_user_headers(headers: UserHeaders) -> bytes:
    """Plain keys and values get their natural kind: text is a string, an int is an int64 if it fits. A `HeaderField`
    has any other kind."""
    parts: list[bytes] = []
    for key, value in headers.items():
        for field, wrong in (
            (_as_field(key, StreamStatus.INVALID_HEADER_KEY), StreamStatus.INVALID_HEADER_KEY),
            (_as_field(value, StreamStatus.INVALID_HEADER_VALUE), StreamStatus.INVALID_HEADER_VALUE),
        ):
            if not 1 <= len(field.data) <= FIELD_BYTES_MAX or not 1 <= field.kind <= 255:
                raise StreamsError(
                    wrong,
                    f"a header key or value has 1 to {FIELD_BYTES_MAX} bytes and a kind from 1 to 255, "
                    f"not {len(field.data)} bytes of kind {field.kind}",
                )
            parts += (_PREFIX.pack(field.kind, len(field.data)), field.data)
    return b"".join(parts)


def decode_user_headers(data: Buffer) -> dict[HeaderKey, HeaderField]:
    """The pairs in their order; of equal keys the last one. String keys are plain strings, other keys are fields."""
    headers: dict[HeaderKey, HeaderField] = {}
    position = 0
    while position < len(data):
        key, position = _decode_field(data, position, StreamStatus.INVALID_HEADER_KEY)
        value, position = _decode_field(data, position, StreamStatus.INVALID_HEADER_VALUE)
        name = key.value if key.kind == HeaderKind.STRING else None
        headers[name if isinstance(name, str) else key] = value
    return headers


def _decode_field(data: Buffer, position: int, wrong: StreamStatus) -> tuple[HeaderField, int]:
    start = position + _PREFIX.size
    if start > len(data):
        raise StreamsError(wrong, f"user headers end inside a key or value at byte {position}")
    kind, length = _PREFIX.unpack_from(data, position)
    end = start + length
    if kind == 0 or not 1 <= length <= FIELD_BYTES_MAX or end > len(data):
        raise StreamsError(wrong, f"user headers have a key or value of kind {kind} and {length} bytes at {position}")
    return HeaderField(kind, bytes(data[start:end])), end


def _as_field(value: HeaderField | Scalar, wrong: StreamStatus) -> HeaderField:
    if isinstance(value, HeaderField):
        return value
    try:
        return HeaderField.of(_natural_kind(value), value)
    except ValueError as error:
        raise StreamsError(wrong, str(error)) from error


def _natural_kind(value: Scalar) -> HeaderKind:
    match value:
        case bool():
            return HeaderKind.BOOL
        case int():
            if -(2**63) <= value < 2**63:
                return HeaderKind.INT64
            if 0 <= value < 2**64:
                return HeaderKind.UINT64
            return HeaderKind.INT128 if value < 2**127 else HeaderKind.UINT128
        case float():
            return HeaderKind.FLOAT64
        case str():
            return HeaderKind.STRING
        case bytes():
            return HeaderKind.RAW
    raise ValueError(f"a header holds bytes, text, a truth value or a number, not {type(value).__name__}")


def _encode_scalar(kind: HeaderKind, value: Scalar) -> bytes:
    if kind is HeaderKind.RAW:
        return bytes(memoryview(value))  # type: ignore[arg-type]  # Raises TypeError if it is not bytes.
    if kind is HeaderKind.STRING:
        return value.encode()  # type: ignore[union-attr]  # Raises AttributeError if it is not text.
    if kind is HeaderKind.BOOL:
        return bytes([bool(value)])
    if kind in _FLOATS:
        return _FLOATS[kind].pack(value)
    return int.to_bytes(value, _INTEGER_BYTES[kind], "little", signed=kind <= HeaderKind.INT128)  # type: ignore[arg-type]


def _decode_scalar(kind: int, data: bytes) -> Scalar:
    if kind == HeaderKind.STRING:
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data
    if kind == HeaderKind.BOOL and data in (b"\x00", b"\x01"):
        return data == b"\x01"
    if len(data) == _INTEGER_BYTES.get(kind):  # type: ignore[call-overload]
        return int.from_bytes(data, "little", signed=kind <= HeaderKind.INT128)
    floats = _FLOATS.get(kind)  # type: ignore[call-overload]
    if floats and len(data) == floats.size:
        number: float = floats.unpack(data)[0]
        return number
    return data

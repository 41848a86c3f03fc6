"""Payload envelope: the data part of a frame.

`{"d":<data>}` or `{"d":<data>,"m":<meta>}`, the writer's JSON bytes untouched. `data` and `meta` hold no
line breaks (a payload with CR or LF between its tokens is stored compact), so an envelope is one line. A
meta of `null` is a meta; no meta is no member.

The accounted size of a record is `len(data) + len(meta)`. Whether there is a meta cannot be told from
the length, but it can nearly always be told without parsing: an envelope in which `,"m":` does not occur
has none. Only the rest is parsed, by a parser that keeps raw slices. So a frame's checksum, not this
module, answers for the payload being JSON.

The parser recurses: call this on a thread with a full-size stack (8 MiB, the default of Linux), where depth
without end becomes a `BadFrame`.
"""

from typing import Final

import msgspec

from topics.errors import BadFrame

OPEN: Final = b'{"d":'
META: Final = b',"m":'
CLOSE: Final = b"}"
PLAIN_OVERHEAD_BYTES: Final = len(OPEN) + len(CLOSE)

_JSON_SPACE: Final = b" \t\r\n"


class _Envelope(msgspec.Struct):
    d: msgspec.Raw
    m: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode: Final = msgspec.json.Decoder(_Envelope).decode


def encode(data: bytes, meta: bytes | None = None) -> bytes:
    if meta is None:
        return OPEN + data + CLOSE
    return b"".join((OPEN, data, META, meta, CLOSE))


def split(envelope: bytes) -> tuple[bytes, bytes | None]:
    """(data, meta). Raises `BadFrame` when this is not an envelope."""
    _check_ends(envelope)
    if META not in envelope:
        return envelope[5:-1], None
    return _split_parsed(envelope)


def accounted_bytes(envelope: bytes) -> int:
    """What the record counts towards caps and quotas. Raises `BadFrame` when this is not an envelope."""
    _check_ends(envelope)
    if META not in envelope:
        return len(envelope) - PLAIN_OVERHEAD_BYTES
    data, meta = _split_parsed(envelope)
    return len(data) + (0 if meta is None else len(meta))


def accounted_within(buffer: bytes, start: int, end: int) -> int:
    """`accounted_bytes` of the envelope at `buffer[start:end]`, without a copy of a plain one."""
    if end - start <= PLAIN_OVERHEAD_BYTES or not buffer.startswith(OPEN, start) or not buffer.endswith(CLOSE, 0, end):
        raise BadFrame("the payload is not an envelope")
    if buffer.find(META, start, end) < 0:
        return end - start - PLAIN_OVERHEAD_BYTES
    return accounted_bytes(buffer[start:end])


def _check_ends(envelope: bytes) -> None:
    if not (envelope.startswith(OPEN) and envelope.endswith(CLOSE) and len(envelope) > PLAIN_OVERHEAD_BYTES):
        raise BadFrame("the payload is not an envelope")


def _split_parsed(envelope: bytes) -> tuple[bytes, bytes | None]:
    try:
        parsed = _decode(envelope)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadFrame(f"the payload is not an envelope: {error}") from error
    data = envelope[5:-1]
    meta = None
    if parsed.m is not msgspec.UNSET:
        # The parser strips the space around the value. The stored meta is everything after `,"m":`.
        before = data.rstrip(_JSON_SPACE).removesuffix(bytes(parsed.m)).rstrip(_JSON_SPACE)
        if not before.endswith(META):
            raise BadFrame("the payload is not an envelope: something follows its meta")
        meta = data[len(before) :]
        data = before[: -len(META)]
    if data.strip(_JSON_SPACE) != bytes(parsed.d):
        raise BadFrame("the payload is not an envelope: more than data and meta")
    return data, meta

"""Server-sent events as text: frames and the cursor in their ids (http-api.md §14.4, §14.5).

A frame is `id`, `event`, `data`, each on one line, and a blank line. What goes into it is ours: names of events, a
base64 id, and JSON, in which a line break can only stand between tokens.

A cursor is JSON, topic -> last seq seen, names ascending, in base64url without padding. It comes back from clients in
`Last-Event-ID`, so decoding trusts nothing of it.
"""

import base64
import binascii
from typing import Final

import msgspec

from topics.limits import KIB, U64_MAX

CONTENT_TYPE: Final = b"text/event-stream"
# How long a client waits before it connects again.
RETRY: Final = b"retry: 2000\n\n"

# A header block is no longer.
CURSOR_BYTES_MAX: Final = 128 * KIB

_encode: Final = msgspec.json.Encoder(order="deterministic").encode
_decode: Final = msgspec.json.Decoder(dict[str, int]).decode
_ALPHABET: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def event_text(event: bytes, data: bytes) -> bytes:
    """A frame without its id, which stands before it. The same for all streams that get it."""
    if b"\n" in data or b"\r" in data:
        # Whoever wrote this record left blanks between its tokens. A line break would end the line of the frame.
        data = data.replace(b"\r", b" ").replace(b"\n", b" ")
    return b"event: %b\ndata: %b\n\n" % (event, data)


def id_line(cursor: bytes) -> bytes:
    return b"id: %b\n" % cursor


def comment(text: bytes) -> bytes:
    assert b"\n" not in text
    return b": %b\n\n" % text


def encode_cursor(seq_by_topic: dict[str, int]) -> bytes:
    return base64.urlsafe_b64encode(_encode(seq_by_topic)).rstrip(b"=")


def decode_cursor(text: bytes) -> dict[str, int] | None:
    """None for whatever is not a cursor."""
    if not text or len(text) > CURSOR_BYTES_MAX or not _ALPHABET.issuperset(text):
        return None
    try:
        seq_by_topic = _decode(base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4)))
    except (binascii.Error, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if any(not 0 <= seq <= U64_MAX for seq in seq_by_topic.values()):
        return None
    return seq_by_topic

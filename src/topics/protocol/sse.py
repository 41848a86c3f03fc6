"""Server-sent events as text: frames, and the cursors in their ids.

A frame has the lines `id`, `event`, `data`, and a blank line. Its parts are names of events, base64 ids, and JSON, in
which a line break can only be between tokens.

A cursor is JSON, topic -> last seq seen, names ascending, in base64url without padding. Clients send it back in
`Last-Event-ID`, so decoding checks everything.
"""

import base64
import binascii
from typing import Final

import msgspec

from topics.limits import KIB, U64_MAX

CONTENT_TYPE: Final = b"text/event-stream"
# How long a client waits before it connects again.
RETRY: Final = b"retry: 2000\n\n"

# The limit of a header block.
CURSOR_BYTES_MAX: Final = 128 * KIB

_encode: Final = msgspec.json.Encoder(order="deterministic").encode
_decode: Final = msgspec.json.Decoder(dict[str, int]).decode
_ALPHABET: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def event_text(event: bytes, data: bytes) -> bytes:
    """A frame without its id. It is the same for all streams, and the id goes before it."""
    if b"\n" in data or b"\r" in data:
        # A record may have line breaks between its tokens. A line break would end the line of the frame.
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
    """The cursor in the text; None if the text is not a cursor."""
    if not text or len(text) > CURSOR_BYTES_MAX or not _ALPHABET.issuperset(text):
        return None
    try:
        seq_by_topic = _decode(base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4)))
    except (binascii.Error, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if any(not 0 <= seq <= U64_MAX for seq in seq_by_topic.values()):
        return None
    return seq_by_topic

"""Cursors of lists: the last name of a page, in base64, so that the next page begins after it."""

import base64
import binascii
from typing import Final

import msgspec

from topics.errors import InvalidRequest

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


def cursor_after(name: str) -> str:
    """The cursor of the page that begins after this name."""
    return base64.b64encode(_encode({"after": name})).decode()


def after_of(cursor: str | None) -> str | None:
    """The name in a cursor; None without a cursor."""
    if not cursor:
        return None
    try:
        members = _decode(base64.b64decode(cursor, validate=True))
    except (binascii.Error, ValueError, msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest("the cursor does not come from this server; leave it out for the first page") from error
    after = members.get("after") if isinstance(members, dict) else None
    return after if isinstance(after, str) else None

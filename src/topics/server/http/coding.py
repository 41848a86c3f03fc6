"""Content codings: gzip in, gzip out (http-api.md §5).

Pure and blocking: inflating a body of 64 MiB takes a good part of a second, so large ones belong in a thread
(`zlib` lets go of the interpreter's lock).
"""

import re
import zlib
from typing import Final

from topics.errors import InvalidRequest, PayloadTooLarge
from topics.limits import KIB, MIB

# A window of 32 KiB, in a gzip wrapper.
_GZIP_WBITS: Final = 16 + zlib.MAX_WBITS
# Small pieces in: what a piece leaves over is copied by zlib each time it is asked to go on.
_STEP_IN_BYTES: Final = 64 * KIB
_STEP_OUT_BYTES: Final = MIB
# A member costs time even when there is nothing in it, and the smallest one has 20 bytes. Tools that write many
# put 64 KiB into each: that is 1024 for a body of the largest usual size.
MEMBERS_MAX: Final = 4096
# Responses are made while somebody waits: level 1 gives most of the gain for the least time.
_LEVEL: Final = 1

_WEIGHT: Final = re.compile(rb"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")
_ZERO: Final = re.compile(rb"0(?:\.0{0,3})?")


def inflate(body: bytes, bytes_max: int) -> bytes:
    """What a gzip body holds, of one member or of several.

    Raises `PayloadTooLarge` as soon as there is more than `bytes_max` of it, with never more than a step beyond
    that in memory, and `InvalidRequest` for anything that is not whole, sound gzip from the first byte to the last.
    """
    pieces: list[bytes] = []
    left_bytes = bytes_max
    offset = 0
    view = memoryview(body)
    for _ in range(MEMBERS_MAX):
        member = zlib.decompressobj(_GZIP_WBITS)
        rest: bytes | memoryview = b""
        while not member.eof:
            if not rest:
                rest = view[offset : offset + _STEP_IN_BYTES]
                offset += len(rest)
                if not rest:
                    raise InvalidRequest("the gzip body ends too early")
            # One byte more than is allowed, so that too much can be told from just enough. Never 0, which would
            # mean no bound.
            try:
                piece = member.decompress(rest, min(left_bytes + 1, _STEP_OUT_BYTES))
            except zlib.error as error:
                raise InvalidRequest(f"the gzip body is damaged near byte {offset - len(rest)}") from error
            if len(piece) > left_bytes:
                raise PayloadTooLarge(f"the body is larger than {bytes_max} bytes when it is inflated")
            left_bytes -= len(piece)
            pieces.append(piece)
            rest = member.unconsumed_tail
        offset -= len(member.unused_data)
        if offset == len(body):
            return b"".join(pieces)
    raise InvalidRequest(f"the gzip body has more than {MEMBERS_MAX} members")


def deflate(body: bytes) -> bytes:
    """The body as gzip. The same bytes every time: the header's time is 0."""
    return zlib.compress(body, _LEVEL, _GZIP_WBITS)


def accepts_gzip(accept_encoding: bytes) -> bool:
    """Whether the header lists gzip with a weight above 0.

    `*` is not a listing, and a weight that is none counts as 0: plain bytes are always right.
    """
    for item in accept_encoding.lower().split(b","):
        coding, *parameters = item.split(b";")
        if coding.strip() == b"gzip" and all(_is_welcome(parameter) for parameter in parameters):
            return True
    return False


def _is_welcome(parameter: bytes) -> bool:
    name, _, value = parameter.partition(b"=")
    if name.strip() != b"q":
        return True
    value = value.strip()
    return _WEIGHT.fullmatch(value) is not None and _ZERO.fullmatch(value) is None

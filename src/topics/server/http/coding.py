"""Content codings: gzip bodies of requests and answers.

The functions are pure and block: 64 MiB take a good part of a second to inflate, so large bodies belong in a thread
(`zlib` releases the interpreter's lock).
"""

import re
import zlib
from collections.abc import Sequence
from typing import Final

from topics.errors import InvalidRequest, PayloadTooLarge
from topics.limits import KIB, MIB

# A window of 32 KiB, in a gzip wrapper.
_GZIP_WBITS: Final = 16 + zlib.MAX_WBITS
# Small input pieces, because zlib copies the unused rest of a piece at each call.
_STEP_IN_BYTES: Final = 64 * KIB
_STEP_OUT_BYTES: Final = MIB
# Even an empty gzip member costs time, and has only 20 bytes. Tools that write several members put 64 KiB into each:
# a body of the largest usual size then has 1024.
MEMBERS_MAX: Final = 4096
# Level 1 gives most of the gain for the least time.
_LEVEL: Final = 1

_WEIGHT: Final = re.compile(rb"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")
_ZERO: Final = re.compile(rb"0(?:\.0{0,3})?")


def inflate(body: bytes, bytes_max: int) -> bytes:
    """The content of a gzip body, of one member or several.

    Raises `PayloadTooLarge` as soon as the content is larger than `bytes_max`, with at most one step more in memory.
    Raises `InvalidRequest` for a body that is not complete, valid gzip.
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
            # One byte more than is allowed, to notice a content that is too large. Never 0, which means no bound.
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


def deflate(body: bytes, rest: Sequence[bytes] = ()) -> bytes:
    """The body, with its further pieces, as gzip. Equal bodies give equal bytes, because the time in the header is
    0."""
    member = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_WBITS)
    return b"".join([member.compress(body), *map(member.compress, rest), member.flush()])


def accepts_gzip(accept_encoding: bytes) -> bool:
    """Whether the header lists gzip with a weight above 0.

    `*` does not count as gzip, and an invalid weight counts as 0: a plain answer is always correct.
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

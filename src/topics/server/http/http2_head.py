"""Header lists of HTTP/2: the checks of a request's list, and the encoding of an answer's list.

The h2 library can check a request's list, but then a bad list ends the whole connection, and the checks take most of
the time of a small request. Here the checks are one loop, and a bad list costs only its stream.

Answers are encoded without the dynamic table: the fields of answers repeat, so their bytes are made once for all
connections. The first block tells the client that the dynamic table has size 0.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from hpack import Encoder
from hpack.hpack import encode_integer
from hpack.table import HeaderTable

from topics.errors import HeadersTooLarge, TopicsError, UriTooLong
from topics.server.limits import H2_HEADER_LIST_BYTES_MAX, HEADERS_MAX, TARGET_BYTES_MAX

# Bytes that each field counts in addition to its own (RFC 9113, section 6.5.2).
_FIELD_OVERHEAD_BYTES: Final = 32
_PSEUDO_HEADERS: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_REQUIRED: Final = frozenset({b":method", b":scheme", b":path"})
_CONNECTION_HEADERS: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_ONCE: Final = frozenset({b"host", b"content-length"})
_NAME_BYTES: Final = b"abcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~"
_METHOD_BYTES: Final = _NAME_BYTES + b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_BREAKS: Final = b"\0\r\n"
# Characters that no URL contains.
_BLANKS: Final = bytes(range(33)) + b"\x7f"

_NO_DYNAMIC_TABLE: Final = b"\x20"
_ENCODED_FIELDS_KEPT: Final = 4096

Fields = Sequence[tuple[bytes, bytes]]


class MalformedHead(Exception):
    """A list that no correct client sends. Another parser might read it differently."""


class RequestHead(NamedTuple):
    method: bytes
    path: bytes
    query: bytes
    # Names in lower case. `:authority` is `host`.
    headers: dict[bytes, bytes]
    # The error for a correct list that is over a limit.
    refused: TopicsError | None


def read_head(fields: Fields) -> RequestHead:
    """Checks a header list. Raises `MalformedHead`."""
    pseudo: dict[bytes, bytes] = {}
    headers: dict[bytes, bytes] = {}
    size_bytes = len(fields) * _FIELD_OVERHEAD_BYTES
    for name, value in fields:
        size_bytes += len(name) + len(value)
        if name[:1] == b":":
            if headers or name in pseudo or name not in _PSEUDO_HEADERS:
                raise MalformedHead(f"the pseudo-header {name!r} is not allowed at this place")
            pseudo[name] = value
            continue
        if not name or name.translate(None, _NAME_BYTES):
            raise MalformedHead(f"{name!r} is not a header name")
        if len(value.translate(None, _BREAKS)) != len(value) or value.strip(b" \t") != value:
            raise MalformedHead(f"the value of {name!r} has a line break, or blanks around it")
        if name in _CONNECTION_HEADERS or (name == b"te" and value != b"trailers"):
            raise MalformedHead(f"the header {name!r} is not for HTTP/2")
        if name in _ONCE and name in headers:
            raise MalformedHead(f"there is more than one {name!r}")
        headers[name] = value
    method, target = _checked(pseudo, headers)
    refused: TopicsError | None = None
    if len(fields) - len(pseudo) > HEADERS_MAX or size_bytes > H2_HEADER_LIST_BYTES_MAX:
        refused = HeadersTooLarge(
            f"a request has at most {HEADERS_MAX} headers and {H2_HEADER_LIST_BYTES_MAX} bytes of them"
        )
    elif len(target) > TARGET_BYTES_MAX:
        refused = UriTooLong(f"a request target has at most {TARGET_BYTES_MAX} bytes")
    path, _, query = target.partition(b"?")
    return RequestHead(method, path, query, headers, refused)


def _checked(pseudo: dict[bytes, bytes], headers: dict[bytes, bytes]) -> tuple[bytes, bytes]:
    """Checks the pseudo headers. Returns method and target, and puts the authority into the headers as `host`."""
    if not pseudo.keys() >= _REQUIRED:
        raise MalformedHead("a request has :method, :scheme and :path")
    for value in pseudo.values():
        if len(value.translate(None, _BLANKS)) != len(value):
            raise MalformedHead("a pseudo-header has a blank or a control character")
    method, target = pseudo[b":method"], pseudo[b":path"]
    if not method or method.translate(None, _METHOD_BYTES):
        raise MalformedHead("the method is not a word")
    if target[:1] != b"/" and target != b"*":
        raise MalformedHead("the :path must be a path")
    host = pseudo.get(b":authority") or headers.get(b"host")
    if not host or headers.get(b"host", host) != host:
        raise MalformedHead("a request has one authority")
    headers[b"host"] = host
    return method, target


class StaticEncoder(Encoder):
    """Encodes header blocks from fields that are encoded once and kept. For one connection."""

    def __init__(self) -> None:
        super().__init__()
        self._prefix = _NO_DYNAMIC_TABLE

    def encode(self, headers: Iterable[Any] | dict[Any, Any], huffman: bool = True) -> bytes:  # noqa: FBT001, FBT002
        prefix, self._prefix = self._prefix, b""
        return prefix + b"".join([_encoded_field(name, value) for name, value in headers])


_INDEX_BY_FIELD: Final = {field: index for index, field in enumerate(HeaderTable.STATIC_TABLE, 1)}
# The first index of a name that the table has several times.
_INDEX_BY_NAME: Final = {name: index for index, (name, _) in reversed(list(enumerate(HeaderTable.STATIC_TABLE, 1)))}


@lru_cache(_ENCODED_FIELDS_KEPT)
def _encoded_field(name: bytes, value: bytes) -> bytes:
    """Encodes a field by its index in the static table, or in full (RFC 7541, sections 6.1 and 6.2.2)."""
    index = _INDEX_BY_FIELD.get((name, value))
    if index is not None:
        return bytes([0x80 | index])
    name_index = _INDEX_BY_NAME.get(name)
    if name_index is not None:
        start = bytes(encode_integer(name_index, 4))
    else:
        start = b"\0" + bytes(encode_integer(len(name), 7)) + name
    return start + bytes(encode_integer(len(value), 7)) + value

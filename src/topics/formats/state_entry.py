"""The entries of a state log: every command that changed metadata, back to back.

`page` flavour, 68 bytes and the command:

    index u64, from 0, then +1 | term u64, 0 | timestamp u64 | user_id u32 | flags u32, bit 0: encrypted
    | length u32 | command, MessagePack | SHA-256 of all of this as stored

`iggy` flavour, 64 bytes, the context and the command:

    index u64 | term u64 | leader_id u32 | version u32 | flags u64 | timestamp u64 | user_id u32 | checksum u64
    | context length u32 | context | code u32 | length u32 | command, a wire request

    The checksum is XXH3-64 over the entry without the checksum, with the plain command and its plain length, even if
    the stored command is encrypted. No field says that an entry is encrypted: a reader with a key takes all for
    encrypted.

Little-endian; times in microseconds. Encryption is a function from bytes to bytes: this module knows no keys.

A scan yields entries up to the end, and raises

* `Torn` if the rest is not an entry and no entry follows, as a crash leaves the last entry. Its `offset` is where to
  cut. The rest may be too short, have a bad checksum or be zeros.
* `BadFrame` for everything else: a bad entry before a good one, an index that does not follow, unknown flags or unknown
  commands. These bytes were written so, or were good once; to cut them would lose more than a tail.

To tell a damaged length from a torn tail, the rest is searched for an entry that verifies. In the `iggy` flavour a
wrong or missing key looks like a bad checksum. So a complete first entry of that flavour is never called torn: no entry
before it has proved the key, and a cut would empty the log. No crash leaves such an entry, because it is shorter than a
sector, which disks write completely or not at all. The first index must be 0.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct
from typing import Final, NamedTuple, NoReturn

from xxhash import xxh3_64_intdigest

from topics.errors import BadFrame, Torn
from topics.formats.buffers import Buffer
from topics.formats.stream_command import Command, command_code, decode_page, encode_page
from topics.formats.stream_wire import decode_wire, encode_wire
from topics.stream_errors import StreamsError

# The version that new entries name: the Apache Iggy server that has this layout.
IGGY_VERSION: Final = 8000

FLAG_ENCRYPTED: Final = 1

Transform = Callable[[bytes], bytes]

_PAGE_HEAD: Final = Struct("<QQQIII")
_DIGEST_BYTES: Final = 32
PAGE_ENTRY_BYTES_MIN: Final = _PAGE_HEAD.size + _DIGEST_BYTES

# The head, up to the checksum; the checksum and the length of the context; and the fields after the context.
_IGGY_HEAD: Final = Struct("<QQIIQQI")
_IGGY_CHECKSUM: Final = Struct("<QI")
_IGGY_COMMAND: Final = Struct("<II")
_IGGY_CONTEXT_AT: Final = _IGGY_HEAD.size + _IGGY_CHECKSUM.size
IGGY_ENTRY_BYTES_MIN: Final = _IGGY_CONTEXT_AT + _IGGY_COMMAND.size

assert PAGE_ENTRY_BYTES_MIN == 68
assert IGGY_ENTRY_BYTES_MIN == 64


@dataclass(frozen=True, slots=True)
class StateEntry:
    """Only the `iggy` flavour has `leader_id`, `version` and `context`."""

    index: int
    timestamp: int
    user_id: int
    command: Command
    term: int = 0
    flags: int = 0
    leader_id: int = 0
    version: int = IGGY_VERSION
    context: bytes = b""

    @property
    def code(self) -> int:
        return command_code(self.command)


class ScannedEntry(NamedTuple):
    entry: StateEntry
    start: int
    end: int


class _Unverified(Exception):
    """The bytes are not an entry. `end` is where it would end by its lengths; None if that is after the data."""

    def __init__(self, message: str, end: int | None) -> None:
        super().__init__(message)
        self.end = end


@dataclass(frozen=True, slots=True)
class _Verified:
    """An entry with the right checksum. Its command is not decoded yet."""

    index: int
    end: int
    decode: Callable[[], StateEntry]


_Verify = Callable[[bytes, int], _Verified]


# The `page` flavour.


def encode_page_entry(entry: StateEntry, encrypt: Transform | None = None) -> bytes:
    """`encrypt` decides about the flag of encryption, whatever `entry.flags` says."""
    command = encode_page(entry.command)
    flags = entry.flags & ~FLAG_ENCRYPTED
    if encrypt is not None:
        command = encrypt(command)
        flags |= FLAG_ENCRYPTED
    head = _PAGE_HEAD.pack(entry.index, entry.term, entry.timestamp, entry.user_id, flags, len(command))
    body = head + command
    return body + sha256(body).digest()


def scan_page(data: Buffer, decrypt: Transform | None = None) -> Iterator[ScannedEntry]:
    def verify(data: bytes, start: int) -> _Verified:
        return _verify_page(data, start, decrypt)

    return _scan(bytes(data), verify, PAGE_ENTRY_BYTES_MIN, is_first_sure=True)


def _verify_page(data: bytes, start: int, decrypt: Transform | None) -> _Verified:
    command_at = start + _PAGE_HEAD.size
    if command_at > len(data):
        raise _Unverified("the head of an entry is cut off", None)
    index, term, timestamp, user_id, flags, size = _PAGE_HEAD.unpack_from(data, start)
    digest_at = command_at + size
    end = digest_at + _DIGEST_BYTES
    if end > len(data):
        raise _Unverified(f"an entry of {end - start} bytes is cut off after {len(data) - start}", None)
    if sha256(data[start:digest_at]).digest() != data[digest_at:end]:
        raise _Unverified("a SHA-256 that does not match", end)

    def decode() -> StateEntry:
        command = data[command_at:digest_at]
        if flags & ~FLAG_ENCRYPTED:
            raise BadFrame(f"unknown flags {flags:#x}", start)
        if flags & FLAG_ENCRYPTED:
            if decrypt is None:
                raise BadFrame("the entry is encrypted, and there is no key", start)
            command = decrypt(command)
        return StateEntry(index, timestamp, user_id, decode_page(command), term, flags)

    return _Verified(index, end, decode)


# The `iggy` flavour.


def encode_iggy_entry(entry: StateEntry, encrypt: Transform | None = None) -> bytes:
    command = encode_wire(entry.command)
    head = _IGGY_HEAD.pack(
        entry.index, entry.term, entry.leader_id, entry.version, entry.flags, entry.timestamp, entry.user_id
    )
    checksum = _iggy_checksum(head, entry.context, entry.code, command)
    stored = command if encrypt is None else encrypt(command)
    return b"".join(
        (
            head,
            _IGGY_CHECKSUM.pack(checksum, len(entry.context)),
            entry.context,
            _IGGY_COMMAND.pack(entry.code, len(stored)),
            stored,
        )
    )


def _iggy_checksum(head: bytes, context: bytes, code: int, command: bytes) -> int:
    context_size = len(context).to_bytes(4, "little")
    return xxh3_64_intdigest(b"".join((head, context_size, context, _IGGY_COMMAND.pack(code, len(command)), command)))


def scan_iggy(data: Buffer, decrypt: Transform | None = None) -> Iterator[ScannedEntry]:
    """With `decrypt` every entry is taken for encrypted."""

    def verify(data: bytes, start: int) -> _Verified:
        return _verify_iggy(data, start, decrypt)

    return _scan(bytes(data), verify, IGGY_ENTRY_BYTES_MIN, is_first_sure=False)


def _verify_iggy(data: bytes, start: int, decrypt: Transform | None) -> _Verified:
    context_at = start + _IGGY_CONTEXT_AT
    if context_at > len(data):
        raise _Unverified("the head of an entry is cut off", None)
    index, term, leader_id, version, flags, timestamp, user_id = _IGGY_HEAD.unpack_from(data, start)
    checksum, context_size = _IGGY_CHECKSUM.unpack_from(data, start + _IGGY_HEAD.size)
    code_at = context_at + context_size
    command_at = code_at + _IGGY_COMMAND.size
    if command_at > len(data):
        raise _Unverified(f"an entry with {context_size} bytes of context is cut off", None)
    code, size = _IGGY_COMMAND.unpack_from(data, code_at)
    end = command_at + size
    if end > len(data):
        raise _Unverified(f"an entry of {end - start} bytes is cut off after {len(data) - start}", None)
    context = data[context_at:code_at]
    command = data[command_at:end]
    if decrypt is not None:
        try:
            command = decrypt(command)
        except StreamsError as error:
            raise _Unverified(f"a command that cannot be decrypted: {error}", end) from error
    if _iggy_checksum(data[start : start + _IGGY_HEAD.size], context, code, command) != checksum:
        raise _Unverified("a checksum that does not match", end)

    def decode() -> StateEntry:
        decoded = decode_wire(code, command)
        return StateEntry(index, timestamp, user_id, decoded, term, flags, leader_id, version, context)

    return _Verified(index, end, decode)


# Both.


def _scan(data: bytes, verify: _Verify, entry_bytes_min: int, *, is_first_sure: bool) -> Iterator[ScannedEntry]:
    start = index = 0
    while start < len(data):
        try:
            verified = verify(data, start)
        except _Unverified as error:
            is_sure = is_first_sure or start > 0 or error.end is None
            _refuse_rest(data, start, index, str(error), verify, entry_bytes_min, is_sure=is_sure)
        if verified.index != index:
            raise BadFrame(f"index {verified.index} where {index} should follow", start)
        try:
            entry = verified.decode()
        except StreamsError as error:
            raise BadFrame(f"a command that cannot be read: {error}", start) from error
        yield ScannedEntry(entry, start, verified.end)
        start = verified.end
        index += 1


def _refuse_rest(
    data: bytes, start: int, index: int, message: str, verify: _Verify, entry_bytes_min: int, *, is_sure: bool
) -> NoReturn:
    if data.count(0, start) == len(data) - start:
        raise Torn(f"only zeros where entry {index} should be", start)
    if not is_sure:
        raise BadFrame(f"{message}, in the first entry: is it encrypted, or with another key?", start)
    found = _find_entry(data, start + 1, index, verify, entry_bytes_min)
    if found is not None:
        raise BadFrame(f"{message}, and a good entry follows at {found}", start)
    raise Torn(message, start)


def _find_entry(data: bytes, start: int, index: int, verify: _Verify, entry_bytes_min: int) -> int | None:
    """The position of a later entry that verifies. Only positions whose first bytes can be its index are verified."""
    index_max = index + (len(data) - start) // entry_bytes_min + 1
    for position in range(start, len(data) - entry_bytes_min + 1):
        if index <= int.from_bytes(data[position : position + 8], "little") <= index_max:
            try:
                verify(data, position)
            except _Unverified:
                continue
            return position
    return None

"""Tag sidecar `.tags` of a sealed segment, version 1. Little-endian.

    offset size  field
    0      4     magic "TTAG"
    4      4     version u32
    8      8     first_seq u64 of the segment
    16     4     tag_count u32
    20     4     body_len u32
    24     8     XXH3-64 of bytes 0-23 and the body u64
    32     …     body: tag_count × u32, where each entry begins in the body, entries sorted by tag bytes
    …      …     entry: tag_len u16, seq_count u32, tag, seq_count × u32 seq - first_seq ascending

Derived and optional: when it is missing or bad it is built again from `.data`; also when it has another
version, so that is a `BadFrame` here and not a `FutureVersion`. It lists every tagged record of the
segment, live or not; the reader asks the delete byte.

The checksum is compared before anything is believed. What it covers can still be wrong (a writer's fault, or
malice), and an entry is checked when it is touched: it must fill the space up to the next one exactly. So
one lookup among 10 000 tags costs 20 µs, and none gathers more seqs than the file has room for.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from operator import lt
from struct import Struct, pack, unpack_from
from typing import Final

from xxhash import xxh3_64, xxh3_64_intdigest

from topics.errors import BadFrame, Torn
from topics.formats.buffers import Buffer

MAGIC: Final = b"TTAG"
VERSION: Final = 1
_HEADER: Final = Struct("<4sIQIIQ")
_ENTRY: Final = Struct("<HI")
_U32: Final = Struct("<I")
HEADER_BYTES: Final = _HEADER.size
# The part of the header that is under the checksum.
_HEAD: Final = Struct("<4sIQII")

assert HEADER_BYTES == 32
assert _HEAD.size == HEADER_BYTES - 8


def encode(first_seq: int, tags: Mapping[bytes, Sequence[int]]) -> bytes:
    """`tags` maps each tag to its seqs, ascending."""
    starts: list[int] = []
    entries: list[bytes] = []
    position = 4 * len(tags)
    for tag in sorted(tags):
        seqs = tags[tag]
        assert _ascend(seqs), tag
        entry = b"".join((_ENTRY.pack(len(tag), len(seqs)), tag, _u32s([seq - first_seq for seq in seqs])))
        starts.append(position)
        entries.append(entry)
        position += len(entry)
    body = _u32s(starts) + b"".join(entries)
    head = _HEAD.pack(MAGIC, VERSION, first_seq, len(tags), len(body))
    return b"".join((head, xxh3_64_intdigest(head + body).to_bytes(8, "little"), body))


def _u32s(values: Sequence[int]) -> bytes:
    return pack(f"<{len(values)}I", *values)


def _ascend(values: Sequence[int]) -> bool:
    return all(map(lt, values, values[1:]))


class TagSidecar:
    """Lookups in a verified sidecar.

    Any bytes give a sidecar or a `FormatError`, from the constructor or from the lookup that meets an entry
    that is not one.
    """

    __slots__ = ("_body", "_starts", "first_seq")

    def __init__(self, buffer: Buffer) -> None:
        if len(buffer) < HEADER_BYTES:
            raise Torn("the sidecar ends inside its header")
        magic, version, first_seq, tag_count, body_len, stored = _HEADER.unpack_from(buffer)
        if magic != MAGIC:
            raise BadFrame("not a tag sidecar: wrong magic")
        if version != VERSION:
            raise BadFrame(f"tag sidecar version {version} is unknown (this is {VERSION})")
        if len(buffer) != HEADER_BYTES + body_len:
            raise Torn(f"the sidecar has {len(buffer) - HEADER_BYTES} body bytes of {body_len}")
        body = bytes(buffer[HEADER_BYTES:])
        checksum = xxh3_64(buffer[: _HEAD.size])
        checksum.update(body)
        if checksum.intdigest() != stored:
            raise BadFrame(f"checksum does not agree: stored {stored:016x}, computed {checksum.hexdigest()}")
        if body_len < 4 * tag_count:
            raise BadFrame(f"{tag_count} tags do not fit {body_len} bytes")
        self.first_seq: int = first_seq
        self._body: bytes = body
        # Entry i is at _starts[i] : _starts[i + 1]. There is one start more than there are tags.
        self._starts: tuple[int, ...] = (*unpack_from(f"<{tag_count}I", body), body_len)
        if self._starts[0] != 4 * tag_count:
            raise BadFrame(f"the first tag entry begins at {self._starts[0]}, not after {tag_count} positions")

    def __len__(self) -> int:
        return len(self._starts) - 1

    @property
    def size_bytes(self) -> int:
        """About what the sidecar takes in memory."""
        return len(self._body) + 40 * len(self._starts)

    def _entry(self, place: int) -> tuple[bytes, int, int]:
        """(tag, where its seqs begin, how many) of an entry that fills its place exactly."""
        start, end = self._starts[place], self._starts[place + 1]
        if start + _ENTRY.size <= end <= len(self._body):
            tag_len, seq_count = _ENTRY.unpack_from(self._body, start)
            tag_at = start + _ENTRY.size
            seqs_at = tag_at + tag_len
            if seqs_at + 4 * seq_count == end:
                return self._body[tag_at:seqs_at], seqs_at, seq_count
        raise BadFrame(f"tag entry {place} does not fit its place", HEADER_BYTES + start)

    def _tag(self, place: int) -> bytes:
        tag, _, _ = self._entry(place)
        return tag

    def _seqs(self, seqs_at: int, seq_count: int) -> list[int]:
        first_seq = self.first_seq
        if seq_count == 1:
            (value,) = _U32.unpack_from(self._body, seqs_at)
            return [first_seq + value]
        values: tuple[int, ...] = unpack_from(f"<{seq_count}I", self._body, seqs_at)
        if not _ascend(values):
            raise BadFrame("the seqs of a tag are out of order", HEADER_BYTES + seqs_at)
        return [first_seq + value for value in values]

    def _place_of(self, tag: bytes) -> int:
        """Of the first entry whose tag is not below `tag`."""
        return bisect_left(range(len(self)), tag, key=self._tag)

    def _entries_from(self, place: int) -> Iterator[tuple[bytes, int, int]]:
        tag_before: bytes | None = None
        for index in range(place, len(self)):
            entry = self._entry(index)
            tag = entry[0]
            if tag_before is not None and tag <= tag_before:
                raise BadFrame(f"tag entry {index} is out of order", HEADER_BYTES + self._starts[index])
            yield entry
            tag_before = tag

    def seqs(self, tag: bytes) -> list[int]:
        """Seqs whose tag is exactly `tag`, ascending."""
        for found, seqs_at, seq_count in self._entries_from(self._place_of(tag)):
            return self._seqs(seqs_at, seq_count) if found == tag else []
        return []

    def seqs_by_prefix(self, prefix: bytes) -> list[int]:
        """Seqs whose tag starts with `prefix`, ascending."""
        seqs: list[int] = []
        for tag, seqs_at, seq_count in self._entries_from(self._place_of(prefix)):
            if not tag.startswith(prefix):
                break
            seqs += self._seqs(seqs_at, seq_count)
        return sorted(seqs)

    def __iter__(self) -> Iterator[tuple[bytes, list[int]]]:
        """(tag, its seqs) in the order of the tags."""
        for tag, seqs_at, seq_count in self._entries_from(0):
            yield tag, self._seqs(seqs_at, seq_count)

"""Writes one segment of messages again: another key, compression or order of bodies, the same messages.

Index and checksums must agree. Otherwise the job stops, because an incomplete copy would look like a complete one. New
files are written under temporary names; then `.codec`, `.index` and at last `.log` get their names. So a segment whose
`.log` exists is done. A repeated task, or two tasks for one segment at once, make files of the same lengths with the
same index, so that files of different tasks fit together.

A segment that would exceed the limit is cut into several. The first of them keeps the name, and is published last.
"""

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from topics.errors import StartRefused
from topics.formats import message, message_index
from topics.formats.buffers import Buffer
from topics.formats.columnar_messages import MessageTable, locate_messages
from topics.formats.message import Headers, Positions
from topics.formats.message_cipher import Cipher
from topics.formats.message_codec import Codec
from topics.formats.message_index import ENTRY_BYTES, POSITION_MAX
from topics.formats.stream_layout import CODEC, INDEX, LOG, TEMPORARY, BodyOrder, segment_path
from topics.limits import MIB
from topics.spark.streams.directory import KeyPlace, find_cipher
from topics.storage.fs import File, Fs, RealFs, write_all, write_atomic

PIECE_BYTES: Final = 8 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """How bodies are stored. `key` says where each node finds the key; None when bodies are not encrypted."""

    order: BodyOrder
    codec: Codec
    key: KeyPlace | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentItem:
    """A segment to write again, with the directories of its partition."""

    source_directory: str
    target_directory: str
    start_offset: int
    log_bytes: int
    index_bytes: int
    source: Encoding
    target: Encoding
    segment_bytes_max: int


class SegmentRewritten(NamedTuple):
    messages: int
    bytes_before: int
    bytes_after: int


def reencode_segment(item: SegmentItem) -> SegmentRewritten:
    """Runs on an executor."""
    fs = RealFs()
    bodies = _Bodies(item.source, item.target, _cipher(fs, item.source), _cipher(fs, item.target))
    written = _Written(fs, item)
    try:
        for table in _tables(fs, item):
            for piece in bodies.rewrite(table):
                written.append(*piece)
        written.finish()
    finally:
        written.discard()
    return SegmentRewritten(item.index_bytes // ENTRY_BYTES, item.log_bytes, written.total_bytes)


def _cipher(fs: Fs, encoding: Encoding) -> Cipher | None:
    if encoding.key is None:
        return None
    cipher = find_cipher(fs, encoding.key, os.environ)
    if cipher is None:
        raise StartRefused("the key of the directory is not on this machine, although the driver has it")
    return cipher


# Reading.


def _tables(fs: Fs, item: SegmentItem) -> Iterator[MessageTable]:
    """All messages of the segment, piece by piece, every one verified."""
    log_path = segment_path(item.source_directory, item.start_offset, LOG)
    log = fs.open(log_path, "read")
    try:
        index = fs.open(segment_path(item.source_directory, item.start_offset, INDEX), "read")
        try:
            if (log.size(), index.size()) != (item.log_bytes, item.index_bytes):
                raise StartRefused(f"{log_path}: changed since the job began; stop the program that writes there")
            entries = message_index.decode_entries(index.pread(item.index_bytes, 0))
        finally:
            index.close()
        if item.index_bytes % ENTRY_BYTES or message_index.count_in_order(entries) < len(entries):
            raise _unsound(log_path, "the index is not in order")
        if (int(entries["position"][-1]) if len(entries) else 0) != item.log_bytes:
            raise _unsound(log_path, "the index does not end where the log ends")
        first = 0
        while first < len(entries):
            base = int(entries["position"][first - 1]) if first else 0
            end = first + max(1, int(np.searchsorted(entries["position"][first:], base + PIECE_BYTES, side="right")))
            yield _table(log, item.start_offset, entries, first, end, base)
            first = end
    finally:
        log.close()


def _table(
    log: File, start_offset: int, entries: message_index.Entries, first: int, end: int, base: int
) -> MessageTable:
    data = log.pread(int(entries["position"][end - 1]) - base, base)
    rebased = entries[first:end].copy()
    rebased["offset"] -= first
    rebased["position"] -= base
    table = locate_messages(data, rebased.tobytes(), start_offset + first, last_offset=start_offset + end - 1)
    if table.index_problem is not None or table.bad:
        offset = table.bad[0].first_seq if table.bad else start_offset + first
        raise _unsound(log.path, f"the message at offset {offset} or its index entry is damaged")
    wrong = np.flatnonzero(message.checksums(data, table.starts, table.ends) != table.headers["checksum"])
    if len(wrong):
        raise _unsound(log.path, f"the message at offset {start_offset + first + int(wrong[0])} is damaged")
    return table


def _unsound(log_path: str, why: str) -> StartRefused:
    return StartRefused(
        f"{log_path}: {why}; the next start of the engine repairs what a crash left, `topics verify` shows other damage"
    )


# Rewriting.


class _Piece(NamedTuple):
    """Messages in their new form, where each ends, and their headers."""

    data: Buffer
    ends: Positions
    headers: Headers


class _Bodies:
    def __init__(
        self, source: Encoding, target: Encoding, source_cipher: Cipher | None, target_cipher: Cipher | None
    ) -> None:
        self._source = source
        self._target = target
        self._has_same_key = source.key == target.key
        self._decrypt, self._encrypt = source_cipher, target_cipher
        # The size of expanded messages is not known before: one message at first, then as many as seem to fit.
        self._group = 1

    def rewrite(self, table: MessageTable) -> "Iterator[_Piece]":
        source, target = self._source, self._target
        if self._has_same_key and source.codec is target.codec and source.order is target.order:
            yield _Piece(table.log, table.ends, table.headers)
            return
        first = 0
        while first < len(table):
            count = len(table) if source.codec is Codec.NONE else self._group
            piece = self._rewritten(table, slice(first, first + count))
            self._group = max(1, min(2 * self._group, self._group * PIECE_BYTES // max(1, len(piece.data))))
            yield piece
            first += count

    def _rewritten(self, table: MessageTable, rows: slice) -> "_Piece":
        headers = table.headers[rows].copy()
        rewritten, starts, ends = message.rewrite_bodies(
            table.log,
            table.starts[rows],
            headers,
            source=self._source.order,
            target=self._target.order,
            payload=self._payload,
            user_headers=self._user_headers,
        )
        message.write_headers(rewritten, starts, headers)
        message.write_column(rewritten, starts, message.CHECKSUM_AT, message.checksums(rewritten, starts, ends))
        return _Piece(rewritten, ends, headers)

    def _payload(self, data: Buffer) -> Buffer:
        if self._has_same_key and self._source.codec is self._target.codec:
            return data
        if self._decrypt is not None:
            data = self._decrypt.decrypt(data)
        if self._source.codec is not self._target.codec:
            data = self._target.codec.compress(self._source.codec.expand(data, message.PAYLOAD_BYTES_MAX))
        return data if self._encrypt is None else self._encrypt.encrypt(data)

    def _user_headers(self, data: Buffer) -> Buffer:
        if self._has_same_key:
            return data
        if self._decrypt is not None:
            data = self._decrypt.decrypt(data)
        return data if self._encrypt is None else self._encrypt.encrypt(data)


# Writing.


class _NewSegment:
    """One new segment, under temporary names."""

    def __init__(self, fs: Fs, directory: str, start_offset: int, token: str) -> None:
        self.start_offset = start_offset
        self._fs = fs
        self._directory = directory
        self._token = token
        self.log = fs.open(self._temporary(LOG), "create")
        self.index = fs.open(self._temporary(INDEX), "create")
        self.position = 0
        self.count = 0

    def _temporary(self, suffix: str) -> str:
        return f"{segment_path(self._directory, self.start_offset, suffix)}.{self._token}{TEMPORARY}"

    def append(self, data: Buffer, ends: Positions, headers: Headers) -> None:
        entries = message_index.make_entries(self.count, ends + self.position, headers["timestamp"])
        write_all(self.index, entries.tobytes(), self.count * ENTRY_BYTES)
        self.position = write_all(self.log, data, self.position)
        self.count += len(ends)

    def publish(self, codec: Codec) -> None:
        """Gives the files their names, `.log` last. A segment without compression has no `.codec`."""
        if codec is not Codec.NONE:
            path = segment_path(self._directory, self.start_offset, CODEC)
            if not self._fs.exists(path):
                write_atomic(self._fs, path, codec.value.encode("ascii"))
        for file, suffix in ((self.index, INDEX), (self.log, LOG)):
            file.fsync()
            file.close()
            self._fs.rename(self._temporary(suffix), segment_path(self._directory, self.start_offset, suffix))
            self._fs.sync_dir(self._directory)

    def discard(self) -> None:
        for file, suffix in ((self.index, INDEX), (self.log, LOG)):
            file.close()
            if self._fs.exists(self._temporary(suffix)):
                self._fs.unlink(self._temporary(suffix))


class _Written:
    """The new segments that one old segment becomes."""

    def __init__(self, fs: Fs, item: SegmentItem) -> None:
        self._fs = fs
        self._item = item
        self._token = secrets.token_hex(4)
        self._next_offset = item.start_offset
        self._segments = [self._new_segment()]
        self._is_published = False

    @property
    def total_bytes(self) -> int:
        return sum(segment.position for segment in self._segments)

    def _new_segment(self) -> _NewSegment:
        return _NewSegment(self._fs, self._item.target_directory, self._next_offset, self._token)

    def append(self, data: Buffer, ends: Positions, headers: Headers) -> None:
        segment = self._segments[-1]
        limit = min(self._item.segment_bytes_max, POSITION_MAX)
        if segment.count and segment.position + len(data) > limit:
            segment = self._new_segment()
            self._segments.append(segment)
        segment.append(data, ends, headers)
        self._next_offset += len(ends)

    def finish(self) -> None:
        for segment in reversed(self._segments):
            segment.publish(self._item.target.codec)
        self._is_published = True

    def discard(self) -> None:
        if not self._is_published:
            for segment in self._segments:
                segment.discard()

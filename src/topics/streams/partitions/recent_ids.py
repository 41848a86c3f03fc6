"""The ids that a partition had seen before a restart, read from its newest messages.

A message that was stored before the restart and is sent again after it is a duplicate, too. Only messages that the
deduplicator would still remember are read, the newest first, so a start takes no longer than it must. An id counts if
its message is whole: a message that replaces a damaged one is not a duplicate.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from topics.formats.message import (
    CHECKSUM_AT,
    Bytes,
    Column,
    Positions,
    checksums,
    read_column,
    read_headers,
    starts_of,
)
from topics.formats.message_index import Entries
from topics.limits import MIB
from topics.storage.fs import Fs
from topics.streams.partitions.deduplication import Deduplicator
from topics.streams.partitions.recovery import RecoveredSegment
from topics.streams.partitions.segment_files import SegmentFiles, open_files
from topics.streams.partitions.segment_index import read_entries

logger = logging.getLogger(__name__)

# The most bytes of messages that a start reads of one partition.
READ_BYTES_MAX: Final = 1024 * MIB

# How much is read at a time.
ENTRIES_PER_PIECE: Final = 4096
PIECE_BYTES_MAX: Final = 4 * MIB


class _Piece(NamedTuple):
    """Messages that lie back to back: the ids and times of the whole ones, and how much was read for them."""

    ids: Bytes
    times_us: Column
    messages_count: int
    size_bytes: int


def recall_ids(
    deduplicator: Deduplicator, fs: Fs, directory: str, segments: Sequence[RecoveredSegment], now_us: int
) -> None:
    """Lets the deduplicator remember the newest messages of the partition, as if it had seen them itself."""
    pieces: list[_Piece] = []
    entries_left = deduplicator.entries_max
    bytes_left = READ_BYTES_MAX
    try:
        for piece in _newest_first(fs, directory, segments, deduplicator.oldest_remembered_us(now_us)):
            pieces.append(piece)
            entries_left -= piece.messages_count
            bytes_left -= piece.size_bytes
            if entries_left <= 0 or bytes_left <= 0:
                break
    except OSError as error:
        logger.warning("%s: messages that are sent again may be stored twice: %s", directory, error)
    for piece in reversed(pieces):
        # After a clock was set back, a time may be in the future. Its id would be remembered for too long.
        deduplicator.recall(piece.ids, np.minimum(piece.times_us, np.uint64(now_us)))


def _newest_first(fs: Fs, directory: str, segments: Sequence[RecoveredSegment], oldest_us: int) -> Iterator[_Piece]:
    """The messages that are not older than `oldest_us`, a piece at a time."""
    for segment in reversed(segments):
        if not segment.messages_count:
            continue
        if segment.end_timestamp < oldest_us:
            return
        files = open_files(fs, directory, segment.start_offset, is_writable=False)
        try:
            yield from _newest_of_segment(files, segment.messages_count, oldest_us)
        finally:
            files.let_go()


def _newest_of_segment(files: SegmentFiles, end: int, oldest_us: int) -> Iterator[_Piece]:
    while end:
        first = max(end - ENTRIES_PER_PIECE, 0)
        entries = read_entries(files.index, first, end - first)
        position = int(read_entries(files.index, first - 1, 1)["position"][0]) if first else 0
        bounds = np.concatenate(([position], entries["position"])).astype(np.int64)
        young = int(np.searchsorted(entries["timestamp"], np.uint64(oldest_us)))
        near = int(np.searchsorted(bounds[:-1], bounds[-1] - PIECE_BYTES_MAX))
        # One message at least, however large.
        place = max(young, min(near, len(entries) - 1))
        if place == len(entries):
            return
        yield _read_piece(files, bounds[place:], entries[place:])
        end = first + place


def _read_piece(files: SegmentFiles, bounds: Positions, entries: Entries) -> _Piece:
    position, size_bytes = int(bounds[0]), int(bounds[-1] - bounds[0])
    data = files.log.pread(size_bytes, position)
    ends = bounds[1:] - position
    starts = starts_of(ends)
    is_whole = checksums(data, starts, ends) == read_column(data, starts, CHECKSUM_AT, 8)
    ids = np.ascontiguousarray(read_headers(data, starts)["id"][is_whole]).view(np.uint8).reshape(-1, 16)
    return _Piece(ids, entries["timestamp"][is_whole], len(entries), size_bytes)

"""The recovery of a partition: each segment gets an index that fits its log, and the last segment a clean end.

The log is the truth. An index is derived from it, and is never evidence against it: entries that do not fit are dropped
and made again. For each segment:

1. The good entries of the index are those in order and within the log (`segment_index.count_good`). A missing index has
   none.
2. Entries at the end are dropped if their message is not whole and right: a power loss may keep an index and lose the
   messages that it describes.
3. From there the log is walked, and each good message gets an entry. A good message is complete, has the next offset, a
   reserved field of 0 and the right checksum.
4. A bad message is a torn end if no good message follows. It is also a torn end if it comes after the last entry of a
   whole index in the last segment: a power loss keeps the sectors of the last flush in no order, and messages that were
   never promised to be durable must not block readers. Any other bad message is damage: it keeps its offset, and a poll
   of it fails, but the messages around it stay readable.
5. The last segment is cut after its last good message, so that appends continue there. Earlier segments keep their
   bytes.

An interrupted step is simply done again at the next start. Nothing else has the files open meanwhile.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from topics.formats.message_codec import Codec
from topics.formats.message_index import ENTRY_BYTES, make_entries
from topics.formats.stream_layout import INDEX, LOG, segment_path
from topics.storage.fs import File, Fs, write_all, write_atomic
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.partitions.log_walk import Walked, read_piece, walk, walk_piece
from topics.streams.partitions.segment_files import find_segments, open_files, read_codec
from topics.streams.partitions.segment_index import count_good, read_entries

logger = logging.getLogger(__name__)

# An index with more wrong entries than this at its end does not belong to the log; it is made again from the start.
WRONG_ENTRIES_MAX: Final = 4096


@dataclass(slots=True)
class RecoveredSegment:
    start_offset: int
    codec: Codec
    messages_count: int
    # Where the last message ends. The file of an earlier segment may be longer.
    size_bytes: int
    start_timestamp: int
    end_timestamp: int

    @property
    def next_offset(self) -> int:
        return self.start_offset + self.messages_count


# Called with a file, and the position from which it is about to be cut.
BeforeCut = Callable[[File, int], None]


def recover(
    fs: Fs, directory: str, *, validate_checksum: bool, before_cut: BeforeCut | None = None
) -> list[RecoveredSegment]:
    """The segments of a partition in rising order, each with an index that fits its log. All their files are synced.

    With `validate_checksum` every message is read, and a bad one refuses the start.
    """
    start_offsets = find_segments(fs, directory)
    segments = []
    next_offset = None
    for start_offset in start_offsets:
        if next_offset is not None and start_offset != next_offset:
            logger.warning(
                "%s: segment %d begins where offset %d is expected; polls continue after the gap",
                directory,
                start_offset,
                next_offset,
            )
        is_last = start_offset == start_offsets[-1]
        segment = _recover_segment(fs, directory, start_offset, before_cut, is_last=is_last)
        if validate_checksum:
            validate(fs, directory, segment)
        segments.append(segment)
        next_offset = start_offset + segment.messages_count
    # A process that was killed may have created files whose names are not durable yet.
    fs.sync_dir(directory)
    return segments


def _recover_segment(
    fs: Fs, directory: str, start_offset: int, before_cut: BeforeCut | None, *, is_last: bool
) -> RecoveredSegment:
    codec = read_codec(fs, directory, start_offset)
    index_path = segment_path(directory, start_offset, INDEX)
    has_index = fs.exists(index_path)
    if not has_index:
        logger.warning("%s: missing; rebuilt from the messages", index_path)
        write_atomic(fs, index_path, b"")
    files = open_files(fs, directory, start_offset, is_writable=True)
    try:
        log_bytes = files.log.size()
        keep, is_whole = _count_right(files.log, files.index, start_offset, log_bytes)
        position, timestamp = _end_of(files.index, keep)
        ends_at_damage = is_last and has_index and is_whole
        walked = walk(files.log, position, start_offset + keep, timestamp, log_bytes, ends_at_damage=ends_at_damage)
        index = _repair_index(fs, files.index, keep, walked)
        try:
            count = keep + len(walked.ends)
            end, end_timestamp = _end_of(index, count)
            if end < log_bytes:
                _cut_tail(files.log, end, log_bytes, before_cut, is_last=is_last)
            files.log.fsync()
            index.fsync()
            start_timestamp = int(read_entries(index, 0, 1)["timestamp"][0]) if count else 0
        finally:
            if index is not files.index:
                index.close()
    finally:
        files.let_go()
    return RecoveredSegment(start_offset, codec, count, end, start_timestamp, end_timestamp)


def _end_of(index: File, count: int) -> tuple[int, int]:
    """The end position and the time of the last of `count` messages."""
    if not count:
        return 0, 0
    last = read_entries(index, count - 1, 1)[0]
    return int(last["position"]), int(last["timestamp"])


def _count_right(log: File, index: File, start_offset: int, log_bytes: int) -> tuple[int, bool]:
    """How many entries are kept: the ones in order, without the ones at the end whose message is not good.

    Also whether the whole index is in order. Messages without an entry were then written after it.
    """
    good, total = count_good(index, log_bytes)
    is_whole = index.size() == good * ENTRY_BYTES
    if not is_whole:
        logger.warning("%s: of %d entries the first %d are in order", index.path, total, good)
    keep = good
    while keep and not _is_right(log, index, start_offset, keep - 1):
        keep -= 1
        if good - keep > WRONG_ENTRIES_MAX:
            logger.warning("%s: does not fit its log; rebuilt from the messages", index.path)
            return 0, False
    if keep < good:
        logger.warning("%s: the messages of the last %d entries are missing or damaged", index.path, good - keep)
    return keep, is_whole


def _is_right(log: File, index: File, start_offset: int, place: int) -> bool:
    """Whether the message where the entry points is good and has the time of the entry."""
    start, _ = _end_of(index, place)
    end, timestamp = _end_of(index, place + 1)
    walked = walk_piece(log.pread(end - start, start), 0, start_offset + place)
    return walked.ends == [end - start] and walked.timestamps == [timestamp]


def _repair_index(fs: Fs, index: File, keep: int, walked: Walked) -> File:
    """Makes the file hold its first `keep` entries and those of the walked messages. Returns the open file."""
    entries = make_entries(keep, np.array(walked.ends, dtype=np.int64), np.array(walked.timestamps, dtype=np.uint64))
    if keep == 0 and len(entries):
        # A rebuilt index replaces the old one as a whole: a crash must not leave a short new index in place of an old
        # one that was only wrong at its end.
        write_atomic(fs, index.path, entries.tobytes())
        return fs.open(index.path, "write")
    if index.size() > keep * ENTRY_BYTES:
        index.truncate(keep * ENTRY_BYTES)
    if len(entries):
        logger.warning("%s: %d messages at the end of the log had no entry", index.path, len(entries))
        write_all(index, entries.tobytes(), keep * ENTRY_BYTES)
    return index


def _cut_tail(log: File, end: int, log_bytes: int, before_cut: BeforeCut | None, *, is_last: bool) -> None:
    if is_last:
        if before_cut is not None:
            before_cut(log, end)
        logger.warning("%s: %d bytes after the last good message cut off", log.path, log_bytes - end)
        log.truncate(end)
    else:
        logger.warning("%s: %d bytes after the last good message; left alone", log.path, log_bytes - end)


# Checks that `validate_checksum` asks for.


def validate(fs: Fs, directory: str, segment: RecoveredSegment) -> None:
    """Reads all messages of a segment. Raises at the first bad one."""
    log = fs.open(segment_path(directory, segment.start_offset, LOG), "read")
    try:
        position = 0
        count = 0
        while position < segment.size_bytes:
            piece = read_piece(log, position, segment.size_bytes)
            walked = walk_piece(piece, position, segment.start_offset + count)
            if not walked.ends:
                raise StreamsError(
                    StreamStatus.CANNOT_READ_PARTITIONS,
                    f"{log.path}: the message with offset {segment.start_offset + count} at {position} is damaged; "
                    "start without system.partition.validate_checksum to serve the other messages",
                )
            position = walked.ends[-1]
            count += len(walked.ends)
    finally:
        log.close()

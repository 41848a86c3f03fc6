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
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from xxhash import xxh3_64_intdigest

from topics.formats.message import (
    HEADER,
    HEADER_BYTES,
    ID_AT,
    OFFSET_AT,
    PAYLOAD_BYTES_MAX,
    RESERVED_AT,
    USER_HEADERS_BYTES_MAX,
    Buffer,
)
from topics.formats.message_codec import Codec
from topics.formats.message_index import ENTRY_BYTES, make_entries
from topics.formats.stream_layout import INDEX, LOG, segment_path
from topics.limits import MIB
from topics.storage.fs import File, Fs, write_all, write_atomic
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.partitions.segment_files import find_segments, open_files, read_codec
from topics.streams.partitions.segment_index import count_good, read_entries

logger = logging.getLogger(__name__)

# A log is walked in pieces of this size, or of the size of one message if that is larger.
WALK_BYTES: Final = 4 * MIB

# An index with more wrong entries than this at its end does not belong to the log; it is made again from the start.
WRONG_ENTRIES_MAX: Final = 4096

# No stored message is longer: encryption adds 28 bytes and compression at worst a little more. So a larger length is
# damaged.
_BODY_BYTES_MAX: Final = 2 * (PAYLOAD_BYTES_MAX + USER_HEADERS_BYTES_MAX)


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


class Walked(NamedTuple):
    """Consecutive messages of a log: where each ends and when it was appended."""

    ends: list[int]
    timestamps: list[int]
    # The places of bad messages in the two lists.
    damaged: list[int]


def recover(fs: Fs, directory: str, *, validate_checksum: bool) -> list[RecoveredSegment]:
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
        segment = _recover_segment(fs, directory, start_offset, is_last=start_offset == start_offsets[-1])
        if validate_checksum:
            validate(fs, directory, segment)
        segments.append(segment)
        next_offset = start_offset + segment.messages_count
    # A process that was killed may have created files whose names are not durable yet.
    fs.sync_dir(directory)
    return segments


def _recover_segment(fs: Fs, directory: str, start_offset: int, *, is_last: bool) -> RecoveredSegment:
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
                _cut_tail(files.log, end, log_bytes, is_last=is_last)
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
    walked = _walk_piece(log.pread(end - start, start), 0, start_offset + place)
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


def _cut_tail(log: File, end: int, log_bytes: int, *, is_last: bool) -> None:
    if is_last:
        logger.warning("%s: %d bytes after the last good message cut off", log.path, log_bytes - end)
        log.truncate(end)
    else:
        logger.warning("%s: %d bytes after the last good message; left alone", log.path, log_bytes - end)


# Walking a log.


def walk(
    log: File, position: int, offset: int, timestamp: int, log_bytes: int, *, ends_at_damage: bool = False
) -> Walked:
    """All messages from a position up to the last good one or, with `ends_at_damage`, up to the first bad one.

    `timestamp` is the time of the message before the position.
    """
    found = Walked([], [], [])
    while position < log_bytes:
        piece = _read_piece(log, position, log_bytes)
        walked = _walk_piece(piece, position, offset + len(found.ends))
        if walked.ends:
            found.ends.extend(walked.ends)
            found.timestamps.extend(walked.timestamps)
            position = walked.ends[-1]
            timestamp = walked.timestamps[-1]
            continue
        if ends_at_damage:
            break
        place = len(found.ends)
        after = _find_good(log, position, offset + place, log_bytes)
        if after is None:
            break
        good_position, good_offset = after
        lost = good_offset - offset - place
        logger.warning(
            "%s: damaged between %d and %d: %d messages from offset %d on cannot be read",
            log.path,
            position,
            good_position,
            lost,
            offset + place,
        )
        found.damaged.extend(range(place, place + lost))
        # Where each damaged message began is unknown. The bytes that their entries point to have wrong checksums.
        found.ends.extend(position + HEADER_BYTES * step for step in range(1, lost))
        found.ends.append(good_position)
        found.timestamps.extend([timestamp] * lost)
        position = good_position
    return found


def _read_piece(log: File, position: int, log_bytes: int) -> bytes:
    """A piece that has its first message completely, if the file has it."""
    piece = log.pread(WALK_BYTES, position)
    if len(piece) >= HEADER_BYTES:
        size = _claimed_size(piece, 0)
        if len(piece) < size <= min(log_bytes - position, HEADER_BYTES + _BODY_BYTES_MAX):
            piece = log.pread(size, position)
    return piece


def _claimed_size(piece: Buffer, at: int) -> int:
    _, _, _, _, _, user_headers_length, payload_length, _ = HEADER.unpack_from(piece, at)
    return HEADER_BYTES + int(user_headers_length) + int(payload_length)


def _walk_piece(piece: Buffer, position: int, offset: int) -> Walked:
    """Good messages from the start of a piece, until one is bad or incomplete. A million take about a second."""
    ends: list[int] = []
    timestamps: list[int] = []
    view = memoryview(piece)
    unpack = HEADER.unpack_from
    digest = xxh3_64_intdigest
    at = 0
    last_header_at = len(piece) - HEADER_BYTES
    while at <= last_header_at:
        checksum, _, found, timestamp, _, user_headers_length, payload_length, reserved = unpack(piece, at)
        end = at + HEADER_BYTES + user_headers_length + payload_length
        if end > len(piece) or found != offset or reserved or digest(view[at + ID_AT : end]) != checksum:
            break
        ends.append(position + end)
        timestamps.append(timestamp)
        at = end
        offset += 1
    return Walked(ends, timestamps, [])


def _find_good(log: File, position: int, offset: int, log_bytes: int) -> tuple[int, int] | None:
    """The next good message after a bad one: its position, and its offset, which is larger than `offset`.

    The claimed body of the bad message may contain a payload that looks like a message. So a message in there counts
    only if good messages follow up to the end of the file: then the length of the bad message is damaged.
    """
    header = log.pread(HEADER_BYTES, position)
    if len(header) < HEADER_BYTES:
        return None
    _, _, found, _, _, user_headers_length, payload_length, reserved = HEADER.unpack(header)
    body_bytes = user_headers_length + payload_length
    is_believed = found == offset and not reserved and body_bytes <= _BODY_BYTES_MAX
    body_end = position + HEADER_BYTES + body_bytes if is_believed else position
    begin = position + 1
    while begin + HEADER_BYTES <= log_bytes:
        piece = log.pread(WALK_BYTES, begin)
        for at, found_offset in _candidates(piece, begin - position, offset):
            start = begin + at
            end = _end_of_good(log, start, found_offset, log_bytes)
            if end == log_bytes or (end > start and start >= body_end):
                return start, found_offset
        if len(piece) < WALK_BYTES:
            break
        # The next piece begins where a header that was cut by this piece may begin.
        begin += len(piece) - HEADER_BYTES + 1
    return None


def _end_of_good(log: File, position: int, offset: int, log_bytes: int) -> int:
    """Where the good messages from the position on end; the position itself if there is none."""
    while position < log_bytes:
        walked = _walk_piece(_read_piece(log, position, log_bytes), position, offset)
        if not walked.ends:
            break
        position = walked.ends[-1]
        offset += len(walked.ends)
    return position


def _candidates(piece: bytes, distance: int, offset: int) -> list[tuple[int, int]]:
    """Places in a piece where a header may be: its reserved field is 0, and its offset is possible there.

    `distance` is from the start of the bad message to the start of the piece. An offset is possible if each message
    in between has room for its header.
    """
    count = len(piece) - HEADER_BYTES + 1
    if count <= 0:
        return []
    offsets: np.ndarray[tuple[int], np.dtype[np.uint64]] = np.ndarray((count,), "<u8", piece, OFFSET_AT, (1,))
    reserved: np.ndarray[tuple[int], np.dtype[np.uint64]] = np.ndarray((count,), "<u8", piece, RESERVED_AT, (1,))
    room = (np.arange(distance, distance + count) // HEADER_BYTES).astype(np.uint64)
    # The numbers are unsigned: the difference is huge for an offset below `offset`.
    ahead = offsets - np.uint64(offset)
    places = np.flatnonzero((reserved == 0) & (ahead >= 1) & (ahead <= room))
    return [(int(at), int(offsets[at])) for at in places]


# Checks that `validate_checksum` asks for.


def validate(fs: Fs, directory: str, segment: RecoveredSegment) -> None:
    """Reads all messages of a segment. Raises at the first bad one."""
    log = fs.open(segment_path(directory, segment.start_offset, LOG), "read")
    try:
        position = 0
        count = 0
        while position < segment.size_bytes:
            piece = _read_piece(log, position, segment.size_bytes)
            walked = _walk_piece(piece, position, segment.start_offset + count)
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

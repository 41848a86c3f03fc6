"""Walking a log: its messages one after the other, and where good messages go on after bad bytes."""

import logging
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
from topics.limits import MIB
from topics.storage.fs import File

logger = logging.getLogger(__name__)

# A log is walked in pieces of this size, or of the size of one message if that is larger.
WALK_BYTES: Final = 4 * MIB

# No stored message is longer: encryption adds 28 bytes and compression at worst a little more. So a larger length is
# damaged.
_BODY_BYTES_MAX: Final = 2 * (PAYLOAD_BYTES_MAX + USER_HEADERS_BYTES_MAX)


class Walked(NamedTuple):
    """Consecutive messages of a log: where each ends and when it was appended."""

    ends: list[int]
    timestamps: list[int]
    # The places of bad messages in the two lists.
    damaged: list[int]


def walk(
    log: File, position: int, offset: int, timestamp: int, log_bytes: int, *, ends_at_damage: bool = False
) -> Walked:
    """All messages from a position up to the last good one or, with `ends_at_damage`, up to the first bad one.

    `timestamp` is the time of the message before the position.
    """
    found = Walked([], [], [])
    while position < log_bytes:
        piece = read_piece(log, position, log_bytes)
        walked = walk_piece(piece, position, offset + len(found.ends))
        if walked.ends:
            found.ends.extend(walked.ends)
            found.timestamps.extend(walked.timestamps)
            position = walked.ends[-1]
            timestamp = walked.timestamps[-1]
            continue
        if ends_at_damage:
            break
        place = len(found.ends)
        after = find_good(log, position, offset + place, log_bytes)
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


def read_piece(log: File, position: int, log_bytes: int) -> bytes:
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


def walk_piece(piece: Buffer, position: int, offset: int) -> Walked:
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


def find_good(log: File, position: int, offset: int, log_bytes: int) -> tuple[int, int] | None:
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
        walked = walk_piece(read_piece(log, position, log_bytes), position, offset)
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

"""The files of a segment: the handles that writer and readers share, how they come and go.

Rules of this file:

1. `.codec` is durable before `.log` exists, and goes only when `.log` is durably gone. A `.log` whose `.codec` is
   missing would be taken for uncompressed.
2. `.log` goes first. A crash then leaves an `.index` that nobody misses, never messages that were deleted.
"""

import errno
import logging
import os
import threading
from collections.abc import Sequence

from topics.errors import BadFrame, StartRefused
from topics.formats.message_codec import Codec
from topics.formats.stream_layout import CODEC, INDEX, LOG, OFFSETS_FOLDER, SEGMENT_FILE, segment_path, segment_starts
from topics.storage.fs import File, Fs, OpenMode, read_file, write_atomic

logger = logging.getLogger(__name__)


class SegmentFiles:
    """Open handles of `.log` and `.index`, closed when the last who holds them lets go.

    Readers hold them without a lock: what is deleted meanwhile can still be read to its end. Thread-safe.
    """

    __slots__ = ("_holders", "_mutex", "index", "log")

    def __init__(self, log: File, index: File) -> None:
        self.log = log
        self.index = index
        self._holders = 1
        self._mutex = threading.Lock()

    def hold(self) -> None:
        with self._mutex:
            assert self._holders, "closed handles are not taken up again"
            self._holders += 1

    def let_go(self) -> None:
        with self._mutex:
            assert self._holders, "let go once too often"
            self._holders -= 1
            if self._holders:
                return
        self.index.close()
        self.log.close()


def open_files(fs: Fs, directory: str, start_offset: int, *, is_writable: bool) -> SegmentFiles:
    mode: OpenMode = "write" if is_writable else "read"
    log = fs.open(segment_path(directory, start_offset, LOG), mode)
    try:
        return SegmentFiles(log, fs.open(segment_path(directory, start_offset, INDEX), mode))
    except OSError:
        log.close()
        raise


def create_files(fs: Fs, directory: str, start_offset: int, codec: Codec) -> SegmentFiles:
    """An empty pair. The caller syncs the directory before anybody relies on it.

    What an earlier try or an interrupted delete left is taken up: a log that is empty, an index without a log.
    """
    write_codec(fs, directory, start_offset, codec)
    log = _create_or_open(fs, segment_path(directory, start_offset, LOG))
    try:
        if log.size():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), log.path)
        index = _create_or_open(fs, segment_path(directory, start_offset, INDEX))
        if index.size():
            index.truncate(0)
        return SegmentFiles(log, index)
    except OSError:
        log.close()
        raise


def _create_or_open(fs: Fs, path: str) -> File:
    return fs.open(path, "write" if fs.exists(path) else "create")


def write_codec(fs: Fs, directory: str, start_offset: int, codec: Codec) -> None:
    """Notes the algorithm of a segment that holds no message yet, durably."""
    path = segment_path(directory, start_offset, CODEC)
    if codec is not Codec.NONE:
        write_atomic(fs, path, codec.value.encode("ascii"))
    elif fs.exists(path):
        fs.unlink(path)
        fs.sync_dir(directory)


def read_codec(fs: Fs, directory: str, start_offset: int) -> Codec:
    path = segment_path(directory, start_offset, CODEC)
    if not fs.exists(path):
        return Codec.NONE
    try:
        return Codec.from_file(read_file(fs, path))
    except BadFrame as error:
        raise StartRefused(f"{path}: {error.message}") from error


def remove_side_files(fs: Fs, directory: str, start_offsets: Sequence[int]) -> None:
    """What belongs to logs that are unlinked: those first become durably gone (rule 1)."""
    fs.sync_dir(directory)
    for start_offset in start_offsets:
        for suffix in (INDEX, CODEC):
            path = segment_path(directory, start_offset, suffix)
            if fs.exists(path):
                fs.unlink(path)
    fs.sync_dir(directory)


def list_segments(fs: Fs, directory: str) -> list[int]:
    """Start offsets of the segments that are there, rising. Nothing is changed."""
    return segment_starts(fs.listdir(directory))


def find_segments(fs: Fs, directory: str) -> list[int]:
    """The same, for a start: leftovers of a crash are removed on the way."""
    found: dict[str, set[int]] = {LOG: set(), INDEX: set(), CODEC: set()}
    unlinked = False
    for name in fs.listdir(directory):
        match = SEGMENT_FILE.fullmatch(name)
        if match is None:
            if name != OFFSETS_FOLDER:
                logger.warning("%s/%s: not the name of a segment's file; ignored", directory, name)
        elif match[3]:
            fs.unlink(f"{directory}/{name}")
            unlinked = True
        else:
            found[match[2]].add(int(match[1]))
    for suffix in (INDEX, CODEC):
        for start_offset in sorted(found[suffix] - found[LOG]):
            path = segment_path(directory, start_offset, suffix)
            logger.warning("%s: removed, there is no %s beside it", path, LOG)
            fs.unlink(path)
            unlinked = True
    if unlinked:
        fs.sync_dir(directory)
    return sorted(found[LOG])

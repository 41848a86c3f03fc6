"""The files of a segment: the handles that the writer and the readers share; how files are created and removed.

Rules of this file:

1. `.codec` is durable before `.log` exists, and is deleted after the deletion of `.log` is durable. A `.log` without
   `.codec` would be read as uncompressed.
2. `.log` is deleted first. A crash then may leave an `.index` without a log, which a start removes, but never messages
   that were deleted.
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
    """Open handles of `.log` and `.index`. They close when the last holder lets go.

    A reader holds them without a lock: it can read a segment to its end while the segment is deleted. Thread-safe.
    """

    __slots__ = ("_holders", "_mutex", "index", "log")

    def __init__(self, log: File, index: File) -> None:
        self.log = log
        self.index = index
        self._holders = 1
        self._mutex = threading.Lock()

    def hold(self) -> None:
        with self._mutex:
            assert self._holders, "closed handles cannot be held again"
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
    """Creates an empty pair. The caller syncs the directory before it relies on the files.

    An empty log, or an index without a log, that an earlier try or an interrupted delete left is used again.
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
    """Notes the codec of a segment without messages, durably."""
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
    """Removes `.index` and `.codec` of unlinked logs, after the deletion of the logs is durable (rule 1)."""
    fs.sync_dir(directory)
    for start_offset in start_offsets:
        for suffix in (INDEX, CODEC):
            path = segment_path(directory, start_offset, suffix)
            if fs.exists(path):
                fs.unlink(path)
    fs.sync_dir(directory)


def list_segments(fs: Fs, directory: str) -> list[int]:
    """The start offsets of all segments in the directory, in rising order. Changes nothing."""
    return segment_starts(fs.listdir(directory))


def find_segments(fs: Fs, directory: str) -> list[int]:
    """The same for a start: it also removes what a crash left."""
    found: dict[str, set[int]] = {LOG: set(), INDEX: set(), CODEC: set()}
    unlinked = False
    for name in fs.listdir(directory):
        match = SEGMENT_FILE.fullmatch(name)
        if match is None:
            if name != OFFSETS_FOLDER:
                logger.warning("%s/%s: not the name of a segment file; ignored", directory, name)
        elif match[3]:
            fs.unlink(f"{directory}/{name}")
            unlinked = True
        else:
            found[match[2]].add(int(match[1]))
    for suffix in (INDEX, CODEC):
        for start_offset in sorted(found[suffix] - found[LOG]):
            path = segment_path(directory, start_offset, suffix)
            logger.warning("%s: removed, because it has no %s", path, LOG)
            fs.unlink(path)
            unlinked = True
    if unlinked:
        fs.sync_dir(directory)
    return sorted(found[LOG])

"""Settling a WAL shard: what a start does after the replay and before it serves.

`settle` cuts the torn tail and keeps the cut bytes in a `.torn` file beside the log. Then it writes every frame after
the last sync mark again in place and syncs, because after a failed sync the page cache may hold bytes that the disk
never got.

Frames that are written again may have been acknowledged long ago, and a power cut can leave anything in a sector that
is being written. So a copy of them is in a `.rewrite` file beside the log meanwhile. A start that finds such a file
writes it back (`finish_rewrites`) before it reads the log.
"""

import logging

from topics.errors import StartRefused
from topics.storage import layout
from topics.storage.fs import NO_SPACE, File, Fs, read_file, write_all, write_atomic
from topics.storage.wal.reader import ShardEnd

logger = logging.getLogger(__name__)


def settle(fs: Fs, end: ShardEnd) -> None:
    """Cuts the torn tail (its bytes kept beside) and makes the rest durable. Doing it twice changes nothing.

    Raises `OSError` when there is no room to keep the cut bytes; then nothing was cut. A failed sync is final.
    """
    assert end.path is not None
    file = fs.open(end.path, "write")
    try:
        # First sync the writes that a killed process left in the page cache: that needs no room on the disk.
        sync_log(file)
        offset = end.position.offset
        if end.torn_end:
            _keep_torn(fs, file, offset, end.torn_end)
            size = file.size()
            cut_log(file, offset)
            sync_log(file)
            logger.warning("%s: cut a torn tail of %d bytes at offset %d", end.path, end.torn_end - offset, offset)
            end.torn_end = 0
            file.preallocate(size)
        if end.rewrite_offset < offset:
            _rewrite(fs, file, end.rewrite_offset, offset)
        sync_log(file)
    finally:
        file.close()
    # Sync the name too: the process that made the file may have been killed before it could.
    fs.sync_dir(end.path.rpartition("/")[0])


def cut_log(file: File, offset: int) -> None:
    """Cuts a log file. An empty log file is damage (`missing_files`), so a zero byte stays where all else is cut."""
    file.truncate(max(offset, 1))
    if offset == 0:
        try:
            write_all(file, b"\0", 0)
        except OSError as error:
            # The next frame overwrites the byte. Until then it is a torn tail.
            if error.errno not in NO_SPACE:
                raise


def sync_log(file: File) -> None:
    """After a failure the page cache may hold what the disk never got, so there is no second try."""
    try:
        file.fsync()
    except OSError as error:
        raise StartRefused(f"{file.path}: cannot sync the end of the log: {error.strerror}") from error


def _keep_torn(fs: Fs, file: File, offset: int, torn_end: int) -> None:
    path = f"{file.path}.{offset}{layout.TORN}"
    torn = file.pread(torn_end - offset, offset)
    again = 1
    while fs.exists(path):
        if read_file(fs, path) == torn:
            return
        again += 1
        path = f"{file.path}.{offset}-{again}{layout.TORN}"
    try:
        write_atomic(fs, path, torn)
    except OSError:
        if fs.exists(path + layout.TEMPORARY):
            fs.unlink(path + layout.TEMPORARY)
        raise


def _rewrite(fs: Fs, file: File, first: int, end: int) -> None:
    tail = file.pread(end - first, first)
    copy = f"{file.path}.{first}{layout.REWRITE}"
    try:
        write_atomic(fs, copy, tail)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        # Writing again without the copy is better than not writing again: readers are about to see these records.
        logger.warning("%s: no room for a copy of its end", file.path)
    write_all(file, tail, first)
    sync_log(file)
    for path in (copy, copy + layout.TEMPORARY):
        if fs.exists(path):
            fs.unlink(path)
            fs.sync_dir(path.rpartition("/")[0])


def finish_rewrites(fs: Fs, directory: str) -> None:
    """Writes back the copies that an interrupted `settle` left. They are whole: they got their names when synced."""
    for name in fs.listdir(directory) if fs.exists(directory) else []:
        found = layout.rewrite_of(name)
        if found is None:
            continue
        log, offset = found
        if fs.exists(f"{directory}/{log}"):
            file = fs.open(f"{directory}/{log}", "write")
            try:
                write_all(file, read_file(fs, f"{directory}/{name}"), offset)
                sync_log(file)
            finally:
                file.close()
        fs.unlink(f"{directory}/{name}")
        fs.sync_dir(directory)

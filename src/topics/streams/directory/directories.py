"""The folders of a data directory: their paths, and how they are removed.

A folder is renamed to `<name>.deleted` before its files are unlinked, so that a half deleted folder is never taken for
a whole one; the next start finishes the removal. A folder in the place of a new one that the state log does not know is
not deleted: it is renamed to `<name>.set-aside-<number>`, with a warning.
"""

import logging
from typing import Final

from topics.errors import StartRefused
from topics.formats.stream_layout import LOCK_FILE, StreamKeys
from topics.interpreter import require_asserts
from topics.storage.fs import Fs, Lock
from topics.streams.settings import StreamsSettings

logger = logging.getLogger(__name__)

DELETED: Final = ".deleted"
SET_ASIDE: Final = ".set-aside-"


def take_lock(fs: Fs, root: str) -> Lock:
    """Makes the directory if it is missing, and takes its lock: one process at a time has it open."""
    require_asserts()
    fs.makedirs(root)
    lock = fs.lock(f"{root}/{LOCK_FILE}")
    if lock is None:
        raise StartRefused(f"{root} is in use by another process")
    return lock


class Directories:
    """Folders by their keys (`StreamKeys`)."""

    def __init__(self, fs: Fs, root: str, settings: StreamsSettings) -> None:
        self.root = root
        self._fs = fs
        system = settings.system
        self.keys = StreamKeys(streams=system.stream.path, topics=system.topic.path, partitions=system.partition.path)

    def path(self, key: str) -> str:
        return f"{self.root}/{key}"

    def exists(self, key: str) -> bool:
        return self._fs.exists(self.path(key))

    def names(self, key: str) -> list[str]:
        """The names in the folder; none if the folder is missing."""
        return self._fs.listdir(self.path(key)) if self.exists(key) else []

    def make_room(self, key: str) -> None:
        """Before a folder is made: renames a folder that a crash or a person left in its place."""
        path = self.path(key)
        if not self._fs.exists(path):
            return
        number = 1
        while self._fs.exists(f"{path}{SET_ASIDE}{number}"):
            number += 1
        target = f"{path}{SET_ASIDE}{number}"
        self._fs.rename(path, target)
        self._fs.sync_dir(path.rpartition("/")[0])
        logger.warning("%s is not in the state log and was in the way of a new folder; renamed to %s", path, target)

    def remove(self, key: str) -> None:
        """Removes a folder with everything in it. A crash after the rename does not bring it back."""
        path = self.path(key)
        if not self._fs.exists(path):
            return
        doomed = path + DELETED
        if self._fs.exists(doomed):
            self._unlink_all(doomed)
        self._fs.rename(path, doomed)
        self._fs.sync_dir(path.rpartition("/")[0])
        self._unlink_all(doomed)
        self._fs.sync_dir(path.rpartition("/")[0])

    def finish_removals(self, key: str) -> None:
        """At a start: finishes the removal of folders in this folder."""
        doomed = [name for name in self.names(key) if name.endswith(DELETED)]
        for name in doomed:
            self._unlink_all(self.path(f"{key}/{name}"))
        if doomed:
            self._fs.sync_dir(self.path(key))

    def _unlink_all(self, path: str) -> None:
        for name in self._fs.listdir(path):
            child = f"{path}/{name}"
            if self._is_folder(child):
                self._unlink_all(child)
            else:
                self._fs.unlink(child)
        self._fs.rmdir(path)

    def _is_folder(self, path: str) -> bool:
        try:
            self._fs.size(path)
        except IsADirectoryError:
            return True
        return False

"""Where things are in a data directory, and how folders of what was deleted go.

A folder is renamed to `<name>.deleted` before its files are unlinked, so that what is half gone is never taken for
something; a start finishes what was left. A folder that stands where a new one belongs, and that no state knows of, is
not ours to delete: it is set aside under a name of its own, with a warning.
"""

import logging
from typing import Final

from topics.errors import StartRefused
from topics.formats.stream_layout import LOCK_FILE, StreamKeys
from topics.storage.fs import Fs, Lock
from topics.streams.settings import StreamsSettings

logger = logging.getLogger(__name__)

DELETED: Final = ".deleted"
SET_ASIDE: Final = ".set-aside-"


def take_lock(fs: Fs, root: str) -> Lock:
    """One process at a time has the directory, which is made when it is missing."""
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
        """What stands in the folder; nothing when there is none."""
        return self._fs.listdir(self.path(key)) if self.exists(key) else []

    def make_room(self, key: str) -> None:
        """For a folder that is about to be made: what a crash or a person left in its place goes out of the way."""
        path = self.path(key)
        if not self._fs.exists(path):
            return
        number = 1
        while self._fs.exists(f"{path}{SET_ASIDE}{number}"):
            number += 1
        target = f"{path}{SET_ASIDE}{number}"
        self._fs.rename(path, target)
        self._fs.sync_dir(path.rpartition("/")[0])
        logger.warning("%s belonged to nothing and was in the way: it is %s now", path, target)

    def remove(self, key: str) -> None:
        """A folder with everything in it. Gone for good once its name is, also when the machine stops right then."""
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
        """At start: whatever was being deleted in this folder."""
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

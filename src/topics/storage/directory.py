"""The data directory as a whole: the lock, the store id, required folders, leftovers that are removed.

The lock file also notes the boot id of the last start that finished its recovery. Another boot id (or none)
means that the machine went down meanwhile, so that bytes that were written but not synced may be gone. The boot id is
noted only after recovery has made its conclusions durable: after a kill in between, the next start must not believe
that only the process died.
"""

import logging
import os
import secrets
import socket
import threading

import msgspec

from topics.clock import Clock
from topics.errors import ColdUnavailable, DirectoryLocked, StartRefused, StorageFull
from topics.interpreter import require_asserts
from topics.limits import LOCK_WAIT_MS
from topics.storage import layout
from topics.storage.fs import NO_SPACE, Fs, Lock, read_file, write_all
from topics.storage.tiers.folder_store import FolderStore
from topics.storage.tiers.store_id import ensure_store_id, read_store_id

logger = logging.getLogger(__name__)


class Holder(msgspec.Struct, frozen=True):
    """Content of the lock file."""

    pid: int = 0
    host: str = ""
    boot_id: str = ""


class DataDirectory:
    """An exclusively locked data directory."""

    def __init__(self, fs: Fs, root: str, lock: Lock, before: Holder, store_id: str) -> None:
        self.fs = fs
        self.root = root
        self.lock = lock
        self.store_id = store_id
        self._boot_id = fs.boot_id()
        # Whether the machine may have gone down since the last start that finished its recovery.
        self.power_was_lost = not self._boot_id or self._boot_id != before.boot_id

    def note_recovered(self) -> None:
        """Notes the boot id: from now on the next start knows that a kill of this process was not a power loss.

        On a full disk it may stay unwritten. Then the next start takes a kill for a power loss, which is safe.
        """
        try:
            _write_holder(self.fs, self.lock.path, Holder(os.getpid(), socket.gethostname(), self._boot_id))
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            logger.warning("%s: no room to note this boot", self.lock.path)

    def release(self) -> None:
        self.lock.release()


def open_directory(fs: Fs, root: str, clock: Clock) -> DataDirectory:
    """Creates what is missing and takes the lock. Raises `StartRefused` with the reason."""
    require_asserts()
    lock_path = f"{root}/{layout.LOCK}"
    lock: Lock | None = None
    try:
        refuse_streams(fs, root)
        fs.makedirs(root)
        lock = _take_lock(fs, lock_path, clock)
        before = _read_holder(fs, lock_path)
        for directory in (layout.meta_directory(root), layout.wal_directory(root), layout.topics_directory(root)):
            fs.makedirs(directory)
            # A killed process may have left names here that are only in the page cache.
            fs.sync_dir(directory)
        store_id = _store_id(fs, root)
        fs.sync_dir(root)
        fs.sync_dir(os.path.dirname(root) or ".")
        # The pid is for the message to a second process. The boot id of the last finished recovery stays.
        _note_pid(fs, lock_path, before)
        _remove_temporaries(fs, root)
    except OSError as error:
        _let_go(lock)
        raise _unusable(root, error) from error
    except (ColdUnavailable, StorageFull) as error:
        _let_go(lock)
        raise StartRefused(f"cannot use the data directory {root}: {error.message}") from error
    except BaseException:
        _let_go(lock)
        raise
    return DataDirectory(fs, root, lock, before, store_id)


def refuse_streams(fs: Fs, root: str) -> None:
    """Two engines in one directory would report, and perhaps remove, files of each other."""
    try:
        found = [path for path in layout.streams_state_logs(root) if fs.exists(path)]
    except OSError as error:
        raise _unusable(root, error) from error
    if found:
        raise StartRefused(
            f"{root} is a data directory of streams: it has {found[0].removeprefix(root + '/')}; choose another data "
            "directory, and give this one to the server as the directory of its streams (TOPICS_STREAMS_DIR)"
        )


def _unusable(root: str, error: OSError) -> StartRefused:
    where = f"{error.filename}: " if error.filename else ""
    return StartRefused(f"cannot use the data directory {root}: {where}{error.strerror or error}")


def _take_lock(fs: Fs, path: str, clock: Clock) -> Lock:
    deadline_ms = clock.monotonic_ms() + LOCK_WAIT_MS
    pause = threading.Event()
    while True:
        lock = fs.lock(path)
        if lock is not None:
            return lock
        holder = _read_holder(fs, path)
        if (holder.pid and _is_alive(holder)) or clock.monotonic_ms() > deadline_ms:
            raise DirectoryLocked(
                f"{path.rpartition('/')[0]} is in use by process {holder.pid} on {holder.host or 'this machine'}; "
                "stop it first, or choose another data directory"
            )
        # The worker of a killed server has not ended yet.
        pause.wait(0.02)


def _let_go(lock: Lock | None) -> None:
    if lock is not None:
        lock.release()


def _is_alive(holder: Holder) -> bool:
    if holder.host and holder.host != socket.gethostname():
        return True
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _read_holder(fs: Fs, path: str) -> Holder:
    try:
        return msgspec.json.decode(read_file(fs, path), type=Holder)
    except (msgspec.DecodeError, UnicodeDecodeError, FileNotFoundError):
        return Holder()


def _write_holder(fs: Fs, path: str, holder: Holder) -> None:
    """Writes in place: the lock is on the file, so the file cannot be replaced. Torn content reads as unknown."""
    file = fs.open(path, "write")
    try:
        content = msgspec.json.encode(holder)
        write_all(file, content.ljust(max(file.size(), len(content))), 0)
        file.fsync()
    finally:
        file.close()


def _note_pid(fs: Fs, path: str, before: Holder) -> None:
    try:
        _write_holder(fs, path, Holder(os.getpid(), socket.gethostname(), before.boot_id))
    except OSError as error:
        logger.warning("%s: cannot note the holder: %s", path, error.strerror)


def _store_id(fs: Fs, root: str) -> str:
    store = FolderStore(fs, root)
    found = read_store_id(store)
    if found is not None:
        return found
    store_id = secrets.token_hex(16)
    ensure_store_id(store, store_id)
    return store_id


def _remove_temporaries(fs: Fs, root: str) -> None:
    """Half-written files are never loaded, so they can go."""
    wal, topics = layout.wal_directory(root), layout.topics_directory(root)
    shards = [f"{wal}/{name}" for name in fs.listdir(wal) if layout.shard_of(name) is not None]
    topic_directories = [f"{topics}/{name}" for name in fs.listdir(topics) if layout.topic_of(name) is not None]
    for directory in (root, layout.meta_directory(root), wal, *shards, *topic_directories):
        for name in fs.listdir(directory):
            if name.endswith(layout.TEMPORARY):
                fs.unlink(f"{directory}/{name}")

"""The stored offsets of one partition: one number for each consumer and group, in memory and in a file each.

    offsets/consumers/{id}    offsets/groups/{id}    8 bytes: the offset of the last processed message, u64 LE

A store overwrites the 8 bytes in place and does not sync. A power loss may undo it: then the consumer gets messages
again. No failure here may make a consumer *skip* messages:

1. A file that is too short is ignored with a warning, and its consumer starts at the first message.
2. A removal is durable before it counts. An offset that came back after a purge would point into newer messages.
3. An offset above the last message is lowered to the last message, durably in the file as well. It happens when a crash
   took unsaved messages. Once the partition has grown past the offset, it could not be recognised as stale.
4. A store that fails leaves the old offset in memory and, if the disk still takes writes, in the file.

Any thread may call; one lock keeps memory and files the same.
"""

import logging
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from enum import IntEnum
from struct import Struct
from typing import Final

from xxhash import xxh32_intdigest

from topics.errors import StartRefused
from topics.formats.stream_layout import OFFSETS_FOLDER
from topics.limits import U64_MAX
from topics.storage.fs import File, Fs, read_file, write_all
from topics.stream_errors import StreamsError, StreamStatus

logger = logging.getLogger(__name__)

U32_MAX: Final = 2**32 - 1

_OFFSET: Final = Struct("<Q")


class ConsumerKind(IntEnum):
    """What kind of reader an offset belongs to. The wire protocol uses the same numbers."""

    CONSUMER = 1
    GROUP = 2


_FOLDERS: Final = {ConsumerKind.CONSUMER: "consumers", ConsumerKind.GROUP: "groups"}


def consumer_file_id(identifier: int | str) -> int:
    """The name of a consumer's file: its number, or a hash of its name."""
    if isinstance(identifier, str):
        return xxh32_intdigest(identifier.encode(), seed=0)
    if not 0 <= identifier <= U32_MAX:
        raise StreamsError(
            StreamStatus.INVALID_IDENTIFIER, f"{identifier} is not the id of a consumer: an id has 32 bits"
        )
    return identifier


def check_offset(offset: int, *, current_offset: int, has_messages: bool) -> None:
    """Raises if a client may not store this offset. An auto-commit is not checked: its message was just read."""
    if not has_messages:
        raise StreamsError(
            StreamStatus.INVALID_OFFSET, f"offset {offset} cannot be stored: the partition has no messages"
        )
    if not 0 <= offset <= current_offset:
        raise StreamsError(
            StreamStatus.INVALID_OFFSET,
            f"offset {offset} is not between 0 and {current_offset}, the offset of the last message",
        )


class ConsumerOffsets:
    """`directory` is that of the partition. The first store makes folders in it."""

    def __init__(self, fs: Fs, directory: str) -> None:
        self._fs = fs
        self._root = f"{directory}/{OFFSETS_FOLDER}"
        self._lock = threading.Lock()
        self._offsets: dict[ConsumerKind, dict[int, int]] = {kind: {} for kind in ConsumerKind}
        self._is_dropped = False

    @classmethod
    def open(cls, fs: Fs, directory: str) -> "ConsumerOffsets":
        """Reads all files. One that cannot be read refuses the start: it must not count as missing."""
        offsets = cls(fs, directory)
        for kind in ConsumerKind:
            try:
                offsets._load(kind)
            except OSError as error:
                raise StartRefused(f"{offsets._folder(kind)}: cannot read the stored offsets: {error}") from error
        return offsets

    def get(self, kind: ConsumerKind, consumer_id: int) -> int | None:
        return self._offsets[kind].get(consumer_id)

    def ids(self, kind: ConsumerKind) -> list[int]:
        """The ids that have a stored offset."""
        with self._lock:
            return sorted(self._offsets[kind])

    def minimum(self) -> int | None:
        """The smallest stored offset, for retention that keeps unread segments."""
        with self._lock:
            return min((offset for offsets in self._offsets.values() for offset in offsets.values()), default=None)

    def store(self, kind: ConsumerKind, consumer_id: int, offset: int) -> None:
        """Stores any offset, smaller ones too. `check_offset` checks offsets that clients name."""
        assert 0 <= offset <= U64_MAX, "offsets are u64"
        with self._lock, _storage_errors("store the offset"):
            self._check_not_dropped()
            self._write(kind, consumer_id, offset)
            self._offsets[kind][consumer_id] = offset

    def delete(self, kind: ConsumerKind, consumer_id: int) -> None:
        with self._lock, _storage_errors("delete the offset"):
            self._check_not_dropped()
            if consumer_id not in self._offsets[kind]:
                raise StreamsError(
                    StreamStatus.CONSUMER_OFFSET_NOT_FOUND, f"{kind.name.lower()} {consumer_id} has no stored offset"
                )
            self._remove(kind, [str(consumer_id)])

    def discard(self, kind: ConsumerKind, consumer_id: int) -> None:
        """Deletes the offset if there is one, for a group that is deleted or gets the id of an earlier group."""
        with self._lock, _storage_errors("delete the offset"):
            self._check_not_dropped()
            if consumer_id in self._offsets[kind] or self._fs.exists(self._path(kind, consumer_id)):
                self._remove(kind, [str(consumer_id)])

    def keep_groups(self, group_ids: Collection[int]) -> None:
        """At a start: drops the offsets of deleted groups. A crash can come between the deletion of a group and that of
        its files, and the next group with this id must not begin where the old one stopped."""
        with self._lock, _storage_errors("delete offsets of deleted groups"):
            stale = [group_id for group_id in self._offsets[ConsumerKind.GROUP] if group_id not in group_ids]
            if stale:
                logger.warning("%s: dropped offsets of groups that do not exist: %s", self._root, sorted(stale))
                self._remove(ConsumerKind.GROUP, [str(group_id) for group_id in stale])

    def delete_all(self) -> None:
        """Deletes every file of both folders, ignored ones too."""
        with self._lock, _storage_errors("delete all offsets"):
            for kind in ConsumerKind:
                names = self._names(kind)
                if names:
                    self._remove(kind, names)
                self._offsets[kind].clear()

    def clamp(self, current_offset: int, *, has_messages: bool = True) -> None:
        """At a start: lowers offsets above the last recovered message to it, and drops all offsets of a partition
        without messages. A file that cannot be changed is logged."""
        with self._lock:
            for kind, offsets in self._offsets.items():
                for consumer_id, offset in list(offsets.items()):
                    if not has_messages:
                        logger.warning("%s: offset %d, but no messages; dropped", self._path(kind, consumer_id), offset)
                        del offsets[consumer_id]
                        self._update_file(kind, consumer_id, None)
                    elif offset > current_offset:
                        logger.warning(
                            "%s: offset %d is beyond the last message; lowered to %d",
                            self._path(kind, consumer_id),
                            offset,
                            current_offset,
                        )
                        offsets[consumer_id] = current_offset
                        self._update_file(kind, consumer_id, current_offset)

    def drop(self) -> None:
        """The partition is deleted: later stores are refused, because another partition may get the same folder."""
        with self._lock:
            self._is_dropped = True

    def _check_not_dropped(self) -> None:
        if self._is_dropped:
            raise StreamsError(StreamStatus.PARTITION_NOT_FOUND, "the partition was deleted")

    # Files. The caller holds the lock.

    def _folder(self, kind: ConsumerKind) -> str:
        return f"{self._root}/{_FOLDERS[kind]}"

    def _path(self, kind: ConsumerKind, consumer_id: int) -> str:
        return f"{self._folder(kind)}/{consumer_id}"

    def _names(self, kind: ConsumerKind) -> list[str]:
        try:
            return self._fs.listdir(self._folder(kind))
        except FileNotFoundError:
            return []

    def _load(self, kind: ConsumerKind) -> None:
        for name in self._names(kind):
            path = f"{self._folder(kind)}/{name}"
            consumer_id = _parse_id(name)
            if consumer_id is None:
                logger.warning("%s: the name is not the id of a consumer or group; ignored", path)
                continue
            data = read_file(self._fs, path)
            if len(data) < _OFFSET.size:
                logger.warning(
                    "%s: %d bytes instead of %d; ignored, its consumer starts at the first message",
                    path,
                    len(data),
                    _OFFSET.size,
                )
                continue
            self._offsets[kind][consumer_id] = _OFFSET.unpack_from(data)[0]

    def _write(self, kind: ConsumerKind, consumer_id: int, offset: int, *, must_be_durable: bool = False) -> None:
        path = self._path(kind, consumer_id)
        try:
            file = self._fs.open(path, "write")
        except FileNotFoundError:
            self._create(kind, path, offset)
            return
        try:
            try:
                write_all(file, _OFFSET.pack(offset), 0)
            except OSError:
                self._undo_write(kind, consumer_id, file)
                raise
            if must_be_durable:
                file.fsync()
        finally:
            file.close()

    def _create(self, kind: ConsumerKind, path: str, offset: int) -> None:
        self._fs.makedirs(self._folder(kind))
        file = self._fs.open(path, "create")
        try:
            write_all(file, _OFFSET.pack(offset), 0)
            # Once for each consumer: a power loss may take a newer offset, but not the file.
            self._fs.sync_dir(self._folder(kind))
        except OSError:
            self._drop_file(path)
            raise
        finally:
            file.close()

    def _undo_write(self, kind: ConsumerKind, consumer_id: int, file: File) -> None:
        """Writes the old offset back: half of a new number and half of an old one may be larger than both."""
        path = self._path(kind, consumer_id)
        old = self._offsets[kind].get(consumer_id)
        if old is not None:
            try:
                write_all(file, _OFFSET.pack(old), 0)
                return
            except OSError as error:
                logger.warning("%s: the old offset cannot be written back: %s", path, error)
        self._drop_file(path)

    def _drop_file(self, path: str) -> None:
        try:
            self._fs.unlink(path)
            self._fs.sync_dir(path.rpartition("/")[0])
        except OSError as error:
            # The caller reports the error of the write.
            logger.warning("%s: holds an offset that was not stored, and cannot be removed: %s", path, error)

    def _update_file(self, kind: ConsumerKind, consumer_id: int, offset: int | None) -> None:
        """Makes the file the same as memory."""
        try:
            if offset is None:
                self._remove(kind, [str(consumer_id)])
            else:
                self._write(kind, consumer_id, offset, must_be_durable=True)
        except OSError as error:
            logger.warning("%s: the file could not be changed: %s", self._path(kind, consumer_id), error)

    def _remove(self, kind: ConsumerKind, names: list[str]) -> None:
        """Memory forgets an offset after the removal of its file is durable, so that a failed removal can be tried
        again."""
        folder = self._folder(kind)
        for name in names:
            try:
                self._fs.unlink(f"{folder}/{name}")
            except FileNotFoundError:
                pass
        self._fs.sync_dir(folder)
        for name in names:
            if (consumer_id := _parse_id(name)) is not None:
                self._offsets[kind].pop(consumer_id, None)


def _parse_id(name: str) -> int | None:
    """The id of a decimal u32 without leading zeros: `007` would be a second file of consumer 7."""
    if not (name.isascii() and name.isdecimal() and len(name) <= 10):
        return None
    consumer_id = int(name)
    return consumer_id if consumer_id <= U32_MAX and str(consumer_id) == name else None


@contextmanager
def _storage_errors(action: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StreamsError(StreamStatus.IO_ERROR, f"cannot {action}: {error}") from error

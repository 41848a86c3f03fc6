"""The objects of a backup in a folder or a bucket.

Several processes may use one backup at the same time: an object has the same content whichever of them writes it, and
points are put only where there is none.
"""

from collections.abc import Collection
from typing import Final

from topics.backup import format as codec
from topics.backup.format import Point, StoredFile, TopicEntry
from topics.errors import Damaged, StartRefused
from topics.formats.segment import SegmentColumns
from topics.storage.fs import Buffer, Fs
from topics.storage.tiers.addresses import open_shared_store
from topics.storage.tiers.store import SharedStore

# Leftovers of puts that a killed process did not finish are removed when they are so old.
UNFINISHED_MS_MAX: Final = 24 * 3600 * 1000


class BackupStore:
    """`claim` is for programs that add to the backup, all other methods are for readers too."""

    def __init__(self, store: SharedStore) -> None:
        self._store = store
        # Objects that are known to be there, and their sizes. Filled by `claim`.
        self._sizes: dict[str, int] = {}
        # Objects that this run has found and uses, and that may not be durable.
        self._used: set[str] = set()

    @property
    def address(self) -> str:
        return self._store.address

    def close(self) -> None:
        self._store.close()

    # The backup as a whole.

    def store_id(self) -> str | None:
        """The store that this is a backup of; None when there is no backup here."""
        content = self._read(codec.MARK)
        return None if content is None else codec.decode_mark(self._where(codec.MARK), content).store_id

    def require(self) -> str:
        """The store id. Raises `StartRefused` when there is no backup here."""
        store_id = self.store_id()
        if store_id is None:
            raise StartRefused(f"{self.address} has no backup: there is no object {codec.MARK}")
        return store_id

    def claim(self, store_id: str, now_ms: int) -> None:
        """Makes this place a backup of the store, or checks that it is one. Raises `StartRefused` if it is another's.

        A place with other objects is not made a backup.
        """
        found = self.store_id()
        if found is None:
            others = self._store.list("")
            if others:
                raise StartRefused(
                    f'{self.address} is not empty, and it is no backup: it has "{others[0]}"; give an empty place'
                )
            self._store.put_if_absent(codec.MARK, codec.encode_mark(store_id))
            found = self.store_id()
        if found != store_id:
            raise StartRefused(
                f"{self.address} is the backup of another data directory: its {codec.MARK} says {found}, this one is "
                f"{store_id}; give each data directory a backup of its own"
            )
        self._store.remove_unfinished(now_ms - UNFINISHED_MS_MAX)
        self._sizes = {entry.name: entry.size_bytes for entry in self._store.entries("")}

    def settle(self) -> None:
        """Makes the objects durable that this run uses and that another run left: it may have died before they were."""
        self._store.settle([codec.MARK, *self._used])
        self._used.clear()

    # Points and entries.

    def point_names(self) -> list[str]:
        """Oldest first."""
        return self._store.list(codec.POINTS)

    def point(self, name: str) -> Point:
        return codec.decode_point(self._where(name), self._require(name))

    def entry(self, name: str) -> TopicEntry:
        return codec.decode_entry(self._where(name), name, self._require(name))

    def put_entry(self, topic_id: int, entry: TopicEntry, known: Collection[str]) -> str:
        """Stores an entry if it is not there yet, and reads it back. Returns its name. The `known` entries are durable,
        because a point has them."""
        content = codec.encode_entry(entry)
        name = codec.entry_name(topic_id, content)
        if self._sizes.get(name) != len(content):
            self._put(name, content)
        elif name not in known:
            self._used.add(name)
        codec.decode_entry(self._where(name), name, self._require(name))
        return name

    def put_point(self, point: Point) -> str:
        """Stores the point, and reads it back. Returns its name. Two points of one millisecond get two names."""
        content = codec.encode_point(point)
        ts = point.ts
        while True:
            name = codec.point_name(ts)
            if self._store.put_if_absent(name, content) or self._require(name) == content:
                codec.decode_point(self._where(name), self._require(name))
                return name
            ts += 1

    # Files.

    def has(self, file: StoredFile) -> bool:
        """Whether the object was there, with the right size, at `claim` or since."""
        return self._sizes.get(file.name) == file.size_bytes

    def put_new_file(self, file: StoredFile, data: Buffer) -> bool:
        """Stores the file; False when there is an object of that name, also one that another process has just put."""
        if file.name in self._sizes or not self._store.put_if_absent(file.name, data):
            self._used.add(file.name)
            return False
        self._sizes[file.name] = len(data)
        return True

    def replace_file(self, file: StoredFile, data: Buffer) -> None:
        self._put(file.name, data)

    def check(self, file: StoredFile) -> SegmentColumns:
        """Reads a file and checks every byte of it. Raises `Damaged`."""
        return self.read(file)[1]

    def read(self, file: StoredFile) -> tuple[bytes, SegmentColumns]:
        """The bytes of a file and its frames, every byte checked. Raises `Damaged`."""
        data = self._require(file.name)
        return data, codec.check_file(self._where(file.name), file, data)

    def content(self, name: str) -> bytes | None:
        """The bytes of an object, not checked; None when it is missing."""
        return self._read(name)

    def _put(self, name: str, data: Buffer) -> None:
        self._store.put(name, data)
        self._sizes[name] = len(data)

    def _read(self, name: str) -> bytes | None:
        try:
            return self._store.read_range(name, 0, self._store.size(name))
        except FileNotFoundError:
            return None

    def _require(self, name: str) -> bytes:
        content = self._read(name)
        if content is None:
            raise Damaged(self._where(name), 0, "an object of the backup", "nothing")
        return content

    def _where(self, name: str) -> str:
        return f"{self.address}/{name}"


def open_backup(address: str, fs: Fs) -> BackupStore:
    """The backup at an address: a path, `file:///path` or `s3://bucket/prefix`. Touches neither disk nor network."""
    return BackupStore(open_shared_store(address, fs))

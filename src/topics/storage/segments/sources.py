"""Where the bytes of a segment come from: a map, `pread`, or a store of a tier."""

from typing import Protocol

from topics.errors import NotFetched
from topics.storage import layout
from topics.storage.fs import Buffer, File, Fs
from topics.storage.tiers.cached_store import CachedStore


class ByteSource(Protocol):
    def index(self, offset: int, size: int) -> Buffer: ...

    def data(self, offset: int, size: int) -> Buffer: ...

    def has_index(self, offset: int, size: int) -> bool:
        """Whether `index` would not wait, neither for a disk nor for a network."""
        ...

    def has_data(self, offset: int, size: int) -> bool: ...

    def close(self) -> None: ...


class MappedSource:
    """A sealed file pair in the hot tier. Sealed files are never cut, so a map of one stays valid."""

    def __init__(self, fs: Fs, stem: str) -> None:
        self._files = _open_pair(fs, stem)
        index, data = self._files
        self._index, self._data = index.map(), data.map()

    def index(self, offset: int, size: int) -> Buffer:
        return self._index[offset : offset + size]

    def data(self, offset: int, size: int) -> Buffer:
        return self._data[offset : offset + size]

    def has_index(self, offset: int, size: int) -> bool:
        return self._files[0].is_cached(size, offset)

    def has_data(self, offset: int, size: int) -> bool:
        return self._files[1].is_cached(size, offset)

    def close(self) -> None:
        for file in self._files:
            file.close()


class FileSource:
    """The active segment: it grows, so it is never mapped."""

    def __init__(self, fs: Fs, stem: str) -> None:
        self._index, self._data = _open_pair(fs, stem)

    def index(self, offset: int, size: int) -> Buffer:
        return self._index.pread(size, offset)

    def data(self, offset: int, size: int) -> Buffer:
        return self._data.pread(size, offset)

    def has_index(self, offset: int, size: int) -> bool:
        return self._index.is_cached(size, offset)

    def has_data(self, offset: int, size: int) -> bool:
        return self._data.is_cached(size, offset)

    def close(self) -> None:
        self._index.close()
        self._data.close()


class BareSource:
    """A segment without an index, while there is no room to write one."""

    def __init__(self, fs: Fs, stem: str) -> None:
        self._data: File = fs.open(f"{stem}.data", "read")

    def index(self, offset: int, size: int) -> Buffer:
        return b""

    def data(self, offset: int, size: int) -> Buffer:
        return self._data.pread(size, offset)

    def has_index(self, offset: int, size: int) -> bool:
        return True

    def has_data(self, offset: int, size: int) -> bool:
        return self._data.is_cached(size, offset)

    def close(self) -> None:
        self._data.close()


class ResidentSource:
    """A cold segment for the owner, which never waits for the tier: bytes that were not fetched raise `NotFetched`."""

    def __init__(self, store: CachedStore, topic_id: int, first_seq: int) -> None:
        self._store = store
        self._index_name = layout.segment_object(topic_id, first_seq, "idx")
        self._data_name = layout.segment_object(topic_id, first_seq, "data")

    def index(self, offset: int, size: int) -> Buffer:
        return self._resident(self._index_name, offset, size)

    def data(self, offset: int, size: int) -> Buffer:
        return self._resident(self._data_name, offset, size)

    def _resident(self, name: str, offset: int, size: int) -> Buffer:
        found = self._store.resident(name, offset, size) if size else b""
        if found is None:
            raise NotFetched(f"{name} of the cold tier is not in memory")
        return found

    def has_index(self, offset: int, size: int) -> bool:
        return self._store.has(self._index_name, offset, size)

    def has_data(self, offset: int, size: int) -> bool:
        return self._store.has(self._data_name, offset, size)

    def close(self) -> None:
        pass


class StoreSource(ResidentSource):
    """A cold segment for a thread that may wait. The index stays in memory once it was read, and the data does not."""

    def index(self, offset: int, size: int) -> Buffer:
        return self._store.fetch(self._index_name, offset, size)

    def data(self, offset: int, size: int) -> Buffer:
        return self._store.read_range(self._data_name, offset, size)


class FetchedSource(StoreSource):
    """A cold segment for a thread that may wait. All ranges stay in memory once they were read."""

    def data(self, offset: int, size: int) -> Buffer:
        return self._store.fetch(self._data_name, offset, size)


def _open_pair(fs: Fs, stem: str) -> tuple[File, File]:
    index = fs.open(f"{stem}.idx", "read")
    try:
        return index, fs.open(f"{stem}.data", "read")
    except OSError:
        # Perhaps there are no descriptors left: do not lose this one, too.
        index.close()
        raise

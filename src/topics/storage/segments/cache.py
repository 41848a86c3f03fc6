"""Open segments: which source each one is read from, and a bounded number of readers.

Hot sealed segments are read through a map, the active one by `pread`, cold ones through the store of their tier.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from topics.errors import ColdUnavailable, FormatError
from topics.formats.segment_index import ENTRY_BYTES
from topics.formats.snapshot import SegmentState
from topics.formats.tag_sidecar import TagSidecar
from topics.storage import layout
from topics.storage.fs import NO_SPACE, Fs, read_file, write_atomic
from topics.storage.segments.frame_walk import rebuild_index
from topics.storage.segments.reader import SegmentReader, build_tags
from topics.storage.segments.sources import BareSource, ByteSource, FetchedSource, FileSource, MappedSource, StoreSource
from topics.storage.tiers.cached_store import CachedStore

READERS_MAX: Final = 256


class SegmentCache:
    """Open readers. Their number is bounded, because each map keeps a file descriptor."""

    def __init__(self, fs: Fs, root: str, cold: CachedStore | None) -> None:
        self._fs = fs
        self._root = root
        self.cold = cold
        self._readers: OrderedDict[tuple[int, int], SegmentReader] = OrderedDict()

    def stem(self, topic_id: int, first_seq: int) -> str:
        return f"{layout.topic_directory(self._root, topic_id)}/{layout.segment_stem(first_seq)}"

    def reader(self, topic_id: int, state: SegmentState) -> SegmentReader:
        key = (topic_id, state.first_seq)
        reader = self._readers.get(key)
        if reader is not None:
            if reader.state is state:
                self._readers.move_to_end(key)
                return reader
            self.forget(topic_id, state.first_seq)
        reader = SegmentReader(self._source(topic_id, state), state)
        self._readers[key] = reader
        if len(self._readers) > READERS_MAX:
            self._readers.popitem(last=False)[1].close()
        return reader

    def is_open(self, topic_id: int, state: SegmentState) -> bool:
        """Whether `reader` would open no file: always for a cold segment, which has no files."""
        reader = self._readers.get((topic_id, state.first_seq))
        return state.tier == "cold" or (reader is not None and reader.state is state)

    def fetch(
        self, topic_id: int, state: SegmentState, first_seq: int, last_seq: int, bytes_max: int
    ) -> tuple[int, int]:
        """Reads this range ahead, so that a reader does not wait for it. Returns the (slots, bytes) that it covers.

        For any thread: it opens the files again. Bytes of hot files are then in the page cache of the system, bytes of
        the cold tier in the cache of `CachedStore`.
        """
        source: ByteSource
        if state.tier == "cold":
            source = FetchedSource(self._cold_store(), topic_id, state.first_seq)
        else:
            source = FileSource(self._fs, self.stem(topic_id, state.first_seq))
        try:
            # The whole index, because a reader checks the whole index before it uses an entry. It is not checked here:
            # a wrong entry only reads bytes that are not needed, and the check would take the interpreter from the
            # owner.
            index = source.index(0, state.entry_count * ENTRY_BYTES)
            if len(index) < state.entry_count * ENTRY_BYTES:
                # A reader walks the frames then.
                return last_seq - first_seq + 1, 0
            reader = SegmentReader(source, state, is_checked=True)
            reader.fetch_samples()
            slots, base, end = reader.extent(first_seq, last_seq, bytes_max)
            source.data(base, end - base)
            return slots, end - base
        finally:
            source.close()

    def _cold_store(self) -> CachedStore:
        if self.cold is None:
            raise ColdUnavailable("this segment is in a cold tier, and none is configured")
        return self.cold

    def _source(self, topic_id: int, state: SegmentState) -> ByteSource:
        if state.tier == "cold":
            return StoreSource(self._cold_store(), topic_id, state.first_seq)
        stem = self.stem(topic_id, state.first_seq)
        return _open_local(self._fs, stem, state)

    def tags(self, topic_id: int, state: SegmentState) -> TagSidecar:
        """The tag sidecar; rebuilt from the frames when it is missing or bad."""
        if state.tier == "cold":
            cold = self._cold_store()
            name = layout.segment_object(topic_id, state.first_seq, "tags")
            try:
                return TagSidecar(cold.read_range(name, 0, cold.size(name)))
            except (FileNotFoundError, FormatError):
                return TagSidecar(build_tags(self.reader(topic_id, state)))
        stem = self.stem(topic_id, state.first_seq)
        sidecar = load_tags(self._fs, stem)
        if sidecar is None:
            built = build_tags(self.reader(topic_id, state))
            write_atomic(self._fs, f"{stem}.tags", built)
            sidecar = TagSidecar(built)
        return sidecar

    def forget(self, topic_id: int, first_seq: int) -> None:
        reader = self._readers.pop((topic_id, first_seq), None)
        if reader is not None:
            reader.close()

    def forget_topic(self, topic_id: int) -> None:
        for key in [key for key in self._readers if key[0] == topic_id]:
            self._readers.pop(key).close()

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()


def _open_local(fs: Fs, stem: str, state: SegmentState) -> ByteSource:
    if not fs.exists(f"{stem}.idx") and fs.exists(f"{stem}.data"):
        try:
            rebuild_index(fs, stem, state)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            return BareSource(fs, stem)
    make: Callable[[Fs, str], ByteSource] = MappedSource if state.sealed else FileSource
    return make(fs, stem)


def load_tags(fs: Fs, stem: str) -> TagSidecar | None:
    """The sidecar of a hot segment, None when it is missing or bad."""
    path = f"{stem}.tags"
    if not fs.exists(path):
        return None
    try:
        return TagSidecar(read_file(fs, path))
    except FormatError:
        return None

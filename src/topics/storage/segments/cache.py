"""Open segments: which source each one is read from, and a bounded number of readers.

Hot sealed segments are read through a map, the active one by `pread`. Of cold segments the owner reads only what
is in memory. The methods of `SegmentCache` that say "for any thread" bring it there, or look into the tier themselves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from topics.errors import ColdUnavailable, FormatError
from topics.formats.segment_index import ENTRY_BYTES
from topics.formats.snapshot import SegmentState
from topics.formats.tag_sidecar import TagSidecar
from topics.limits import MIB
from topics.storage import layout
from topics.storage.fs import NO_SPACE, Fs, read_file, write_atomic
from topics.storage.segments.frame_walk import rebuild_index
from topics.storage.segments.reader import Measured, SegmentColumns, SegmentReader, build_tags
from topics.storage.segments.sources import (
    BareSource,
    ByteSource,
    FetchedSource,
    FileSource,
    MappedSource,
    ResidentSource,
    StoreSource,
)
from topics.storage.tiers.cached_store import CachedStore

READERS_MAX: Final = 256
# Tag sidecars of hot segments that are kept in memory between deletes by tag.
KEPT_TAGS_BYTES: Final = 16 * MIB
# Most sidecars are smaller, and then the size of the object need not be asked for.
SIDECAR_BYTES: Final = MIB


class TagSelector(NamedTuple):
    """Records from `first_seq` to `end_seq - 1` with this tag, or with a tag that begins so."""

    tag: bytes
    is_prefix: bool
    first_seq: int
    end_seq: int

    def seqs_in(self, sidecar: TagSidecar) -> list[int]:
        return sidecar.seqs_by_prefix(self.tag) if self.is_prefix else sidecar.seqs(self.tag)


class SegmentCache:
    """Open readers and tag sidecars. The number of readers is bounded, because each map keeps a file descriptor."""

    def __init__(self, fs: Fs, root: str, cold: CachedStore | None) -> None:
        self._fs = fs
        self._root = root
        self.cold = cold
        self._readers: OrderedDict[tuple[int, int], SegmentReader] = OrderedDict()
        # Sidecars of hot segments, those used last at the end, and their bytes.
        self._tags: OrderedDict[tuple[int, int], TagSidecar] = OrderedDict()
        self._tags_bytes = 0
        # Told (topic id, first seq) of a cold segment whose columns the owner needs.
        self.want_columns: Callable[[int, int], None] = _nothing
        # A start does not go on without a file that it needs. After it, topics do: see `SegmentSet`.
        self.is_starting = True

    def end_start(self) -> None:
        self.is_starting = False

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
        if state.tier == "cold":
            return self._fetch_cold(topic_id, state, first_seq, last_seq, bytes_max)
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

    def _fetch_cold(
        self, topic_id: int, state: SegmentState, first_seq: int, last_seq: int, bytes_max: int
    ) -> tuple[int, int]:
        """Reads the range as the owner will: a bad index or frame makes it fetch all that the owner will look into."""
        reader = SegmentReader(FetchedSource(self._cold_store(), topic_id, state.first_seq), state)
        slots, base, end = reader.extent(first_seq, last_seq, bytes_max)
        reader.read(first_seq, first_seq + slots - 1, bytes_max)
        return slots, end - base

    def measure(self, topic_id: int, state: SegmentState, wanted: Sequence[int] | TagSelector) -> Measured:
        """Which of these records of a cold segment are live in its file, and their sizes. For any thread."""
        reader = SegmentReader(StoreSource(self._cold_store(), topic_id, state.first_seq), state)
        seqs = wanted if not isinstance(wanted, TagSelector) else self._tagged_cold(topic_id, state, wanted, reader)
        return reader.measure(seqs)

    def measure_resident(self, topic_id: int, state: SegmentState, seqs: Sequence[int]) -> Measured | None:
        """`measure` for the owner: None unless everything is in memory."""
        try:
            return self.reader(topic_id, state).measure(seqs)
        except ColdUnavailable:
            return None

    def _tagged_cold(
        self, topic_id: int, state: SegmentState, selector: TagSelector, reader: SegmentReader
    ) -> list[int]:
        first_seq = max(selector.first_seq, state.first_seq)
        end_seq = min(selector.end_seq, state.last_seq + 1)
        try:
            found = selector.seqs_in(self._cold_tags(topic_id, state))
        except (FileNotFoundError, FormatError):
            found = selector.seqs_in(TagSidecar(build_tags(reader)))
        return [seq for seq in found if first_seq <= seq < end_seq]

    def _cold_tags(self, topic_id: int, state: SegmentState) -> TagSidecar:
        cold = self._cold_store()
        name = layout.segment_object(topic_id, state.first_seq, "tags")
        data = cold.fetch(name, 0, SIDECAR_BYTES)
        return TagSidecar(data if len(data) < SIDECAR_BYTES else cold.fetch(name, 0, cold.size(name)))

    def cold_columns(self, topic_id: int, state: SegmentState) -> SegmentColumns:
        """The columns of a cold segment. For any thread."""
        return SegmentReader(StoreSource(self._cold_store(), topic_id, state.first_seq), state).columns()

    def resident_times(self, topic_id: int, state: SegmentState) -> list[int] | None:
        """The times of all slots of a cold segment, ascending, if its index is in memory. Owner only."""
        try:
            return self.reader(topic_id, state).times()
        except ColdUnavailable:
            return None

    def _cold_store(self) -> CachedStore:
        if self.cold is None:
            raise ColdUnavailable("this segment is in a cold tier, and none is configured")
        return self.cold

    def _source(self, topic_id: int, state: SegmentState) -> ByteSource:
        if state.tier == "cold":
            return ResidentSource(self._cold_store(), topic_id, state.first_seq)
        stem = self.stem(topic_id, state.first_seq)
        return _open_local(self._fs, stem, state)

    def tagged(self, topic_id: int, state: SegmentState, selector: TagSelector) -> list[int]:
        """Seqs of a sealed segment by their tag. A sidecar that is missing or bad is built again from the frames.

        Of a cold segment for any thread: it waits for the tier. Of a hot one for the owner.
        """
        if state.tier == "cold":
            reader = SegmentReader(StoreSource(self._cold_store(), topic_id, state.first_seq), state)
            return self._tagged_cold(topic_id, state, selector, reader)
        key = (topic_id, state.first_seq)
        sidecar = self._tags.get(key)
        if sidecar is None:
            sidecar = self._load_tags(topic_id, state)
            self._tags[key] = sidecar
            self._tags_bytes += sidecar.size_bytes
            while self._tags_bytes > KEPT_TAGS_BYTES:
                self._tags_bytes -= self._tags.popitem(last=False)[1].size_bytes
        else:
            self._tags.move_to_end(key)
        return [seq for seq in selector.seqs_in(sidecar) if selector.first_seq <= seq < selector.end_seq]

    def _load_tags(self, topic_id: int, state: SegmentState) -> TagSidecar:
        stem = self.stem(topic_id, state.first_seq)
        sidecar = load_tags(self._fs, stem)
        if sidecar is None:
            built = build_tags(self.reader(topic_id, state))
            try:
                write_atomic(self._fs, f"{stem}.tags", built)
            except OSError as error:
                # A delete makes room, so it must work on a full disk.
                if error.errno not in NO_SPACE:
                    raise
            sidecar = TagSidecar(built)
        return sidecar

    def forget(self, topic_id: int, first_seq: int) -> None:
        """The files of the segment have changed, or are no longer used."""
        self._forget((topic_id, first_seq))

    def forget_topic(self, topic_id: int) -> None:
        for key in [key for key in {*self._readers, *self._tags} if key[0] == topic_id]:
            self._forget(key)

    def _forget(self, key: tuple[int, int]) -> None:
        reader = self._readers.pop(key, None)
        if reader is not None:
            reader.close()
        sidecar = self._tags.pop(key, None)
        if sidecar is not None:
            self._tags_bytes -= sidecar.size_bytes

    def close(self) -> None:
        for key in [*self._readers, *self._tags]:
            self._forget(key)


def _nothing(topic_id: int, first_seq: int) -> None:
    pass


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

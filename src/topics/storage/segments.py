"""Reading segments: hot sealed ones through a map, the active one by `pread`, cold ones through a store.

A segment is addressed by its `.idx` (entry arithmetic), but the index is only derived: every frame that is
handed out was checked against its own checksum and its own seq. When an entry leads nowhere the frames are
walked from the front instead. A frame that is bad itself is reported for its seq alone; its neighbours stay
readable.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable
from struct import error as struct_error
from typing import Final, Protocol

from xxhash import xxh3_64_intdigest

from topics.errors import BadFrame, ColdUnavailable, FormatError
from topics.formats import envelope, segment, segment_index, tag_sidecar
from topics.formats.record_layout import (
    CHECKSUM,
    DELETED,
    DELETED_BYTE,
    FRAME_LEN_BYTES,
    LABEL_FLAGS,
    LENGTHS,
    LENGTHS_AT,
    SEGMENT_BODY,
    SEGMENT_CORE_AT,
    SEGMENT_FRAME_LEAD,
    SEGMENT_TRAILER_BYTES,
    TS,
    TS_AT,
    raw_tag,
)
from topics.formats.segment_index import ENTRY, ENTRY_BYTES
from topics.formats.snapshot import SegmentState
from topics.formats.tag_sidecar import TagSidecar
from topics.storage import layout
from topics.storage.cached_store import CachedStore
from topics.storage.fs import NO_SPACE, Buffer, File, Fs, read_file, write_atomic

Slot = bytes | FormatError | None
"""The segment body of a live record; None for a hole or a deleted record; the error of a bad frame."""

# Where the core and its parts begin in a frame.
_CORE_AT: Final = FRAME_LEN_BYTES + SEGMENT_CORE_AT
_TS_AT: Final = _CORE_AT + TS_AT
_LENGTHS_AT: Final = _CORE_AT + LENGTHS_AT


class ByteSource(Protocol):
    def index(self, offset: int, size: int) -> Buffer: ...

    def data(self, offset: int, size: int) -> Buffer: ...

    def has_index(self, offset: int, size: int) -> bool:
        """Whether `index` would not wait, neither for a disk nor for a network."""
        ...

    def has_data(self, offset: int, size: int) -> bool: ...

    def close(self) -> None: ...


class _MappedSource:
    """A sealed file pair in the hot tier. Sealed files are never cut, so a map of one stays valid."""

    def __init__(self, fs: Fs, stem: str) -> None:
        self._files = _open_pair(fs, stem)
        self._index, self._data = (file.map() for file in self._files)

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


class _BareSource:
    """Data whose index is gone, while there is no room to write it again."""

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


class _StoreSource:
    """A cold segment. A call may wait for a network unless the range was fetched before."""

    def __init__(self, store: CachedStore, topic_id: int, first_seq: int) -> None:
        self._store = store
        self._index_name = layout.segment_object(topic_id, first_seq, "idx")
        self._data_name = layout.segment_object(topic_id, first_seq, "data")

    def index(self, offset: int, size: int) -> Buffer:
        return self._store.read_range(self._index_name, offset, size)

    def data(self, offset: int, size: int) -> Buffer:
        return self._store.read_range(self._data_name, offset, size)

    def has_index(self, offset: int, size: int) -> bool:
        return self._store.has(self._index_name, offset, size)

    def has_data(self, offset: int, size: int) -> bool:
        return self._store.has(self._data_name, offset, size)

    def close(self) -> None:
        pass


class _FetchedSource(_StoreSource):
    """A cold segment whose ranges stay in memory once they were read."""

    def index(self, offset: int, size: int) -> Buffer:
        return self._store.fetch(self._index_name, offset, size)

    def data(self, offset: int, size: int) -> Buffer:
        return self._store.fetch(self._data_name, offset, size)


def _open_pair(fs: Fs, stem: str) -> tuple[File, File]:
    index = fs.open(f"{stem}.idx", "read")
    try:
        return index, fs.open(f"{stem}.data", "read")
    except OSError:
        # Perhaps for want of descriptors: this one must not be lost too.
        index.close()
        raise


class SegmentColumns:
    """Accounted sizes, times and liveness of every slot of one segment."""

    __slots__ = ("live", "sizes", "ts")

    def __init__(self, sizes: array[int], ts: array[int], live: bytearray) -> None:
        self.sizes = sizes
        self.ts = ts
        self.live = live


class SegmentReader:
    def __init__(self, source: ByteSource, state: SegmentState, *, is_checked: bool = False) -> None:
        self._source = source
        self.state = state
        self._walked: list[tuple[int, int, int, int]] | None = None
        self._is_checked = is_checked
        self._index_is_bad = False

    def close(self) -> None:
        self._source.close()

    def _entries(self, first_seq: int, count: int) -> list[tuple[int, int, int, int]]:
        place = first_seq - self.state.first_seq
        if not self._is_checked:
            self._check_index()
        if self._index_is_bad:
            return self._walk()[place : place + count]
        return list(ENTRY.iter_unpack(self._source.index(place * ENTRY_BYTES, count * ENTRY_BYTES)))

    def _check_index(self) -> None:
        """Once, as a whole: an entry that calls a record a hole would hide it, and mislead its delete byte."""
        state = self.state
        raw = self._source.index(0, state.entry_count * ENTRY_BYTES)
        try:
            segment_index.check(raw, entry_count=state.entry_count, data_bytes=state.data_bytes)
        except BadFrame:
            self._index_is_bad = True
        self._is_checked = True

    def _walk(self) -> list[tuple[int, int, int, int]]:
        """Entries found by walking frame lengths: what the index should have said."""
        if self._walked is None:
            data = self._source.data(0, self.state.data_bytes)
            self._walked = walk_entries(data, self.state.first_seq, self.state.entry_count)
        return self._walked

    def at_hand(self, first_seq: int, last_seq: int, bytes_max: int) -> tuple[int, int] | None:
        """(slots, bytes) of what `read` would read, when it would not wait for them; else None."""
        source, state = self._source, self.state
        if self._is_checked and not self._index_is_bad:
            place = first_seq - state.first_seq
            has_index = source.has_index(place * ENTRY_BYTES, (last_seq - first_seq + 1) * ENTRY_BYTES)
        else:
            has_index = source.has_index(0, state.entry_count * ENTRY_BYTES)
        if not has_index:
            return None
        if not self._is_checked:
            self._check_index()
        if self._index_is_bad and self._walked is None and not source.has_data(0, state.data_bytes):
            return None
        slots, base, end = self.extent(first_seq, last_seq, bytes_max)
        return (slots, end - base) if source.has_data(base, end - base) else None

    def extent(self, first_seq: int, last_seq: int, bytes_max: int) -> tuple[int, int, int]:
        """(slots, start, end) of what `read` reads; from two entries alone where those tell."""
        (first,) = self._entries(first_seq, 1)
        (last,) = self._entries(last_seq, 1)
        base, end = first[0], last[0] + last[1]
        if first[1] and last[1] and base < end <= min(base + bytes_max, self.state.data_bytes):
            return last_seq - first_seq + 1, base, end
        entries, base, end = self._piece(first_seq, last_seq, bytes_max)
        return len(entries), base, end

    def _piece(
        self, first_seq: int, last_seq: int, bytes_max: int | None
    ) -> tuple[list[tuple[int, int, int, int]], int, int]:
        """Entries from `first_seq` on whose frames are within `bytes_max`, one in any case; where those stand."""
        assert self.state.first_seq <= first_seq <= last_seq <= self.state.last_seq
        entries = self._entries(first_seq, last_seq - first_seq + 1)
        base, end = _span(entries, self.state.data_bytes)
        if bytes_max is not None and end - base > bytes_max:
            total = 0
            for count, (_, length, _, _) in enumerate(entries):
                total += length
                if total > bytes_max and count:
                    entries = entries[:count]
                    base, end = _span(entries, self.state.data_bytes)
                    break
        return entries, base, end

    def read(self, first_seq: int, last_seq: int, bytes_max: int | None = None) -> list[Slot]:
        """Slots of an inclusive seq range inside the segment, each frame verified; the first ones of it when all
        of them have more than `bytes_max`."""
        entries, base, end = self._piece(first_seq, last_seq, bytes_max)
        data = self._source.data(base, end - base)
        slots: list[Slot] = []
        keep = slots.append
        lead, stored, digest = SEGMENT_FRAME_LEAD.unpack_from, CHECKSUM.unpack_from, xxh3_64_intdigest
        seq = first_seq
        for offset, length, _, _ in entries:
            if length == 0:
                keep(None)
            else:
                at = offset - base
                checksum_at = at + length - SEGMENT_TRAILER_BYTES
                try:
                    frame_len, _, frame_seq = lead(data, at)
                    body = bytes(data[at + FRAME_LEN_BYTES : checksum_at])
                    good = (
                        frame_len == length - FRAME_LEN_BYTES
                        and frame_seq == seq
                        and digest(body) == stored(data, checksum_at)[0]
                    )
                except struct_error:
                    good = False
                if not good:
                    keep(self._read_walked(seq))
                elif data[at + length - 1] == DELETED:
                    keep(None)
                else:
                    keep(body)
            seq += 1
        return slots

    def _read_walked(self, seq: int) -> Slot:
        """The entry led to no good frame: trust the frames instead, or name what is wrong with this one."""
        state = self.state
        offset, length, _, _ = self._walk()[seq - state.first_seq]
        if length == 0:
            return BadFrame(f"no frame for seq {seq} is found in the segment", offset)
        data = bytes(self._source.data(offset, min(length, state.data_bytes - offset)))
        try:
            frame = segment.check(data, 0, len(data))
        except FormatError as error:
            error.offset += offset
            return error
        if frame.seq != seq:
            return BadFrame(f"the frame holds seq {frame.seq}, not {seq}", offset)
        return None if frame.deleted else data[FRAME_LEN_BYTES:-SEGMENT_TRAILER_BYTES]

    def columns(self) -> SegmentColumns:
        state = self.state
        entries = self._entries(state.first_seq, state.entry_count)
        data = self._source.data(0, state.data_bytes)
        sizes, ts, live = array("I"), array("Q"), bytearray()
        newest_ts = 0
        for offset, length, when, _ in entries:
            # Times do not fall, so a wrong one may keep records too long, but never takes them too early.
            newest_ts = min(max(newest_ts, when), state.last_ts)
            ts.append(newest_ts)
            size = _accounted(data, offset, length)
            sizes.append(size or 0)
            # A frame that makes no sense is not a dead one, whatever its end: a read must come to it, and name it.
            live.append(length > 0 and (size is None or data[offset + length - 1 : offset + length] != DELETED_BYTE))
        return SegmentColumns(sizes, ts, live)

    def single(self, seq: int) -> tuple[int, bool] | None:
        """(accounted size, live) of one slot; None for a hole or a frame that makes no sense."""
        offset, length, _, _ = self._entries(seq, 1)[0]
        data = self._source.data(offset, length)
        size = _accounted(data, 0, length)
        return None if size is None else (size, data[length - 1] != DELETED)

    def positions(self, seqs: list[int]) -> list[tuple[int, int]]:
        """(offset, length) of each of the seqs; length 0 where there is no frame, or none that is whole."""
        first_seq = self.state.first_seq
        entries = self._entries(first_seq, self.state.entry_count)
        return [self._position(seq, *entries[seq - first_seq][:2]) for seq in seqs]

    def _position(self, seq: int, offset: int, length: int) -> tuple[int, int]:
        lead = self._source.data(offset, SEGMENT_FRAME_LEAD.size)
        if length == 0 or len(lead) < SEGMENT_FRAME_LEAD.size:
            return offset, 0
        frame_len, _, frame_seq = SEGMENT_FRAME_LEAD.unpack(lead)
        return (offset, length) if frame_len == length - FRAME_LEN_BYTES and frame_seq == seq else (offset, 0)


def _span(entries: list[tuple[int, int, int, int]], data_bytes: int) -> tuple[int, int]:
    """The byte range that holds these frames, kept inside the file whatever the entries claim."""
    framed = [(offset, offset + length) for offset, length, _, _ in entries if length]
    if not framed:
        return 0, 0
    base = min(framed)[0]
    end = max(end for _, end in framed)
    return min(base, data_bytes), min(end, data_bytes)


def _accounted(data: Buffer, offset: int, length: int) -> int | None:
    """Accounted bytes of the frame there; None for a hole or a frame that makes no sense."""
    if length == 0:
        return None
    try:
        node_len, tag_len, data_len = LENGTHS.unpack_from(data, offset + _LENGTHS_AT)
        if segment.OVERHEAD_BYTES + node_len + tag_len + data_len != length:
            return None
        start = offset + segment.HEADER_BYTES + node_len + tag_len
        return envelope.accounted_bytes(bytes(data[start : start + data_len]))
    except (struct_error, FormatError):
        return None


def walk_entries(data: Buffer, first_seq: int, entry_count: int | None) -> list[tuple[int, int, int, int]]:
    """Index entries of `.data`, by walking frame lengths without trusting anything else.

    Seqs that are skipped become holes. A frame whose length makes no sense ends the walk; behind it the
    frames are looked for again by their next expected seqs. The seqs in between get all the bytes in between,
    which are no good frame of theirs: a record that cannot be read must not look like one that never was.
    """
    entries: list[tuple[int, int, int, int]] = []
    offset, end, last_ts = 0, len(data), 0
    bad_offset: int | None = None
    while offset < end:
        try:
            frame_len, flags, seq = SEGMENT_FRAME_LEAD.unpack_from(data, offset)
            (ts,) = TS.unpack_from(data, offset + _TS_AT)
            node_len, tag_len, data_len = LENGTHS.unpack_from(data, offset + _LENGTHS_AT)
        except struct_error:
            break
        expected = first_seq + len(entries)
        frame_bytes = FRAME_LEN_BYTES + frame_len
        fits = frame_bytes == segment.OVERHEAD_BYTES + node_len + tag_len + data_len
        if not fits or offset + frame_bytes > end or seq < expected or (entry_count and seq >= first_seq + entry_count):
            found = _resync(data, offset + 1, expected, first_seq + (entry_count or len(entries) + 10_000))
            if found is None:
                break
            bad_offset, offset = offset, found
            continue
        between = (offset, 0) if bad_offset is None else (bad_offset, offset - bad_offset)
        bad_offset = None
        entries += [(*between, last_ts, 0)] * (seq - expected)
        entries.append((offset, frame_bytes, ts, flags & LABEL_FLAGS))
        last_ts = ts
        offset += frame_bytes
    if entry_count is not None:
        # A segment ends with a record, so what is missing at its end was there.
        entries += [(offset, max(end - offset, 1), last_ts, 0)] * (entry_count - len(entries))
    return entries


def _resync(data: Buffer, offset: int, expected: int, end_seq: int) -> int | None:
    """The next place where a whole valid frame of a later seq begins."""
    end = len(data)
    while offset + segment.OVERHEAD_BYTES <= end:
        frame_len, _, seq = SEGMENT_FRAME_LEAD.unpack_from(data, offset)
        if expected <= seq < end_seq and offset + FRAME_LEN_BYTES + frame_len <= end:
            try:
                segment.check(memoryview(data), offset, end)
            except FormatError:
                pass
            else:
                return offset
        offset += 1
    return None


def rebuild_index(fs: Fs, stem: str, state: SegmentState) -> None:
    """Writes `.idx` again from `.data`, through a temporary file."""
    data = read_file(fs, f"{stem}.data")[: state.data_bytes]
    entries = walk_entries(data, state.first_seq, state.entry_count)
    write_atomic(fs, f"{stem}.idx", segment_index.encode(entries))


def load_tags(fs: Fs, stem: str) -> TagSidecar | None:
    """The sidecar of a hot segment, None when it is missing or bad."""
    path = f"{stem}.tags"
    if not fs.exists(path):
        return None
    try:
        return TagSidecar(read_file(fs, path))
    except FormatError:
        return None


class SegmentCache:
    """Open readers, a bounded number of them: each map keeps a file descriptor."""

    def __init__(self, fs: Fs, root: str, cold: CachedStore | None, *, readers_max: int = 256) -> None:
        self._fs = fs
        self._root = root
        self.cold = cold
        self._readers_max = readers_max
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
        if len(self._readers) > self._readers_max:
            self._readers.popitem(last=False)[1].close()
        return reader

    def is_open(self, topic_id: int, state: SegmentState) -> bool:
        """Whether `reader` has nothing to open: a cold segment has no files, and no tier is told at once."""
        reader = self._readers.get((topic_id, state.first_seq))
        return state.tier == "cold" or (reader is not None and reader.state is state)

    def fetch(
        self, topic_id: int, state: SegmentState, first_seq: int, last_seq: int, bytes_max: int
    ) -> tuple[int, int]:
        """Waits for what a reader of this range would wait for, so that the reader need not; (slots, bytes) of it.

        For any thread: it opens files of its own. What it read of those is in the system's page cache then, what it
        got from the cold tier in ours.
        """
        source: ByteSource
        if state.tier == "cold":
            source = _FetchedSource(self._cold_store(), topic_id, state.first_seq)
        else:
            source = FileSource(self._fs, self.stem(topic_id, state.first_seq))
        try:
            # All of it, since a reader looks at all of it before it uses any. Here it is taken at its word: one that
            # is wrong leads to bytes that nobody needs, and checking it would take the interpreter from the owner.
            index = source.index(0, state.entry_count * ENTRY_BYTES)
            if len(index) < state.entry_count * ENTRY_BYTES:
                # A reader goes by the frames then.
                return last_seq - first_seq + 1, 0
            reader = SegmentReader(source, state, is_checked=True)
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
            return _StoreSource(self._cold_store(), topic_id, state.first_seq)
        stem = self.stem(topic_id, state.first_seq)
        return _open_local(self._fs, stem, state)

    def tags(self, topic_id: int, state: SegmentState) -> TagSidecar:
        """The tag sidecar; built again from the frames when it is missing or bad."""
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
            return _BareSource(fs, stem)
    make: Callable[[Fs, str], ByteSource] = _MappedSource if state.sealed else FileSource
    return make(fs, stem)


def build_tags(reader: SegmentReader) -> bytes:
    """Sidecar bytes of a segment, from its frames. Deleted and bad ones are left out."""
    state = reader.state
    tags: dict[bytes, list[int]] = {}
    if state.entry_count:
        for seq, slot in enumerate(reader.read(state.first_seq, state.last_seq), state.first_seq):
            if isinstance(slot, bytes) and (tag := raw_tag(slot, SEGMENT_BODY)) is not None:
                tags.setdefault(tag, []).append(seq)
    return tag_sidecar.encode(state.first_seq, tags)

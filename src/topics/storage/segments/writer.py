"""Writing segments: records in, sealed files out. Used by the checkpoint job only.

rule 1  `.data` of a segment is durable before its `.idx` is written.
rule 2  `.data` of a segment, and its name, are durable before the next segment of the topic gets a file. So after a
        crash the files of a topic are segments that follow each other, and only the last one can be torn.
rule 3  Everything is durable when `finish` returns.

A crash before that leaves frames beyond the noted length, and files that no snapshot lists. A start keeps whole frames
and cuts the rest; the log still has the records. Files are written by the caller and synced by `FileTasks`: while the
disk works on one segment, the caller makes the next one.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from xxhash import xxh3_128

from topics.formats import filing, segment, tag_sidecar
from topics.formats.filing import Run
from topics.formats.record_layout import DELETED_BYTE, FLAG_TAG, SEGMENT_TRAILER_BYTES
from topics.formats.segment_index import ENTRY, ENTRY_BYTES
from topics.formats.snapshot import SegmentState
from topics.limits import MIB
from topics.storage import layout
from topics.storage.fs import Buffer, File, Fs, read_file, write_all, write_atomic
from topics.storage.segments.file_tasks import FileTasks, InlineTasks, Wait
from topics.storage.segments.proof import is_file_proved, prove_file

FLUSH_BYTES: Final = 4 * MIB
# `.idx` holds 32-bit offsets.
DATA_BYTES_MAX: Final = 2**32 - 1

Tags = dict[bytes, "array[int]"]
"""Tag -> seqs, ascending."""


class SegmentLimits:
    __slots__ = ("age_ms_max", "bytes_max", "events_max")

    def __init__(self, events_max: int, bytes_max: int, age_ms_max: int) -> None:
        self.events_max = events_max
        self.bytes_max = bytes_max
        self.age_ms_max = age_ms_max


class _OpenSegment:
    """A segment that takes records: its state, and what of it is in no file yet."""

    __slots__ = (
        "bytes_left",
        "checksums",
        "data_bytes",
        "entries",
        "entries_left",
        "entry_count",
        "filed_bytes",
        "filed_entries",
        "frames",
        "is_new",
        "last_ts",
        "live_bytes",
        "live_count",
        "state",
        "stem",
        "tags",
    )

    def __init__(self, stem: str, state: SegmentState, limits: SegmentLimits) -> None:
        self.stem = stem
        self.state = state
        # Whether it has no files yet.
        self.is_new = state.entry_count == 0
        # What the files hold.
        self.filed_bytes = state.data_bytes
        self.filed_entries = state.entry_count
        # With the records that are in no file yet.
        self.data_bytes = state.data_bytes
        self.entry_count = state.entry_count
        self.last_ts = state.last_ts
        self.entries_left = limits.events_max - state.entry_count
        self.bytes_left = min(limits.bytes_max, DATA_BYTES_MAX) - state.data_bytes
        self.frames: list[memoryview] = []
        self.entries: list[bytes] = []
        # Of the records that were added.
        self.live_count = self.live_bytes = 0
        self.checksums: list[bytes] = []
        self.tags: Tags = {}

    @property
    def next_seq(self) -> int:
        return self.state.first_seq + self.entry_count

    def add_holes(self, count: int) -> None:
        self.entries.append(ENTRY.pack(self.data_bytes, 0, self.last_ts, 0) * count)
        self.entry_count += count
        self.entries_left -= count

    def add(self, run: Run, start: int, stop: int) -> None:
        """Records `start` to `stop - 1` of the run, which follow the records of the segment."""
        first_at = run.ends[start - 1] if start else 0
        size = run.ends[stop - 1] - first_at
        count = stop - start
        self.frames.append(memoryview(run.frames)[first_at : first_at + size])
        self.entries.append(filing.encode_entries(run, start, stop, self.data_bytes))
        self.checksums.append(filing.checksum_bytes(run, start, stop))
        self.data_bytes += size
        self.bytes_left -= size
        self.entry_count += count
        self.entries_left -= count
        self.last_ts = run.times[stop - 1]
        self.live_count += count
        self.live_bytes += filing.size_bytes(run, start, stop)
        filing.add_tags(run, start, stop, self.tags)

    def note(self) -> None:
        """Brings the numbers of the state up to date."""
        state = self.state
        state.entry_count = self.entry_count
        state.data_bytes = self.data_bytes
        state.last_ts = self.last_ts
        state.live_count += self.live_count
        state.live_bytes += self.live_bytes
        state.tagged_count += sum(map(len, self.tags.values()))


class _IndexWork:
    """What is left to do for a segment when its `.data` is durable."""

    __slots__ = ("entries", "offset", "sidecar", "state", "stem")

    def __init__(self, ended: _OpenSegment, sidecar: bytes) -> None:
        self.stem = ended.stem
        self.state = ended.state
        self.entries = ended.entries
        self.offset = ended.filed_entries * ENTRY_BYTES
        self.sidecar = sidecar

    def start(self, fs: Fs, tasks: FileTasks) -> list[Wait]:
        """Writes the index, and starts what waits for the disk: its sync, and the tag sidecar."""
        stem, started = self.stem, []
        if self.entries:
            index = _append(fs, f"{stem}.idx", self.entries, self.offset)
            started.append(tasks.start(partial(_sync, index), _size_bytes(self.entries)))
        if self.sidecar:
            started.append(tasks.start(partial(_write_sidecar, fs, stem, self.sidecar), len(self.sidecar)))
        self.state.proof = prove_file(fs, stem, self.state)
        return started


class SegmentAppender:
    """Appends the records of one topic, in seq order, to its active segment and the ones that follow."""

    def __init__(
        self,
        fs: Fs,
        directory: str,
        active: SegmentState | None,
        limits: SegmentLimits,
        now_ms: int,
        tasks: FileTasks | None = None,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._parent = directory.rpartition("/")[0]
        self._limits = limits
        self._now_ms = now_ms
        self._tasks = tasks or InlineTasks()
        self._active: _OpenSegment | None = None
        # Segments that this run changed, in order.
        self.touched: list[SegmentState] = []
        # The write of `.data` that is under way, and the work that waits for it.
        self._data_written: Wait | None = None
        self._index_work: _IndexWork | None = None
        # The rest of the work that is under way.
        self._started: list[Wait] = []
        # Whether files were made since the directory was synced: a `.data`, and any other.
        self._has_new_data_name = False
        self._has_new_names = False
        # Whether the folder above the directory must be synced. A run that failed may have made the directory and not
        # synced its name, so every new segment asks for it.
        self.needs_parent_sync = False
        if active is not None:
            stem = f"{directory}/{layout.segment_stem(active.first_seq)}"
            if is_file_proved(fs, stem, active):
                self._active = _OpenSegment(stem, active, limits)
            else:
                # A file of another topic is in its place. Nothing is written to it; readers are told.
                active.sealed = True
                self.touched.append(active)

    def add_bodies(self, bodies: Iterable[bytes]) -> None:
        """Adds live records, given as verified WAL bodies."""
        for run in filing.runs_of(bodies):
            self.add(run, 0, len(run.ends))

    def add(self, run: Run, start: int, stop: int) -> None:
        """Adds records `start` to `stop - 1` of the run, all live."""
        while start < stop:
            before = run.ends[start - 1] if start else 0
            frame_bytes = run.ends[start] - before
            active = self._room_for(run.first_seq + start, frame_bytes, run.times[start])
            end = min(stop, start + active.entries_left)
            # A record over the limit gets a segment of its own.
            end = max(start + 1, bisect_right(run.ends, before + active.bytes_left, start, end))
            active.add(run, start, end)
            if active.data_bytes - active.filed_bytes >= FLUSH_BYTES:
                self._flush(active)
            start = end

    def _room_for(self, seq: int, frame_bytes: int, ts: int) -> _OpenSegment:
        """The active segment with holes up to `seq`, or a new segment when there is no room for that."""
        active = self._active
        if active is not None:
            gap = seq - active.next_seq
            assert gap >= 0, "a seq goes into segments once"
            if active.entries_left > gap and (active.bytes_left >= frame_bytes or active.data_bytes == 0):
                if gap:
                    active.add_holes(gap)
                return active
            self._end_segment(active, seal=True)
        state = SegmentState(
            first_seq=seq,
            entry_count=0,
            data_bytes=0,
            first_ts=ts,
            last_ts=ts,
            live_count=0,
            live_bytes=0,
            created_ts=self._now_ms,
        )
        self._active = active = _OpenSegment(f"{self._directory}/{layout.segment_stem(seq)}", state, self._limits)
        return active

    def _flush(self, active: _OpenSegment) -> None:
        """Starts the write of all frames that are in no file yet."""
        if not active.frames:
            return
        frames, offset, is_new = active.frames, active.filed_bytes, active.is_new
        active.frames, active.filed_bytes, active.is_new = [], active.data_bytes, False
        if is_new:
            self._begin_file()
        else:
            self.settle()
        file = _append(self._fs, f"{active.stem}.data", frames, offset)
        self._data_written = self._tasks.start(partial(_sync, file), _size_bytes(frames))
        self._has_new_data_name |= is_new

    def _begin_file(self) -> None:
        """A segment without files is about to get one."""
        if self._has_new_data_name:
            # Rule 2. The name of the `.idx` of that segment is not there yet.
            self._wait_for_data()
            self._fs.sync_dir(self._directory)
            self._has_new_data_name, self._has_new_names = False, True
        self.settle()
        if not self._fs.exists(self._directory):
            self._fs.makedirs(self._parent)
            self._fs.mkdir(self._directory)
        self.needs_parent_sync = True

    def _end_segment(self, active: _OpenSegment, *, seal: bool) -> None:
        """No record follows in this run. Its last files are written later."""
        self._active = None
        self._flush(active)
        if not active.entries and not seal:
            return
        sidecar = b""
        if seal:
            sidecar = self._seal(active)
            self._has_new_names |= bool(sidecar)
        else:
            active.note()
        self.touched.append(active.state)
        assert self._index_work is None, "the flush of a later segment has started it"
        self._index_work = _IndexWork(active, sidecar)

    def _seal(self, active: _OpenSegment) -> bytes:
        """Sets the numbers of a sealed segment. Returns the content of its tag sidecar; empty without tags."""
        state, tags, digest = active.state, active.tags, xxh3_128()
        if active.filed_entries:
            # Records of earlier runs.
            earlier, tags = _read_back(self._fs, active.stem, active.filed_entries)
            digest.update(earlier)
            for tag, seqs in active.tags.items():
                tags.setdefault(tag, array("Q")).extend(seqs)
        for checksums in active.checksums:
            digest.update(checksums)
        active.note()
        state.tagged_count = sum(map(len, tags.values()))
        state.digest = digest.digest()
        state.sealed = True
        return tag_sidecar.encode(state.first_seq, tags) if tags else b""

    def finish(self, *, seal: bool = False) -> None:
        """Makes everything durable, and seals the active segment if it is full or old, or if `seal` is set."""
        self.end(seal=seal)
        self.settle()
        if self.needs_parent_sync:
            self._fs.sync_dir(self._parent)
        self.sync_names()
        self.wait()

    # The steps of `finish`: the job takes each step for all topics, so that their files are written at the same time.

    def end(self, *, seal: bool) -> None:
        """Starts the write of the last records."""
        active = self._active
        if active is None:
            return
        limits = self._limits
        is_old = limits.age_ms_max > 0 and self._now_ms - active.state.created_ts >= limits.age_ms_max
        is_full = active.entry_count >= limits.events_max or active.data_bytes >= limits.bytes_max
        self._end_segment(active, seal=seal or is_full or is_old)

    def settle(self) -> None:
        """Waits for the write of `.data` that is under way, then starts the work that waits for it."""
        self._wait_for_data()
        if self._index_work is not None:
            work, self._index_work = self._index_work, None
            self._started += work.start(self._fs, self._tasks)

    def _wait_for_data(self) -> None:
        if self._data_written is not None:
            wait, self._data_written = self._data_written, None
            wait()

    def sync_names(self) -> None:
        """Waits for all files, then starts to make their names durable."""
        self.wait()
        if self._has_new_names or self._has_new_data_name:
            self._has_new_names = self._has_new_data_name = False
            self._started.append(self._tasks.start(lambda: self._fs.sync_dir(self._directory), 0))

    def wait(self) -> None:
        """Waits for everything that was started."""
        started, self._started = self._started, []
        for wait in started:
            wait()


def _append(fs: Fs, path: str, parts: Sequence[Buffer], offset: int) -> File:
    """Writes the parts at the offset, which is the end of the file. The caller syncs and closes it."""
    file = fs.open(path, "write" if fs.exists(path) else "create")
    try:
        end = write_all(file, b"".join(parts), offset)
        if file.size() > end:
            # Bytes of an interrupted run.
            file.truncate(end)
    except BaseException:
        file.close()
        raise
    return file


def _sync(file: File) -> None:
    try:
        file.fsync()
    finally:
        file.close()


def _size_bytes(parts: Sequence[Buffer]) -> int:
    return sum(map(len, parts))


def _write_sidecar(fs: Fs, stem: str, content: bytes) -> None:
    """The caller makes the name durable."""
    path = f"{stem}.tags"
    temporary = f"{path}.tmp"
    if fs.exists(temporary):
        fs.unlink(temporary)
    file = fs.open(temporary, "create")
    try:
        write_all(file, content, 0)
        file.fsync()
    finally:
        file.close()
    fs.rename(temporary, path)


def _read_back(fs: Fs, stem: str, entry_count: int) -> tuple[bytes, Tags]:
    """The stored checksums of the first records of a segment, in order, and their tags."""
    data = read_file(fs, f"{stem}.data")
    checksums: list[bytes] = []
    tags: Tags = {}
    for offset, length, _, flags in ENTRY.iter_unpack(read_file(fs, f"{stem}.idx")[: entry_count * ENTRY_BYTES]):
        if length == 0:
            continue
        end = offset + length
        checksums.append(data[end - SEGMENT_TRAILER_BYTES : end - 1])
        if flags & FLAG_TAG:
            frame = segment.check(data, offset, end)
            tags.setdefault(frame.tag_in(data), array("Q")).append(frame.seq)
    return b"".join(checksums), tags


def seal_segment(fs: Fs, stem: str, state: SegmentState) -> None:
    """Seals a segment from its files: sets digest and tagged count in `state`, and writes the tag sidecar."""
    checksums, tags = _read_back(fs, stem, state.entry_count)
    if tags:
        write_atomic(fs, f"{stem}.tags", tag_sidecar.encode(state.first_seq, tags))
    state.tagged_count = sum(map(len, tags.values()))
    state.digest = xxh3_128(checksums).digest()
    state.sealed = True


def flag_deleted(fs: Fs, stem: str, positions: list[tuple[int, int]]) -> None:
    """Sets the delete byte of each frame, in place, durably. An interrupted run is simply run again."""
    file = fs.open(f"{stem}.data", "write")
    try:
        for offset, length in positions:
            if length:
                file.pwrite(DELETED_BYTE, offset + length - 1)
        file.fdatasync()
    finally:
        file.close()

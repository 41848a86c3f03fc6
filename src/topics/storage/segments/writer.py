"""Writing segments: frames in, sealed files out. Used by the checkpoint job only.

Order: `.data` is written and synced before `.idx` is written, and `.idx` is synced before the job ends. A crash in
between leaves frames beyond the noted length. A start keeps whole frames and cuts the rest; the log still has the
records.
"""

from typing import Final

from xxhash import xxh3_128

from topics.errors import FormatError
from topics.formats import envelope, segment, segment_index, tag_sidecar
from topics.formats.record_layout import DELETED_BYTE, FLAG_TAG, LABEL_FLAGS, SEGMENT_TRAILER_BYTES, WAL_BODY_HEADER
from topics.formats.segment_index import ENTRY
from topics.formats.snapshot import SegmentState
from topics.limits import MIB
from topics.storage import layout
from topics.storage.fs import Fs, read_file, write_all, write_atomic
from topics.storage.segments.proof import is_file_proved, prove_file

# Bound once: Python looks the method of an imported object up anew at every call, which costs 50 ns.
_unpack_body: Final = WAL_BODY_HEADER.unpack_from

FLUSH_BYTES: Final = 4 * MIB
# `.idx` holds 32-bit offsets.
DATA_BYTES_MAX: Final = 2**32 - 1


class SegmentLimits:
    __slots__ = ("age_ms_max", "bytes_max", "events_max")

    def __init__(self, events_max: int, bytes_max: int, age_ms_max: int) -> None:
        self.events_max = events_max
        self.bytes_max = bytes_max
        self.age_ms_max = age_ms_max


class SegmentAppender:
    """Appends the records of one topic, in seq order, to its active segment and the ones that follow."""

    def __init__(self, fs: Fs, directory: str, active: SegmentState | None, limits: SegmentLimits, now_ms: int) -> None:
        self._fs = fs
        self._directory = directory
        self._limits = limits
        self._now_ms = now_ms
        self._active: SegmentState | None = None
        # Segments that this run changed, in order.
        self.touched: list[SegmentState] = []
        self._frames: list[bytes] = []
        self._entries: list[bytes] = []
        # Numbers of the active segment: bytes and entries in its files, and where the next frame goes.
        self._flushed_bytes = self._flushed_entries = self._data_bytes = 0
        self._next_seq = self._last_ts = 0
        self._entries_left = self._bytes_left = 0
        # Counted since the last `_note`.
        self._added_count = self._added_bytes = self._added_tagged = 0
        if active is not None:
            stem = f"{directory}/{layout.segment_stem(active.first_seq)}"
            if is_file_proved(fs, stem, active):
                self._begin(active)
            else:
                # A file of another topic is in its place. Nothing is written to it; readers are told.
                active.sealed = True
                self.touched.append(active)

    def add(self, body: bytes) -> None:
        """Adds a live record, given as a verified WAL body. A million take about 2.5 s, so sums go to the state in
        `_note`."""
        _, flags, _, seq, ts, _, _, data_len = _unpack_body(body)
        frame = segment.from_wal_body(body)
        size = len(frame)
        if seq != self._next_seq or self._entries_left == 0 or self._bytes_left < size:
            self._make_room(seq, size, ts)
        self._entries.append(ENTRY.pack(self._data_bytes, size, ts, flags & LABEL_FLAGS))
        self._frames.append(frame)
        self._data_bytes += size
        self._bytes_left -= size
        self._entries_left -= 1
        self._next_seq = seq + 1
        self._last_ts = ts
        self._added_count += 1
        if body.find(envelope.META, -data_len) < 0:
            self._added_bytes += data_len - envelope.PLAIN_OVERHEAD_BYTES
        else:
            self._added_bytes += _accounted(body, data_len)
        if flags & FLAG_TAG:
            self._added_tagged += 1
        if self._data_bytes - self._flushed_bytes >= FLUSH_BYTES:
            self._flush()

    def _make_room(self, seq: int, frame_bytes: int, ts: int) -> None:
        """Holes up to `seq` in the active segment, or a new segment when there is no room for that."""
        if self._active is not None:
            gap = seq - self._next_seq
            assert gap >= 0, "a seq goes into segments once"
            if self._entries_left > gap and (self._bytes_left >= frame_bytes or self._data_bytes == 0):
                self._entries += [ENTRY.pack(self._data_bytes, 0, self._last_ts, 0)] * gap
                self._entries_left -= gap
                return
            self._seal()
        self._begin(
            SegmentState(
                first_seq=seq,
                entry_count=0,
                data_bytes=0,
                first_ts=ts,
                last_ts=ts,
                live_count=0,
                live_bytes=0,
                created_ts=self._now_ms,
            )
        )

    def _begin(self, active: SegmentState) -> None:
        self._active = active
        self._flushed_bytes = self._data_bytes = active.data_bytes
        self._flushed_entries = active.entry_count
        self._next_seq = active.first_seq + active.entry_count
        self._last_ts = active.last_ts
        self._entries_left = self._limits.events_max - active.entry_count
        self._bytes_left = min(self._limits.bytes_max, DATA_BYTES_MAX) - active.data_bytes
        self._added_count = self._added_bytes = self._added_tagged = 0

    def _note(self) -> None:
        """Brings the state of the active segment up to date."""
        active = self._active
        assert active is not None
        active.entry_count = self._flushed_entries + len(self._entries)
        active.data_bytes = self._data_bytes
        active.last_ts = self._last_ts
        active.live_count += self._added_count
        active.live_bytes += self._added_bytes
        active.tagged_count += self._added_tagged
        self._added_count = self._added_bytes = self._added_tagged = 0

    @property
    def _stem(self) -> str:
        assert self._active is not None
        return f"{self._directory}/{layout.segment_stem(self._active.first_seq)}"

    def _flush(self) -> None:
        """Writes the buffered frames into the files, durably, `.data` first."""
        if not self._entries:
            return
        assert self._active is not None
        self._note()
        stem = self._stem
        is_new = self._flushed_entries == 0
        if is_new:
            self._fs.makedirs(self._directory)
        self._append(f"{stem}.data", b"".join(self._frames), self._flushed_bytes)
        self._append(f"{stem}.idx", b"".join(self._entries), self._flushed_entries * segment_index.ENTRY_BYTES)
        if is_new:
            self._fs.sync_dir(self._directory)
        self._flushed_bytes = self._active.data_bytes
        self._flushed_entries = self._active.entry_count
        self._frames, self._entries = [], []
        if not self.touched or self.touched[-1] is not self._active:
            self.touched.append(self._active)

    def _append(self, path: str, data: bytes, offset: int) -> None:
        file = self._fs.open(path, "write" if self._fs.exists(path) else "create")
        try:
            end = write_all(file, data, offset)
            if file.size() > end:
                # Bytes of an interrupted run.
                file.truncate(end)
            file.fsync()
        finally:
            file.close()

    def _seal(self) -> None:
        assert self._active is not None
        self._flush()
        seal_segment(self._fs, self._stem, self._active)
        if not self.touched or self.touched[-1] is not self._active:
            self.touched.append(self._active)
        self._active.proof = prove_file(self._fs, self._stem, self._active)
        self._active = None

    def finish(self, *, seal: bool = False) -> None:
        """Makes everything durable, and seals the active segment if it is full or old, or if `seal` is set."""
        active = self._active
        if active is None:
            return
        self._flush()
        limits = self._limits
        is_old = limits.age_ms_max > 0 and self._now_ms - active.created_ts >= limits.age_ms_max
        is_full = active.entry_count >= limits.events_max or active.data_bytes >= limits.bytes_max
        if seal or is_full or is_old:
            self._seal()
        elif self.touched and self.touched[-1] is active:
            active.proof = prove_file(self._fs, self._stem, active)


def _accounted(body: bytes, data_len: int) -> int:
    data = body[len(body) - data_len :]
    try:
        return envelope.accounted_bytes(data)
    except FormatError:
        # The engine writes envelopes only. Other data counts whole.
        return len(data)


def seal_segment(fs: Fs, stem: str, state: SegmentState) -> None:
    """Seals a finished segment: sets digest and tagged count in `state`, and writes the tag sidecar."""
    data = read_file(fs, f"{stem}.data")
    digest = xxh3_128()
    tags: dict[bytes, list[int]] = {}
    for offset, length, _, flags in ENTRY.iter_unpack(
        read_file(fs, f"{stem}.idx")[: state.entry_count * segment_index.ENTRY_BYTES]
    ):
        if length == 0:
            continue
        end = offset + length
        digest.update(data[end - SEGMENT_TRAILER_BYTES : end - 1])
        if flags & FLAG_TAG:
            frame = segment.check(data, offset, end)
            tags.setdefault(frame.tag_in(data), []).append(frame.seq)
    if tags:
        write_atomic(fs, f"{stem}.tags", tag_sidecar.encode(state.first_seq, tags))
    state.tagged_count = sum(map(len, tags.values()))
    state.digest = digest.digest()
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

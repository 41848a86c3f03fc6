"""Records that a start found in the WAL: an index of their places, not the records themselves.

The records stay in their WAL files and are read by `pread`, until the next checkpoint puts them into segments. The
index of a million records takes 24 MB.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import compress
from operator import not_
from typing import Final, NamedTuple

from topics.errors import BadFrame, FormatError
from topics.formats import wal_frame
from topics.storage.fs import File, Fs

# One call reads a run of records when the run is at most this many times as long as the records of the topic in it.
SPAN_WASTE_MAX: Final = 4


class Span(NamedTuple):
    """Bytes of a WAL file that are read with one call."""

    path: str
    offset: int
    size: int


class WalFiles:
    """Open WAL files of a replay, by path. They are closed when a checkpoint has put all their records into
    segments."""

    def __init__(self, fs: Fs) -> None:
        self._fs = fs
        self._files: dict[str, File] = {}

    def _file(self, path: str) -> File:
        # The start has just read every WAL file, so opening one again does not wait for the disk.
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = self._fs.open(path, "read")
        return file

    def pread(self, path: str, size: int, offset: int) -> bytes:
        return self._file(path).pread(size, offset)

    def is_cached(self, span: Span) -> bool:
        return self._file(span.path).is_cached(span.size, span.offset)

    def fetch(self, span: Span) -> None:
        """Brings the bytes into the page cache. For any thread: it opens the file again."""
        file = self._fs.open(span.path, "read")
        try:
            file.pread(span.size, span.offset)
        finally:
            file.close()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


class Replayed:
    """Covers seqs `first_seq` to `end_seq - 1`. A dead slot has length 0. Owner only."""

    __slots__ = ("_files", "_forgotten_to", "_lengths", "_offsets", "_runs", "_sizes", "_ts", "_wal_files", "first_seq")

    def __init__(self, wal_files: WalFiles, first_seq: int) -> None:
        self._wal_files = wal_files
        self.first_seq = first_seq
        # All slots below this seq are dead.
        self._forgotten_to = first_seq
        self._offsets = array("Q")
        self._lengths = array("I")
        self._sizes = array("I")
        self._ts = array("Q")
        # Slots from index _runs[i] up to _runs[i + 1] - 1 are in the file _files[i].
        self._runs: list[int] = []
        self._files: list[str] = []

    @property
    def end_seq(self) -> int:
        return self.first_seq + len(self._offsets)

    def append(self, path: str, offset: int, length: int, size: int, ts: int) -> None:
        """Adds a record. `offset` and `length` describe its whole frame in the file."""
        self._begin_run(path)
        self._offsets.append(offset)
        self._lengths.append(length)
        self._sizes.append(size)
        self._ts.append(ts)

    def extend(
        self, path: str, offsets: Sequence[int], lengths: Sequence[int], sizes: Sequence[int], times: Sequence[int]
    ) -> None:
        """`append` for many records in the same file."""
        self._begin_run(path)
        self._offsets.extend(offsets)
        self._lengths.extend(lengths)
        self._sizes.extend(sizes)
        self._ts.extend(times)

    def _begin_run(self, path: str) -> None:
        if not self._files or self._files[-1] != path:
            self._runs.append(len(self._offsets))
            self._files.append(path)

    def append_holes(self, count: int) -> None:
        last_ts = self._ts[-1] if self._ts else 0
        self._offsets.extend([0] * count)
        self._lengths.extend([0] * count)
        self._sizes.extend([0] * count)
        self._ts.extend([last_ts] * count)

    def truncate(self, end_seq: int) -> None:
        """Takes back the slots from `end_seq` on: their write is not complete in the log."""
        count = end_seq - self.first_seq
        for column in (self._offsets, self._lengths, self._sizes, self._ts):
            del column[count:]
        while self._runs and self._runs[-1] >= count and len(self._runs) > 1:
            self._runs.pop()
            self._files.pop()

    def last_within(self, first_seq: int, last_seq: int, bytes_max: int) -> int:
        """The last seq up to which the range has at most `bytes_max`. The range has at least one record."""
        start = first_seq - self.first_seq
        lengths = self._lengths[start : last_seq - self.first_seq + 1]
        if sum(lengths) <= bytes_max:
            return last_seq
        total = 0
        for count, length in enumerate(lengths):
            total += length
            if total > bytes_max and count:
                return first_seq + count - 1
        return last_seq

    def read(self, first_seq: int, last_seq: int) -> list[bytes | FormatError | None]:
        """WAL bodies of an inclusive range. The checksum of every frame is verified again."""
        bodies: list[bytes | FormatError | None] = []
        for path, start, stop in self._runs_within(first_seq, last_seq):
            bodies += self._read_run(path, start, stop)
        return bodies

    def spans(self, first_seq: int, last_seq: int) -> list[Span]:
        """The bytes of files that `read` of the range reads."""
        return [
            span
            for path, start, stop in self._runs_within(first_seq, last_seq)
            for span in self._spans(path, start, stop)
        ]

    def is_cached(self, span: Span) -> bool:
        return self._wal_files.is_cached(span)

    def fetch(self, span: Span) -> None:
        """For any thread. All other methods are for the owner only."""
        self._wal_files.fetch(span)

    def _runs_within(self, first_seq: int, last_seq: int) -> Iterator[tuple[str, int, int]]:
        """Splits a range by file: (file, first place, end place)."""
        start = first_seq - self.first_seq
        end = last_seq - self.first_seq + 1
        while start < end:
            run = bisect_right(self._runs, start) - 1
            run_end = self._runs[run + 1] if run + 1 < len(self._runs) else end
            stop = min(end, run_end)
            yield self._files[run] if run >= 0 else "", start, stop
            start = stop

    def _spans(self, path: str, start: int, end: int) -> list[Span]:
        """One span for all records when other topics have few bytes in it, else one span for each record."""
        lengths, offsets = self._lengths, self._offsets
        while start < end and not lengths[start]:
            start += 1
        while start < end and not lengths[end - 1]:
            end -= 1
        if start == end:
            return []
        base = offsets[start]
        size = offsets[end - 1] + lengths[end - 1] - base
        if size <= SPAN_WASTE_MAX * sum(lengths[start:end]):
            return [Span(path, base, size)]
        framed = zip(offsets[start:end], lengths[start:end], strict=True)
        return [Span(path, offset, length) for offset, length in framed if length]

    def _read_run(self, path: str, start: int, end: int) -> list[bytes | FormatError | None]:
        spans = self._spans(path, start, end)
        lengths = self._lengths[start:end]
        buffers = [self._wal_files.pread(path, span.size, span.offset) for span in spans]
        if len(buffers) == 1:
            base, buffer = spans[0].offset, buffers[0]
            framed = zip(self._offsets[start:end], lengths, strict=True)
            buffers = [buffer[offset - base : offset - base + length] for offset, length in framed if length]
        bodies = map(_verified, buffers)
        return [next(bodies) if length else None for length in lengths]

    def sizes(self, first_seq: int, last_seq: int) -> array[int]:
        start = first_seq - self.first_seq
        return self._sizes[start : start + last_seq - first_seq + 1]

    def kill(self, seq: int) -> int | None:
        place = seq - self.first_seq
        if self._lengths[place] == 0:
            return None
        self._lengths[place] = 0
        return self._sizes[place]

    def next_live(self, seq: int) -> int | None:
        for place in range(max(seq, self._forgotten_to) - self.first_seq, len(self._lengths)):
            if self._lengths[place]:
                return place + self.first_seq
        return None

    def live_numbers(self, first_seq: int, last_seq: int) -> tuple[int, int]:
        first_seq = max(first_seq, self.first_seq)
        last_seq = min(last_seq, self.end_seq - 1)
        if last_seq < first_seq:
            return 0, 0
        start, end = first_seq - self.first_seq, last_seq - self.first_seq + 1
        lengths = self._lengths[start:end]
        dead = lengths.count(0)
        if not dead:
            return end - start, sum(self._sizes[start:end])
        total = sum(compress(self._sizes[start:end], lengths))
        return end - start - dead, total

    def live_sizes(self, seq: int) -> Iterator[tuple[int, int]]:
        for place in range(max(seq - self.first_seq, 0), len(self._lengths)):
            if self._lengths[place]:
                yield place + self.first_seq, self._sizes[place]

    def ts_of(self, seq: int) -> int:
        return self._ts[seq - self.first_seq]

    def expired_last_seq(self, cutoff_ts: int) -> int:
        return bisect_left(self._ts, cutoff_ts) + self.first_seq - 1

    def forget_below(self, seq: int) -> tuple[int, int]:
        """Marks the slots below `seq` as dead. The next checkpoint drops all slots. Returns (count, bytes) of live
        records."""
        seq = min(seq, self.end_seq)
        if seq <= self.first_seq:
            return 0, 0
        numbers = self.live_numbers(self._forgotten_to, seq - 1)
        if seq > self._forgotten_to:
            start, end = self._forgotten_to - self.first_seq, seq - self.first_seq
            self._lengths[start:end] = array("I", bytes(self._lengths.itemsize * (end - start)))
            self._forgotten_to = seq
        return numbers

    def dead_marks(self, first_seq: int, last_seq: int) -> bytes:
        """One byte per slot of the inclusive range: 1 for a dead one."""
        start = first_seq - self.first_seq
        lengths = self._lengths[start : last_seq - self.first_seq + 1]
        return bytes(map(not_, lengths)) if lengths.count(0) else bytes(len(lengths))


def _verified(frame: bytes) -> bytes | FormatError:
    body = wal_frame.body_of(frame)
    return (
        BadFrame("the checksum of the frame is wrong: the file has changed since the start") if body is None else body
    )

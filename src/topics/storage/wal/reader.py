"""Reading a WAL shard back: its frames, where they end, and what that end means.

The end of a shard is a *torn tail* when the bad (or missing) frame is in the last file that has frames and no later
sync mark covers it. Unsynced sectors reach a disk in any order, so valid frames may follow a torn tail. A start cuts it
(`settling`).

Everything else that is wrong is *damage*: an earlier file, a missing file, a bad frame that a later sync mark says was
on disk. Damage stops the start and is never cut here. `ShardReader` changes nothing.
"""

import logging
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Final

from topics.errors import Damaged, FormatError, FutureVersion, Torn
from topics.formats import wal_frame
from topics.formats.record_layout import CHECKSUM_BYTES
from topics.formats.snapshot import WalPosition
from topics.formats.wal_frame import Frame, FrameColumns, Scan
from topics.limits import FRAME_BYTES_MAX, MIB
from topics.storage import layout
from topics.storage.fs import File, Fs

logger = logging.getLogger(__name__)

WINDOW_BYTES: Final = 2 * MIB
_ZEROS: Final = bytes(MIB)


@dataclass(frozen=True, slots=True)
class WalFile:
    first_frame: int
    path: str
    size: int


@dataclass(slots=True)
class ShardEnd:
    """Where the good frames of a shard end."""

    position: WalPosition
    path: str | None
    # Highest frame number that a sync mark covers.
    synced_frame: int
    # Where to begin writing again in place: at or before the first frame that no mark covers.
    rewrite_offset: int
    # Where the bytes after the end stop that must be cut; 0 when there are none.
    torn_end: int = 0
    directory: str = ""
    warnings: list[str] = field(default_factory=list)


def list_wal_files(fs: Fs, directory: str) -> list[WalFile]:
    """WAL files of one shard directory by first frame number."""
    files: list[WalFile] = []
    if fs.exists(directory):
        for name in fs.listdir(directory):
            first_frame = layout.wal_first_frame(name)
            if first_frame is not None:
                path = f"{directory}/{name}"
                files.append(WalFile(first_frame, path, fs.size(path)))
    return sorted(files, key=lambda file: file.first_frame)


class ShardReader:
    """Iterates the frames of one shard from a position; afterwards `end` says where they ended.

    Raises `Damaged` or `FutureVersion` where a start must be refused.
    """

    def __init__(self, fs: Fs, directory: str, start: WalPosition | None, *, window_bytes: int = WINDOW_BYTES) -> None:
        self._fs = fs
        self._window_bytes = window_bytes
        self.directory = directory
        self._start = start
        self.files = list_wal_files(fs, directory)
        self.end: ShardEnd | None = None
        self.bytes_total = sum(file.size for file in self._relevant_files())
        self._marks: list[tuple[int, int]] = []

    @property
    def bytes_replayed(self) -> int:
        """Bytes from the start to the end of the frames. The rest of the last file is preallocated space."""
        assert self.end is not None
        position = self.end.position
        earlier = sum(file.size for file in self._relevant_files() if file.first_frame < position.file_frame)
        return earlier + position.offset - (0 if self._start is None else self._start.offset)

    def _relevant_files(self) -> list[WalFile]:
        """Files that can hold frames from the start on."""
        if self._start is None:
            return self.files
        return [file for file in self.files if file.first_frame >= self._start.file_frame]

    def __iter__(self) -> Iterator[tuple[WalFile, bytes, int, Frame]]:
        """(file, buffer, offset of the buffer in the file, frame); frame offsets are in the buffer."""
        for file, buffer, base, frames in self.windows():
            for frame in frames:
                yield file, buffer, base, frame

    def windows(self) -> Generator[tuple[WalFile, bytes, int, FrameColumns], None, None]:
        """The same by the window: one turn of the loop for many frames."""
        files, offset, next_frame = self._begin()
        if not files:
            return
        synced_frame = next_frame - 1
        for place, file in enumerate(files):
            self._marks = [(next_frame, offset)]
            reader = _FileReader(self._fs, file, offset, self._window_bytes)
            try:
                for buffer, base, found in reader:
                    frames = found.frames
                    for index in found.marks:
                        mark = frames[index]
                        self._marks.append((next_frame + index, base + mark.offset))
                        synced_frame = max(synced_frame, _synced_by(file, buffer, base, mark))
                    next_frame += len(frames)
                    yield file, buffer, base, frames
                if place + 1 == len(files):
                    self.end = self._end_in(file, reader, next_frame, synced_frame)
                else:
                    _check_count(file, reader, files[place + 1], next_frame)
            finally:
                reader.close()
            offset = 0

    def _begin(self) -> tuple[list[WalFile], int, int]:
        """Files to read, where in the first of them, and the number of the first frame.

        No files: `end` is set, and the shard goes on in a new file at that number.
        """
        files = self._relevant_files()
        start = self._start
        if start is None:
            if files and files[0].first_frame != 1:
                raise Damaged(files[0].path, 0, "a file that begins with frame 1", f"frame {files[0].first_frame}")
            self.end = None if files else _new_file_end(1)
            return files, 0, 1
        if files and files[0].first_frame == start.file_frame:
            if self._reaches(files[0], start.offset):
                return files, start.offset, start.frame
            files = files[1:]
        if files and files[0].first_frame != start.frame:
            raise Damaged(
                files[0].path, 0, f"a file that begins with frame {start.frame}", f"frame {files[0].first_frame}"
            )
        if not files:
            self.end = _new_file_end(start.frame)
            if start.offset:
                # Nothing is lost: everything before the start is in segments.
                self.end.warnings.append(
                    f"{self.directory} ends before frame {start.frame}, which is in segments; going on in a new file"
                )
        return files, 0, start.frame

    def _reaches(self, file: WalFile, offset: int) -> bool:
        """Whether the frame that ended at `offset` is still there: its checksum cannot be zeros."""
        if offset == 0:
            return True
        handle = self._fs.open(file.path, "read")
        try:
            return any(handle.pread(CHECKSUM_BYTES, offset - CHECKSUM_BYTES)) and file.size >= offset
        finally:
            handle.close()

    def _end_in(self, file: WalFile, reader: "_FileReader", next_frame: int, synced_frame: int) -> ShardEnd:
        torn_end = reader.torn_end()
        if torn_end:
            for offset, covered in reader.sync_marks_behind():
                if covered >= next_frame:
                    error = reader.error or FormatError("zeros", reader.end_offset)
                    raise Damaged(
                        file.path,
                        reader.end_offset,
                        f"frame {next_frame}, which the sync mark at offset {offset} covers",
                        error.message,
                    )
        # Begin at the last mark that is at or before the first unsynced frame.
        rewrite = max((offset for number, offset in self._marks if number <= synced_frame + 1), default=0)
        return ShardEnd(
            WalPosition(next_frame, file.first_frame, reader.end_offset),
            file.path,
            synced_frame,
            min(rewrite, reader.end_offset),
            torn_end,
        )


def _new_file_end(frame: int) -> ShardEnd:
    return ShardEnd(WalPosition(frame, frame, 0), None, frame - 1, 0)


def _synced_by(file: WalFile, buffer: bytes, base: int, mark: Frame) -> int:
    try:
        return wal_frame.decode_sync_mark(mark.data_in(buffer))
    except FormatError as error:
        raise Damaged(file.path, base + mark.offset, "a sync mark", error.message) from error


def _check_count(file: WalFile, reader: "_FileReader", following: WalFile, next_frame: int) -> None:
    """A file takes its first frame only after the one before it is synced, so the count must go on."""
    if following.first_frame == next_frame:
        return
    if reader.error is not None:
        raise Damaged(file.path, reader.error.offset, f"frame {next_frame}", reader.error.message)
    raise Damaged(following.path, 0, f"a file that begins with frame {next_frame}", f"frame {following.first_frame}")


class _FileReader:
    """Frames of one file through a sliding window; memory is bounded by the window, not by the file."""

    def __init__(self, fs: Fs, file: WalFile, offset: int, window_bytes: int) -> None:
        self.path = file.path
        self._window_bytes = window_bytes
        self._file: File = fs.open(file.path, "read")
        self._size = file.size
        self.end_offset = offset
        # Why the frames ended, with its offset in the file; None at a clean end.
        self.error: FormatError | None = None

    def __iter__(self) -> Iterator[tuple[bytes, int, Scan]]:
        window = self._window_bytes
        while self.end_offset < self._size:
            base = self.end_offset
            buffer = self._file.pread(min(window, self._size - base), base)
            is_last = base + len(buffer) >= self._size
            found = wal_frame.scan(buffer, 0, len(buffer), FRAME_BYTES_MAX)
            if found.frames:
                self.end_offset = base + found.frames.ends[-1]
                yield buffer, base, found
            error = found.error
            if isinstance(error, FutureVersion):
                raise FutureVersion(f"{self.path}: {error.message}") from error
            left = base + len(buffer) - self.end_offset
            cut_by_window = not is_last and (
                isinstance(error, Torn) or (error is None and left < wal_frame.HEADER_BYTES)
            )
            if not cut_by_window:
                if error is not None:
                    self._note(error, base)
                return
            if self.end_offset == base:
                window *= 2

    def _note(self, error: FormatError, base: int) -> None:
        error.offset += base
        self.error = error

    def torn_end(self) -> int:
        """Where the non-zero bytes after the end of the frames stop; 0 when there are none."""
        last = 0
        position: int | None = self.end_offset
        while position is not None and position < self._size:
            position = self._file.seek_data(position)
            if position is None or position >= self._size:
                break
            chunk = self._file.pread(len(_ZEROS), position)
            if chunk != _ZEROS[: len(chunk)]:
                last = position + len(chunk.rstrip(b"\0"))
            position += len(chunk)
        return last

    def sync_marks_behind(self) -> Iterator[tuple[int, int]]:
        overlap = wal_frame.SYNC_FRAME_BYTES
        position = self.end_offset
        while position < self._size:
            chunk = self._file.pread(self._window_bytes + overlap, position)
            for offset, covered in wal_frame.find_sync_marks(chunk, 0, len(chunk)):
                yield position + offset, covered
            position += self._window_bytes

    def close(self) -> None:
        self._file.close()

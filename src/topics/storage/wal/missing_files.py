"""WAL files that are missing or empty, although something proves that they were written.

Two things prove it. CURRENT names a file only when the file is durable, with its full size. The position of a snapshot
is in a file that was synced up to there. A file that a start has set aside (`.torn`) is not missing.

A file that has frames and ends before the position of the newest snapshot is another case: the log goes on in a new
file (`reader`).
"""

from typing import NamedTuple

from topics.errors import Damaged
from topics.formats.record_layout import FRAME_LEN_BYTES
from topics.formats.snapshot import WalPosition
from topics.storage import layout
from topics.storage.fs import Fs
from topics.storage.wal.reader import WalFile

_NAME_BYTES_MAX = 256


class MissingFile(NamedTuple):
    path: str
    first_frame: int
    # What is there instead.
    found: str
    # How it is known that the file was written.
    proof: str

    def damage(self) -> Damaged:
        return Damaged(self.path, 0, f"a log file with frames ({self.proof})", self.found)


def read_current(fs: Fs, directory: str) -> str | None:
    """The content of CURRENT; None when it is missing or empty."""
    path = f"{directory}/{layout.CURRENT}"
    if not fs.exists(path):
        return None
    file = fs.open(path, "read")
    try:
        return file.pread(_NAME_BYTES_MAX, 0).decode("ascii", "replace") or None
    finally:
        file.close()


def missing_file(fs: Fs, directory: str, files: list[WalFile], start: WalPosition | None) -> MissingFile | None:
    """The first file of a shard that was written and is missing or empty. `start` is the position of the newest
    snapshot, None without a snapshot."""
    return _missing_at_start(fs, directory, files, start) or _missing_current(fs, directory, files, start)


def _missing_current(fs: Fs, directory: str, files: list[WalFile], start: WalPosition | None) -> MissingFile | None:
    first_frame = layout.wal_first_frame(read_current(fs, directory) or "")
    if first_frame is None or (start is not None and first_frame < start.file_frame):
        # All frames of an older file are in segments: it may be gone, and so may a layout with another shard count.
        return None
    if any(file.first_frame > first_frame for file in files):
        # A later file is there. The count of frames tells whether a file before it is missing.
        return None
    path = f"{directory}/{layout.wal_name(first_frame)}"
    proof = f"{layout.CURRENT} names it"
    if not files or files[-1].first_frame != first_frame:
        if fs.exists(path + layout.TORN):
            return None
        return MissingFile(path, first_frame, "no file", proof)
    return MissingFile(path, first_frame, "an empty file", proof) if files[-1].size == 0 else None


def _missing_at_start(fs: Fs, directory: str, files: list[WalFile], start: WalPosition | None) -> MissingFile | None:
    if start is None or start.offset == 0 or any(file.first_frame == start.frame for file in files):
        # When the next file begins at the position, all frames of the file before it are in segments.
        return None
    path = f"{directory}/{layout.wal_name(start.file_frame)}"
    proof = f"the newest snapshot goes on at its offset {start.offset}"
    if not fs.exists(path):
        return None if fs.exists(path + layout.TORN) else MissingFile(path, start.file_frame, "no file", proof)
    file = fs.open(path, "read")
    try:
        if any(file.pread(FRAME_LEN_BYTES, 0)):
            return None
    finally:
        file.close()
    return MissingFile(path, start.file_frame, "a file without frames", proof)

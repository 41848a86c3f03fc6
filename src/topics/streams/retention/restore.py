"""Copies archived segments back into a data directory that no engine has open.

All segments are checked first: if one contradicts the directory, nothing is changed. Then `.codec`, `.index` and, last,
`.log` of each segment are written under a temporary name, synced and renamed. A run that was interrupted is simply
repeated: it keeps the segments that are complete.
"""

import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, NamedTuple

from topics.errors import StartRefused
from topics.formats.message_index import ENTRY_BYTES, decode_entries
from topics.formats.stream_layout import CODEC, INDEX, LOG, TEMPORARY, segment_path
from topics.limits import MIB
from topics.storage.fs import Fs, write_all
from topics.storage.tiers.store import SegmentStore

PIECE_BYTES: Final = 8 * MIB
STREAMS_PREFIX: Final = "streams/"

_LOG_NAME: Final = re.compile(r"(.+)/([0-9]{20})\.log", re.DOTALL)


class RestoreReport(NamedTuple):
    restored_segments: int
    restored_bytes: int
    # Segments that the directory had already.
    present_segments: int


@dataclass(frozen=True, slots=True)
class _ArchivedSegment:
    """A complete segment in the archive. `key` is that of its partition."""

    key: str
    start_offset: int
    log_bytes: int
    index_bytes: int
    has_codec: bool

    @property
    def end_offset(self) -> int:
        return self.start_offset + self.index_bytes // ENTRY_BYTES - 1

    def name(self, suffix: str) -> str:
        return segment_path(self.key, self.start_offset, suffix)


def restore(store: SegmentStore, fs: Fs, root: str, prefix: str = STREAMS_PREFIX) -> RestoreReport:
    """Copies every archived segment whose name begins with `prefix` and that the directory `root` lacks.

    A partition that has messages which the archive does not have gets older segments back. A segment with the same or
    higher offsets can only be from before a purge, and is refused.
    """
    archived = list(_find(store, prefix))
    missing = [segment for segment in archived if not _is_present(fs, root, store, segment)]
    known = {segment.name(LOG) for segment in archived}
    for segment in missing:
        _check_fits(fs, root, store, segment, known)
    # The newest first: an interrupted run leaves no gap between restored segments and the ones that were there.
    for segment in sorted(missing, key=lambda segment: (segment.key, -segment.start_offset)):
        _copy_back(store, fs, root, segment)
    return RestoreReport(len(missing), sum(segment.log_bytes for segment in missing), len(archived) - len(missing))


def _find(store: SegmentStore, prefix: str) -> Iterator[_ArchivedSegment]:
    """The complete segments: those with a `.log`. Other names are skipped."""
    for name in store.list(prefix):
        match = _LOG_NAME.fullmatch(name)
        if match is None or any(part in {"", ".", ".."} for part in match[1].split("/")):
            continue
        key, start_offset = match[1], int(match[2])
        index_name = segment_path(key, start_offset, INDEX)
        if not store.exists(index_name):
            raise StartRefused(f"{store.address}/{name} has no {INDEX}: nothing is restored")
        has_codec = store.exists(segment_path(key, start_offset, CODEC))
        yield _ArchivedSegment(key, start_offset, store.size(name), store.size(index_name), has_codec)


def _is_present(fs: Fs, root: str, store: SegmentStore, segment: _ArchivedSegment) -> bool:
    """Whether the directory has this segment. The empty `.log` of an unused partition is not a segment."""
    path = f"{root}/{segment.name(LOG)}"
    if not fs.exists(path) or fs.size(path) == 0:
        return False
    if fs.size(path) == segment.log_bytes and _is_same_file(fs, root, store, segment.name(INDEX), segment.index_bytes):
        return True
    raise StartRefused(
        f"{path} differs from {store.address}/{segment.name(LOG)}: nothing is restored; move one of them away first"
    )


def _is_same_file(fs: Fs, root: str, store: SegmentStore, name: str, size: int) -> bool:
    if not fs.exists(f"{root}/{name}"):
        return False
    file = fs.open(f"{root}/{name}", "read")
    try:
        if file.size() != size:
            return False
        return all(file.pread(len(piece), offset) == piece for offset, piece in _read_in_pieces(store, name, size))
    finally:
        file.close()


def _check_fits(fs: Fs, root: str, store: SegmentStore, segment: _ArchivedSegment, known: AbstractSet[str]) -> None:
    if not _is_whole(store, segment):
        raise StartRefused(f"{store.address}/{segment.name(LOG)} is not what its {INDEX} says: nothing is restored")
    first = _first_unarchived_offset(fs, root, segment.key, known)
    if first is not None and segment.end_offset >= first:
        raise StartRefused(
            f"{root}/{segment.key} has messages from offset {first} on that are not archived, and "
            f"{store.address}/{segment.name(LOG)} reaches to {segment.end_offset}: nothing is restored; "
            "move one of them away first"
        )


def _is_whole(store: SegmentStore, segment: _ArchivedSegment) -> bool:
    if segment.index_bytes == 0 or segment.index_bytes % ENTRY_BYTES:
        return False
    last = store.read_range(segment.name(INDEX), segment.index_bytes - ENTRY_BYTES, ENTRY_BYTES)
    return len(last) == ENTRY_BYTES and bool(decode_entries(last)[0]["position"] <= segment.log_bytes)


def _first_unarchived_offset(fs: Fs, root: str, key: str, known: AbstractSet[str]) -> int | None:
    """The first offset whose message is not in the archive."""
    if not fs.exists(f"{root}/{key}"):
        return None
    names = [f"{key}/{name}" for name in fs.listdir(f"{root}/{key}")]
    starts = [
        int(match[2])
        for name in names
        if (match := _LOG_NAME.fullmatch(name)) and name not in known and fs.size(f"{root}/{name}")
    ]
    return min(starts, default=None)


def _copy_back(store: SegmentStore, fs: Fs, root: str, segment: _ArchivedSegment) -> None:
    directory = f"{root}/{segment.key}"
    fs.makedirs(directory)
    codec_path = f"{root}/{segment.name(CODEC)}"
    if segment.has_codec:
        _copy_file(store, fs, root, segment.name(CODEC), store.size(segment.name(CODEC)))
    elif fs.exists(codec_path):
        # It belongs to the empty segment that this one replaces.
        fs.unlink(codec_path)
        fs.sync_dir(directory)
    _copy_file(store, fs, root, segment.name(INDEX), segment.index_bytes)
    _copy_file(store, fs, root, segment.name(LOG), segment.log_bytes)


def _copy_file(store: SegmentStore, fs: Fs, root: str, name: str, size: int) -> None:
    path = f"{root}/{name}"
    temporary = path + TEMPORARY
    if fs.exists(temporary):
        fs.unlink(temporary)
    file = fs.open(temporary, "create")
    try:
        for offset, piece in _read_in_pieces(store, name, size):
            write_all(file, piece, offset)
        file.fsync()
    finally:
        file.close()
    fs.rename(temporary, path)
    fs.sync_dir(path.rpartition("/")[0])


def _read_in_pieces(store: SegmentStore, name: str, size: int) -> Iterator[tuple[int, bytes]]:
    for offset in range(0, size, PIECE_BYTES):
        piece = store.read_range(name, offset, min(PIECE_BYTES, size - offset))
        if len(piece) != min(PIECE_BYTES, size - offset):
            raise StartRefused(f"{store.address}/{name} became shorter while it was read; run the restore again")
        yield offset, piece

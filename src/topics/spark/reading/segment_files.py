"""Segments as files: in a folder of this machine, or in a bucket.

A sealed file of a folder is mapped. Of other files only the needed bytes are read, and never bytes above the lengths in
the manifest: a writer may be writing them.

Frames do not name their topic, so a file that was swapped or restored into the wrong place has valid frames of the
wrong records. The proof in the manifest tells. Its checksums are mostly in the bytes that are read anyway.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final, Protocol

import numpy as np

from topics.errors import ColdUnavailable, StartRefused
from topics.formats import segment_index
from topics.formats.buffers import Buffer
from topics.formats.frame_table import ENTRIES, FrameTable, from_frames, from_index
from topics.formats.snapshot import SegmentState
from topics.spark.manifest import Segment
from topics.storage.fs import Fs, RealFs
from topics.storage.layout import STORE
from topics.storage.segments.proof import is_pair_proved
from topics.storage.tiers.addresses import open_store, path_of_address
from topics.storage.tiers.store import SegmentStore
from topics.storage.tiers.store_id import read_store_id

_PARTS_OF_A_NAME: Final = 3  # topics/0000000A/seg-0000000000000001.data


class Moved(Exception):
    """The files have changed since the manifest, or are gone: a new manifest is needed."""


class Foreign(Exception):
    """The file has other records than the manifest lists. Its name in the tier is the text."""


class Elsewhere(Exception):
    """These files cannot be read on this machine; the text says why."""


class _Files(Protocol):
    def read_range(self, name: str, offset: int, size: int) -> bytes: ...


def open_segment(file: Segment, first_seq: int, last_seq: int, store_id: str) -> FrameTable:
    """The frames of these seqs of a segment, and perhaps more frames. Without a `store_id` every store is taken.

    Raises `Moved`, `Foreign` or `Elsewhere`. The table lists damaged frames.
    """
    address, name = tier_and_name(file.uri)
    if file.frames:
        _require_proved(name, file, b"", _part_of(file.frames))
        return from_frames(file.frames, first_seq=file.first_seq, last_seq=file.last_seq)
    try:
        if store_id:
            _require_store(address, store_id)
        path = path_of_address(address)
        if path is None:
            return _sliced(_store(address), name, file, first_seq, last_seq)
        folder = _Folder(RealFs(), path)
        if file.sealed:
            return _mapped(folder, name, file, first_seq, last_seq)
        return _sliced(folder, name, file, first_seq, last_seq)
    except FileNotFoundError:
        raise Moved from None
    except (ColdUnavailable, StartRefused) as error:
        raise Elsewhere(error.message) from error
    except OSError as error:
        raise Elsewhere(f"{file.uri}: {error}") from error


def tier_and_name(uri: str) -> tuple[str, str]:
    """The address of the tier, and the name in it of a segment's `.data`."""
    parts = uri.split("/")
    return "/".join(parts[:-_PARTS_OF_A_NAME]), "/".join(parts[-_PARTS_OF_A_NAME:])


# Looked up once in each process, because a worker reads many partitions.


@lru_cache(maxsize=64)
def _store(address: str) -> SegmentStore:
    return open_store(address, RealFs())


@lru_cache(maxsize=64)
def _require_store(address: str, store_id: str) -> None:
    """Raises `Elsewhere` unless the tier on this machine has the id of the manifest."""
    found = read_store_id(_store(address))
    if found is None:
        raise Elsewhere(f"{address} has no {STORE} here")
    if found != store_id:
        raise Elsewhere(f"{address} is another store here: {found}")


class _Folder:
    def __init__(self, fs: Fs, root: str) -> None:
        self._fs = fs
        self._root = root

    def map(self, name: str) -> Buffer:
        file = self._fs.open(f"{self._root}/{name}", "read")
        try:
            return file.map()
        finally:
            file.close()

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        file = self._fs.open(f"{self._root}/{name}", "read")
        try:
            return file.pread(size, offset)
        finally:
            file.close()


def _require_proved(name: str, file: Segment, idx: Buffer, read: Callable[[int, int], Buffer]) -> None:
    """Raises `Foreign`. `read` gives bytes of the data, by offset and size."""
    state = SegmentState(file.first_seq, file.records, file.data_len, 0, 0, 0, 0, proof=bytes.fromhex(file.proof))
    if not is_pair_proved(state, _part_of(idx), read):
        raise Foreign(name)


def _part_of(content: Buffer) -> Callable[[int, int], Buffer]:
    return lambda offset, size: content[offset : offset + size]


def _idx_of(name: str) -> str:
    return f"{name.removesuffix('.data')}.idx"


def _mapped(folder: _Folder, name: str, file: Segment, first_seq: int, last_seq: int) -> FrameTable:
    data = folder.map(name)
    try:
        idx = folder.map(_idx_of(name))
    except FileNotFoundError:
        idx = b""
    _require_proved(name, file, idx, _part_of(data))
    if len(data) != file.data_len:
        raise Moved  # The pair was written again since the manifest.
    return from_index(data, idx, file.first_seq, last_seq=file.last_seq, wanted=(first_seq, last_seq))


def _sliced(files: _Files, name: str, file: Segment, first_seq: int, last_seq: int) -> FrameTable:
    try:
        idx = files.read_range(_idx_of(name), 0, file.idx_len)
    except FileNotFoundError:
        idx = b""
    span = _span(idx, file, first_seq, last_seq)
    start, stop = span or (0, 0)
    part = files.read_range(name, start, stop - start) if start < stop else b""

    def read(offset: int, size: int) -> bytes:
        if start <= offset and offset + size <= start + len(part):
            return part[offset - start : offset - start + size]
        return files.read_range(name, offset, size)

    _require_proved(name, file, idx, read)
    if span is not None:
        size = segment_index.ENTRY_BYTES
        wanted = idx[(first_seq - file.first_seq) * size : (last_seq - file.first_seq + 1) * size]
        table = from_index(part, wanted, first_seq, last_seq=last_seq, data_start=start)
        if table.index_problem is None and not table.bad:
            return table
    # The index is wrong. All of the data is read, and the frames are found without it.
    data = files.read_range(name, 0, file.data_len)
    if len(data) != file.data_len:
        raise Moved
    return from_index(data, idx, file.first_seq, last_seq=file.last_seq, wanted=(first_seq, last_seq))


def _span(idx: bytes, file: Segment, first_seq: int, last_seq: int) -> tuple[int, int] | None:
    """Where the frames of these seqs begin and end; None when the index is not whole.

    All of the index is read: a part of it that lost entries looks like a part with holes.
    """
    entries = np.frombuffer(idx, dtype=ENTRIES, count=len(idx) // ENTRIES.itemsize)
    ends = np.cumsum(entries["length"], dtype=np.int64)
    if len(entries) != file.last_seq - file.first_seq + 1 or int(ends[-1]) != file.data_len:
        return None
    low, high = first_seq - file.first_seq, last_seq - file.first_seq
    return int(ends[low]) - int(entries["length"][low]), int(ends[high])

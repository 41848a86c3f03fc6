"""Segments of messages in a directory of streams, found by their files: no state log is needed."""

from collections.abc import Iterator
from typing import NamedTuple

from topics.formats.stream_layout import INDEX, LOG, segment_path, segment_starts
from topics.storage.fs import Fs


class MessageSegment(NamedTuple):
    """A segment of a partition. `directory` is the folder of the partition, `size_bytes` that of the `.log`."""

    directory: str
    start_offset: int
    is_last: bool
    size_bytes: int = 0

    @property
    def log_path(self) -> str:
        return segment_path(self.directory, self.start_offset, LOG)

    @property
    def index_path(self) -> str:
        return segment_path(self.directory, self.start_offset, INDEX)


def find_message_segments(fs: Fs, root: str) -> Iterator[MessageSegment]:
    """All segments below a folder, partition by partition. A segment that an engine removes meanwhile is left out."""
    for directory in _partitions(fs, root):
        starts = segment_starts(fs.listdir(directory))
        for start in starts:
            try:
                size_bytes = fs.size(segment_path(directory, start, LOG))
            except FileNotFoundError:
                continue
            yield MessageSegment(directory, start, start == starts[-1], size_bytes)


def _partitions(fs: Fs, directory: str) -> Iterator[str]:
    """Folders with segments of messages, at any depth."""
    try:
        names = fs.listdir(directory)
    except (NotADirectoryError, FileNotFoundError):
        return
    if segment_starts(names):
        yield directory
        return
    for name in sorted(names):
        yield from _partitions(fs, f"{directory}/{name}")

"""The disk under a data directory, for statistics."""

from typing import NamedTuple

from topics.storage.fs import RealFs


class DiskSpace(NamedTuple):
    free_bytes: int
    total_bytes: int


def disk_space(path: str) -> DiskSpace:
    """Waits for the disk."""
    fs = RealFs()
    try:
        return DiskSpace(fs.free_bytes(path), fs.total_bytes(path))
    except OSError:
        # Numbers of statistics: without them the rest is still right.
        return DiskSpace(0, 0)

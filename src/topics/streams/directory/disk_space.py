"""The disk under a data directory, as `storage/` measures it."""

from topics.storage.disk_space import DiskSpace, disk_space

__all__ = ["DiskSpace", "disk_space"]

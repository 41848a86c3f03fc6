"""Kinds of disk failures. A sweep injects one kind at a time, at every call."""

import errno
from collections.abc import Callable
from typing import Final

from topics.testing.fault_fs import Fault, FaultFs, Operation

CHANGES: Final[tuple[Operation, ...]] = (
    "pwrite",
    "pwritev",
    "truncate",
    "preallocate",
    "fdatasync",
    "fsync",
    "create",
    "rename",
    "unlink",
    "rmdir",
    "sync_dir",
    "makedirs",
)
TAKES_ROOM: Final[tuple[Operation, ...]] = ("pwrite", "pwritev", "preallocate", "create", "makedirs")

Arm = Callable[[FaultFs, int], list[Fault]]

KINDS: Final[dict[str, Arm]] = {
    "EIO once": lambda fs, at: [fs.fail(*CHANGES, at=at)],
    "EIO for good": lambda fs, at: [fs.fail(*CHANGES, at=at, lasts=True)],
    "failed sync, then good ones": lambda fs, at: [fs.fail("fdatasync", "fsync", at=at)],
    "ENOSPC once": lambda fs, at: [fs.fail(*TAKES_ROOM, error=errno.ENOSPC, at=at)],
    "ENOSPC for good": lambda fs, at: [fs.fail(*TAKES_ROOM, error=errno.ENOSPC, at=at, lasts=True)],
    "EDQUOT once, anywhere": lambda fs, at: [fs.fail(*CHANGES, error=errno.EDQUOT, at=at)],
    "EROFS for good": lambda fs, at: [fs.fail(*CHANGES, error=errno.EROFS, at=at, lasts=True)],
    "short writes": lambda fs, at: [fs.short_write(at=at, lasts=True)],
    "torn write, ENOSPC once": lambda fs, at: list(fs.torn_write(at=at)),
    "torn write, ENOSPC for good": lambda fs, at: list(fs.torn_write(at=at, lasts=True)),
    "torn write, EIO": lambda fs, at: list(fs.torn_write(at=at, error=errno.EIO)),
}
READS: Final[tuple[Operation, ...]] = ("pread", "open", "exists", "size", "listdir", "map", "lock")


def _in_segments(path: str) -> bool:
    return "/topics/" in path


# Segment files that cannot be opened or read: no write may depend on that.
READ_KINDS: Final[dict[str, Arm]] = {
    "EMFILE at a segment, once": lambda fs, at: [fs.fail(*READS, error=errno.EMFILE, at=at, path=_in_segments)],
    "EMFILE at segments, for good": lambda fs, at: [
        fs.fail(*READS, "create", error=errno.EMFILE, at=at, lasts=True, path=_in_segments)
    ],
    "EIO at a segment, once": lambda fs, at: [fs.fail(*READS, at=at, path=_in_segments)],
    "EIO at segments, for good": lambda fs, at: [fs.fail(*READS, at=at, lasts=True, path=_in_segments)],
}
# After these failures the engine goes on without a restart.
HARMLESS: Final = frozenset(
    (
        "ENOSPC once",
        "ENOSPC for good",
        "short writes",
        "torn write, ENOSPC once",
        "torn write, ENOSPC for good",
        *READ_KINDS,
    )
)

"""Snapshot files: the newest two are kept. If the newest is bad, a start uses the older one."""

import logging
from dataclasses import dataclass, field

from topics.errors import FormatError, FutureVersion
from topics.formats import snapshot as codec
from topics.formats.snapshot import Snapshot
from topics.limits import SNAPSHOTS_KEPT
from topics.storage import layout
from topics.storage.fs import Fs, read_file, write_atomic

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LoadedSnapshots:
    """What `meta/` holds: the newest readable snapshot, and the numbers of all files."""

    newest: Snapshot | None
    numbers: list[int]
    bad: list[str] = field(default_factory=list)


def load_snapshots(fs: Fs, root: str) -> LoadedSnapshots:
    """Bad snapshots are skipped and reported. A snapshot of a newer version raises `FutureVersion`: it is not bad."""
    directory = layout.meta_directory(root)
    numbers = sorted(number for name in fs.listdir(directory) if (number := layout.snapshot_number(name)) is not None)
    loaded = LoadedSnapshots(None, numbers)
    for number in reversed(numbers):
        path = layout.snapshot_path(root, number)
        try:
            loaded.newest = codec.decode(read_file(fs, path))
            return loaded
        except FutureVersion as error:
            raise FutureVersion(f"{path}: {error.message}") from error
        except FormatError as error:
            logger.warning("%s: %s; trying the one before it", path, error.message)
            loaded.bad.append(path)
    return loaded


def write_snapshot(fs: Fs, root: str, snapshot: Snapshot) -> None:
    write_atomic(fs, layout.snapshot_path(root, snapshot.number), codec.encode(snapshot))


def drop_old_snapshots(fs: Fs, root: str, newest: int, *, kept: int = SNAPSHOTS_KEPT) -> None:
    """Keeps the newest `kept` files up to number `newest`. Files with a higher number were found bad: they go too."""
    directory = layout.meta_directory(root)
    numbers = sorted(number for name in fs.listdir(directory) if (number := layout.snapshot_number(name)) is not None)
    older = [number for number in numbers if number <= newest]
    doomed = older[:-kept] + [number for number in numbers if number > newest]
    for number in doomed:
        fs.unlink(layout.snapshot_path(root, number))
    if doomed:
        fs.sync_dir(directory)

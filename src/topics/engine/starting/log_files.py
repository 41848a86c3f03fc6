"""Checks that no log file is missing that was written, as far as CURRENT and the newest snapshot prove it. A start
does this before it changes any file."""

from topics.engine.engine import Engine
from topics.engine.starting.shard_count import found_shard_count
from topics.formats.snapshot import Snapshot, WalPosition
from topics.storage import layout
from topics.storage.wal.missing_files import missing_file
from topics.storage.wal.reader import list_wal_files


def check_log_files(engine: Engine, snapshot: Snapshot | None) -> None:
    """Raises `Damaged`, which names the missing file."""
    fs, root = engine.directory.fs, engine.directory.root
    shards: list[tuple[str, WalPosition | None]] = [(directory, None) for directory in _directories(engine)]
    if snapshot is not None:
        count = len(snapshot.wal)
        shards = [(layout.shard_directory(root, shard, count), snapshot.wal[shard]) for shard in range(count)]
    for directory, start in shards:
        missing = missing_file(fs, directory, list_wal_files(fs, directory), start)
        if missing is not None:
            raise missing.damage()


def _directories(engine: Engine) -> list[str]:
    """Directories of shards. A directory without a WAL file may still have a CURRENT file."""
    fs, root = engine.directory.fs, engine.directory.root
    count = found_shard_count(fs, root)
    if count:
        return [layout.shard_directory(root, shard, count) for shard in range(count)]
    wal = layout.wal_directory(root)
    return [wal, *(f"{wal}/{name}" for name in fs.listdir(wal) if layout.shard_of(name) is not None)]

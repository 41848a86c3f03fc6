"""How many shards the WAL on disk has."""

from topics.storage import layout
from topics.storage.fs import Fs
from topics.storage.wal.reader import list_wal_files


def found_shard_count(fs: Fs, root: str) -> int:
    """0 when the WAL has no files."""
    wal = layout.wal_directory(root)
    if list_wal_files(fs, wal):
        return 1
    shards = [
        shard
        for name in fs.listdir(wal)
        if (shard := layout.shard_of(name)) is not None and list_wal_files(fs, f"{wal}/{name}")
    ]
    # A single shard has no directory, so one directory means at least two shards.
    return max(2, max(shards) + 1) if shards else 0

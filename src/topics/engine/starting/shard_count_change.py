"""Changes the number of WAL shards to the configured one.

A checkpoint puts all records into segments, then the old layout is removed, and only then the new one is made. Its
frame numbers begin above every frame number of the old layout, so files of the two layouts are never confused.
"""

from topics.engine.checkpointing.checkpointer import Checkpointer
from topics.engine.checkpointing.progress import CheckpointBase
from topics.engine.engine import Engine
from topics.engine.runtime import InlineRuntime
from topics.engine.starting.report import RecoveryReport
from topics.engine.starting.shard_ends import open_new_shards
from topics.formats.snapshot import Snapshot, WalPosition
from topics.storage import layout
from topics.storage.background import InlineBackground
from topics.storage.checkpoints.runner import InlineRunner
from topics.storage.fs import NO_SPACE, Fs
from topics.storage.snapshots import drop_old_snapshots
from topics.storage.wal.reader import list_wal_files


def change_shard_count(engine: Engine, report: RecoveryReport, base: CheckpointBase) -> CheckpointBase:
    """Where the next checkpoint goes on. Without room for the change the old layout stays in use."""
    fs, root = engine.directory.fs, engine.directory.root
    old_wal = engine.wal
    old_count, new_count = len(old_wal.shards), engine.settings.wal_shards
    runtime = engine.runtime
    engine.core.use_runtime(InlineRuntime())
    for shard in old_wal.shards:
        shard.use_background(InlineBackground())
    first_frame = max(position.frame for position in old_wal.positions) + 1
    positions = [WalPosition(first_frame, first_frame, 0)] * new_count
    checkpointer = Checkpointer(engine, InlineRunner(fs), InlineBackground(), base)
    try:
        number = checkpointer.move_to_layout(positions)
    except OSError as error:
        is_snapshot_written = fs.exists(layout.snapshot_path(root, checkpointer.number + 1))
        if error.errno not in NO_SPACE or is_snapshot_written:
            raise
        report.warn(f"no room to change the log from {old_count} to {new_count} shards; it stays as it is")
        engine.core.use_runtime(runtime)
        for shard in old_wal.shards:
            shard.use_background(runtime.background(f"wal-{shard.index}"))
        checkpointer.close()
        return base
    checkpointer.close()
    old_wal.close()
    drop_old_snapshots(fs, root, number, kept=1)
    _remove_layout(
        fs, root, [layout.shard_directory(root, shard, old_count) for shard in range(old_count)], first_frame
    )
    engine.core.use_runtime(runtime)
    engine.core.use_wal(open_new_shards(engine, report, positions))
    return CheckpointBase(number, positions)


def finish_shard_count_change(engine: Engine, report: RecoveryReport, snapshot: Snapshot) -> None:
    """Removes files of the old layout that an interrupted change left, before the new layout takes a frame.

    All their records are in segments: the first snapshot of the new layout is written only then. The snapshot before
    it needs the old layout, so that snapshot is removed first.
    """
    fs, root = engine.directory.fs, engine.directory.root
    wal = layout.wal_directory(root)
    count = len(snapshot.wal)
    in_use = [layout.shard_directory(root, shard, count) for shard in range(count)]
    found = [wal, *(f"{wal}/{name}" for name in fs.listdir(wal) if layout.shard_of(name) is not None)]
    first_frame = min(position.frame for position in snapshot.wal)
    others = [directory for directory in found if directory not in in_use]
    files = [file for directory in others for file in list_wal_files(fs, directory)]
    if any(file.first_frame >= first_frame for file in files):
        report.warn(f"{wal} holds files of another shard count that are newer than the snapshot; they are left alone")
        return
    if files:
        drop_old_snapshots(fs, root, snapshot.number, kept=1)
    _remove_layout(fs, root, others, first_frame)


def _remove_layout(fs: Fs, root: str, directories: list[str], below_frame: int) -> None:
    """Removes WAL files whose first frame is below `below_frame`, and directories that are empty then."""
    wal = layout.wal_directory(root)
    for directory in directories:
        files = list_wal_files(fs, directory)
        old = [file for file in files if file.first_frame < below_frame]
        current = f"{directory}/{layout.CURRENT}"
        if len(old) == len(files) and fs.exists(current):
            # CURRENT goes first: if it named a missing file, the next start would be refused.
            fs.unlink(current)
            fs.sync_dir(directory)
        for file in old:
            fs.unlink(file.path)
        if directory != wal and not fs.listdir(directory):
            fs.rmdir(directory)
        else:
            fs.sync_dir(directory)
    fs.sync_dir(wal)

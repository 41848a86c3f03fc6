"""Opens a data directory and recovers an engine from it, phase by phase. Each phase hands a typed result on.

1. The directory is locked, its store id is read, temporary files are removed (`open_directory`).
2. Topics are loaded from the newest readable snapshot, or from the segment files alone. Segments are checked against
   the snapshot, and records that an unfinished checkpoint put into segments are taken in (`load_topics`).
3. The WAL of every shard is replayed from the snapshot's positions (`replay_log`).
4. Seqs that went with a power loss become lost ranges (`resume_heads`); routers make derived copies again
   (`restore_routers`); floors, counts and leases are settled (`finish_topics`).
5. Torn tails are cut, unsynced frames are written again and synced, and new frames are made durable (`settle_shards`).
6. When the configured shard count is another one, a checkpoint is taken and the old layout removed
   (`change_shard_count`).
7. Only then the boot id is written, and the engine is handed out.

Nothing is deleted because metadata is missing: a file that is not understood is left alone and reported.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from topics.clock import Clock
from topics.engine.checkpointing.checkpointer import Checkpointer
from topics.engine.checkpointing.progress import CheckpointBase
from topics.engine.checkpointing.relocator import Relocator
from topics.engine.checkpointing.replacement import Replacer
from topics.engine.engine import Engine
from topics.engine.runtime import Runtime
from topics.engine.settings import EngineSettings
from topics.engine.starting.cold_tier import claim_cold_tier
from topics.engine.starting.finishing import finish_topics
from topics.engine.starting.heads import resume_heads
from topics.engine.starting.left_overs import remove_left_overs
from topics.engine.starting.log_files import check_log_files
from topics.engine.starting.log_replay import Progress, ReplayedLog, replay_log
from topics.engine.starting.opened import OpenEngine
from topics.engine.starting.report import RecoveryReport
from topics.engine.starting.router_recovery import restore_routers
from topics.engine.starting.shard_count_change import change_shard_count, finish_shard_count_change
from topics.engine.starting.shard_ends import open_wal, settle_shards
from topics.engine.starting.snapshot_loading import LoadedTopics, load_topics
from topics.engine.topic.replayed import WalFiles
from topics.errors import StartRefused
from topics.formats.snapshot import WalPosition
from topics.storage.checkpoints.runner import JobRunner, WorkerRunner
from topics.storage.directory import open_directory
from topics.storage.fs import Fs
from topics.storage.segments.cache import SegmentCache
from topics.storage.snapshots import load_snapshots
from topics.storage.tiers.addresses import open_store
from topics.storage.tiers.cached_store import CachedStore
from topics.storage.tiers.store import SegmentStore


def open_engine(
    fs: Fs,
    root: str,
    *,
    settings: EngineSettings,
    clock: Clock,
    runtime: Runtime,
    runner: JobRunner | None = None,
    progress: Progress | None = None,
    open_tier: Callable[[str, Fs], SegmentStore] = open_store,
) -> OpenEngine:
    """Raises `StartRefused` when the directory cannot be served as it is. Then no file was cut.

    `progress` gets 0 when the directory is locked, and shares of the log as they are read.
    """
    progress = progress or _no_progress
    directory = open_directory(fs, root, clock)
    try:
        progress(0.0)
        cold = None if settings.cold_dir is None else CachedStore(open_tier(settings.cold_dir, fs))
        engine = Engine(directory, settings, runtime, clock, SegmentCache(fs, root, cold), cold)
        engine.core.use_wal_files(WalFiles(fs))
        with _collector_paused():
            return _recover(engine, runner or WorkerRunner(fs, directory.lock), progress)
    except OSError as error:
        directory.release()
        where = error.filename or root
        raise StartRefused(f"cannot use the data directory {root}: {where}: {error.strerror or error}") from error
    except BaseException:
        directory.release()
        raise


def _recover(engine: Engine, runner: JobRunner, progress: Progress) -> OpenEngine:
    report = RecoveryReport()
    snapshots = load_snapshots(engine.directory.fs, engine.directory.root)
    for path in snapshots.bad:
        report.warn(f"{path} is unreadable")
    check_log_files(engine, snapshots.newest)
    loaded = load_topics(engine, report, snapshots)
    claim_cold_tier(engine, report)
    log = replay_log(engine, report, loaded, progress)
    heads = resume_heads(engine, report)
    # Routers come before anything is evicted: they copy again the records that they copied since the last checkpoint.
    routers = restore_routers(engine, report, log, loaded.evict_floors)
    finish_topics(engine, loaded, log)
    if snapshots.newest is not None:
        finish_shard_count_change(engine, report, snapshots.newest)
    shards = settle_shards(engine, report, log.ends, [*heads.frames, *routers.frames])
    engine.core.use_wal(open_wal(engine, report, shards))
    base = _checkpoint_base(loaded, log)
    count_changes = len(shards.shards) != engine.settings.wal_shards
    if count_changes and engine.wal.failure() is None and shards.is_complete:
        base = change_shard_count(engine, report, base)
    return _begin_to_serve(engine, runner, report, loaded, log, base)


def _checkpoint_base(loaded: LoadedTopics, log: ReplayedLog) -> CheckpointBase:
    number = 0 if loaded.snapshot is None else loaded.snapshot.number
    return CheckpointBase(number, [start or WalPosition(1, 1, 0) for start in log.starts])


def _begin_to_serve(
    engine: Engine,
    runner: JobRunner,
    report: RecoveryReport,
    loaded: LoadedTopics,
    log: ReplayedLog,
    base: CheckpointBase,
) -> OpenEngine:
    background = engine.runtime.background("checkpoint")
    cold_background = engine.runtime.background("relocate")
    checkpointer = Checkpointer(engine, runner, background, base, report.bytes_replayed, cold_background)
    for topic_id, first_seq in loaded.replaced:
        checkpointer.segment_replaced(topic_id, first_seq, is_durable=True)
    for topic in engine.topics.values():
        topic.use_shard(engine.wal.shard_for(topic.id))
        engine.write_path.note_config(topic)
    remove_left_overs(engine, checkpointer, log.removed)
    engine.commits.resume()
    engine.bridges.resume()
    for warning in engine.staging.resume():
        report.warn(warning)
    engine.directory.note_recovered()
    engine.core.cache.end_start()
    engine.cold_columns.begin()
    relocator = Relocator(engine, checkpointer, cold_background)
    return OpenEngine(engine, checkpointer, runner, relocator, Replacer(engine, checkpointer), report)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A replay makes millions of short-lived tuples and no cycles. The garbage collector would cost a fifth of it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _no_progress(fraction: float) -> None:
    pass

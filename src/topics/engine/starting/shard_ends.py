"""The end of each WAL shard: torn tails cut, unsynced frames written again, and the shards opened for writing."""

from collections.abc import Iterable
from dataclasses import dataclass

from topics.engine.engine import Engine
from topics.engine.starting.heads import FrameToLog
from topics.engine.starting.report import RecoveryReport
from topics.errors import StartRefused
from topics.formats.snapshot import WalPosition
from topics.storage import layout
from topics.storage.fs import NO_SPACE, Fs, write_all, write_atomic
from topics.storage.wal.missing_files import read_current
from topics.storage.wal.reader import ShardEnd, list_wal_files
from topics.storage.wal.settling import settle, sync_log
from topics.storage.wal.shard import WalShard, create_shard_files
from topics.storage.wal.wal import Wal, shard_index


class ShardRepair:
    """Cuts the torn tail of one shard and appends the frames that recovery made. `run` may be tried again."""

    def __init__(self, fs: Fs, end: ShardEnd, frames: list[bytes]) -> None:
        self._fs = fs
        self._end = end
        self._frames = frames

    def run(self) -> WalPosition:
        """Where the shard goes on."""
        settle(self._fs, self._end)
        if self._frames:
            self._append(b"".join(self._frames), len(self._frames))
            self._frames = []
        return self._end.position

    def _append(self, data: bytes, frame_count: int) -> None:
        path, position = self._end.path, self._end.position
        assert path is not None
        file = self._fs.open(path, "write")
        try:
            write_all(file, data, position.offset)
            sync_log(file)
        finally:
            file.close()
        self._end.position = WalPosition(position.frame + frame_count, position.file_frame, position.offset + len(data))


@dataclass(frozen=True, slots=True)
class SettledShard:
    end: ShardEnd
    # The repair that had no room to run. The shard takes no write before it has succeeded. None: the end is durable.
    repair_left: ShardRepair | None


@dataclass(frozen=True, slots=True)
class SettledShards:
    shards: list[SettledShard]

    @property
    def is_complete(self) -> bool:
        """Whether the end of every shard is durable."""
        return all(shard.repair_left is None for shard in self.shards)


def settle_shards(
    engine: Engine, report: RecoveryReport, ends: list[ShardEnd], new_frames: Iterable[FrameToLog]
) -> SettledShards:
    """Makes the end of each shard durable, with the new frames of its topics."""
    by_shard: list[list[bytes]] = [[] for _ in ends]
    for topic_id, frame in new_frames:
        by_shard[shard_index(topic_id, len(ends))].append(frame)
    return SettledShards([_settle(engine, report, end, frames) for end, frames in zip(ends, by_shard, strict=True)])


def _settle(engine: Engine, report: RecoveryReport, end: ShardEnd, frames: list[bytes]) -> SettledShard:
    if end.path is None:
        _begin_file(engine, end)
    report.add_torn(max(0, end.torn_end - end.position.offset))
    repair = ShardRepair(engine.directory.fs, end, frames)
    try:
        repair.run()
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise StartRefused(f"{end.path}: cannot repair the end of the log: {error.strerror}") from error
        report.warn(f"{end.path}: no room to save the torn tail; writes wait until there is room")
        return SettledShard(end, repair)
    return SettledShard(end, None)


def open_new_shards(engine: Engine, report: RecoveryReport, positions: list[WalPosition]) -> Wal:
    """Opens shards that have no files yet, each at its position."""
    root = engine.directory.root
    ends = [
        ShardEnd(position, None, position.frame - 1, 0, directory=layout.shard_directory(root, shard, len(positions)))
        for shard, position in enumerate(positions)
    ]
    return open_wal(engine, report, SettledShards([SettledShard(end, None) for end in ends]))


def open_wal(engine: Engine, report: RecoveryReport, settled: SettledShards) -> Wal:
    fs = engine.directory.fs
    shards: list[WalShard] = []
    for index, shard in enumerate(settled.shards):
        end, repair = shard.end, shard.repair_left
        if end.path is None:
            _begin_file(engine, end)
        assert end.path is not None
        _check_current(fs, report, end)
        shards.append(
            WalShard(
                fs,
                end.directory,
                index,
                engine.runtime.background(f"wal-{index}"),
                engine.clock,
                fs.open(end.path, "write"),
                end.position,
                file_bytes=engine.settings.wal_file_bytes,
                complete_cut=None if repair is None else repair.run,
            )
        )
    return Wal(shards)


def _begin_file(engine: Engine, end: ShardEnd) -> None:
    """Begins a new file at the next frame number of the shard."""
    fs = engine.directory.fs
    _set_old_files_aside(fs, end.directory)
    create_shard_files(fs, end.directory, end.position.frame, engine.settings.wal_file_bytes).close()
    end.path = f"{end.directory}/{layout.wal_name(end.position.frame)}"


def _set_old_files_aside(fs: Fs, directory: str) -> None:
    """All frames of these files are older than the snapshot's position. The files are renamed, not removed."""
    for file in list_wal_files(fs, directory):
        fs.rename(file.path, file.path + layout.TORN)
        fs.sync_dir(directory)


def _check_current(fs: Fs, report: RecoveryReport, end: ShardEnd) -> None:
    """CURRENT names the file that is written to."""
    path = f"{end.directory}/{layout.CURRENT}"
    name = (end.path or "").rpartition("/")[2]
    found = read_current(fs, end.directory)
    if found == name:
        return
    if found is not None or end.position.frame > 1:
        report.warn(f"{path} names {found or 'no file'}; the current file is {name}")
    try:
        write_atomic(fs, path, name.encode())
    except OSError as error:
        # A start finds the file without CURRENT too.
        if error.errno not in NO_SPACE:
            raise

"""`rebuild-index`: indexes made again from what they are derived from, `.data` → `.idx` and `.tags`, `.log` → `.index`.

What comes out is what the writer made, byte for byte; so an index that is right is found out by comparing, and stays as
it is. Every frame is verified on the way. A file with a damaged frame keeps its index, and is reported: an index must
not make a record that cannot be read look like one that never was.

Beside a server the pair is exchanged through it. Without one the job has the lock of the directory for itself, and
files come to be whole under a temporary name. An archive has no lock; nobody should write there meanwhile.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from topics.client import Client
from topics.errors import BadFrame, FormatError
from topics.formats import message, message_index
from topics.formats import snapshot as snapshot_codec
from topics.formats.columnar import checksums
from topics.formats.columnar_messages import locate_messages
from topics.formats.frame_table import FrameTable, from_frames, salvage
from topics.formats.segment_rewrite import index_of_frames, stored_checksums, tags_of_frames
from topics.formats.stream_layout import INDEX, LOCK_FILE, LOG, segment_path, segment_starts
from topics.limits import U64_MAX
from topics.spark.errors import BadOption, Conflict
from topics.spark.jobs.job import Report, ReportProgress, WaveDone, run_waves
from topics.spark.jobs.job_options import RebuildIndexOptions
from topics.spark.jobs.rewriting import (
    Outcome,
    SegmentTask,
    Spread,
    Unit,
    exchange,
    exit_code_of,
    read_if_there,
    read_segment,
    sealed_segments,
    units_of,
)
from topics.spark.jobs.spread import core_count, spread
from topics.spark.read.file_manifest import DamagedFiles
from topics.storage import layout
from topics.storage.fs import Fs, RealFs, read_file, write_atomic
from topics.storage.snapshots import load_snapshots
from topics.storage.stores import SegmentStore, open_store, path_of_address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class FileTask(NamedTuple):
    """A segment that nobody serves."""

    address: str
    # Without its ending.
    stem: str
    first_seq: int
    # What of `.data` counts; None when all of it does, and its last frame is that of the last seq.
    data_bytes: int | None
    last_seq: int | None
    # Only a sealed one has tags.
    is_sealed: bool
    size_bytes: int


class MessageTask(NamedTuple):
    """A segment of messages."""

    directory: str
    start_offset: int
    is_last: bool
    size_bytes: int


Task = SegmentTask | FileTask | MessageTask


def run(spark: "SparkSession", options: RebuildIndexOptions, *, report: ReportProgress | None = None) -> Report:
    """`items_done` files got a new index. Exit code 3 when there is damage. Raises `Conflict` for what is served."""
    return rebuild(options, partial(spread, spark), cores=core_count(spark), report=report)


def rebuild(
    options: RebuildIndexOptions, spread_units: Spread[Task], *, cores: int, report: ReportProgress | None = None
) -> Report:
    outcomes: list[Outcome] = []

    def wave(units: Sequence[Unit[Task]]) -> WaveDone:
        work = partial(rebuild_unit, is_dry=options.dry_run)
        done = [outcome for results in spread_units(units, work) for outcome in results]
        outcomes.extend(done)
        return WaveDone(sum(outcome.records for outcome in done), sum(outcome.bytes for outcome in done))

    with ExitStack() as locks:
        tasks = [*_segment_tasks(options, locks), *_message_tasks(options, locks)]
        units = units_of(tasks, _size_of)
        done = run_waves("rebuild-index", units, wave, cores=cores, weigh=_unit_bytes, report=report)
    rebuilt = sum(outcome.status == "done" for outcome in outcomes)
    return Report(
        job="rebuild-index",
        records=done.records,
        bytes=done.bytes,
        seconds=done.seconds,
        items_done=0 if options.dry_run else rebuilt,
        items_skipped=len(outcomes) - (0 if options.dry_run else rebuilt),
        findings=tuple(outcome.finding() for outcome in outcomes if outcome.status not in {"done", "same"}),
        exit_code=exit_code_of(outcomes),
        detail={"wrong": [outcome.file for outcome in outcomes if outcome.status == "done"]},
    )


def _size_of(task: Task) -> int:
    return task.segment.data_len if isinstance(task, SegmentTask) else task.size_bytes


def _unit_bytes(unit: Unit[Task]) -> int:
    return sum(map(_size_of, unit))


# The work list.


def _segment_tasks(options: RebuildIndexOptions, locks: ExitStack) -> list[Task]:
    if options.path is None:
        if options.streams and options.endpoint is None:
            return []
        return [*sealed_segments(options, options.topics)]
    fs = RealFs()
    root = path_of_address(options.path)
    if root is None or not (fs.exists(layout.wal_directory(root)) or fs.exists(f"{root}/{layout.LOCK}")):
        return [*_archived(open_store(options.path, fs))]
    _lock(fs, f"{root}/{layout.LOCK}", locks, "give its endpoint instead of `path`")
    return [*_noted(fs, root)]


def _lock(fs: RealFs, path: str, locks: ExitStack, advice: str) -> None:
    lock = fs.lock(path)
    if lock is None:
        raise Conflict(f"{path.rpartition('/')[0]} is served; {advice}")
    locks.callback(lock.release)


def _noted(fs: Fs, root: str) -> Iterator[FileTask]:
    """Hot segments that the newest snapshot lists; others are not known to be whole."""
    loaded = load_snapshots(fs, root)
    if loaded.bad:
        raise DamagedFiles(loaded.bad[0], "a snapshot", "something else")
    for entry in loaded.newest.topics if loaded.newest is not None else ():
        try:
            state = snapshot_codec.decode_topic(entry)
        except FormatError as error:
            raise DamagedFiles(layout.meta_directory(root), "topics in the snapshot", error.message) from error
        for segment in state.segments:
            stem = layout.segment_object(state.id, segment.first_seq, "data").removesuffix(".data")
            # What an unfinished checkpoint added, a start takes in, index and all.
            if segment.tier == "hot" and _size(fs, f"{root}/{stem}.data") == segment.data_bytes:
                numbers = (segment.first_seq, segment.data_bytes, segment.last_seq)
                yield FileTask(root, stem, *numbers, segment.sealed, segment.data_bytes)


def _size(fs: Fs, path: str) -> int:
    return fs.size(path) if fs.exists(path) else -1


def _archived(store: SegmentStore) -> Iterator[FileTask]:
    found = 0
    for name in store.list("topics/"):
        parsed = layout.segment_of(name.rpartition("/")[2])
        if parsed is not None and parsed[1] == "data":
            found += 1
            size = store.size(name)
            yield FileTask(
                store.address, name.removesuffix(".data"), parsed[0], None, None, is_sealed=True, size_bytes=size
            )
    if not found:
        raise BadOption(f"there are no segments below {store.address}/topics")


def _message_tasks(options: RebuildIndexOptions, locks: ExitStack) -> Iterator[MessageTask]:
    fs = RealFs()
    for address in options.streams:
        root = path_of_address(address)
        if root is None or not fs.exists(root):
            raise BadOption(f"{address}: there is no such directory of streams")
        _lock(fs, f"{root}/{LOCK_FILE}", locks, "stop the server first")
        for directory in _partitions(fs, root):
            starts = segment_starts(fs.listdir(directory))
            for start in starts:
                size = fs.size(segment_path(directory, start, LOG))
                yield MessageTask(directory, start, start == starts[-1], size)


def _partitions(fs: Fs, directory: str) -> Iterator[str]:
    """Folders that have segments of messages, wherever they lie."""
    try:
        names = fs.listdir(directory)
    except NotADirectoryError:
        return
    if segment_starts(names):
        yield directory
        return
    for name in names:
        yield from _partitions(fs, f"{directory}/{name}")


# On an executor.


def rebuild_unit(unit: Unit[Task], *, is_dry: bool) -> list[Outcome]:
    with ExitStack() as opened:
        served = next((task for task in unit if isinstance(task, SegmentTask)), None)
        client = None if served is None else opened.enter_context(served.connection.client())
        return [_rebuild(task, client, is_dry=is_dry) for task in unit]


def _rebuild(task: Task, client: Client | None, *, is_dry: bool) -> Outcome:
    if isinstance(task, MessageTask):
        return _rebuild_messages(task, is_dry=is_dry)
    if isinstance(task, FileTask):
        return _rebuild_file(task, is_dry=is_dry)
    assert client is not None
    return _rebuild_served(task, client, is_dry=is_dry)


def _verified(data: bytes, first_seq: int, last_seq: int | None) -> tuple[FrameTable, int]:
    """The frames, each with its checksum seen, and the last seq. Raises `BadFrame` for a damaged one."""
    table = from_frames(data, first_seq=first_seq, last_seq=U64_MAX if last_seq is None else last_seq)
    if not table.is_confirmed and bool((checksums(data, table.starts, table.ends) != stored_checksums(table)).any()):
        # Ten times slower, and it names what is damaged.
        table = salvage(table)
    if last_seq is None:
        last_seq = int(table.headers["seq"][-1]) if len(table) else first_seq
    if table.bad:
        bad = table.bad[0]
        raise BadFrame(f"seq {bad.first_seq} at offset {bad.offset}: {bad.reason}", bad.offset)
    return table, last_seq


def _rebuild_served(task: SegmentTask, client: Client, *, is_dry: bool) -> Outcome:
    fs = RealFs()
    data = read_segment(fs, task)
    if data is None:
        return Outcome("changed", task.path("data"), message="the file is another one by now")
    first_seq, last_seq = task.segment.first_seq, task.segment.last_seq
    try:
        table, _ = _verified(data, first_seq, last_seq)
        idx = index_of_frames(table, first_seq, last_seq)
    except BadFrame as error:
        return Outcome("damaged", task.path("data"), message=error.message)
    tags = tags_of_frames(table, first_seq)
    if idx == read_if_there(fs, task.path("idx")) and tags in (b"", read_if_there(fs, task.path("tags"))):
        return Outcome("same", task.path("idx"), len(table), len(data))
    if is_dry:
        return Outcome("done", task.path("idx"), len(table), len(data))
    outcome = exchange(client, task, "index", data, idx)
    return outcome._replace(file=task.path("idx"), records=len(table), bytes=len(data))


def _rebuild_file(task: FileTask, *, is_dry: bool) -> Outcome:
    store = open_store(task.address, RealFs())
    where = f"{task.address}/{task.stem}"
    data = store.read_range(f"{task.stem}.data", 0, task.size_bytes)
    try:
        table, last_seq = _verified(data, task.first_seq, task.last_seq)
        idx = index_of_frames(table, task.first_seq, last_seq)
    except BadFrame as error:
        return Outcome("damaged", f"{where}.data", message=error.message)
    wanted = {"idx": idx}
    tags = tags_of_frames(table, task.first_seq) if task.is_sealed else b""
    if tags:
        wanted["tags"] = tags
    wrong = {kind: content for kind, content in wanted.items() if _whole(store, f"{task.stem}.{kind}") != content}
    for kind, content in wrong.items() if not is_dry else ():
        store.put(f"{task.stem}.{kind}", content)
    return Outcome("done" if wrong else "same", f"{where}.idx", len(table), len(data))


def _whole(store: SegmentStore, name: str) -> bytes | None:
    return store.read_range(name, 0, store.size(name)) if store.exists(name) else None


def _rebuild_messages(task: MessageTask, *, is_dry: bool) -> Outcome:
    fs = RealFs()
    log_path = segment_path(task.directory, task.start_offset, LOG)
    index_path = segment_path(task.directory, task.start_offset, INDEX)
    log = read_file(fs, log_path)
    try:
        index, count = index_of_messages(log, task.start_offset, may_be_torn=task.is_last)
    except BadFrame as error:
        return Outcome("damaged", log_path, message=error.message)
    if index == read_if_there(fs, index_path):
        return Outcome("same", index_path, count, len(log))
    if not is_dry:
        write_atomic(fs, index_path, index)
    return Outcome("done", index_path, count, len(log))


def index_of_messages(log: bytes, start_offset: int, *, may_be_torn: bool) -> tuple[bytes, int]:
    """The `.index` of a `.log`, and how many messages it has. Raises `BadFrame` for a damaged one.

    Behind the last message of a partition there may be one that is not whole: a start cuts it off.
    """
    table = locate_messages(log, None, start_offset)
    is_good = message.checksums(log, table.starts, table.ends) == table.headers["checksum"]
    bad_positions = [*table.starts[~is_good].tolist(), *(bad.offset for bad in table.bad)]
    count = len(table)
    if bad_positions:
        position = min(bad_positions)
        count = int(np.searchsorted(table.starts, position))
        if not may_be_torn or bool(is_good[count:].any()):
            raise BadFrame(f"offset {start_offset + count} at {position} is damaged", position)
    entries = message_index.make_entries(0, table.ends[:count], table.headers["timestamp"][:count])
    return entries.tobytes(), count

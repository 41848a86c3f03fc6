"""`rebuild-index`: makes indexes again from the records, `.data` → `.idx` and `.tags`, `.log` → `.index`.

The result is the same as the writer's, byte for byte. An index that is equal to it stays as it is. Every frame is
verified. A file with a damaged frame is reported and keeps its index: a new index without the damaged record would hide
that the record ever existed.

With a running server the server exchanges the files. Without a server the job holds the lock of the directory, and puts
each file whole. An archive has no lock, so that no other program may write there meanwhile.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from topics.client.sync.client import Client
from topics.errors import BadFrame, FormatError
from topics.formats import message, message_index
from topics.formats import snapshot as snapshot_codec
from topics.formats.columnar import checksums
from topics.formats.columnar_messages import locate_messages
from topics.formats.frame_table import FrameTable, from_frames, salvage
from topics.formats.segment_rewrite import index_of_frames, stored_checksums, tags_of_frames
from topics.formats.stream_layout import LOCK_FILE
from topics.limits import U64_MAX
from topics.spark.errors import BadOption, Conflict
from topics.spark.jobs.job import Report, ReportProgress
from topics.spark.jobs.job_options import RebuildIndexOptions
from topics.spark.jobs.message_segments import MessageSegment, find_message_segments
from topics.spark.jobs.rewriting import (
    Outcome,
    ServedSegment,
    exchange,
    read_if_there,
    read_segment,
    rewrite,
    sealed_segments,
)
from topics.spark.jobs.spread import Executors, SparkExecutors
from topics.spark.reading.file_manifest import DamagedFiles
from topics.storage import layout
from topics.storage.fs import Fs, RealFs, read_file, write_atomic
from topics.storage.snapshots import load_snapshots
from topics.storage.tiers.addresses import open_store, path_of_address
from topics.storage.tiers.store import SegmentStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class UnservedSegment(NamedTuple):
    """A segment that no server has open."""

    address: str
    # Without its ending.
    stem: str
    first_seq: int
    # None when the last frame of `.data` is that of the last seq.
    last_seq: int | None
    # Only a sealed segment has tags.
    is_sealed: bool
    # The bytes of `.data` that count.
    size_bytes: int


SegmentKind = ServedSegment | UnservedSegment | MessageSegment


def run(spark: "SparkSession", options: RebuildIndexOptions, *, report: ReportProgress | None = None) -> Report:
    """`items_done` counts new indexes. Exit code 3 for damage. Raises `Conflict` for a directory that is served."""
    return rebuild(options, SparkExecutors(spark), report=report)


def rebuild(options: RebuildIndexOptions, executors: Executors, *, report: ReportProgress | None = None) -> Report:
    with ExitStack() as locks:
        segments = [*_segments(options, locks), *_message_segments(options, locks)]
        work = partial(rebuild_unit, is_dry=options.dry_run)
        rewritten = rewrite("rebuild-index", segments, work, executors=executors, report=report)
    rebuilt = 0 if options.dry_run else len(rewritten.written)
    return rewritten.report(
        "rebuild-index",
        items_done=rebuilt,
        items_skipped=len(rewritten.outcomes) - rebuilt,
        detail={"wrong": rewritten.written},
    )


# The work list.


def _segments(options: RebuildIndexOptions, locks: ExitStack) -> list[SegmentKind]:
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


def _noted(fs: Fs, root: str) -> Iterator[UnservedSegment]:
    """Hot segments that the newest snapshot lists. Other segments may be unfinished."""
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
            # A longer file was made longer by an unfinished checkpoint. The next start handles it, with its index.
            if segment.tier == "hot" and _size(fs, f"{root}/{stem}.data") == segment.data_bytes:
                yield UnservedSegment(
                    root, stem, segment.first_seq, segment.last_seq, segment.sealed, segment.data_bytes
                )


def _size(fs: Fs, path: str) -> int:
    return fs.size(path) if fs.exists(path) else -1


def _archived(store: SegmentStore) -> Iterator[UnservedSegment]:
    found = 0
    for name in store.list("topics/"):
        parsed = layout.segment_of(name.rpartition("/")[2])
        if parsed is not None and parsed[1] == "data":
            found += 1
            size = store.size(name)
            yield UnservedSegment(
                store.address, name.removesuffix(".data"), parsed[0], None, is_sealed=True, size_bytes=size
            )
    if not found:
        raise BadOption(f"there are no segments below {store.address}/topics")


def _message_segments(options: RebuildIndexOptions, locks: ExitStack) -> Iterator[MessageSegment]:
    fs = RealFs()
    for address in options.streams:
        root = path_of_address(address)
        if root is None or not fs.exists(root):
            raise BadOption(f"{address}: there is no such directory of streams")
        _lock(fs, f"{root}/{LOCK_FILE}", locks, "stop the server first")
        yield from find_message_segments(fs, root)


# On an executor.


def rebuild_unit(unit: tuple[SegmentKind, ...], *, is_dry: bool) -> list[Outcome]:
    with ExitStack() as opened:
        served = next((segment for segment in unit if isinstance(segment, ServedSegment)), None)
        client = None if served is None else opened.enter_context(served.connection.client())
        return [_rebuild(segment, client, is_dry=is_dry) for segment in unit]


def _rebuild(segment: SegmentKind, client: Client | None, *, is_dry: bool) -> Outcome:
    if isinstance(segment, MessageSegment):
        return _rebuild_messages(segment, is_dry=is_dry)
    if isinstance(segment, UnservedSegment):
        return _rebuild_file(segment, is_dry=is_dry)
    assert client is not None
    return _rebuild_served(segment, client, is_dry=is_dry)


def _verified(data: bytes, first_seq: int, last_seq: int | None) -> tuple[FrameTable, int]:
    """The frames, with verified checksums, and the last seq. Raises `BadFrame` for a damaged frame."""
    table = from_frames(data, first_seq=first_seq, last_seq=U64_MAX if last_seq is None else last_seq)
    if not table.is_confirmed and bool((checksums(data, table.starts, table.ends) != stored_checksums(table)).any()):
        # Ten times slower, but it names the damaged frame.
        table = salvage(table)
    if last_seq is None:
        last_seq = int(table.headers["seq"][-1]) if len(table) else first_seq
    if table.bad:
        bad = table.bad[0]
        raise BadFrame(f"seq {bad.first_seq} at offset {bad.offset}: {bad.reason}", bad.offset)
    return table, last_seq


def _rebuild_served(served: ServedSegment, client: Client, *, is_dry: bool) -> Outcome:
    fs = RealFs()
    data = read_segment(fs, served)
    if data is None:
        return Outcome("changed", served.path("data"), message="the file has changed since it was listed")
    first_seq, last_seq = served.segment.first_seq, served.segment.last_seq
    try:
        table, _ = _verified(data, first_seq, last_seq)
        idx = index_of_frames(table, first_seq, last_seq)
    except BadFrame as error:
        return Outcome("damaged", served.path("data"), message=error.message)
    tags = tags_of_frames(table, first_seq)
    if idx == read_if_there(fs, served.path("idx")) and tags in (b"", read_if_there(fs, served.path("tags"))):
        return Outcome("same", served.path("idx"), len(table), len(data))
    if is_dry:
        return Outcome("done", served.path("idx"), len(table), len(data))
    outcome = exchange(client, served, "index", data, idx)
    return outcome._replace(file=served.path("idx"), records=len(table), bytes=len(data))


def _rebuild_file(segment: UnservedSegment, *, is_dry: bool) -> Outcome:
    store = open_store(segment.address, RealFs())
    where = f"{segment.address}/{segment.stem}"
    data = store.read_range(f"{segment.stem}.data", 0, segment.size_bytes)
    try:
        table, last_seq = _verified(data, segment.first_seq, segment.last_seq)
        idx = index_of_frames(table, segment.first_seq, last_seq)
    except BadFrame as error:
        return Outcome("damaged", f"{where}.data", message=error.message)
    wanted = {"idx": idx}
    tags = tags_of_frames(table, segment.first_seq) if segment.is_sealed else b""
    if tags:
        wanted["tags"] = tags
    wrong = {kind: content for kind, content in wanted.items() if _whole(store, f"{segment.stem}.{kind}") != content}
    for kind, content in wrong.items() if not is_dry else ():
        store.put(f"{segment.stem}.{kind}", content)
    return Outcome("done" if wrong else "same", f"{where}.idx", len(table), len(data))


def _whole(store: SegmentStore, name: str) -> bytes | None:
    return store.read_range(name, 0, store.size(name)) if store.exists(name) else None


def _rebuild_messages(segment: MessageSegment, *, is_dry: bool) -> Outcome:
    fs = RealFs()
    log = read_file(fs, segment.log_path)
    try:
        index, count = index_of_messages(log, segment.start_offset, may_be_torn=segment.is_last)
    except BadFrame as error:
        return Outcome("damaged", segment.log_path, message=error.message)
    if index == read_if_there(fs, segment.index_path):
        return Outcome("same", segment.index_path, count, len(log))
    if not is_dry:
        write_atomic(fs, segment.index_path, index)
    return Outcome("done", segment.index_path, count, len(log))


def index_of_messages(log: bytes, start_offset: int, *, may_be_torn: bool) -> tuple[bytes, int]:
    """The `.index` of a `.log`, and how many messages it has. Raises `BadFrame` for a damaged message.

    The log of the last segment may end in an incomplete message, which the next start of the engine cuts off.
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

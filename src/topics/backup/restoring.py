"""Writes a data directory from a backup, for a server to start on.

The directory is made as `<directory>.partial`, and gets its name when everything in it is durable. So no server starts
on half a restore. A killed restore is run again: files that are complete are kept.

The result is what a checkpoint would leave: sealed segments, a snapshot that lists them, and an empty log. Only live
records are written. A deleted record is a seq without a record, as in a segment that was rewritten.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from topics.backup.plan import PlannedFile, PlannedTopic, RestoreOrder, RestorePlan, plan_restore
from topics.backup.store import BackupStore
from topics.errors import Damaged, DirectoryLocked, StartRefused
from topics.formats.snapshot import SegmentState, Snapshot, TopicState, WalPosition, encode_topic
from topics.storage import layout
from topics.storage.fs import Fs, read_file, write_atomic
from topics.storage.removal import remove_tree
from topics.storage.segments.frame_walk import rebuild_index
from topics.storage.segments.numbers import extend
from topics.storage.segments.proof import prove_file
from topics.storage.segments.writer import seal_segment
from topics.storage.snapshots import write_snapshot
from topics.storage.tiers.folder_store import FolderStore
from topics.storage.tiers.store_id import ensure_store_id, read_store_id

PARTIAL: Final = ".partial"

Progress = Callable[[int, int], None]
"""Gets the bytes that are restored, and the bytes in all."""


class RestoreNote(msgspec.Struct, frozen=True, kw_only=True):
    """`restore.json` in the new directory: where its content comes from."""

    format: int = 1
    backup: str
    # Of the log that was backed up.
    store_id: str
    point: str
    order: RestoreOrder


@dataclass(slots=True)
class RestoreReport:
    point: str = ""
    ts: int = 0
    topics: int = 0
    records: int = 0
    size_bytes: int = 0
    # Whether an earlier run had restored the same already.
    is_repeated: bool = False
    notes: list[str] = field(default_factory=list)


def restore_backup(
    store: BackupStore,
    fs: Fs,
    directory: str,
    order: RestoreOrder,
    *,
    new_store_id: Callable[[], str],
    progress: Progress | None = None,
) -> RestoreReport:
    """Makes `directory`, which must not exist or be empty. Raises `StartRefused` otherwise, and `Damaged`."""
    store_id = store.require()
    plan = plan_restore(store, order)
    note = RestoreNote(backup=store.address, store_id=store_id, point=plan.point, order=order)
    report = RestoreReport(
        plan.point,
        plan.ts,
        len(plan.topics),
        plan.records,
        sum(file.file.size_bytes for topic in plan.topics for file in topic.files),
        notes=plan.notes,
    )
    if _is_done(fs, directory, note):
        # The run that gave the directory its name may have been killed before that was durable.
        fs.sync_dir(_parent(directory))
        report.is_repeated = True
        return report
    _Restoring(store, fs, directory, plan, note, progress).run(new_store_id)
    return report


def _is_done(fs: Fs, directory: str, note: RestoreNote) -> bool:
    """Whether this restore is finished. Raises `StartRefused` when the directory has anything else in it."""
    if not fs.exists(directory) or not fs.listdir(directory):
        return False
    if _read_note(fs, directory) == note:
        return True
    raise StartRefused(
        f"{directory} is not empty: a restore never writes over data; give a directory that does not exist"
    )


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _read_note(fs: Fs, directory: str) -> RestoreNote | None:
    path = f"{directory}/{layout.RESTORE_NOTE}"
    if not fs.exists(path):
        return None
    try:
        return msgspec.json.decode(read_file(fs, path), type=RestoreNote)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class _Restoring:
    def __init__(
        self,
        store: BackupStore,
        fs: Fs,
        directory: str,
        plan: RestorePlan,
        note: RestoreNote,
        progress: Progress | None,
    ) -> None:
        self._store = store
        self._fs = fs
        self._directory = directory
        self._root = directory + PARTIAL
        self._plan = plan
        self._note = note
        self._progress = progress
        self._total = sum(file.file.size_bytes for topic in plan.topics for file in topic.files)
        self._done = 0

    def run(self, new_store_id: Callable[[], str]) -> None:
        fs, root = self._fs, self._root
        fs.makedirs(root)
        lock = fs.lock(f"{root}/{layout.LOCK}")
        if lock is None:
            raise DirectoryLocked(f"{root} is in use by another restore")
        try:
            self._begin(new_store_id)
            entries = [encode_topic(self._write_topic(topic)) for topic in self._plan.topics]
            snapshot = Snapshot(1, self._plan.next_topic_id, [WalPosition(1, 1, 0)], entries, self._plan.next_router_id)
            snapshot.routers = self._plan.routers
            write_snapshot(fs, root, snapshot)
            # The server that opens the directory makes another lock file.
            fs.unlink(f"{root}/{layout.LOCK}")
            self._sync_names()
            if fs.exists(self._directory):
                fs.rmdir(self._directory)
            fs.rename(root, self._directory)
            fs.sync_dir(_parent(self._directory))
        finally:
            lock.release()

    def _begin(self, new_store_id: Callable[[], str]) -> None:
        """Makes the folders. What another restore left here is removed first."""
        fs, root = self._fs, self._root
        names = [name for name in fs.listdir(root) if name != layout.LOCK and not name.endswith(layout.TEMPORARY)]
        found = _read_note(fs, root)
        if names and found is None:
            raise StartRefused(f"{root} exists, and it is not an unfinished restore; move it away")
        if found is not None and found != self._note:
            # The note goes last, so that a killed removal is recognised.
            for name in names:
                if name != layout.RESTORE_NOTE:
                    _remove(fs, f"{root}/{name}")
            fs.sync_dir(root)
        write_atomic(fs, f"{root}/{layout.RESTORE_NOTE}", msgspec.json.encode(self._note))
        for folder in (layout.meta_directory(root), layout.wal_directory(root), layout.topics_directory(root)):
            fs.makedirs(folder)
        tier = FolderStore(fs, root)
        if read_store_id(tier) is None:
            # A store id of its own: with the old one it could claim the cold tier of the log that was backed up.
            ensure_store_id(tier, new_store_id())

    def _sync_names(self) -> None:
        """Names that a killed run made may be in the page cache only."""
        fs, root = self._fs, self._root
        topics = layout.topics_directory(root)
        for folder in (f"{topics}/{name}" for name in fs.listdir(topics)):
            fs.sync_dir(folder)
        for folder in (topics, layout.meta_directory(root), layout.wal_directory(root), root):
            fs.sync_dir(folder)

    def _write_topic(self, topic: PlannedTopic) -> TopicState:
        state = topic.state
        if topic.files:
            self._fs.makedirs(layout.topic_directory(self._root, state.id))
        state = msgspec.structs.replace(state, segments=[self._write_segment(state, file) for file in topic.files])
        if state.segments:
            path = f"{layout.topic_directory(self._root, state.id)}/{layout.TOPIC_JSON}"
            write_atomic(self._fs, path, _topic_json(state))
        return state

    def _write_segment(self, topic: TopicState, planned: PlannedFile) -> SegmentState:
        first_seq = planned.live[0][0]
        stem = f"{layout.topic_directory(self._root, topic.id)}/{layout.segment_stem(first_seq)}"
        path = f"{stem}.data"
        if self._fs.exists(path):
            # A killed run wrote it, under its final name only when it was complete.
            data = read_file(self._fs, path)
        else:
            data = _live_frames(self._store, planned)
            write_atomic(self._fs, path, data)
        segment = SegmentState(first_seq, 0, 0, 0, 0, 0, 0)
        extend(segment, data)
        if segment.data_bytes != len(data) or segment.last_seq != planned.live[-1][1]:
            raise Damaged(path, segment.data_bytes, f"frames up to seq {planned.live[-1][1]}", "other bytes")
        rebuild_index(self._fs, stem, segment)
        seal_segment(self._fs, stem, segment)
        segment.proof = prove_file(self._fs, stem, segment)
        self._done += planned.file.size_bytes
        if self._progress is not None:
            self._progress(self._done, self._total)
        return segment


def _live_frames(store: BackupStore, planned: PlannedFile) -> bytes:
    """The frames that are restored, as live frames: a delete byte of another point has no meaning here."""
    data, frames = store.read(planned.file)
    is_all = len(planned.live) == 1 and planned.live[0] == (frames.seqs[0], frames.seqs[-1])
    if is_all and not any(frames.deleted):
        return data
    pieces: list[bytes] = []
    for first, last in planned.live:
        start, stop = bisect_left(frames.seqs, first), bisect_right(frames.seqs, last)
        begin = frames.ends[start - 1] if start else 0
        for place in range(start, stop):
            end = frames.ends[place]
            if frames.deleted[place]:
                raise Damaged(planned.file.name, begin, f"seq {frames.seqs[place]}, live", "a deleted record")
            pieces.append(data[begin:end])
            begin = end
    return b"".join(pieces)


def _topic_json(state: TopicState) -> bytes:
    described = {
        "format": 1,
        "id": state.id,
        "name": state.name,
        "epoch": state.epoch,
        "config": state.config,
        "cap_floor": max(state.cap_floor, state.trim_floor),
        "ttl_floor": state.ttl_floor,
        "delete_below": state.delete_below,
        "head_seq": state.head_seq,
        "lease_ceiling": state.lease_ceiling,
    }
    if state.lost or state.source_trims:
        described |= {"lost": state.lost, "source_trims": state.source_trims}
    return msgspec.json.encode(described)


def _remove(fs: Fs, path: str) -> None:
    try:
        fs.unlink(path)
    except (IsADirectoryError, PermissionError):
        # The system decides which of the two errors a directory gives.
        remove_tree(fs, path)

"""Removing files. The caller knows that they are not needed any more."""

from collections.abc import Callable
from itertools import pairwise

from topics.errors import ColdUnavailable
from topics.formats.snapshot import SegmentState, WalPosition
from topics.storage import layout
from topics.storage.fs import Fs
from topics.storage.tiers.store import SegmentStore
from topics.storage.wal.reader import list_wal_files

SEGMENT_KINDS = ("idx", "tags", "data")


def remove_wal_files(fs: Fs, root: str, positions: list[WalPosition]) -> None:
    """Files whose frames all come before the given positions, oldest first."""
    for shard, position in enumerate(positions):
        directory = layout.shard_directory(root, shard, len(positions))
        files = list_wal_files(fs, directory)
        removed = False
        for file, following in pairwise(files):
            if following.first_frame > position.frame:
                break
            fs.unlink(file.path)
            removed = True
        if removed:
            fs.sync_dir(directory)


def remove_segment(fs: Fs, root: str, topic_id: int, segment: SegmentState) -> None:
    """The files of one segment in the data directory."""
    directory = layout.topic_directory(root, topic_id)
    stem = f"{directory}/{layout.segment_stem(segment.first_seq)}"
    removed = _remove_mark(fs, stem)
    for kind in SEGMENT_KINDS:
        if fs.exists(f"{stem}.{kind}"):
            fs.unlink(f"{stem}.{kind}")
            removed = True
    if removed:
        fs.sync_dir(directory)


def remove_marks(fs: Fs, root: str, segments: list[tuple[int, int]]) -> None:
    """Removes the `.replaced` marks of these segments, given as (topic id, first seq)."""
    for topic_id in sorted({topic_id for topic_id, _ in segments}):
        directory = layout.topic_directory(root, topic_id)
        stems = [f"{directory}/{layout.segment_stem(first_seq)}" for owner, first_seq in segments if owner == topic_id]
        # `sum`, not `any`: `any` would stop at the first mark that was there.
        if sum(_remove_mark(fs, stem) for stem in stems):
            fs.sync_dir(directory)


def _remove_mark(fs: Fs, stem: str) -> bool:
    """Whether there was a mark."""
    is_there = fs.exists(stem + layout.REPLACED)
    if is_there:
        fs.unlink(stem + layout.REPLACED)
    return is_there


def remove_cold_copy(cold: SegmentStore, topic_id: int, first_seq: int) -> None:
    for kind in SEGMENT_KINDS:
        cold.delete(layout.segment_object(topic_id, first_seq, kind))


def remove_topic_directory(fs: Fs, root: str, topic_id: int) -> None:
    """The directory is renamed first, so that a start can finish an interrupted removal."""
    directory = layout.topic_directory(root, topic_id)
    doomed = directory + layout.DELETED
    if fs.exists(directory):
        fs.rename(directory, doomed)
        fs.sync_dir(layout.topics_directory(root))
    remove_deleted_directory(fs, doomed)


def remove_deleted_directory(fs: Fs, path: str) -> None:
    if not fs.exists(path):
        return
    for name in fs.listdir(path):
        fs.unlink(f"{path}/{name}")
    fs.rmdir(path)
    fs.sync_dir(path.rpartition("/")[0])


def remove_tree(fs: Fs, path: str) -> None:
    """Removes a folder with everything in it. Missing files are no error."""
    try:
        names = fs.listdir(path)
    except FileNotFoundError:
        return
    for name in names:
        child = f"{path}/{name}"
        try:
            fs.unlink(child)
        except (IsADirectoryError, PermissionError):
            # The system decides which of the two errors a directory gives.
            remove_tree(fs, child)
    fs.rmdir(path)


def remove_hot_copy(
    fs: Fs, root: str, cold: SegmentStore, topic_id: int, first_seq: int, *, is_stopped: Callable[[], bool]
) -> None:
    """The hot files of a segment whose cold copy is complete and recorded. Nothing is removed once `is_stopped`: the
    tier may have answered late, and the data directory may belong to another process by then."""
    directory = layout.topic_directory(root, topic_id)
    stem = f"{directory}/{layout.segment_stem(first_seq)}"
    if not fs.exists(f"{stem}.data"):
        return
    if not cold.exists(layout.segment_object(topic_id, first_seq, "data")):
        raise ColdUnavailable(f"{cold.address} lost a segment that was moved there; the hot copy stays")
    if is_stopped():
        return
    _remove_mark(fs, stem)
    for kind in SEGMENT_KINDS:
        if fs.exists(f"{stem}.{kind}"):
            fs.unlink(f"{stem}.{kind}")
    fs.sync_dir(directory)

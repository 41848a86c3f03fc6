"""Copies of sealed segments in an archive: a folder, such as a mounted share, or a bucket.

An object has the name of its file below the data directory: `streams/0/topics/0/partitions/0/{start_offset}.log`, with
`.index` and `.codec` beside it. Rules:

1. `.log` is copied last. It is deleted first when another segment takes its name, as after a purge, which restarts
   offsets at 0. So a segment with a `.log` in the archive is complete, and its `.index` and `.codec` belong to it.
2. Sealed segments never change, so each is copied once and without a lock. A copy of an earlier process is recognised
   by its sizes and by the first and last entry of its index, which hold times that never come again.
3. An error here does not affect appends. The next pass tries again to copy what could not be copied.
"""

import logging
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from topics.errors import ColdUnavailable, StartRefused, StorageFull
from topics.formats.message_index import ENTRY_BYTES, decode_entries
from topics.formats.stream_layout import CODEC, INDEX, LOG, segment_path
from topics.storage.fs import Buffer, Fs, read_file
from topics.storage.tiers.folder_store import FolderStore
from topics.storage.tiers.store import SegmentStore
from topics.streams.retention.cleaner import RetainedPartition, RetainedSegment
from topics.streams.settings import StreamsSettings

logger = logging.getLogger(__name__)

# No request waits for the archive, so the limits are long. A segment of 1 GiB must arrive with 2 MiB/s.
CONNECT_MS_MAX: Final = 10_000
IDLE_MS_MAX: Final = 30_000
TRANSFER_MS_MAX: Final = 512_000

CODEC_BYTES_MAX: Final = 64


def open_archive(fs: Fs, root: str, settings: StreamsSettings) -> SegmentStore:
    """The archive of the data directory `root` that the settings name. Uses neither disk nor network."""
    archiver = settings.data_maintenance.archiver
    if archiver.kind == "s3":
        return _open_bucket(settings)
    path = archiver.disk.path or settings.system.backup.path
    return FolderStore(fs, os.path.normpath(os.path.join(root, path)))


def _open_bucket(settings: StreamsSettings) -> SegmentStore:
    """The setting `tmp_upload_dir` is not needed: a sealed segment does not change while it is sent."""
    try:
        from topics.storage.tiers.s3_store import S3Access, S3Bounds, S3Store
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "obstore":
            raise
        raise StartRefused("archiving to S3 needs the package obstore: pip install 'topics-log[s3]'") from error
    s3 = settings.data_maintenance.archiver.s3
    access = S3Access(key_id=s3.key_id, key_secret=s3.key_secret, endpoint=s3.endpoint, region=s3.region)
    bounds = S3Bounds(connect_ms=CONNECT_MS_MAX, idle_ms=IDLE_MS_MAX, transfer_ms=TRANSFER_MS_MAX)
    return S3Store(f"s3://{s3.bucket}", bounds=bounds, access=access)


def open_archiver(fs: Fs, root: str, settings: StreamsSettings) -> "Archiver | None":
    """None if the settings do not enable archiving."""
    maintenance = settings.data_maintenance
    if not (maintenance.archiver.enabled and maintenance.messages.archiver_enabled):
        return None
    return Archiver(fs, root, open_archive(fs, root, settings))


class ArchivePass(NamedTuple):
    """What one pass did. The next pass tries `left_count` segments again."""

    copied_count: int
    left_count: int


class _Identity(NamedTuple):
    """Tells a segment from all other segments that ever had its name."""

    key: str
    start_offset: int
    end_offset: int
    start_timestamp: int
    end_timestamp: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of a segment. `log` and `index` are memory maps, which stay valid when the files are deleted."""

    log: Buffer
    index: Buffer
    codec: bytes | None


class Archiver:
    """Copies sealed segments from the data directory `root` into `store`.

    One thread at a time may `run`; any thread may call `is_archived` meanwhile.
    """

    def __init__(self, fs: Fs, root: str, store: SegmentStore) -> None:
        self._fs = fs
        self._root = root
        self._store = store
        self._mutex = threading.Lock()
        # Segments that are in the archive, with the sizes of their logs; only segments that the last pass saw.
        self._archived: dict[_Identity, int] = {}
        self.copied_segments_total = 0
        self.copied_bytes_total = 0

    def run(self, partitions: Iterable[RetainedPartition]) -> ArchivePass:
        """One pass over all partitions, oldest segment first. It ends early if the archive does not answer."""
        sealed = {
            _identity(partition.key, segment): segment
            for partition in partitions
            for segment in partition.partition.segments
            if segment.is_sealed and segment.size_bytes
        }
        with self._mutex:
            self._archived = {identity: size for identity, size in self._archived.items() if identity in sealed}
        missing = sorted(sealed.keys() - self._archived.keys(), key=_age)
        copied_count = left_count = 0
        for place, identity in enumerate(missing):
            try:
                copied_count += self._archive(identity)
            except FileNotFoundError:
                # The segment was deleted since the pass began.
                continue
            except OSError as error:
                logger.warning("%s: segment %d is not archived: %s", identity.key, identity.start_offset, error)
                left_count += 1
            except (ColdUnavailable, StorageFull) as error:
                left_count += len(missing) - place
                logger.warning("%d segments are not archived; the next pass tries again: %s", left_count, error)
                break
        return ArchivePass(copied_count, left_count)

    def is_archived(self, key: str, segment: RetainedSegment) -> bool:
        """Whether the archive has the segment at this moment; also False if the archive does not answer."""
        if segment.size_bytes == 0:
            return True
        with self._mutex:
            log_bytes = self._archived.get(_identity(key, segment))
        if log_bytes is None:
            return False
        try:
            return self._store.size(segment_path(key, segment.start_offset, LOG)) == log_bytes
        except (FileNotFoundError, ColdUnavailable) as error:
            logger.warning(
                "%s: segment %d is kept, because its copy cannot be confirmed: %s", key, segment.start_offset, error
            )
            return False

    def must_stay(self, key: str, segment: RetainedSegment) -> bool:
        """For a cleaner that may delete archived segments only."""
        return not self.is_archived(key, segment)

    def _archive(self, identity: _Identity) -> bool:
        """Makes sure that the segment is in the archive. Returns whether it had to be copied."""
        files = self._open(identity)
        is_new = not self._is_there(identity, files)
        if is_new:
            self._copy(identity, files)
            self.copied_segments_total += 1
            self.copied_bytes_total += len(files.log)
        with self._mutex:
            self._archived[identity] = len(files.log)
        return is_new

    def _open(self, identity: _Identity) -> _Files:
        codec_path = self._path(identity, CODEC)
        codec = read_file(self._fs, codec_path) if self._fs.exists(codec_path) else None
        files = _Files(self._map(self._path(identity, LOG)), self._map(self._path(identity, INDEX)), codec)
        if not _describes(files, identity):
            # The partition was purged since the pass began, or the index has to be rebuilt by a restart.
            raise OSError(None, f"{self._path(identity, INDEX)} does not describe the segment")
        return files

    def _path(self, identity: _Identity, suffix: str) -> str:
        return segment_path(f"{self._root}/{identity.key}", identity.start_offset, suffix)

    def _map(self, path: str) -> Buffer:
        file = self._fs.open(path, "read")
        try:
            return file.map()
        finally:
            file.close()

    def _is_there(self, identity: _Identity, files: _Files) -> bool:
        """Rule 2. `.log` is looked at first: without it the copy is incomplete."""
        store = self._store
        name = segment_path(identity.key, identity.start_offset, INDEX)
        try:
            if store.size(segment_path(identity.key, identity.start_offset, LOG)) != len(files.log):
                return False
            if store.size(name) != len(files.index):
                return False
            last = len(files.index) - ENTRY_BYTES
            for offset in (0, last):
                if store.read_range(name, offset, ENTRY_BYTES) != bytes(files.index[offset : offset + ENTRY_BYTES]):
                    return False
        except FileNotFoundError:
            return False
        try:
            codec = store.read_range(segment_path(identity.key, identity.start_offset, CODEC), 0, CODEC_BYTES_MAX)
        except FileNotFoundError:
            return files.codec is None
        return codec == files.codec

    def _copy(self, identity: _Identity, files: _Files) -> None:
        """Copies the files in the order of rule 1."""
        log_name, index_name, codec_name = (
            segment_path(identity.key, identity.start_offset, suffix) for suffix in (LOG, INDEX, CODEC)
        )
        self._store.delete(log_name)
        if files.codec is None:
            self._store.delete(codec_name)
        else:
            self._store.put(codec_name, files.codec)
        self._store.put(index_name, files.index)
        self._store.put(log_name, files.log)


def _identity(key: str, segment: RetainedSegment) -> _Identity:
    return _Identity(
        key,
        segment.start_offset,
        segment.end_offset,
        segment.start_timestamp,
        segment.end_timestamp,
        segment.size_bytes,
    )


def _age(identity: _Identity) -> tuple[int, str, int]:
    return identity.start_timestamp, identity.key, identity.start_offset


def _describes(files: _Files, identity: _Identity) -> bool:
    """Whether the index has one entry for each message of the segment and does not point after the end of the log."""
    if len(files.index) != (identity.end_offset - identity.start_offset + 1) * ENTRY_BYTES:
        return False
    entries = decode_entries(files.index)
    first, last = entries[0], entries[-1]
    return bool(
        first["timestamp"] == identity.start_timestamp
        and last["timestamp"] == identity.end_timestamp
        and last["position"] <= len(files.log)
    )

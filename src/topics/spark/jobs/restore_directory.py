"""A restore into a new data directory: segments with the original seqs and times, for a server to serve.

Tasks write the segments into `<directory>.partial`, one chunk each, and note each finished chunk there. The last step
gives the folder its name, so that no server can be started with half a directory. Driver and executors must see the
same folder under the same path.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]

from topics.clock import SystemClock
from topics.errors import DirectoryLocked
from topics.formats import envelope
from topics.formats.records import RecordBatch
from topics.formats.snapshot import SegmentState, Snapshot, TopicState, WalPosition, encode_topic
from topics.formats.wal_frame import encode_appends
from topics.spark.errors import Conflict
from topics.spark.jobs.restore_source import Piece, RestoreChunk
from topics.storage import layout
from topics.storage.fs import Fs, Lock, RealFs, read_file, write_atomic
from topics.storage.removal import remove_tree
from topics.storage.segments.writer import SegmentAppender, SegmentLimits, seal_segment
from topics.storage.snapshots import write_snapshot
from topics.storage.tiers.folder_store import FolderStore
from topics.storage.tiers.store_id import ensure_store_id, read_store_id

TOPIC_ID: Final = 1
_NOTES: Final = "restored"
_US_PER_MS: Final = 1000


class ChunkDone(msgspec.Struct, frozen=True):
    """What a task notes beside its segments."""

    records: int
    segments: list[SegmentState]


@dataclass(frozen=True, slots=True)
class ChunkToWrite:
    """The work of one task."""

    root: str
    chunk: RestoreChunk
    pieces: tuple[Piece, ...]
    events_max: int
    bytes_max: int


def write_chunk(task: ChunkToWrite) -> ChunkDone:
    """Runs on an executor. Files with the same seqs that an earlier try left are removed first."""
    fs = RealFs()
    directory = layout.topic_directory(task.root, TOPIC_ID)
    _clear(fs, directory, task.chunk)
    now_ms = SystemClock().now_ms()
    appender = SegmentAppender(fs, directory, None, SegmentLimits(task.events_max, task.bytes_max, 0), now_ms)
    records = 0
    for piece in task.pieces:
        for batch in piece.batches():
            appender.add_bodies(_bodies(batch))
            records += batch.num_rows
    appender.finish()
    for segment in appender.touched:
        if not segment.sealed:
            seal_segment(fs, f"{directory}/{layout.segment_stem(segment.first_seq)}", segment)
    done = ChunkDone(records, appender.touched)
    write_atomic(fs, _note_path(task.root, task.chunk), msgspec.json.encode(done))
    return done


def _clear(fs: Fs, directory: str, chunk: RestoreChunk) -> None:
    if not fs.exists(directory):
        return
    for name in fs.listdir(directory):
        parsed = layout.segment_of(name)
        if parsed is not None and chunk.first_seq <= parsed[0] <= chunk.last_seq:
            fs.unlink(f"{directory}/{name}")


def _bodies(batch: pa.RecordBatch) -> Iterator[bytes]:
    """The bodies of log frames, because segments are written from them."""
    columns: list[list[Any]] = [batch.column(name).to_pylist() for name in ("seq", "node", "tag", "data", "meta")]
    times = (batch.column("ts").cast(pa.int64()).to_numpy() // _US_PER_MS).tolist()
    for ts, seq, node, tag, data, meta in zip(times, *columns, strict=True):
        packed = envelope.encode(data.encode(), None if meta is None else meta.encode())
        record = RecordBatch(
            [packed],
            [len(packed)],
            None if tag is None else [tag.encode()],
            None if node is None else [node.encode()],
        )
        yield encode_appends(TOPIC_ID, seq, ts, record, durable=True)[1][0]


def _note_path(root: str, chunk: RestoreChunk) -> str:
    return f"{root}/{_NOTES}/{chunk.first_seq}-{chunk.last_seq}.json"


def _store_id(writer: str) -> str:
    return sha256(writer.encode()).hexdigest()[:32]


class DirectoryBuilder:
    """The driver's side. The lock of the folder keeps other processes out."""

    def __init__(self, directory: str) -> None:
        self._fs = RealFs()
        self.directory = directory
        self.root = f"{directory}.partial"
        self._lock: Lock | None = None

    def is_done(self, writer: str) -> bool:
        """Whether this restore is finished. Raises `Conflict` when the directory holds something else."""
        fs = self._fs
        if not fs.exists(self.directory):
            return False
        if not fs.listdir(self.directory):
            return False
        if read_store_id(FolderStore(fs, self.directory)) == _store_id(writer):
            return True
        raise Conflict(f"{self.directory} is not empty; give a directory that does not exist")

    def begin(self) -> None:
        fs = self._fs
        for directory in (
            layout.meta_directory(self.root),
            layout.topic_directory(self.root, TOPIC_ID),
            layout.wal_directory(self.root),
            f"{self.root}/{_NOTES}",
        ):
            fs.makedirs(directory)
        self._lock = fs.lock(f"{self.root}/{layout.LOCK}")
        if self._lock is None:
            raise DirectoryLocked(f"{self.root} is in use by another restore")

    def end(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def done(self, chunk: RestoreChunk) -> ChunkDone | None:
        path = _note_path(self.root, chunk)
        if not self._fs.exists(path):
            return None
        return msgspec.json.decode(read_file(self._fs, path), type=ChunkDone)

    def finish(
        self,
        chunks: Sequence[RestoreChunk],
        *,
        name: str,
        epoch: int,
        first_seq: int,
        config: dict[str, Any],
        writer: str,
    ) -> None:
        """Describes the topic, and gives the folder its name."""
        fs = self._fs
        noted = [self.done(chunk) for chunk in chunks]
        assert all(note is not None for note in noted), "every chunk is written by now"
        segments = sorted(
            (segment for note in noted if note is not None for segment in note.segments),
            key=lambda segment: segment.first_seq,
        )
        head_seq = segments[-1].last_seq if segments else 0
        state = TopicState(
            name,
            TOPIC_ID,
            epoch,
            config,
            head_seq=head_seq,
            last_ts=segments[-1].last_ts if segments else 0,
            # Readers that ask for older seqs are told that they are gone.
            cap_floor=first_seq - 1,
            first_live=first_seq,
            checkpointed_seq=head_seq,
            segments=segments,
        )
        described = {
            "format": 1,
            "id": TOPIC_ID,
            "name": name,
            "epoch": epoch,
            "config": config,
            "cap_floor": first_seq - 1,
        }
        topic_json = f"{layout.topic_directory(self.root, TOPIC_ID)}/{layout.TOPIC_JSON}"
        write_atomic(fs, topic_json, msgspec.json.encode(described))
        snapshot = Snapshot(1, TOPIC_ID + 1, [WalPosition(1, 1, 0)], [encode_topic(state)])
        write_snapshot(fs, self.root, snapshot)
        # Readers and a rerun recognise this directory by it.
        ensure_store_id(FolderStore(fs, self.root), _store_id(writer))
        remove_tree(fs, f"{self.root}/{_NOTES}")
        # The lock is still held. The server that opens the directory makes another file.
        fs.unlink(f"{self.root}/{layout.LOCK}")
        if fs.exists(self.directory):
            fs.rmdir(self.directory)
        fs.rename(self.root, self.directory)
        fs.sync_dir(self.directory.rpartition("/")[0])

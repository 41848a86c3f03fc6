"""The heavy part of a checkpoint: WAL byte ranges in, segment files out.

A `Job` holds all inputs, a `JobResult` everything that changed, so that the job can run in
another process (`worker`), or in place on the fake disk. It alone appends to and seals
segments. It may be run again from the start after a crash at any point.
"""

from collections import deque
from typing import Final

import msgspec

from topics.errors import Damaged, FormatError
from topics.formats import wal_frame
from topics.formats.record_layout import CHECKSUM_BYTES, FRAME_LEN_BYTES, SEQ, WAL_CORE_AT
from topics.formats.snapshot import SegmentState, WalPosition
from topics.formats.wal_frame import FLAG_FIRST, FLAG_MORE, FrameType
from topics.storage import layout
from topics.storage.fs import Fs, read_file, write_atomic
from topics.storage.segments.reader import SegmentReader
from topics.storage.segments.replacement import rewrite_segment
from topics.storage.segments.sources import FileSource
from topics.storage.segments.writer import SegmentAppender, SegmentLimits, flag_deleted
from topics.storage.wal.reader import ShardReader
from topics.storage.wal.wal import shard_index

# Bound once: Python looks the method of an imported object up anew at every call, which costs 50 ns.
_unpack_seq: Final = SEQ.unpack_from

# Frames of a shard that are worth another process: about a tenth of a second of work.
PART_FRAMES_MIN: Final = 30_000


class ShardRange(msgspec.Struct, frozen=True):
    directory: str
    start: WalPosition
    stop: WalPosition


class TopicWork(msgspec.Struct):
    id: int
    # Records up to this seq are in segments.
    after_seq: int
    # Records with a higher seq were not published when the checkpoint began.
    upto_seq: int
    # Records below this seq are dead and not worth writing.
    floor_seq: int
    # [first, last] ranges that were deleted before they reached a segment.
    dead: list[tuple[int, int]]
    active: SegmentState | None
    # Bodies of records that are in no WAL file, ascending.
    unlogged: list[bytes] = []
    # New content of topic.json, when it changed.
    topic_json: bytes = b""
    # Whether an earlier process may have written the same content already.
    topic_json_may_stand: bool = False
    # Whether its active segment ends here, whatever its size and age.
    seal: bool = False


class FlagWork(msgspec.Struct, frozen=True):
    """Delete bytes to set in a hot segment."""

    topic_id: int
    segment: SegmentState
    seqs: list[int]


class RewriteWork(msgspec.Struct, frozen=True):
    """A sealed, hot segment of which more than half seems to be deleted, once the delete bytes of the job are set."""

    topic_id: int
    segment: SegmentState


class RewriteResult(msgspec.Struct, frozen=True):
    """What came of a `RewriteWork`. `digest` is empty when the segment was not written again."""

    topic_id: int
    first_seq: int
    # Bytes of the frames whose delete byte is not set.
    kept_bytes: int
    data_bytes: int = 0
    tagged_count: int = 0
    digest: bytes = b""
    proof: bytes = b""
    # False when a sync failed, or the work failed half way: its mark file stays until the next start.
    is_durable: bool = True
    # Why the work failed.
    error: str = ""


class Job(msgspec.Struct):
    root: str
    now_ms: int
    shards: list[ShardRange]
    topics: list[TopicWork]
    flags: list[FlagWork]
    segment_events_max: int
    segment_bytes_max: int
    segment_age_ms_max: int
    rewrites: list[RewriteWork] = []
    # The log stops after this job, so that the other cores are free.
    is_last: bool = False


class JobResult(msgspec.Struct):
    # Topic id -> segments that were changed or made, in order.
    touched: dict[int, list[SegmentState]]
    # In the order of `Job.rewrites`.
    rewritten: list[RewriteResult] = []


def split_job(job: Job, parts_max: int) -> list[Job]:
    """The last job of a log as jobs that can run at the same time: a shard, and the topics of this shard, are in one of
    them. The same job when that is not worth another process."""
    large = [shard for shard in job.shards if shard.stop.frame - shard.start.frame >= PART_FRAMES_MIN]
    count = min(len(large), parts_max)
    if not job.is_last or count < 2:
        return [job]
    parts = [
        Job(
            job.root,
            job.now_ms,
            job.shards[part::count],
            [work for work in job.topics if shard_index(work.id, len(job.shards)) % count == part],
            [work for work in job.flags if shard_index(work.topic_id, len(job.shards)) % count == part],
            job.segment_events_max,
            job.segment_bytes_max,
            job.segment_age_ms_max,
        )
        for part in range(count)
    ]
    assert not job.rewrites, "the last checkpoint writes no segment again"
    return parts


class _TopicRun:
    """Collects the records of one topic: whole writes only, live ones only, each seq once."""

    def __init__(self, fs: Fs, root: str, work: TopicWork, limits: SegmentLimits, now_ms: int) -> None:
        self._work = work
        self._next_seq = max(work.after_seq + 1, work.floor_seq)
        self._open: list[bytes] = []
        self._dead = iter([*work.dead, (2**64, 2**64)])
        self._dead_first, self._dead_last = next(self._dead)
        self._unlogged = deque((wal_frame.body_header(body).seq, body) for body in work.unlogged)
        directory = layout.topic_directory(root, work.id)
        self._appender = SegmentAppender(fs, directory, work.active, limits, now_ms)

    def take(self, flags: int, body: bytes | None) -> None:
        """One frame of this topic; `body` for appends. A write whose last frame is missing is dropped."""
        if flags & FLAG_FIRST:
            self._open = []
        if body is not None:
            self._open.append(body)
        if not flags & FLAG_MORE:
            for record in self._open:
                self.add(record)
            self._open = []

    def add(self, body: bytes) -> None:
        (seq,) = _unpack_seq(body, WAL_CORE_AT)
        while self._unlogged and self._unlogged[0][0] < seq:
            self._put(*self._unlogged.popleft())
        self._put(seq, body)

    def _put(self, seq: int, body: bytes) -> None:
        if seq < self._next_seq or seq > self._work.upto_seq:
            return
        self._next_seq = seq + 1
        while seq > self._dead_last:
            self._dead_first, self._dead_last = next(self._dead)
        if seq < self._dead_first:
            self._appender.add(body)

    def finish(self) -> list[SegmentState]:
        """The segments that were changed, all durable."""
        while self._unlogged:
            self._put(*self._unlogged.popleft())
        self._appender.finish(seal=self._work.seal)
        return self._appender.touched


def run_job(fs: Fs, job: Job) -> JobResult:
    limits = SegmentLimits(job.segment_events_max, job.segment_bytes_max, job.segment_age_ms_max)
    for flag in job.flags:
        _flag(fs, job.root, flag)
    runs = {work.id: _TopicRun(fs, job.root, work, limits, job.now_ms) for work in job.topics}
    for shard in job.shards:
        _read_shard(fs, shard, runs)
    result = JobResult({})
    for work in job.topics:
        result.touched[work.id] = runs[work.id].finish()
        if work.topic_json:
            _describe(fs, job.root, work)
    result.rewritten = [_rewrite(fs, job.root, rewrite) for rewrite in job.rewrites]
    return result


def _describe(fs: Fs, root: str, work: TopicWork) -> None:
    directory = layout.topic_directory(root, work.id)
    path = f"{directory}/{layout.TOPIC_JSON}"
    if not work.topic_json_may_stand or not fs.exists(path) or read_file(fs, path) != work.topic_json:
        fs.makedirs(directory)
        write_atomic(fs, path, work.topic_json)


def _read_shard(fs: Fs, shard: ShardRange, runs: dict[int, _TopicRun]) -> None:
    remaining = shard.stop.frame - shard.start.frame
    if remaining == 0:
        return
    append = int(FrameType.APPEND)
    reader = ShardReader(fs, shard.directory, shard.start)
    for _, buffer, _, frames in reader.windows():
        for offset, end, kind, flags, topic_id, _, _, _, _, _ in frames.part(0, remaining):
            run = runs.get(topic_id)
            if run is not None:
                run.take(flags, buffer[offset + FRAME_LEN_BYTES : end - CHECKSUM_BYTES] if kind == append else None)
        remaining -= len(frames)
        if remaining <= 0:
            return
    # All these frames were synced. Going on would count records as checkpointed that are in no segment.
    found = reader.end
    assert found is not None
    raise Damaged(
        found.path or shard.directory, found.position.offset, f"frames up to {shard.stop.frame - 1}", "no valid frame"
    )


def _flag(fs: Fs, root: str, work: FlagWork) -> None:
    stem = f"{layout.topic_directory(root, work.topic_id)}/{layout.segment_stem(work.segment.first_seq)}"
    reader = SegmentReader(FileSource(fs, stem), work.segment)
    try:
        positions = reader.positions(work.seqs)
    finally:
        reader.close()
    flag_deleted(fs, stem, positions)


def _rewrite(fs: Fs, root: str, work: RewriteWork) -> RewriteResult:
    """A failure does not fail the job: the segment stays as it was, and readers go on with it."""
    topic_id, state = work.topic_id, work.segment
    try:
        kept_bytes, replaced = rewrite_segment(fs, root, topic_id, state)
    except OSError as error:
        reason = error.strerror or str(error)
        return RewriteResult(topic_id, state.first_seq, state.data_bytes, is_durable=False, error=reason)
    except FormatError as error:
        return RewriteResult(topic_id, state.first_seq, state.data_bytes, error=error.message)
    if replaced is None:
        return RewriteResult(topic_id, state.first_seq, kept_bytes)
    return RewriteResult(
        topic_id,
        state.first_seq,
        kept_bytes,
        replaced.data_bytes,
        replaced.tagged_count,
        replaced.digest,
        replaced.proof,
        replaced.is_durable,
    )

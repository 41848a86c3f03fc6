"""The heavy part of a checkpoint: WAL byte ranges in, segment files out.

A `Job` holds all inputs, a `JobResult` everything that changed, so that the job can run in
another process (`worker`), or in place on the fake disk. It alone appends to and seals
segments. It may be run again from the start after a crash at any point.
"""

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Final

import msgspec

from topics.errors import Damaged, FormatError, Torn
from topics.formats import filing
from topics.formats.filing import FiledFrames, Run
from topics.formats.snapshot import SegmentState, WalPosition
from topics.limits import FRAME_BYTES_MAX
from topics.storage import layout
from topics.storage.fs import Fs, read_file, write_atomic
from topics.storage.segments.file_tasks import FileTasks, InlineTasks, Wait
from topics.storage.segments.reader import SegmentReader
from topics.storage.segments.replacement import rewrite_segment
from topics.storage.segments.sources import FileSource
from topics.storage.segments.writer import SegmentAppender, SegmentLimits, flag_deleted
from topics.storage.wal.reader import WINDOW_BYTES, WalFile, list_wal_files
from topics.storage.wal.wal import shard_index

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

    def __init__(
        self, fs: Fs, root: str, work: TopicWork, limits: SegmentLimits, now_ms: int, tasks: FileTasks
    ) -> None:
        self._work = work
        self._next_seq = max(work.after_seq + 1, work.floor_seq)
        # Parts of runs that belong to a write whose last frame was not read yet: run, start, stop.
        self._open: list[tuple[Run, int, int]] = []
        self._dead = deque(work.dead)
        self._unlogged = deque(filing.runs_of(work.unlogged))
        directory = layout.topic_directory(root, work.id)
        self.appender = SegmentAppender(fs, directory, work.active, limits, now_ms, tasks)

    def take(self, run: Run) -> None:
        """The next frames of this topic. A write whose last frame is missing is dropped."""
        if run.begins_write:
            self._open = []
        count, whole_count = len(run.ends), run.whole_count
        if whole_count or not run.is_open:
            for part in self._open:
                self._add(*part)
            self._open = []
            self._add(run, 0, whole_count)
        if whole_count < count:
            self._open.append((run, whole_count, count))

    def _add(self, run: Run, start: int, stop: int) -> None:
        while self._unlogged and self._unlogged[0].first_seq < run.first_seq + start:
            unlogged = self._unlogged.popleft()
            self._put(unlogged, 0, len(unlogged.ends))
        self._put(run, start, stop)

    def _put(self, run: Run, start: int, stop: int) -> None:
        """Files the live records of this part that are not filed yet."""
        first_seq = run.first_seq
        start = max(start, self._next_seq - first_seq)
        stop = min(stop, self._work.upto_seq + 1 - first_seq)
        if stop <= start:
            return
        self._next_seq = first_seq + stop
        dead = self._dead
        while start < stop:
            while dead and dead[0][1] < first_seq + start:
                dead.popleft()
            dead_start, dead_stop = (dead[0][0] - first_seq, dead[0][1] + 1 - first_seq) if dead else (stop, stop)
            if start < dead_start:
                self.appender.add(run, start, min(stop, dead_start))
            start = max(start, dead_stop)

    def end(self) -> None:
        """No frame follows: the first of the steps that make the segments durable."""
        while self._unlogged:
            unlogged = self._unlogged.popleft()
            self._put(unlogged, 0, len(unlogged.ends))
        self.appender.end(seal=self._work.seal)


def run_job(fs: Fs, job: Job, tasks: FileTasks | None = None) -> JobResult:
    """Without `tasks` the files are written one after the other, on the caller."""
    tasks = tasks or InlineTasks()
    limits = SegmentLimits(job.segment_events_max, job.segment_bytes_max, job.segment_age_ms_max)
    _wait_all([tasks.start(partial(_flag, fs, job.root, flag), flag.segment.data_bytes) for flag in job.flags])
    runs = {work.id: _TopicRun(fs, job.root, work, limits, job.now_ms, tasks) for work in job.topics}
    for shard in job.shards:
        _read_shard(fs, shard, runs)
    for run in runs.values():
        run.end()
    for run in runs.values():
        run.appender.settle()
    for run in runs.values():
        run.appender.sync_names()
    for run in runs.values():
        run.appender.wait()
    described = [work for work in job.topics if work.topic_json]
    _wait_all([tasks.start(partial(_describe, fs, job.root, work), 0) for work in described])
    if described or any(run.appender.needs_parent_sync for run in runs.values()):
        # One sync for the names of all directories, also of those that a job made which failed before its sync.
        fs.sync_dir(layout.topics_directory(job.root))
    result = JobResult({work.id: runs[work.id].appender.touched for work in job.topics})
    result.rewritten = [_rewrite(fs, job.root, rewrite) for rewrite in job.rewrites]
    return result


def _wait_all(started: list[Wait]) -> None:
    for wait in started:
        wait()


def _describe(fs: Fs, root: str, work: TopicWork) -> None:
    directory = layout.topic_directory(root, work.id)
    path = f"{directory}/{layout.TOPIC_JSON}"
    if not work.topic_json_may_stand or not fs.exists(path) or read_file(fs, path) != work.topic_json:
        fs.makedirs(directory)
        write_atomic(fs, path, work.topic_json)


def _read_shard(fs: Fs, shard: ShardRange, runs: dict[int, _TopicRun]) -> None:
    """Gives the frames between the positions of the shard to the runs of their topics.

    All these frames were synced. Going on after a bad one would count records as checkpointed that are in no segment.
    """
    next_frame, stop_frame = shard.start.frame, shard.stop.frame
    if next_frame == stop_frame:
        return
    path, offset = shard.directory, 0
    for file in list_wal_files(fs, shard.directory):
        if file.first_frame == shard.start.file_frame:
            offset = shard.start.offset
        elif file.first_frame == next_frame > shard.start.file_frame:
            offset = 0
        else:
            continue
        path = file.path
        for found in _scan_file(fs, file, offset, stop_frame - next_frame):
            for run in found.runs:
                topic_run = runs.get(run.topic_id)
                if topic_run is not None:
                    topic_run.take(run)
            next_frame += found.frame_count
            offset += found.end
        if next_frame == stop_frame:
            return
    raise Damaged(path, offset, f"frames up to {stop_frame - 1}", "no valid frame")


def _scan_file(fs: Fs, file: WalFile, offset: int, frames_max: int) -> Iterator[FiledFrames]:
    """The frames of a WAL file from `offset` on, a window at a time, until they end or there are `frames_max`."""
    window_bytes = WINDOW_BYTES
    handle = fs.open(file.path, "read")
    try:
        while frames_max and offset < file.size:
            found = filing.scan(handle.pread(window_bytes, offset), frames_max, FRAME_BYTES_MAX)
            if found.frame_count:
                yield found
                frames_max -= found.frame_count
                offset += found.end
            elif isinstance(found.error, Torn) and offset + window_bytes < file.size:
                # The window ends inside the frame.
                window_bytes *= 2
            else:
                return
    finally:
        handle.close()


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

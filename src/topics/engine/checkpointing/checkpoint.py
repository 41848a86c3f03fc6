"""One checkpoint: the records of the WAL go into segments, a snapshot lists the segments, and old files are removed.

Order, each step durable before the next:

1. All shards hold still (`Checkpointer`): every frame written is synced. In the same turn every topic that changed is
   captured, so the snapshot is exactly the state at the noted positions. Writing goes on at once.
2. The job (in a worker process) puts records into segments and sets delete bytes in hot segments.
3. The engine takes over the new segments, some topics in each turn, and the snapshot is written.
4. A checkpoint mark is written to each shard.
5. Files that neither of the two kept snapshots needs are removed: snapshots, WAL files, dead segments. What is left to
   do in the cold tier is begun (`ColdUpkeep`), and the checkpoint does not wait for it.

When a step fails, the checkpoint ends. Durable results of earlier steps stay in use, and the next checkpoint goes on
from there. Owner only, except the work handed to the background.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Final

import msgspec

from topics.engine.checkpointing.capture import Capture
from topics.engine.checkpointing.cold_upkeep import ColdUpkeep
from topics.engine.checkpointing.old_files import FileRemoval, OldFiles
from topics.engine.checkpointing.progress import CheckpointProgress
from topics.engine.checkpointing.requests import CheckpointRequests
from topics.engine.checkpointing.rewriting import Rewriting
from topics.engine.checkpointing.tail_trim import trim_in_steps
from topics.engine.checkpointing.take_over import take_over
from topics.engine.checkpointing.topic_capture import CapturedTopic
from topics.engine.engine import Engine
from topics.engine.topic.topic import Topic
from topics.errors import TopicsError
from topics.formats import control, wal_frame
from topics.formats.snapshot import SegmentState
from topics.formats.wal_frame import FrameType
from topics.limits import TAIL_CACHE_TOTAL_BYTES
from topics.storage import layout
from topics.storage.background import Background
from topics.storage.checkpoints.job import Job, JobResult, ShardRange
from topics.storage.checkpoints.runner import JobRunner
from topics.storage.snapshots import write_snapshot
from topics.storage.wal.wal import shard_index

logger = logging.getLogger(__name__)

CheckpointDone = Callable[[Exception | None], None]

# About two milliseconds.
TOPICS_PER_TURN: Final = 100


class Checkpoint:
    """The steps after the capture. `done` is called once, at the end, with the error that ended the run, or None."""

    def __init__(
        self,
        engine: Engine,
        runner: JobRunner,
        background: Background,
        progress: CheckpointProgress,
        requests: CheckpointRequests,
        old_files: OldFiles,
        upkeep: ColdUpkeep,
        capture: Capture,
        done: CheckpointDone,
    ) -> None:
        self._engine = engine
        self._fs = engine.directory.fs
        self._root = engine.directory.root
        self._runner = runner
        self._background = background
        self._progress = progress
        self._requests = requests
        self._old_files = old_files
        self._upkeep = upkeep
        self._done = done
        self._positions = capture.positions
        self._captured = capture.topics
        self._snapshot = capture.snapshot
        # Topic id -> snapshot entry.
        self._entries = capture.entries
        self._rewriting = Rewriting(engine, capture.topics, requests, old_files)
        # Shards whose checkpoint mark is not written yet.
        self._marks_left = 0

    # 2. The job.

    def run(self) -> None:
        """Starts the steps that follow the capture. Called in its turn."""
        if not self._requests.closing:
            # Files are exchanged only when the last snapshot is known to be on disk.
            self._rewriting.choose(none=self._progress.snapshot_failed)
        job = self._job()
        self._background.run(lambda: self._run_job(job), self._job_done)

    def _run_job(self, job: Job) -> JobResult:
        """In the background."""
        job.flags = [work for item in self._captured for work in item.prepare()]
        return self._runner.run(job)

    def _job(self) -> Job:
        settings = self._engine.settings
        count = len(self._positions)
        return Job(
            self._root,
            self._engine.now_ms(),
            [
                ShardRange(layout.shard_directory(self._root, shard, count), start, stop)
                for shard, (start, stop) in enumerate(zip(self._progress.positions, self._positions, strict=True))
            ],
            [item.work for item in self._captured],
            [],
            settings.segment_events_max,
            settings.segment_bytes_max,
            settings.segment_age_ms_max,
            self._rewriting.works,
            is_last=self._requests.closing,
        )

    def _job_done(self, result: JobResult | BaseException) -> None:
        if isinstance(result, BaseException):
            self._rewriting.job_failed()
            for item in self._captured:
                item.job_failed()
            self._done(_reportable(result))
            return
        self._rewriting.take_over(result.rewritten, last_snapshot=self._snapshot.number - 1)
        self._progress.filed(self._positions)
        self._take_over_next(iter(self._captured), result.touched)

    # 3. Take-over and snapshot.

    def _take_over_next(self, left: Iterator[CapturedTopic], touched: dict[int, list[SegmentState]]) -> None:
        """Some topics go on with their new segments now, the others in later turns. A topic that waits for its turn is
        as it was while the job ran: its records are still in memory."""
        # The change of a layout comes before the first turn.
        count = TOPICS_PER_TURN if self._requests.layout_positions is None else len(self._captured)
        item: CapturedTopic | None = None
        for item in islice(left, count):
            segments = touched.get(item.topic.id, [])
            self._entries[item.topic.id] = item.entry(segments)
            self._take_over(item, segments)
        if item is None or item is self._captured[-1]:
            self._rewriting.postpone()
            self._close_replayed_files()
            self._write_snapshot()
        else:
            self._engine.core.runtime.call_soon(partial(self._take_over_next, left, touched))

    def _take_over(self, item: CapturedTopic, touched: list[SegmentState]) -> None:
        engine, topic = self._engine, item.topic
        if not engine.core.is_current(topic):
            item.topic_removed()
            return
        take_over(item, touched, engine.now_ms())
        # The snapshot that is written next was captured before, so it may list the segments that the topic dropped.
        self._take_dropped(topic, last_snapshot=self._snapshot.number)
        share_bytes = TAIL_CACHE_TOTAL_BYTES // max(1, len(engine.topics))
        kept_seq = topic.live.cached_from(min(engine.settings.tail_cache_bytes, share_bytes))
        trim_in_steps(engine.core.runtime, topic.live.tail, kept_seq)

    def _close_replayed_files(self) -> None:
        """Records of the last start are read from WAL files until all of them are in segments."""
        core = self._engine.core
        if core.wal_files is not None and all(topic.live.replayed is None for topic in core.topics.values()):
            core.close_wal_files()

    def _write_snapshot(self) -> None:
        self._snapshot.topics = [msgspec.Raw(entry) for entry in self._entries.values()]
        self._background.run(lambda: write_snapshot(self._fs, self._root, self._snapshot), self._snapshot_written)

    def _snapshot_written(self, written: object) -> None:
        if isinstance(written, BaseException):
            self._progress.note_failed_snapshot()
            for item in self._captured:
                item.snapshot_failed()
            self._done(_reportable(written))
            return
        self._progress.snapshot_written(self._snapshot.number)
        if self._requests.layout_positions is not None:
            self._done(None)
            return
        self._progress.keep_positions(self._snapshot.wal)
        for item in self._captured:
            self._take_dropped(item.topic, last_snapshot=self._snapshot.number)
            item.snapshot_written()
        self._write_marks()

    def _take_dropped(self, topic: Topic, *, last_snapshot: int) -> None:
        if topic.live.segments.dropped:
            topic.checkpoint.mark_changed()
            self._old_files.take_dropped(topic, last_snapshot=last_snapshot)

    # 4. Checkpoint marks.

    def _write_marks(self) -> None:
        """One mark per shard, synced."""
        shards = self._engine.wal.shards
        marks: list[list[control.TopicMark]] = [[] for _ in shards]
        for item in self._captured:
            state = item.state
            active_bytes = state.segments[-1].data_bytes if state.segments and not state.segments[-1].sealed else 0
            marks[shard_index(state.id, len(shards))].append(
                control.TopicMark(
                    state.id, state.checkpointed_seq, state.cap_floor, state.ttl_floor, active_bytes, state.hops
                )
            )
        routers: list[list[control.RouterState]] = [[] for _ in shards]
        for router in self._snapshot.routers:
            routers[shard_index(router.dest, len(shards))].append(router)
        self._marks_left = len(shards)
        for shard, topics, into_shard in zip(shards, marks, routers, strict=True):
            data = control.encode(control.CheckpointMark(self._snapshot.number, topics, into_shard))
            frame = wal_frame.encode_control(FrameType.CHECKPOINT, 0, self._engine.now_ms(), data)
            try:
                shard.submit(frame, 1, durable=True, done=self._mark_written)
            except TopicsError as error:
                self._mark_written(error)
        self._engine.flush()

    def _mark_written(self, _error: TopicsError | None) -> None:
        """A start does without the mark, so an error changes nothing."""
        self._marks_left -= 1
        if self._marks_left == 0:
            self.remove_old_files()

    # 5. Old files.

    def remove_old_files(self) -> None:
        """The last step, also of a checkpoint that had nothing to store."""
        progress = self._progress
        removal = self._old_files.begin_removal(
            self._engine, progress.number, progress.oldest_positions, self._requests.busy_segments
        )
        self._background.run(removal.run, lambda result: self._old_files_removed(removal, result))

    def _old_files_removed(self, removal: FileRemoval, result: object) -> None:
        self._old_files.end_removal(removal, result)
        self._upkeep.start()
        self._done(None)


def _reportable(error: BaseException) -> Exception:
    if not isinstance(error, Exception):
        raise error
    return error

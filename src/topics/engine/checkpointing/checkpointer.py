"""When checkpoints run, one at a time. The `Checkpointer` also owns the removal of files.

Owner only, except the work handed to the background.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

from topics.engine.checkpointing.capture import capture_engine
from topics.engine.checkpointing.checkpoint import Checkpoint, CheckpointDone
from topics.engine.checkpointing.cold_upkeep import ColdUpkeep
from topics.engine.checkpointing.old_files import OldFiles, SegmentKey
from topics.engine.checkpointing.progress import CheckpointBase, CheckpointProgress
from topics.engine.checkpointing.requests import CheckpointRequests
from topics.engine.checkpointing.rewriting import wake_held
from topics.engine.checkpointing.segment_expiry import SegmentExpiry
from topics.engine.engine import Engine
from topics.engine.topic.topic import Topic
from topics.errors import StorageFull
from topics.formats.snapshot import SegmentState, WalPosition
from topics.limits import CHECKPOINT_RETRY_MS, CLEANING_CHECKPOINTS
from topics.storage.background import Background
from topics.storage.checkpoints.runner import JobRunner
from topics.storage.fs import NO_SPACE
from topics.storage.removal import remove_topic_directory

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Checkpointer:
    def __init__(
        self,
        engine: Engine,
        runner: JobRunner,
        background: Background,
        base: CheckpointBase,
        replayed_bytes: int = 0,
        cold_background: Background | None = None,
    ) -> None:
        self._engine = engine
        self._runner = runner
        self._background = background
        self._progress = CheckpointProgress(engine, base, replayed_bytes)
        self._requests = CheckpointRequests()
        self._old_files = OldFiles()
        self._expiry = SegmentExpiry()
        for topic in engine.topics.values():
            self._expiry.note(topic)
        # Names of the topics that the running checkpoint looks into: when it ends, their segments are others.
        self._looked_into: list[str] = []
        self._upkeep = ColdUpkeep(engine, cold_background or background, self._old_files)
        self._is_running = False
        self._began_ms = engine.clock.monotonic_ms()
        # Told when the running checkpoint ends.
        self._callbacks: list[CheckpointDone] = []
        # Told when the checkpoint after the running one ends.
        self._next_callbacks: list[CheckpointDone] = []
        engine.topic_life.on_removed.append(self._topic_removed)

    @property
    def is_running(self) -> bool:
        return self._is_running

    @property
    def is_upkeep_running(self) -> bool:
        """Whether the background of the cold tier has work of this room."""
        return self._upkeep.is_running

    @property
    def number(self) -> int:
        """Number of the last snapshot; 0 when there is none."""
        return self._progress.number

    @property
    def count_total(self) -> int:
        """Checkpoints of this process that wrote a snapshot."""
        return self._progress.count_total

    @property
    def backlog_bytes(self) -> int:
        """Bytes of the write-ahead log whose records are in no segment yet."""
        return self._progress.backlog_bytes

    @property
    def busy_segments(self) -> set[SegmentKey]:
        """Segments that are being moved or replaced: a checkpoint sets no delete bytes in them."""
        return self._requests.busy_segments

    # When.

    def tick(self) -> None:
        """Starts a checkpoint when enough was written, the last one is long ago, or files can be removed. Refuses
        writes that outrun it."""
        progress = self._progress
        progress.throttle_writes()
        if self._is_running:
            return
        settings = self._engine.settings
        waited_ms = self._engine.clock.monotonic_ms() - self._began_ms
        wait_ms = settings.checkpoint_interval_ms if progress.last_error is None else CHECKPOINT_RETRY_MS
        if (
            progress.is_due
            or waited_ms >= wait_ms
            or (waited_ms >= settings.checkpoint_interval_ms // CLEANING_CHECKPOINTS and self._has_files_to_remove())
        ):
            self.start()

    def _has_files_to_remove(self) -> bool:
        return bool(self._old_files) or self._expiry.is_due(self._engine.now_ms())

    def start(self, done: CheckpointDone | None = None, *, closing: bool = False) -> None:
        """Starts a checkpoint now, or when the running one ends. `closing`: no write follows the last checkpoint."""
        if closing:
            self._requests.close()
        if self._is_running:
            self._next_callbacks.append(done or _ignore)
            return
        self._begin([done] if done is not None else [])

    def seal(self, topic: Topic, done: CheckpointDone) -> None:
        """Puts all records of the topic into sealed segments: files that do not change any more."""
        if topic.live.active_segment() is not None or topic.live.checkpointed_seq < topic.head_seq:
            self._requests.to_seal.add(topic.id)
            topic.checkpoint.mark_changed()
        self.start(lambda error: done(None if error is None else _error_for_caller(error)))

    def move_to_layout(self, positions: list[WalPosition]) -> int:
        """A checkpoint after which no frame of the present WAL is needed. Returns the number of its snapshot.

        The background must be an inline one. Raises the error that made the checkpoint fail.
        """
        outcome: list[Exception | None] = []
        self._requests.change_layout(positions)
        self.start(outcome.append)
        assert outcome, "an inline checkpoint is done when it returns"
        if outcome[0] is not None:
            raise outcome[0]
        return self.number

    def _begin(self, callbacks: list[CheckpointDone]) -> None:
        self._is_running = True
        self._engine.core.runtime.note_checkpoint(is_running=True)
        self._callbacks = callbacks
        self._began_ms = self._engine.clock.monotonic_ms()
        # The frames of a commit may be written in several turns. No position may lie between them.
        self._engine.commits.when_none_is_open(lambda: self._engine.wal.hold(self._capture))

    def _capture(self) -> None:
        """All shards hold still."""
        # Callers get the answers that became true before the capture.
        self._engine.core.completions.deliver()
        engine, progress, requests = self._engine, self._progress, self._requests
        failure = engine.wal.failure()
        if failure is not None:
            engine.wal.release()
            self._ended(failure)
            return
        due = self._expiry.take_due(engine.now_ms())
        wake_held(engine, requests)
        capture = capture_engine(engine, progress.number + 1, requests, self._old_files)
        self._looked_into = [*due, *(item.topic.name for item in capture.topics)]
        progress.captured()
        engine.wal.release()
        checkpoint = Checkpoint(
            engine,
            self._runner,
            self._background,
            progress,
            requests,
            self._old_files,
            self._upkeep,
            capture,
            self._ended,
        )
        needs_snapshot = requests.needs_snapshot or self._old_files.wait_for_snapshot(progress.number)
        if capture.is_empty and progress.number and not needs_snapshot:
            # Only marks were written since the last snapshot: it is still right.
            progress.nothing_to_file()
            if self._old_files:
                checkpoint.remove_old_files()
            else:
                self._ended(None)
            return
        requests.snapshot_begun()
        checkpoint.run()

    def _ended(self, error: Exception | None) -> None:
        if error is not None:
            logger.error("checkpoint failed: %s", error)
            self._engine.routing.mark_changed()
        self._is_running = False
        self._engine.core.runtime.note_checkpoint(is_running=False)
        self._progress.ended(error)
        for name in self._looked_into:
            topic = self._engine.topics.get(name)
            if topic is not None:
                self._expiry.note(topic)
        self._looked_into = []
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(error)
        if self._next_callbacks and not self._is_running:
            callbacks, self._next_callbacks = self._next_callbacks, []
            self._begin(callbacks)

    def close(self) -> None:
        self._engine.topic_life.on_removed.remove(self._topic_removed)
        self._background.close()

    # Old files.

    @property
    def _last_snapshot(self) -> int:
        """Number of the last snapshot that may describe the segments as they are in this turn."""
        return self.number + 1 if self._is_running else self.number

    def segment_moved(self, topic_id: int, segment: SegmentState) -> None:
        """The segment is cold now. Its hot files are removed once no kept snapshot calls it hot."""
        self._old_files.add_hot_copy(self._last_snapshot, topic_id, segment)

    def segment_replaced(self, topic_id: int, first_seq: int, *, is_durable: bool) -> None:
        """The segment was replaced. Its mark file is removed once both kept snapshots are newer than the replacement.

        `is_durable`: all syncs of the replacement succeeded.
        """
        key = (topic_id, first_seq)
        if is_durable:
            self._old_files.add_replaced(self._last_snapshot, key)
        else:
            self._old_files.add_unsynced(key)

    def run_exclusively(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Runs work on segment files that must not run at the same time as a job or a removal."""
        self._background.run(work, done)

    def _topic_removed(self, topic: Topic) -> None:
        engine = self._engine
        self._requests.ask_snapshot()
        engine.core.cache.forget_topic(topic.id)
        engine.pins.forget_topic(topic.id)
        segments = [*topic.live.segments.segments, *topic.live.segments.dropped]
        self._old_files.forget_topic(topic.id)
        self._requests.forget_topic(topic)
        self.remove_cold(topic.id, segments)
        fs, root = engine.directory.fs, engine.directory.root
        self._background.run(lambda: remove_topic_directory(fs, root, topic.id), _log_failed_removal)

    def remove_cold(self, topic_id: int, segments: list[SegmentState]) -> None:
        """The topic is gone: the objects of its cold segments are removed."""
        self._old_files.add_cold(topic_id, segments)
        self._upkeep.remove_files()


def _error_for_caller(error: Exception) -> Exception:
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return StorageFull("no space or no file descriptors left to write segments; every record stays where it is")
    return error


def _log_failed_removal(result: object) -> None:
    if isinstance(result, BaseException):
        logger.warning("files of a removed topic are not removed yet: %s", result)


def _ignore(error: Exception | None) -> None:
    pass

"""Segments of which more than half is deleted: the checkpoint job writes them again without the deleted records.

The job does it last, when the delete bytes of the checkpoint are set. The exchange of the files is that of
`storage/segments/replacement`. Segments beyond the bound of one checkpoint wait for the next one. A segment that is
pinned, moved or replaced waits until that has ended: until then its topic is not captured because of it. Until the
owner takes over the new numbers, it reads the new files with the old numbers: an index that does not fit is noticed,
and the frames themselves are read. Owner only.
"""

import logging

import msgspec

from topics.engine.checkpointing.old_files import OldFiles, SegmentKey
from topics.engine.checkpointing.requests import CheckpointRequests
from topics.engine.checkpointing.topic_capture import CapturedTopic
from topics.engine.engine import Engine
from topics.formats.snapshot import SegmentState
from topics.limits import REWRITE_BYTES_MAX
from topics.storage.checkpoints.job import RewriteResult, RewriteWork

logger = logging.getLogger(__name__)


def wake_held(engine: Engine, requests: CheckpointRequests) -> None:
    """Before a capture: topics with segments that can be written again by now are captured."""
    for key, topic in list(requests.held_rewrites.items()):
        if not _is_held(engine, requests, key):
            del requests.held_rewrites[key]
            topic.checkpoint.mark_changed()


def _is_held(engine: Engine, requests: CheckpointRequests, key: SegmentKey) -> bool:
    return key in requests.busy_segments or engine.pins.holds(*key)


class Rewriting:
    """The segments that one checkpoint writes again."""

    def __init__(
        self, engine: Engine, captured: list[CapturedTopic], requests: CheckpointRequests, old_files: OldFiles
    ) -> None:
        self._engine = engine
        self._captured = {item.topic.id: item for item in captured}
        self._requests = requests
        self._old_files = old_files
        self.works: list[RewriteWork] = []
        # Topics with segments that the next checkpoint must look at again.
        self._postponed: list[CapturedTopic] = []

    def choose(self, *, none: bool) -> None:
        """In the turn of the capture. The chosen segments are busy until the job has ended. `none`: all segments wait
        for the next checkpoint."""
        left_bytes = REWRITE_BYTES_MAX
        for item in self._captured.values():
            segments = item.topic.live.segments
            for state in [state for state in segments.segments if segments.is_mostly_deleted(state)]:
                key = (item.topic.id, state.first_seq)
                if _is_held(self._engine, self._requests, key):
                    self._requests.held_rewrites[key] = item.topic
                    continue
                if none or (self.works and state.data_bytes > left_bytes):
                    self._postponed.append(item)
                    continue
                left_bytes -= state.data_bytes
                # A copy, because the owner goes on changing the live numbers.
                self.works.append(RewriteWork(item.topic.id, msgspec.structs.replace(state)))
        self._requests.busy_segments.update(_key(work) for work in self.works)

    def job_failed(self) -> None:
        """The worker may have died half way. The next checkpoint finds out which files are in place."""
        self._let_go()
        for work in self.works:
            self._old_files.add_unsynced(_key(work))

    def take_over(self, results: list[RewriteResult], last_snapshot: int) -> None:
        """The engine, and the snapshot that is written next, go on with the new files.

        `last_snapshot` is the number of the last one that describes the old files.
        """
        self._let_go()
        for work, result in zip(self.works, results, strict=True):
            item = self._captured[work.topic_id]
            segments = item.topic.live.segments
            state = segments.segment_of(work.segment.first_seq)
            if result.error:
                logger.warning(
                    "segment %d of %s keeps its deleted records: %s", result.first_seq, item.topic.name, result.error
                )
            if not self._engine.core.is_current(item.topic) or state is None or state.digest != work.segment.digest:
                continue
            segments.note_kept_bytes(state, result.kept_bytes / work.segment.live_count)
            if result.digest:
                segments.exchange(state, _after(state, result))
                item.segment_rewritten(_after(work.segment, result))
            if not result.is_durable:
                self._old_files.add_unsynced(_key(work))
            elif result.digest:
                self._old_files.add_replaced(last_snapshot, _key(work))

    def _let_go(self) -> None:
        self._requests.busy_segments.difference_update(_key(work) for work in self.works)

    def postpone(self) -> None:
        """After the take-over of the topics: a topic with segments left is captured again."""
        for item in self._postponed:
            item.topic.checkpoint.mark_changed()


def _key(work: RewriteWork) -> SegmentKey:
    return work.topic_id, work.segment.first_seq


def _after(state: SegmentState, result: RewriteResult) -> SegmentState:
    return msgspec.structs.replace(
        state,
        data_bytes=result.data_bytes,
        tagged_count=result.tagged_count,
        digest=result.digest,
        proof=result.proof,
    )

"""Replaces the files of a sealed segment by a pair without the deleted records, or with a repaired index.

The work runs on the thread of the checkpoints, so no delete byte is set and no file is removed at the same time.
Deletes that come while it runs stay pending and are set in the new file. Until the owner takes over the new numbers,
it reads the new files with the old numbers. That is safe: an index that does not fit is noticed, and the frames
themselves are read. Owner only, except the work itself.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from topics.engine.checkpointing.checkpointer import Checkpointer
from topics.engine.engine import Engine
from topics.engine.topic.topic import Topic
from topics.errors import (
    Closed,
    CorruptRecord,
    FormatError,
    InvalidRequest,
    SegmentBusy,
    SegmentChanged,
    StorageFull,
    TopicNotFound,
    TopicsError,
)
from topics.formats.snapshot import SegmentState
from topics.storage import layout
from topics.storage.fs import NO_SPACE
from topics.storage.segments.replacement import Replaced, replace_segment


class Offer(NamedTuple):
    """A pair of files in `staging/`, and the segment that they replace."""

    topic_id: int
    epoch: int
    first_seq: int
    # The segment must have this digest.
    digest: bytes
    data_name: str
    idx_name: str


class ReplacedSegment(NamedTuple):
    """A segment after its replacement, and the number of records that were left out."""

    topic: str
    state: SegmentState
    removed_count: int


ReplaceDone = Callable[[ReplacedSegment | Exception], None]


class Replacer:
    def __init__(self, engine: Engine, checkpointer: Checkpointer) -> None:
        self._engine = engine
        self._checkpointer = checkpointer

    def topic(self, topic_id: int, epoch: int) -> Topic:
        """The topic instance with this id and epoch."""
        for topic in self._engine.topics.values():
            if topic.id == topic_id and topic.epoch == epoch and topic.writes.is_created:
                return topic
        raise TopicNotFound(f"{topic_id} of epoch {epoch}")

    def replace(self, offer: Offer, done: ReplaceDone) -> None:
        """Raises errors that are known at once. `done` gets the result, or a later error."""
        if self._engine.is_closed:
            raise Closed
        for name in (offer.data_name, offer.idx_name):
            if not layout.is_offered_name(name):
                raise InvalidRequest(f'"{name}" is not the plain name of a file in staging')
        topic = self.topic(offer.topic_id, offer.epoch)
        state = self._segment(topic, offer)
        key = (topic.id, state.first_seq)
        if self._engine.pins.holds(*key):
            held = self._engine.pins.held(*key)
            raise SegmentBusy(
                f"the segment is pinned for {-(-held.left_ms // 1000)} s more by {held.pin_count} manifests of "
                "readers, such as a Spark query or an archive job; try again then",
                {"pinned_until_ms": held.until_ms},
            )
        busy_segments = self._checkpointer.busy_segments
        if key in busy_segments:
            raise SegmentBusy("the segment is being moved or replaced; take a new manifest, then try again")
        busy_segments.add(key)
        fs, root = self._engine.directory.fs, self._engine.directory.root
        # A copy, because the owner goes on changing the live numbers. The work does not read the live numbers.
        noted = msgspec.structs.replace(state)
        self._checkpointer.run_exclusively(
            lambda: replace_segment(fs, root, topic.id, noted, offer.data_name, offer.idx_name),
            lambda result: self._replaced(topic, state, result, done),
        )

    def _segment(self, topic: Topic, offer: Offer) -> SegmentState:
        state = topic.live.segments.segment_of(offer.first_seq)
        if state is None or state.first_seq != offer.first_seq:
            raise SegmentChanged(f"no segment begins with seq {offer.first_seq}", {"digest": None})
        detail = {"digest": state.digest.hex()}
        if not state.sealed:
            raise SegmentChanged("the segment is not sealed: records are still added to it", detail)
        if state.tier != "hot":
            raise SegmentChanged(
                "the segment is in the cold tier; only segments in the data directory can be replaced", detail
            )
        if not state.digest or state.digest != offer.digest:
            raise SegmentChanged("the segment does not have the expected digest", detail)
        return state

    def _replaced(self, topic: Topic, state: SegmentState, result: Replaced | BaseException, done: ReplaceDone) -> None:
        self._checkpointer.busy_segments.discard((topic.id, state.first_seq))
        is_in_use = self._engine.core.is_current(topic) and topic.live.segments.holds(state)
        if isinstance(result, BaseException):
            if is_in_use and isinstance(result, OSError):
                # The work may have written the mark file or the index before it failed.
                self._checkpointer.segment_replaced(topic.id, state.first_seq, is_durable=False)
            done(_error_for_caller(topic, state, result))
            return
        if not is_in_use:
            done(SegmentChanged("the segment has no live record any more", {"digest": None}))
            return
        new = msgspec.structs.replace(
            state,
            data_bytes=result.data_bytes,
            tagged_count=result.tagged_count,
            digest=result.digest,
            proof=result.proof,
        )
        topic.live.segments.exchange(state, new)
        topic.checkpoint.mark_changed()
        self._checkpointer.segment_replaced(topic.id, state.first_seq, is_durable=result.is_durable)
        done(ReplacedSegment(topic.name, new, result.removed_count))


def _error_for_caller(topic: Topic, state: SegmentState, error: BaseException) -> Exception:
    if not isinstance(error, Exception):
        raise error
    if isinstance(error, FormatError):
        where = f"{layout.segment_stem(state.first_seq)}.data at offset {error.offset}: {error.message}"
        return CorruptRecord(topic.name, state.first_seq, where)
    if isinstance(error, FileNotFoundError):
        return SegmentChanged("the files of the segment are gone", {"digest": None})
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return StorageFull("no space or no file descriptors left to write the segment again; it stays as it was")
    if isinstance(error, OSError):
        return TopicsError(f"the segment stays as it was: {error.strerror}")
    return error

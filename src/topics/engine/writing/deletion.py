"""Deleting records of a topic for good: by seq, by tag, by the prefix of a tag.

A delete removes what is live when it is logged: its frame has a bound, so that a replay removes the same records. Owner
only.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import partial
from typing import Final

from topics.engine.core import Core, Done
from topics.engine.topic.fetch import unreadable
from topics.engine.topic.segment_set import NOTHING_HOT
from topics.engine.topic.topic import Topic
from topics.engine.writing.append import check_unicode
from topics.engine.writing.derived_copies import DerivedCopies
from topics.engine.writing.write_path import WritePath
from topics.errors import ColdUnavailable, InvalidRequest, TopicNotFound, TopicsError
from topics.formats import control, wal_frame
from topics.formats.snapshot import SegmentState
from topics.formats.wal_frame import FrameType
from topics.limits import COLD_THREADS_PER_TOPIC_MAX, FRAME_BYTES_MAX, KIB, U64_MAX
from topics.storage.segments.cache import TagSelector
from topics.storage.segments.reader import Measured

logger = logging.getLogger(__name__)

# A turn that has found more records ends: 15 µs for ten of them.
DELETE_TURN_RECORDS: Final = 2000
# A frame that is too large would stop the next start.
DELETE_BYTES_MAX: Final = FRAME_BYTES_MAX - KIB


class Deleted:
    """How many records a delete removed, and the topic's numbers after it. `sync_ms` is how long the log's sync took;
    0.0 unless there was one."""

    __slots__ = ("count", "deleted", "earliest_seq", "head_seq", "size_bytes", "sync_ms", "topic")

    def __init__(self, topic: Topic, deleted: int, sync_ms: float) -> None:
        self.topic = topic.name
        self.deleted = deleted
        self.earliest_seq = topic.live.earliest_seq
        self.head_seq = topic.live.head_seq
        self.count = topic.live.count
        self.size_bytes = topic.live.size_bytes
        self.sync_ms = sync_ms


class _Pending:
    """One delete until its frame is logged: what it selects, and what was found in cold segments."""

    __slots__ = (
        "asked",
        "before_seq",
        "bound",
        "done",
        "hot",
        "hot_records",
        "is_over",
        "measured",
        "seqs",
        "tag",
        "tag_prefix",
        "topic",
        "versions",
    )

    def __init__(
        self,
        topic: Topic,
        before_seq: int | None,
        tag: str | None,
        tag_prefix: str | None,
        seqs: list[int] | None,
        done: Done[Deleted],
    ) -> None:
        self.topic = topic
        # Records that are written from here on are not deleted.
        self.bound = topic.live.head_seq + 1
        self.before_seq = before_seq
        self.tag = tag
        self.tag_prefix = tag_prefix
        self.seqs = None if seqs is None else sorted({seq for seq in seqs if seq < self.bound})
        self.done = done
        # Seqs that match, outside the segments of `measured`; None for a delete by `before_seq` alone.
        self.hot: list[int] | None = None
        # The ones of them that are live in a segment file.
        self.hot_records = NOTHING_HOT
        # First seq of a cold segment, or of a sealed hot one that was searched for the tag -> its live records that
        # match.
        self.measured: dict[int, Measured] = {}
        # First seq -> version of the segment's file when it was looked into.
        self.versions: dict[int, int] = {}
        # Segments that are being looked into.
        self.asked: set[int] = set()
        # Whether the delete was logged, or has failed.
        self.is_over = False

    @property
    def end_seq(self) -> int:
        return self.bound if self.before_seq is None else min(self.bound, self.before_seq)

    def wanted_in(self, state: SegmentState) -> list[int] | TagSelector | None:
        """What the delete must know about a cold segment; None when that is nothing."""
        live = self.topic.live
        first_seq = max(state.first_seq, live.first_live)
        end_seq = min(state.last_seq + 1, self.end_seq)
        if first_seq >= end_seq or not state.live_count:
            return None
        if self.seqs is not None:
            return self.seqs[bisect_left(self.seqs, first_seq) : bisect_left(self.seqs, end_seq)] or None
        if self.tag is not None or self.tag_prefix is not None:
            return self._selector(first_seq, end_seq) if state.tagged_count else None
        # Of a segment that is all below `before_seq` nothing must be known.
        return list(range(first_seq, end_seq)) if end_seq <= state.last_seq else None

    def note(self, first_seq: int, version: int, found: Measured) -> None:
        self.versions[first_seq] = version
        self.measured[first_seq] = found

    def _selector(self, first_seq: int, end_seq: int) -> TagSelector:
        tag = self.tag if self.tag is not None else self.tag_prefix
        assert tag is not None
        return TagSelector(tag.encode(), self.tag is None, first_seq, end_seq)

    def is_known(self, state: SegmentState) -> bool:
        """Whether what was found in the segment is still true. Delete bytes may have been set in its file since."""
        version = self.topic.live.segments.version(state.first_seq)
        return self.versions.get(state.first_seq) == version and state.first_seq in self.measured

    def find_sealed(self) -> bool:
        """Searches sealed hot segments for the tag, as many as a turn has time for; whether all were searched. Raises
        OSError when a file cannot be read."""
        if self.tag is None and self.tag_prefix is None:
            return True
        live = self.topic.live
        selector = self._selector(live.first_live, self.end_seq)
        found_count = 0
        for state in live.segments.segments:
            if state.tier != "hot" or not state.sealed or not state.tagged_count or not state.live_count:
                continue
            if state.last_seq < selector.first_seq or state.first_seq >= selector.end_seq or self.is_known(state):
                continue
            if found_count > DELETE_TURN_RECORDS:
                return False
            found = live.segments.measure_tagged(state, selector)
            self.note(state.first_seq, live.segments.version(state.first_seq), found)
            found_count += len(found.seqs)
        return True

    def find_unsealed(self) -> None:
        """Finds the records outside the segments of `measured`, and reads all that the delete must know of hot segment
        files. Raises OSError when a file cannot be read. A segment may become cold before the delete is applied."""
        live = self.topic.live
        segments = live.segments
        if self.tag is not None or self.tag_prefix is not None:
            self.hot = live.tagged_unsealed(self._selector(live.first_live, self.end_seq))
        elif self.seqs is not None:
            self.hot = [seq for seq in self.seqs if not segments.is_cold(seq)]
        filed_to = live.checkpointed_seq
        if self.hot is None:
            end_seq = min(self.end_seq, filed_to + 1)
            self.hot_records = segments.measure_hot_range(live.first_live, end_seq, filed_to)
        elif self.hot and self.hot[0] <= filed_to:
            filed = self.hot[bisect_left(self.hot, live.first_live) : bisect_right(self.hot, filed_to)]
            self.hot_records = segments.measure_hot(filed, filed_to)

    def look_up_changed(self) -> None:
        """Delete bytes were set in a hot segment since it was searched: what was found there is looked up again."""
        segments = self.topic.live.segments
        changed: list[int] = []
        for first_seq in list(self.measured):
            state = segments.segment_of(first_seq)
            if state is not None and state.tier == "hot" and not self.is_known(state):
                changed += self.measured.pop(first_seq).seqs
        if changed:
            self.hot = sorted([*changed, *(self.hot or ())])

    def frame_data(self) -> control.Delete:
        live = self.topic.live
        deaths = [
            live.segments.deaths(found, live.first_live, self.end_seq)
            for first_seq, found in self.measured.items()
            if live.segments.is_cold(first_seq)
        ]
        cold = [found for found in deaths if found is not None]
        return control.Delete(
            self.bound,
            self.before_seq,
            self.tag,
            self.tag_prefix,
            self.seqs,
            live.ttl_floor,
            cold,
        )


class Deletion:
    """A delete first finds out which records of segments it removes: of cold segments without the owner. Then its frame
    is logged, and then it is applied, without a look into files. When a file cannot be read, or the cold tier does not
    answer, nothing was logged, and nothing is deleted."""

    def __init__(
        self,
        core: Core,
        write_path: WritePath,
        derived: DerivedCopies,
        copy_now: Callable[[Topic], None],
    ) -> None:
        self._core = core
        self._write_path = write_path
        self._derived = derived
        self._copy_now = copy_now

    def delete(
        self,
        name: str,
        done: Done[Deleted],
        *,
        before_seq: int | None = None,
        tag: str | None = None,
        tag_prefix: str | None = None,
        seqs: list[int] | None = None,
    ) -> None:
        """Removes the records that are live now and match, for good. `done(Deleted)` once that is logged."""
        self._core.check_open()
        if before_seq is None and tag is None and tag_prefix is None and seqs is None:
            raise InvalidRequest("say what to delete: before_seq, a tag, or both")
        if tag is not None and tag_prefix is not None:
            raise InvalidRequest("delete by a tag or by a prefix of it, not both")
        # Checked here because a frame that cannot be read back would stop the next start.
        if before_seq is not None and not 0 <= before_seq <= U64_MAX:
            raise InvalidRequest("before_seq is out of range")
        check_unicode(tag, "tag")
        check_unicode(tag_prefix, "tag")
        topic = self._core.topic(name)
        self._write_path.submit_noted(topic)
        if topic.links.routers_in:
            self._copy_now(topic)
        topic.refresh(self._core.now_ms())
        self._go_on(_Pending(topic, before_seq, tag, tag_prefix, seqs, done))

    # Cold segments.

    def _go_on(self, delete: _Pending) -> None:
        """Logs the delete, once everything is known that it needs."""
        segments = delete.topic.live.segments
        unknown: list[tuple[SegmentState, list[int] | TagSelector]] = []
        for state in segments.segments:
            if state.tier != "cold" or delete.is_known(state):
                continue
            wanted = delete.wanted_in(state)
            if wanted is None:
                continue
            version = segments.version(state.first_seq)
            found = segments.measure_resident(state, wanted) if isinstance(wanted, list) else None
            if found is None:
                unknown.append((state, wanted))
            else:
                delete.note(state.first_seq, version, found)
        if not unknown:
            self._go_on_hot(delete)
            return
        for state, wanted in unknown:
            if delete.is_over or len(delete.asked) >= COLD_THREADS_PER_TOPIC_MAX:
                return
            if state.first_seq not in delete.asked and not delete.is_known(state):
                self._ask(delete, state, wanted)

    def _go_on_hot(self, delete: _Pending) -> None:
        """A delete of very many records takes several turns to find them, so that other callers get turns between."""
        try:
            is_found = delete.find_sealed()
        except OSError as error:
            raise unreadable(delete.topic.name, delete.topic.live.first_live, error) from error
        if is_found:
            delete.is_over = True
            self._log(delete)
        else:
            self._core.runtime.call_soon(partial(self._go_on_later, delete))

    def _go_on_later(self, delete: _Pending) -> None:
        """In a later turn."""
        try:
            self._check_current(delete.topic)
            self._go_on(delete)
        except TopicsError as error:
            delete.is_over = True
            self._core.answer(delete.done, error)
        self._core.flush()

    def _check_current(self, topic: Topic) -> None:
        self._core.check_open()
        if not self._core.is_current(topic):
            raise TopicNotFound(topic.name)

    def _ask(self, delete: _Pending, state: SegmentState, wanted: list[int] | TagSelector) -> None:
        """Looks into a cold segment on another thread."""
        topic = delete.topic
        delete.asked.add(state.first_seq)
        self._core.cold_pool.run(
            topic.id,
            partial(topic.live.segments.measure, state, wanted),
            partial(self._found, delete, state.first_seq, topic.live.segments.version(state.first_seq)),
        )

    def _found(self, delete: _Pending, first_seq: int, version: int, result: Measured | BaseException) -> None:
        if delete.is_over:
            return
        delete.asked.discard(first_seq)
        topic = delete.topic
        try:
            self._check_current(topic)
            if isinstance(result, (ColdUnavailable, OSError)):
                raise unreadable(topic.name, first_seq, result)
            if isinstance(result, BaseException):
                logger.error('records of topic "%s" cannot be deleted', topic.name, exc_info=result)
                raise TopicsError("nothing was deleted: a segment could not be read; see the log of the server")
            delete.note(first_seq, version, result)
            self._go_on(delete)
        except TopicsError as error:
            delete.is_over = True
            self._core.answer(delete.done, error)

    # The log.

    def _log(self, pending: _Pending) -> None:
        topic = pending.topic
        live = topic.live
        durability = topic.config.durability
        try:
            pending.find_unsealed()
        except OSError as error:
            raise unreadable(topic.name, live.first_live, error) from error
        if topic.links.routers_in:
            # A replay must find the copies that the frame is about.
            self._derived.log(topic)
        data = control.encode(pending.frame_data())
        if len(data) > DELETE_BYTES_MAX:
            raise InvalidRequest("the delete concerns too many segments at once; give a lower before_seq")
        # Until the delete is applied, copies of the records have frames: a start could not copy them again.
        topic.links.begin_change()
        if durability == "ephemeral" and max(live.logged_last_seq, live.checkpointed_seq) < live.first_live:
            # Neither the log nor a segment has a live record.
            self._apply(pending, 0.0)
            return
        frame = wal_frame.encode_control(FrameType.DELETE, topic.id, self._core.now_ms(), data)
        # Records of a stored class must not come back because the topic is ephemeral by now.
        durable = durability in ("fsync", "ephemeral")
        try:
            self._derived.log_frame_after_copies(
                topic, frame, partial(self._logged, pending), durable=durable, copies_durable=False
            )
        except TopicsError:
            topic.links.end_change()
            raise

    def _logged(self, pending: _Pending, error: TopicsError | None) -> None:
        """While a group completes."""
        topic = pending.topic
        if error is None:
            # The time of the group that the shard completes right now.
            self._apply(pending, topic.shard.sync_ms)
        else:
            topic.links.end_change()
            self._core.answer(pending.done, error)

    def _apply(self, pending: _Pending, sync_ms: float) -> None:
        topic = pending.topic
        topic.links.end_change()
        topic.refresh(self._core.now_ms())
        if pending.hot is None:
            deleted = topic.delete_before(pending.end_seq, pending.measured, pending.hot_records)
        else:
            pending.look_up_changed()
            deleted = topic.delete_seqs(pending.hot, pending.measured, pending.hot_records)
        self._core.answer(pending.done, Deleted(topic, deleted, sync_ms))

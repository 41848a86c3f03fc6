"""Deleting records of a topic for good: by seq, by tag, by the prefix of a tag.

A delete removes what is live when it is logged: its frame has a bound, so that a replay removes the same records. Owner
only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from topics.engine.completions import Done
from topics.engine.core import Core
from topics.engine.topic.topic import Topic
from topics.engine.writing.append import check_unicode
from topics.engine.writing.derived_copies import DerivedCopies
from topics.engine.writing.write_path import WritePath
from topics.errors import InvalidRequest, TopicsError
from topics.formats import control, wal_frame
from topics.formats.wal_frame import FrameType
from topics.limits import U64_MAX


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


class Deletion:
    def __init__(
        self,
        core: Core,
        write_path: WritePath,
        derived: DerivedCopies,
        bring_up_to_date: Callable[[Topic], bool],
    ) -> None:
        self._core = core
        self._write_path = write_path
        self._derived = derived
        self._bring_up_to_date = bring_up_to_date

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
            self._bring_up_to_date(topic)
            # A replay must find the copies that the frame is about.
            self._derived.log(topic)
        topic.refresh(self._core.now_ms())
        live = topic.live
        self._log(topic, control.Delete(live.head_seq + 1, before_seq, tag, tag_prefix, seqs, live.ttl_floor), done)

    def _log(self, topic: Topic, delete: control.Delete, done: Done[Deleted]) -> None:
        live = topic.live
        durability = topic.config.durability
        logged = partial(self._logged, topic, delete, done)
        # Until the delete is applied, copies of the records have frames: a start could not copy them again.
        topic.links.begin_change()
        if durability == "ephemeral" and max(live.logged_last_seq, live.checkpointed_seq) < live.first_live:
            # Neither the log nor a segment has a live record.
            self._apply(topic, delete, 0.0, done)
            return
        frame = wal_frame.encode_control(FrameType.DELETE, topic.id, self._core.now_ms(), control.encode(delete))
        # Records of a stored class must not come back because the topic is ephemeral by now.
        durable = durability in ("fsync", "ephemeral")
        try:
            self._derived.log_frame_after_copies(topic, frame, logged, durable=durable, copies_durable=False)
        except TopicsError:
            topic.links.end_change()
            raise

    def _logged(self, topic: Topic, delete: control.Delete, done: Done[Deleted], error: TopicsError | None) -> None:
        """While a group completes."""
        if error is None:
            # The time of the group that the shard completes right now.
            self._apply(topic, delete, topic.shard.sync_ms, done)
        else:
            topic.links.end_change()
            self._core.answer(done, error)

    def _apply(self, topic: Topic, delete: control.Delete, sync_ms: float, done: Done[Deleted]) -> None:
        topic.links.end_change()
        topic.refresh(self._core.now_ms())
        self._core.answer(done, Deleted(topic, apply_delete(topic, delete), sync_ms))


def apply_delete(topic: Topic, delete: control.Delete) -> int:
    """Carries out a logged delete; how many live records it removed."""
    if delete.seqs is not None:
        return topic.delete_seqs(sorted(seq for seq in set(delete.seqs) if seq < delete.bound))
    bound = delete.bound if delete.before_seq is None else min(delete.bound, delete.before_seq)
    if delete.tag is not None:
        return topic.delete_seqs(topic.live.tagged_seqs(delete.tag.encode(), is_prefix=False, end_seq=bound))
    if delete.tag_prefix is not None:
        return topic.delete_seqs(topic.live.tagged_seqs(delete.tag_prefix.encode(), is_prefix=True, end_seq=bound))
    return topic.delete_before(bound)

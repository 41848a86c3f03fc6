"""Appends of large batches: one write that goes into the log over several turns of the owner.

A batch of 64 MiB takes a quarter of a second to encode, checksum and write. In one turn, every other client would wait
for it. So each turn logs a piece, and calls of others run between the turns. It is the way of a commit of staged
records (`commits`): readers see nothing before all of it is committed, a start that does not find the last frame drops
all of it, and writes to the topic, a new config and its removal wait meanwhile. So the order of writes stays.

Owner only. `_LongAppend._end` and `_written` run while a group completes: see `core`.
"""

from __future__ import annotations

from topics.engine.core import Core
from topics.engine.topic.topic import Topic
from topics.engine.topic.write import AppendDone, Write
from topics.engine.writing.commits import Commits
from topics.engine.writing.derived_copies import DerivedCopies
from topics.engine.writing.topic_life import TopicLife
from topics.engine.writing.write_path import WritePath
from topics.errors import TopicsError
from topics.formats import wal_frame
from topics.formats.records import RecordBatch


class LongAppends:
    def __init__(
        self, core: Core, write_path: WritePath, derived: DerivedCopies, topic_life: TopicLife, commits: Commits
    ) -> None:
        self.core = core
        self.write_path = write_path
        self.derived = derived
        self.topic_life = topic_life
        self.commits = commits

    def append(self, topic: Topic, batch: RecordBatch, done: AppendDone, *, key: str | None, created: bool) -> None:
        """Appends a checked batch to a topic that is created, and that nothing changes now."""
        self.topic_life.begin_change(topic)
        self.commits.open(_LongAppend(self, topic, batch, done, key=key, created=created))


class _LongAppend:
    """One append, from its first turn to its end."""

    def __init__(
        self,
        appends: LongAppends,
        topic: Topic,
        batch: RecordBatch,
        done: AppendDone,
        *,
        key: str | None,
        created: bool,
    ) -> None:
        self._appends = appends
        self._core = appends.core
        self._topic = topic
        self._batch = batch
        self._done = done
        self._key = key
        self._created = created
        # How many records are logged.
        self._logged_count = 0
        # Whether other frames of the topic wait in its shard.
        self._holds_shard = False
        self._write: Write

    def start(self) -> None:
        topic = self._topic
        try:
            self._core.check_open()
            if topic.links.routers_in:
                self._appends.derived.log(topic)
            if topic.config.durability != "ephemeral":
                topic.shard.begin_long(topic.id)
                self._holds_shard = True
        except TopicsError as error:
            self._core.answer(self._done, error)
            self._end(error)
            return
        self._write = self._appends.write_path.begin_long_append(
            topic, self._batch, self._done, self._end, key=self._key, created=self._created
        )
        self._log_next()

    # Turn by turn.

    def _log_next(self) -> None:
        """Logs the next piece in a later turn of the owner."""
        self._appends.commits.background().run(_nothing, self._log_piece)

    def _log_piece(self, _result: object) -> None:
        start = self._logged_count
        end = self._logged_count = self._piece_end(start)
        is_last = end == len(self._batch)
        try:
            self._appends.write_path.extend_commit(
                self._write, self._batch.part(start, end), is_first=start == 0, is_last=is_last, done=self._written
            )
        except TopicsError as error:
            self._fail(error)
            return
        if is_last:
            self._release_shard()

    def _piece_end(self, start: int) -> int:
        room = self._core.settings.long_write_turn_bytes
        sizes = self._batch.sizes
        end = start
        while end < len(sizes) and (room > 0 or end == start):
            room -= sizes[end] + wal_frame.OVERHEAD_BYTES
            end += 1
        return end

    def _written(self, error: TopicsError | None) -> None:
        """While a group completes."""
        if error is None:
            self._log_next()
        else:
            self._fail(error)

    # The end.

    def _fail(self, error: TopicsError) -> None:
        self._release_shard()
        self._appends.write_path.committed(self._write, error)

    def _release_shard(self) -> None:
        if self._holds_shard:
            self._holds_shard = False
            self._topic.shard.end_long(self._topic.id)

    def _end(self, _error: TopicsError | None) -> None:
        """The write is published, or it has failed: other calls may go on."""
        self._appends.topic_life.end_change(self._topic)
        self._appends.commits.commit_ended()
        self._core.flush_in_turn()


def _nothing() -> None:
    pass

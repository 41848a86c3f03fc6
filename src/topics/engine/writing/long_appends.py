"""Appends of large batches: one write that goes into the log over several turns of the owner.

A batch of 64 MiB takes a quarter of a second to encode, checksum and write. In one turn, every other client would wait
for it. So each turn logs a piece, and calls of others run between the turns. It is the way of a commit of staged
records (`commits`): readers see nothing before all of it is committed, a start that does not find the last frame drops
all of it, and writes to the topic, a new config and its removal wait meanwhile. So the order of writes stays.

Owner only. `_LongAppend._end` runs while a group completes: see `core`.
"""

from __future__ import annotations

from topics.engine.topic.topic import Topic
from topics.engine.topic.write_state import AppendDone
from topics.engine.writing.commits import Commits, LongWrite
from topics.errors import TopicsError
from topics.formats import wal_frame
from topics.formats.records import RecordBatch


class LongAppends:
    def __init__(self, commits: Commits) -> None:
        self._commits = commits

    def append(self, topic: Topic, batch: RecordBatch, done: AppendDone, *, key: str | None, created: bool) -> None:
        """Appends a checked batch to a topic that is created, and that nothing changes now."""
        self._commits.topic_life.begin_change(topic)
        self._commits.open(_LongAppend(self._commits, topic, batch, done, key=key, created=created))


class _LongAppend(LongWrite):
    """One append, from its first turn to its end."""

    def __init__(
        self,
        commits: Commits,
        topic: Topic,
        batch: RecordBatch,
        done: AppendDone,
        *,
        key: str | None,
        created: bool,
    ) -> None:
        super().__init__(commits, topic)
        self._batch = batch
        self._done = done
        self._key = key
        self._created = created
        # How many records are logged.
        self._logged_count = 0

    def start(self) -> None:
        try:
            self._hold_shard()
        except TopicsError as error:
            self._core.answer(self._done, error)
            self._end(error)
            return
        self._write = self._commits.write_path.begin_long_append(
            self._topic, self._batch, self._done, self._end, key=self._key, created=self._created
        )
        self._log_next()

    def _log_next(self) -> None:
        """Logs the next piece in a later turn of the owner."""
        self._commits.background().run(_nothing, self._log_piece)

    def _log_piece(self, _result: object) -> None:
        start = self._logged_count
        end = self._logged_count = self._piece_end(start)
        self._log(self._batch.part(start, end), is_first=start == 0, is_last=end == len(self._batch))

    def _piece_end(self, start: int) -> int:
        room = self._core.settings.long_write_turn_bytes
        sizes = self._batch.sizes
        end = start
        while end < len(sizes) and (room > 0 or end == start):
            room -= sizes[end] + wal_frame.OVERHEAD_BYTES
            end += 1
        return end

    def _end(self, _error: TopicsError | None) -> None:
        """The write is published, or it has failed: other calls may go on."""
        self._let_others_go_on()


def _nothing() -> None:
    pass

"""Commits of staged records, and the ledger of what each writer has committed: exactly once, without a time window.

A commit is one write of its topic, of any size: a note with the writer and the number of its work (the *epoch*), then
the records of all parts, in the order of the parts. It goes into the log a few megabytes per turn of the owner. Readers
see nothing of it before all of it is committed; a start that does not find its last frame drops it. So the ledger,
which is made from the notes, never knows more or less than the records: an epoch that is not above the known one adds
nothing.

While a commit is open:

1. Writes to its topic, a new config and the removal of the topic wait (`WriteState.is_changing`); other frames of the
   topic wait in the shard.
2. No checkpoint begins: the positions that a checkpoint notes lie between whole writes. A checkpoint that wants to
   begin holds new commits back, so that neither waits forever.
3. The records of the commit are in memory, and stay there until the next checkpoint.

A commit that fails on the way leaves frames in the log that count for nothing, and keeps its chunks: it can be tried
again. Chunks are removed only when the records are synced, whatever the class.

Owner only. `_Commit._end` and `LongWrite._written` run while a group completes: see `core`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from topics.engine.core import Core, Done
from topics.engine.topic.topic import Topic
from topics.engine.topic.write_state import Write
from topics.engine.writing.derived_copies import DerivedCopies
from topics.engine.writing.staging import StagedPart, Staging, check_writer_name
from topics.engine.writing.topic_life import TopicLife
from topics.engine.writing.write_path import WritePath
from topics.errors import FormatError, InvalidRequest, StageIncomplete, StorageFull, Throttled, TopicsError
from topics.formats import wal_frame
from topics.formats.records import RecordBatch
from topics.formats.snapshot import WriterState
from topics.limits import WRITERS_PER_TOPIC_MAX
from topics.storage.background import Background
from topics.storage.fs import NO_SPACE, Fs, NotAFile
from topics.storage.staged_chunks import ChunkId, read_chunk

logger = logging.getLogger(__name__)


class Committed(msgspec.Struct, frozen=True, gc=False):
    """What a commit got. `deduped`: an earlier call made it, and this call appended nothing. The seqs of an epoch are
    known until the writer commits a later one; without records `last_seq` is one less than `first_seq`."""

    topic: str
    writer: str
    epoch: int
    first_seq: int | None
    last_seq: int | None
    count: int | None
    head_seq: int
    deduped: bool
    size_bytes: int = 0
    write_ms: float = 0.0
    sync_ms: float = 0.0


class LongWrite(ABC):
    """A write that takes several turns: a commit, or an append of a large batch. It ends with `commit_ended`.

    A subclass has `start`, which makes the write, and `_log_next`, which calls `_log` with the next records.
    """

    def __init__(self, commits: Commits, topic: Topic) -> None:
        self._commits = commits
        self._core = commits.core
        self._topic = topic
        self._is_logged = topic.config.durability != "ephemeral"
        # Whether other frames of the topic wait in its shard.
        self._holds_shard = False
        self._write: Write

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def _log_next(self) -> None: ...

    def _hold_shard(self) -> None:
        """Raises `TopicsError` when the write cannot begin."""
        topic = self._topic
        self._core.check_open()
        if topic.links.routers_in:
            self._commits.derived.log(topic)
        if self._is_logged:
            topic.shard.begin_long(topic.id)
            self._holds_shard = True

    def _release_shard(self) -> None:
        if self._holds_shard:
            self._holds_shard = False
            self._topic.shard.end_long(self._topic.id)

    def _log(self, batch: RecordBatch | None, *, is_first: bool, is_last: bool) -> None:
        try:
            self._commits.write_path.extend_commit(
                self._write, batch, is_first=is_first, is_last=is_last, done=self._written
            )
        except TopicsError as error:
            self._fail(error)
            return
        if is_last:
            self._release_shard()

    def _written(self, error: TopicsError | None) -> None:
        """While a group completes: the next records follow in a later turn."""
        if error is None:
            self._log_next()
        else:
            self._fail(error)

    def _fail(self, error: TopicsError) -> None:
        self._release_shard()
        self._commits.write_path.committed(self._write, error)

    def _let_others_go_on(self) -> None:
        """The write is published, or it has failed."""
        self._commits.topic_life.end_change(self._topic)
        self._commits.commit_ended()
        self._core.flush_in_turn()


class Commits:
    """The commits and the ledgers of all topics of an engine."""

    def __init__(
        self, core: Core, write_path: WritePath, derived: DerivedCopies, topic_life: TopicLife, staging: Staging
    ) -> None:
        self.core = core
        self.write_path = write_path
        self.derived = derived
        self.topic_life = topic_life
        self.staging = staging
        # The topics that each writer has ever committed to.
        self._topics_of: dict[str, set[Topic]] = {}
        self._open_count = 0
        self._when_none: list[Callable[[], None]] = []
        self._held_back: list[LongWrite] = []
        self._background: Background | None = None
        write_path.tell_commit_published(self._note_published)

    # Looking.

    def epochs(self, writer: str) -> list[tuple[Topic, WriterState]]:
        """The newest epoch of a writer in each topic that it has committed to, by name."""
        check_writer_name(writer)
        topics = sorted(self._topics_of.get(writer, ()), key=lambda topic: topic.name)
        return [(topic, topic.writers[writer]) for topic in topics]

    # Committing.

    def commit(self, name: str, writer: str, epoch: int, parts: Sequence[StagedPart], done: Done[Committed]) -> None:
        """Appends the staged records of these parts. `done(Committed)` once the promise of the topic's class is
        kept."""
        core = self.core
        core.check_open()
        check_writer_name(writer)
        if len({part.part for part in parts}) != len(parts):
            raise InvalidRequest("a commit takes one attempt of each part")
        topic = core.topic(name)
        if topic.writes.is_changing:
            self.topic_life.wait_change(topic, partial(self.commit, name, writer, epoch, parts, done), done)
            return
        known = topic.writers.get(writer)
        if known is not None and epoch <= known.epoch:
            core.answer(done, _deduped(topic, known, epoch))
            return
        if known is None and len(topic.writers) >= WRITERS_PER_TOPIC_MAX:
            raise Throttled(
                f'topic "{name}" has {WRITERS_PER_TOPIC_MAX} writers already',
                {"limit": "max_writers", "max": WRITERS_PER_TOPIC_MAX},
            )
        commit = _Commit(self, topic, writer, epoch, parts, self.background(), done)
        # Raises what is known at once. A commit of many chunks looks for the rest of them in later turns.
        commit.find_chunks()
        self.topic_life.begin_change(topic)
        self.staging.hold(topic, writer, epoch)
        self.open(commit)

    def background(self) -> Background:
        if self._background is None:
            self._background = self.core.runtime.background("commit")
        return self._background

    def open(self, write: LongWrite) -> None:
        """Starts a write that takes several turns, now or after the checkpoint that waits."""
        if self._when_none:
            self._held_back.append(write)
        else:
            self._start(write)

    def _start(self, write: LongWrite) -> None:
        self._open_count += 1
        write.start()

    def commit_ended(self) -> None:
        """While a group completes, or outside of one: others go on after it."""
        self._open_count -= 1
        if self._open_count == 0:
            self.core.call_after_group(self._none_is_open)

    def _none_is_open(self) -> None:
        waiting, self._when_none = self._when_none, []
        for call in waiting:
            call()
        held_back, self._held_back = self._held_back, []
        for commit in held_back:
            self._start(commit)

    def when_none_is_open(self, call: Callable[[], None]) -> None:
        """Calls back when no commit is half way, at once if that is now. New commits begin after the callback."""
        if self._open_count == 0:
            call()
        else:
            self._when_none.append(call)

    # The ledger.

    def _note_published(self, topic: Topic, write: Write) -> None:
        assert write.writer is not None
        self._topics_of.setdefault(write.writer.writer, set()).add(topic)

    def forget_topic(self, topic: Topic) -> None:
        for name in topic.writers:
            topics = self._topics_of[name]
            topics.discard(topic)
            if not topics:
                del self._topics_of[name]

    def resume(self) -> None:
        """Once the topics are recovered."""
        for topic in self.core.topics.values():
            for name in topic.writers:
                self._topics_of.setdefault(name, set()).add(topic)

    def close(self) -> None:
        """Not on the owner's turn: the background thread may need the owner to end."""
        if self._background is not None:
            self._background.close()


class _Piece(NamedTuple):
    """The records that go into the log in one turn; None only when the commit has no records at all."""

    batch: RecordBatch | None
    is_last: bool


class _UnreadableChunk(Exception):
    def __init__(self, chunk: ChunkId, reason: str) -> None:
        super().__init__(reason)
        self.chunk = chunk


class _ChunkReader:
    """Reads the records of some chunks, in order, as much as one turn takes. On the background only, one call at a
    time."""

    def __init__(self, fs: Fs, root: str, chunks: list[ChunkId], turn_bytes: int) -> None:
        self._fs = fs
        self._root = root
        self._turn_bytes = turn_bytes
        self._chunks = deque(chunks)
        # Records that are read and not yet handed out.
        self._batches: deque[RecordBatch] = deque()

    def next_piece(self) -> _Piece:
        taken: list[RecordBatch] = []
        room = self._turn_bytes
        while room > 0 and (self._batches or self._chunks):
            batch = self._batches.popleft() if self._batches else self._read(self._chunks.popleft())
            first, rest = _cut(batch, room)
            taken.append(first)
            room -= first.size_bytes + len(first) * wal_frame.OVERHEAD_BYTES
            if rest is not None:
                self._batches.appendleft(rest)
        return _Piece(_joined(taken) if taken else None, not self._batches and not self._chunks)

    def _read(self, chunk: ChunkId) -> RecordBatch:
        try:
            return read_chunk(self._fs, self._root, chunk)
        except (FormatError, FileNotFoundError, NotAFile) as error:
            raise _UnreadableChunk(chunk, str(error)) from error


class _Commit(LongWrite):
    """One commit, from its first turn to its end."""

    def __init__(
        self,
        commits: Commits,
        topic: Topic,
        writer: str,
        epoch: int,
        parts: Sequence[StagedPart],
        background: Background,
        done: Done[Committed],
    ) -> None:
        super().__init__(commits, topic)
        self._writer = writer
        self._epoch = epoch
        self._finding = commits.staging.chunks_of(topic, writer, epoch, parts)
        # Accounted bytes of all its records, known with the reader.
        self._size_bytes = 0
        # None until all chunks are found.
        self._reader: _ChunkReader | None = None
        self._background = background
        self._done = done
        # Whether its first frames were queued.
        self._is_begun = False

    def find_chunks(self) -> None:
        """Looks for some more of the staged chunks. Raises when one is missing, or when there is no room for them."""
        core, topic = self._core, self._topic
        try:
            next(self._finding)
        except StopIteration as end:
            chunks, count, self._size_bytes = end.value
            self._commits.write_path.submit_noted(topic)
            self._commits.write_path.check(topic, count, self._size_bytes)
            fs, root = core.directory.fs, core.directory.root
            self._reader = _ChunkReader(fs, root, chunks, core.settings.commit_turn_bytes)

    def _find_more(self, _result: object) -> None:
        try:
            self.find_chunks()
        except TopicsError as error:
            self._end(error)
            return
        self.start()

    def start(self) -> None:
        if self._reader is None:
            self._background.run(_nothing, self._find_more)
            return
        try:
            self._hold_shard()
        except TopicsError as error:
            self._end(error)
            return
        self._write = self._commits.write_path.begin_commit(
            self._topic, self._writer, self._epoch, self._size_bytes, self._end
        )
        self._log_next()

    # Turn by turn.

    def _log_next(self) -> None:
        """Reads the next records in the background, and logs them in a later turn."""
        assert self._reader is not None
        self._background.run(self._reader.next_piece, self._loaded)

    def _loaded(self, result: _Piece | BaseException) -> None:
        if isinstance(result, BaseException):
            self._fail(self._reason(result))
            return
        is_first, self._is_begun = not self._is_begun, True
        self._log(result.batch, is_first=is_first, is_last=result.is_last)

    # The end.

    def _reason(self, error: BaseException) -> TopicsError:
        if isinstance(error, _UnreadableChunk):
            logger.error("a staged chunk is unreadable, and counts as not staged: %s: %s", error.chunk, error)
            self._commits.staging.forget_chunk(self._topic, error.chunk)
            return StageIncomplete(
                f"part {error.chunk.part}, attempt {error.chunk.attempt}: chunk {error.chunk.chunk} is unreadable; "
                "stage it again, then commit again",
                {"part": error.chunk.part, "attempt": error.chunk.attempt, "chunk": error.chunk.chunk},
            )
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            return StorageFull("no file descriptors left to read the staged records; nothing was written")
        logger.error("staged records cannot be read", exc_info=error)
        return TopicsError("the staged records could not be read; see the log of the server")

    def _end(self, error: TopicsError | None) -> None:
        """The commit is published, or it has failed: other calls may go on."""
        self._core.answer(self._done, self._committed() if error is None else error)
        self._commits.staging.release(self._topic, self._writer, self._epoch)
        if error is None:
            self._remove_chunks()
        self._let_others_go_on()

    def _committed(self) -> Committed:
        write = self._write
        return Committed(
            self._topic.name,
            self._writer,
            self._epoch,
            write.first_seq,
            write.last_seq,
            len(write.bodies),
            write.last_seq,
            deduped=False,
            size_bytes=self._size_bytes,
            write_ms=write.write_ms,
            sync_ms=write.sync_ms,
        )

    def _remove_chunks(self) -> None:
        """Once the records are synced: if a power loss takes them, the commit can be made again."""
        shard = self._topic.shard
        forget = partial(self._commits.staging.forget_committed, self._topic, self._writer, self._epoch)
        if not self._is_logged or shard.is_synced:
            forget()
        else:
            shard.when_synced(forget)


def _nothing() -> None:
    """The work of a background whose result only comes in a later turn."""


def _deduped(topic: Topic, known: WriterState, epoch: int) -> Committed:
    if epoch == known.epoch:
        seqs: tuple[int | None, int | None, int | None] = (known.first_seq, known.last_seq, known.count)
    else:
        seqs = (None, None, None)
    return Committed(topic.name, known.name, epoch, *seqs, topic.head_seq, deduped=True)


def _cut(batch: RecordBatch, room: int) -> tuple[RecordBatch, RecordBatch | None]:
    """As many records as the room takes, at least one, and the rest."""
    if batch.size_bytes + len(batch) * wal_frame.OVERHEAD_BYTES <= room:
        return batch, None
    end = 0
    for size in batch.sizes:
        room -= size + wal_frame.OVERHEAD_BYTES
        end += 1
        if room <= 0:
            break
    if end == len(batch):
        return batch, None
    return batch.part(0, end), batch.part(end, len(batch))


def _joined(batches: list[RecordBatch]) -> RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return RecordBatch(
        [envelope for batch in batches for envelope in batch.envelopes],
        [size for batch in batches for size in batch.sizes],
        _joined_labels(batches, [batch.tags for batch in batches]),
        _joined_labels(batches, [batch.nodes for batch in batches]),
    )


def _joined_labels(
    batches: list[RecordBatch], columns: list[Sequence[bytes | None] | None]
) -> list[bytes | None] | None:
    if all(column is None for column in columns):
        return None
    joined: list[bytes | None] = []
    for batch, column in zip(batches, columns, strict=True):
        joined += column or (None,) * len(batch)
    return joined

"""Commits of staged records, and the ledger of what each writer has committed: exactly once, without a time window.

A commit is one write of its topic, of any size: a note with the writer and the number of its work (*epoch*), then the
records of all parts, in the order of the parts. It goes into the log a few megabytes per turn of the owner. Nothing of
it is seen before all of it is committed; a start that does not find its last frame drops it. So the ledger, which the
note feeds, never knows more or less than the records: an epoch that is not above the known one adds nothing.

While a commit is open:

1. Writes to its topic, its config and its removal wait (`Topic.changing`); other frames of the topic wait in the shard.
2. No checkpoint begins: the positions that it notes lie between whole writes. One that wants to begin holds new commits
   back, so that neither waits forever.
3. Its records are in memory, and stay there until the checkpoint behind it.

A commit that fails on the way leaves frames in the log that count for nothing, and its chunks where they are: it can be
tried again. Chunks are let go of only when the records are synced, whatever the class.

Owner only. As in `engine`, nothing here waits: `done` is called once, and what can be told at once is raised instead.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from topics.engine.writing.staged import Appended, Staged
from topics.engine.writing.staging import Part, check_writer_name
from topics.errors import FormatError, InvalidRequest, StageIncomplete, Throttled, TopicsError
from topics.formats import control, wal_frame
from topics.formats.records import RecordBatch
from topics.formats.snapshot import WriterState
from topics.formats.wal_frame import FLAG_FIRST, FLAG_MORE, FrameType
from topics.limits import WRITERS_PER_TOPIC_MAX
from topics.storage.background import Background
from topics.storage.fs import Fs
from topics.storage.staged_chunks import ChunkId, read_chunk

if TYPE_CHECKING:
    from topics.engine.engine import Engine
    from topics.engine.topic.topic import Topic

logger = logging.getLogger(__name__)

Done = Callable[[Any], None]


class Committed(msgspec.Struct, frozen=True, gc=False):
    """What a commit got. `deduped`: it was made before, and nothing was appended now. The seqs of an epoch are known
    as long as the writer has committed no later one; without records `last_seq` is one less than `first_seq`."""

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


class Commits:
    """The commits and the ledgers of all topics of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Which topics a writer has ever committed to.
        self._topics_of: dict[str, set[Topic]] = {}
        self._open_count = 0
        self._when_none: list[Callable[[], None]] = []
        self._held_back: list[_Commit] = []
        self._background: Background | None = None

    # Looking.

    def epochs(self, writer: str) -> list[tuple[Topic, WriterState]]:
        """The newest epoch of a writer in each topic that it has committed to, by name."""
        check_writer_name(writer)
        topics = sorted(self._topics_of.get(writer, ()), key=lambda topic: topic.name)
        return [(topic, topic.writers[writer]) for topic in topics]

    # Committing.

    def commit(self, name: str, writer: str, epoch: int, parts: Sequence[Part], done: Done) -> None:
        """Appends what is staged of these parts. `done(Committed)` once the promise of the topic's class is kept."""
        engine = self._engine
        engine.check_open()
        check_writer_name(writer)
        if len({part.part for part in parts}) != len(parts):
            raise InvalidRequest("a commit takes one attempt of each part")
        topic = engine.topic(name)
        if topic.changing:
            topic.on_changed.append(lambda: engine.again(lambda: self.commit(name, writer, epoch, parts, done), done))
            return
        known = topic.writers.get(writer)
        if known is not None and epoch <= known.epoch:
            done(_deduped(topic, known, epoch))
            return
        if known is None and len(topic.writers) >= WRITERS_PER_TOPIC_MAX:
            raise Throttled(
                f'topic "{name}" has {WRITERS_PER_TOPIC_MAX} writers already',
                {"limit": "max_writers", "max": WRITERS_PER_TOPIC_MAX},
            )
        chunks, count, size_bytes = engine.staging.chunks_of(topic, writer, epoch, list(parts))
        engine.stage_pending(topic)
        engine.check_write(topic, count, size_bytes, engine.now_ms())
        if self._background is None:
            self._background = engine.runtime.background("commit")
        reader = _ChunkReader(engine.directory.fs, engine.directory.root, chunks, engine.settings.commit_turn_bytes)
        commit = _Commit(engine, topic, writer, epoch, reader, self._background, done)
        commit.count, commit.size_bytes = count, size_bytes
        engine.begin_change(topic)
        engine.staging.hold(topic, writer, epoch)
        if self._when_none:
            self._held_back.append(commit)
        else:
            self._start(commit)

    def _start(self, commit: _Commit) -> None:
        self._open_count += 1
        commit.start()

    def ended(self) -> None:
        self._open_count -= 1
        if self._open_count:
            return
        waiting, self._when_none = self._when_none, []
        for call in waiting:
            call()
        held_back, self._held_back = self._held_back, []
        for commit in held_back:
            self._start(commit)

    def when_none_is_open(self, call: Callable[[], None]) -> None:
        """Calls back when no commit is half way, at once if that is now. Those that come meanwhile begin behind it."""
        if self._open_count == 0:
            call()
        else:
            self._when_none.append(call)

    # The ledger.

    def note_published(self, topic: Topic, staged: Staged) -> None:
        """The records are there: so is the epoch."""
        assert staged.writer is not None
        name, first_seq = staged.writer.writer, staged.writer.first_seq
        assert first_seq == staged.first_seq, "the note says where the records begin"
        topic.writers[name] = WriterState(name, staged.writer.epoch, first_seq, staged.last_seq)
        self._topics_of.setdefault(name, set()).add(topic)

    def forget_topic(self, topic: Topic) -> None:
        for name in topic.writers:
            topics = self._topics_of[name]
            topics.discard(topic)
            if not topics:
                del self._topics_of[name]

    def resume(self) -> None:
        """Once the topics are recovered."""
        for topic in self._engine.topics.values():
            for name in topic.writers:
                self._topics_of.setdefault(name, set()).add(topic)

    def close(self) -> None:
        """Not on the owner's turn: its thread may need it to end."""
        if self._background is not None:
            self._background.close()


class _Piece(NamedTuple):
    """What goes into the log in one turn; no records only when the commit has none at all."""

    batch: RecordBatch | None
    is_last: bool


class _UnreadableChunk(Exception):
    def __init__(self, chunk: ChunkId, reason: str) -> None:
        super().__init__(reason)
        self.chunk = chunk


class _ChunkReader:
    """The records of some chunks, in order, by the turn. On the background only, one call at a time."""

    def __init__(self, fs: Fs, root: str, chunks: list[ChunkId], turn_bytes: int) -> None:
        self._fs = fs
        self._root = root
        self._turn_bytes = turn_bytes
        self._chunks = deque(chunks)
        # Read, and not yet handed out.
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
        except (FormatError, FileNotFoundError) as error:
            raise _UnreadableChunk(chunk, str(error)) from error


class _Commit:
    """One commit, from the first turn to its end."""

    def __init__(
        self,
        engine: Engine,
        topic: Topic,
        writer: str,
        epoch: int,
        reader: _ChunkReader,
        background: Background,
        done: Done,
    ) -> None:
        self._engine = engine
        self._topic = topic
        self._writer = writer
        self._epoch = epoch
        self._reader = reader
        self._background = background
        self._done = done
        # Records and accounted bytes in all.
        self.count = 0
        self.size_bytes = 0
        self._is_logged = topic.config.durability != "ephemeral"
        # Whether other frames of the topic wait in its shard.
        self._is_long = False
        # Whether its first frames were handed over.
        self._is_begun = False
        self._staged: Staged

    def start(self) -> None:
        engine, topic = self._engine, self._topic
        try:
            engine.check_open()
            if topic.routers_in:
                engine.forwarder.log_copies(topic)
            if self._is_logged:
                topic.shard.begin_long(topic.id)
                self._is_long = True
        except TopicsError as error:
            self._done(error)
            self._end()
            return
        ts = max(topic.last_ts, engine.now_ms())
        staged = Staged(topic, topic.next_seq, [], [], self.size_bytes, ts, [(self.count, self._answer)])
        staged.writer = control.WriterEpoch(self._writer, self._epoch, topic.next_seq)
        staged.on_end = self._end
        staged.is_unlogged = not self._is_logged
        staged.cap_floor = topic.staged_floor
        topic.staged.append(staged)
        # Those of the whole: it has its room from now on.
        topic.staged_bytes += self.size_bytes
        self._staged = staged
        self._load()

    # By the turn.

    def _load(self) -> None:
        self._background.run(self._reader.next_piece, self._loaded)

    def _loaded(self, result: _Piece | BaseException) -> None:
        if isinstance(result, BaseException):
            self._fail(self._reason(result))
            return
        try:
            self._put(result)
        except TopicsError as error:
            self._fail(error)

    def _put(self, piece: _Piece) -> None:
        """What was read becomes the next frames of the write."""
        topic, staged, batch = self._topic, self._staged, piece.batch
        config = topic.config
        first_seq = topic.next_seq
        opens = not self._is_begun
        if opens:
            # A write before it may have failed by now and given its seqs back. From here on it fails with that one.
            staged.first_seq = first_seq
            staged.writer = control.WriterEpoch(self._writer, self._epoch, first_seq)
            self._is_begun = True
        if batch is not None:
            if topic.routers_in:
                self._engine.forwarder.note_direct_write(topic, batch, first_seq)
            assert isinstance(staged.sizes, list)
            staged.sizes += batch.sizes
            _extend_tags(staged, batch)
        end_seq = first_seq + (0 if batch is None else len(batch))
        floor = evicted = 0
        if piece.is_last and config.cap_bytes and config.discard == "old":
            floor, evicted = topic.byte_cap_floor(config, end_seq, (), 0)
        logs_floor = floor > topic.staged_floor and self._is_logged
        buffers: list[bytes] = []
        if opens:
            # The only frame, when there are no records.
            more = 0 if batch is None and not logs_floor else FLAG_MORE
            note = control.encode(control.Note(writer=staged.writer))
            buffers.append(wal_frame.encode_control(FrameType.NOTE, topic.id, staged.ts, note, flags=FLAG_FIRST | more))
        frames = len(buffers)
        if batch is not None:
            closes = piece.is_last and not logs_floor
            buffer, bodies = wal_frame.encode_appends(
                topic.id,
                first_seq,
                staged.ts,
                batch,
                durable=config.durability == "fsync",
                opens=False,
                closes=closes,
            )
            buffers.append(buffer)
            frames += len(bodies)
            staged.bodies += bodies
        if logs_floor:
            evict = control.encode(control.Evict(floor, topic.ttl_floor))
            buffers.append(wal_frame.encode_control(FrameType.EVICT, topic.id, staged.ts, evict, flags=0))
            frames += 1
        topic.staged_count += end_seq - first_seq
        topic.next_seq = end_seq
        staged.last_seq = end_seq - 1
        staged.cap_floor = max(staged.cap_floor, floor)
        topic.staged_evict_bytes += evicted
        topic.staged_floor = max(topic.staged_floor, floor)
        self._hand_over(b"".join(buffers), frames, is_last=piece.is_last)

    def _hand_over(self, buffer: bytes, frame_count: int, *, is_last: bool) -> None:
        topic = self._topic
        if not self._is_logged:
            if is_last:
                self._staged.committed = True
                self._engine.publish_ready(topic)
            else:
                self._load()
            return
        # A disk-class write is answered under a reservation of its seqs. This one is synced instead: a reservation of
        # so many would be as large a hole, if the machine went down half way.
        durable = is_last and topic.config.durability in ("fsync", "disk")
        topic.shard.submit_part(
            buffer, frame_count, durable=durable, done=self._committed if is_last else self._written
        )
        if is_last:
            self._end_long()
        self._engine.flush_next()

    def _written(self, error: TopicsError | None) -> None:
        if error is None:
            self._load()
        else:
            self._fail(error)

    def _committed(self, error: TopicsError | None) -> None:
        self._engine.committed(self._staged, error)

    # The end.

    def _reason(self, error: BaseException) -> TopicsError:
        if isinstance(error, _UnreadableChunk):
            logger.error("a staged chunk is unreadable, and counts as not staged: %s: %s", error.chunk, error)
            self._engine.staging.forget_chunk(self._topic, error.chunk)
            return StageIncomplete(
                f"part {error.chunk.part}, attempt {error.chunk.attempt}: chunk {error.chunk.chunk} is unreadable; "
                "stage it again, then commit again",
                {"part": error.chunk.part, "attempt": error.chunk.attempt, "chunk": error.chunk.chunk},
            )
        logger.error("staged records cannot be read", exc_info=error)
        return TopicsError("the staged records could not be read; see the log of the server")

    def _fail(self, error: TopicsError) -> None:
        self._end_long()
        self._engine.committed(self._staged, error)

    def _end_long(self) -> None:
        if self._is_long:
            self._is_long = False
            self._topic.shard.end_long(self._topic.id)

    def _answer(self, result: Appended | TopicsError) -> None:
        if isinstance(result, TopicsError):
            self._done(result)
            return
        self._done(
            Committed(
                result.topic,
                self._writer,
                self._epoch,
                result.first_seq,
                result.last_seq,
                result.count,
                result.head_seq,
                deduped=False,
                size_bytes=self.size_bytes,
                write_ms=result.write_ms,
                sync_ms=result.sync_ms,
            )
        )

    def _end(self) -> None:
        """It is published, or has failed: others may go on."""
        engine, topic = self._engine, self._topic
        engine.end_change(topic)
        engine.staging.release(topic, self._writer, self._epoch)
        known = topic.writers.get(self._writer)
        if known is not None and known.epoch == self._epoch:
            self._let_go_of_chunks()
        engine.call_waiting(topic)
        engine.commits.ended()
        engine.flush_next()

    def _let_go_of_chunks(self) -> None:
        """Once the records are synced: if a power loss takes them, the commit can be made again."""
        shard = self._topic.shard

        def forget() -> None:
            self._engine.staging.forget_committed(self._topic, self._writer, self._epoch)

        if not self._is_logged or shard.is_synced:
            forget()
        else:
            shard.when_synced(forget)


def _deduped(topic: Topic, known: WriterState, epoch: int) -> Committed:
    if epoch == known.epoch:
        seqs: tuple[int | None, int | None, int | None] = (known.first_seq, known.last_seq, known.count)
    else:
        seqs = (None, None, None)
    return Committed(topic.name, known.name, epoch, *seqs, topic.head_seq, deduped=True)


def _extend_tags(staged: Staged, batch: RecordBatch) -> None:
    if staged.tags is None and batch.tags is None:
        return
    tags: list[bytes | None] = staged.tags if isinstance(staged.tags, list) else [None] * len(staged.bodies)
    tags += batch.tags or (None,) * len(batch)
    staged.tags = tags


def _cut(batch: RecordBatch, room: int) -> tuple[RecordBatch, RecordBatch | None]:
    """As many records as the room is for, at least one, and the rest."""
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
    return _slice(batch, 0, end), _slice(batch, end, len(batch))


def _slice(batch: RecordBatch, start: int, end: int) -> RecordBatch:
    return RecordBatch(
        batch.envelopes[start:end],
        batch.sizes[start:end],
        None if batch.tags is None else batch.tags[start:end],
        None if batch.nodes is None else batch.nodes[start:end],
    )


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

"""Staged records: durable, and invisible until their writer commits them (see `commits`).

A writer hands over its work in chunks. Each chunk belongs to an epoch of the writer, a part of the epoch, and an
attempt at the part. The commit says which attempts count; chunks of other attempts are removed with the epoch. A chunk
is removed when its epoch is committed or aborted, with its topic, and a day after it was last touched.

Owner only; files are written and removed in the background, in that order.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from topics.engine.core import Core, Done
from topics.engine.topic.topic import Topic
from topics.errors import InvalidRequest, StageIncomplete, StorageFull, Throttled, TopicNotFound, TopicsError
from topics.formats.records import RecordBatch
from topics.limits import STAGED_CHUNKS_MAX, STAGED_KEEP_MS, STAGED_SWEEP_MS, STAGED_TOUCH_MS, WRITER_NAME_BYTES_MAX
from topics.storage.background import Background
from topics.storage.fs import NO_SPACE
from topics.storage.staged_chunks import ChunkId, find_chunks, remove_chunks, write_chunk

logger = logging.getLogger(__name__)

T = TypeVar("T")

WRITER_NAME_PATTERN: Final = "[A-Za-z0-9._:-]{1,128}"
_WRITER_NAME: Final = re.compile(WRITER_NAME_PATTERN)
assert WRITER_NAME_BYTES_MAX == 128
# Chunks and parts that a commit looks for in one turn of the owner: a few milliseconds.
_CHUNKS_PER_STEP: Final = 1000


def check_writer_name(name: str) -> None:
    if _WRITER_NAME.fullmatch(name) is None:
        raise InvalidRequest(f"{name!r} is not a writer's name: 1 to 128 letters, digits and . _ : -")


class Place(NamedTuple):
    """The place of a chunk in its epoch."""

    part: int
    attempt: int
    chunk: int


class StagedPart(NamedTuple):
    """What a commit takes of a part: so many chunks of one attempt, numbered from 0, with so many records in all."""

    part: int
    attempt: int
    chunks: int
    records: int


class StagedChunk(NamedTuple):
    """`deduped`: the chunk was staged before, or its epoch is committed; this call wrote nothing."""

    records: int
    deduped: bool


class _Work(NamedTuple):
    """An epoch of a writer in one topic."""

    topic: Topic
    writer: str
    epoch: int

    def chunk(self, place: Place) -> ChunkId:
        return ChunkId(self.topic.id, self.writer, self.epoch, *place)


class _StagedFile:
    """What is known of a chunk's file."""

    __slots__ = ("records", "size_bytes", "touched_ms", "written_ms")

    def __init__(self, records: int, size_bytes: int, written_ms: int) -> None:
        self.records = records
        self.size_bytes = size_bytes
        # When the file was written, and when a writer last asked for the chunk.
        self.written_ms = written_ms
        self.touched_ms = written_ms


class Staging:
    """The staged chunks of all topics of an engine."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._chunks: dict[_Work, dict[Place, _StagedFile]] = {}
        self._count = 0
        # Chunks that are being written, and the callbacks that wait for them.
        self._writing: dict[ChunkId, list[Done[StagedChunk]]] = {}
        # Epochs that a commit is reading: their chunks stay.
        self._committing: set[_Work] = set()
        self._background: Background | None = None
        self._swept_ms = core.clock.monotonic_ms()

    # Staging.

    def stage(
        self,
        name: str,
        writer: str,
        place: tuple[int, int, int, int],
        batch: RecordBatch,
        done: Done[StagedChunk],
    ) -> None:
        """Keeps the records under (epoch, part, attempt, chunk). `done(StagedChunk)` once they are durable."""
        core = self._core
        core.check_open()
        check_writer_name(writer)
        topic = core.topic(name)
        committed = topic.writers.get(writer)
        epoch, *rest = place
        if committed is not None and epoch <= committed.epoch:
            # A commit of this epoch would add nothing either.
            core.answer(done, StagedChunk(len(batch), deduped=True))
            return
        now_ms = core.now_ms()
        work = _Work(topic, writer, epoch)
        known = self._chunks.get(work, {}).get(Place(*rest))
        if known is not None:
            known.touched_ms = now_ms
            if now_ms - known.written_ms < STAGED_TOUCH_MS:
                core.answer(done, StagedChunk(known.records, deduped=True))
                return
        chunk = work.chunk(Place(*rest))
        waiting = self._writing.get(chunk)
        if waiting is not None:
            waiting.append(partial(_answer_repeat, done))
            return
        if known is None and self._count + len(self._writing) >= STAGED_CHUNKS_MAX:
            raise Throttled(
                f"{STAGED_CHUNKS_MAX} chunks are staged already: commit or abort some",
                {"limit": "staged_chunks", "max": STAGED_CHUNKS_MAX},
            )
        self._writing[chunk] = [done]
        fs, root = core.directory.fs, core.directory.root
        self._run(
            lambda: write_chunk(fs, root, chunk, batch, now_ms),
            lambda result: self._written(topic, chunk, _StagedFile(len(batch), batch.size_bytes, now_ms), result),
        )

    def _written(self, topic: Topic, chunk: ChunkId, state: _StagedFile, result: object) -> None:
        waiting = self._writing.pop(chunk)
        answer: StagedChunk | TopicsError
        if isinstance(result, OSError) and result.errno in NO_SPACE:
            answer = StorageFull()
        elif isinstance(result, BaseException):
            logger.error("a chunk cannot be staged", exc_info=result)
            answer = TopicsError("the records could not be staged; see the log of the server")
        elif not self._core.is_current(topic):
            self._remove([chunk])
            answer = TopicNotFound(topic.name)
        elif (committed := topic.writers.get(chunk.writer)) is not None and chunk.epoch <= committed.epoch:
            # Another attempt was committed before this one.
            self._remove([chunk])
            answer = StagedChunk(state.records, deduped=True)
        else:
            self._add(topic, chunk, state)
            answer = StagedChunk(state.records, deduped=False)
        for done in waiting:
            self._core.answer(done, answer)

    def _add(self, topic: Topic, chunk: ChunkId, state: _StagedFile) -> None:
        chunks = self._chunks.setdefault(_Work(topic, chunk.writer, chunk.epoch), {})
        place = Place(*chunk[3:])
        if place not in chunks:
            self._count += 1
        chunks[place] = state

    # Taking.

    def chunks_of(
        self, topic: Topic, writer: str, epoch: int, parts: Sequence[StagedPart]
    ) -> Generator[None, None, tuple[list[ChunkId], int, int]]:
        """(chunks, records, accounted bytes) of the parts, in the order of their numbers. Raises `StageIncomplete`.

        In steps, because an epoch may have as many chunks as are staged. Between the steps the caller holds the epoch.
        """
        work = _Work(topic, writer, epoch)
        staged = self._chunks.get(work, {})
        found: list[ChunkId] = []
        records = size_bytes = 0
        now_ms = self._core.now_ms()
        left_count = _CHUNKS_PER_STEP
        for part in sorted(parts):
            left_count -= 1
            if left_count <= 0:
                left_count = _CHUNKS_PER_STEP
                yield
            chunks = []
            for number in range(part.chunks):
                chunk = staged.get(Place(part.part, part.attempt, number))
                if chunk is None:
                    raise _incomplete(part, f"chunk {number} of {part.chunks} is not staged")
                chunk.touched_ms = now_ms
                chunks.append(chunk)
                found.append(work.chunk(Place(part.part, part.attempt, number)))
                left_count -= 1
                if left_count <= 0:
                    left_count = _CHUNKS_PER_STEP
                    yield
            count = sum(chunk.records for chunk in chunks)
            if count != part.records:
                raise _incomplete(part, f"its chunks have {count} records, the commit says {part.records}")
            records += count
            size_bytes += sum(chunk.size_bytes for chunk in chunks)
        return found, records, size_bytes

    def hold(self, topic: Topic, writer: str, epoch: int) -> None:
        """No chunk of the epoch is removed until `release`."""
        self._committing.add(_Work(topic, writer, epoch))

    def release(self, topic: Topic, writer: str, epoch: int) -> None:
        self._committing.discard(_Work(topic, writer, epoch))

    # Removing.

    def forget_chunk(self, topic: Topic, chunk: ChunkId) -> None:
        """A chunk that cannot be read: it may be staged again."""
        chunks = self._chunks.get(_Work(topic, chunk.writer, chunk.epoch), {})
        if chunks.pop(Place(*chunk[3:]), None) is not None:
            self._count -= 1
            self._remove([chunk])

    def forget_committed(self, topic: Topic, writer: str, epoch: int) -> None:
        """The chunks of committed epochs, also chunks of attempts that were not committed."""
        self._forget(lambda work: work.topic is topic and work.writer == writer and work.epoch <= epoch)

    def forget_topic(self, topic: Topic) -> None:
        self._forget(lambda work: work.topic is topic)

    def abort(self, writer: str, epoch: int, may_name: Callable[[str], bool]) -> int:
        """Removes the chunks of an epoch in every topic that the caller may name, unless a commit is reading them; how
        many chunks."""
        self._core.check_open()
        check_writer_name(writer)
        return self._forget(lambda work: work.writer == writer and work.epoch == epoch and may_name(work.topic.name))

    def _forget(self, is_meant: Callable[[_Work], bool]) -> int:
        doomed = [work for work in self._chunks if is_meant(work) and work not in self._committing]
        forgotten = [(work, self._chunks.pop(work)) for work in doomed]
        count = sum(len(chunks) for _, chunks in forgotten)
        self._count -= count
        if count:
            # The thread makes the names: for many chunks that takes as long as a turn may.
            self._remove(work.chunk(place) for work, chunks in forgotten for place in chunks)
        return count

    def _remove(self, chunks: Iterable[ChunkId]) -> None:
        fs, root = self._core.directory.fs, self._core.directory.root
        self._run(lambda: remove_chunks(fs, root, chunks), _removed)

    def tick(self) -> None:
        """Removes chunks that no writer has touched for a day."""
        now_ms = self._core.clock.monotonic_ms()
        if now_ms - self._swept_ms >= STAGED_SWEEP_MS:
            self._swept_ms = now_ms
            self._sweep()

    def _sweep(self) -> None:
        before_ms = self._core.now_ms() - STAGED_KEEP_MS
        for work in [work for work in self._chunks if work not in self._committing]:
            chunks = self._chunks[work]
            old = [place for place, chunk in chunks.items() if chunk.touched_ms < before_ms]
            for place in old:
                del chunks[place]
            if not chunks:
                del self._chunks[work]
            self._count -= len(old)
            if old:
                self._remove([work.chunk(place) for place in old])

    # Starting and stopping.

    def resume(self) -> Iterator[str]:
        """Once the topics are recovered: finds the staged chunks. Yields what a start should warn of.

        A crash may have come between a commit and the removal of its chunks.
        """
        core = self._core
        fs, root = core.directory.fs, core.directory.root
        found = find_chunks(fs, root)
        for reason in found.bad:
            yield f"a staged chunk is unreadable and counts as not staged: {reason}"
        topics = {topic.id: topic for topic in core.topics.values()} if found.heads else {}
        doomed: list[ChunkId] = []
        before_ms = core.now_ms() - STAGED_KEEP_MS
        for head in found.heads:
            chunk = ChunkId(head.topic_id, head.writer, head.epoch, head.part, head.attempt, head.chunk)
            topic = topics.get(head.topic_id)
            committed = None if topic is None else topic.writers.get(head.writer)
            is_over = committed is not None and head.epoch <= committed.epoch
            if topic is None or is_over or head.ts < before_ms:
                doomed.append(chunk)
            else:
                self._add(topic, chunk, _StagedFile(head.records, head.size_bytes, head.ts))
        remove_chunks(fs, root, doomed)

    def _run(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        if self._background is None:
            self._background = self._core.runtime.background("stage")
        self._background.run(work, done)

    def close(self) -> None:
        """Not on the owner's turn: the background thread may need the owner to end."""
        if self._background is not None:
            self._background.close()


def _answer_repeat(done: Done[StagedChunk], result: StagedChunk | TopicsError) -> None:
    done(result if isinstance(result, TopicsError) else StagedChunk(result.records, deduped=True))


def _incomplete(part: StagedPart, reason: str) -> StageIncomplete:
    return StageIncomplete(
        f"part {part.part}, attempt {part.attempt}: {reason}; stage it again, then commit again",
        {"part": part.part, "attempt": part.attempt, "chunks": part.chunks, "records": part.records},
    )


def _removed(result: object) -> None:
    if isinstance(result, BaseException):
        logger.warning("staged chunks stay until the next start: %s", result)

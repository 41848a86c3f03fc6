"""Redrive: jobs go from the dead letters of a queue back into it, or from one queue to another. Owner only.

A call looks at the records of its source in the order of their seqs, and moves those that match, one batch after
another. `moves` moves a batch: each job is in one of the two topics after any crash, and only in one. So a call that
was cut off is simply made again. Between two batches other calls get their turns. A call ends when it has looked at
every record up to `until_seq`, when it has moved as many as it may, when its time is over, or when the dest is full.

Rules of this file:

1. One batch at a time is moved out of a topic. Calls with the same source take turns.
2. A job that is leased or delayed stays with its queue.
3. A redrive evicts nothing: it stops before a job of the dest would go.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Final, Literal, NamedTuple

from topics.engine.core import Core, Done
from topics.engine.queues.dead_letter import letter_origin, redriven_batch
from topics.engine.queues.moves import Moves
from topics.engine.queues.queue_leases import QueueLeases, table_of
from topics.engine.topic.fetch import Fetch
from topics.engine.topic.leases import Lease
from topics.engine.topic.topic import Topic
from topics.engine.writing.write_path import topic_full
from topics.errors import Closed, FormatError, InvalidRequest, NoDeadLetter, TopicFull, TopicNotFound, TopicsError
from topics.formats.record_layout import decode_raw
from topics.formats.records import Record
from topics.limits import (
    READ_PIECE_BYTES_MIN,
    REDRIVE_BATCH_BYTES,
    REDRIVE_BATCH_JOBS,
    REDRIVE_KEY_BYTES_MAX,
    REDRIVE_MS,
    REDRIVE_SAMPLE_JOBS,
)
from topics.storage.background import Background

logger = logging.getLogger(__name__)

Stopped = Literal["end", "limit", "time", "full"]

# A paced redrive moves a batch so often.
_PACE_MS: Final = 100


class RedriveSpec(NamedTuple):
    """Which jobs to move, where to, and how fast."""

    # The queue that the jobs go to. None: they are dead letters of the named queue, and go back into it.
    to: str | None = None
    # Only jobs with this tag, or with a tag that begins so.
    tag: str | None = None
    tag_prefix: str | None = None
    # Only records of the source that were written at or after the first time, and before the second one.
    from_ts: int = 0
    to_ts: int | None = None
    # Only records with a higher seq than the first, up to the second; None = the head of the source.
    from_seq: int = 0
    until_seq: int | None = None
    # Jobs at most; 0 = all.
    limit: int = 0
    # Jobs a second; 0 = as fast as it goes.
    rate: int = 0
    max_ms: int = REDRIVE_MS
    dry_run: bool = False
    # A repeat with the same key counts the jobs that were moved before towards `limit`.
    key: str | None = None


class Redriven(NamedTuple):
    """What a redrive did, and where the next call goes on."""

    source: str
    dest: str
    # Jobs moved, those of earlier calls with the same key included; jobs that match; jobs that match and are leased
    # or delayed.
    moved: int
    matched: int
    skipped: int
    # The last seq of the source that was looked at, and the last one that is meant.
    next_from_seq: int
    until_seq: int
    # Records up to `until_seq` that were not looked at, at most.
    remaining: int
    stopped: Stopped
    # The first jobs that match, of a dry run.
    jobs: list[Record]


class Redrive:
    """One call, until it is answered. `Queues.cancel_redrive` ends it when its client has gone."""

    __slots__ = (
        "batch_number",
        "cursor",
        "dest",
        "done",
        "is_over",
        "is_resting",
        "is_stopping",
        "jobs",
        "kept",
        "letters_of",
        "matched",
        "moved",
        "source",
        "source_name",
        "skipped",
        "spec",
        "started_ms",
        "tag",
        "tag_prefix",
        "until_seq",
    )

    def __init__(
        self,
        spec: RedriveSpec,
        source_name: str,
        source: Topic,
        dest: Topic,
        letters_of: str | None,
        started_ms: int,
        done: Done[Redriven],
    ) -> None:
        self.spec = spec
        # The dest itself stands for a dead-letter topic that does not exist yet.
        self.source_name = source_name
        self.source = source
        self.dest = dest
        # Only dead letters of this queue. None: every job of a queue, and every dead letter of a log.
        self.letters_of = letters_of
        self.tag = spec.tag
        self.tag_prefix = spec.tag_prefix
        head_seq = source.head_seq
        self.until_seq = head_seq if spec.until_seq is None else min(spec.until_seq, head_seq)
        # Records up to this seq were looked at.
        self.cursor = min(spec.from_seq, self.until_seq)
        self.started_ms = started_ms
        self.done = done
        self.moved = self.matched = self.skipped = 0
        # Records that were looked at and stay.
        self.kept = 0
        self.jobs: list[Record] = []
        # The number of the next batch: part of its key.
        self.batch_number = 0
        # Whether the call waits for its next step. Else a batch or a file is under way.
        self.is_resting = False
        # Whether the call ends with its next step.
        self.is_stopping = False
        self.is_over = False

    def cancel(self) -> None:
        self.is_over = True

    def stop(self) -> None:
        self.is_stopping = True

    def end(self) -> None:
        self.is_over = True

    def rest(self) -> None:
        self.is_resting = True

    def work(self) -> None:
        self.is_resting = False

    @property
    def wanted(self) -> int:
        """How many jobs the next batch may have."""
        limit, rate = self.spec.limit, self.spec.rate
        wanted = REDRIVE_BATCH_JOBS
        if rate:
            wanted = min(wanted, max(rate * _PACE_MS // 1000, 1))
        if limit:
            wanted = min(wanted, limit - (self.matched if self.spec.dry_run else self.moved))
        return wanted

    @property
    def batch_key(self) -> str | None:
        return None if self.spec.key is None else f"\0redrive:{self.batch_number}:{self.spec.key}"

    def note_known_batch(self, count: int) -> None:
        """An earlier call with the same key has moved this batch."""
        self.batch_number += 1
        self.moved += count
        self.matched += count

    def note_moved(self, count: int) -> None:
        self.batch_number += 1
        self.moved += count

    def look_at(self, batch: _Batch) -> None:
        """The batch is taken: its records, and the records that it passed, were looked at."""
        self.cursor = batch.cursor
        self.matched += len(batch.records)
        self.kept += bisect_right(batch.kept, batch.cursor)
        self.skipped += bisect_right(batch.skipped, batch.cursor)
        if self.spec.dry_run:
            self.jobs += batch.records[: REDRIVE_SAMPLE_JOBS - len(self.jobs)]
            self.kept += len(batch.records)

    def pass_end(self) -> None:
        self.cursor = self.until_seq

    def matches(self, record: Record) -> bool:
        spec = self.spec
        if record.ts < spec.from_ts:
            return False
        if self.tag is not None and record.tag != self.tag:
            return False
        if self.tag_prefix is not None and (record.tag is None or not record.tag.startswith(self.tag_prefix)):
            return False
        if self.letters_of is not None:
            return letter_origin(record) == self.letters_of
        return self.source.leases is not None or letter_origin(record) is not None


class _Batch:
    """Records that match, seqs ascending, and what was passed on the way to them."""

    __slots__ = ("cursor", "kept", "records", "skipped")

    def __init__(self, cursor: int) -> None:
        self.records: list[Record] = []
        self.cursor = cursor
        # Seqs of records that stay; seqs of jobs among them that match, and are leased or delayed.
        self.kept: list[int] = []
        self.skipped: list[int] = []

    def keep(self, seq: int) -> None:
        self.kept.append(seq)

    def skip(self, seq: int) -> None:
        self.kept.append(seq)
        self.skipped.append(seq)

    def advance(self, seq: int) -> None:
        self.cursor = seq

    def shorten(self, count: int) -> None:
        """Only the first records are moved: the next batch begins with the others."""
        self.cursor = self.records[count].seq - 1
        del self.records[count:]


class Redriving:
    """The redrives of all queues of an engine."""

    def __init__(self, core: Core, leases: QueueLeases, moves: Moves) -> None:
        self._core = core
        self._leases = leases
        self._moves = moves
        self._active: set[Redrive] = set()
        # Topics that a batch is being moved out of, and the calls that wait for the next batch of the same topic.
        self._busy: dict[Topic, deque[Redrive]] = {}
        self._background: Background | None = None
        # Jobs that were redriven since the start.
        self.moved_total = 0

    # Calls.

    def topics_of(self, name: str, to: str | None) -> tuple[str, str]:
        """The names of source and dest. Raises when the call makes no sense."""
        if to is None:
            queue, _ = self._leases.queue(name)
            if queue.config.dead_letter is None:
                raise NoDeadLetter(name)
            return queue.config.dead_letter, name
        self._core.topic(name)
        if to == name:
            raise InvalidRequest("`to` is the queue itself: name another queue, or leave `to` out for its dead letters")
        self._leases.queue(to)
        return name, to

    def start(self, name: str, spec: RedriveSpec, done: Done[Redriven]) -> Redrive:
        """Moves jobs as the spec says. `done(Redriven)` when the call ends."""
        self._core.check_open()
        source_name, dest_name = self.topics_of(name, spec.to)
        if spec.key is not None and len(spec.key.encode()) > REDRIVE_KEY_BYTES_MAX:
            raise InvalidRequest(f"the idempotency key of a redrive has at most {REDRIVE_KEY_BYTES_MAX} bytes")
        dest = self._core.topic(dest_name)
        # A dead-letter topic is created with the first dead letter.
        source = self._core.topics.get(source_name, dest)
        letters_of = name if spec.to is None else None
        run = Redrive(spec, source_name, source, dest, letters_of, self._core.clock.monotonic_ms(), done)
        if source is dest:
            run.pass_end()
        self._active.add(run)
        self._step(run)
        return run

    def cancel(self, run: Redrive) -> None:
        """The answer is not wanted any more: a batch under way is moved, and no other one."""
        run.cancel()
        self._active.discard(run)

    def end_waits(self) -> None:
        """The engine stops: every call ends, at once or with its batch."""
        for run in list(self._active):
            self.stop(run)

    def stop(self, run: Redrive) -> None:
        """The call ends, at once or with its batch. Its answer says how far it came."""
        run.stop()
        if run.is_resting:
            self._step(run)

    def close(self) -> None:
        """Not on the owner's turn: the background thread may need the owner to end."""
        if self._background is not None:
            self._background.close()

    # Steps.

    def _step(self, run: Redrive, *, may_wait: bool = False) -> None:
        """The next batch, or the end."""
        run.work()
        if run.is_over:
            return
        try:
            self._check(run)
            stopped = self._stopped(run)
            if stopped is not None:
                self._finish(run, stopped)
                return
            busy = self._busy.get(run.source)
            if busy is not None and not run.spec.dry_run:
                run.rest()
                busy.append(run)
                return
            batch = self._take(run, may_wait=may_wait)
            if isinstance(batch, Fetch):
                self._fetch(run, batch)
            elif run.spec.dry_run or not batch.records:
                run.look_at(batch)
                self._step_soon(run)
            else:
                self._move(run, batch)
        except TopicsError as error:
            self._fail(run, error)

    def _check(self, run: Redrive) -> None:
        for topic in (run.source, run.dest):
            if not self._core.is_current(topic):
                raise TopicNotFound(topic.name)
        run.source.refresh(self._core.now_ms())
        if run.source.leases is not None:
            self._leases.waiters.refresh(run.source)
        self._moves.finish(run.source)
        while (key := run.batch_key) is not None and not run.spec.dry_run:
            known = run.dest.keys.find(key, self._core.now_ms(), run.dest.config.idempotency_window_ms)
            if known is None:
                break
            run.note_known_batch(known.count)

    def _stopped(self, run: Redrive) -> Stopped | None:
        next_seq = run.source.live.next_live(max(run.cursor + 1, run.source.live.first_live))
        if next_seq is None or next_seq > run.until_seq:
            run.pass_end()
        if run.cursor >= run.until_seq:
            return "end"
        if run.wanted <= 0:
            return "limit"
        passed_ms = self._core.clock.monotonic_ms() - run.started_ms
        return "time" if run.is_stopping or passed_ms >= run.spec.max_ms else None

    def _step_soon(self, run: Redrive) -> None:
        run.rest()
        delay_ms = 0
        if run.spec.rate and not run.spec.dry_run:
            passed_ms = self._core.clock.monotonic_ms() - run.started_ms
            delay_ms = min(run.moved * 1000 // run.spec.rate, run.spec.max_ms) - passed_ms
        if delay_ms > 0:
            self._core.runtime.call_later(delay_ms, partial(self._step_rested, run))
        else:
            self._core.runtime.call_soon(partial(self._step_rested, run))

    def _step_rested(self, run: Redrive) -> None:
        # The engine may have stopped meanwhile.
        if run.is_resting:
            self._step(run)
            self._core.flush()

    # Looking.

    def _take(self, run: Redrive, *, may_wait: bool) -> _Batch | Fetch:
        """The next records that match, out of as many records as a turn has time for. A `Fetch` if the bytes of the
        first record are not in memory."""
        source = run.source
        batch = _Batch(run.cursor)
        slots_left, bytes_left = REDRIVE_BATCH_JOBS, REDRIVE_BATCH_BYTES
        while slots_left > 0 and bytes_left > 0 and batch.cursor < run.until_seq:
            seq = max(batch.cursor + 1, source.live.first_live)
            last_seq = min(run.until_seq, seq + slots_left - 1)
            found = source.job_slots(seq, last_seq, READ_PIECE_BYTES_MIN, may_wait=may_wait)
            may_wait = False
            if isinstance(found, Fetch):
                return found if slots_left == REDRIVE_BATCH_JOBS else batch
            form, slots = found
            is_dead = True
            for slot in slots:
                slots_left -= 1
                if slot is not None:
                    is_dead = False
                    if isinstance(slot, FormatError):
                        logger.error('record %d of topic "%s" is damaged, and stays: %s', seq, source.name, slot)
                        batch.keep(seq)
                    else:
                        record = decode_raw(slot, form)
                        if run.spec.to_ts is not None and record.ts >= run.spec.to_ts:
                            # Times never fall: all later records are too new as well.
                            batch.advance(run.until_seq)
                            return batch
                        bytes_left -= self._sort(run, batch, record)
                batch.advance(seq)
                if len(batch.records) >= run.wanted or bytes_left <= 0:
                    return batch
                seq += 1
            if is_dead:
                # Perhaps the first of many dead slots.
                batch.advance(min((source.live.next_live(seq) or seq) - 1, run.until_seq))
        return batch

    def _sort(self, run: Redrive, batch: _Batch, record: Record) -> int:
        """Puts the record into the batch, if it is one to move; its bytes there."""
        source = run.source
        if not run.matches(record) or (source.live.moved is not None and record.seq in source.live.moved.seqs):
            batch.keep(record.seq)
            return 0
        if source.leases is not None and not source.leases.is_ready(record.seq):
            batch.skip(record.seq)
            return 0
        batch.records.append(record)
        return len(record.data) + (0 if record.meta is None else len(record.meta))

    def _fetch(self, run: Redrive, fetch: Fetch) -> None:
        """The step goes on once the bytes of its first record are in memory."""
        if fetch.is_cold:
            self._core.cold_pool.run(run.source.id, fetch, partial(self._fetched, run))
            return
        if self._background is None:
            self._background = self._core.runtime.background("redrive")
        self._background.run(fetch, partial(self._fetched, run))

    def _fetched(self, run: Redrive, result: object) -> None:
        if run.is_over:
            return
        if isinstance(result, TopicsError):
            self._fail(run, result)
        elif isinstance(result, BaseException):
            logger.error('records of topic "%s" cannot be read', run.source.name, exc_info=result)
            self._fail(run, TopicsError("a record could not be read; see the log of the server"))
        else:
            self._step(run, may_wait=True)

    # Moving.

    def _move(self, run: Redrive, batch: _Batch) -> None:
        copies = redriven_batch(batch.records, run.source.name)
        fitting = _fitting_count(run.dest, copies.sizes)
        if fitting == 0:
            told = f'queue "{run.dest.name}" has no room for another job: let workers drain it, or raise its cap'
            raise topic_full(run.dest, told)
        if fitting < len(batch.records):
            batch.shorten(fitting)
            copies = copies.part(0, fitting)
        source = run.source
        held = [] if source.leases is None else [source.leases.begin_move(record.seq) for record in batch.records]
        self._busy[source] = deque()
        self._moves.move(
            source,
            batch.records,
            run.dest.name,
            copies,
            partial(self._moved, run, batch, held),
            create=False,
            key=run.batch_key,
        )

    def _moved(self, run: Redrive, batch: _Batch, held: list[Lease], error: TopicsError | None) -> None:
        for waiting in self._busy.pop(run.source):
            self._step_soon(waiting)
        if error is not None:
            for lease in held:
                table_of(run.source).give_up_move(lease)
            self._leases.waiters.wake(run.source)
            self._fail(run, error)
            return
        count = len(batch.records)
        self.moved_total += count
        run.look_at(batch)
        run.note_moved(count)
        if not run.is_over:
            self._step_soon(run)
            if run.is_stopping:
                self._step(run)

    # The end.

    def _fail(self, run: Redrive, error: TopicsError) -> None:
        """Jobs that were moved are not hidden by an error that the next call will meet again."""
        if run.moved and isinstance(error, TopicFull):
            self._finish(run, "full")
        elif run.moved and isinstance(error, Closed):
            self._finish(run, "time")
        elif not run.is_over:
            run.end()
            self._active.discard(run)
            self._core.answer(run.done, error)

    def _finish(self, run: Redrive, stopped: Stopped) -> None:
        if run.is_over:
            return
        run.end()
        self._active.discard(run)
        left = run.until_seq - run.cursor
        self._core.answer(
            run.done,
            Redriven(
                source=run.source_name,
                dest=run.dest.name,
                moved=run.moved,
                matched=run.matched,
                skipped=run.skipped,
                next_from_seq=run.cursor,
                until_seq=run.until_seq,
                remaining=min(left, max(run.source.count - run.kept, 1)) if left else 0,
                stopped=stopped,
                jobs=run.jobs,
            ),
        )


def _fitting_count(dest: Topic, sizes: Sequence[int]) -> int:
    """How many of the first jobs the dest has room for, without one of its own jobs going."""
    config, live, writes = dest.config, dest.live, dest.writes
    fitting = len(sizes)
    if config.cap_bytes:
        room = config.cap_bytes - live.size_bytes - writes.bytes_in_flight
        fitting = min(fitting, bisect_right(list(accumulate(sizes)), room))
    if config.cap_records and config.discard == "reject":
        fitting = min(fitting, config.cap_records - live.count - writes.count_in_flight)
    elif config.cap_records:
        # The window is counted in seqs. An empty queue has room for a whole window.
        first_live = live.first_live if live.count else writes.next_seq
        while fitting > 0 and dest.record_cap_floor(config, writes.next_seq - 1 + fitting) >= first_live:
            fitting -= 1
    return max(fitting, 0)

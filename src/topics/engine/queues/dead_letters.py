"""Moving jobs that were delivered too often to the dead-letter topic of their queue.

First the copy is appended, with a note that names the job; then the job is deleted. After a crash in between a start
reads the note and deletes the job. Owner only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from topics.engine.core import Core
from topics.engine.queues.dead_letter import dead_letter_batch
from topics.engine.topic.appended import Appended
from topics.engine.topic.leases import Lease
from topics.engine.topic.topic import Topic
from topics.engine.writing.append import Appends
from topics.engine.writing.deletion import Deleted, Deletion
from topics.errors import TopicNotFound, TopicsError
from topics.formats import control
from topics.formats.records import Record

logger = logging.getLogger(__name__)


class DeadLetters:
    def __init__(self, core: Core, appends: Appends, deletion: Deletion) -> None:
        self._core = core
        self._appends = appends
        self._deletion = deletion

    def move(self, queue: Topic, lease: Lease, record: Record, then: Callable[[], None]) -> None:
        """Moves one job; `then` is called when that is done or has failed."""
        config = queue.config
        assert config.dead_letter is not None
        done = partial(self._appended, queue, lease, record, then)
        try:
            self._appends.append_dead_letter(
                config.dead_letter,
                dead_letter_batch(record, queue.name, config.max_deliveries),
                control.DeadLetter(queue.id, record.seq, record.ts),
                done,
                partial(self._published, queue, record.seq),
            )
        except TopicsError as error:
            done(error)

    def _published(self, queue: Topic, seq: int, error: TopicsError | None) -> None:
        """While a group completes: a snapshot of now must know that the dead-letter topic has the job."""
        if error is None and queue.leases is not None:
            queue.leases.note_moved(seq)
            queue.checkpoint.mark_changed()

    def _appended(
        self, queue: Topic, lease: Lease, record: Record, then: Callable[[], None], result: Appended | TopicsError
    ) -> None:
        if not isinstance(result, TopicsError):
            self._delete_moved(queue, [record.seq], then)
            return
        logger.warning(
            'job %d of queue "%s" stays: its dead letter cannot be written: %s', record.seq, queue.name, result
        )
        assert queue.leases is not None
        if queue.leases.has(lease):
            queue.leases.give_up_move(lease)
        then()

    def finish_moves(self, queue: Topic) -> None:
        """Tries again to delete jobs whose dead letters are written."""
        assert queue.leases is not None
        stuck = queue.leases.take_stuck()
        if stuck:
            self._delete_moved(queue, stuck, _nothing)

    def _delete_moved(self, queue: Topic, seqs: list[int], then: Callable[[], None]) -> None:
        done = partial(self._deleted, queue, seqs, then)
        try:
            self._core.check_open()
            if not self._core.is_current(queue):
                raise TopicNotFound(queue.name)
            self._deletion.delete(queue.name, done, seqs=seqs)
        except TopicsError as error:
            done(error)

    def _deleted(self, queue: Topic, seqs: list[int], then: Callable[[], None], result: Deleted | TopicsError) -> None:
        assert queue.leases is not None
        if isinstance(result, TopicsError):
            logger.warning('dead letters of queue "%s" are not deleted yet: %s', queue.name, result)
            queue.leases.note_stuck(seqs)
        else:
            queue.leases.note_dead_lettered(len(seqs))
        then()


def _nothing() -> None:
    pass

"""Moving jobs that were delivered too often to the dead-letter topic of their queue. See `moves`. Owner only."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from topics.engine.queues.dead_letter import dead_letter_batch
from topics.engine.queues.moves import Moves
from topics.engine.queues.queue_leases import table_of
from topics.engine.topic.leases import Lease
from topics.engine.topic.topic import Topic
from topics.errors import TopicsError
from topics.formats.records import Record

logger = logging.getLogger(__name__)


class DeadLetters:
    def __init__(self, moves: Moves) -> None:
        self._moves = moves

    def move(self, queue: Topic, lease: Lease, record: Record, then: Callable[[], None]) -> None:
        """Moves one job; `then` is called when that is done or has failed."""
        config = queue.config
        assert config.dead_letter is not None
        batch = dead_letter_batch(record, queue.name, config.max_deliveries, lease.reason)
        ended = partial(self._ended, queue, lease, then)
        self._moves.move(queue, [record], config.dead_letter, batch, ended, create=True)

    def _ended(self, queue: Topic, lease: Lease, then: Callable[[], None], error: TopicsError | None) -> None:
        table = table_of(queue)
        if error is None:
            table.note_dead_lettered(1)
        else:
            logger.warning(
                'job %d of queue "%s" stays: its dead letter cannot be written: %s', lease.seq, queue.name, error
            )
            table.give_up_move(lease)
        then()

"""Moving records from one topic to another: each record is in one of the two after any crash, and only in one.

First the copies are appended, with a note that names the records, and synced. Then the records are deleted. After a
crash in between a start reads the note and deletes them. Owner only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from topics.engine.core import Core
from topics.engine.topic.appended import Appended
from topics.engine.topic.topic import Topic
from topics.engine.writing.append import Appends
from topics.engine.writing.deletion import Deleted, Deletion
from topics.engine.writing.derived_copies import DerivedCopies
from topics.errors import TopicNotFound, TopicsError
from topics.formats import control
from topics.formats.records import Record, RecordBatch

logger = logging.getLogger(__name__)

MoveEnd = Callable[[TopicsError | None], None]
"""Told that the records are in the dest and only there, or that they stay in the source."""


class Moves:
    def __init__(self, core: Core, appends: Appends, deletion: Deletion, derived: DerivedCopies) -> None:
        self._core = core
        self._appends = appends
        self._deletion = deletion
        self._derived = derived

    def move(
        self,
        source: Topic,
        records: Sequence[Record],
        dest: str,
        batch: RecordBatch,
        then: MoveEnd,
        *,
        create: bool,
        key: str | None = None,
    ) -> None:
        """Moves records, seqs ascending; `batch` has their copies. Until `then` is called, the caller sees to it that
        no other call moves or hands out one of them. `create`: whether a missing dest is created."""
        append = partial(self._append, source, records, dest, batch, then, create=create, key=key)
        if not source.links.routers_in:
            append(None)
            return
        # A start would make a copy of a router that has no frame again, with another time than the note says.
        try:
            self._derived.log_and_tell(
                source, lambda error: self._core.call_after_group(partial(append, error)), durable=True
            )
        except TopicsError as error:
            then(error)

    def _append(
        self,
        source: Topic,
        records: Sequence[Record],
        dest: str,
        batch: RecordBatch,
        then: MoveEnd,
        error: TopicsError | None,
        *,
        create: bool,
        key: str | None,
    ) -> None:
        if error is None and not self._core.is_current(source):
            error = TopicNotFound(source.name)
        if error is not None:
            then(error)
            return
        seqs = [record.seq for record in records]
        moved = control.Moved(source.id, seqs, [record.ts for record in records])
        done = partial(self._appended, source, seqs, then)
        try:
            self._appends.append_moved(
                dest, batch, moved, done, partial(self._published, source, seqs), create=create, key=key
            )
        except TopicsError as refusal:
            then(refusal)

    def _published(self, source: Topic, seqs: list[int], error: TopicsError | None) -> None:
        """While a group completes: a snapshot of now must know that another topic has the records."""
        if error is None:
            source.live.note_moved(seqs)
            source.checkpoint.mark_changed()

    def _appended(self, source: Topic, seqs: list[int], then: MoveEnd, result: Appended | TopicsError) -> None:
        if isinstance(result, TopicsError):
            then(result)
        else:
            self._delete(source, seqs, then)

    def finish(self, source: Topic) -> None:
        """Tries again to delete records that another topic has."""
        stuck = [] if source.live.moved is None else source.live.moved.take_stuck()
        if stuck:
            self._delete(source, stuck, _nothing)

    def _delete(self, source: Topic, seqs: list[int], then: MoveEnd) -> None:
        done = partial(self._deleted, source, seqs, then)
        try:
            self._core.check_open()
            if not self._core.is_current(source):
                raise TopicNotFound(source.name)
            self._deletion.delete(source.name, done, seqs=seqs)
        except TopicsError as error:
            done(error)

    def _deleted(self, source: Topic, seqs: list[int], then: MoveEnd, result: Deleted | TopicsError) -> None:
        if isinstance(result, TopicsError):
            # The move counts all the same: the dest has the records, and the source gives none of them out.
            logger.warning('records of topic "%s" were moved, and are not deleted there yet: %s', source.name, result)
            if source.live.moved is not None:
                source.live.moved.note_stuck(seqs)
        then(None)


def _nothing(_error: TopicsError | None) -> None:
    pass

"""Appending records to a topic by its name: the topic is created if need be, a repeated key is recognised. Owner
only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from topics.engine.config import DEFAULT_CONFIG, TopicConfig
from topics.engine.core import Core
from topics.engine.topic.topic import Topic
from topics.engine.topic.write_state import AppendDone
from topics.engine.writing.long_appends import LongAppends
from topics.engine.writing.topic_life import TopicLife
from topics.engine.writing.write_path import OnEnd, WritePath, check_fits, deduped_answer
from topics.errors import InvalidRequest, TopicNotFound
from topics.formats import control
from topics.formats.records import RecordBatch
from topics.limits import IDEMPOTENCY_KEY_BYTES_MAX


class Appends:
    def __init__(self, core: Core, write_path: WritePath, topic_life: TopicLife, long_appends: LongAppends) -> None:
        self._core = core
        self._write_path = write_path
        self._topic_life = topic_life
        self._long_appends = long_appends
        self._long_bytes = core.settings.long_write_bytes

    def append(
        self,
        name: str,
        batch: RecordBatch,
        done: AppendDone,
        *,
        key: str | None = None,
        create: bool | None = None,
        config: TopicConfig | None = None,
    ) -> None:
        """Appends the batch: all of it or nothing, seqs in order. `done(Appended)` once the class's promise is kept.

        Raises at once what can be told at once; then `done` is not called.
        """
        topic = self._core.topics.get(name)
        if key is not None:
            _check_key(key)
        if batch.size_bytes > self._long_bytes:
            self._append_long(name, batch, done, key=key, create=create, config=config)
            return
        if key is None and topic is not None and topic.writes.can_batch:
            # The common case: only noted now, and submitted with all others of this turn.
            self._write_path.note(topic, batch, done)
            return
        if topic is None or topic.writes.is_changing or self._core.is_closed:
            again = partial(self.append, name, batch, done, key=key, create=create, config=config)
            topic = self._topic_to_append(name, batch, done, again, create=create, config=config)
            if topic is None:
                return
        if topic.writes.noted:
            self._write_path.submit_noted(topic)
        if key is not None and self._answer_repeat(topic, key, done):
            return
        self._write_path.check(topic, len(batch), batch.size_bytes)
        self._write_path.submit(topic, batch, done, key=key)

    def _append_long(
        self,
        name: str,
        batch: RecordBatch,
        done: AppendDone,
        *,
        key: str | None,
        create: bool | None,
        config: TopicConfig | None,
        created: bool = False,
    ) -> None:
        """Appends a batch that is too large for one turn."""
        again = partial(self._append_long, name, batch, done, key=key, create=create, config=config)
        topic = self._core.find(name)
        if topic is None:
            created = True
        if topic is None or topic.writes.is_changing or self._core.is_closed:
            topic = self._topic_to_append(name, batch, done, again, create=create, config=config)
            if topic is None:
                return
        if not topic.writes.is_created:
            # Other writes must not overtake this one, so they wait as for a change.
            self._topic_life.begin_change(topic)
            self._topic_life.wait_change(
                topic, partial(self._go_on_created, topic, partial(again, created=created)), done
            )
            return
        if topic.writes.noted:
            self._write_path.submit_noted(topic)
        if key is not None and self._answer_repeat(topic, key, done):
            return
        self._write_path.check(topic, len(batch), batch.size_bytes)
        self._long_appends.append(topic, batch, done, key=key, created=created)

    def _go_on_created(self, topic: Topic, append: Callable[[], None]) -> None:
        """The creation of the topic is logged, or has failed."""
        topic.writes.end_change()
        append()

    def append_moved(
        self,
        name: str,
        batch: RecordBatch,
        moved: control.Moved,
        done: AppendDone,
        on_end: OnEnd,
        *,
        create: bool,
        key: str | None = None,
    ) -> None:
        """Appends the copies of records that are moved from another topic, with a note that names them.

        `on_end` is called in the order of the log, `done` after it.
        """
        topic = self._core.topics.get(name)
        if topic is None or topic.writes.is_changing or self._core.is_closed:
            again = partial(self.append_moved, name, batch, moved, done, on_end, create=create, key=key)
            topic = self._topic_to_append(name, batch, done, again, create=create, config=None)
            if topic is None:
                return
        self._write_path.submit_noted(topic)
        self._write_path.check(topic, len(batch), batch.size_bytes)
        self._write_path.submit(topic, batch, done, key=key, moved=moved, on_end=on_end)

    def _topic_to_append(
        self,
        name: str,
        batch: RecordBatch,
        done: AppendDone,
        again: partial[None],
        *,
        create: bool | None,
        config: TopicConfig | None,
    ) -> Topic | None:
        """The topic, created or being created; None when the write waits for a change of the topic to end."""
        self._core.check_open()
        topic = self._core.find(name)
        if topic is not None:
            if not topic.writes.is_changing:
                return topic
            self._topic_life.wait_change(topic, again, done)
            return None
        wanted = config or DEFAULT_CONFIG
        if not (wanted.auto_create if create is None else create):
            raise TopicNotFound(name)
        self._topic_life.check_creation(name, wanted)
        if wanted.discard == "reject":
            check_fits(name, wanted, len(batch), batch.size_bytes)
        self._write_path.check_quota(batch.size_bytes)
        return self._topic_life.create(name, wanted)

    def _answer_repeat(self, topic: Topic, key: str, done: AppendDone) -> bool:
        """Whether a write with this key was made, or is being made, within the window. Then it is answered."""
        known = topic.keys.find(key, self._core.now_ms(), topic.config.idempotency_window_ms)
        if known is not None:
            self._core.answer(done, deduped_answer(topic, known))
            return True
        for write in topic.writes.in_flight:
            if write.key == key:
                write.share_answer(done)
                return True
        return False


def check_unicode(text: str | None, name: str) -> int:
    """The length of the text in bytes. Raises when the text cannot be encoded."""
    try:
        return len((text or "").encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"the {name} is not valid Unicode") from error


def _check_key(key: str) -> None:
    if check_unicode(key, "idempotency key") > IDEMPOTENCY_KEY_BYTES_MAX:
        raise InvalidRequest(f"an idempotency key has at most {IDEMPOTENCY_KEY_BYTES_MAX} bytes")

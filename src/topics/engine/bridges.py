"""Bridges: what the log knows of copying between a topic and something outside of it.

A program outside of the engine copies. The engine keeps, for each bridge of a topic, its *definition* (what it
connects) and its *position* (how far it has copied). Both are bytes that only that program reads. A bridge ends with
its topic.

Records that come in over a bridge are one write with the position after them: a note, then the records. A crash keeps
both or takes both, so a program that goes on at the position copies each record once. A topic of class `ephemeral` has
no frames: a crash may take its records and keep an older position.

The program makes one call for a bridge at a time, so its changes take effect in the order of their frames.

Owner only. `_logged` and `_applied` run while a group of the log completes: see `core`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

from topics.engine.config import DEFAULT_CONFIG
from topics.engine.core import Core, Done
from topics.engine.topic.appended import Appended
from topics.engine.topic.topic import Topic
from topics.engine.writing.topic_life import TopicLife
from topics.engine.writing.write_path import WritePath
from topics.errors import RouterNotFound, TopicNotFound, TopicsError
from topics.formats import control, wal_frame
from topics.formats.control import BridgeUpdate
from topics.formats.records import RecordBatch
from topics.formats.snapshot import BridgeState
from topics.formats.wal_frame import FrameType

Batch: TypeAlias = RecordBatch
"""Records for `Bridges.append`, made by `writing.intake`."""


class Bridge(NamedTuple):
    """A bridge and the topic that it belongs to."""

    topic: Topic
    state: BridgeState


class Bridges:
    def __init__(self, core: Core, write_path: WritePath, topic_life: TopicLife) -> None:
        self._core = core
        self._write_path = write_path
        self._topic_life = topic_life
        # The topic of each bridge, by the name of the bridge.
        self._topics: dict[str, Topic] = {}
        # Told the name of each bridge that ended with its topic.
        self.on_ended: list[Callable[[str], None]] = []

    # Looking.

    def names(self) -> list[str]:
        return sorted(self._topics)

    def find(self, name: str) -> Bridge | None:
        topic = self._topics.get(name)
        if topic is None or topic.links.bridges is None:
            return None
        return Bridge(topic, topic.links.bridges[name])

    # Changing.

    def put(self, name: str, topic_name: str, definition: bytes, position: bytes, done: Done[bool]) -> None:
        """Makes the bridge, or gives it another definition and position. Creates its topic if it is missing.

        `done(created)` once that is synced.
        """
        self._core.check_open()
        topic = self._core.topics.get(topic_name)
        if topic is None or topic.writes.is_changing:
            again = partial(self.put, name, topic_name, definition, position, done)
            self._topic_life.with_topic(topic_name, DEFAULT_CONFIG, partial(self._with_topic, again, done))
            return
        assert self._topics.get(name) in (None, topic), "a bridge never moves to another topic"
        update = BridgeUpdate(name, "put", definition, position)
        self._log(topic, update, partial(self._was_put, topic, name, done), durable=True)

    def delete(self, name: str, done: Done[bool]) -> None:
        """`done(deleted)` once that is synced. The records stay."""
        self._core.check_open()
        bridge = self.find(name)
        if bridge is None:
            self._core.answer(done, False)
            return
        update = BridgeUpdate(name, "deleted")
        self._log(bridge.topic, update, partial(self._was_deleted, bridge.topic, name, done), durable=True)

    def advance(self, name: str, position: bytes, done: Done[bool]) -> None:
        """The bridge has copied up to `position`. `done(True)` once that is as durable as a write to its topic."""
        topic = self._topic_to_write(name, partial(self.advance, name, position, done), done)
        if topic is None:
            return
        update = BridgeUpdate(name, "advanced", position=position)
        if topic.config.durability == "ephemeral":
            topic.links.apply_bridge(update)
            self._core.answer(done, True)
            return
        self._log(topic, update, partial(self._advanced, done), durable=topic.config.durability == "fsync")

    def append(self, name: str, batch: Batch, position: bytes, done: Done[Appended]) -> None:
        """Appends records that the bridge copied, and its position after them: both or nothing.

        `done(Appended)` once the class's promise is kept. Raises `TopicFull` and `Throttled` like every append.
        """
        topic = self._topic_to_write(name, partial(self.append, name, batch, position, done), done)
        if topic is None:
            return
        write_path = self._write_path
        write_path.submit_noted(topic)
        write_path.check(topic, len(batch), batch.size_bytes)
        update = BridgeUpdate(name, "advanced", position=position)
        write_path.submit(topic, batch, done, bridge=update, on_end=partial(self._applied, topic, update))

    # Steps.

    def _topic_to_write(self, name: str, again: Callable[[], None], done: Done[Appended] | Done[bool]) -> Topic | None:
        """None when the call waits for a change of the topic to end; then the call is repeated."""
        self._core.check_open()
        topic = self._topics.get(name)
        if topic is None:
            raise RouterNotFound(name)
        if not topic.writes.is_changing:
            return topic
        self._topic_life.wait_change(topic, again, done)
        return None

    def _with_topic(self, again: Callable[[], None], done: Done[bool], result: Topic | TopicsError) -> None:
        if isinstance(result, TopicsError):
            self._core.answer(done, result)
        else:
            self._core.call_again(again, done)
            self._core.flush_in_turn()

    def _log(
        self, topic: Topic, update: BridgeUpdate, then: Callable[[TopicsError | None], None], *, durable: bool
    ) -> None:
        self._write_path.submit_noted(topic)
        note = control.encode(control.Note(bridge=update))
        frame = wal_frame.encode_control(FrameType.NOTE, topic.id, self._core.now_ms(), note)
        self._core.log(topic, frame, partial(self._logged, topic, update, then), durable=durable)

    def _logged(
        self,
        topic: Topic,
        update: BridgeUpdate,
        then: Callable[[TopicsError | None], None],
        error: TopicsError | None,
    ) -> None:
        self._applied(topic, update, error)
        then(error)

    def _applied(self, topic: Topic, update: BridgeUpdate, error: TopicsError | None) -> None:
        if error is None:
            topic.links.apply_bridge(update)
            topic.checkpoint.mark_changed()

    def _was_put(self, topic: Topic, name: str, done: Done[bool], error: TopicsError | None) -> None:
        if error is None and not self._core.is_current(topic):
            error = TopicNotFound(topic.name)
        if error is not None:
            self._core.answer(done, error)
            return
        is_new = name not in self._topics
        self._topics[name] = topic
        self._core.answer(done, is_new)

    def _was_deleted(self, topic: Topic, name: str, done: Done[bool], error: TopicsError | None) -> None:
        if error is None and self._topics.get(name) is topic:
            del self._topics[name]
        self._core.answer(done, error if error is not None else True)

    def _advanced(self, done: Done[bool], error: TopicsError | None) -> None:
        self._core.answer(done, error if error is not None else True)

    # Topics.

    def topic_removed(self, topic: Topic) -> None:
        for state in topic.links.bridge_states():
            if self._topics.get(state.name) is topic:
                del self._topics[state.name]
                for tell in self.on_ended:
                    tell(state.name)

    def resume(self) -> None:
        """Once the topics are recovered."""
        for topic in self._core.topics.values():
            for state in topic.links.bridge_states():
                self._topics[state.name] = topic

"""The life of a topic: creating it, giving it a new config, removing it. Each is one frame, synced in every class.

While a new config or the removal is being logged, writes to the topic wait: frames after it in the log obey the new
config, or belong to a new instance.

Owner only. Methods named `…_logged` run while a group completes: see `core`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from topics.engine.config import TopicConfig, config_members
from topics.engine.core import Core, Done
from topics.engine.names import check_topic_name
from topics.engine.topic.router import Router
from topics.engine.topic.segment_set import SegmentSet
from topics.engine.topic.topic import Topic
from topics.engine.writing.derived_copies import DerivedCopies, unlogged_cursor_note
from topics.engine.writing.write_path import WritePath
from topics.errors import InvalidRequest, Throttled, TopicExistsIncompatible, TopicNotEmpty, TopicsError
from topics.formats import control, wal_frame
from topics.formats.wal_frame import FrameType
from topics.limits import KEYS_PER_NOTE_MAX

T = TypeVar("T")


class TopicLife:
    def __init__(
        self,
        core: Core,
        write_path: WritePath,
        derived: DerivedCopies,
        copy_now: Callable[[Topic], None],
    ) -> None:
        self._core = core
        self._write_path = write_path
        self._derived = derived
        # Makes the copies that routers can make into a topic: before the topic, or their source, goes.
        self._copy_now = copy_now
        # Told of each new topic once it can be read, after the group; and of each removed one, while the group
        # completes.
        self.on_created: list[Callable[[Topic], None]] = []
        self.on_removed: list[Callable[[Topic], None]] = []

    def put(self, name: str, config: TopicConfig, done: Done[bool]) -> None:
        """Creates or reconfigures. `done(created)` once that is synced and in effect."""
        self._core.check_open()
        topic = self._core.find(name)
        if topic is None:
            self.check_creation(name, config)
            self._create(name, config, partial(self._answer_created, done))
        elif topic.writes.is_changing:
            self.wait_change(topic, partial(self.put, name, config, done), done)
        else:
            self._reconfigure(topic, config, done)

    def wait_change(self, topic: Topic, call: Callable[[], None], done: Done[T]) -> None:
        """Repeats a call when the change of the topic has ended. What the call raises then goes to its callback."""
        topic.writes.wait_change(partial(self._core.call_again, call, done))

    # Creating.

    def new_topic(self, name: str, topic_id: int, epoch: int, config: TopicConfig) -> Topic:
        core = self._core
        return Topic(name, topic_id, epoch, config, SegmentSet(core.cache, topic_id, []), core.live_bytes)

    def check_creation(self, name: str, config: TopicConfig) -> None:
        check_topic_name(name)
        _check_dead_letter(name, config)
        self.check_topic_room(1)

    def check_topic_room(self, count: int) -> None:
        """Raises when so many topics more may not be created."""
        core = self._core
        maximum = core.settings.topics_max
        if count and maximum and len(core.topics) + len(core.creating) + count > maximum:
            raise Throttled(f"there are {maximum} topics already", {"limit": "max_topics", "max": maximum})

    def with_topic(self, name: str, config: TopicConfig, done: Done[Topic]) -> None:
        """Creates the topic unless it is there or being created. `done(topic)` when it is worth looking again."""
        topic = self._core.find(name)
        if topic is None:
            self.check_creation(name, config)
            self._create(name, config, done)
        elif topic.writes.is_created and not topic.writes.is_changing:
            self._core.answer(done, topic)
        else:
            topic.writes.wait_change(partial(done, topic))

    def create(self, name: str, config: TopicConfig) -> Topic:
        """Creates a topic for a write, which is checked already. Writes may follow at once."""
        return self._create(name, config, _ignore)

    def _create(self, name: str, config: TopicConfig, done: Done[Topic]) -> Topic:
        core = self._core
        topic = self.new_topic(name, core.next_topic_id, 1, config)
        topic.use_shard(core.wal.shard_for(topic.id))
        members = control.TopicCreate(name, topic.epoch, config_members(config))
        frame = wal_frame.encode_control(FrameType.TOPIC_CREATE, topic.id, core.now_ms(), control.encode(members))
        core.log(topic, frame, partial(self._creation_logged, topic, done), durable=True)
        core.take_topic_id()
        core.creating[name] = topic
        return topic

    def _creation_logged(self, topic: Topic, done: Done[Topic], error: TopicsError | None) -> None:
        core = self._core
        del core.creating[topic.name]
        if error is not None:
            self._write_path.fail_committed(topic, error)
            core.answer(done, error)
        else:
            topic.writes.created()
            core.add_topic(topic)
            self._write_path.note_config(topic)
            core.answer(done, topic)
            for tell in self.on_created:
                core.call_after_group(partial(tell, topic))
            self._write_path.publish_ready(topic)
        self._call_waiting(topic)

    def _answer_created(self, done: Done[bool], result: Topic | TopicsError) -> None:
        done(result if isinstance(result, TopicsError) else True)

    # Changing.

    def begin_change(self, topic: Topic) -> None:
        """Writes that come now wait until `end_change`."""
        topic.writes.begin_change()
        self._write_path.note_config(topic)
        self._core.flush_soon()

    def end_change(self, topic: Topic) -> None:
        topic.writes.end_change()
        self._write_path.note_config(topic)
        self._call_waiting(topic)

    def _call_waiting(self, topic: Topic) -> None:
        for call in topic.writes.take_waiting_calls():
            self._core.call_after_group(call)

    def _reconfigure(self, topic: Topic, config: TopicConfig, done: Done[bool]) -> None:
        _check_dead_letter(topic.name, config)
        if config.type != topic.config.type:
            raise TopicExistsIncompatible(
                f'topic "{topic.name}" is a {topic.config.type}',
                {"topic": topic.name, "existing_type": topic.config.type, "requested_type": config.type},
            )
        core = self._core
        self._write_path.submit_noted(topic)
        topic.refresh(core.now_ms())
        becomes_stored = topic.config.durability == "ephemeral" and config.durability != "ephemeral"
        unlogged_last_seq = topic.writes.next_seq - 1 if becomes_stored else 0
        # Records that the old caps evicted, also by writes in flight, must not come back; nor must records that the new
        # caps will evict. A cap floor by bytes has no other frame.
        cap_floor = max(topic.floor_under(topic.config), topic.floor_under(config))
        update = control.ConfigUpdate(config_members(config), cap_floor, topic.live.ttl_floor, unlogged_last_seq)
        ts = core.now_ms()
        frame = wal_frame.encode_control(FrameType.CONFIG, topic.id, ts, control.encode(update))
        # Derived copies were made under the old config.
        self._derived.log(topic, durable=True)
        frames = [frame]
        if becomes_stored:
            # Copies of an ephemeral dest have no frames, nor has the place of their routers: a stored dest would get
            # the copies again. Keys have no frames either: a checkpoint may store their records and not end. The notes
            # come first, so that a crash cannot keep the config without them.
            frames = [
                *[unlogged_cursor_note(router, ts) for router in topic.links.routers_in],
                *_unlogged_key_notes(topic, ts),
                frame,
            ]
        logged = partial(self._config_logged, topic, config, (cap_floor, unlogged_last_seq, ts), done)
        core.log(topic, b"".join(frames), logged, durable=True, frame_count=len(frames))
        self.begin_change(topic)

    def _config_logged(
        self,
        topic: Topic,
        config: TopicConfig,
        logged: tuple[int, int, int],
        done: Done[bool],
        error: TopicsError | None,
    ) -> None:
        if error is None:
            cap_floor, unlogged_last_seq, ts = logged
            topic.apply_config(config, cap_floor, unlogged_last_seq, ts)
            topic.refresh(self._core.now_ms())
        self._core.answer(done, error if error is not None else False)
        self.end_change(topic)

    # Removing.

    def delete(self, name: str, *, if_empty: bool, done: Done[bool], removed: list[Router] | None = None) -> None:
        """Ends the topic instance. `done(deleted)` once that is synced.

        Routers into and from the topic go with it: they are added to `removed`.
        """
        core = self._core
        core.check_open()
        topic = core.find(name)
        if topic is None:
            core.answer(done, False)
            return
        if topic.writes.is_changing:
            self.wait_change(topic, partial(self.delete, name, if_empty=if_empty, done=done, removed=removed), done)
            return
        self._write_path.submit_noted(topic)
        if topic.links.routers_in:
            self._copy_now(topic)
        for router in topic.links.routers_out:
            # Records that were written before the topic goes are copied.
            self._copy_now(router.dest)
        topic.refresh(core.now_ms())
        if if_empty and topic.live.count + topic.writes.count_in_flight:
            raise TopicNotEmpty(f'topic "{name}" is not empty', {"topic": name, "count": topic.live.count})
        frame = wal_frame.encode_control(FrameType.TOPIC_DELETE, topic.id, core.now_ms(), control.encode({}))
        logged = partial(self._removal_logged, topic, done, removed)
        if topic.links.routers_out:
            # No copies are made while the older ones are logged.
            self.begin_change(topic)
            self._derived.log_frame_after_copies(topic, frame, logged, durable=True, copies_durable=True)
        else:
            core.log(topic, frame, logged, durable=True)
            self.begin_change(topic)

    def _removal_logged(
        self, topic: Topic, done: Done[bool], removed: list[Router] | None, error: TopicsError | None
    ) -> None:
        core = self._core
        if error is None:
            core.remove_topic(topic)
            topic.leave_total()
            if removed is not None:
                removed += {*topic.links.routers_in, *topic.links.routers_out}
            for tell in self.on_removed:
                tell(topic)
            if topic.has_waiters:
                self._write_path.wake(topic)
        core.answer(done, error if error is not None else True)
        self.end_change(topic)


def _unlogged_key_notes(topic: Topic, ts: int) -> Iterator[bytes]:
    """Frames with the idempotency keys of writes that were only in memory, while the topic was ephemeral."""
    window_ms = topic.config.idempotency_window_ms
    keys = [
        (key.key, key.ts, key.first_seq, key.count, key.head_seq)
        for key in topic.keys.after(topic.live.logged_last_seq)
        if ts - key.ts < window_ms
    ]
    for place in range(0, len(keys), KEYS_PER_NOTE_MAX):
        note = control.Note(keys=keys[place : place + KEYS_PER_NOTE_MAX])
        yield wal_frame.encode_control(FrameType.NOTE, topic.id, ts, control.encode(note))


def _check_dead_letter(name: str, config: TopicConfig) -> None:
    """Raises when the dead letters of a queue go to the queue itself: they would never leave it."""
    if config.type == "queue" and config.dead_letter == name:
        raise InvalidRequest(
            f'queue "{name}" cannot be its own dead_letter: name another topic', {"dead_letter": config.dead_letter}
        )


def _ignore(result: object) -> None:
    pass

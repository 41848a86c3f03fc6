"""Consumer groups: named cursors of a topic, kept by the server.

A group says up to which seq its readers are done. It holds nothing back: retention goes on as without it, and a reader
that starts at its cursor gets the same tombstones as any other reader. It lives and ends with the topic instance.

Every change is one frame in the topic's shard: a note. A reader of the log that does not know groups ignores it. A
commit is as durable as a write to the topic; creating, moving and deleting a group are synced in every class, like a
config. Commits to an `ephemeral` topic are not logged: only checkpoints keep them.

Changes take effect in the order of their frames, because a replay knows no other order: a committed change waits for
older ones. What a change does to the cursors is decided when it takes effect, by the same rule in both cases.

Owner only. `_logged` runs while a group of the log completes: see `core`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from topics.engine.core import Core, Done
from topics.engine.names import is_topic_name
from topics.engine.topic.topic import Topic
from topics.errors import GroupNotFound, InvalidRequest, Throttled, TopicsError
from topics.formats import control, wal_frame
from topics.formats.control import GroupUpdate
from topics.formats.snapshot import GroupState
from topics.formats.wal_frame import FrameType
from topics.limits import GROUPS_PER_TOPIC_MAX
from topics.results import GroupChanged, GroupCursor, Start


class _Change:
    """One change whose frame is on its way."""

    __slots__ = ("done", "error", "is_committed", "ts", "update")

    def __init__(self, update: GroupUpdate, ts: int, done: Done[Any]) -> None:
        self.update = update
        self.ts = ts
        self.done = done
        self.is_committed = False
        self.error: TopicsError | None = None


class Groups:
    """The groups of all topics of an engine."""

    def __init__(self, core: Core) -> None:
        self._core = core
        # In the order of their frames.
        self._changes: dict[Topic, deque[_Change]] = {}

    # Looking.

    def cursor(self, name: str, group: str) -> GroupCursor:
        topic = self._core.topic(name)
        state = topic.groups.get(group)
        if state is None:
            raise GroupNotFound(name, group)
        return _cursor(topic, state)

    def cursors(self, name: str) -> list[GroupCursor]:
        """All groups of a topic, by name."""
        topic = self._core.topic(name)
        return [_cursor(topic, topic.groups[group]) for group in sorted(topic.groups)]

    # Changing.

    def put(self, name: str, group: str, position: int | Start | None, done: Done[GroupChanged]) -> None:
        """Creates the group, or moves it. Without a position a new group begins at the start, and an existing one
        stays.

        `done(GroupChanged)` once that is synced.
        """
        if not is_topic_name(group):
            raise InvalidRequest(
                f"{group!r} is not a group name: 1 to 255 letters, digits and . _ : - with a letter or digit first"
            )
        topic = self._topic_to_change(name, partial(self.put, name, group, position, done), done)
        if topic is None:
            return
        if group not in topic.groups:
            self._check_room(topic, group)
        seq = _seq_of(topic, position)
        event: Literal["created", "moved"] = "created" if position is None else "moved"
        self._log(topic, GroupUpdate(group, event, seq), done, durable=True)

    def commit(self, name: str, group: str, seq: int, done: Done[GroupChanged], *, rewind: bool = False) -> None:
        """The group is done up to `seq`. A lower seq than before changes nothing, unless `rewind` is set.

        `done(GroupChanged)` once that is as durable as a write to the topic.
        """
        topic = self._topic_to_change(name, partial(self.commit, name, group, seq, done, rewind=rewind), done)
        if topic is None:
            return
        changes = self._changes.get(topic)
        if changes is None and group not in topic.groups:
            raise GroupNotFound(name, group)
        _check_seq(topic, seq)
        if changes is None and not rewind and seq <= topic.groups[group].seq:
            self._core.answer(done, GroupChanged(_cursor(topic, topic.groups[group]), created=False, moved=False))
            return
        update = GroupUpdate(group, "rewound" if rewind else "committed", seq)
        durability = topic.config.durability
        if durability == "ephemeral":
            change = _Change(update, self._core.now_ms(), done)
            change.is_committed = True
            self._queue(topic, change)
            self._settle(topic)
        else:
            self._log(topic, update, done, durable=durability == "fsync")

    def delete(self, name: str, group: str, done: Done[bool]) -> None:
        """`done(deleted: bool)` once that is synced."""
        topic = self._topic_to_change(name, partial(self.delete, name, group, done), done)
        if topic is None:
            return
        if topic not in self._changes and group not in topic.groups:
            self._core.answer(done, False)
            return
        self._log(topic, GroupUpdate(group, "deleted"), done, durable=True)

    def _topic_to_change(self, name: str, again: Callable[[], None], done: Done[Any]) -> Topic | None:
        """None when the call waits for a change of the topic to end; then the call is repeated."""
        self._core.check_open()
        topic = self._core.topic(name)
        if not topic.writes.is_changing:
            return topic
        topic.writes.wait_change(partial(self._core.call_again, again, done))
        return None

    def _check_room(self, topic: Topic, group: str) -> None:
        coming = {change.update.name for change in self._changes.get(topic, ())} - topic.groups.keys() - {group}
        if len(topic.groups) + len(coming) >= GROUPS_PER_TOPIC_MAX:
            raise Throttled(
                f'topic "{topic.name}" has {GROUPS_PER_TOPIC_MAX} groups already',
                {"limit": "max_groups", "max": GROUPS_PER_TOPIC_MAX},
            )

    def _log(self, topic: Topic, update: GroupUpdate, done: Done[Any], *, durable: bool) -> None:
        change = _Change(update, self._core.now_ms(), done)
        note = control.encode(control.Note(group=update))
        frame = wal_frame.encode_control(FrameType.NOTE, topic.id, change.ts, note)
        self._core.log(topic, frame, partial(self._logged, topic, change), durable=durable)
        self._queue(topic, change)

    def _logged(self, topic: Topic, change: _Change, error: TopicsError | None) -> None:
        change.is_committed = True
        change.error = error
        self._settle(topic)

    def _queue(self, topic: Topic, change: _Change) -> None:
        self._changes.setdefault(topic, deque()).append(change)

    def _settle(self, topic: Topic) -> None:
        """Committed changes take effect, in order."""
        changes = self._changes[topic]
        while changes and changes[0].is_committed:
            change = changes.popleft()
            if not changes:
                del self._changes[topic]
            self._core.answer(change.done, change.error if change.error is not None else self._apply(topic, change))

    def _apply(self, topic: Topic, change: _Change) -> GroupChanged | GroupNotFound | bool:
        group = change.update.name
        was_there = group in topic.groups
        moved = apply_update(topic.groups, change.update, change.ts)
        if moved:
            topic.checkpoint.mark_changed()
        if change.update.event == "deleted":
            return moved
        state = topic.groups.get(group)
        if state is None:
            return GroupNotFound(topic.name, group)
        return GroupChanged(_cursor(topic, state), created=not was_there, moved=moved)


def apply_update(groups: dict[str, GroupState], update: GroupUpdate, ts: int) -> bool:
    """Applies a change to the cursors of its topic; whether it changed something."""
    current = groups.get(update.name)
    if update.event == "deleted":
        return groups.pop(update.name, None) is not None
    if current is None:
        if update.event in ("committed", "rewound"):
            return False
    elif update.event == "created" or (update.event == "committed" and update.seq <= current.seq):
        return False
    groups[update.name] = GroupState(update.name, update.seq, ts)
    return True


def pull_back(groups: dict[str, GroupState], head_seq: int) -> None:
    """After a start: seqs above the head went with a power loss or with an ephemeral process, and are given out
    again."""
    for group, state in groups.items():
        if state.seq > head_seq:
            groups[group] = GroupState(group, head_seq, state.ts)


def _cursor(topic: Topic, state: GroupState) -> GroupCursor:
    return GroupCursor(state.name, state.seq, topic.head_seq, topic.head_seq - state.seq, state.ts)


def _seq_of(topic: Topic, position: int | Start | None) -> int:
    if position is None or position == "start":
        return topic.earliest_seq - 1
    if position == "head":
        return topic.head_seq
    _check_seq(topic, position)
    return position


def _check_seq(topic: Topic, seq: int) -> None:
    if not 0 <= seq <= topic.head_seq:
        raise InvalidRequest(
            f'topic "{topic.name}" has no seq {seq}: its head_seq is {topic.head_seq}',
            {"topic": topic.name, "head_seq": topic.head_seq},
        )

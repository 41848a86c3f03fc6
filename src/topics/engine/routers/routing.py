"""The routers of an engine: by name, and between which topics. Creating, changing and removing them.

Changes are made one at a time, in the order they were asked for: each looks at the whole graph. The frame of a router
is in the shard of its dest, so that it is in order with the notes of its copies; it is written once both topics are
durable.

Owner only. `Applied` callbacks run while a group completes (see `core`): they change state, and go on in a call after
it.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from topics.engine.config import DEFAULT_CONFIG
from topics.engine.core import Core, Done
from topics.engine.names import SortedNames
from topics.engine.routers.definition import check_endpoints, check_router_name, closed_cycle
from topics.engine.routers.forwarding import Forwarder
from topics.engine.topic.router import Router, RouterSpec
from topics.engine.topic.topic import Topic
from topics.engine.writing.derived_copies import DerivedCopies
from topics.engine.writing.topic_life import TopicLife
from topics.engine.writing.write_path import WritePath
from topics.errors import (
    RouterCycle,
    RouterNotFound,
    Throttled,
    TopicExistsIncompatible,
    TopicNotFound,
    TopicsError,
)
from topics.formats import control, wal_frame
from topics.formats.wal_frame import FrameType


class _Change:
    """One change of the graph, until its caller is answered."""

    __slots__ = ("done", "name", "spec")

    def __init__(self, name: str, spec: RouterSpec | None, done: Done[bool]) -> None:
        self.name = name
        # None: the router is to be removed.
        self.spec = spec
        self.done = done


class Routing:
    def __init__(
        self, core: Core, write_path: WritePath, derived: DerivedCopies, forwarder: Forwarder, topic_life: TopicLife
    ) -> None:
        self._core = core
        self._write_path = write_path
        self._derived = derived
        self._forwarder = forwarder
        self._topic_life = topic_life
        self.routers: dict[str, Router] = {}
        self.next_router_id = 1
        # Whether something changed that no snapshot says.
        self._is_changed = False
        # Sorted names of `routers`, made when they are listed for the first time.
        self._names: SortedNames | None = None
        # The change that is being made, and the changes that wait for their turn.
        self._current: _Change | None = None
        self._waiting: deque[_Change] = deque()

    def router(self, name: str) -> Router:
        router = self.routers.get(name)
        if router is None:
            raise RouterNotFound(name)
        return router

    def names_after(self, prefix: str, after: str | None, count: int) -> list[str]:
        """At most `count` names that begin with `prefix` and come after `after`, in ascending order."""
        if self._names is None:
            self._names = SortedNames(self.routers)
        return self._names.after(prefix, after, count)

    def take_router_id(self) -> int:
        router_id = self.next_router_id
        self.next_router_id += 1
        return router_id

    def note_router_id(self, router_id: int) -> None:
        """A router with this id exists, or existed."""
        self.next_router_id = max(self.next_router_id, router_id + 1)

    # One change at a time.

    def put(self, name: str, spec: RouterSpec, done: Done[bool]) -> None:
        """Creates or changes a router, and creates its topics. `done(created)` once that is synced."""
        self._begin(_Change(name, spec, done))

    def delete(self, name: str, done: Done[bool]) -> None:
        """Stops the router; its copies stay. `done(deleted)` once that is synced."""
        self._begin(_Change(name, None, done))

    def _begin(self, change: _Change) -> None:
        if self._current is not None:
            self._waiting.append(change)
            return
        self._current = change
        self._go_on(change)

    def _go_on(self, change: _Change) -> None:
        """Makes the change, or its next step. Everything is checked again, because it may have changed since the last
        step."""
        try:
            self._core.check_open()
            if change.spec is None:
                self._remove(change)
            else:
                self._put(change, change.spec)
            self._core.flush_in_turn()
        except TopicsError as error:
            self._end(change, error)

    def _end(self, change: _Change, result: bool | TopicsError) -> None:  # noqa: FBT001 - the answer of the call.
        assert self._current is change
        self._current = None
        self._core.answer(change.done, result)
        if self._waiting:
            self._current = self._waiting.popleft()
            self._core.call_after_group(partial(self._go_on, self._current))

    def _after_topic(self, change: _Change, result: Topic | TopicsError) -> None:
        if isinstance(result, TopicsError):
            self._end(change, result)
        else:
            self._go_on(change)

    # Creating and changing.

    def _put(self, change: _Change, spec: RouterSpec) -> None:
        core = self._core
        self._check(change.name, spec)
        for topic_name in (spec.source, spec.dest):
            topic = core.topics.get(topic_name)
            if topic is None or topic.writes.is_changing:
                self._topic_life.with_topic(topic_name, DEFAULT_CONFIG, partial(self._after_topic, change))
                return
        source, dest = core.topics[spec.source], core.topics[spec.dest]
        if change.name not in self.routers and source.links.copied_first_seq:
            self._log_copies_of_source(change, source)
        else:
            self._log_router(change, spec, source, dest)

    def _log_copies_of_source(self, change: _Change, source: Topic) -> None:
        """The source is a dest itself, with copies that no frame holds. The new router begins after them, in another
        shard: a start must find them, also when copies of the source are not made again by then (`can_derive`)."""
        source.links.begin_change()
        try:
            self._derived.log_and_tell(source, partial(self._source_logged, change, source), durable=True)
        except TopicsError:
            source.links.end_change()
            raise

    def _source_logged(self, change: _Change, source: Topic, error: TopicsError | None) -> None:
        if error is not None:
            source.links.end_change()
            self._end(change, error)
        else:
            self._core.call_after_group(partial(self._go_on_logged, change, source))

    def _go_on_logged(self, change: _Change, source: Topic) -> None:
        """No copy was derived since the copies were logged, and none is until the router is queued: both happen in this
        call."""
        source.links.end_change()
        self._go_on(change)

    def _check(self, name: str, spec: RouterSpec) -> None:
        """Every rule, in the order of the contract, before anything is created."""
        core, routers = self._core, self.routers
        check_router_name(name)
        check_endpoints(spec)
        if not spec.create_dest and core.find(spec.dest) is None:
            raise TopicNotFound(spec.dest)
        others = [router for router in routers.values() if router.name != name]
        if any(router.spec.dest == spec.dest and router.spec.source != spec.source for router in others):
            raise TopicExistsIncompatible(
                f'topic "{spec.dest}" is fed from another source already',
                {"topic": spec.dest, "reason": "router_dest_fan_in"},
            )
        existing = routers.get(name)
        if existing is not None and (existing.spec.source, existing.spec.dest) != (spec.source, spec.dest):
            raise TopicExistsIncompatible(
                f'router "{name}" leads from "{existing.spec.source}" to "{existing.spec.dest}": delete it first',
                {
                    "router": name,
                    "reason": "router_repoint_forbidden",
                    "existing_source": existing.spec.source,
                    "existing_dest": existing.spec.dest,
                },
            )
        maximum = core.settings.routers_max
        if existing is None and maximum and len(routers) >= maximum:
            raise Throttled(f"there are {maximum} routers already", {"limit": "max_routers", "max": maximum})
        if not spec.allow_cycle:
            edges = [(router.spec.source, router.spec.dest) for router in others]
            cycle = closed_cycle(spec.source, spec.dest, edges)
            if cycle is not None:
                raise RouterCycle(cycle)
        self._topic_life.check_topic_room(sum(core.find(topic) is None for topic in (spec.source, spec.dest)))

    def _log_router(self, change: _Change, spec: RouterSpec, source: Topic, dest: Topic) -> None:
        core = self._core
        existing = self.routers.get(change.name)
        self._write_path.submit_noted(source)
        self._write_path.submit_noted(dest)
        if existing is not None:
            # Older records are copied by the definition under which they were written.
            self._forwarder.copy_now(dest)
        # Logs what the routers copied so far, alone or by the old definition. Until the change ends copies have frames.
        self._derived.log(dest, durable=True)
        router = existing or Router(
            self.next_router_id, change.name, spec, source, dest, cursor=source.head_seq, dest_base=dest.head_seq
        )
        state = router.logged_state(spec)
        frame = wal_frame.encode_control(FrameType.ROUTER_CREATE, dest.id, core.now_ms(), control.encode(state))
        core.log(dest, frame, partial(self._router_logged, change, spec, router), durable=True)
        if existing is None:
            self.take_router_id()
        source.links.begin_change()
        dest.links.begin_change()
        router.freeze()

    def _router_logged(self, change: _Change, spec: RouterSpec, router: Router, error: TopicsError | None) -> None:
        source, dest = router.source, router.dest
        source.links.end_change()
        dest.links.end_change()
        router.thaw()
        if error is not None:
            self._end(change, error)
            return
        for topic in (source, dest):
            if not self._core.is_current(topic):
                # The topic was removed before the frame was committed, and the router with it.
                self._end(change, TopicNotFound(topic.name))
                return
        router.change(spec)
        is_new = self.routers.get(router.name) is not router
        if is_new:
            self.attach(router)
        self._is_changed = True
        self._forwarder.note_source(source)
        self._end(change, is_new)

    def attach(self, router: Router) -> None:
        # From here on the writes of dest are submitted one by one: each must find derived copies logged.
        self._write_path.submit_noted(router.dest)
        self.routers[router.name] = router
        if self._names is not None:
            self._names.add(router.name)
        router.source.links.add_out(router)
        router.dest.links.add_in(router)
        self._write_path.note_config(router.dest)

    # Removing.

    def _remove(self, change: _Change) -> None:
        router = self.routers.get(change.name)
        if router is None:
            self._end(change, False)
            return
        dest = router.dest
        self._forwarder.copy_now(dest)
        self._derived.log(dest, durable=True)
        data = control.encode(control.RouterDelete(router.id))
        frame = wal_frame.encode_control(FrameType.ROUTER_DELETE, dest.id, self._core.now_ms(), data)
        self._core.log(dest, frame, partial(self._removal_logged, change, router), durable=True)
        router.freeze()

    def _removal_logged(self, change: _Change, router: Router, error: TopicsError | None) -> None:
        router.thaw()
        if error is None and self.routers.get(router.name) is router:
            self._detach(router)
        self._end(change, error if error is not None else True)

    def topic_removed(self, topic: Topic) -> None:
        """Routers into and from the topic go with it. A replay knows that from the topic's removal."""
        for router in {*topic.links.routers_in, *topic.links.routers_out}:
            self._detach(router)
        self._forwarder.forget(topic)

    def _detach(self, router: Router) -> None:
        del self.routers[router.name]
        if self._names is not None:
            self._names.remove(router.name)
        source, dest = router.source, router.dest
        source.links.remove_out(router)
        dest.links.remove_in(router)
        if not source.links.routers_out:
            self._forwarder.forget(source)
        self._write_path.note_config(dest)
        self._is_changed = True

    # Checkpoints.

    def take_states(self) -> tuple[list[control.RouterState], bool]:
        """The states of all routers in this turn, and whether the last snapshot has other states."""
        is_changed, self._is_changed = self._is_changed, False
        return [router.published_state() for router in self.routers.values()], is_changed

    def mark_changed(self) -> None:
        """The snapshot with the states that `take_states` returned was not written."""
        self._is_changed = True

"""The routers of an engine: by name, and between which topics. Creating, changing and removing them.

Changes are made one at a time, in the order they were asked for: each looks at the whole graph. The frame of a router
stands in the shard of its dest, so that it is in order with the notes of its copies; it is written once both topics
are durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from topics.engine.config import TopicConfig
from topics.engine.names import SortedNames
from topics.engine.routers.router import Router, RouterSpec, check_endpoints, check_router_name, closed_cycle
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

if TYPE_CHECKING:
    from topics.engine.engine import Engine
    from topics.engine.topic.topic import Topic

Done = Callable[[Any], None]


class Routing:
    """Owner only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.routers: dict[str, Router] = {}
        self.next_router_id = 1
        # Whether something changed that no snapshot says.
        self.is_dirty = False
        # Made when somebody lists routers for the first time.
        self._names: SortedNames | None = None
        self._is_changing = False
        self._waiting: deque[Callable[[], None]] = deque()

    def router(self, name: str) -> Router:
        router = self.routers.get(name)
        if router is None:
            raise RouterNotFound(name)
        return router

    def names_after(self, prefix: str, after: str | None, count: int) -> list[str]:
        """At most `count` names that begin with `prefix` and come behind `after`, in ascending order."""
        if self._names is None:
            self._names = SortedNames(self.routers)
        return self._names.after(prefix, after, count)

    # One change at a time.

    def _in_turn(self, change: Callable[[Done], None], done: Done) -> None:
        """Runs the change when it is its turn. It raises, or calls what it is given once."""

        def ended(result: Any) -> None:
            self._is_changing = False
            done(result)
            if self._waiting and not self._is_changing:
                self._waiting.popleft()()
                self._engine.flush_next()

        def start() -> None:
            self._is_changing = True
            try:
                change(ended)
            except TopicsError as error:
                ended(error)

        if self._is_changing:
            self._waiting.append(start)
        else:
            start()

    # Creating and changing.

    def put(self, name: str, spec: RouterSpec, done: Done) -> None:
        self._in_turn(lambda ended: self._put(name, spec, ended), done)

    def _put(self, name: str, spec: RouterSpec, ended: Done) -> None:
        engine = self._engine
        engine.check_open()
        self._check(name, spec)
        for topic_name in (spec.source, spec.dest):
            topic = engine.topics.get(topic_name)
            if topic is not None and not topic.changing:
                continue

            def again(result: object = None) -> None:
                """Everything is asked again: much may have changed."""
                if isinstance(result, TopicsError):
                    ended(result)
                    return
                try:
                    self._put(name, spec, ended)
                    engine.flush_next()
                except TopicsError as error:
                    ended(error)

            engine.with_topic(topic_name, TopicConfig(), again)
            return
        source, dest = engine.topics[spec.source], engine.topics[spec.dest]
        if name not in self.routers and source.copied_first_seq:
            self._log_source_first(name, spec, source, ended)
        else:
            self._log(name, spec, source, dest, ended)

    def _log_source_first(self, name: str, spec: RouterSpec, source: Topic, ended: Done) -> None:
        """The source is a dest, with copies that no frame holds. The new router begins behind them, in another shard:
        a start must find them, also when by then the source is one whose copies are not made again (`can_derive`)."""
        engine = self._engine

        def source_logged(error: TopicsError | None) -> None:
            source.hazards -= 1
            if error is None:
                try:
                    # Everything is asked again, and with no turn of somebody else in between nothing is derived.
                    self._put(name, spec, ended)
                    engine.flush_next()
                    return
                except TopicsError as refusal:
                    error = refusal
            ended(error)

        source.hazards += 1
        try:
            engine.forwarder.log_copies(source, source_logged, durable=True)
        except TopicsError:
            source.hazards -= 1
            raise
        engine.flush_next()

    def _check(self, name: str, spec: RouterSpec) -> None:
        """All that can be wrong, in the order of the contract, before anything is created."""
        engine, routers = self._engine, self.routers
        check_router_name(name)
        check_endpoints(spec)
        if not spec.create_dest and not engine.has_topic(spec.dest):
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
        maximum = engine.settings.routers_max
        if existing is None and maximum and len(routers) >= maximum:
            raise Throttled(f"there are {maximum} routers already", {"limit": "max_routers", "max": maximum})
        if not spec.allow_cycle:
            edges = [(router.spec.source, router.spec.dest) for router in others]
            cycle = closed_cycle(spec.source, spec.dest, edges)
            if cycle is not None:
                raise RouterCycle(cycle)
        engine.check_topic_room(sum(not engine.has_topic(topic) for topic in (spec.source, spec.dest)))

    def _log(self, name: str, spec: RouterSpec, source: Topic, dest: Topic, ended: Done) -> None:
        engine = self._engine
        existing = self.routers.get(name)
        engine.stage_pending(source)
        engine.stage_pending(dest)
        if existing is not None:
            # By the definition under which it was written.
            engine.forwarder.bring_up_to_date(dest)
        # What the routers copied so far, alone or by the old definition, and nothing without a frame until the end.
        engine.forwarder.log_copies(dest, durable=True)
        if existing is None:
            router = Router(
                self.next_router_id, name, spec, source, dest, cursor=source.head_seq, dest_base=dest.head_seq
            )
        else:
            router = existing
        state = router.logged_state(spec)

        def logged(error: TopicsError | None) -> None:
            source.hazards -= 1
            dest.hazards -= 1
            router.is_frozen = False
            if error is not None:
                ended(error)
                return
            if engine.topics.get(source.name) is not source or engine.topics.get(dest.name) is not dest:
                # Removed meanwhile, and the router with it.
                gone = source if engine.topics.get(source.name) is not source else dest
                ended(TopicNotFound(gone.name))
                return
            if spec.guarantee == "exactly_once" and not router.is_exact:
                router.search_again()
            router.spec = spec
            if existing is None:
                self.attach(router)
            self.is_dirty = True
            engine.forwarder.note_source(source)
            ended(existing is None)

        frame = wal_frame.encode_control(FrameType.ROUTER_CREATE, dest.id, engine.now_ms(), control.encode(state))
        dest.shard.submit(frame, 1, durable=True, done=logged)
        if existing is None:
            self.next_router_id += 1
        source.hazards += 1
        dest.hazards += 1
        router.is_frozen = True
        engine.flush_soon()

    def attach(self, router: Router) -> None:
        # From here on its writes are staged one by one: each must find derived copies logged.
        self._engine.stage_pending(router.dest)
        self.routers[router.name] = router
        if self._names is not None:
            self._names.add(router.name)
        router.source.routers_out = (*router.source.routers_out, router)
        router.dest.routers_in = (*router.dest.routers_in, router)
        self._engine.note_config(router.dest)

    # Removing.

    def delete(self, name: str, done: Done) -> None:
        self._in_turn(lambda ended: self._delete(name, ended), done)

    def _delete(self, name: str, ended: Done) -> None:
        engine = self._engine
        engine.check_open()
        router = self.routers.get(name)
        if router is None:
            ended(False)
            return
        dest = router.dest
        engine.forwarder.bring_up_to_date(dest)
        engine.forwarder.log_copies(dest, durable=True)

        def logged(error: TopicsError | None) -> None:
            router.is_frozen = False
            if error is None and self.routers.get(name) is router:
                self._detach(router)
            ended(error if error is not None else True)

        data = control.encode(control.RouterDelete(router.id))
        frame = wal_frame.encode_control(FrameType.ROUTER_DELETE, dest.id, engine.now_ms(), data)
        dest.shard.submit(frame, 1, durable=True, done=logged)
        router.is_frozen = True
        engine.flush_soon()

    def topic_removed(self, topic: Topic) -> list[str]:
        """Routers that touched it are gone; their names, sorted. The removal of the topic says so to a replay."""
        doomed = {router.name: router for router in (*topic.routers_in, *topic.routers_out)}
        for router in doomed.values():
            self._detach(router)
        self._engine.forwarder.forget(topic)
        return sorted(doomed)

    def _detach(self, router: Router) -> None:
        del self.routers[router.name]
        if self._names is not None:
            self._names.remove(router.name)
        source, dest = router.source, router.dest
        source.routers_out = tuple(other for other in source.routers_out if other is not router)
        dest.routers_in = tuple(other for other in dest.routers_in if other is not router)
        if not source.routers_out:
            source.hops = None
            self._engine.forwarder.forget(source)
        self._engine.note_config(dest)
        self.is_dirty = True

    # Checkpoints.

    def states(self) -> list[control.RouterState]:
        """As of now: dests and their routers are captured in one turn."""
        return [router.published_state() for router in self.routers.values()]

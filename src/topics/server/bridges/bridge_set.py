"""The bridges of a server: started with it, created, changed and removed like routers. Loop thread only."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from topics.engine.bridges import Bridge
from topics.engine.engine import Engine
from topics.engine.routers.definition import closed_cycle
from topics.errors import InvalidRequest, RouterCycle, Throttled, TopicExistsIncompatible, TopicNotFound
from topics.server.bridges.definition import (
    BridgeSpec,
    StreamPosition,
    TopicPosition,
    decode_spec,
    decode_stream_position,
    decode_topic_position,
    encode,
    is_stream,
)
from topics.server.bridges.from_stream import FromStream, first_position
from topics.server.bridges.pump import Pump, answered
from topics.server.bridges.to_stream import ToStream
from topics.stream_errors import StreamsError

if TYPE_CHECKING:
    from topics.streams.system import System


logger = logging.getLogger(__name__)


class BridgeView(NamedTuple):
    """A bridge as it is now. `failure_count` counts failures in a row; `lag` is None when it is not known."""

    name: str
    spec: BridgeSpec
    copied_total: int
    lost_total: int
    failure_count: int = 0
    retry_in_ms: int = 0
    lag: int | None = None


class BridgeSet:
    """`system` is None in a server without streams: then bridges are kept, and none of them copies."""

    def __init__(self, engine: Engine, system: System | None, loop: asyncio.AbstractEventLoop, files: Executor) -> None:
        self._engine = engine
        self._system = system
        self._loop = loop
        self._files = files
        self._pumps: dict[str, Pump] = {}
        # One change at a time: each looks at all routers.
        self._changing = asyncio.Lock()
        # Tasks of bridges whose topics are gone, until they have ended.
        self._ending: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        names = self._engine.bridges.names()
        if self._system is None:
            if names:
                fields = {"routers": names}
                logger.warning("routers to and from streams do not run: streams are off", extra={"fields": fields})
            return
        self._system.on_sent.append(self._sent)
        self._engine.bridges.on_ended.append(self._topic_ended)
        for name in names:
            bridge = self._engine.bridges.find(name)
            assert bridge is not None
            self._start(name, bridge, self._system)

    async def stop(self) -> None:
        async with self._changing:
            await asyncio.gather(*(pump.stop() for pump in self._pumps.values()), *self._ending)
            self._pumps.clear()

    # Looking.

    def names(self) -> list[str]:
        return self._engine.bridges.names()

    def find(self, name: str) -> BridgeView | None:
        bridge = self._engine.bridges.find(name)
        if bridge is None:
            return None
        spec = decode_spec(bridge.state.definition)
        pump = self._pumps.get(name)
        position = pump.position if isinstance(pump, ToStream) else _position(spec, bridge.state.position)
        view = BridgeView(name, spec, position.copied_total, position.lost_total)
        if pump is None:
            return view
        retry_in_ms = max(pump.retry_at_ms - int(self._loop.time() * 1000), 0)
        return view._replace(failure_count=pump.failure_count, retry_in_ms=retry_in_ms, lag=pump.lag)

    # Changing.

    async def put(self, name: str, spec: BridgeSpec, *, create_dest: bool) -> bool:
        """Creates or changes the bridge. Returns whether it is new. Raises `TopicsError`."""
        system = self._system
        if system is None:
            raise InvalidRequest("this server has no streams: start it with `topics serve --streams`")
        async with self._changing:
            self._check(name, spec, create_dest=create_dest)
            position = encode(await self._first_position(spec, system))
            pump = self._pumps.pop(name, None)
            if pump is not None:
                await pump.stop()
                bridge = self._engine.bridges.find(name)
                position = position if bridge is None else bridge.state.position
            try:
                put = partial(self._engine.bridges.put, name, spec.topic_name, encode(spec), position)
                return await answered(self._loop, put)
            finally:
                bridge = self._engine.bridges.find(name)
                if bridge is not None:
                    self._start(name, bridge, system)

    async def delete(self, name: str) -> bool:
        """Stops the bridge. Its copies stay. Returns whether it was there."""
        async with self._changing:
            pump = self._pumps.pop(name, None)
            if pump is not None:
                await pump.stop()
            return await answered(self._loop, partial(self._engine.bridges.delete, name))

    def _check(self, name: str, spec: BridgeSpec, *, create_dest: bool) -> None:
        engine = self._engine
        self.check_name(name, spec.source, spec.dest)
        router = engine.routers.get(name)
        if router is not None:
            _check_ends(name, router.spec.source, router.spec.dest, (spec.source, spec.dest))
        if not create_dest and spec.is_from_stream and not engine.has_topic(spec.dest):
            raise TopicNotFound(spec.dest)
        maximum = engine.settings.routers_max
        names = self.names()
        if name not in names and maximum and len(engine.routers) + len(names) >= maximum:
            raise Throttled(f"there are {maximum} routers already", {"limit": "max_routers", "max": maximum})
        self.check_cycle(name, spec.source, spec.dest)

    def check_name(self, name: str, source: str, dest: str) -> None:
        """Raises when the name is that of a bridge between other ends."""
        bridge = self.find(name)
        if bridge is not None:
            _check_ends(name, bridge.spec.source, bridge.spec.dest, (source, dest))

    def check_cycle(self, name: str, source: str, dest: str) -> None:
        """Raises `RouterCycle` when a router between these ends would close a cycle through a stream."""
        names = self.names()
        if not names and not is_stream(source) and not is_stream(dest):
            return
        edges = [(each.spec.source, each.spec.dest) for each in self._engine.routers.values() if each.name != name]
        views = [view for other in names if other != name and (view := self.find(other)) is not None]
        edges += [(view.spec.source, view.spec.dest) for view in views]
        if is_stream(source) or is_stream(dest):
            cycle = closed_cycle(source, dest, edges)
        else:
            # A cycle of topics only is the business of the engine: it may be allowed.
            cycle = _cycle_through_stream(source, dest, edges)
        if cycle is not None:
            raise RouterCycle(cycle)

    async def _first_position(self, spec: BridgeSpec, system: System) -> StreamPosition | TopicPosition:
        """A new bridge copies what comes after its creation."""
        try:
            state = await self._loop.run_in_executor(self._files, system.topic_state, *spec.place)
        except StreamsError as error:
            raise TopicNotFound(spec.source if spec.is_from_stream else spec.dest) from error
        if spec.is_from_stream:
            return first_position(state)
        topic = self._engine.topics.get(spec.topic_name)
        return TopicPosition(0 if topic is None else topic.head_seq)

    # Pumps.

    def _start(self, name: str, bridge: Bridge, system: System) -> None:
        spec = decode_spec(bridge.state.definition)
        position = bridge.state.position
        pump: Pump
        if spec.is_from_stream:
            stream_position = decode_stream_position(position)
            pump = FromStream(name, spec, stream_position, self._engine, system, self._loop, self._files)
        else:
            topic_position = decode_topic_position(position)
            pump = ToStream(name, spec, topic_position, self._engine, system, self._loop, self._files)
        self._pumps[name] = pump
        pump.start()

    def _sent(self, stream_id: int, topic_id: int) -> None:
        """Any thread. A topic of a stream got messages."""
        for pump in tuple(self._pumps.values()):
            if not pump.is_awake and pump.reads(stream_id, topic_id):
                self._loop.call_soon_threadsafe(pump.wake)

    def _topic_ended(self, name: str) -> None:
        pump = self._pumps.pop(name, None)
        if pump is not None:
            task = self._loop.create_task(pump.stop())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


def _position(spec: BridgeSpec, position: bytes) -> StreamPosition | TopicPosition:
    return decode_stream_position(position) if spec.is_from_stream else decode_topic_position(position)


def _cycle_through_stream(source: str, dest: str, edges: list[tuple[str, str]]) -> list[str] | None:
    """The cycle that an edge between two topics closes, if it can pass a stream."""
    after_dest = _reached(dest, edges)
    before_source = _reached(source, [(head, tail) for tail, head in edges])
    streams = sorted(name for name in after_dest & before_source if is_stream(name))
    if not streams:
        return None
    there, back = closed_cycle(streams[0], dest, edges), closed_cycle(source, streams[0], edges)
    assert there is not None
    assert back is not None
    return [source, *there[1:], *back[2:]]


def _reached(begin: str, edges: list[tuple[str, str]]) -> set[str]:
    """The names that a path of edges leads to, the first one included."""
    following: dict[str, list[str]] = {}
    for tail, head in edges:
        following.setdefault(tail, []).append(head)
    found, waiting = {begin}, [begin]
    while waiting:
        new = [name for name in following.get(waiting.pop(), ()) if name not in found]
        found.update(new)
        waiting += new
    return found


def _check_ends(name: str, source: str, dest: str, wanted: tuple[str, str]) -> None:
    if wanted != (source, dest):
        raise TopicExistsIncompatible(
            f'router "{name}" leads from "{source}" to "{dest}": delete it first',
            {
                "router": name,
                "reason": "router_repoint_forbidden",
                "existing_source": source,
                "existing_dest": dest,
            },
        )

"""The engine: topics by name, and everything that can be done to them.

Owner only: no method may be called by two threads at a time (`runtime` says who the owner is). Nothing here waits for a
disk. A call that needs the disk is answered through its `done` callback, which is called exactly once, with the result
or with the error, never before the call has returned; errors that can be told at once are raised instead. A callback
may call the engine.

The engine is a facade. Its rooms do the work, and each gets only the rooms that it needs:

| Room | Modules | What it does |
|---|---|---|
| core | `core` | topics by name, the turn of the owner, answers |
| writing | `writing/` | appends, commits of staged records, config, removal, deletes: all through one write path |
| routers | `routers/` | which routers there are, and copying |
| queues | `queues/` | jobs, leases, dead letters |
| groups | `groups` | cursors of consumer groups |
| bridges | `bridges` | definitions and positions of programs that copy between a topic and something else |
| cold columns | `cold_columns` | times and sizes inside cold segments, for retention |
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from topics.clock import Clock
from topics.engine.bridges import Bridges
from topics.engine.cold_columns import ColdColumns
from topics.engine.core import Core, Done
from topics.engine.groups import Groups
from topics.engine.pins import Pins
from topics.engine.queues.queues import Queues
from topics.engine.routers.forwarding import Forwarder
from topics.engine.routers.routing import Routing
from topics.engine.runtime import Runtime
from topics.engine.scheduler import effective_priority
from topics.engine.settings import EngineSettings
from topics.engine.topic.fetch import Fetch
from topics.engine.topic.reading import Page
from topics.engine.topic.router import Router, RouterSpec
from topics.engine.topic.topic import Topic, Waiter
from topics.engine.writing.append import Appends
from topics.engine.writing.commits import Commits
from topics.engine.writing.deletion import Deletion
from topics.engine.writing.derived_copies import DerivedCopies
from topics.engine.writing.long_appends import LongAppends
from topics.engine.writing.staging import Staging
from topics.engine.writing.topic_life import TopicLife
from topics.engine.writing.write_path import WritePath
from topics.errors import InvalidRequest
from topics.limits import READ_BYTES_DEFAULT, READ_BYTES_MAX, READ_LIMIT_DEFAULT, READ_LIMIT_MAX
from topics.storage.directory import DataDirectory
from topics.storage.segments.cache import SegmentCache
from topics.storage.tiers.cached_store import CachedStore
from topics.storage.wal.wal import Wal


class Engine:
    """Made by `starting.recovery.open_engine`."""

    def __init__(
        self,
        directory: DataDirectory,
        settings: EngineSettings,
        runtime: Runtime,
        clock: Clock,
        cache: SegmentCache,
        cold: CachedStore | None,
    ) -> None:
        self.core = core = Core(directory, settings, runtime, clock, cache, cold)
        derived = DerivedCopies(core)
        self.write_path = WritePath(core, derived)
        self.forwarder = Forwarder(core, self.write_path, derived)
        self.topic_life = TopicLife(core, self.write_path, derived, self.forwarder.copy_now)
        self.routing = Routing(core, self.write_path, derived, self.forwarder, self.topic_life)
        deletion = Deletion(core, self.write_path, derived, self.forwarder.copy_now)
        self.staging = Staging(core)
        self.commits = Commits(core, self.write_path, derived, self.topic_life, self.staging)
        long_appends = LongAppends(self.commits)
        appends = Appends(core, self.write_path, self.topic_life, long_appends)
        self.queues = Queues(core, self.forwarder, appends, deletion, derived)
        self.groups = Groups(core)
        self.bridges = Bridges(core, self.write_path, self.topic_life)
        self.cold_columns = ColdColumns(core)
        for tell in (
            self.routing.topic_removed,
            self.commits.forget_topic,
            self.staging.forget_topic,
            self.bridges.topic_removed,
        ):
            self.topic_life.on_removed.append(tell)
        # Calls of a room without a step in between: an append is the most frequent call.
        self.append = appends.append
        self.delete_records = deletion.delete
        self.put_topic = self.topic_life.put
        self.delete_topic = self.topic_life.delete
        self.now_ms = core.now_ms
        self.flush = core.flush
        self.topic = core.topic
        self.names_after = core.names_after
        self.call_after_group = core.call_after_group

    # What the rooms share.

    @property
    def topics(self) -> dict[str, Topic]:
        return self.core.topics

    @property
    def directory(self) -> DataDirectory:
        return self.core.directory

    @property
    def settings(self) -> EngineSettings:
        return self.core.settings

    def change_limits(self, *, topics_max: int, routers_max: int, total_bytes_max: int) -> None:
        """Other caps from now on; 0 = unlimited. What is over a new cap stays."""
        had_quota = bool(self.settings.total_bytes_max)
        self.core.change_limits(topics_max=topics_max, routers_max=routers_max, total_bytes_max=total_bytes_max)
        if had_quota != bool(total_bytes_max):
            for topic in self.topics.values():
                # With a byte quota each write is decided by itself.
                self.write_path.submit_noted(topic)
                self.write_path.note_config(topic)

    @property
    def runtime(self) -> Runtime:
        return self.core.runtime

    @property
    def clock(self) -> Clock:
        return self.core.clock

    @property
    def pins(self) -> Pins:
        return self.core.pins

    @property
    def cold(self) -> CachedStore | None:
        return self.core.cold

    @property
    def wal(self) -> Wal:
        return self.core.wal

    @property
    def is_closed(self) -> bool:
        return self.core.is_closed

    def has_topic(self, name: str) -> bool:
        """Whether a write to this name finds a topic, or one that is being created."""
        return self.core.find(name) is not None

    def stop_writes(self) -> None:
        """From here on every call that changes something is refused. Calls that have begun are answered."""
        self.refuse_all()
        self.queues.end_waits()
        self.forwarder.end_waits()

    def refuse_all(self) -> None:
        """Refuses every call that changes something, and answers none: a forked child leaves the log like this."""
        self.core.close()
        for topic in self.core.topics.values():
            self.write_path.note_config(topic)

    # Topics.

    def on_topic_created(self, tell: Callable[[Topic], None]) -> None:
        """Tells of each new topic, once it can be read."""
        self.topic_life.on_created.append(tell)

    def is_synced(self, name: str) -> bool:
        """Whether a power loss would take no record that is written to the topic's shard."""
        return self.topic(name).shard.is_synced

    def when_synced(self, name: str, callback: Callable[[], None]) -> None:
        """Calls back once, when everything that the topic's shard has now is synced. Never if the sync fails."""
        self.topic(name).shard.when_synced(partial(self.core.call_after_group, callback))

    def touch(self, topic: Topic) -> None:
        """Notes that the topic was read. That makes its work more urgent for a while."""
        topic.note_read(self.core.now_ms())

    def effective_priority(self, topic: Topic, waited_ms: int = 0) -> int:
        return effective_priority(topic.config, topic.last_read_ts, self.core.now_ms(), waited_ms)

    # Readers that wait.

    def wait_append(self, name: str, waiter: Waiter) -> None:
        """Calls back once: at the next publication, or when the topic instance ends."""
        self.core.topic(name).add_waiter(waiter)

    def cancel_wait(self, name: str, waiter: Waiter) -> None:
        """Also when the waiter was called already, or the topic is gone, or another topic has its name by now."""
        topic = self.core.topics.get(name)
        if topic is not None:
            topic.remove_waiter(waiter)

    # Routers.

    @property
    def routers(self) -> dict[str, Router]:
        return self.routing.routers

    def router(self, name: str) -> Router:
        return self.routing.router(name)

    def put_router(self, name: str, spec: RouterSpec, done: Done[bool]) -> None:
        """Creates or changes a router, and creates its topics. `done(created)` once that is synced."""
        self.core.check_open()
        self.routing.put(name, spec, done)

    def delete_router(self, name: str, done: Done[bool]) -> None:
        """Stops the router; its copies stay. `done(deleted)` once that is synced."""
        self.core.check_open()
        self.routing.delete(name, done)

    def bring_up_to_date(self, name: str) -> bool:
        """Forwards what routers can copy into this topic now, or the first part of it. Returns whether all copies are
        there."""
        topic = self.core.topics.get(name)
        return topic is None or not topic.links.routers_in or self.forwarder.bring_up_to_date(topic)

    def when_up_to_date(self, name: str, then: Waiter) -> bool:
        """Returns whether the topic has the copies of all records that its sources have now. If not, calls `then` once
        when it has them: they are copied in steps, with turns of other calls between."""
        topic = self.core.topics.get(name)
        return topic is None or not topic.links.routers_in or self.forwarder.when_up_to_date(topic, then)

    def copy_now(self, name: str) -> None:
        """Forwards everything that routers can copy into this topic now, however long that takes."""
        topic = self.core.topics.get(name)
        if topic is not None and topic.links.routers_in:
            self.forwarder.copy_now(topic)

    # Reading.

    def read(
        self,
        name: str,
        from_seq: int = 0,
        *,
        limit: int = READ_LIMIT_DEFAULT,
        bytes_max: int = READ_BYTES_DEFAULT,
        nodes: frozenset[bytes] | None = None,
    ) -> Page:
        """Records with seqs above `from_seq`, and the tombstone of what is missing there."""
        topic = self.core.topic(name)
        if from_seq < 0 or limit < 0 or bytes_max < 0:
            raise InvalidRequest("from_seq, limit and bytes_max are not negative")
        if topic.links.routers_in:
            self.forwarder.bring_up_to_date(topic)
        now_ms = self.core.now_ms()
        topic.refresh(now_ms)
        topic.note_read(now_ms)
        return topic.read(from_seq, *_read_bounds(limit, bytes_max), nodes)

    def fetch_needed(
        self, name: str, from_seq: int, limit: int = READ_LIMIT_DEFAULT, bytes_max: int = READ_BYTES_DEFAULT
    ) -> Fetch | None:
        """What must be done elsewhere before a `read` of this page, so that the owner waits for no disk or network.

        None when the page is in memory, or in the page cache as far as the system tells. Else a function for another
        thread: `run_cold` has the threads for one that `is_cold`. Once it has returned, `read` is called, once. What
        the function raises is the answer to the reader. Between the two the topic may change, so `read` may come to
        other records: it waits for a disk then, and for bytes of the cold tier it raises `NotFetched`. It also has to
        wait for pages after the fetched ones on a system that does not tell what is cached.
        """
        topic = self.core.topic(name)
        live = topic.live
        if live.tail.first_seq <= from_seq + 1 and from_seq <= live.head_seq:
            return None
        if from_seq < 0 or limit < 0 or bytes_max < 0:
            # `read` refuses this.
            return None
        topic.refresh(self.core.now_ms())
        return topic.fetch_needed(from_seq, *_read_bounds(limit, bytes_max))

    def run_cold(self, name: str, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Runs work that waits for the cold tier on one of the threads for that, then `done` on the owner."""
        self.core.cold_pool.run(self.core.topic(name).id, work, done)


def _read_bounds(limit: int, bytes_max: int) -> tuple[int, int]:
    return min(limit or READ_LIMIT_DEFAULT, READ_LIMIT_MAX), min(bytes_max or READ_BYTES_DEFAULT, READ_BYTES_MAX)

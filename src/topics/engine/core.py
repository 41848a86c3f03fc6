"""What all rooms of the engine share: the topics by name, the log, the clock, and the turn of the owner.

Owner only: no method may be called by two threads at a time (`runtime` says who the owner is). Nothing here waits.

A turn ends with `flush`: the writes noted in the turn get their seqs, each shard writes one group, and the callbacks
whose results became true are called (`Completions`). Work that comes back from a background thread ends the same way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeAlias, TypeVar

from topics.clock import Clock
from topics.engine.names import SortedNames
from topics.engine.pins import Pins
from topics.engine.runtime import Runtime
from topics.engine.settings import EngineSettings
from topics.engine.ticker import Ticker
from topics.engine.topic.live_records import LiveBytes
from topics.engine.topic.replayed import WalFiles
from topics.engine.topic.topic import Topic
from topics.errors import Closed, TopicNotFound, TopicsError
from topics.storage.directory import DataDirectory
from topics.storage.segments.cache import SegmentCache
from topics.storage.tiers.cached_store import CachedStore
from topics.storage.wal.wal import Wal

T = TypeVar("T")

Done: TypeAlias = Callable[[T | TopicsError], None]
"""Called once with the result of a call, or with the error. It may call the engine."""

# Marks a callback that is called without a result.
_NO_RESULT: Final = object()

Applied = Callable[[TopicsError | None], None]
"""Told that frames are committed, or that they failed."""


class Completions:
    """Callbacks with their results, in the order in which the results became true.

    The engine's rooms change their state while a group of the log completes. A caller's callback that ran in the middle
    of that could call the engine and find it half changed. So nothing in the engine calls a caller's `done`: it goes
    into this queue with its result, and the queue is emptied where the engine may be called again.
    """

    __slots__ = ("_is_delivering", "_queue")

    def __init__(self) -> None:
        self._queue: deque[tuple[Callable[..., None], Any]] = deque()
        self._is_delivering = False

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def is_delivering(self) -> bool:
        return self._is_delivering

    def add(self, done: Done[T], result: T | TopicsError) -> None:
        self._queue.append((done, result))

    def add_call(self, call: Callable[[], None]) -> None:
        """A step that goes on with the engine, or a waiter."""
        self._queue.append((call, _NO_RESULT))

    def deliver(self) -> None:
        """Calls what is queued, also what the callbacks add. Does nothing inside a callback: the outer call goes on."""
        if self._is_delivering:
            return
        queue = self._queue
        self._is_delivering = True
        try:
            while queue:
                call, result = queue.popleft()
                if result is _NO_RESULT:
                    call()
                else:
                    call(result)
        finally:
            self._is_delivering = False


class Core:
    """Only this module assigns the fields of `Core`."""

    def __init__(
        self,
        directory: DataDirectory,
        settings: EngineSettings,
        runtime: Runtime,
        clock: Clock,
        cache: SegmentCache,
        cold: CachedStore | None,
    ) -> None:
        self.directory = directory
        self.settings = settings
        self.runtime = runtime
        self.clock = clock
        self.cache = cache
        self.cold = cold
        # Everything that waits for the cold tier, except copies of segments to it.
        self.cold_pool = runtime.cold_pool(settings.cold_call_ms_max)
        # Whether the cold tier is known to belong to this data directory: nothing moves there before.
        self.is_cold_claimed = False
        self.topics: dict[str, Topic] = {}
        # Topics whose creation is not synced yet: writers see them, readers do not.
        self.creating: dict[str, Topic] = {}
        # Sorted names of `topics`, made when they are listed for the first time.
        self._names: SortedNames | None = None
        self.next_topic_id = 1
        self.live_bytes = LiveBytes()
        # The newest time that is stored. The engine's time is never earlier.
        self._newest_ts = 0
        self.is_closed = False
        self.pins = Pins(clock)
        # Set when the log is open.
        self.wal: Wal
        # Files that replayed records are read from, until the first checkpoint has put all of them into segments.
        self.wal_files: WalFiles | None = None
        self.completions = Completions()
        self.ticker = Ticker()
        # Called at the start of every flush: the writes of the turn get their seqs.
        self._before_flush: Callable[[], None] = _nothing
        self._is_writing = False
        self._must_flush_again = False
        # Whether this turn delivers completions when it ends.
        self._will_deliver = False
        runtime.use_turns(self.run_turn)

    # Time.

    def now_ms(self) -> int:
        now_ms = self.clock.now_ms()
        return max(self._newest_ts, now_ms)

    def note_time(self, ts: int) -> None:
        """A record with this time is stored."""
        if ts > self._newest_ts:
            self._newest_ts = ts

    # The turn.

    def on_flush(self, call: Callable[[], None]) -> None:
        self._before_flush = call

    def flush(self) -> None:
        """Ends a turn of the owner: writes one group per shard, then calls back."""
        self._before_flush()
        if self._is_writing:
            # A callback of the log calls this. Frames that are queued during the group go into the next group.
            self._must_flush_again = True
            return
        will_deliver, self._will_deliver = self._will_deliver, True
        try:
            self._write_groups()
            completions = self.completions
            if completions.is_delivering:
                # A caller's callback asks for it. The delivery goes on when the callback returns.
                return
            while completions:
                completions.deliver()
                if self._must_flush_again:
                    self._before_flush()
                    self._write_groups()
        finally:
            self._will_deliver = will_deliver

    def _write_groups(self) -> None:
        self._is_writing = True
        try:
            self._must_flush_again = True
            while self._must_flush_again:
                self._must_flush_again = False
                self.wal.flush()
        finally:
            self._is_writing = False

    def flush_soon(self) -> None:
        """Something was queued: `flush` must run at the end of this turn, or soon after it."""
        self.runtime.flush_soon(self.flush)

    def flush_in_turn(self) -> None:
        """The next step of one call was queued by a callback of the step before: it is written in the same turn, if a
        flush runs; else soon."""
        self._must_flush_again = True
        self.flush_soon()

    def run_turn(self, callback: Callable[[], None]) -> None:
        """Runs work that came back from the background; then callers get the answers that it made true."""
        will_deliver, self._will_deliver = self._will_deliver, True
        try:
            callback()
        finally:
            self._will_deliver = will_deliver
        self.completions.deliver()

    def deliver_soon(self) -> None:
        """Completions were added: sees to it that they are delivered."""
        if not self._will_deliver:
            self.flush_soon()

    def answer(self, done: Done[T], result: T | TopicsError) -> None:
        """Gives a caller its result, once the group has ended."""
        self.completions.add(done, result)
        self.deliver_soon()

    def call_after_group(self, call: Callable[[], None]) -> None:
        """Calls back where the engine may be called."""
        self.completions.add_call(call)
        self.deliver_soon()

    def call_again(self, call: Callable[[], None], done: Done[T]) -> None:
        """Repeats a call that had to wait. What the call raises now is the answer of its caller."""
        try:
            call()
        except TopicsError as error:
            self.answer(done, error)

    def log(self, topic: Topic, frames: bytes, applied: Applied, *, durable: bool, frame_count: int = 1) -> None:
        """Queues frames that are no records on the topic's shard. Raises when nothing was queued.

        `applied` is called when the frames are committed or have failed, in the order of the log. It changes state and
        queues answers, and never calls the engine.
        """
        topic.shard.submit(frames, frame_count, durable=durable, done=applied)
        if self._is_writing:
            # A callback of the log goes on: this frame is in the next group of the same flush.
            self._must_flush_again = True
        else:
            self.flush_soon()

    # Opening and closing.

    def use_wal(self, wal: Wal) -> None:
        self.wal = wal
        wal.tell_unsynced(self.ticker.wake)

    def use_runtime(self, runtime: Runtime) -> None:
        self.runtime = runtime
        runtime.use_turns(self.run_turn)

    def use_wal_files(self, files: WalFiles) -> None:
        self.wal_files = files

    def close_wal_files(self) -> None:
        """Every replayed record is in a segment."""
        if self.wal_files is not None:
            self.wal_files.close()
            self.wal_files = None

    def use_cold(self, cold: CachedStore) -> None:
        self.cold = self.cache.cold = cold

    def claim_cold(self) -> None:
        self.is_cold_claimed = True

    def close(self) -> None:
        """From here on every call that changes something is refused. Calls that have begun are answered."""
        self.is_closed = True

    def change_limits(self, *, topics_max: int, routers_max: int, total_bytes_max: int) -> None:
        self.settings = replace(
            self.settings, topics_max=topics_max, routers_max=routers_max, total_bytes_max=total_bytes_max
        )

    def check_open(self) -> None:
        if self.is_closed:
            raise Closed

    # Topics.

    def topic(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            raise TopicNotFound(name)
        return topic

    def is_current(self, topic: Topic) -> bool:
        """Whether the topic instance has not ended."""
        return self.topics.get(topic.name) is topic

    def find(self, name: str) -> Topic | None:
        """The topic that a write to this name finds, also one that is being created."""
        return self.topics.get(name) or self.creating.get(name)

    def take_topic_id(self) -> int:
        topic_id = self.next_topic_id
        self.next_topic_id += 1
        return topic_id

    def note_topic_id(self, topic_id: int) -> None:
        """A topic with this id exists, or existed."""
        self.next_topic_id = max(self.next_topic_id, topic_id + 1)

    def use_topics(self, topics: dict[str, Topic]) -> None:
        """The topics that a start found."""
        self.topics = topics

    def add_topic(self, topic: Topic) -> None:
        self.topics[topic.name] = topic
        if self._names is not None:
            self._names.add(topic.name)

    def remove_topic(self, topic: Topic) -> None:
        del self.topics[topic.name]
        if self._names is not None:
            self._names.remove(topic.name)

    def names_after(self, prefix: str, after: str | None, count: int) -> list[str]:
        """At most `count` topic names that begin with `prefix` and come after `after`, in ascending order."""
        if self._names is None:
            self._names = SortedNames(self.topics)
        return self._names.after(prefix, after, count)


def _nothing() -> None:
    pass

"""Delivery: records go to the connections that subscribed, as fast as each connection takes them.

A `Feed` is one connection with its subscriptions. The `Hub` knows which feeds want which topic. A publication puts the
topic into the ready set; a topic that is already there is not added twice. In turns of the loop the hub takes topics
out of the ready set, and each feed of the topic pulls the new records.

A feed pulls one frame at a time, and none while its connection is congested, so a slow client delays no other client.
A feed goes through its topics in the order of their names. It drains each topic before the next, and returns to the
first topic after the last, so no topic starves.

Subscriptions with the same cursor share one reading (`reading`). The first of them goes through every step below. When
its reading comes to the head and has nothing but records, the others get the same bytes by `Feed.push`.

Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from time import perf_counter
from typing import Final

from mypy_extensions import mypyc_attr

from topics.engine.engine import Engine
from topics.engine.scheduler import B0, ReadySet, band_of
from topics.errors import ColdUnavailable, CorruptRecord, TopicNotFound
from topics.results import Reason, Tombstone
from topics.server.live.reading import Reading, ReadOptions, RenderedRecords
from topics.server.pressure import RETRY_AFTER_MS

logger = logging.getLogger(__name__)

# Feeds that are served in one turn of the loop.
FEEDS_PER_TURN: Final = 64
# Feeds after this time are served in the next turn: a frame may have a megabyte.
TURN_S_MAX: Final = 0.005
# Frames that one feed gets in one turn of the loop.
FRAMES_PER_TURN: Final = 4
# From this number of feeds of a topic on, feeds that lag behind come to common places.
CROWD_FEEDS: Final = 8
# How long a feed waits before it tries again to read from an unavailable cold tier.
RETRY_S: Final = 1.0

SLOW_CONSUMER: Final = "slow_consumer"
"""Code of the last frame to a client that took no bytes for too long."""
SLOW_CONSUMER_MESSAGE: Final = "the client took no bytes for too long; connect again and continue after the last seq"


class Subscription:
    """One topic of one feed."""

    __slots__ = (
        "bytes_max",
        "cursor",
        "form",
        "is_caught_up",
        "is_fetched",
        "is_fetching",
        "is_first",
        "is_strong",
        "is_syncing",
        "limit",
        "name",
        "nodes",
        "options",
        "synced_seq",
        "topic_id",
    )

    def __init__(self, name: str, topic_id: int, cursor: int, options: ReadOptions, *, is_strong: bool = False) -> None:
        self.name = name
        # Number of the topic. A later topic of the same name has another number.
        self.topic_id = topic_id
        # The last seq that was read or skipped.
        self.cursor = cursor
        self.options = options
        self.form = options.form
        self.limit = options.limit
        self.bytes_max = options.bytes_max
        self.nodes = options.nodes
        # No read has been made for this subscription yet.
        self.is_first = True
        # The feed got `on_caught_up`, and no records after that.
        self.is_caught_up = False
        # A fetch of the bytes of the next read is under way.
        self.is_fetching = False
        # The bytes of the next read were fetched. The read is made even if they are not cached any more.
        self.is_fetched = False
        # Only synced records are delivered.
        self.is_strong = is_strong
        # Records up to this seq are known to be synced.
        self.synced_seq = 0
        # The subscription waits for a sync.
        self.is_syncing = False


@mypyc_attr(allow_interpreted_subclasses=True)
class Feed(ABC):
    """A connection that gets records. Subclasses make the frames of their protocol."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.subscriptions: dict[str, Subscription] = {}
        self.is_closed = False
        # The feed is in the line of feeds to be served.
        self.is_waiting = False
        # Topics that may have new records.
        self.due: set[str] = set()
        # The last topic that was drained in this pass over the due topics.
        self.drained = ""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the connection takes another frame now. When it does so again, it calls `Hub.resume`."""

    @abstractmethod
    def on_records(self, subscription: Subscription, from_seq: int, reading: Reading) -> None:
        """At least one record. The subscription's cursor is already at the last of them."""

    @abstractmethod
    def on_tombstone(self, subscription: Subscription, tombstone: Tombstone, reason: Reason) -> None:
        """Records are gone. The cursor is already at the end of the gap."""

    @abstractmethod
    def on_caught_up(self, subscription: Subscription, head_seq: int) -> None: ...

    @abstractmethod
    def on_deleted(self, subscription: Subscription) -> None:
        """The topic was deleted, and the subscription has ended."""

    def on_moved(self, subscription: Subscription) -> None:  # noqa: B027 - some feeds have nothing to do.
        """A read only skipped records: there is nothing to send, but the cursor has moved."""

    def on_pressure(self, topics: list[str], retry_after_ms: int) -> None:  # noqa: B027 - some protocols have no message for it.
        """The server has too much to do, and holds new records of these topics back for a while."""

    def push(self, subscription: Subscription, reading: Reading) -> None:
        """Records up to the head, and nothing else, for a subscription that was caught up before. The connection is
        ready, and the cursor is at the last record. Subclasses send both frames in one piece."""
        self.on_records(subscription, reading.from_seq, reading)
        self.on_caught_up(subscription, reading.page.head_seq)
        self.after_read()

    def after_read(self) -> None:  # noqa: B027 - some feeds hold no frames.
        """One read is over: a feed that holds frames to send them together sends them now."""

    def on_failed(self) -> None:  # noqa: B027 - some feeds end with their connection.
        """The delivery failed because of a bug. The hub has removed this feed."""

    def next_due(self) -> str:
        """The due topic after the last drained one, or the first due topic."""
        if len(self.due) == 1:
            return next(iter(self.due))
        return min([name for name in self.due if name > self.drained] or self.due)


class Hub:
    """Knows which feeds want which topic, and serves them in turns."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, pool: Executor) -> None:
        self.engine = engine
        self.loop = loop
        self._pool = pool
        self._feeds: dict[str, dict[Feed, None]] = {}
        self._wakers: dict[str, Callable[[], None]] = {}
        # Topics with new records.
        self._ready: ReadySet[str] = ReadySet(self._priority_of)
        # Feeds with due topics, first come first served. A feed that is closed meanwhile is passed over.
        self._serving: deque[Feed] = deque()
        self._turn_is_due = False
        self._is_in_turn = False
        # Under pressure: how long new records wait for more records to go with them.
        self.coalesce_ms = 0.0
        # Topics that are held back, if their feeds were told so.
        self._advised: set[str] = set()
        # Reads of this turn of the loop. Before the next turn, records may be deleted.
        self._readings: dict[tuple[int, int, ReadOptions], Reading] = {}
        # Texts of records, by the form that subscriptions want.
        self._renderers: dict[int, RenderedRecords] = {}
        # The last reading of this turn that can be pushed to other subscriptions.
        self._pushed: Reading | None = None

    # Subscriptions.

    def subscribe(self, feed: Feed, subscription: Subscription) -> None:
        """Adds or replaces; the first frames follow in a later turn."""
        name = subscription.name
        feed.subscriptions[name] = subscription
        feeds = self._feeds.setdefault(name, {})
        feeds[feed] = None
        if name not in self._wakers:
            self._arm(name)
        feed.due.add(name)
        self._hold_back(feed)
        self.resume(feed)

    def unsubscribe(self, feed: Feed, name: str) -> None:
        feed.subscriptions.pop(name, None)
        feed.due.discard(name)
        feeds = self._feeds.get(name)
        if feeds is None:
            return
        feeds.pop(feed, None)
        if not feeds:
            del self._feeds[name]
            self._ready.discard(name)
            waker = self._wakers.pop(name, None)
            if waker is not None:
                self.engine.cancel_wait(name, waker)

    def remove(self, feed: Feed) -> None:
        """The connection ended."""
        feed.is_closed = True
        for name in list(feed.subscriptions):
            self.unsubscribe(feed, name)

    def resume(self, feed: Feed) -> None:
        """The connection takes frames again."""
        if feed.due and not feed.is_closed:
            self._serve_soon(feed)
            self._take_turn()

    def _serve_soon(self, feed: Feed) -> None:
        """A feed that waits to be served already keeps its place."""
        if not feed.is_waiting:
            feed.is_waiting = True
            self._serving.append(feed)

    # Pressure.

    @property
    def ready_depth(self) -> int:
        """Topics in the ready set that are not paused."""
        return self._ready.turn_count()

    def pause_lowest_band(self, *, on: bool) -> None:
        """While this is on, topics of the lowest band are not pushed. Their records stay, and can be read."""
        self._ready.is_b0_paused = on
        # A topic that has left the lowest band only by waiting returns to it.
        self._ready.review(self._now_ms())
        if on:
            self._advise()
        else:
            self._advised.clear()
        if self._ready.turn_count():
            self._take_turn()

    def _hold_back(self, feed: Feed) -> None:
        """Moves due topics that are paused from the feed back to the ready set."""
        if not self._ready.is_b0_paused:
            return
        for name in list(feed.due):
            if band_of(self._priority_of(name, 0)) == B0:
                feed.due.discard(name)
                self._ready.add(name, self._now_ms())

    def _advise(self) -> None:
        """Tells feeds which topics are held back, once for each topic and pause."""
        topics_by_feed: dict[Feed, list[str]] = {}
        for name in self._ready.paused():
            if name not in self._advised:
                self._advised.add(name)
                for feed in self._feeds.get(name, ()):
                    topics_by_feed.setdefault(feed, []).append(name)
        for feed, topics in topics_by_feed.items():
            if feed.is_ready() and not feed.is_closed:
                feed.on_pressure(topics, RETRY_AFTER_MS)

    # Turns.

    def _now_ms(self) -> int:
        return self.engine.clock.monotonic_ms()

    def _priority_of(self, name: str, waited_ms: int) -> int:
        topic = self.engine.topics.get(name)
        return 0 if topic is None else self.engine.effective_priority(topic, waited_ms)

    def _arm(self, name: str) -> None:
        """Waits for the next publication of the topic, or for its end."""
        if name in self.engine.topics:
            waker = self._wakers[name] = partial(self._wake, name)
            self.engine.wait_append(name, waker)

    def _wake(self, name: str) -> None:
        """Notes the topic. The topics that the group published are served together, after the answers to writers."""
        self._wakers.pop(name, None)
        self._ready.add(name, self._now_ms())
        if self.coalesce_ms:
            self._take_turn(self.coalesce_ms)
        elif not self._turn_is_due and not self._is_in_turn:
            # A read of a router's dest may publish copies. A turn inside that read would send them twice.
            self._turn_is_due = True
            self.engine.call_after_group(self._turn)

    def _take_turn(self, delay_ms: float = 0.0) -> None:
        if not self._turn_is_due:
            self._turn_is_due = True
            if delay_ms:
                self.loop.call_later(delay_ms / 1000, self._turn)
            else:
                self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Serves some feeds. The other feeds are served in the next turn, after new requests."""
        self._turn_is_due = False
        self._is_in_turn = True
        try:
            self._serve_feeds()
        finally:
            self._is_in_turn = False
            self._readings.clear()
            self._pushed = None
            if self._serving or self._ready.turn_count():
                self._take_turn()

    def _serve_feeds(self) -> None:
        until_s = perf_counter() + TURN_S_MAX
        # Topics with new records go first. Feeds that still catch up wait for the next turn.
        for _ in range(FEEDS_PER_TURN):
            if len(self._serving) >= FEEDS_PER_TURN or not self._next_topic():
                break
        for _ in range(min(FEEDS_PER_TURN, len(self._serving))):
            if not self._serving or perf_counter() >= until_s:
                break
            feed = self._serving.popleft()
            feed.is_waiting = False
            try:
                self._pump(feed)
            except Exception:
                # A bug in one feed must not end the other feeds.
                logger.exception("a stream failed")
                self.remove(feed)
                feed.on_failed()

    def _next_topic(self) -> bool:
        now_ms = self._now_ms()
        while (name := self._ready.pop(now_ms)) is not None:
            feeds = self._feeds.get(name)
            if not feeds:
                continue
            # Armed before the reads: a publication from now on adds the topic to the ready set again.
            self._arm(name)
            for feed in feeds:
                feed.due.add(name)
                if not feed.is_waiting:
                    feed.is_waiting = True
                    self._serving.append(feed)
            return True
        return False

    def _pump(self, feed: Feed) -> None:
        """Sends frames until the feed has everything, takes no more, or has had its share of the turn."""
        for _ in range(FRAMES_PER_TURN):
            if not feed.due or feed.is_closed or not feed.is_ready():
                return
            name = feed.next_due()
            subscription = feed.subscriptions[name]
            if self._maybe_push(feed, subscription) or self._read_and_deliver(feed, subscription):
                feed.due.discard(name)
                feed.drained = name
        self._hold_back(feed)
        if feed.due:
            self._serve_soon(feed)

    def _maybe_push(self, feed: Feed, subscription: Subscription) -> bool:
        """Sends what another subscription at the same place has got in this turn. Returns whether that was possible."""
        reading = self._pushed
        if (
            reading is None
            or reading.from_seq != subscription.cursor
            or reading.topic_id != subscription.topic_id
            or reading.form != subscription.form
            or reading.size_bytes > subscription.bytes_max
            or reading.page.records_scanned > subscription.limit
            or not subscription.is_caught_up
            or subscription.is_strong
            or subscription.is_fetching
        ):
            return False
        subscription.cursor = reading.page.head_seq
        if subscription.nodes is not None:
            reading = reading.without(subscription.nodes)
            if not reading.record_count:
                feed.on_moved(subscription)
                return True
        feed.push(subscription, reading)
        return True

    def _read_and_deliver(self, feed: Feed, subscription: Subscription) -> bool:
        """Makes one read. Returns True if the subscription has nothing to do until it is due again."""
        if subscription.is_fetching or subscription.is_syncing:
            return True
        try:
            return self._maybe_fetch(feed, subscription) or self._deliver(feed, subscription)
        except TopicNotFound:
            self._delete(feed, subscription)
        except CorruptRecord as error:
            self._skip_corrupt(feed, subscription, error.seq)
            return False
        except ColdUnavailable:
            self._retry(feed, subscription)
        finally:
            feed.after_read()
        return True

    def _maybe_fetch(self, feed: Feed, subscription: Subscription) -> bool:
        """Fetches the bytes of the next read if they may not be in memory. Returns whether the read waits for them."""
        options = subscription.options
        name = subscription.name
        self._check_instance(subscription)
        if subscription.is_fetched:
            subscription.is_fetched = False
            return False
        fetch = self.engine.fetch_needed(name, subscription.cursor, options.limit, options.bytes_max)
        if fetch is None:
            return False
        subscription.is_fetching = True
        if fetch.is_cold:
            self.engine.run_cold(name, fetch, partial(self._fetched, feed, subscription))
        else:
            future = self.loop.run_in_executor(self._pool, fetch)
            future.add_done_callback(lambda done: self._fetched(feed, subscription, done.exception()))
        return True

    def _fetched(self, feed: Feed, subscription: Subscription, error: BaseException | None) -> None:
        subscription.is_fetching = False
        if isinstance(error, ColdUnavailable):
            self._retry(feed, subscription)
        else:
            # After any other error the read is made too, and reports the error.
            subscription.is_fetched = True
            self._make_due(feed, subscription)

    def _retry(self, feed: Feed, subscription: Subscription) -> None:
        self.loop.call_later(RETRY_S, self._make_due, feed, subscription)

    def _make_due(self, feed: Feed, subscription: Subscription) -> None:
        """The subscription can go on, unless it has ended or was replaced."""
        if feed.subscriptions.get(subscription.name) is subscription:
            feed.due.add(subscription.name)
            self._serve_soon(feed)
            self._take_turn()

    def _check_instance(self, subscription: Subscription) -> None:
        topic = self.engine.topics.get(subscription.name)
        if topic is None or topic.id != subscription.topic_id:
            raise TopicNotFound(subscription.name)

    def _deliver(self, feed: Feed, subscription: Subscription) -> bool:
        """Makes one read. Returns True if there is nothing more to read, or the delivery waits for a sync."""
        from_seq = subscription.cursor
        if subscription.is_strong and self._maybe_wait_for_sync(feed, subscription, from_seq):
            return True
        reading = self._read(subscription)
        page = reading.page
        if subscription.is_strong and self._maybe_wait_for_sync(feed, subscription, page.next_from_seq - 1):
            return True
        if page.tombstone is not None:
            tombstone = page.tombstone
            from_seq = subscription.cursor = _end_of(tombstone)
            subscription.is_caught_up = False
            feed.on_tombstone(subscription, tombstone, tombstone.reason)
        subscription.is_first = False
        subscription.cursor = page.next_from_seq
        if reading.record_count:
            subscription.is_caught_up = False
            feed.on_records(subscription, from_seq, reading)
        elif page.next_from_seq != from_seq:
            feed.on_moved(subscription)
        if not page.caught_up:
            return False
        if not subscription.is_caught_up and not self._maybe_wait_for_copies(feed, subscription):
            subscription.is_caught_up = True
            feed.on_caught_up(subscription, page.head_seq)
            if page.tombstone is None and not reading.is_filtered:
                self._pushed = reading.whole
        return True

    def _maybe_wait_for_copies(self, feed: Feed, subscription: Subscription) -> bool:
        """Waits if routers still have records to copy into the topic. Returns whether the subscription waits."""
        return not self.engine.when_up_to_date(subscription.name, partial(self._make_due, feed, subscription))

    def _read(self, subscription: Subscription) -> Reading:
        options = subscription.options
        cursor = subscription.cursor
        if cursor < subscription.synced_seq:
            options = options._replace(limit=min(options.limit, subscription.synced_seq - cursor))
        lag = self.engine.topic(subscription.name).head_seq - cursor
        is_in_crowd = len(self._feeds[subscription.name]) >= CROWD_FEEDS
        if lag > options.limit and is_in_crowd:
            # Many feeds are at different places. After a page that ends at a multiple of the limit they share pages.
            options = options._replace(limit=options.limit - cursor % options.limit)
        nodes = options.nodes
        if nodes is not None and (lag <= options.limit or is_in_crowd):
            whole = self._reading(subscription, options._replace(nodes=None))
            reading = whole.without(nodes)
            # A page that comes to the head is the same as one that was read with the filter. Another page may be
            # smaller: a crowd takes that for the next place that it shares.
            if whole.page.caught_up or (is_in_crowd and 2 * reading.record_count >= whole.record_count):
                return reading
        return self._reading(subscription, options)

    def _reading(self, subscription: Subscription, options: ReadOptions) -> Reading:
        place = (subscription.topic_id, subscription.cursor, options)
        reading = self._readings.get(place)
        if reading is None:
            page = self.engine.read(
                subscription.name,
                subscription.cursor,
                limit=options.limit,
                bytes_max=options.bytes_max,
                nodes=options.nodes,
            )
            tombstone = page.tombstone
            from_seq = subscription.cursor if tombstone is None else _end_of(tombstone)
            renderer = self._renderer(options)
            reading = self._readings[place] = Reading(page, options, renderer, subscription.topic_id, from_seq)
        return reading

    def _renderer(self, options: ReadOptions) -> RenderedRecords:
        renderer = self._renderers.get(options.form)
        if renderer is None:
            renderer = self._renderers[options.form] = RenderedRecords(
                include_tags=options.include_tags,
                include_meta=options.include_meta,
                include_data=options.include_data,
            )
        return renderer

    def _maybe_wait_for_sync(self, feed: Feed, subscription: Subscription, after_seq: int) -> bool:
        """Waits for a sync if the record after `after_seq` is not synced. Returns whether the subscription waits."""
        topic = self.engine.topic(subscription.name)
        head_seq = topic.head_seq
        if topic.config.durability == "ephemeral" or self.engine.is_synced(topic.name):
            subscription.synced_seq = head_seq
            return False
        if after_seq < subscription.synced_seq or after_seq == head_seq:
            return False
        subscription.is_syncing = True
        self.engine.when_synced(topic.name, partial(self._synced, feed, subscription, head_seq))
        return True

    def _synced(self, feed: Feed, subscription: Subscription, seq: int) -> None:
        """Called by the engine, so the feed goes on in a later turn of the loop."""
        subscription.is_syncing = False
        subscription.synced_seq = max(subscription.synced_seq, seq)
        self._make_due(feed, subscription)

    def _skip_corrupt(self, feed: Feed, subscription: Subscription, seq: int) -> None:
        """Reports the damaged record as a gap. If another gap ends at that record, both are one gap.

        The failed read has reported neither.
        """
        topic = self.engine.topic(subscription.name)
        first_seq = 1 if subscription.cursor > topic.head_seq else subscription.cursor + 1
        lost = topic.live.lost.at_or_after(first_seq)
        follows_gap = (
            subscription.cursor > topic.head_seq
            or first_seq < topic.live.evict_floor
            or (lost is not None and lost.first_seq <= first_seq)
        )
        gap_from = first_seq if follows_gap else seq
        subscription.cursor = seq
        subscription.is_caught_up = False
        gap = Tombstone(gap_from, seq, "corrupt", seq - gap_from + 1, topic.earliest_seq, topic.head_seq)
        feed.on_tombstone(subscription, gap, "corrupt")
        subscription.is_first = False

    def _delete(self, feed: Feed, subscription: Subscription) -> None:
        self.unsubscribe(feed, subscription.name)
        feed.on_deleted(subscription)


def _end_of(tombstone: Tombstone) -> int:
    """The cursor after the gap. A topic that was created again is read from its first record on."""
    return tombstone.gap_to if tombstone.reason != "recreated" else tombstone.earliest_seq - 1

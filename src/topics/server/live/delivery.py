"""Delivery: records go to those who subscribed, as fast as each of them takes them.

A `Feed` is one connection with its subscriptions. The `Hub` knows which feeds want which topic. A publication puts
the topic into the ready set, once however large the burst; in turns of the loop the hub takes topics out of it and
lets each feed of the topic pull what is new. A feed pulls one frame at a time, and none while its connection is
congested: a slow peer costs itself only. It goes through its topics in the order of their names, drains each before
the next, and comes back to the first only behind the last: none starves. What is rendered for one feed is used for all
that stand at the same place.

Loop thread only. Nothing in here runs inside a callback of the engine.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, NamedTuple

from topics.engine.engine import Engine
from topics.engine.scheduler import B0, ReadySet, band_of
from topics.engine.topic.page import Page, Reason, Tombstone
from topics.errors import ColdUnavailable, CorruptRecord, TopicNotFound
from topics.protocol.record_text import record_texts
from topics.server.pressure import RETRY_AFTER_MS

logger = logging.getLogger(__name__)

# Feeds that are served in one turn of the loop, and frames that one feed gets in it.
FEEDS_PER_TURN: Final = 64
FRAMES_PER_TURN: Final = 4
# How long a feed waits before it asks again for records that cannot be read now.
RETRY_S: Final = 1.0

SLOW_CONSUMER: Final = "slow_consumer"
"""Code of the last frame to a client that took nothing for too long."""
SLOW_CONSUMER_MESSAGE: Final = "nothing was taken for too long; connect again and go on behind what you have"


class ReadOptions(NamedTuple):
    """How a subscription wants its records."""

    limit: int
    bytes_max: int
    nodes: frozenset[bytes] | None = None
    include_tags: bool = False
    include_meta: bool = True
    include_data: bool = True


class Subscription:
    """One topic of one feed."""

    __slots__ = (
        "cursor",
        "is_caught_up",
        "is_fetched",
        "is_fetching",
        "is_first",
        "is_strong",
        "is_syncing",
        "name",
        "options",
        "synced_seq",
        "topic_id",
    )

    def __init__(self, name: str, topic_id: int, cursor: int, options: ReadOptions, *, is_strong: bool = False) -> None:
        self.name = name
        # The instance that was subscribed to: another one of the same name is another topic.
        self.topic_id = topic_id
        # Last seq that was examined.
        self.cursor = cursor
        self.options = options
        # Nothing was read on this stream yet.
        self.is_first = True
        # The feed was told that there is nothing more, and got nothing since.
        self.is_caught_up = False
        self.is_fetching = False
        # What the next read needs was fetched: it is made now, whatever the system says about its cache.
        self.is_fetched = False
        # Only what is synced is delivered: up to here that is known. Whether a sync is waited for.
        self.is_strong = is_strong
        self.synced_seq = 0
        self.is_syncing = False


class Reading:
    """What a subscription gets from one read, rendered; shared by all that stand at the same place."""

    __slots__ = ("frames", "page", "records")

    def __init__(self, page: Page, records: list[bytes]) -> None:
        self.page = page
        self.records = records
        # Whole frames, by whatever the protocols call them.
        self.frames: dict[object, bytes] = {}


class Feed(ABC):
    """A connection that gets records. Subclasses know how a frame looks on their wire."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.subscriptions: dict[str, Subscription] = {}
        self.is_closed = False
        # Topics that may have something new, and the last one that was drained in this pass over them.
        self.due: set[str] = set()
        self.drained = ""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the connection takes another frame now. Whoever makes it ready again calls `Hub.resume`."""

    @abstractmethod
    def on_records(self, subscription: Subscription, from_seq: int, reading: Reading) -> None:
        """At least one record. The subscription's cursor is behind them already."""

    @abstractmethod
    def on_tombstone(self, subscription: Subscription, tombstone: Tombstone, reason: Reason) -> None:
        """The cursor is behind the gap already; `is_first` says whether this is the first read of the stream."""

    @abstractmethod
    def on_caught_up(self, subscription: Subscription, head_seq: int) -> None: ...

    @abstractmethod
    def on_deleted(self, subscription: Subscription) -> None:
        """The topic is gone, and so is the subscription."""

    def on_moved(self, subscription: Subscription) -> None:  # noqa: B027 - not everybody wants to know.
        """A read only skipped records: nothing to send, but the cursor is behind them."""

    def on_pressure(self, topics: list[str], retry_after_ms: int) -> None:  # noqa: B027 - not every wire has a word for it.
        """The server has too much to do, and holds what is new in these topics back for a while."""

    def after_read(self) -> None:  # noqa: B027 - not everybody holds back.
        """Everything that one read had to tell was told: what was held back to go together goes now."""

    def on_failed(self) -> None:  # noqa: B027 - the connection may have its own ways to end.
        """A bug: the hub has let go of this feed, and nothing more comes."""

    def next_due(self) -> str:
        if len(self.due) == 1:
            return next(iter(self.due))
        return min([name for name in self.due if name > self.drained] or self.due)


class Hub:
    """Which feeds want which topic, and whose turn it is."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, pool: Executor) -> None:
        self.engine = engine
        self.loop = loop
        self._pool = pool
        self._feeds: dict[str, dict[Feed, None]] = {}
        self._wakers: dict[str, Callable[[], None]] = {}
        # Topics with something new, each once; and feeds that have topics due, first come first served.
        self._ready = ReadySet(self._priority_of)
        self._serving: dict[Feed, None] = {}
        self._turn_is_due = False
        # Under pressure: how long what is new waits for more to go with it; and topics that are held back, as far as
        # their feeds were told.
        self.coalesce_ms = 0.0
        self._advised: set[str] = set()
        # Rendered in this turn of the loop: a later one may find records deleted.
        self._readings: dict[tuple[str, int, ReadOptions], Reading] = {}

    # Who wants what.

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
        self._serving.pop(feed, None)
        for name in list(feed.subscriptions):
            self.unsubscribe(feed, name)

    def resume(self, feed: Feed) -> None:
        """The connection takes frames again."""
        if feed.due and not feed.is_closed:
            self._serving[feed] = None
            self._take_turn()

    # Pressure.

    @property
    def ready_depth(self) -> int:
        """Topics with something new that nobody was given yet, without those that are paused."""
        return self._ready.turn_count()

    def pause_b0(self, *, on: bool) -> None:
        """Topics of the lowest band are not pushed while this is on. They can be read, and lose nothing."""
        self._ready.is_b0_paused = on
        # Those that have waited for long may not be in that band any more.
        self._ready.review(self._now_ms())
        if on:
            self._advise()
        else:
            self._advised.clear()
        if self._ready.turn_count():
            self._take_turn()

    def _hold_back(self, feed: Feed) -> None:
        """Who begins, or has more to get than its share of a turn, waits with the topics that are paused."""
        if not self._ready.is_b0_paused:
            return
        for name in list(feed.due):
            if band_of(self._priority_of(name, 0)) == B0:
                feed.due.discard(name)
                self._ready.add(name, self._now_ms())

    def _advise(self) -> None:
        """Tells feeds what is held back, once for each topic and pause."""
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
        """Waits for the next publication, or the end, of the topic."""

        def wake() -> None:
            # The engine is half way through a group: only noted now. Whoever is in the set already stays once.
            self._wakers.pop(name, None)
            self._ready.add(name, self._now_ms())
            self._take_turn(self.coalesce_ms)

        if name in self.engine.topics:
            self._wakers[name] = wake
            self.engine.wait_append(name, wake)

    def _take_turn(self, delay_ms: float = 0.0) -> None:
        if not self._turn_is_due:
            self._turn_is_due = True
            if delay_ms:
                self.loop.call_later(delay_ms / 1000, self._turn)
            else:
                self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Serves some feeds; the rest in the next turn, after what has arrived meanwhile."""
        self._turn_is_due = False
        # What is new does not wait for those who catch up; who has still more to get waits for the next turn.
        for _ in range(FEEDS_PER_TURN):
            if len(self._serving) >= FEEDS_PER_TURN or not self._next_topic():
                break
        for _ in range(min(FEEDS_PER_TURN, len(self._serving))):
            if not self._serving:
                break
            feed = next(iter(self._serving))
            del self._serving[feed]
            try:
                self._pump(feed)
            except Exception:
                # One feed must not take the others with it.
                logger.exception("a stream failed")
                self.remove(feed)
                feed.on_failed()
        self._readings.clear()
        if self._serving or self._ready.turn_count():
            self._take_turn()

    def _next_topic(self) -> bool:
        now_ms = self._now_ms()
        while (name := self._ready.pop(now_ms)) is not None:
            feeds = self._feeds.get(name)
            if not feeds:
                continue
            # Armed first: what is published from here on is another entry.
            self._arm(name)
            for feed in feeds:
                feed.due.add(name)
                self._serving[feed] = None
            return True
        return False

    def _pump(self, feed: Feed) -> None:
        """Frames, until the feed has all there is, takes no more, or has had its share of the turn."""
        for _ in range(FRAMES_PER_TURN):
            if not feed.due or feed.is_closed or not feed.is_ready():
                return
            name = feed.next_due()
            subscription = feed.subscriptions[name]
            if subscription.is_fetching or subscription.is_syncing or self._is_done(feed, subscription):
                feed.due.discard(name)
                feed.drained = name
        self._hold_back(feed)
        if feed.due:
            self._serving[feed] = None

    def _is_done(self, feed: Feed, subscription: Subscription) -> bool:
        """One read; whether there is nothing to do for the subscription until it is due again."""
        try:
            return not self._is_at_hand(feed, subscription) or self._deliver(feed, subscription)
        except TopicNotFound:
            self._delete(feed, subscription)
        except CorruptRecord as error:
            self._skip_corrupt(feed, subscription, error)
            return False
        except ColdUnavailable:
            self._retry(feed, subscription)
        finally:
            feed.after_read()
        return True

    def _is_at_hand(self, feed: Feed, subscription: Subscription) -> bool:
        """Whether the next read waits for nothing; else it is fetched, and the feed goes on then."""
        options = subscription.options
        name = subscription.name
        self._check_instance(subscription)
        if subscription.is_fetched:
            subscription.is_fetched = False
            return True
        fetch = self.engine.fetch_needed(name, subscription.cursor, options.limit, options.bytes_max)
        if fetch is None:
            return True
        subscription.is_fetching = True
        future = self.loop.run_in_executor(self._pool, fetch)
        future.add_done_callback(lambda done: self._fetched(feed, subscription, done))
        return False

    def _fetched(self, feed: Feed, subscription: Subscription, done: asyncio.Future[None]) -> None:
        subscription.is_fetching = False
        if isinstance(done.exception(), ColdUnavailable):
            self._retry(feed, subscription)
        else:
            # Whatever else went wrong, the read comes to it too.
            subscription.is_fetched = True
            self._again_if_subscribed(feed, subscription)

    def _retry(self, feed: Feed, subscription: Subscription) -> None:
        self.loop.call_later(RETRY_S, self._again_if_subscribed, feed, subscription)

    def _again_if_subscribed(self, feed: Feed, subscription: Subscription) -> None:
        if feed.subscriptions.get(subscription.name) is subscription:
            self._again(feed, subscription.name)

    def _again(self, feed: Feed, name: str) -> None:
        feed.due.add(name)
        self._serving[feed] = None
        self._take_turn()

    def _check_instance(self, subscription: Subscription) -> None:
        topic = self.engine.topics.get(subscription.name)
        if topic is None or topic.id != subscription.topic_id:
            raise TopicNotFound(subscription.name)

    def _deliver(self, feed: Feed, subscription: Subscription) -> bool:
        """One read; whether there was nothing more behind it."""
        from_seq = subscription.cursor
        if subscription.is_strong and not self._has_synced(feed, subscription, from_seq):
            return True
        reading = self._read(subscription)
        page = reading.page
        if subscription.is_strong and not self._has_synced(feed, subscription, page.next_from_seq - 1):
            return True
        if page.tombstone is not None:
            tombstone = page.tombstone
            subscription.cursor = tombstone.gap_to if tombstone.reason != "recreated" else tombstone.earliest_seq - 1
            subscription.is_caught_up = False
            feed.on_tombstone(subscription, tombstone, tombstone.reason)
            from_seq = subscription.cursor
        subscription.is_first = False
        subscription.cursor = page.next_from_seq
        if reading.records:
            subscription.is_caught_up = False
            feed.on_records(subscription, from_seq, reading)
        elif page.next_from_seq != from_seq:
            feed.on_moved(subscription)
        if not page.caught_up:
            return False
        if not subscription.is_caught_up and self._has_copies(feed, subscription):
            subscription.is_caught_up = True
            feed.on_caught_up(subscription, page.head_seq)
        return True

    def _has_copies(self, feed: Feed, subscription: Subscription) -> bool:
        """Whether all that routers copy into the topic is there; else the feed goes on when it may be."""
        if self.engine.bring_up_to_date(subscription.name):
            return True

        def wake() -> None:
            # The engine is half way through a group.
            self.loop.call_soon(self._again_if_subscribed, feed, subscription)

        self.engine.wait_copies(wake)
        return False

    def _read(self, subscription: Subscription) -> Reading:
        options = subscription.options
        if subscription.cursor < subscription.synced_seq:
            options = options._replace(limit=min(options.limit, subscription.synced_seq - subscription.cursor))
        place = (subscription.name, subscription.cursor, options)
        reading = self._readings.get(place)
        if reading is None:
            page = self.engine.read(
                subscription.name,
                subscription.cursor,
                limit=options.limit,
                bytes_max=options.bytes_max,
                nodes=options.nodes,
            )
            texts = record_texts(
                page.chunks,
                include_tags=options.include_tags,
                include_meta=options.include_meta,
                include_data=options.include_data,
            )
            reading = self._readings[place] = Reading(page, texts)
        return reading

    def _has_synced(self, feed: Feed, subscription: Subscription, after_seq: int) -> bool:
        """Whether the next seq is synced, or there is none. Else the shard is asked, and the feed goes on then."""
        topic = self.engine.topic(subscription.name)
        head_seq = topic.head_seq
        if topic.config.durability == "ephemeral" or topic.shard.is_synced:
            subscription.synced_seq = head_seq
            return True
        if after_seq < subscription.synced_seq or after_seq == head_seq:
            return True

        def synced() -> None:
            # Called by the engine: only noted now.
            subscription.is_syncing = False
            subscription.synced_seq = max(subscription.synced_seq, head_seq)
            self._again_if_subscribed(feed, subscription)

        subscription.is_syncing = True
        topic.shard.when_synced(synced)
        return False

    def _skip_corrupt(self, feed: Feed, subscription: Subscription, error: CorruptRecord) -> None:
        """A damaged record is a gap of one. One right behind another gap ends that one: the read told of neither."""
        assert error.detail is not None
        seq = int(str(error.detail["seq"]))
        topic = self.engine.topic(subscription.name)
        first_seq = 1 if subscription.cursor > topic.head_seq else subscription.cursor + 1
        is_behind_gap = (
            subscription.cursor > topic.head_seq or first_seq < topic.live.evict_floor or bool(topic.live.lost)
        )
        gap_from = first_seq if is_behind_gap else seq
        subscription.cursor = seq
        subscription.is_caught_up = False
        gap = Tombstone(gap_from, seq, "corrupt", seq - gap_from + 1, topic.earliest_seq, topic.head_seq)
        feed.on_tombstone(subscription, gap, "corrupt")
        subscription.is_first = False

    def _delete(self, feed: Feed, subscription: Subscription) -> None:
        self.unsubscribe(feed, subscription.name)
        feed.on_deleted(subscription)

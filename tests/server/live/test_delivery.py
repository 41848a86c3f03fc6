"""The hub without a server: turns, shared readings, and that no feed delays another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, cast

import pytest

from tests.engine.small_log import SmallLog
from tests.server.wires import ManualLoop
from topics.engine.topic.router import RouterSpec
from topics.limits import U64_MAX
from topics.results import Reason, Tombstone
from topics.server.live.delivery import CROWD_FEEDS, FEEDS_PER_TURN, FRAMES_PER_TURN, Feed, Hub, Subscription
from topics.server.live.reading import Reading, ReadOptions
from topics.testing.fake_disk import FakeDisk

OPTIONS = ReadOptions(limit=2, bytes_max=1_000_000)


class NotingFeed(Feed):
    """Notes its calls as (call, topic, number). It takes as many frames as it has room for."""

    def __init__(self, hub: Hub, room: int = 1_000_000) -> None:
        super().__init__(hub)
        self.room = room
        self.told: list[tuple[str, str, Any]] = []
        self.readings: list[Reading] = []
        self.fails = False

    def is_ready(self) -> bool:
        return self.room > 0

    def note(self, what: str, subscription: Subscription, number: Any) -> None:
        if self.fails:
            raise RuntimeError("a bug of the feed")
        self.room -= 1
        self.told.append((what, subscription.name, number))

    def on_records(self, subscription: Subscription, from_seq: int, reading: Reading) -> None:
        self.readings.append(reading)
        self.note("records", subscription, list(range(from_seq + 1, reading.page.next_from_seq + 1)))

    def on_tombstone(self, subscription: Subscription, tombstone: Tombstone, reason: Reason) -> None:
        self.note("first" if subscription.is_first else "gap", subscription, (tombstone.gap_from, tombstone.gap_to))

    def on_caught_up(self, subscription: Subscription, head_seq: int) -> None:
        self.note("caught up", subscription, head_seq)

    def on_deleted(self, subscription: Subscription) -> None:
        self.note("deleted", subscription, 0)

    def on_moved(self, subscription: Subscription) -> None:
        self.note("moved", subscription, subscription.cursor)

    def on_failed(self) -> None:
        self.told.append(("failed", "", 0))

    def taken(self) -> list[tuple[str, str, Any]]:
        told, self.told = self.told, []
        return told


class Delivery:
    """A log, a hub, and feeds. The test turns the loop."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.log = SmallLog(FakeDisk(), tail_cache_bytes=1_000_000)
        self.loop = ManualLoop()
        self.hub = Hub(self.log.engine, cast(asyncio.AbstractEventLoop, self.loop), pool)

    def feed(self, *names: str, cursor: int = 0, room: int = 1_000_000, options: ReadOptions = OPTIONS) -> NotingFeed:
        feed = NotingFeed(self.hub, room)
        for name in names:
            self.hub.subscribe(feed, Subscription(name, self.log.topic(name).id, cursor, options))
        return feed

    def settled(self, feed: NotingFeed) -> list[tuple[str, str, Any]]:
        self.loop.settle()
        return feed.taken()


@pytest.fixture
def delivery() -> Iterator[Delivery]:
    with ThreadPoolExecutor(1) as pool:
        yield Delivery(pool)


def test_a_feed_gets_what_is_there_then_what_comes(delivery: Delivery) -> None:
    delivery.log.append("a", 3)
    feed = delivery.feed("a")
    assert feed.told == [], "nothing is told out of a call"
    assert delivery.settled(feed) == [
        ("records", "a", [1, 2]),
        ("records", "a", [3]),
        ("caught up", "a", 3),
    ]
    delivery.log.append("a")
    assert delivery.settled(feed) == [("records", "a", [4]), ("caught up", "a", 4)]


def test_a_feed_is_not_caught_up_before_copies_of_what_was_written_before(delivery: Delivery) -> None:
    """The copies are on their way, because the topic's shard has not written them yet."""
    engine = delivery.log.engine
    delivery.log.create("b", ttl_ms=60_000)
    engine.put_router("r", RouterSpec(source="a", dest="b"), lambda _: None)
    for _ in range(3):
        engine.flush()
    delivery.log.append("a", 2)
    (shard,) = engine.wal.shards
    shard.hold(lambda: None)
    feed = delivery.feed("b")
    assert delivery.settled(feed) == []
    shard.release()
    engine.flush()
    assert delivery.settled(feed) == [("records", "b", [1, 2]), ("caught up", "b", 2)]


@pytest.mark.parametrize("ttl_ms", [0, 60_000], ids=["copies without frames", "copies with frames"])
def test_copies_that_a_read_of_their_dest_publishes_are_sent_once(delivery: Delivery, ttl_ms: int) -> None:
    engine = delivery.log.engine
    delivery.log.create("b", ttl_ms=ttl_ms)
    engine.put_router("r", RouterSpec(source="a", dest="b"), lambda _: None)
    for _ in range(3):
        engine.flush()
    feed = delivery.feed("b")
    assert delivery.settled(feed) == [("caught up", "b", 0)]
    # The turn of the hub is already due when the source grows, and comes before the turn of the routers.
    delivery.hub.subscribe(feed, feed.subscriptions["b"])
    delivery.log.append("a", 2)
    assert delivery.settled(feed) == [("records", "b", [1, 2]), ("caught up", "b", 2)]


def test_a_burst_is_one_entry(delivery: Delivery) -> None:
    delivery.log.append("a")
    feed = delivery.feed("a")
    delivery.settled(feed)
    for _ in range(4):
        delivery.log.start_append("a", 1, [])
    delivery.log.engine.flush()
    assert delivery.settled(feed) == [("records", "a", [2, 3]), ("records", "a", [4, 5]), ("caught up", "a", 5)]


def test_a_feed_that_takes_nothing_gets_nothing_and_goes_on_where_it_was(delivery: Delivery) -> None:
    delivery.log.append("a", 5)
    slow, quick = delivery.feed("a", room=1), delivery.feed("a")
    assert delivery.settled(slow) == [("records", "a", [1, 2])]
    assert [number for _, _, number in quick.taken()] == [[1, 2], [3, 4], [5], 5]
    delivery.log.append("a")
    assert delivery.settled(slow) == []
    assert [number for _, _, number in quick.taken()] == [[6], 6]
    slow.room = 10
    assert delivery.settled(slow) == [], "it has to say so"
    delivery.hub.resume(slow)
    assert [number for _, _, number in delivery.settled(slow)] == [[3, 4], [5, 6], 6]


def test_topics_are_drained_in_the_order_of_their_names(delivery: Delivery) -> None:
    for name in "cab":
        delivery.log.append(name, 3 * FRAMES_PER_TURN)
    feed = delivery.feed(*"bca")
    told = delivery.settled(feed)
    assert [name for _, name, _ in told] == sorted(name for _, name, _ in told)


def test_a_topic_that_never_rests_does_not_starve_the_next_one(delivery: Delivery) -> None:
    for name in "ab":
        delivery.log.append(name, 1)
    feed = delivery.feed("a", "b")
    for _ in range(20):
        delivery.log.append("a")
        delivery.loop.turn()
    assert ("caught up", "b", 1) in feed.told


def test_who_catches_up_gets_a_share_of_a_turn_and_delays_nothing_new(delivery: Delivery) -> None:
    delivery.log.append("long", 100 * FRAMES_PER_TURN)
    delivery.log.append("live")
    live = delivery.feed("live")
    delivery.settled(live)
    behind = delivery.feed("long")
    delivery.loop.turn()
    assert len(behind.taken()) == FRAMES_PER_TURN
    delivery.log.append("live")
    delivery.loop.turn()
    assert live.taken() == [("records", "live", [2]), ("caught up", "live", 2)]
    assert len(behind.taken()) == FRAMES_PER_TURN


# Under pressure.


def test_what_is_new_waits_for_company_and_goes_in_one_frame(delivery: Delivery) -> None:
    delivery.log.append("a")
    feed = delivery.feed("a")
    delivery.settled(feed)
    delivery.hub.coalesce_ms = 20
    for _ in range(2):
        delivery.log.append("a")
        assert delivery.settled(feed) == []
        delivery.loop.advance(0.009)
    assert feed.taken() == []
    delivery.loop.advance(0.003)
    assert feed.taken() == [("records", "a", [2, 3]), ("caught up", "a", 3)]


def test_who_catches_up_on_a_topic_of_the_lowest_band_is_held_back_too(delivery: Delivery) -> None:
    delivery.log.create("low", priority=-500)
    delivery.log.append("low", 100 * FRAMES_PER_TURN)
    behind = delivery.feed("low")
    delivery.loop.turn()
    assert len(behind.taken()) == FRAMES_PER_TURN
    delivery.hub.pause_lowest_band(on=True)
    assert len(delivery.settled(behind)) == FRAMES_PER_TURN, "its share of a turn that it was given before"
    assert delivery.settled(behind) == []
    late = delivery.feed("low")
    assert delivery.settled(late) == []
    delivery.hub.pause_lowest_band(on=False)
    assert [number for what, _, number in delivery.settled(late) if what == "caught up"] == [100 * FRAMES_PER_TURN]
    assert behind.taken()[-1] == ("caught up", "low", 100 * FRAMES_PER_TURN)


def test_a_paused_topic_stays_paused_however_long_until_the_pause_ends(delivery: Delivery) -> None:
    """The priority of a topic grows while it waits. That must not end the pause: the pressure is still high."""
    delivery.log.create("low", priority=-500)
    delivery.log.append("low", 2)
    delivery.hub.pause_lowest_band(on=True)
    feed = delivery.feed("low")
    for _ in range(30):
        delivery.log.clock.advance(1000)
        # The governor repeats it every 100 ms.
        delivery.hub.pause_lowest_band(on=True)
        assert delivery.settled(feed) == []
    delivery.hub.pause_lowest_band(on=False)
    assert delivery.settled(feed) != []


# Sharing.


def test_what_is_rendered_once_is_used_for_all_at_the_same_place(delivery: Delivery) -> None:
    delivery.log.append("a", 2)
    feeds = [delivery.feed("a") for _ in range(8)]
    other = delivery.feed("a", options=OPTIONS._replace(include_tags=True))
    delivery.loop.settle()
    assert len({id(feed.readings[0]) for feed in feeds}) == 1
    assert other.readings[0] is not feeds[0].readings[0]


class CollectingFeed(NotingFeed):
    """Keeps the texts of its records."""

    def __init__(self, hub: Hub, room: int, without: set[str], *, include_tags: bool) -> None:
        super().__init__(hub, room)
        self.without = without
        self.include_tags = include_tags
        self.records: list[dict[str, Any]] = []

    def on_records(self, subscription: Subscription, from_seq: int, reading: Reading) -> None:
        super().on_records(subscription, from_seq, reading)
        records = [json.loads(text) for text in reading.records]
        assert len(records) == reading.record_count > 0
        seqs = [record["$seq"] for record in records]
        assert from_seq < seqs[0]
        assert seqs[-1] <= reading.page.next_from_seq == subscription.cursor
        self.records += records

    def expected(self, log: SmallLog, start: int) -> list[dict[str, Any]]:
        """The live records after the start, without those of the nodes."""
        return [
            {"$seq": record.seq, "$ts": record.ts}
            | ({} if record.node is None else {"$node": record.node})
            | ({"$tag": record.tag} if self.include_tags and record.tag is not None else {})
            | {"data": json.loads(record.data)}
            for record in log.read("a", start)[0]
            if record.node not in self.without
        ]


@pytest.mark.parametrize("seed", range(4))
def test_feeds_that_share_readings_get_exactly_their_own_records(delivery: Delivery, seed: int) -> None:
    """Feeds with different nodes, members, limits and places. Some take nothing for a while, and come back."""
    log, hub, random = delivery.log, delivery.hub, Random(seed)
    log.create("a")
    feeds: dict[CollectingFeed, int] = {}

    def write() -> None:
        for _ in range(random.randrange(1, 4)):
            node = random.choice(["n0", "n1", "n2", None])
            log.append("a", random.randrange(1, 4), node=node, tag=random.choice(["t", None]))

    for step in range(60):
        write()
        if step % 4 == 0:
            nodes = set(random.sample(["n0", "n1", "n2", "n3"], random.choice([0, 0, 1, 1, 2, 3])))
            feed = CollectingFeed(hub, random.choice([5, 1_000_000]), nodes, include_tags=random.random() < 0.3)
            start = random.choice([0, log.topic().head_seq, random.randrange(log.topic().head_seq)])
            filtered = frozenset(node.encode() for node in nodes) or None
            options = ReadOptions(
                random.choice([1, 4, 100]), random.choice([40, 10_000]), filtered, include_tags=feed.include_tags
            )
            feeds[feed] = start
            hub.subscribe(feed, Subscription("a", log.topic().id, start, options))
        if random.random() < 0.7:
            for _ in range(random.randrange(1, 4)):
                delivery.loop.turn()
        if random.random() < 0.2:
            for feed in feeds:
                feed.room = random.choice([0, 3, 1_000_000])
                hub.resume(feed)
    for feed in feeds:
        feed.room = 1_000_000
        hub.resume(feed)
    delivery.loop.settle()
    assert len(feeds) > CROWD_FEEDS
    for feed, start in feeds.items():
        assert feed.records == feed.expected(log, start)
        assert feed.told[-1][0] in ("caught up", "moved")


def test_a_record_that_was_deleted_is_pushed_to_no_feed_that_comes_later(delivery: Delivery) -> None:
    """The texts of records are kept for other feeds. Whether a record is there, the log is asked each time."""
    delivery.log.append("a", 3, node="n1")
    early = CollectingFeed(delivery.hub, 1_000_000, set(), include_tags=False)
    late = CollectingFeed(delivery.hub, 1_000_000, set(), include_tags=False)
    delivery.hub.subscribe(early, Subscription("a", delivery.log.topic().id, 0, OPTIONS))
    delivery.loop.settle()
    delivery.log.delete("a", seqs=[2])
    delivery.hub.subscribe(late, Subscription("a", delivery.log.topic().id, 0, OPTIONS))
    delivery.loop.settle()
    assert [record["$seq"] for record in early.records] == [1, 2, 3]
    assert [record["$seq"] for record in late.records] == [1, 3]


def test_a_crowd_that_lags_behind_comes_to_common_places(delivery: Delivery) -> None:
    """Each feed begins elsewhere, and leaves out another node. After one frame of each they share pages."""
    for number in range(40):
        delivery.log.append("a", node=f"n{number % CROWD_FEEDS}")
    feeds = [
        delivery.feed("a", cursor=start, room=2, options=ReadOptions(10, 1_000_000, frozenset({f"n{start}".encode()})))
        for start in range(CROWD_FEEDS)
    ]
    delivery.loop.settle()
    assert {feed.subscriptions["a"].cursor for feed in feeds} == {20}


def test_the_end_of_a_topic_is_told_once_and_a_new_one_of_its_name_is_not_meant(delivery: Delivery) -> None:
    delivery.log.append("a")
    delivery.log.append("b")
    feed = delivery.feed("a", "b")
    delivery.settled(feed)
    delivery.log.drop("a")
    delivery.log.append("a", 2)
    delivery.log.append("b")
    assert sorted(delivery.settled(feed)) == [
        ("caught up", "b", 2),
        ("deleted", "a", 0),
        ("records", "b", [2]),
    ]
    delivery.log.append("a")
    assert delivery.settled(feed) == []


def test_gaps_come_before_records_and_the_first_read_is_known(delivery: Delivery) -> None:
    delivery.log.create("a", cap_records=2)
    delivery.log.append("a", 5)
    feed = delivery.feed("a")
    assert delivery.settled(feed) == [("first", "a", (1, 3)), ("records", "a", [4, 5]), ("caught up", "a", 5)]
    delivery.log.append("a", 5)
    assert delivery.settled(feed) == [("gap", "a", (6, 8)), ("records", "a", [9, 10]), ("caught up", "a", 10)]


def test_a_cursor_of_another_instance_begins_at_the_start(delivery: Delivery) -> None:
    delivery.log.append("a", 2)
    feed = delivery.feed("a", cursor=U64_MAX)
    assert delivery.settled(feed) == [("first", "a", (1, 2)), ("records", "a", [1, 2]), ("caught up", "a", 2)]


def test_records_that_are_only_skipped_move_the_cursor_without_a_frame(delivery: Delivery) -> None:
    delivery.log.append("a", node="me")
    feed = delivery.feed("a", options=OPTIONS._replace(nodes=frozenset({b"me"})))
    assert delivery.settled(feed) == [("moved", "a", 1), ("caught up", "a", 1)]
    delivery.log.append("a", node="me")
    assert delivery.settled(feed) == [("moved", "a", 2)], "it was told that it has everything, and still has"


def test_a_feed_that_left_is_told_nothing_and_leaves_nothing_behind(delivery: Delivery) -> None:
    delivery.log.append("a")
    feed, stays = delivery.feed("a"), delivery.feed("a")
    delivery.hub.remove(feed)
    assert delivery.settled(feed) == []
    delivery.hub.remove(stays)
    assert not delivery.log.topic("a").has_waiters
    delivery.log.append("a")
    assert not delivery.loop.turn()


def test_a_subscription_that_is_replaced_goes_on_from_its_new_place(delivery: Delivery) -> None:
    delivery.log.append("a", 4)
    feed = delivery.feed("a")
    delivery.settled(feed)
    delivery.hub.subscribe(feed, Subscription("a", delivery.log.topic("a").id, 3, OPTIONS))
    assert delivery.settled(feed) == [("records", "a", [4]), ("caught up", "a", 4)]
    delivery.hub.unsubscribe(feed, "a")
    delivery.log.append("a")
    assert delivery.settled(feed) == []


def test_a_bug_of_one_feed_ends_that_one_only(delivery: Delivery, caplog: pytest.LogCaptureFixture) -> None:
    delivery.log.append("a")
    broken, sound = delivery.feed("a"), delivery.feed("a")
    broken.fails = True
    assert delivery.settled(sound) == [("records", "a", [1]), ("caught up", "a", 1)]
    assert (broken.told, broken.is_closed) == ([("failed", "", 0)], True)
    assert "a stream failed" in caplog.text


def test_many_feeds_take_several_turns_and_each_gets_its_frames(delivery: Delivery) -> None:
    delivery.log.append("a")
    feeds = [delivery.feed("a") for _ in range(FEEDS_PER_TURN + 1)]
    delivery.loop.turn()
    assert 1 <= sum(bool(feed.told) for feed in feeds) <= FEEDS_PER_TURN
    delivery.loop.settle()
    assert all(feed.told == [("records", "a", [1]), ("caught up", "a", 1)] for feed in feeds)

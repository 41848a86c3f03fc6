"""The engine as a whole: polls, stored offsets, consumer groups, duplicates."""

import errno
import threading
from typing import Final

import pytest

from tests.streams.system_world import PARTITION, ROOT, World, batch, fill, numbered, refusal
from topics.stream_errors import StreamsError
from topics.streams.consumers.polling import Consumer, PollingStrategy
from topics.streams.partitions.partitioning import PartitionId
from topics.streams.running.consuming import StoredOffset
from topics.testing.fake_disk import Damage, FakeFile

SMALL_SEGMENTS: Final = {"segment": {"size": 512}}
FIRST: Final = PollingStrategy.first()
NEXT: Final = PollingStrategy.next()


# Polling and offsets.


def test_each_strategy_begins_where_it_says() -> None:
    world = World()
    world.make_topic()
    world.send(*numbered(4))
    world.clock.advance(1000)
    world.send(b"later")

    def offsets(strategy: PollingStrategy, count: int = 2) -> list[int]:
        return [message.offset for message in world.poll(strategy, count)]

    later_us = world.clock.now_ms() * 1000
    assert offsets(PollingStrategy.first()) == [0, 1]
    assert offsets(PollingStrategy.last()) == [3, 4]
    assert offsets(PollingStrategy.offset(2)) == [2, 3]
    assert offsets(PollingStrategy.timestamp(later_us)) == [4]
    assert offsets(PollingStrategy.timestamp(later_us - 1)) == [4]
    assert offsets(PollingStrategy.timestamp(later_us + 1)) == []
    assert offsets(PollingStrategy.next()) == [0, 1]
    assert offsets(PollingStrategy.offset(5)) == []
    assert offsets(PollingStrategy.first(), 0) == []
    assert world.poll(PollingStrategy.offset(9)).current_offset == 4


def test_an_auto_commit_is_stored_before_the_answer_with_any_strategy() -> None:
    world = World()
    world.make_topic()
    world.send(*numbered(6))
    for strategy, count, stored in (
        (PollingStrategy.next(), 2, 1),
        (PollingStrategy.next(), 2, 3),
        (PollingStrategy.first(), 1, 0),
        (PollingStrategy.last(), 2, 5),
        (PollingStrategy.next(), 2, 5),
    ):
        world.poll(strategy, count, auto_commit=True)
        assert world.system.get_offset("s", "t", Consumer(1)) == StoredOffset(0, 5, stored)
    assert world.disk.read(f"{PARTITION}/offsets/consumers/1") == (5).to_bytes(8, "little")


def test_stored_offsets_are_checked_rewound_and_deleted() -> None:
    world = World()
    world.make_topic(2)
    consumer = Consumer("my-consumer")
    assert refusal(lambda: world.system.store_offset("s", "t", consumer, 0)) == 4100
    world.send(*numbered(3))
    assert refusal(lambda: world.system.store_offset("s", "t", consumer, 3)) == 4100
    assert refusal(lambda: world.system.store_offset("s", "t", consumer, -1)) == 4100
    assert refusal(lambda: world.system.delete_offset("s", "t", consumer)) == 3021
    assert world.system.get_offset("s", "t", consumer) is None
    world.system.store_offset("s", "t", consumer, 2)
    world.system.store_offset("s", "t", consumer, 1)
    assert world.system.get_offset("s", "t", consumer) == StoredOffset(0, 2, 1)
    assert world.names(f"{PARTITION}/offsets/consumers") == ["2115191887"]
    world.system.delete_offset("s", "t", consumer)
    assert refusal(lambda: world.system.delete_offset("s", "t", consumer)) == 3021
    assert world.names(f"{PARTITION}/offsets/consumers") == []
    assert refusal(lambda: world.system.get_offset("s", "t", Consumer(2**32))) == 6


def test_a_damaged_message_is_refused_and_its_neighbours_are_served() -> None:
    world = World({"system": SMALL_SEGMENTS})
    world.make_topic()
    fill(world, 2)
    world.send(b"active")
    world.system.flush("s", "t", 0, fsync=True)
    world.disk.poke(f"{PARTITION}/{0:020d}.log", 184 + 100, b"?")
    assert refusal(lambda: world.poll(PollingStrategy.offset(1), 1)) == 4027
    assert [message.offset for message in world.poll(PollingStrategy.offset(2))] == [2, 3, 4, 5, 6]
    assert [message.offset for message in world.poll(FIRST, 1)] == [0]


def test_a_poll_in_the_middle_of_a_deletion_is_answered_or_refused_and_never_wrong() -> None:
    """Topics are created and deleted while other threads read and write them."""
    world = World({"system": SMALL_SEGMENTS})
    world.system.create_stream("s")
    problems: list[BaseException] = []
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            try:
                for message in world.poll(NEXT, auto_commit=True, consumer=Consumer("c")):
                    assert bytes(message.payload) == b"x" * 120
            except StreamsError as error:
                if error.number not in (2010, 3007):
                    problems.append(error)
            except AssertionError as error:
                problems.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(20):
        world.system.create_topic("s", "t")
        fill(world, 2)
        world.system.delete_topic("s", "t")
    is_over.set()
    for reader in readers:
        reader.join()
    assert problems == []
    assert world.names(f"{ROOT}/streams/0/topics") == [], "nobody made a folder for what was deleted"


def test_an_offset_that_is_committed_while_its_topic_is_purged_does_not_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The offset would skip messages that are sent afterwards."""
    world = World({"system": {"partition": {"messages_required_to_save": 1}}})
    world.make_topic()
    world.system.create_group("s", "t", "g")
    world.system.join_group("s", "t", "g", 1)
    read = FakeFile.pread_into

    def read_and_purge(file: FakeFile, buffer: memoryview, offset: int) -> int:
        count = read(file, buffer, offset)
        world.system.purge_topic("s", "t")
        return count

    for consumer in (Consumer("c"), Consumer.group("g")):
        world.send(*numbered(4))
        with monkeypatch.context() as patched:
            patched.setattr(FakeFile, "pread_into", read_and_purge)
            world.poll(NEXT, consumer=consumer, client_id=1, auto_commit=True)
        assert world.system.get_offset("s", "t", consumer) is None
        world.send(b"new")
        polled = world.poll(NEXT, consumer=consumer, client_id=1)
        assert [bytes(message.payload) for message in polled] == [b"new"]
        world.system.purge_topic("s", "t")


def test_an_offset_that_was_lowered_to_the_end_stays_lowered_after_the_next_power_loss() -> None:
    """The partition has grown past the old offset by then, and the offset would skip a message."""
    world = World()
    world.make_topic()
    world.send(*numbered(4))
    world.system.store_offset("s", "t", Consumer(1), 3)
    world.system.flush("s", "t", 0, fsync=False)
    world.disk.crash(Damage.KEEP)
    log = f"{PARTITION}/{0:020d}.log"
    world.disk.replace(log, world.disk.read(log)[: 2 * 73])
    world.open()
    assert world.system.get_offset("s", "t", Consumer(1)) == StoredOffset(0, 1, 1)
    world.send(*numbered(3))
    world.system.flush("s", "t", 0, fsync=True)
    world.disk.crash(Damage.DROP)
    world.open()
    assert world.system.get_offset("s", "t", Consumer(1)) == StoredOffset(0, 4, 1)


# Groups.


def test_members_of_a_group_share_the_partitions_and_commit_as_they_poll() -> None:
    world = World()
    world.make_topic(2)
    for partition_id in range(2):
        world.send(*numbered(3), partition_id=partition_id)
    world.system.create_group("s", "t", "g")
    world.system.join_group("s", "t", "g", 1)
    world.system.join_group("s", "t", "g", 2)
    group = Consumer.group("g")
    for client_id, partition_id in ((1, 0), (2, 1)):
        polled = world.poll(NEXT, 2, consumer=group, client_id=client_id, auto_commit=True)
        assert (polled.partition_id, [message.offset for message in polled]) == (partition_id, [0, 1])
        polled = world.poll(NEXT, 2, consumer=group, client_id=client_id, auto_commit=True)
        assert [message.offset for message in polled] == [2]
    assert len(world.poll(NEXT, consumer=group, client_id=1, partition_id=1)) == 0, "not its partition"
    world.reopen()
    assert world.system.get_offset("s", "t", group, partition_id=1) == StoredOffset(1, 2, 2)
    world.system.join_group("s", "t", "g", 3)
    assert len(world.poll(NEXT, consumer=group, client_id=3)) == 0, (
        "after a restart the group continues after its stored offset"
    )


def test_four_partitions_and_two_members_are_shared_two_and_two() -> None:
    world = World()
    world.make_topic(4)
    world.system.create_group("s", "t", "g")
    world.system.join_group("s", "t", "g", 1)
    world.system.join_group("s", "t", "g", 2)
    assert [len(member.partitions) for member in world.system.group("s", "t", "g").members] == [2, 2]


def test_a_member_that_lost_a_partition_can_neither_store_nor_commit_in_it() -> None:
    """The status is 3022 after a join that took the partition at the time limit; the wall clock does not matter."""
    world = World()
    world.make_topic(2)
    for partition_id in range(2):
        world.send(*numbered(3), partition_id=partition_id)
    world.system.create_group("s", "t", "g")
    world.system.join_group("s", "t", "g", 1)
    group = Consumer.group("g")
    for _ in range(2):
        world.poll(NEXT, 2, consumer=group, client_id=1)
    world.system.join_group("s", "t", "g", 2)
    assert world.system.group("s", "t", "g").pending == {1: 2}
    world.clock.set(world.clock.now_ms() + 3_600_000)
    world.clock.advance(5_000)
    world.system.tick()
    assert world.system.group("s", "t", "g").pending == {1: 2}, "an hour by the wall is no time at all"
    world.clock.advance(30_000)
    world.system.tick()
    assert world.system.group("s", "t", "g").pending == {}
    assert refusal(lambda: world.system.store_offset("s", "t", group, 1, partition_id=1, client_id=1)) == 3022
    assert refusal(lambda: world.system.delete_offset("s", "t", group, partition_id=1, client_id=1)) == 3022
    world.system.store_offset("s", "t", group, 1, partition_id=0, client_id=1)
    polled = world.poll(NEXT, consumer=group, client_id=2, auto_commit=True)
    assert (polled.partition_id, [message.offset for message in polled]) == (1, [0, 1, 2])


def group_world(partitions_count: int) -> World:
    """Each partition has ten messages; client 1 is the only member of the group `g`."""
    world = World()
    world.make_topic(partitions_count)
    for partition_id in range(partitions_count):
        world.send(*numbered(10), partition_id=partition_id)
    world.system.create_group("s", "t", "g")
    world.system.join_group("s", "t", "g", 1)
    return world


def polled_by(
    world: World, client_id: int, count: int = 1, *, partition_id: int | None = None, auto_commit: bool = False
) -> tuple[int, list[int]]:
    """The partition and the offsets of a poll as a member of `g`."""
    polled = world.poll(
        NEXT,
        count,
        consumer=Consumer.group("g"),
        client_id=client_id,
        partition_id=partition_id,
        auto_commit=auto_commit,
    )
    return polled.partition_id, [message.offset for message in polled]


@pytest.mark.parametrize("polls_before", range(9))
def test_after_a_join_both_members_read_each_of_their_partitions_once_in_a_round(polls_before: int) -> None:
    """The old member goes on after the partition that it has polled last."""
    world = group_world(4)
    before = [polled_by(world, 1, auto_commit=True)[0] for _ in range(polls_before)]
    assert before == [place % 4 for place in range(polls_before)]
    world.system.join_group("s", "t", "g", 2)
    assert [member.partitions for member in world.system.group("s", "t", "g").members] == [(0, 1), (3, 2)]
    first = 1 if polls_before % 4 == 1 else 0
    polls = [polled_by(world, 1, auto_commit=True)[0] for _ in range(4)]
    assert polls == [first, 1 - first, first, 1 - first]
    assert [polled_by(world, 2, auto_commit=True)[0] for _ in range(4)] == [2, 3, 2, 3]


def test_a_member_reads_all_its_partitions_while_another_one_joins_and_disconnects_again_and_again() -> None:
    """A consumer that crashes as often as it starts takes nothing from the others."""
    world = group_world(3)
    polls = []
    for client_id in range(2, 11):
        polls.append(polled_by(world, 1, auto_commit=True))
        world.system.join_group("s", "t", "g", client_id)
        world.system.forget_client(client_id)
    assert polls == [(partition_id, [offset]) for offset in range(3) for partition_id in range(3)]


def test_after_partitions_are_added_and_deleted_a_member_goes_on_with_the_next_one() -> None:
    world = group_world(3)
    assert [polled_by(world, 1)[0] for _ in range(3)] == [0, 1, 2]
    world.system.create_partitions("s", "t", 2)
    assert [polled_by(world, 1)[0] for _ in range(4)] == [3, 4, 0, 1]
    world.system.delete_partitions("s", "t", 3)
    assert [polled_by(world, 1)[0] for _ in range(3)] == [0, 1, 0]


def test_messages_that_are_not_committed_stay_with_their_member_until_it_commits_them() -> None:
    """Nothing is delivered twice and nothing is lost: the new owner goes on after what was committed."""
    world = group_world(2)
    group = Consumer.group("g")
    assert [polled_by(world, 1, 4) for _ in range(2)] == [(0, [0, 1, 2, 3]), (1, [0, 1, 2, 3])]
    world.system.join_group("s", "t", "g", 2)
    assert polled_by(world, 2) == (0, []), "partition 1 waits for the commit of its messages"
    assert [polled_by(world, 1)[0] for _ in range(2)] == [0, 0], "its member gets no new ones from it"
    assert polled_by(world, 1, 4, partition_id=1) == (1, [0, 1, 2, 3]), "its member may read them again"
    world.system.store_offset("s", "t", group, 2, partition_id=1, client_id=1)
    assert polled_by(world, 2) == (0, [])
    world.system.store_offset("s", "t", group, 3, client_id=1)
    assert polled_by(world, 2, 4) == (1, [4, 5, 6, 7])
    assert polled_by(world, 1, 4, partition_id=1) == (0, [])
    assert refusal(lambda: world.system.store_offset("s", "t", group, 3, client_id=1)) == 3022
    assert polled_by(world, 1, 4) == (0, [0, 1, 2, 3])


def test_messages_that_a_member_has_not_committed_come_again_when_its_connection_ends() -> None:
    world = group_world(2)
    world.system.join_group("s", "t", "g", 2)
    group = Consumer.group("g")
    assert polled_by(world, 1, 4) == (0, [0, 1, 2, 3])
    world.system.store_offset("s", "t", group, 1, client_id=1)
    world.system.forget_client(1)
    assert refusal(lambda: world.system.store_offset("s", "t", group, 3, partition_id=0, client_id=1)) == 5006
    assert [polled_by(world, 2, 4) for _ in range(2)] == [(0, [2, 3, 4, 5]), (1, [0, 1, 2, 3])]


def test_a_member_may_commit_what_it_polled_before_others_came_and_went() -> None:
    world = group_world(3)
    assert polled_by(world, 1, 4) == (0, [0, 1, 2, 3])
    world.system.join_group("s", "t", "g", 2)
    world.system.leave_group("s", "t", "g", 2)
    world.system.store_offset("s", "t", Consumer.group("g"), 3, client_id=1)
    assert world.system.get_offset("s", "t", Consumer.group("g"), partition_id=0) == StoredOffset(0, 9, 3)


def test_a_partition_that_changes_hands_during_a_read_gives_its_messages_to_the_new_owner_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World({"system": {"partition": {"messages_required_to_save": 1}}})
    world.make_topic()
    world.send(*numbered(3))
    world.system.create_group("s", "t", "g")
    for client_id in (1, 2):
        world.system.join_group("s", "t", "g", client_id)
    read = FakeFile.pread_into

    def read_and_disconnect(file: FakeFile, buffer: memoryview, offset: int) -> int:
        world.system.forget_client(1)
        return read(file, buffer, offset)

    with monkeypatch.context() as patched:
        patched.setattr(FakeFile, "pread_into", read_and_disconnect)
        assert polled_by(world, 1, 3, auto_commit=True) == (0, [])
    assert world.system.get_offset("s", "t", Consumer.group("g")) is None
    assert polled_by(world, 2, 3, auto_commit=True) == (0, [0, 1, 2])


def test_a_group_that_is_deleted_takes_its_offsets_along() -> None:
    world = World()
    world.make_topic()
    world.send(*numbered(3))
    world.system.create_group("s", "t", "g")
    world.system.join_group("s", "t", "g", 1)
    world.poll(NEXT, consumer=Consumer.group("g"), client_id=1, auto_commit=True)
    assert world.names(f"{PARTITION}/offsets/groups") == ["0"]
    world.system.delete_group("s", "t", "g")
    assert world.names(f"{PARTITION}/offsets/groups") == []
    assert world.system.create_group("s", "t", "h").id == 0
    world.system.join_group("s", "t", "h", 1)
    assert len(world.poll(NEXT, consumer=Consumer.group("h"), client_id=1)) == 3


def test_a_group_file_that_cannot_be_deleted_does_not_serve_the_next_group() -> None:
    world = World()
    world.make_topic()
    world.send(*numbered(3))
    world.system.create_group("s", "t", "g")
    world.system.join_group("s", "t", "g", 1)
    world.poll(NEXT, consumer=Consumer.group("g"), client_id=1, auto_commit=True)
    world.faults.fail("unlink")
    world.system.delete_group("s", "t", "g")
    assert world.names(f"{PARTITION}/offsets/groups") == ["0"]
    world.restart()
    world.system.create_group("s", "t", "h")
    assert world.system.get_offset("s", "t", Consumer.group("h")) is None
    assert world.names(f"{PARTITION}/offsets/groups") == []


def test_a_connection_that_is_gone_leaves_all_its_groups() -> None:
    world = World()
    world.make_topic(2)
    for name in ("g", "h"):
        world.system.create_group("s", "t", name)
        world.system.join_group("s", "t", name, 1)
        world.system.join_group("s", "t", name, 2)
    world.system.forget_client(1)
    for name in ("g", "h"):
        assert [member.client_id for member in world.system.group("s", "t", name).members] == [2]
    world.system.join_group("s", "t", "g", 3, is_connected=lambda client_id: client_id != 2)
    assert [member.client_id for member in world.system.group("s", "t", "g").members] == [3]
    world.system.leave_group("s", "t", "g", 3)
    assert world.system.group("s", "t", "g").members == []


# Deduplication.


@pytest.mark.parametrize("when", ["at once", "by create_partitions", "after a restart", "after a purge"])
def test_every_partition_drops_duplicates_whenever_it_was_made(when: str) -> None:
    """Offsets have no gap, and the request succeeds."""
    world = World({"system": {"message_deduplication": {"enabled": True}}})
    world.make_topic(2 if when != "by create_partitions" else 1)
    if when == "by create_partitions":
        world.system.create_partitions("s", "t", 1)
    if when == "after a restart":
        world.reopen()
    if when == "after a purge":
        world.send(b"purged", partition_id=1, ids=(1,))
        world.system.purge_topic("s", "t")
    assert world.send(b"a", b"b", partition_id=1, ids=(1, 2)) == 0
    sent = world.system.send("s", "t", batch(b"a", ids=(1,)), PartitionId(1))
    assert sent.count == 0
    assert world.send(b"c", b"a", b"c", partition_id=1, ids=(3, 1, 3)) == 2
    world.clock.advance(60_000)
    world.send(b"a", partition_id=1, ids=(1,))
    assert world.all(partition_id=1) == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"a")]


def test_a_message_whose_append_failed_is_no_duplicate_when_it_comes_again() -> None:
    deduplicating = {"message_deduplication": {"enabled": True}, "partition": {"messages_required_to_save": 1}}
    world = World({"system": deduplicating})
    world.make_topic()
    world.faults.fail("pwritev", error=errno.ENOSPC)
    assert refusal(lambda: world.send(b"a", ids=(1,))) == 10005
    assert world.send(b"a", ids=(1,)) == 0
    assert world.all() == [(0, b"a")]

"""Consumer groups over the wire: members, their partitions, and what becomes of them."""

import threading

import pytest

from tests.server.streams.peer import NEXT, Peer, Refused, StreamsServer
from topics.formats.stream_command import DeleteConsumerGroup, DeletePartitions
from topics.protocol.iggy.answers import ClientGroupRecord, ClientRecord, GroupRecord, MemberRecord, OffsetAnswer
from topics.protocol.iggy.codes import Code
from topics.protocol.iggy.requests import (
    CreateConsumerGroupRequest,
    GetConsumerGroup,
    GetConsumerGroups,
    GetConsumerOffset,
    JoinConsumerGroup,
    LeaveConsumerGroup,
    StoreConsumerOffset,
)


def members_of(peer: Peer, stream: str, group: str = "g") -> list[tuple[int, ...]]:
    """The partitions of each member, in the order of joins."""
    _, *members = peer.get(GetConsumerGroup(stream, "t", group), GroupRecord, MemberRecord)
    return [member.partitions for member in members]


def wait_members(peer: Peer, stream: str, count: int) -> list[tuple[int, ...]]:
    """A lost connection is noticed soon, not at once."""
    while len(members := members_of(peer, stream)) != count:
        pass
    return members


def test_a_group_is_created_found_and_deleted(root: Peer, name: str) -> None:
    root.create(name, "t", partitions=3)
    assert root.get(CreateConsumerGroupRequest(name, "t", "g"), GroupRecord) == [GroupRecord(0, 3, 0, "g")]
    assert root.status(CreateConsumerGroupRequest(name, "t", "g")) == 5004
    root.do(CreateConsumerGroupRequest(name, "t", "h"))
    assert root.get(GetConsumerGroups(name, "t"), GroupRecord) == [GroupRecord(0, 3, 0, "g"), GroupRecord(1, 3, 0, "h")]
    assert root.get(GetConsumerGroup(name, "t", 1), GroupRecord) == [GroupRecord(1, 3, 0, "h")]
    root.do(DeleteConsumerGroup(name, "t", "g"))
    for get in (
        GetConsumerGroup(name, "t", "g"),
        GetConsumerGroup("nothing", "t", "g"),
        GetConsumerGroups(name, "nothing"),
    ):
        assert root.do(get) == b""
    for request, status in (
        (DeleteConsumerGroup(name, "t", "g"), 5000),
        (JoinConsumerGroup(name, "t", "g"), 5000),
        (LeaveConsumerGroup(name, "t", "g"), 5000),
        (LeaveConsumerGroup(name, "t", "h"), 5006),
        (JoinConsumerGroup(name, "nothing", "g"), 2010),
        (CreateConsumerGroupRequest("nothing", "t", "g"), 1009),
    ):
        assert root.status(request) == status


def test_two_members_share_the_partitions_and_a_lost_one_leaves_them(
    streams: StreamsServer, root: Peer, name: str
) -> None:
    root.create(name, "t", partitions=4)
    root.do(CreateConsumerGroupRequest(name, "t", "g"))
    for partition in range(4):
        root.send(name, "t", [b"%d" % partition], partition)
    first, second = streams.login(), streams.login()
    first.do(JoinConsumerGroup(name, "t", "g"))
    first.do(JoinConsumerGroup(name, "t", "g"))
    assert members_of(root, name) == [(0, 1, 2, 3)]
    second.do(JoinConsumerGroup(name, "t", "g"))
    assert sorted(map(len, members_of(root, name))) == [2, 2]
    polled = [
        peer.poll(name, "t", NEXT, partition=None, group="g", auto_commit=True).partition_id
        for peer in (first, first, second, second)
    ]
    assert sorted(polled) == [0, 1, 2, 3]
    me, *groups = second.get(Code.GET_ME, ClientRecord, ClientGroupRecord)
    assert me.consumer_groups_count == len(groups) == 1
    second.close()
    assert wait_members(root, name, 1) == [(0, 1, 2, 3)]
    first.do(LeaveConsumerGroup(name, "t", "g"))
    assert members_of(root, name) == []
    with pytest.raises(Refused) as refused:
        first.poll(name, "t", NEXT, partition=None, group="g")
    assert refused.value.status == 5006


def test_a_partition_changes_hands_when_its_messages_are_processed(
    streams: StreamsServer, root: Peer, name: str
) -> None:
    root.create(name, "t", partitions=2)
    root.do(CreateConsumerGroupRequest(name, "t", "g"))
    for partition in (0, 1):
        root.send(name, "t", [b"x"] * 3, partition)
    first, second = streams.login(), streams.login()
    first.do(JoinConsumerGroup(name, "t", "g"))
    for _ in range(2):
        first.poll(name, "t", NEXT, partition=None, group="g")
    second.do(JoinConsumerGroup(name, "t", "g"))
    assert members_of(root, name) == [(0, 1), ()]
    polled = second.poll(name, "t", NEXT, partition=None, group="g")
    assert (polled.partition_id, polled.current_offset, polled.count) == (0, 0, 0)
    first.do(StoreConsumerOffset(2, "g", name, "t", 1, 2))
    assert members_of(root, name) == [(0,), (1,)]
    assert second.status(StoreConsumerOffset(2, "g", name, "t", 0, 0)) == 3022
    assert root.get(GetConsumerOffset(2, "g", name, "t", 1), OffsetAnswer) == [OffsetAnswer(1, 2, 2)]


def test_fewer_partitions_are_dealt_again(streams: StreamsServer, root: Peer, name: str) -> None:
    root.create(name, "t", partitions=3)
    root.do(CreateConsumerGroupRequest(name, "t", "g"))
    members = [streams.login() for _ in range(3)]
    for member in members:
        member.do(JoinConsumerGroup(name, "t", "g"))
    root.do(DeletePartitions(name, "t", 2))
    assert members_of(root, name) == [(0,), (), ()]


def test_many_clients_of_many_groups_read_every_message_once_per_group(
    streams: StreamsServer, root: Peer, name: str
) -> None:
    """Three groups of three members each, while four producers send."""
    root.create(name, "t", partitions=6)
    groups = ["a", "b", "c"]
    for group in groups:
        root.do(CreateConsumerGroupRequest(name, "t", group))
    count_each = 60
    seen: dict[str, list[bytes]] = {group: [] for group in groups}
    done = threading.Event()
    problems: list[BaseException] = []

    def produce(number: int) -> None:
        peer = streams.login()
        for step in range(count_each):
            peer.send(name, "t", [b"%d-%d" % (number, step)], b"key-%d" % (step % 7))

    def consume(group: str) -> None:
        peer = streams.login()
        peer.do(JoinConsumerGroup(name, "t", group))
        while not done.is_set():
            seen[group] += peer.poll(name, "t", NEXT, partition=None, group=group, auto_commit=True).payloads

    def guarded(target: object, *args: object) -> None:
        try:
            target(*args)  # type: ignore[operator]
        except BaseException as error:
            problems.append(error)
            done.set()
            raise

    producers = [threading.Thread(target=guarded, args=(produce, number)) for number in range(4)]
    consumers = [threading.Thread(target=guarded, args=(consume, group)) for group in groups for _ in range(3)]
    for thread in (*producers, *consumers):
        thread.start()
    for thread in producers:
        thread.join()
    while not done.is_set() and any(len(payloads) < 4 * count_each for payloads in seen.values()):
        root.ask(Code.PING)
    done.set()
    for thread in consumers:
        thread.join()
    assert not problems
    everything = sorted(b"%d-%d" % (number, step) for number in range(4) for step in range(count_each))
    for group in groups:
        assert sorted(seen[group]) == everything

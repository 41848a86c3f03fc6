"""Stored offsets and flushes over the wire."""

from pathlib import Path

from tests.server.streams.peer import NEXT, Peer, streams_server
from topics.protocol.iggy.answers import OffsetAnswer
from topics.protocol.iggy.requests import (
    CreateConsumerGroupRequest,
    DeleteConsumerOffset,
    FlushUnsavedBuffer,
    GetConsumerOffset,
    StoreConsumerOffset,
)


def test_an_offset_is_stored_read_and_deleted(root: Peer, name: str) -> None:
    root.create(name, "t", partitions=2)
    root.send(name, "t", [b"x"] * 5, 1)
    for consumer in (0, 7, "billing"):
        slot = (1, consumer, name, "t", 1)
        assert root.do(GetConsumerOffset(*slot)) == b""
        assert root.status(DeleteConsumerOffset(*slot)) == 3021
        root.do(StoreConsumerOffset(*slot, 3))
        assert root.get(GetConsumerOffset(*slot), OffsetAnswer) == [OffsetAnswer(1, 4, 3)]
        assert root.poll(name, "t", NEXT, partition=1, consumer=consumer).offsets == [4]
        root.do(StoreConsumerOffset(*slot, 0))
        assert root.poll(name, "t", NEXT, partition=1, consumer=consumer).offsets == [1, 2, 3, 4]
        root.do(DeleteConsumerOffset(*slot))
        assert root.do(GetConsumerOffset(*slot)) == b""


def test_offsets_that_cannot_be_stored(root: Peer, name: str) -> None:
    root.create(name, "t", partitions=2)
    root.send(name, "t", [b"x"], 0)
    for slot, status in (
        ((1, 0, name, "t", 0, 1), 4100),
        ((1, 0, name, "t", 1, 0), 4100),
        ((1, 0, name, "t", 2, 0), 3007),
        ((1, 0, name, "nothing", 0, 0), 2010),
        ((1, 0, "nothing", "t", 0, 0), 1009),
        ((2, "nothing", name, "t", 0, 0), 5000),
    ):
        assert root.status(StoreConsumerOffset(*slot)) == status
    root.do(CreateConsumerGroupRequest(name, "t", "g"))
    assert root.status(StoreConsumerOffset(2, "g", name, "t", 0, 0)) == 5006
    assert root.status(DeleteConsumerOffset(2, "g", name, "t", 0)) == 5006


def test_whatever_is_missing_has_no_offset(root: Peer, name: str) -> None:
    root.create(name, "t")
    for slot in (
        (1, 0, "nothing", "t", 0),
        (1, 0, name, "nothing", 0),
        (1, 0, name, "t", 9),
        (2, "nothing", name, "t", 0),
        (1, 0, name, "t", None),
    ):
        assert root.do(GetConsumerOffset(*slot)) == b""


def test_a_flush_writes_what_is_buffered(tmp_path: Path) -> None:
    with streams_server(tmp_path) as served:
        root = served.login()
        root.create("s", "t")
        (log,) = tmp_path.rglob("00000000000000000000.log")
        assert root.status(FlushUnsavedBuffer("s", "t", 0, True)) == 0
        root.send("s", "t", [b"hello"], 0)
        assert log.stat().st_size == 0
        root.do(FlushUnsavedBuffer("s", "t", 0, False))
        assert log.stat().st_size == 69
        for request, status in (
            (FlushUnsavedBuffer("s", "t", 1, False), 3007),
            (FlushUnsavedBuffer("s", "no", 0, False), 2010),
        ):
            assert root.status(request) == status

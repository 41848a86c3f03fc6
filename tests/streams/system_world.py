"""The whole engine on a disk in memory, for tests."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import pytest

from topics.stream_errors import StreamsError
from topics.streams.consumers.polling import Consumer, PollingStrategy
from topics.streams.partitions.batch import IncomingBatch, NewMessage, encode_send
from topics.streams.partitions.message_view import PolledMessages
from topics.streams.partitions.partitioning import PartitionId
from topics.streams.settings import from_mapping
from topics.streams.system import System
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import FakeDisk
from topics.testing.fault_fs import FaultFs
from topics.testing.monitor_fs import MonitorFs

ROOT: Final = "/data"
PARTITION: Final = f"{ROOT}/streams/0/topics/0/partitions/0"
EVERYTHING: Final = 1_000_000


@cache
def _born(flavour: str) -> FakeDisk:
    """A directory with only its root user, whose password is slow to hash."""
    disk = FakeDisk()
    System.open(disk, ROOT, from_mapping({"system": {"flavour": flavour}}), clock=ManualClock()).close()
    return disk


class World:
    """A fake disk with faults and a monitor, and an engine that can be opened again and again."""

    def __init__(self, values: Mapping[str, Any] | None = None, *, flavour: str = "page") -> None:
        self.disk = _born(flavour).clone()
        self.clock = ManualClock()
        self.values = dict(values or {})
        self.system: System
        self.open()

    def open(self, values: Mapping[str, Any] | None = None) -> System:
        self.faults = FaultFs(self.disk)
        self.monitor = MonitorFs(self.faults)
        if values is not None:
            self.values = dict(values)
        self.system = System.open(self.monitor, ROOT, from_mapping(self.values), clock=self.clock)
        return self.system

    def reopen(self, values: Mapping[str, Any] | None = None) -> System:
        self.system.close()
        return self.open(values)

    def restart(self, values: Mapping[str, Any] | None = None) -> System:
        """The process is killed, and another one starts; the page cache is kept."""
        self.disk.kill()
        return self.open(values)

    def make_topic(self, partitions_count: int = 1, **options: Any) -> None:
        self.system.create_stream("s")
        self.system.create_topic("s", "t", partitions_count=partitions_count, **options)

    def send(self, *payloads: bytes, topic: str = "t", partition_id: int = 0, ids: tuple[int, ...] = ()) -> int:
        """Returns the first offset."""
        sent = self.system.send("s", topic, batch(*payloads, ids=ids), PartitionId(partition_id))
        assert sent.partition_id == partition_id
        return sent.first_offset

    def all(self, topic: str = "t", partition_id: int = 0) -> list[tuple[int, bytes]]:
        polled = self.poll(PollingStrategy.first(), topic=topic, partition_id=partition_id)
        return [(message.offset, bytes(message.payload)) for message in polled]

    def poll(self, strategy: PollingStrategy, count: int = EVERYTHING, **options: Any) -> PolledMessages:
        topic = options.pop("topic", "t")
        consumer = options.pop("consumer", Consumer(1))
        return self.system.poll("s", topic, consumer, strategy, count, **options)

    def names(self, directory: str) -> list[str]:
        return self.disk.listdir(directory)


def batch(*payloads: bytes, ids: tuple[int, ...] = ()) -> IncomingBatch:
    numbers = ids or (0,) * len(payloads)
    return encode_send([NewMessage(payload, number) for payload, number in zip(payloads, numbers, strict=True)])


def refusal(action: Callable[[], object]) -> int:
    """The status number of the error."""
    with pytest.raises(StreamsError) as refused:
        action()
    return int(refused.value.number)


def numbered(count: int) -> list[bytes]:
    return [b"message %d" % number for number in range(count)]


def fill(world: World, segments_count: int, topic: str = "t", partition_id: int = 0) -> None:
    """Makes sealed segments of three messages, and an empty active one after them."""
    for _ in range(segments_count):
        world.send(*(b"x" * 120 for _ in range(3)), topic=topic, partition_id=partition_id)


def start_offsets(world: World, topic: str = "t", partition_id: int = 0) -> list[int]:
    info = world.system.metadata.resolve_topic("s", topic)
    directory = f"{ROOT}/streams/{info.stream_id}/topics/{info.id}/partitions/{partition_id}"
    return [int(name[:20]) for name in world.names(directory) if name.endswith(".log")]

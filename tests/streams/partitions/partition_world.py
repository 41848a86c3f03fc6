"""A partition on a disk in memory: what its tests share."""

from dataclasses import replace
from typing import Any, Final

from topics.formats.message_cipher import Cipher
from topics.formats.message_codec import Codec
from topics.formats.stream_layout import BodyOrder
from topics.storage.fs import Fs
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.partitions.batch import IncomingBatch, NewMessage, encode_send
from topics.streams.partitions.deduplication import Deduplicator
from topics.streams.partitions.memory_pool import MemoryPool
from topics.streams.partitions.message_view import PolledMessages
from topics.streams.partitions.partition import Appended, Partition, PartitionOptions
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import FakeDisk
from topics.testing.fault_fs import FaultFs
from topics.testing.monitor_fs import MonitorFs

ROOT: Final = "/data/partitions/0"
FIRST_LOG: Final = f"{ROOT}/{0:020d}.log"
FIRST_INDEX: Final = f"{ROOT}/{0:020d}.index"

# Nothing is flushed or rolled unless a test asks for it.
PATIENT: Final = PartitionOptions(messages_required_to_save=1_000_000, size_of_messages_required_to_save=1 << 40)
# An acknowledged message is durable.
DURABLE: Final = PartitionOptions(messages_required_to_save=1, enforce_fsync=True)
# A flush with each append, no sync.
EAGER: Final = PartitionOptions(messages_required_to_save=1)


def batch(*payloads: bytes, ids: tuple[int, ...] = ()) -> IncomingBatch:
    numbers = ids or (0,) * len(payloads)
    return encode_send([NewMessage(payload, number) for payload, number in zip(payloads, numbers, strict=True)])


def new_pool() -> MemoryPool:
    return MemoryPool(enabled=True, size=1 << 30, bucket_capacity=128)


def payloads(polled: PolledMessages) -> list[bytes]:
    return [bytes(message.payload) for message in polled]


def offsets(polled: PolledMessages) -> list[int]:
    return [message.offset for message in polled]


def poll_one(partition: Partition, offset: int) -> tuple[int, bytes, int] | StreamStatus | None:
    """Offset, payload and time of the message at an offset; None if there is none; or the status of the error."""
    try:
        polled = list(partition.reader.poll_offset(offset, 1))
    except StreamsError as error:
        return error.number
    return (polled[0].offset, bytes(polled[0].payload), polled[0].timestamp) if polled else None


class World:
    """A fake disk with faults and a monitor, and a partition that can be opened again and again."""

    def __init__(self, options: PartitionOptions = PATIENT, disk: FakeDisk | None = None, **others: Any) -> None:
        self.disk = disk or FakeDisk()
        # The partition does not make the folders above its own.
        self.disk.makedirs(ROOT.rpartition("/")[0])
        self.faults = FaultFs(self.disk)
        self.monitor = MonitorFs(self.faults)
        self.clock = ManualClock()
        self.options = options
        self.order: BodyOrder = others.pop("order", BodyOrder.HEADERS_FIRST)
        self.cipher: Cipher | None = others.pop("cipher", None)
        self.codec: Codec = others.pop("codec", Codec.NONE)
        self.deduplicate: tuple[int, int] | None = others.pop("deduplicate", None)
        assert not others, f"no such thing as {others}"
        self.pool = new_pool()
        self.partition: Partition

    def open(self, fs: Fs | None = None, **changes: Any) -> Partition:
        self.options = replace(self.options, **changes)
        self.partition = Partition.open(
            fs or self.monitor,
            ROOT,
            self.options,
            partition_id=7,
            order=self.order,
            pool=self.pool,
            clock=self.clock,
            cipher=self.cipher,
            codec=self.codec,
            deduplicator=Deduplicator(*self.deduplicate) if self.deduplicate else None,
        )
        return self.partition

    def send(self, *messages: bytes, ids: tuple[int, ...] = ()) -> Appended:
        return self.partition.append(batch(*messages, ids=ids))

    def reopen(self, **changes: Any) -> Partition:
        self.partition.close()
        return self.open(**changes)

    def restart(self, **changes: Any) -> Partition:
        """The process is killed and another one starts; the page cache is kept."""
        self.disk.kill()
        self.forget_monitor()
        return self.open(**changes)

    def forget_monitor(self) -> None:
        """The next process has a new monitor."""
        self.faults.heal()
        self.monitor = MonitorFs(self.faults)

    def all(self) -> list[tuple[int, bytes]]:
        polled = self.partition.reader.poll_first(1_000_000)
        return list(zip(offsets(polled), payloads(polled), strict=True))

    def names(self) -> list[str]:
        return self.disk.listdir(ROOT)

"""A topic of real partitions with small segments, for the tests of retention, archive and restore."""

from typing import Final

from tests.streams.partitions.partition_world import batch, new_pool, offsets, payloads
from topics.formats.message_codec import Codec
from topics.formats.stream_layout import BodyOrder
from topics.storage.fs import Fs
from topics.streams.consumers.consumer_offsets import ConsumerOffsets
from topics.streams.partitions.partition import Partition, PartitionOptions
from topics.streams.retention.cleaner import NEVER_EXPIRES, UNLIMITED_BYTES, RetainedPartition, RetainedTopic
from topics.testing.clock import ManualClock

DATA: Final = "/data"

# Every batch of `fill` is one durable segment.
ONE_BATCH_PER_SEGMENT: Final = PartitionOptions(segment_size=512, messages_required_to_save=1, enforce_fsync=True)
BATCH_MESSAGES: Final = 3
PAYLOAD_BYTES: Final = 200


def key_of(partition_id: int) -> str:
    return f"streams/0/topics/0/partitions/{partition_id}"


class KeptTopic:
    """Partitions below a data directory. Each batch comes a second after the previous one."""

    def __init__(self, fs: Fs, root: str = DATA, *, partitions_count: int = 1, codec: Codec = Codec.NONE) -> None:
        self.fs = fs
        self.root = root
        self.clock = ManualClock()
        self.codec = codec
        self.partitions = [self.open_partition(partition_id) for partition_id in range(partitions_count)]
        self.batches_count = 0

    def open_partition(self, partition_id: int) -> RetainedPartition:
        directory = f"{self.root}/{key_of(partition_id)}"
        partition = Partition.open(
            self.fs,
            directory,
            ONE_BATCH_PER_SEGMENT,
            partition_id=partition_id,
            order=BodyOrder.HEADERS_FIRST,
            pool=new_pool(),
            clock=self.clock,
            codec=self.codec,
        )
        return RetainedPartition(
            key=key_of(partition_id), partition=partition, offsets=ConsumerOffsets.open(self.fs, directory)
        )

    def partition(self, partition_id: int = 0) -> Partition:
        partition = self.partitions[partition_id].partition
        assert isinstance(partition, Partition)
        return partition

    def fill(self, *partition_ids: int) -> None:
        """Adds one sealed segment to each of these partitions."""
        for partition_id in partition_ids or (0,):
            self.batches_count += 1
            self.clock.advance(1000)
            texts = [f"{partition_id} {self.batches_count} {place}" for place in range(BATCH_MESSAGES)]
            self.partition(partition_id).append(batch(*(text.encode().ljust(PAYLOAD_BYTES) for text in texts)))

    def retained(
        self, *, message_expiry_us: int = NEVER_EXPIRES, max_bytes: int = UNLIMITED_BYTES
    ) -> list[RetainedTopic]:
        return [RetainedTopic(message_expiry_us=message_expiry_us, max_bytes=max_bytes, partitions=self.partitions)]

    def now_us(self) -> int:
        return self.clock.now_ms() * 1000

    def starts(self, partition_id: int = 0) -> list[int]:
        return [segment.start_offset for segment in self.partition(partition_id).segments]

    def messages(self, partition_id: int = 0) -> dict[int, bytes]:
        polled = self.partition(partition_id).reader.poll_first(10_000)
        return dict(zip(offsets(polled), payloads(polled), strict=True))

    def close(self) -> None:
        for retained in self.partitions:
            assert isinstance(retained.partition, Partition)
            retained.partition.close()

"""How partitions are opened: with the options, the codec, the cipher and the pool that the settings ask for."""

from collections.abc import Iterable

from topics.clock import Clock
from topics.errors import StartRefused
from topics.formats.message_cipher import Cipher
from topics.formats.message_codec import Codec
from topics.formats.stream_layout import Flavour
from topics.storage.fs import Fs
from topics.stream_errors import StreamsError
from topics.streams.consumers.consumer_offsets import ConsumerOffsets
from topics.streams.directory.directories import Directories
from topics.streams.partitions.deduplication import Deduplicator
from topics.streams.partitions.memory_pool import MemoryPool
from topics.streams.partitions.partition import Partition, PartitionOptions
from topics.streams.running.running_topic import RunningPartition
from topics.streams.settings import StreamsSettings


class PartitionOpener:
    """`pool` is shared by all partitions that it opens."""

    def __init__(
        self,
        fs: Fs,
        directories: Directories,
        settings: StreamsSettings,
        flavour: Flavour,
        clock: Clock,
        cipher: Cipher | None,
    ) -> None:
        pool = settings.system.memory_pool
        self.pool = MemoryPool(enabled=pool.enabled, size=pool.size, bucket_capacity=pool.bucket_capacity)
        self._fs = fs
        self._directories = directories
        self._compression = settings.system.compression
        self._deduplication = settings.system.message_deduplication
        self._options = _partition_options(settings)
        self._flavour = flavour
        self._clock = clock
        self._cipher = cipher

    def effective_codec(self, code: int) -> Codec:
        """The codec that is really used for a topic that asked for the algorithm with this code."""
        if self._flavour is Flavour.IGGY and not self._compression.force:
            return Codec.NONE
        if self._compression.allow_override:
            return Codec.from_code(code)
        return Codec.from_name(self._compression.default_algorithm)

    def open_all(
        self, stream_id: int, topic_id: int, partition_ids: Iterable[int], codec: Codec
    ) -> list[RunningPartition]:
        """Opens all of the partitions or, if one fails, none. The caller adds them to a topic."""
        opened: list[RunningPartition] = []
        try:
            opened.extend(self._open(stream_id, topic_id, partition_id, codec) for partition_id in partition_ids)
        except (StreamsError, StartRefused, OSError):
            for running in opened:
                running.drop()
            raise
        return opened

    def _open(self, stream_id: int, topic_id: int, partition_id: int, codec: Codec) -> RunningPartition:
        key = self._directories.keys.partition(stream_id, topic_id, partition_id)
        path = self._directories.path(key)
        partition = Partition.open(
            self._fs,
            path,
            self._options,
            partition_id=partition_id,
            order=self._flavour.body_order,
            pool=self.pool,
            clock=self._clock,
            cipher=self._cipher,
            codec=codec,
            deduplicator=self._new_deduplicator(),
        )
        try:
            return RunningPartition(key, partition, ConsumerOffsets.open(self._fs, path))
        except BaseException:
            partition.drop()
            raise

    def _new_deduplicator(self) -> Deduplicator | None:
        deduplication = self._deduplication
        return Deduplicator(deduplication.max_entries, deduplication.expiry_us) if deduplication.enabled else None


def _partition_options(settings: StreamsSettings) -> PartitionOptions:
    partition, segment = settings.system.partition, settings.system.segment
    return PartitionOptions(
        segment_size=segment.size,
        messages_required_to_save=partition.messages_required_to_save,
        size_of_messages_required_to_save=partition.size_of_messages_required_to_save,
        enforce_fsync=partition.enforce_fsync,
        validate_checksum=partition.validate_checksum,
        cache_indexes=segment.cache_indexes,
        max_poll_bytes=partition.max_poll_bytes,
    )

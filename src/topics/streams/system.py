"""The partitioned engine as a whole: everything a server or a program can ask of one data directory.

Rules of this file:

1. A command that changes what there is (streams, topics, partitions, groups, users) is checked, its folders are made,
   then it is logged, then it counts. Folders before the entry: a start refuses a partition that has none, and takes one
   too many for what it is. On the way down it is the other way round: first the entry, then the folders. An entry
   that has to do with folders or files is durable before anything follows it, whatever the settings say: messages
   must not outlive their topic, nor a topic its folders.
2. `_lock` guards the metadata, the list of what runs and the groups. It is never held during a send, a poll, or a
   flush: those work on a partition that was looked up under it, and that knows when it is gone.
3. What a user may do is asked before (`users.authorize`), by whoever knows who asks. `user_id` is only noted.

Any thread may call anything here. `tick` does what is due, and is called now and then by one thread.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from topics.clock import Clock
from topics.errors import StartRefused
from topics.formats.message_codec import Codec
from topics.formats.stream_command import (
    CreateConsumerGroup,
    CreatePartitions,
    CreateStream,
    CreateTopic,
    DeleteConsumerGroup,
    DeletePartitions,
    DeleteSegments,
    DeleteStream,
    DeleteTopic,
    Identifier,
    PurgeStream,
    PurgeTopic,
    UpdateStream,
    UpdateTopic,
)
from topics.formats.stream_layout import Flavour
from topics.storage.fs import Fs, Lock, write_atomic
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.consumers.consumer_group import ConsumerGroup
from topics.streams.consumers.consumer_offsets import ConsumerKind, ConsumerOffsets, check_offset, consumer_file_id
from topics.streams.consumers.polling import Consumer, PollingStrategy, StrategyKind
from topics.streams.directory.directories import DELETED, Directories, take_lock
from topics.streams.directory.flavour import open_flavour
from topics.streams.directory.info_file import update_info
from topics.streams.metadata import users
from topics.streams.metadata.accounts import Accounts
from topics.streams.metadata.commands import Commands
from topics.streams.metadata.metadata import ROOT_USER_ID, GroupInfo, Metadata, StreamInfo, TopicInfo
from topics.streams.metadata.state_log import StateLog
from topics.streams.partitions.batch import IncomingBatch
from topics.streams.partitions.deduplication import Deduplicator
from topics.streams.partitions.memory_pool import MemoryPool
from topics.streams.partitions.message_view import PolledMessages
from topics.streams.partitions.partition import Partition, PartitionOptions
from topics.streams.partitions.partitioning import Balanced, Partitioning, choose
from topics.streams.running.running_topic import RunningPartition, RunningTopic
from topics.streams.running.upkeep import Upkeep
from topics.streams.settings import StreamsSettings, to_toml
from topics.streams.times import now_us

logger = logging.getLogger(__name__)

CURRENT_CONFIG: Final = "current_config.toml"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Of the root user, for a directory that has none yet."""

    username: str
    password: str = field(repr=False)


# For a directory that nobody but this machine reaches; a server that listens elsewhere asks for others.
DEFAULT_ROOT_USER: Final = Credentials("iggy", "iggy")


@dataclass(frozen=True, slots=True)
class Sent:
    """Where messages went. Duplicates that were dropped do not count."""

    partition_id: int
    first_offset: int
    count: int


@dataclass(frozen=True, slots=True)
class StoredOffset:
    partition_id: int
    current_offset: int
    stored_offset: int


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What a partition holds, with what is buffered."""

    id: int
    created_at: int
    segments_count: int
    current_offset: int
    size_bytes: int
    messages_count: int
    has_messages: bool


@dataclass(frozen=True, slots=True)
class TopicState:
    info: TopicInfo
    partitions: list[PartitionState]

    @property
    def size_bytes(self) -> int:
        return sum(partition.size_bytes for partition in self.partitions)

    @property
    def messages_count(self) -> int:
        return sum(partition.messages_count for partition in self.partitions)


class System:
    """Made by `open`."""

    def __init__(
        self, fs: Fs, settings: StreamsSettings, clock: Clock, lock: Lock, directories: Directories, flavour: Flavour
    ) -> None:
        self.settings = settings
        self.flavour = flavour
        self.metadata = Metadata(settings)
        self.pool = MemoryPool(
            enabled=settings.system.memory_pool.enabled,
            size=settings.system.memory_pool.size,
            bucket_capacity=settings.system.memory_pool.bucket_capacity,
        )
        self._fs = fs
        self._clock = clock
        self._directory_lock = lock
        self._directories = directories
        self._cipher = settings.system.encryption.cipher()
        self._commands = Commands(self.metadata)
        # By stream id, then topic id.
        self._running: dict[int, dict[int, RunningTopic]] = {}
        self.accounts = Accounts(self._commands, clock)
        self.upkeep = Upkeep(fs, directories.root, settings, clock, self._commands, self._all_topics)

    # Opening and closing.

    @classmethod
    def open(
        cls,
        fs: Fs,
        root: str,
        settings: StreamsSettings | None = None,
        *,
        clock: Clock,
        root_user: Credentials = DEFAULT_ROOT_USER,
    ) -> "System":
        """Recovers the directory, or makes one. Raises `StartRefused` with the reason; then nothing was deleted."""
        settings = settings or StreamsSettings()
        settings.check()
        try:
            return cls._open_locked(fs, root, settings, clock, root_user, take_lock(fs, root))
        except OSError as error:
            raise StartRefused(f"{root} cannot be opened: {error}") from error
        except StreamsError as error:
            raise StartRefused(f"{root} cannot be opened: {error.message}") from error

    @classmethod
    def _open_locked(
        cls, fs: Fs, root: str, settings: StreamsSettings, clock: Clock, root_user: Credentials, lock: Lock
    ) -> "System":
        system: System | None = None
        try:
            flavour = open_flavour(fs, root, settings)
            system = cls(fs, settings, clock, lock, Directories(fs, root, settings), flavour)
            system._start(root_user)
        except BaseException:
            if system is not None:
                system._abandon()
            lock.release()
            raise
        return system

    def _start(self, root_user: Credentials) -> None:
        root = self._directories.root
        self._effective_codec(Codec.NONE.code).load()
        self._wipe_runtime()
        update_info(self._fs, root, self.flavour)
        self._commands.state_log = StateLog.open(
            self._fs, root, self.flavour, self._cipher, self.settings.system.state.enforce_fsync, self._clock
        )
        try:
            self._recover(root_user)
        except BaseException:
            self._commands.state_log.abandon()
            raise

    def _recover(self, root_user: Credentials) -> None:
        self.metadata.replay(self._commands.state_log.entries, now_us(self._clock))
        if not self.metadata.has_root:
            self._commands.log_and_apply(ROOT_USER_ID, users.root_user(root_user.username, root_user.password))
        self._finish_removals()
        for stream in self.metadata.streams.ascending():
            # One by one, so that a start that fails halfway knows what it has opened.
            running = self._running[stream.id] = {}
            for topic in stream.topics.ascending():
                running[topic.id] = self._running_topic(topic)
                self._recover_topic(running[topic.id])

    def _wipe_runtime(self) -> None:
        """What is there is of this run alone. Nothing depends on it, so a disk without room does not stop a start."""
        runtime = self.settings.system.runtime.path
        try:
            self._directories.remove(runtime)
            self._fs.makedirs(self._directories.path(runtime))
            path = f"{self._directories.path(runtime)}/{CURRENT_CONFIG}"
            write_atomic(self._fs, path, to_toml(self.settings).encode())
        except OSError as error:
            logger.warning("%s: the settings of this run are not noted: %s", self._directories.path(runtime), error)

    def _finish_removals(self) -> None:
        """What a crash left of a deletion goes now; what nobody knows of stays, and is told."""
        directories = self._directories
        directories.finish_removals(directories.keys.streams)
        self._report_strangers(directories.keys.streams, {str(stream_id) for stream_id in self.metadata.streams})
        for stream in self.metadata.streams.values():
            key = directories.keys.topics_of(stream.id)
            directories.finish_removals(key)
            self._report_strangers(key, {str(topic_id) for topic_id in stream.topics})
            for topic in stream.topics.values():
                key = directories.keys.partitions_of(stream.id, topic.id)
                directories.finish_removals(key)
                self._report_strangers(key, {str(partition.id) for partition in topic.partitions})

    def _report_strangers(self, key: str, known: set[str]) -> None:
        for name in self._directories.names(key):
            if name not in known and not name.endswith(DELETED):
                logger.warning("%s/%s is not in the state log; left alone", self._directories.path(key), name)

    def _recover_topic(self, topic: RunningTopic) -> None:
        info = topic.info
        if not self.settings.system.recovery.recreate_missing_state:
            for partition in info.partitions:
                key = self._directories.keys.partition(info.stream_id, info.id, partition.id)
                if not self._directories.exists(key):
                    raise StartRefused(
                        f"{self._directories.path(key)} is missing, and the state log has the partition; bring it "
                        "back, or set system.recovery.recreate_missing_state to begin it anew"
                    )
        topic.add_partitions(topic.open_partitions(partition.id for partition in info.partitions))
        for running in topic.partitions:
            running.offsets.keep_groups(set(info.groups))
            running.offsets.clamp(running.partition.current_offset, has_messages=running.partition.has_messages)
        for group_id in info.groups:
            topic.add_group(group_id)

    def _running_topic(self, info: TopicInfo) -> RunningTopic:
        return RunningTopic(
            info,
            self._effective_codec(info.compression),
            self._open_partition,
            self.settings.consumer_group.rebalancing_timeout_us,
        )

    def _open_partition(self, info: TopicInfo, partition_id: int, codec: Codec) -> RunningPartition:
        key = self._directories.keys.partition(info.stream_id, info.id, partition_id)
        path = self._directories.path(key)
        deduplication = self.settings.system.message_deduplication
        partition = Partition.open(
            self._fs,
            path,
            _partition_options(self.settings),
            partition_id=partition_id,
            order=self.flavour.body_order,
            pool=self.pool,
            clock=self._clock,
            cipher=self._cipher,
            codec=codec,
            deduplicator=Deduplicator(deduplication.max_entries, deduplication.expiry_us)
            if deduplication.enabled
            else None,
        )
        try:
            return RunningPartition(key, partition, ConsumerOffsets.open(self._fs, path))
        except BaseException:
            partition.drop()
            raise

    def _effective_codec(self, code: int) -> Codec:
        """What is really done with payloads of a topic that asked for this algorithm."""
        compression = self.settings.system.compression
        if self.flavour is Flavour.IGGY and not compression.force:
            return Codec.NONE
        if compression.allow_override:
            return Codec.from_code(code)
        return Codec.from_name(compression.default_algorithm)

    def close(self) -> None:
        """Everything buffered is flushed and synced. Raises the first problem, after all was tried."""
        with self._commands.lock:
            if self._commands.is_closed:
                return
            self._commands.is_closed = True
            topics = self._all_topics()
        problems = [problem for topic in topics for problem in topic.close()]
        try:
            self._commands.state_log.close()
            # One that has stopped has entries that nobody could sync.
            self._commands.state_log.check_writable()
        except StreamsError as error:
            problems.append(error)
        finally:
            self._directory_lock.release()
        if problems:
            raise problems[0]

    def _abandon(self) -> None:
        """A start that failed: nothing was taken that could be saved."""
        for topic in self._all_topics():
            topic.drop()

    def _all_topics(self) -> list[RunningTopic]:
        return [topic for topics in self._running.values() for topic in topics.values()]

    # Streams.

    def create_stream(self, name: str, *, user_id: int = ROOT_USER_ID) -> StreamInfo:
        with self._commands.changing():
            command = CreateStream(self.metadata.next_stream_id(), name)
            self.metadata.check(user_id, command)
            with _storage_errors("create the stream"):
                self._directories.make_room(self._directories.keys.stream(command.stream_id))
            self._commands.log_and_apply(user_id, command)
            self._running[command.stream_id] = {}
            return self.metadata.streams[command.stream_id]

    def update_stream(self, stream: Identifier, name: str, *, user_id: int = ROOT_USER_ID) -> None:
        self._commands.execute(user_id, UpdateStream(stream, name))

    def delete_stream(self, stream: Identifier, *, user_id: int = ROOT_USER_ID) -> None:
        command = DeleteStream(stream)
        with self._commands.changing():
            self.metadata.check(user_id, command)
            info = self.metadata.resolve_stream(stream)
            self._commands.log_and_apply(user_id, command, must_be_durable=True)
            for topic in self._running.pop(info.id).values():
                topic.drop()
            self._remove(self._directories.keys.stream(info.id))

    def purge_stream(self, stream: Identifier, *, user_id: int = ROOT_USER_ID) -> None:
        command = PurgeStream(stream)
        with self._commands.changing():
            self.metadata.check(user_id, command)
            self._commands.log_and_apply(user_id, command, must_be_durable=True)
            for topic in self._running[self.metadata.resolve_stream(stream).id].values():
                topic.purge()

    def _remove(self, key: str) -> None:
        """Nobody knows of it any more. What cannot be deleted now is reported by the next start."""
        try:
            self._directories.remove(key)
        except OSError as error:
            logger.warning("%s: files of what was deleted stay for now: %s", self._directories.path(key), error)

    # Topics.

    def create_topic(
        self,
        stream: Identifier,
        name: str,
        *,
        partitions_count: int = 1,
        compression: Codec = Codec.NONE,
        message_expiry: int = 0,
        max_topic_size: int = 0,
        replication_factor: int = 0,
        user_id: int = ROOT_USER_ID,
    ) -> TopicInfo:
        """`message_expiry` in microseconds, `max_topic_size` in bytes; 0 is the default of the settings, 2^64-1 never
        and unlimited."""
        with self._commands.changing():
            stream_id = self.metadata.resolve_stream(stream).id
            command = CreateTopic(
                stream,
                self.metadata.next_topic_id(stream),
                partitions_count,
                compression.code,
                message_expiry,
                max_topic_size,
                replication_factor,
                name,
            )
            self.metadata.check(user_id, command)
            self._effective_codec(command.compression_algorithm).load()
            # As it will be, for the folders that come before the entry.
            draft = TopicInfo(command.topic_id, name, stream_id, 0, 0, 0, command.compression_algorithm, 1)
            topic = self._running_topic(draft)
            key = self._directories.keys.topic(stream_id, command.topic_id)
            with _storage_errors("create the topic"):
                self._directories.make_room(key)
                with self._undone_unless_logged([key]):
                    opened = topic.open_partitions(range(partitions_count))
                    with _dropped_unless_logged(opened):
                        self._commands.log_and_apply(user_id, command, must_be_durable=True)
            topic.info = self.metadata.resolve_topic(stream_id, command.topic_id)
            topic.add_partitions(opened)
            self._running[stream_id][command.topic_id] = topic
            return topic.info

    @contextmanager
    def _undone_unless_logged(self, keys: Sequence[str]) -> Iterator[None]:
        """New folders, which go again when the entry about them fails."""
        try:
            yield
        except (StreamsError, OSError):
            if self._commands.state_log.stopped is None:
                for key in keys:
                    self._remove(key)
            # Else the entry may be found by the next start, which then needs them.
            raise

    def update_topic(
        self,
        stream: Identifier,
        topic: Identifier,
        *,
        name: str,
        compression: Codec = Codec.NONE,
        message_expiry: int = 0,
        max_topic_size: int = 0,
        replication_factor: int = 0,
        user_id: int = ROOT_USER_ID,
    ) -> None:
        """Replaces all of it, as the values of `create_topic`."""
        command = UpdateTopic(stream, topic, compression.code, message_expiry, max_topic_size, replication_factor, name)
        with self._commands.changing():
            self.metadata.check(user_id, command)
            running = self._topic(stream, topic)
            codec = self._effective_codec(compression.code)
            codec.load()
            self._commands.log_and_apply(user_id, command)
            running.set_codec(codec)

    def delete_topic(self, stream: Identifier, topic: Identifier, *, user_id: int = ROOT_USER_ID) -> None:
        command = DeleteTopic(stream, topic)
        with self._commands.changing():
            self.metadata.check(user_id, command)
            info = self.metadata.resolve_topic(stream, topic)
            self._commands.log_and_apply(user_id, command, must_be_durable=True)
            self._running[info.stream_id].pop(info.id).drop()
            self._remove(self._directories.keys.topic(info.stream_id, info.id))

    def purge_topic(self, stream: Identifier, topic: Identifier, *, user_id: int = ROOT_USER_ID) -> None:
        command = PurgeTopic(stream, topic)
        with self._commands.changing():
            self.metadata.check(user_id, command)
            self._commands.log_and_apply(user_id, command, must_be_durable=True)
            self._topic(stream, topic).purge()

    def topic_state(self, stream: Identifier, topic: Identifier) -> TopicState:
        with self._commands.lock:
            running = self._topic(stream, topic)
            return TopicState(
                running.info,
                [
                    _partition_state(info.created_at, item)
                    for info, item in zip(running.info.partitions, running.partitions, strict=True)
                ],
            )

    def _topic(self, stream: Identifier, topic: Identifier) -> RunningTopic:
        info = self.metadata.resolve_topic(stream, topic)
        return self._running[info.stream_id][info.id]

    # Partitions and segments.

    def create_partitions(
        self, stream: Identifier, topic: Identifier, count: int, *, user_id: int = ROOT_USER_ID
    ) -> None:
        command = CreatePartitions(stream, topic, count)
        with self._commands.changing():
            self.metadata.check(user_id, command)
            running = self._topic(stream, topic)
            first = len(running.partitions)
            keys = [
                self._directories.keys.partition(running.info.stream_id, running.info.id, partition_id)
                for partition_id in range(first, first + count)
            ]
            with _storage_errors("create the partitions"):
                for key in keys:
                    self._directories.make_room(key)
                with self._undone_unless_logged(keys):
                    opened = running.open_partitions(range(first, first + count))
                    with _dropped_unless_logged(opened):
                        self._commands.log_and_apply(user_id, command, must_be_durable=True)
            running.add_partitions(opened)

    def delete_partitions(
        self, stream: Identifier, topic: Identifier, count: int, *, user_id: int = ROOT_USER_ID
    ) -> None:
        """Those with the highest ids, and all messages in them."""
        command = DeletePartitions(stream, topic, count)
        with self._commands.changing():
            self.metadata.check(user_id, command)
            running = self._topic(stream, topic)
            self._commands.log_and_apply(user_id, command, must_be_durable=True)
            for taken in running.take_last_partitions(count):
                taken.drop()
                self._remove(taken.key)

    def delete_segments(
        self, stream: Identifier, topic: Identifier, partition_id: int, count: int, *, user_id: int = ROOT_USER_ID
    ) -> int:
        """Up to `count` of the oldest sealed ones; how many went."""
        command = DeleteSegments(stream, topic, partition_id, count)
        with self._commands.changing():
            self.metadata.check(user_id, command)
            running = self._topic(stream, topic).partition(partition_id)
            self._commands.log_and_apply(user_id, command, must_be_durable=True)
        return self.upkeep.delete_oldest(running, count)

    # Messages.

    def send(
        self, stream: Identifier, topic: Identifier, batch: IncomingBatch, partitioning: Partitioning | None = None
    ) -> Sent:
        """All of the batch or, with an error, nothing of it. Buffered or written when this returns, by the settings."""
        with self._commands.lock:
            self._commands.check_open()
            running = self._topic(stream, topic)
            partition_id = choose(partitioning or Balanced(), len(running.partitions), running.round_robin)
            partition = running.partitions[partition_id].partition
        appended = partition.append(batch)
        return Sent(partition_id, appended.first_offset, appended.count)

    def poll(
        self,
        stream: Identifier,
        topic: Identifier,
        consumer: Consumer,
        strategy: PollingStrategy,
        count: int,
        *,
        partition_id: int | None = None,
        auto_commit: bool = False,
        client_id: int = 0,
    ) -> PolledMessages:
        """`client_id` tells the members of a group apart."""
        group: ConsumerGroup | None = None
        with self._commands.lock:
            self._commands.check_open()
            running = self._topic(stream, topic)
            if consumer.kind is ConsumerKind.GROUP:
                group_id = running.info.groups.resolve(consumer.id).id
                group = running.group(group_id)
                target = group.poll_target(client_id, partition_id)
                if target is None:
                    return PolledMessages(0, 0, 0, [])
                consumer_id, partition_id = group_id, target
            else:
                consumer_id, partition_id = consumer_file_id(consumer.id), partition_id or 0
            found = running.partition(partition_id)
            purges_count = running.purges_count
        polled = _poll(found, consumer.kind, consumer_id, strategy, count)
        last_offset = polled.last_offset
        if last_offset is None:
            return polled
        if group is None:
            if auto_commit:
                found.offsets.store(consumer.kind, consumer_id, last_offset)
                if running.purges_count != purges_count:
                    # What was read is gone; its offset would skip messages that come now.
                    found.offsets.discard(consumer.kind, consumer_id)
            return polled
        with self._commands.lock:
            is_current = running.groups.get(consumer_id) is group and running.purges_count == purges_count
            if not is_current or not group.owns(client_id, partition_id):
                # It changed hands while this was read: the new owner gets these messages.
                return PolledMessages(partition_id, polled.current_offset, 0, [])
            group.note_sent(partition_id, last_offset)
            if auto_commit:
                found.offsets.store(consumer.kind, consumer_id, last_offset)
                group.note_stored(partition_id, last_offset)
        return polled

    def flush(self, stream: Identifier, topic: Identifier, partition_id: int, *, fsync: bool) -> None:
        """What is buffered goes to the files; with `fsync` it is durable."""
        self._partition(stream, topic, partition_id).partition.flush(fsync=fsync)

    def _partition(self, stream: Identifier, topic: Identifier, partition_id: int) -> RunningPartition:
        with self._commands.lock:
            self._commands.check_open()
            return self._topic(stream, topic).partition(partition_id)

    # Stored offsets.

    def get_offset(
        self, stream: Identifier, topic: Identifier, consumer: Consumer, *, partition_id: int | None = None
    ) -> StoredOffset | None:
        """Anybody may ask for anybody's."""
        with self._commands.lock:
            self._commands.check_open()
            running = self._topic(stream, topic)
            if consumer.kind is ConsumerKind.GROUP:
                consumer_id = running.info.groups.resolve(consumer.id).id
            else:
                consumer_id = consumer_file_id(consumer.id)
            found = running.partition(partition_id or 0)
        stored = found.offsets.get(consumer.kind, consumer_id)
        if stored is None:
            return None
        return StoredOffset(partition_id or 0, found.partition.current_offset, stored)

    def store_offset(
        self,
        stream: Identifier,
        topic: Identifier,
        consumer: Consumer,
        offset: int,
        *,
        partition_id: int | None = None,
        client_id: int = 0,
    ) -> None:
        """The offset of the last message that was processed; a smaller one than before rewinds."""
        with self._commands.lock:
            self._commands.check_open()
            found, consumer_id, group, partition_id = self._offset_place(
                stream, topic, consumer, partition_id, client_id
            )
            partition = found.partition
            check_offset(offset, current_offset=partition.current_offset, has_messages=partition.has_messages)
            found.offsets.store(consumer.kind, consumer_id, offset)
            if group is not None:
                group.note_stored(partition_id, offset)

    def delete_offset(
        self,
        stream: Identifier,
        topic: Identifier,
        consumer: Consumer,
        *,
        partition_id: int | None = None,
        client_id: int = 0,
    ) -> None:
        with self._commands.lock:
            self._commands.check_open()
            found, consumer_id, group, partition_id = self._offset_place(
                stream, topic, consumer, partition_id, client_id
            )
            found.offsets.delete(consumer.kind, consumer_id)
            if group is not None:
                group.note_stored(partition_id, None)

    def _offset_place(
        self,
        stream: Identifier,
        topic: Identifier,
        consumer: Consumer,
        partition_id: int | None,
        client_id: int,
    ) -> tuple[RunningPartition, int, ConsumerGroup | None, int]:
        running = self._topic(stream, topic)
        if consumer.kind is not ConsumerKind.GROUP:
            return running.partition(partition_id or 0), consumer_file_id(consumer.id), None, partition_id or 0
        group_id = running.info.groups.resolve(consumer.id).id
        group = running.group(group_id)
        target = group.store_target(client_id, partition_id)
        return running.partition(target), group_id, group, target

    # Consumer groups.

    def create_group(
        self, stream: Identifier, topic: Identifier, name: str, *, user_id: int = ROOT_USER_ID
    ) -> GroupInfo:
        with self._commands.changing():
            running = self._topic(stream, topic)
            command = CreateConsumerGroup(stream, topic, self.metadata.next_group_id(stream, topic), name)
            self.metadata.check(user_id, command)
            for partition in running.partitions:
                # Of an earlier group with this id, whose file could not be deleted.
                partition.offsets.discard(ConsumerKind.GROUP, command.group_id)
            self._commands.log_and_apply(user_id, command)
            running.add_group(command.group_id)
            return running.info.groups[command.group_id]

    def delete_group(
        self, stream: Identifier, topic: Identifier, group: Identifier, *, user_id: int = ROOT_USER_ID
    ) -> None:
        command = DeleteConsumerGroup(stream, topic, group)
        with self._commands.changing():
            self.metadata.check(user_id, command)
            group_id = self.metadata.resolve_group(stream, topic, group).id
            self._commands.log_and_apply(user_id, command)
            self._topic(stream, topic).drop_group(group_id)

    def join_group(
        self,
        stream: Identifier,
        topic: Identifier,
        group: Identifier,
        client_id: int,
        *,
        is_connected: Callable[[int], bool] | None = None,
    ) -> None:
        with self._commands.lock:
            self._commands.check_open()
            self.group(stream, topic, group).join(
                client_id, now_us=self._clock.monotonic_ms() * 1000, is_connected=is_connected
            )

    def leave_group(self, stream: Identifier, topic: Identifier, group: Identifier, client_id: int) -> None:
        with self._commands.lock:
            self._commands.check_open()
            self.group(stream, topic, group).leave(client_id)

    def forget_client(self, client_id: int) -> None:
        """A connection that is gone leaves all its groups."""
        with self._commands.lock:
            for topic in self._all_topics():
                for group in topic.groups.values():
                    if group.is_member(client_id):
                        group.leave(client_id)

    def group(self, stream: Identifier, topic: Identifier, group: Identifier) -> ConsumerGroup:
        """What runs of it; changed through the calls here alone."""
        with self._commands.lock:
            return self._topic(stream, topic).group(self.metadata.resolve_group(stream, topic, group).id)

    # What has to be done now and then.

    def tick(self) -> None:
        """Saves, cleans, archives and rebalances what is due. May take as long as disks and networks do."""
        self.upkeep.tick()


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


def _partition_state(created_at: int, running: RunningPartition) -> PartitionState:
    partition = running.partition
    return PartitionState(
        partition.partition_id,
        created_at,
        len(partition.segments),
        partition.current_offset,
        partition.size_bytes,
        partition.messages_count,
        partition.has_messages,
    )


def _poll(
    running: RunningPartition, kind: ConsumerKind, consumer_id: int, strategy: PollingStrategy, count: int
) -> PolledMessages:
    reader = running.partition.reader
    match strategy.kind:
        case StrategyKind.OFFSET:
            return reader.poll_offset(strategy.value, count)
        case StrategyKind.TIMESTAMP:
            return reader.poll_timestamp(strategy.value, count)
        case StrategyKind.FIRST:
            return reader.poll_first(count)
        case StrategyKind.LAST:
            return reader.poll_last(count)
        case StrategyKind.NEXT:
            stored = running.offsets.get(kind, consumer_id)
            return reader.poll_first(count) if stored is None else reader.poll_offset(stored + 1, count)


@contextmanager
def _dropped_unless_logged(opened: list[RunningPartition]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for running in opened:
            running.drop()
        raise


@contextmanager
def _storage_errors(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StreamsError(StreamStatus.IO_ERROR, f"cannot {what}: {error}") from error

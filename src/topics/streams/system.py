"""The partitioned engine as a whole: everything a server or a program can ask of one data directory.

`System` is the one door; the rooms below do the work: `running/starting.py` opens the directory, `running/lifecycle.py`
changes streams, topics and partitions, `running/consuming.py` polls and keeps offsets, `running/groups.py` has the
consumer groups, `metadata/accounts.py` the users, `running/upkeep.py` the regular work.

Any thread may call anything here. One thread calls `tick` regularly.

`user_id` is written to the state log. The caller has checked before what the user may do (`accounts.authorize`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from topics.clock import Clock
from topics.errors import StartRefused
from topics.formats.message_codec import Codec
from topics.formats.stream_command import Identifier
from topics.storage.fs import Fs
from topics.stream_errors import StreamsError
from topics.streams.consumers.consumer_group import ConsumerGroup
from topics.streams.consumers.polling import Consumer, PollingStrategy, StrategyKind
from topics.streams.metadata.accounts import Accounts
from topics.streams.metadata.logins import DEFAULT_ROOT_USER, Credentials
from topics.streams.metadata.streams_metadata import GroupInfo, StreamInfo, TopicInfo
from topics.streams.metadata.users_metadata import ROOT_USER_ID
from topics.streams.partitions.batch import IncomingBatch
from topics.streams.partitions.message_view import PolledMessages
from topics.streams.partitions.partition import Appended, Partition
from topics.streams.partitions.partitioning import Balanced, Partitioning, choose
from topics.streams.running.consuming import Consuming, StoredOffset
from topics.streams.running.groups import Groups, Membership
from topics.streams.running.lifecycle import Lifecycle
from topics.streams.running.running_topic import GroupState, RunningTopic, StreamState, TopicFigures, TopicState
from topics.streams.running.starting import Started, start
from topics.streams.running.upkeep import Upkeep
from topics.streams.settings import StreamsSettings, check_settings


@dataclass(frozen=True, slots=True)
class Sent:
    """Where messages went. `count` leaves out the messages that were dropped as duplicates."""

    partition_id: int
    first_offset: int
    count: int


class Target(NamedTuple):
    """Where a send goes."""

    running: RunningTopic
    partition: Partition


@dataclass(frozen=True, slots=True)
class Figures:
    """Numbers for an operator, at about one moment."""

    streams_count: int
    topics: list[TopicFigures]


class System:
    """Made by `open`."""

    def __init__(self, settings: StreamsSettings, clock: Clock, started: Started) -> None:
        self.settings = settings
        self.flavour = started.flavour
        self.metadata = started.commands.metadata
        self.pool = started.opener.pool
        self._directory_lock = started.lock
        self._commands = started.commands
        self._topics = started.topics
        self._lifecycle = Lifecycle(
            started.commands,
            started.topics,
            started.directories,
            started.opener,
            rebalancing_timeout_us=settings.consumer_group.rebalancing_timeout_us,
        )
        self._consuming = Consuming(started.commands, started.topics)
        self._groups = Groups(started.commands, started.topics, clock)
        self.accounts = Accounts(started.commands, clock)
        # Told the numbers of the stream and the topic that got messages, by the thread that sent them.
        self.on_sent: list[Callable[[int, int], None]] = []
        self.upkeep = Upkeep(settings, clock, started.commands, started.topics, started.archiver)

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
        progress: Callable[[float], None] | None = None,
    ) -> "System":
        """Recovers the directory, or makes one. Raises `StartRefused` with the reason; then nothing was deleted.

        `progress` is called with the part of the partitions that is open, from 0 to 1.
        """
        settings = settings or StreamsSettings()
        check_settings(settings)
        try:
            return cls(settings, clock, start(fs, root, settings, clock, root_user, progress))
        except OSError as error:
            raise StartRefused(f"{root} cannot be opened: {error}") from error
        except StreamsError as refusal:
            raise StartRefused(f"{root} cannot be opened: {refusal.message}") from refusal

    def close(self) -> None:
        """Flushes and syncs everything. Raises the first error, after all partitions were tried."""
        with self._commands.lock:
            if not self._commands.refuse_more():
                return
            topics = self._topics.all()
        problems = [problem for topic in topics for problem in topic.close()]
        try:
            self._commands.close_log()
        except StreamsError as error:
            problems.append(error)
        finally:
            self._directory_lock.release()
        if problems:
            raise problems[0]

    # Streams.

    def create_stream(self, name: str, *, user_id: int = ROOT_USER_ID) -> StreamInfo:
        return self._lifecycle.create_stream(name, user_id=user_id)

    def update_stream(self, stream: Identifier, name: str, *, user_id: int = ROOT_USER_ID) -> None:
        self._lifecycle.update_stream(stream, name, user_id=user_id)

    def delete_stream(self, stream: Identifier, *, user_id: int = ROOT_USER_ID) -> None:
        """Deletes the stream with all its topics and messages."""
        self._lifecycle.delete_stream(stream, user_id=user_id)

    def purge_stream(self, stream: Identifier, *, user_id: int = ROOT_USER_ID) -> None:
        """Deletes all messages and stored offsets of all topics; offsets restart at 0."""
        self._lifecycle.purge_stream(stream, user_id=user_id)

    def stream_state(self, stream: Identifier) -> StreamState:
        with self._commands.lock:
            return self._stream_state(self.metadata.resolve_stream(stream))

    def figures(self) -> Figures:
        """Numbers for an operator. It waits for no lock and no disk."""
        names = {stream.id: stream.name for stream in list(self.metadata.streams.values())}
        return Figures(
            len(names),
            [topic.figures(names.get(topic.info.stream_id, "")) for topic in self._topics.now()],
        )

    def stream_names(self) -> list[str]:
        """The names of all streams, sorted."""
        with self._commands.lock:
            return sorted(stream.name for stream in self.metadata.streams.values())

    def stream_states(self) -> list[StreamState]:
        """All streams, in the order of their ids."""
        with self._commands.lock:
            return [self._stream_state(stream) for stream in self.metadata.streams.ascending()]

    def _stream_state(self, stream: StreamInfo) -> StreamState:
        topics = sorted(self._topics.of_stream(stream.id), key=lambda topic: topic.info.id)
        return StreamState(stream, [topic.state() for topic in topics])

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
        """`message_expiry` in microseconds, `max_topic_size` in bytes. 0 is the default of the settings; 2^64-1 is
        never and unlimited."""
        return self._lifecycle.create_topic(
            stream,
            name,
            partitions_count=partitions_count,
            compression=compression,
            message_expiry=message_expiry,
            max_topic_size=max_topic_size,
            replication_factor=replication_factor,
            user_id=user_id,
        )

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
        """Replaces all values of the topic. They mean the same as in `create_topic`."""
        self._lifecycle.update_topic(
            stream,
            topic,
            name=name,
            compression=compression,
            message_expiry=message_expiry,
            max_topic_size=max_topic_size,
            replication_factor=replication_factor,
            user_id=user_id,
        )

    def delete_topic(self, stream: Identifier, topic: Identifier, *, user_id: int = ROOT_USER_ID) -> None:
        self._lifecycle.delete_topic(stream, topic, user_id=user_id)

    def purge_topic(self, stream: Identifier, topic: Identifier, *, user_id: int = ROOT_USER_ID) -> None:
        """Deletes all messages and stored offsets; offsets restart at 0."""
        self._lifecycle.purge_topic(stream, topic, user_id=user_id)

    def topic_state(self, stream: Identifier, topic: Identifier) -> TopicState:
        with self._commands.lock:
            return self._topics.find(stream, topic).state()

    # Partitions and segments.

    def create_partitions(
        self, stream: Identifier, topic: Identifier, count: int, *, user_id: int = ROOT_USER_ID
    ) -> None:
        self._lifecycle.create_partitions(stream, topic, count, user_id=user_id)

    def delete_partitions(
        self, stream: Identifier, topic: Identifier, count: int, *, user_id: int = ROOT_USER_ID
    ) -> None:
        """Deletes the `count` partitions with the highest ids, and all messages in them."""
        self._lifecycle.delete_partitions(stream, topic, count, user_id=user_id)

    def delete_segments(
        self, stream: Identifier, topic: Identifier, partition_id: int, count: int, *, user_id: int = ROOT_USER_ID
    ) -> int:
        """Deletes up to `count` of the oldest sealed segments. Returns how many were deleted."""
        running = self._lifecycle.log_delete_segments(stream, topic, partition_id, count, user_id=user_id)
        return self.upkeep.delete_oldest(running, count)

    # Messages.

    def send(
        self, stream: Identifier, topic: Identifier, batch: IncomingBatch, partitioning: Partitioning | None = None
    ) -> Sent:
        """Appends the whole batch or, if it raises, nothing of it. The settings say whether the messages are
        buffered or written when this returns."""
        return self.append(self.target(stream, topic, partitioning or Balanced()), batch)

    def target(self, stream: Identifier, topic: Identifier, partitioning: Partitioning) -> Target:
        """Where the next send goes. For `Balanced` each call chooses another partition."""
        self._commands.check_open()
        running = self._topics.find(stream, topic)
        partition_id = choose(partitioning, len(running.partitions), running.round_robin)
        return Target(running, running.partition(partition_id).partition)

    def append(self, target: Target, batch: IncomingBatch) -> Sent:
        """The same as `send`."""
        return self._sent(target, target.partition.append(batch))

    def append_nowait(self, target: Target, batch: IncomingBatch) -> Sent:
        """The same for a batch that is only buffered. Raises `MustWait` if it has to be written, or if another thread
        works on the partition."""
        return self._sent(target, target.partition.append_nowait(batch))

    def _sent(self, target: Target, appended: Appended) -> Sent:
        if self.on_sent:
            info = target.running.info
            for tell in self.on_sent:
                tell(info.stream_id, info.id)
        return Sent(target.partition.partition_id, appended.first_offset, appended.count)

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
        """Without a partition a single consumer polls partition 0, and a member of a group its partitions in turn.

        `client_id` tells the members of a group apart.
        """
        return self._consuming.poll(
            stream,
            topic,
            consumer,
            strategy,
            count,
            partition_id=partition_id,
            auto_commit=auto_commit,
            client_id=client_id,
        )

    def browse(
        self,
        stream: Identifier,
        topic: Identifier,
        partition_id: int,
        strategy: PollingStrategy,
        count: int,
        *,
        bytes_max: int,
    ) -> PolledMessages:
        """Messages for a reader that is no consumer: nothing is stored, and `NEXT` is the same as `FIRST`."""
        self._commands.check_open()
        reader = self._topics.find(stream, topic).partition(partition_id).partition.reader
        match strategy.kind:
            case StrategyKind.OFFSET:
                return reader.poll_offset(strategy.value, count, bytes_max)
            case StrategyKind.TIMESTAMP:
                return reader.poll_timestamp(strategy.value, count, bytes_max)
            case StrategyKind.LAST:
                return reader.poll_last(count, bytes_max)
            case StrategyKind.FIRST | StrategyKind.NEXT:
                return reader.poll_first(count, bytes_max)

    def poll_nowait(
        self,
        stream: Identifier,
        topic: Identifier,
        consumer: Consumer,
        strategy: PollingStrategy,
        count: int,
        *,
        partition_id: int | None = None,
    ) -> PolledMessages:
        """The same for a single consumer without auto-commit. Raises `MustWait` if the messages are not in memory."""
        return self._consuming.poll_nowait(stream, topic, consumer, strategy, count, partition_id=partition_id)

    def flush(self, stream: Identifier, topic: Identifier, partition_id: int, *, fsync: bool) -> None:
        """Writes buffered messages of the partition to its files; with `fsync` they are durable."""
        self._commands.check_open()
        self._topics.find(stream, topic).partition(partition_id).partition.flush(fsync=fsync)

    # Stored offsets.

    def get_offset(
        self, stream: Identifier, topic: Identifier, consumer: Consumer, *, partition_id: int | None = None
    ) -> StoredOffset | None:
        """None if the consumer has not stored an offset. No membership is needed to ask for the offset of a group."""
        return self._consuming.get_offset(stream, topic, consumer, partition_id=partition_id)

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
        """Stores the offset of the last message that was processed. A smaller offset than before rewinds."""
        self._consuming.store_offset(stream, topic, consumer, offset, partition_id=partition_id, client_id=client_id)

    def delete_offset(
        self,
        stream: Identifier,
        topic: Identifier,
        consumer: Consumer,
        *,
        partition_id: int | None = None,
        client_id: int = 0,
    ) -> None:
        self._consuming.delete_offset(stream, topic, consumer, partition_id=partition_id, client_id=client_id)

    # Consumer groups.

    def create_group(
        self, stream: Identifier, topic: Identifier, name: str, *, user_id: int = ROOT_USER_ID
    ) -> GroupInfo:
        return self._groups.create(stream, topic, name, user_id=user_id)

    def delete_group(
        self, stream: Identifier, topic: Identifier, group: Identifier, *, user_id: int = ROOT_USER_ID
    ) -> None:
        self._groups.delete(stream, topic, group, user_id=user_id)

    def join_group(
        self,
        stream: Identifier,
        topic: Identifier,
        group: Identifier,
        client_id: int,
        *,
        is_connected: Callable[[int], bool] | None = None,
    ) -> None:
        """Members whose connections have ended, as `is_connected` tells, leave the group first."""
        self._groups.join(stream, topic, group, client_id, is_connected=is_connected)

    def leave_group(self, stream: Identifier, topic: Identifier, group: Identifier, client_id: int) -> None:
        self._groups.leave(stream, topic, group, client_id)

    def forget_client(self, client_id: int) -> None:
        """Leaves all groups of a client whose connection has ended."""
        self._groups.forget_client(client_id)

    def memberships(self) -> dict[int, list[Membership]]:
        """The groups that each client has joined, by the id of the client."""
        return self._groups.memberships()

    def group_state(self, stream: Identifier, topic: Identifier, group: Identifier) -> GroupState:
        """The members of a group, and the partitions of each."""
        with self._commands.lock:
            running = self._topics.find(stream, topic)
            return running.group_state(running.info.groups.resolve(group))

    def group_states(self, stream: Identifier, topic: Identifier) -> list[GroupState]:
        """All groups of the topic, in the order of their ids."""
        with self._commands.lock:
            running = self._topics.find(stream, topic)
            return [running.group_state(group) for group in running.info.groups.ascending()]

    def group(self, stream: Identifier, topic: Identifier, group: Identifier) -> ConsumerGroup:
        """The members and partitions of a group. Callers read it; only the methods here change it."""
        return self._groups.find(stream, topic, group)

    # Regular work.

    def tick(self) -> None:
        """Saves, cleans, archives and rebalances what is due. It may take as long as disks and networks take."""
        self.upkeep.tick()

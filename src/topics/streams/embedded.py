"""The partitioned engine in your own process.

    with topics.streams.open("data") as streams:
        streams.create_stream("orders")
        streams.create_topic("orders", "events", partitions=3)
        streams.send("orders", "events", [b"first", b"second"], key=b"customer-7")
        for message in streams.poll("orders", "events", consumer="billing", partition=0, auto_commit=True):
            print(message.offset, bytes(message.payload))

A background thread saves buffered messages and does the work of retention, archiving and consumer groups. Any thread
may call anything.
"""

import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from topics.clock import Clock, SystemClock
from topics.errors import InvalidRequest
from topics.formats.message import Buffer
from topics.formats.message_codec import Codec
from topics.formats.stream_command import Identifier
from topics.storage.fs import Fs, RealFs
from topics.streams.consumers.polling import Consumer, PollingStrategy
from topics.streams.directory.directories import take_lock
from topics.streams.metadata.logins import DEFAULT_ROOT_USER, Credentials
from topics.streams.metadata.streams_metadata import GroupInfo, StreamInfo, TopicInfo
from topics.streams.partitions.batch import NewMessage, encode_send
from topics.streams.partitions.message_view import PolledMessages
from topics.streams.partitions.partitioning import Balanced, MessagesKey, PartitionId, Partitioning
from topics.streams.retention.archive import open_archive
from topics.streams.retention.restore import RestoreReport, restore
from topics.streams.running.consuming import StoredOffset
from topics.streams.running.running_topic import TopicState
from topics.streams.running.upkeep_thread import UpkeepThread
from topics.streams.settings import StreamsSettings
from topics.streams.system import Sent, System

POLL_COUNT_DEFAULT: Final = 1000


def open_streams(
    path: str | os.PathLike[str],
    settings: StreamsSettings | None = None,
    *,
    fs: Fs | None = None,
    clock: Clock | None = None,
    root_user: Credentials = DEFAULT_ROOT_USER,
) -> "Streams":
    """Opens the data directory. Makes it if it is missing, and recovers it if it was not closed.

    `settings` default to those of the server; `StreamsSettings` in `topics.streams.settings` lists them all, and
    `from_mapping` there makes them of a dict. Raises `StartRefused` with the reason.
    """
    return Streams(open_system(path, settings, fs=fs, clock=clock, root_user=root_user))


def open_system(
    path: str | os.PathLike[str],
    settings: StreamsSettings | None = None,
    *,
    fs: Fs | None = None,
    clock: Clock | None = None,
    root_user: Credentials = DEFAULT_ROOT_USER,
    progress: Callable[[float], None] | None = None,
) -> System:
    """The engine alone, for a server: the caller does the regular work (`UpkeepThread`) and closes it."""
    return System.open(
        fs or RealFs(),
        os.path.abspath(path),
        settings,
        clock=clock or SystemClock(),
        root_user=root_user,
        progress=progress,
    )


def restore_archive(path: str | os.PathLike[str], settings: StreamsSettings, *, fs: Fs | None = None) -> RestoreReport:
    """Copies archived segments back into a data directory that is not open. The settings name the archive.

    Segments that the directory has stay as they are. The next `open` treats restored segments like all sealed segments.
    """
    fs = fs or RealFs()
    root = os.path.abspath(path)
    lock = take_lock(fs, root)
    store = open_archive(fs, root, settings)
    try:
        return restore(store, fs, root, f"{settings.system.stream.path}/")
    finally:
        store.close()
        lock.release()


class Streams:
    """An open data directory. Made by `topics.streams.open`; close it, or use it as a context manager.

    `system` has everything else: users, tokens, permissions, renaming, deleting segments.
    """

    def __init__(self, system: System) -> None:
        self.system = system
        self._upkeep = UpkeepThread(system.tick)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Makes everything that was sent durable. A second call does nothing."""
        self._upkeep.stop()
        self.system.close()

    # Streams, topics and groups.

    def create_stream(self, name: str) -> StreamInfo:
        return self.system.create_stream(name)

    def delete_stream(self, stream: Identifier) -> None:
        """Deletes the stream with all its topics and their messages."""
        self.system.delete_stream(stream)

    def streams(self) -> list[StreamInfo]:
        """All streams in the order of their ids."""
        return self.system.metadata.streams.ascending()

    def create_topic(
        self,
        stream: Identifier,
        name: str,
        *,
        partitions: int = 1,
        compression: str = "none",
        message_expiry_us: int = 0,
        max_bytes: int = 0,
    ) -> TopicInfo:
        """A `message_expiry_us` or `max_bytes` of 0 is the default of the settings; 2^64-1 is never and unlimited. The
        settings in `system.compression` decide whether `compression` is used."""
        return self.system.create_topic(
            stream,
            name,
            partitions_count=partitions,
            compression=Codec.from_name(compression),
            message_expiry=message_expiry_us,
            max_topic_size=max_bytes,
        )

    def delete_topic(self, stream: Identifier, topic: Identifier) -> None:
        self.system.delete_topic(stream, topic)

    def purge_topic(self, stream: Identifier, topic: Identifier) -> None:
        """Deletes all messages and stored offsets; offsets restart at 0."""
        self.system.purge_topic(stream, topic)

    def topic(self, stream: Identifier, topic: Identifier) -> TopicState:
        """The topic and the numbers of its partitions."""
        return self.system.topic_state(stream, topic)

    def create_group(self, stream: Identifier, topic: Identifier, name: str) -> GroupInfo:
        return self.system.create_group(stream, topic, name)

    def join(self, stream: Identifier, topic: Identifier, group: Identifier, member: int) -> None:
        """Adds a member to the group. Polls with this number as `member` then read its share of the partitions."""
        self.system.join_group(stream, topic, group, member)

    def leave(self, stream: Identifier, topic: Identifier, group: Identifier, member: int) -> None:
        self.system.leave_group(stream, topic, group, member)

    # Messages.

    def send(
        self,
        stream: Identifier,
        topic: Identifier,
        messages: Sequence[Buffer | NewMessage],
        *,
        partition: int | None = None,
        key: bytes | None = None,
    ) -> Sent:
        """Appends all of the messages, or none, to one partition: `partition`, or the one that the key selects, or the
        next one in turn. The messages are buffered on return; `flush` and `close` make them durable."""
        batch = encode_send(
            [message if isinstance(message, NewMessage) else NewMessage(message) for message in messages]
        )
        return self.system.send(stream, topic, batch, _partitioning(partition, key))

    def poll(
        self,
        stream: Identifier,
        topic: Identifier,
        *,
        consumer: Identifier = 0,
        group: Identifier | None = None,
        member: int = 0,
        partition: int | None = None,
        strategy: PollingStrategy | None = None,
        count: int = POLL_COUNT_DEFAULT,
        auto_commit: bool = False,
    ) -> PolledMessages:
        """Up to `count` messages, by default those after the stored offset. A member of a `group` that gives no
        partition polls its partitions in turn. `auto_commit` stores the offset of the last message."""
        return self.system.poll(
            stream,
            topic,
            Consumer(consumer) if group is None else Consumer.group(group),
            strategy or PollingStrategy.next(),
            count,
            partition_id=partition,
            auto_commit=auto_commit,
            client_id=member,
        )

    def flush(self, stream: Identifier, topic: Identifier, partition: int, *, fsync: bool = True) -> None:
        """Writes buffered messages of the partition to its files; with `fsync` they are durable."""
        self.system.flush(stream, topic, partition, fsync=fsync)

    # Offsets.

    def stored_offset(
        self,
        stream: Identifier,
        topic: Identifier,
        *,
        consumer: Identifier = 0,
        group: Identifier | None = None,
        partition: int = 0,
    ) -> StoredOffset | None:
        who = Consumer(consumer) if group is None else Consumer.group(group)
        return self.system.get_offset(stream, topic, who, partition_id=partition)

    def store_offset(
        self,
        stream: Identifier,
        topic: Identifier,
        offset: int,
        *,
        consumer: Identifier = 0,
        group: Identifier | None = None,
        member: int = 0,
        partition: int | None = None,
    ) -> None:
        """Stores the offset of the last message that was processed."""
        who = Consumer(consumer) if group is None else Consumer.group(group)
        self.system.store_offset(stream, topic, who, offset, partition_id=partition, client_id=member)


def _partitioning(partition: int | None, key: bytes | None) -> Partitioning:
    if key is not None:
        if partition is not None:
            raise InvalidRequest("give a partition or a key, not both")
        return MessagesKey(key)
    return Balanced() if partition is None else PartitionId(partition)

"""How streams, topics and partitions come, change and go.

Every command follows the same steps, under the lock of `Commands`:

1. The metadata check the command.
2. The folders of a new stream, topic or partition are made. They come before the entry in the state log, because a
   start refuses a partition without a folder, and leaves alone a folder without an entry.
3. The command is logged and applied to the metadata. An entry about folders or files is durable before the next step,
   whatever the settings say: messages must not survive their topic, and a topic must not survive its folders.
4. The running topics follow. Folders of what was deleted are removed last.

`user_id` is written to the state log. The caller has checked what the user may do (`accounts.authorize`).
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from topics.formats.message_codec import Codec
from topics.formats.stream_command import (
    CreatePartitions,
    CreateStream,
    CreateTopic,
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
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.directory.directories import Directories
from topics.streams.metadata.commands import Commands
from topics.streams.metadata.streams_metadata import StreamInfo, TopicInfo
from topics.streams.running.partition_opener import PartitionOpener
from topics.streams.running.running_topic import RunningPartition, RunningTopic
from topics.streams.running.running_topics import RunningTopics

logger = logging.getLogger(__name__)


class Lifecycle:
    """Any thread may call."""

    def __init__(
        self,
        commands: Commands,
        topics: RunningTopics,
        directories: Directories,
        opener: PartitionOpener,
        *,
        rebalancing_timeout_us: int,
    ) -> None:
        self._commands = commands
        self._metadata = commands.metadata
        self._topics = topics
        self._directories = directories
        self._opener = opener
        self._rebalancing_timeout_us = rebalancing_timeout_us

    # Streams.

    def create_stream(self, name: str, *, user_id: int) -> StreamInfo:
        with self._commands.changing():
            command = CreateStream(self._metadata.next_stream_id(), name)
            self._metadata.check(user_id, command)
            with _storage_errors("create the stream"):
                self._directories.make_room(self._directories.keys.stream(command.stream_id))
            self._commands.log_and_apply(user_id, command)
            self._topics.add_stream(command.stream_id)
            return self._metadata.streams[command.stream_id]

    def update_stream(self, stream: Identifier, name: str, *, user_id: int) -> None:
        self._commands.execute(user_id, UpdateStream(stream, name))

    def delete_stream(self, stream: Identifier, *, user_id: int) -> None:
        command = DeleteStream(stream)
        with self._commands.changing():
            self._metadata.check(user_id, command)
            info = self._metadata.resolve_stream(stream)
            self._commands.log_and_apply(user_id, command, must_be_durable=True)
            self._topics.drop_stream(info.id)
            self._remove(self._directories.keys.stream(info.id))

    def purge_stream(self, stream: Identifier, *, user_id: int) -> None:
        command = PurgeStream(stream)
        with self._commands.changing():
            self._metadata.check(user_id, command)
            self._commands.log_and_apply(user_id, command, must_be_durable=True)
            for topic in self._topics.of_stream(self._metadata.resolve_stream(stream).id):
                topic.purge()

    # Topics.

    def create_topic(
        self,
        stream: Identifier,
        name: str,
        *,
        partitions_count: int,
        compression: Codec,
        message_expiry: int,
        max_topic_size: int,
        replication_factor: int,
        user_id: int,
    ) -> TopicInfo:
        with self._commands.changing():
            stream_id = self._metadata.resolve_stream(stream).id
            topic_id = self._metadata.next_topic_id(stream)
            command = CreateTopic(
                stream,
                topic_id,
                partitions_count,
                compression.code,
                message_expiry,
                max_topic_size,
                replication_factor,
                name,
            )
            self._metadata.check(user_id, command)
            codec = self._opener.effective_codec(compression.code)
            codec.load()
            key = self._directories.keys.topic(stream_id, topic_id)
            with _storage_errors("create the topic"):
                self._directories.make_room(key)
                with self._removed_unless_logged([key]):
                    opened = self._opener.open_all(stream_id, topic_id, range(partitions_count), codec)
                    with _dropped_unless_logged(opened):
                        self._commands.log_and_apply(user_id, command, must_be_durable=True)
            info = self._metadata.resolve_topic(stream_id, topic_id)
            self._topics.add(RunningTopic(info, codec, opened, rebalancing_timeout_us=self._rebalancing_timeout_us))
            return info

    def update_topic(
        self,
        stream: Identifier,
        topic: Identifier,
        *,
        name: str,
        compression: Codec,
        message_expiry: int,
        max_topic_size: int,
        replication_factor: int,
        user_id: int,
    ) -> None:
        command = UpdateTopic(stream, topic, compression.code, message_expiry, max_topic_size, replication_factor, name)
        with self._commands.changing():
            self._metadata.check(user_id, command)
            running = self._topics.find(stream, topic)
            codec = self._opener.effective_codec(compression.code)
            codec.load()
            self._commands.log_and_apply(user_id, command)
            running.set_codec(codec)

    def delete_topic(self, stream: Identifier, topic: Identifier, *, user_id: int) -> None:
        command = DeleteTopic(stream, topic)
        with self._commands.changing():
            self._metadata.check(user_id, command)
            info = self._metadata.resolve_topic(stream, topic)
            self._commands.log_and_apply(user_id, command, must_be_durable=True)
            self._topics.drop(info.stream_id, info.id)
            self._remove(self._directories.keys.topic(info.stream_id, info.id))

    def purge_topic(self, stream: Identifier, topic: Identifier, *, user_id: int) -> None:
        command = PurgeTopic(stream, topic)
        with self._commands.changing():
            self._metadata.check(user_id, command)
            self._commands.log_and_apply(user_id, command, must_be_durable=True)
            self._topics.find(stream, topic).purge()

    # Partitions and segments.

    def create_partitions(self, stream: Identifier, topic: Identifier, count: int, *, user_id: int) -> None:
        command = CreatePartitions(stream, topic, count)
        with self._commands.changing():
            self._metadata.check(user_id, command)
            running = self._topics.find(stream, topic)
            stream_id, topic_id = running.info.stream_id, running.info.id
            first = len(running.partitions)
            partition_ids = range(first, first + count)
            keys = [
                self._directories.keys.partition(stream_id, topic_id, partition_id) for partition_id in partition_ids
            ]
            with _storage_errors("create the partitions"):
                for key in keys:
                    self._directories.make_room(key)
                with self._removed_unless_logged(keys):
                    opened = self._opener.open_all(stream_id, topic_id, partition_ids, running.codec)
                    with _dropped_unless_logged(opened):
                        self._commands.log_and_apply(user_id, command, must_be_durable=True)
            running.add_partitions(opened)

    def delete_partitions(self, stream: Identifier, topic: Identifier, count: int, *, user_id: int) -> None:
        command = DeletePartitions(stream, topic, count)
        with self._commands.changing():
            self._metadata.check(user_id, command)
            running = self._topics.find(stream, topic)
            self._commands.log_and_apply(user_id, command, must_be_durable=True)
            for taken in running.take_last_partitions(count):
                taken.drop()
                self._remove(taken.key)

    def log_delete_segments(
        self, stream: Identifier, topic: Identifier, partition_id: int, count: int, *, user_id: int
    ) -> RunningPartition:
        """Logs that segments of the partition are to be deleted. The caller deletes them, outside of the lock."""
        command = DeleteSegments(stream, topic, partition_id, count)
        with self._commands.changing():
            self._metadata.check(user_id, command)
            running = self._topics.find(stream, topic).partition(partition_id)
            self._commands.log_and_apply(user_id, command, must_be_durable=True)
            return running

    # Folders.

    def _remove(self, key: str) -> None:
        """Removes a folder that the state log does not have any more. The next start reports it if that fails."""
        try:
            self._directories.remove(key)
        except OSError as error:
            logger.warning("%s: deleted, but its files stay for now: %s", self._directories.path(key), error)

    @contextmanager
    def _removed_unless_logged(self, keys: Sequence[str]) -> Iterator[None]:
        """Removes new folders again when their entry cannot be logged."""
        try:
            yield
        except (StreamsError, OSError):
            # A stopped state log may still show the entry to the next start, which needs the folders then.
            if self._commands.can_log:
                for key in keys:
                    self._remove(key)
            raise


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

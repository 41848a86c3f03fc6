"""All open topics of a data directory, by the ids of their streams and topics."""

from collections.abc import Iterable

from topics.formats.stream_command import Identifier
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.metadata.metadata import Metadata
from topics.streams.running.running_topic import RunningTopic


class RunningTopics:
    """The caller holds the lock of `Commands`, except to `find` a topic."""

    def __init__(self, metadata: Metadata) -> None:
        self._streams = metadata.streams
        self._topics: dict[int, dict[int, RunningTopic]] = {}

    def find(self, stream: Identifier, topic: Identifier) -> RunningTopic:
        """Any thread may ask, without the lock: a change of another topic may take long. Then it finds a topic as long
        as it exists, and not before its partitions are open."""
        info = self._streams.resolve(stream).topics.resolve(topic)
        try:
            return self._topics[info.stream_id][info.id]
        except KeyError:
            raise StreamsError(StreamStatus.TOPIC_ID_NOT_FOUND, f"topic {topic!r} does not exist") from None

    def of_stream(self, stream_id: int) -> Iterable[RunningTopic]:
        return self._topics[stream_id].values()

    def now(self) -> list[RunningTopic]:
        """All topics. Any thread may ask, without the lock; then a topic that comes or goes meanwhile may be in it."""
        return [topic for topics in list(self._topics.values()) for topic in list(topics.values())]

    def all(self) -> list[RunningTopic]:
        return [topic for topics in self._topics.values() for topic in topics.values()]

    def add_stream(self, stream_id: int) -> None:
        self._topics[stream_id] = {}

    def add(self, topic: RunningTopic) -> None:
        self._topics[topic.info.stream_id][topic.info.id] = topic

    def drop_stream(self, stream_id: int) -> None:
        """Closes all topics of the stream without saving anything."""
        for topic in self._topics.pop(stream_id).values():
            topic.drop()

    def drop(self, stream_id: int, topic_id: int) -> None:
        """Closes the topic without saving anything."""
        self._topics[stream_id].pop(topic_id).drop()

    def drop_all(self) -> None:
        """For a start that fails: nothing was accepted that could be saved."""
        for topic in self.all():
            topic.drop()

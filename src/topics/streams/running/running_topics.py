"""All open topics of a data directory, by the ids of their streams and topics."""

from collections.abc import Iterable

from topics.formats.stream_command import Identifier
from topics.streams.metadata.metadata import Metadata
from topics.streams.running.running_topic import RunningTopic


class RunningTopics:
    """The caller holds the lock of `Commands`."""

    def __init__(self, metadata: Metadata) -> None:
        self._streams = metadata.streams
        self._topics: dict[int, dict[int, RunningTopic]] = {}

    def find(self, stream: Identifier, topic: Identifier) -> RunningTopic:
        info = self._streams.resolve(stream).topics.resolve(topic)
        return self._topics[info.stream_id][info.id]

    def of_stream(self, stream_id: int) -> Iterable[RunningTopic]:
        return self._topics[stream_id].values()

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

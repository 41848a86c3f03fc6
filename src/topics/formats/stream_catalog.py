"""The streams, topics and partitions of a state log, for a program that reads a data directory without the engine.

Only the state log has names; folders have numbers. The index of the entry that created a partition, or purged it last,
is the *epoch* of the partition. An offset of one epoch and the same offset of another epoch are different messages.

Entries are not checked: the engine checked them before it wrote them. Entries about users, tokens and groups are
ignored.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from topics.errors import BadFrame
from topics.formats.state_entry import StateEntry
from topics.formats.stream_command import (
    Command,
    CreatePartitions,
    CreateStream,
    CreateTopic,
    DeletePartitions,
    DeleteStream,
    DeleteTopic,
    Identifier,
    PurgeStream,
    PurgeTopic,
    UpdateStream,
    UpdateTopic,
)


@dataclass(slots=True)
class CatalogTopic:
    id: int
    name: str
    # By the id of the partition.
    epochs: list[int]


@dataclass(slots=True)
class CatalogStream:
    id: int
    name: str
    topics: dict[int, CatalogTopic] = field(default_factory=dict)

    def find(self, identifier: Identifier) -> CatalogTopic | None:
        return _find(self.topics, identifier)


class Catalog:
    """The streams and topics after the last entry that was applied."""

    def __init__(self) -> None:
        self.streams: dict[int, CatalogStream] = {}

    def find(self, identifier: Identifier) -> CatalogStream | None:
        return _find(self.streams, identifier)

    def apply(self, index: int, command: Command) -> None:
        """Raises `BadFrame` if the command names a stream or topic that does not exist."""
        match command:
            case CreateStream():
                self.streams[command.stream_id] = CatalogStream(command.stream_id, command.name)
            case DeleteStream():
                del self.streams[self._stream(index, command.stream_id).id]
            case UpdateStream():
                self._stream(index, command.stream_id).name = command.name
            case PurgeStream():
                for topic in self._stream(index, command.stream_id).topics.values():
                    topic.epochs = [index] * len(topic.epochs)
            case CreateTopic():
                epochs = [index] * command.partitions_count
                topics = self._stream(index, command.stream_id).topics
                topics[command.topic_id] = CatalogTopic(command.topic_id, command.name, epochs)
            case DeleteTopic():
                topic = self._topic(index, command.stream_id, command.topic_id)
                del self._stream(index, command.stream_id).topics[topic.id]
            case UpdateTopic():
                self._topic(index, command.stream_id, command.topic_id).name = command.name
            case PurgeTopic():
                topic = self._topic(index, command.stream_id, command.topic_id)
                topic.epochs = [index] * len(topic.epochs)
            case CreatePartitions():
                topic = self._topic(index, command.stream_id, command.topic_id)
                topic.epochs += [index] * command.partitions_count
            case DeletePartitions():
                topic = self._topic(index, command.stream_id, command.topic_id)
                del topic.epochs[max(0, len(topic.epochs) - command.partitions_count) :]
            case _:
                pass  # Users, tokens, groups, deleted segments.

    def _stream(self, index: int, identifier: Identifier) -> CatalogStream:
        stream = self.find(identifier)
        if stream is None:
            raise BadFrame(f"entry {index} of the state log is about stream {identifier!r}, which does not exist")
        return stream

    def _topic(self, index: int, stream_id: Identifier, identifier: Identifier) -> CatalogTopic:
        topic = self._stream(index, stream_id).find(identifier)
        if topic is None:
            raise BadFrame(f"entry {index} of the state log is about topic {identifier!r}, which does not exist")
        return topic


T = TypeVar("T", CatalogStream, CatalogTopic)


def _find(found: dict[int, T], identifier: Identifier) -> T | None:
    if isinstance(identifier, int):
        return found.get(identifier)
    return next((one for one in found.values() if one.name == identifier), None)


def catalog_of(entries: Iterable[StateEntry]) -> Catalog:
    catalog = Catalog()
    for entry in entries:
        catalog.apply(entry.index, entry.command)
    return catalog

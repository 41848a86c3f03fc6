"""Streams, topics, partitions and segments over the wire."""

from pathlib import Path
from typing import Any

import pytest

from tests.server.streams.peer import Peer, StreamsServer, streams_server
from topics.formats.stream_command import (
    CreatePartitions,
    DeletePartitions,
    DeleteSegments,
    DeleteStream,
    DeleteTopic,
    PurgeStream,
    PurgeTopic,
    UpdateStream,
    UpdateTopic,
)
from topics.formats.stream_permissions import Permissions, StreamPermissions, TopicPermissions
from topics.limits import U64_MAX
from topics.protocol.iggy.answers import PartitionRecord, StreamRecord, TopicRecord
from topics.protocol.iggy.codes import Code
from topics.protocol.iggy.frames import encode_frame
from topics.protocol.iggy.requests import (
    CreateStreamRequest,
    CreateTopicRequest,
    GetStream,
    GetTopic,
    GetTopics,
)


def test_a_stream_is_created_found_renamed_purged_and_deleted(root: Peer, name: str) -> None:
    (created,) = root.get(CreateStreamRequest(name), StreamRecord)
    assert created == StreamRecord(created.id, created.created_at, 0, 0, 0, name)
    assert root.get(GetStream(name), StreamRecord) == root.get(GetStream(created.id), StreamRecord) == [created]
    assert created in root.get(Code.GET_STREAMS, StreamRecord)
    assert root.status(CreateStreamRequest(name)) == 1012
    assert root.status(UpdateStream(name, name)) == 0
    assert root.status(UpdateStream(created.id, name + "-new")) == 0
    assert root.do(GetStream(name)) == b""
    root.create(name)
    assert root.status(UpdateStream(name, name + "-new")) == 1012
    assert root.status(PurgeStream(name)) == 0
    assert root.status(DeleteStream(name)) == 0
    for request in (DeleteStream(name), PurgeStream(name), UpdateStream(name, "x")):
        assert root.status(request) == 1009


def test_a_topic_is_answered_with_its_partitions_and_resolved_values(root: Peer, name: str) -> None:
    root.create(name)
    created = root.get(CreateTopicRequest(name, 2, 1, 0, 0, 0, "t"), TopicRecord, PartitionRecord)
    topic, *partitions = created
    assert topic == TopicRecord(0, topic.created_at, 2, U64_MAX, 1, U64_MAX, 1, 0, 0, "t")
    assert partitions == [PartitionRecord(number, topic.created_at, 0, 0, 0, 0) for number in range(2)]
    root.send(name, "t", [b"abc", b"de"], 1)
    found = root.get(GetTopic(name, 0), TopicRecord, PartitionRecord)
    assert (found[0].size_bytes, found[0].messages_count) == (2 * 64 + 5, 2)
    assert found[2] == PartitionRecord(1, topic.created_at, 1, 1, 133, 2)
    assert root.get(GetTopics(name), TopicRecord) == [found[0]]
    stream, *topics = root.get(GetStream(name), StreamRecord, TopicRecord)
    assert (stream.topics_count, stream.size_bytes, stream.messages_count) == (1, 133, 2)
    assert topics == [found[0]]


def test_what_is_not_there_is_empty_for_gets_and_an_error_for_the_rest(root: Peer, name: str) -> None:
    root.create(name)
    for get in (GetStream("nothing"), GetTopics("nothing"), GetTopic("nothing", 0), GetTopic(name, "nothing")):
        assert root.do(get) == b""
    assert root.get(GetTopics(name), TopicRecord) == []
    options = (1, 0, 0, 0)
    for request, status in (
        (CreateTopicRequest("nothing", 1, *options, "t"), 1009),
        (DeleteTopic(name, "nothing"), 2010),
        (PurgeTopic(name, 7), 2010),
        (UpdateTopic(name, 7, *options, "t"), 2010),
        (CreatePartitions(name, 7, 1), 2010),
        (DeletePartitions("nothing", 7, 1), 1009),
        (DeleteSegments(name, 7, 0, 1), 2010),
    ):
        assert root.status(request) == status


def test_values_of_a_topic_are_checked(root: Peer, name: str) -> None:
    root.create(name, "t")
    for request, status in (
        (CreateTopicRequest(name, 1001, 1, 0, 0, 0, "u"), 2015),
        (CreateTopicRequest(name, 1, 1, 0, 512, 0, "u"), 1019),
        (CreateTopicRequest(name, 1, 1, 0, 0, 0, "t"), 2013),
        (CreatePartitions(name, "t", 0), 2015),
        (CreatePartitions(name, "t", 1001), 2015),
        (DeletePartitions(name, "t", 0), 2015),
        (DeletePartitions(name, "t", 2), 2019),
        (DeleteSegments(name, "t", 1, 1), 3007),
    ):
        assert root.status(request) == status
    # Names and codes that the encoder does not write.
    for code, payload, status in (
        (Code.CREATE_STREAM, b"\0", 4),
        (Code.CREATE_STREAM, b"\2\xff\xff", 3),
        (Code.CREATE_TOPIC, b"\1\4" + bytes(4) + bytes(4) + b"\0" + bytes(17) + b"\1u", 3),
        (Code.CREATE_TOPIC, b"\1\4" + bytes(4) + bytes(4) + b"\5" + bytes(17) + b"\1u", 3),
    ):
        root.write(encode_frame(code, payload))
        assert root.answer() == (status, b"")


def test_a_topic_is_updated_purged_and_deleted(root: Peer, name: str) -> None:
    root.create(name, "t", partitions=3)
    root.send(name, "t", [b"x"], 2)
    assert root.status(UpdateTopic(name, "t", 2, 60_000_000, 0, 3, "u")) == 0
    (topic,) = root.get(GetTopics(name), TopicRecord)
    assert (topic.name, topic.compression, topic.message_expiry, topic.replication_factor) == ("u", 2, 60_000_000, 3)
    assert topic.messages_count == 1
    root.do(PurgeTopic(name, "u"))
    assert root.get(GetTopics(name), TopicRecord)[0].messages_count == 0
    root.do(DeletePartitions(name, "u", 2))
    root.do(CreatePartitions(name, "u", 1))
    assert root.get(GetTopics(name), TopicRecord)[0].partitions_count == 2
    root.do(DeleteTopic(name, "u"))
    assert root.get(GetTopics(name), TopicRecord) == []


def test_algorithms_that_clients_do_not_know_are_told_as_none(root: Peer, name: str) -> None:
    root.create(name)
    for number, told in ((1, 1), (2, 2), (3, 1), (4, 1)):
        topic = root.get(CreateTopicRequest(name, 0, number, 0, 0, 0, f"t{number}"), TopicRecord)[0]
        assert topic.compression == told


def test_sealed_segments_are_deleted_oldest_first(tmp_path: Path) -> None:
    table = {"system": {"segment": {"size": 512}, "partition": {"messages_required_to_save": 1}}}
    with streams_server(tmp_path, table) as served:
        root = served.login()
        root.create("s", "t")
        for number in range(4):
            root.send("s", "t", [b"%d" % number * 600], 0)
        root.do(DeleteSegments("s", "t", 0, 2))
        assert root.poll("s", "t").offsets == [2, 3]
        root.do(DeleteSegments("s", "t", 0, 100))
        assert root.poll("s", "t").offsets == []


# Permissions.

ACTIONS: list[tuple[Any, str]] = [
    (Code.GET_STREAMS, "read_streams"),
    (GetStream(0), "read_streams"),
    (CreateStreamRequest("z"), "manage_streams"),
    (UpdateStream(0, "s"), "manage_streams"),
    (PurgeStream(0), "manage_streams"),
    (GetTopics(0), "read_topics"),
    (GetTopic(0, 0), "read_topics"),
    (CreateTopicRequest(0, 1, 1, 0, 0, 0, "y"), "manage_topics"),
    (UpdateTopic(0, 0, 1, 0, 0, 0, "t"), "manage_topics"),
    (CreatePartitions(0, 0, 1), "manage_topics"),
    (DeletePartitions(0, 0, 1), "manage_topics"),
    (DeleteSegments(0, 0, 0, 1), "manage_topics"),
    (PurgeTopic(0, 0), "manage_topics"),
    (DeleteTopic(0, 0), "manage_topics"),
    (DeleteStream(0), "manage_streams"),
]


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with streams_server(tmp_path_factory.mktemp("users")) as served:
        root = served.login()
        root.create_user("nobody")
        for flag in ("read_streams", "manage_streams", "read_topics", "manage_topics"):
            root.create_user(flag, Permissions(**{flag: True}))
        yield served


def test_a_command_needs_one_of_its_flags(users: StreamsServer) -> None:
    root = users.login()
    root.create("s", "t", partitions=2)
    nobody = users.login("nobody", "nobody")
    for request, flag in ACTIONS:
        assert nobody.status(request) == 41, request
        allowed = users.login(flag, flag)
        assert allowed.status(request) == 0, request
        allowed.close()


def test_flags_for_one_stream_or_topic_are_for_nothing_else(streams: StreamsServer, root: Peer, name: str) -> None:
    for each in ("a", "b"):
        root.create(name + each, "t", "u")
    stream_id = root.get(GetStream(name + "a"), StreamRecord, TopicRecord)[0].id
    topics = {1: TopicPermissions(read_topic=True)}
    root.create_user(name, Permissions(streams={stream_id: StreamPermissions(read_stream=True, topics=topics)}))
    reader = streams.login(name, name)
    assert reader.status(GetStream(name + "a")) == 0
    assert reader.status(GetStream(name + "b")) == 41
    assert reader.status(GetTopic(name + "a", 0)) == 0
    assert reader.status(DeleteTopic(name + "a", 0)) == 41
    root.create_user(name + "t", Permissions(streams={stream_id: StreamPermissions(topics=topics)}))
    of_topic = streams.login(name + "t", name + "t")
    assert of_topic.status(GetTopic(name + "a", 1)) == 0
    assert of_topic.status(GetTopic(name + "a", 0)) == 41
    # What does not exist is told before permissions are checked.
    assert of_topic.do(GetTopic(name + "a", 9)) == b""
    assert of_topic.status(DeleteTopic(name + "a", 9)) == 2010
